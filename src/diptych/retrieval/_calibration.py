r"""From scores to probabilities: how likely a hit is right, and whether there is anything right to find.

Scores order the items of one query, but another query has another level: some texts are near many images.
So an item is compared with the rest of what its own query found. With the scores
:math:`s_1 \ge s_2 \ge \dots` of the ``BEST`` best items, and :math:`m` right items for a query on average,
the *evidence* for item :math:`i` is

.. math:: e_i = \beta s_i - \log\Bigl(e^{\beta b} + \sum_{j \in C_i} e^{\beta s_j}\Bigr),

where :math:`C_i` are all others except the :math:`m - 1` best of them, which may be right as well, and
:math:`b` is the score that one in twenty wrong items exceeds, so that no item is compared with nothing. For
:math:`m = 1` this is the log-odds of a softmax. The sum grows with the gallery, so that a map from evidence
to probability that was fitted on one gallery holds on others. Evidence increases with the score within a
query, and the map does with evidence, so probabilities never change the order.

Whether there is a right item at all shows in how far the best scores of a query exceed what it scores with
other items, so each model keeps a *reference*: some items of the held-out pairs. The share of them that the
query's 100th hit would exceed tells how large a gallery of such items would be; the features are how far the
mean of the :math:`m`, and of some more, best scores lies above that of as large a share of the reference.

The map and :math:`\beta` are fitted on held-out pairs, in galleries of all of them, of a fifth, and of a
twenty-fifth; the match in halves of these, with the other half as reference, and in a half together with
items that the model was fitted on, which most galleries have and which score higher. scikit-learn is used for
that only: what is stored and applied are plain numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from diptych._checks import IMAGE_AND_TEXT, TASKS, InputError, Task, ViewNames, count, plural
from diptych._persistence import Schema
from diptych.cca._moments import Moments
from diptych.retrieval._embedding import Embedding
from diptych.retrieval._items import QUERIED, SEARCHED, VIEWS, View

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Bools: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

BEST = 100
"""The best scores of a query, from which its probabilities are computed."""

JUDGED = 10
"""The hits of a query on which calibration is measured."""

BINS = 15
"""Bins of equal width for the expected calibration error."""

FEWEST_IMAGES = 100
"""Held-out images with texts; from fewer, probabilities were off by more than 0.1 in larger galleries."""

HELD_OUT = 2000
"""Images that are held out at most."""

KNOWN = 5000
"""Items that the model was fitted on, in the galleries in which matches are learned."""

FALSE_ALARMS = 0.05
"""The share of held-out queries with a right item that are told to have none, at most, in any gallery."""

_FITTED = 30  # best items of a query that the map is fitted on
_WITH_KNOWN = 0  # in place of a number of parts
_PARTS = (1, 5, 25)  # galleries: everything that is held out, parts of a fifth and of a twenty-fifth
_REFERENCE = 1000  # most items of the reference
_TAIL, _MORE = 20, 19  # of the reference's best, how many show its tail; further hits that show a match
_SMALLEST = 10  # images in a gallery
_QUERIES, _TRIED = 2000, 500  # most queries, and those to choose β with
_FOLDS = 5
_BLOCK = 256

_Share: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
_Above: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]


class Measured(Schema, frozen=True):
    """How good the probabilities are, by cross-validation over the held-out images.

    ``ece`` is the expected calibration error of the ten best hits of each query, in 15 bins of equal width;
    ``bins`` has the mean probability, the share of right hits and the number of hits in each. ``auroc`` is
    the area under the curve for "is there a right item in the gallery at all?", in galleries of half as many
    items. ``on`` says which pairs they were, and ``gallery`` how many items.
    """

    on: str
    pairs: int
    queries: int
    gallery: int
    ece: _Share
    auroc: _Share
    bins: list[tuple[_Share, _Share, int]]


class ScoreMap(Schema, frozen=True):
    """A map from evidence to probability that never falls: isotonic if it has knots, else Platt's.

    ``knots`` have evidence and probability; the map is linear between. Otherwise the log-odds are
    ``slope`` · evidence + ``intercept``.
    """

    slope: float = 0.0
    intercept: float = 0.0
    knots: tuple[tuple[float, _Share], ...] = ()

    def __post_init__(self) -> None:
        """Refuse a map that could change the order of hits."""
        evidence, values = np.array(self.knots).reshape(-1, 2).T
        if self.slope < 0 or np.any(np.diff(evidence) < 0) or np.any(np.diff(values) < 0):
            raise InputError("a calibration falls with the score; expected one that increases")

    def __call__(self, evidence: Floats) -> Floats:
        """Return the probabilities for some evidence, −∞ where there is no item."""
        evidence = np.maximum(evidence, -1e6)
        if not self.knots:
            return _sigmoid(self.slope * evidence + self.intercept)
        knots = np.array(self.knots)
        return np.asarray(np.interp(evidence, knots[:, 0], knots[:, 1]), np.float64)


class CalibrationConfig(Schema, frozen=True):
    """What ``config.json`` says of the probabilities of one task; the module has their meaning."""

    right: _Positive  # right items of a query, m
    sharpness: _Above  # β
    background: float  # b
    map: ScoreMap
    match: tuple[float, float, float, float] | None  # weights of ``_excess``'s features, and the intercept
    no_match: _Share  # there is said to be no match below this probability of one
    measured: Measured


@dataclass(frozen=True, eq=False)
class TaskCalibration:
    """The probabilities of one task, as plain numbers, and the vectors of the reference."""

    config: CalibrationConfig
    reference: np.ndarray[Any, Any]

    def probabilities(self, scores: Floats, reference: Floats) -> tuple[Floats, Floats | None]:
        """Return the probability of every hit, and for each query that there is a right item at all.

        The second is None if scores do not tell, as held-out queries showed.

        ``scores`` has a row for each query, best first, with −∞ where there are no more items. The first
        ``BEST`` count; with fewer columns, there must be no more items. ``reference`` has the scores of the
        reference. That there is a right item is as likely as it would be if half of all queries had one.
        """
        if scores.shape[1] == 0:
            return np.empty(scores.shape), None if self.config.match is None else np.zeros(len(scores))
        own, found = self.config, np.isfinite(scores[:, 0])
        rows = np.where(found[:, None], scores, own.background)
        likely = own.map(_evidence(rows, own.sharpness, own.right, own.background))
        if own.match is None:
            return likely, None
        there = _match(_excess(rows[:, :BEST], reference, own.right), own.match)
        return likely, np.where(found, there, 0.0)

    def describe(self) -> dict[str, Any]:
        """Return what people want to know of it, as plain data."""
        method = "isotonic" if self.config.map.knots else "platt"
        return {"method": method, **msgspec.to_builtins(self.config.measured)}


class HeldOut(NamedTuple):
    """Pairs on which probabilities are measured after a refit, and which they are, in words.

    ``known`` are features of some items of both views that the refit learns from. If it learns from these
    pairs too, ``learned`` are their moments, by which another model is fitted without them.
    """

    on: str
    pairs: tuple[Any, Any, Any]
    known: tuple[Any, Any] | None = None
    learned: Moments | None = None


Calibration: TypeAlias = dict[Task, TaskCalibration] | str
"""The calibration of both tasks; or why there is none, in words."""


def describe_calibration(calibration: Calibration) -> dict[str, Any]:
    """Return what people want to know of a calibration, as plain data."""
    if isinstance(calibration, str):
        return {"absent": calibration}
    return {task: calibration[task].describe() for task in TASKS}


def fit_calibration(
    embedding: Embedding,
    x: Any,
    y: Any,
    pairing: Any,
    on: str,
    names: ViewNames = IMAGE_AND_TEXT,
    final: Embedding | None = None,
    known: tuple[Any, Any] | None = None,
) -> Calibration:
    """Fit the probabilities of both tasks on held-out pairs, which the model was not fitted on.

    ``on`` says which pairs they are. ``final`` is the embedding that the probabilities are for, if the model
    was then fitted on these pairs too. ``known`` are features of some items of both views that the model was
    fitted on.
    """
    owners = np.asarray(pairing)
    images = np.unique(owners)
    if len(images) < FEWEST_IMAGES:
        few = count(len(images), f"held-out {names.image}")
        are = "was" if len(images) == 1 else "were"
        return f"there {are} {few} with {plural(names.caption)}; probabilities need {FEWEST_IMAGES}"
    rng = np.random.default_rng(0)
    images = rng.permutation(images)[:HELD_OUT]
    place = np.full(len(x), -1)
    place[images] = np.arange(len(images))
    captions = np.flatnonzero(place[owners] >= 0)
    features: dict[View, Any] = {"image": np.asarray(x)[images], "text": np.asarray(y)[captions]}
    owner: dict[View, Any] = {"image": np.arange(len(images)), "text": place[owners[captions]]}
    fitted: dict[Task, TaskCalibration] = {}
    for task in TASKS:
        queried, searched = QUERIED[task], SEARCHED[task]
        rows = np.sort(rng.permutation(len(owner[queried]))[:_QUERIES])
        queries = embedding.queries(features[queried][rows], task)
        items = embedding.items(features[searched], task)[0]
        owners_of = owner[queried][rows], owner[searched]
        fitted_on = None if known is None else embedding.items(known[VIEWS.index(searched)], task)[0]
        galleries, matches, background = _score(embedding, queries, items, *owners_of, fitted_on)
        right, about = max(1, round(len(items) / len(images))), (on, len(captions), len(rows), len(items))
        try:
            config = _fit_task(galleries, matches, owners_of[0], right, background, about)
        except InputError as error:
            return str(error).rstrip(".")
        kept = np.sort(rng.permutation(len(items))[:_REFERENCE])
        reference = (final or embedding).items(features[searched][kept], task)[0]
        fitted[task] = TaskCalibration(config, np.ascontiguousarray(reference, np.float32))
    return fitted


@dataclass(frozen=True, eq=False)
class _Gallery:
    """Each query's best scores in galleries of one size, and which of them are right."""

    scores: Floats
    right: Bools


