"""The figures that the paper published, to stand beside ours.

What the paper claims, each set beside the numbers of this run; the numbers and their errors decide.

A claim about recalls compares two methods on the same test images: the difference of r@1, r@5 and r@10 in
both tasks, each with the interval that a paired bootstrap over images gives. It *holds* when every interval
lies on the claimed side, *does not hold* when one of them lies wholly on the other side, and is *undecided*
otherwise. The intervals are of 95 % each; they are not widened for their number.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

import numpy as np
from scipy.stats import binomtest

from diptych._checks import TASKS, InputError, Task
from diptych.paper._approximation import EPSILON, LEVELS, slope
from diptych.paper._bootstrap import LEVEL, RESAMPLES, Answers, Interval, compare_recall
from diptych.paper._cache import Result, digest
from diptych.paper._experiment import Results
from diptych.paper._maps import all_maps
from diptych.paper._setting import Setting
from diptych.paper._sources import Rows


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table; ``values`` follow the table's columns, None where it gives no number."""

    method: str
    values: tuple[float | None, ...]
    images: str = ""
    text: str = ""
    by: str = "the paper"
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its columns, its rows, and in words what it was measured on."""

    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    setting: str = ""


def published(name: str) -> PublishedTable:
    """A table of the paper by name, such as ``"main/flickr8k"``.

    A table that stands in the paper's source without having been published is refused: it must not be shown
    as published.

    >>> published("main/flickr8k").rows[1].values[0]
    18.62
    """
    tables = _content()["tables"]
    known = ", ".join(name for name in tables if tables[name]["published"])
    if name not in tables:
        raise InputError(f"the paper has no table {name!r} here; choose one of {known}.")
    table = tables[name]
    if not table["published"]:
        raise InputError(f"the table {name!r} is {table['status']}; choose one of {known}.")
    rows = tuple(PublishedRow(**{**row, **_tuples(row)}) for row in table["rows"])
    return PublishedTable(tuple(table["columns"]), rows, table.get("setting", ""))


def source() -> str:
    """The publication that the tables are from."""
    return str(_content()["source"])


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(row[name]) for name in ("values", "shape") if name in row}


@cache
def _content() -> dict[str, Any]:
    content = files("diptych.paper").joinpath("published.json").read_text("utf-8")
    return dict(json.loads(content))


Verdict: TypeAlias = Literal["holds", "does not hold", "undecided", "not measured"]
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "undecided", "not measured")
CUTS = (1, 5, 10)

SAME_REGION = 90.0
"""Percent of Tikhonov's map that must lie below T-SVD's choice for the two to point to one region."""
ON_PAR_POINTS = 2.0
"""Guided is on par with Tikhonov when it loses less than so many points of recall."""
RATE_SLACK = 0.15
"""A few draws give the exponent of an error no better than this."""

INTERVALS = f"{LEVEL:g} % intervals of a paired bootstrap over images, {RESAMPLES:,} resamples"
RULE = (
    "holds if the differences of r@1, r@5 and r@10 of both tasks are all above 0, interval and all; does not "
    "hold if one interval is wholly below 0; else undecided"
)


@dataclass(frozen=True)
class Difference:
    """A difference that a claim rests on: recall of the first method minus that of the second, in points."""

    against: str
    task: Task
    metric: str
    first: float
    second: float
    interval: Interval


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it."""

    claim: str
    verdict: Verdict
    evidence: str
    rule: str = ""
    differences: tuple[Difference, ...] = ()


Method: TypeAlias = Mapping[Task, Mapping[str, Answers]]
"""Answers of one method for each task and each set of test images, by the digest of the images."""


