"""Datasets of the Hugging Face Hub and local folders in their formats, written by ``datasets`` itself."""

import io
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from commands import config, refused, run, run_json
from diptych._checks import DataWarning, InputError
from diptych.data import _hub_datasets, read_pairs
from diptych.scenes import make_scenes
from hub_server import HubServer, Repository

datasets = pytest.importorskip("datasets", reason="datasets is not installed")

N = 12
PARTS = {"train": range(8), "validation": range(8, 10), "test": range(10, 12)}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of datasets of this test alone."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return make_scenes(N).write(tmp_path_factory.mktemp("drawn"))


def captions_of(pairs, row):
    return [pairs.captions[j] for j in pairs.caption_rows([row])]


def make_dataset(scenes, rows, name="image", **columns):
    """A dataset with the bytes of image files; a list of captions for each unless columns are given."""
    columns = columns or {"captions": [captions_of(scenes, row) for row in rows]}
    files = [{"bytes": scenes.paths[row].read_bytes(), "path": scenes.paths[row].name} for row in rows]
    table = datasets.Dataset.from_dict({name: files, **columns})
    return table.cast_column(name, datasets.Image())


def write_parquet(folder, scenes):
    for split, rows in PARTS.items():
        (folder / "data").mkdir(parents=True, exist_ok=True)
        make_dataset(scenes, rows).to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


def save_to_disk(folder, scenes):
    parts = {split: make_dataset(scenes, rows) for split, rows in PARTS.items()}
    datasets.DatasetDict(parts).save_to_disk(folder)


def write_image_folder(folder, scenes):
    for split, rows in PARTS.items():
        (folder / split).mkdir(parents=True)
        lines = []
        for row in rows:
            path = scenes.paths[row]
            (folder / split / path.name).write_bytes(path.read_bytes())
            lines.append(json.dumps({"file_name": path.name, "captions": captions_of(scenes, row)}))
        (folder / split / "metadata.jsonl").write_text("\n".join(lines))


@pytest.mark.parametrize("write", [write_parquet, save_to_disk, write_image_folder])
def test_a_local_dataset_gives_the_pairs_it_was_made_from(tmp_path, scenes, write):
    write(tmp_path / "dataset", scenes)
    pairs = read_pairs(f"hf:{tmp_path / 'dataset'}", images=tmp_path / "images")
    assert pairs.n_images == N
    assert pairs.split_sizes() == {"train": 8, "val": 2, "test": 2}
    order = [next(i for i, p in enumerate(scenes.paths) if p.stem in image) for image in pairs.image_ids]
    assert sorted(order) == list(range(N))
    for row, source in enumerate(order):
        assert captions_of(pairs, row) == captions_of(scenes, source)
        assert pairs.paths[row].read_bytes() == scenes.paths[source].read_bytes()  # not encoded again
        assert pairs.paths[row].is_relative_to(tmp_path / "images")


def test_ids_are_the_same_in_every_format_and_run(tmp_path, scenes):
    write_parquet(tmp_path / "a", scenes)
    save_to_disk(tmp_path / "b", scenes)
    first = read_pairs(f"hf:{tmp_path / 'a'}")
    assert first.image_ids == read_pairs(f"hf:{tmp_path / 'b'}").image_ids
    assert first.image_ids == read_pairs(f"hf:{tmp_path / 'a'}").image_ids
    assert first.image_ids[0].startswith("train/scene-000000-")


def test_images_go_to_the_cache_by_default(tmp_path, scenes, cache):
    save_to_disk(tmp_path / "dataset", scenes)
    pairs = read_pairs(f"hf:{tmp_path / 'dataset'}")
    assert all(path.is_relative_to(cache / "diptych") for path in pairs.paths)


def test_a_folder_is_named_relative_to_the_current_one(tmp_path, scenes, monkeypatch):
    save_to_disk(tmp_path / "dataset", scenes)
    monkeypatch.chdir(tmp_path)
    assert read_pairs("hf:./dataset").n_images == N


