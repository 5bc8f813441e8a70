import json
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from diptych import InputError
from diptych.data import read_pairs
from diptych.encoders import SentenceEncoder, sentence_encoder, tokenize
from hkse_models import small

TEXTS = ["a dog", "two cats", "a tree"]


def lengths(texts):
    return np.array([[len(text), 1.0] for text in texts])


def test_functions_objects_with_encode_and_a_fitted_hkse_are_encoders(hkse, captions):
    class Theirs:
        def encode(self, texts):
            return lengths(texts).tolist()

    for source in (lengths, Theirs()):
        encoder = sentence_encoder(source)
        assert isinstance(encoder, SentenceEncoder)
        np.testing.assert_array_equal(encoder.encode(TEXTS), lengths(TEXTS))
    np.testing.assert_array_equal(sentence_encoder(hkse).encode(captions), hkse.transform(captions))


def test_encode_queries_returns_the_ignored_words(table, captions, monkeypatch):
    hkse, split = small(table).fit(captions), []
    encoder = sentence_encoder(hkse)
    encoder.tokenizer = lambda text: split.append(text) or text.split()
    features, ignored = encoder.encode_queries(["the dog", "cat snow runs"])
    assert split == ["the dog", "cat snow runs"], "each query is split once"
    assert ignored == [(), ()]
    np.testing.assert_allclose(features, hkse.transform(["the dog", "cat snow runs"]), rtol=1e-6, atol=1e-6)
    encoder.tokenizer = tokenize
    monkeypatch.setattr("diptych.encoders._hkse_encoder.BLOCK_ROWS", 2)
    queries = ["a quokka in snow, a quokka", "the dog", "unicorn dog"]
    features, ignored = encoder.encode_queries(queries)
    assert ignored == [("a", "quokka"), (), ("unicorn",)]
    np.testing.assert_allclose(features, hkse.transform(queries), rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match="'a quokka' has no word that the model knows: 'a', 'quokka';"):
        encoder.encode_queries(["the dog", "a quokka"])
    with pytest.raises(InputError, match="contains no word"):
        encoder.encode_queries(["!?"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s: np.ones((2, 4)), "2 rows for 3 texts"),
        (lambda s: np.ones(3), "1 dimension"),
        (lambda s: np.full((3, 2), np.nan), "NaN"),
        (lambda s: [["x"], ["y"], ["z"]], "not numbers"),
    ],
)
def test_the_output_of_an_encoder_is_checked(function, message):
    with pytest.raises(InputError, match=message):
        sentence_encoder(function).encode(TEXTS)


