"""Scores of given pairs, and the audit that finds wrong pairs before they are learned."""

import csv
import json
import shutil

import numpy as np
import pytest

from diptych import AWCCA, Fusion, InputError, Retriever
from diptych.cca import Moments
from diptych.data import PairedDataset, PairedViews
from diptych.retrieval import PairScore, audit_pairs
from diptych.retrieval._audit import FOLDS, estimate_wrong, score_unseen
from diptych.retrieval._pair_scores import PairReference, mean_scores
from saved_files import files_of, seal
from tolerance import rounding

SHAPE = {"n": 480, "captions": 2, "m_x": 10, "m_y": 9, "hidden": 6, "noise": 0.5}
SPLITS = ["train"] * 240 + ["val"] * 120 + ["test"] * 120


@pytest.fixture(scope="module")
def scored(views):
    """A retriever with 120 validation images, and what it was fitted on."""
    x, y, pairing = views(3, **SHAPE)
    return (
        Retriever.from_features(x, y, pairing, splits=SPLITS, model=AWCCA(params=(2.0, 3.0))),
        x,
        y,
        pairing,
    )


@pytest.fixture(scope="module")
def shuffled(views):
    """Pairs of which every tenth caption has exchanged its image with another, and which these are."""
    x, y, pairing = views(5, **SHAPE)
    exchanged = pairing.copy()
    exchanged[::10] = np.roll(pairing[::10], 1)
    return x, y, exchanged, exchanged != pairing


def as_views(x, y, pairing, **options):
    ids = tuple(f"image {row}" for row in range(len(x)))
    return PairedViews(
        PairedDataset(ids, tuple(f"text {j}" for j in range(len(y))), pairing, **options), x, y
    )


def test_a_score_is_the_mean_cosine_of_both_tasks(scored):
    retriever, x, y, _ = scored
    scores = retriever.score_pairs(x[:5], y[:10], np.repeat(np.arange(5), 2))
    expected = np.zeros(10)
    for task in ("search", "annotate"):
        images = retriever.embed_images(x[:5], task=task).repeat(2, axis=0)
        texts = retriever.embed_texts(y[:10], task=task)
        lengths = np.linalg.norm(images, axis=1) * np.linalg.norm(texts, axis=1)
        expected += np.sum(images * texts, axis=1) / lengths / 2
    np.testing.assert_allclose(scores.scores, expected, atol=rounding(np.float32, 20))
    one = retriever.score_pairs(x[1], y[3])
    np.testing.assert_allclose(one.scores, scores.scores[3:4], atol=rounding(np.float32, 20))
    many = retriever.score_pairs(x, np.tile(y, (10, 1)), np.tile(np.repeat(np.arange(480), 2), 10))
    np.testing.assert_allclose(many.scores[-960:], many.scores[:960], atol=rounding(np.float32, 20))


def test_percentiles_are_those_of_held_out_pairs(scored):
    retriever, x, y, _ = scored
    scores = retriever.score_pairs(x[240:360], y[480:720], np.repeat(np.arange(120), 2))
    ranks = np.argsort(np.argsort(scores.scores)) / 2.4
    np.testing.assert_allclose(scores.true_percentiles, ranks, atol=1.5)  # of the pairs that were held out
    wrong = retriever.score_pairs(x[240:360], y[480:720], np.roll(np.repeat(np.arange(120), 2), 5))
    assert 40 < np.median(wrong.false_percentiles) < 60
    assert np.median(wrong.true_percentiles) < 5 < 95 < np.median(scores.false_percentiles)
    first = next(iter(scores))
    assert isinstance(first, PairScore)
    assert first.score == scores.scores[0]
    assert len(list(scores)) == len(scores) == 240
    assert scores.to_json()[0] == {name: round(value, 6) for name, value in first._asdict().items()}


