"""Probabilities: right on average, in the order of the scores, for any gallery, and stored with the model."""

import json
import shutil
import subprocess
import sys

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, Fusion, InputError, Retriever
from diptych.encoders import FunctionEncoder
from diptych.report import draw_reliability
from diptych.retrieval import Hit, Hits, Item
from diptych.retrieval._calibration import (
    BEST,
    FEWEST_IMAGES,
    Evidence,
    Measured,
    ScoreMap,
    TaskCalibration,
    calibration_error,
    measure_held_out,
    reliability,
)
from diptych.retrieval._refitting import sum_new_pairs
from placing import place_by_hand
from saved_files import files_of, seal

SHAPE = {"n": 480, "captions": 2, "m_x": 10, "m_y": 9, "hidden": 6, "noise": 1.2}
SPLITS = ["train"] * 240 + ["val"] * 120 + ["test"] * 120
TASKS = ("search", "annotate")
MEASURED = Measured("some pairs", 200, 200, 100, 0.01, [(0.2, 0.2, 10)])
MAPS = st.one_of(
    st.builds(ScoreMap, st.floats(0, 5), st.floats(-5, 5)),
    st.lists(st.tuples(st.floats(-20, 20), st.floats(0, 1)), min_size=1, max_size=9).map(
        lambda knots: ScoreMap(
            knots=tuple(zip(sorted(k for k, _ in knots), sorted(p for _, p in knots), strict=True))
        )
    ),
)
EVIDENCE = st.builds(
    Evidence, st.integers(1, 7), st.floats(0.1, 200), st.floats(-1, 1), st.floats(-0.5, 0.5), st.floats(0, 3)
)
CALIBRATIONS = st.builds(TaskCalibration, EVIDENCE, MAPS, st.just(MEASURED))


@pytest.fixture(scope="module")
def calibrated(views):
    """A retriever with 120 validation images and 120 test images, and what it was fitted on."""
    x, y, pairing = views(3, **SHAPE)
    retriever = Retriever.from_features(x, y, pairing, splits=SPLITS, model=AWCCA(params=(2.0, 3.0)))
    return retriever, x, y, pairing


@given(CALIBRATIONS, st.lists(st.floats(-1, 1), min_size=1, max_size=150))
def test_probabilities_never_change_the_order(calibration, scores):
    ordered = np.sort(scores)[::-1][None, :]
    found = calibration.probabilities(ordered)
    assert found.shape == ordered.shape
    assert np.all((found >= 0) & (found <= 1))
    assert np.all(np.diff(found[0]) <= 1e-12)
    ties = np.flatnonzero(np.diff(ordered[0]) == 0)
    np.testing.assert_allclose(found[0, ties], found[0, ties + 1], atol=1e-12)


@given(CALIBRATIONS, st.lists(st.tuples(st.floats(-1, 1), st.booleans()), min_size=1), st.floats(0, 0.5))
def test_they_keep_the_order_of_items_of_one_kind(calibration, items, offset):
    scores, paired = (np.array(row)[None, :] for row in zip(*sorted(items, reverse=True), strict=True))
    found = calibration.probabilities(scores, paired, offset)
    assert np.all((found >= 0) & (found <= 1))
    for kind in (paired, ~paired):
        assert np.all(np.diff(found[kind]) <= 1e-12)


@given(CALIBRATIONS, st.lists(st.floats(-1, 1), min_size=1, max_size=60), st.integers(0, 60))
def test_fewer_items_are_as_if_the_others_were_not_there(calibration, scores, more):
    ordered = np.sort(scores)[::-1]
    padded = np.concatenate([ordered, np.full(more, -np.inf)])[None, :]
    found, again = (calibration.probabilities(rows) for rows in (ordered[None, :], padded))
    np.testing.assert_allclose(again[0, : len(ordered)], found[0], atol=1e-12)


@given(CALIBRATIONS, st.lists(st.floats(-1, 1), min_size=BEST, max_size=130))
def test_scores_after_the_best_do_not_count(calibration, scores):
    ordered = np.sort(scores)[::-1][None, :]
    found, first = (calibration.probabilities(rows) for rows in (ordered, ordered[:, :BEST]))
    np.testing.assert_allclose(found[:, :BEST], first, atol=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=50), st.floats(-1, 1))
