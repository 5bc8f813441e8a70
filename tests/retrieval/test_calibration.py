"""Probabilities: right on average, in the order of the scores, for any gallery, and stored with the model."""

import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, Fusion, InputError, Retriever
from diptych.report import draw_reliability
from diptych.retrieval import Hit, Hits, Item
from diptych.retrieval._calibration import (
    BEST,
    FALSE_ALARMS,
    FEWEST_IMAGES,
    CalibrationConfig,
    Measured,
    ScoreMap,
    TaskCalibration,
    calibration_error,
    fit_calibration,
    reliability,
)

SHAPE = {"n": 480, "captions": 2, "m_x": 10, "m_y": 9, "hidden": 6, "noise": 1.2}
SPLITS = ["train"] * 240 + ["val"] * 120 + ["test"] * 120
TASKS = ("search", "annotate")
MEASURED = Measured("some pairs", 200, 200, 100, 0.01, 0.7, [(0.2, 0.2, 10)])
MAPS = st.one_of(
    st.builds(ScoreMap, st.floats(0, 5), st.floats(-5, 5)),
    st.lists(st.tuples(st.floats(-20, 20), st.floats(0, 1)), min_size=1, max_size=9).map(
        lambda knots: ScoreMap(
            knots=tuple(zip(sorted(k for k, _ in knots), sorted(p for _, p in knots), strict=True))
        )
    ),
)
CONFIGS = st.builds(
    CalibrationConfig,
    st.integers(1, 7),
    st.floats(0.1, 200),
    st.floats(-1, 1),
    MAPS,
    st.tuples(*(st.floats(-50, 50) for _ in range(4))),
    st.just(0.25),
    st.just(MEASURED),
)
CALIBRATIONS = CONFIGS.map(lambda config: TaskCalibration(config, np.empty((0, 3))))
REFERENCE = np.random.default_rng(0).normal(scale=0.3, size=(1, 200))
"""Scores of a query with the reference."""


def configs(retriever):
    """The stored numbers of both tasks."""
    return {task: own.config for task, own in retriever.fitted.calibration.items()}


def assert_reference_is_indexed(retriever):
    """The reference is embedded as the items are that are searched, not by the model that was measured."""
    for task, own in retriever.fitted.calibration.items():
        vectors = np.concatenate([chunk.vectors for chunk in retriever.store.indexes[task].chunks()])
        nearest = np.abs(own.reference[:20, None, :] - vectors[None]).max(axis=2).min(axis=1)
        assert nearest.max() < 1e-4


@pytest.fixture(scope="module")
def calibrated(views):
    """A retriever with 120 validation images and 120 test images, and what it was fitted on."""
    x, y, pairing = views(3, **SHAPE)
    retriever = Retriever.from_features(x, y, pairing, splits=SPLITS, model=AWCCA(params=(2.0, 3.0)))
    return retriever, x, y, pairing


@given(CALIBRATIONS, st.lists(st.floats(-1, 1), min_size=1, max_size=150))
def test_probabilities_never_change_the_order(calibration, scores):
    ordered = np.sort(scores)[::-1][None, :]
    found, there = calibration.probabilities(ordered, REFERENCE)
    assert found.shape == ordered.shape
    assert np.all((found >= 0) & (found <= 1))
    assert 0 <= there[0] <= 1
    assert np.all(np.diff(found[0]) <= 1e-12)
    ties = np.flatnonzero(np.diff(ordered[0]) == 0)
    np.testing.assert_allclose(found[0, ties], found[0, ties + 1], atol=1e-12)


@given(CALIBRATIONS, st.lists(st.floats(-1, 1), min_size=1, max_size=60), st.integers(0, 60))
def test_fewer_items_are_as_if_the_others_were_not_there(calibration, scores, more):
    ordered = np.sort(scores)[::-1]
    padded = np.concatenate([ordered, np.full(more, -np.inf)])[None, :]
    found, there = calibration.probabilities(ordered[None, :], REFERENCE)
    again, there_again = calibration.probabilities(padded, REFERENCE)
    np.testing.assert_allclose(again[0, : len(ordered)], found[0], atol=1e-12)
    np.testing.assert_allclose(there_again, there, atol=1e-12)


