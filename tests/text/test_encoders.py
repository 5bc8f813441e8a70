import sys
import types

import numpy as np
import pytest

from diptych import InputError
from diptych.text import HKSE, SentenceEncoder, sentence_encoder, tokenize

TEXTS = ["a dog", "two cats", "a tree"]


def lengths(texts):
    return np.array([[len(text), 1.0] for text in texts])


def test_any_function_is_an_encoder():
    encoder = sentence_encoder(lengths)
    assert isinstance(encoder, SentenceEncoder)
    np.testing.assert_array_equal(encoder.encode(TEXTS), lengths(TEXTS))


def test_an_object_with_encode_and_a_fitted_hkse_are_encoders(table, captions):
    class Theirs:
        def encode(self, texts):
            return lengths(texts).tolist()

    np.testing.assert_array_equal(sentence_encoder(Theirs()).encode(TEXTS), lengths(TEXTS))
    hkse = HKSE(table, word_features=8, sentence_features=6).fit(captions)
    np.testing.assert_array_equal(sentence_encoder(hkse).encode(captions), hkse.transform(captions))


def test_encode_queries_returns_the_ignored_words(table, captions, monkeypatch):
    hkse = HKSE(table, word_features=8, sentence_features=6).fit(captions)
    encoder, split = sentence_encoder(hkse), []
    hkse.tokenizer = lambda text: split.append(text) or text.split()
    features, ignored = encoder.encode_queries(["the dog", "cat snow runs"])
    assert split == ["the dog", "cat snow runs"], "each query is split once"
    assert ignored == [(), ()]
    np.testing.assert_allclose(features, hkse.transform(["the dog", "cat snow runs"]), rtol=1e-6, atol=1e-6)
    hkse.tokenizer = tokenize
    monkeypatch.setattr("diptych.text._encoders.BLOCK_ROWS", 2)
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


def test_precomputed_features_are_looked_up_by_text(tmp_path, rng):
    features = rng.normal(size=(4, 5)).astype(np.float16)
    np.save(tmp_path / "skipthoughts.npy", features)
    stored = [*TEXTS, "a dog"]
    for source in (tmp_path / "skipthoughts.npy", str(tmp_path / "skipthoughts.npy"), features):
        encoder = sentence_encoder(source, texts=stored)
        rows = encoder.encode(["a tree", "a dog", "a tree"])
        np.testing.assert_array_equal(rows, features[[2, 0, 2]].astype(np.float32))
        with pytest.raises(InputError, match=r"texts\[1\] \('a cow'\) has no precomputed"):
            encoder.encode(["a dog", "a cow"])


def test_wrong_precomputed_features_are_refused(tmp_path):
    with pytest.raises(InputError, match="need texts="):
        sentence_encoder(np.ones((3, 2)))
    with pytest.raises(InputError, match="for 3 texts"):
        sentence_encoder(np.ones((4, 2)), texts=TEXTS)
    with pytest.raises(InputError, match="for 3 texts"):
        sentence_encoder(np.ones((3, 2), dtype=int), texts=TEXTS)
    np.save(tmp_path / "objects.npy", np.array([{}, {}, {}]), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00v")
    for name in ("objects.npy", "cut.npy", "missing.npy"):
        with pytest.raises(InputError, match="could not be read as a .npy array"):
            sentence_encoder(tmp_path / name, texts=TEXTS)


def test_sentence_transformers_are_loaded_without_running_model_code(monkeypatch):
    arguments = {}

    class SentenceTransformer:
        def __init__(self, name, **options):
            arguments.update(options, name=name)

        def encode(self, texts, **options):
            return lengths(texts)

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    encoder = sentence_encoder("some/model", device="cpu")
    np.testing.assert_array_equal(encoder.encode(TEXTS), lengths(TEXTS))
    assert arguments["name"] == "some/model"
    assert arguments["device"] == "cpu"
    assert arguments["trust_remote_code"] is False
    assert arguments["model_kwargs"] == {"use_safetensors": True}


def test_missing_sentence_transformers_names_the_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="pip install .sentence-transformers"):
        sentence_encoder("all-MiniLM-L6-v2")


def test_an_object_that_is_not_an_encoder_is_refused():
    with pytest.raises(InputError, match="int is not a sentence encoder"):
        sentence_encoder(3)
    with pytest.raises(InputError, match="one string"):
        sentence_encoder(lengths).encode("a dog")
