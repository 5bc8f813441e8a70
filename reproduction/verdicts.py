"""How a claim is decided: verdicts from differences of recalls and their intervals.

A claim about recalls compares two methods on the same test images: the differences of r@1, r@5 and r@10 in
both tasks, each with two intervals of a paired bootstrap. Test images are resampled with replacement, each
with all its captions, because captions of one image are not independent. A claim *holds* when every
difference is on the claimed side by its own interval: all of them must be, so that their number makes a false
verdict rarer, not more likely. It *does not hold* when one difference is on the other side by its joint
interval: one is enough, so these are widened for their number. Otherwise it is *undecided*.

The intervals measure the sampling of test images. Parameters were selected on validation images once, and
that they could have been selected otherwise is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.stats import rankdata

from reproduction.results import TASKS, Floats, Task

RESAMPLES = 2000
LEVEL = 95.0
"""Percent of the resampled values within an interval."""
SEED = 0

Verdict: TypeAlias = Literal["holds", "does not hold", "undecided", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not measured")
CUTS = (1, 5, 10)
INTERVALS = f"{LEVEL:g} % intervals of a paired bootstrap over images, {RESAMPLES:,} resamples"


@dataclass(frozen=True)
class Interval:
    """A value with two intervals.

    ``low`` and ``high`` enclose ``LEVEL`` percent of its resampled values. ``joint_low`` and ``joint_high``
    are wider where several values belong together: ``LEVEL`` percent of the resamples lie within the joint
    intervals of all of them at once.
    """

    value: float
    low: float
    high: float
    joint_low: float
    joint_high: float

    def __str__(self) -> str:
        numbers = self.value, self.low, self.high
        value, low, high = (f"{number:+.1f}".replace("-", "−") for number in numbers)
        return f"{value} [{low}, {high}]"

    def shift(self, by: float) -> Interval:
        return Interval(*(number + by for number in astuple(self)))


def make_intervals(values: Sequence[float], resampled: Any) -> list[Interval]:
    """Return the percentile intervals of values that belong together; ``resampled`` is values × resamples.

    The joint intervals leave out the same number of resamples at each end of each value: the largest number
    for which ``LEVEL`` percent of the resamples are within all of them.

    >>> rng = np.random.default_rng(0)
    >>> six = make_intervals([0.0] * 6, rng.normal(size=(6, 2000)))
    >>> [round(end) for end in (-100 * six[0].low, -100 * six[0].joint_low)]
    [194, 293]
    """
    resampled = np.asarray(resampled, dtype=np.float64)
    tail = (1 - LEVEL / 100) / 2
    limits = np.quantile(resampled, [tail, 1 - tail], axis=1)
    # How many resamples of a value are at least as far out, and the fewest over all values.
    below, above = rankdata(resampled, "max", axis=1), rankdata(-resampled, "max", axis=1)
    depth = np.minimum(below, above).min(axis=0)
    outside = max(int(np.quantile(depth, 1 - LEVEL / 100, method="lower")), 1)
    ordered = np.sort(resampled, axis=1)
    joint = np.minimum(limits[0], ordered[:, outside - 1]), np.maximum(limits[1], ordered[:, -outside])
    return [
        Interval(float(value), *map(float, ends))
        for value, *ends in zip(values, *limits, *joint, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Answers:
    """Ranks of one method for the queries of one set of test images."""

    ranks: np.ndarray[Any, Any]  # seeds × queries, or queries; recalls are averaged over seeds
    owners: np.ndarray[Any, Any]  # the image of each query, 0 to ``n_images`` − 1
    n_images: int

    def hits(self, k: int) -> Floats:
        """Return for each image the number of its queries with the truth among the first ``k``."""
        share = (np.atleast_2d(self.ranks) <= k).mean(axis=0)
        return np.bincount(self.owners, share, self.n_images).astype(np.float64)

    def queries(self) -> Floats:
        return np.bincount(self.owners, minlength=self.n_images).astype(np.float64)


def resample_recall(
    first: Sequence[Answers], second: Sequence[Answers] | None, k: int
) -> tuple[float, Floats]:
    """Return recall at ``k`` of the first method minus that of the second, in points, and its resamples.

    ``first[i]`` and ``second[i]`` answer the same queries. Several entries are the runs of a protocol; their
    mean is compared. Without a second method, it is the recall of the first. Every comparison on the same
    images draws the same resamples.
    """
    values: list[float] = []
    resampled: list[Floats] = []
    for run, one in enumerate(first):
        hits = one.hits(k) - (0.0 if second is None else second[run].hits(k))
        queries, weights = one.queries(), draw_images(one.n_images, run)
        values.append(100.0 * hits.sum() / queries.sum())
        resampled.append(100.0 * (weights @ hits) / np.maximum(weights @ queries, 1.0))
    return float(np.mean(values)), np.mean(resampled, axis=0)


@lru_cache(maxsize=5)
def draw_images(n_images: int, run: int = 0) -> Floats:
    """Count how often each image is drawn in each resample: resamples × images."""
    rng = np.random.default_rng([SEED, run, n_images])
    counts = rng.multinomial(n_images, np.full(n_images, 1.0 / n_images), size=RESAMPLES)
    return counts.astype(np.float64)


Method: TypeAlias = Mapping[Task, Mapping[str, Answers]]
"""Answers of one method for each task and each set of test images, by the digest of the images."""


def state_rule(recalls: str, limit: str = "0") -> str:
    return (
        f"holds if the intervals of the differences of {recalls} are all above {limit}; does not hold if one "
        f"joint interval is entirely below {limit}; otherwise it is undecided"
    )


RULE = state_rule("r@1, r@5 and r@10 of both tasks")


@dataclass(frozen=True)
class Difference:
    """Recall of the first method minus that of the second, in points, which a claim depends on."""

    against: str
    task: Task
    metric: str
    first: float
    second: float
    interval: Interval


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with its verdict."""

    claim: str
    verdict: Verdict
    evidence: str  # the numbers of this run
    rule: str = ""  # how the numbers decide
    differences: tuple[Difference, ...] = ()  # of recalls, if the claim is about them
    place: str = ""  # where the paper makes it


