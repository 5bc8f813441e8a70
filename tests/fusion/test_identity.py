"""The zero-shot cosine of a dual encoder as a part of a fusion."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.fusion import Block, Fusion, Part
from diptych.ranking import mean_recall, ranks
from generated_pairs import make_dual_features
from tolerance import assert_close

TASKS = ("search", "annotate")
IDENTITY = Part(("x",), ("y",), kind="identity")


def zero_shot(pairs, task):
    return mean_recall(ranks(*pairs, task=task))


def recall(model, pairs, task):
    return mean_recall(model.ranks(*pairs, task=task))


def to_unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def unseen():
    return make_dual_features(600, seed=99)


@given(
    seed=st.integers(0, 10_000),
    width=st.integers(2, 12),
    normalize=st.sampled_from(["none", "unit", "sqrt-unit"]),
    scale=st.floats(1e-3, 1e3),
)
def test_its_score_is_the_cosine_of_the_features_as_they_are(seed, width, normalize, scale):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(40, width))
    y = scale * (x + rng.normal(size=(40, width)))
    # The geometry is for the other parts: an identity compares what the encoders gave.
    blocks = {"x": Block(normalize), "y": Block("none")}
    model = Fusion("plain", parts=[IDENTITY], blocks=blocks).fit(x, y)
    for task in TASKS:
        (member,) = model.members_[task]
        x_vectors, y_vectors = model.transform(x, y, task=task)
        means = (0, 0) if member.use.weighting == "identity" else (to_unit(x).mean(0), to_unit(y).mean(0))
        x_unit, y_unit = (to_unit(to_unit(rows) - mean) for rows, mean in zip((x, y), means, strict=True))
        assert_close(x_vectors @ y_vectors.T, x_unit @ y_unit.T, 4 * width, magnitude=1.0, condition=10.0)


def test_a_model_without_pairs_is_the_cosine(unseen, tmp_path):
    model = Fusion.zero_shot(128)
    model.save(tmp_path / "model")
    for each in (model, Fusion.load(tmp_path / "model")):
        for task in TASKS:
            assert recall(each, unseen, task) == pytest.approx(zero_shot(unseen, task), abs=0.2)
    x, y = (3 * view for view in unseen)
    assert_close(model.queries(y) @ model.items(x).T, to_unit(y) @ to_unit(x).T, 128, magnitude=1.0)
    with pytest.raises(InputError, match="width"):
        Fusion.zero_shot(0)


@pytest.fixture(scope="module")
def adapted(unseen):
    """Fusions of few and of many pairs: with the zero-shot cosine, and of AW-CCA alone."""
    fusions = {}
    for n in (100, 300, 2000):
        pairs = make_dual_features(n, seed=3)
        model, alone = (Fusion(parts=p, grid=5, polish=False).fit(*pairs) for p in ("family", "together"))
        fusions[n] = SimpleNamespace(model=model, alone=alone)
    return fusions


@pytest.mark.parametrize("task", TASKS)
def test_it_is_as_good_as_the_better_of_both(adapted, unseen, task):
    plain = zero_shot(unseen, task)
    assert recall(adapted[100].alone, unseen, task) < plain - 20, "100 pairs are too few for AW-CCA"
    assert recall(adapted[2000].alone, unseen, task) > plain + 10
    for n, pair in adapted.items():
        best = max(plain, recall(pair.alone, unseen, task))
        assert recall(pair.model, unseen, task) > best - 1.0, n
    assert recall(adapted[300].model, unseen, task) > plain + 3, "both together are better than either"


SLOW_NOISES = [pytest.param(noise, (40, 100, 200), 4, marks=pytest.mark.slow) for noise in (0.6, 1.0, 1.3)]


@pytest.mark.parametrize(("noise", "sizes", "seeds"), [(1.0, (40, 100), 2), *SLOW_NOISES])
def test_few_pairs_never_spoil_a_dual_encoder(noise, sizes, seeds):
    unseen = make_dual_features(600, seed=99, noise=noise, turned=4)
    gains = []
    for n in sizes:
        for seed in range(seeds):
            model = Fusion(grid=5).fit(*make_dual_features(n, seed, noise=noise, turned=4))
            gains += [recall(model, unseen, task) - zero_shot(unseen, task) for task in TASKS]
    assert min(gains) > -2.0
    assert np.mean(gains) >= 0.0


def test_the_report_names_it(adapted):
    model = adapted[300].model
    msgspec.json.encode(model.selection_)
    for task in TASKS:
        first = model.selection_.tasks[task].parts[0]
        assert first.part == "x × y"
        assert {use.weighting for use in first.tried} == {"identity", "centred identity"}
        weights = model.selection_.tasks[task].weights
        members = model.members_[task]
        assert [m.weight for m in members] == [weight for weight in weights if weight]
        assert members[0].part.kind == "identity"
    assert model.selection_.parts[0].params == {}


def test_features_that_only_happen_to_be_equally_wide_are_not_compared():
    for seed in range(3):
        x, y = make_dual_features(400, seed, broken=True)
        model = Fusion(grid=5, polish=False).fit(x, y)
        assert {m.part.kind for task in TASKS for m in model.members_[task]} == {"awcca"}
    # One that is asked for is tried, and gets no weight.
    parts = [Part(("x",), ("y",)), IDENTITY]
    model = Fusion(parts=parts, grid=5, polish=False).fit(x, y)
    assert [model.selection_.tasks[task].weights for task in TASKS] == [[1.0, 0.0]] * 2


def test_every_pair_of_equally_wide_blocks_is_tried():
    (x, y), (a, b) = make_dual_features(200, 0), make_dual_features(200, 0, width=100)
    noise = np.random.default_rng(0).normal(size=(200, 100))
    model = Fusion(grid=4, polish=False).fit(
        {"clip": x, "siglip": a}, {"clip texts": y, "siglip texts": b, "other": noise}
    )
    names = [part.part for part in model.selection_.tasks["search"].parts]
    assert names[:2] == ["clip × clip texts", "siglip × siglip texts"]
    assert names[2] == "clip + siglip × clip texts + siglip texts + other"
    assert model.selection_.parts[2].params


def test_the_means_are_refitted_on_all_pairs():
    x, y = make_dual_features(300, 0)
    training, validation = (x[:200], y[:200]), (x[200:], y[200:])
    means = {}
    for refit in (False, True):
        model = Fusion(parts=[IDENTITY], hubness=("none",), refit=refit).fit(*training, validation=validation)
        (member,) = model.members_["search"]
        assert member.use.weighting == "centred identity"
        means[refit] = member.linear.x_mean
    assert_close(means[False], x[:200].mean(axis=0), 200)
    assert_close(means[True], x.mean(axis=0), 300)


def test_impossible_identities_are_refused():
    x, y = make_dual_features(60, 0)
    with pytest.raises(InputError, match="compares 128 with 100 features"):
        Fusion(parts=[IDENTITY]).fit(x, y[:, :100])
    with pytest.raises(InputError, match="one block of each view"):
        Part(("a", "b"), ("c",), kind="identity")
    with pytest.raises(InputError, match="kind='magic'"):
        Part(("a",), ("c",), kind="magic")
