"""Libraries of photos: folders that are followed, and a fit that keeps them."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import diptych
from diptych import Fusion, Retriever
from diptych._checks import InputError
from diptych.cca._weighting import to_unit_length
from diptych.data import PairedDataset
from diptych.encoders import FunctionEncoder, PyramidDescriptor
from diptych.retrieval import _sync
from diptych.retrieval._folder import save_published
from diptych.retrieval._merging import merge_pairs
from photo_files import COLOURS, make_exif, make_library, make_xmp, towers, write_photo

PATH = os.pathsep.join(map(str, [Path(diptych.__file__).parents[1], Path(__file__).parents[1]]))


@pytest.fixture
def photos(tmp_path):
    """A folder with three photos, one of them in a subfolder."""
    for name, colour in (("a.jpg", "red"), ("b.jpg", "green"), ("more/c.jpg", "blue")):
        write_photo(tmp_path / "photos" / name, colour)
    return tmp_path / "photos"


@pytest.fixture
def library(tmp_path, photos):
    """A library of these photos, opened again."""
    make_library(tmp_path / "library").sync(photos)
    return reopen(tmp_path / "library")


def reopen(folder):
    return Retriever.load(folder, *towers())


def ids(retriever, view="image"):
    return sorted(item.id for item in retriever.store.items(view))


def change(path, colour, **content):
    """Write another photo, later than the one before."""
    write_photo(path, colour, **content)
    later = time.time() + 10
    os.utime(path, (later, later))


class TestZeroShot:
    def test_photos_are_found_by_texts_without_pairs(self, library):
        for colour, name in (("red", "a.jpg"), ("green", "b.jpg"), ("blue", "more/c.jpg")):
            (hit,) = library.search(f"something {colour}", 1)
            assert hit.id == name
            assert hit.score == pytest.approx(1.0, abs=0.05)

    def test_scores_are_cosines_of_the_features(self, library):
        image, text = towers()
        x = np.array(image.encode([np.full((4, 4, 3), rgb, np.uint8) for rgb in COLOURS.values()]))
        y = text.encode(["red and blue"])[0]
        expected = x @ y / np.linalg.norm(x, axis=1) / np.linalg.norm(y)
        scores = {hit.id: hit.score for hit in library.search("red and blue")}
        names = ["a.jpg", "b.jpg", "more/c.jpg"]
        np.testing.assert_allclose([scores[name] for name in names], expected, atol=0.05)

    def test_two_towers_are_needed(self):
        image, text = towers()
        with pytest.raises(InputError, match="name both towers"):
            Retriever.zero_shot(image)
        with pytest.raises(InputError, match="630 features and the text encoder 3"):
            Retriever.zero_shot(PyramidDescriptor(), text)
        with pytest.raises(InputError, match="needed both"):
            Retriever.zero_shot(image, "hkse")
        wide = FunctionEncoder(lambda images: np.ones((len(images), 4)), "wide")
        with pytest.raises(InputError, match="name the two towers of a dual encoder"):
            Retriever.zero_shot(wide, text)


class TestSync:
    def test_what_is_unchanged_is_not_encoded(self, library, photos, monkeypatch):
        monkeypatch.setattr(_sync, "_encode_photos", None)  # would fail
        report = library.sync()
        assert (report.unchanged, report.changed, report.gone) == (3, False, [])
        os.utime(photos / "a.jpg", (1, 1))  # the same bytes at another time
        monkeypatch.undo()
        report = library.sync()
        assert (report.unchanged, report.changed) == (3, False)

    def test_new_changed_renamed_and_gone(self, library, photos, tmp_path):
        write_photo(photos / "d.jpg", "blue", shade=10)
        change(photos / "a.jpg", "green", shade=5)
        (photos / "b.jpg").rename(photos / "more" / "named.jpg")
        (photos / "more" / "c.jpg").unlink()
        report = library.sync()
        assert (report.added, report.updated, report.gone) == (["d.jpg"], ["a.jpg"], ["more/c.jpg"])
        assert report.renamed == {"b.jpg": str(photos.resolve() / "more" / "named.jpg")}
        assert ids(library) == ["a.jpg", "b.jpg", "d.jpg", "more/c.jpg"]
        assert {hit.id for hit in library.search("green", 2)} == {"a.jpg", "b.jpg"}
        again = reopen(tmp_path / "library")
        assert again.item("b.jpg").path.endswith("named.jpg")
        report = again.sync(remove=True)
        assert (report.removed, report.changed, report.gone) == (1, True, ["more/c.jpg"])
        assert ids(again) == ["a.jpg", "b.jpg", "d.jpg"]
        assert not again.sync().changed

    def test_a_new_photo_under_an_old_name_is_another_item(self, library, photos):
        (photos / "a.jpg").rename(photos / "z.jpg")
        write_photo(photos / "a.jpg", "blue", shade=20)
        report = library.sync()
        # Its file was there, and is another one now.
        assert report.updated == ["a.jpg"]
        assert report.added == ["z.jpg"]
        (photos / "z.jpg").rename(photos / "y.jpg")
        library.sync()
        write_photo(photos / "z.jpg", "green", shade=30)
        assert library.sync().added == ["z.jpg (2)"]

    def test_removed_photos_stay_removed_while_their_files_are_the_same(self, library, photos):
        library.remove("a.jpg")
        (photos / "a.jpg").rename(photos / "z.jpg")
        assert not library.sync().changed
        change(photos / "z.jpg", "blue", shade=40)
        assert library.sync().added == ["a.jpg"]
        assert library.item("a.jpg").path.endswith("z.jpg")

    def test_two_folders_with_equal_names(self, library, tmp_path):
        other = write_photo(tmp_path / "other" / "a.jpg", "blue", shade=15).parent
        assert library.sync(other).added == ["a.jpg (2)"]
        assert library.sync().unchanged == 4
        write_photo(tmp_path / "photos" / "more" / "d.jpg", shade=15)
        report = library.sync(tmp_path / "photos" / "more")  # a part of a folder that is known
        assert (report.added, report.unchanged) == (["more/d.jpg"], 1)

    def test_items_that_were_added_otherwise_are_recognised(self, library, photos):
        path = write_photo(photos / "d.jpg", "green", shade=20)
        library.add([str(path.resolve())], ids=["mine"])
        assert not library.sync().added
        assert ids(library) == ["a.jpg", "b.jpg", "mine", "more/c.jpg"]

    def test_unreadable_files_are_named_and_tried_again(self, library, photos):
        (photos / "text.jpg").write_text("no image")
        for _ in range(2):
            report = library.sync()
            assert list(report.unreadable) == [str(photos.resolve() / "text.jpg")]
            assert "not in a supported format" in "".join(report.unreadable.values())
        change(photos / "text.jpg", "red", shade=9)
        assert library.sync().added == ["text.jpg"]

    def test_moved_together_with_its_photos(self, library, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        for name in ("library", "photos"):
            shutil.move(tmp_path / name, tmp_path / "elsewhere")
        moved = reopen(tmp_path / "elsewhere" / "library")
        assert (moved.sync().unchanged, moved.sync().gone) == (3, [])

    def test_copies_and_published_models_know_no_folders(self, library, tmp_path):
        library.save(tmp_path / "copy")
        save_published(library, tmp_path / "published", "me/photos", keep_features=False, front_matter="")
        for name in ("copy", "published"):
            content = (tmp_path / name / "items.sqlite").read_bytes()
            assert b"a.jpg" in content
            assert b"sha256 TEXT NOT NULL, PRIMARY KEY" not in content
        with pytest.raises(InputError, match="knows no folder"):
            reopen(tmp_path / "copy").sync()

    def test_a_library_in_its_own_folder_of_photos(self, photos):
        library = make_library(photos / "library")
        write_photo(photos / "library" / "uploads" / "x.jpg")
        assert len(library.sync(photos).added) == 3

    def test_interrupted_work_goes_on(self, library, photos, monkeypatch):
        for n in range(5):
            write_photo(photos / f"new{n}.jpg", shade=n + 1)
        monkeypatch.setattr(_sync, "BATCH", 2)
        record, calls = _sync.PhotoFolders.record, []

        def interrupt(*arguments):
            calls.append(arguments)
            if len(calls) == 2:  # after the second batch was added, before its files are recorded
                raise KeyboardInterrupt
            record(*arguments)

        monkeypatch.setattr(_sync.PhotoFolders, "record", interrupt)
        with pytest.raises(KeyboardInterrupt):
            library.sync()
        assert library.store.count("image") == 7
        monkeypatch.setattr(_sync.PhotoFolders, "record", record)
        assert library.sync().added == ["new4.jpg"]
        assert ids(library) == ["a.jpg", "b.jpg", "more/c.jpg", *(f"new{n}.jpg" for n in range(5))]

    def test_wrong_folders(self, library, photos, tmp_path):
        (tmp_path / "empty").mkdir()
        with pytest.raises(InputError, match="holds no images; give a folder of photos"):
            library.sync(tmp_path / "empty")
        with pytest.raises(InputError, match="nowhere is not a folder"):
            library.sync(tmp_path / "nowhere")
        photos.rename(tmp_path / "unplugged")
        with pytest.raises(InputError, match="can be read now; nothing was changed"):
            library.sync(remove=True)
        photos.mkdir()  # where a disk was
        with pytest.raises(InputError, match="is its disk there"):
            library.sync(remove=True)
        assert library.store.count("image") == 3
        with pytest.raises(InputError, match="in memory; save it first"):
            Retriever.zero_shot(*towers()).sync(photos)
        with pytest.raises(InputError, match="knows no folder of photos"):
            make_library(tmp_path / "new").sync()


SYNC = """
import sys
from diptych import Retriever
from diptych.retrieval import _sync
from diptych.retrieval._merging import merge_pairs
from photo_files import towers
_sync.BATCH = 4
library = Retriever.load(sys.argv[1], *towers())
print("ready", flush=True)
library.sync()
"""


@pytest.mark.slow
class TestSeveralProcesses:
    @pytest.fixture
    def many(self, library, photos):
        for n in range(60):
            write_photo(
                photos / f"{n:02}.jpg", list(COLOURS)[n % 3], (400, 300), xmp=make_xmp([f"Number {n}"])
            )
        return library

    def start(self, tmp_path):
        """Start a process that brings the library up to date, once it has opened it."""
        command = [sys.executable, "-c", SYNC, str(tmp_path / "library")]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PATH})
        assert child.stdout.readline() == b"ready\n"
        return child

    def check(self, folder):
        library = reopen(folder)
        assert not library.sync().added
        assert len(ids(library)) == 63
        assert ids(library, "text") == [f"{n:02}.jpg#description" for n in range(60)]

    def test_killed_ones_leave_a_library_that_the_next_completes(self, many, tmp_path):
        killed = 0
        for moment in np.linspace(0.002, 0.3, 8):
            with self.start(tmp_path) as child:
                time.sleep(moment)
                child.kill()
            killed += child.returncode == -9
            library = reopen(tmp_path / "library")
            known = _sync.PhotoFolders(library.store).files(1)
            assert {file.id for file in known.values()} <= set(ids(library))
        assert killed >= 3
        reopen(tmp_path / "library").sync()
        self.check(tmp_path / "library")

    def test_two_at_a_time(self, many, tmp_path):
        with self.start(tmp_path) as one, self.start(tmp_path) as other:
            pass
        assert (one.returncode, other.returncode) == (0, 0)
        self.check(tmp_path / "library")


class TestWhatPhotosSay:
    def test_captions_and_metadata(self, library, photos):
        exif = make_exif(model="X-T5", taken="2024:06:02 08:00:00")
        write_photo(
            photos / "d.jpg", "blue", exif=exif, xmp=make_xmp(["The blue sea"], "Sea", ["sea", "sky"])
        )
        library.sync()
        assert ids(library, "text") == ["d.jpg#description", "d.jpg#title"]
        assert library.annotate(photos / "d.jpg", 1)[0].item.image == "d.jpg"
        for where in ("date >= 2024-06-01", 'tags = "sky"', 'camera = "X-T5"'):
            assert [hit.id for hit in library.search("blue", where=where)] == ["d.jpg"]
        assert not library.search("blue", where="date >= 2024-07-01")

    def test_a_file_beside_a_photo_that_cannot_be_read_is_named(self, library, photos):
        write_photo(photos / "d.jpg", "blue", shade=4)
        write_photo(photos / "e.jpg", "blue", shade=8)
        (photos / "d.txt").write_bytes(b"\xff not UTF-8")
        report = library.sync()
        assert report.added == ["e.jpg"]
        (reason,) = report.unreadable.values()
        assert "d.txt is not UTF-8 text" in reason
        (photos / "d.txt").write_text("The deep blue sea")
        assert library.sync().added == ["d.jpg"]

    def test_changed_captions_are_not_encoded_again_as_images(self, library, photos, monkeypatch):
        (photos / "a.xmp").write_bytes(make_xmp(["The red one"], tags=["card"]))
        library.add(captions=["mine"], caption_ids=["a.jpg#0"])
        report = library.sync()
        assert (report.updated, library.item("a.jpg").metadata["tags"]) == (["a.jpg"], ["card"])
        (photos / "a.xmp").write_bytes(make_xmp(title="Red, it is"))
        assert library.sync().updated == ["a.jpg"]
        assert ids(library, "text") == ["a.jpg#0", "a.jpg#title"]

    def test_captions_of_tables_stay_when_the_photo_changes(self, library, photos):
        pairs = PairedDataset.of([("a.jpg", ["A red card."])], paths=[photos.resolve() / "a.jpg"])
        assert merge_pairs(library, pairs)[0] == ["a.jpg"]
        change(photos / "a.jpg", "blue", shade=12)
        library.sync()
        (text,) = library.store.items("text")
        assert (text.id, text.text, text.image) == ("a.jpg#0", "A red card.", "a.jpg")

    def test_photos_lie_between_themselves_and_what_their_files_say(self, library, photos):
        def assert_placed(*texts):
            assert {text.text for text in library.items("text")} == set(texts)
            (stored,) = (
                row
                for block in library.store.vectors("search", library.version)
                for item, row in zip(block.items, block.vectors, strict=True)
                if item.id == "a.jpg"
            )
            image, words = (tower.encode for tower in towers())
            with Image.open(photos / "a.jpg") as photo:
                expected = to_unit_length(image([photo.convert("RGB")]))
            if texts:
                directions = to_unit_length(words(texts)).mean(axis=0, keepdims=True)
                expected = 3 * expected + len(texts) * to_unit_length(directions)
            np.testing.assert_allclose(stored[:3], to_unit_length(expected)[0], atol=1e-5)
            assert stored[-1] == pytest.approx(-0.1 if texts else 0.0)

        for xmp, texts in (
            (make_xmp(["Green light"], "Blue card"), ("Green light", "Blue card")),
            (make_xmp(title="Blue card"), ("Blue card",)),
            (make_xmp(title="Green and blue"), ("Green and blue",)),
        ):
            (photos / "a.xmp").write_bytes(xmp)
            library.sync()
            assert_placed(*texts)
        change(photos / "a.jpg", "green", shade=12)
        library.sync()
        assert_placed("Green and blue")
        (photos / "a.xmp").unlink()
        library.sync()
        assert_placed()

    def test_places_are_not_published(self, library, photos):
        from diptych.retrieval._items import strip_paths

        gps = {1: "N", 2: (1.0, 2.0, 3.0), 3: "E", 4: (4.0, 5.0, 6.0)}
        write_photo(photos / "d.jpg", "blue", shade=3, exif=make_exif(gps=gps, model="X-T5"))
        library.sync()
        item = library.item("d.jpg")
        assert item.metadata["latitude"] == pytest.approx(1.034167)
        (published,) = strip_paths([item])
        assert published.metadata == {"camera": "X-T5", "orientation": "landscape"}
        assert published.path is None


class TestTables:
    def test_metadata_and_captions_of_known_photos(self, library, photos, tmp_path):
        new = write_photo(tmp_path / "new.jpg")
        pairs = PairedDataset.of(
            [("renamed", ["One.", "Two."]), ("b.jpg", []), ("new.jpg", ["Three."])],
            paths=[photos.resolve() / "a.jpg", tmp_path / "b.jpg", new],
        )
        pairs = replace(pairs, metadata={"renamed": {"year": 2020}, "b.jpg": {"year": 2021}})
        updated, rest = merge_pairs(library, pairs)
        assert (updated, rest.image_ids, rest.captions) == (["a.jpg", "b.jpg"], ("new.jpg",), ("Three.",))
        assert library.item("a.jpg").metadata == {"orientation": "landscape", "year": 2020}
        assert library.item("b.jpg").metadata["year"] == 2021
        assert [item.text for item in library.store.items("text", images=["a.jpg"])] == ["One.", "Two."]
        assert merge_pairs(library, pairs)[0] == []
        others = replace(pairs, captions=("Two.", "Other.", "Three."))
        assert merge_pairs(library, others)[0] == ["a.jpg"]
        texts = {item.id: item.text for item in library.store.items("text", images=["a.jpg"])}
        assert texts == {"renamed#0": "One.", "renamed#1": "Two.", "a.jpg#0": "Other."}


class TestFit:
    @pytest.fixture
    def fitted(self, tmp_path):
        """A library of 40 photos, after a fit on the captions of 30 of them."""
        rng = np.random.default_rng(0)
        images = []
        for n in range(40):
            colour = list(COLOURS)[n % 3]
            content = {"xmp": make_xmp(["From the file"])} if n == 35 else {}
            path = write_photo(
                tmp_path / "photos" / f"{n:02}.jpg", colour, shade=int(rng.integers(1, 20)), **content
            )
            images.append((f"images/{n:02}", [f"a {colour} card", f"{colour} it is"], path.resolve()))
        library = make_library(tmp_path / "library")
        library.sync(tmp_path / "photos")
        library.update("03.jpg", metadata={"mine": 1})
        del images[30:]
        pairs = PairedDataset.of([image[:2] for image in images], paths=[path for *_, path in images])
        library = reopen(tmp_path / "library")
        library.model = Fusion("best", grid=3)
        library.fit(pairs, keep_items=True)
        library.save(tmp_path / "library")
        return library

    def test_items_stay_under_their_ids(self, fitted, tmp_path):
        again = reopen(tmp_path / "library")
        for retriever in (fitted, again):
            assert ids(retriever) == [f"{n:02}.jpg" for n in range(40)]
            assert retriever.store.count("text") == 61
            assert retriever.item("03.jpg").metadata == {"orientation": "landscape", "mine": 1}
            assert {item.image for item in retriever.store.items("text")} == {
                *(f"{n:02}.jpg" for n in range(30)),
                "35.jpg",
            }
        assert [item.id for item in again.store.items("image", new=True)] == [
            f"{n}.jpg" for n in range(30, 40)
        ]

    def test_another_photo_with_the_same_name_is_another_item(self, fitted, tmp_path):
        colours = [list(COLOURS)[n % 3] for n in range(30)]
        paths = [write_photo(tmp_path / "other" / f"{n:02}.jpg", c, shade=n) for n, c in enumerate(colours)]
        images = [(p.name, [f"other {c}", f"a {c} card"]) for p, c in zip(paths, colours, strict=True)]
        fitted.fit(PairedDataset.of(images, paths=paths), keep_items=True)
        assert fitted.store.count("image") == 70
        assert fitted.item("07.jpg").path != fitted.item("07.jpg (2)").path
        assert fitted.store.count("text") == 121
        assert {item.text for item in fitted.store.items("text", images=["07.jpg (2)"])} == {*images[7][1]}

    def test_the_library_still_knows_its_folder(self, fitted, tmp_path):
        report = reopen(tmp_path / "library").sync()
        assert (report.unchanged, report.changed) == (40, False)

    def test_the_zero_shot_cosine_is_a_part(self, fitted):
        parts = fitted.info()["parts"]["search"]
        assert any("as encoded" in part["name"] for part in parts)
        hits = fitted.search("a blue card", 13)
        assert sum(int(hit.id[:2]) % 3 == 2 for hit in hits) >= 12
