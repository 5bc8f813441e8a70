"""What users pass in as features and items: queries, new items, pairs, named blocks, metadata."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
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
    check_choice,
    check_count,
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
from diptych.retrieval._filters import Filter, Where, elements, iso_string, parse_filter, plain_number
from diptych.retrieval._fitted import Layout, OutlierDetector
from diptych.retrieval._items import TASK_OF, VIEWS, Item, View, unknown_item
from diptych.retrieval.stores._base import Listing

if TYPE_CHECKING:
    from diptych.data import PairedDataset

Floats: TypeAlias = np.ndarray[Any, Any]

LayoutOf: TypeAlias = Callable[[View], Layout]
"""Returns names and widths of a view's feature blocks."""

Metadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Plain values for some ids."""

CONFLICTS = ("error", "skip", "replace")
"""What ``add`` does with an id that is stored already."""

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
    """Return whether the user passed features: an array, a table, lists of numbers, or named blocks."""
    return isinstance(things, Mapping | Queries) or is_array(things) or _is_list_of_numbers(things)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def _is_list_of_numbers(things: Any) -> bool:
    """Return whether a list is a row of numbers, or of such rows."""
    depth = 0
    while isinstance(things, list | tuple) and things and depth < 2:
        things, depth = things[0], depth + 1
    return depth > 0 and _is_number(things)


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
            if not _is_number(weight) or not 0 < weight <= MAX_WEIGHT:
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


def read_listing(view: View | None, order_by: str | None, offset: int, limit: int | None) -> Listing:
    """Return what to list of all items, from what users give; ``"-date"`` is the key date, descending."""
    if view is not None:
        check_choice(view, VIEWS, "view")
    if order_by is not None and not (isinstance(order_by, str) and re.fullmatch("-?[^\0]+", order_by)):
        raise InputError(
            f"order_by={order_by!r} is not a metadata key; give one, or -KEY to begin at the end."
        )
    offset = check_count(offset, "offset", minimum=0)
    limit = None if limit is None else check_count(limit, "limit")
    name = None if order_by is None else order_by.removeprefix("-")
    return Listing(view, None, name, name != order_by, offset, limit)


def read_new_items(
    encoders: Encoders, view: View, items: Any, shown: Sequence[Any] | None, layout: LayoutOf
) -> tuple[list[Any], Floats | None]:
    """Return the texts or paths of new items, None where unknown, and their features if these were given.

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
    return things, None


def read_content(
    encoders: Encoders, item: Item, image: Any, text: Any, features: Any, layout: LayoutOf
) -> tuple[dict[str, Any], Floats | None]:
    """Return what ``Retriever.update`` changes of an item, and its new features; None: it keeps its own."""
    is_text = item.view == "text" or encoders.inputs == "texts"
    name, content = ("text", text) if is_text else ("image", image)
    if (image if is_text else text) is not None:
        other = "image" if is_text else "text"
        raise InputError(f"{other} was given, but {item.id!r} is changed by its {name}; give {name}.")
    rows = None
    if features is not None:
        rows = read_new_items(encoders, item.view, features, None, layout)[1]
        if rows is None or len(rows) != 1:
            raise InputError(f"features of {item.id!r} are not one row of numbers; give one.")
    if content is None:
        return {}, rows
    things, single = as_list(content, encoders.views)
    if not single:
        raise InputError(f"{name} is a list of {len(things)}; give one, for one item.")
    rows = encode_new_items(encoders, item.view, things) if rows is None else rows
    if is_text:
        check_unicode(things, "correct it")
        return {"text": str(content)}, rows
    is_path = isinstance(content, str | os.PathLike)
    return {"path": os.path.abspath(os.fspath(content)) if is_path else None}, rows


def encode_new_items(encoders: Encoders, view: View, things: Sequence[Any]) -> Floats:
    """Return the features of images or texts."""
    encode = encoders.encode_images if view == "image" else encoders.encode_texts
    return np.concatenate([encode(things[i : i + _BATCH]) for i in range(0, len(things), _BATCH)])


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


