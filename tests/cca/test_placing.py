"""Items with partners: where a projector places them, against the same by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA
from diptych.cca._correction import Correction, Hubness
from diptych.cca._projector import place_between
from tolerance import assert_close

TASKS = ("search", "annotate")

draws = st.integers(0, 10_000)
sizes = st.integers(1, 6)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def draw(seed, n_items, n_partners, width=5):
    """Items, partners, and whose partners they are; some items may have none."""
    rng = np.random.default_rng(seed)
    items, partners = (rng.normal(size=(n, width)).astype(np.float32) for n in (n_items, n_partners))
    return items, partners, rng.integers(0, n_items, n_partners)


def place_by_hand(items, partners, pairing):
    rows = []
    for at, item in enumerate(np.asarray(items, np.float64)):
        its = unit(np.asarray(partners, np.float64)[pairing == at])
        rows.append(3 * unit(item) + len(its) * unit(its.mean(axis=0)) if len(its) else item)
    return np.array(rows)


@given(seed=draws, n_items=sizes, n_partners=sizes)
def test_an_item_lies_between_itself_and_the_mean_of_its_partners(seed, n_items, n_partners):
    items, partners, pairing = draw(seed, n_items, n_partners)
    placed = place_between(items, partners, pairing)
    # A mean of directions that nearly cancel each other has a direction that is mostly rounding.
    assert_close(placed, place_by_hand(items, partners, pairing), 8, condition=100)
    alone = np.setdiff1d(np.arange(n_items), pairing)
    np.testing.assert_array_equal(placed[alone], items[alone])


@given(seed=draws, item_scale=st.floats(1e-6, 1e6), scales=st.integers(0, 10_000))
def test_lengths_and_order_of_partners_do_not_count(seed, item_scale, scales):
    items, partners, pairing = draw(seed, 4, 9)
    rng, expected = np.random.default_rng(scales), place_between(items, partners, pairing)
    longer = (partners * 10 ** rng.uniform(-6, 6, (9, 1))).astype(np.float32)
    assert_close(place_between(items, longer, pairing), expected, 8, condition=100)
    order = rng.permutation(9)
    assert_close(place_between(items, partners[order], pairing[order]), expected, 8, condition=100)
    scaled = place_between(items * np.float32(item_scale), partners, pairing)
    assert_close(unit(scaled), unit(expected), 8, condition=100)


@given(seed=draws, count=sizes)
def test_partners_in_its_own_direction_leave_an_item_there(seed, count):
    items, _, _ = draw(seed, 3, 1)
    pairing = np.repeat(np.arange(3), count)
    assert_close(unit(place_between(items, 7 * items[pairing], pairing)), unit(items), 8)


@given(seed=draws)
def test_partners_draw_an_item_to_a_query_like_them(seed):
    items, partners, pairing = draw(seed, 5, 5)
    pairing = np.arange(5)
    before, after = (
        np.sum(unit(rows) * unit(partners), axis=1)
        for rows in (items, place_between(items, partners, pairing))
    )
    assert np.all(after >= before - 1e-6)
    # Three times the item and once the partner.
    assert_close(after, (3 * before + 1) / np.sqrt(10 + 6 * before), 8, condition=100)


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(80, 3))
    x, y = (
        hidden @ rng.normal(size=(3, width)) + rng.normal(size=(80, width)) + rng.normal(size=width)
        for width in (8, 6)
    )
    return x, y, [AWCCA(params=params).fit(x, y) for params in ((2.0, 3.0), (50.0, 0.1))]


def embed(model, task, x, y):
    """The vectors of both views by the estimator, the searched one first."""
    u, v = model.transform(x, y, task=task)
    return (u, v) if task == "search" else (v, u)


@pytest.mark.parametrize("task", TASKS)
def test_each_weighted_part_is_placed_by_itself(drawn, task):
    x, y, models = drawn
    (first,), (second,) = (model.projector(task).parts for model in models)
    parts = (replace(first, weight=0.7), replace(second, weight=1.6))
    projector = replace(models[0].projector(task), parts=parts)
    pairing = np.array([0, 0, 0, 2, 5, 5])
    items, partners = (x[:7], y[10:16]) if task == "search" else (y[:7], x[10:16])
    expected = []
    for model, weight in zip(models, (0.7, 1.6), strict=True):
        u = embed(model, task, x[:7], y[:7])[0]
        v = embed(model, task, x[10:16], y[10:16])[1]
        expected.append(weight * unit(place_by_hand(u, v, pairing)))
    vectors = projector.items(items, partners, pairing)
    assert_close(vectors, np.hstack(expected), 30, dtype=np.float32, condition=10)
    assert np.abs(projector.items(items) - vectors)[[0, 2, 5]].max(axis=1).min() > 0.01

    bank = unit(np.random.default_rng(1).normal(size=(30, vectors.shape[1]))).astype(np.float32)
    correction = Correction("csls", strength=0.4, neighbours=5)
    corrected = replace(projector, hubness=Hubness(correction, bank)).items(items, partners, pairing)
    assert_close(corrected[:, :-1], vectors, 30)
    nearest = np.sort(np.hstack(expected) @ bank.T, axis=1)[:, -5:]
    assert_close(corrected[:, -1], -0.4 * nearest.mean(axis=1), 30, dtype=np.float32, condition=10)


@pytest.mark.parametrize("task", TASKS)
def test_partners_change_nothing_with_l2(drawn, task):
    x, y, _ = drawn
    projector = AWCCA(params=(2.0, 3.0), similarity="l2").fit(x, y).projector(task)
    items, partners = (x, y) if task == "search" else (y, x)
    np.testing.assert_array_equal(projector.items(items, partners), projector.items(items))
