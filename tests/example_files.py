"""Files that the examples in the README and the docs read."""

import json
import re

import numpy as np
import pytest

from diptych.image import Recipe
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


def write_fastembed_cache(folder):
    """Write a cache of fastembed with small networks in place of CLIP's two; return the folder.

    The network of images is that of ``write_network``. That of texts sums a random vector for each word.
    """
    vision, text = (_write_snapshot(folder, f"clip-ViT-B-32-{tower}") for tower in ("vision", "text"))
    write_network(vision / "model.onnx")
    (vision / "model.json").unlink()
    sizes = {"do_resize": True, "size": {"height": 64, "width": 64}, "do_center_crop": False}
    pixels = {"image_mean": [0, 0, 0], "image_std": [1, 1, 1], "image_processor_type": "CLIPImageProcessor"}
    (vision / "preprocessor_config.json").write_text(json.dumps(sizes | pixels))
    _write_words(text)
    return folder


def _write_snapshot(cache, name):
    """Make the folder of a model as Hugging Face lays out a cache."""
    model, revision = cache / f"models--Qdrant--{name}", "0" * 40
    for part, content in (("refs/main", revision), (f"snapshots/{revision}/config.json", "{}")):
        (model / part).parent.mkdir(parents=True)
        (model / part).write_text(content)
    return model / "snapshots" / revision


def _write_words(folder):
    onnx = pytest.importorskip("onnx")
    tokenizers = pytest.importorskip("tokenizers")
    scenes = make_scenes(50, size=16).dataset.captions
    words = sorted({word for text in scenes for word in re.findall(r"\w+", text.lower())})
    known = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *words])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(known, "[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": 77, "pad_token": "[PAD]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    vectors = np.random.default_rng(0).normal(size=(len(known), 40)).astype(np.float32)
    vectors[0] = 0
    helper, types = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["vectors", "input_ids"], ["words"]),
            helper.make_node("ReduceSum", ["words", "axis"], ["features"], keepdims=0),
        ],
        "words",
        [helper.make_tensor_value_info("input_ids", types.INT64, ["n", "m"])],
        [helper.make_tensor_value_info("features", types.FLOAT, ["n", 40])],
        [
            onnx.numpy_helper.from_array(vectors, "vectors"),
            onnx.numpy_helper.from_array(np.array([1]), "axis"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "model.onnx")
