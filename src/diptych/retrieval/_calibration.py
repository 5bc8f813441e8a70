r"""From scores to probabilities: how likely a hit is right.

Scores order the items of one query, but another query has another level: some texts are near many images.
So an item is compared with the rest of what its query found. With the scores
:math:`s_1 \ge s_2 \ge \dots` of the ``BEST`` best items, and :math:`m` right items for a query on average,
the *evidence* for item :math:`i` is

.. math:: e_i = \beta s_i - \log\Bigl(e^{\beta b} + \sum_{j \in C_i} e^{\beta s_j}\Bigr),

where :math:`C_i` are all others except the :math:`m - 1` best of them, which may be right as well, and
:math:`b` is the score that one in twenty wrong items exceeds, so that no item is compared with nothing. For
:math:`m = 1` this is the log-odds of a softmax. The sum grows with the gallery, so that a map from evidence
to probability that was fitted on one gallery holds on others. Evidence increases with the score within a
query, and the map does with evidence, so probabilities never change the order of items of one kind.

Items with partners and those without (``diptych.retrieval._placing``) are ordered with an offset that gives
both kinds a fair chance, whatever their numbers. What is likely is another question: if nearly all items have
captions, one of them is meant. So scores enter the evidence with an offset of their own, d in place of b, at
which they tell as much of an item of either kind; it does not depend on the numbers, as the sum has them.

The best wrong items of a large gallery are texts and images that do fit each other: the higher a score is,
the less a step more of it tells. So above b, scores are bent: :math:`s - \kappa (s - b)^2`, up to where
that is greatest. Without it, probabilities were far too high where a library is many times larger than the
galleries that they were fitted in.

The map and :math:`\beta` are fitted on held-out pairs, in galleries of all of them, of a fifth, and of a
twenty-fifth. In these, every other image has its captions, as in a library, but for the one that is the
query; so the probabilities hold for items with captions and without. scikit-learn is used for that only:
what is stored and applied are plain numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypedDict

import msgspec
import numpy as np
from msgspec.structs import replace

from diptych._checks import IMAGE_AND_TEXT, TASKS, InputError, Task, ViewNames, count, plural
from diptych._persistence import Schema
from diptych.cca._projector import Projector
from diptych.retrieval._items import QUERIED, SEARCHED, View
from diptych.retrieval._pair_scores import PairReference
from diptych.retrieval._placing import Offset, choose_offset, list_partners, score_without_queries

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

BEST = 100
"""The best scores of a query, from which its probabilities are computed."""

JUDGED = 10
"""The hits of a query on which calibration is measured."""

BINS = 15
"""Bins of equal width for the expected calibration error."""

FEWEST_IMAGES = 100
"""Held-out images with texts; from fewer, probabilities were off by more than 0.1 in larger galleries."""

MOST_IMAGES = 2000
"""Held-out images that are used at most."""

_FITTED = 30  # best items of a query that the map is fitted on
_PARTS = (1, 5, 25)  # galleries: everything that is held out, parts of a fifth and of a twenty-fifth
_SMALLEST = 10  # images in a gallery
_QUERIES, _TRIED = 2000, 500  # most queries, and those to choose β with
_FOLDS = 5
_BLOCK = 256

_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_Above: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1e100)]
_Bounded: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]  # products stay finite
_Bent: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e100)]


class Measured(Schema, frozen=True):
    """How good the probabilities are, by cross-validation over the held-out images.

    ``ece`` is the expected calibration error of the ten best hits of each query, in 15 bins of equal width;
    ``bins`` has the mean probability, the share of right hits and the number of hits in each. ``on`` says
    which pairs they were, and ``gallery`` how many items.
    """

    on: str
    pairs: int
    queries: int
    gallery: int
    ece: _Share
    bins: list[tuple[_Share, _Share, int]]


class ScoreMap(Schema, frozen=True):
    """A map from evidence to probability that never falls: isotonic if it has knots, else Platt's.

    ``knots`` have evidence and probability; the map is linear between. Otherwise the log-odds are
    ``slope`` · evidence + ``intercept``.
    """

    slope: _Bounded = 0.0
    intercept: _Bounded = 0.0
    knots: tuple[tuple[_Bounded, _Share], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a map that could change the order of hits."""
        evidence, values = np.array(self.knots).reshape(-1, 2).T
        if self.slope < 0 or np.any(np.diff(evidence) < 0) or np.any(np.diff(values) < 0):
            raise InputError("a calibration falls with the score; expected one that increases")

    def __call__(self, evidence: Floats) -> Floats:
        """Return the probabilities for some evidence, −∞ where there is no item."""
        evidence = np.maximum(evidence, -1e6)
        if not self.knots:
            return 1 / (1 + np.exp(-np.clip(self.slope * evidence + self.intercept, -600, 600)))
        knots = np.array(self.knots)
        return np.asarray(np.interp(evidence, knots[:, 0], knots[:, 1]), np.float64)


