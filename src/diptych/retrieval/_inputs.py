"""What users pass in as features and items: queries, new items, pairs, named blocks, metadata."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import (
    IMAGE_AND_TEXT,
    DataWarning,
    InputError,
    Task,
    ViewNames,
    check_matrix,
    check_pairing,
    check_view,
    count,
    is_unicode,
    plural,
    with_article,
)
from diptych.encoders._decoding import EXTENSIONS, is_image
from diptych.encoders._image import Inputs
from diptych.retrieval._encoders import Encoders, as_list, is_array
from diptych.retrieval._filters import Filter, Where, iso_string, parse_filter, plain_number
from diptych.retrieval._fitted import Layout, OutlierDetector
from diptych.retrieval._items import TASK_OF, Item, View, unknown_item

if TYPE_CHECKING:
    from diptych.data import PairedDataset

Floats: TypeAlias = np.ndarray[Any, Any]

LayoutOf: TypeAlias = Callable[[View], Layout]
"""Returns names and widths of a view's feature blocks."""

Metadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Plain values for some ids."""

MAX_DEPTH = 100
"""How deep metadata may be nested, so that what one Python writes another can read."""

MAX_WEIGHT = 1000
"""Of a part of a query, whose own weight is 1; beside much larger ones it would be lost in rounding."""

_BATCH = 256


@dataclass(frozen=True, eq=False)
class QueryPart:
    """What is added to a query, by its features: one row, of either view. A negative weight subtracts it."""

    view: View
    features: Floats
    weight: float = 1.0
    ignored_words: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries as features, one row each, which were checked or come from an encoder."""

    features: Floats
    single: bool  # whether the user passed one query rather than a list or matrix of them
    ignored_words: Sequence[tuple[str, ...]] = ()  # of each query, its parts included
    parts: Sequence[QueryPart] = ()  # what is to be added to a single query


def is_features(things: Any) -> bool:
    """Return whether the user passed features: an array, a table, or named blocks of these."""
    return isinstance(things, Mapping | Queries) or is_array(things)


