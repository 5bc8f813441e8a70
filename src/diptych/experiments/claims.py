"""What the paper claims, each set beside the numbers of this run; the numbers decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from diptych.checks import TASKS
from diptych.experiments import approximation, main, maps
from diptych.experiments.cache import Result
from diptych.experiments.experiment import Results

SAME_REGION = 90.0
"""Percent of Tikhonov's map that must lie below T-SVD's choice for the two to point to one region."""
ON_PAR_ERRORS = 2.0
"""Guided is on par with Tikhonov when it loses less than so many standard errors of its recall."""


RATE_SLACK = 0.15
"""A few draws give the exponent of an error no better than this."""


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it: ``holds`` is None where nothing was measured."""

    claim: str
    holds: bool | None
    evidence: str
    rule: str = ""


def all_claims(results: Mapping[str, Results], test_images: int) -> list[Claim]:
    """Every claim that these experiments speak to."""
    found: list[Claim] = []
    if "weighting" in results:
        found += weighting_claims(results["weighting"]["weighting: test"]["rows"], test_images)
    if "generation" in results:
        found += generation_claims(results["generation"]["generation: curve"]["curve"])
    if "regularization" in results:
        for spacing in ("rank", "log"):
            rows = results["regularization"][f"regularization: {spacing}"]["rows"]
            found += regularization_claims(rows, test_images, spacing)
    if "timing" in results:
        found.append(timing_claim({k: v["rows"] for k, v in results["timing"].items()}))
    if "maps" in results:
        found.append(region_claim({k: maps.agreement(v) for k, v in maps.all_maps(results["maps"]).items()}))
    if "main" in results:
        found += feature_claims(main.merged(results["main"]), test_images)
    if "similarity" in results:
        rows = {k.removeprefix("similarity: "): v["rows"]["guided"] for k, v in results["similarity"].items()}
        found += similarity_claims(rows, test_images)
    if "approximation" in results:
        found += approximation_claims(results["approximation"]["approximation: errors"])
    return found


def weighting_claims(rows: Mapping[str, Result], images: int) -> list[Claim]:
    """Asymmetric against every symmetric weighting, plain CCA included, and against search generation."""
    asymmetric = rows["asymmetric (task dependent)"]
    symmetric = {name: row for name, row in rows.items() if name.startswith("symmetric")}
    best = {task: max(row[task]["r@1"] for row in symmetric.values()) for task in TASKS}
    cca = next(row for name, row in symmetric.items() if "CCA" in name)
    return [
        _greater("Asymmetric weighting outperforms plain CCA.", asymmetric, cca, images),
        _greater(
            "Asymmetric weighting outperforms every symmetric weighting Σ^α, α = 0 to 6.",
            asymmetric,
            {task: {"r@1": best[task]} for task in TASKS},
            images,
        ),
        _greater(
            "Mapping search items to the query (query generation) outperforms search generation.",
            asymmetric,
            rows["search generation"],
            images,
        ),
    ]


def generation_claims(curve: Mapping[str, Sequence[float]]) -> list[Claim]:
    """α = 1 is best for search and α = 0 for annotation."""
    found = []
    for task, special in (("search", 1.0), ("annotate", 0.0)):
        values = curve[task]
        at = list(curve["alpha"]).index(special)
        best = max(range(len(values)), key=lambda i: (values[i], i == at))
        found.append(
            Claim(
                f"α = {special:g} is the best point of (Σ^α, Σ^(1−α)) for {task}.",
                values[at] >= values[best],
                f"validation r@10 {values[at]:.2f} at α = {special:g}; best {values[best]:.2f} at "
                f"α = {curve['alpha'][best]:g}",
            )
        )
    return found


def regularization_claims(rows: Mapping[str, Result], test_images: int, spacing: str = "rank") -> list[Claim]:
    """Guided is on par with Tikhonov; T-SVD loses to it."""
    where = {"rank": "grid even in rank", "log": "grid even in log σ²"}[spacing]
    parts, holds = [], True
    for task in TASKS:
        guided, full = rows["guided"][task]["r@1"], rows["Tikhonov"][task]["r@1"]
        allowed = ON_PAR_ERRORS * standard_error(full, test_images)
        holds &= full - guided <= allowed
        parts.append(f"{task} r@1 {guided:.1f} against {full:.1f} (allowed loss {allowed:.1f})")
    par = Claim(
        f"Guided Tikhonov is on par with full Tikhonov ({where}).",
        holds,
        "; ".join(parts),
        f"loses at most {ON_PAR_ERRORS:g} standard errors of a recall over the test images, in both tasks",
    )
    behind = _greater(
        f"T-SVD alone is less accurate than Tikhonov ({where}).",
        rows["Tikhonov"],
        rows["T-SVD"],
        test_images,
    )
    return [par, behind]


