"""Verdicts follow the numbers, whichever way those point."""

import pytest

from diptych.experiments import claims


def row(search, annotate):
    return {"search": {"r@1": search}, "annotate": {"r@1": annotate}}


def weighting(asymmetric, cca, other, generation):
    return {
        "symmetric α = 0 (CCA)": cca,
        "symmetric α = 1": other,
        "search generation": generation,
        "asymmetric (task dependent)": asymmetric,
    }


def test_weighting_holds_only_in_both_tasks():
    best = weighting(row(30, 40), row(20, 25), row(25, 30), row(20, 20))
    assert [each.holds for each in claims.weighting_claims(best, 1000)] == [True, True, True]
    one_task = weighting(row(30, 29), row(20, 25), row(25, 30), row(20, 20))
    assert [each.holds for each in claims.weighting_claims(one_task, 1000)] == [True, False, True]


def test_numbers_stand_in_the_evidence():
    found = claims.weighting_claims(weighting(row(30, 40), row(20, 25), row(25, 30), row(20, 20)), 1000)
    assert found[0].evidence == "search r@1 30.0 against 20.0; annotate r@1 40.0 against 25.0"


def test_small_differences_are_said_to_be_small():
    found = claims.weighting_claims(weighting(row(30, 40), row(29.5, 39.5), row(1, 1), row(1, 1)), 1000)
    assert found[0].holds is True
    assert "within one standard error" in found[0].evidence


@pytest.mark.parametrize(
    ("search", "annotate", "expected"),
    [
        ([5, 6, 7], [9, 8, 7], [True, True]),
        ([5, 8, 7], [9, 8, 9.5], [False, False]),
        ([7, 7, 7], [7, 7, 7], [True, True]),
    ],
)
def test_generation(search, annotate, expected):
    curve = {"alpha": [0.0, 0.5, 1.0], "search": search, "annotate": annotate}
    assert [each.holds for each in claims.generation_claims(curve)] == expected


@pytest.mark.parametrize(
    ("guided", "expected"), [(row(24, 33), True), (row(20, 33), False), (row(26, 36), True)]
)
def test_on_par_means_within_two_standard_errors(guided, expected):
    rows = {"Tikhonov": row(25, 35), "T-SVD": row(20, 28), "guided": guided}
    found = claims.regularization_claims(rows, 1000)
    assert [each.holds for each in found] == [expected, True]


def test_timing():
    fast = {"T-SVD": {"textbook": 10.0}, "Tikhonov": {"textbook": 65.0}}
    slow = {"T-SVD": {"textbook": 10.0}, "Tikhonov": {"textbook": 9.0}}
    assert claims.timing_claim({"timing: a": fast}).holds is True
    found = claims.timing_claim({"timing: a": fast, "timing: b": slow})
    assert found.holds is False
    assert "6.5× with a" in found.evidence


def test_region():
    near, far = (
        {"above": 97.0, "loss": 0.3, "correlation": 0.9},
        {"above": 50.0, "loss": 4.0, "correlation": 0.1},
    )
    assert claims.region_claim({"search": near}).holds is True
    assert claims.region_claim({"search": near, "annotate": far}).holds is False


def features(text, search, annotate, images="ResNet-50"):
    named = {"protocol": "flickr8k", "method": "guided", "features": "as they are"}
    return {**named, "images": images, "text": text, **row(search, annotate)}


def test_features_that_are_not_there_are_not_measured():
    rows = [features("HKSE(lin, lin)", 20, 30), features("HKSE(rbf, rbf)", 22, 33)]
    found = {each.claim: each.holds for each in claims.feature_claims(rows, 1000)}
    assert found["HKSE(rbf, rbf) outperforms the mean word vector (ResNet-50, guided, flickr8k)."] is True
    assert found["HKSE(rbf, rbf) outperforms skip-thoughts."] is None
    assert found["ResNet-101 features outperform VGG-19 features."] is None
    rows.append(features("HKSE(rbf, rbf)", 19, 25, "VGG-19"))
    rows.append(features("HKSE(rbf, rbf)", 24, 34, "ResNet-101"))
    measured = [each for each in claims.feature_claims(rows, 1000) if "VGG-19 features" in each.claim]
    assert [each.holds for each in measured] == [True]


def test_cosine():
    rows = {"HKSE(lin, lin), cosine": row(20, 30), "HKSE(lin, lin), l2": row(19, 31)}
    assert [each.holds for each in claims.similarity_claims(rows, 1000)] == [False]


def test_approximation():
    def level(violations):
        counts = [(125, 0.08), (500, 0.04), (2000, 0.02)]
        return [{"features": m, "rms": rms, "violations": violations} for m, rms in counts]

    found = claims.approximation_claims(
        {
            "words": level({"paper": 5, "hoeffding": 0}),
            "sentences": level({"paper": 0, "hoeffding": 0}),
            "draws": 5,
        }
    )
    assert [each.holds for each in found] == [False, True, True, True, True]
