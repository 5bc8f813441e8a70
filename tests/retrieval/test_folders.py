"""A folder that several processes change: who sees what, which files there are, and files of others."""

import json
import os
import shutil
import sqlite3
import threading

import numpy as np
import pytest

from diptych import AWCCA, InputError, Retriever
from diptych._checks import UnavailableError
from diptych._database import FILE, Database, MovedError
from diptych._model_folder import current_version
from diptych.retrieval.stores import _files, _folder
from diptych.retrieval.stores._folder import FolderStore
from saved_files import execute, files_of, save_without_features

pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far")


@pytest.fixture
def made(make):
    return make()


@pytest.fixture
def folder(made, tmp_path):
    """A saved retriever of sixty images with two texts each."""
    made.retriever.save(tmp_path / "model")
    return tmp_path / "model"


def ids(folder):
    return {item.id for item in Retriever.load(folder).store.items()}


def add(retriever, made, name):
    retriever.add(made.x[:1], made.y[:1], ids=[name])


def names_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


class TestSharing:
    def test_another_encoder_is_an_error_that_says_so(self, make, tmp_path):
        class Ones:
            dimension = 8

            def __init__(self, name):
                self.fingerprint = self.name = name

            def encode(self, images):
                return np.ones((len(images), 8))

        made = make(image_encoder=Ones("ones"))
        made.retriever.save(tmp_path / "model")
        mine = Retriever.load(tmp_path / "model", Ones("ones"))
        make(image_encoder=Ones("others")).retriever.save(tmp_path / "model")
        with pytest.raises(UnavailableError, match="on features of other encoders; open it again"):
            mine.annotate(made.x[0])
        with pytest.raises(InputError, match="its images were encoded by others"):
            mine.annotate(b"image")

    def test_features_that_were_not_kept_are_made_again(self, fitted, drawn, tmp_path):
        save_without_features(fitted, tmp_path / "lean")
        mine, other = (Retriever.load(tmp_path / "lean") for _ in range(2))
        mine.add([drawn.paths[0]], ["a red star"], ids=["mine"])
        other.refit()
        assert {"mine", "mine#0"} <= {hit.id for hit in mine.similar(drawn.paths[0], k=2)} | {"mine#0"}
        assert {path.suffix for path in (tmp_path / "lean" / "rows").iterdir()} == {".search", ".annotate"}

    def test_a_change_that_fails_leaves_everything_as_it_was(self, folder, made, monkeypatch):
        mine, before = Retriever.load(folder), ids(folder)

        def full(*args):
            raise OSError(28, "No space left on device")

        for place, name in ((_folder, "write_layout"), (_files.RowFile, "write"), (_folder, "insert_items")):
            with monkeypatch.context() as patched:
                patched.setattr(place, name, full)
                with pytest.raises(OSError, match="No space"):
                    add(mine, made, "new")
        with monkeypatch.context() as patched:
            patched.setattr(_files, "write_files", full)
            with pytest.raises(OSError, match="No space"):
                mine.refit()
        assert mine.item("new") is None
        assert ids(folder) == before
        add(mine, made, "new")
        mine.refit()
        assert ids(folder) == before | {"new", "new#0"}

    def test_a_writer_waits_for_another_and_says_so_in_the_end(self, folder, made, monkeypatch):
        other = sqlite3.connect(folder / FILE, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        timer = threading.Timer(0.5, lambda: other.execute("COMMIT"))
        timer.start()
        add(made.retriever, made, "waited")
        timer.join()
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr("diptych._database.BUSY_SECONDS", 0.1)
        with pytest.raises(UnavailableError, match="is being changed by another process; try again later"):
            add(made.retriever, made, "late")
        assert made.retriever.search(made.y[0], where=["waited"])
        other.close()
        add(made.retriever, made, "late")

    def test_a_forked_process_reads_and_writes_too(self, folder, made):
        mine = Retriever.load(folder)
        mine.search(made.y[0])
        if (child := os.fork()) == 0:
            add(mine, made, "of the child")
            os._exit(len(mine.search(made.y[0], where=["of the child"])) - 1)
        assert os.waitpid(child, 0)[1] == 0
        assert mine.item("of the child") is not None
        add(mine, made, "of the parent")

    @pytest.mark.parametrize("how", ["removed", "moved", "made anew"])
    def test_a_folder_that_is_gone_takes_no_changes(self, folder, made, tmp_path, how):
        mine = Retriever.load(folder)
        shutil.copytree(folder, tmp_path / "copy")
        folder.rename(tmp_path / "moved")
        if how == "removed":
            shutil.rmtree(tmp_path / "moved")
        if how == "made anew":
            shutil.copytree(tmp_path / "copy", folder)
        for change in (lambda: add(mine, made, "lost"), lambda: mine.remove("3"), mine.refit):
            with pytest.raises(MovedError, match="was removed, replaced or moved"):
                change()
        assert len(mine.search(made.y[0], k=99)) == 60
        assert folder.exists() == (how == "made anew")
        if how == "moved":
            add(Retriever.load(tmp_path / "moved"), made, "new")


class TestFiles:
    def test_a_save_to_its_own_folder_changes_nothing_and_to_another_makes_a_copy(
        self, folder, made, same_answers, tmp_path
    ):
        made.retriever.remove("3")
        before = {name: (folder / name).stat().st_mtime_ns for name in names_in(folder)}
        made.retriever.save(folder)
        (tmp_path / "link").symlink_to(folder)
        made.retriever.save(tmp_path / "link")
        assert {name: (folder / name).stat().st_mtime_ns for name in names_in(folder)} == before
        made.retriever.save(tmp_path / "copy")
        add(Retriever.load(tmp_path / "copy"), made, "in the copy")
        add(made.retriever, made, "new")
        assert made.retriever.item("in the copy") is None
        Retriever.load(tmp_path / "copy").remove("in the copy")
        made.retriever.remove("new")
        same_answers(Retriever.load(tmp_path / "copy"), made.retriever, made.x[:10], made.y[:20])
        copied = {
            path.name.partition(".")[2]: path.stat().st_size
            for path in (tmp_path / "copy" / "rows").iterdir()
        }
        assert copied["image"] == 59 * 8 * 4 + 8 * 4  # without holes, and with what was added

    def test_only_the_files_of_the_current_version_stay(self, folder, made):
        for number in range(3):
            add(made.retriever, made, f"new-{number}")
            made.retriever.refit()
        version = current_version(folder).id
        assert [path.name for path in (folder / "versions").iterdir()] == [version]
        rows = {path.name for path in (folder / "rows").iterdir()}
        assert {f"{version}.search", f"{version}.annotate"} <= rows
        assert len(rows) == 4
        assert (folder / "README.md").read_text() == (files_of(folder) / "README.md").read_text()

    def test_the_text_encoder_is_linked_to_the_next_version(self, pictures, tmp_path):
        path = files_of(tmp_path / "copied") / "text-encoder" / "model.safetensors"
        before = path.stat().st_ino
        pictures.refit()
        path = files_of(tmp_path / "copied") / "text-encoder" / "model.safetensors"
        assert path.stat().st_ino == before
        assert Retriever.load(tmp_path / "copied").search("a star", k=1)

    def test_a_file_system_without_links_gets_copies(self, pictures, tmp_path, monkeypatch):
        def link(source, target):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", link)
        pictures.refit()
        assert Retriever.load(tmp_path / "copied").search("a star", k=1)

    @pytest.mark.parametrize("mmap", [False, True])
    def test_rows_of_removed_items_are_written_again_without_them(
        self, folder, made, monkeypatch, same_answers, mmap
    ):
        monkeypatch.setattr(_folder, "COMPACTED", 100)
        mine, other = Retriever.load(folder, mmap=mmap), Retriever.load(folder, mmap=mmap)
        mine.add(made.x, ids=[f"more {i}" for i in range(60)])
        size = sum(path.stat().st_size for path in (folder / "rows").iterdir())
        mine.remove([str(i) for i in range(0, 60, 2)])
        assert sum(path.stat().st_size for path in (folder / "rows").iterdir()) == size
        mine.remove([f"more {i}" for i in range(5, 60)])
        assert sum(path.stat().st_size for path in (folder / "rows").iterdir()) < size / 2
        assert execute(folder, "SELECT count(*) FROM changes") == [(0,)]
        for retriever in (other, mine, made.retriever):
            add(retriever, made, f"by {id(retriever)}")
        loaded = Retriever.load(folder, mmap=mmap)
        for retriever in (other, mine, made.retriever):
            same_answers(retriever, loaded, made.x[:10], made.y[:20], k=99)
        kept = [item.id for item in loaded.store.items("image")]
        np.testing.assert_allclose(loaded.store.features("image", kept[:2]), made.x[[1, 3]], rtol=1e-6)
        mine.refit()
        same_answers(other, mine, made.x[:10], made.y[:20], k=99)

    def test_the_log_of_changes_does_not_grow_forever(self, folder, monkeypatch):
        monkeypatch.setattr(_folder, "COMPACTED", 100)
        mine, other = Retriever.load(folder), Retriever.load(folder)
        rows, logged = len(mine), []
        for number in range(2 * rows + 3):
            mine.update("7", metadata={"number": number})
            logged += execute(folder, "SELECT count(*) FROM changes")[0]
        assert max(logged) == 2 * rows
        assert logged[-1] < 5
        assert other.item("7").metadata == {"number": 2 * rows + 2}

    @pytest.mark.parametrize("what", ["add", "remove", "update", "replace", "refit", "compact", "save"])
    def test_what_a_killed_writer_left_is_overwritten_or_removed(self, folder, made, monkeypatch, what):
        """The process ends before its commit, with all files written."""
        before = ids(folder)
        if (child := os.fork()) == 0:
            retriever = Retriever.load(folder)

            def end(*args):
                os._exit(9)

            monkeypatch.setattr(_folder, "write_layout", end)  # the last step of an addition
            monkeypatch.setattr(_files, "flush_folder", end)  # one of the last of a new version
            if what == "add":
                add(retriever, made, "lost")
            elif what == "remove":
                with retriever.store._transaction() as (connection, _):
                    connection.execute("DELETE FROM items")
                    end()
            elif what == "update":
                retriever.update("7", metadata={"lost": True})
            elif what == "replace":
                retriever.add(made.x[:1], ids=["7"], on_conflict="replace")
            elif what == "refit":
                retriever.refit()
            elif what == "compact":
                retriever.store.compact()
            else:
                FolderStore.write(folder, made.retriever.store.resident, end)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
        assert ids(folder) == before
        again = Retriever.load(folder)
        assert again.item("7") == made.retriever.item("7")
        add(again, made, "new")
        again.refit()
        assert ids(folder) == before | {"new", "new#0"}
        assert [path.name for path in (folder / "versions").iterdir()] == [current_version(folder).id]
        assert len(list((folder / "rows").iterdir())) == 4

    def test_a_first_save_that_was_killed_leaves_a_folder_that_can_be_saved_to(self, made, tmp_path):
        for number, prepare in enumerate(
            (lambda path: (path / FILE).touch(), lambda path: Database(path, create=True))
        ):
            (folder := tmp_path / str(number)).mkdir()
            prepare(folder)
            with pytest.raises(InputError):
                Retriever.load(folder)
            made.retriever.save(folder)
            assert len(ids(folder)) == 180

    def test_a_read_only_folder_is_read(self, folder, made, monkeypatch):
        made.retriever.store.close()
        monkeypatch.setattr(os, "access", lambda path, mode, **options: not mode & os.W_OK)
        loaded = Retriever.load(folder)
        assert len(loaded.search(made.y[0], k=99)) == 60
        with pytest.raises(OSError, match="Read-only") as caught:
            loaded.remove("3")
        assert str(folder) in str(caught.value)


class TestFilesOfOthers:
    NAMES = (
        *("versions/2023/thesis.tex", "versions/000009-0123abcd/old.txt", "versions/notes.txt"),
        *("uploads/holiday.jpg", "notes.md", "src/main.py", ".git/HEAD", "versions/latest/.keep"),
        *("rows/mine.txt", "rows/000001-0123abcd.mine", "rows/more/a.search"),
    )

    def write(self, folder, *names):
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"mine: {name}")

    def check(self, folder, *names):
        for name in names:
            assert (folder / name).read_text() == f"mine: {name}"

    @pytest.mark.parametrize(
        "names",
        [
            *([name] for name in ("README.md", "regularization.png", "uploads/a.jpg", "versions/a/b.txt")),
            *([name] for name in (".lock", "current.json", ".gitignore", FILE)),
            *([name] for name in (".current.json.0123456789ab", ".README.md.diptych-0123456789ab")),
            ["versions/2023/thesis.tex", "uploads/holiday.jpg", "README.md"],
        ],
    )
    def test_a_folder_of_something_else_is_not_written_to(self, made, tmp_path, names):
        self.write(tmp_path / "project", *names)
        for save in (made.retriever.save, AWCCA(params=(1.0, 1.0)).fit(made.x, made.y, made.pairing).save):
            with pytest.raises(InputError, match="is not a diptych|is damaged"):
                save(tmp_path / "project")
        self.check(tmp_path / "project", *names)
        assert names_in(tmp_path / "project") == set(names)

    def test_a_database_of_another_program_is_not_written_to(self, made, tmp_path):
        execute(tmp_path, "CREATE TABLE mine (a)")
        before = (tmp_path / FILE).read_bytes()
        with pytest.raises(InputError, match="was not written by diptych"):
            made.retriever.save(tmp_path)
        assert names_in(tmp_path) == {FILE}
        assert (tmp_path / FILE).read_bytes() == before

    def test_files_of_others_in_a_model_folder_stay(self, folder, made, make):
        inside = f"versions/{current_version(folder).id}"
        names = (*self.NAMES, f"{inside}/mine.txt", f"{inside}/text-encoder/mine.txt")
        self.write(folder, *names)
        add(made.retriever, made, "new")
        Retriever.load(folder).refit()
        make(seed=2).retriever.save(folder)
        self.check(folder, *names)
        left = {path.name for path in (folder / inside).iterdir()}
        assert left == {"mine.txt", "text-encoder"}  # the files of the version itself are gone

    @pytest.mark.parametrize("edited", [True, False])
    def test_a_readme_that_the_user_wrote_stays(self, folder, edited):
        with open(folder / "README.md", "a" if edited else "w") as file:
            file.write("my own words")
        text = (folder / "README.md").read_text()
        Retriever.load(folder).refit()
        assert (folder / "README.md").read_text() == text
        (folder / "README.md").unlink()
        Retriever.load(folder).refit()  # the card is shown again
        assert (folder / "README.md").read_text() == (files_of(folder) / "README.md").read_text()

    def test_a_card_is_replaced_also_after_a_refit_that_was_killed_before_it(self, folder, monkeypatch):
        def kill(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(_files, "_show", kill)
            with pytest.raises(KeyboardInterrupt):
                Retriever.load(folder).refit()
        assert (folder / "README.md").read_text() != (files_of(folder) / "README.md").read_text()
        Retriever.load(folder).refit()
        assert (folder / "README.md").read_text() == (files_of(folder) / "README.md").read_text()

    def test_a_name_in_a_config_does_not_lead_out_of_its_version(self, folder, tmp_path):
        self.write(tmp_path, "mine.txt", "model/mine.txt")
        config = json.loads((files_of(folder) / "config.json").read_text())
        names = ("../../../mine.txt", "../../mine.txt", str(tmp_path / "mine.txt"), "elsewhere/mine.txt")
        retriever = Retriever.load(folder)
        for name in names:
            config["files"][name] = {"bytes": 1, "sha256": ""}
        (files_of(folder) / "config.json").write_text(json.dumps(config))
        (files_of(folder) / "elsewhere").symlink_to(tmp_path)
        FolderStore.write(
            folder,
            retriever.store.resident,
            lambda path: (path / "config.json").write_text("{}"),
        )
        self.check(tmp_path, "mine.txt", "model/mine.txt")

    @pytest.mark.parametrize("name", [FILE, "versions", "rows", "README.md", f"{FILE}-wal"])
    def test_nothing_is_written_through_a_link(self, folder, made, make, tmp_path, name):
        made.retriever.store.close()
        elsewhere = tmp_path / "elsewhere"
        if (folder / name).exists():
            (folder / name).rename(elsewhere)
        else:
            elsewhere.write_text("mine")
        (folder / name).symlink_to(elsewhere)
        before = {file: file.read_bytes() for file in [elsewhere, *elsewhere.rglob("*")] if file.is_file()}
        if name == "README.md":
            make(seed=2).retriever.save(folder)
        else:
            with pytest.raises(InputError, match="is a link"):
                make(seed=2).retriever.save(folder)
        assert (folder / name).is_symlink()
        assert {file: file.read_bytes() for file in before} == before


def test_images_are_found_wherever_they_were_when_they_were_added(made, tmp_path):
    """Paths are stored relative to the first images' folder; others are stored whole."""
    made.retriever.save(tmp_path / "a" / "model")
    places = [tmp_path / "a" / "photos", tmp_path / "a" / "photos", tmp_path / "b"]
    for number, place in enumerate(places):
        made.retriever.add(made.x[:1], ids=[f"new {number}"], paths=[place / f"{number}.png"])
    other = Retriever.load(tmp_path / "a" / "model")
    for change in (lambda: None, other.refit, other.store.compact, lambda: other.remove("3")):
        change()
        for retriever in (made.retriever, other, Retriever.load(tmp_path / "a" / "model")):
            paths = [retriever.item(f"new {number}").path for number in range(3)]
            assert paths == [str(place / f"{number}.png") for number, place in enumerate(places)]
    made.retriever.store.close()
    other.store.close()
    (tmp_path / "a" / "photos").mkdir()
    (tmp_path / "a").rename(tmp_path / "moved")
    moved = Retriever.load(tmp_path / "moved" / "model")
    assert moved.item("new 1").path == str(tmp_path / "moved" / "photos" / "1.png")
    assert moved.item("new 2").path == str(tmp_path / "b" / "2.png")


def test_a_folder_that_others_have_open_is_whole_for_readers_and_copies(folder, made, tmp_path):
    assert (folder / f"{FILE}-wal").stat().st_size == 0  # all that was saved is in the file itself
    add(made.retriever, made, "new")
    assert (folder / f"{FILE}-wal").stat().st_size > 0
    published = Retriever.from_pretrained(folder)
    assert published.item("new") is not None
    published.remove("new")  # in memory
    assert made.retriever.item("new") is not None
    shutil.copytree(folder, tmp_path / "copied")
    assert Retriever.load(tmp_path / "copied").item("new") is not None