def dataset_items(
    dataset: PairedDataset, metadata: Metadata, inputs: Inputs, *, encoded: bool
) -> dict[View, list[Item]]:
    """Return the items of pairs; their split is part of their metadata.

    ``inputs`` is what the encoder of the first view takes; if texts, those are the ids. A caption without a
    word is an empty one if the captions were ``encoded``, and not known otherwise.
    """
    is_text = inputs == "texts"
    places = (None,) * dataset.n_images if is_text else dataset.paths or (None,) * dataset.n_images
    paths = [None if place is None else os.path.abspath(os.fsdecode(place)) for place in places]
    splits = dataset.splits or ("",) * dataset.n_images

    def about(item_id: str, row: int) -> Mapping[str, Any]:
        parts = dataset.metadata.get(item_id, {}), metadata.get(item_id, {})
        merged = plain_metadata(parts[0], item_id) | plain_metadata(parts[1], item_id)
        return {"split": splits[row], **merged} if splits[row] else merged

    images = [
        Item(item_id, "image", path, item_id if is_text else None, metadata=about(item_id, row))
        for row, (item_id, path) in enumerate(zip(dataset.image_ids, paths, strict=True))
    ]
    captions = zip(dataset.caption_ids, dataset.captions, dataset.pairing.tolist(), strict=True)
    texts = [
        Item(
            item_id,
            "text",
            text=text if encoded else text or None,
            image=dataset.image_ids[row],
            metadata=about(item_id, row),
        )
        for item_id, text, row in captions
    ]
    return {"image": images, "text": texts}


@dataclass(frozen=True, eq=False)
class NewItems:
    """What ``Retriever.add`` was given: texts or paths, None where unknown, ids and metadata.

    ``rows`` are those to add of each view; None: all.
    """

    things: Mapping[View, Sequence[Any]]
    pairing: Any
    ids: Sequence[str] | None
    caption_ids: Sequence[str] | None
    metadata: Metadata
    rows: Mapping[View, Sequence[int]] | None = None

    def make(self, unused: Iterator[str], inputs: Inputs) -> dict[View, list[Item]]:
        """Return the items; those without an id or a path get one of ``unused``.

        ``inputs`` is what the encoder of the first view takes; texts are their own ids.
        """
        items: dict[View, list[Item]] = {}
        if "image" in self.things:
            items["image"] = self._make_images(unused, inputs)
        if "text" in self.things:
            items["text"] = self._make_texts(unused, items.get("image"))
        check_metadata_ids(self.metadata, {item.id for some in items.values() for item in some})
        if self.rows is None:
            return items
        return {view: [some[row] for row in self.rows[view]] for view, some in items.items()}

    def _make_images(self, unused: Iterator[str], inputs: Inputs) -> list[Item]:
        things = self.things["image"]
        sources = [os.fspath(thing) if isinstance(thing, str | os.PathLike) else None for thing in things]
        ids = [source or next(unused) for source in sources] if self.ids is None else self.ids
        _check_length(len(sources), ids, "ids")
        check_unicode((*ids, *filter(None, sources)), "rename the file or the id")
        return [
            Item(str(item_id), "image", text=source, metadata=self._about(item_id))
            if source is None or inputs == "texts"
            else Item(str(item_id), "image", os.path.abspath(source), metadata=self._about(item_id))
            for item_id, source in zip(ids, sources, strict=True)
        ]

    def _make_texts(self, unused: Iterator[str], images: Sequence[Item] | None) -> list[Item]:
        texts, ids = self.things["text"], self.caption_ids
        owners: list[str | None] = [None] * len(texts)
        if images is None:
            refuse_empty(texts)
        else:
            rows = check_pairing(self.pairing, len(images), np.empty((len(texts), 1)))
            owners = [images[row].id for row in rows.tolist()]
        if ids is None:
            ids = [f"{owner}#{i}" if owner else next(unused) for i, owner in enumerate(owners)]
        _check_length(len(texts), ids, "caption_ids")
        check_unicode((*ids, *(text for text in texts if text is not None)), "correct it")
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
        return plain_metadata(self.metadata.get(str(item_id), {}), item_id)


def refuse_empty(texts: Sequence[Any]) -> None:
    """Refuse texts without a word."""
    empty = next((text for text in texts if isinstance(text, str) and not text.strip()), None)
    if empty is not None:
        raise InputError(f"{empty!r} is not a text; give at least one word, unless it is a caption.")


