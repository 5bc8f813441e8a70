"""A fitted model on a store: everything that is built on the store protocol, for every store."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from diptych._checks import TASKS, InputError, Task, check_pairing, count, plural, with_article
from diptych._threads import progress_bar
from diptych.cca._moments import Moments
from diptych.cca._weighting import check_weighting
from diptych.fusion._fitted import FittedFusion
from diptych.retrieval._calibration import BEST, HELD_OUT, KNOWN, Calibration, HeldOut, TaskCalibration
from diptych.retrieval._embedding import (
    CanonicalEmbedding,
    Embedding,
    FusedEmbedding,
    OtherWeighting,
    compose,
    embedding_of,
)
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._filters import Filter, Where, check_metadata_keys, parse_filter
from diptych.retrieval._fitted import Fitted
from diptych.retrieval._inputs import QueryPart, encode_items
from diptych.retrieval._items import (
    QUERIED,
    SEARCHED,
    TASK_OF,
    VIEWS,
    Hit,
    Hits,
    Item,
    Pack,
    View,
    unknown_item,
)
from diptych.retrieval.stores._base import Block, Contents, Floats, ModelChanged, State, Store
from diptych.retrieval.stores._faiss import VectorIndex
from diptych.retrieval.stores._memory import ItemTable

T = TypeVar("T")
Matches: TypeAlias = list[list[tuple[Item, float]]]
WriteModel: TypeAlias = Callable[[Fitted, Path], None]
"""Writes a model's files to a folder, for a shared store."""

BLOCK = 4096
"""Items that are embedded at a time."""

_DERIVED = 8  # packs and other weightings whose vectors are kept in memory


@dataclass(frozen=True, eq=False)
class _Packs:
    """One vector for each image that has captions, under its place in ``images``."""

    images: list[str]
    captions: list[list[str]]
    index: VectorIndex


