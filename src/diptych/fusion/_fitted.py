"""A fitted Fusion without the estimator: what a loaded model needs, and how it is saved.

scikit-learn is not imported here, because its import takes longer than a search.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast, overload

import msgspec
from numpy.typing import ArrayLike

from diptych._arrays import Array, Floats, to_numpy
from diptych._checks import (
    SEARCHED_VIEW,
    TASKS,
    InputError,
    Task,
    check_choice,
    check_pairing,
    check_task,
    check_view,
)
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Schema, Tensors, take_array
from diptych.cca._moments import Moments, Precision
from diptych.cca._polish import take_polish
from diptych.cca._projector import (
    VIEWS,
    BlockUse,
    Correction,
    Gate,
    Hubness,
    PartMaps,
    Projector,
    ViewKey,
    ViewMap,
    split_blocks,
)
from diptych.fusion._blocks import (
    Blocks,
    Pairs,
    Side,
    apply_geometry,
    as_blocks,
    count_rows,
    sum_pairs,
    unit_key,
)
from diptych.fusion._members import (
    LinearMaps,
    Member,
    Part,
    Use,
    identity_blocks,
    name_members,
)
from diptych.ranking import metric, ranks

if TYPE_CHECKING:
    from diptych.fusion._fusion import Fusion

Views: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
"""Features of one view, or named blocks of them."""

KIND = "fusion"

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
class FusedModels:
    """The models of a fusion: the geometry of the blocks, and for each task what ``Fusion`` documents."""

    geometry: dict[str, Side]
    members: dict[Task, list[Member]]
    corrections: dict[Task, Correction]
    banks: dict[Task, Floats]
    gates: dict[Task, Gate | None]

    def moment_widths(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return names and widths of the blocks of both views in ``Fusion.moments_``, in order."""
        parts = [member.part for members in self.members.values() for member in members]
        x, y = (
            {name: shape.width for name, shape in self.geometry[view].items()}
            | {
                unit_key(name): shape.width
                for name, shape in self.geometry[view].items()
                if name in identity_blocks(parts, view)
            }
            for view in ("x", "y")
        )
        return x, y


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


class MemberConfig(Schema, frozen=True):
    """One model of a task; its maps are stored as arrays."""

    part: Part
    use: Use
    weight: float
    params: tuple[float, float] | None = None
    canonical: bool = True

    def __post_init__(self) -> None:
        """Refuse a weight or a γ that is not positive."""
        for name, value in (("weight", self.weight), *(("γ", gamma) for gamma in self.params or ())):
            if not 0.0 < value < float("inf"):
                raise InputError(f"a member has the {name} {value}; expected a positive number")