class Compared(NamedTuple):
    """One recall of a method and of a rival, with the resampled values of their difference."""

    against: str
    task: Task
    cut: int
    first: float
    second: float
    resampled: Floats


def compare(
    claim: str,
    place: str,
    first: Method,
    rivals: Mapping[str, Method],
    *,
    tasks: Sequence[Task] = TASKS,
    cuts: Sequence[int] = CUTS,
    margin: float = 0.0,
    surpassed: Sequence[str] | None = None,
    rule: str = RULE,
) -> Claim:
    """Judge a claim that the recalls of one method are above those of all rivals, minus ``margin``.

    With ``surpassed``, only the intervals against these must be above 0, and no other recall may be higher.
    """
    compared = []
    for name, rival in rivals.items():
        for task in tasks:
            shared = [key for key in first[task] if key in rival[task]]
            better, worse = ([method[task][key] for key in shared] for method in (first, rival))
            for k in cuts:
                recalls = resample_recall(better, None, k)[0], resample_recall(worse, None, k)[0]
                compared.append(Compared(name, task, k, *recalls, resample_recall(better, worse, k)[1]))
    return judge(claim, place, compared, margin=margin, surpassed=surpassed, rule=rule)


def judge(
    claim: str,
    place: str,
    compared: Sequence[Compared],
    *,
    margin: float = 0.0,
    surpassed: Sequence[str] | None = None,
    rule: str = RULE,
) -> Claim:
    """Judge a claim that the first recall is above the second in all of ``compared``; see ``compare``."""
    intervals = make_intervals(
        [recall.first - recall.second for recall in compared], [recall.resampled for recall in compared]
    )
    differences = [
        Difference(recall.against, recall.task, f"r@{recall.cut}", recall.first, recall.second, interval)
        for recall, interval in zip(compared, intervals, strict=True)
    ]
    verdict = decide(interval.shift(margin) for interval in intervals)
    if surpassed is not None and verdict != "does not hold":
        is_clear = all(d.interval.low > 0 for d in differences if d.against in surpassed)
        verdict = choose_verdict(is_clear and all(d.interval.value >= 0 for d in differences), False)
    evidence = _list_differences(differences, surpassed or ())
    return Claim(claim, verdict, evidence, rule, tuple(differences), place)


def decide(intervals: Iterable[Interval]) -> Verdict:
    """Return whether all differences are above 0.

    >>> decide([Interval(2.0, 0.5, 3.0, 0.2, 3.4), Interval(1.0, -0.5, 2.0, -0.8, 2.4)])
    'undecided'
    """
    intervals = list(intervals)
    holds = all(interval.low > 0 for interval in intervals)
    return choose_verdict(holds, any(interval.joint_high < 0 for interval in intervals))


def choose_verdict(holds: bool, fails: bool) -> Verdict:
    """Return the verdict on a claim that is shown, refuted, or neither."""
    return "holds" if holds else "does not hold" if fails else "undecided"


def _list_differences(differences: Sequence[Difference], named: Sequence[str]) -> str:
    """List each difference with its interval; of several rivals, the nearest at each recall and the named."""
    several = len({difference.against for difference in differences}) > 1
    parts: dict[str, list[str]] = {}
    for task, metric in dict.fromkeys((d.task, d.metric) for d in differences):
        same = [d for d in differences if (d.task, d.metric) == (task, metric)]
        nearest = min(same, key=lambda d: d.interval.value)
        for difference in [nearest, *(d for d in same if d.against in named and d is not nearest)]:
            words = f"{metric} {difference.first:.1f} against {difference.second:.1f}"
            words += f" ({difference.against})" if several else ""
            parts.setdefault(task, []).append(f"{words}, {difference.interval}")
    return "; ".join(f"{task}: {'; '.join(words)}" for task, words in parts.items())
