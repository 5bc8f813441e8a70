r"""From features to the vectors that are searched: one small object, whatever the model.

A task compares *items* of the view that is searched with *queries* of the other. A ``Projector`` gives both
vectors whose inner product ranks, so that one kind of index serves every model:

- **Cosine** is the inner product of vectors of length 1.
- **ℓ2**: :math:`-\lVert u - v\rVert^2 = 2\,(u \cdot v - \lVert u\rVert^2/2) - \lVert v\rVert^2`, and the last
  term is the same for all items. So an item has :math:`-\lVert u\rVert^2/2` as one more coordinate, and a
  query has 1.
- **Several parts** with weights w: :math:`\sum_p w_p \cos(u_p, v_p)` is the inner product of the items' unit
  vectors side by side, each multiplied by its weight, with those of the queries.
- **Hubness**: a correction b(u) is one number for an item, subtracted from its score for every query, and a
  query gets the share g(v) of it. So an item has −b(u) as one more coordinate, and a query has g(v).
- **Partners**: an item may have rows of the other view that belong to it, such as an image with captions.
  Then it lies between its direction and theirs, :func:`place_between`.

So vectors have at most one coordinate beside those of the parts, and an index for inner products searches by
them exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import Floats, to_numpy
from diptych._checks import (
    QUERY_VIEW,
    SEARCHED_VIEW,
    InputError,
    Task,
    check_pairing,
    check_view,
)
from diptych._persistence import Schema, Tensors, take_array
from diptych.cca._correction import Correction, Gate, Hubness
from diptych.cca._view_map import BlockUse, ViewMap
from diptych.cca._weighting import to_unit_length

ViewKey: TypeAlias = Literal["x", "y"]
VIEWS: tuple[ViewKey, ViewKey] = ("x", "y")
Float32s: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

UNCORRECTED = "uncorrected"
"""The name of all parts without the hubness correction."""

SCATTER = np.float32(3.0)
"""How much more partners scatter around an item than it is predicted wrong, as variances."""

_SHORT = 1e-15
"""A length below which float32 is not exact in the sum of squares."""


@dataclass(frozen=True, eq=False)
class PartMaps:
    """One model of a projector: its name for people, its map of each view, and its weight in the score."""

    name: str
    x: ViewMap
    y: ViewMap
    weight: float = 1.0

    def view(self, view: ViewKey) -> ViewMap:
        """Return the map of a view."""
        return self.x if view == "x" else self.y


class PartConfig(Schema, frozen=True):
    """A part as JSON; its means and maps are stored as arrays."""

    name: str
    x: tuple[BlockUse, ...]
    y: tuple[BlockUse, ...]
    weight: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a part that sees no features, and a weight that is not positive."""
        if not self.x or not self.y or not 0.0 < self.weight < float("inf"):
            raise InputError(f"the part {self.name!r} lacks a block, or has the weight {self.weight}")


