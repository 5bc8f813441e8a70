"""The polish of a model, from its training pairs: how many epochs, and the matrices (see ``_polish``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import Task, check_matrix
from diptych._devices import copy_to_device
from diptych._progress import progress_bar
from diptych.cca._canonical import CanonicalModel, keep_components, ranking_maps
from diptych.cca._models import ChosenPoint
from diptych.cca._moments import DEVICE_BLOCK_BYTES, Moments
from diptych.cca._polish import (
    COMPONENTS,
    EPOCHS,
    Polish,
    carry_polish,
    choose_epochs,
    polish_for,
    polish_vectors,
    sample_pairs,
)
from diptych.cca._view_map import BlockUse, ViewMap
from diptych.cca._weighting import Weighting, maps, project
from diptych.ranking import metric, ranks

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA


@dataclass(frozen=True, eq=False)
class Training:
    """The pairs to polish with, and the rows of Y that are not held out; None: all of them."""

    x: Any
    y: Any
    pairing: Array
    normalize: tuple[str, str]
    y_rows: Array | None = None


def polish_point(
    point: ChosenPoint,
    task: Task,
    settings: AWCCA,
    training: Training,
    validation: tuple[Array, Array, Array],
    device: str | None,
) -> CanonicalModel | None:
    """Return the model of a point with the polish that is best on validation pairs; None if none helps.

    It is chosen with the model that has not seen those. If that of ``point`` has, it is polished for as many
    epochs as are best for the other.
    """
    unseen, seed, by = point.unseen or replace(point, validation=None), settings.random_state, settings.metric
    (x, y, pairing), spectra, weighting = validation, unseen.spectra, settings.weighting

    def value(x_map: Array, y_map: Array) -> float:
        vectors = project(x, spectra.x_mean, x_map), project(y, spectra.y_mean, y_map)
        chosen = metric(by)
        return chosen.signed(chosen(ranks(*vectors, pairing, task=task)))

    if weighting == "asymmetric" and point.dimension is None:
        least = value(*ranking_maps(spectra, *unseen.filters, task))
        leading = unseen.make(COMPONENTS)
    else:
        whole = unseen.make()
        least, leading = value(*maps(whole, weighting, task)), keep_components(whole, COMPONENTS)
    vectors = _embed(training, unseen, maps(leading, weighting, task), seed, device)
    with progress_bar(f"polishing for {task}") as progress:

        def try_epoch(polish: Polish) -> float:
            progress(polish.epochs / EPOCHS)
            return value(*maps(replace(leading, polish=polish), weighting, task))

        best = choose_epochs(polish_vectors(*vectors, seed), try_epoch, least)
        progress(1.0)
        if best is None:
            return None
        model = point.make(COMPONENTS)
        if point.unseen is not None:
            everything = replace(training, y_rows=None)
            vectors = _embed(everything, point, maps(model, weighting, task), seed, device)
            best = polish_for(*vectors, best.epochs, seed)
    return replace(model, polish=best)


def carry_polishes(
    polished: Mapping[Task, CanonicalModel],
    points: Mapping[Task, ChosenPoint],
    moments: Moments,
    weighting: Weighting,
) -> dict[Task, CanonicalModel]:
    """Return the models of ``points``, of new ``moments``, with the polish of previous ones carried over."""
    carried = {}
    for task, previous in polished.items():
        assert previous.polish is not None
        model = points[task].make(int(previous.correlations.shape[0]))
        new, old = (maps(replace(one, polish=None), weighting, task) for one in (model, previous))
        carried[task] = replace(model, polish=carry_polish(previous.polish, moments, new, old))
    return carried


def _embed(
    training: Training, point: ChosenPoint, linear: tuple[Array, Array], seed: int | None, device: str | None
) -> tuple[Array, Array, Array]:
    """Return float32 vectors of training pairs, of all or of a sample if they are very many."""
    y_rows = np.arange(training.y.shape[0]) if training.y_rows is None else to_numpy(training.y_rows)
    pairing = to_numpy(training.pairing)[y_rows]
    if (sample := sample_pairs(pairing, seed)) is not None:
        y_rows, pairing = y_rows[sample], pairing[sample]
    x_rows, pairing = np.unique(pairing, return_inverse=True)
    means = point.spectra.x_mean, point.spectra.y_mean
    x, y = (
        _embed_rows(view, rows, ViewMap((BlockUse("view", how),), mean, weights), device)
        for view, rows, how, mean, weights in zip(
            (training.x, training.y), (x_rows, y_rows), training.normalize, means, linear, strict=True
        )
    )
    return x, y, move_like(pairing, x)


def _embed_rows(view: Any, rows: Any, view_map: ViewMap, device: str | None) -> Array:
    xp, parts = namespace(view_map.map), []
    step = max(1, DEVICE_BLOCK_BYTES // (8 * int(view.shape[1])))
    for start in range(0, len(rows), step):
        block = view[move_like(rows[start : start + step], view), :]
        block = block if device is None else copy_to_device(block, device)
        features = xp.astype(check_matrix(block, "a view"), xp.float32, copy=False)
        parts.append(view_map.project({"view": features}))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)
