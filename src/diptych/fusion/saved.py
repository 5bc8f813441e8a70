"""A fitted fusion as named arrays and plain JSON, and as a folder of both."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych import folders, storage
from diptych.checks import TASKS, InputError, Task
from diptych.fusion.blocks import Floats, Geometry
from diptych.fusion.hubness import Correction
from diptych.fusion.members import Member, Side
from diptych.fusion.parts import Linear, Part, Use
from diptych.normalize import check_normalization

FORMAT_VERSION = 1
KIND = "fusion"

Tensors = dict[str, np.ndarray[Any, Any]]
Loaded = tuple[
    dict[str, Any],
    dict[str, Side],
    dict[Task, list[Member]],
    dict[Task, Correction],
    dict[Task, Floats],
    dict[str, Any],
]


def pack(
    params: Mapping[str, Any],
    geometry: Mapping[str, Side],
    members: Mapping[Task, list[Member]],
    corrections: Mapping[Task, Correction],
    banks: Mapping[Task, Floats],
    selection: Mapping[str, Any],
) -> tuple[Tensors, dict[str, Any]]:
    """A fusion as named arrays and plain JSON."""
    tensors: Tensors = {}
    stored: dict[str, Any] = {}
    for task in TASKS:
        tensors[f"{task}.bank"] = banks[task]
        stored[task] = {"correction": vars(corrections[task]), "members": []}
        for at, member in enumerate(members[task]):
            for name, array in vars(member.linear).items():
                tensors[f"{task}.{at}.{name}"] = array
            stored[task]["members"].append(
                {"part": vars(member.part), "use": vars(member.use), "weight": member.weight}
            )
    shapes = {view: {name: vars(each) for name, each in side.items()} for view, side in geometry.items()}
    return tensors, {
        "params": dict(params),
        "geometry": shapes,
        "tasks": stored,
        "selection": dict(selection),
    }


def unpack(tensors: Tensors, config: Mapping[str, Any], folder: Path) -> Loaded:
    """What ``pack`` packed; ``folder`` is where it was read, for messages."""
    try:
        geometry = {view: _side(config["geometry"][view]) for view in ("x", "y")}
        members = {task: _members(tensors, config["tasks"][task], task, geometry, folder) for task in TASKS}
        corrections = {task: Correction(**config["tasks"][task]["correction"]) for task in TASKS}
        params = {"preset": str(config["params"]["preset"]), "grid": int(config["params"]["grid"])}
        selection = dict(config["selection"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder / storage.CONFIG} does not describe a fusion ({error!r}); save the model again."
        ) from None
    banks = {}
    for task in TASKS:
        width = sum(member.linear.x_map.shape[1] for member in members[task])
        banks[task] = storage.take(tensors, f"{task}.bank", (None, width), folder / storage.TENSORS)
        if corrections[task].kind != "none" and len(banks[task]) == 0:
            raise InputError(
                f"{folder / storage.TENSORS} has no bank for the {task} correction; save it again."
            )
    return params, geometry, members, corrections, banks, selection


def save(folder: str | os.PathLike[str], tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Write a packed fusion; a crash on the way leaves the folder as it was."""
    folders.save_model(folder, KIND, FORMAT_VERSION, tensors, config)


def load(folder: str | os.PathLike[str]) -> Loaded:
    """Read what ``save`` wrote."""
    return unpack(*folders.load_model(folder, KIND, FORMAT_VERSION))


def _side(stored: Mapping[str, Any]) -> Side:
    side: Side = {}
    for name, each in stored.items():
        pieces, width, scale = int(each["pieces"]), int(each["width"]), float(each["scale"])
        if pieces < 1 or width < 1 or not 0.0 < scale < float("inf"):
            raise ValueError(f"block {name!r} of {width} features in {pieces} pieces, times {scale}")
        side[str(name)] = Geometry(check_normalization(each["normalize"]), pieces, scale, width)
    return side


def _members(
    tensors: Tensors, stored: Mapping[str, Any], task: Task, geometry: Mapping[str, Side], folder: Path
) -> list[Member]:
    found = []
    for at, each in enumerate(stored["members"]):
        given = each["part"]
        part = Part(
            tuple(map(str, given["x"])),
            tuple(map(str, given["y"])),
            tuple(map(float, given["x_scales"])),
            tuple(map(float, given["y_scales"])),
        )
        widths = [
            sum(geometry[view][name].width for name in names)
            for view, names in (("x", part.x), ("y", part.y))
        ]
        weight = float(each["weight"])
        numbers = (weight, *part.x_scales, *part.y_scales)
        if not all(0.0 < number < float("inf") for number in numbers):
            raise ValueError(f"a member with the weight and scales {numbers}")
        path, name = folder / storage.TENSORS, f"{task}.{at}"
        x_map = storage.take(tensors, f"{name}.x_map", (widths[0], None), path)
        linear = Linear(
            storage.take(tensors, f"{name}.x_mean", (widths[0],), path),
            storage.take(tensors, f"{name}.y_mean", (widths[1],), path),
            x_map,
            storage.take(tensors, f"{name}.y_map", (widths[1], x_map.shape[1]), path),
        )
        use = Use(str(each["use"]["weighting"]), float(each["use"]["relaxation"]))
        found.append(Member(part, use, weight, linear))
    if not found:
        raise ValueError(f"no members for {task}")
    return found