class ProjectorConfig(Schema, frozen=True):
    """A projector as JSON, beside its arrays; ``gate`` has the distances between which the gate closes.

    Blocks are lists of names and widths, because JSON objects may come back in another order.
    """

    x: list[tuple[str, int]]
    y: list[tuple[str, int]]
    parts: list[PartConfig]
    euclidean: bool = False
    correction: Correction | None = None
    gate: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuse parts of blocks that are not there, and what no projector has."""
        for part in self.parts:
            for blocks, uses in ((dict(self.x), part.x), (dict(self.y), part.y)):
                for use in uses:
                    if use.name not in blocks or blocks[use.name] % use.slices:
                        raise InputError(
                            f"the part {part.name!r} uses a block {use.name!r} that is not there"
                        )
        if not self.parts or min(width for _, width in (*self.x, *self.y)) < 1:
            raise InputError("expected at least one part, and blocks of at least one feature")
        if self.euclidean and (len(self.parts) > 1 or self.correction is not None):
            raise InputError("ℓ2 is for one part without a correction")
        if self.gate is not None and (self.correction is None or not self.gate[0] < self.gate[1]):
            raise InputError(f"a gate closes between {self.gate}; expected two ascending numbers")


@dataclass(frozen=True, eq=False)
class Projector:
    """Vectors of items and of queries for one task; their inner product ranks. See the module.

    Parameters
    ----------
    task
        ``"search"``: items are of X and queries of Y. ``"annotate"``: the other way.
    parts
        The models whose cosines are summed, at least one.
    blocks
        Names and widths of the feature blocks of ``"x"`` and of ``"y"``, in the order in which they lie side
        by side in a matrix of features.
    euclidean
        Compare by ℓ2 instead of by the cosine; for one part.
    hubness
        The correction of scores, for models that have this coordinate.
    names
        What messages call the features of both views.

    Examples
    --------
    >>> import numpy as np
    >>> from diptych import AWCCA
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> projector = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :3]).projector("search")
    >>> scores = projector.queries(x[:5, :3]) @ projector.items(x).T
    >>> scores.argmax(axis=1)
    array([0, 1, 2, 3, 4])
    """

    task: Task
    parts: tuple[PartMaps, ...]
    blocks: Mapping[ViewKey, Mapping[str, int]]
    euclidean: bool = False
    hubness: Hubness | None = None
    names: Mapping[ViewKey, str] = field(default_factory=lambda: {"x": "X", "y": "Y"})

    @property
    def searched(self) -> ViewKey:
        """The view of the items."""
        return SEARCHED_VIEW[self.task]

    @property
    def queried(self) -> ViewKey:
        """The view of the queries."""
        return QUERY_VIEW[self.task]

    @property
    def dimension(self) -> int:
        """The length of the vectors."""
        return sum(part.x.dimension for part in self.parts) + self._has_further

    @property
    def _has_further(self) -> bool:
        return self.euclidean or self.hubness is not None

    def width(self, view: ViewKey) -> int:
        """Return the number of features of a view."""
        return sum(self.blocks[view].values())

    def normalization(self, view: ViewKey) -> str:
        """Return how a view's features are normalised before anything else, if that is one way for all."""
        uses = {use for part in self.parts for use in part.view(view).blocks}
        whole = len(self.blocks[view]) == len(uses) == 1 and next(iter(uses)).slices == 1
        return str(next(iter(uses)).normalize) if whole else "none"

    def items(self, features: Any, partners: Any = None, pairing: Any = None) -> Float32s:
        """Return vectors of items, from a matrix of features or named blocks of them.

        ``partners`` are features of the other view, of which row j belongs to item ``pairing[j]`` (None: row
        to row). An item that has some lies between itself and them; with ℓ2, they change nothing.
        """
        projected, lengths = self._project(features, self.searched)
        if partners is not None and not self.euclidean:
            others, _ = self._project(partners, self.queried)
            rows = check_pairing(pairing, len(projected[0]), others[0])
            pairs = zip(projected, others, strict=True)
            projected = [place_between(its_own, theirs, rows) for its_own, theirs in pairs]
            lengths = [np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in projected]
        vectors = self._scale(projected, lengths, [part.weight for part in self.parts])
        if self.euclidean:
            return np.hstack([vectors, -0.5 * np.sum(vectors**2, axis=1, keepdims=True)])
        if self.hubness is None:
            return vectors
        return np.hstack([vectors, self.hubness.item_coordinates(vectors)[:, None]])

    def queries(self, features: Any) -> Float32s:
        """Return vectors of queries, from a matrix of features or named blocks of them."""
        projected, lengths = self._project(features, self.queried)
        vectors = self._scale(projected, lengths, [1.0] * len(projected))
        if not self._has_further:
            return vectors
        further = np.ones(len(vectors), np.float32)
        if self.hubness is not None:
            further = self.hubness.query_coordinates(projected)
        return np.asarray(np.hstack([vectors, further[:, None]]), np.float32)

    def pair_scores(self, x: Any, y: Any, pairing: Any = None) -> Float32s:
        """Return how well each row of Y fits its row of X: the mean cosine of the parts, by their weights.

        With ℓ2, it is minus the distance. It has no hubness correction, so it is comparable between queries.
        Row j of Y belongs to row ``pairing[j]`` of X; None: row to row.

        >>> import numpy as np
        >>> from diptych import AWCCA
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> projector = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :3]).projector("search")
        >>> bool((projector.pair_scores(x, x[:, :3]) > projector.pair_scores(x, x[::-1, :3])).all())
        True
        """
        (x_parts, x_lengths), (y_parts, y_lengths) = self._project(x, "x"), self._project(y, "y")
        rows = check_pairing(pairing, len(x_parts[0]), y_parts[0])
        weights = [part.weight for part in self.parts]
        u = self._scale(x_parts, x_lengths, weights)[rows]
        v = self._scale(y_parts, y_lengths, [1.0] * len(weights))
        if self.euclidean:
            return -np.asarray(np.linalg.norm(u - v, axis=1))
        return np.asarray(np.einsum("ij,ij->i", u, v) / np.float32(sum(weights)))

    def pack(self) -> tuple[ProjectorConfig, Tensors]:
        """Return the projector as a config and named arrays; messages' names of the views are left out."""
        tensors: Tensors = {}
        for at, part in enumerate(self.parts):
            for view in VIEWS:
                maps = part.view(view)
                tensors |= {f"{at}.{view}_mean": maps.mean, f"{at}.{view}_map": maps.map}
        correction = gate = None
        if self.hubness is not None:
            correction, tensors["bank"] = self.hubness.correction, self.hubness.bank
            if self.hubness.gate is not None:
                tensors["gate"] = self.hubness.gate.rates
                gate = self.hubness.gate.low, self.hubness.gate.high
        x, y = (list(self.blocks[view].items()) for view in VIEWS)
        parts = [PartConfig(part.name, part.x.blocks, part.y.blocks, part.weight) for part in self.parts]
        return ProjectorConfig(x, y, parts, self.euclidean, correction, gate), tensors

    @classmethod
    def unpack(cls, task: Task, config: ProjectorConfig, tensors: Tensors, source: Path) -> Projector:
        """Return the projector that ``pack`` packed; ``source`` is where arrays were read, for messages."""
        blocks: dict[ViewKey, dict[str, int]] = {"x": dict(config.x), "y": dict(config.y)}

        def take(at: int, view: ViewKey, uses: tuple[BlockUse, ...], dimension: int | None) -> ViewMap:
            width = sum(blocks[view][use.name] for use in uses)
            mean = take_array(tensors, f"{at}.{view}_mean", (width,), source)
            return ViewMap(uses, mean, take_array(tensors, f"{at}.{view}_map", (width, dimension), source))

        parts = []
        for at, part in enumerate(config.parts):
            x = take(at, "x", part.x, None)
            parts.append(PartMaps(part.name, x, take(at, "y", part.y, x.dimension), part.weight))
        hubness = None
        if config.correction is not None:
            dimension = sum(part.x.dimension for part in parts)
            bank = take_array(tensors, "bank", (None, dimension), source)
            if config.correction.has_effect and len(bank) == 0:
                raise InputError(f"{source} has no bank for the {task} correction; save the model again.")
            gate = None
            if config.gate is not None:
                gate = Gate(take_array(tensors, "gate", (dimension,), source), *config.gate)
            hubness = Hubness(config.correction, bank, gate)
        return cls(task, tuple(parts), blocks, config.euclidean, hubness)

    def as_queries(self, items: Float32s) -> Float32s:
        """Return vectors of items as queries for similar items.

        A hubness correction is for queries of the other view, and does not apply to them.
        """
        if not self._has_further:
            return items
        queries = items.copy()
        queries[:, -1] = 1.0 if self.euclidean else 0.0
        return queries

    def coordinates(self, vectors: Float32s) -> Float32s:
        """Return vectors without what only the inner product of an item with a query needs."""
        return vectors[:, :-1] if self._has_further else vectors

    def scores(self, products: Float32s, queries: Float32s) -> Float32s:
        """Return scores for people from inner products: sums of cosines, or distances with a minus sign."""
        if not self.euclidean:
            return products
        squares = np.sum(queries[:, :-1] ** 2, axis=1, keepdims=True)
        distances: Float32s = np.sqrt(np.maximum(squares - 2 * products, 0))
        return -distances

    def to_similarity(self, items: Float32s, queries: Float32s) -> tuple[Float32s, Float32s]:
        """Return vectors whose cosine, or ℓ2 for a model with it, ranks as their inner product does.

        Items of several lengths get a coordinate that gives all of them the greatest; it is 0 for queries.
        """
        if self.euclidean:
            return self.coordinates(items), self.coordinates(queries)
        if len(self.parts) == 1 and self.hubness is None:
            return items, queries
        squares = np.sum(np.square(items, dtype=np.float64), axis=1)
        rest = np.sqrt(squares.max(initial=0.0) - squares)[:, None].astype(items.dtype)
        return np.hstack([items, rest]), np.hstack([queries, np.zeros((len(queries), 1), queries.dtype)])

    def masks(self) -> dict[str, Float32s]:
        """Return what can be compared with the whole, and what queries are multiplied by for that.

        These are the parts, each alone, and all of them without the correction. Items need no other vectors:
        in an inner product, zeros of the query leave the other parts and the correction out. The weight of a
        part is divided out, so its scores are cosines. What would change nothing is left out.
        """
        masks, start = dict[str, Float32s](), 0
        if self.hubness is not None and self.hubness.correction.kind != "none":
            masks[UNCORRECTED] = np.ones(self.dimension, np.float32)
            masks[UNCORRECTED][-1] = 0
        for part in self.parts if len(self.parts) > 1 else ():
            masks[part.name] = np.zeros(self.dimension, np.float32)
            masks[part.name][start : start + part.x.dimension] = 1 / part.weight
            start += part.x.dimension
        return masks

    def restrict(self, queries: Float32s, name: str | None) -> Float32s:
        """Return queries that compare only what one of the ``masks`` does; None: everything."""
        if name is None:
            return queries
        masks = self.masks()
        if not masks:
            raise InputError(
                f"weighting={name!r} names a part of a fusion, and the {self.task} model has one part and no "
                "correction; leave it out."
            )
        if not isinstance(name, str) or name not in masks:
            raise InputError(
                f"weighting={name!r} is no part of this fusion that {self.task} uses; choose one of "
                f"{', '.join(map(repr, masks))}."
            )
        return queries * masks[name]

    def split(self, features: Any, view: ViewKey) -> dict[str, Any]:
        """Return features of a view as named blocks: columns of a matrix, or the blocks that were given."""
        widths = self.blocks[view]
        if not isinstance(features, Mapping):
            rows = check_view(features, f"{self.names[view]} features", n_features=self.width(view))
            return split_blocks(to_numpy(rows), widths)
        if missing := [name for name in widths if name not in features]:
            raise InputError(
                f"the blocks {missing} are missing; give every block that the model was fitted with."
            )
        blocks = {
            name: to_numpy(check_view(features[name], f"{self.names[view]}[{name!r}]")) for name in widths
        }
        for name, width in widths.items():
            if (columns := blocks[name].shape[1]) != width:
                raise InputError(f"block {name!r} has {columns} features; expected {width}, as in fit.")
        if len(sizes := {len(rows) for rows in blocks.values()}) > 1:
            raise InputError(
                f"the blocks of {self.names[view]} have {sorted(sizes)} rows; give every item in every block."
            )
        return blocks

    def _project(self, features: Any, view: ViewKey) -> tuple[list[Float32s], list[Float32s]]:
        """Return the vectors of each part in float32, not yet of unit length, and their lengths."""
        blocks, shaped = self.split(features, view), dict[BlockUse, Floats]()
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = {name: rows.astype(np.float32, copy=False) for name, rows in blocks.items()}
            projected = [part.view(view).project(blocks, shaped) for part in self.parts]
            lengths = [np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in projected]
        if not np.isfinite(lengths).all():
            name = self.names[view]
            raise InputError(
                f"{name} features hold values too large for float32, in which vectors are compared; divide "
                f"all {name} features, those of the training pairs too, by one constant."
            )
        return projected, lengths

    def _scale(
        self, projected: Sequence[Float32s], lengths: Sequence[Float32s], weights: Sequence[float]
    ) -> Float32s:
        """Return the parts side by side: as they are for ℓ2, or of the length of their weight."""
        if self.euclidean:
            return projected[0]
        scaled = [
            rows / (norms / np.float32(weight))
            # The squares of short rows are not exact.
            if norms.min(initial=1.0) > _SHORT
            else to_unit_length(rows) * np.float32(weight)
            for rows, norms, weight in zip(projected, lengths, weights, strict=True)
        ]
        return np.asarray(scaled[0] if len(scaled) == 1 else np.concatenate(scaled, axis=1), np.float32)


