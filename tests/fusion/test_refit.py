"""The moments of all blocks, what parts take of them, and a fusion fitted again from them."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.cca import Moments, spectra_from_moments
from diptych.fusion import Block, Fusion, Part
from diptych.fusion._blocks import JointMoments, apply_geometry, sum_pairs
from diptych.fusion._fitting import _draw_bank
from diptych.fusion._members import embed_members, joint_widths, refit_member
from generated_pairs import make_dual_features, make_fused_blocks
from tolerance import assert_close


@st.composite
def parts(draw):
    names = [draw(st.permutations(view)) for view in ("ab", "cd")]
    x, y = (tuple(own[: draw(st.integers(1, len(own)))]) for own in names)
    return Part(x, y)


@given(seed=st.integers(0, 1000), part=parts())
def test_a_part_takes_from_the_joint_moments_what_its_own_pass_gives(seed, part):
    pairs = make_fused_blocks(seed, 60)
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
    joint = sum_pairs(make_fused_blocks(0, 60), "float64")[0]
    first, second = (Part(("a", "b"), y).spectra(joint) for y in (("c",), ("d",)))
    assert first.v_x is second.v_x
    assert Part(("b",), ("c",)).spectra(joint).v_y is first.v_y


TASKS = ("search", "annotate")


def score(model, pairs, task):
    x, y = model.transform(*pairs[:2], task=task)
    return x @ y.T


@pytest.fixture(scope="module")
def fitted():
    return Fusion(grid=5, bank=150, n_components=4).fit(
        *make_fused_blocks(0, 120), validation=make_fused_blocks(1, 60)
    )


def test_on_the_same_moments_it_is_the_same_model(fitted):
    again = copy.copy(fitted).refit_moments(fitted.moments_, fitted.moments_.count)
    unseen = make_fused_blocks(2, 50)
    for task in TASKS:
        assert_close(score(again, unseen, task), score(fitted, unseen, task), 200, condition=50.0)
        assert [m.params for m in again.members_[task]] == [m.params for m in fitted.members_[task]]
        assert len(again.hubness_[task].bank) == len(fitted.hubness_[task].bank) > 0
    assert again.members_ is not fitted.members_


@pytest.mark.parametrize("weighting", ["asymmetric", "residual"])
@pytest.mark.parametrize("n_components", [4, 512, "all"])
def test_queries_far_from_the_training_queries_keep_their_scores(n_components, weighting, tmp_path):
    model = Fusion(
        grid=5,
        bank=150,
        n_components=n_components,
        weightings=(weighting,),
        hubness=("csls",),
        polish=False,
        refit=False,
    ).fit(*make_fused_blocks(0, 120), validation=make_fused_blocks(1, 60))
    rng = np.random.default_rng(0)
    unseen = [
        {name: block + 0.2 * block.std() * rng.normal(size=block.shape) for name, block in view.items()}
        for view in make_fused_blocks(2, 200)[:2]
    ]
    model.save(tmp_path / "model")
    for again in (copy.copy(model), Fusion.load(tmp_path / "model")):
        again.refit_moments(model.moments_, model.moments_.count)
        for task in TASKS:
            shares = model.queries(unseen[1 if task == "search" else 0], task)[:, -1]
            assert np.sum((shares > 0.05) & (shares < 0.95)) > 10  # the gate is half open for these
            assert_close(score(again, unseen, task), score(model, unseen, task), 200, condition=50.0)


def test_its_moments_are_those_of_all_pairs_that_it_was_fitted_on(fitted):
    own = fitted.make_moments(*make_fused_blocks(0, 120)) + fitted.make_moments(*make_fused_blocks(1, 60))
    assert own.count == fitted.moments_.count == 360
    assert_close(own.xx, fitted.moments_.xx, 360, dtype=np.float32)
    assert_close(own.xy, fitted.moments_.xy, 360, dtype=np.float32)
    assert fitted.moment_widths() == {"x": 22, "y": 21}


@given(seed=st.integers(10, 1000), more=st.integers(20, 200))
def test_with_added_pairs_every_member_is_that_of_all_pairs(fitted, seed, more):
    added = make_fused_blocks(seed, more)
    before = fitted.moments_.count
    again = copy.copy(fitted).refit_moments(fitted.moments_ + fitted.make_moments(*added), before)
    assert again.moments_.count == before + 2 * more
    everything = [make_fused_blocks(0, 120), make_fused_blocks(1, 60), added]
    offsets = np.cumsum([0, 120, 60])
    whole = tuple(
        {k: np.concatenate([p[i][k] for p in everything]) for k in everything[0][i]} for i in (0, 1)
    )
    pairing = np.concatenate([p[2] + offset for p, offset in zip(everything, offsets, strict=True)])
    joint = JointMoments(
        fitted.make_moments(*whole, pairing), joint_widths(fitted.geometry_, fitted.members_)
    )
    for task in TASKS:
        for old, new in zip(fitted.members_[task], again.members_[task], strict=True):
            factor = (before + 2 * more) / before
            direct = refit_member(old, task, joint, factor)
            assert new.params == pytest.approx(tuple(g * factor for g in old.params))
            assert (new.use, new.weight, new.part) == (old.use, old.weight, old.part)
            # Components may have another sign; the products of both maps have not.
            products = [m.linear.x_map @ m.linear.y_map.T for m in (direct, new)]
            assert_close(*products, 1000, condition=100.0)


def test_the_bank_is_carried_over(fitted):
    training, added = make_fused_blocks(0, 120), make_fused_blocks(5, 120)
    again = copy.copy(fitted).refit_moments(
        fitted.moments_ + fitted.make_moments(*added), fitted.moments_.count
    )
    for task, view in (("search", "y"), ("annotate", "x")):
        blocks = apply_geometry(fitted.geometry_[view], training[1 if view == "y" else 0])
        true = embed_members(
            again.members_[task],
            _draw_bank(fitted._settings(), task, (blocks, blocks, None)),
            view,
        )
        stale = fitted.hubness_[task].bank
        carried = again.hubness_[task].bank
        n = len(again.members_[task])
        assert np.mean(np.sum(carried * true, axis=1)) / n > 0.97
        assert np.mean(np.sum(carried * true, axis=1)) > np.mean(np.sum(stale * true, axis=1))


def test_identity_members_take_their_means_from_moments():
    x, y = make_dual_features(300, seed=3)
    part = Part(("x",), ("y",), kind="identity")
    model = Fusion(parts=[part], blocks={"x": Block("none"), "y": Block("unit")}).fit(x, y)
    assert model.moment_widths() == {"x": 2 * x.shape[1], "y": 2 * y.shape[1]}
    more = make_dual_features(200, seed=4)
    before = model.moments_.count
    again = copy.copy(model).refit_moments(model.moments_ + model.make_moments(*more), before)
    for task in TASKS:
        (member,) = again.members_[task]
        rows = np.concatenate([x, more[0]])
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        expected = unit.mean(axis=0) if member.use.weighting == "centred identity" else 0 * unit[0]
        assert_close(member.linear.x_mean, expected, 500, dtype=np.float32, magnitude=1.0)


def test_what_cannot_be_refitted_is_refused(fitted):
    wrong = fitted.moments_.take(range(3), range(4))
    with pytest.raises(InputError, match="3 and 4 columns, but this fusion has 22 and 21"):
        copy.copy(fitted).refit_moments(wrong, 10)
    with pytest.raises(InputError, match="count=0"):
        copy.copy(fitted).refit_moments(fitted.moments_, 0)
