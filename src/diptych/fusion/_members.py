"""The models whose scores a fusion sums, side by side in one vector.

Choosing how each feature block is normalised, on validation.

One part of a fusion: some blocks of either view, one regularised CCA, and the ways it could be used.

For one task: the best way to use every part, on validation, and their scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import TASKS, InputError, Task
from diptych._normalize import unit_length
from diptych.cca import (
    CanonicalModel,
    Moments,
    Spectra,
    Tikhonov,
    maps,
    regularized_cca,
    spectra_from_moments,
)
from diptych.cca._moments import Precision
from diptych.cca._weighting import project
from diptych.cca.selection import Path, make_grid, make_problem, regularization_path
from diptych.fusion._blocks import Block, Blocks, Floats, Geometry, side_by_side
from diptych.fusion._weights import Judge, Scored, best_correction
from diptych.ranking import metric

Side: TypeAlias = dict[str, Geometry]


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a task: which blocks it sees, how it is used, its share of the score and its maps."""

    part: Part
    use: Use
    weight: float
    linear: Linear


def embedded(members: Sequence[Member], blocks: Blocks, view: str, *, weighted: bool) -> Floats:
    """Unit embeddings of every member next to each other, times their weights if ``weighted``.

    Weighted items and plain queries have the weighted sum of cosines for their inner product.
    """
    parts = []
    for member in members:
        vectors = member.linear.embed(member.part.rows(blocks, view), view)
        parts.append(vectors * np.float32(member.weight) if weighted else vectors)
    return np.concatenate(parts, axis=1)


def choose_geometry(
    training: Pairs, held: Pairs, blocks: Mapping[str, Block], precision: Precision
) -> tuple[dict[str, Side], dict[str, Any]]:
    """The geometry of every block of both views, and what each candidate was worth.

    A block that has several candidates is fitted with each against the narrowest block of the other view, on
    a coarse grid; the mean of both tasks' r@1 decides. The first named wins a tie.
    """
    first = [
        {n: Geometry.of(blocks[n], blocks[n].candidates[0], rows, n) for n, rows in view.items()}
        for view in training[:2]
    ]
    sides: list[Side] = [dict(first[0]), dict(first[1])]
    told: dict[str, Any] = {}
    for at, (view, side) in enumerate(zip(training[:2], sides, strict=True)):
        other = 1 - at
        partner = min(training[other], key=lambda name: training[other][name].shape[1])
        for name, rows in view.items():
            worth: dict[str, float] = {}
            candidates = blocks[name].candidates
            for how in candidates if len(candidates) > 1 else ():
                geometry = Geometry.of(blocks[name], how, rows, name)
                shapes = {name: geometry, partner: first[other][partner]}
                names = (name, partner) if at == 0 else (partner, name)
                value = _worth(names, shapes, training, held, precision)
                if value > max(worth.values(), default=-1.0):
                    side[name] = geometry
                worth[how] = value
            told[name] = {"chosen": side[name].normalize, "pieces": side[name].pieces, "r@1": worth}
    return {"x": sides[0], "y": sides[1]}, told


def _worth(names: tuple[str, ...], shapes: Side, training: Pairs, held: Pairs, precision: Precision) -> float:
    part = Part((names[0],), (names[1],))

    def shaped(pairs: Pairs) -> Pairs:
        x, y = ({n: shapes[n].apply(view[n], n)} for n, view in zip(names, pairs[:2], strict=True))
        return x, y, pairs[2]

    train = shaped(training)
    moments = Moments.of(*part.views(*train[:2]), train[2], precision=precision)
    return level(path_of(part, spectra_from_moments(moments), shaped(held), COARSE))


Pairs: TypeAlias = tuple[Blocks, Blocks, np.ndarray[Any, np.dtype[np.int64]]]

COARSE = 8
"""Points per side where one thing is compared with another, and not the best γ looked for."""


