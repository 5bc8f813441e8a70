"""Weights of pairs: 2 is the same as the pair twice, 0 as without it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych._arrays import to_numpy
from diptych.cca import Moments, moments_from_spectra, spectra
from diptych.cca._streaming import ArrayBlocks, Checkpoint, Preparation, sum_blocks
from diptych.cca.selection._grids import hold_out
from engines import InTree
from generated_pairs import make_pairs
from tolerance import assert_close

PARTS = ("x_mean", "y_mean", "xx", "yy", "xy")


def make_weighted(seed, n=40, m_x=6, m_y=5):
    rng = np.random.default_rng(seed)
    (x, y, pairing), _ = make_pairs(seed, n=n, m_x=m_x, m_y=m_y)
    return x + 2.0, y, pairing, rng.integers(0, 4, len(y))


def repeat(x, y, pairing, weights):
    return x, np.repeat(y, weights, axis=0), np.repeat(pairing, weights)


def assert_same_moments(result, expected, dtype=np.float64, condition=1.0):
    assert result.total == pytest.approx(expected.total)
    for name in PARTS:
        terms = 4 * int(expected.total)
        mine, its = (to_numpy(getattr(own, name)) for own in (result, expected))
        scale = max(1.0, np.abs(its).max(), float(expected.total))
        assert_close(mine, its, terms, dtype=dtype, magnitude=scale, condition=condition)


@given(
    st.integers(0, 2**32 - 1), st.sampled_from([100, 3000, 10**7]), st.sampled_from(["float64", "float32"])
)
def test_a_whole_weight_is_a_repeated_pair(seed, block_bytes, precision):
    x, y, pairing, weights = make_weighted(seed)
    result = Moments.of(x, y, pairing, sample_weight=weights, block_bytes=block_bytes, precision=precision)
    assert result.count == np.count_nonzero(weights)
    expected = Moments.of(*repeat(x, y, pairing, weights))
    assert_same_moments(result, expected, np.dtype(precision), condition=10)


@pytest.mark.parametrize("shape", [(6, 5), (60, 5), (6, 300), (60, 300)])
@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_spectra_with_weights_are_those_of_repeated_pairs(backend, shape, solver):
    x, y, pairing, weights = make_weighted(1, m_x=shape[0], m_y=shape[1])
    result = spectra(
        *(backend(array) for array in (x, y, pairing)), solver=solver, sample_weight=backend(weights)
    )
    expected = spectra(*repeat(x, y, pairing, weights), solver=solver)
    assert result.ranks == expected.ranks
    assert type(result.t0) is type(backend(x))
    assert_same_moments(moments_from_spectra(result), moments_from_spectra(expected), condition=100)


def test_weights_of_zero_leave_pairs_out_of_the_selection_too():
    x, y, pairing, _ = make_weighted(2, n=160)
    kept = pairing % 5 != 1
    left = AWCCA(grid=5).fit(x, y[kept], pairing[kept])
    weighted = AWCCA(grid=5).fit(x, y, pairing, sample_weight=kept.astype(float))
    assert weighted.path_.choice == left.path_.choice
    assert weighted.path_.held_out == left.path_.held_out
    assert_close(weighted.transform(x), left.transform(x), len(y), condition=1000)


def test_scaling_all_weights_scales_the_selected_gamma_and_nothing_else():
    (x, y, pairing), held = make_pairs(3, n=200)
    plain = AWCCA(grid=5).fit(x, y, pairing)
    scaled = AWCCA(grid=5).fit(x, y, pairing, sample_weight=np.full(len(y), 3.0))
    assert scaled.path_.choice == plain.path_.choice
    for task in ("search", "annotate"):
        ours, its = scaled.models_[task], plain.models_[task]
        np.testing.assert_allclose(ours.filter_x.gamma, 3.0 * its.filter_x.gamma)
        np.testing.assert_allclose(ours.correlations, its.correlations, atol=1e-9)
    assert scaled.score(*held) == pytest.approx(plain.score(*held))


@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_the_refit_after_the_selection_has_all_weights(rng, solver):
    x, y, pairing, _ = make_weighted(4, n=120)
    weights = rng.exponential(size=len(y))
    model = AWCCA(grid=4, solver=solver).fit(x, y, pairing, sample_weight=weights)
    expected = spectra(x, y, pairing, solver=solver, sample_weight=weights)
    assert model.spectra_.total == pytest.approx(weights.sum())
    assert model.spectra_.count == len(y)
    assert_same_moments(moments_from_spectra(model.spectra_), moments_from_spectra(expected), condition=100)
    train, _ = hold_out(pairing, len(x), model.validation_fraction, model.random_state)
    grown = weights.sum() / weights[train.y].sum()
    assert model.models_["search"].filter_x.gamma == pytest.approx(grown * model.path_.params("search")[0])
    unweighted = AWCCA(grid=4, solver=solver).fit(x, y, pairing)
    assert not np.allclose(model.spectra_.s_x, unweighted.spectra_.s_x, rtol=1e-3)


def test_weights_on_a_device_are_those_in_memory(rng):
    pytest.importorskip("torch")
    x, y, pairing, _ = make_weighted(5, n=120)
    weights = rng.exponential(size=len(y))
    here = AWCCA(grid=4).fit(x, y, pairing, sample_weight=weights)
    for solver in ("gram", "svd"):
        there = AWCCA(grid=4, solver=solver).fit(x, y, pairing, sample_weight=weights, device="cpu")
        assert there.path_.choice == here.path_.choice
        assert_close(there.transform(x), here.transform(x), len(y), condition=1e4)


def test_blocks_have_weights_of_their_own(rng):
    x, y, pairing, _ = make_weighted(6)
    weights = rng.exponential(size=len(y))
    whole = AWCCA(params=(1.0, 1.0), solver="gram").fit(x, y, pairing, sample_weight=weights)
    first = pairing < 10
    blocks = [
        (x[:10], y[first], pairing[first], weights[first]),
        (x, y[:3], None if len(x) == 3 else pairing[:3], np.zeros(3)),
        (x[10:], y[~first], pairing[~first] - 10, weights[~first]),
    ]
    parts = AWCCA(params=(1.0, 1.0)).fit(iter(blocks))
    assert_close(parts.transform(x), whole.transform(x), len(y), condition=100)
    with pytest.raises(InputError, match="their own sample_weight"):
        AWCCA(params=(1.0, 1.0)).fit(iter(blocks), sample_weight=weights)


def test_a_checkpoint_belongs_to_its_weights(rng, tmp_path):
    x, y, pairing, _ = make_weighted(7)
    weights = rng.exponential(size=len(y))

    def add_up(weights):
        blocks = ArrayBlocks(x, y, pairing, None, 1000, weights)
        checkpoint = Checkpoint(tmp_path / "sum", f"{blocks.fingerprint}", every=0.0)
        return sum_blocks(blocks, Preparation(), checkpoint=checkpoint)

    assert_same_moments(add_up(weights), Moments.of(x, y, pairing, sample_weight=weights), condition=10)
    other = weights.copy()
    other[5] += 1.0
    with pytest.raises(InputError, match="checkpoint of other data"):
        add_up(other)
    with pytest.raises(InputError, match="checkpoint of other data"):
        add_up(None)


def test_weights_survive_saving(rng, tmp_path):
    x, y, pairing, _ = make_weighted(8)
    weights = rng.exponential(size=len(y))
    moments = Moments.of(x, y, pairing, sample_weight=weights)
    moments.save(tmp_path / "moments")
    loaded = Moments.load(tmp_path / "moments")
    assert loaded.weight == moments.weight
    assert (loaded + loaded).total == 2 * moments.total
    assert (loaded + Moments.of(x, y, pairing)).total == moments.total + len(y)


@pytest.mark.parametrize("weight", ["nan", "-1", "inf", "many"])
def test_a_damaged_weight_is_refused(rng, tmp_path, weight):
    moments = Moments.of(rng.normal(size=(5, 2)), rng.normal(size=(5, 2)))
    moments.save(tmp_path / "moments", {"weight": weight})
    with pytest.raises(InputError, match="weight"):
        Moments.load(tmp_path / "moments")


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), "one weight for each row of Y"),
        (np.ones((40, 1)), "one weight for each row of Y"),
        (2.0, "one weight for each row of Y"),
        (np.full(40, -1.0), "negative"),
        (np.where(np.arange(40) == 3, np.nan, 1.0), "NaN"),
        (np.full(40, np.inf), "infinite"),
        (np.zeros(40), "zero"),
        (["a"] * 40, "not numbers"),
        (np.eye(1, 40)[0], "at least two"),
    ],
)
def test_wrong_weights_are_explained_in_one_sentence(rng, weights, message):
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    with pytest.raises(InputError, match=message) as error:
        AWCCA(params=(1.0, 1.0)).fit(x, y, sample_weight=weights)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("parameters", [{"polish": True}, {"selection": "leave-one-out"}])
def test_what_takes_no_weights_says_so(rng, parameters):
    x, y = rng.normal(size=(40, 3)), rng.normal(size=(40, 2))
    with pytest.raises(InputError, match="weight"):
        AWCCA(**parameters).fit(x, y, sample_weight=np.ones(40))


@pytest.mark.parametrize("kind", ["ledoit-wolf", "oas"])
@pytest.mark.parametrize("width", [4, 90])
def test_shrinkage_with_weights_is_that_of_repeated_rows(rng, kind, width):
    x, y = rng.normal(size=(60, width)) + 1.0, rng.normal(size=(60, 3))
    weights = rng.integers(0, 4, 60)
    result = AWCCA(selection=kind).fit(x, y, sample_weight=weights)
    rows = np.repeat(np.arange(60), weights)
    expected = AWCCA(selection=kind).fit(x[rows], y[rows])
    ours, its = (model.models_["search"] for model in (result, expected))
    assert ours.filter_x.gamma == pytest.approx(its.filter_x.gamma)
    assert ours.filter_y.gamma == pytest.approx(its.filter_y.gamma)
    assert_close(result.transform(x), expected.transform(x), 120, condition=1000)


def test_shrinkage_with_equal_weights_counts_an_image_once():
    (x, y, pairing), _ = make_pairs(9)
    plain = AWCCA(selection="ledoit-wolf").fit(x, y, pairing)
    weighted = AWCCA(selection="ledoit-wolf").fit(x, y, pairing, sample_weight=np.ones(len(y)))
    assert weighted.models_["search"].filter_x.gamma == pytest.approx(plain.models_["search"].filter_x.gamma)


def test_an_engine_sums_with_weights(rng):
    x, y, pairing, _ = make_weighted(10)
    weights = rng.exponential(size=len(y))
    here = AWCCA(params=(1.0, 1.0), solver="gram").fit(x, y, pairing, sample_weight=weights)
    there = AWCCA(params=(1.0, 1.0)).fit(x, y, pairing, sample_weight=weights, engine=InTree())
    assert_close(there.transform(x), here.transform(x), len(y), condition=100)