class Evidence(Schema, frozen=True):
    """What the score of an item tells beside those of the others; the module has the numbers' meaning."""

    right: _Positive  # right items of a query, m
    sharpness: _Above  # β
    background: _Bounded  # b
    paired_offset: _Bounded = 0.0  # d
    bend: _Bent = 0.0  # κ

    def compute(self, scores: Floats) -> Floats:
        """Return the evidence for each item, from scores of the order d.

        The first ``BEST`` of a row count; −∞ where there are no more items.
        """
        if self.bend:
            above = np.clip(scores - self.background, 0, 0.5 / self.bend)
            # From the greatest value of the curve on, a higher score says no more.
            scores = np.minimum(scores, self.background + 0.5 / self.bend) - self.bend * above**2
        order = np.argsort(-scores[:, :BEST], axis=1, kind="stable")
        places = np.argsort(order, axis=1)
        scores = np.hstack([np.take_along_axis(scores, order, 1), scores[:, BEST:]])
        best = scores[:, :1]
        relative = self.sharpness * (scores - best)
        mass = np.exp(relative)
        mass[:, BEST:] = 0
        floor = np.exp(np.clip(self.sharpness * (self.background - best), -600, 600))
        rest = mass[:, self.right :].sum(axis=1, keepdims=True) + floor
        competitors = np.repeat(rest, scores.shape[1], axis=1)
        # Beyond the first m, the m-th is a competitor too, and the item itself is none.
        competitors[:, self.right :] += np.maximum(
            mass[:, self.right - 1 : self.right] - mass[:, self.right :], 0
        )
        evidence: Floats = relative - np.log(competitors)
        return np.hstack([np.take_along_axis(evidence, places, 1), evidence[:, BEST:]])

    def of(self, gallery: _Gallery) -> Floats:
        """Return the evidence for the items of a gallery."""
        return self.compute(gallery.scores - self.paired_offset * gallery.paired)


class TaskCalibration(Schema, frozen=True):
    """The probabilities of one task: the evidence of hits, and its map to probability."""

    evidence: Evidence
    map: ScoreMap
    measured: Measured

    def probabilities(self, scores: Floats, paired: Bools | None = None, offset: float = 0.0) -> Floats:
        """Return the probability of every hit.

        ``scores`` has a row for each query, best first, with −∞ where there are no more items. The first
        ``BEST`` count; with fewer columns, there must be no more items. ``offset`` was subtracted from those
        of ``paired`` items.
        """
        if scores.shape[1] == 0:
            return np.empty(scores.shape)
        rows = np.where(np.isfinite(scores[:, :1]), scores, self.evidence.background)
        if paired is not None:
            rows = rows + (offset - self.evidence.paired_offset) * paired
        return self.map(self.evidence.compute(rows))

    def describe(self) -> dict[str, Any]:
        """Return what people want to know of it, as plain data."""
        method = "isotonic" if self.map.knots else "platt"
        return {"method": method, **msgspec.to_builtins(self.measured)}


class TaskCalibrations(TypedDict):
    """The probabilities of both tasks, and the scores of held-out pairs."""

    search: TaskCalibration
    annotate: TaskCalibration
    pairs: PairReference


Calibration: TypeAlias = TaskCalibrations | str
"""What was measured on held-out pairs; or why nothing was, in words."""