def place_between(items: Float32s, partners: Float32s, pairing: Any) -> Float32s:
    r"""Return directions of items that are known by themselves and by rows of the other view.

    Let :math:`\theta` be where an item is in the space of the queries. Its own features predict it with an
    error of variance :math:`\tau^2` for each coordinate, :math:`z = \theta + \tau\varepsilon`, and n partners
    scatter around it, :math:`\bar y = \theta + \sigma\varepsilon'/\sqrt n`. So, with a flat prior,

    .. math:: E(\theta \mid z, \bar y) = (1 - w) z + w \bar y, \qquad w = \frac{n}{n + \sigma^2/\tau^2}.

    Directions are compared, so lengths do not count: z and ȳ are the unit vectors of the item and of the sum
    of its partners' unit vectors. The ratio of the variances is ``SCATTER``, so that w is ¼, ⅖ and 4/7 for
    one, two and four partners. These are among the best weights on photos with as many captions
    (``benchmarks/library.py`` measures it). Items without partners stay as they are.

    The predictions of training items are drawn to their own partners (by their leverage h: z is
    (1 − h) times what a fit without them predicts, plus hȳ). That pull is in the same direction and weaker,
    so fitted items and those that got partners later are treated alike.
    """
    if not len(pairing):
        return items
    order = np.argsort(pairing, kind="stable")
    rows, starts = np.unique(pairing[order], return_index=True)
    totals = np.add.reduceat(to_unit_length(partners)[order], starts, axis=0)
    placed = items.copy()
    counts = np.diff(starts, append=len(order)).astype(np.float32)[:, None]
    placed[rows] = SCATTER * to_unit_length(items[rows]) + counts * to_unit_length(totals)
    return placed


def split_blocks(features: Any, widths: Mapping[str, int]) -> dict[str, Any]:
    """Return the columns of a matrix as named blocks."""
    parts = np.split(features, np.cumsum(list(widths.values()))[:-1], axis=1)
    return dict(zip(widths, parts, strict=True))
