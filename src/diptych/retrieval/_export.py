"""The projection of a model as an ONNX file: from the features of one view to the vectors of a task.

The graph repeats the steps of a ``Projector`` in float32, with operators of the default domain alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych._checks import InputError, check_choice, check_task, missing_package_error
from diptych._persistence import library_version, replace_file
from diptych.cca._correction import Gate, Hubness
from diptych.cca._projector import Projector, ViewKey
from diptych.cca._view_map import BlockUse
from diptych.retrieval._fitted import Layout
from diptych.retrieval._items import SIDES, VIEWS, View

if TYPE_CHECKING:
    from diptych.retrieval._searcher import Searcher

OPSET, IR_VERSION = 13, 7
"""Old enough for ONNX Runtime 1.6, of 2020; newer runtimes read old files."""

FEATURES, VECTORS = "features", "vectors"
"""The input of a model without named blocks, and the output."""

MAX_BYTES = 2**31 - 2**20
"""Numbers in one file: protobuf ends at 2 GiB, and the graph around them is small."""


def export_onnx(path: str | os.PathLike[str], searcher: Searcher, view: str, task: str) -> None:
    """Write the projection of the features of ``view`` to the vectors of ``task``; see ``Retriever``."""
    try:
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise missing_package_error("an export to ONNX needs", "export") from None
    checked_view, projector = _check_view(view), searcher.projectors[check_task(task)]
    side = SIDES[checked_view]
    inputs, are_blocks = _choose_inputs(searcher, checked_view, projector)
    graph = _Graph(onnx, [*inputs, VECTORS])
    blocks = {name: name for name in inputs} if are_blocks else {}
    if not are_blocks:  # the model sees them as one matrix, which is its only block
        blocks[next(iter(projector.blocks[side]))] = graph.concatenate(list(inputs))
    _add_projection(graph, blocks, projector, side)
    one_part = "l2" if projector.euclidean else "cosine"
    similarity = one_part if projector.hubness is None else "sum of cosines"
    is_query = side == projector.queried
    record = searcher.encoders.describe(checked_view)
    about = {
        "model": searcher.fitted.description.kind,
        "task": projector.task,
        "view": checked_view,
        "side": "query" if is_query else "item",
        "similarity": similarity,
        "encoder": record.name,
        "encoder_fingerprint": record.fingerprint,
        "features": str(sum(inputs.values())),
        "diptych": library_version(),
    }
    summary = (
        f"Features of {'a query' if is_query else 'an item'} ({checked_view}) to its vector for the task "
        f"{projector.task}. The inner product of a query's vector with an item's ranks."
    )
    content = graph.serialize(inputs, projector.dimension, about, summary)
    with replace_file(path) as staged:
        staged.write_bytes(content)


class _Graph:
    """A graph under construction: each method adds a step and returns the name of its result."""

    def __init__(self, onnx: Any, names: Sequence[str]) -> None:
        self._onnx, self._names = onnx, set(names)
        self._nodes: list[Any] = []
        self._constants: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add any operator; the first of its outputs is the result."""
        names = [self._name(operator) for _ in range(outputs)]
        self._nodes.append(self._onnx.helper.make_node(operator, inputs, names, **attributes))
        return names[0]

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = self._name("constant")
        self._constants[name] = np.ascontiguousarray(values, dtype).reshape(np.shape(values))
        return name

    def concatenate(self, parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=1)

    def append(self, vectors: str, value: float) -> str:
        """Give every vector one more coordinate, the same for all."""
        return self.add("Pad", vectors, self.constant([0, 0, 0, 1], np.int64), self.constant(value))

    def scale(self, rows: str, factor: float) -> str:
        return rows if factor == 1.0 else self.add("Mul", rows, self.constant(factor))

    def normalize(self, rows: str, how: str) -> str:
        """As ``cca._weighting.normalize``, along the last axis."""
        if how in ("signed-sqrt", "sqrt-unit"):
            rows = self.add("Mul", self.add("Sign", rows), self.add("Sqrt", self.add("Abs", rows)))
        return self.to_unit_length(rows) if how in ("unit", "sqrt-unit") else rows

    def to_unit_length(self, rows: str) -> str:
        """As ``cca._weighting.to_unit_length``: rows of zeros stay zero."""
        for reduce in ("ReduceMax", "ReduceL2"):
            sizes = self.add("Abs", rows) if reduce == "ReduceMax" else rows
            length = self.add(reduce, sizes, axes=[-1], keepdims=1)
            positive = self.add("Greater", length, self.constant(0.0))
            rows = self.add("Div", rows, self.add("Where", positive, length, self.constant(1.0)))
        return rows

    def project(self, rows: str, mean: Any, weights: Any) -> str:
        return self.add("MatMul", self.add("Sub", rows, self.constant(mean)), self.constant(weights))

    def serialize(self, inputs: Layout, dimension: int, about: Mapping[str, str], summary: str) -> bytes:
        """Return the file; the result of the last step is the output."""
        size = sum(values.nbytes for values in self._constants.values())
        if size > MAX_BYTES:
            raise InputError(
                f"the projection has {size / 2**30:.1f} GiB of numbers, and an ONNX file holds less than 2; "
                "fit with fewer n_components, or a Fusion with a smaller bank."
            )
        helper, floats = self._onnx.helper, self._onnx.TensorProto.FLOAT
        self._nodes[-1].output[0] = VECTORS
        graph = helper.make_graph(
            self._nodes,
            "projection",
            [helper.make_tensor_value_info(name, floats, ["n", width]) for name, width in inputs.items()],
            [helper.make_tensor_value_info(VECTORS, floats, ["n", dimension])],
            [self._onnx.numpy_helper.from_array(values, name) for name, values in self._constants.items()],
            doc_string=summary,
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="diptych",
            producer_version=library_version(),
            doc_string=summary,
        )
        helper.set_model_props(model, {key: value for key, value in about.items() if value})
        return bytes(model.SerializeToString())

    def _name(self, kind: str) -> str:
        name = f"{kind}_{len(self._names)}"
        while name in self._names:
            name += "_"
        self._names.add(name)
        return name


