"""Pairs that are no images: files and texts that are read, checked and encoded, under names of their own."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diptych import InputError, read_pairs
from diptych._checks import ViewNames
from diptych.data import PairedDataset, encode_images, inspect_pairs
from diptych.encoders import FunctionEncoder
from example_files import code_blocks
from modality_files import make_molecules, write_clips

VIEWS = ("audio", "text")


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A folder with tones; and the caption of each file."""
    folder = tmp_path_factory.mktemp("tones")
    return folder, write_clips(folder)


@pytest.fixture(scope="module")
def tones():
    """The encoder of the page, which says what it cannot read."""
    names = {}
    exec(code_blocks(Path(__file__).parents[2] / "docs" / "modalities.md")[0], names)
    return names["tones"]


def test_interrupted_work_resumes_and_unreadable_files_are_left_out(clips, tones, tmp_path):
    folder, captions = clips
    names = [*list(captions)[:70], "broken.wav", "empty.wav", "missing.wav"]
    paths = [
        folder / name if name in ("broken.wav", "empty.wav") else folder / "clips" / name for name in names
    ]
    pairs = PairedDataset.of([(n, [captions.get(n, "nothing")]) for n in names], paths=paths, views=VIEWS)

    def stop(files):
        if files[0] == str(paths[32]):
            raise KeyboardInterrupt
        return tones.encode(files)

    with pytest.raises(KeyboardInterrupt):
        encode_images(pairs, FunctionEncoder(stop, "tones", "paths"), tmp_path / "x")
    done = []
    again = FunctionEncoder(lambda files: done.extend(files) or tones.encode(files), "tones", "paths")
    store = encode_images(pairs, again, tmp_path / "x")
    assert str(paths[1]) not in done  # the first is encoded again to learn the width
    assert len(store.ids) == 70
    assert [each.id for each in store.skipped] == ["broken.wav", "empty.wav", "missing.wav"]
    whole = encode_images(pairs, tones, tmp_path / "y")
    assert np.array_equal(store.features, whole.features)
    np.testing.assert_allclose(whole.features[0], tones.encode([str(paths[0])])[0], rtol=1e-5)


def test_texts_of_the_first_view_are_encoded(tmp_path):
    molecules = PairedDataset.of([(m, [name]) for m, name in make_molecules().items()])
    counts = FunctionEncoder(lambda texts: np.array([[len(t), t.count("C")] for t in texts]), "c", "texts")
    first = molecules.image_ids[0]
    store = encode_images(molecules, counts, tmp_path / "x")
    assert store.features[0].tolist() == [len(first), first.count("C")]


def test_a_folder_of_files_with_texts_beside_them(tmp_path):
    for name in ("a.wav", "b.WAV", "c.mp3", "notes.txt", "d.wav", ".hidden.wav"):
        (tmp_path / name).write_bytes(b"content of " + name.encode())
    for name in ("a", "b", "c", ".hidden"):
        (tmp_path / f"{name}.txt").write_text(f"text of {name}\n", "utf-8")
    pairs = read_pairs(tmp_path, views=VIEWS)
    assert pairs.image_ids == ("a.wav", "b.WAV", "c.mp3")
    assert pairs.captions == ("text of a", "text of b", "text of c")
    with pytest.raises(InputError, match="has 0 images and no captions"):
        read_pairs(tmp_path)


def test_files_that_are_no_images_are_checked_without_decoding(tmp_path):
    for name, content in (("a.wav", b"1"), ("b.wav", b"1"), ("c.wav", b""), ("e.jpg", b"no image")):
        (tmp_path / name).write_bytes(content)
    names = ["a.wav", "b.wav", "c.wav", "d.wav", "e.jpg"]
    pairs = PairedDataset.of(
        [(name, ["x"]) for name in names],
        paths=[tmp_path / name for name in names],
        splits=["train", "test", *[""] * 3],
        views=VIEWS,
    )
    report = inspect_pairs(pairs)
    assert report.missing == ("d.wav",)
    assert [name for name, _ in report.unreadable] == ["c.wav", "e.jpg"]
    assert report.leaks == (("a.wav", "b.wav"),)
    assert report.problems[0] == "1 audio item cannot be found: d.wav."
    assert len(inspect_pairs(replace(pairs, views=ViewNames())).unreadable) == 4