def test_one_more_competitor_makes_every_hit_less_likely(scores, other):
    calibration = TaskCalibration(Evidence(1, 20.0, 0.0), ScoreMap(1.0, 0.0), MEASURED)
    fewer, more = np.sort(scores)[::-1], np.sort([*scores, other])[::-1]
    first, second = (calibration.probabilities(rows[None, :])[0] for rows in (fewer, more))
    at = int(np.flatnonzero(more == other)[0])
    assert np.all(np.delete(second, at) <= first + 1e-12)


def test_a_softmax_is_the_special_case_of_one_right_item():
    scores = np.sort(np.random.default_rng(0).normal(size=(4, 50)), axis=1)[:, ::-1]
    calibration = TaskCalibration(Evidence(1, 3.0, -100.0), ScoreMap(1.0, 0.0), MEASURED)
    softmax = np.exp(3 * scores) / np.exp(3 * scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibration.probabilities(scores), softmax, rtol=1e-9)


def test_a_map_that_falls_is_refused():
    for wrong in ({"slope": -1.0}, {"knots": ((0.0, 0.5), (1.0, 0.4))}, {"knots": ((1.0, 0.5), (0.0, 0.6))}):
        with pytest.raises(InputError, match="falls with the score"):
            ScoreMap(**wrong)


def make_projectors(width):
    """Projectors of unit vectors that are compared as they are."""
    return {task: Fusion.zero_shot(width).projector(task) for task in TASKS}


def make_unit_views(seed, n, captions, noise):
    """Unit vectors of images and of captions near them."""
    rng = np.random.default_rng(seed)
    x, owner = rng.normal(size=(n, 24)), np.repeat(np.arange(n), captions)
    y = x[owner] + noise * rng.normal(size=(n * captions, 24))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, y)), owner


@pytest.mark.parametrize("captions", [[300] * 100, [9000, *[3] * 99]])
def test_many_captions_of_an_image_are_no_error(captions):
    owner = np.repeat(np.arange(100), captions)
    x = np.random.default_rng(0).normal(size=(100, 4))
    calibration = measure_held_out(make_projectors(4), x, x[owner], owner, "drawn")[1]
    assert isinstance(calibration, str) or set(calibration) == {"search", "annotate", "pairs"}


@pytest.fixture(scope="module", params=[1, 4])
def drawn_calibration(request):
    """What drawn pairs tell: offsets, probabilities, and how many captions an image has."""
    (x, y), owner = make_unit_views(0, 300, request.param, 1.6)
    return *measure_held_out(make_projectors(24), x, y, owner, "drawn"), request.param


@pytest.mark.parametrize("n", [60, 250, 700])
@pytest.mark.parametrize("library", [False, True])
def test_probabilities_are_right_on_average_in_galleries_of_any_size(drawn_calibration, n, library):
    """Of items without partners; in a ``library``, every other image has all captions but the query."""
    offsets, calibration, captions = drawn_calibration
    (x, y), owner = make_unit_views(1, n, captions, 1.6)
    asked, has_captions = np.arange(n) * captions, owner % 2 == 0
    partners = np.flatnonzero(has_captions & ~np.isin(range(len(y)), asked)) if library else []
    images = place_by_hand(x, y[partners], owner[partners])
    texts = np.where((has_captions & library)[:, None], place_by_hand(y, x[owner], range(len(y))), y)
    lonely = np.flatnonzero(np.arange(n) % 2) if library else np.arange(n)
    for task, queries, items, right, paired in (
        (
            "search",
            y[asked],
            images,
            owner[asked, None] == np.arange(n),
            np.isin(np.arange(n), owner[partners]),
        ),
        ("annotate", x[lonely], texts, lonely[:, None] == owner, has_captions & library),
    ):
        offset = offsets[task].compute(int(paired.sum()), int((~paired).sum()))
        scores = queries @ items.T - offset * paired
        order = np.argsort(-scores, axis=1)[:, :BEST]
        found = calibration[task].probabilities(np.take_along_axis(scores, order, 1), paired[order], offset)
        truth = np.take_along_axis(right, order, 1)
        error = calibration_error(reliability(found[:, :10].ravel(), truth[:, :10].ravel()))
        assert error < 0.04 + 1 / n  # few hits have more noise
        for kind in filter(np.any, (paired[order][:, :10], ~paired[order][:, :10])):
            assert abs(found[:, :10][kind].mean() - truth[:, :10][kind].mean()) < 0.12
        assert abs(found[:, 0].mean() - truth[:, 0].mean()) < 0.1
        measured = calibration[task].measured
        assert measured.ece < 0.04
        assert measured.pairs == 300 * captions


