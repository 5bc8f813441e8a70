"""How a claim is decided: verdicts from differences of recalls and their intervals.

A claim about recalls compares two methods on the same test images: the differences of r@1, r@5 and r@10 in
both tasks, each with two intervals of a paired bootstrap over images. It *holds* when every difference is on
the claimed side by its own interval: all of them must be, so that their number makes a false verdict rarer,
not more likely. It *does not hold* when one difference is on the other side by its joint interval: one is
enough, so these are widened for their number. Otherwise it is *undecided*.

The intervals measure the sampling of test images. Parameters were selected on validation images once, and
that they could have been selected otherwise is not in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from reproduction.intervals import LEVEL, RESAMPLES, Answers, Interval, make_intervals, resample_recall
from reproduction.results import TASKS, Floats, Task

Verdict: TypeAlias = Literal["holds", "does not hold", "undecided", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not measured")
CUTS = (1, 5, 10)
INTERVALS = f"{LEVEL:g} % intervals of a paired bootstrap over images, {RESAMPLES:,} resamples"

Method: TypeAlias = Mapping[Task, Mapping[str, Answers]]
"""Answers of one method for each task and each set of test images, by the digest of the images."""


def state_rule(recalls: str, limit: str = "0") -> str:
    """Return the common rule in words."""
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
    """A claim of the paper with its verdict.

    Attributes
    ----------
    claim
        The claim in words.
    verdict
        ``"holds"``, ``"does not hold"``, ``"undecided"`` or ``"not measured"``.
    evidence
        The numbers of this run.
    rule
        How the numbers decide.
    differences
        The differences of recalls that decide, if the claim is about recalls.
    place
        Where the paper makes it, such as ``"Table 2"``.

    Examples
    --------
    >>> Claim("Cosine outperforms ℓ2.", "holds", "search: r@1 22.5 against 21.3, +1.2 [+0.5, +1.9]").verdict
    'holds'
    """

    claim: str
    verdict: Verdict
    evidence: str
    rule: str = ""
    differences: tuple[Difference, ...] = ()
    place: str = ""


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
    others: Mapping[str, Method],
    *,
    tasks: Sequence[Task] = TASKS,
    cuts: Sequence[int] = CUTS,
    margin: float = 0.0,
    surpassed: Sequence[str] | None = None,
    rule: str = RULE,
) -> Claim:
    """Judge a claim that the recalls of one method are above those of all others, minus ``margin``.

    With ``surpassed``, only the intervals against these must be above 0, and no other recall may be higher.
    """
    compared = []
    for name, other in others.items():
        for task in tasks:
            shared = [key for key in first[task] if key in other[task]]
            ours, theirs = ([method[task][key] for key in shared] for method in (first, other))
            for k in cuts:
                recalls = resample_recall(ours, None, k)[0], resample_recall(theirs, None, k)[0]
                compared.append(Compared(name, task, k, *recalls, resample_recall(ours, theirs, k)[1]))
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
        [each.first - each.second for each in compared], [each.resampled for each in compared]
    )
    differences = [
        Difference(each.against, each.task, f"r@{each.cut}", each.first, each.second, interval)
        for each, interval in zip(compared, intervals, strict=True)
    ]
    verdict = decide(interval.shift(margin) for interval in intervals)
    if surpassed is not None and verdict != "does not hold":
        clear = all(each.interval.low > 0 for each in differences if each.against in surpassed)
        verdict = choose_verdict(clear and all(each.interval.value >= 0 for each in differences), False)
    evidence = _list_differences(differences, surpassed or ())
    return Claim(claim, verdict, evidence, rule, tuple(differences), place)


def decide(intervals: Iterable[Interval]) -> Verdict:
    """Return whether all differences are above 0.

    >>> decide([Interval(2.0, 0.5, 3.0, 0.2, 3.4), Interval(1.0, -0.5, 2.0, -0.8, 2.4)])
    'undecided'
    """
    intervals = list(intervals)
    holds = all(each.low > 0 for each in intervals)
    return choose_verdict(holds, any(each.joint_high < 0 for each in intervals))


def choose_verdict(holds: bool, fails: bool) -> Verdict:
    """Return the verdict on a claim that is shown, refuted, or neither."""
    return "holds" if holds else "does not hold" if fails else "undecided"


def _list_differences(differences: Sequence[Difference], named: Sequence[str]) -> str:
    """List each difference with its interval; of several rivals, the nearest at each recall and the named."""
    several = len({each.against for each in differences}) > 1
    parts: dict[str, list[str]] = {}
    for task, metric in dict.fromkeys((each.task, each.metric) for each in differences):
        same = [each for each in differences if (each.task, each.metric) == (task, metric)]
        nearest = min(same, key=lambda each: each.interval.value)
        for each in [nearest, *(each for each in same if each.against in named and each is not nearest)]:
            words = f"{metric} {each.first:.1f} against {each.second:.1f}"
            words += f" ({each.against})" if several else ""
            parts.setdefault(task, []).append(f"{words}, {each.interval}")
    return "; ".join(f"{task}: {'; '.join(words)}" for task, words in parts.items())