def test_images_are_written_once_and_damaged_ones_again(tmp_path, scenes):
    save_to_disk(tmp_path / "dataset", scenes)
    source, folder = f"hf:{tmp_path / 'dataset'}", tmp_path / "images"
    pairs = read_pairs(source, images=folder)
    times = [path.stat().st_mtime_ns for path in pairs.paths]
    content = pairs.paths[3].read_bytes()
    pairs.paths[3].write_bytes(content[:50])  # as a killed process would leave it
    pairs.paths[4].unlink()
    again = read_pairs(source, images=folder)
    assert again.paths[3].read_bytes() == content
    assert again.paths[4].is_file()
    kept = [row for row in range(N) if row not in (3, 4)]
    assert [again.paths[row].stat().st_mtime_ns for row in kept] == [times[row] for row in kept]
    assert not [path for path in folder.rglob(".*") if path.is_file()]


def test_splits_are_chosen_after_a_question_mark(tmp_path, scenes):
    save_to_disk(tmp_path / "dataset", scenes)
    source = f"hf:{tmp_path / 'dataset'}"
    assert read_pairs(f"{source}?split=test").split_sizes() == {"test": 2}
    assert read_pairs(f"{source}?split=train&split=test").split_sizes() == {"train": 8, "test": 2}
    assert read_pairs(f"{source}?split=train").splits is None  # how datasets calls what is not split
    with pytest.raises(InputError, match="has no split 'dev'; it has train, validation, test"):
        read_pairs(f"{source}?split=dev")


def test_unusual_splits_have_to_be_chosen(tmp_path, scenes):
    parts = {name: make_dataset(scenes, range(4)) for name in ("train", "extra")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path / "dataset")
    with pytest.raises(InputError, match="'extra', which is neither train, validation nor test"):
        read_pairs(f"hf:{tmp_path / 'dataset'}")
    assert read_pairs(f"hf:{tmp_path / 'dataset'}?split=extra").splits is None


def test_a_config_is_chosen_after_a_question_mark(tmp_path, scenes):
    write_parquet(tmp_path / "dataset", scenes)
    lines = ["---", "configs:"]
    for name, split in (("small", "test"), ("large", "train")):
        lines += [f"- config_name: {name}", f"  data_files: data/{split}-*"]
    (tmp_path / "dataset" / "README.md").write_text("\n".join([*lines, "---", ""]))
    assert read_pairs(f"hf:{tmp_path / 'dataset'}?config=small").n_images == 2
    assert read_pairs(f"hf:{tmp_path / 'dataset'}?config=large").n_images == 8
    with pytest.raises(InputError, match="'medium' not found. Available: \\['small', 'large'\\]"):
        read_pairs(f"hf:{tmp_path / 'dataset'}?config=medium")


def test_columns_are_found_by_type_and_name(tmp_path, scenes):
    columns = {f"caption_{i}": [captions_of(scenes, row)[i] for row in range(N)] for i in (1, 0, 2)}
    columns |= {"remark": ["a remark"] * N, "caption_10": ["the last"] * N}
    dataset = make_dataset(scenes, range(N), "pixels", **columns)
    preview = make_dataset(scenes, range(N), "preview", number=list(range(N))).select_columns("preview")
    datasets.concatenate_datasets([dataset, preview], axis=1).save_to_disk(tmp_path / "dataset")
    source = f"hf:{tmp_path / 'dataset'}"
    with pytest.raises(InputError, match="pixels, preview, and none has a usual name for the image"):
        read_pairs(source)
    pairs = read_pairs(source, image_column="pixels")
    assert captions_of(pairs, 0) == [*captions_of(scenes, 0)[:3], "the last"]
    assert captions_of(read_pairs(source, image_column="preview", caption_column="remark"), 0) == ["a remark"]
    with pytest.raises(InputError, match="'remark' holds images; name one that does"):
        read_pairs(source, image_column="remark")
    with pytest.raises(InputError, match="has no column 'remarks'; it has"):
        read_pairs(source, image_column="pixels", caption_column="remarks")


def test_one_row_per_caption_and_a_column_of_splits(tmp_path, scenes):
    rows = [row for row in range(4) for _ in range(2)]
    texts = [captions_of(scenes, row)[i % 2] for i, row in enumerate(rows)]
    split = ["train", "train", "train", "train", "val", "val", "test", "test"]
    make_dataset(scenes, rows, text=texts, split=split).save_to_disk(tmp_path / "dataset")
    pairs = read_pairs(f"hf:{tmp_path / 'dataset'}")
    assert (pairs.n_images, pairs.n_captions) == (4, 8)
    assert pairs.splits == ("train", "train", "val", "test")
    assert captions_of(pairs, 1) == captions_of(scenes, 1)[:2]


