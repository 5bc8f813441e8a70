"""Versions of a model folder: writers take turns, and readers see whole ones."""

import os
import threading

import pytest

from diptych._model_folder import read_current, write_version
from diptych._persistence import Schema, replace_file, write_config
from saved_files import files_of


def save(folder, content="1"):
    """Write a version with two files."""

    def write(path):
        (path / "inner").mkdir()
        (path / "inner" / "file").write_text(content)
        write_config(path, "test", Schema())

    write_version(folder, "test", write)


def read(version):
    return (version.path / "inner" / "file").read_text()


@pytest.fixture
def folder(tmp_path):
    save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("at", [0, 1])
def test_a_version_whose_removal_was_killed_is_removed_by_the_next_save(folder, monkeypatch, at):
    remove, removed = os.rmdir, []

    def kill(path):
        if len(removed) == at:
            raise KeyboardInterrupt  # as if killed: nothing is cleaned up
        removed.append(path)
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", kill)
        with pytest.raises(KeyboardInterrupt):
            save(folder)
    assert len(list((folder / "versions").iterdir())) == 2
    save(folder)
    assert list((folder / "versions").iterdir()) == [files_of(folder)]


def test_the_rights_of_a_new_file_are_those_of_any_other(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("other threads would see that"))
    with replace_file(tmp_path / "file") as staged:
        staged.write_text("content")
    (tmp_path / "other").write_text("content")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("times", [1, 2, 3, 5])
def test_a_reader_starts_again_after_a_save_and_finishes(folder, times):
    seen = []

    def read_while_others_save(version):
        seen.append(version.id)
        if len(seen) <= times:
            save(folder, f"new {len(seen)}")
        return read(version)

    assert read_current(folder, read_while_others_save) == f"new {times}"
    assert len(set(seen)) == 1 + times


def test_a_damaged_version_is_read_only_once(folder):
    (files_of(folder) / "inner" / "file").unlink()
    seen = []
    with pytest.raises(FileNotFoundError):
        read_current(folder, lambda version: (seen.append(version.id), read(version)))
    assert len(seen) == 1


def test_a_version_in_the_making_is_not_seen(folder):
    paths = []

    def interrupted(path):
        paths.append(path)
        (path / "config.json").write_text("{}")
        assert read_current(folder, read) == "1"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_version(folder, "test", interrupted)
    assert not paths[0].exists()
    assert read_current(folder, read) == "1"


def test_two_writers_wait_for_each_other(folder):
    done = []
    other = threading.Thread(target=lambda: (save(folder, "2"), done.append(1)))

    def write(path):
        other.start()
        other.join(0.3)
        assert not done
        assert path.exists()
        (path / "config.json").write_bytes((files_of(folder) / "config.json").read_bytes())

    write_version(folder, "test", write)
    other.join()
    assert done
    assert read_current(folder, read) == "2"