def test_a_filter_makes_hits_more_likely_and_shorter_lists_are_the_beginning_of_longer(calibrated):
    retriever, x, y, _ = calibrated
    for search, query in ((retriever.search, y[721]), (retriever.annotate, x[361])):
        every = search(query, k=1000)
        assert [hit.probability for hit in every] == sorted((h.probability for h in every), reverse=True)
        for k in (1, 7, 150):
            few = search(query, k=k)
            assert [h.id for h in few] == [h.id for h in every[:k]]
            np.testing.assert_allclose([h.probability for h in few], [h.probability for h in every[:k]])
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
    assert retriever.search(y[0], plus=[y[1]])[0].probability is None
    with pytest.raises(InputError, match="measured for plain queries"):
        retriever.search(y[0], plus=[y[1]], min_probability=0.1)
    assert retriever.similar(text=y[0])[0].probability is None


def test_plain_data_of_hits():
    item = Item("7", "image")
    assert Hit(item, 0.5, 0.25).to_json() == {"score": 0.5, "probability": 0.25, "id": "7", "view": "image"}
    assert "probability" not in Hit(item, 0.5).to_json()
    page = Hits([Hit(item, 0.5, 0.25)] * 3, ["qwrtz"]).page(1, 1)
    assert ([hit.probability for hit in page], page.ignored_words, page.more) == ([0.25], ("qwrtz",), True)


def test_what_is_known_of_the_probabilities(calibrated, saved):
    retriever, *_ = calibrated
    known = retriever.info()["calibration"]
    for task in TASKS:
        own = known[task]
        assert own["method"] in ("platt", "isotonic")
        assert own["pairs"] == 240
        assert own["ece"] < 0.1
        assert sum(n for *_, n in own["bins"]) == 10 * own["queries"]
        assert own["on"] == "the val split (120 images, 240 captions)"
    assert known["search"]["gallery"] == 120
    assert known["annotate"]["gallery"] == 240
    card = (saved / "README.md").read_text("utf-8")
    assert "## How to read its probabilities" in card
    assert "](reliability.png)" in card
    assert (saved / "reliability.png").read_bytes().startswith(b"\x89PNG")
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
    again = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    assert again.fitted.calibration == retriever.fitted.calibration
    few = Retriever.from_features(x[:400], y[:800], pairing[:800], model=AWCCA(params=(2.0, 3.0)))
    assert "there were 80 held-out images" in few.info()["calibration"]["absent"]


@pytest.mark.parametrize("splits", [SPLITS, None], ids=["val", "held out"])
def test_a_fusion_is_calibrated_before_it_sees_the_held_out_pairs(views, splits):
    x, y, pairing = views(3, **SHAPE | ({} if splits else {"n": 720}))
    model = Fusion(grid=4, polish=False, parts="together")
    retriever = Retriever.from_features(x, y, pairing, splits=splits, model=model)
    assert retriever.fitted.model.selection_.refitted
    known = retriever.info()["calibration"]
    assert known["search"]["on"] == retriever.info()["facts"]["selection"]["pairs"]
    assert retriever.search(y[0])[0].probability is not None
    for name in retriever.searcher.projectors["search"].masks():
        assert retriever.search(y[0], weighting=name)[0].probability is None
        with pytest.raises(InputError, match="measured for plain queries, not .* a part of a fusion"):
            retriever.search(y[0], weighting=name, min_probability=0.1)
    # The same fusion that is not fitted on validation pairs has the same probabilities.
    if splits:
        plain = Retriever.from_features(
            x, y, pairing, splits=splits, model=Fusion(grid=4, polish=False, parts="together", refit=False)
        )
        for task in TASKS:
            one, other = retriever.fitted.calibration[task], plain.fitted.calibration[task]
            np.testing.assert_allclose(one.evidence.background, other.evidence.background, rtol=1e-3)
            np.testing.assert_allclose(one.measured.ece, other.measured.ece, atol=1e-2)
    # After a refit a val split is taken out of the moments, to be measured on.
    retriever.add(x[:2] + 0.1, y[:2] + 0.1, ids=["a", "b"])
    retriever.refit()
    if splits is None:
        assert "Retriever.calibrate" in retriever.info()["calibration"]["absent"]
        return
    assert retriever.info()["calibration"]["search"]["on"].startswith("the stored val split")
    for task in TASKS:
        np.testing.assert_allclose(
            retriever.fitted.calibration[task].measured.ece, known[task]["ece"], atol=2e-2
        )
        np.testing.assert_allclose(
            retriever.fitted.calibration[task].evidence.background,
            plain.fitted.calibration[task].evidence.background,
            rtol=0.5,
        )