def _add_projection(graph: _Graph, inputs: Mapping[str, str], projector: Projector, view: ViewKey) -> None:
    """As ``Projector.items`` and ``Projector.queries``; ``inputs`` are the blocks that are used."""
    searched, shaped = view == projector.searched, dict[BlockUse, str]()
    projected, scaled = [], []
    for part in projector.parts:
        view_map = part.view(view)
        for use in view_map.blocks:
            if use not in shaped:
                shaped[use] = _add_block(graph, inputs[use.name], use, projector.blocks[view][use.name])
        rows = graph.concatenate([shaped[use] for use in view_map.blocks])
        projected.append(graph.project(rows, view_map.mean, view_map.map))
        if not projector.euclidean:
            unit = graph.to_unit_length(projected[-1])
            scaled.append(graph.scale(unit, part.weight) if searched else unit)
    vectors, hubness = graph.concatenate(scaled or projected), projector.hubness
    if projector.euclidean and searched:
        squares = graph.add("ReduceSumSquare", vectors, axes=[1], keepdims=1)
        graph.concatenate([vectors, graph.scale(squares, -0.5)])
    elif projector.euclidean:
        graph.append(vectors, 1.0)
    elif hubness is not None and searched:
        _add_offsets(graph, vectors, hubness)
    elif hubness is not None and hubness.gate is not None:
        graph.concatenate([vectors, _add_gate(graph, graph.concatenate(projected), hubness.gate)])
    elif hubness is not None:
        graph.append(vectors, 1.0)


def _add_offsets(graph: _Graph, vectors: str, hubness: Hubness) -> None:
    """As ``compute_offsets``."""
    correction, bank = hubness.correction, hubness.bank
    if not correction.has_effect:
        graph.append(vectors, 0.0)
        return
    scores = graph.add("MatMul", vectors, graph.constant(bank.T))
    count = graph.constant([min(correction.neighbours, len(bank))], np.int64)
    nearest = graph.add("TopK", scores, count, outputs=2, axis=1)
    offsets = graph.add("ReduceMean", nearest, axes=[1], keepdims=1)
    graph.concatenate([vectors, graph.scale(offsets, -correction.strength)])


def _add_gate(graph: _Graph, projected: str, gate: Gate) -> str:
    """As ``Gate.compute``."""
    distances = graph.add(
        "MatMul", graph.add("Mul", projected, projected), graph.constant(gate.rates[:, None])
    )
    shares = graph.scale(graph.add("Sub", graph.constant(gate.high), distances), 1.0 / (gate.high - gate.low))
    return graph.add("Clip", shares, graph.constant(0.0), graph.constant(1.0))


def _add_block(graph: _Graph, rows: str, use: BlockUse, width: int) -> str:
    """As ``BlockUse.apply``."""
    if use.slices > 1:  # 0 keeps the number of rows
        rows = graph.add("Reshape", rows, graph.constant([0, use.slices, width // use.slices], np.int64))
    rows = graph.normalize(rows, use.normalize)
    if use.slices > 1:
        rows = graph.add("Reshape", rows, graph.constant([0, width], np.int64))
    return graph.scale(rows, use.scale)


def _choose_inputs(searcher: Searcher, view: View, projector: Projector) -> tuple[Layout, bool]:
    """Return names and widths of the inputs, and whether they are the blocks of the projector.

    They are the named blocks of the view that the task uses; one input where there are no names.
    """
    layout, blocks = searcher.fitted.layout(view), projector.blocks[SIDES[view]]
    if len(layout) < 2:
        return {FEATURES: searcher.fitted.width(view)}, False
    if wrong := [name for name in layout if name in ("", VECTORS) or not name.isprintable()]:
        raise InputError(f"the block {wrong[0]!r} cannot be the name of an input; fit with another name.")
    if set(layout) != set(blocks):
        return layout, False
    used = {use.name for part in projector.parts for use in part.view(SIDES[view]).blocks}
    return {name: width for name, width in layout.items() if name in used}, True


def _check_view(view: str) -> View:
    check_choice(view, VIEWS, "view")
    return "image" if view == "image" else "text"
