"""Named ways to normalise the rows of a view; the name is saved with a model and applied again on use."""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from diptych._arrays import Array, namespace
from diptych._checks import check_choice

Normalization: TypeAlias = Literal["none", "unit", "signed-sqrt", "sqrt-unit"]
NORMALIZATIONS: tuple[Normalization, ...] = ("none", "unit", "signed-sqrt", "sqrt-unit")


def check_normalization(name: object) -> Normalization:
    """``name`` if it is the name of a normalisation."""
    return cast(Normalization, check_choice(name, NORMALIZATIONS, "normalize"))


def normalize(view: Array, how: str = "unit") -> Array:
    r"""The rows of ``view``, normalised.

    Parameters
    ----------
    view
        Floating-point matrix; rows are items.
    how
        ``"none"``: as they are. ``"unit"``: to length 1. ``"signed-sqrt"``: each entry becomes
        :math:`\mathrm{sign}(v)\sqrt{|v|}`, which tames bursty features. ``"sqrt-unit"``: that, then to
        length 1. Rows of zeros stay zero.

    Examples
    --------
    >>> import numpy as np
    >>> normalize(np.array([[9.0, -16.0]]), "sqrt-unit")
    array([[ 0.6, -0.8]])
    """
    how = check_normalization(how)
    if how == "none":
        return view
    return unit_length(view) if how == "unit" else _after_root(signed_root(view), how)


def signed_root(view: Array) -> Array:
    """Square roots of the magnitudes, with the signs kept."""
    xp = namespace(view)
    return xp.sign(view) * xp.sqrt(xp.abs(view))


def unit_length(view: Array) -> Array:
    """Rows scaled to Euclidean length 1; rows of zeros stay zero."""
    xp = namespace(view)
    # Dividing by the largest entry first keeps the squares of very long or very short rows in range.
    largest = xp.max(xp.abs(view), axis=1, keepdims=True)
    scaled = view / xp.where(largest > 0, largest, xp.ones_like(largest))
    lengths = xp.linalg.vector_norm(scaled, axis=1, keepdims=True)
    return scaled / xp.where(lengths > 0, lengths, xp.ones_like(lengths))


def _after_root(rooted: Array, how: str) -> Array:
    return unit_length(rooted) if how == "sqrt-unit" else rooted