NOT_CALIBRATED = "it was fitted without; Retriever.calibrate measures them on held-out pairs"
"""Why a model has no probabilities that was fitted elsewhere, or saved before there were any."""


def describe_calibration(calibration: Calibration) -> dict[str, Any]:
    """Return what people want to know of a calibration, as plain data."""
    if isinstance(calibration, str):
        return {"absent": calibration}
    return {task: calibration[task].describe() for task in TASKS}


def read_reference(calibration: Calibration) -> PairReference | str:
    """Return the scores of held-out pairs; or why there are none."""
    return calibration if isinstance(calibration, str) else calibration["pairs"]


def measure_held_out(
    projectors: Mapping[Task, Projector],
    x: Any,
    y: Any,
    pairing: Any,
    on: str,
    names: ViewNames = IMAGE_AND_TEXT,
) -> tuple[dict[Task, Offset], Calibration]:
    """Return what held-out pairs tell, which the model was not fitted on: offsets, and probabilities.

    The scores of these pairs are measured too. ``on`` says which pairs they are.
    """
    owners = np.asarray(pairing)
    rng = np.random.default_rng(0)
    images = rng.permutation(np.unique(owners))[:MOST_IMAGES]
    place = np.full(len(x), -1)
    place[images] = np.arange(len(images))
    captions = np.flatnonzero(place[owners] >= 0)
    features: dict[View, Any] = {"image": np.asarray(x)[images], "text": np.asarray(y)[captions]}
    owner: dict[View, Integers] = {"image": np.arange(len(images)), "text": place[owners[captions]]}
    chosen = {task: choose_offset(projectors[task], features, owner) for task in TASKS}
    offsets = {task: offset for task, offset in chosen.items() if offset is not None}
    if len(images) < FEWEST_IMAGES:
        few = count(len(images), f"held-out {names.image}")
        are = "was" if len(images) == 1 else "were"
        return offsets, f"there {are} {few} with {plural(names.caption)}; probabilities need {FEWEST_IMAGES}"
    tasks: dict[Task, TaskCalibration] = {}
    for task in TASKS:
        galleries, query_owner, background = _score(projectors[task], offsets.get(task), features, owner, rng)
        n_items = len(owner[SEARCHED[task]])
        right = max(1, round(n_items / len(images)))
        about = (on, len(captions), len(query_owner), n_items)
        try:
            level = offsets[task].level if task in offsets else 0.0
            tasks[task] = _fit_task(galleries, query_owner, right, background, level, about)
        except InputError as error:
            return offsets, str(error).rstrip(".")
    pairs = PairReference.measure(projectors, features["image"], features["text"], owner["text"])
    return offsets, {"search": tasks["search"], "annotate": tasks["annotate"], "pairs": pairs}


@dataclass(frozen=True, eq=False)
class _Gallery:
    """Each query's best items in galleries of one size, best first.

    These are scores without an offset, −∞ where there are no more; which are right, and which have partners.
    """

    scores: Floats
    right: Bools
    paired: Bools

    @classmethod
    def empty(cls, n_queries: int) -> _Gallery:
        """Return the gallery without items."""
        shape = n_queries, BEST
        return cls(np.full(shape, -np.inf), np.zeros(shape, bool), np.zeros(shape, bool))


