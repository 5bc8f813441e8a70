"""The moments of all blocks side by side, and what parts take of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diptych.cca import Moments, spectra_from_moments
from diptych.fusion import Part
from diptych.fusion._blocks import sum_pairs
from tolerance import assert_close


def make_blocks(seed, n=60):
    rng = np.random.default_rng(seed)
    pairing = rng.permutation(np.repeat(np.arange(n), 2))
    x = {"a": rng.normal(size=(n, 5)) + 3, "b": 0.1 * rng.normal(size=(n, 3))}
    joined = np.concatenate(list(x.values()), axis=1)[pairing]
    y = {
        "c": joined @ rng.normal(size=(8, 4)) + rng.normal(size=(2 * n, 4)),
        "d": rng.normal(size=(2 * n, 2)),
        "e": joined @ rng.normal(size=(8, 6)) + rng.normal(size=(2 * n, 6)),
    }
    return x, y, pairing


@st.composite
def parts(draw):
    names = [draw(st.permutations(view)) for view in ("ab", "cde")]
    x, y = (tuple(own[: draw(st.integers(1, len(own)))]) for own in names)
    scales = [tuple(draw(st.sampled_from([0.25, 1.0, 3.0])) for _ in own) for own in (x, y)]
    return Part(x, y, *scales)


@given(seed=st.integers(0, 1000), part=parts())
def test_a_part_takes_from_the_joint_moments_what_its_own_pass_gives(seed, part):
    pairs = make_blocks(seed)
    own = Moments.of(*part.views(pairs), pairs[2])
    joint, kept = sum_pairs(pairs, "float64")
    for view, its in zip(pairs[:2], kept[:2], strict=True):
        assert all(np.array_equal(view[name], its[name]) for name in view)
    taken = joint.take(part.columns("x"), part.columns("y"))
    assert taken.count == own.count
    for name in ("x_mean", "y_mean", "xx", "yy", "xy"):
        assert_close(getattr(taken, name), getattr(own, name), len(pairs[2]), condition=100.0)
    mine, its = part.spectra(joint), spectra_from_moments(own)
    assert mine.ranks == its.ranks
    assert_close(mine.s_x, its.s_x, len(pairs[2]), condition=100.0)
    # Singular vectors have any sign: compare what the signs leave.
    back = [s.v_x @ s.t0 @ s.v_y.T for s in (mine, its)]
    assert_close(*back, len(pairs[2]), condition=100.0)


def test_parts_that_see_the_same_columns_share_a_decomposition():
    joint = sum_pairs(make_blocks(0), "float64")[0]
    first, second = (Part(("a", "b"), y).spectra(joint) for y in (("c",), ("d", "e")))
    assert first.v_x is second.v_x
    assert Part(("a", "b"), ("c",), (1.0, 2.0)).spectra(joint).v_x is not first.v_x
    assert Part(("b",), ("c",)).spectra(joint).v_y is first.v_y
