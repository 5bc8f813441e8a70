"""``index``, ``sync``, ``add`` and ``fit`` on a library of photos, with small networks in place of CLIP."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from commands import refused, run, run_json
from diptych.cli import _index
from diptych.scenes import make_scenes
from example_files import code_blocks
from fastembed_models import TEXT, VISION, cached_folder, write_fastembed_cache
from photo_files import make_exif, make_xmp, write_photo

N = 40


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Small networks where fastembed keeps what it downloaded."""
    pytest.importorskip("fastembed")
    folder = tmp_path_factory.mktemp("cache")
    write_fastembed_cache(folder)
    return folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    make_scenes(N, size=48).write(folder)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch, scenes, cache):
    """A folder with ``photos`` without captions, and a table of captions of some."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(cache))
    (tmp_path / "photos").mkdir()
    for image in (scenes / "images").iterdir():
        (tmp_path / "photos" / image.name).write_bytes(image.read_bytes())
    rows = [json.loads(line) for line in (scenes / "captions.jsonl").read_text().splitlines()]
    lines = [f'{row["image"].split("/")[-1]},"{text}"' for row in rows[:30] for text in row["captions"]]
    (tmp_path / "captions.csv").write_text("\n".join(["image,caption", *lines]))
    return tmp_path


@pytest.fixture
def library(place):
    assert run_json("index", "photos", "-o", "library")["unchanged"] == 0
    return place / "library"


def test_photos_without_captions_are_searched_at_once(place):
    result = run("index", "photos", "--out", "library")
    assert "encoders chosen by default" in result.stderr
    assert result.stdout.splitlines() == [f"library: added {N} photos"]
    hits = run_json("search", "library", "a red star", "-k", "3")["answers"][0]["hits"]
    assert [hit["id"].startswith("scene-") for hit in hits] == [True] * 3
    assert f"{N} images and 0 texts" in run("info", "library").stdout
    assert "Nothing was fitted" in run("info", "library").stdout
    assert run_json("index", "photos", "--out", "library")["unchanged"] == N


def test_ids_do_not_depend_on_the_working_folder(place, monkeypatch):
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    added = run_json("index", "../photos", "--out", "../library")["added"]
    assert added == [f"scene-{n:06}.png" for n in range(N)]
    monkeypatch.chdir(place / "photos")
    assert run_json("sync", "../library")["unchanged"] == N


def test_sync_says_what_changed(library, place):
    photos = place / "photos"
    (photos / "scene-000000.png").rename(photos / "renamed.png")
    (photos / "scene-000001.png").unlink()
    write_photo(photos / "new.jpg")
    assert run("sync", "library").stdout.splitlines() == [
        f"library: added 1 photo, renamed 1 photo; {N - 2} unchanged",
        "renamed: scene-000000.png is photos/renamed.png now",
        "gone: scene-000001.png",
        "1 photo without a file; diptych sync library --remove removes them",
    ]
    report = run_json("sync", "library", "--remove")
    assert (report["removed"], report["gone"]) == (1, ["scene-000001.png"])
    assert run("sync", "library").stdout == f"library: nothing new; {N} unchanged\n"


def test_watching_looks_again_until_it_is_stopped(library, place, monkeypatch):
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            write_photo(place / "photos" / "new.jpg")
        if len(pauses) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(_index.time, "sleep", sleep)
    result = run("sync", "library", "--watch", exit_code=130)
    assert result.stdout.splitlines() == [
        f"library: nothing new; {N} unchanged",
        f"library: added 1 photo; {N} unchanged",
    ]


def test_add_takes_folders_and_tables(library, place):
    write_photo(place / "more" / "a.jpg", xmp=make_xmp(["A red card"], tags=["card"]))
    (place / "more" / "text.jpg").write_text("no image")
    result = run("add", "library", "more", exit_code=1)
    assert result.stdout == "library: added 1 photo\n"
    assert "text.jpg is not in a supported format" in result.stderr
    hits = run_json("search", "library", "red", "--where", 'tags = "card"')["answers"][0]["hits"]
    assert [hit["id"] for hit in hits] == ["a.jpg"]
    (place / "table.csv").write_text("image,year\nscene-000003.png,2020\nscene-000004.png,2021\n")
    add = ["add", "library", "table.csv", "--images", "photos"]
    assert run_json(*add)["updated"] == ["scene-000003.png", "scene-000004.png"]
    assert run(*add).stdout == "added 0 items; wrote library\n"
    hits = run_json("search", "library", "x", "--where", "year > 2020")["answers"][0]["hits"]
    assert [hit["id"] for hit in hits] == ["scene-000004.png"]
    assert len(run_json("add", "library", "captions.csv", "--images", "photos")["updated"]) == 30


def test_fit_improves_the_same_library(library, place):
    info = run_json("fit", "captions.csv", "--images", "photos", "--out", "library")
    assert info["items"] == {"image": N, "text": 150}
    assert "parts" in info
    assert run_json("sync", "library")["unchanged"] == N
    assert run_json("search", "library", "a red star")["answers"][0]["hits"]
    unused = refused("fit", "captions.csv", "--images", "photos", "-o", "library", "--dtype", "float16")
    assert "--dtype has no effect on a library of photos" in unused


def test_pairs_confirmed_before_the_first_fit_are_learned_at_the_next_refit(library):
    photos = [item["id"] for item in run_json("list", "library", "--limit", 3)["items"]]
    confirmed = ("learn", "library", "a boat", *(f"--right={photo}" for photo in photos))
    assert "cannot be refitted" in refused(*confirmed, "--refit")
    ids = run_json(*confirmed)["learned"]  # they are stored nevertheless
    assert run_json("list", "library", "--where", "confirmed = true")["total"] == 3
    run("fit", "captions.csv", "--images", "photos", "--out", "library")
    assert run_json("sync", "library")["unchanged"] == N
    stored = run_json("list", "library", "--where", "confirmed = true")["items"]
    assert [item["id"] for item in stored] == ids
    run("learn", "library", "--refit")
    facts = run_json("info", "library")["facts"]["refitted"]
    assert facts["pairs"] == facts["before"] + 3


def test_check_counts_captions_in_photos(place):
    write_photo(place / "photos" / "a.jpg", xmp=make_xmp(tags=["card"]))
    result = run("check", "photos")
    assert result.stdout.splitlines() == [
        f"{N + 1} images (not split), 0 captions",
        "in the files of images: 1 with tags",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["index", "nowhere", "-o", "new"], "nowhere is not a folder; give a folder of photos."),
        (["index", "empty", "-o", "new"], "empty holds no images; give a folder of photos."),
        (["index", "text", "-o", "new"], "text holds 1 image, none of which can be read"),
        (["index", "photos", "-o", "photos"], "photos exists and is not a diptych retriever"),
        (["index", "photos", "-o", "new", "--image-encoder", "pyramid"], "name both towers"),
        (["sync", "nowhere"], "nowhere is not a folder"),
        (["add", "library", "empty"], "holds no images; give a folder of photos."),
        (["add", "library", "photos", "captions.csv"], "add one kind after the other"),
        (["add", "library", "photos", "--metadata", "all"], "--metadata has no effect on folders of photos"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(library, place, arguments, message):
    (place / "empty").mkdir()
    (place / "text").mkdir()
    (place / "text" / "a.jpg").write_text("no image")
    assert message in refused(*arguments)
    assert not (place / "new").exists()


def test_without_fastembed_towers_must_be_named(place, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "fastembed", None)
    message = refused("index", "photos", "-o", "library")
    assert "searched with CLIP, by fastembed; install with: pip install" in message
    assert "name both towers of a dual encoder" in message


class TestThePage:
    page = Path(__file__).parents[2] / "docs" / "photos.md"

    def test_its_commands_run(self, place, cache):
        for name in (VISION, TEXT):
            shutil.copytree(cached_folder(cache, name), place / name.split("/")[1])
        exif, xmp = make_exif(taken="2024:07:01 12:00:00"), make_xmp(["A red card"], tags=["beach"])
        for name in ("more-photos/a.jpg", "photos/2024/beach.jpg", "photo.jpg"):
            write_photo(place / name, exif=exif, xmp=xmp)
        (place / "years.csv").write_text("image,year\nscene-000003.png,2020\n")
        text = self.page.read_text("utf-8").replace("\\\n", "")
        blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
        lines = [line for block in blocks for line in block.splitlines()]
        assert len(lines) >= 10
        for line in lines:
            some_have_no_caption = line.startswith("diptych check")
            run(*shlex.split(line, comments=True)[1:], exit_code=some_have_no_caption)
        run("remove", "library", "2024/beach.jpg")
        assert not run_json("sync", "library")["added"]

    def test_its_python_runs(self, place):
        names = {}
        (block,) = code_blocks(self.page)
        exec(block, names)
        assert len(names["hits"]) == 10
        assert names["report"].unchanged == N
