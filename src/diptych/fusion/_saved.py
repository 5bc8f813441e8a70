"""A fitted Fusion as a config and named arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from diptych._checks import TASKS, InputError, Task, check_choice
from diptych._persistence import Schema, Tensors, take_array
from diptych.cca._correction import Correction, Gate, Hubness
from diptych.cca._polish import take_polish
from diptych.fusion._blocks import Side
from diptych.fusion._fitting import PRESETS, SelectionReport
from diptych.fusion._members import LinearMaps, Member, Part, Use

if TYPE_CHECKING:
    from diptych.fusion._fusion import Fusion

KIND = "fusion"


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
        if (self.params is None) != (self.part.kind == "identity"):
            raise InputError(f"a member of the kind {self.part.kind!r} has the γ {self.params}")


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
        if any(name != block.name for side in self.geometry.values() for name, block in side.items()):
            raise InputError("geometry has a block under the name of another")
        for member in (member for task in self.tasks.values() for member in task.members):
            unknown = {*member.part.x} - {*self.geometry["x"]} | {*member.part.y} - {*self.geometry["y"]}
            if unknown:
                raise InputError(f"a member names the unknown blocks {sorted(unknown)}")


def pack_fusion(model: Fusion) -> tuple[FusionConfig, Tensors]:
    """Return a fitted model as a config and named arrays."""
    tensors: Tensors = {}
    tasks: dict[Task, TaskConfig] = {}
    for task in TASKS:
        hubness, members = model.hubness_[task], []
        for at, member in enumerate(model.members_[task]):
            arrays = dict(vars(member.linear))
            if member.polish is not None:
                arrays |= {"polish_x": member.polish.x, "polish_y": member.polish.y}
            tensors |= {f"{task}.{at}.{name}": array for name, array in arrays.items()}
            settings = member.part, member.use, member.weight, member.params, member.canonical
            members.append(MemberConfig(*settings))
        tensors[f"{task}.bank"], limits = hubness.bank, None
        if hubness.gate is not None:
            tensors[f"{task}.gate"] = hubness.gate.rates
            limits = hubness.gate.low, hubness.gate.high
        tasks[task] = TaskConfig(hubness.correction, members, limits)
    grid = model.grid if isinstance(model.grid, int) else 20
    return FusionConfig(model.preset, grid, model.geometry_, tasks, model.selection_), tensors


def unpack_fusion(model: Fusion, config: FusionConfig, tensors: Tensors, source: Path) -> None:
    """Set the parameters and attributes that were packed; ``source`` is where arrays were read."""
    model.preset, model.grid = config.preset, config.grid
    model.geometry_, model.selection_ = config.geometry, config.selection
    model.members_, model.hubness_ = {}, {}
    for task in TASKS:
        stored = config.tasks[task]
        members = model.members_[task] = [
            _take_member(tensors, f"{task}.{at}", member, config, source)
            for at, member in enumerate(stored.members)
        ]
        width = sum(member.dimension for member in members)
        bank, gate = take_array(tensors, f"{task}.bank", (None, width), source), None
        if stored.correction.kind != "none" and len(bank) == 0:
            raise InputError(f"{source} has no bank for the {task} correction; save the model again.")
        if stored.gate is not None:
            gate = Gate(take_array(tensors, f"{task}.gate", (width,), source), *stored.gate)
        model.hubness_[task] = Hubness(stored.correction, bank, gate)


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
