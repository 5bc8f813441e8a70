"""Versions of one model folder: what writers keep of each other's work, and what readers see."""

import json
import os
import shutil

import numpy as np
import pytest

from diptych import AWCCA, InputError, Retriever, _model_folder
from diptych._model_folder import current_version, new_version
from diptych.retrieval import _folder
from saved_files import files_of, seal


@pytest.fixture
def made(make):
    return make()


@pytest.fixture
def folder(made, tmp_path):
    made.retriever.save(tmp_path / "model")
    return tmp_path / "model"


def ids(folder):
    return {item.id for item in Retriever.load(folder).store.items()}


def add(folder, made, name):
    other = Retriever.load(folder)
    other.add(made.x[:1], made.y[:1], ids=[name])
    other.save(folder)


class TestTwoWriters:
    def test_both_additions_and_removals_are_kept(self, folder, made, same_answers):
        mine = Retriever.load(folder)
        mine.add(made.x[:2] + 0.1, made.y[:2], ids=["a", "b"])
        mine.remove(["a", "3"])
        add(folder, made, "theirs")
        other = Retriever.load(folder)
        other.remove("4")
        other.save(folder)
        mine.save(folder)
        assert {"b", "b#1", "theirs", "theirs#0"} <= ids(folder)
        assert not {"a", "3", "4", "3#0"} & ids(folder)
        # What is here is what is there, now and after the next change.
        same_answers(Retriever.load(folder), mine, made.x[:10], made.y[:20])
        mine.add(made.x[:1], ids=["later"])
        mine.save(folder)
        assert {"b", "theirs", "later"} <= ids(folder)

    def test_an_item_that_is_replaced_here_replaces_it_there(self, folder, made):
        mine = Retriever.load(folder)
        mine.remove("3")
        mine.add(made.x[:1], ids=["3"], metadata={"3": {"new": True}})
        add(folder, made, "theirs")
        mine.save(folder)
        assert Retriever.load(folder).item("3").metadata == {"new": True}

    def test_a_refit_learns_from_the_pairs_of_both(self, folder, made, tmp_path):
        shutil.copytree(folder, tmp_path / "alone")
        mine = Retriever.load(folder)
        mine.add(made.x[:3], made.y[:3], ids=["a", "b", "c"])
        mine.refit()
        add(folder, made, "theirs")
        mine.save(folder)
        one = Retriever.load(tmp_path / "alone")
        one.add(made.x[:1], made.y[:1], ids=["theirs"])
        one.add(made.x[:3], made.y[:3], ids=["a", "b", "c"])
        one.refit()
        hits, expected = (r.search(made.y[:5], k=70) for r in (Retriever.load(folder), one))
        for here, there in zip(hits, expected, strict=True):
            assert {hit.id for hit in here} == {hit.id for hit in there}
            np.testing.assert_allclose(
                sorted(hit.score for hit in here), sorted(hit.score for hit in there), rtol=1e-4, atol=1e-5
            )

    def test_an_id_that_both_gave_is_refused_and_nothing_is_written(self, folder, made):
        mine = Retriever.load(folder)
        mine.add(made.x[:1] + 1, ids=["taken"])
        mine.add(made.x[:1], ids=["mine"])
        add(folder, made, "taken")
        before = current_version(folder)
        with pytest.raises(InputError, match="'taken' is in the index already"):
            mine.save(folder)
        assert current_version(folder) == before
        mine.remove("taken")
        mine.save(folder)
        assert {"taken", "taken#0", "mine"} <= ids(folder)

    def test_a_model_of_other_features_is_not_overwritten(self, folder, made, make):
        mine = Retriever.load(folder)
        mine.remove("3")
        make(seed=2, shape={"m_x": 9}).retriever.save(folder)
        before = current_version(folder)
        with pytest.raises(InputError, match="another image encoder; load it again"):
            mine.save(folder)
        assert current_version(folder) == before

    def test_a_model_of_another_encoder_is_not_overwritten(self, folder, made, make, thumbnails):
        class Others:
            dimension, fingerprint, name = 8, "others", "others"

            def encode(self, images):
                return np.zeros((len(images), 8))

        mine = Retriever.load(folder)
        mine.remove("3")
        make(image_encoder=Others()).retriever.save(folder)
        with pytest.raises(InputError, match="another image encoder"):
            mine.save(folder)

    def test_a_save_that_fails_after_taking_in_the_others_can_be_repeated(self, folder, made, monkeypatch):
        mine = Retriever.load(folder)
        mine.add(made.x[:1], ids=["mine"])
        mine.remove("3")
        add(folder, made, "theirs")

        def full(*args):
            raise OSError("full")

        with monkeypatch.context() as patched:
            patched.setattr(_folder, "write_config", full)
            with pytest.raises(OSError, match="full"):
                mine.save(folder)
        add(folder, made, "more")
        mine.save(folder)
        assert {"mine", "theirs", "more"} <= ids(folder)
        assert "3" not in ids(folder)

    def test_features_that_were_not_kept_are_made_again(self, fitted, drawn, tmp_path):
        fitted.save(tmp_path / "model")
        lean = Retriever.load(tmp_path / "model")
        lean.keep_features = False
        lean.store.kept.clear()
        lean.save(tmp_path / "lean")
        mine, other = (Retriever.load(tmp_path / "lean") for _ in range(2))
        mine.add([drawn.paths[0]], ["a red star"], ids=["mine"])
        other.add([drawn.paths[1]], ids=["theirs"])
        other.save(tmp_path / "lean")
        mine.save(tmp_path / "lean")
        assert {"mine", "mine#0", "theirs"} <= ids(tmp_path / "lean")

    def test_a_fitted_model_replaces_what_is_there(self, folder, made, make):
        add(folder, made, "theirs")
        make(seed=2).retriever.save(folder)
        assert "theirs" not in ids(folder)

    def test_a_model_of_another_folder_replaces_what_is_there(self, folder, made, tmp_path):
        add(folder, made, "theirs")
        made.retriever.save(tmp_path / "other")
        add(tmp_path / "other", made, "kept")
        loaded = Retriever.load(folder)
        loaded.save(tmp_path / "other")
        assert "kept" not in ids(tmp_path / "other")
        loaded.add(made.x[:1], ids=["more"])
        add(tmp_path / "other", made, "meanwhile")
        loaded.save(tmp_path / "other")
        assert {"more", "meanwhile", "theirs"} <= ids(tmp_path / "other")

    def test_a_folder_that_was_moved_is_the_same_folder(self, folder, made, tmp_path):
        mine = Retriever.load(folder)
        mine.remove("3")
        folder.rename(tmp_path / "moved")
        add(tmp_path / "moved", made, "theirs")
        mine.save(tmp_path / "moved")
        assert "theirs" in ids(tmp_path / "moved")
        assert "3" not in ids(tmp_path / "moved")

    def test_a_link_stays_a_link(self, folder, made, tmp_path):
        (tmp_path / "link").symlink_to("model")
        for number in range(3):
            add(tmp_path / "link", made, f"new-{number}")
        assert (tmp_path / "link").is_symlink()
        assert {f"new-{number}" for number in range(3)} <= ids(folder)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "model"]


