"""The models of a fusion: which blocks each one sees, its maps for a task, and how it is fitted again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np

from diptych._arrays import Floats, to_numpy
from diptych._checks import InputError, Task, check_choice
from diptych._devices import copy_to_device
from diptych._persistence import Schema
from diptych.cca import CanonicalModel, Moments, Spectra, Tikhonov, maps, regularized_cca
from diptych.cca._canonical import ranking_maps
from diptych.cca._correction import Gate
from diptych.cca._description import PartDescription, describe_polish
from diptych.cca._polish import Polish, carry_polish, sample_pairs
from diptych.cca._weighting import project, to_unit_length
from diptych.cca.selection._grids import Path
from diptych.fusion._blocks import Blocks, JointMoments, Pairs, Side, apply_geometry, unit_key
from diptych.fusion._hubness import make_rates


class Part(Schema, frozen=True):
    """Which blocks of X and of Y one model sees side by side.

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
    kind: Literal["awcca", "identity"] = "awcca"

    def __post_init__(self) -> None:
        check_choice(self.kind, ("awcca", "identity"), "kind")
        for view in ("x", "y"):
            names = tuple(getattr(self, view))
            if not names or (self.kind == "identity" and len(names) > 1):
                wanted = "one block of each view" if self.kind == "identity" else "at least one of each view"
                raise InputError(f"a part has the blocks {names} of {view.upper()}; give {wanted}.")
            msgspec.structs.force_setattr(self, view, names)

    def __str__(self) -> str:
        return f"{' + '.join(self.x)} × {' + '.join(self.y)}"

    def features(self, blocks: Blocks, view: str) -> Floats:
        """Return the features that the model sees of one view, ``"x"`` or ``"y"``."""
        rows = [blocks[name] for name in self.columns(view)]
        return rows[0] if len(rows) == 1 else np.concatenate(rows, axis=1)

    def columns(self, view: str) -> tuple[str, ...]:
        """Return the blocks that the model sees of one view."""
        names: tuple[str, ...] = self.x if view == "x" else self.y
        return (unit_key(names[0]),) if self.kind == "identity" else names

    def moments(self, joint: JointMoments) -> Moments:
        return joint.take(self.columns("x"), self.columns("y"))

    def spectra(self, joint: JointMoments) -> Spectra:
        return joint.spectra(self.columns("x"), self.columns("y"))

    def views(self, pairs: Pairs) -> tuple[Floats, Floats]:
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
        return self.x_mean if view == "x" else self.y_mean

    def map(self, view: str) -> Floats:
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
    the ``polish``, if it has one. They give ``canonical`` components, or those of ``ranking_maps``.
    """

    part: Part
    use: Use
    weight: float
    linear: LinearMaps
    params: tuple[float, float] | None = None
    polish: Polish | None = None
    canonical: bool = True

    @property
    def dimension(self) -> int:
        return int(self.linear.x_map.shape[1])


def refit_member(member: Member, task: Task, joint: JointMoments, factor: float) -> Member:
    """Return the member fitted on other moments, of ``factor`` times as many pairs, by which γ is scaled."""
    part, use = member.part, member.use
    if part.kind == "identity":
        identity = IdentityPart(part, part.moments(joint))
        return replace(member, linear=next(identity.make_maps(task, [use], None))[1])
    assert member.params is not None
    gammas = member.params[0] * factor, member.params[1] * factor
    # The gate's limits are distances in these coordinates, so a rotation of them is another model.
    most = member.dimension if member.canonical else None
    linear = _make_maps(part.spectra(joint), gammas, use.weighting, task, most, {})
    if member.polish is None:
        return replace(member, linear=linear, params=gammas)
    old = (
        member.linear.x_map @ np.linalg.inv(member.polish.x),
        member.linear.y_map @ np.linalg.inv(member.polish.y),
    )
    moments = part.moments(joint)
    polish = carry_polish(member.polish, moments, (linear.x_map, linear.y_map), old)
    return replace(member, linear=linear.multiply(polish), params=gammas, polish=polish)


def carry_vectors(vectors: Floats, old: Member, new: Member, view: str, joint: JointMoments) -> Floats:
    r"""Return unit vectors of ``old`` as ``new``, the same member refitted, would have them.

    The features are not known any more. With the maps W and W' and the covariance C of the view, the best
    linear prediction of the new coordinates from the old ones is :math:`(W^\top C W)^{-1} W^\top C W'`. If
    both have the same components up to their sign, it is exact.
    """
    if not len(vectors):
        return np.zeros((0, new.dimension), dtype=np.float32)
    part = old.part.moments(joint)
    gram = to_numpy(part.xx if view == "x" else part.yy)
    (mean, weights), (new_mean, new_weights) = (
        (linear.mean(view).astype(np.float64), linear.map(view).astype(np.float64))
        for linear in (old.linear, new.linear)
    )
    covariances = weights.T @ gram
    variances = covariances @ weights
    change = np.linalg.lstsq(variances, covariances @ new_weights, rcond=1e-10)[0]
    # Their lengths are not known either; the typical one serves to move the origin.
    length = np.sqrt(np.trace(variances) / part.count)
    moved = vectors * length @ change + (mean - new_mean) @ new_weights
    return np.asarray(to_unit_length(moved), dtype=np.float32)


def make_gate(members: Sequence[Member], view: str, joint: JointMoments, limits: tuple[float, float]) -> Gate:
    """Return the gate of queries of ``view``, for members fitted on these moments."""
    rates = []
    for member in members:
        moments = member.part.moments(joint)
        gram, mean = (moments.xx, moments.x_mean) if view == "x" else (moments.yy, moments.y_mean)
        weights = member.linear.map(view).astype(np.float64)
        squares = np.sum(weights * (to_numpy(gram) @ weights), axis=0) / moments.count
        squares += np.square((to_numpy(mean) - member.linear.mean(view)) @ weights)
        rates.append(make_rates(squares, member.weight))
    return Gate(np.concatenate(rates), *limits)


def embed_members(members: Sequence[Member], blocks: Blocks, view: str) -> Floats:
    vectors = [member.linear.embed(member.part.features(blocks, view), view) for member in members]
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


def uses_canonical_components(weighting: str, n_components: int | None) -> bool:
    """Return whether the maps of a model give canonical components, rather than those of ``ranking_maps``."""
    return weighting != "asymmetric" or n_components is not None


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
    if not uses_canonical_components(weighting, n_components):
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
        return int(self.moments.x_mean.shape[0])

    def make_maps(
        self, task: Task, uses: Sequence[Use], n_components: int | None
    ) -> Iterator[tuple[Use, LinearMaps]]:
        """Iterate over the ways to compare, or those of them that are in ``uses``."""
        eye = np.eye(self.dimension, dtype=np.float32)
        zero = np.zeros(self.dimension, dtype=np.float32)
        ways = Use("identity", 1.0), Use("centred identity", 1.0)
        for use in [use for use in uses if use in ways] or ways:
            x_mean = y_mean = zero
            if use.weighting == "centred identity":
                means = self.moments.x_mean, self.moments.y_mean
                x_mean, y_mean = (to_numpy(mean).astype(np.float32) for mean in means)
            yield use, LinearMaps(x_mean, y_mean, eye, eye)

    def params(self, task: Task, use: Use) -> None:
        """Return None: there is no γ."""

    def refit(self, joint: JointMoments) -> IdentityPart:
        """Return the part with the means of other pairs."""
        return IdentityPart(self.part, self.part.moments(joint))


AnyPart: TypeAlias = FittedPart | IdentityPart


def identity_blocks(parts: Iterable[Part], view: str) -> set[str]:
    """Return the blocks of a view that identity parts compare as they are."""
    return {getattr(part, view)[0] for part in parts if part.kind == "identity"}


def shape_pairs(geometry: Mapping[str, Side], pairs: Pairs, parts: Sequence[Part]) -> Pairs:
    """Return pairs in the geometry that the models of ``parts`` expect."""
    x, y = (
        apply_geometry(geometry[view], blocks, identity_blocks(parts, view))
        for view, blocks in zip("xy", pairs[:2], strict=True)
    )
    return x, y, pairs[2]


def joint_widths(
    geometry: Mapping[str, Side], members: Mapping[Task, Sequence[Member]]
) -> tuple[dict[str, int], dict[str, int]]:
    """Return names and widths of the blocks of both views in the moments of a fusion, in order."""
    parts = [member.part for of_task in members.values() for member in of_task]
    x, y = (
        {name: shape.width for name, shape in geometry[view].items()}
        | {
            unit_key(name): shape.width
            for name, shape in geometry[view].items()
            if name in identity_blocks(parts, view)
        }
        for view in ("x", "y")
    )
    return x, y


def project_pairs(
    part: Part, linear: LinearMaps, pairs: Sequence[Pairs], device: str | None = None
) -> tuple[Any, Any, Any]:
    """Return vectors of pairs that lie below each other, before unit length, and their pairing.

    Of very many a sample is taken. They are on the ``device`` if there is one.
    """
    views = [part.views(some) for some in pairs]
    starts = np.cumsum([0, *(len(x) for x, _ in views)])
    pairing = np.concatenate([some[2] + start for some, start in zip(pairs, starts[:-1], strict=True)])
    x, y = (
        np.concatenate([linear.project(rows[at], view) for rows in views]) for at, view in enumerate("xy")
    )
    if (rows := sample_pairs(pairing)) is not None:
        y, pairing = y[rows], pairing[rows]
    if device is None:
        return x, y, pairing
    return copy_to_device(x, device), copy_to_device(y, device), copy_to_device(pairing, device)


def name_members(members: Sequence[Member]) -> list[str]:
    """Return a name for each model of a fusion's task: its blocks, and more where two have the same."""
    names = [f"{m.part}, as encoded" if m.part.kind == "identity" else str(m.part) for m in members]
    repeats = [names[:at].count(name) for at, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, repeats, strict=True)]


_USES = {
    "none": "no weighting",
    "identity": "cosine of the features as encoded",
    "centred identity": "cosine of the features as encoded, without their means",
}


def describe_members(members: Sequence[Member]) -> list[PartDescription]:
    """Return the name, weight, use and components of each model of a fusion's task."""
    return [
        PartDescription(name, m.weight, _describe_use(m.use), m.dimension)
        for name, m in zip(name_members(members), members, strict=True)
    ]


def _describe_use(use: Use) -> str:
    words = _USES.get(use.weighting, f"{use.weighting} weighting")
    return f"{words}, {describe_polish(use.epochs)}" if use.epochs else words