def test_a_model_from_elsewhere_can_be_calibrated(make, views, tmp_path):
    x, y, pairing = views(3, **SHAPE)
    fitted = make(3, SHAPE | {"n": 60}).retriever
    assert "absent" in fitted.info()["calibration"]
    before = fitted.search(y[5], k=9)
    assert fitted.calibrate(x[60:], y[120:], pairing[120:] - 60) is fitted
    after = fitted.search(y[5], k=9)
    assert [hit.id for hit in after] == [hit.id for hit in before]
    assert all(0 <= hit.probability <= 1 for hit in after)
    assert fitted.info()["calibration"]["search"]["on"] == "the pairs that calibrate was given"
    fitted.save(tmp_path / "model")
    for loaded in (Retriever.load(tmp_path / "model"), Retriever.load(tmp_path / "model", mmap=True)):
        again = loaded.search(y[5], k=9)
        np.testing.assert_allclose([h.probability for h in again], [h.probability for h in after], rtol=1e-5)
        assert loaded.fitted.calibration == fitted.fitted.calibration
    # Others who add meanwhile lose nothing, and take nothing away.
    before = fitted.fitted.calibration
    mine, theirs = (Retriever.load(tmp_path / "model") for _ in range(2))
    theirs.add(x[70:71], y[140:141], ids=["theirs"])
    mine.calibrate(x[60:180], y[120:360], pairing[120:360] - 60)
    assert mine.item("theirs") is not None
    for retriever in (theirs, fitted, Retriever.load(tmp_path / "model")):
        assert retriever.fitted.calibration == mine.fitted.calibration != before
    assert sum_new_pairs(theirs.searcher).count == 1  # a calibration learns nothing from them


def test_a_refit_measures_them_again(make, views):
    x, y, pairing = views(3, **SHAPE)
    retriever = make(3, SHAPE, splits=SPLITS).retriever
    before = retriever.fitted.calibration
    added = {"a": {"split": "val"}, "a#0": {"split": "val"}}
    retriever.add(x[:3] + 0.1, y[:3] + 0.1, ids=["a", "b", "c"], metadata=added)
    retriever.refit(validation=(x[360:], y[720:], pairing[720:] - 360))
    known = retriever.info()["calibration"]
    assert known["search"]["on"] == "the stored val split (120 images, 240 captions)"
    assert retriever.fitted.calibration != before
    assert retriever.search(y[0])[0].probability is not None
    # Now the val split has a pair that the model was fitted on.
    retriever.refit()
    assert "Retriever.calibrate" in retriever.info()["calibration"]["absent"]
    assert retriever.search(y[0])[0].probability is None
    retriever.calibrate(x[360:], y[720:], pairing[720:] - 360)
    assert retriever.search(y[0])[0].probability is not None