def test_the_reference_is_stored_and_measured_again(scored, tmp_path):
    retriever, x, y, _ = scored
    retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    expected = list(retriever.score_pairs(x[:9], y[:9]))
    np.testing.assert_allclose(list(loaded.score_pairs(x[:9], y[:9])), expected, rtol=1e-5)
    before = loaded.fitted.calibration["pairs"]
    loaded.add(x[:2] + 0.1, y[:2] + 0.1, ids=["a", "b"])
    assert loaded.refit().fitted.calibration["pairs"] != before
    assert loaded.calibrate(x[:200], y[:200]).fitted.calibration["pairs"] != before

    shutil.copytree(tmp_path / "model", tmp_path / "damaged")
    config = files_of(tmp_path / "damaged") / "config.json"
    content = json.loads(config.read_text())
    stored = content["calibration"]["pairs"]
    for damage in ({"true": [0.5, 0.1]}, {"true": [0.1]}, {"false": [0.1, 1e300]}, {"false": None}):
        content["calibration"]["pairs"] = stored | damage
        config.write_text(json.dumps(content))
        seal(tmp_path / "damaged")
        with pytest.raises(InputError, match="config.json"):
            Retriever.load(tmp_path / "damaged")


def test_without_held_out_pairs_there_are_scores_and_no_percentiles(make):
    few = make()
    scores = few.retriever.score_pairs(few.x[:2], few.y[:2])
    assert (scores.true_percentiles, scores.false_percentiles) == (None, None)
    assert scores.absent == few.retriever.info()["calibration"]["absent"]
    assert [pair.false_percentile for pair in scores] == [None, None]
    with pytest.raises(InputError, match="X has 1 rows and Y has 2"):
        few.retriever.score_pairs(few.x[:1], few.y[:2])


def test_images_and_texts_are_encoded(fitted, drawn):
    texts = [f"{drawn.captions[0]} quokka", drawn.captions[7]]  # with a word that the model does not know
    scores = fitted.score_pairs([drawn.paths[0], str(drawn.paths[1])], texts)
    features = fitted.encoders.encode_images(drawn.paths[:2]), fitted.encoders.encode_texts(texts)
    np.testing.assert_allclose(scores.scores, fitted.score_pairs(*features).scores, rtol=1e-5)
    right = fitted.score_pairs(list(drawn.paths), [drawn.captions[5 * row] for row in range(100)])
    wrong = fitted.score_pairs(list(drawn.paths), [drawn.captions[5 * row] for row in range(99, -1, -1)])
    assert np.median(right.scores) > np.median(wrong.scores)


@pytest.mark.parametrize("model", [AWCCA(params=(2.0, 3.0), similarity="l2"), Fusion(grid=3, polish=False)])
def test_true_pairs_score_higher_whatever_the_model(views, model):
    x, y, pairing = views(3, **SHAPE)
    retriever = Retriever.from_features(x, y, pairing, splits=SPLITS, model=model)
    true = retriever.score_pairs(x, y, pairing)
    false = retriever.score_pairs(x, y, np.roll(pairing, 7))
    assert np.mean(true.scores > false.scores) > 0.95
    assert np.mean(true.false_percentiles > 90) > 0.8


def test_the_reference_has_false_pairs_only_of_other_images(scored):
    retriever, x, y, pairing = scored
    reference = PairReference.measure(retriever.searcher.projectors, x[:2], y[:4], pairing[:4])
    exchanged = mean_scores(retriever.searcher.projectors, x[:2], y[:4], 1 - pairing[:4])
    np.testing.assert_allclose([reference.false[0], reference.false[-1]], [exchanged.min(), exchanged.max()])


def test_pairs_are_scored_by_models_that_were_not_fitted_on_them(views):
    x, y, pairing = views(5, **SHAPE)
    keep = pairing % 7 != 0  # images without captions are in no fold
    pairing, y = pairing[keep], y[keep]
    scores, exchanged = score_unseen(x, y, pairing)
    model = AWCCA().fit(x, y, pairing)
    paired, owners = np.unique(pairing, return_inverse=True)
    folds = np.random.default_rng(0).permutation(np.arange(len(paired)) % FOLDS)[owners]
    for fold in range(FOLDS):
        inside, rest = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        unseen = model.refit_copy(Moments.of(x, y[rest], pairing[rest]), len(y))
        projectors = {task: unseen.projector(task) for task in ("search", "annotate")}
        expected = mean_scores(projectors, x, y[inside], pairing[inside])
        np.testing.assert_allclose(scores[inside], expected, atol=1e-4)
    assert np.median(exchanged) < np.median(scores) - 0.3


