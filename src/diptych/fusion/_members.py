"""The models of a fusion: which blocks each one sees, how it is fitted, and how it is used for a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import fields_to_numpy, move_like, namespace, to_numpy
from diptych._checks import QUERY_VIEW, SEARCHED_VIEW, TASKS, InputError, Task, check_choice
from diptych._devices import copy_to_device
from diptych._persistence import Schema
from diptych._threads import progress_bar
from diptych.cca import (
    CanonicalModel,
    Moments,
    Spectra,
    Tikhonov,
    maps,
    regularized_cca,
    spectra_from_moments,
)
from diptych.cca._canonical import ranking_maps
from diptych.cca._polish import (
    COMPONENTS,
    Polish,
    carry_polish,
    choose_epochs,
    polish_vectors,
    sample_pairs,
)
from diptych.cca._streaming import Engine
from diptych.cca._weighting import project, to_unit_length
from diptych.cca.selection._grids import Path, Route, make_grid
from diptych.fusion._blocks import (
    Block,
    Blocks,
    Columns,
    Floats,
    Geometry,
    JointMoments,
    Pairs,
    Side,
    apply_geometry,
    sample_images,
    unit_key,
)
from diptych.fusion._hubness import Evaluator, Gate, PartScores, choose_correction, make_rates
from diptych.ranking import metric, ranks

COARSE = 8
"""Points per side of the grid where alternatives are only compared with each other."""

DOUBT = 3.0
"""Standard deviations from chance, beyond which two blocks are taken for those of a dual encoder."""


class Part(Schema, frozen=True):
    """Which blocks of X and of Y one model sees side by side, and the scale of each.

    ``kind="identity"`` fits nothing: it compares one block of X with one block of Y as they are, by their
    cosine, as CLIP and other dual encoders do. Both must have the same width.

    Examples
    --------
    >>> str(Part(("resnet", "dino"), ("hkse",)))
    'resnet + dino × hkse'
    >>> str(Part(("clip images",), ("clip texts",), kind="identity"))
    'clip images × clip texts'
    """

    x: tuple[str, ...]
    y: tuple[str, ...]
    x_scales: tuple[float, ...] = ()
    y_scales: tuple[float, ...] = ()
    kind: Literal["awcca", "identity"] = "awcca"

    def __post_init__(self) -> None:
        """Check the settings, and set scales that are not given to 1."""
        check_choice(self.kind, ("awcca", "identity"), "kind")
        for view in ("x", "y"):
            names, scales = tuple(getattr(self, view)), tuple(getattr(self, f"{view}_scales"))
            if not names or (scales and len(scales) != len(names)):
                raise InputError(f"a part has the blocks {names} and the scales {scales}; give one for each.")
            if not all(0.0 < scale < float("inf") for scale in scales):
                raise InputError(f"a part has the scales {scales}; give positive numbers.")
            msgspec.structs.force_setattr(self, view, names)
            msgspec.structs.force_setattr(self, f"{view}_scales", scales or (1.0,) * len(names))
            if self.kind == "identity" and (len(names) > 1 or scales not in ((), (1.0,))):
                raise InputError(f"an identity part has {names}; give one block of each view, and no scales.")

    def __str__(self) -> str:
        """Return the blocks, for tables."""
        return f"{' + '.join(self.x)} × {' + '.join(self.y)}"

    def features(self, blocks: Blocks, view: str) -> Floats:
        """Return the features that the model sees of one view, ``"x"`` or ``"y"``."""
        names, scales = self.columns(view)
        scaled = [
            blocks[name] if scale == 1.0 else blocks[name] * blocks[name].dtype.type(scale)
            for name, scale in zip(names, scales, strict=True)
        ]
        return scaled[0] if len(scaled) == 1 else np.concatenate(scaled, axis=1)

    def columns(self, view: str) -> Columns:
        """Return the blocks that the model sees of one view, and their scales."""
        if self.kind == "identity":
            return (unit_key(getattr(self, view)[0]),), (1.0,)
        return (self.x, self.x_scales) if view == "x" else (self.y, self.y_scales)

    def spectra(self, joint: JointMoments) -> Spectra:
        """Return the spectra of what the model sees."""
        return joint.spectra(self.columns("x"), self.columns("y"))

    def views(self, pairs: Pairs) -> tuple[Floats, Floats]:
        """Return the features that the model sees of both views."""
        return self.features(pairs[0], "x"), self.features(pairs[1], "y")


class Use(Schema, frozen=True):
    """How a model is used for a task: its weighting, and γ as a multiple of the path's choice.

    ``epochs`` are those of its polish; 0 if it has none. An identity part has no γ. Its weighting is
    ``"identity"`` or, with the means removed, ``"centred identity"``.
    """

    weighting: str
    relaxation: float
    epochs: int = 0


@dataclass(frozen=True, eq=False)
class LinearMaps:
    """The linear maps of both views for one task, and the means that centre them; cosine ranks."""

    x_mean: Floats
    y_mean: Floats
    x_map: Floats
    y_map: Floats

    def mean(self, view: str) -> Floats:
        """Return the mean of ``"x"`` or ``"y"``."""
        return self.x_mean if view == "x" else self.y_mean

    def map(self, view: str) -> Floats:
        """Return the map of ``"x"`` or ``"y"``."""
        return self.x_map if view == "x" else self.y_map

    def keep(self, most: int) -> LinearMaps:
        """Return the maps to at most so many components, the first."""
        return replace(self, x_map=self.x_map[:, :most], y_map=self.y_map[:, :most])

    def multiply(self, polish: Polish) -> LinearMaps:
        """Return the maps with a polish."""
        return replace(self, x_map=self.x_map @ polish.x, y_map=self.y_map @ polish.y)

    def project(self, features: Floats, view: str) -> Floats:
        """Return vectors for features of ``"x"`` or ``"y"``, before they are scaled to unit length."""
        return np.asarray(project(np.asarray(features, dtype=np.float32), self.mean(view), self.map(view)))

    def embed(self, features: Floats, view: str) -> Floats:
        """Return vectors of unit length for features of ``"x"`` or ``"y"``."""
        return np.asarray(to_unit_length(self.project(features, view)))


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a task: the blocks it sees, how it is used, its weight in the score and its maps.

    ``params`` are the γ of X and of Y that it was fitted with; None if it was not fitted. The maps contain
    the ``polish``, if it has one.
    """

    part: Part
    use: Use
    weight: float
    linear: LinearMaps
    params: tuple[float, float] | None = None
    polish: Polish | None = None

    @property
    def dimension(self) -> int:
        """The length of its vectors."""
        return int(self.linear.x_map.shape[1])


