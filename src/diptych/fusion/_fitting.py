"""The fit of a fusion as a function: it chooses on validation pairs, then makes the models.

For each feature block it chooses the normalisation, for each part γ (``_choosing``), and for each task the
use of every part, their weights and a correction (``_hubness``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from diptych._arrays import fields_to_numpy
from diptych._checks import QUERY_VIEW, TASKS, InputError, Task, check_choice
from diptych._persistence import Schema
from diptych._progress import progress_bar
from diptych.cca import Moments
from diptych.cca._correction import Correction, Hubness
from diptych.cca._polish import COMPONENTS, polish_for
from diptych.fusion._blocks import Blocks, JointMoments, Pairs, Side, count_rows, sample_items, take_rows
from diptych.fusion._choosing import (
    BlockReport,
    Choice,
    Recalls,
    Settings,
    Trial,
    TriedUse,
    choose_geometry,
    choose_use,
    fit_part,
    make_parts,
    make_uses,
    polish_use,
)
from diptych.fusion._hubness import Evaluator, TaskChoice, choose_weights
from diptych.fusion._members import (
    AnyPart,
    FittedPart,
    Member,
    Part,
    Use,
    embed_members,
    joint_widths,
    make_gate,
    project_pairs,
    shape_pairs,
    uses_canonical_components,
)

Item = TypeVar("Item")

POLISHED = 0.25
"""The weight from which a part is polished; the first always is. Others change the sum too little."""


PRESETS: dict[str, dict[str, Any]] = {
    "best": {
        "parts": "family",
        "weightings": ("asymmetric", "residual"),
        "hubness": ("none", "csls"),
        "refit": True,
        "n_components": 512,
        "polish": True,
    },
    "plain": {
        "parts": "together",
        "weightings": ("asymmetric",),
        "hubness": ("none",),
        "refit": False,
        "n_components": "all",
        "polish": False,
    },
}
"""``"best"``: every ingredient that helped (``docs/accuracy.md``). ``"plain"``: AW-CCA as in the paper."""


class PartReport(Schema, frozen=True):
    """The best use of a part for a task, its value, and all that were tried."""

    part: str
    value: float
    best: Use
    tried: list[TriedUse]


class TaskReport(Schema, frozen=True):
    """What was chosen for a task: uses and weights of the parts, and a correction."""

    parts: list[PartReport]
    weights: list[float]
    correction: Correction
    value: float
    recall: Recalls


class FitReport(Schema, frozen=True):
    """The blocks of a part, its γ for each task, and their places on the grid."""

    x: tuple[str, ...]
    y: tuple[str, ...]
    params: dict[Task, tuple[float, float]]
    choice: dict[Task, tuple[int, int]]
    seconds: float


class SelectionReport(Schema, frozen=True):
    """What was tried, its value on validation, and what was chosen: ``Fusion.selection_``."""

    criterion: str
    validation: str
    refitted: bool
    geometry: dict[str, BlockReport]
    parts: list[FitReport]
    tasks: dict[Task, TaskReport]
    seconds: float


class FusedModels(NamedTuple):
    """The models of a fusion: the geometry of the blocks, and for each task its members and correction."""

    geometry: dict[str, Side]
    members: dict[Task, list[Member]]
    hubness: dict[Task, Hubness]


@dataclass(frozen=True, eq=False)
class FusionResult:
    """What a fit returns: the models, those before they were fitted on validation pairs too, and the rest."""

    models: FusedModels
    unseen: FusedModels
    moments: Moments
    selection: SelectionReport


def fit_fusion(
    settings: Settings,
    training: Pairs,
    validation: Pairs,
    *,
    refit: bool,
    keep_unseen: bool,
    description: str,
    checkpoint: str | os.PathLike[str] | None = None,
) -> FusionResult:
    """Choose everything on ``validation``, and fit; with ``refit``, on both kinds of pairs.

    ``description`` says in the report what the validation pairs are. Without ``keep_unseen`` the models
    before the refit are not made, and ``unseen`` is ``models``.
    """
    start = time.perf_counter()
    parts = _check_parts(settings, training)
    with progress_bar("choosing normalisations"):
        geometry, blocks = choose_geometry(settings, training, validation)
    training, validation = (shape_pairs(geometry, pairs, parts) for pairs in (training, validation))
    with progress_bar("summing") as progress:
        joint, training = settings.sum(training, checkpoint=checkpoint, progress=progress)
    fitted = [
        fit_part(part, joint, validation, settings.grid, settings.engine)
        for part in _show("fitting parts", parts)
    ]
    sample = sample_items(validation, settings.random_state)
    chosen = {task: _choose(settings, task, fitted, training, sample) for task in TASKS}
    reports = {task: report for task, (report, _) in chosen.items()}
    make = partial(_make_models, settings, geometry, chosen, training)
    models = unseen = make(fitted, [training], joint) if keep_unseen or not refit else None
    if refit:
        joint += settings.sum(validation)[0]
        used = {at for report in reports.values() for at, weight in enumerate(report.weights) if weight}
        final = [part.refit(joint) if at in used else part for at, part in enumerate(fitted)]
        models = make(final, [training, validation], joint)
    assert models is not None
    widths = joint_widths(geometry, models.members)
    moments = fields_to_numpy(joint.moments if widths == joint.widths else joint.take(*map(tuple, widths)))
    selection = SelectionReport(
        criterion="mean of r@1, r@5 and r@10",
        validation=description,
        refitted=refit,
        geometry=blocks,
        parts=[_report_fit(part) for part in fitted],
        tasks=reports,
        seconds=time.perf_counter() - start,
    )
    return FusionResult(models, unseen or models, moments, selection)


def _check_parts(settings: Settings, training: Pairs) -> list[Part]:
    if isinstance(settings.parts, str):
        kind = check_choice(settings.parts, ("family", "together"), "parts")
        return make_parts(kind, training, settings.random_state)
    parts: list[Part] = list(settings.parts)
    names = set(training[0]), set(training[1])
    if not parts or not all(
        isinstance(p, Part) and set(p.x) <= names[0] and set(p.y) <= names[1] for p in parts
    ):
        raise InputError(f"parts={parts!r} is not a list of Part of blocks of X and of Y; give that.")
    for part in parts:
        widths = training[0][part.x[0]].shape[1], training[1][part.y[0]].shape[1]
        if part.kind == "identity" and widths[0] != widths[1]:
            raise InputError(
                f"the identity part {part} compares {widths[0]} with {widths[1]} features; give blocks "
                "of the same width, from one dual encoder."
            )
    return parts


def _choose(
    settings: Settings, task: Task, fitted: list[AnyPart], training: Pairs, sample: Pairs
) -> tuple[TaskReport, tuple[float, float]]:
    """Return the best use and the weight of every part, with a correction, and the limits of its gate."""
    evaluator = Evaluator(task, sample[2], count_rows(sample[0]), max(part.dimension for part in fitted))
    items, queries = sample[0], sample[1]
    if task == "annotate":
        items, queries = sample[1], take_rows(sample[0], evaluator.truth.described)
    trial = Trial(evaluator, items, queries, _draw_bank(settings, task, training))
    uses, kinds = make_uses(settings.weightings, settings.relaxations), settings.hubness
    choices: list[Choice] = []
    for part in _show(f"choosing for {task}", fitted):
        choices.append(choose_use(part, trial, uses, settings.n_components, kinds))
        if part.part.kind != "identity":
            # Trying all on every part takes twice as long, and on Flickr8k all parts choose the same.
            uses = [choices[-1].use]
    unfitted = [at for at, part in enumerate(fitted) if part.part.kind == "identity"]

    def weigh() -> TaskChoice:
        scores = [choice.scores for choice in choices]
        return choose_weights(evaluator, scores, kinds, unfitted)

    weighed = weigh()
    if settings.polish:
        models = [at for at in range(len(choices)) if at not in unfitted]
        used = [at for at in models if weighed.weights[at] >= POLISHED or at == models[0]]
        for at in _show(f"polishing for {task}", used):
            choices[at] = polish_use(fitted[at], choices[at], trial, training, settings)
        weighed = weigh()
    reports = [
        PartReport(str(part.part), choice.value, choice.use, choice.tried)
        for choice, part in zip(choices, fitted, strict=True)
    ]
    report = TaskReport(reports, list(weighed.weights), weighed.correction, weighed.value, weighed.recall)
    return report, weighed.limits


def _make_models(
    settings: Settings,
    geometry: dict[str, Side],
    chosen: Mapping[Task, tuple[TaskReport, tuple[float, float]]],
    training: Pairs,
    parts: Sequence[AnyPart],
    pairs: list[Pairs],
    joint: JointMoments,
) -> FusedModels:
    """Return the chosen models, of fitted parts; they are polished on ``pairs``."""
    members: dict[Task, list[Member]] = {}
    hubness: dict[Task, Hubness] = {}
    for task, (report, limits) in chosen.items():
        view, gate = QUERY_VIEW[task], None
        members[task] = [
            _make_member(settings, task, part, choice.best, weight, pairs)
            for part, choice, weight in zip(parts, report.parts, report.weights, strict=True)
            if weight
        ]
        bank = np.zeros((0, sum(m.dimension for m in members[task])), dtype=np.float32)
        if report.correction.kind != "none":
            gate = make_gate(members[task], view, joint, limits)
            bank = embed_members(members[task], _draw_bank(settings, task, training), view)
        hubness[task] = Hubness(report.correction, bank, gate)
    return FusedModels(geometry, members, hubness)


def _make_member(
    settings: Settings, task: Task, part: AnyPart, use: Use, weight: float, pairs: list[Pairs]
) -> Member:
    most = settings.n_components or (COMPONENTS if use.epochs else None)
    _, linear = next(part.make_maps(task, [use], most))
    polish = None
    if use.epochs:
        linear = linear.keep(COMPONENTS)
        vectors = project_pairs(part.part, linear, pairs, settings.device)
        polish = fields_to_numpy(polish_for(*vectors, use.epochs, settings.random_state))
        linear = linear.multiply(polish)
    canonical = uses_canonical_components(use.weighting, most)
    return Member(part.part, use, weight, linear, part.params(task, use), polish, canonical)


def _draw_bank(settings: Settings, task: Task, training: Pairs) -> Blocks:
    blocks = training[0] if QUERY_VIEW[task] == "x" else training[1]
    rows = np.random.default_rng(settings.random_state).permutation(count_rows(blocks))[: settings.bank]
    return take_rows(blocks, np.sort(rows))


def _report_fit(fitted: AnyPart) -> FitReport:
    part = fitted.part
    if not isinstance(fitted, FittedPart):
        return FitReport(part.x, part.y, {}, {}, 0.0)
    path = fitted.path
    params = {task: path.params(task) for task in TASKS}
    return FitReport(part.x, part.y, params, {task: path.choice[task] for task in TASKS}, path.seconds)


def _show(title: str, items: Sequence[Item]) -> Iterator[Item]:
    """Iterate over items with a progress bar."""
    with progress_bar(title) as progress:
        for done, item in enumerate(items, start=1):
            yield item
            progress(done / len(items))
