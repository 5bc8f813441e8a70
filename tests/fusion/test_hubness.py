import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.cca._correction import Gate, Hubness, compute_offsets, csls_offsets, measure_distances
from diptych.fusion import Correction
from diptych.fusion._hubness import (
    MORE_NEIGHBOURS,
    NEIGHBOURS,
    STRENGTHS,
    STRONGER,
    Evaluator,
    PartScores,
    choose_correction,
    make_rates,
)


def draw_vectors(seed, d=6):
    """Return items, bank queries and queries of unit length."""
    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=(count, d)) for count in (30, 50, 20)]
    return [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in drawn]


@given(seed=st.integers(0, 10_000), k=st.integers(1, 60), strength=st.floats(0.0, 1.0))
def test_csls_is_an_inner_product_with_one_more_coordinate(seed, k, strength):
    items, bank, queries = draw_vectors(seed)
    offsets = compute_offsets(items, bank, Correction("csls", strength, k), block_bytes=2000)
    hubness = Hubness(Correction("csls", strength, k), bank)
    np.testing.assert_allclose(hubness.item_coordinates(items), -offsets, atol=1e-12)
    scores = queries @ items.T + np.outer(hubness.query_coordinates([queries]), -offsets)
    similar = np.sort(bank @ items.T, axis=0)[::-1][:k]
    np.testing.assert_allclose(scores, queries @ items.T - strength * similar.mean(axis=0), atol=1e-12)


def test_full_csls_has_the_strength_one_half():
    items, bank, queries = draw_vectors(0)
    csls = 2 * queries @ items.T - csls_offsets(items @ bank.T, [10])[0]
    half = queries @ items.T - compute_offsets(items, bank, Correction("csls", 0.5, 10))
    np.testing.assert_allclose(csls, 2 * half)


@pytest.mark.parametrize(
    "settings", [("magic", 1.0, 1.0), ("csls", -1.0, 10), ("csls", 1.0, 0), ("csls", float("nan"), 10),
                 ("inverted-softmax", 1.0, 10), ("csls", "a", 10), ("csls", 1.0, 2.5)]
)  # fmt: skip
def test_impossible_corrections_are_refused(settings):
    with pytest.raises(InputError):
        Correction(*settings)


