import sys
import types

import numpy as np
import pytest

from diptych import InputError
from diptych.text import HKSE, SentenceEncoder, sentence_encoder, tokenize

SENTENCES = ["a dog", "two cats", "a tree"]


def lengths(sentences):
    return np.array([[len(s), 1.0] for s in sentences])


def test_anything_callable_encodes():
    encoder = sentence_encoder(lengths)
    assert isinstance(encoder, SentenceEncoder)
    np.testing.assert_array_equal(encoder.encode(SENTENCES), lengths(SENTENCES))


def test_an_object_with_encode_and_a_fitted_hkse_encode(table, captions):
    class Theirs:
        def encode(self, sentences):
            return lengths(sentences).tolist()

    np.testing.assert_array_equal(sentence_encoder(Theirs()).encode(SENTENCES), lengths(SENTENCES))
    hkse = HKSE(table, word_features=8, sentence_features=6).fit(captions)
    np.testing.assert_array_equal(sentence_encoder(hkse).encode(captions), hkse.transform(captions))


def test_queries_come_with_the_words_that_were_ignored(table, captions, monkeypatch):
    hkse = HKSE(table, word_features=8, sentence_features=6).fit(captions)
    encoder, cut = sentence_encoder(hkse), []
    hkse.tokenizer = lambda sentence: cut.append(sentence) or sentence.split()
    features, ignored = encoder.encode_queries(["the dog", "cat snow runs"])
    assert cut == ["the dog", "cat snow runs"], "each is cut into words once"
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
    with pytest.raises(InputError, match="holds no word"):
        encoder.encode_queries(["!?"])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s: np.ones((2, 4)), "2 rows for 3 sentences"),
        (lambda s: np.ones(3), "1 dimension"),
        (lambda s: np.full((3, 2), np.nan), "NaN"),
        (lambda s: [["x"], ["y"], ["z"]], "not numbers"),
    ],
)
def test_what_an_encoder_gives_is_checked(function, message):
    with pytest.raises(InputError, match=message):
        sentence_encoder(function).encode(SENTENCES)


def test_precomputed_features_are_looked_up_by_sentence(tmp_path, rng):
    features = rng.normal(size=(4, 5)).astype(np.float16)
    np.save(tmp_path / "skipthoughts.npy", features)
    stored = [*SENTENCES, "a dog"]
    for source in (tmp_path / "skipthoughts.npy", str(tmp_path / "skipthoughts.npy"), features):
        encoder = sentence_encoder(source, sentences=stored)
        found = encoder.encode(["a tree", "a dog", "a tree"])
        np.testing.assert_array_equal(found, features[[2, 0, 2]].astype(np.float32))
        with pytest.raises(InputError, match=r"sentences\[1\] \('a cow'\) has no precomputed"):
            encoder.encode(["a dog", "a cow"])


def test_wrong_precomputed_features_are_told(tmp_path):
    with pytest.raises(InputError, match="need sentences="):
        sentence_encoder(np.ones((3, 2)))
    with pytest.raises(InputError, match="for 3 sentences"):
        sentence_encoder(np.ones((4, 2)), sentences=SENTENCES)
    with pytest.raises(InputError, match="for 3 sentences"):
        sentence_encoder(np.ones((3, 2), dtype=int), sentences=SENTENCES)
    np.save(tmp_path / "objects.npy", np.array([{}, {}, {}]), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00v")
    for name in ("objects.npy", "cut.npy", "missing.npy"):
        with pytest.raises(InputError, match="could not be read as a .npy array"):
            sentence_encoder(tmp_path / name, sentences=SENTENCES)


def test_sentence_transformers_by_name_without_running_code_of_the_model(monkeypatch):
    asked = {}

    class SentenceTransformer:
        def __init__(self, name, **options):
            asked.update(options, name=name)

        def encode(self, sentences, **options):
            return lengths(sentences)

    module = types.ModuleType("sentence_transformers")
    module.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    encoder = sentence_encoder("some/model", device="cpu")
    np.testing.assert_array_equal(encoder.encode(SENTENCES), lengths(SENTENCES))
    assert asked["name"] == "some/model"
    assert asked["device"] == "cpu"
    assert asked["trust_remote_code"] is False
    assert asked["model_kwargs"] == {"use_safetensors": True}


def test_without_sentence_transformers_the_way_to_get_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="pip install .sentence-transformers"):
        sentence_encoder("all-MiniLM-L6-v2")


def test_what_is_no_encoder_is_told():
    with pytest.raises(InputError, match="int is no sentence encoder"):
        sentence_encoder(3)
    with pytest.raises(InputError, match="one string"):
        sentence_encoder(lengths).encode("a dog")
