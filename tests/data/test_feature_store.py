import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diptych import InputError
from diptych._threads import prefetch
from diptych.data import FeatureStore, PairedDataset, encode_images, encode_texts, join
from diptych.data._feature_store import Job, StoreWriter
from diptych.encoders import FunctionEncoder, NetworkEncoder, Recipe
from diptych.scenes import make_scenes

JOB = Job("encoder", "inputs", 10, 4, "float32", 2)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def pairs(tmp_path):
    """Twelve scenes, three of them unreadable."""
    dataset = make_scenes(12, size=32).write(tmp_path / "pairs")
    dataset.paths[2].write_bytes(b"")
    dataset.paths[7].write_bytes(dataset.paths[7].read_bytes()[:300])
    dataset.paths[11].unlink()
    return dataset


class Colour:
    """Encodes the mean colour and counts the images."""

    dimension, fingerprint = 3, "colour"

    def __init__(self, stop_after=None):
        self.seen, self.stop_after = 0, stop_after

    def encode(self, images):
        self.seen += len(images)
        if self.stop_after is not None and self.seen > self.stop_after:
            raise KeyboardInterrupt
        return np.array([np.asarray(image, np.float32).mean(axis=(0, 1)) for image in images])


def test_a_store_has_features_ids_and_skipped_inputs(pairs, tmp_path):
    store = encode_images(pairs, Colour(), tmp_path / "store", batch_size=5)
    assert store.features.shape == (9, 3)
    assert isinstance(store.features, np.memmap)
    assert len(store.ids) == 9
    assert [skipped.id for skipped in store.skipped] == [pairs.image_ids[i] for i in (2, 7, 11)]
    assert [
        word in skipped.reason
        for word, skipped in zip(("empty", "truncated", "exist"), store.skipped, strict=True)
    ]
    row = store.rows_of([pairs.image_ids[4]])[0]
    np.testing.assert_allclose(
        store.features[row], np.asarray(Image.open(pairs.paths[4]), float).mean((0, 1)), rtol=1e-5
    )
    assert store.job.encoder == "colour"
    FeatureStore.open(tmp_path / "store", verify=True)


def test_interrupted_work_resumes_to_the_same_bytes(pairs, tmp_path):
    encode_images(pairs, Colour(), tmp_path / "whole", batch_size=3)
    for stop_after, left in ((0, 9), (2, 7), (4, 7), (5, 4), (8, 2)):
        folder = tmp_path / f"stopped-{stop_after}"
        with pytest.raises(KeyboardInterrupt):
            encode_images(pairs, Colour(stop_after), folder, batch_size=3)
        with pytest.raises(InputError, match="unfinished"):
            FeatureStore.open(folder)
        # The batch size of the first run is kept: the last bits of a network's features may depend on it.
        encoder = Colour()
        encode_images(pairs, encoder, folder, batch_size=7)
        assert encoder.seen == left
        assert content(folder) == content(tmp_path / "whole")


def test_stores_of_other_encoders_or_files_are_refused(pairs, tmp_path):
    encode_images(pairs, Colour(), tmp_path / "done")
    with pytest.raises(KeyboardInterrupt):
        encode_images(pairs, Colour(2), tmp_path / "begun", batch_size=2)
    ones = FunctionEncoder(lambda images: np.ones((len(images), 3), np.float32), "ones")
    for folder in ("done", "begun"):
        files = content(tmp_path / folder)
        with pytest.raises(InputError, match=r"another encoder \(colour, not function:ones\)"):
            encode_images(pairs, ones, tmp_path / folder)
        with pytest.raises(InputError, match="other inputs"):
            encode_images(pairs.select([0, 1]), Colour(), tmp_path / folder)
        with pytest.raises(InputError, match="dtype float32, not float16"):
            encode_images(pairs, Colour(), tmp_path / folder, dtype="float16")
        assert content(tmp_path / folder) == files
    raw = bytearray(pairs.paths[0].read_bytes())
    raw[-1] ^= 1
    pairs.paths[0].write_bytes(raw)
    for folder in ("done", "begun"):
        with pytest.raises(InputError, match="other inputs"):
            encode_images(pairs, Colour(), tmp_path / folder)


