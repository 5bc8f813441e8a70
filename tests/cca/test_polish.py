"""The contrastive loss against torch's autograd, and the polish of AWCCA."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych._arrays import to_numpy
from diptych.cca import Moments, _polish, maps
from diptych.cca._polish import Polish, carry_polish, choose_epochs, contrast, polish_for, polish_vectors
from generated_pairs import make_graded_pairs
from tolerance import assert_close, rounding

TASKS = ("search", "annotate")


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    images=st.integers(1, 40),
    size=st.integers(1, 9),
    temperature=st.sampled_from([0.05, 0.07, 1.0]),
)
def test_the_gradient_is_that_of_autograd(seed, n, images, size, temperature):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    rng = np.random.default_rng(seed)
    x, y, own = rng.normal(size=(n, size)), rng.normal(size=(n, size)), rng.integers(0, images, n)
    loss, *gradients = contrast(x, y, own, temperature)

    leaves = [torch.tensor(rows, requires_grad=True) for rows in (x, y)]
    units = [torch.nn.functional.normalize(rows, dim=1) for rows in leaves]
    same = torch.tensor(own[:, None] == own) & ~torch.eye(n, dtype=torch.bool)
    logits = (units[0] @ units[1].T / temperature).masked_fill(same, -torch.inf)
    rows = torch.arange(n)
    cross_entropy = torch.nn.functional.cross_entropy
    expected = (cross_entropy(logits, rows) + cross_entropy(logits.T, rows)) / 2
    expected.backward()

    # A logit is at most 1 / τ, and so is the loss of a pair, beside log n.
    assert abs(loss - expected.item()) <= rounding(np.float64, n + size, 2 / temperature + np.log(n))
    shortest = min(np.linalg.norm(rows, axis=1).min() for rows in (x, y))
    for gradient, leaf in zip(gradients, leaves, strict=True):
        scale = 1 / (temperature * shortest)
        assert_close(gradient, leaf.grad.numpy(), n + size, magnitude=scale, condition=1 / temperature)


def test_torch_and_numpy_learn_the_same_which_the_seed_determines(rng, backend):
    x, y, pairing = rng.normal(size=(50, 6)), rng.normal(size=(120, 6)), rng.integers(0, 50, 120)
    expected = polish_for(x, y, pairing, 2)
    result = polish_for(backend(x), backend(y), backend(pairing), 2)
    for view in ("x", "y"):
        # Adam divides by the size of a gradient, so small gradients are as uncertain as their rounding.
        np.testing.assert_allclose(to_numpy(getattr(result, view)), getattr(expected, view), atol=1e-6)
    again, other = (polish_for(x, y, pairing, 2, seed) for seed in (0, 4))
    np.testing.assert_array_equal(again.x, expected.x)
    assert (again.x != other.x).any()


def test_it_starts_at_the_identity_and_lowers_the_loss(rng):
    x, pairing = rng.normal(size=(100, 8)), np.arange(300) // 3
    y = x[pairing] @ np.linalg.qr(rng.normal(size=(8, 8)))[0] + 0.5 * rng.normal(size=(300, 8))
    losses = [contrast(x[pairing], y, pairing)[0]]
    for polish in polish_vectors(x, y, pairing):
        losses.append(contrast(x[pairing] @ polish.x, y @ polish.y, pairing)[0])
        if polish.epochs == 5:
            break
    assert losses == sorted(losses, reverse=True)
    # 50 steps of Adam move no entry further than 50 learning rates, or a little more.
    assert abs(polish.x - np.eye(8)).max() < 0.05


def test_captions_of_one_image_and_vectors_of_zeros_are_no_rivals(rng):
    x, y = np.repeat(rng.normal(size=(1, 4)), 6, axis=0), rng.normal(size=(6, 4))
    loss, to_x, to_y = contrast(x, y, np.zeros(6, dtype=int))
    assert loss == 0.0
    assert not to_x.any()
    assert not to_y.any()
    x[2] = 0.0
    assert all(np.isfinite(part).all() for part in contrast(x, y, np.arange(6)))


def test_an_epoch_is_a_pass_within_bounds(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        _polish, "contrast", lambda x, y, images: (drawn.append(len(images)), 0.0 * x, 0.0 * y)
    )
    for count, expected in ((100, [100] * 10), (512 * 30 + 7, [512] * 30), (512 * 400, [512] * 100)):
        drawn.clear()
        next(polish_vectors(np.zeros((1, 1)), np.zeros((count, 1)), np.zeros(count, dtype=int)))
        assert drawn == expected


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([1.0, 3.0, 3.0, 2.0, 2.0, 9.0], 2),
        ([-1.0, -1.0, 5.0], None),
        ([0.0, 0.0, 0.0, 5.0], 4),
        ([0.5] * 9, 1),
    ],
)
def test_the_earliest_of_the_best_epochs_wins_and_patience_ends(values, best):
    polishes = (Polish(None, None, epochs) for epochs in range(1, len(values) + 1))
    chosen = choose_epochs(polishes, lambda polish: values[polish.epochs - 1], 0.0)
    assert (None if chosen is None else chosen.epochs) == best


UNWEIGHTED = {"params": (5.0, 5.0), "weighting": "none", "polish": True}
"""Settings of a model that gives as much weight to noise as to causes, so that there is much to learn."""


@pytest.fixture(scope="module")
def polished():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_polish, "EPOCHS", 10)
        return AWCCA(**UNWEIGHTED).fit(*make_graded_pairs(1, 600), validation=make_graded_pairs(2, 300))


@pytest.fixture(scope="module")
def plain():
    return AWCCA(**UNWEIGHTED | {"polish": False}).fit(*make_graded_pairs(1, 600))


def test_it_repairs_a_weighting_that_is_wrong(polished, plain):
    unseen = make_graded_pairs(3, 400)
    for task in TASKS:
        assert polished.models_[task].polish is not None
        assert polished.score(*unseen, task=task) > plain.score(*unseen, task=task) + 3


def test_a_polish_that_does_not_help_is_left_out(rng):
    x, y = rng.normal(size=(60, 6)), rng.normal(size=(60, 5))  # nothing to learn
    plain, polished = (
        AWCCA(params=(1.0, 1.0), polish=polish, metric=lambda ranks: 0.0).fit(x, y, validation=(x, y))
        for polish in (False, True)
    )
    for task in TASKS:
        assert polished.models_[task].polish is None
        assert_close(polished.transform(x, task=task), plain.transform(x, task=task), 60)


def test_vectors_are_those_of_the_maps(polished):
    x, y, _ = make_graded_pairs(3, 50)
    for task in TASKS:
        for_x, for_y = maps(polished.models_[task], "none", task)
        vectors = polished.transform(x, y, task=task)
        assert_close(vectors[0], (x - polished.x_mean_) @ for_x, 60, condition=10)
        assert_close(vectors[1], (y - polished.y_mean_) @ for_y, 60, condition=10)


def test_held_out_pairs_count_the_epochs_and_all_pairs_are_learned_from(monkeypatch):
    monkeypatch.setattr(_polish, "EPOCHS", 8)
    training, unseen = make_graded_pairs(1, 500), make_graded_pairs(3, 400)
    plain, polished = (AWCCA(**UNWEIGHTED | {"polish": polish}).fit(*training) for polish in (False, True))
    assert polished.models_["search"].polish is not None
    assert polished.score(*unseen, task="search") > plain.score(*unseen, task="search") + 3


def test_a_refit_on_the_same_moments_is_the_same_model(polished):
    moments = Moments.of(*make_graded_pairs(1, 600))
    again = copy.copy(polished)
    again.refit_moments(moments, moments.count)
    x, y, _ = make_graded_pairs(3, 50)
    for task in TASKS:
        before, after = (
            one @ two.T for one, two in (model.transform(x, y, task=task) for model in (polished, again))
        )
        # The matrices are float32.
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-4 * abs(before).max())


def test_a_refit_with_more_pairs_keeps_what_was_learned(polished, plain):
    training, more, unseen = (make_graded_pairs(seed, n) for seed, n in ((1, 600), (4, 600), (3, 400)))
    moments = Moments.of(*training)
    refitted = [copy.copy(polished), copy.copy(plain)]
    for model in refitted:
        model.refit_moments(moments + Moments.of(*more), moments.count)
    scores = [model.score(*unseen, task="search") for model in refitted]
    assert scores[0] > scores[1] + 3


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 6))
def test_carried_to_turned_components_it_gives_the_same_scores(seed, size):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(80, 8)), rng.normal(size=(80, 7))
    old = rng.normal(size=(8, size)), rng.normal(size=(7, size))
    turn = np.linalg.qr(rng.normal(size=(size, size)))[0]
    new = tuple(one @ turn for one in old)
    polish = Polish(*(np.eye(size) + 0.1 * rng.normal(size=(2, size, size))), epochs=3)
    carried = carry_polish(polish, Moments.of(x, y), new, old)
    before, after = (
        (x @ maps_of[0] @ own.x) @ (y @ maps_of[1] @ own.y).T
        for maps_of, own in ((old, polish), (new, carried))
    )
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-7 * abs(before).max())
    assert carried.epochs == 3


@pytest.mark.parametrize(
    ("settings", "fit", "message"),
    [
        ({"similarity": "l2"}, lambda model, x, y: model.fit(x, y), "similarity='cosine'"),
        ({"selection": "leave-one-out"}, lambda model, x, y: model.fit(x, y), "selection='validation'"),
        ({}, lambda model, x, y: model.fit([(x, y)], validation=(x, y)), "blocks do not allow"),
        ({}, lambda model, x, y: model.fit_moments(Moments.of(x, y)), "moments do not contain"),
    ],
)
def test_what_cannot_be_polished_is_refused(rng, settings, fit, message):
    with pytest.raises(InputError, match=message):
        fit(AWCCA(polish=True, **settings), rng.normal(size=(60, 6)), rng.normal(size=(60, 5)))


def test_of_very_many_pairs_a_sample_is_learned_from(monkeypatch):
    monkeypatch.setattr(_polish, "PAIRS", 100)
    rows = _polish.sample_pairs(np.arange(1000) // 5)
    assert len(np.unique(rows)) == 100
    assert (np.diff(rows) > 0).all()
    assert _polish.sample_pairs(np.arange(100)) is None
    drawn = []
    learn = _polish.polish_vectors
    monkeypatch.setattr(
        "diptych.cca._polish.polish_vectors", lambda *pairs: drawn.append(pairs) or learn(*pairs)
    )
    AWCCA(**UNWEIGHTED).fit(*make_graded_pairs(1, 200), validation=make_graded_pairs(2, 50))
    for x, y, pairing, _ in drawn:
        assert len(y) == len(pairing) == 100
        assert len(x) == len(np.unique(pairing))


def test_on_a_torch_device_it_is_the_same(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.setattr(_polish, "EPOCHS", 3)
    training, validation, unseen = (make_graded_pairs(seed, n) for seed, n in ((1, 250), (2, 100), (3, 400)))
    here, there = (
        AWCCA(**UNWEIGHTED).fit(*training, validation=validation, device=device) for device in (None, "cpu")
    )
    for task in TASKS:
        assert isinstance(there.models_[task].polish.x, np.ndarray)
        assert abs(there.score(*unseen, task=task) - here.score(*unseen, task=task)) < 2


@pytest.mark.data
@pytest.mark.slow
def test_dinov2_and_minilm(real_data):
    """On validation, 3,000 training images: about two points in r@1 for search."""
    x = np.load(real_data / "flickr8k" / "dinov2s.npy")[:7000].astype(np.float32)
    x = np.hstack([half / np.linalg.norm(half, axis=1, keepdims=True) for half in np.split(x, 2, axis=1)])
    y = np.load(real_data / "flickr8k" / "minilm.npy")[:35000].astype(np.float32)
    pairing = np.arange(len(y)) // 5
    held_out = x[6000:6500], y[30000:32500], pairing[:2500]
    options = {"grid": 3, "precision": "float32", "normalize": ("none", "unit"), "metric": "mean_recall"}
    training = x[:3000], y[:15000], pairing[:15000]
    plain, polished = (
        AWCCA(**options, polish=polish).fit(*training, validation=held_out) for polish in (False, True)
    )
    for task, gain in (("search", 1.0), ("annotate", 0.5)):
        assert polished.models_[task].polish is not None
        assert polished.score(*held_out, task=task) > plain.score(*held_out, task=task) + gain
