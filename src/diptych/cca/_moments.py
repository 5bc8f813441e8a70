"""Moments: count, means and Gram matrices of paired views, summed in any order and in any pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import device, is_numpy_array

from diptych._arrays import (
    Array,
    as_dtype,
    count_groups,
    dense_like,
    group_sum,
    is_sparse,
    move_like,
    namespace,
    to_numpy,
)
from diptych._checks import (
    InputError,
    check_choice,
    check_number,
    check_pair_of_views,
    check_sample_weight,
    order_rows,
)
from diptych._persistence import (
    FORMAT_VERSION,
    check_format,
    check_plain_file,
    parse_metadata,
    parse_tensors,
    replace_file,
    take_array,
    write_tensors,
)
from diptych._threads import make_tiles, map_parallel, multiply_transposed
from diptych.cca._sparse import check_side, is_mostly_zero, scale_rows, shift_full_columns

Precision: TypeAlias = Literal["float64", "float32"]
PRECISIONS: tuple[Precision, ...] = ("float64", "float32")

CPU_BLOCK_BYTES = 2**27
DEVICE_BLOCK_BYTES = 2**30


@dataclass(eq=False)
class Moments:
    r"""Count, weighted means and centred Gram matrices of paired views: a monoid under ``+``.

    With caption j belonging to image :math:`p(j)` and :math:`c_i` captions to image i,

    .. math:: \mu_x = \tfrac1n \sum_i c_i x_i, \quad
              X^\top X = \sum_i c_i (x_i-\mu_x)(x_i-\mu_x)^\top, \quad
              X^\top Y = \sum_i (x_i-\mu_x) \Big(\sum_{p(j)=i} (y_j-\mu_y)\Big)^{\!\top}

    so an image is never repeated, and one without captions has weight 0. With a weight for each pair,
    :math:`c_i` is the sum of the weights of the captions of image i, every sum over pairs is weighted, and n
    is the total weight: a pair with the weight 2 counts as two equal pairs. Pieces merge by the
    shifted-mean update of Chan, Golub and LeVeque, which keeps a small covariance exact beside a large mean.

    Attributes
    ----------
    count
        Number of pairs; without weights, :math:`n = \sum_i c_i`. Pairs of weight 0 do not count.
    x_mean, y_mean
        Means over pairs.
    xx, yy, xy
        Centred sums of products over pairs (not divided by ``count``), float64.
    precision
        ``"float64"``: products and sums in float64. ``"float32"``: products in float32 of blocks
        shifted by their mean, sums in float64; about twice as fast, with a relative error of about 1e-5.
    weight
        Total weight of the pairs, n; None if no weights were given, when it is ``count``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(100, 3)), rng.normal(size=(100, 2))
    >>> whole = Moments.zero(3, 2).update(x, y)
    >>> halves = Moments.zero(3, 2).update(x[:50], y[:50]) + Moments.zero(3, 2).update(x[50:], y[50:])
    >>> bool(np.allclose(whole.xy, halves.xy))
    True
    """

    count: int
    x_mean: Array
    y_mean: Array
    xx: Array
    yy: Array
    xy: Array
    precision: Precision = "float64"
    weight: float | None = None

    @property
    def total(self) -> float:
        """Total weight of the pairs: their number, if no weights were given."""
        return self.count if self.weight is None else self.weight

    @classmethod
    def zero(cls, n_x: int, n_y: int, *, precision: Precision = "float64", like: Array = None) -> Moments:
        """Return the moments of no pairs, in the backend and on the device of ``like``."""
        check_choice(precision, PRECISIONS, "precision")
        reference = np.empty(0) if like is None else dense_like(like)
        xp = namespace(reference)

        def zeros(*shape: int) -> Array:
            return xp.zeros(shape, dtype=xp.float64, device=device(reference))

        return cls(0, zeros(n_x), zeros(n_y), zeros(n_x, n_x), zeros(n_y, n_y), zeros(n_x, n_y), precision)

    @classmethod
    def of(
        cls,
        x: Any,
        y: Any,
        pairing: Any = None,
        *,
        precision: Precision = "float64",
        block_bytes: int | None = None,
        sample_weight: Any = None,
    ) -> Moments:
        """Return the moments of whole views, in blocks of ``block_bytes`` (None: chosen for the backend).

        ``sample_weight`` has one weight for each row of ``y``; None: every pair has weight 1.
        """
        sample_weight = order_rows(sample_weight, y, "sample_weight", "Y")
        x, y, pairing = check_pair_of_views(x, y, pairing, sparse=True)
        _check_sides(x, y)
        weights = check_sample_weight(sample_weight, y)
        total = cls.zero(x.shape[1], y.shape[1], precision=precision, like=x)
        for block in paired_blocks(x, y, pairing, block_bytes, weights=weights):
            total.merge(products(*block, precision))
        return total

    def update(self, x: Any, y: Any, pairing: Any = None, sample_weight: Any = None) -> Moments:
        """Add a block of pairs in place and return self; ``pairing`` refers to rows of this ``x``."""
        sample_weight = order_rows(sample_weight, y, "sample_weight", "Y")
        x, y, pairing = check_pair_of_views(x, y, pairing, sparse=True)
        weights = check_sample_weight(sample_weight, y)
        self.merge(products(x, y, pairing, weights, self.precision))
        return self

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of the pairs of both."""
        if not isinstance(other, Moments):
            return NotImplemented
        # The sum is as exact as the less exact part.
        precision: Precision = "float32" if "float32" in (self.precision, other.precision) else "float64"
        copies = {name: array + 0.0 for name, array in self._arrays().items()}
        total = Moments(self.count, **copies, precision=precision, weight=self.weight)
        total.merge(Products(other, other.x_mean * 0.0, other.y_mean * 0.0))
        return total

    def __sub__(self, other: Moments) -> Moments:
        """Return the moments of the pairs that are left without those of ``other``, which are among them.

        >>> import numpy as np
        >>> x, y = np.random.default_rng(0).normal(size=(2, 50, 3))
        >>> rest = Moments.of(x, y) - Moments.of(x[:10], y[:10])
        >>> rest.count, bool(np.allclose(rest.xy, Moments.of(x[10:], y[10:]).xy))
        (40, True)
        """
        if not isinstance(other, Moments):
            return NotImplemented
        products = {name: -getattr(other, name) for name in ("xx", "yy", "xy")}
        weight = None if self.weight is None else -other.total
        return self + replace(other, count=-other.count, weight=weight, **products)

    def to_backend_of(self, reference: Array) -> Moments:
        """Return the moments in the backend and on the device of ``reference``."""
        return replace(self, **{name: move_like(array, reference) for name, array in self._arrays().items()})

    def take(self, x: Sequence[int], y: Sequence[int]) -> Moments:
        """Return the moments of some columns of both views, in the order given.

        >>> import numpy as np
        >>> both = np.random.default_rng(0).normal(size=(2, 50, 3))
        >>> part = Moments.of(*both).take([0, 2], [1])
        >>> bool(np.allclose(part.xy, Moments.of(both[0][:, [0, 2]], both[1][:, [1]]).xy))
        True
        """
        rows, columns = (move_like(np.asarray(values, dtype=np.int64), self.xx) for values in (x, y))
        return replace(
            self,
            x_mean=self.x_mean[rows],
            y_mean=self.y_mean[columns],
            xx=self.xx[rows, :][:, rows],
            yy=self.yy[columns, :][:, columns],
            xy=self.xy[rows, :][:, columns],
        )

    def _arrays(self) -> dict[str, Array]:
        return {name: getattr(self, name) for name in ("x_mean", "y_mean", "xx", "yy", "xy")}

    def save(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> None:
        """Write one safetensors file, atomically; ``notes`` are added to its metadata."""
        tensors = {name: to_numpy(array) for name, array in self._arrays().items()}
        metadata = {
            "format": "diptych-moments",
            "version": str(FORMAT_VERSION),
            "count": str(self.count),
            "precision": self.precision,
            **({} if self.weight is None else {"weight": repr(self.weight)}),
            **(notes or {}),
        }
        with replace_file(path) as staged:
            write_tensors(staged, tensors, metadata)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Moments:
        """Read what ``save`` wrote."""
        return cls.parse(check_plain_file(Path(path)).read_bytes(), Path(path))

    @classmethod
    def parse(cls, raw: bytes, path: Path) -> Moments:
        """Return the moments in the content of a file; ``path`` is where it was read, for messages."""
        tensors, metadata = parse_tensors(raw, path), parse_metadata(BytesIO(raw), path)
        check_format(metadata, "moments", path)
        x_mean = take_array(tensors, "x_mean", (None,), path)
        y_mean = take_array(tensors, "y_mean", (None,), path)
        n_x, n_y = len(x_mean), len(y_mean)
        count, precision = metadata.get("count", ""), metadata.get("precision")
        if not count.isdecimal() or precision not in PRECISIONS:
            raise InputError(
                f"{path} has count {count!r} and precision {precision!r}; save the moments again."
            )
        weight = None if "weight" not in metadata else check_number(metadata["weight"], f"weight of {path}")
        if weight is not None and not 0.0 <= weight < float("inf"):
            raise InputError(f"{path} has the weight {weight}; save the moments again.")
        return cls(
            int(count),
            x_mean,
            y_mean,
            take_array(tensors, "xx", (n_x, n_x), path),
            take_array(tensors, "yy", (n_y, n_y), path),
            take_array(tensors, "xy", (n_x, n_y), path),
            precision,
            weight,
        )

    @np.errstate(over="ignore", invalid="ignore")
    def merge(self, block: Products) -> None:
        """Add the products of a block, in place."""
        sums, (n_x, n_y) = block.sums, self.xy.shape
        if tuple(sums.xy.shape) != (n_x, n_y):
            raise InputError(
                f"a block has {sums.xy.shape[0]} and {sums.xy.shape[1]} features, but the moments have {n_x} "
                f"and {n_y}; give blocks with the same features."
            )
        if sums.count == 0:
            return
        xp = namespace(self.xx)
        x_mean, y_mean, x_rest, y_rest = (
            move_like(v, self.xx) for v in (sums.x_mean, sums.y_mean, block.x_rest, block.y_rest)
        )
        weight, total = sums.total, self.total + sums.total
        dx, dy = x_mean - self.x_mean, y_mean - self.y_mean
        # The distance of the means is added and the rest of the shift subtracted. Both are of rank one, so
        # one thin product does it in a single pass over each matrix.
        scale = [self.total * (weight / total), -float(weight)]
        scale = xp.asarray(scale, dtype=xp.float64, device=device(dx))
        x_sides, y_sides = xp.stack([dx, x_rest]), xp.stack([dy, y_rest])
        parts = [
            (target, move_like(gram, target), left, right, rows)
            for target, gram, left, right in (
                (self.xx, sums.xx, x_sides, x_sides),
                (self.yy, sums.yy, y_sides, y_sides),
                (self.xy, sums.xy, x_sides, y_sides),
            )
            for rows in (make_tiles(target.shape[0]) if is_numpy_array(target) else [slice(None)])
        ]

        def add(part: tuple[Array, Array, Array, Array, slice]) -> None:
            target, gram, left, right, rows = part
            with np.errstate(over="ignore", invalid="ignore"):
                target[rows, :] += (left[:, rows].T * scale) @ right
                target[rows, :] += gram[rows, :]

        map_parallel(add, parts, self.xx)
        self.x_mean += dx * (weight / total)
        self.y_mean += dy * (weight / total)
        self.weight = None if self.weight is None and sums.weight is None else total
        self.count += sums.count


@dataclass(frozen=True, eq=False)
class Products:
    """Moments of one block, but with products about a shift; rest = true mean − shift."""

    sums: Moments
    x_rest: Array
    y_rest: Array


@np.errstate(over="ignore", invalid="ignore")  # spectra_from_moments raises the error for an overflow
def products(x: Array, y: Array, pairing: Array, weights: Array | None, precision: Precision) -> Products:
    """Return the products of a checked block, with a weight for each row of ``y`` or with None.

    ``"float32"`` makes no float64 copy of the views.
    """
    xp = namespace(x, y)
    work, wide = getattr(xp, precision), xp.float64
    _check_sides(x, y)
    x, y = (as_dtype(view, work) for view in (x, y))
    x, y = (_dense_if_faster(view) for view in (x, y))
    x_count, n = x.shape[0], y.shape[0]
    total = None if weights is None else float(xp.sum(weights))
    if total == 0.0:
        empty = Moments.zero(int(x.shape[1]), int(y.shape[1]), precision=precision, like=x)
        return Products(empty, empty.x_mean, empty.y_mean)
    row_weights = xp.astype(count_groups(pairing, x_count, weights), work)
    pair_weights = None if weights is None else xp.astype(weights, work)

    def mean_over_pairs(view: Array, row_weights: Array | None) -> Array:
        return (
            view.mean(axis=0)
            if row_weights is None
            else (row_weights @ view) / (n if total is None else total)
        )

    # Any shift near the mean keeps the products small; ``merge`` corrects for its distance from the mean.
    x, x_shift = _shift(x, mean_over_pairs(x, row_weights))
    y, y_shift = _shift(y, mean_over_pairs(y, pair_weights))
    x_rest = xp.astype(mean_over_pairs(x, row_weights), wide)
    y_rest = xp.astype(mean_over_pairs(y, pair_weights), wide)
    row_by_row = x_count == n and bool(xp.all(pairing == xp.arange(n, device=device(pairing))))
    weighted = y if pair_weights is None else _scale_rows(y + 0.0, pair_weights)
    sums = weighted if row_by_row else group_sum(weighted, pairing, x_count)
    (xy,) = multiply_transposed([(x, sums)])
    if pair_weights is not None:
        y = _scale_rows(y, xp.sqrt(pair_weights))
    x = _scale_rows(x, xp.sqrt(row_weights))
    yy, xx = multiply_transposed([(y, y), (x, x)])
    means = xp.astype(x_shift, wide) + x_rest, xp.astype(y_shift, wide) + y_rest
    count = n if weights is None else int(xp.count_nonzero(weights))
    return Products(Moments(count, *means, xx, yy, xy, precision, total), x_rest, y_rest)


def _check_sides(x: Array, y: Array) -> None:
    for view, name in ((x, "X"), (y, "Y")):
        check_side(view, view.shape[1], name)


def _dense_if_faster(view: Array) -> Array:
    # One block may have many more entries than the others: it is made dense only if it is small.
    small = is_sparse(view) and 8 * view.shape[0] * view.shape[1] <= 2 * CPU_BLOCK_BYTES
    return view.toarray() if small and not is_mostly_zero(view) else view


def _shift(view: Array, shift: Array) -> tuple[Array, Array]:
    return shift_full_columns(view, shift) if is_sparse(view) else (view - shift, shift)


def _scale_rows(view: Array, factors: Array) -> Array:
    """Return the rows times ``factors``; a dense view is changed in place."""
    if is_sparse(view):
        return scale_rows(view, factors)
    view *= factors[:, None]
    return view


def block_rows(x: Array, y: Array, block_bytes: int | None = None) -> int:
    """Return the number of pairs in a block of about ``block_bytes`` (None: chosen for the backend)."""
    if block_bytes is None:
        block_bytes = CPU_BLOCK_BYTES if is_numpy_array(dense_like(x)) else DEVICE_BLOCK_BYTES

    def row_bytes(view: Array) -> int:
        # An entry of a sparse view has a column number too.
        return 16 * (1 + view.nnz // view.shape[0]) if is_mostly_zero(view) else 8 * int(view.shape[1])

    return max(1, block_bytes // (row_bytes(x) + row_bytes(y)))


def paired_blocks(
    x: Array,
    y: Array,
    pairing: Array,
    block_bytes: int | None = None,
    y_rows: Array | None = None,
    weights: Array | None = None,
) -> Iterator[tuple[Array, Array, Array, Array | None]]:
    """Yield the views, with a checked pairing, as blocks of pairs with a pairing and weights of their own.

    ``y_rows`` are the rows of ``y`` to use, ascending; None: all. They are taken in the order of their
    images, so a block has each of its images once. An image whose captions fall into two blocks is in both,
    which changes nothing: moments are sums over pairs.
    """
    xp = namespace(pairing)
    rows = block_rows(x, y, block_bytes)
    owners = pairing if y_rows is None else pairing[y_rows]
    in_order = not bool(xp.any(owners[1:] < owners[:-1]))
    order = y_rows
    if not in_order:
        order = xp.argsort(owners, stable=True)
        order = order if y_rows is None else y_rows[order]
    for start in range(0, owners.shape[0], rows):
        part = slice(start, start + rows)
        chosen = part if order is None else order[part]
        owners_of_block, block = pairing[chosen], y[chosen, :]
        x_rows, local = xp.unique_inverse(owners_of_block)
        first, last = int(x_rows[0]), int(x_rows[-1])
        whole = last - first + 1 == x_rows.shape[0]
        block_x = x[first : last + 1, :] if whole else x[x_rows, :]
        yield block_x, block, xp.reshape(local, (-1,)), None if weights is None else weights[chosen]