def test_rows_without_an_image_or_a_caption(tmp_path, scenes):
    dataset = make_dataset(scenes, range(3), caption=["one", None, "three"])
    empty = datasets.Dataset.from_dict({"image": [None], "caption": ["nothing"]}, features=dataset.features)
    datasets.concatenate_datasets([dataset, empty]).save_to_disk(tmp_path / "dataset")
    with pytest.warns(DataWarning, match="1 row of .* without an image left out"):
        pairs = read_pairs(f"hf:{tmp_path / 'dataset'}")
    assert (pairs.n_images, pairs.captions) == (3, ("one", "three"))


def test_an_image_without_a_name_gets_an_extension(tmp_path):
    file = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(file, "JPEG")
    dataset = datasets.Dataset.from_dict(
        {"image": [{"bytes": file.getvalue(), "path": None}], "text": ["black"]}
    )
    dataset.cast_column("image", datasets.Image()).save_to_disk(tmp_path / "dataset")
    (path,) = read_pairs(f"hf:{tmp_path / 'dataset'}").paths
    assert path.suffix == ".jpg"
    assert path.read_bytes() == file.getvalue()


def test_an_image_file_outside_of_the_dataset_is_not_opened(tmp_path, scenes):
    secret = tmp_path / "secret.png"
    secret.write_bytes(scenes.paths[0].read_bytes())
    dataset = datasets.Dataset.from_dict({"image": [str(secret)], "text": ["a secret"]})
    (tmp_path / "dataset").mkdir()
    dataset.cast_column("image", datasets.Image()).to_parquet(tmp_path / "dataset" / "train.parquet")
    with pytest.raises(InputError, match="secret.png', which is not part of the dataset"):
        read_pairs(f"hf:{tmp_path / 'dataset'}", images=tmp_path / "images")
    assert not (tmp_path / "images").exists()


def test_the_name_of_a_split_does_not_lead_out_of_the_images(tmp_path, scenes):
    make_dataset(scenes, range(3)).save_to_disk(tmp_path / "elsewhere")
    (tmp_path / "dataset").mkdir()
    (tmp_path / "dataset" / "dataset_dict.json").write_text('{"splits": ["../elsewhere"]}')
    folders = sorted(tmp_path.iterdir())
    pairs = read_pairs(f"hf:{tmp_path / 'dataset'}", images=tmp_path / "images" / "deep")
    assert {path.resolve().parent.parent for path in pairs.paths} == {tmp_path / "images" / "deep"}
    assert sorted(tmp_path.iterdir()) == sorted([*folders, tmp_path / "images"])


