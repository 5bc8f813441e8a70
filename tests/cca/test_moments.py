import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.cca import Moments
from diptych.cca._moments import paired_blocks

PARTS = ("x_mean", "y_mean", "xx", "yy", "xy")


def repeated(x, y, pairing):
    """The textbook: one row of X per pair, then plain centred products."""
    x = x[pairing].astype(np.float64)
    y = y.astype(np.float64)
    xc, yc = x - x.mean(0), y - y.mean(0)
    return x.mean(0), y.mean(0), xc.T @ xc, yc.T @ yc, xc.T @ yc


def assert_equal(moments, expected, tolerance):
    for name, value in zip(PARTS, expected, strict=True):
        result = to_numpy(getattr(moments, name))
        np.testing.assert_allclose(result, value, atol=tolerance * max(1.0, np.abs(value).max()), rtol=0)


def problem(rng, n_x=30, n_y=90, m_x=5, m_y=4):
    # Unequal groups, unsorted, and images without captions.
    pairing = rng.permutation(np.concatenate([np.zeros(7, int), rng.integers(0, n_x - 3, n_y - 7)]))
    return rng.normal(size=(n_x, m_x)), rng.normal(size=(n_y, m_y)), pairing


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
@pytest.mark.parametrize("block_bytes", [100, 2000, 10**7])
def test_moments_equal_those_of_repeated_images(rng, backend, precision, tolerance, block_bytes):
    x, y, pairing = problem(rng)
    result = Moments.of(
        backend(x), backend(y), backend(pairing), precision=precision, block_bytes=block_bytes
    )
    assert result.count == 90
    assert type(result.xx) is type(backend(x))
    assert_equal(result, repeated(x, y, pairing), tolerance)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 30), min_size=1, max_size=5), st.booleans())
def test_merging_in_any_order_equals_one_pass(seed, sizes, reverse):
    rng = np.random.default_rng(seed)
    x, y, pairing = problem(rng, n_y=sum(sizes) + 7)
    cuts = np.split(rng.permutation(len(y)), np.cumsum(sizes)[:-1])
    pieces = [Moments.zero(5, 4).update(x, y[c], pairing[c]) for c in cuts]
    total = Moments.zero(5, 4)
    for piece in reversed(pieces) if reverse else pieces:
        total = piece + total if reverse else total + piece
    assert total.count == len(y)
    assert_equal(total, repeated(x, y, pairing), 1e-10)


@given(st.integers(0, 2**32 - 1), st.integers(8, 2000))
def test_blocks_contain_every_pair_once(seed, block_bytes):
    rng = np.random.default_rng(seed)
    x, y, pairing = problem(rng)
    x, y = np.arange(30.0)[:, None], np.arange(90.0)[:, None]
    seen = []
    for bx, by, local, _ in paired_blocks(x, y, pairing, block_bytes):
        assert len(by) * 16 <= max(block_bytes, 16)
        assert len(np.unique(bx)) == len(bx)
        seen += list(zip(bx[local, 0].tolist(), by[:, 0].tolist(), strict=True))
    assert sorted(seen) == sorted(zip(pairing.astype(float).tolist(), y[:, 0].tolist(), strict=True))


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-3)])
def test_a_large_mean_keeps_its_covariance(rng, precision, tolerance):
    x = rng.normal(size=(4000, 3)) @ np.array([[1, 0.9, 0], [0, 0.1, 0], [0, 0, 1]]) + 1e4
    result = Moments.of(x, x[:, :2], precision=precision, block_bytes=4000)
    np.testing.assert_allclose(result.xx, np.cov(x.T) * 3999, atol=tolerance * 4000)
    np.testing.assert_allclose(result.x_mean, x.mean(0), rtol=1e-6)


def test_a_sum_has_the_weaker_precision_and_changes_neither_part(rng):
    x, y, pairing = problem(rng)
    parts = Moments.of(x, y, pairing), Moments.of(2 * x, y, pairing, precision="float32")
    before = [part.xx.copy() for part in parts]
    assert (parts[0] + parts[1]).precision == "float32"
    for part, xx in zip(parts, before, strict=True):
        np.testing.assert_array_equal(part.xx, xx)


def test_saved_moments_load_unchanged(rng, tmp_path, backend):
    x, y, pairing = problem(rng)
    saved = Moments.of(backend(x), backend(y), backend(pairing), precision="float32")
    saved.save(tmp_path / "m.safetensors")
    result = Moments.load(tmp_path / "m.safetensors")
    assert (result.count, result.precision) == (90, "float32")
    assert_equal(result, [to_numpy(getattr(saved, name)) for name in PARTS], 0.0)
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("damage", [lambda b: b[:40], lambda b: b"", lambda b: b"\xff" * 64 + b[64:]])
def test_a_damaged_file_is_refused(rng, tmp_path, damage):
    path = tmp_path / "m.safetensors"
    Moments.of(*problem(rng)).save(path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match="damaged|safetensors"):
        Moments.load(path)


def test_wrong_blocks_are_refused(rng):
    with pytest.raises(InputError, match="but the moments have"):
        Moments.zero(3, 2).update(np.eye(4), np.eye(4))
    with pytest.raises(InputError, match="'float64', 'float32'"):
        Moments.zero(3, 2, precision="float16")
