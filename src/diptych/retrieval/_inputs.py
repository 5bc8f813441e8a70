"""Items for what users give: pairs with names of their own, or things that get one here.

What users give, as features: queries, new items, views made of several blocks.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import (
    DataWarning,
    InputError,
    check_matrix,
    check_pairing,
    check_view,
    count,
    is_unicode,
)
from diptych._normalize import normalize
from diptych.cca import AWCCA
from diptych.data import PairedDataset
from diptych.fusion import Fusion
from diptych.retrieval._embedding import Layout, layout_of
from diptych.retrieval._encoders import Encoders, as_list, is_array
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import VIEWS, Item, View

Metadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""For some ids, plain values."""

MAX_DEPTH = 100
"""How deep metadata may be nested: what one Python can write, another must be able to read."""


def items_of(dataset: PairedDataset, metadata: Metadata) -> dict[View, list[Item]]:
    """Items of pairs; their split is part of their metadata."""
    places = dataset.paths or (None,) * dataset.n_images
    paths = [None if place is None else os.path.abspath(os.fsdecode(place)) for place in places]
    splits = dataset.splits or ("",) * dataset.n_images

    def of(name: str, row: int) -> Mapping[str, Any]:
        own = plain(metadata.get(name, {}), name)
        return {"split": splits[row], **own} if splits[row] else own

    images = [
        Item(name, "image", path=path, metadata=of(name, row))
        for row, (name, path) in enumerate(zip(dataset.image_ids, paths, strict=True))
    ]
    captions = zip(dataset.caption_ids, dataset.captions, dataset.pairing.tolist(), strict=True)
    texts = [
        Item(name, "text", text=text or None, image=dataset.image_ids[row], metadata=of(name, row))
        for name, text, row in captions
    ]
    return {"image": images, "text": texts}


def image_items(
    things: Sequence[Any], ids: Sequence[str] | None, metadata: Metadata, unused: Iterator[str]
) -> list[Item]:
    """Items for new pictures: named by ``ids``, by their path, or by a name of ``unused``."""
    paths = [os.fspath(t) if isinstance(t, str | os.PathLike) else None for t in things]
    names = ids if ids is not None else [path or next(unused) for path in paths]
    _check_length(len(things), names, "ids")
    for name in (*names, *(path for path in paths if path is not None)):
        if not is_unicode(str(name)):
            raise InputError(f"the name {str(name)!r} is not valid Unicode text; rename the file or the id.")
    return [
        Item(
            str(name),
            "image",
            path=None if path is None else os.path.abspath(path),
            metadata=plain(metadata.get(str(name), {}), name),
        )
        for name, path in zip(names, paths, strict=True)
    ]


def text_items(
    sentences: Sequence[str | None],
    images: Sequence[Item] | None,
    pairing: Any,
    ids: Sequence[str] | None,
    metadata: Metadata,
    unused: Iterator[str],
) -> list[Item]:
    """Items for new sentences: named by ``ids``, by their picture and a number, or by ``unused``."""
    owners: list[str | None] = [None] * len(sentences)
    if images is not None:
        rows = check_pairing(pairing, len(images), np.empty((len(sentences), 1)))
        owners = [images[row].id for row in rows.tolist()]
    texts = [None if sentence is None else str(sentence) for sentence in sentences]
    names = ids
    if names is None:
        names = [f"{o}#{i}" if o else next(unused) for i, o in enumerate(owners)]
    _check_length(len(sentences), names, "caption_ids")
    return [
        Item(str(name), "text", text=text, image=owner, metadata=plain(metadata.get(str(name), {}), name))
        for name, text, owner in zip(names, texts, owners, strict=True)
    ]


def plain(metadata: Mapping[str, Any], name: object) -> dict[str, Any]:
    """``metadata`` as it will be once written as JSON and read again."""
    try:
        found = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the metadata of {name!r} cannot be stored ({error}); give strings, numbers, lists and dicts."
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"the metadata of {name!r} is {metadata!r}; give a dict of names and plain values.")
    layer: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        parts = (part for each in layer for part in (each.values() if isinstance(each, dict) else each))
        layer = [part for part in parts if isinstance(part, dict | list)]
        if not layer:
            return found
    raise InputError(f"the metadata of {name!r} cannot be stored: it is nested more than {MAX_DEPTH} deep.")


def _check_length(n: int, given: Sequence[Any], name: str) -> None:
    if len(given) != n:
        raise InputError(f"{name} has {len(given)} entries; expected {n}, one for each item.")


Floats: TypeAlias = np.ndarray[Any, Any]

_BATCH = 256


@dataclass(frozen=True, eq=False)
class Queries:
    """Queries as features.

    Attributes
    ----------
    rows
        One for each query.
    single
        Whether it was a single query, rather than a list or matrix of them.
    ignored_words
        For each text query, its words that the encoder ignored; empty for other queries.
    """

    rows: Floats
    single: bool
    ignored_words: Sequence[tuple[str, ...]] = ()


def queries_of(encoders: Encoders, view: View, given: Any) -> Queries:
    """Features of queries."""
    if is_array(given):
        return Queries(*_rows(given, view))
    things, single = as_list(given)
    if not things:
        raise InputError("there are no queries; give at least one.")
    if view == "text":
        rows, ignored = encoders.encode_queries(things)
        return Queries(rows, single, ignored)
    return Queries(encoders.encode_images(things), single)


