import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych import InputError
from diptych.fusion._hubness import (
    Correction,
    activated,
    corrected_items,
    corrected_queries,
    csls_offsets,
    gated,
    inverted_softmax_offsets,
    offsets,
)


def drawn(seed, n=30, bank=50, asked=20, d=6):
    rng = np.random.default_rng(seed)
    return [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in
            (rng.normal(size=(count, d)) for count in (n, bank, asked))]  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 60), strength=st.floats(0.0, 1.0))
def test_csls_by_one_added_coordinate(seed, k, strength):
    items, bank, asked = drawn(seed)
    taken = offsets(items, bank, Correction("csls", strength, k), block_bytes=2000)
    vectors = corrected_queries(asked) @ corrected_items(items, taken).T
    similar = np.sort(bank @ items.T, axis=0)[::-1][:k]
    np.testing.assert_allclose(vectors, asked @ items.T - strength * similar.mean(axis=0), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), beta=st.floats(0.5, 100.0))
def test_inverted_softmax_by_one_added_coordinate_ranks_as_the_division(seed, beta):
    items, bank, asked = drawn(seed)
    taken = offsets(items, bank, Correction("inverted-softmax", 1.0, beta), block_bytes=2000)
    vectors = corrected_queries(asked) @ corrected_items(items, taken).T
    direct = np.exp(beta * (asked @ items.T)) / np.exp(beta * (bank @ items.T)).mean(axis=0)
    np.testing.assert_allclose(np.exp(beta * vectors), direct, rtol=1e-9)


def test_full_csls_is_half_here():
    items, bank, asked = drawn(0)
    csls = 2 * asked @ items.T - csls_offsets(bank @ items.T, 10)
    half = asked @ items.T - offsets(items, bank, Correction("csls", 0.5, 10))
    np.testing.assert_allclose(csls, 2 * half)


def test_a_hub_is_pushed_back():
    items, bank, asked = drawn(1, d=30)
    items[0] = bank.mean(axis=0) / np.linalg.norm(bank.mean(axis=0))
    plain = (asked @ items.T)[:, 0]
    taken = offsets(items, bank, Correction("csls", 0.5, 10))
    assert taken[0] > np.median(taken)
    assert np.all((asked @ items.T - taken)[:, 0] < plain)


def test_large_similarities_do_not_overflow():
    assert np.all(np.isfinite(inverted_softmax_offsets(np.full((3, 2), 1e4, dtype=np.float32), 40.0)))


def test_the_dynamic_gate_corrects_only_queries_that_hit_an_active_item():
    similarities = np.array([[0.9, 0.1, 0.2], [0.8, 0.3, 0.1]])
    active = activated(similarities)
    np.testing.assert_array_equal(active, [True, False, False])
    scores = np.array([[0.9, 0.8, 0.1], [0.2, 0.7, 0.6]])
    off = np.array([0.5, 0.0, 0.0])
    np.testing.assert_allclose(gated(scores, off, active), [[0.4, 0.8, 0.1], [0.2, 0.7, 0.6]])
    assert np.all(activated(similarities, k=9))


@pytest.mark.parametrize(
    "given", [("magic", 1.0, 1.0), ("csls", -1.0, 10), ("csls", 1.0, 0), ("csls", float("nan"), 10),
              ("inverted-softmax", 1.0, 0.0), ("csls", "a", 10)]
)  # fmt: skip
def test_what_is_no_correction_is_refused(given):
    with pytest.raises(InputError):
        Correction(*given)