def timing_claim(timings: Mapping[str, Mapping[str, Result]]) -> Claim:
    """T-SVD is faster to cross-validate than Tikhonov, by the textbook."""
    ratios = {
        name.removeprefix("timing: "): rows["Tikhonov"]["textbook"] / rows["T-SVD"]["textbook"]
        for name, rows in timings.items()
    }
    return Claim(
        "T-SVD is faster to cross-validate than Tikhonov (textbook routes).",
        all(ratio > 1 for ratio in ratios.values()),
        "; ".join(f"{ratio:.1f}× with {name}" for name, ratio in ratios.items()),
        "the ratio of the textbook's times exceeds 1 with every text",
    )


def region_claim(agreements: Mapping[str, Mapping[str, float]]) -> Claim:
    """T-SVD's and Tikhonov's maps point to the same region."""
    return Claim(
        "T-SVD and Tikhonov select the same region.",
        all(each["above"] >= SAME_REGION for each in agreements.values()),
        "; ".join(
            f"{name}: T-SVD's choice is above {each['above']:.0f} % of Tikhonov's map, "
            f"{each['loss']:.1f} below its best"
            for name, each in agreements.items()
        ),
        f"T-SVD's choice lies above {SAME_REGION:g} % of Tikhonov's map, for every task",
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


def feature_claims(rows: Sequence[Result], images: int) -> list[Claim]:
    """One feature against another, all else equal, for features as they are."""
    found: list[Claim] = []
    kept = [r for r in rows if r.get("features") == "as they are" and r["method"] in ("guided", "Tikhonov")]
    for what, better, worse, words in COMPARED:
        other = "images" if what == "text" else "text"
        places = {(r["protocol"], r["method"], r[other], r[what]): r for r in kept}
        before = len(found)
        for protocol, method, fixed in dict.fromkeys(place[:3] for place in places):
            pair = [places.get((protocol, method, fixed, name)) for name in (better, worse)]
            if pair[0] is not None and pair[1] is not None:
                where = f"{words} ({fixed}, {method}, {protocol})."
                found.append(_greater(where, pair[0], pair[1], images))
        if len(found) == before:
            found.append(Claim(f"{words}.", None, "the features are not at hand"))
    return found


def similarity_claims(rows: Mapping[str, Result], images: int) -> list[Claim]:
    """Cosine outperforms ℓ2."""
    texts = dict.fromkeys(name.rsplit(", ", 1)[0] for name in rows)
    return [
        _greater(f"Cosine outperforms ℓ2 ({text}).", rows[f"{text}, cosine"], rows[f"{text}, l2"], images)
        for text in texts
    ]


def approximation_claims(found: Result) -> list[Claim]:
    """Proposition 1 and the rate."""
    claims = []
    for level in approximation.LEVELS:
        for name, words in (("paper", "the published constants"), ("hoeffding", "Hoeffding's constants")):
            violated = sum(row["violations"][name] for row in found[level])
            drawn = found["draws"] * len(found[level])
            claims.append(
                Claim(
                    f"Proposition 1's bound holds at the level of {level} with {words}.",
                    violated <= approximation.EPSILON * drawn,
                    f"violated in {violated} of {drawn} draws",
                    f"at most {approximation.EPSILON:.0%} of the draws violate it",
                )
            )
    slopes = {level: approximation.slope(found[level]) for level in approximation.LEVELS}
    claims.append(
        Claim(
            "The error falls like 1/√m.",
            all(abs(value + 0.5) <= RATE_SLACK for value in slopes.values()),
            "; ".join(f"{level}: m^{value:.2f}" for level, value in slopes.items()),
            f"the fitted exponent is −½ to within {RATE_SLACK}",
        )
    )
    return claims


def standard_error(recall: float, queries: int) -> float:
    """Of a recall in percent over independent queries.

    >>> round(standard_error(25.0, 1000), 2)
    1.37
    """
    share = min(max(recall / 100, 0.0), 1.0)
    return 100 * math.sqrt(share * (1 - share) / max(queries, 1))


def _greater(claim: str, better: Mapping[str, Result], worse: Mapping[str, Result], images: int) -> Claim:
    pairs = {task: (better[task]["r@1"], worse[task]["r@1"]) for task in TASKS}
    near = all(abs(a - b) < standard_error(max(a, b), images) for a, b in pairs.values())
    evidence = "; ".join(f"{task} r@1 {a:.1f} against {b:.1f}" for task, (a, b) in pairs.items())
    return Claim(
        claim,
        all(first > second for first, second in pairs.values()),
        evidence + (" (within one standard error)" if near else ""),
        "higher r@1 in both tasks",
    )
