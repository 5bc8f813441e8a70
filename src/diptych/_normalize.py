"""Normalisations of the rows of a view, by name; the name is saved with a model and applied to queries."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from diptych._arrays import Array, namespace
from diptych._checks import check_choice

Normalization: TypeAlias = Literal["none", "unit", "signed-sqrt", "sqrt-unit"]
NORMALIZATIONS: tuple[Normalization, ...] = ("none", "unit", "signed-sqrt", "sqrt-unit")


def check_normalization(name: object) -> Normalization:
    """Return ``name`` if it is a normalisation."""
    return cast(Normalization, check_choice(name, NORMALIZATIONS, "normalize"))


def normalize(view: Array, how: str = "unit") -> Array:
    r"""Return the rows of ``view``, normalised.

    ``"none"``: unchanged. ``"unit"``: scaled to length 1. ``"signed-sqrt"``: each entry becomes
    :math:`\mathrm{sign}(v)\sqrt{|v|}`, which reduces the weight of a few large entries. ``"sqrt-unit"``:
    ``"signed-sqrt"``, then ``"unit"``. Rows of zeros stay zero.

    >>> import numpy as np
    >>> normalize(np.array([[9.0, -16.0]]), "sqrt-unit")
    array([[ 0.6, -0.8]])
    """
    how = check_normalization(how)
    if how in ("signed-sqrt", "sqrt-unit"):
        xp = namespace(view)
        view = xp.sign(view) * xp.sqrt(xp.abs(view))
    return to_unit_length(view) if how in ("unit", "sqrt-unit") else view


def to_unit_length(view: Array) -> Array:
    """Return the rows of ``view`` scaled to Euclidean length 1; rows of zeros stay zero."""
    xp = namespace(view)
    # Dividing by the largest entry first keeps the squares of very long or very short rows in range.
    largest = xp.max(xp.abs(view), axis=1, keepdims=True)
    scaled = view / xp.where(largest > 0, largest, xp.ones_like(largest))
    lengths = xp.linalg.vector_norm(scaled, axis=1, keepdims=True)
    return scaled / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