@pytest.mark.parametrize("options", [{"splits": None}, {"splits": SPLITS, "keep_features": False}])
def test_a_refit_without_a_stored_val_split_has_no_probabilities(make, views, options):
    x, y, _ = views(3, **SHAPE)
    retriever = make(
        *(3, SHAPE),
        captions=list(map(str, range(len(y)))),
        image_encoder=FunctionEncoder(lambda rows: x[np.array(rows, int)], "rows of x", "texts"),
        text_encoder=lambda rows: y[np.array(rows, int)],
        **options,
    ).retriever
    retriever.refit()
    absent = retriever.info()["calibration"]["absent"]
    assert absent.startswith("it was refitted, and there are no features of a stored val split")
    with pytest.raises(InputError, match="no probabilities, because it was refitted.* Retriever.calibrate"):
        retriever.search(y[0], min_probability=0.5)


def test_a_damaged_calibration_is_refused(calibrated, tmp_path):
    retriever, *_ = calibrated
    stored = msgspec.json.decode(msgspec.json.encode(retriever.fitted.calibration["search"]))
    assert msgspec.convert(stored, TaskCalibration) == retriever.fitted.calibration["search"]
    evidence = [
        {"sharpness": -1.0},
        {"right": 0},
        {"bend": -1.0},
        {"background": 1e300},
        {"sharpness": 1e300},
    ]
    changes = [{"evidence": stored["evidence"] | change} for change in evidence]
    changes += [{"map": {"slope": -2.0}}, {"map": {"knots": [[-1e300, 0.1]]}}, {"unknown": 1}]
    for change in changes:
        with pytest.raises((msgspec.ValidationError, InputError)):
            msgspec.convert(stored | change, TaskCalibration)


@pytest.fixture(scope="module")
def saved(calibrated, tmp_path_factory):
    """The folder of that retriever."""
    folder = tmp_path_factory.mktemp("calibrated") / "model"
    calibrated[0].save(folder)
    return folder


@pytest.mark.parametrize("right", [1000, 10**9, 2**62])
def test_any_number_of_right_items_in_a_file_is_searched_with(calibrated, saved, tmp_path, right):
    x = calibrated[1]
    shutil.copytree(saved, tmp_path / "model")
    path = files_of(tmp_path / "model") / "config.json"
    config = json.loads(path.read_text())
    config["calibration"]["annotate"]["evidence"]["right"] = right
    path.write_text(json.dumps(config))
    seal(tmp_path / "model")
    hits = Retriever.load(tmp_path / "model").annotate(x[0], k=5)
    assert all(0 <= hit.probability <= 1 for hit in hits)


def test_a_search_with_probabilities_needs_no_scikit_learn(calibrated, saved, tmp_path):
    np.save(tmp_path / "y.npy", calibrated[2][:2])
    code = (
        "import sys, numpy as np; from diptych import Retriever; "
        "hits = Retriever.load(sys.argv[1]).search(np.load(sys.argv[2]))[0]; "
        "assert hits[0].probability is not None; "
        "assert not {'sklearn', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, saved, tmp_path / "y.npy"], check=True)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 9),
    right=st.integers(1, 3),
    offset=st.floats(0, 0.5),
    own=st.floats(-0.2, 0.5),
    bend=st.floats(0, 3),
)
def test_probabilities_compare_items_of_both_kinds_at_their_own_offset(seed, n, right, offset, own, bend):
    rng = np.random.default_rng(seed)
    cosines, paired = rng.uniform(-1, 1, n), rng.random(n) < 0.5
    order = np.argsort(offset * paired - cosines)
    cosines, paired = cosines[order], paired[order]
    evidence = Evidence(right, 4.0, 0.1, own, bend)
    calibration = TaskCalibration(evidence, ScoreMap(0.8, 0.3), MEASURED)
    found = calibration.probabilities((cosines - offset * paired)[None], paired[None], offset)[0]
    scores = cosines - own * paired
    top = 0.1 + 1 / (2 * bend) if bend else np.inf  # where the parabola turns
    scores = np.minimum(scores, top)
    scores = scores - bend * np.maximum(scores - 0.1, 0) ** 2
    for at in range(n):
        others = np.sort(np.delete(scores, at))[::-1][right - 1 :]
        evidence = 4.0 * scores[at] - np.log(np.exp(0.4) + np.exp(4.0 * others).sum())
        assert found[at] == pytest.approx(1 / (1 + np.exp(-0.8 * evidence - 0.3)), rel=1e-9)