@pytest.fixture
def copy(minilm, tmp_path):
    """A copy of MiniLM's folder that may be changed; its weights are a link, which may be replaced."""
    folder = Path(shutil.copytree(minilm, tmp_path / "copy", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "model.safetensors").symlink_to(minilm / "model.safetensors")
    return folder


def change_json(path, **change):
    """Change entries of a JSON object in a file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))


@pytest.mark.slow  # a whole network
@pytest.mark.data
def test_minilm_gives_the_features_of_flickr8k(minilm, real_data):
    captions = read_pairs(real_data / "flickr8k" / "dataset_flickr8k.json").captions
    rows = np.random.default_rng(0).permutation(len(captions))[:200]
    encoder = sentence_encoder(minilm)
    features = encoder.encode([captions[row] for row in rows])
    expected = np.load(real_data / "flickr8k" / "minilm.npy", mmap_mode="r")[rows].astype(np.float32)
    lengths = np.linalg.norm(features, axis=1), np.linalg.norm(expected, axis=1)
    cosines = np.sum(features * expected, axis=1) / lengths[0] / lengths[1]
    assert cosines.min() > 0.999
    # The folder ends with a layer that scales to unit length; the given features were made without it.
    np.testing.assert_allclose(lengths[0], 1, rtol=1e-5)
    again = pickle.loads(pickle.dumps(encoder))
    assert again.fingerprint == encoder.fingerprint
    np.testing.assert_allclose(again.encode([captions[rows[0]]])[0], features[0], rtol=0, atol=1e-5)


def test_a_fingerprint_covers_what_decides_the_features(minilm, copy):
    fingerprint = sentence_encoder(minilm).fingerprint
    assert sentence_encoder(copy).fingerprint == fingerprint  # wherever the folder is
    (copy / "README.md").write_text("Other words.")
    assert sentence_encoder(copy).fingerprint == fingerprint
    change_json(
        copy / "1_Pooling" / "config.json", pooling_mode_cls_token=True, pooling_mode_mean_tokens=False
    )
    changed = sentence_encoder(copy)
    assert changed.fingerprint != fingerprint
    assert np.abs(changed.encode(TEXTS) - sentence_encoder(minilm).encode(TEXTS)).max() > 0.01


@pytest.mark.parametrize("trusted", [False, True])
def test_no_code_in_a_folder_is_run(copy, tmp_path, trusted):
    code = f"import os\nos.mkdir({str(tmp_path / 'ran')!r})\nclass Own: pass\nclass OwnConfig: pass\n"
    (copy / "own.py").write_text(code)
    modules = json.loads((copy / "modules.json").read_text())
    (copy / "modules.json").write_text(json.dumps([modules[0], {**modules[1], "type": "own.Own"}]))
    if trusted:  # a folder cannot say that it is
        change_json(copy / "sentence_bert_config.json", model_args={"trust_remote_code": True})
    with pytest.raises(InputError, match="could not be opened as a sentence-transformers model .*own.Own"):
        sentence_encoder(copy)
    (copy / "modules.json").write_text(json.dumps(modules))
    change_json(
        copy / "config.json",
        model_type="own",
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModel": "own.Own"},
    )
    with pytest.raises(InputError, match="custom code"):
        sentence_encoder(copy)
    assert not (tmp_path / "ran").exists()


def test_a_version_that_runs_code_of_a_folder_is_refused(minilm, monkeypatch):
    monkeypatch.setattr("sentence_transformers.__version__", "5.4.1")
    with pytest.raises(InputError, match="sentence-transformers 5.4.1 runs the code .*pip install"):
        sentence_encoder(minilm)


def test_pickled_weights_are_refused(minilm, copy, tmp_path):
    import torch
    from safetensors.torch import load_file

    tensors = load_file(copy / "model.safetensors")
    torch.save(tensors, copy / "pytorch_model.bin")
    assert sentence_encoder(copy).fingerprint == sentence_encoder(minilm).fingerprint  # not read
    (copy / "model.safetensors").unlink()
    with pytest.raises(InputError, match="pytorch_model.bin contains pickled weights, which are not read"):
        sentence_encoder(copy)
    # A dense layer after the transformer has a file of its own.
    shutil.copy(minilm / "model.safetensors", copy)
    modules = json.loads((copy / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}
    (copy / "modules.json").write_text(json.dumps([*modules[:2], dense]))
    (copy / "2_Dense").mkdir()
    settings = {"in_features": 384, "out_features": 5, "bias": False}
    settings["activation_function"] = "torch.nn.modules.activation.Tanh"
    (copy / "2_Dense" / "config.json").write_text(json.dumps(settings))
    torch.save({"linear.weight": torch.ones(5, 384)}, copy / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(InputError, match="2_Dense.pytorch_model.bin contains pickled weights"):
        sentence_encoder(copy)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b"cut"),
        ("model.safetensors", None),
        ("config.json", b"{"),
        ("modules.json", b"{"),
        ("modules.json", b"[3]"),
    ],
)
def test_a_damaged_folder_is_one_sentence(copy, name, content):
    (copy / name).unlink()
    if content is not None:
        (copy / name).write_bytes(content)
    with pytest.raises(InputError, match="could not be opened as a sentence-transformers model") as caught:
        sentence_encoder(copy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["/no/such/folder", "all-MiniLM-L6-v2", "nobody/none-such"])
def test_a_model_that_is_not_here_is_one_sentence(minilm, name):
    with pytest.raises(InputError, match=f"'{name}' could not be opened .* give the folder of one"):
        sentence_encoder(name)


def test_missing_sentence_transformers_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="pip install .sentence-transformers"):
        sentence_encoder("all-MiniLM-L6-v2")


def test_an_object_that_is_not_an_encoder_is_refused():
    with pytest.raises(InputError, match="int is not a sentence encoder"):
        sentence_encoder(3)
    with pytest.raises(InputError, match="one str"):
        sentence_encoder(lengths).encode("a dog")