@dataclass(frozen=True)
class Part:
    """Which blocks of X and of Y one model sees side by side, and the scale of each."""

    x: tuple[str, ...]
    y: tuple[str, ...]
    x_scales: tuple[float, ...] = ()
    y_scales: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Make the scales whole."""
        for names, scales in (("x", "x_scales"), ("y", "y_scales")):
            blocks, given = tuple(getattr(self, names)), tuple(getattr(self, scales))
            if not blocks or (given and len(given) != len(blocks)):
                raise InputError(f"a part of the blocks {blocks} with the scales {given}; give one for each.")
            object.__setattr__(self, names, blocks)
            object.__setattr__(self, scales, given or (1.0,) * len(blocks))

    def __str__(self) -> str:
        """As a table names it."""
        return f"{' + '.join(self.x)} × {' + '.join(self.y)}"

    def rows(self, blocks: Blocks, view: str) -> Floats:
        """Its features of one view, ``"x"`` or ``"y"``."""
        names, scales = (self.x, self.x_scales) if view == "x" else (self.y, self.y_scales)
        return side_by_side(blocks, names, scales)

    def views(self, x: Blocks, y: Blocks) -> tuple[Floats, Floats]:
        """Its features of both views."""
        return self.rows(x, "x"), self.rows(y, "y")


def together(x: Blocks, y: Blocks) -> list[Part]:
    """One part: everything side by side."""
    return [Part(tuple(x), tuple(y))]


def family(x: Blocks, y: Blocks) -> list[Part]:
    """Everything side by side, and each block alone with everything on the other side."""
    parts = together(x, y)
    if len(y) > 1:
        parts += [Part(tuple(x), (name,)) for name in y]
    if len(x) > 1:
        parts += [Part((name,), tuple(y)) for name in x]
    return parts


def scaled(moments: Moments, x: Floats, y: Floats) -> Moments:
    """The moments of views whose columns are multiplied by ``x`` and ``y``."""
    return Moments(
        moments.count,
        moments.x_mean * x,
        moments.y_mean * y,
        moments.xx * np.outer(x, x),
        moments.yy * np.outer(y, y),
        moments.xy * np.outer(x, y),
        moments.precision,
    )


@dataclass(frozen=True, eq=False)
class Linear:
    """A pair of linear maps for one task, on views centred by their means: cosine ranks."""

    x_mean: Floats
    y_mean: Floats
    x_map: Floats
    y_map: Floats

    @classmethod
    def of(cls, spectra: Spectra, model: CanonicalModel, weighting: Any, task: Task) -> Linear:
        """Of a fitted model, in float32."""
        arrays = spectra.x_mean, spectra.y_mean, *maps(model, weighting, task)
        return cls(*(np.ascontiguousarray(to_numpy(array), np.float32) for array in arrays))

    def embed(self, rows: Floats, view: str) -> Floats:
        """Unit-length embeddings of rows of ``"x"`` or of ``"y"``."""
        mean, weights = (self.x_mean, self.x_map) if view == "x" else (self.y_mean, self.y_map)
        return np.asarray(unit_length(project(np.asarray(rows, dtype=np.float32), mean, weights)))


@dataclass(frozen=True)
class Use:
    """A way to use a part for a task: how it is weighted, and γ as a multiple of the path's choice."""

    weighting: str
    relaxation: float


@dataclass(eq=False)
class FittedPart:
    """A part whose γ were chosen on validation, with what is needed to use it and to fit it again.

    Attributes
    ----------
    part
        The blocks.
    moments
        Of the training pairs.
    spectra
        Of the same.
    path
        The regularisation path.
    """

    part: Part
    moments: Moments
    spectra: Spectra
    path: Path

    def uses(self, task: Task, uses: list[Use], n_components: int | None) -> Iterator[tuple[Use, Linear]]:
        """Every one of the ``uses`` as linear maps; one SVD for each relaxation."""
        models: dict[float, CanonicalModel] = {}
        for use in uses:
            if use.relaxation not in models:
                models[use.relaxation] = self._model(self.spectra, task, use.relaxation, n_components)
            yield use, Linear.of(self.spectra, models[use.relaxation], use.weighting, task)

    def refitted(self, spectra: Spectra, task: Task, use: Use, n_components: int | None) -> Linear:
        """The maps of ``use`` from the spectra of more pairs, with γ grown by their number."""
        growth = use.relaxation * spectra.count / self.spectra.count
        return Linear.of(spectra, self._model(spectra, task, growth, n_components), use.weighting, task)

    def _model(self, spectra: Spectra, task: Task, factor: float, n_components: int | None) -> CanonicalModel:
        g_x, g_y = self.path.params(task)
        filters = Tikhonov(g_x * factor), Tikhonov(g_y * factor)
        if n_components is None or n_components > min(spectra.ranks) // 2:
            most = None if n_components is None else min(n_components, *spectra.ranks)
            return regularized_cca(spectra, *filters, most)
        return regularized_cca(spectra, *filters, n_components, leading=True)


