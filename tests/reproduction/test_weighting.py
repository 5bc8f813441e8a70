"""Points of equal recall are chosen between as on the path, and packs are means of their captions."""

from types import SimpleNamespace

import numpy as np
import pytest

from diptych.cca import Tikhonov, project, regularized_cca, spectra
from diptych.cca.selection import make_grid, make_problem, regularization_path
from diptych.ranking import metric, ranks
from reproduction.comparisons import sweep
from reproduction.maps import _score_grid
from reproduction.setting import mean_captions

POWERS = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (3.0, 3.0), (0.3, 0.7))


@pytest.fixture
def pairs_of_views(rng):
    hidden = rng.normal(size=(90, 6))
    x = hidden @ rng.normal(size=(6, 14)) + rng.normal(size=(90, 14))
    pairing = np.repeat(np.arange(90), 3)[:-2]
    y = hidden[pairing] @ rng.normal(size=(6, 10)) + rng.normal(size=(len(pairing), 10))
    return x, y, pairing


def test_the_vector_of_a_pack_is_the_mean_of_its_vectors(pairs_of_views):
    x, y, pairing = pairs_of_views
    fitted = spectra(x, y, pairing)
    weights = regularized_cca(fitted, Tikhonov(3.0), Tikhonov(5.0)).y_weights
    _, packs = mean_captions(x, y, pairing)
    vectors = project(y, fitted.y_mean, weights)
    by_hand = np.stack([vectors[pairing == i].mean(axis=0) for i in range(len(x))])
    np.testing.assert_allclose(project(packs, fitted.y_mean, weights), by_hand, atol=1e-12)


def test_a_pack_is_the_only_right_answer_of_its_image(pairs_of_views):
    x, y, pairing = pairs_of_views
    images, packs = mean_captions(x, y, pairing)
    ranked = ranks(packs, packs, np.arange(len(packs)), task="annotate")
    assert len(ranked) == len(images)
    assert np.all(ranked == 1)


def test_equal_points_are_chosen_between_as_on_the_path(rng):
    hidden = rng.normal(size=(16, 4))
    x, y = (hidden @ rng.normal(size=(4, 7)) + 0.4 * rng.normal(size=(16, 7)) for _ in range(2))
    fitted, pairing = spectra(x, y), np.arange(8)
    ks = range(2, 8), range(2, 8)
    problem, grid = make_problem(fitted, (x[:8], y[:8], pairing)), make_grid("tsvd", ks, fitted)
    setting = SimpleNamespace(
        image=None,
        spectra=lambda image, text: fitted,
        problem=lambda image, text, rows: problem,
        fetch=lambda name, features, inputs, compute: compute(),
    )
    swept = sweep(setting, None, pairing, POWERS, ks)
    tied = 0
    for which, powers in enumerate(POWERS):
        for k in (1, 10):
            path = regularization_path(problem, fitted, grid, metric(f"r@{k}"), weighting=powers)
            for task in ("search", "annotate"):
                assert tuple(swept[f"{task} {k}"][which]["params"]) == path.params(task)
                tied += np.sum(path.scores[task][f"r@{k}"] == path.best(task)) > 1
    assert tied > 20
    path = regularization_path(problem, fitted, grid, metric("r@1"), route="exact")
    scores = _score_grid(problem, fitted, grid, ("search", "annotate"))
    assert {task: scores[task].best for task in scores} == path.choice
