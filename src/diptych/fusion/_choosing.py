"""How a fusion chooses on validation: normalisations, scales, γ, and the use of each part for a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import fields_to_numpy, move_like, namespace, to_numpy
from diptych._checks import QUERY_VIEW, SEARCHED_VIEW, TASKS, Task
from diptych._persistence import Schema
from diptych._progress import progress_bar
from diptych.cca import Spectra, spectra_from_moments
from diptych.cca._polish import COMPONENTS, Polish, choose_epochs, polish_vectors
from diptych.cca._streaming import Engine
from diptych.cca._weighting import to_unit_length
from diptych.cca.selection._grids import Path, Route, make_grid
from diptych.fusion._blocks import (
    Block,
    Blocks,
    Floats,
    Geometry,
    JointMoments,
    Pairs,
    Side,
    apply_geometry,
    sample_images,
)
from diptych.fusion._hubness import Correction, Evaluator, PartScores, choose_correction
from diptych.fusion._members import AnyPart, FittedPart, IdentityPart, LinearMaps, Part, Use, project_pairs
from diptych.ranking import metric, ranks

COARSE = 8
"""Points per side of the grid where alternatives are only compared with each other."""

DOUBT = 3.0
"""Standard deviations from chance, beyond which two blocks are taken for those of a dual encoder."""

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
            and _beats_chance(sample_images(({a: x_block}, {b: y_block}, training[2]), random_state))
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
    training: Pairs,
    validation: Pairs,
    blocks: Mapping[str, Block],
    sum_moments: Callable[[Pairs], JointMoments],
) -> tuple[dict[str, Side], dict[str, BlockReport]]:
    """Return the geometry of every block of both views, and the score of each candidate.

    A block with several candidates is fitted with each of them against the narrowest block of the other view,
    on a coarse grid. The mean r@1 of both tasks decides, and the first candidate wins a tie.
    """

    def score(names: tuple[str, str], shapes: Side) -> float:
        part = Part(names[:1], names[1:])

        def shape(pairs: Pairs) -> Pairs:
            x, y = (apply_geometry({n: shapes[n]}, view) for n, view in zip(names, pairs[:2], strict=True))
            return x, y, pairs[2]

        return _score_part(part, part.spectra(sum_moments(shape(training))), shape(validation))

    first = [
        {n: Geometry.fit(blocks[n], blocks[n].candidates[0], features, n) for n, features in view.items()}
        for view in training[:2]
    ]
    sides: list[Side] = [dict(first[0]), dict(first[1])]
    reports: dict[str, BlockReport] = {}
    for at, (view, side) in enumerate(zip(training[:2], sides, strict=True)):
        other = 1 - at
        partner = min(training[other], key=lambda name: training[other][name].shape[1])
        for name, features in view.items():
            scores: dict[str, float] = {}
            candidates = blocks[name].candidates
            for candidate in candidates if len(candidates) > 1 else ():
                geometry = Geometry.fit(blocks[name], candidate, features, name)
                names = (name, partner) if at == 0 else (partner, name)
                value = score(names, {name: geometry, partner: first[other][partner]})
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

    def report(self, part: Part) -> PartReport:
        """Return what is kept of it with the model."""
        return PartReport(str(part), self.value, self.use, self.tried)


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


def polish_use(
    fitted: AnyPart,
    chosen: Choice,
    trial: Trial,
    training: Pairs,
    n_components: int | None,
    kinds: Sequence[str],
    random_state: int | None,
    device: str | None = None,
) -> Choice:
    """Return a use with the polish that is best for it, or the use as it is if none is better."""
    part, linear = fitted.part, chosen.linear.keep(COMPONENTS)
    if n_components is None:  # the maps of the choice may not be those of canonical components
        _, linear = next(fitted.make_maps(trial.evaluator.task, [chosen.use], COMPONENTS))
    vectors = [(linear.project(rows, view), view) for rows, view in trial.features(part)]
    best, tried = chosen, list(chosen.tried)

    def try_epoch(polish: Polish) -> float:
        nonlocal best
        polish = fields_to_numpy(polish)
        matrices = {"x": polish.x, "y": polish.y}
        use = msgspec.structs.replace(chosen.use, epochs=polish.epochs)
        value, scores, report = trial.score(use, [rows @ matrices[view] for rows, view in vectors], kinds)
        tried.append(report)
        if value > best.value:
            best = Choice(use, linear.multiply(polish), value, scores, tried)
        return value

    choose_epochs(
        polish_vectors(*project_pairs(part, linear, [training], device), random_state),
        try_epoch,
        chosen.value,
    )
    return replace(best, tried=tried)
