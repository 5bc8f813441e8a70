"""Versions of a model folder: writers take turns, readers see whole ones, and one process serves it."""

import os
import subprocess
import sys
import threading

import pytest

from diptych import InputError
from diptych._model_folder import lock_for_serving, new_version, read_current
from diptych._persistence import Schema, replace_file, write_config
from saved_files import files_of


def save(folder, content="1"):
    """Write a version with two files."""
    with new_version(folder, "test") as draft:
        (draft.path / "inner").mkdir()
        (draft.path / "inner" / "file").write_text(content)
        write_config(draft.path, "test", Schema())


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
        if len(seen) <= min(times, 2):  # the third time nobody can overtake it
            save(folder, f"new {len(seen)}")
        return read(version)

    assert read_current(folder, read_while_others_save) == f"new {min(times, 2)}"
    assert len(set(seen)) == 1 + min(times, 2)


def test_a_damaged_version_is_read_only_once(folder):
    (files_of(folder) / "inner" / "file").unlink()
    seen = []
    with pytest.raises(FileNotFoundError):
        read_current(folder, lambda version: (seen.append(version.id), read(version)))
    assert len(seen) == 1


def test_a_version_in_the_making_is_not_seen(folder):
    paths = []

    def interrupted():
        with new_version(folder, "test") as draft:
            paths.append(draft.path)
            (draft.path / "config.json").write_text("{}")
            assert read_current(folder, read) == "1"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not paths[0].exists()
    assert read_current(folder, read) == "1"


def test_two_writers_wait_for_each_other(folder):
    done = []
    with new_version(folder, "test") as draft:
        other = threading.Thread(target=lambda: (save(folder, "2"), done.append(1)))
        other.start()
        other.join(0.3)
        assert not done
        assert draft.path.exists()
        (draft.path / "config.json").write_bytes((draft.current.path / "config.json").read_bytes())
    other.join()
    assert done
    assert read_current(folder, read) == "2"


class TestLockForServing:
    HOLD = (
        "import sys\nfrom diptych._model_folder import lock_for_serving\n"
        "with lock_for_serving(sys.argv[1]):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )

    def test_a_second_process_is_kept_out_until_the_first_is_done_or_dead(self, folder):
        for how in ("ends", "dies"):
            with subprocess.Popen(
                [sys.executable, "-c", self.HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as process:
                assert process.stdout.readline() == b"held\n"
                with (
                    pytest.raises(InputError, match="is being changed by another process"),
                    lock_for_serving(folder),
                ):
                    pass
                if how == "dies":
                    process.kill()
                process.communicate()
            with lock_for_serving(folder):
                pass

    def test_others_in_the_same_process_are_kept_out_too_along_any_way(self, folder, tmp_path):
        (tmp_path / "link").symlink_to("model")
        for other in (folder, tmp_path / "link", tmp_path / "link" / ".." / "model"):
            with (
                lock_for_serving(folder),
                pytest.raises(InputError, match="another process"),
                lock_for_serving(other),
            ):
                pass
        with lock_for_serving(tmp_path / "link"):
            pass

    def test_a_folder_that_is_not_there_is_one_sentence_and_leaves_no_lock(self, tmp_path):
        for folder in (tmp_path / "nothing", tmp_path / "no" / "such"):
            with pytest.raises(InputError, match="is not a folder"), lock_for_serving(folder):
                pass
        assert list(tmp_path.iterdir()) == []
