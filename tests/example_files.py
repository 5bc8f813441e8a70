"""Files that the examples in the README and the docs read."""

import re

import numpy as np
import pytest

from diptych.encoders import Recipe
from diptych.scenes import make_scenes


def code_blocks(page, language="python"):
    """Return the code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


def write_photos(folder, n, size=112):
    """Write ``captions.csv`` and its images in ``photos``; return the scenes."""
    scenes = make_scenes(n, size=size)
    (folder / "photos").mkdir()
    lines = ["image,caption"]
    for row, image in enumerate(scenes.images):
        name = scenes.dataset.image_ids[row]
        image.save(folder / "photos" / name)
        lines += [f'{name},"{scenes.dataset.captions[j]}"' for j in scenes.dataset.caption_rows([row])]
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    return scenes


def write_network(path):
    """Write a network that averages the colours of sixteen tiles, and its recipe beside it."""
    onnx = pytest.importorskip("onnx")
    kernel = {"kernel_shape": [16, 16], "strides": [16, 16]}
    tile = onnx.helper.make_node("AveragePool", ["pixels"], ["tiles"], **kernel)
    flat = onnx.helper.make_node("Flatten", ["tiles"], ["features"])
    shapes = [("pixels", ["n", 3, 64, 64]), ("features", ["n", 48])]
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)] for name, shape in shapes
    )
    graph = onnx.helper.make_graph([tile, flat], "colours", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    recipe = Recipe(size=(64, 64), mean=(0, 0, 0), std=(1, 1, 1))
    path.with_suffix(".json").write_text(recipe.to_json())


def network_with_weights(path, place, *, elsewhere="initializer"):
    """Write a network that multiplies mean colours, with the factors in another file, ``place``."""
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    factors = onnx.numpy_helper.from_array(np.arange(300, dtype=np.float32).reshape(3, 100), "factors")
    factors.ClearField("raw_data")
    factors.data_location = onnx.TensorProto.EXTERNAL
    factors.external_data.add(key="location", value=place)
    nodes = [
        helper.make_node("GlobalAveragePool", ["pixels"], ["means"]),
        helper.make_node("Flatten", ["means"], ["colours"]),
        helper.make_node("MatMul", ["colours", "factors"], ["features"]),
    ]
    if elsewhere == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["factors"], value=factors))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)]
        for name, shape in (("pixels", ["n", 3, "h", "w"]), ("features", ["n", 100]))
    )
    initializers = [factors] if elsewhere == "initializer" else []
    graph = helper.make_graph(nodes, "colours", inputs, outputs, initializers)
    if elsewhere == "subgraph":  # which the network itself does not use
        inner = helper.make_graph([], "inner", [], outputs, [factors])
        graph.node[1].attribute.append(helper.make_attribute("unused", inner))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    (path.parent / place).parent.mkdir(exist_ok=True)
    (path.parent / place).write_bytes(np.arange(300, dtype=np.float32).tobytes())
    return path
