"""The paper's claims, each with a verdict computed from the numbers of this run.

A claim about recalls compares two methods on the same test images: the differences of r@1, r@5 and r@10 in
both tasks, each with the interval of a paired bootstrap over images. It *holds* when every interval is on the
claimed side, *does not hold* when one interval is entirely on the other side, and is *undecided* otherwise.
Each interval covers 95 %; they are not widened for their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import binomtest

from diptych._checks import TASKS, Task
from diptych.paper._approximation import EPSILON, LEVELS, slope
from diptych.paper._experiment import Results
from diptych.paper._features import Result, Rows, digest
from diptych.paper._maps import maps_by_task
from diptych.paper._setting import AS_PUBLISHED, Setting
from diptych.paper._tables import LEVEL, RESAMPLES, Answers, Interval, compare_recall

Verdict: TypeAlias = Literal["holds", "does not hold", "undecided", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not measured")
CUTS = (1, 5, 10)

SAME_REGION = 90.0
"""T-SVD and Tikhonov select the same region if this percentage of Tikhonov's map is below T-SVD's choice."""
ON_PAR_POINTS = 2.0
"""Guided is on par with Tikhonov if it loses fewer points of recall."""
RATE_SLACK = 0.15
"""How precisely a few draws determine the exponent of an error."""

INTERVALS = f"{LEVEL:g} % intervals of a paired bootstrap over images, {RESAMPLES:,} resamples"


def _rule(recalls: str, limit: str = "0") -> str:
    return (
        f"holds if the intervals of the differences of r@1, r@5 and r@10 {recalls} are all above {limit}; "
        f"does not hold if one interval is entirely below {limit}; otherwise it is undecided"
    )


RULE = _rule("of both tasks")

COMPARED = (
    ("text", "HKSE(rbf, rbf)", "HKSE(lin, lin)", "HKSE(rbf, rbf) outperforms the mean word vector"),
    ("text", "HKSE(lin, rbf)", "HKSE(lin, lin)", "HKSE(lin, rbf) outperforms the mean word vector"),
    ("text", "HKSE(rbf, lin)", "HKSE(lin, lin)", "HKSE(rbf, lin) outperforms the mean word vector"),
    (
        "text",
        "[HKSE(lin, rbf) || HKSE(rbf, rbf)]",
        "HKSE(rbf, rbf)",
        "HKSE(lin, rbf) beside HKSE(rbf, rbf) improves on HKSE(rbf, rbf)",
    ),
    ("text", "HKSE(rbf, rbf)", "skip-thoughts", "HKSE(rbf, rbf) outperforms skip-thoughts"),
    ("images", "ResNet-101", "VGG-19", "ResNet-101 features outperform VGG-19 features"),
)
"""The compared view, the better and the worse features according to the paper, and the claim."""

Method: TypeAlias = Mapping[Task, Mapping[str, Answers]]
"""Answers of one method for each task and each set of test images, by the digest of the images."""
MainRow: TypeAlias = tuple[str, str, str, str]
"""Protocol, filter, images and text of a row of the main tables."""


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


def judge_claims(results: Mapping[str, Results], setting: Setting) -> list[Claim]:
    """Return a verdict on every claim that these experiments are about."""
    claims: list[Claim] = []
    tests = [run.test for run in setting.single_plan.runs]
    if "weighting" in results:
        rows = results["weighting"]["test"]["rows"]
        claims += weighting_claims(
            {name: read_method(setting, [setting.run.test], [row]) for name, row in rows.items()}
        )
    if "generation" in results:
        claims += generation_claims(*_curve_methods(setting, results["generation"]["curve"]))
    if "regularization" in results:
        for spacing, result in results["regularization"].items():
            methods = {name: read_method(setting, tests, [row]) for name, row in result["rows"].items()}
            claims += regularization_claims(methods, spacing)
    if "timing" in results:
        claims.append(timing_claim({text: result["rows"] for text, result in results["timing"].items()}))
    if "maps" in results:
        shares = {task: Interval(**each["above"]) for task, each in maps_by_task(results["maps"]).items()}
        claims.append(region_claim(shares))
    if "main" in results:
        claims += feature_claims(_feature_methods(setting, results["main"]))
    if "similarity" in results:
        methods = {
            name: read_method(setting, tests, [result["rows"]["guided"]])
            for name, result in results["similarity"].items()
        }
        claims += similarity_claims(methods)
    if "approximation" in results:
        claims += approximation_claims(results["approximation"]["errors"])
    return claims


def read_method(setting: Setting, tests: Sequence[Rows], rows: Sequence[Result]) -> Method:
    """Return the answers of one method; ``rows`` are its results for each seed on the same ``tests``."""
    dataset = setting.data.dataset
    method: dict[Task, dict[str, Answers]] = {task: {} for task in TASKS}
    for run, test in enumerate(tests):
        owners = np.searchsorted(test, dataset.pairing[dataset.caption_rows(test)])
        for task in TASKS:
            ranks = np.array([row["query_ranks"][task][run] for row in rows])
            queries = owners if task == "search" else np.unique(owners)
            method[task][digest(test)] = Answers(ranks, queries, len(test))
    return method


def _curve_methods(setting: Setting, result: Result) -> tuple[list[float], list[Method]]:
    alphas = list(result["curve"]["alpha"])
    rows = [
        {"query_ranks": {task: [result["query_ranks"][task][i]] for task in TASKS}}
        for i in range(len(alphas))
    ]
    return alphas, [read_method(setting, [setting.run.validation], [row]) for row in rows]


def _feature_methods(setting: Setting, results: Results) -> dict[MainRow, Method]:
    """Read the rows of the main tables; seeds with the same test images are averaged."""
    seeds: dict[MainRow, dict[int, Result]] = {}
    for row in (row for result in results.values() for row in result["rows"]):
        if row.get("features") == AS_PUBLISHED and row["method"] in ("guided", "Tikhonov"):
            key = row["protocol"], row["method"], row["images"], row["text"]
            seeds.setdefault(key, {})[row["seed"]] = row
    methods: dict[MainRow, Method] = {}
    for key, rows in seeds.items():
        by_test: dict[str, tuple[list[Rows], list[Result]]] = {}
        for seed, row in rows.items():
            tests = [run.test for run in setting.with_seed(seed).plans[key[0]].runs]
            by_test.setdefault(digest(tests), (tests, []))[1].append(row)
        parts = [read_method(setting, tests, same) for tests, same in by_test.values()]
        methods[key] = {task: {k: v for part in parts for k, v in part[task].items()} for task in TASKS}
    return methods


def weighting_claims(methods: Mapping[str, Method]) -> list[Claim]:
    """Compare asymmetric weighting with plain CCA, every symmetric weighting, and search generation."""
    asymmetric = methods["asymmetric (task dependent)"]
    symmetric = {name: method for name, method in methods.items() if name.startswith("symmetric")}
    cca = {name: method for name, method in symmetric.items() if "CCA" in name}
    generation = {"search generation": methods["search generation"]}
    every = "Asymmetric weighting outperforms every symmetric weighting Σ^α, α = 0 to 6."
    mapping = "Mapping search items to the query (query generation) outperforms search generation."
    return [
        compare("Asymmetric weighting outperforms plain CCA.", asymmetric, cca),
        compare(every, asymmetric, symmetric),
        compare(mapping, asymmetric, generation),
    ]


def generation_claims(alphas: Sequence[float], methods: Sequence[Method]) -> list[Claim]:
    """Judge whether α = 1 is best for search and α = 0 for annotation, on validation images."""
    ends: dict[Task, float] = {"search": 1.0, "annotate": 0.0}
    return [
        compare(
            f"α = {end:g} is the best point of (Σ^α, Σ^(1−α)) for {task}.",
            methods[list(alphas).index(end)],
            {f"α = {a:g}": method for a, method in zip(alphas, methods, strict=True) if a != end},
            tasks=(task,),
            rule=_rule("from every other α, on the validation images,"),
        )
        for task, end in ends.items()
    ]


def regularization_claims(methods: Mapping[str, Method], spacing: str = "rank") -> list[Claim]:
    """Judge whether guided is on par with Tikhonov, and whether T-SVD is worse than it."""
    grid = {"rank": "grid even in rank", "log": "grid even in log σ²"}[spacing]
    return [
        compare(
            f"Guided Tikhonov is on par with full Tikhonov ({grid}).",
            methods["guided"],
            {"Tikhonov": methods["Tikhonov"]},
            margin=ON_PAR_POINTS,
            rule=_rule("of both tasks", f"−{ON_PAR_POINTS:g}"),
        ),
        compare(
            f"T-SVD alone is less accurate than Tikhonov ({grid}).",
            methods["Tikhonov"],
            {"T-SVD": methods["T-SVD"]},
        ),
    ]


def timing_claim(timings: Mapping[str, Mapping[str, Result]]) -> Claim:
    """Judge whether T-SVD is faster to cross-validate than Tikhonov with the textbook route."""
    ratios = {
        text: rows["Tikhonov"]["textbook"] / rows["T-SVD"]["textbook"] for text, rows in timings.items()
    }
    return Claim(
        "T-SVD is faster to cross-validate than Tikhonov (textbook routes).",
        "holds" if all(ratio > 1 for ratio in ratios.values()) else "does not hold",
        "; ".join(f"{ratio:.1f}× with {text}" for text, ratio in ratios.items()),
        "holds if Tikhonov's textbook route takes longer than T-SVD's with every text",
    )


def region_claim(shares: Mapping[str, Interval]) -> Claim:
    """Judge whether T-SVD and Tikhonov select the same region of their maps."""
    return Claim(
        "T-SVD and Tikhonov select the same region.",
        decide(share + -SAME_REGION for share in shares.values()),
        "; ".join(
            f"{task}: T-SVD's choice is above {s.value:.0f} % [{s.low:.0f}, {s.high:.0f}] of Tikhonov's map"
            for task, s in shares.items()
        ),
        f"holds if the interval of every task is above {SAME_REGION:g} %; does not hold if one is entirely "
        "below; otherwise it is undecided. Each resample of the validation images computes both maps and the "
        "choice again",
    )


def feature_claims(methods: Mapping[MainRow, Method]) -> list[Claim]:
    """Compare one feature with another, with everything else equal and without normalisation."""
    claims: list[Claim] = []
    for view, first, second, words in COMPARED:
        before = len(claims)
        for protocol, filter_name, images, text in methods:
            if (text if view == "text" else images) != first:
                continue
            rival = (images, second) if view == "text" else (second, text)
            if (protocol, filter_name, *rival) in methods:
                fixed = images if view == "text" else text
                claims.append(
                    compare(
                        f"{words} ({fixed}, {filter_name}, {protocol}).",
                        methods[protocol, filter_name, images, text],
                        {second: methods[protocol, filter_name, *rival]},
                    )
                )
        if len(claims) == before:
            claims.append(Claim(f"{words}.", "not measured", "the features are missing"))
    return claims


def similarity_claims(methods: Mapping[str, Method]) -> list[Claim]:
    """Judge whether cosine outperforms ℓ2."""
    return [
        compare(
            f"Cosine outperforms ℓ2 ({text}).", methods[f"{text}, cosine"], {"ℓ2": methods[f"{text}, l2"]}
        )
        for text in dict.fromkeys(name.rsplit(", ", 1)[0] for name in methods)
    ]


def approximation_claims(errors: Result) -> list[Claim]:
    """Judge Proposition 1 with both sets of constants, and the rate of the error."""
    claims = []
    for level in LEVELS:
        for name, words in (("paper", "the published constants"), ("hoeffding", "Hoeffding's constants")):
            violations = sum(row["violations"][name] for row in errors[level])
            draws = errors["draws"] * len(errors[level])
            upper = binomtest(violations, draws, alternative="less").proportion_ci(LEVEL / 100).high
            lower = binomtest(violations, draws, alternative="greater").proportion_ci(LEVEL / 100).low
            claims.append(
                Claim(
                    f"Proposition 1's bound holds at the level of {level} with {words}.",
                    _verdict(upper <= EPSILON, lower > EPSILON),
                    f"violated in {violations} of {draws} draws",
                    f"holds if the exact {LEVEL:g} % upper limit of the share of violated draws is at most "
                    f"{EPSILON:.0%}; does not hold if the lower limit is above; otherwise it is undecided",
                )
            )
    slopes = {level: slope(errors[level]) for level in LEVELS}
    claims.append(
        Claim(
            "The error falls like 1/√m.",
            "holds" if all(abs(s + 0.5) <= RATE_SLACK for s in slopes.values()) else "does not hold",
            "; ".join(f"{level}: m^{value:.2f}" for level, value in slopes.items()),
            f"holds if the fitted exponent is −½ to within {RATE_SLACK}",
        )
    )
    return claims


def compare(
    claim: str,
    first: Method,
    others: Mapping[str, Method],
    *,
    tasks: Sequence[Task] = TASKS,
    margin: float = 0.0,
    rule: str = RULE,
) -> Claim:
    """Judge a claim that the recalls of one method are above those of all others, minus ``margin``."""
    differences = []
    for name, other in others.items():
        for task in tasks:
            shared = [key for key in first[task] if key in other[task]]
            ours, theirs = ([method[task][key] for key in shared] for method in (first, other))
            for k in CUTS:
                interval = compare_recall(ours, theirs, k)
                differences.append(
                    Difference(name, task, f"r@{k}", _recall(ours, k), _recall(theirs, k), interval)
                )
    return Claim(
        claim,
        decide(each.interval + margin for each in differences),
        _evidence(differences, several=len(others) > 1),
        rule,
        tuple(differences),
    )


def decide(intervals: Iterable[Interval]) -> Verdict:
    """Return whether all differences are above 0.

    >>> decide([Interval(2.0, 0.5, 3.0), Interval(1.0, -0.5, 2.0)])
    'undecided'
    """
    intervals = list(intervals)
    return _verdict(all(each.low > 0 for each in intervals), any(each.high < 0 for each in intervals))


def _verdict(holds: bool, fails: bool) -> Verdict:
    return "holds" if holds else "does not hold" if fails else "undecided"


def _recall(runs: Sequence[Answers], k: int) -> float:
    return float(np.mean([100.0 * each.hits(k).sum() / each.queries().sum() for each in runs]))


def _evidence(differences: Sequence[Difference], several: bool) -> str:
    """List each difference with its interval; of several rivals, the nearest at each recall."""
    parts: dict[str, list[str]] = {}
    for task, metric in dict.fromkeys((each.task, each.metric) for each in differences):
        same = [each for each in differences if (each.task, each.metric) == (task, metric)]
        nearest = min(same, key=lambda each: each.interval.value)
        words = f"{metric} {nearest.first:.1f} against {nearest.second:.1f}"
        words += f" ({nearest.against})" if several else ""
        parts.setdefault(task, []).append(f"{words}, {nearest.interval}")
    return "; ".join(f"{task}: {'; '.join(words)}" for task, words in parts.items())