@given(CALIBRATIONS, st.lists(st.floats(-1, 1), min_size=BEST, max_size=130))
def test_scores_after_the_best_do_not_count(calibration, scores):
    ordered = np.sort(scores)[::-1][None, :]
    found, there = calibration.probabilities(ordered, REFERENCE)
    first, there_first = calibration.probabilities(ordered[:, :BEST], REFERENCE)
    np.testing.assert_allclose(found[:, :BEST], first, atol=1e-12)
    np.testing.assert_allclose(there, there_first)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.floats(-1, 1))
def test_one_more_competitor_makes_every_hit_less_likely(scores, other):
    config = CalibrationConfig(1, 20.0, 0.0, ScoreMap(1.0, 0.0), (1.0, -1.0, 0.0, 0.0), 0.25, MEASURED)
    calibration = TaskCalibration(config, np.empty((0, 3)))
    before = np.sort(scores)[::-1]
    after = np.sort([*scores, other])[::-1]
    first, second = (calibration.probabilities(own[None, :], REFERENCE)[0][0] for own in (before, after))
    at = int(np.flatnonzero(after == other)[0])
    assert np.all(np.delete(second, at) <= first + 1e-12)


def test_a_softmax_is_the_special_case_of_one_right_item():
    scores = np.sort(np.random.default_rng(0).normal(size=(4, 50)), axis=1)[:, ::-1]
    config = CalibrationConfig(1, 3.0, -100.0, ScoreMap(1.0, 0.0), (1.0, -1.0, 0.0, 0.0), 0.25, MEASURED)
    calibration = TaskCalibration(config, np.empty((0, 3)))
    softmax = np.exp(3 * scores) / np.exp(3 * scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(
        calibration.probabilities(scores, np.repeat(REFERENCE, 4, 0))[0], softmax, rtol=1e-9
    )


def test_a_map_that_falls_is_refused():
    for wrong in ({"slope": -1.0}, {"knots": ((0.0, 0.5), (1.0, 0.4))}, {"knots": ((1.0, 0.5), (0.0, 0.6))}):
        with pytest.raises(InputError, match="falls with the score"):
            ScoreMap(**wrong)


class Plain:
    """An embedding of vectors that are compared as they are."""

    def queries(self, features, task):
        return features

    def items(self, features, task):
        return features, None

    def scores(self, inner, queries):
        return inner


def make_unit_views(seed, n, captions, noise):
    """Unit vectors of images and of captions near them."""
    rng = np.random.default_rng(seed)
    x, owner = rng.normal(size=(n, 24)), np.repeat(np.arange(n), captions)
    y = x[owner] + noise * rng.normal(size=(n * captions, 24))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, y)), owner


@pytest.mark.parametrize("n", [60, 250, 1000])
@pytest.mark.parametrize("captions", [1, 4])
def test_probabilities_are_right_on_average_in_galleries_of_any_size(n, captions):
    (x, y), owner = make_unit_views(0, 300, captions, 1.6)
    calibration = fit_calibration(Plain(), x, y, owner, "drawn")
    (x, y), owner = make_unit_views(1, n, captions, 1.6)
    for task, queries, items, right in (
        ("search", y, x, owner[:, None] == np.arange(n)),
        ("annotate", x, y, np.arange(n)[:, None] == owner),
    ):
        scores = queries @ items.T
        order = np.argsort(-scores, axis=1)[:, :BEST]
        own = calibration[task]
        best = np.take_along_axis(scores, order, 1)
        found, _ = own.probabilities(best, queries @ own.reference.T.astype(np.float64))
        truth = np.take_along_axis(right, order, 1)
        assert calibration_error(reliability(found[:, :10].ravel(), truth[:, :10].ravel())) < 0.04
        assert abs(found[:, 0].mean() - truth[:, 0].mean()) < 0.1
        own = own.config.measured
        assert own.ece < 0.04
        assert own.auroc > 0.6
        assert own.pairs == 300 * captions


def search_best(calibration, queries, items):
    own = calibration["search"]
    best = -np.sort(-(queries @ items.T), axis=1)[:, :BEST]
    return own, own.probabilities(best, queries @ own.reference.T.astype(np.float64))[1]