def _score(
    projector: Projector,
    offset: Offset | None,
    features: Mapping[View, Any],
    owner: Mapping[View, Integers],
    rng: np.random.Generator,
) -> tuple[list[_Gallery], Integers, float]:
    """Score queries in a gallery of everything, and in parts of it that have their right items.

    Where there is an offset, every other image has its texts as partners, and they have it, as in a library.
    Queries that would be the only partner of their right item are left out. Return the galleries, the image
    of each query, and the score that one in twenty wrong items exceeds.
    """
    searched, queried = SEARCHED[projector.task], QUERIED[projector.task]
    item_owner = owner[searched]
    asked = np.sort(rng.permutation(len(owner[queried]))[:_QUERIES])
    queries, items = projector.queries(features[queried][asked]), projector.items(features[searched])
    is_paired, placed = np.zeros(len(items), bool), items
    right_scores = np.full(len(asked), -np.inf)
    if offset is not None:
        is_paired = item_owner % 2 == 0
        placed = np.where(
            is_paired[:, None],
            projector.items(features[searched], *list_partners(searched, features, owner)),
            items,
        )
        right_scores = score_without_queries(projector, features, owner, asked, queries)
        kept = (owner[queried][asked] % 2 == 1) | np.isfinite(right_scores)
        asked, queries, right_scores = asked[kept], queries[kept], right_scores[kept]
    query_owner = owner[queried][asked]
    galleries, limits = [], list[float]()
    for parts in _PARTS:
        if _SMALLEST * parts > len(np.unique(item_owner)):
            break
        gallery = _Gallery.empty(len(queries))
        for rows, columns in _split_images(query_owner, item_owner, parts):
            inner = queries[rows] @ placed[columns].T
            right = query_owner[rows, None] == item_owner[None, columns]
            paired, level = is_paired[columns], 0.0
            if offset is not None:
                inner = np.where(right & paired, right_scores[rows, None], inner)
                level = offset.compute(int(paired.sum()), int((~paired).sum()))
            scores = np.asarray(projector.scores(inner, queries[rows]), np.float64) - level * paired
            if parts == 1:
                limits.append(float(np.quantile(scores[~right], 0.95)))
            n = min(BEST, len(columns))
            best = np.argpartition(-scores, n - 1, axis=1)[:, :n]
            order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
            best = np.take_along_axis(best, order, 1)
            gallery.scores[rows, :n] = np.take_along_axis(scores + level * paired, best, 1)
            gallery.right[rows, :n] = np.take_along_axis(right, best, 1)
            gallery.paired[rows, :n] = paired[best]
        galleries.append(gallery)
    return galleries, query_owner, float(np.mean(limits))


def _split_images(
    query_owner: Integers, item_owner: Integers, parts: int
) -> Iterator[tuple[Integers, Integers]]:
    """Split the images at random; iterate over the queries about a part, in blocks, with its items."""
    for part in range(parts):  # images are numbered in random order
        rows, columns = (np.flatnonzero(owner % parts == part) for owner in (query_owner, item_owner))
        for start in range(0, len(rows), _BLOCK):
            yield rows[start : start + _BLOCK], columns


def _fit_task(
    galleries: Sequence[_Gallery],
    owner: Integers,
    right: int,
    background: float,
    level: float,
    about: tuple[str, int, int, int],
) -> TaskCalibration:
    """Fit on the best scores of queries of some images.

    ``level`` is the offset by which items were ordered, and ``about`` are the first fields of ``Measured``.
    """
    chosen = _choose_evidence(galleries, right, background, level)
    evidence = [chosen.of(gallery) for gallery in galleries]
    # Probabilities of 0 and 1 would claim more than so many queries can show.
    least, folds = 1 / (len(owner) + 2), owner % _FOLDS  # all queries of an image are in one fold
    judged = {method: np.empty((len(owner), JUDGED)) for method in _METHODS}
    for fold in range(_FOLDS):
        test = folds == fold
        hits = _training_hits(evidence, galleries, ~test)
        for method, fit in _METHODS.items():
            judged[method][test] = fit(*hits, least)(evidence[0][test, :JUDGED])
    truth = galleries[0].right[:, :JUDGED]
    method = min(_METHODS, key=lambda name: _log_loss(judged[name], truth))
    bins = reliability(judged[method].ravel(), truth.ravel())
    every_hit = _training_hits(evidence, galleries, np.ones(len(owner), bool))
    fitted_map = _METHODS[method](*every_hit, least)
    measured = Measured(*about, calibration_error(bins), bins)
    return TaskCalibration(chosen, fitted_map, measured)


def reliability(probabilities: Floats, right: Bools, bins: int = BINS) -> list[tuple[float, float, int]]:
    """Return mean probability, share of right hits and number of hits of each bin that has any."""
    places = np.minimum((probabilities * bins).astype(int), bins - 1)
    return [
        (float(probabilities[inside].mean()), float(right[inside].mean()), int(inside.sum()))
        for place in range(bins)
        if (inside := places == place).any()
    ]


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """Return the expected calibration error: the mean difference in bins, weighted by their hits."""
    return sum(abs(p - share) * n for p, share, n in bins) / sum(n for _, _, n in bins)