def all_claims(results: Mapping[str, Results], setting: Setting) -> list[Claim]:
    """Every claim that these experiments speak to."""
    found: list[Claim] = []
    tests = [run.test for run in _plan_of_run(setting).runs]
    if "weighting" in results:
        rows = results["weighting"]["weighting: test"]["rows"]
        found += weighting_claims(
            {name: read_method(setting, [setting.run.test], [row]) for name, row in rows.items()}
        )
    if "generation" in results:
        found += generation_claims(*_curve_methods(setting, results["generation"]["generation: curve"]))
    if "regularization" in results:
        for spacing in ("rank", "log"):
            rows = results["regularization"][f"regularization: {spacing}"]["rows"]
            methods = {name: read_method(setting, tests, [row]) for name, row in rows.items()}
            found += regularization_claims(methods, spacing)
    if "timing" in results:
        found.append(timing_claim({k: v["rows"] for k, v in results["timing"].items()}))
    if "maps" in results:
        shares = {name: Interval(**each["above"]) for name, each in all_maps(results["maps"]).items()}
        found.append(region_claim(shares))
    if "main" in results:
        found += feature_claims(_feature_methods(setting, results["main"]))
    if "similarity" in results:
        rows = {k.removeprefix("similarity: "): v["rows"]["guided"] for k, v in results["similarity"].items()}
        found += similarity_claims({name: read_method(setting, tests, [row]) for name, row in rows.items()})
    if "approximation" in results:
        found += approximation_claims(results["approximation"]["approximation: errors"])
    return found


def _plan_of_run(setting: Setting) -> Any:
    return next(plan for plan in setting.plans.values() if any(run is setting.run for run in plan.runs))


def read_method(setting: Setting, tests: Sequence[Rows], rows: Sequence[Result]) -> Method:
    """Answers of one method, whose ``rows`` are its seeds on the same ``tests``."""
    dataset = setting.materials.dataset
    found: dict[Task, dict[str, Answers]] = {task: {} for task in TASKS}
    for run, test in enumerate(tests):
        owners = np.searchsorted(test, dataset.pairing[dataset.caption_rows(test)])
        for task in TASKS:
            ranks = np.array([row["query_ranks"][task][run] for row in rows])
            queries = owners if task == "search" else np.unique(owners)
            found[task][digest(test)] = Answers(ranks, queries, len(test))
    return found


def _curve_methods(setting: Setting, result: Result) -> tuple[list[float], list[Method]]:
    alphas = list(result["curve"]["alpha"])
    rows = [
        {"query_ranks": {task: [result["query_ranks"][task][i]] for task in TASKS}}
        for i in range(len(alphas))
    ]
    return alphas, [read_method(setting, [setting.run.validation], [row]) for row in rows]


Place: TypeAlias = tuple[str, str, str, str]
"""Protocol, filter, images and text of a row of the main tables."""


def _feature_methods(setting: Setting, results: Results) -> dict[Place, Method]:
    """Methods of the main tables for features as they are; seeds on the same test images stand together."""
    seeds: dict[Place, dict[int, Result]] = {}
    for row in (row for result in results.values() for row in result["rows"]):
        if row.get("features") == "as they are" and row["method"] in ("guided", "Tikhonov"):
            place = row["protocol"], row["method"], row["images"], row["text"]
            seeds.setdefault(place, {})[row["seed"]] = row
    found: dict[Place, Method] = {}
    for place, rows in seeds.items():
        by_test: dict[str, tuple[list[Rows], list[Result]]] = {}
        for seed, row in rows.items():
            tests = [run.test for run in setting.with_seed(seed).plans[place[0]].runs]
            by_test.setdefault(digest(tests), (tests, []))[1].append(row)
        parts = [read_method(setting, tests, same) for tests, same in by_test.values()]
        found[place] = {task: {k: v for part in parts for k, v in part[task].items()} for task in TASKS}
    return found


def weighting_claims(methods: Mapping[str, Method]) -> list[Claim]:
    """Asymmetric against every symmetric weighting, plain CCA included, and against search generation."""
    asymmetric = methods["asymmetric (task dependent)"]
    symmetric = {name: method for name, method in methods.items() if name.startswith("symmetric")}
    cca = {name: method for name, method in symmetric.items() if "CCA" in name}
    generation = {"search generation": methods["search generation"]}
    return [
        better("Asymmetric weighting outperforms plain CCA.", asymmetric, cca),
        better(
            "Asymmetric weighting outperforms every symmetric weighting Σ^α, α = 0 to 6.",
            asymmetric,
            symmetric,
        ),
        better(
            "Mapping search items to the query (query generation) outperforms search generation.",
            asymmetric,
            generation,
        ),
    ]