def test_a_table_of_texts_has_no_files(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("molecule,name\nC/C=C/C,butene\n../CC,odd\n", "utf-8")
    assert read_pairs(table, views=("molecule", "name")).paths is None
    with pytest.raises(InputError, match="leads out"):
        read_pairs(table, views=("molecule", "name"), images=tmp_path)
    table.write_text("file,note\na.npy,rising\nb.npy,falling\n", "utf-8")
    (tmp_path / "a.npy").write_bytes(b"1")
    assert read_pairs(table, views=("series", "note")).paths == (tmp_path / "a.npy", tmp_path / "b.npy")
    table.write_text("smiles,label\nCCO,ethanol\n", "utf-8")
    with pytest.raises(InputError, match="none has a usual name for the molecule; name it with image_column"):
        read_pairs(table, views=("molecule", "name"))
    assert read_pairs(table, views=("molecule", "name"), image_column="smiles").image_ids == ("CCO",)


def test_a_function_that_fails_is_asked_for_one_input_at_a_time(tmp_path):
    batches = []

    def encode(texts):
        batches.append(len(texts))
        if any("bad" in text for text in texts):
            raise InputError("it is bad")
        if any("bug" in text for text in texts):
            raise KeyError("bug")
        return np.array([[float(len(text)), 1.0] for text in texts])

    encoder = FunctionEncoder(encode, "lengths", "texts")
    pairs = PairedDataset.of([(text, [text]) for text in ("a", "bad", "ccc")])
    store = encode_images(pairs, encoder, tmp_path / "x")
    assert (store.features.tolist(), batches) == ([[1, 1], [3, 1]], [1, 3, 1, 1, 1])
    assert store.skipped[0].reason == "bad: it is bad"
    assert encoder.dimension == 2
    pairs = PairedDataset.of([(text, [text]) for text in ("a", "bug")], views=("word", "text"))
    with pytest.raises(
        InputError, match=r"the word encoder failed on bug \(KeyError: 'bug'\); let it raise"
    ) as e:
        encode_images(pairs, encoder, tmp_path / "y")
    assert isinstance(e.value.__cause__, KeyError)
    ragged = FunctionEncoder(lambda texts: np.array([[1.0] * len(t) for t in texts]), "ragged", "texts")
    with pytest.raises(InputError, match="arrays of several shapes"):
        encode_images(PairedDataset.of([("a", ["a"]), ("bb", ["b"])]), ragged, tmp_path / "z")


def test_a_staged_encoder_reads_its_files_in_threads(clips, tones, tmp_path):
    class Staged:
        inputs, fingerprint, dimension, threads = "paths", "staged", 0, frozenset()

        def prepare(self, path):
            self.threads |= {threading.current_thread().name}
            return tones.encode([path])[0]

        def encode_prepared(self, prepared):
            return np.stack(prepared)

        def encode(self, paths):
            return self.encode_prepared([self.prepare(path) for path in paths])

    folder, captions = clips
    names = [*list(captions)[:10], "broken.wav"]
    paths = [folder / "clips" / name for name in names[:-1]] + [folder / "broken.wav"]
    pairs = PairedDataset.of([(name, ["x"]) for name in names], paths=paths, views=VIEWS)
    staged = Staged()
    store = encode_images(pairs, staged, tmp_path / "x", workers=3)
    assert (len(store.ids), [each.id for each in store.skipped]) == (10, ["broken.wav"])
    assert staged.threads
    assert all(name.startswith("prefetch") for name in staged.threads)