@dataclass(frozen=True, eq=False)
class _Match:
    """Each query's best scores with and without right items in its gallery, and those of its reference."""

    present: Floats
    absent: Floats
    reference: Floats


def _score(
    embedding: Embedding, queries: Any, items: Any, query_owner: Any, item_owner: Any, known: Any = None
) -> tuple[list[_Gallery], list[_Match], float]:
    """Score every query in a gallery of everything, and in parts of it that have its own right items.

    Return the galleries, those of halves with the other half as reference, and the score that one in twenty
    wrong items exceeds. The last of the halves has ``known`` items too, if there are any.
    """
    right_items, limits = np.bincount(item_owner), list[float]()
    most, width = len(right_items) // _SMALLEST, min(BEST + int(right_items.max()), len(items))
    # Images are in random order, so that their places make random parts.
    sizes = [*_PARTS, *(2 * parts for parts in _PARTS)]
    best: dict[int, list[tuple[Floats, Bools]]] = {parts: [] for parts in sizes if parts <= most}
    if known is not None:
        best[_WITH_KNOWN] = []
    references = []

    def keep_best(values: Floats, right: Bools) -> tuple[Floats, Bools]:
        first = np.argpartition(-values, width - 1, axis=1)[:, :width]
        order = np.argsort(-np.take_along_axis(values, first, 1), axis=1, kind="stable")
        first = np.take_along_axis(first, order, 1)
        return np.take_along_axis(values, first, 1), np.take_along_axis(right, first, 1)

    for start in range(0, len(queries), _BLOCK):
        some = slice(start, start + _BLOCK)
        scores = np.asarray(embedding.scores(queries[some] @ items.T, queries[some]), np.float64)
        right = query_owner[some, None] == item_owner[None, :]
        limits.append(float(np.quantile(scores[~right], 0.95)))
        for parts, found in best.items():
            modulus = parts or 2
            near = query_owner[some, None] % modulus == item_owner[None, :] % modulus
            values = np.where(near, scores, -np.inf)
            if parts == _WITH_KNOWN:
                others = np.asarray(embedding.scores(queries[some] @ known.T, queries[some]), np.float64)
                found.append(
                    keep_best(np.hstack([values, others]), np.hstack([right, np.zeros(others.shape, bool)]))
                )
            else:
                found.append(keep_best(values, right))
        for row, own in zip(scores, query_owner[some] % 2, strict=True):
            other = row[item_owner % 2 != own]
            references.append(other[:: max(1, -(-len(other) // _REFERENCE))])
    smallest = min(map(len, references))
    reference = np.array([row[:smallest] for row in references])
    galleries, matches = [], []
    for parts, found in best.items():
        scores, right = (np.concatenate(each) for each in zip(*found, strict=True))
        if parts in _PARTS:
            galleries.append(_Gallery(scores[:, :BEST], right[:, :BEST]))
        else:
            without = -np.sort(-np.where(right, -np.inf, scores), axis=1)
            matches.append(_Match(scores[:, :BEST], without[:, :BEST], reference))
    return galleries, matches, float(np.mean(limits))


def _fit_task(
    galleries: Sequence[_Gallery],
    matches: Sequence[_Match],
    owner: Any,
    right: int,
    background: float,
    about: tuple[str, int, int, int],
) -> CalibrationConfig:
    """Fit on the best scores of queries of some images; ``about`` are the first fields of ``Measured``."""
    sharpness = _choose_sharpness(galleries, right, background)
    evidence = [_evidence(own.scores, sharpness, right, background) for own in galleries]
    excesses = [
        [_excess(scores, own.reference, right) for scores in (own.present, own.absent)] for own in matches
    ]
    # Probabilities of 0 and 1 would claim more than so many queries can show.
    least, folds = 1 / (len(owner) + 2), owner % _FOLDS  # all queries of an image are in one fold
    judged = {method: np.empty((len(owner), JUDGED)) for method in _METHODS}
    present, absent = np.empty(len(owner)), np.empty(len(owner))
    for fold in range(_FOLDS):
        test, train = folds == fold, folds != fold
        hits = _training_hits(evidence, galleries, train)
        for method, fit in _METHODS.items():
            judged[method][test] = fit(*hits, least)(evidence[0][test, :JUDGED])
        weights = _fit_match(excesses, train)
        for values, own in zip((present, absent), excesses[0], strict=True):
            values[test] = _match(own[test], weights)
    truth = galleries[0].right[:, :JUDGED]
    method = min(_METHODS, key=lambda each: _log_loss(judged[each], truth))
    bins = reliability(judged[method].ravel(), truth.ravel())
    every = np.ones(len(owner), bool)
    match, area = _fit_match(excesses, every), _area(present, absent)
    limit = min(float(np.quantile(_match(with_right, match), FALSE_ALARMS)) for with_right, _ in excesses)
    # Two standard errors of the area if there were nothing to see; queries of an image count as one.
    tells = area > 0.5 + 2 * np.sqrt(1 / (6 * len(np.unique(owner))))
    return CalibrationConfig(
        right,
        sharpness,
        background,
        _METHODS[method](*_training_hits(evidence, galleries, every), least),
        match if tells else None,
        limit,
        Measured(*about, calibration_error(bins), area, bins),
    )


def reliability(probabilities: Floats, right: Bools, bins: int = BINS) -> list[tuple[float, float, int]]:
    """Return mean probability, share of right hits and number of hits of each bin that has any."""
    which = np.minimum((probabilities * bins).astype(int), bins - 1)
    return [
        (float(probabilities[own].mean()), float(right[own].mean()), int(own.sum()))
        for each in range(bins)
        if (own := which == each).any()
    ]


def calibration_error(bins: Sequence[tuple[float, float, int]]) -> float:
    """Return the expected calibration error: the mean difference in bins, weighted by their hits."""
    return sum(abs(p - share) * n for p, share, n in bins) / sum(n for _, _, n in bins)


def _evidence(scores: Floats, sharpness: float, right: int, background: float) -> Floats:
    """Return the evidence for each item; ``scores`` are sorted, with −∞ where there are no more items."""
    best = scores[:, :1]
    own = sharpness * (scores - best)
    mass = np.exp(own)
    mass[:, BEST:] = 0
    floor = np.exp(np.clip(sharpness * (background - best), -600, 600))
    rest = mass[:, right:].sum(axis=1, keepdims=True) + floor
    others = np.repeat(rest, scores.shape[1], axis=1)
    # Beyond the first m, the m-th is a competitor too, and the item itself is none.
    others[:, right:] += np.maximum(mass[:, right - 1 : right] - mass[:, right:], 0)
    evidence: Floats = own - np.log(others)
    return evidence


def _excess(scores: Floats, reference: Floats, right: int) -> Floats:
    """Return how far the means of each query's m best, and of some more, lie above those of the reference.

    The third feature is the logarithm of the size of the gallery, relative to the reference.

    As many of the reference are averaged as correspond to a gallery in which the last of ``scores`` has its
    rank. Beyond the best of the reference, its tail is continued as an exponential one.
    """
    ordered = -np.sort(-reference, axis=1)[:, right:]  # those may be right themselves, if the query is old
    n, size = np.isfinite(scores).sum(axis=1), ordered.shape[1]
    tail = np.maximum(ordered[:, :_TAIL].mean(axis=1) - ordered[:, min(_TAIL, size) - 1], 1e-12)
    last = np.take_along_axis(scores, n[:, None] - 1, 1)
    above = (ordered >= last).sum(axis=1)
    beyond = np.exp(-np.clip((last[:, 0] - ordered[:, 0]) / tail, 0, 50))
    share = np.where(
        n < BEST, size / n, np.where(above > 0, above, beyond) / n
    )  # of the reference, for one hit
    means = np.cumsum(ordered, axis=1) / np.arange(1, size + 1)
    features = []
    for k in (right, right + _MORE):
        own = np.minimum(n, k)
        usable = np.where((np.arange(scores.shape[1]) < own[:, None]), scores, 0)
        place = own * share
        expected = np.take_along_axis(means, np.clip(place.round().astype(int), 1, size)[:, None] - 1, 1)[
            :, 0
        ]
        expected = expected - tail * np.log(np.minimum(place, 1))
        features.append(usable.sum(axis=1) / own - expected)
    return np.stack([*features, -np.log(share)], axis=1)


def _match(excess: Floats, weights: tuple[float, ...]) -> Floats:
    """Return how likely there is a right item."""
    return _sigmoid(excess @ np.array(weights[:-1]) + weights[-1])


def _sigmoid(values: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(values, -600, 600)))


def _training_hits(
    evidence: Sequence[Floats], galleries: Sequence[_Gallery], queries: Bools
) -> tuple[Floats, Bools]:
    """Return evidence and truth of the best hits of some queries in all galleries."""
    usable = [np.isfinite(own.scores[queries, :_FITTED]) for own in galleries]
    found = [values[queries, :_FITTED][some] for values, some in zip(evidence, usable, strict=True)]
    truth = [own.right[queries, :_FITTED][some] for own, some in zip(galleries, usable, strict=True)]
    return np.concatenate(found), np.concatenate(truth)


def _fit_platt(evidence: Floats, truth: Bools, least: float = 0.0) -> ScoreMap:
    slope, intercept = _regress(evidence[:, None], truth)
    if slope > 0:
        return ScoreMap(slope, intercept)
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


def _choose_sharpness(galleries: Sequence[_Gallery], right: int, background: float) -> float:
    """Return the β with the smallest log loss of Platt's map, over multiples of the spread of scores."""
    whole = galleries[0].scores
    last = np.isfinite(whole).sum(axis=1) - 1
    spread = float(np.median(whole[:, 0] - whole[np.arange(len(whole)), last])) or 1.0
    some = np.zeros(len(whole), bool)
    some[np.linspace(0, len(whole) - 1, min(_TRIED, len(whole))).astype(int)] = True

    def loss(sharpness: float) -> float:
        evidence = [_evidence(own.scores, sharpness, right, background) for own in galleries]
        found, truth = _training_hits(evidence, galleries, some)
        return _log_loss(_fit_platt(found, truth)(found), truth)

    return float(min(np.geomspace(1.0, 100.0, 14) / spread, key=loss))


def _fit_match(excesses: Sequence[Sequence[Floats]], queries: Bools) -> tuple[float, float, float, float]:
    """Return the weights of ``_excess``'s features, and the intercept, for a right item in the gallery."""
    rows = np.concatenate([own[queries] for both in excesses for own in both])
    truth = np.concatenate(
        [np.full(int(queries.sum()), at == 0) for both in excesses for at in range(len(both))]
    )
    first, second, size, intercept = _regress(rows, truth)
    return first, second, size, intercept


def _regress(rows: Floats, truth: Bools) -> tuple[float, ...]:
    """Return the weights and the intercept of a logistic regression."""
    from sklearn.linear_model import LogisticRegression

    if truth.all() or not truth.any():
        raise InputError("the held-out pairs have no wrong item, or no right one, among the best.")
    mean, scale = rows.mean(axis=0), np.maximum(rows.std(axis=0), 1e-12)
    model = LogisticRegression(C=1e4, max_iter=1000).fit((rows - mean) / scale, truth)
    weights = model.coef_[0] / scale
    return (*weights.tolist(), float(model.intercept_[0] - weights @ mean))


def _log_loss(probabilities: Floats, truth: Bools) -> float:
    p = np.clip(np.where(truth, probabilities, 1 - probabilities), 1e-12, 1)
    return float(-np.log(p).mean())


def _area(present: Floats, absent: Floats) -> float:
    """Return the area under the curve: the share of pairs in which the first is greater."""
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([1, 0], [len(present), len(absent)])
    return float(roc_auc_score(truth, np.concatenate([present, absent])))