def refit_member(member: Member, task: Task, joint: JointMoments, factor: float) -> Member:
    """Return the member fitted on other moments, of ``factor`` times as many pairs, by which γ is scaled."""
    part, use = member.part, member.use
    if part.kind == "identity":
        identity = IdentityPart(part, joint.take(part.columns("x"), part.columns("y")))
        return replace(member, linear=next(identity.make_maps(task, [use], None))[1])
    if member.params is None:
        raise InputError(
            "this model was saved without its γ, by an older version; fit it again on all pairs."
        )
    gammas = member.params[0] * factor, member.params[1] * factor
    spectra = part.spectra(joint)
    most = member.dimension if use.epochs or member.dimension < min(spectra.ranks) else None
    linear = _make_maps(spectra, gammas, use.weighting, task, most, {})
    if member.polish is None:
        return replace(member, linear=linear, params=gammas)
    old = (
        member.linear.x_map @ np.linalg.inv(member.polish.x),
        member.linear.y_map @ np.linalg.inv(member.polish.y),
    )
    moments = joint.take(part.columns("x"), part.columns("y"))
    polish = carry_polish(member.polish, moments, (linear.x_map, linear.y_map), old)
    return replace(member, linear=linear.multiply(polish), params=gammas, polish=polish)


def carry_vectors(vectors: Floats, before: Member, after: Member, view: str, joint: JointMoments) -> Floats:
    r"""Return unit vectors of ``before`` as ``after``, the same member refitted, would have them.

    The features are not known any more. With the maps W and W' and the covariance C of the view, the best
    linear prediction of the new coordinates from the old ones is :math:`(W^\top C W)^{-1} W^\top C W'`. If
    both have the same components up to their sign, it is exact.
    """
    if not len(vectors):
        return np.zeros((0, after.dimension), dtype=np.float32)
    part = joint.take(before.part.columns("x"), before.part.columns("y"))
    gram = to_numpy(part.xx if view == "x" else part.yy)
    (mean, weights), (new_mean, new_weights) = (
        (each.mean(view).astype(np.float64), each.map(view).astype(np.float64))
        for each in (before.linear, after.linear)
    )
    covariances = weights.T @ gram
    own = covariances @ weights
    change = np.linalg.lstsq(own, covariances @ new_weights, rcond=1e-10)[0]
    # Their lengths are not known either; the typical one serves to move the origin.
    length = np.sqrt(np.trace(own) / part.count)
    moved = vectors * length @ change + (mean - new_mean) @ new_weights
    return np.asarray(to_unit_length(moved), dtype=np.float32)


