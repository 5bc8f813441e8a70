"""Verdicts follow the numbers and their sampling error, whichever way those point."""

import numpy as np
import pytest

from reproduction import claims
from reproduction.claims import published_claims
from reproduction.verdicts import Answers, Interval, compare

N = 1000
DIFFICULTY = np.random.default_rng(5).permutation(N) / N


def method(search, annotate, n=N):
    """A method that answers so many percent right at every cut, on the easiest images first."""

    def answers(percent):
        return Answers(np.where(DIFFICULTY[:n] < percent / 100, 1, 99), np.arange(n), n)

    return {"search": {"test": answers(search)}, "annotate": {"test": answers(annotate)}}


def weighting(asymmetric, cca, symmetric, generation):
    return {
        "symmetric α = 0 (CCA)": cca,
        "symmetric α = 1": symmetric,
        "search generation": generation,
        "asymmetric (task dependent)": asymmetric,
    }


def verdicts(results):
    return [claim.verdict for claim in results]


def test_both_tasks_decide():
    low = method(20, 20)
    best = weighting(method(30, 40), method(20, 25), method(25, 30), low)
    assert verdicts(claims.weighting_claims(best)) == ["holds"] * 3
    one_task = weighting(method(30, 25), method(20, 20), method(25, 30), low)
    assert verdicts(claims.weighting_claims(one_task)) == ["holds", "does not hold", "holds"]


def noisy(share, seed, n=N):
    ranks = np.where(np.random.default_rng(seed).random(n) < share, 1, 99)
    return {task: {"test": Answers(ranks, np.arange(n), n)} for task in ("search", "annotate")}


def test_a_difference_within_its_error_is_undecided():
    first, second = noisy(0.30, 1), noisy(0.29, 2)
    result = compare("It is better.", "", first, {"the other": second})
    assert result.verdict == "undecided"
    assert all(d.interval.low < 0 < d.interval.high for d in result.differences)
    # A larger one is decided where the images are many.
    many = compare("It is better.", "", noisy(0.35, 1, 4000), {"the other": noisy(0.29, 2, 4000)})
    assert many.verdict == "holds"


def test_one_of_many_chance_differences_does_not_refute_a_claim():
    """Of thirty equal rivals, some are above by chance: by their own interval, but not by the joint one."""
    first = noisy(0.3, 0)
    rivals = {f"rival {seed}": noisy(0.3, seed) for seed in range(1, 31)}
    result = compare("It is better.", "", first, rivals)
    assert result.verdict == "undecided"
    assert any(d.interval.high < 0 for d in result.differences)
    # One that is really better does.
    result = compare("It is better.", "", first, rivals | {"the best": noisy(0.45, 99)})
    assert result.verdict == "does not hold"