class TaskConfig(Schema, frozen=True):
    """The models of a task, at least one, its correction, and the distances between which its gate closes."""

    correction: Correction
    members: list[MemberConfig]
    gate: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse a task without a model, and a gate that opens with the distance."""
        if not self.members:
            raise InputError("a task has no members")
        if self.gate is not None and not self.gate[0] < self.gate[1]:
            raise InputError(f"a gate closes between {self.gate}; expected two ascending numbers")


class FusionConfig(Schema, frozen=True, tag_field="kind", tag=KIND):
    """What ``config.json`` says of a fitted fusion."""

    preset: str
    grid: int
    geometry: dict[str, Side]
    tasks: dict[Task, TaskConfig]
    selection: SelectionReport

    def __post_init__(self) -> None:
        """Refuse an unknown preset, a missing task, and members of blocks that are not there."""
        check_choice(self.preset, tuple(PRESETS), "preset")
        if set(self.geometry) != {"x", "y"} or set(self.tasks) != set(TASKS):
            raise InputError(f"expected the views x and y and the tasks {', '.join(TASKS)}")
        for member in (member for task in self.tasks.values() for member in task.members):
            unknown = {*member.part.x} - {*self.geometry["x"]} | {*member.part.y} - {*self.geometry["y"]}
            if unknown:
                raise InputError(f"a member names the unknown blocks {sorted(unknown)}")


class FittedFusion:
    """A fitted ``Fusion`` that embeds, scores and is saved, but not fitted; see there for its attributes.

    A loaded retriever holds one. ``make_estimator`` returns it as a ``Fusion``.
    """

    precision: Precision = "float32"
    geometry_: dict[str, Side]
    members_: dict[Task, list[Member]]
    corrections_: dict[Task, Correction]
    banks_: dict[Task, Floats]
    gates_: dict[Task, Gate | None]
    selection_: SelectionReport

    def __init__(self, preset: str, *, grid: int | tuple[Any, Any]) -> None:
        self.preset = preset
        self.grid = grid

    def make_estimator(self) -> Fusion:
        """Return a ``Fusion`` with the same parameters and models."""
        from diptych.fusion._fusion import Fusion

        estimator = Fusion()
        estimator.__dict__.update(self.__dict__)
        return estimator

    def projector(self, task: str = "search") -> Projector:
        """Return what turns features into the vectors of a task, without the estimator."""
        self._check_fitted()
        name = check_task(task)
        members = self.members_[name]
        parts = tuple(
            PartMaps(label, self._map_view(member, "x"), self._map_view(member, "y"), member.weight)
            for label, member in zip(name_members(members), members, strict=True)
        )
        hubness = Hubness(self.corrections_[name], self.banks_[name], self.gates_[name])
        return Projector(name, parts, self.block_widths(), hubness=hubness)

    def items(self, features: Views, task: str = "search") -> Floats:
        """Return float32 vectors of the items of ``task`` (X for search, Y for annotate).

        Their inner products with ``queries`` are scores. The last coordinate is the hubness correction.
        """
        projector = self.projector(task)
        return projector.items(self._as_blocks(features, projector.searched))

    def queries(self, features: Views, task: str = "search") -> Floats:
        """Return float32 vectors of the queries of ``task`` (Y for search, X for annotate).

        The last coordinate is the share of the hubness correction that a query gets: 1, or less if it is
        far from the training queries.
        """
        projector = self.projector(task)
        return projector.queries(self._as_blocks(features, projector.queried))

    @overload
    def transform(self, X: Views, y: None = None, *, task: str = "search") -> Floats: ...

    @overload
    def transform(self, X: None = None, *, y: Views, task: str = "search") -> Floats: ...

    @overload
    def transform(self, X: Views, y: Views, *, task: str = "search") -> tuple[Floats, Floats]: ...

    def transform(self, X: Views | None = None, y: Views | None = None, *, task: str = "search") -> Any:
        """Return vectors of one view, or of both as a pair, for a task; their inner product ranks."""
        if X is None and y is None:
            raise InputError("transform got neither X nor y; give at least one view.")
        name = check_task(task)
        vectors = [
            (self.items if SEARCHED_VIEW[name] == view else self.queries)(features, name)
            for view, features in (("x", X), ("y", y))
            if features is not None
        ]
        return vectors[0] if len(vectors) == 1 else tuple(vectors)

    def ranks(self, X: Views, y: Views, pairing: ArrayLike | None = None, *, task: str = "search") -> Array:
        """Return the rank of the true item of every query, as ``diptych.ranking`` counts it."""
        name = check_task(task)
        of_x, of_y = self.transform(X, y, task=name)
        if SEARCHED_VIEW[name] == "x":
            of_x, of_y = self.projector(name).to_similarity(of_x, of_y)
        else:
            of_y, of_x = self.projector(name).to_similarity(of_y, of_x)
        return ranks(of_x, of_y, pairing, task=name)

    def score(
        self, X: Views, y: Views, pairing: ArrayLike | None = None, *, task: str | None = None
    ) -> float:
        """Return recall at 1 in percent; the mean of both tasks when ``task`` is None."""
        tasks = TASKS if task is None else (check_task(task),)
        return sum(metric("r@1")(self.ranks(X, y, pairing, task=t)) for t in tasks) / len(tasks)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``, atomically."""
        write_model_folder(folder, KIND, *self.pack())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpack(*read_model_folder(folder, KIND, FusionConfig))

    def pack(self) -> tuple[FusionConfig, Tensors]:
        """Return the fitted model as a config and named arrays."""
        self._check_fitted()
        tensors: Tensors = {}
        tasks: dict[Task, TaskConfig] = {}
        for task in TASKS:
            tensors[f"{task}.bank"] = self.banks_[task]
            for at, member in enumerate(self.members_[task]):
                tensors |= {f"{task}.{at}.{name}": array for name, array in vars(member.linear).items()}
                if member.polish is not None:
                    tensors |= {
                        f"{task}.{at}.polish_x": member.polish.x,
                        f"{task}.{at}.polish_y": member.polish.y,
                    }
            members = [
                MemberConfig(m.part, m.use, m.weight, m.params, m.canonical) for m in self.members_[task]
            ]
            gate = self.gates_[task]
            if gate is not None:
                tensors[f"{task}.gate"] = gate.rates
            limits = None if gate is None else (gate.low, gate.high)
            tasks[task] = TaskConfig(self.corrections_[task], members, limits)
        grid = self.grid if isinstance(self.grid, int) else 20
        return FusionConfig(self.preset, grid, self.geometry_, tasks, self.selection_), tensors

    @classmethod
    def unpack(cls, config: FusionConfig, tensors: Tensors, source: Path) -> Self:
        """Return the model that ``pack`` packed; ``source`` is where the arrays were read, for messages."""
        model = cls(config.preset, grid=config.grid)
        model.geometry_, model.selection_ = config.geometry, config.selection
        model.members_, model.corrections_, model.banks_, model.gates_ = {}, {}, {}, {}
        for task in TASKS:
            stored = config.tasks[task]
            members = model.members_[task] = [
                _take_member(tensors, f"{task}.{at}", member, config, source)
                for at, member in enumerate(stored.members)
            ]
            width = sum(member.dimension for member in members)
            bank = model.banks_[task] = take_array(tensors, f"{task}.bank", (None, width), source)
            model.corrections_[task] = stored.correction
            if stored.correction.kind != "none" and len(bank) == 0:
                raise InputError(f"{source} has no bank for the {task} correction; save the model again.")
            model.gates_[task] = None
            if stored.gate is not None:
                rates = take_array(tensors, f"{task}.gate", (width,), source)
                model.gates_[task] = Gate(rates, *stored.gate)
        return model

    def make_moments(self, X: Views, y: Views, pairing: ArrayLike | None = None) -> Moments:
        """Return the moments of more pairs, as ``moments_`` has those of the training pairs.

        Their sum is what ``refit_moments`` takes.
        """
        self._check_fitted()
        parts = [member.part for members in self.members_.values() for member in members]
        views = self._as_blocks(X, "x"), self._as_blocks(y, "y")
        pairs = shape_pairs(self.geometry_, as_pairs(*views, pairing), parts)
        return sum_pairs(pairs, self.precision)[0].moments

    def moment_widths(self) -> dict[str, int]:
        """Return the numbers of columns of ``"x"`` and of ``"y"`` in ``moments_``."""
        self._check_fitted()
        x, y = self._models().moment_widths()
        return {"x": sum(x.values()), "y": sum(y.values())}

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are models."""
        return hasattr(self, "members_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit() first.")

    def _models(self) -> FusedModels:
        return FusedModels(self.geometry_, self.members_, self.corrections_, self.banks_, self.gates_)

    def _set_models(self, models: FusedModels) -> None:
        self.geometry_, self.members_, self.corrections_ = models.geometry, models.members, models.corrections
        self.banks_, self.gates_ = models.banks, models.gates

    def block_widths(self) -> dict[ViewKey, dict[str, int]]:
        """Return names and widths of the feature blocks of both views."""
        return {view: {name: g.width for name, g in self.geometry_[view].items()} for view in VIEWS}

    def _as_blocks(self, features: Any, view: ViewKey) -> Blocks:
        """Return features of a view as named blocks; a matrix may have all of them side by side."""
        widths = self.block_widths()[view]
        blocks = as_blocks(features, view)
        if isinstance(features, Mapping) or list(widths) == [view]:
            return blocks
        return split_blocks(check_view(blocks[view], view.upper(), n_features=sum(widths.values())), widths)

    def _map_view(self, member: Member, view: ViewKey) -> ViewMap:
        """Return how a member projects a view, from features as they are encoded."""
        part, uses = member.part, list[BlockUse]()
        if part.kind == "identity":
            uses.append(BlockUse(getattr(part, view)[0], "unit"))
        else:
            for name, scale in zip(*part.columns(view), strict=True):
                geometry = self.geometry_[view][name]
                uses.append(BlockUse(name, geometry.normalize, geometry.pieces, geometry.scale * scale))
        return ViewMap(tuple(uses), member.linear.mean(view), member.linear.map(view))


def shape_pairs(geometry: Mapping[str, Side], pairs: Pairs, parts: Sequence[Part]) -> Pairs:
    """Return pairs in the geometry that the models of ``parts`` expect."""
    x, y = (
        apply_geometry(geometry[view], blocks, identity_blocks(parts, view))
        for view, blocks in zip("xy", pairs[:2], strict=True)
    )
    return x, y, pairs[2]


def as_pairs(x: Any, y: Any, pairing: Any = None) -> Pairs:
    """Return views and their pairing as blocks, checked."""
    x, y = as_blocks(x, "x"), as_blocks(y, "y")
    return x, y, cast(Any, to_numpy(check_pairing(pairing, count_rows(x), next(iter(y.values())))))


def _take_member(
    tensors: Tensors, name: str, stored: MemberConfig, config: FusionConfig, source: Path
) -> Member:
    part = stored.part
    m_x = sum(config.geometry["x"][block].width for block in part.x)
    m_y = sum(config.geometry["y"][block].width for block in part.y)
    x_map = take_array(tensors, f"{name}.x_map", (m_x, None), source)
    linear = LinearMaps(
        take_array(tensors, f"{name}.x_mean", (m_x,), source),
        take_array(tensors, f"{name}.y_mean", (m_y,), source),
        x_map,
        take_array(tensors, f"{name}.y_map", (m_y, x_map.shape[1]), source),
    )
    polish = take_polish(tensors, name, stored.use.epochs, x_map.shape[1], source)
    return Member(part, stored.use, stored.weight, linear, stored.params, polish, stored.canonical)
