"""A fitted model on a store: everything that is built on the store protocol, for every store."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from diptych._checks import TASKS, InputError, Task, UnavailableError
from diptych._progress import progress_bar
from diptych.cca._projector import UNCORRECTED
from diptych.retrieval._calibration import BEST, Calibration, TaskCalibration
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._filters import Filter
from diptych.retrieval._fitted import Fitted, compose
from diptych.retrieval._inputs import NewItems, Queries, QueryPart, Search, encode_items, read_queries
from diptych.retrieval._items import QUERIED, TASK_OF, VIEWS, Hit, Hits, Item, View
from diptych.retrieval._placing import (
    FEWEST,
    Offset,
    add_coordinate,
    add_offset,
    choose_offset,
    is_caption,
)
from diptych.retrieval.stores._base import (
    Block,
    Change,
    Contents,
    Floats,
    Listing,
    Matches,
    ModelChanged,
    RefusedError,
    Store,
    TakenError,
)

T = TypeVar("T")

BLOCK = 4096
"""Items that are embedded at a time."""

COMPARED = 100
"""Items that are compared without their partners when similar ones are searched."""

_SAMPLE = 4000  # captions from which an offset is estimated


class Searcher:
    """A fitted model, its encoders and a store that holds its vectors.

    It never changes its model. When a shared store holds another model, because another process has fitted
    or refitted, methods raise ``ModelChanged`` and the owner loads a new ``Searcher``. ``version`` is that of
    the model in the store.
    """

    def __init__(self, fitted: Fitted, store: Store, encoders: Encoders, version: str = "") -> None:
        self.fitted, self.projectors = fitted, fitted.projectors
        self.store, self.encoders, self.version = store, encoders, version
        self._estimated: dict[Task, tuple[int, Offset | None]] = {}

    def is_outdated(self) -> bool:
        """Return whether a shared store holds another model now."""
        return self.store.shared and self.store.state().version != self.version

    def read_queries(self, view: View, queries: Any, parts: Sequence[tuple[Any, float]] = ()) -> Queries:
        """Return queries of a view as features; see ``read_queries`` of the module ``_inputs``."""
        return read_queries(self.encoders, view, queries, self.fitted.layout, parts)

    def search(self, search: Search) -> list[Hits] | Hits:
        """Return the best items for one query, or a list of these for several."""
        queries = self.read_queries(search.view, search.query, search.parts)
        if search.view == search.searched and not queries.single:
            raise InputError("similar takes one item at a time; call it for each.")
        calibration = self._calibration(search)
        vectors = self._embed(search, queries)
        offset = self._find_offset(search)
        k = search.offset + search.k + 1  # one more tells whether there are others
        where, depth = self._filter(search.searched, search.where), k if calibration is None else BEST
        asked = add_offset(vectors, offset)
        if search.min_probability is not None:
            k = max(k, BEST)  # between items of two kinds, probabilities may rise with the rank
        by_items = all(view == search.searched for view in (search.view, *(p.view for p in queries.parts)))
        if by_items:
            k = max(k, COMPARED)
        matches = self.store.search(search.task, asked, k, where, self.version, depth)
        scores = self.projectors[search.task].scores(matches.products, vectors)
        if by_items:
            matches, scores = self._compare_alone(search, vectors, matches, scores)
        results = _SearchResults(matches, scores, calibration, offset).list_hits(
            search, queries.ignored_words
        )
        return results[0] if queries.single else results

    def add(
        self,
        items: Mapping[View, Sequence[Item]],
        features: Mapping[View, Floats],
        *,
        in_place: bool = False,
    ) -> None:
        """Add items with their features, all or none; ``in_place``: of those with their ids.

        Stored images of the texts get another place.
        """
        images, texts = (items.get(view, ()) for view in VIEWS)
        new = {item.id for item in (*images, *texts)}
        previous = list(self.store.items("text", ids=[text.id for text in texts])) if in_place else []
        moved = {text.image for text in (*texts, *previous) if text.image is not None} - new
        stored: dict[View, list[Item]] = {
            "image": [] if not moved else list(self.store.items("image", ids=sorted(moved))),
            "text": [text for text in self._captions_of(images) if text.id not in new] if in_place else [],
        }
        blocks = []
        for view, other in (VIEWS, VIEWS[::-1]):
            if items.get(view):
                partners, rows = self._read_kept(other, stored[other])
                if items.get(other):
                    partners, rows = [*partners, *items[other]], [*rows, *features[other]]
                blocks.append(self._block(view, items[view], features[view], partners, rows))
        if blocks:
            self.store.add(blocks, self.version, replace=in_place)
            self._place_again(moved)

    def add_new(
        self, new: NewItems, features: Mapping[View, Floats], *, in_place: bool = False
    ) -> dict[View, list[Item]]:
        """Add what a user gave; return the items, those without an id with a number."""
        previous = None
        while True:
            items = new.make(self._unused_ids(), self.encoders.inputs)
            try:
                self.add(items, features, in_place=in_place)
                return items
            except TakenError:
                if items == previous:
                    raise
                previous = items  # another process may have used these numbers: try the next ones

    def without_stored(self, new: NewItems) -> NewItems:
        """Leave out what a user gave with an id that is stored already."""
        items = new.make(self._unused_ids(), self.encoders.inputs)
        ids = [item.id for some in items.values() for item in some]
        stored = {item.id for item in self.store.items(ids=ids)}
        rows = {
            view: [row for row, item in enumerate(some) if item.id not in stored]
            for view, some in items.items()
        }
        return replace(new, rows=rows)

    def update(self, item: Item, change: Change, features: Floats | None) -> Item:
        """Change an item, with other features if it has other content; see ``Store.update``."""
        content = None
        if features is not None:
            other = VIEWS[item.view == "image"]
            stored = self._captions_of([item]) if other == "text" else self._image_of(item)
            content = self._block(item.view, [item], features, *self._read_kept(other, stored))
        updated = self.store.update([item.id], change, self.version, content)[0]
        if features is not None and item.image is not None:
            self._place_again([item.image])
        return updated

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items, and with an image its captions; return how many. Images that lose captions move."""
        images = {item.image for item in self.store.items("text", ids=ids) if item.image is not None}
        removed = self.store.remove(ids)
        self._place_again(images.difference(ids))
        return removed

    def list_items(
        self, listing: Listing, where: Filter | Callable[[Item], bool] | None
    ) -> tuple[list[Item], int]:
        """Return a page of the items that pass a filter, and how many there are on all pages."""
        return self.store.page(replace(listing, where=self._filter(listing.view, where)))

    def features_of(self, view: View, items: Sequence[Item]) -> Floats:
        """Return the features of stored items: as they are kept, or encoded again."""
        kept = self.store.features(view, [item.id for item in items])
        return encode_items(self.encoders, view, items) if kept is None else kept

    def replace_model(self, make: Callable[[], Fitted]) -> Searcher:
        """Put another model of the same features in place of this one, and embed all items again.

        ``make`` is called once no other process writes.
        """
        new = self

        def fill() -> Contents:
            nonlocal new
            new = Searcher(make(), self.store, self.encoders)
            return new._contents(new._stored_blocks(), new._stored_sample, self.store.keeps_features)

        store = self.store.replace(fill, self.version)
        return Searcher(new.fitted, store, self.encoders)

    def recalibrate(self, calibration: Calibration, offsets: Mapping[Task, Offset]) -> Searcher:
        """Return the same model with other probabilities and offsets; in a shared store, as a new version."""
        fitted = replace(self.fitted, calibration=calibration, offsets=offsets)
        new = Searcher(fitted, self.store, self.encoders)

        def make() -> Contents:
            blocks = (block for task in TASKS for block in self.store.vectors(task, self.version))
            return new._contents(blocks, new._stored_sample, self.store.keeps_features, same_vectors=True)

        if self.store.shared:
            self.store.replace(make, self.version)
        return new

    @classmethod
    def fill(
        cls,
        store: Store,
        fitted: Fitted,
        encoders: Encoders,
        items: Mapping[View, Sequence[Item]],
        features: Mapping[View, Floats],
        keep_features: bool,
        verbose: bool | None = None,
    ) -> Searcher:
        """Put a fitted model and new items with their features into a store, in place of what it holds."""
        new = cls(fitted, store, encoders)

        def blocks(progress: Callable[[float], None]) -> Iterator[Block]:
            done, total = 0, sum(map(len, items.values()))
            rows_of = _match_partners(items)
            for view, other in (VIEWS, VIEWS[::-1]):
                for start in range(0, len(items.get(view, ())), BLOCK):
                    some = items[view][start : start + BLOCK]
                    rows = np.asarray(features[view][start : start + BLOCK], np.float32)
                    places = sorted({row for item in some for row in rows_of[view].get(item.id, ())})
                    partners = [items[other][row] for row in places]
                    yield new._block(view, some, rows, partners, features[other][places] if places else ())
                    done += len(some)
                    progress(done / total)

        def sample(view: View, n: int) -> Floats | None:
            return features[view][:n] if len(items.get(view, ())) else None

        with progress_bar("indexing", verbose) as progress:
            store = store.replace(lambda: new._contents(blocks(progress), sample, keep_features))
        return cls(fitted, store, encoders)

    def _unused_ids(self) -> Iterator[str]:
        """Iterate over ids for items without one, none of which is in the store."""
        numbers = itertools.count(self.store.state().added)
        while True:
            ids = [f"item-{number}" for number in itertools.islice(numbers, 256)]
            taken = {item.id for item in self.store.items(ids=ids)}
            yield from (item_id for item_id in ids if item_id not in taken)

    def _contents(
        self,
        blocks: Iterator[Block],
        sample: Callable[[View, int], Floats | None],
        keep_features: bool,
        same_vectors: bool = False,
    ) -> Contents:
        from diptych.retrieval._folder import write_model

        fitted, projectors = self.fitted, self.projectors

        def sample_queries(task: Task, n: int) -> Floats | None:
            features = sample(QUERIED[task], n)
            return None if features is None else add_offset(projectors[task].queries(features), 0.0)

        def report_recall(task: Task, recall: float) -> None:
            fitted.facts.setdefault("graph_recall", {})[task] = recall

        return Contents(
            {task: projectors[task].dimension + 1 for task in TASKS},
            {view: fitted.width(view) for view in VIEWS},
            keep_features,
            same_vectors,
            blocks,
            sample_queries,
            report_recall,
            lambda folder: write_model(folder, self, keep_features),
        )

    def _block(
        self,
        view: View,
        items: Sequence[Item],
        features: Floats,
        partners: Sequence[Item] = (),
        partner_features: Sequence[Floats] | Floats = (),
    ) -> Block:
        """Return items with their vectors, placed by those of the other view that belong to them."""
        number = {image.id: row for row, image in enumerate(items if view == "image" else partners)}
        texts = enumerate(partners if view == "image" else items)
        pairs = [
            (number[text.image], row) for row, text in texts if text.image in number and is_caption(text)
        ]
        rows = np.array(pairs, np.int64).reshape(-1, 2)
        if view == "text":
            rows = rows[:, ::-1]
        projector, is_paired = self.projectors[TASK_OF[view]], np.zeros(len(items), bool)
        is_paired[rows[:, 0]] = True
        if len(rows):
            others = np.asarray(partner_features, np.float32)[rows[:, 1]]
            vectors = projector.items(features, others, rows[:, 0])
        else:
            vectors = projector.items(features)
        return Block(view, items, add_coordinate(vectors, is_paired), np.asarray(features, np.float32))

    def _captions_of(self, images: Sequence[Item]) -> list[Item]:
        return list(self.store.items("text", images=[image.id for image in images])) if images else []

    def _image_of(self, text: Item) -> list[Item]:
        return [] if text.image is None else list(self.store.items("image", ids=[text.image]))

    def _read_kept(
        self, view: View, items: Sequence[Item]
    ) -> tuple[Sequence[Item], Sequence[Floats] | Floats]:
        """Return stored items with their features; none where these are not kept."""
        kept = self.store.features(view, [item.id for item in items]) if items else None
        return ((), ()) if kept is None else (items, kept)

    def _place_again(self, images: Iterable[str | None]) -> None:
        """Put images where they and the captions lie that they have now, if features are kept.

        Otherwise they move with the next refit, as they do when another process replaces the model now.
        """
        ids = sorted(map(str, images)) if self.store.keeps_features else []
        for start in range(0, len(ids), BLOCK):
            stored = list(self.store.items("image", ids=ids[start : start + BLOCK]))
            captions, rows = self._read_kept("text", self._captions_of(stored))
            some, features = self._read_kept("image", stored)
            if some:
                block = self._block("image", some, np.asarray(features), captions, rows)
                some_ids = [image.id for image in some]
                try:
                    self.store.update(some_ids, lambda item: item, self.version, block)
                except ModelChanged:
                    return
                except InputError:  # another process has just removed one: its captions are gone too
                    if len(list(self.store.items("image", ids=some_ids))) == len(some):
                        raise

    def _stored_blocks(self) -> Iterator[Block]:
        captions = defaultdict[str, list[str]](list)
        for text in filter(is_caption, self.store.items("text")):
            captions[str(text.image)].append(text.id)
        for view, other in (VIEWS, VIEWS[::-1]):
            for items in batches(self.store.items(view)):
                if view == "image":
                    ids = [caption for image in items for caption in captions.get(image.id, ())]
                else:
                    ids = sorted({str(text.image) for text in items if is_caption(text)})
                partners = list(self.store.items(other, ids=ids)) if ids else []
                rows = self.features_of(other, partners) if partners else ()
                yield self._block(view, items, self.features_of(view, items), partners, rows)

    def _stored_sample(self, view: View, n: int) -> Floats | None:
        items = list(itertools.islice(self.store.items(view), n))
        return self.features_of(view, items) if items else None

    def _filter(self, view: View | None, where: Filter | Callable[[Item], bool] | None) -> Filter | None:
        if callable(where):
            return Filter(frozenset(item.id for item in self.store.items(view) if where(item)))
        return where

    def _calibration(self, search: Search) -> TaskCalibration | None:
        """Return the calibration of a search; None if the model has none that was measured for it."""
        calibration = self.fitted.calibration
        if search.min_probability is not None and isinstance(calibration, str):
            raise InputError(
                f"this model has no probabilities, because {calibration}; leave out min_probability."
            )
        if search.min_probability is not None and not search.is_plain:
            raise InputError(
                "probabilities were measured for plain queries, not for composed ones or a part of a "
                "fusion; leave out min_probability."
            )
        return calibration[search.task] if search.is_plain and not isinstance(calibration, str) else None

    def _embed(self, search: Search, queries: Queries) -> Floats:
        """Return the vectors of queries, with their parts added to a single one.

        What is of the searched view enters by its vector as an item.
        """
        projector, task, vectors = self.projectors[search.task], search.task, []
        for part in (QueryPart(search.view, queries.features), *queries.parts):
            if part.view == QUERIED[task]:
                rows = projector.queries(part.features)
            else:
                rows = projector.as_queries(projector.items(part.features))
            vectors.append(projector.restrict(rows, search.weighting))
        if not queries.parts:
            return vectors[0]
        return compose(projector, np.concatenate(vectors), [1.0, *(part.weight for part in queries.parts)])

    def _compare_alone(
        self, search: Search, query: Floats, matches: Matches, scores: Floats
    ) -> tuple[Matches, Floats]:
        """Order the nearest items of one item or a sum of items again, by their features without partners.

        So an image is most similar to itself and to images that look alike, whoever has captions.
        """
        records, projector = list(matches.records[0][:COMPARED]), self.projectors[search.task]
        kept = self._read_kept(search.searched, [matches.make_item(record) for record in records])[1]
        if not len(kept):
            return matches, scores
        products = query @ projector.items(kept).T
        scores = scores.copy()
        scores[:, : len(records)] = projector.scores(products, query)
        order = np.argsort(-scores[0, : len(records)], kind="stable")
        scores[0, : len(records)] = scores[0, order]
        rest = matches.records[0][COMPARED:]
        ordered = [[records[at] for at in order.tolist()] + list(rest)]
        return Matches(matches.products, ordered, matches.make_item, matches.read_last), scores

    def _find_offset(self, search: Search) -> float:
        """Return what a search subtracts from the scores of items with partners.

        A model that was not fitted on pairs estimates it from what is stored, again when that has doubled.
        """
        task, store = search.task, self.store
        if search.view == search.searched:
            return 0.0
        n_paired, n_alone = store.count_kinds(search.searched)
        offset = self.fitted.offsets.get(task)
        if offset is None and n_paired and store.keeps_features:
            at, offset = self._estimated.get(task, (0, None))
            if n_paired >= 2 * at:
                offset = self._estimate_offset(task)
                self._estimated[task] = n_paired, offset
        if offset is None:
            return 0.0
        level = offset.compute(n_paired, n_alone)
        if search.weighting in (None, UNCORRECTED):
            return level
        return level / sum(part.weight for part in self.projectors[task].parts)

    def _estimate_offset(self, task: Task) -> Offset | None:
        """Return an offset from stored images with captions."""
        texts = list(itertools.islice(filter(is_caption, self.store.items("text")), _SAMPLE))
        images = list(self.store.items("image", ids=sorted({str(text.image) for text in texts})))
        number = {image.id: row for row, image in enumerate(images)}
        texts = [text for text in texts if text.image in number]
        rows: dict[View, Any] = {
            "image": self._read_kept("image", images)[1],
            "text": self._read_kept("text", texts)[1],
        }
        if len(rows["image"]) < FEWEST or len(rows["text"]) != len(texts):
            return None
        owners = np.array([number[str(text.image)] for text in texts])
        return choose_offset(self.projectors[task], rows, {"image": np.arange(len(images)), "text": owners})