def test_all_recalls_decide():
    def at(*ranks):
        answers = Answers(np.repeat(ranks, N // len(ranks)), np.arange(N), N)
        return {task: {"test": answers} for task in ("search", "annotate")}

    # Better at 1, worse at 5.
    result = compare("It is better.", "", at(1, 7, 7, 7), {"the other": at(4, 4, 7, 7)})
    assert {d.metric: d.interval.value for d in result.differences} == {
        "r@1": 25.0,
        "r@5": -25.0,
        "r@10": 0.0,
    }
    assert result.verdict == "does not hold"


def test_every_symmetric_weighting_is_compared_and_numbers_and_intervals_stand_in_the_evidence():
    methods = weighting(method(30, 40), method(20, 25), method(25, 30), method(20, 20))
    plain, symmetric, _ = claims.weighting_claims(methods)
    assert {d.against for d in symmetric.differences} == {"symmetric α = 0 (CCA)", "symmetric α = 1"}
    assert {(d.task, d.metric) for d in symmetric.differences} == {
        (task, f"r@{k}") for task in ("search", "annotate") for k in (1, 5, 10)
    }
    assert plain.evidence.startswith("search: r@1 30.0 against 20.0, +10.0 [+8.")
    assert "annotate: r@1 40.0 against 25.0, +15.0 [+12." in plain.evidence
    # Of several, the nearest is named.
    assert "25.0 (symmetric α = 1), +5.0" in symmetric.evidence


@pytest.mark.parametrize(
    ("search", "annotate", "expected"),
    [
        ([20, 25, 30, 40], [40, 30, 25, 20], ["holds", "holds"]),
        # Equal to its neighbour: as good as the best, and clearly above the middle and the other end.
        ([20, 25, 40, 40], [40, 40, 25, 20], ["holds", "holds"]),
        # Below its neighbour by less, and by more than the error of sampling.
        ([20, 25, 40.1, 40], [40, 40.1, 25, 20], ["undecided", "undecided"]),
        ([20, 25, 45, 40], [40, 30, 25, 20], ["does not hold", "holds"]),
        # Highest, but hardly above the middle.
        ([20, 39.9, 30, 40], [40, 30, 39.9, 20], ["undecided", "undecided"]),
    ],
)
def test_alpha_claims(search, annotate, expected):
    alphas = [0.0, 0.5, 0.9, 1.0], [0.0, 0.1, 0.5, 1.0]
    for task, alpha, end, verdict in zip(
        ("search", "annotate"), alphas, ("α = 1", "α = 0"), expected, strict=True
    ):
        methods = [method(s, a) for s, a in zip(search, annotate, strict=True)]
        (claim,) = (c for c in claims.generation_claims(alpha, methods) if c.claim.startswith(end))
        assert (claim.verdict, claim.place, len(claim.differences)) == (verdict, "Figure 2", 3)
        assert {(d.task, d.metric) for d in claim.differences} == {(task, "r@10")}


@pytest.mark.parametrize(
    ("guided", "expected"),
    [(method(24.5, 34.8), "holds"), (method(20, 35), "does not hold"), (method(23, 35), "undecided")],
)
def test_on_par_means_a_loss_below_two_points(guided, expected):
    methods = {"Tikhonov": method(25, 35), "T-SVD": method(20, 28), "guided": guided}
    assert verdicts(claims.regularization_claims(methods)) == [expected, "holds"]


def test_timing():
    fast = {"T-SVD": {"textbook": 10.0}, "Tikhonov": {"textbook": 65.0}}
    slow = {"T-SVD": {"textbook": 10.0}, "Tikhonov": {"textbook": 9.0}}
    assert claims.timing_claim({"a": fast}).verdict == "holds"
    result = claims.timing_claim({"a": fast, "b": slow})
    assert result.verdict == "does not hold"
    assert "6.5× with a" in result.evidence


def test_region():
    near, wide, far = (
        Interval(value, low, high, low - 3, high + 3)
        for value, low, high in ((97, 93, 99), (95, 80, 98), (50, 40, 60))
    )
    assert claims.region_claim({"search": near}).verdict == "holds"
    assert claims.region_claim({"search": near, "annotate": wide}).verdict == "undecided"
    assert claims.region_claim({"search": near, "annotate": far}).verdict == "does not hold"


def place(text, images="ResNet-50"):
    return "flickr8k", "guided", images, text


def test_features():
    methods = {place("HKSE(lin, lin)"): method(20, 30), place("HKSE(rbf, rbf)"): method(24, 36)}
    result = {claim.claim: claim.verdict for claim in claims.feature_claims(methods)}
    assert result["HKSE(rbf, rbf) outperforms the mean word vector (ResNet-50, guided, flickr8k)."] == "holds"
    assert result["HKSE(rbf, rbf) outperforms skip-thoughts."] == "not measured"
    assert result["ResNet-101 features outperform VGG-19 features."] == "not measured"
    methods[place("HKSE(rbf, rbf)", "VGG-16 (vgg_feats.mat)")] = method(1, 1)
    methods[place("HKSE(rbf, rbf)", "ResNet-101")] = method(27, 39)
    result = {claim.claim: claim.verdict for claim in claims.feature_claims(methods)}
    # One crop of VGG-16 is not the paper's VGG-19.
    assert result["ResNet-101 features outperform VGG-19 features."] == "not measured"
    methods[place("HKSE(rbf, rbf)", "VGG-19")] = method(19, 25)
    measured = [c for c in claims.feature_claims(methods) if "VGG-19 features" in c.claim]
    assert verdicts(measured) == ["holds"]


def test_what_others_have_published():
    result = {claim.claim: claim for claim in published_claims({})}
    assert {claim.verdict for claim in result.values()} == {"not measured"}
    klein = result["AW-CCA with mean word vectors outperforms the CCA of Klein et al."]
    assert "flickr8k search r@1 18.62 against 19.1" in klein.evidence
    words = " ".join(result)
    assert all(name in words for name in ("Klein", "Fisher", "Order embeddings", "state of the art"))

    def judge(images, text, search, annotate, protocol="coco-1k"):
        methods = {(protocol, "guided", images, text): method(search, annotate)}
        return {claim.claim: claim.verdict for claim in published_claims(methods)}

    fisher = "HKSE(rbf, rbf) outperforms the Fisher vectors of Klein et al. on MSCOCO (coco-1k)."
    # The published recalls are 25.6, 60.4 and 76.8 for search, 38.9, 68.4 and 80.1 for annotation.
    assert judge("VGG-19", "HKSE(rbf, rbf)", 85, 90)[fisher] == "holds"
    assert judge("VGG-19", "HKSE(rbf, rbf)", 50, 90)[fisher] == "does not hold"
    assert judge("VGG-19", "HKSE(rbf, rbf)", 77, 90)[fisher] == "undecided"
    order = "Order embeddings (Vendrov et al.) outperform HKSE on image search on MSCOCO (coco-1k)."
    assert judge("VGG-19", "HKSE(rbf, rbf)", 20, 99)[order] == "holds"
    assert judge("VGG-19", "HKSE(rbf, rbf)", 95, 99)[order] == "does not hold"
    best = (
        "ResNet-101 with HKSE(lin, rbf) beside HKSE(rbf, rbf) is the state of the art (of 2016) (flickr8k)."
    )
    assert judge("ResNet-101", "[HKSE(lin, rbf) || HKSE(rbf, rbf)]", 80, 90, "flickr8k")[best] == "holds"


def test_cosine():
    methods = {"HKSE(lin, lin), cosine": method(20, 30), "HKSE(lin, lin), l2": method(15, 36)}
    assert verdicts(claims.similarity_claims(methods)) == ["does not hold"]


def test_approximation():
    def level(violations):
        counts = [(125, 0.08), (500, 0.04), (2000, 0.02)]
        return [{"features": m, "rms": rms, "violations": violations} for m, rms in counts]

    result = {
        "words": level({"paper": 30, "hoeffding": 0}),
        "sentences": level({"paper": 1, "hoeffding": 0}),
        "kernel CCA": level({}),
        "draws": 30,
    }
    expected = ["does not hold", "holds", "undecided", "holds", "holds", "holds"]
    assert verdicts(claims.approximation_claims(result)) == expected
    # No violation in a few draws does not show that one in twenty is rare enough.
    result["draws"], result["words"] = 5, level({"paper": 5, "hoeffding": 0})
    assert verdicts(claims.approximation_claims(result))[:2] == ["does not hold", "undecided"]