def fit_part(
    part: Part, training: Pairs, validation: Pairs, grid: Any, precision: Precision, scales: tuple[float, ...]
) -> FittedPart:
    """Choose the scale of each block where there are several, then γ on the whole ``grid``."""
    x, y = part.views(*training[:2])
    moments = Moments.of(x, y, training[2], precision=precision)
    part, moments = _rescaled(part, moments, training, validation, scales)
    spectra = spectra_from_moments(moments)
    return FittedPart(part, moments, spectra, path_of(part, spectra, validation, grid, extend=True))


def path_of(part: Part, spectra: Spectra, validation: Pairs, grid: Any, *, extend: bool = False) -> Path:
    """The regularisation path of r@1, at full dimension."""
    problem = make_problem(spectra, (*part.views(*validation[:2]), validation[2]), dtype=np.float32)
    chosen = make_grid("tikhonov", grid, spectra)
    return regularization_path(problem, spectra, chosen, metric("r@1"), extend=extend)


def level(path: Path) -> float:
    """How good a path's choices are: the mean of both tasks."""
    return sum(path.best(task) for task in TASKS) / len(TASKS)


def _rescaled(
    part: Part, moments: Moments, training: Pairs, validation: Pairs, scales: tuple[float, ...]
) -> tuple[Part, Moments]:
    """Try each of the ``scales`` on one block after the other; the moments need no second pass."""
    widths = {name: rows.shape[1] for view in training[:2] for name, rows in view.items()}
    sides = {"x": part.x, "y": part.y}
    tried = [s for s in scales if s != 1.0]
    best = None
    for side, names in sides.items():
        # The first block keeps its scale: only the proportions count.
        for at in range(1, len(names) if tried else 1):
            if best is None:
                best = level(path_of(part, spectra_from_moments(moments), validation, COARSE))
            found = (best, part, moments)
            for scale in tried:
                changed = {"x": list(part.x_scales), "y": list(part.y_scales)}
                factor = {s: np.ones(sum(widths[n] for n in sides[s])) for s in sides}
                start = sum(widths[n] for n in names[:at])
                factor[side][start : start + widths[names[at]]] = scale
                changed[side][at] *= scale
                other = replace(part, x_scales=tuple(changed["x"]), y_scales=tuple(changed["y"]))
                rescaled = scaled(moments, factor["x"], factor["y"])
                value = level(path_of(other, spectra_from_moments(rescaled), validation, COARSE))
                if value > found[0]:
                    found = (value, other, rescaled)
            best, part, moments = found
    return part, moments


VIEW_OF_ITEMS: dict[Task, str] = {"search": "x", "annotate": "y"}
VIEW_OF_QUERIES: dict[Task, str] = {"search": "y", "annotate": "x"}


@dataclass(frozen=True, eq=False)
class Trial:
    """Validation items and queries of a task, and a bank of training queries, as blocks."""

    judge: Judge
    items: Blocks
    queries: Blocks
    bank: Blocks

    @property
    def task(self) -> Task:
        """What is looked for."""
        return self.judge.task


def uses_of(weightings: Sequence[str], relaxations: Sequence[float]) -> list[Use]:
    """Every way to try: the asymmetric weighting has the path's own γ, others also multiples of it."""
    return [
        Use(weighting, float(relaxation))
        for weighting in weightings
        for relaxation in ((1.0,) if weighting == "asymmetric" else relaxations)
    ]


def best_use(
    one: FittedPart, trial: Trial, uses: list[Use], n_components: int | None, kinds: Sequence[str]
) -> tuple[Use, Scored, dict[str, Any]]:
    """The use with the best corrected scores, its scores before correction, and all that was tried."""
    items, queries = VIEW_OF_ITEMS[trial.task], VIEW_OF_QUERIES[trial.task]
    best: tuple[float, Use, Scored] | None = None
    tried = []
    for use, linear in one.uses(trial.task, uses, n_components):
        found = linear.embed(one.part.rows(trial.items, items), items)
        asked, bank = (
            linear.embed(one.part.rows(rows, queries), queries) for rows in (trial.queries, trial.bank)
        )
        scored = Scored(asked @ found.T, bank @ found.T)
        correction, value, corrected = best_correction(trial.judge, scored, kinds)
        tried.append(
            {
                **vars(use),
                "recall": trial.judge.recall(scored.scores),
                "corrected": trial.judge.recall(corrected),
                "correction": vars(correction),
            }
        )
        if best is None or value > best[0]:
            best = value, use, scored
    assert best is not None
    told = {"part": str(one.part), "value": best[0], "best": vars(best[1]), "tried": tried}
    return best[1], best[2], told
