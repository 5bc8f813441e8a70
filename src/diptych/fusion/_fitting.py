"""The fit of a fusion as a function: it chooses on validation pairs, then makes the models.

For each feature block it chooses the normalisation, for each part the scales and γ, and for each task the use
of every part, their weights and a correction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Floats, fields_to_numpy, move_like, namespace, to_numpy
from diptych._checks import QUERY_VIEW, SEARCHED_VIEW, TASKS, InputError, Task, check_choice
from diptych._persistence import Schema
from diptych._progress import progress_bar
from diptych.cca import Engine, Moments, Spectra, spectra_from_moments
from diptych.cca._correction import Correction, Hubness
from diptych.cca._moments import Precision
from diptych.cca._polish import COMPONENTS, Polish, choose_epochs, polish_for, polish_vectors
from diptych.cca._weighting import to_unit_length
from diptych.cca.selection._grids import Path, Route, make_grid
from diptych.fusion._blocks import (
    Block,
    Blocks,
    Geometry,
    JointMoments,
    Pairs,
    Side,
    apply_geometry,
    count_rows,
    sample_items,
    sum_pairs,
    take_rows,
)
from diptych.fusion._hubness import Evaluator, PartScores, TaskChoice, choose_correction, choose_weights
from diptych.fusion._members import (
    AnyPart,
    FittedPart,
    IdentityPart,
    LinearMaps,
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
from diptych.ranking import metric, ranks

Item = TypeVar("Item")

COARSE = 8
"""Points per side of the grid where alternatives are only compared with each other."""

DOUBT = 3.0
"""Standard deviations from chance, beyond which two blocks are taken for those of a dual encoder."""

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


Recalls = dict[str, float]
"""r@1, r@5 and r@10 on validation."""


class TriedUse(Use, frozen=True, kw_only=True):
    """A use of a part and what it brought: recall as it is, and with its best correction."""

    recall: Recalls
    corrected: Recalls
    correction: Correction


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


class BlockReport(Schema, frozen=True):
    """The normalisation of a block, and r@1 of each candidate where there were several."""

    chosen: str
    pieces: int
    r_at_1: dict[str, float] = msgspec.field(name="r@1")


class FitReport(Schema, frozen=True):
    """The scales of a part's blocks, its γ for each task, and their places on the grid."""

    x: dict[str, float]
    y: dict[str, float]
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
    scales = tuple(map(float, settings.scales))
    fitted = [
        fit_part(part, joint, validation, settings.grid, scales, settings.engine)
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
    columns = [(tuple(view), (1.0,) * len(view)) for view in widths]
    moments = fields_to_numpy(joint.moments if widths == joint.widths else joint.take(*columns))
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
        return choose_weights(evaluator, scores, kinds, settings.search_weights, unfitted)

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


def make_parts(kind: str, training: Pairs, random_state: int | None = 0) -> list[Part]:
    """Return the parts of a ``kind``.

    ``"together"``: all blocks side by side. ``"family"``: that, and each block alone with all blocks of the
    other view; before them, two blocks as they are where their cosine finds pairs better than chance. On a
    tie the first part wins, and a part without a fit cannot overfit.
    """
    x, y = (tuple(view) for view in training[:2])
    parts = [Part(x, y)]
    if kind == "family":
        parts += [Part(x, (name,)) for name in y if len(y) > 1]
        parts += [Part((name,), y) for name in x if len(x) > 1]
        identities = [
            Part((a,), (b,), kind="identity")
            for a, x_block in training[0].items()
            for b, y_block in training[1].items()
            if x_block.shape[1] == y_block.shape[1]
            and _beats_chance(sample_items(({a: x_block}, {b: y_block}, training[2]), random_state))
        ]
        parts = identities + parts
    return parts


def _beats_chance(pairs: Pairs) -> bool:
    """Return whether the cosine of two blocks ranks the right row of X far better than chance.

    By chance ranks are uniform on 1 to n, so their mean over m images has the standard deviation n / √(12 m).
    """
    (x,), (y,) = (map(to_unit_length, view.values()) for view in pairs[:2])
    better = (len(x) + 1) / 2 - float(np.mean(to_numpy(ranks(x, y, pairs[2], task="search"))))
    return better > DOUBT * len(x) / float(np.sqrt(12 * len(np.unique(pairs[2]))))


def fit_part(
    part: Part,
    joint: JointMoments,
    validation: Pairs,
    grid: Any,
    scales: tuple[float, ...],
    engine: Engine | None = None,
) -> AnyPart:
    """Choose the scale of each block where there are several, then γ on the whole ``grid``."""
    if part.kind == "identity":
        return IdentityPart(part, joint.take(part.columns("x"), part.columns("y")))
    part = _choose_scales(part, joint, validation, scales)
    spectra = part.spectra(joint)
    return FittedPart(part, spectra, _select(part, spectra, validation, grid, extend=True, engine=engine))


def choose_geometry(
    settings: Settings, training: Pairs, validation: Pairs
) -> tuple[dict[str, Side], dict[str, BlockReport]]:
    """Return the geometry of every block of both views, and the score of each candidate.

    A block with several candidates is fitted with each of them against the narrowest block of the other view,
    on a coarse grid. The mean r@1 of both tasks decides, and the first candidate wins a tie.
    """
    all_names = {*training[0], *training[1]}
    if unknown := sorted(set(settings.blocks) - all_names):
        raise InputError(f"blocks names {unknown}, which the views do not have.")
    if len(all_names) < len(training[0]) + len(training[1]):
        raise InputError("a block of X and a block of Y have the same name; give each its own.")
    blocks = {name: settings.blocks.get(name, Block()) for name in all_names}

    def score(names: tuple[str, str], shapes: Side) -> float:
        part = Part(names[:1], names[1:])

        def shape(pairs: Pairs) -> Pairs:
            x, y = (apply_geometry({n: shapes[n]}, view) for n, view in zip(names, pairs[:2], strict=True))
            return x, y, pairs[2]

        return _score_part(part, part.spectra(settings.sum(shape(training))[0]), shape(validation))

    first = [
        {n: Geometry.fit(blocks[n], blocks[n].candidates[0], features, n) for n, features in view.items()}
        for view in training[:2]
    ]
    sides: list[Side] = [dict(first[0]), dict(first[1])]
    reports: dict[str, BlockReport] = {}
    for at, (view, side) in enumerate(zip(training[:2], sides, strict=True)):
        opposite = training[1 - at]
        partner = min(opposite, key=lambda name: opposite[name].shape[1])
        for name, features in view.items():
            scores: dict[str, float] = {}
            candidates = blocks[name].candidates
            for candidate in candidates if len(candidates) > 1 else ():
                geometry = Geometry.fit(blocks[name], candidate, features, name)
                names = (name, partner) if at == 0 else (partner, name)
                value = score(names, {name: geometry, partner: first[1 - at][partner]})
                if value > max(scores.values(), default=-1.0):
                    side[name] = geometry
                scores[candidate] = value
            reports[name] = BlockReport(side[name].normalize, side[name].pieces, scores)
    return {"x": sides[0], "y": sides[1]}, reports


def _select(
    part: Part,
    spectra: Spectra,
    validation: Pairs,
    grid: Any,
    *,
    extend: bool = False,
    engine: Engine | None = None,
) -> Path:
    pairs = (move_like(array, spectra.t0) for array in (*part.views(validation), validation[2]))
    # A search with a fitted model does without these.
    from diptych.cca.selection import make_problem, narrow_grid, regularization_path

    problem = make_problem(spectra, tuple(pairs), dtype=namespace(spectra.t0).float32)
    points = make_grid("tikhonov", grid, spectra)
    route: Route | None = None
    if extend and (narrowed := narrow_grid(problem, spectra, points)) is not points:
        points = narrowed
        route = "screened" if is_numpy_array(problem.a) and engine is None else None
    by = metric("r@1")
    with progress_bar("selecting") as progress:
        return regularization_path(
            problem, spectra, points, by, route=route, extend=extend, engine=engine, progress=progress
        )


def _score_part(part: Part, spectra: Spectra, validation: Pairs) -> float:
    path = _select(part, spectra, validation, COARSE)
    return sum(path.best(task) for task in TASKS) / len(TASKS)


def _choose_scales(part: Part, joint: JointMoments, validation: Pairs, scales: tuple[float, ...]) -> Part:
    """Try each of the ``scales`` on one block after the other."""

    def score(trial: Part) -> float:
        # Not from ``Part.spectra``: a decomposition that is used once is not worth keeping.
        moments = joint.take(trial.columns("x"), trial.columns("y"))
        return _score_part(trial, spectra_from_moments(moments), validation)

    names = {"x": part.x, "y": part.y}
    candidates = [scale for scale in scales if scale != 1.0]
    best = None
    for view in names if candidates else ():
        # The first block keeps its scale: only the proportions matter.
        for at in range(1, len(names[view])):
            if best is None:
                best = score(part)
            choice = (best, part)
            for scale in candidates:
                values = list(getattr(part, f"{view}_scales"))
                values[at] *= scale
                trial = msgspec.structs.replace(part, **{f"{view}_scales": tuple(values)})
                if (value := score(trial)) > choice[0]:
                    choice = (value, trial)
            best, part = choice
    return part


@dataclass(frozen=True, eq=False)
class Trial:
    """Validation items and queries of a task, and a bank of training queries, as blocks."""

    evaluator: Evaluator
    items: Blocks
    queries: Blocks
    bank: Blocks

    def features(self, part: Part) -> list[tuple[Floats, str]]:
        """Return what a part sees of queries, items and bank, each with its view."""
        searched, query = SEARCHED_VIEW[self.evaluator.task], QUERY_VIEW[self.evaluator.task]
        seen = (self.queries, query), (self.items, searched), (self.bank, query)
        return [(part.features(blocks, view), view) for blocks, view in seen]

    def score(
        self, use: Use, vectors: Sequence[Floats], kinds: Sequence[str]
    ) -> tuple[float, PartScores, TriedUse]:
        """Return the value of a use's vectors of queries, items and bank, their scores, and a report."""
        scores = PartScores.of(*vectors)
        correction, value, corrected = choose_correction(self.evaluator, scores, kinds)
        tried = TriedUse(
            **msgspec.structs.asdict(use),
            recall=self.evaluator.recall(scores.scores),
            corrected=self.evaluator.recall(corrected),
            correction=correction,
        )
        return value, scores, tried


def make_uses(weightings: Sequence[str], relaxations: Sequence[float]) -> list[Use]:
    """Return the uses to try: the asymmetric weighting with the path's γ, others with multiples of it."""
    return [
        Use(weighting, float(relaxation))
        for weighting in weightings
        for relaxation in ((1.0,) if weighting == "asymmetric" else relaxations)
    ]


@dataclass(frozen=True, eq=False)
class Choice:
    """The best use of a part for a task, its value and scores on validation, and all that were tried."""

    use: Use
    linear: LinearMaps
    value: float
    scores: PartScores
    tried: list[TriedUse]


def choose_use(
    fitted: AnyPart, trial: Trial, uses: Sequence[Use], n_components: int | None, kinds: Sequence[str]
) -> Choice:
    """Return the use with the best corrected scores."""
    features = trial.features(fitted.part)
    best: Choice | None = None
    tried: list[TriedUse] = []
    for use, linear in fitted.make_maps(trial.evaluator.task, uses, n_components):
        vectors = [linear.project(rows, view) for rows, view in features]
        value, scores, report = trial.score(use, vectors, kinds)
        tried.append(report)
        if best is None or value > best.value:
            best = Choice(use, linear, value, scores, tried)
    assert best is not None
    return best


def polish_use(fitted: AnyPart, chosen: Choice, trial: Trial, training: Pairs, settings: Settings) -> Choice:
    """Return a use with the polish that is best for it, or the use as it is if none is better."""
    part, linear = fitted.part, chosen.linear.keep(COMPONENTS)
    if settings.n_components is None:  # the maps of the choice may not be those of canonical components
        _, linear = next(fitted.make_maps(trial.evaluator.task, [chosen.use], COMPONENTS))
    vectors = [(linear.project(rows, view), view) for rows, view in trial.features(part)]
    best, tried = chosen, list(chosen.tried)

    def try_epoch(polish: Polish) -> float:
        nonlocal best
        polish = fields_to_numpy(polish)
        matrices = {"x": polish.x, "y": polish.y}
        use = msgspec.structs.replace(chosen.use, epochs=polish.epochs)
        value, scores, report = trial.score(
            use, [rows @ matrices[view] for rows, view in vectors], settings.hubness
        )
        tried.append(report)
        if value > best.value:
            best = Choice(use, linear.multiply(polish), value, scores, tried)
        return value

    pairs = project_pairs(part, linear, [training], settings.device)
    choose_epochs(polish_vectors(*pairs, settings.random_state), try_epoch, chosen.value)
    return replace(best, tried=tried)
