"""Saved HKSE models."""

import json

import numpy as np
import pytest

from diptych import InputError
from diptych import _persistence as storage
from diptych._persistence import TENSORS
from diptych.encoders import HKSE, tokenize
from diptych.encoders._words import TOKENIZER
from hkse_models import KINDS, small
from saved_files import edit_config, files_of, seal, seal_config
from tolerance import assert_close


@pytest.fixture
def saved(hkse, tmp_path):
    """Return the folder of a saved model."""
    hkse.save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize(("word", "sentence"), KINDS)
def test_a_loaded_model_gives_identical_features(table, captions, tmp_path, word, sentence):
    training = [caption for caption in captions if "snow" not in caption]
    model = small(table, word, sentence).fit(training)
    model.save(tmp_path / "model")
    again = HKSE.load(tmp_path / "model")
    queries = [*captions, "unicorn"]
    np.testing.assert_array_equal(
        again.transform(queries, unknown="mean"), model.transform(queries, unknown="mean")
    )
    assert again.vocabulary_ == model.vocabulary_
    assert again.gamma_ == model.gamma_
    assert again.coverage_ == model.coverage_
    first, second = model.get_params(), again.get_params()
    assert {**first, "vectors": None} == {**second, "vectors": None}


@pytest.mark.parametrize("word", ["lin", "rbf"])
def test_a_few_queries_do_not_wait_for_the_table_of_all_words(table, captions, tmp_path, word):
    model = small(table, word).fit(captions)
    model.save(tmp_path / "model")
    again = HKSE.load(tmp_path / "model")
    query = [captions[0].split()[0]]
    assert again.encoder_.word_table is None
    first = again.transform([query])
    assert again.encoder_.word_table is None
    for _ in again.vocabulary_:
        again.transform([query])
    assert again.encoder_.word_table is not None  # by now it pays
    for features in (first, again.transform([query])):
        assert_close(
            features, model.transform([query]), table.dimensions + model.word_features, magnitude=1.0
        )


def test_the_draws_are_stored_and_not_the_seed_alone(hkse, saved, captions, monkeypatch):
    # Another NumPy may draw other numbers from the same seed; a saved model must not notice.
    monkeypatch.setattr("numpy.random.default_rng", lambda *_: pytest.fail("drew random numbers"))
    np.testing.assert_array_equal(HKSE.load(saved).transform(captions), hkse.transform(captions))
    stored = storage.read_tensors(files_of(saved) / TENSORS)
    np.testing.assert_array_equal(stored["word_weights"], hkse.encoder_.word_map.weights)
    np.testing.assert_array_equal(stored["sentence_offsets"], hkse.encoder_.sentence_map.offsets)


def test_saving_again_replaces_and_nothing_is_pickled(saved, table, captions, tmp_path):
    small(table, "lin").fit(captions).save(saved)
    assert HKSE.load(saved).word == "lin"
    assert sorted(p.name for p in files_of(saved).iterdir()) == ["config.json", TENSORS]


def test_a_folder_of_something_else_is_left_alone(hkse, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not a diptych hkse"):
        hkse.save(tmp_path)


def test_a_custom_tokenizer_must_be_given_again(hkse, table, captions, tmp_path):
    model = small(table, tokenizer=str.split).fit(captions)
    model.save(tmp_path / "model")
    with pytest.raises(InputError, match="tokenizer of its own"):
        HKSE.load(tmp_path / "model")
    again = HKSE.load(tmp_path / "model", tokenizer=str.split)
    np.testing.assert_array_equal(again.transform(captions), model.transform(captions))
    assert hkse.tokenizer is tokenize
    assert model.encoder_.fingerprint != hkse.encoder_.fingerprint


def test_a_model_names_its_tokenizer(saved):
    assert storage.read_json(files_of(saved) / storage.CONFIG)["tokenizer"] == TOKENIZER
    edit_config(saved, tokenizer="letters of 2019")
    with pytest.raises(InputError, match="a tokenizer called 'letters of 2019', which is not stored"):
        HKSE.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": None},
        *({"eta": value} for value in (None, "")),
        {"word": "poly"},
        {"sentence_features": 31},
        {"word_features": 10**12},
        *({"vocabulary_size": size} for size in (10**9, 0, "many")),
        *({"coverage": coverage} for coverage in ({}, 3)),
        {"gamma": "wide"},
        {"random_state": "clock"},
        {"format": "diptych-awcca"},
        {"version": 99},
    ],
)
def test_a_tampered_config_is_refused(saved, change):
    path = files_of(saved) / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for name, value in change.items():
        part = config if name in config else config["parameters"]
        part[name] = value
        if value is None:
            del part[name]
    path.write_text(json.dumps(config), "utf-8")
    seal_config(saved)
    with pytest.raises(InputError):
        HKSE.load(saved)


@pytest.mark.parametrize(
    "name", ["vectors", "word_bytes", "word_ends", "mean", "word_weights", "sentence_offsets"]
)
@pytest.mark.parametrize("how", ["missing", "short", "text"])
def test_tampered_tensors_are_refused(saved, name, how):
    path = files_of(saved) / TENSORS
    tensors = storage.read_tensors(path)
    if how == "missing":
        del tensors[name]
    else:
        tensors[name] = tensors[name][:-1] if how == "short" else np.frombuffer(b"text", dtype=np.uint8)
    storage.write_tensors(path, tensors, {})
    seal(saved)
    with pytest.raises(InputError):
        HKSE.load(saved)


def test_a_missing_or_damaged_folder_is_refused(saved, tmp_path):
    with pytest.raises(InputError, match="not a folder"):
        HKSE.load(tmp_path / "nowhere")
    (files_of(saved) / TENSORS).write_bytes(b"\xff" * 50)
    with pytest.raises(InputError, match="checksum differs"):
        HKSE.load(saved)
    seal(saved)
    with pytest.raises(InputError, match="damaged"):
        HKSE.load(saved)