def draw_pairs(seed, hubness, images=60, d=12):
    """Return items, queries and a bank of unit length; hubs have a share of the mean direction of queries."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=d)
    hubs = rng.gamma(1.0, hubness, size=(images, 1)) * mean
    items = rng.normal(size=(images, d))
    queries = np.repeat(items, 2, axis=0) + rng.normal(size=(2 * images, d)) + mean
    bank = rng.normal(size=(400, d)) * 1.4 + mean
    drawn = [each.astype(np.float32) for each in (items + hubs, queries, bank)]
    return [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in drawn]


@given(
    seed=st.integers(0, 10_000),
    hubness=st.sampled_from([0.0, 0.3, 1.0]),
    task=st.sampled_from(["search", "annotate"]),
)
def test_the_chosen_correction_is_the_best_of_the_grid(seed, hubness, task):
    images, texts, _ = draw_pairs(seed, hubness)
    bank = draw_pairs(seed + 1, hubness)[2 if task == "search" else 0]
    items, queries = (images, texts) if task == "search" else (texts, images)
    evaluator = Evaluator(task, np.arange(len(texts)) // 2, len(images), items.shape[1])
    scores = queries @ items.T
    correction, value, corrected = choose_correction(
        evaluator, PartScores(scores, items @ bank.T, np.ones(len(queries))), ("none", "csls")
    )
    offsets = compute_offsets(items, bank, correction)
    np.testing.assert_allclose(corrected, scores - offsets, atol=1e-6)
    assert value == evaluator.value(corrected) >= evaluator.value(scores)

    counts = [k for k in NEIGHBOURS + MORE_NEIGHBOURS if k <= len(bank)]
    values = {(0.0, 10): evaluator.value(scores)}
    for k, own in zip(counts, csls_offsets(items @ bank.T, counts), strict=True):
        for strength in STRENGTHS + STRONGER:
            values[strength, k] = evaluator.value(scores - (strength * own).astype(scores.dtype))
    assert values[correction.strength, correction.neighbours] == value
    usual = {(s, k): v for (s, k), v in values.items() if s not in STRONGER and k not in MORE_NEIGHBOURS}
    best = max(usual, key=usual.get)
    if best[0] == STRENGTHS[-1] or best[1] == NEIGHBOURS[-1]:
        usual |= {
            (s, k): v
            for (s, k), v in values.items()
            if (s not in STRONGER or best[0] == STRENGTHS[-1])
            and (k not in MORE_NEIGHBOURS or best[1] == NEIGHBOURS[-1])
        }
    assert value == max(usual.values())


def test_the_grid_goes_as_far_as_the_correction_helps():
    rng = np.random.default_rng(0)
    hubs = rng.normal(size=200).astype(np.float32)
    scores = rng.normal(size=(200, 200), scale=0.1).astype(np.float32) + np.eye(200, dtype=np.float32) / 2
    bank = rng.normal(size=(200, 400), scale=0.1).astype(np.float32)
    evaluator = Evaluator("search", np.arange(200), 200, 10)
    part = PartScores(scores + hubs, bank + hubs[:, None], np.ones(200))
    correction, value, _ = choose_correction(evaluator, part, ("none", "csls"))
    assert correction.strength in STRONGER
    assert value > 90.0 > evaluator.value(part.scores)


@pytest.mark.parametrize(("kinds", "kind"), [(("none",), "none"), (("csls",), "csls")])
def test_only_the_corrections_that_are_asked_for_are_tried(kinds, kind):
    images, texts, bank = draw_pairs(2, hubness=0.0)
    evaluator = Evaluator("search", np.arange(len(texts)) // 2, len(images), images.shape[1])
    chosen = choose_correction(evaluator, PartScores.of(texts, images, bank[:5]), kinds)[0]
    assert chosen.kind == kind
    if kind == "csls":
        assert chosen.neighbours == 5


@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([1e-12, 1.0, 1e12]),
    limits=st.tuples(st.floats(0.5, 2.0), st.floats(0.01, 3.0)),
)
def test_a_gate_closes_with_the_distance(seed, scale, limits):
    rng = np.random.default_rng(seed)
    spreads = np.float32(scale) * rng.uniform(0.01, 1.0, size=8).astype(np.float32)
    bank = rng.normal(size=(200, 8)).astype(np.float32) * spreads
    low, high = limits[0], limits[0] + limits[1]
    gate = Gate(make_rates(np.square(bank).mean(axis=0)), low, high)
    distances = measure_distances(bank, gate.rates)
    assert distances.mean() == pytest.approx(1.0, rel=1e-4)
    direct = np.mean(np.square(bank / np.sqrt(np.square(bank).mean(axis=0))), axis=1)
    np.testing.assert_allclose(distances, direct, rtol=1e-4)
    gates = gate.compute(bank)
    assert np.all(gates[distances <= low] == 1)
    assert np.all(gates[distances >= high] == 0)
    assert np.all((gates >= 0) & (gates <= 1))
    order = np.argsort(distances)
    assert np.all(np.diff(gates[order]) <= 0)
    assert np.all(gate.compute(np.float32(1.1) * bank) <= gates)


def test_a_gate_bears_any_query():
    squares = np.array([1.0, 0.0, 1e-30, 4.0])
    gate = Gate(make_rates(squares), 2.0, 3.0)
    queries = np.array([[0.0] * 4, [1.0, 0.0, 0.0, 2.0], [1e30] * 4, [0.0, 1.0, 0.0, 0.0]], dtype=np.float32)
    assert gate.compute(queries).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_models_have_a_say_in_the_distance_by_their_weight():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(50, 4)), 100 * rng.normal(size=(50, 30))
    rates = [
        make_rates(np.square(each).mean(axis=0), weight) for each, weight in ((first, 0.75), (second, 0.25))
    ]
    together = measure_distances(np.hstack([first, second]), np.concatenate(rates))
    alone = [measure_distances(e, make_rates(np.square(e).mean(axis=0))) for e in (first, second)]
    np.testing.assert_allclose(together, 0.75 * alone[0] + 0.25 * alone[1], rtol=1e-5)
    assert together.mean() == pytest.approx(1.0, rel=1e-5)