def check_metadata_ids(metadata: Metadata, ids: Container[str]) -> None:
    """Refuse metadata for an id that none of the items has."""
    unknown = next((item_id for item_id in metadata if item_id not in ids), None)
    if unknown is not None:
        raise InputError(f"metadata names {unknown!r}, an id that none of these items has; correct the id.")


def read_changes(metadata: Any, item_id: str) -> dict[str, Any]:
    """Return values of metadata that are to change; None for a name that is to go."""
    return dict.fromkeys(map(str, check_metadata(metadata))) | plain_metadata(metadata, item_id)


def change_metadata(metadata: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with other values for some names; None removes a name."""
    return {
        name: value for name, value in {**metadata, **changes}.items() if changes.get(name, ...) is not None
    }


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
    blocks = {key: _as_numbers(features[key], f"the block {key!r}") for key in layout if key in features}
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
    if _is_list_of_numbers(features):
        features = _as_numbers(features, f"{name} features")
    single = getattr(features, "ndim", 2) == 1
    matrix = to_numpy(check_matrix(features[None, :] if single else features, f"{name} features"))
    if matrix.dtype.kind in "OUST":
        matrix = check_view(matrix, f"{name} features")
    zero = np.flatnonzero(~matrix.any(axis=1))
    if len(zero):
        raise InputError(f"the {name} features have only zeros in row {zero[0]}; leave that row out.")
    return matrix, single


def _as_numbers(rows: Any, name: str) -> Floats:
    try:
        array = to_numpy(rows) if is_array(rows) else np.asarray(rows)
    except ValueError:  # rows of different lengths
        array = np.array("")
    if array.dtype.kind in "OUST":
        raise InputError(f"{name} holds values that are not numbers; give features.")
    return array


def check_unicode(texts: Iterable[Any], remedy: str) -> None:
    """Refuse what could be saved, and not be read again."""
    for text in texts:
        if not is_unicode(str(text)):
            raise InputError(f"{str(text)[:60]!r} is not valid Unicode text; {remedy}.")


def _check_length(n: int, values: Sequence[Any], name: str) -> None:
    if len(values) != n:
        raise InputError(f"{name} has {len(values)} entries; expected {n}, one for each item.")


def _is_missing(value: Any) -> bool:
    """Return whether a value says that there is none: NaN, or what pandas and NumPy have in its place."""
    missing = getattr(sys.modules.get("pandas"), "NA", None)
    if missing is not None and value is missing:
        return True
    return isinstance(value, float | date | np.generic) and bool(value != value)


def _plain_value(value: Any) -> Any:
    """Return a value of NumPy or a date as one that JSON has."""
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]" if np.datetime_data(value.dtype)[0] != "D" else value.dtype)
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if not isinstance(value, date):
        raise TypeError(f"a value is of type {type(value).__name__}")
    return iso_string(value)


# json.dumps and json.loads would make an encoder and a decoder for every item.
_encode_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=_plain_value).encode
_decode_json = json.JSONDecoder(
    parse_int=lambda digits: plain_number(int(digits)), parse_float=lambda digits: plain_number(float(digits))
).decode


def plain_metadata(metadata: Any, item_id: object) -> dict[str, Any]:
    """Return metadata as it will be once it is written as JSON and read again.

    That is what filters compare: strings, numbers, true, false, null, and lists of these. Values that are
    missing, such as NaN in a table of pandas, are left out.
    """
    if isinstance(metadata, dict) and not metadata:  # most items have none
        return {}
    if not isinstance(metadata, Mapping):
        raise InputError(
            f"the metadata of {item_id!r} is {metadata!r}; give a dict of names and plain values."
        )
    present = {
        name: [part for part in value if not _is_missing(part)] if isinstance(value, list | tuple) else value
        for name, value in metadata.items()
        if not _is_missing(value)
    }
    try:
        written = _encode_json(present)
        if not is_unicode(written):
            raise ValueError("a text in it is not valid Unicode")
        plain: dict[str, Any] = _decode_json(written)
        for name, value in plain.items():
            if any(isinstance(part, dict | list) for part in elements(value)) or isinstance(value, dict):
                raise ValueError(f"the value of {name!r} is nested")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the metadata of {item_id!r} cannot be stored ({error}); give strings, numbers, dates, true, "
            "false, None, or lists of these."
        ) from None
    return plain