def test_few_queries_with_a_right_item_are_told_to_have_none():
    """Also among items that the model was fitted on, which are nearer to every query here."""
    (x, y), owner = make_unit_views(0, 400, 2, 1.0)
    rng, known = np.random.default_rng(2), []
    for rows in (x, y):
        near = rows[rng.integers(len(rows), size=1000)] + 0.5 * rng.normal(size=(1000, 24))
        known.append(1.1 * near / np.linalg.norm(near, axis=1, keepdims=True))
    with_known, without = (
        fit_calibration(Plain(), x, y, owner, "drawn", known=own) for own in (tuple(known), None)
    )
    (x, y), _ = make_unit_views(5, 400, 2, 1.0)
    for items in (x, np.vstack([x, known[0]])):
        told, before = (
            np.mean(match < own.config.no_match)
            for own, match in (search_best(each, y, items) for each in (with_known, without))
        )
        # The standard error of a share of one in twenty among 400 images is 0.011.
        assert told < FALSE_ALARMS + 2 * 0.011
        assert told < before


def test_nothing_is_said_of_matches_where_scores_do_not_tell():
    (x, y), owner = make_unit_views(0, 300, 1, 30.0)
    own, match = search_best(fit_calibration(Plain(), x, y, owner, "drawn"), y, x)
    assert match is None
    assert own.config.match is None


def test_no_match_is_true_where_the_right_item_is_missing(calibrated):
    retriever, x, y, pairing = calibrated
    test = [str(row) for row in range(360, 480)]
    rows = range(720, 960, 6)
    present = [retriever.search(y[row], where=test) for row in rows]
    absent = [retriever.search(y[row], where=[i for i in test if i != str(pairing[row])]) for row in rows]
    likely, unlikely = (np.array([h.match_probability for h in hits]) for hits in (present, absent))
    assert likely.mean() > unlikely.mean() + 0.01
    limit = retriever.fitted.calibration["search"].config.no_match
    assert all(hits.no_match == (hits.match_probability < limit) for hits in (*present, *absent))
    nothing = retriever.search(y[0], where={"split": "none of them"})
    assert len(nothing) == 0
    assert nothing.match_probability == 0.0
    assert nothing.no_match


def test_a_filter_makes_hits_more_likely_and_shorter_lists_are_the_beginning_of_longer(calibrated):
    retriever, x, y, _ = calibrated
    for search, query in ((retriever.search, y[721]), (retriever.annotate, x[361])):
        every = search(query, k=1000)
        assert [hit.probability for hit in every] == sorted((h.probability for h in every), reverse=True)
        for k in (1, 7, 150):
            few = search(query, k=k)
            assert [h.id for h in few] == [h.id for h in every[:k]]
            np.testing.assert_allclose([h.probability for h in few], [h.probability for h in every[:k]])
            np.testing.assert_allclose(few.match_probability, every.match_probability)
        page = search(query, k=5, offset=5)
        np.testing.assert_allclose([h.probability for h in page], [h.probability for h in every[5:10]])
        chosen = search(query, k=400, where={"split": "test"})
        before = {hit.id: hit.probability for hit in every}
        assert all(hit.probability >= before[hit.id] - 1e-9 for hit in chosen)


def test_min_probability_leaves_out_hits(calibrated):
    retriever, x, y, _ = calibrated
    every = retriever.search(y[:20], k=50)
    limit = float(np.median([hit.probability for hits in every for hit in hits[:5]]))
    for hits, kept in zip(every, retriever.search(y[:20], k=50, min_probability=limit), strict=True):
        assert [h.id for h in kept] == [h.id for h in hits if h.probability >= limit]
        assert not kept.more or len(kept) == 50
    assert len(retriever.annotate(x[0], k=3, min_probability=0)) == 3
    for wrong in (-0.1, 1.5, "much", True, float("nan")):
        with pytest.raises(InputError, match="is not a probability"):
            retriever.search(y[0], min_probability=wrong)
    for options in ({"weighting": "none"}, {"plus": [y[1]]}):
        assert retriever.search(y[0], **options)[0].probability is None
        assert retriever.search(y[0], **options).no_match is None
        with pytest.raises(InputError, match="measured for plain queries"):
            retriever.search(y[0], min_probability=0.1, **options)
    assert retriever.similar(text=y[0])[0].probability is None
    own = retriever.search(y[0], weighting="asymmetric")
    assert own[0].probability == retriever.search(y[0])[0].probability


def test_plain_data_of_hits():
    item = Item("7", "image")
    assert Hit(item, 0.5, 0.25).to_json() == {"score": 0.5, "probability": 0.25, "id": "7", "view": "image"}
    assert "probability" not in Hit(item, 0.5).to_json()
    assert Hits().no_match is None
    page = Hits([Hit(item, 0.5)] * 3, match_probability=0.25, no_match=True).page(1, 1)
    assert (page.match_probability, page.no_match, page.more) == (0.25, True, True)