def make_gate(members: Sequence[Member], view: str, joint: JointMoments, limits: tuple[float, float]) -> Gate:
    """Return the gate of queries of ``view``, for members fitted on these moments."""
    rates = []
    for member in members:
        moments = joint.take(member.part.columns("x"), member.part.columns("y"))
        gram, mean = (moments.xx, moments.x_mean) if view == "x" else (moments.yy, moments.y_mean)
        weights = member.linear.map(view).astype(np.float64)
        squares = np.sum(weights * (to_numpy(gram) @ weights), axis=0) / moments.count
        squares += np.square((to_numpy(mean) - member.linear.mean(view)) @ weights)
        rates.append(make_rates(squares, member.weight))
    return Gate(np.concatenate(rates), *limits)


def project_members(members: Sequence[Member], blocks: Blocks, view: str) -> list[Floats]:
    """Return the vectors of each member, not yet of unit length."""
    return [member.linear.project(member.part.features(blocks, view), view) for member in members]


def embed_members(members: Sequence[Member], blocks: Blocks, view: str, *, weighted: bool) -> Floats:
    """Return the vectors of all members side by side, multiplied by their weights if ``weighted``.

    The inner product of weighted items and unweighted queries is the weighted sum of cosines.
    """
    vectors = [np.asarray(to_unit_length(own)) for own in project_members(members, blocks, view)]
    if weighted:
        vectors = [own * np.float32(m.weight) for own, m in zip(vectors, members, strict=True)]
    return np.concatenate(vectors, axis=1)


@dataclass(eq=False)
class FittedPart:
    """A part whose γ were chosen on validation, with the spectra of the pairs it is fitted on."""

    part: Part
    spectra: Spectra
    path: Path

    growth: float = 1.0  # how many times more pairs than γ was chosen for

    @property
    def dimension(self) -> int:
        """The most components that it can have."""
        return min(self.spectra.ranks)

    def make_maps(
        self, task: Task, uses: Sequence[Use], n_components: int | None
    ) -> Iterator[tuple[Use, LinearMaps]]:
        """Iterate over uses with their maps; there is at most one decomposition for each relaxation."""
        models: dict[tuple[float, float], CanonicalModel] = {}
        for use in uses:
            gammas = self.params(task, use)
            yield use, _make_maps(self.spectra, gammas, use.weighting, task, n_components, models)

    def params(self, task: Task, use: Use) -> tuple[float, float]:
        """Return the γ of X and of Y for a use."""
        g_x, g_y = self.path.params(task)
        factor = use.relaxation * self.growth
        return g_x * factor, g_y * factor

    def refit(self, joint: JointMoments) -> FittedPart:
        """Return the part fitted on other pairs, with γ scaled by their number."""
        growth = self.growth * joint.moments.count / self.spectra.count
        return replace(self, spectra=self.part.spectra(joint), growth=growth)

    def report(self) -> dict[str, Any]:
        """Return the chosen γ and their places on the grid."""
        return {
            "params": {task: list(self.path.params(task)) for task in TASKS},
            "choice": {task: list(self.path.choice[task]) for task in TASKS},
            "seconds": self.path.seconds,
        }


def _make_maps(
    spectra: Spectra,
    gammas: tuple[float, float],
    weighting: Any,
    task: Task,
    n_components: int | None,
    models: dict[tuple[float, float], CanonicalModel],
) -> LinearMaps:
    """Return the maps of a model; ``models`` are those made before, to which it is added.

    The vectors of a part are only compared with each other, so the asymmetric weighting at full dimension
    needs no canonical components.
    """
    filters = Tikhonov(gammas[0]), Tikhonov(gammas[1])
    if weighting == "asymmetric" and n_components is None:
        linear = ranking_maps(spectra, *filters, task, short=True)
    else:
        if gammas not in models:
            most = None if n_components is None else min(n_components, *spectra.ranks)
            models[gammas] = regularized_cca(spectra, *filters, most)
        linear = maps(models[gammas], weighting, task)
    arrays = spectra.x_mean, spectra.y_mean, *linear
    return LinearMaps(*(np.ascontiguousarray(to_numpy(array), np.float32) for array in arrays))


