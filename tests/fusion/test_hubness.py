import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych import InputError
from diptych.fusion import Correction
from diptych.fusion._hubness import append_offsets, append_ones, compute_offsets, csls_offsets


def draw_vectors(seed, d=6):
    """Return items, bank queries and queries of unit length."""
    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=(count, d)) for count in (30, 50, 20)]
    return [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in drawn]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), k=st.integers(1, 60), strength=st.floats(0.0, 1.0))
def test_csls_is_an_inner_product_with_one_more_coordinate(seed, k, strength):
    items, bank, queries = draw_vectors(seed)
    offsets = compute_offsets(items, bank, Correction("csls", strength, k), block_bytes=2000)
    vectors = append_ones(queries) @ append_offsets(items, offsets).T
    similar = np.sort(bank @ items.T, axis=0)[::-1][:k]
    np.testing.assert_allclose(vectors, queries @ items.T - strength * similar.mean(axis=0), atol=1e-12)


def test_full_csls_has_the_strength_one_half():
    items, bank, queries = draw_vectors(0)
    csls = 2 * queries @ items.T - csls_offsets(bank @ items.T, [10])[0]
    half = queries @ items.T - compute_offsets(items, bank, Correction("csls", 0.5, 10))
    np.testing.assert_allclose(csls, 2 * half)


def test_the_score_of_a_hub_falls():
    items, bank, queries = draw_vectors(1, d=30)
    items[0] = bank.mean(axis=0) / np.linalg.norm(bank.mean(axis=0))
    plain = (queries @ items.T)[:, 0]
    offsets = compute_offsets(items, bank, Correction("csls", 0.5, 10))
    assert offsets[0] > np.median(offsets)
    assert np.all((queries @ items.T - offsets)[:, 0] < plain)


@pytest.mark.parametrize(
    "settings", [("magic", 1.0, 1.0), ("csls", -1.0, 10), ("csls", 1.0, 0), ("csls", float("nan"), 10),
                 ("inverted-softmax", 1.0, 10), ("csls", "a", 10), ("csls", 1.0, 2.5)]
)  # fmt: skip
def test_impossible_corrections_are_refused(settings):
    with pytest.raises(InputError):
        Correction(*settings)
