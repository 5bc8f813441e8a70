"""The projection of a model as an ONNX file: from the features of one view to the vectors of a task.

The graph repeats the steps of ``_embedding`` in float32, with operators of the default domain alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diptych._checks import InputError, Task, check_choice, check_task, missing_package_error
from diptych._persistence import library_version, replace_file
from diptych.fusion import Part
from diptych.fusion._blocks import Geometry
from diptych.fusion._fitted import FittedFusion
from diptych.fusion._hubness import Gate
from diptych.retrieval._embedding import CanonicalEmbedding, Layout
from diptych.retrieval._items import SEARCHED, VIEWS, View

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
    own_task, own_view = check_task(task), _check_view(view)
    embedding, model = searcher.embedding, searcher.fitted.model
    inputs = _choose_inputs(searcher, own_view, own_task)
    graph = _Graph(onnx, [*inputs, VECTORS])
    similarity = "sum of cosines" if isinstance(model, FittedFusion) else model.similarity
    if isinstance(model, FittedFusion):
        _add_fusion(graph, list(inputs), model, own_view, own_task)
    else:
        assert isinstance(embedding, CanonicalEmbedding)
        steps = embedding.linear_map(own_view, own_task)
        _add_awcca(graph, list(inputs), steps, similarity, own_view, own_task)
    is_query = SEARCHED[own_task] != own_view
    record = searcher.encoders.describe(own_view)
    about = {
        "model": type(model).__name__,
        "task": own_task,
        "view": own_view,
        "side": "query" if is_query else "item",
        "similarity": similarity,
        "encoder": record.name,
        "encoder_fingerprint": record.fingerprint,
        "features": str(sum(inputs.values())),
        "diptych": library_version(),
    }
    summary = (
        f"Features of {'a query' if is_query else 'an item'} ({own_view}) to its vector for the task "
        f"{own_task}. The inner product of a query's vector with an item's ranks."
    )
    content = graph.serialize(inputs, embedding.dimension(own_task), about, summary)
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


def _add_awcca(
    graph: _Graph,
    inputs: Sequence[str],
    steps: tuple[str, Any, Any],
    similarity: str,
    view: View,
    task: Task,
) -> None:
    how, mean, weights = steps
    vectors = graph.project(graph.normalize(graph.concatenate(inputs), how), mean, weights)
    if similarity == "cosine":
        graph.to_unit_length(vectors)
    elif SEARCHED[task] != view:
        graph.append(vectors, 1.0)
    else:
        squares = graph.add("ReduceSumSquare", vectors, axes=[1], keepdims=1)
        graph.concatenate([vectors, graph.scale(squares, -0.5)])


def _add_fusion(graph: _Graph, inputs: Sequence[str], model: FittedFusion, view: View, task: Task) -> None:
    side: Literal["x", "y"] = "x" if view == "image" else "y"
    searched, shaped = SEARCHED[task] == view, dict[str, str]()
    input_of = dict(zip(_used_blocks(model, view, task), inputs, strict=True))

    def add_features(part: Part) -> str:
        """As ``Part.features``."""
        names, scales = (part.x, part.x_scales) if side == "x" else (part.y, part.y_scales)
        if part.kind == "identity":
            return graph.to_unit_length(input_of[names[0]])
        for name in names:
            if name not in shaped:
                shaped[name] = _add_geometry(graph, input_of[name], model.geometry_[side][name])
        return graph.concatenate([graph.scale(shaped[n], s) for n, s in zip(names, scales, strict=True)])

    parts, projected = [], []
    for member in model.members_[task]:
        linear = member.linear
        mean, weights = (linear.x_mean, linear.x_map) if side == "x" else (linear.y_mean, linear.y_map)
        projected.append(graph.project(add_features(member.part), mean, weights))
        vectors = graph.to_unit_length(projected[-1])
        parts.append(graph.scale(vectors, member.weight) if searched else vectors)
    vectors, correction, gate = graph.concatenate(parts), model.corrections_[task], model.gates_[task]
    if not searched and gate is not None:
        graph.concatenate([vectors, _add_gate(graph, graph.concatenate(projected), gate)])
    elif not searched:
        graph.append(vectors, 1.0)
    elif correction.kind == "none" or correction.strength == 0.0:
        graph.append(vectors, 0.0)
    else:
        bank = model.banks_[task]
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


def _add_geometry(graph: _Graph, rows: str, geometry: Geometry) -> str:
    """As ``Geometry.apply``."""
    if geometry.pieces > 1:  # 0 keeps the number of rows
        shape = [0, geometry.pieces, geometry.width // geometry.pieces]
        rows = graph.add("Reshape", rows, graph.constant(shape, np.int64))
    rows = graph.normalize(rows, geometry.normalize)
    if geometry.pieces > 1:
        rows = graph.add("Reshape", rows, graph.constant([0, geometry.width], np.int64))
    return graph.scale(rows, geometry.scale)


def _choose_inputs(searcher: Searcher, view: View, task: Task) -> Layout:
    """Return names and widths of the inputs: the named blocks of the view that the task uses."""
    layout, model = searcher.fitted.layout(view), searcher.fitted.core
    if len(layout) < 2:
        return {FEATURES: searcher.embedding.features(view)}
    if wrong := [name for name in layout if name in ("", VECTORS) or not name.isprintable()]:
        raise InputError(f"the block {wrong[0]!r} cannot be the name of an input; fit with another name.")
    if not isinstance(model, FittedFusion):
        return layout
    return {name: layout[name] for name in _used_blocks(model, view, task)}


def _used_blocks(model: FittedFusion, view: View, task: Task) -> list[str]:
    """Return the blocks that some member sees."""
    side = "x" if view == "image" else "y"
    seen = {name for member in model.members_[task] for name in getattr(member.part, side)}
    return [name for name in model.geometry_[side] if name in seen]


def _check_view(view: str) -> View:
    check_choice(view, VIEWS, "view")
    return "image" if view == "image" else "text"