@dataclass(frozen=True, eq=False)
class IdentityPart:
    """A part that compares two blocks as they are; ``moments`` give the means that may be removed."""

    part: Part
    moments: Moments

    @property
    def dimension(self) -> int:
        """The width of both blocks."""
        return int(self.moments.x_mean.shape[0])

    def make_maps(
        self, task: Task, uses: Sequence[Use], n_components: int | None
    ) -> Iterator[tuple[Use, LinearMaps]]:
        """Iterate over the ways to compare, or those of them that are in ``uses``."""
        eye = np.eye(self.dimension, dtype=np.float32)
        zero = np.zeros(self.dimension, dtype=np.float32)
        own = Use("identity", 1.0), Use("centred identity", 1.0)
        for use in [use for use in uses if use in own] or own:
            x_mean = y_mean = zero
            if use.weighting == "centred identity":
                means = self.moments.x_mean, self.moments.y_mean
                x_mean, y_mean = (to_numpy(mean).astype(np.float32) for mean in means)
            yield use, LinearMaps(x_mean, y_mean, eye, eye)

    def params(self, task: Task, use: Use) -> None:
        """Return None: there is no γ."""

    def refit(self, joint: JointMoments) -> IdentityPart:
        """Return the part with the means of other pairs."""
        return IdentityPart(self.part, joint.take(self.part.columns("x"), self.part.columns("y")))

    def report(self) -> dict[str, Any]:
        """Return that nothing was fitted."""
        return {"params": {}, "choice": {}, "seconds": 0.0}


AnyPart: TypeAlias = FittedPart | IdentityPart


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
            for a, its in training[0].items()
            for b, own in training[1].items()
            if its.shape[1] == own.shape[1]
            and _beats_chance(sample_images(({a: its}, {b: own}, training[2]), random_state))
        ]
        parts = identities + parts
    return parts


def identity_blocks(parts: Iterable[Part], view: str) -> set[str]:
    """Return the blocks of a view that identity parts compare as they are."""
    return {getattr(part, view)[0] for part in parts if part.kind == "identity"}


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
) -> tuple[dict[str, Side], dict[str, Any]]:
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
    report: dict[str, Any] = {}
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
            report[name] = {"chosen": side[name].normalize, "pieces": side[name].pieces, "r@1": scores}
    return {"x": sides[0], "y": sides[1]}, report


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
        self, vectors: Sequence[Floats], kinds: Sequence[str]
    ) -> tuple[float, PartScores, dict[str, Any]]:
        """Return the value of vectors of queries, items and bank, their scores, and a report."""
        scores = PartScores.of(*vectors)
        correction, value, corrected = choose_correction(self.evaluator, scores, kinds)
        report = {
            "recall": self.evaluator.recall(scores.scores),
            "corrected": self.evaluator.recall(corrected),
            "correction": msgspec.structs.asdict(correction),
        }
        return value, scores, report


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
    tried: list[dict[str, Any]]

    def report(self, part: Part) -> dict[str, Any]:
        """Return it as plain data."""
        best = msgspec.structs.asdict(self.use)
        return {"part": str(part), "value": self.value, "best": best, "tried": self.tried}


def choose_use(
    fitted: AnyPart, trial: Trial, uses: Sequence[Use], n_components: int | None, kinds: Sequence[str]
) -> Choice:
    """Return the use with the best corrected scores."""
    features = trial.features(fitted.part)
    best: Choice | None = None
    tried: list[dict[str, Any]] = []
    for use, linear in fitted.make_maps(trial.evaluator.task, uses, n_components):
        value, scores, report = trial.score([linear.project(rows, view) for rows, view in features], kinds)
        tried.append({**msgspec.structs.asdict(use), **report})
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
        value, scores, report = trial.score([rows @ matrices[view] for rows, view in vectors], kinds)
        use = msgspec.structs.replace(chosen.use, epochs=polish.epochs)
        tried.append({**msgspec.structs.asdict(use), **report})
        if value > best.value:
            best = Choice(use, linear.multiply(polish), value, scores, tried)
        return value

    choose_epochs(
        polish_vectors(*project_pairs(part, linear, [training], device), random_state),
        try_epoch,
        chosen.value,
    )
    return replace(best, tried=tried)


def project_pairs(
    part: Part, linear: LinearMaps, pairs: Sequence[Pairs], device: str | None = None
) -> tuple[Any, Any, Any]:
    """Return vectors of pairs that lie below each other, before unit length, and their pairing.

    Of very many a sample is taken. They are on the ``device`` if there is one.
    """
    views = [part.views(own) for own in pairs]
    starts = np.cumsum([0, *(len(x) for x, _ in views)])
    pairing = np.concatenate([own[2] + start for own, start in zip(pairs, starts[:-1], strict=True)])
    x, y = (np.concatenate([linear.project(own[at], view) for own in views]) for at, view in enumerate("xy"))
    if (rows := sample_pairs(pairing)) is not None:
        y, pairing = y[rows], pairing[rows]
    if device is None:
        return x, y, pairing
    return copy_to_device(x, device), copy_to_device(y, device), copy_to_device(pairing, device)
