r"""Ranks under many weightings at once, from one SVD.

With unweighted canonical embeddings u and v, the weighting (Σ^a, Σ^b) compares

.. math:: \frac{u^\top \Sigma^{a+b} v}{\|\Sigma^a u\|} \quad\text{(search)}, \qquad
          \frac{u^\top \Sigma^{a+b} v}{\|\Sigma^b v\|} \quad\text{(annotate)}.

The numerator depends on a + b alone: every point of the path (α, 1 − α) shares one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from diptych._arrays import group_max
from diptych._checks import Task
from diptych.cca import CanonicalModel, Spectra, regularized_cca
from diptych.cca._filters import AnyFilter
from diptych.cca._weighting import project
from diptych.cca.selection._exact import Row, count_others, own_scores
from diptych.cca.selection._problem import Problem, Weights
from diptych.paper._sources import Floats
from diptych.ranking import Truth, tie_slack

Pair = tuple[float, float]


def canonical(
    spectra: Spectra, filters: tuple[AnyFilter, AnyFilter], x: Floats, y: Floats
) -> tuple[Floats, Floats, Floats]:
    """Unweighted canonical embeddings of both views at some filters, and the canonical correlations."""
    return embedded(spectra, regularized_cca(spectra, *filters), x, y)


def embedded(spectra: Spectra, model: CanonicalModel, x: Floats, y: Floats) -> tuple[Floats, Floats, Floats]:
    """The same for a model that is there already."""
    u, v = project(x, spectra.x_mean, model.x_weights), project(y, spectra.y_mean, model.y_weights)
    return u, v, np.asarray(model.correlations)


def weighted_ranks(
    u: Floats, v: Floats, correlations: Floats, pairing: Any, pairs: Sequence[Pair]
) -> dict[Task, Floats]:
    """Ranks of both tasks by cosine, weightings × queries, for each pair of powers (a on X, b on Y)."""
    truth = Truth.of(np.asarray(pairing), len(u))
    # Weightings of one sum stand together: their numerator is then made once.
    order = sorted(range(len(pairs)), key=lambda i: sum(pairs[i]))
    sums = np.stack([correlations ** sum(pairs[i]) for i in order])
    weights = Weights.of(sums, u)
    problem = Problem(u, v, np.empty((0, 0), dtype=u.dtype), truth, "cosine")
    own = own_scores(problem, u, weights)
    search_scale, annotate_scale = (
        _inverse_norms(view, np.stack([correlations ** (2 * pairs[i][side]) for i in order]))
        for side, view in enumerate((u, v))
    )
    own_annotate = own * annotate_scale
    best = np.stack([group_max(line, truth.pairing, truth.n_images) for line in own_annotate])
    best = np.where(best == -np.inf, np.inf, best)
    # The lengths of the queries are those that the scales divide by in the other task.
    search_slack = tie_slack(1.0 / annotate_scale, 1.0, u.shape[1])
    annotate_slack = tie_slack(1.0 / search_scale, 1.0, u.shape[1])
    search_truth = own * search_scale[:, truth.pairing]
    finite = np.ones(len(pairs), dtype=bool)
    row = Row(u, search_scale, annotate_scale, search_truth, search_slack, best, annotate_slack, finite)
    search, annotate = count_others(problem, row, weights)
    back = np.argsort(order)
    return {"search": 1 + search[back], "annotate": 1 + annotate[back][:, truth.described]}


def _inverse_norms(view: Floats, squares: Floats) -> Floats:
    norms = np.sqrt(squares.astype(view.dtype) @ (view * view).T)
    return np.asarray(1.0 / np.where(norms > 0, norms, 1.0), dtype=view.dtype)
