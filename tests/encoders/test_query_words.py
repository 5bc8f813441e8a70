"""Words that no training text has, but that queries may use because the file of word vectors has them."""

import pickle
import shutil

import numpy as np
import pytest
from sklearn.base import clone

from diptych import InputError, Retriever
from diptych import _persistence as storage
from diptych.encoders import HKSE, WordVectors
from diptych.encoders._hkse_encoder import WORDS, read_hkse
from hkse_models import KINDS, assert_alike, small
from saved_files import files_of, seal
from vector_files import binary, text

FORMS = ("text", "binary", "folder")
HALF = 2.0**-11
"""The relative error of a number that is rounded to float16."""


@pytest.fixture
def vectors(table, tmp_path):
    """Return a function that writes the table in one of the forms and returns its path."""

    def write(form, table=table):
        path = tmp_path / f"vectors-{form}"
        if form == "folder":
            table.save(path)
        elif form == "text":
            path.write_bytes(text(table.words, table.matrix))
        else:
            path.write_bytes(binary(table.words, table.matrix, b""))
        return path

    return write


@pytest.mark.parametrize(("form", "kinds"), [("text", KINDS), ("binary", KINDS[3:]), ("folder", KINDS[3:])])
def test_queries_may_use_further_words_which_change_nothing_else(table, vectors, training, form, kinds):
    path, queries = vectors(form), ["snow", "dog snow snow", "dog runs", "grass snow dog"]
    for word, sentence in kinds:
        without, model = small(path, word, sentence, query_words=0), small(path, word, sentence)
        np.testing.assert_array_equal(model.fit_transform(training), without.fit_transform(training))
        for name in ("vocabulary_", "gamma_", "coverage_"):
            assert getattr(model, name) == getattr(without, name)
        np.testing.assert_array_equal(model.encoder_.mean, without.encoder_.mean)
        np.testing.assert_array_equal(model.encoder_.word_table, without.encoder_.word_table)
        np.testing.assert_array_equal(model.transform(training), without.transform(training))
        with pytest.raises(InputError, match="'snow'"):
            without.transform(["snow"])
        expected = small(table, word, sentence).fit(training).transform(queries)
        # Rounding a vector turns its angles in the features by as much as the vector is long.
        length = np.abs(table.matrix).sum(axis=1).max()
        np.testing.assert_allclose(model.transform(queries), expected, rtol=0, atol=8 * HALF * length)
        features, ignored = model.encoder_.encode_queries(["snow unicorn", "dog grass"])
        assert ignored == [("unicorn",), ()]
        assert_alike(features, model.transform(["snow", "dog grass"]))
        assert model.coverage(["snow", "unicorn"]).unknown_tokens == 1


@pytest.mark.parametrize("form", FORMS)
def test_query_words_counts_from_the_start_of_the_file(table, vectors, form):
    model = small(vectors(form), query_words=3).fit(["white snow", "the snow", "snow in grass"])
    accepted = [word for word in table.words if model.coverage([word]).unknown_tokens == 0]
    assert accepted == ["dog", "cat", "tree", "white", "snow", "grass", "the", "in"]


def test_words_that_the_tokenizer_never_returns_are_left_out(training, vectors, table):
    words = ["New_York", "Snow", "</s>", ",", "狗", "黑狗", "大黑狗", *table.words]
    matrix = np.random.default_rng(0).normal(size=(len(words), 7)).astype(np.float32)
    path = vectors("binary", WordVectors(words, matrix))
    hkse = small(path).fit(training)
    assert list(hkse.encoder_.query_words.index) == ["狗", "黑狗", "snow", "grass"]
    split = small(path, tokenizer=str.split).fit(training)
    assert split.transform(["New_York"]).shape == (1, 30)
    assert_alike(split.transform(training), hkse.transform(training))


@pytest.mark.parametrize("scale", [1e-7, 1e6])
def test_vectors_that_float16_cannot_hold_are_kept_as_they_are(table, vectors, training, scale):
    scaled = WordVectors(table.words, table.matrix * np.float32(scale))
    hkse = small(vectors("binary", scaled)).fit(training)
    assert hkse.encoder_.query_words.matrix.dtype == np.float32
    expected = small(scaled).fit(training).transform(["snow", "dog snow"])
    np.testing.assert_array_equal(hkse.transform(["snow", "dog snow"]), expected)


# Saved models


@pytest.mark.parametrize("source", ["file", "table"])
def test_a_saved_model_knows_the_further_words(table, vectors, training, tmp_path, source):
    hkse = small(vectors("text") if source == "file" else table).fit(training)
    hkse.save(tmp_path / "model")
    queries = ["snow", "dog snow snow", "dog runs", "grass snow dog"]
    expected = hkse.transform(queries)
    again = HKSE.load(tmp_path / "model")
    assert_alike(again.transform(queries), expected)
    fingerprint = hkse.encoder_.fingerprint
    assert again.encoder_.fingerprint == fingerprint
    assert small(vectors("text"), query_words=0).fit(training).encoder_.fingerprint != fingerprint
    assert_alike(pickle.loads(pickle.dumps(again)).transform(queries), expected)
    # A copy that is fitted again has all words, too.
    refitted = clone(again).fit(training)
    assert_alike(refitted.transform(queries), expected)
    again.save(tmp_path / "again")
    assert_alike(HKSE.load(tmp_path / "again").transform(queries), expected)
    stored = storage.read_tensors(files_of(tmp_path / "model") / WORDS)["vectors"]
    assert (stored.shape, stored.dtype) == ((2, 7), np.float16 if source == "file" else np.float32)
    for without in (small(vectors("text"), query_words=0), small(None)):
        without.fit(training).save(tmp_path / "model")
        assert not (files_of(tmp_path / "model") / WORDS).exists()


