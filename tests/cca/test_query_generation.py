"""Appendix A of the paper: query generation as log-odds, and the Gaussian model of the query."""

import numpy as np
from scipy.stats import multivariate_normal

from diptych.cca import Tikhonov, maps, regularized_cca, spectra


def normalised(table, axis):
    return table / table.sum(axis=axis, keepdims=True)


def make_joint(rng, n_queries=7, n_items=5, dependent=False):
    """P(q, s, r), with r = 1 first, under the two assumptions of the appendix or (dependent) without them."""
    item = normalised(rng.random(n_items), 0)
    related = normalised(rng.random((n_queries, n_items)) ** 3, 0)
    unrelated = np.repeat(normalised(rng.random((n_queries, 1)), 0), n_items, axis=1)
    relevant = np.full(n_items, 0.2)
    if dependent:
        unrelated = normalised(rng.random((n_queries, n_items)), 0)
        relevant = rng.uniform(0.1, 0.9, n_items)
    return np.stack([related * relevant * item, unrelated * (1 - relevant) * item])


def test_log_odds_are_search_generation_and_query_generation():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        for dependent in (False, True):
            joint = make_joint(rng, dependent=dependent)
            odds = np.log(joint[0] / joint[1])  # P(r = 1 | q, s) / P(r = 0 | q, s)
            search = np.log(normalised(joint, 2)[0] / normalised(joint, 2)[1])  # P(s | q, r)
            constant = np.log(joint.sum(axis=2)[0] / joint.sum(axis=2)[1])  # P(r | q)
            np.testing.assert_allclose(odds, search + constant[:, None], atol=1e-12)
            query = np.log(normalised(joint, 1))  # P(q | s, r)
            prior = np.log(joint.sum(axis=1)[0] / joint.sum(axis=1)[1])  # P(r | s)
            np.testing.assert_allclose(odds, query[0] - query[1] + prior, atol=1e-12)
            # What is left of the odds beside log P(q | s, r = 1) depends on the query alone, or not.
            rest = odds - query[0]
            assert np.allclose(rest, rest[:, :1], atol=1e-12) != dependent


def test_the_gaussian_model_of_the_query_is_most_likely_at_the_asymmetric_weights(rng):
    hidden = rng.normal(size=(200, 4))
    x, y = (hidden @ rng.normal(size=(4, width)) + rng.normal(size=(200, width)) for width in (9, 6))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    model = regularized_cca(spectra(x, y), Tikhonov(1e-9), Tikhonov(1e-9))
    item_map, query_map = maps(model, "asymmetric", "search")
    queries, variance = y @ query_map, 0.3

    def log_likelihood(weights):
        return multivariate_normal(cov=variance).logpdf((queries - x @ weights).ravel()).sum()

    best = log_likelihood(item_map)
    for _ in range(50):
        assert log_likelihood(item_map + 1e-3 * rng.normal(size=item_map.shape)) < best
    # The gradient of the likelihood is zero there.
    np.testing.assert_allclose(x.T @ (queries - x @ item_map), 0, atol=1e-6)
    # Items are ranked by their distance from the query.
    vectors = x @ item_map
    query = queries[0]
    density = [multivariate_normal(mean=vector, cov=variance).logpdf(query) for vector in vectors]
    order = np.argsort(np.linalg.norm(vectors - query, axis=1))
    np.testing.assert_array_equal(np.argsort(density)[::-1], order)
