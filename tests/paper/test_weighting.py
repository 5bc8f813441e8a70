"""Many weightings from one SVD give what the textbook gives for each."""

import numpy as np
import pytest

from diptych.cca import Tikhonov, TruncatedSVD, spectra
from diptych.cca.selection import Grid, make_problem, make_weights, textbook_ranks
from diptych.paper._setting import mean_captions
from diptych.paper._weighting import canonical_vectors, weighted_ranks
from diptych.ranking import ranks

PAIRS = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (3.0, 3.0), (0.3, 0.7))


@pytest.fixture
def pairs_of_views(rng):
    hidden = rng.normal(size=(90, 6))
    x = hidden @ rng.normal(size=(6, 14)) + rng.normal(size=(90, 14))
    pairing = np.repeat(np.arange(90), 3)[:-2]
    y = hidden[pairing] @ rng.normal(size=(6, 10)) + rng.normal(size=(len(pairing), 10))
    return x, y, pairing


@pytest.mark.parametrize("kind", ["tsvd", "tikhonov"])
def test_ranks_are_those_of_the_textbook(pairs_of_views, kind):
    x, y, pairing = pairs_of_views
    fitted = spectra(x, y, pairing)
    params = (9, 7) if kind == "tsvd" else (30.0, 12.0)
    filters = [TruncatedSVD(p) if kind == "tsvd" else Tikhonov(p) for p in params]
    ranked = weighted_ranks(*canonical_vectors(fitted, tuple(filters), x, y), pairing, PAIRS)
    problem = make_problem(fitted, (x, y, pairing))
    w_x, w_y = make_weights(
        problem, fitted, Grid(kind, np.array([float(params[0])]), np.array([float(params[1])]))
    )
    for which, expected in enumerate(textbook_ranks(problem, w_x.rows[0], w_y.rows[0], PAIRS)):
        for task in ("search", "annotate"):
            np.testing.assert_array_equal(ranked[task][which], expected[task])


def test_the_vector_of_a_pack_is_the_mean_of_its_vectors(pairs_of_views):
    x, y, pairing = pairs_of_views
    fitted = spectra(x, y, pairing)
    filters = Tikhonov(3.0), Tikhonov(5.0)
    _, v, _ = canonical_vectors(fitted, filters, x, y)
    images, packs = mean_captions(x, y, pairing)
    _, of_means, _ = canonical_vectors(fitted, filters, images, packs)
    by_hand = np.stack([v[pairing == i].mean(axis=0) for i in range(len(x))])
    np.testing.assert_allclose(of_means, by_hand, atol=1e-12)


def test_a_pack_is_the_only_right_answer_of_its_image(pairs_of_views):
    x, y, pairing = pairs_of_views
    images, packs = mean_captions(x, y, pairing)
    ranked = ranks(packs, packs, np.arange(len(packs)), task="annotate")
    assert len(ranked) == len(images)
    assert np.all(ranked == 1)
