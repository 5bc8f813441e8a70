"""What a fusion chooses on validation: the geometry of a block, the γ of a part, and its use for a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Floats, fields_to_numpy, move_like, namespace, to_numpy
from diptych._checks import QUERY_VIEW, SEARCHED_VIEW, TASKS, InputError
from diptych._persistence import Schema
from diptych._progress import progress_bar
from diptych.cca import Engine, Spectra
from diptych.cca._correction import Correction
from diptych.cca._moments import Precision
from diptych.cca._polish import COMPONENTS, Polish, choose_epochs, polish_vectors
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
    sample_items,
    sum_pairs,
)
from diptych.fusion._hubness import Evaluator, PartScores, choose_correction
from diptych.fusion._members import AnyPart, FittedPart, IdentityPart, LinearMaps, Part, Use, project_pairs
from diptych.ranking import metric, ranks

COARSE = 8
"""Points per side of the grid where alternatives are only compared with each other."""

DOUBT = 3.0
"""Standard deviations from chance, beyond which two blocks are taken for those of a dual encoder."""


@dataclass(frozen=True, eq=False)
class Settings:
    """The parameters of a ``Fusion`` with the values of its preset filled in, and where it computes."""

    blocks: Mapping[str, Block]
    parts: Literal["family", "together"] | Sequence[Part]
    weightings: Sequence[str]
    hubness: Sequence[str]
    n_components: int | None
    polish: bool
    relaxations: Sequence[float]
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


class BlockReport(Schema, frozen=True):
    """The normalisation of a block, and r@1 of each candidate where there were several."""

    chosen: str
    pieces: int
    r_at_1: dict[str, float] = msgspec.field(name="r@1")


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
    engine: Engine | None = None,
) -> AnyPart:
    """Choose γ on the whole ``grid``."""
    if part.kind == "identity":
        return IdentityPart(part, part.moments(joint))
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
            reports[name] = BlockReport(side[name].normalize, side[name].slices, scores)
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