def test_a_mapped_model_reads_only_what_a_query_needs(vectors, training, tmp_path):
    hkse = small(vectors("text")).fit(training)
    hkse.save(tmp_path / "model")
    mapped = read_hkse(files_of(tmp_path / "model"), mmap=True)
    further = vars(mapped.query_words)
    # Another process may replace the model meanwhile, and remove these files.
    small(vectors("text")).fit(training[:50]).save(tmp_path / "model")
    mapped.encode(["dog runs"])
    assert not {"index", "matrix"} & further.keys()
    mapped.encode(["dog unicorn"])
    assert "index" in further
    assert "matrix" not in further
    assert_alike(mapped.encode(["snow"]), hkse.transform(["snow"]))
    assert "matrix" in further
    again = pickle.loads(pickle.dumps(read_hkse(files_of(tmp_path / "model"), mmap=True)))
    assert again.encode(["snow"]).shape == (1, 30)


def test_a_model_on_a_device_knows_the_further_words(vectors, training, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    hkse = small(vectors("binary")).fit(training)
    moved = hkse.to("cpu")
    queries = ["snow", "dog grass", "dog"]
    assert_alike(np.asarray(moved.transform(queries)), hkse.transform(queries))
    moved.save(tmp_path / "model")
    assert_alike(HKSE.load(tmp_path / "model").transform(queries), hkse.transform(queries))


def change(folder, name, **arrays):
    path = files_of(folder) / name
    tensors = {**storage.read_tensors(path), **arrays}
    storage.write_tensors(path, {key: array for key, array in tensors.items() if array is not None}, {})


DAMAGE = {
    "missing file": lambda folder: (files_of(folder) / WORDS).unlink(),
    "cut": lambda folder: (files_of(folder) / WORDS).write_bytes(b"\x10" * 30),
    "no vectors": lambda folder: change(folder, WORDS, vectors=None),
    "too few": lambda folder: change(folder, WORDS, vectors=np.zeros((1, 7), np.float16)),
    "too short": lambda folder: change(folder, WORDS, vectors=np.zeros((2, 6), np.float16)),
    "not finite": lambda folder: change(folder, WORDS, vectors=np.full((2, 7), np.nan, np.float16)),
    "no numbers": lambda folder: change(folder, WORDS, vectors=np.zeros((2, 7), np.uint8)),
    "no words": lambda folder: change(folder, storage.TENSORS, query_word_ends=None),
    "other words": lambda folder: change(folder, storage.TENSORS, query_word_ends=np.array([4, 3])),
    "one word twice": lambda folder: change(
        folder,
        storage.TENSORS,
        query_word_bytes=np.frombuffer(b"snowsnow", np.uint8),
        query_word_ends=np.array([4, 8]),
    ),
    "no UTF-8": lambda folder: change(
        folder, storage.TENSORS, query_word_bytes=np.frombuffer(b"\xff\xff\xff\xffgrass", np.uint8)
    ),
}


@pytest.fixture(scope="module")
def saved(table, training, tmp_path_factory):
    """Return the folder of a saved model with further words."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "vectors").write_bytes(binary(table.words, table.matrix, b""))
    small(folder / "vectors").fit(training).save(folder / "model")
    return folder / "model"


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("how", DAMAGE)
def test_damaged_further_words_are_refused(saved, tmp_path, how, sealed):
    shutil.copytree(saved, tmp_path / "model", symlinks=True)
    DAMAGE[how](tmp_path / "model")
    if sealed:
        seal(tmp_path / "model")
    with pytest.raises(InputError):
        HKSE.load(tmp_path / "model")
    with pytest.raises(InputError):
        read_hkse(files_of(tmp_path / "model"), mmap=True).encode(["snow"])


def test_a_retriever_finds_by_further_words(table, vectors, captions, tmp_path, monkeypatch):
    training = sorted({c for c in captions if "snow" not in c})
    # The features of an image are those of its caption, so that snow is near what is white and cold.
    x = small(table, "lin", "lin").fit(training).transform(training)
    hkse = small(vectors("text"), "lin", "lin").fit(training)
    model = Retriever.from_features(x, hkse.transform(training), captions=training, text_encoder=hkse)
    model.save(tmp_path / "model")
    expected = model.search("dog snow", k=5)
    assert expected.ignored_words == ()
    for mmap in (False, True):
        again = Retriever.load(tmp_path / "model", mmap=mmap)
        assert again.search("dog snow", k=5) == expected
        assert again.search("snow unicorn").ignored_words == ("unicorn",)
    again = Retriever.load(tmp_path / "model", mmap=True)
    monkeypatch.setattr("diptych.encoders._hkse_encoder.write_hkse", lambda *_: pytest.fail("written again"))
    again.remove([expected[0].id])
    again.save(tmp_path / "model")
    assert Retriever.load(tmp_path / "model").search("snow").ignored_words == ()
