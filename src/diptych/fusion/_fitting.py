"""The fit of a fusion as a function: choose on validation pairs, then make the models."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from diptych._arrays import fields_to_numpy
from diptych._checks import QUERY_VIEW, TASKS, InputError, Task, check_choice
from diptych._progress import progress_bar
from diptych.cca._moments import Moments, Precision
from diptych.cca._polish import COMPONENTS, polish_for
from diptych.cca._streaming import Engine
from diptych.fusion._blocks import (
    Block,
    Blocks,
    Floats,
    JointMoments,
    Pairs,
    Side,
    count_rows,
    sample_images,
    sum_pairs,
    take_rows,
)
from diptych.fusion._choosing import (
    BlockReport,
    Choice,
    FitReport,
    SelectionReport,
    TaskReport,
    Trial,
    choose_geometry,
    choose_use,
    fit_part,
    make_parts,
    make_uses,
    polish_use,
)
from diptych.fusion._fitted import FusedModels, shape_pairs
from diptych.fusion._hubness import Correction, Evaluator, Gate, TaskChoice, choose_weights
from diptych.fusion._members import (
    AnyPart,
    FittedPart,
    Member,
    Part,
    Use,
    embed_members,
    make_gate,
    project_pairs,
    uses_canonical_components,
)

Item = TypeVar("Item")

POLISHED = 0.25
"""The weight from which a part is polished; the first always is. Others change the sum too little."""


@dataclass(frozen=True, eq=False)
class Settings:
    """The parameters of a ``Fusion`` with the values of its preset filled in, and where it computes."""

    blocks: Mapping[str, Block]
    parts: Literal["family", "together"] | Sequence[Part]
    weightings: Sequence[str]
    hubness: Sequence[str]
    n_components: int | None
    polish: bool
    scales: Sequence[float]
    relaxations: Sequence[float]
    search_weights: bool
    grid: Any
    bank: int
    random_state: int | None
    precision: Precision
    engine: Engine | None = None
    device: str | None = None

    def sum(self, pairs: Pairs, **options: Any) -> tuple[JointMoments, Pairs]:
        """Return the moments of pairs, and the pairs with the blocks of a view in one matrix."""
        return sum_pairs(pairs, self.precision, engine=self.engine, device=self.device, **options)


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
        geometry, blocks = _choose_geometry(settings, training, validation)
    training, validation = (shape_pairs(geometry, pairs, parts) for pairs in (training, validation))
    with progress_bar("summing") as progress:
        joint, training = settings.sum(training, checkpoint=checkpoint, progress=progress)
    scales = tuple(map(float, settings.scales))
    fitted = [
        fit_part(part, joint, validation, settings.grid, scales, settings.engine)
        for part in _show("fitting parts", parts)
    ]
    sample = sample_images(validation, settings.random_state)
    chosen = {task: _choose(settings, task, fitted, training, sample) for task in TASKS}
    uses = {task: choice[:2] for task, choice in chosen.items()}
    make = partial(_make_models, settings, geometry, uses, training)
    models = unseen = make(fitted, [training], joint) if keep_unseen or not refit else None
    if refit:
        joint += settings.sum(validation)[0]
        used = {at for _, choice in uses.values() for at, weight in enumerate(choice.weights) if weight}
        final = [part.refit(joint) if at in used else part for at, part in enumerate(fitted)]
        models = make(final, [training, validation], joint)
    assert models is not None
    widths = models.moment_widths()
    columns = [(tuple(view), (1.0,) * len(view)) for view in widths]
    return FusionResult(
        models,
        unseen or models,
        fields_to_numpy(joint.moments if widths == joint.widths else joint.take(*columns)),
        SelectionReport(
            criterion="mean of r@1, r@5 and r@10",
            validation=description,
            refitted=refit,
            geometry=blocks,
            parts=[_report_fit(part) for part in fitted],
            tasks={task: report for task, (*_, report) in chosen.items()},
            seconds=time.perf_counter() - start,
        ),
    )


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


def _choose_geometry(
    settings: Settings, training: Pairs, validation: Pairs
) -> tuple[dict[str, Side], dict[str, BlockReport]]:
    names = {*training[0], *training[1]}
    if not set(settings.blocks) <= names:
        unknown = sorted(set(settings.blocks) - names)
        raise InputError(f"blocks names {unknown}, which the views do not have.")
    if len(names) < len(training[0]) + len(training[1]):
        raise InputError("a block of X and a block of Y have the same name; give each its own.")
    blocks = {name: settings.blocks.get(name, Block()) for name in names}
    return choose_geometry(training, validation, blocks, lambda pairs: settings.sum(pairs)[0])


def _choose(
    settings: Settings, task: Task, fitted: list[AnyPart], training: Pairs, sample: Pairs
) -> tuple[list[Use], TaskChoice, TaskReport]:
    """Return the best use of every part, weights and a correction for all of them, and a report."""
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
        return choose_weights(evaluator, scores, kinds, settings.search_weights, unfitted)

    weighed = weigh()
    if settings.polish:
        models = [at for at in range(len(choices)) if at not in unfitted]
        used = [at for at in models if weighed.weights[at] >= POLISHED or at == models[0]]
        for at in _show(f"polishing for {task}", used):
            choices[at] = polish_use(
                fitted[at],
                choices[at],
                trial,
                training,
                settings.n_components,
                kinds,
                settings.random_state,
                settings.device,
            )
        weighed = weigh()
    report = TaskReport(
        parts=[choice.report(part.part) for choice, part in zip(choices, fitted, strict=True)],
        weights=list(weighed.weights),
        correction=weighed.correction,
        value=weighed.value,
        recall=weighed.recall,
    )
    return [choice.use for choice in choices], weighed, report


def _make_models(
    settings: Settings,
    geometry: dict[str, Side],
    choices: Mapping[Task, tuple[list[Use], TaskChoice]],
    training: Pairs,
    parts: Sequence[AnyPart],
    pairs: list[Pairs],
    joint: JointMoments,
) -> FusedModels:
    """Return the chosen models, of fitted parts; they are polished on ``pairs``."""
    members: dict[Task, list[Member]] = {}
    gates: dict[Task, Gate | None] = {}
    for task, (uses, choice) in choices.items():
        members[task] = [
            _make_member(settings, task, part, use, weight, pairs)
            for part, use, weight in zip(parts, uses, choice.weights, strict=True)
            if weight
        ]
        gates[task] = (
            None
            if choice.correction.kind == "none"
            else make_gate(members[task], QUERY_VIEW[task], joint, choice.limits)
        )
    corrections = {task: choice.correction for task, (_, choice) in choices.items()}
    banks = {task: _make_bank(settings, task, members[task], corrections[task], training) for task in TASKS}
    return FusedModels(geometry, members, corrections, banks, gates)


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


def _make_bank(
    settings: Settings, task: Task, members: Sequence[Member], correction: Correction, training: Pairs
) -> Floats:
    if correction.kind == "none":
        return np.zeros((0, sum(member.dimension for member in members)), dtype=np.float32)
    return embed_members(members, _draw_bank(settings, task, training), QUERY_VIEW[task], weighted=False)


def _report_fit(fitted: AnyPart) -> FitReport:
    part = fitted.part
    scales = dict(zip(part.x, part.x_scales, strict=True)), dict(zip(part.y, part.y_scales, strict=True))
    if not isinstance(fitted, FittedPart):
        return FitReport(*scales, {}, {}, 0.0)
    path = fitted.path
    params = {task: path.params(task) for task in TASKS}
    return FitReport(*scales, params, {task: path.choice[task] for task in TASKS}, path.seconds)


def _show(title: str, items: Sequence[Item]) -> Iterator[Item]:
    """Iterate over items with a progress bar."""
    with progress_bar(title) as progress:
        for done, item in enumerate(items, start=1):
            yield item
            progress(done / len(items))