def _training_hits(
    evidence: Sequence[Floats], galleries: Sequence[_Gallery], queries: Bools
) -> tuple[Floats, Bools]:
    """Return evidence and truth of the best hits of some queries in all galleries."""
    values, truth = [], []
    for gallery_evidence, gallery in zip(evidence, galleries, strict=True):
        exists = np.isfinite(gallery.scores[queries, :_FITTED])
        values.append(gallery_evidence[queries, :_FITTED][exists])
        truth.append(gallery.right[queries, :_FITTED][exists])
    return np.concatenate(values), np.concatenate(truth)


def _fit_platt(evidence: Floats, truth: Bools, least: float = 0.0) -> ScoreMap:
    from sklearn.linear_model import LogisticRegression

    if truth.all() or not truth.any():
        raise InputError("the held-out pairs have no wrong item, or no right one, among the best.")
    mean, scale = evidence.mean(), max(evidence.std(), 1e-12)
    model = LogisticRegression(C=1e4, max_iter=1000).fit((evidence[:, None] - mean) / scale, truth)
    slope = float(model.coef_[0, 0] / scale)
    if slope > 0:
        return ScoreMap(slope, float(model.intercept_[0] - slope * mean))
    rate = float(truth.mean())
    return ScoreMap(0.0, float(np.log(rate / (1 - rate))))


def _fit_isotonic(evidence: Floats, truth: Bools, least: float) -> ScoreMap:
    from sklearn.isotonic import IsotonicRegression

    steps = IsotonicRegression(y_min=least, y_max=1 - least).fit(evidence, truth)
    return ScoreMap(knots=tuple(zip(steps.X_thresholds_.tolist(), steps.y_thresholds_.tolist(), strict=True)))


_METHODS: dict[str, Callable[[Floats, Bools, float], ScoreMap]] = {
    "platt": _fit_platt,
    "isotonic": _fit_isotonic,
}


def _choose_evidence(galleries: Sequence[_Gallery], right: int, background: float, level: float) -> Evidence:
    """Return the evidence with the smallest log loss of Platt's map, one number after the other.

    β is tried over multiples of the spread of scores. Where there are items with partners, d follows, over
    multiples of the offset that they were ordered by. κ comes last, and β again with it.
    """
    whole = galleries[0].scores
    last = np.isfinite(whole).sum(axis=1) - 1
    spread = float(np.median(whole[:, 0] - whole[np.arange(len(whole)), last])) or 1.0
    tried = np.unique(np.linspace(0, len(whole) - 1, min(_TRIED, len(whole))).astype(int))
    sample = [
        _Gallery(gallery.scores[tried], gallery.right[tried], gallery.paired[tried]) for gallery in galleries
    ]

    def loss(evidence: Evidence) -> float:
        values, truth = _training_hits(list(map(evidence.of, sample)), sample, np.ones(len(tried), bool))
        return _log_loss(_fit_platt(values, truth)(values), truth)

    start = Evidence(right, 1.0, background, level / 2)
    sharpness = np.geomspace(1.0, 100.0, 14) / spread
    best = min((replace(start, sharpness=float(beta)) for beta in sharpness), key=loss)
    paired = any(gallery.paired.any() for gallery in galleries)
    offsets = np.linspace(-0.5, 1.5, 9) * level if paired else [0.0]
    best = min((replace(best, paired_offset=float(d)) for d in offsets), key=loss)
    sharper = best.sharpness * np.array([1.0, 1.2, 1.45, 1.75])
    bent = [
        replace(best, sharpness=float(beta), bend=bend / spread)
        for bend, beta in itertools.product((0.1, 0.2, 0.3), sharper)
    ]
    return min([best, *bent], key=loss)


def _log_loss(probabilities: Floats, truth: Bools) -> float:
    p = np.clip(np.where(truth, probabilities, 1 - probabilities), 1e-12, 1)
    return float(-np.log(p).mean())
