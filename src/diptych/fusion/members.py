"""The models whose scores a fusion sums, side by side in one vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from diptych.fusion.blocks import Blocks, Floats, Geometry
from diptych.fusion.parts import Linear, Part, Use

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