class TestFiles:
    NAMES = ("model.safetensors", "moments.safetensors")

    def numbers(self, folder):
        return {name: (files_of(folder) / name).stat().st_ino for name in self.NAMES}

    def test_what_did_not_change_is_not_written_again(self, folder, made, same_answers):
        before, mine = self.numbers(folder), Retriever.load(folder)
        mine.add(made.x[:1], made.y[:1], ids=["new"])
        mine.save(folder)
        assert self.numbers(folder) == before
        mine.refit()
        mine.save(folder)
        assert not set(self.numbers(folder).values()) & set(before.values())
        same_answers(Retriever.load(folder), mine, made.x[:10], made.y[:20])

    def test_the_text_encoder_is_linked_too(self, pictures, tmp_path):
        path = files_of(tmp_path / "copied") / "text-encoder" / "model.safetensors"
        before = path.stat().st_ino
        pictures.remove(next(item.id for item in pictures.store.items()))
        pictures.save(tmp_path / "copied")
        path = files_of(tmp_path / "copied") / "text-encoder" / "model.safetensors"
        assert path.stat().st_ino == before
        assert Retriever.load(tmp_path / "copied").search("a star", k=1)

    def test_a_file_system_without_links_gets_copies(self, folder, made, same_answers, monkeypatch):
        def link(source, target):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", link)
        before, mine = self.numbers(folder), Retriever.load(folder)
        mine.add(made.x[:1], ids=["new"])
        mine.save(folder)
        assert not set(self.numbers(folder).values()) & set(before.values())
        same_answers(Retriever.load(folder), mine, made.x[:10], made.y[:20])

    def test_only_the_current_version_stays(self, folder, made):
        for number in range(3):
            add(folder, made, f"new-{number}")
        assert [path.name for path in (folder / "versions").iterdir()] == [current_version(folder).id]
        assert "new-2" in (files_of(folder) / "items.jsonl").read_text()
        assert (folder / "README.md").read_text() == (files_of(folder) / "README.md").read_text()

    def test_what_a_killed_writer_left_is_removed(self, folder, made, tmp_path):
        def kill_while_writing(place):
            with new_version(place, "retriever") as draft:
                (draft.path / "items.jsonl").write_text("half")
                os._exit(9)  # as if killed: nothing is cleaned up

        for place, number in ((folder, 180), (tmp_path / "first", 0)):
            if (child := os.fork()) == 0:
                kill_while_writing(place)
            os.waitpid(child, 0)
            (place / ".README.md.diptych-0123456789ab").write_text("half")
            assert len(list((place / "versions").iterdir())) == 1 + (number > 0)
            if number:
                assert len(ids(place)) == number
            else:
                with pytest.raises(InputError, match="current.json names no version"):
                    Retriever.load(place)
            made.retriever.save(place)
            assert [path.name for path in (place / "versions").iterdir()] == [current_version(place).id]
            assert not list(place.glob(".*.diptych-*"))
            assert len(ids(place)) == 180

    def test_a_folder_is_as_empty_if_the_first_save_was_killed_before_its_record(self, made, tmp_path):
        (tmp_path / ".lock").touch()
        (tmp_path / ".current.json.diptych-0123456789ab").write_text("half")
        made.retriever.save(tmp_path)
        assert len(ids(tmp_path)) == 180

    def test_a_pointer_or_version_that_leads_elsewhere_is_refused(self, folder, tmp_path):
        path = files_of(folder)
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(InputError, match="is a link"):
            Retriever.load(folder)
        pointer = json.loads((folder / "current.json").read_text())
        (folder / "current.json").write_text(json.dumps({**pointer, "version": "../../elsewhere"}))
        with pytest.raises(InputError, match="does not name a version"):
            Retriever.load(folder)


