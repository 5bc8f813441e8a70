"""Metrics of ranks against other libraries, and their intervals."""

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, ndcg_score

from diptych import InputError, retrieval_scores
from diptych.ranking import bootstrap_intervals, map_at_r, mean_reciprocal_rank, ndcg_at_k, pair_ranks
from diptych.ranking._metrics import METRICS
from tolerance import assert_close


@pytest.fixture
def problem(rng):
    """Vectors of 40 images, of which some have no caption and others up to six; no two scores are equal."""
    pairing = np.sort(rng.integers(0, 40, 90))
    x = rng.normal(size=(40, 8))
    return x, x[pairing] + rng.normal(size=(90, 8)), pairing


def score_lists(problem, task):
    """Return for each query the cosines of all items, and which are right."""
    x, y, pairing = problem
    x, y = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y))
    if task == "search":
        return y @ x.T, pairing[:, None] == np.arange(len(x))
    described = np.unique(pairing)
    return x[described] @ y.T, described[:, None] == pairing


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_metrics_are_those_of_scikit_learn(problem, task, backend):
    scores, right = score_lists(problem, task)
    found = retrieval_scores(*map(backend, problem), task=task)
    assert tuple(found) == METRICS
    assert_close(found["ndcg@10"] / 100, ndcg_score(right, scores, k=10), 50, dtype=np.float64, magnitude=1)
    # Average precision over the first R items alone, with the other right items missing from the list.
    precision, reciprocal = [], []
    for values, own in zip(scores, right, strict=True):
        order = np.argsort(-values)
        reciprocal.append(1 / (1 + np.flatnonzero(own[order])[0]))
        top = own[order][: own.sum()]
        share = average_precision_score(top, -np.arange(len(top))) if top.any() else 0
        precision.append(share * top.sum() / own.sum())
    assert_close(found["map@r"] / 100, np.mean(precision), 50, dtype=np.float64, magnitude=1)
    assert_close(found["mrr"] / 100, np.mean(reciprocal), 50, dtype=np.float64, magnitude=1)
    if task == "search":
        assert found["map@r"] == pytest.approx(found["r@1"])


def test_the_order_of_pairs_does_not_matter(problem, rng):
    places = pair_ranks(*problem, task="annotate")
    order = rng.permutation(len(places))
    for function in (ndcg_at_k, map_at_r):
        one, other = function(places, problem[2]), function(places[order], problem[2][order])
        assert_close(one, other, 50, dtype=np.float64, magnitude=100)


def test_items_beyond_k_gain_nothing():
    assert ndcg_at_k(np.array([11, 12])) == 0.0
    assert ndcg_at_k(np.array([2]), k=1) == 0.0
    # Of 12 right items ten can be among the first ten.
    assert ndcg_at_k(np.arange(1, 13), np.zeros(12, int)) == pytest.approx(100.0)


def resample_by_hand(places, queries, units, n_resamples, random_state):
    """Compute every metric again for each resample, from the places of all its queries."""
    rng = np.random.default_rng(random_state)
    names = np.unique(units)
    samples = []
    for _ in range(n_resamples):
        drawn = names[rng.integers(len(names), size=len(names))]
        rows = [np.flatnonzero(units == unit) for unit in drawn]
        own = np.concatenate(rows)
        # A unit that is drawn twice has its queries twice.
        again = np.concatenate([queries[row] + (queries.max() + 1) * at for at, row in enumerate(rows)])
        first = np.array([places[own][again == query].min() for query in np.unique(again)])
        samples.append(
            {
                **{f"r@{k}": 100 * np.mean(first <= k) for k in (1, 5, 10)},
                "median_rank": int(np.median(first - 1)) + 1,
                "mean_rank": np.mean(first),
                "mrr": mean_reciprocal_rank(first),
                "ndcg@10": ndcg_at_k(places[own], again),
                "map@r": map_at_r(places[own], again),
            }
        )
    return {name: np.quantile([s[name] for s in samples], [0.05, 0.95]) for name in METRICS}


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_intervals_are_those_of_metrics_computed_again(problem, task):
    pairing = problem[2]
    places = pair_ranks(*problem, task=task)
    queries = pairing if task == "annotate" else np.arange(len(pairing))
    found = bootstrap_intervals(places, queries, pairing, n_resamples=60, confidence=0.9, random_state=3)
    expected = resample_by_hand(places, queries, pairing, 60, 3)
    for name, limits in found.items():
        assert_close(limits, expected[name], 200, dtype=np.float64, magnitude=100)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ndcg_at_k(np.array([1]), k=0), "k"),
        (lambda: ndcg_at_k(np.array([1, 2]), np.array([0])), "1 queries for 2 places"),
        (lambda: map_at_r(np.array([], int)), "no ranks"),
        (lambda: bootstrap_intervals(np.array([1]), confidence=1.0), "confidence=1.0"),
        (lambda: bootstrap_intervals(np.array([1]), n_resamples=0), "n_resamples"),
        (lambda: bootstrap_intervals(np.array([1]), random_state="x"), "random_state"),
    ],
)
def test_wrong_input_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()