def generation_claims(alphas: Sequence[float], methods: Sequence[Method]) -> list[Claim]:
    """α = 1 is best for search and α = 0 for annotation, on validation images as in the paper."""
    found = []
    ends: tuple[tuple[Task, float], ...] = (("search", 1.0), ("annotate", 0.0))
    for task, special in ends:
        at = list(alphas).index(special)
        others = {f"α = {a:g}": method for a, method in zip(alphas, methods, strict=True) if a != special}
        found.append(
            better(
                f"α = {special:g} is the best point of (Σ^α, Σ^(1−α)) for {task}.",
                methods[at],
                others,
                tasks=(task,),
                rule="holds if r@1, r@5 and r@10 on the validation images are all above those of every "
                "other α, interval and all; does not hold if one interval is wholly below 0; else undecided",
            )
        )
    return found


def regularization_claims(methods: Mapping[str, Method], spacing: str = "rank") -> list[Claim]:
    """Guided is on par with Tikhonov; T-SVD loses to it."""
    where = {"rank": "grid even in rank", "log": "grid even in log σ²"}[spacing]
    return [
        better(
            f"Guided Tikhonov is on par with full Tikhonov ({where}).",
            methods["guided"],
            {"Tikhonov": methods["Tikhonov"]},
            margin=ON_PAR_POINTS,
            rule=f"holds if guided loses less than {ON_PAR_POINTS:g} points at r@1, r@5 and r@10 of both "
            f"tasks, interval and all; does not hold if one interval is wholly below −{ON_PAR_POINTS:g}; "
            "else undecided",
        ),
        better(
            f"T-SVD alone is less accurate than Tikhonov ({where}).",
            methods["Tikhonov"],
            {"T-SVD": methods["T-SVD"]},
        ),
    ]


def timing_claim(timings: Mapping[str, Mapping[str, Result]]) -> Claim:
    """T-SVD is faster to cross-validate than Tikhonov, by the textbook."""
    ratios = {
        name.removeprefix("timing: "): rows["Tikhonov"]["textbook"] / rows["T-SVD"]["textbook"]
        for name, rows in timings.items()
    }
    return Claim(
        "T-SVD is faster to cross-validate than Tikhonov (textbook routes).",
        "holds" if all(ratio > 1 for ratio in ratios.values()) else "does not hold",
        "; ".join(f"{ratio:.1f}× with {name}" for name, ratio in ratios.items()),
        "the ratio of the textbook's times exceeds 1 with every text",
    )


def region_claim(shares: Mapping[str, Interval]) -> Claim:
    """T-SVD's and Tikhonov's maps point to the same region."""
    return Claim(
        "T-SVD and Tikhonov select the same region.",
        decide(
            [
                Interval(s.value - SAME_REGION, s.low - SAME_REGION, s.high - SAME_REGION)
                for s in shares.values()
            ]
        ),
        "; ".join(
            f"{name}: T-SVD's choice is above {s.value:.0f} % [{s.low:.0f}, {s.high:.0f}] of Tikhonov's map"
            for name, s in shares.items()
        ),
        f"holds if T-SVD's choice lies above {SAME_REGION:g} % of Tikhonov's map for every task, interval "
        "and all; does not hold if one interval is wholly below; else undecided. Both maps and the choice "
        "are made anew in each resample of the validation images",
    )


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
"""What is compared, the better and the worse by the paper, and the claim."""


def feature_claims(methods: Mapping[Place, Method]) -> list[Claim]:
    """One feature against another, all else equal, for features as they are."""
    found: list[Claim] = []
    for what, first, second, words in COMPARED:
        before = len(found)
        for protocol, filter_name, images, text in methods:
            if (text if what == "text" else images) != first:
                continue
            rival = (images, second) if what == "text" else (second, text)
            if (protocol, filter_name, *rival) in methods:
                fixed = images if what == "text" else text
                found.append(
                    better(
                        f"{words} ({fixed}, {filter_name}, {protocol}).",
                        methods[protocol, filter_name, images, text],
                        {second: methods[protocol, filter_name, *rival]},
                    )
                )
        if len(found) == before:
            found.append(Claim(f"{words}.", "not measured", "the features are not at hand"))
    return found