def test_exchanged_captions_are_found(shuffled):
    x, y, pairing, wrong = shuffled
    audit = audit_pairs(as_views(x, y, pairing))
    assert 0.07 < audit.share < 0.14
    assert np.mean(wrong[audit.flagged]) > 0.85
    assert np.mean(audit.flagged[wrong]) > 0.6
    assert np.all(np.diff(audit.wrong[np.argsort(audit.scores)]) <= 1e-9)
    assert abs(audit.wrong.mean() - audit.share) < 0.03
    pairs = list(audit)
    assert [pair.score for pair in pairs] == sorted(audit.scores)
    assert pairs[0].image == f"image {pairing[np.argmin(audit.scores)]}"
    assert sum(pair.flagged for pair in pairs) == audit.flagged.sum()
    again = audit_pairs(as_views(x, y, pairing), random_state=1)
    assert not np.array_equal(again.scores, audit.scores)
    assert np.mean(again.flagged == audit.flagged) > 0.95


def test_among_right_pairs_hardly_any_is_flagged(views):
    audit = audit_pairs(as_views(*views(5, **SHAPE)))
    assert audit.share < 0.02
    assert audit.flagged.sum() <= 5


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_wrong_pairs_is_estimated(rng, share):
    wrong = np.arange(5000) < share * 5000
    scores = np.where(wrong, rng.normal(0, 1, 5000), rng.normal(4, 1, 5000))
    estimate, found = estimate_wrong(scores, rng.normal(0, 1, 5000))
    assert found == pytest.approx(share, abs=0.05)
    assert np.mean((estimate > 0.5) == wrong) > 0.96


def test_an_audit_needs_a_hundred_images(views):
    x, y, pairing = views(5, **SHAPE)
    with pytest.raises(InputError, match="there are 99 images with captions; an audit needs 100"):
        audit_pairs(as_views(x, y[:198], pairing[:198]))
    with pytest.raises(InputError, match="there is 1 audio item with captions; an audit needs 100"):
        audit_pairs(as_views(x, y[:2], pairing[:2], views=("audio", "text")))


def test_a_table_and_a_sheet_of_the_pairs(shuffled, drawn, tmp_path):
    x, y, pairing, _ = shuffled
    paths = (*drawn.paths, *(tmp_path / f"{row}.png" for row in range(380)))  # some files are not there
    audit = audit_pairs(as_views(x, y, pairing, paths=paths))
    audit.write_csv(tmp_path / "pairs.csv")
    with open(tmp_path / "pairs.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text_id"] for row in rows] == [pair.text_id for pair in audit]
    assert [row["flagged"] == "True" for row in rows] == [pair.flagged for pair in audit]
    audit.write_sheet(tmp_path / "sheet.html")
    sheet = (tmp_path / "sheet.html").read_text("utf-8")
    assert "Captions that look wrong" in sheet
    assert audit.summary() in sheet
    lowest = list(audit)[:200]
    shown = sum(int(pair.image.split()[1]) < 100 for pair in lowest)
    assert 0 < sheet.count("data:image/jpeg;base64") == shown < 200
    assert all(f"{pair.text} ({pair.image}; score" in sheet for pair in lowest)


@pytest.mark.parametrize("model", [None, Fusion(grid=3, polish=False)])
def test_a_fit_leaves_out_what_an_audit_flags(shuffled, model):
    x, y, pairing, _ = shuffled
    retriever = Retriever.from_features(x, y, pairing, splits=SPLITS, model=model, audit=True)
    facts = retriever.info()["facts"]
    left_out = facts["audit"]["left_out"]
    assert facts["audit"]["pairs"] == np.count_nonzero(pairing < 240)
    assert 20 < left_out < 60
    assert f"An audit left out {left_out} of {facts['audit']['pairs']} training pairs" in facts["quality"]
    assert retriever.info()["items"] == {"image": 480, "text": 960}  # they are items as all others
    learned = retriever.fitted.learned.moments().count
    held_out = np.count_nonzero((pairing >= 240) & (pairing < 360)) if model is not None else 0
    assert learned == facts["audit"]["pairs"] - left_out + held_out
