"""The paper's claims, each with a verdict computed from the numbers of this run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from scipy.stats import binomtest

from reproduction.approximation import EPSILON, LEVELS, slope
from reproduction.experiment import Results
from reproduction.maps import shares_below
from reproduction.results import TASKS, Result, Rows, Task, digest
from reproduction.setting import AS_PUBLISHED, Setting
from reproduction.tables import PUBLISHED, PublishedRow, published
from reproduction.verdicts import (
    LEVEL,
    Answers,
    Claim,
    Compared,
    Interval,
    Method,
    Verdict,
    choose_verdict,
    compare,
    decide,
    judge,
    resample_recall,
    state_rule,
)

MAIN_TABLES = "Table 5, Table 6"
SAME_REGION = 90.0
"""T-SVD and Tikhonov select the same region if this percentage of Tikhonov's map is below T-SVD's choice."""
ON_PAR_POINTS = 2.0
"""Guided is on par with Tikhonov if it loses fewer points of recall."""
RATE_SLACK = 0.15
"""How precisely a few draws determine the exponent of an error."""

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

MainRow: TypeAlias = tuple[str, str, str, str]
"""Protocol, filter, images and text of a row of the main tables."""


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
        claims.append(region_claim(shares_below(results["maps"])))
    if "main" in results:
        methods_by_row = _feature_methods(setting, results["main"])
        claims += [*feature_claims(methods_by_row), *published_claims(methods_by_row)]
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
    best = "Asymmetric weighting outperforms every symmetric weighting Σ^α, α = 0 to 6."
    mapping = "Mapping search items to the query (query generation) outperforms search generation."
    return [
        compare("Asymmetric weighting outperforms plain CCA.", "Table 2", asymmetric, cca),
        compare(best, "Table 2", asymmetric, symmetric),
        compare(mapping, "Section 2", asymmetric, generation),
    ]


def generation_claims(alphas: Sequence[float], methods: Sequence[Method]) -> list[Claim]:
    """Judge whether r@10 over (Σ^α, Σ^(1−α)) is best at α = 1 for search and at α = 0 for annotation.

    Neighbours on a smooth curve are nearly equal, and the paper does not claim that they are far apart. It
    claims that the curve is highest at its end: above the other end, and above equal powers on both sides.
    """
    ends: dict[Task, float] = {"search": 1.0, "annotate": 0.0}
    claims = []
    for task, end in ends.items():
        far = [f"α = {a:g}" for a in (1.0 - end, 0.5)]
        claims.append(
            compare(
                f"α = {end:g} is the best point of (Σ^α, Σ^(1−α)) for {task} (r@10 on validation).",
                "Figure 2",
                methods[list(alphas).index(end)],
                {f"α = {a:g}": method for a, method in zip(alphas, methods, strict=True) if a != end},
                tasks=(task,),
                cuts=(10,),
                surpassed=far,
                rule=f"holds if no other α has a higher r@10 on the validation images and the intervals "
                f"against {far[0]} and {far[1]} are above 0; does not hold if one joint interval is entirely "
                "below 0; otherwise it is undecided",
            )
        )
    return claims


def regularization_claims(methods: Mapping[str, Method], spacing: str = "rank") -> list[Claim]:
    """Judge whether guided is on par with Tikhonov, and whether T-SVD is worse than it."""
    grid = {"rank": "grid even in rank", "log": "grid even in log σ²"}[spacing]
    return [
        compare(
            f"Guided Tikhonov is on par with full Tikhonov ({grid}).",
            "Table 4",
            methods["guided"],
            {"Tikhonov": methods["Tikhonov"]},
            margin=ON_PAR_POINTS,
            rule=state_rule("r@1, r@5 and r@10 of both tasks", f"−{ON_PAR_POINTS:g}"),
        ),
        compare(
            f"T-SVD alone is less accurate than Tikhonov ({grid}).",
            "Table 4",
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
        place="Table 3",
    )


def region_claim(shares: Mapping[str, Interval]) -> Claim:
    """Judge whether T-SVD and Tikhonov select the same region of their maps."""
    return Claim(
        "T-SVD and Tikhonov select the same region.",
        decide(share.shift(-SAME_REGION) for share in shares.values()),
        "; ".join(
            f"{task}: T-SVD's choice is above {s.value:.0f} % [{s.low:.0f}, {s.high:.0f}] of Tikhonov's map"
            for task, s in shares.items()
        ),
        f"holds if the interval of every task is above {SAME_REGION:g} %; does not hold if one joint "
        "interval is entirely below; otherwise it is undecided. Each resample of the validation images "
        "computes both maps and the choice again",
        place="Figure 4, Figure 5, Figure 6",
    )


def feature_claims(methods: Mapping[MainRow, Method]) -> list[Claim]:
    """Compare one feature with another, with everything else equal and without normalisation."""
    claims: list[Claim] = []
    for view, first, second, words in COMPARED:
        n_earlier = len(claims)
        for protocol, filter_name, images, text in methods:
            if (text if view == "text" else images) != first:
                continue
            rival = (images, second) if view == "text" else (second, text)
            if (protocol, filter_name, *rival) in methods:
                fixed = images if view == "text" else text
                claims.append(
                    compare(
                        f"{words} ({fixed}, {filter_name}, {protocol}).",
                        MAIN_TABLES,
                        methods[protocol, filter_name, images, text],
                        {second: methods[protocol, filter_name, *rival]},
                    )
                )
        if len(claims) == n_earlier:
            missing = "the features are missing"
            claims.append(Claim(f"{words}.", "not measured", missing, place=MAIN_TABLES))
    return claims


def similarity_claims(methods: Mapping[str, Method]) -> list[Claim]:
    """Judge whether cosine outperforms ℓ2."""
    return [
        compare(
            f"Cosine outperforms ℓ2 ({text}).",
            "Remark 1",
            methods[f"{text}, cosine"],
            {"ℓ2": methods[f"{text}, l2"]},
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
                    choose_verdict(upper <= EPSILON, lower > EPSILON),
                    f"violated in {violations} of {draws} draws",
                    f"holds if the exact {LEVEL:g} % upper limit of the share of violated draws is at most "
                    f"{EPSILON:.0%}; does not hold if the lower limit is above; otherwise it is undecided",
                    place="Proposition 1",
                )
            )
    claims.append(
        _rate_claim(
            "The error falls like 1/√m.",
            "Proposition 1",
            {level: errors[level] for level in LEVELS},
            lambda exponent: abs(exponent + 0.5) <= RATE_SLACK,
            f"holds if the fitted exponent is −½ to within {RATE_SLACK}",
        )
    )
    claims.append(
        _rate_claim(
            "HKSE approximates kernel CCA: with growing m, its correlations approach the exact ones.",
            "Section 4",
            {"correlations": errors["kernel CCA"]},
            lambda exponent: exponent <= RATE_SLACK - 0.5,
            f"holds if the fitted exponent is at most {RATE_SLACK - 0.5:g}: like 1/√m or faster",
        )
    )
    return claims


def _rate_claim(
    claim: str, place: str, levels: Mapping[str, list[Result]], is_right: Callable[[float], bool], rule: str
) -> Claim:
    """Judge how fast an error falls with the number of features, at each level."""
    exponents = {level: slope(rows) for level, rows in levels.items()}
    evidence = [
        f"{level}: m^{exponents[level]:.2f}, from {rows[0]['rms']:.2g} at m = {rows[0]['features']:,} to "
        f"{rows[-1]['rms']:.2g} at m = {rows[-1]['features']:,}"
        for level, rows in levels.items()
    ]
    verdict: Verdict = "holds" if all(map(is_right, exponents.values())) else "does not hold"
    return Claim(claim, verdict, "; ".join(evidence), rule, place=place)


PROTOCOLS = ("flickr8k", "flickr30k-paper", "coco-1k", "coco-5k")


@dataclass(frozen=True)
class PublishedClaim:
    """A claim about the paper's own features against figures that others have published.

    ``images`` and ``text`` are the features of the paper, guided; ``is_rival`` picks the other rows of the
    table. If ``above`` is False, the claim is that the rival is better.
    """

    claim: str
    images: str
    text: str
    is_rival: Callable[[PublishedRow], bool]
    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[Task, ...] = TASKS
    above: bool = True


AGAINST_PUBLISHED = (
    PublishedClaim(
        "AW-CCA with mean word vectors outperforms the CCA of Klein et al.",
        "VGG-19",
        "HKSE(lin, lin)",
        lambda row: row.by == "Klein et al." and row.text == "mean word vector",
    ),
    PublishedClaim(
        "HKSE(rbf, rbf) outperforms the Fisher vectors of Klein et al. on MSCOCO.",
        "VGG-19",
        "HKSE(rbf, rbf)",
        lambda row: row.text.startswith("Fisher"),
        protocols=("coco-1k", "coco-5k"),
    ),
    PublishedClaim(
        "Order embeddings (Vendrov et al.) outperform HKSE on image search on MSCOCO.",
        "VGG-19",
        "HKSE(rbf, rbf)",
        lambda row: row.method == "Order Embedding",
        protocols=("coco-1k", "coco-5k"),
        tasks=("search",),
        above=False,
    ),
    PublishedClaim(
        "ResNet-101 with HKSE(lin, rbf) beside HKSE(rbf, rbf) is the state of the art (of 2016).",
        "ResNet-101",
        "[HKSE(lin, rbf) || HKSE(rbf, rbf)]",
        lambda row: row.by != "the paper",
    ),
)


def published_claims(methods: Mapping[MainRow, Method]) -> list[Claim]:
    """Compare the paper's features, where this run has them, with what others have published.

    The published figures have no interval of their own, and other test images would change them too.
    """
    claims: list[Claim] = []
    for claim in AGAINST_PUBLISHED:
        keys = [(protocol, "guided", claim.images, claim.text) for protocol in claim.protocols]
        measured = [key for key in keys if key in methods]
        for key in measured:
            rivals = [row for row in published(PUBLISHED[key[0]]).rows if claim.is_rival(row)]
            claims.append(_compare_published(claim, key, methods[key], rivals))
        if not measured:
            missing = f"it needs {claim.images} features with {claim.text} on {' or '.join(claim.protocols)}"
            evidence = f"{missing}; {_published_order(claim)}"
            claims.append(Claim(claim.claim, "not measured", evidence, place=MAIN_TABLES))
    plane = "the paper shows a figure and no measure; see the one of this report"
    claims.append(
        Claim("The space is better organised by query generation.", "not measured", plane, place="Figure 3")
    )
    return claims


def _published_order(claim: PublishedClaim) -> str:
    """Say how the paper's own figures are ordered."""
    below, number = [], 0
    for protocol in claim.protocols:
        table = published(PUBLISHED[protocol])
        row = next(r for r in table.rows if (r.images, r.text) == (claim.images, claim.text))
        recalls = {name: value for _, name, value in _list_recalls(table.columns, row, claim.tasks)}
        for rival in filter(claim.is_rival, table.rows):
            for _, name, value in _list_recalls(table.columns, rival, claim.tasks):
                number += 1
                if (recalls[name] <= value) == claim.above:
                    below.append(f"{protocol} {name} {recalls[name]} against {value}")
    order = f"in {number - len(below)} of the {number} recalls of the paper's tables the order is as claimed"
    return f"{order}, except for {', '.join(below)}" if below else order


def _compare_published(
    claim: PublishedClaim, key: MainRow, method: Method, rivals: Sequence[PublishedRow]
) -> Claim:
    compared = []
    columns = published(PUBLISHED[key[0]]).columns
    for rival in rivals:
        for task, name, value in _list_recalls(columns, rival, claim.tasks):
            cut = int(name.rsplit("@", 1)[1])
            recall, resampled = resample_recall(list(method[task].values()), None, cut)
            if claim.above:
                compared.append(Compared(rival.by, task, cut, recall, value, resampled - value))
            else:
                compared.append(Compared(rival.by, task, cut, value, recall, value - resampled))
    words = f"{claim.claim.removesuffix('.')} ({key[0]})."
    return judge(words, MAIN_TABLES, compared, rule=state_rule("the recalls from the published ones"))


def _list_recalls(
    columns: Sequence[str], row: PublishedRow, tasks: Sequence[Task]
) -> list[tuple[Task, str, float]]:
    """Return task, column and value of each recall that a row has for these tasks."""
    return [
        (task, name, value)
        for task in tasks
        for name, value in zip(columns, row.values, strict=True)
        if name.startswith(f"{task} r@") and value is not None
    ]