def similarity_claims(methods: Mapping[str, Method]) -> list[Claim]:
    """Cosine outperforms ℓ2."""
    texts = dict.fromkeys(name.rsplit(", ", 1)[0] for name in methods)
    return [
        better(f"Cosine outperforms ℓ2 ({text}).", methods[f"{text}, cosine"], {"ℓ2": methods[f"{text}, l2"]})
        for text in texts
    ]


def approximation_claims(found: Result) -> list[Claim]:
    """Proposition 1 and the rate."""
    claims = []
    for level in LEVELS:
        for name, words in (("paper", "the published constants"), ("hoeffding", "Hoeffding's constants")):
            violated = sum(row["violations"][name] for row in found[level])
            drawn = found["draws"] * len(found[level])
            most = binomtest(violated, drawn, alternative="less").proportion_ci(LEVEL / 100).high
            least = binomtest(violated, drawn, alternative="greater").proportion_ci(LEVEL / 100).low
            claims.append(
                Claim(
                    f"Proposition 1's bound holds at the level of {level} with {words}.",
                    _side(most <= EPSILON, least > EPSILON),
                    f"violated in {violated} of {drawn} draws",
                    f"holds if at most {EPSILON:.0%} of all draws violate it, by the exact "
                    f"{LEVEL:g} % upper limit of that share; does not hold if the lower limit is above; else "
                    "undecided",
                )
            )
    slopes = {level: slope(found[level]) for level in LEVELS}
    right = all(abs(value + 0.5) <= RATE_SLACK for value in slopes.values())
    claims.append(
        Claim(
            "The error falls like 1/√m.",
            "holds" if right else "does not hold",
            "; ".join(f"{level}: m^{value:.2f}" for level, value in slopes.items()),
            f"the fitted exponent is −½ to within {RATE_SLACK}",
        )
    )
    return claims


def better(
    claim: str,
    first: Method,
    others: Mapping[str, Method],
    *,
    tasks: Sequence[Task] = TASKS,
    margin: float = 0.0,
    rule: str = RULE,
) -> Claim:
    """A claim that one method's recalls are above those of all others, or less than ``margin`` below."""
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
        decide(each.interval for each in differences) if not margin else _decide_margin(differences, margin),
        _evidence(differences, several=len(others) > 1),
        rule,
        tuple(differences),
    )


def decide(intervals: Iterable[Interval]) -> Verdict:
    """Whether all of these differences are above 0.

    >>> decide([Interval(2.0, 0.5, 3.0), Interval(1.0, -0.5, 2.0)])
    'undecided'
    """
    given = list(intervals)
    return _side(all(each.low > 0 for each in given), any(each.high < 0 for each in given))


def _decide_margin(differences: Sequence[Difference], margin: float) -> Verdict:
    moved = [each.interval for each in differences]
    return decide(Interval(each.value + margin, each.low + margin, each.high + margin) for each in moved)


def _side(holds: bool, fails: bool) -> Verdict:
    return "holds" if holds else "does not hold" if fails else "undecided"


def _recall(runs: Sequence[Answers], k: int) -> float:
    return float(np.mean([100.0 * each.hits(k).sum() / each.queries().sum() for each in runs]))


def _evidence(differences: Sequence[Difference], several: bool) -> str:
    """Each difference with its interval; of several rivals, the one that comes nearest at each recall."""
    parts: dict[str, list[str]] = {}
    for task, metric in dict.fromkeys((each.task, each.metric) for each in differences):
        same = [each for each in differences if (each.task, each.metric) == (task, metric)]
        nearest = min(same, key=lambda each: each.interval.value)
        words = f"{metric} {nearest.first:.1f} against {nearest.second:.1f}"
        words += f" ({nearest.against})" if several else ""
        parts.setdefault(task, []).append(f"{words}, {nearest.interval}")
    return "; ".join(f"{task}: {'; '.join(words)}" for task, words in parts.items())