def _match_partners(items: Mapping[View, Sequence[Item]]) -> dict[View, dict[str, list[int]]]:
    """Return the rows of the captions of each image, and the row of the image of each caption."""
    number = {image.id: row for row, image in enumerate(items.get("image", ()))}
    rows: dict[View, dict[str, list[int]]] = {"image": defaultdict(list), "text": {}}
    for row, text in enumerate(items.get("text", ())):
        if text.image in number and is_caption(text):
            rows["image"][text.image].append(row)
            rows["text"][text.id] = [number[text.image]]
    return rows


@dataclass(frozen=True, eq=False)
class _SearchResults:
    """What a search found for all of its queries, from which hits are made when they are read."""

    matches: Matches
    scores: Floats
    calibration: TaskCalibration | None
    offset: float

    @cached_property
    def probabilities(self) -> Floats | None:
        """The probability of every hit, if there is a calibration."""
        if self.calibration is None:
            return None
        paired = self.matches.read_last() < 0
        return self.calibration.probabilities(self.scores.astype(np.float64), paired, self.offset)

    def list_hits(self, search: Search, ignored_words: Sequence[tuple[str, ...]]) -> list[Hits]:
        """Return the hits of each query that are asked for."""
        results, end, least = [], search.offset + search.k, search.min_probability
        for query, (records, words) in enumerate(zip(self.matches.records, ignored_words, strict=True)):
            chosen: Sequence[int] = range(len(records))
            if least is not None and self.probabilities is not None:
                chosen = np.flatnonzero(self.probabilities[query, : len(records)] >= least).tolist()
            page = chosen[search.offset : end]
            results.append(Hits.deferred(partial(self._make_hit, query), page, words, len(chosen) > end))
        return results

    def _make_hit(self, query: int, place: int) -> Hit:
        item = self.matches.make_item(self.matches.records[query][place])
        likely = None if self.probabilities is None else float(self.probabilities[query, place])
        return Hit(item, float(self.scores[query, place]), likely)


def batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(itertools.islice(items, BLOCK)):
        yield batch


class CurrentModel:
    """The model that a retriever works with; of a shared store, the one that it held when last read."""

    def __init__(self) -> None:
        self.searcher: Searcher | None = None
        self._refused = ""  # the version in a shared store that this retriever has no encoders for
        self._loading = threading.RLock()

    @property
    def version(self) -> str:
        """The version of the model in a shared store, as last seen."""
        return self._refused or ("" if self.searcher is None else self.searcher.version)

    def get(self) -> Searcher:
        """Return it as last read."""
        if self.searcher is None:
            raise InputError("this retriever is not fitted; call fit(), or load a saved one.")
        return self.searcher

    def read(self) -> Searcher:
        """Return it as it is now."""
        searcher = self.get()
        if searcher.is_outdated():
            self._load(searcher, uses_encoders=True)
        return self.get()

    def use(self, searcher: Searcher) -> None:
        """Use a model from now on that was just put into a store; read it if its version is not known."""
        self.searcher, self._refused = searcher, ""
        if searcher.store.shared and not searcher.version:
            self._load(searcher, uses_encoders=True)

    def run(self, action: Callable[[Searcher], T], *, uses_encoders: bool) -> T:
        """Do something with the model; again if another process has put another model in the store.

        Without ``uses_encoders`` the action uses features, and a model with other encoders is an error.
        """
        while True:
            searcher = self.get()
            try:
                return action(searcher)
            except ModelChanged:
                pass
            except (UnavailableError, RefusedError):
                raise
            except InputError:  # features of another width may be meant for the new model
                if not searcher.is_outdated():
                    raise
            self._load(searcher, uses_encoders)

    def _load(self, outdated: Searcher, uses_encoders: bool) -> None:
        """Load the model that a shared store holds now in place of an outdated one."""
        with self._loading:
            if self.searcher is not outdated:  # another thread has done it
                return
            from diptych.retrieval._folder import load_from_store

            encoders = outdated.encoders
            try:
                loaded = load_from_store(outdated.store, opened=encoders)
            except (UnavailableError, RefusedError):
                raise
            except (InputError, OSError) as error:
                raise UnavailableError(
                    f"another process has put a model in place that cannot be read: {error}"
                ) from None
            same = loaded.has_encoders(encoders)
            if not same and not uses_encoders:
                self._refused = loaded.version
                raise UnavailableError(
                    "another process has fitted this index on features of other encoders; open it again, "
                    "and pass features of those."
                )
            if not same or encoders.views != loaded.views:
                encoders = loaded.encoders(*(encoders.match_open(view, loaded.records) for view in VIEWS))
            self.searcher, self._refused = loaded.searcher(encoders), ""