def test_what_is_known_of_the_probabilities(calibrated, tmp_path):
    retriever, *_ = calibrated
    known = retriever.info()["calibration"]
    for task in TASKS:
        own = known[task]
        assert own["method"] in ("platt", "isotonic")
        assert own["pairs"] == 240
        assert own["ece"] < 0.1
        assert 0.5 < own["auroc"] <= 1
        assert sum(n for *_, n in own["bins"]) == 10 * own["queries"]
        assert own["on"] == "the val split (120 images, 240 captions)"
    assert known["search"]["gallery"] == 120
    assert known["annotate"]["gallery"] == 240
    retriever.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "## How to read its probabilities" in card
    assert "](reliability.png)" in card
    assert (tmp_path / "model" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    figure = draw_reliability(known)
    assert len(figure.axes) == 4


def test_too_few_held_out_pairs(views, tmp_path):
    x, y, pairing = views(n=160)
    splits = ["train"] * 100 + ["val"] * 60
    retriever = Retriever.from_features(x, y, pairing, splits=splits, model=AWCCA(params=(2.0, 3.0)))
    absent = f"there were 60 held-out images with captions; probabilities need {FEWEST_IMAGES}"
    assert retriever.info()["calibration"] == {"absent": absent}
    hits = retriever.search(y[0])
    assert hits[0].probability is None
    assert hits.match_probability is None
    assert hits.no_match is None
    with pytest.raises(InputError, match="has no probabilities, because there were 60 held-out images"):
        retriever.search(y[0], min_probability=0.5)
    retriever.save(tmp_path / "model")
    assert absent in (tmp_path / "model" / "README.md").read_text("utf-8")
    assert not (tmp_path / "model" / "reliability.png").exists()
    assert Retriever.load(tmp_path / "model").info()["calibration"] == {"absent": absent}
    with pytest.raises(InputError, match="there was 1 held-out image"):
        retriever.calibrate(x[:1], y[:1])
    with pytest.raises(InputError, match="no probabilities to draw"):
        draw_reliability(retriever.info()["calibration"])


def test_without_a_validation_split_some_training_images_are_held_out(views):
    x, y, pairing = views(3, **SHAPE | {"n": 520})
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    known = retriever.info()["calibration"]["search"]
    assert known["on"].startswith("104 of 520 training images, held out")
    assert known["pairs"] == 208
    assert_reference_is_indexed(retriever)
    again = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    assert configs(again) == configs(retriever)
    few = Retriever.from_features(x[:400], y[:800], pairing[:800], model=AWCCA(params=(2.0, 3.0)))
    assert "there were 80 held-out images" in few.info()["calibration"]["absent"]


@pytest.mark.parametrize("splits", [SPLITS, None], ids=["val", "held out"])
def test_a_fusion_is_calibrated_before_it_sees_the_held_out_pairs(views, splits):
    x, y, pairing = views(3, **SHAPE | ({} if splits else {"n": 720}))
    model = Fusion(grid=4, polish=False, parts="together")
    retriever = Retriever.from_features(x, y, pairing, splits=splits, model=model)
    assert retriever.fitted.core.selection_["refitted"]
    known = retriever.info()["calibration"]
    assert known["search"]["on"] == retriever.info()["facts"]["selection"]["pairs"]
    assert_reference_is_indexed(retriever)
    # The same fusion that is not fitted on validation pairs has the same probabilities.
    if splits:
        plain = Retriever.from_features(
            x, y, pairing, splits=splits, model=Fusion(grid=4, polish=False, parts="together", refit=False)
        )
        for task in TASKS:
            one, other = configs(retriever)[task], configs(plain)[task]
            np.testing.assert_allclose(one.sharpness, other.sharpness, rtol=1e-3)
            np.testing.assert_allclose(one.measured.ece, other.measured.ece, atol=1e-2)
    # A refit learns from all of them, so some are taken out of its moments to measure on.
    retriever.add(x[:2] + 0.1, y[:2] + 0.1, ids=["a", "b"])
    held_out = retriever.searcher._find_held_out(None)
    others = retriever.fitted.load_moments() - held_out.learned
    assert 0 < others.count < retriever.fitted.load_moments().count
    assert np.linalg.eigvalsh(others.xx).min() > -1e-9 * np.linalg.norm(others.xx)
    after = retriever.refit().info()["calibration"]["search"]
    assert after["on"].startswith("the stored val split" if splits else "some of the training pairs")
    assert after["ece"] < 0.1
    assert retriever.search(y[0])[0].probability is not None
    assert_reference_is_indexed(retriever)


def test_a_model_from_elsewhere_can_be_calibrated(make, views, tmp_path):
    x, y, pairing = views(3, **SHAPE)
    fitted = make(3, SHAPE | {"n": 60}).retriever
    assert "absent" in fitted.info()["calibration"]
    before = fitted.search(y[5], k=9)
    assert fitted.calibrate(x[60:], y[120:], pairing[120:] - 60) is fitted
    after = fitted.search(y[5], k=9)
    assert [hit.id for hit in after] == [hit.id for hit in before]
    assert all(0 <= hit.probability <= 1 for hit in after)
    assert (after.no_match is None) == (fitted.fitted.calibration["search"].config.match is None)
    assert fitted.info()["calibration"]["search"]["on"] == "the pairs that calibrate was given"
    fitted.save(tmp_path / "model")
    for loaded in (Retriever.load(tmp_path / "model"), Retriever.load(tmp_path / "model", mmap=True)):
        again = loaded.search(y[5], k=9)
        np.testing.assert_allclose([h.probability for h in again], [h.probability for h in after], rtol=1e-5)
        assert configs(loaded) == configs(fitted)
    if fitted.store.shared:
        other = Retriever.connect(fitted.index)
        assert configs(other) == configs(fitted)


def test_a_refit_measures_them_again(make, views):
    x, y, pairing = views(3, **SHAPE)
    retriever = make(3, SHAPE, splits=SPLITS).retriever
    before = configs(retriever)
    retriever.add(x[:3] + 0.1, y[:3] + 0.1, ids=["a", "b", "c"], metadata={"a": {"split": "val"}})
    retriever.refit()
    known = retriever.info()["calibration"]
    assert known["search"]["on"] == "the stored val split (120 images, 240 captions)"
    assert configs(retriever) != before
    retriever.refit(validation=(x[360:], y[720:], pairing[720:] - 360))
    assert retriever.info()["calibration"]["search"]["on"] == "the validation pairs that refit was given"
    assert retriever.search(y[0])[0].probability is not None


def test_without_stored_features_a_refit_has_no_pairs_to_measure_on(make_here):
    retriever = make_here(3, SHAPE, splits=SPLITS).retriever
    assert retriever.searcher._find_held_out(None) is not None
    retriever.store.kept.clear()
    assert retriever.searcher._find_held_out(None) is None


def test_a_calibration_survives_what_others_saved(make_here, views, tmp_path):
    x, y, pairing = views(3, **SHAPE)
    made = make_here(3, SHAPE | {"n": 60})
    made.retriever.save(tmp_path / "model")
    mine, theirs = (Retriever.load(tmp_path / "model") for _ in range(2))
    theirs.add(x[70:71], ids=["theirs"])
    theirs.save(tmp_path / "model")
    mine.calibrate(x[60:], y[120:], pairing[120:] - 60).save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    assert loaded.item("theirs") is not None
    assert configs(loaded) == configs(mine)
    assert not isinstance(loaded.fitted.calibration, str)


def test_a_damaged_calibration_is_refused(calibrated, tmp_path):
    retriever, *_ = calibrated
    stored = msgspec.json.decode(msgspec.json.encode(configs(retriever)["search"]))
    assert msgspec.convert(stored, CalibrationConfig) == configs(retriever)["search"]
    for change in ({"sharpness": -1.0}, {"right": 0}, {"map": {"slope": -2.0}}, {"unknown": 1}):
        with pytest.raises((msgspec.ValidationError, InputError)):
            msgspec.convert(stored | change, CalibrationConfig)


def test_a_search_with_probabilities_needs_no_scikit_learn(calibrated, tmp_path):
    retriever, _, y, _ = calibrated
    retriever.save(tmp_path / "model")
    np.save(tmp_path / "y.npy", y[:2])
    code = (
        "import sys, numpy as np; from diptych import Retriever; "
        "hits = Retriever.load(sys.argv[1]).search(np.load(sys.argv[2]))[0]; "
        "assert hits[0].probability is not None and hits.no_match is not None; "
        "assert not {'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "model", tmp_path / "y.npy"], check=True)
