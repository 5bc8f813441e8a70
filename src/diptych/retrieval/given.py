"""What users give, as features: queries, new items, views made of several blocks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych.arrays import to_numpy
from diptych.cca import AWCCA
from diptych.checks import DataWarning, InputError, check_matrix, check_view, count
from diptych.fusion import Fusion
from diptych.normalize import normalize
from diptych.retrieval.embedding import Layout, layout_of
from diptych.retrieval.encoders import Encoders, as_list, is_array
from diptych.retrieval.fitting import Fitted
from diptych.retrieval.items import VIEWS, Item, View
from diptych.retrieval.naming import Metadata

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