class TestFilesOfOthers:
    NAMES = (
        *("versions/2023/thesis.tex", "versions/000009-0123abcd/old.txt", "versions/notes.txt"),
        *("uploads/holiday.jpg", "notes.md", "src/main.py", ".git/HEAD", "versions/latest/.keep"),
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
            *([name] for name in ("journal.jsonl", ".lock", ".server.lock", "current.json", ".gitignore")),
            *([name] for name in (".current.json.0123456789ab", ".README.md.diptych-0123456789ab")),
            ["versions/2023/thesis.tex", "uploads/holiday.jpg", "README.md"],
        ],
    )
    def test_a_folder_without_a_record_is_not_written_to(self, made, tmp_path, names):
        self.write(tmp_path / "project", *names)
        for save in (made.retriever.save, AWCCA(params=(1.0, 1.0)).fit(made.x, made.y, made.pairing).save):
            with pytest.raises(InputError, match="exists and is not a diptych .*choose another folder"):
                save(tmp_path / "project")
        self.check(tmp_path / "project", *names)
        files = [path for path in (tmp_path / "project").rglob("*") if path.is_file()]
        assert len(files) == len(names)

    def test_a_record_of_another_program_is_none(self, made, tmp_path):
        for content in ("", "{}", "[1]", '{"version": "1.2", "sha256": ""}', "\0" * 99):
            (tmp_path / "current.json").write_text(content)
            with pytest.raises(InputError, match="exists and is not a diptych retriever .*current.json"):
                made.retriever.save(tmp_path)
            assert (tmp_path / "current.json").read_text() == content

    def test_files_of_others_in_a_model_folder_stay(self, folder, made, make):
        inside = f"versions/{current_version(folder).id}"
        names = (*self.NAMES, f"{inside}/mine.txt", f"{inside}/text-encoder/mine.txt")
        self.write(folder, *names)
        for number in range(3):
            add(folder, made, f"new-{number}")
        Retriever.load(folder).refit().save(folder)
        make(seed=2).retriever.save(folder)
        self.check(folder, *names)
        assert len(list((folder / "versions").rglob("mine.txt"))) == 2  # no version takes them over
        left = {path.name for path in (folder / inside).iterdir()}
        assert left == {"mine.txt", "text-encoder"}  # the files of the version itself are gone

    @pytest.mark.parametrize("edited", [True, False])
    def test_a_readme_that_the_user_wrote_stays(self, folder, made, edited):
        with open(folder / "README.md", "a" if edited else "w") as file:
            file.write("my own words")
        text = (folder / "README.md").read_text()
        add(folder, made, "new")
        Retriever.load(folder).refit().save(folder)
        assert (folder / "README.md").read_text() == text
        (folder / "README.md").unlink()
        add(folder, made, "more")  # the card is shown again
        assert (folder / "README.md").read_text() == (files_of(folder) / "README.md").read_text()

    def test_a_card_is_replaced_also_after_a_save_that_was_killed_before_it(self, folder, made, monkeypatch):
        def kill(*args):
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(_model_folder, "_show_for_people", kill)
            with pytest.raises(KeyboardInterrupt):
                Retriever.load(folder).refit().save(folder)
        text = (files_of(folder) / "README.md").read_text()
        assert (folder / "README.md").read_text() != text
        add(folder, made, "new")
        assert (folder / "README.md").read_text() == text

    def test_a_name_in_a_config_does_not_lead_out_of_its_version(self, folder, made, tmp_path):
        self.write(tmp_path, "mine.txt", "model/mine.txt")
        config = json.loads((files_of(folder) / "config.json").read_text())
        names = ("../../../mine.txt", "../../mine.txt", str(tmp_path / "mine.txt"), "elsewhere/mine.txt")
        for name in names:
            config["files"][name] = {"bytes": 1, "sha256": ""}
        (files_of(folder) / "config.json").write_text(json.dumps(config))
        (files_of(folder) / "elsewhere").symlink_to(tmp_path)
        made.retriever.base = None
        made.retriever.save(folder)
        self.check(tmp_path, "mine.txt", "model/mine.txt")

    @pytest.mark.parametrize("name", ["current.json", ".lock", "versions", "version", "README.md"])
    def test_nothing_is_written_through_a_link(self, folder, made, tmp_path, name):
        elsewhere = tmp_path / "elsewhere"
        path = files_of(folder) if name == "version" else folder / name
        path.rename(elsewhere)
        path.symlink_to(elsewhere)
        before = {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()}
        if name == "README.md":
            made.retriever.save(folder)
        else:
            with pytest.raises(InputError, match="is a link"):
                made.retriever.save(folder)
        assert path.is_symlink()
        assert {file: file.read_bytes() for file in elsewhere.rglob("*") if file.is_file()} == before

    def test_an_unchanged_file_that_became_a_link_is_not_copied(self, folder, made, tmp_path):
        mine = Retriever.load(folder)
        (tmp_path / "secret").write_text("secret")
        (files_of(folder) / "moments.safetensors").unlink()
        (files_of(folder) / "moments.safetensors").symlink_to(tmp_path / "secret")
        mine.add(made.x[:1], ids=["new"])
        with pytest.raises(InputError, match="moments.safetensors is a link"):
            mine.save(folder)

    @pytest.mark.parametrize("name", ["current.json", ".lock", "versions", "README.md"])
    def test_a_pipe_keeps_nobody_waiting(self, folder, made, name):
        shutil.rmtree(folder / name) if name == "versions" else (folder / name).unlink()
        os.mkfifo(folder / name)
        if name == "README.md":
            made.retriever.save(folder)
        else:
            with pytest.raises(InputError, match=rf"{name} is (neither a file nor a folder|missing, or)"):
                made.retriever.save(folder)
        assert (folder / name).is_fifo()