class Searcher:
    """A fitted model, its encoders and a store that holds its vectors.

    It never changes its model. When a shared store holds another model, because another process has fitted
    or refitted, methods raise ``ModelChanged`` and the owner loads a new ``Searcher``. ``version`` is that of
    the model in the store.
    """

    def __init__(self, fitted: Fitted, store: Store, encoders: Encoders, version: str = "") -> None:
        self.fitted, self.embedding = fitted, embedding_of(fitted.core, encoders.views)
        self.store, self.encoders, self.version = store, encoders, version
        self._derived: dict[Any, tuple[State, Any]] = {}
        self._deriving = threading.Lock()

    def is_outdated(self) -> bool:
        """Return whether a shared store holds another model now."""
        return self.store.shared and self.store.state().version != self.version

    def search(
        self,
        task: Task,
        features: Floats,
        k: int,
        where: Where | None = None,
        weighting: OtherWeighting | None = None,
        min_probability: float | None = None,
        *,
        offset: int = 0,
        parts: Sequence[QueryPart] = (),
    ) -> list[Hits]:
        """Return the k best items of a task for each query, given by its features, from ``offset`` on.

        With ``min_probability``, only those that are at least so likely to be right. ``parts`` are added to a
        single query.
        """
        end = _check_page(k, offset)
        chosen, embedding = self._filter(SEARCHED[task], where), self.embedding
        if isinstance(embedding, CanonicalEmbedding):
            if weighting is not None:
                check_weighting(weighting)
            if weighting == embedding.weighting:
                weighting = None
        calibration = self._calibration(task, weighting is None and not parts, min_probability)
        if isinstance(embedding, CanonicalEmbedding) and weighting is not None:
            reweight = partial(self._reweight, embedding, task, weighting)
            other, items, index = self._derive((task, weighting), reweight)
            queries = _embed(other, task, QUERIED[task], features, parts)
            matches = self._search_derived(task, items, index, queries, end, chosen)
            return [hits.page(offset, k) for hits in self._hits(queries, matches)]
        queries = _embed(embedding, task, QUERIED[task], features, parts, weighting)
        depth = end if calibration is None else max(end, BEST)
        matches = self.store.search(task, queries, depth, chosen, self.version)
        results = self._hits(queries, matches, end, calibration)
        if min_probability is not None:
            for hits in results:
                hits[:] = [hit for hit in hits if hit.probability >= min_probability]  # type: ignore[operator]
        return [hits.page(offset, k) for hits in results]

    def similar(
        self,
        view: View,
        features: Floats,
        k: int,
        where: Where | None = None,
        *,
        offset: int = 0,
        parts: Sequence[QueryPart] = (),
    ) -> list[Hits]:
        """Return the k items of a view that are most similar to others of that view, from ``offset`` on."""
        end, task = _check_page(k, offset), TASK_OF[view]
        queries = _embed(self.embedding, task, view, features, parts)
        matches = self.store.search(task, queries, end, self._filter(view, where), self.version)
        return [hits.page(offset, k) for hits in self._hits(queries, matches)]

    def packs(self, features: Floats, k: int, offset: int = 0) -> list[list[Pack]]:
        """Return the k images whose captions, as a whole, are best for each image query."""
        end = _check_page(k, offset) - 1
        packs = self._derive("packs", self._make_packs)
        queries = self.embedding.queries(features, "annotate")
        inner, places = packs.index.search(queries, min(end, len(packs.images)))
        scores = self.embedding.scores(inner, queries)
        return [
            self._rank_captions(packs, queries[i : i + 1], own[offset:], values[offset:])
            for i, (own, values) in enumerate(zip(places.tolist(), scores.tolist(), strict=True))
        ]

    def add(self, items: Mapping[View, Sequence[Item]], features: Mapping[View, Floats], keep: bool) -> None:
        """Add items with their features, all of them or none."""
        self.store.add(
            [self._block(view, own, features[view], keep) for view, own in items.items()], self.version
        )

    def unused_ids(self) -> Iterator[str]:
        """Iterate over ids for items without one, none of which is in the store."""
        numbers = itertools.count(self.store.state().added)
        while True:
            ids = [f"item-{number}" for number in itertools.islice(numbers, 256)]
            taken = {item.id for item in self.store.items(ids=ids)}
            yield from (item_id for item_id in ids if item_id not in taken)

    def features_of(self, view: View, items: Sequence[Item]) -> Floats:
        """Return the features of stored items: as they are kept, or encoded again."""
        kept = self.store.features(view, [item.id for item in items])
        return encode_items(self.encoders, view, items) if kept is None else kept

    def new_moments(self) -> Moments:
        """Return the moments of the pairs that were added since the model was fitted."""
        if self.fitted.load_moments is None:
            raise InputError(
                "the moments of this model's training pairs are not known, so it cannot be refitted; fit it "
                "again on all pairs."
            )
        moments = Moments.zero(*self.embedding.moment_widths(), precision=self.fitted.core.precision)
        for captions in _batches(
            item for item in self.store.items("text", new=True) if item.image is not None
        ):
            images = list(self.store.items("image", ids=sorted({str(caption.image) for caption in captions})))
            rows = {image.id: row for row, image in enumerate(images)}
            paired = [caption for caption in captions if caption.image in rows]
            if paired:
                x, y = self.features_of("image", images), self.features_of("text", paired)
                pairing = np.array([rows[str(caption.image)] for caption in paired])
                moments += self.embedding.moments(x, y, pairing)
        return moments

    def refit(self, validation: tuple[Any, ...] | None, write_model: WriteModel) -> tuple[Fitted, Store]:
        """Fit the model on the pairs added since as well; return it, and the store with new vectors."""
        from diptych.retrieval._fit import refit_model

        fitted = self.fitted
        if validation is not None and isinstance(fitted.core, FittedFusion):
            raise InputError(
                "the parts and weights of a fusion cannot be selected again in a refit; leave out "
                "validation, or fit it again on all pairs."
            )

        def make() -> Contents:
            nonlocal fitted
            new_moments, held_out = self.new_moments(), self._find_held_out(validation)
            fitted = refit_model(self.fitted, new_moments, validation, held_out, self.encoders.views)
            new = Searcher(fitted, self.store, self.encoders)
            return new._contents(
                new._stored_blocks(), new._stored_sample, self.store.keeps_features, write_model
            )

        store = self.store.replace(make, self.version)
        return fitted, store

    def recalibrate(self, calibration: Calibration, write_model: WriteModel) -> tuple[Fitted, Store]:
        """Return the model with other probabilities, and the store to use."""
        fitted = replace(self.fitted, calibration=calibration)
        if not self.store.shared:
            return fitted, self.store
        new = Searcher(fitted, self.store, self.encoders)

        def make() -> Contents:
            blocks = (block for task in TASKS for block in self.store.vectors(task, self.version))
            return new._contents(blocks, new._stored_sample, self.store.keeps_features, write_model)

        return fitted, self.store.replace(make, self.version)

    def _find_held_out(self, validation: tuple[Any, ...] | None) -> HeldOut | None:
        """Return pairs to measure probabilities on after a refit.

        They are the given ones, the stored validation pairs, or where a refit learns from those, or there are
        none, a share of the stored pairs that it learns from. None if features are not kept.
        """
        captions = [item for item in self.store.items("text") if item.image is not None]
        training = [item for item in captions if item.metadata.get("split") in (None, "train")]
        if validation is not None:
            x, y, *rest = validation
            pairs = np.asarray(x), np.asarray(y), check_pairing(rest[0] if rest else None, len(x), y)
            return HeldOut("the validation pairs that refit was given", pairs, self._sample_known(training))
        if not self.store.keeps_features:
            return None
        core, known = self.fitted.core, self.fitted.facts.get("pairs", {}).get("val")
        new = {item.id for item in self.store.items("text", new=True)}
        own = [item for item in captions if item.metadata.get("split") == "val" and item.id not in new]
        learned = isinstance(core, FittedFusion) and core.selection_["refitted"]
        if learned and own:
            found = self._hold_out("the stored val split", own, training)
            return found and found._replace(learned=self.embedding.moments(*found.pairs))
        if (
            not learned and known is not None and 0 < len(own) <= known[1]
        ):  # more: some were added later, and learned
            return self._hold_out("the stored val split", own, training)
        if isinstance(core, FittedFusion) and not learned:  # which pairs it has not learned from is not known
            return None
        images = sorted({str(item.image) for item in training})
        chosen = np.random.default_rng(0).permutation(len(images))[: min(HELD_OUT, len(images) // 5)]
        held = {images[at] for at in chosen.tolist()}
        if not held:
            return None
        parts = [[item for item in training if (item.image in held) == inside] for inside in (True, False)]
        found = self._hold_out("some of the training pairs, without which it was fitted for this", *parts)
        return found and found._replace(learned=self.embedding.moments(*found.pairs))

    def _hold_out(self, on: str, held_out: Sequence[Item], others: Sequence[Item]) -> HeldOut | None:
        """Return the pairs of some captions and their images, and some features of others."""
        images = sorted({str(caption.image) for caption in held_out})
        rows = {image: row for row, image in enumerate(images)}
        x = self.store.features("image", images)
        y = self.store.features("text", [caption.id for caption in held_out])
        if x is None or y is None:
            return None
        names, pairing = self.encoders.views, np.array([rows[str(caption.image)] for caption in held_out])
        sizes = count(len(images), names.image), count(len(held_out), names.caption)
        return HeldOut(f"{on} ({', '.join(sizes)})", (x, y, pairing), self._sample_known(others))

    def _sample_known(self, captions: Sequence[Item]) -> tuple[Floats, Floats] | None:
        """Return features of some captions and of their images; None if they are not kept."""
        some = captions[:: max(1, -(-len(captions) // KNOWN))]
        x = self.store.features("image", sorted({str(caption.image) for caption in some}))
        y = self.store.features("text", [caption.id for caption in some])
        return None if not some or x is None or y is None else (x, y)

    @classmethod
    def fill(
        cls,
        store: Store,
        fitted: Fitted,
        encoders: Encoders,
        items: Mapping[View, Sequence[Item]],
        features: Mapping[View, Floats],
        keep: bool,
        write_model: WriteModel,
    ) -> Store:
        """Put a fitted model and new items with their features into a store; return the store to use."""
        new = cls(fitted, store, encoders)

        def blocks(progress: Callable[[float], None]) -> Iterator[Block]:
            done, total = 0, sum(map(len, items.values()))
            for view in VIEWS:
                own = items.get(view, ())
                for start in range(0, len(own), BLOCK):
                    some = slice(start, start + BLOCK)
                    yield new._block(view, own[some], np.asarray(features[view][some], np.float32), keep)
                    done += len(own[some])
                    progress(done / total)

        def sample(view: View, n: int) -> Floats | None:
            return features[view][:n] if len(items.get(view, ())) else None

        with progress_bar("indexing", getattr(fitted.model, "verbose", None)) as progress:
            return store.replace(lambda: new._contents(blocks(progress), sample, keep, write_model))

    def _contents(
        self,
        blocks: Iterator[Block],
        sample: Callable[[View, int], Floats | None],
        keep: bool,
        write_model: WriteModel,
    ) -> Contents:
        fitted, embedding = self.fitted, self.embedding

        def sample_queries(task: Task, n: int) -> Floats | None:
            features = sample(QUERIED[task], n)
            return None if features is None else embedding.queries(features, task)

        def report_recall(task: Task, recall: float) -> None:
            fitted.facts.setdefault("graph_recall", {})[task] = recall

        return Contents(
            {task: embedding.dimension(task) for task in TASKS},
            {view: embedding.features(view) for view in VIEWS},
            keep,
            blocks,
            sample_queries,
            report_recall,
            lambda folder: write_model(fitted, folder),
        )

    def _block(self, view: View, items: Sequence[Item], features: Floats, keep: bool) -> Block:
        vectors, norms = self.embedding.items(features, TASK_OF[view])
        return Block(view, items, vectors, norms, np.asarray(features, np.float32) if keep else None)

    def _stored_blocks(self) -> Iterator[Block]:
        for view in VIEWS:
            for items in _batches(self.store.items(view)):
                yield self._block(view, items, self.features_of(view, items), keep=False)

    def _stored_sample(self, view: View, n: int) -> Floats | None:
        items = list(itertools.islice(self.store.items(view), n))
        return self.features_of(view, items) if items else None

    def _filter(self, view: View, where: Where | None) -> Filter | None:
        if where is None:
            return None
        if isinstance(where, Mapping | str):
            return parse_filter(where)
        if callable(where):
            return Filter(frozenset(item.id for item in self.store.items(view) if where(item)))
        ids = check_ids(where)
        for item_id in ids:
            if not isinstance(item_id, str):
                raise unknown_item(item_id)
        return Filter(frozenset(ids), all_stored=True)

    def _calibration(
        self, task: Task, is_measured: bool, min_probability: float | None
    ) -> TaskCalibration | None:
        """Return the calibration of a search; None if the model has none that was measured for it."""
        known = self.fitted.calibration
        if min_probability is not None:
            _check_probability(min_probability)
            if isinstance(known, str):
                raise InputError(
                    f"this model has no probabilities, because {known}; leave out min_probability."
                )
            if not is_measured:
                raise InputError(
                    "probabilities were measured for plain queries, not for composed ones or another "
                    "weighting; leave out min_probability."
                )
        return known[task] if is_measured and not isinstance(known, str) else None

    def _hits(
        self,
        queries: Floats,
        matches: Matches,
        most: int | None = None,
        calibration: TaskCalibration | None = None,
    ) -> list[Hits]:
        """Return at most so many of the matches as hits, with probabilities if there is a calibration."""
        inner = np.full((len(matches), max(map(len, matches), default=0)), -np.inf, np.float32)
        for row, own in zip(inner, matches, strict=True):
            row[: len(own)] = [product for _, product in own]
        scores = self.embedding.scores(inner, queries)
        if calibration is None:
            return [
                Hits(map(Hit, (item for item, _ in own[:most]), values))
                for own, values in zip(matches, scores.tolist(), strict=True)
            ]
        reference = self.embedding.scores(queries @ calibration.reference.T, queries)
        likely, there = calibration.probabilities(scores.astype(np.float64), reference.astype(np.float64))
        unknown: list[None] = [None] * len(matches)
        any_right = unknown if there is None else there.tolist()
        none_right = unknown if there is None else (there < calibration.config.no_match).tolist()
        rows = zip(matches, scores.tolist(), likely.tolist(), any_right, none_right, strict=True)
        return [
            Hits(
                map(Hit, (item for item, _ in own[:most]), values, each),
                match_probability=match,
                no_match=no_match,
            )
            for own, values, each, match, no_match in rows
        ]

    def _reweight(
        self, embedding: CanonicalEmbedding, task: Task, weighting: Any
    ) -> tuple[CanonicalEmbedding, ItemTable, VectorIndex]:
        """Return the embedding, items and vectors of a task under another weighting of the model."""
        other, items = embedding.reweight(weighting), ItemTable()
        index = VectorIndex(embedding.dimension(task))
        for block in self.store.vectors(task, self.version):
            vectors = embedding.convert(block.vectors, block.norms, task, other)
            index.add(items.add(block.items), vectors)
        return other, items, index

    def _search_derived(
        self, task: Task, items: ItemTable, index: VectorIndex, queries: Floats, k: int, where: Filter | None
    ) -> Matches:
        if where is not None and where.all_stored:  # there are items of the other view too
            where.check_stored({item.id for item in self.store.items(ids=[*(where.ids or ())])})
            where = replace(where, all_stored=False)
        allowed = None if where is None else items.find(SEARCHED[task], where)
        if where is not None and allowed is not None and not len(allowed) and self.store.count():
            check_metadata_keys(where, (key for item in self.store.items() for key in item.metadata))
        inner, places = index.search(queries, min(int(k), max(1, len(items))), allowed=allowed)
        return [
            [(item, product) for place, product in zip(*pair, strict=True) if (item := items.get(place))]
            for pair in zip(places.tolist(), inner.tolist(), strict=True)
        ]

    def _make_packs(self) -> _Packs:
        """Average the vectors of each image's captions."""
        captions: list[Item] = []
        vectors, norms = [], []
        for block in self.store.vectors("annotate", self.version):
            owned = np.flatnonzero([item.image is not None for item in block.items])
            captions += [block.items[row] for row in owned.tolist()]
            vectors.append(np.asarray(block.vectors[owned], np.float32))
            norms.append(block.norms[owned])
        if not captions:
            names = self.encoders.views
            raise InputError(
                f"no {names.caption} in the index belongs to {with_article(names.image)}; add "
                f"{plural(names.caption)} together with {plural(names.image)}."
            )
        images = sorted({str(caption.image) for caption in captions})
        place = {image: number for number, image in enumerate(images)}
        groups = np.array([place[str(caption.image)] for caption in captions])
        ids: list[list[str]] = [[] for _ in images]
        for caption, group in zip(captions, groups.tolist(), strict=True):
            ids[group].append(caption.id)
        index = VectorIndex(self.embedding.dimension("annotate"))
        means = self.embedding.means(np.concatenate(vectors), np.concatenate(norms), groups, len(images))
        index.add(np.arange(len(images)), means)
        return _Packs(images, ids, index)

    def _rank_captions(
        self, packs: _Packs, query: Floats, places: Sequence[int], scores: Sequence[float]
    ) -> list[Pack]:
        """Rank the captions of some packs for one query; packs whose captions were removed are left out."""
        places = [place for place in places if place >= 0]
        ids = frozenset(item_id for place in places for item_id in packs.captions[place])
        matches = self.store.search("annotate", query, len(ids), Filter(ids), self.version)
        captions: dict[str | None, list[Hit]] = {packs.images[place]: [] for place in places}
        for hit in self._hits(query, matches)[0]:
            captions[hit.item.image].append(hit)
        ranked = zip(captions.items(), scores, strict=False)
        return [Pack(str(image), score, own) for (image, own), score in ranked if own]

    def _derive(self, name: Any, make: Callable[[], T]) -> T:
        """Return what ``make`` derives from all vectors, made again when the items change."""
        with self._deriving:
            state = self.store.state()
            if state.version != self.version:
                raise ModelChanged
            cached = self._derived.get(name)
            if cached is None or cached[0] != state:
                cached = self._derived[name] = state, make()
                if len(self._derived) > _DERIVED:
                    del self._derived[next(iter(self._derived))]
            derived: T = cached[1]
            return derived


def check_ids(where: Any) -> list[Any]:
    """Return the ids of a filter by ids."""
    if not hasattr(where, "__iter__"):
        raise InputError(
            f"where={where!r} is not a filter; give conditions on metadata, a function of an Item, or ids."
        )
    return list(where)


def _check_page(k: Any, offset: Any) -> int:
    """Return how many hits to find for ``k`` of them from ``offset`` on, and for whether there are more."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k={k!r} is not a number of hits; give 1 or more.")
    if not isinstance(offset, int | np.integer) or isinstance(offset, bool) or offset < 0:
        raise InputError(f"offset={offset!r} is not a number of hits to leave out; give 0 or more.")
    return int(offset) + int(k) + 1


def _embed(
    embedding: Embedding,
    task: Task,
    view: View,
    features: Floats,
    parts: Sequence[QueryPart],
    weighting: OtherWeighting | None = None,
) -> Floats:
    """Return the vectors of queries of a view, with ``parts`` added to a single one.

    What is of the searched view enters by its vector as an item, as for similar items.
    """
    vectors = []
    for part in (QueryPart(view, features), *parts):
        if part.view == QUERIED[task]:
            own = embedding.queries(part.features, task)
        else:
            own = embedding.as_queries(embedding.items(part.features, task)[0])
        if isinstance(embedding, FusedEmbedding):
            own = embedding.restrict(own, task, weighting)
        vectors.append(own)
    if not parts:
        return vectors[0]
    return compose(embedding, np.concatenate(vectors), [1.0, *(part.weight for part in parts)])


def _check_probability(value: Any) -> None:
    if not isinstance(value, int | float | np.floating) or isinstance(value, bool) or not 0 <= value <= 1:
        raise InputError(f"min_probability={value!r} is not a probability; give a number from 0 to 1.")


def _batches(items: Iterator[Item]) -> Iterator[list[Item]]:
    while batch := list(itertools.islice(items, BLOCK)):
        yield batch