@dataclass(frozen=True, eq=False)
class Search:
    """What a user searches for, and which of the hits to return.

    ``view`` is that of the query, ``searched`` that of the items; if they are the same, similar items are
    searched. ``parts`` are to be added to a single query, each with a weight.
    """

    view: View
    searched: View
    query: Any
    parts: Sequence[tuple[Any, float]] = ()
    k: int = 10
    offset: int = 0
    where: Filter | Callable[[Item], bool] | None = None
    min_probability: float | None = None
    weighting: str | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that are none."""
        if not isinstance(self.k, int | np.integer) or isinstance(self.k, bool) or self.k < 1:
            raise InputError(f"k={self.k!r} is not a number of hits; give 1 or more.")
        offset, least = self.offset, self.min_probability
        if not isinstance(offset, int | np.integer) or isinstance(offset, bool) or offset < 0:
            raise InputError(f"offset={offset!r} is not a number of hits to leave out; give 0 or more.")
        number = isinstance(least, int | float | np.floating) and not isinstance(least, bool)
        if least is not None and not (number and 0 <= least <= 1):
            raise InputError(f"min_probability={least!r} is not a probability; give a number from 0 to 1.")

    @property
    def task(self) -> Task:
        """The task whose vectors are compared."""
        return TASK_OF[self.searched]

    @property
    def uses_encoders(self) -> bool:
        """Whether the query and all of its parts are to be encoded."""
        return not any(map(is_features, (self.query, *(part for part, _ in self.parts))))

    @property
    def is_plain(self) -> bool:
        """Whether it is a search that probabilities are measured for."""
        return not self.parts and self.weighting is None and self.view != self.searched


def read_where(where: Where | None) -> Filter | Callable[[Item], bool] | None:
    """Return a filter as users give it, parsed; a function of an ``Item`` as it is."""
    if where is None or callable(where):
        return where
    if isinstance(where, Mapping | str):
        return parse_filter(where)
    if not hasattr(where, "__iter__"):
        raise InputError(
            f"where={where!r} is not a filter; give conditions on metadata, a function of an Item, or ids."
        )
    ids = list(where)
    for item_id in ids:
        if not isinstance(item_id, str):
            raise unknown_item(item_id)
    return Filter(frozenset(ids), all_stored=True)


def read_queries(
    encoders: Encoders, view: View, queries: Any, layout: LayoutOf, parts: Sequence[tuple[Any, float]] = ()
) -> Queries:
    """Return the features of queries, which are encoded unless they are features.

    ``parts`` are to be added to a single query, each with its weight, as ``list_parts`` returns them.
    """
    ignored: Sequence[tuple[str, ...]] = ()
    if isinstance(queries, Queries):
        features, single, ignored = queries.features, queries.single, queries.ignored_words
    elif is_features(queries):
        joined = join_blocks(queries, layout, view, encoders.views)
        features, single = _as_matrix(joined, encoders.views.of(view))
    else:
        things, single = as_list(queries, encoders.views)
        if not things:
            raise InputError("there are no queries; give at least one.")
        if view == "text":
            features, ignored = encoders.encode_queries(things)
        else:
            features = encoders.encode_images(things)
    if parts and len(features) != 1:
        raise InputError("plus and minus are for one query at a time; search for each alone.")
    read = [_read_part(encoders, view, part, weight, layout) for part, weight in parts]
    more = [word for part in read for word in part.ignored_words]
    words = [tuple(dict.fromkeys((*unknown, *more))) for unknown in ignored or [()] * len(features)]
    return Queries(features, single, words, read)


def list_parts(plus: Any, minus: Any) -> list[tuple[Any, float]]:
    """Return what is to be added to a query, with its weight, negative for what is to be subtracted.

    A part is a text, an image, features or a ``QueryPart``, alone or as ``(part, weight)``.
    """
    parts: list[tuple[Any, float]] = []
    for name, sign, argument in (("plus", 1.0, plus), ("minus", -1.0, minus)):
        for part in argument if isinstance(argument, list | tuple) else [argument]:
            weight: Any = 1.0
            if isinstance(part, tuple):
                if len(part) != 2:
                    raise InputError(f"{name} has a tuple of {len(part)}; give a part, or (part, weight).")
                part, weight = part
            number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
            if not number or not 0 < weight <= MAX_WEIGHT:
                raise InputError(
                    f"{name} has the weight {weight!r}; give a positive number of at most {MAX_WEIGHT}."
                )
            parts.append((part, sign * float(weight)))
    return parts


def _read_part(encoders: Encoders, view: View, part: Any, weight: float, layout: LayoutOf) -> QueryPart:
    """Encode a part of a query of a view: features are of that view, a text or image of its own."""
    if isinstance(part, QueryPart):
        return replace(part, weight=weight)
    part_view = view if is_features(part) else _find_view(encoders, view, part)
    queries = read_queries(encoders, part_view, part, layout)
    if len(queries.features) != 1:
        raise InputError(f"a part of the query has {len(queries.features)} rows of features; give one row.")
    return QueryPart(part_view, queries.features, weight, *queries.ignored_words)


def _find_view(encoders: Encoders, view: View, part: Any) -> View:
    """Return the view of a text or image in a query of a view.

    A string is an image file if it ends as one; for encoders that read files themselves, if there is such a
    file. For a first view of texts, it is of the query's view.
    """
    if isinstance(part, str):
        if encoders.inputs == "texts":
            return view
        is_file = os.path.splitext(part)[1].lower() in EXTENSIONS
        return "image" if (is_file if encoders.inputs == "images" else os.path.isfile(part)) else "text"
    if isinstance(part, bytes | os.PathLike) or is_image(part):
        return "image"
    kinds = ", ".join(map(with_article, encoders.views))
    raise InputError(f"{part!r} is no part of a query; give {kinds}, features, or (part, weight).")


def read_new_items(
    encoders: Encoders, view: View, items: Any, shown: Sequence[Any] | None, layout: LayoutOf
) -> tuple[list[Any], Floats]:
    """Return the texts or paths of new items, None where unknown, and their features.

    ``shown`` are the texts or paths of items that are passed as features.
    """
    name = encoders.views.of(view)
    if is_features(items):
        features = _as_matrix(join_blocks(items, layout, view, encoders.views), name)[0]
        things = list(shown) if shown is not None else [None] * len(features)
        if len(things) != len(features):
            what = f"{len(things)} {'paths' if view == 'image' else 'texts'}"
            raise InputError(
                f"got {what} for {count(len(features), 'row')} of {name} features; pass one for each row."
            )
        return things, features
    things, _ = as_list(items, encoders.views)
    if not things:
        raise InputError(f"the list of {plural(name)} is empty; give at least one.")
    encode = encoders.encode_images if view == "image" else encoders.encode_texts
    blocks = [encode(things[i : i + _BATCH]) for i in range(0, len(things), _BATCH)]
    return things, np.concatenate(blocks)


def encode_items(encoders: Encoders, view: View, items: Sequence[Item]) -> Floats:
    """Encode stored items again, from their files and texts."""
    by_text = view == "text" or encoders.inputs == "texts"
    things = [item.text if by_text else item.path for item in items]
    if None in things:
        raise InputError(
            f"the features of the items were not kept, and {items[things.index(None)].id!r} has nothing "
            "to encode again; fit with keep_features=True."
        )
    if view == "image":
        return encoders.encode_images(things)
    return encoders.encode_texts([str(thing) for thing in things])


def dataset_items(dataset: PairedDataset, metadata: Metadata, inputs: Inputs) -> dict[View, list[Item]]:
    """Return the items of pairs; their split is part of their metadata.

    ``inputs`` is what the encoder of the first view takes; if texts, those are the ids.
    """
    is_text = inputs == "texts"
    places = (None,) * dataset.n_images if is_text else dataset.paths or (None,) * dataset.n_images
    paths = [None if place is None else os.path.abspath(os.fsdecode(place)) for place in places]
    splits = dataset.splits or ("",) * dataset.n_images

    def about(item_id: str, row: int) -> Mapping[str, Any]:
        parts = dataset.metadata.get(item_id, {}), metadata.get(item_id, {})
        merged = _plain(parts[0], item_id) | _plain(parts[1], item_id)
        return {"split": splits[row], **merged} if splits[row] else merged

    images = [
        Item(item_id, "image", path, item_id if is_text else None, metadata=about(item_id, row))
        for row, (item_id, path) in enumerate(zip(dataset.image_ids, paths, strict=True))
    ]
    captions = zip(dataset.caption_ids, dataset.captions, dataset.pairing.tolist(), strict=True)
    texts = [
        Item(item_id, "text", text=text or None, image=dataset.image_ids[row], metadata=about(item_id, row))
        for item_id, text, row in captions
    ]
    return {"image": images, "text": texts}


@dataclass(frozen=True, eq=False)
class NewItems:
    """What ``Retriever.add`` was given: texts or paths, None where unknown, features, ids and metadata."""

    things: Mapping[View, Sequence[Any]]
    features: Mapping[View, Floats]
    pairing: Any
    ids: Sequence[str] | None
    caption_ids: Sequence[str] | None
    metadata: Metadata

    def make(self, unused: Iterator[str], inputs: Inputs) -> dict[View, list[Item]]:
        """Return the items; those without an id or a path get one of ``unused``.

        ``inputs`` is what the encoder of the first view takes; texts are their own ids.
        """
        items: dict[View, list[Item]] = {}
        if "image" in self.things:
            items["image"] = self._make_images(unused, inputs)
        if "text" in self.things:
            items["text"] = self._make_texts(unused, items.get("image"))
        return items

    def _make_images(self, unused: Iterator[str], inputs: Inputs) -> list[Item]:
        things = self.things["image"]
        sources = [os.fspath(thing) if isinstance(thing, str | os.PathLike) else None for thing in things]
        ids = [source or next(unused) for source in sources] if self.ids is None else self.ids
        _check_length(len(sources), ids, "ids")
        _check_unicode((*ids, *filter(None, sources)), "rename the file or the id")
        return [
            Item(str(item_id), "image", text=source, metadata=self._about(item_id))
            if source is None or inputs == "texts"
            else Item(str(item_id), "image", os.path.abspath(source), metadata=self._about(item_id))
            for item_id, source in zip(ids, sources, strict=True)
        ]

    def _make_texts(self, unused: Iterator[str], images: Sequence[Item] | None) -> list[Item]:
        texts, ids = self.things["text"], self.caption_ids
        owners: list[str | None] = [None] * len(texts)
        if images is not None:
            rows = check_pairing(self.pairing, len(images), np.empty((len(texts), 1)))
            owners = [images[row].id for row in rows.tolist()]
        if ids is None:
            ids = [f"{owner}#{i}" if owner else next(unused) for i, owner in enumerate(owners)]
        _check_length(len(texts), ids, "caption_ids")
        _check_unicode((*ids, *(text for text in texts if text is not None)), "correct it")
        return [
            Item(
                str(item_id),
                "text",
                text=None if text is None else str(text),
                image=owner,
                metadata=self._about(item_id),
            )
            for item_id, text, owner in zip(ids, texts, owners, strict=True)
        ]

    def _about(self, item_id: object) -> dict[str, Any]:
        return _plain(self.metadata.get(str(item_id), {}), item_id)


def check_metadata(metadata: Metadata | None) -> Metadata:
    """Return metadata for some ids, empty if None; anything but a dict is refused."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InputError(f"metadata is a {type(metadata).__name__}; give a dict from ids to dicts.")
    return metadata or {}