def test_folders_with_other_files_are_refused(pairs, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for place, message in (("mine", "holds other files"), ("mine/thesis.txt", "is a file")):
        with pytest.raises(InputError, match=message):
            encode_images(pairs, Colour(), tmp_path / place)
    assert content(tmp_path / "mine") == {"thesis.txt": b"precious"}


def test_finished_work_is_not_done_again_and_files_of_others_stay(pairs, tmp_path):
    encode_images(pairs, Colour(), tmp_path / "store")
    for name in ("journal.jsonl", "work.json", "notes.txt"):
        (tmp_path / "store" / name).write_text("precious")
    expected, encoder = content(tmp_path / "store"), Colour()
    encode_images(pairs, encoder, tmp_path / "store")
    assert encoder.seen == 0
    assert content(tmp_path / "store") == expected


@pytest.mark.parametrize("name", ["features.partial", "journal.jsonl", "features.npy", "work.json"])
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_nothing_is_written_through_a_link_or_to_a_pipe(tmp_path, name, kind):
    StoreWriter(tmp_path / "store", JOB).close()
    place, mine = tmp_path / "store" / name, tmp_path / "thesis.txt"
    content = place.read_bytes() if place.exists() else b"precious"
    mine.write_bytes(content)
    place.unlink(missing_ok=True)
    place.symlink_to(mine) if kind == "link" else os.mkfifo(place)
    with pytest.raises(InputError, match=f"{name} is a link|{name} is neither a file"):
        StoreWriter(tmp_path / "store", JOB)
    assert mine.read_bytes() == content


def test_a_writer_recovers_from_truncated_files(tmp_path, rng):
    rows = rng.normal(size=(10, 4)).astype(np.float32)

    def write(folder, upto, job=JOB):
        writer = StoreWriter(folder, job)
        for start in range(writer.done, upto, 2):
            writer.append(rows[start : start + 2], 2, [])
        return writer

    names = [f"{i}.jpg" for i in range(10)]
    write(tmp_path / "whole", 10).finish(names)
    expected = content(tmp_path / "whole")
    for cut_data, cut_journal in [(0, 0), (1, 0), (17, 0), (40, 0), (0, 1), (0, 20), (5, 60), (33, 3)]:
        folder = tmp_path / f"torn-{cut_data}-{cut_journal}"
        write(folder, 6).close()
        for name, cut in (("features.partial", cut_data), ("journal.jsonl", cut_journal)):
            path = folder / name
            os.truncate(path, path.stat().st_size - cut)
        write(folder, 10).finish(names)
        assert content(folder) == expected
    for name, extra in (("features.partial", bytes(7)), ("journal.jsonl", b'{"done": 8, "ro')):
        folder = tmp_path / f"longer-{name}"
        write(folder, 6).close()
        with open(folder / name, "ab") as file:
            file.write(extra)
        write(folder, 10).finish(names)
        assert content(folder) == expected
    # Killed between the last rename and the config.
    folder = tmp_path / "nearly"
    write(folder, 10).close()
    (folder / "features.partial").rename(folder / "features.npy")
    write(folder, 10).finish(names)
    assert content(folder) == expected


def test_a_second_writer_is_refused_and_a_finished_store_not_opened_again(tmp_path):
    writer = StoreWriter(tmp_path / "store", JOB)
    with pytest.raises(InputError, match="another process is writing"):
        StoreWriter(tmp_path / "store", JOB)
    writer.append(np.ones((10, 4)), 10, [])
    writer.finish([str(i) for i in range(10)])
    finished = content(tmp_path / "store")
    with pytest.raises(InputError, match="just finished"):
        StoreWriter(tmp_path / "store", JOB)
    assert content(tmp_path / "store") == finished


@pytest.mark.skipif(os.name == "nt", reason="file names are Unicode there")
def test_an_unreadable_image_in_a_folder_with_an_invalid_name_is_skipped(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "a.png").write_bytes(b"not an image")
    pairs = PairedDataset.of([("a.png", ["A caption."])], paths=[folder / "a.png"])
    store = encode_images(pairs, Colour(), tmp_path / "store")
    assert [skipped.id for skipped in store.skipped] == ["a.png"]


def test_damaged_stores_are_refused(pairs, tmp_path):
    folder = tmp_path / "store"
    encode_images(pairs, Colour(), folder)
    good = content(folder)

    def damage(name, raw):
        for file, original in good.items():
            (folder / file).write_bytes(original)
        (folder / name).write_bytes(raw)

    flipped = bytearray(good["features.npy"])
    flipped[-3] ^= 4
    damage("features.npy", bytes(flipped))
    FeatureStore.open(folder)
    with pytest.raises(InputError, match="checksum"):
        FeatureStore.open(folder, verify=True)
    config = json.loads(good["config.json"])
    for name, raw in (
        ("features.npy", good["features.npy"][:-1]),
        ("features.npy", b""),
        ("ids.jsonl", good["ids.jsonl"] + b'"more"\n'),
        ("ids.jsonl", b"{}\n" * 9),
        ("skipped.jsonl", b'["one"]\n'),
        ("config.json", b"{}"),
        ("config.json", json.dumps({**config, "version": 99}).encode()),
        ("config.json", json.dumps({**config, "rows": 8}).encode()),
        ("config.json", json.dumps({**config, "job": {**config["job"], "dimension": "3"}}).encode()),
        ("config.json", json.dumps({**config, "job": {}}).encode()),
    ):
        damage(name, raw)
        with pytest.raises(InputError):
            FeatureStore.open(folder)
    with pytest.raises(InputError, match="no features"):
        FeatureStore.open(tmp_path)


def test_invalid_features_are_refused(pairs, tmp_path):
    encoder = Colour()
    for answer in (
        lambda images: np.ones((len(images), 4), np.float32),
        lambda images: np.ones((len(images) + 1, 3), np.float32),
        lambda images: np.ones(3, np.float32),
        lambda images: np.full((len(images), 3), np.nan, np.float32),
        lambda images: np.full((len(images), 3), "x"),
    ):
        encoder.encode = answer
        with pytest.raises(InputError, match="encoder"):
            encode_images(pairs, encoder, tmp_path / "store")


def test_half_precision_is_stored_and_overflow_refused(pairs, tmp_path):
    store = encode_images(pairs, Colour(), tmp_path / "half", dtype="float16")
    assert store.features.dtype == np.float16
    loud = FunctionEncoder(lambda images: np.full((len(images), 3), 1e6, np.float32), "loud")
    with pytest.raises(InputError, match="beyond float16"):
        encode_images(pairs, loud, tmp_path / "loud", dtype="float16")
    with pytest.raises(InputError, match="dtype"):
        encode_images(pairs, Colour(), tmp_path / "int", dtype="int8")


def test_images_above_the_pixel_limit_are_skipped(pairs, tmp_path):
    store = encode_images(pairs, Colour(), tmp_path / "store", max_pixels=1000)
    assert store.features.shape == (0, 3)
    assert "1,000" in store.skipped[0].reason


def test_pairs_without_image_paths_are_refused(tmp_path):
    with pytest.raises(InputError, match="images=FOLDER"):
        encode_images(make_scenes(3).dataset, Colour(), tmp_path / "store")


def test_staged_encoders_prepare_ahead_and_in_order(tmp_path):
    dataset = make_scenes(30, size=24).write(tmp_path / "scenes")
    recipe = Recipe(mean=(0, 0, 0), std=(1, 1, 1), scale=255.0, pooling="mean")
    encoder = NetworkEncoder(lambda batch: batch, recipe, "mean")
    staged = encode_images(dataset, encoder, tmp_path / "staged", batch_size=4, workers=3)
    plain = encode_images(dataset, Colour(), tmp_path / "plain", batch_size=4)
    np.testing.assert_allclose(staged.features, plain.features, rtol=1e-5)
    assert staged.ids == plain.ids == dataset.image_ids


def test_no_more_than_the_window_is_loaded():
    loaded, most = [], 0
    for number, item in enumerate(prefetch(lambda item: loaded.append(item) or item, range(200), 4, 10)):
        assert item == number
        most = max(most, len(loaded) - number)
    assert most <= 10


def test_an_error_in_a_thread_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(prefetch(lambda item: 1 / item, range(5), 2, 3))


class Letters:
    def __init__(self, shift=0):
        self.shift = shift

    def encode(self, sentences):
        return np.array([[len(s) + self.shift, s.count("a")] for s in sentences], np.float32)


def test_captions_are_encoded_and_encoders_are_distinguished(tmp_path):
    dataset = make_scenes(10).dataset
    store = encode_texts(dataset, Letters(), tmp_path / "texts", batch_size=7)
    assert store.ids == dataset.caption_ids
    np.testing.assert_array_equal(store.features, Letters().encode(dataset.captions))
    encode_texts(dataset, Letters(), tmp_path / "texts")
    with pytest.raises(InputError, match="another encoder"):
        encode_texts(dataset, Letters(1), tmp_path / "texts")
    changed = replace(
        dataset, captions=("Another first.", *dataset.captions[1:]), caption_ids=dataset.caption_ids
    )
    with pytest.raises(InputError, match=r"another encoder|other inputs"):
        encode_texts(changed, Letters(), tmp_path / "texts")
    with pytest.raises(InputError, match="no captions"):
        encode_texts(PairedDataset.of([("a", [])]), Letters(), tmp_path / "none")


def test_join_leaves_out_unreadable_images(pairs, tmp_path):
    images = encode_images(pairs, Colour(), tmp_path / "images")
    texts = encode_texts(pairs, Letters(), tmp_path / "texts")
    views = join(pairs, images, texts)
    assert views.dataset.n_images == 9
    assert views.x.shape == (9, 3)
    assert views.y.shape == (45, 2)
    np.testing.assert_array_equal(views.y, Letters().encode(views.dataset.captions))
    for name in ("train", "val", "test"):
        x, y, pairing = views.split(name)
        subset = views.dataset.subset(name)
        np.testing.assert_array_equal(y, Letters().encode(subset.captions).reshape(-1, 2))
        np.testing.assert_array_equal(pairing, subset.pairing)
        rows = images.rows_of(subset.image_ids)
        np.testing.assert_array_equal(x, images.features[rows])


def test_join_refuses_features_of_other_pairs(pairs, tmp_path):
    images = encode_images(pairs.select([0, 1]), Colour(), tmp_path / "images")
    with pytest.raises(InputError, match="made from other pairs"):
        join(pairs, images, np.zeros((60, 2)))
    with pytest.raises(InputError, match="expected 12 rows"):
        join(pairs, np.zeros((11, 2)), np.zeros((60, 2)))
