r"""Items that are known by more than their own features: images with captions, beside images without.

**Where they lie.** An item with partners lies between its own direction and theirs
(``diptych.cca._projector.place_between`` has the derivation). For a text that means one of its captions, it
scores higher than where its own features put it; but so it does for many other texts, and items without
partners would hardly be found among many that have some.

**The offset.** So a number b is subtracted from the scores of items with partners. Two things set it. With
:math:`K` items with partners and :math:`N` without, the best wrong one of each kind scores about
:math:`\mu_K + s_K \ln K` and :math:`\mu_N + s_N \ln N` (the largest of many draws grows with the logarithm of
their number), so b has to grow with K and to shrink with N. And whoever asks may mean an item of either
kind: b is the number with the greatest product of both kinds' recall at 1 (the geometric mean: one kind may
lose a tenth of its hits where the other gains more than a tenth). On held-out items, a quarter of them
without partners, that gives :math:`b_0` at :math:`K_0, N_0`, and

.. math:: b(K, N) = b_0 + c \Bigl(s_K \ln\frac{K}{K_0} - s_N \ln\frac{N}{N_0}\Bigr).

With c = 1, b would follow the wrong items only. Which b is best moves by less than half of that, because it
has the right ones to keep in front too: c = 0.4, measured on libraries of 8,000 photos of which 500 to 6,000
were fitted. Where no item has a second caption to search with, :math:`b_0` is what makes the best wrong item
of both kinds equally likely to be the better one, plus a quarter of the spread of scores.

An item has one more coordinate that says whether it has partners, and a query has b in its place. So b
follows the library without a new vector for any item, and everything is still one inner product.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from diptych._checks import Task
from diptych._persistence import Schema
from diptych.cca._projector import Projector
from diptych.retrieval._items import QUERIED, SEARCHED, Item, View

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

FEWEST = 20
"""Held-out items with partners, from which the offset is measured."""

FEWEST_ASKED = 100
"""Held-out items with a second partner to search with, from which the offset is chosen by recall."""

MOST = 2000
"""Queries that are used at most."""

MOST_TEXTS = 10_000
"""Captions of them that are used at most: every query is compared with all of them at once."""

_COORDINATE = 0.1  # of items with partners; small beside their length, which a graph of neighbours compares
_FOLLOWED = 0.4  # c
_MARGIN = 0.25  # of the spread of scores
_ALONE = 4  # one in so many held-out items is without partners
_SPLITS = 8
_STEPS = 121
_SMOOTHED = 7
_OTHERS = 20  # captions of an image that place it without a query; more would hardly move it
_BLOCK = 1024

_Bounded: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]


class KindRecalls(Schema, frozen=True):
    """The recall at 1 of held-out items with partners and of those without, among all ``items``."""

    paired: _Share
    alone: _Share
    items: _Positive


class Offset(Schema, frozen=True):
    """The offset of items with partners: b₀ at ``n_paired`` and ``n_alone`` items, s_K and s_N."""

    level: _Bounded
    paired_slope: _Bounded
    alone_slope: _Bounded
    n_paired: _Positive
    n_alone: _Positive
    recalls: KindRecalls | None = None

    def compute(self, n_paired: int, n_alone: int) -> float:
        """Return the offset in a library with so many items with and without partners; see the module."""
        if n_paired < 1 or n_alone < 1:
            return 0.0
        paired = self.paired_slope * np.log(n_paired / self.n_paired)
        alone = self.alone_slope * np.log(n_alone / self.n_alone)
        return max(0.0, float(self.level + _FOLLOWED * (paired - alone)))


def add_coordinate(vectors: Floats, paired: Any) -> Floats:
    """Return vectors of items with the coordinate that says which of them have partners."""
    further = np.where(paired, -_COORDINATE, 0.0).astype(vectors.dtype)
    return np.hstack([vectors, further[:, None]])


def remove_coordinate(vectors: Floats) -> Floats:
    """Return stored vectors as the projector made them."""
    return vectors[:, :-1]


def add_offset(queries: Floats, offset: float) -> Floats:
    """Return vectors of queries with what subtracts an offset from the score of items with partners."""
    further = np.full((len(queries), 1), offset / _COORDINATE, queries.dtype)
    return np.hstack([queries, further])


def is_caption(text: Item) -> bool:
    """Return whether a stored text belongs to an image, and is not an empty one."""
    return text.image is not None and (text.text is None or bool(text.text.strip()))


def choose_offset(
    projector: Projector, features: Mapping[View, Any], owner: Mapping[View, Integers]
) -> Offset | None:
    """Return the offset of a task, from pairs that the model was not fitted on; None if they are too few.

    ``owner`` has the number of each row's image. A caption that is a query is left out of the place of its
    image. A text has one image only, which cannot be its partner and the query too, so ``annotate`` never
    chooses by recall.
    """
    if projector.euclidean or len(features["image"]) < FEWEST:
        return None
    searched, queried, rng = SEARCHED[projector.task], QUERIED[projector.task], np.random.default_rng(0)
    if len(owner["text"]) > MOST_TEXTS:
        texts = np.sort(rng.permutation(len(owner["text"]))[:MOST_TEXTS])
        features = {"image": features["image"], "text": features["text"][texts]}
        owner = {"image": owner["image"], "text": owner["text"][texts]}
    items, owners = features[searched], owner[searched]
    n_items = len(items)
    partners, pairing = list_partners(searched, features, owner)
    asked = np.sort(rng.permutation(len(features[queried]))[:MOST])
    queries, query_owners = projector.queries(features[queried][asked]), owner[queried][asked]
    alone, paired = (
        queries @ rows.T for rows in (projector.items(items), projector.items(items, partners, pairing))
    )
    is_right = query_owners[:, None] == owners
    spread, right_alone = float(np.std(alone[~is_right])), np.where(is_right, alone, -np.inf).max(axis=1)
    alone[is_right] = paired[is_right] = -np.inf
    half = rng.permutation(n_items)[: n_items // 2]
    slopes = [_measure_growth(scores, half) for scores in (paired, alone)]
    n_alone, splits = max(1, n_items // _ALONE), []
    for _ in range(_SPLITS):
        is_paired = np.ones(n_items, bool)
        is_paired[rng.permutation(n_items)[:n_alone]] = False
        splits.append((paired[:, is_paired].max(axis=1), alone[:, ~is_paired].max(axis=1)))
    measured = partial(
        Offset, paired_slope=slopes[0], alone_slope=slopes[1], n_paired=n_items - n_alone, n_alone=n_alone
    )
    right_paired = score_without_queries(projector, features, owner, asked, queries)
    rows = np.flatnonzero(np.isfinite(right_paired))
    if len(np.unique(query_owners[rows])) < FEWEST_ASKED:
        matched = float(np.mean([np.median(best - other) for best, other in splits]))
        return measured(matched + _MARGIN * spread)
    levels, hits = np.linspace(-1.0, 3.0, _STEPS) * spread, np.zeros((2, _STEPS))
    for best, other in splits:
        for step, level in enumerate(levels):
            rivals = np.maximum(best - level, other)
            hits[0, step] += np.mean(right_paired[rows] - level > rivals[rows]) / _SPLITS
            hits[1, step] += np.mean(right_alone > rivals) / _SPLITS
    # A mean of neighbours, because single queries make the best one jump.
    logs = np.pad(np.log(np.maximum(hits, 1e-9)).sum(axis=0), _SMOOTHED // 2, "edge")
    at = int(np.convolve(logs, np.full(_SMOOTHED, 1 / _SMOOTHED), "valid").argmax())
    recalls = KindRecalls(float(hits[0, at]), float(hits[1, at]), n_items)
    return measured(float(levels[at]), recalls=recalls)


def describe_kinds(offsets: Mapping[Task, Offset]) -> dict[str, Any]:
    """Return how well ``search`` finds items with captions and without, as facts; nothing if not measured."""
    recalls = None if "search" not in offsets else offsets["search"].recalls
    return {} if recalls is None else {"library": msgspec.to_builtins(recalls)}


def list_partners(
    view: View, features: Mapping[View, Any], owner: Mapping[View, Integers]
) -> tuple[Any, Integers]:
    """Return the partners of all items of a view, and the number of the item that each belongs to."""
    if view == "image":
        return features["text"], owner["text"]
    return features["image"][owner["text"]], np.arange(len(owner["text"]))


def score_without_queries(
    projector: Projector,
    features: Mapping[View, Any],
    owner: Mapping[View, Integers],
    asked: Integers,
    queries: Floats,
) -> Floats:
    """Return the score of each query's item, placed by its partners but the query, at most ``_OTHERS``.

    ``asked`` are the rows of the queries. −∞ where the item has no other partner.
    """
    scores = np.full(len(asked), -np.inf, np.float32)
    if SEARCHED[projector.task] != "image":
        return scores
    images, texts, owners = features["image"], features["text"], owner["text"]
    order = np.argsort(owners, kind="stable")
    starts = np.searchsorted(owners[order], np.arange(len(images) + 1))
    others = [order[starts[image] : starts[image + 1]] for image in owners[asked].tolist()]
    others = [rows[rows != query][:_OTHERS] for rows, query in zip(others, asked.tolist(), strict=True)]
    chosen = np.array([place for place, rows in enumerate(others) if len(rows)], np.int64)
    for start in range(0, len(chosen), _BLOCK):
        some = chosen[start : start + _BLOCK]
        rows = [others[place] for place in some.tolist()]
        pairing = np.repeat(np.arange(len(some)), list(map(len, rows)))
        placed = projector.items(images[owners[asked[some]]], texts[np.concatenate(rows)], pairing)
        scores[some] = np.einsum("ij,ij->i", queries[some], placed)
    return scores


def _measure_growth(scores: Floats, half: Integers) -> float:
    """Return by how much the best score of wrong items grows where there are e times as many."""
    return float(np.mean(scores.max(axis=1) - scores[:, half].max(axis=1)) / np.log(2))