def warn_outliers(detector: OutlierDetector, name: str, features: Floats, items: Sequence[Item]) -> None:
    """Warn of new items that lie far from the training data; to be called by a public method.

    ``name`` is that of their view.
    """
    distances = detector.distances(features)
    n_far, farthest = int(np.count_nonzero(distances > detector.limit)), int(np.argmax(distances))
    if n_far:
        warnings.warn(
            f"{n_far} of {count(len(items), f'new {name}')} "
            f"{'lies' if n_far == 1 else 'lie'} far from the training data of this model "
            f"({items[farthest].id!r} has the distance {distances[farthest]:.1f}, the limit is "
            f"{detector.limit:.1f}), so searches for them may be poor; if there will be more like them, add "
            "pairs and refit().",
            DataWarning,
            stacklevel=3,
        )


def stack_blocks(view: Any, name: str) -> tuple[Floats, Layout]:
    """Return a view as one matrix, with names and widths of its blocks; none if it is a matrix."""
    if not isinstance(view, Mapping):
        return to_numpy(check_view(view, name)), {}
    if not view:
        raise InputError(f"{name} has no blocks; give at least one, name → features.")
    blocks = {str(key): to_numpy(check_view(rows, f"{name}[{key!r}]")) for key, rows in view.items()}
    if len({len(rows) for rows in blocks.values()}) != 1:
        raise InputError(f"the blocks of {name} differ in their number of rows; give every item in each.")
    return np.concatenate(list(blocks.values()), axis=1), {key: b.shape[1] for key, b in blocks.items()}