def _rows(given: Any, view: View) -> tuple[Floats, bool]:
    """Features as a matrix, and whether they were a single row."""
    single = getattr(given, "ndim", 2) == 1
    return to_numpy(check_matrix(given[None, :] if single else given, f"{view} features")), single


def items_given(
    encoders: Encoders, view: View, given: Any, shown: Sequence[Any] | None, width: int
) -> tuple[list[Any], Floats]:
    """New items as they are to be shown, and their features."""
    if is_array(given):
        rows = check_view(_rows(given, view)[0], f"{view} features", n_features=width)
        things = list(shown) if shown is not None else [None] * len(rows)
        if len(things) != len(rows):
            raise InputError(
                f"got {count(len(things), view)} to show for {count(len(rows), 'row')} of {view} features; "
                "give one for each row."
            )
        return things, rows
    things, _ = as_list(given)
    if not things:
        raise InputError(f"the list of {view}s is empty; give at least one.")
    encode = encoders.encode_images if view == "image" else encoders.encode_texts
    blocks = [encode(things[i : i + _BATCH]) for i in range(0, len(things), _BATCH)]
    return things, check_view(np.concatenate(blocks), f"{view} features", n_features=width)


def encoded_again(encoders: Encoders, view: View, items: list[Item]) -> Floats:
    """Features of indexed items from their files and sentences."""
    things = [item.path if view == "image" else item.text for item in items]
    if None in things:
        raise InputError(
            f"the features of the items were not kept, and {items[things.index(None)].id!r} has nothing "
            "to encode again; fit with keep_features=True."
        )
    if view == "image":
        return encoders.encode_images(things)
    return encoders.encode_texts([str(thing) for thing in things])


def warn_if_far(fitted: Fitted, view: View, rows: Floats, items: Sequence[Item]) -> None:
    """Say which new items lie far from what the model was trained on; to be called by what users call."""
    reach, how = fitted.reach[view], "none"
    if isinstance(fitted.model, AWCCA):
        how = fitted.model.normalize[VIEWS.index(view)]
    away = reach.distances(normalize(rows.astype(np.float32, copy=False), how))
    far, worst = int(np.count_nonzero(away > reach.limit)), int(np.argmax(away))
    if far:
        warnings.warn(
            f"{far} of {count(len(items), f'new {view}')} lie far from what this model was trained on "
            f"({items[worst].id!r}: {away[worst]:.1f} where {reach.limit:.1f} is the limit), and may be "
            "found badly; if there will be more like them, add pairs and refit().",
            DataWarning,
            stacklevel=3,
        )


def by_id(metadata: Metadata | None) -> Metadata:
    """Metadata for some ids."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InputError(f"metadata is a {type(metadata).__name__}; give a dict from ids to dicts.")
    return metadata or {}


def side_by_side(view: Any, name: str) -> tuple[Floats, Layout]:
    """A view as one matrix, and the named blocks it is made of; none for a matrix."""
    if not isinstance(view, Mapping):
        return to_numpy(check_view(view, name)), {}
    if not view:
        raise InputError(f"{name} has no blocks; give at least one, name → features.")
    blocks = {str(key): to_numpy(check_view(rows, f"{name}[{key!r}]")) for key, rows in view.items()}
    if len({len(rows) for rows in blocks.values()}) != 1:
        raise InputError(f"the blocks of {name} differ in their number of rows; give every item in each.")
    return np.concatenate(list(blocks.values()), axis=1), {key: b.shape[1] for key, b in blocks.items()}


def joined(given: Any, fitted: Fitted, view: View) -> Any:
    """``given``, or, if it is named blocks of features, one row or matrix of the blocks in the model's order.

    Blocks are all rows (one item) or all matrices.
    """
    if not isinstance(given, Mapping):
        return given
    layout = blocks_of(fitted, view)
    if not layout:
        raise InputError(
            f"this model's {view} features have no named blocks; give them as one row or matrix."
        )
    expected = ", ".join(f"{name!r} ({count(width, 'feature')})" for name, width in layout.items())
    wrong = [f"{name!r} is missing" for name in layout if name not in given]
    wrong += [f"{name!r} is unknown" for name in given if name not in layout]
    blocks = {name: _numbers(given[name], name) for name in layout if name in given}
    wrong += [
        f"{name!r} has shape {list(rows.shape)}"
        for name, rows in blocks.items()
        if rows.ndim not in (1, 2) or rows.shape[-1] != layout[name]
    ]
    if not wrong and len({rows.shape[:-1] for rows in blocks.values()}) > 1:
        shapes = ", ".join(f"{name!r} {list(rows.shape)}" for name, rows in blocks.items())
        wrong = [f"they differ in their number of rows ({shapes})"]
    if wrong:
        raise InputError(
            f"the blocks of the {view} features: {'; '.join(wrong)}. This model takes {expected}."
        )
    return np.concatenate(list(blocks.values()), axis=-1)


def blocks_of(fitted: Fitted, view: View) -> Layout:
    """Names and widths of the feature blocks that a view is made of; empty where they have no names."""
    if isinstance(fitted.model, Fusion):
        return layout_of(fitted.model, view)
    try:
        return {str(name): int(width) for name, width in fitted.facts.get("blocks", {}).get(view, [])}
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            "the model's list of feature blocks is damaged; give features side by side."
        ) from None


def _numbers(rows: Any, name: str) -> Floats:
    array = to_numpy(rows) if is_array(rows) else np.asarray(rows)
    if array.dtype.kind in "OUST":
        raise InputError(f"the block {name!r} holds values that are not numbers; give features.")
    return array