def test_damaged_files_are_refused(tmp_path, scenes):
    write_parquet(tmp_path / "parquet", scenes)
    save_to_disk(tmp_path / "saved", scenes)
    for file in (next((tmp_path / "parquet").rglob("train*")), next((tmp_path / "saved").rglob("*.arrow"))):
        content = file.read_bytes()
        file.write_bytes(content[: len(content) // 2])
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "dataset_dict.json").write_text("[]")
    for name in ("parquet", "saved", "state"):
        with pytest.raises(InputError, match=f"hf:.*{name}"):
            read_pairs(f"hf:{tmp_path / name}", images=tmp_path / "images")


def test_a_dataset_script_is_refused_and_not_run(tmp_path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    (folder / "dataset.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(InputError, match="scripts are no longer supported"):
        read_pairs(f"hf:{folder}")
    assert not (tmp_path / "ran").exists()


def test_sizes_are_bounded(tmp_path, scenes, monkeypatch):
    save_to_disk(tmp_path / "dataset", scenes)
    with pytest.raises(InputError, match="more than 100 characters of captions; raise max_bytes"):
        read_pairs(f"hf:{tmp_path / 'dataset'}", max_bytes=100)
    monkeypatch.setattr(_hub_datasets, "MAX_IMAGE_BYTES", 100)
    with pytest.raises(InputError, match="an image of [0-9,]+ bytes; at most 100 are read"):
        read_pairs(f"hf:{tmp_path / 'dataset'}")


def test_what_cannot_be_read_is_explained(tmp_path, scenes):
    save_to_disk(tmp_path / "dataset", scenes)
    source = f"hf:{tmp_path / 'dataset'}"
    datasets.Dataset.from_dict({"a": [1]}).save_to_disk(tmp_path / "plain")
    (tmp_path / "empty").mkdir()
    for name, options, message in (
        ("hf:flickr8k", {}, "hf:flickr8k is not a dataset; give hf:user/name, or hf:./folder"),
        (f"hf:{tmp_path}/none", {}, "none is not a folder"),
        (f"hf:{tmp_path}/empty", {}, "could not be read .*empty doesn't contain any data files"),
        (f"hf:{tmp_path}/plain", {}, "the columns a, and none holds images"),
        ("hf:ada/none", {}, "is not in the cache, and the Hub cannot be reached"),
        (f"{source}?rows=3", {}, "'rows' is not understood; after . give config=, split= or revision="),
        (f"{source}?config=a&config=b", {}, "'config' is not understood"),
        (f"{source}?revision=main", {}, "revision= has no effect on a local folder"),
        (source, {"encoding": "cp1252"}, "encoding has no effect"),
        (source, {"format": "table"}, "format has no effect"),
        (source, {"views": ("audio", "text")}, "only images are read; leave the names of views out"),
        (source, {"split_column": "split"}, "is split already, so split_column has no effect"),
    ):
        with pytest.raises(InputError, match=message):
            read_pairs(name, **options)


def test_the_package_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match="hf:ada/scenes needs .*pip install"):
        read_pairs("hf:ada/scenes")


def test_check_takes_a_dataset(tmp_path, scenes):
    save_to_disk(tmp_path / "saved", scenes)
    report = run_json("check", f"hf:{tmp_path / 'saved'}", "--images", tmp_path / "images")
    assert (report["images"], report["captions"], report["ok"]) == (N, 5 * N, True)
    assert "has no split 'dev'" in refused("check", f"hf:{tmp_path / 'saved'}?split=dev")


@pytest.mark.slow
def test_a_model_is_fitted_on_a_dataset(tmp_path):
    scenes = make_scenes(60, size=48).write(tmp_path / "drawn")
    make_dataset(scenes, range(60)).save_to_disk(tmp_path / "saved")
    source = f"hf:{tmp_path / 'saved'}", "--images", tmp_path / "images"
    options = ["--image-encoder", "pyramid", "--text-encoder", "hkse", *config(model={"grid": 3})]
    assert run("fit", *source, *options, "--out", tmp_path / "model", "-q").exit_code == 0
    (hit,) = run_json("search", tmp_path / "model", scenes.captions[0], "-k", 1)["answers"][0]["hits"]
    assert hit["path"].startswith(str(tmp_path / "images"))


@pytest.mark.slow
def test_a_dataset_of_the_hub(tmp_path, scenes):
    write_parquet(tmp_path / "dataset", scenes)
    files = {f"data/{path.name}": path.read_bytes() for path in (tmp_path / "dataset" / "data").iterdir()}
    files["README.md"] = b"---\nlicense: unknown\n---\n"
    with HubServer() as hub:
        hub.repositories["datasets/ada/scenes"] = repo = Repository(private=False)
        repo.commit("main", files)

        def check(name, **environment):
            """Run ``diptych check`` in a process of its own: datasets reads its environment when imported."""
            paths = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
            command = [sys.executable, "-m", "diptych", "check", name, "--json"]
            environment = {**os.environ, "HF_HUB_OFFLINE": "0", **paths, **environment}
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

        done = check("hf:ada/scenes")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert (report["images"], report["splits"]) == (N, {"train": 8, "val": 2, "test": 2})
        missing = check("hf:ada/none")
        assert missing.returncode == 2
        assert missing.stderr.count("error: ") == missing.stderr.count("\n") == 1
        assert "hf:ada/none" in missing.stderr
        seen = len(hub.requests)
        offline = check("hf:ada/scenes", HF_HUB_OFFLINE="1")
        assert json.loads(offline.stdout) == report
        assert len(hub.requests) == seen