def join_blocks(features: Any, layout_of: LayoutOf, view: View, names: ViewNames = IMAGE_AND_TEXT) -> Any:
    """Return named blocks of features as one row or matrix in the model's order; anything else unchanged.

    Blocks are all rows (one item) or all matrices.
    """
    if not isinstance(features, Mapping):
        return features
    layout, name = layout_of(view), names.of(view)
    if not layout:
        raise InputError(
            f"this model's {name} features have no named blocks; give them as one row or matrix."
        )
    wrong = [f"{key!r} is missing" for key in layout if key not in features]
    wrong += [f"{key!r} is unknown" for key in features if key not in layout]
    blocks = {key: _as_numbers(features[key], key) for key in layout if key in features}
    wrong += [
        f"{key!r} has shape {list(rows.shape)}"
        for key, rows in blocks.items()
        if rows.ndim not in (1, 2) or rows.shape[-1] != layout[key]
    ]
    if not wrong and len({rows.shape[:-1] for rows in blocks.values()}) > 1:
        shapes = ", ".join(f"{key!r} {list(rows.shape)}" for key, rows in blocks.items())
        wrong = [f"they differ in their number of rows ({shapes})"]
    if wrong:
        expected = ", ".join(f"{key!r} ({count(width, 'feature')})" for key, width in layout.items())
        raise InputError(
            f"the blocks of the {name} features: {'; '.join(wrong)}. This model takes {expected}."
        )
    return np.concatenate(list(blocks.values()), axis=-1)


def _as_matrix(features: Any, name: str) -> tuple[Floats, bool]:
    """Return features as a matrix, and whether they were a single row."""
    single = getattr(features, "ndim", 2) == 1
    return to_numpy(check_matrix(features[None, :] if single else features, f"{name} features")), single


def _as_numbers(rows: Any, name: str) -> Floats:
    array = to_numpy(rows) if is_array(rows) else np.asarray(rows)
    if array.dtype.kind in "OUST":
        raise InputError(f"the block {name!r} holds values that are not numbers; give features.")
    return array


def _check_unicode(texts: Iterable[Any], remedy: str) -> None:
    """Refuse what could be saved, and not be read again."""
    for text in texts:
        if not is_unicode(str(text)):
            raise InputError(f"{str(text)[:60]!r} is not valid Unicode text; {remedy}.")


def _check_length(n: int, values: Sequence[Any], name: str) -> None:
    if len(values) != n:
        raise InputError(f"{name} has {len(values)} entries; expected {n}, one for each item.")


def _plain_date(value: Any) -> str:
    if not isinstance(value, date):
        raise TypeError(f"a value is of type {type(value).__name__}")
    return iso_string(value)


# json.dumps and json.loads would make an encoder and a decoder for every item.
_encode_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=_plain_date).encode
_decode_json = json.JSONDecoder(
    parse_int=lambda digits: plain_number(int(digits)), parse_float=lambda digits: plain_number(float(digits))
).decode


def _plain(metadata: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Return metadata as it will be once it is written as JSON and read again."""
    if isinstance(metadata, dict) and not metadata:  # most items have none
        return {}
    try:
        written = _encode_json(metadata)
        if not is_unicode(written):
            raise ValueError("a text in it is not valid Unicode")
        plain = _decode_json(written)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the metadata of {name!r} cannot be stored ({error}); give strings, numbers, lists and dicts."
        ) from None
    if not isinstance(plain, dict):
        raise InputError(f"the metadata of {name!r} is {metadata!r}; give a dict of names and plain values.")
    layer: list[Any] = [plain]
    for _ in range(MAX_DEPTH):
        parts = (part for value in layer for part in (value.values() if isinstance(value, dict) else value))
        layer = [part for part in parts if isinstance(part, dict | list)]
        if not layer:
            return plain
    raise InputError(f"the metadata of {name!r} cannot be stored: it is nested more than {MAX_DEPTH} deep.")
