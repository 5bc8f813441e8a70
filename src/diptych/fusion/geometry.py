"""Choosing how each feature block is normalised, on validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diptych.cca import Moments, spectra_from_moments
from diptych.cca.moments import Precision
from diptych.fusion.blocks import Block, Geometry
from diptych.fusion.members import Side
from diptych.fusion.parts import COARSE, Pairs, Part, level, path_of


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