def test_what_was_mapped_stays_readable(folder, made, same_answers):
    before = Retriever.load(folder)
    mapped = Retriever.load(folder, mmap=True)
    add(folder, made, "new")
    same_answers(mapped, before, made.x[:10], made.y[:20])


class TestPlacesOfImages:
    @pytest.fixture
    def project(self, make, tmp_path, monkeypatch):
        """A model of images that were given by relative paths."""
        project = tmp_path / "project"
        (project / "photos" / "old").mkdir(parents=True)
        monkeypatch.chdir(project)
        names = ["photos/a.png", "photos/old/b.png", *(f"photos/{i}.png" for i in range(58))]
        for name in names[:2]:
            (project / name).write_text("picture")
        make(paths=names).retriever.save("model")
        monkeypatch.chdir(tmp_path)
        return project

    def paths(self, folder):
        retriever = Retriever.load(folder)
        return [retriever.item(name).path for name in ("0", "1")]

    def test_relative_paths_work_from_any_folder(self, project):
        assert all(map(os.path.isfile, self.paths(project / "model")))

    @pytest.mark.parametrize("what", ["the model", "both", "both, and the model is linked"])
    def test_images_that_were_moved_are_found(self, project, tmp_path, what):
        if what == "the model":
            (project / "model").rename(tmp_path / "model")
            folder = tmp_path / "model"
        else:
            project.rename(tmp_path / "renamed")
            folder = tmp_path / "renamed" / "model"
        if "linked" in what:
            (tmp_path / "link").symlink_to(folder)
            folder = tmp_path / "link"
        for _ in range(2):
            assert all(map(os.path.isfile, self.paths(folder)))
            Retriever.load(folder).save(folder)

    def test_images_of_two_places(self, project, tmp_path, made):
        (tmp_path / "c.png").write_text("picture")
        retriever = Retriever.load(project / "model")
        retriever.add(made.x[:1], ids=["c"], paths=[tmp_path / "c.png"])
        retriever.save(project / "model")
        again = Retriever.load(project / "model")
        assert [os.path.isfile(again.item(name).path) for name in ("0", "1", "c")] == [True] * 3

    @pytest.mark.parametrize(
        "name", ["../../../etc/passwd", "", "A" * 64, 5, None, "0" * 63, "0" * 64 + "\n"]
    )
    def test_an_upload_is_named_by_a_hash(self, folder, name):
        path = files_of(folder) / "items.jsonl"
        first, *rest = path.read_text().splitlines()
        path.write_text("\n".join([json.dumps({**json.loads(first), "upload": name}), *rest]) + "\n")
        seal(folder)
        with pytest.raises(InputError, match="is not an item"):
            Retriever.load(folder)


def test_other_models_are_versions_too(made, tmp_path):
    model = AWCCA(params=(1.0, 1.0)).fit(made.x, made.y, made.pairing)
    model.save(tmp_path / "plain")
    (tmp_path / "link").symlink_to("plain")
    model.save(tmp_path / "link")
    assert current_version(tmp_path / "plain").id.startswith("000002-")
    np.testing.assert_array_equal(AWCCA.load(tmp_path / "link").transform(made.x), model.transform(made.x))
