"""A thousand damaged folders: an answer that looks right, or one message; never anything else."""

import json
import os
import shutil
import socket
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA, HKSE, Fusion, InputError, Retriever
from diptych._persistence import read_tensors, write_tensors
from diptych.encoders import WordVectors
from saved_files import files_of, places, seal, seal_config

WORDS = (
    ["red", "green", "blue"],
    ["dog", "cat", "bird", "fish"],
    ["runs", "sleeps", "jumps", "flies", "swims"],
)


def save_models(folder):
    """Small models: with an HKSE, with graphs, in half precision, with probabilities, and a fusion."""
    sentences = [f"a {a} {b} {c}" for a in WORDS[0] for b in WORDS[1] for c in WORDS[2]]
    words = sorted({word for sentence in sentences for word in sentence.split()} | {"quokka", "wombat"})
    table = WordVectors(words, np.random.default_rng(1).normal(size=(len(words), 9)).astype(np.float32))
    table.save(folder / "vectors")
    hkse = HKSE(folder / "vectors", word="lin", sentence="lin").fit(sentences)
    y = hkse.transform(sentences)[:, :]
    x = y @ np.random.default_rng(0).normal(size=(y.shape[1], 6))
    x, pairing = x[::2], np.arange(60) // 2
    for name, options in {
        "model-hkse": {"text_encoder": hkse},
        "model-hnsw": {"index": "hnsw"},
        "model-half": {
            "dtype": "float16",
            "keep_features": False,
            "model": AWCCA(params=(1.0, 1.0), similarity="l2"),
        },
    }.items():
        options = {"model": AWCCA(params=(1.0, 1.0)), **options}
        metadata = {"3": {"colour": "red"}}
        Retriever.from_features(x, y, pairing, captions=sentences, metadata=metadata, **options).save(
            folder / name
        )
    rng = np.random.default_rng(2)
    x = rng.normal(size=(160, 6))
    y = x @ rng.normal(size=(6, 5)) + rng.normal(size=(160, 5))
    splits = ["train"] * 60 + ["val"] * 100
    models = {"calibrated": AWCCA(params=(1.0, 1.0)), "fusion": Fusion(grid=3, parts="together")}
    for name, model in models.items():
        Retriever.from_features(x, y, splits=splits, model=model).save(folder / f"model-{name}")


def damage(folder, count, seed):
    done = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "damaging.py"), str(folder), str(count), str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def replace_at(tree, place, value):
    """Return a copy of a JSON tree with another value at one place."""
    if not place:
        return value
    copy = tree.copy()
    copy[place[0]] = replace_at(tree[place[0]], place[1:], value)
    return copy


def test_a_wrong_type_anywhere_in_a_config_is_refused_when_it_is_read(views, tmp_path):
    x, y, pairing = views(n=60)
    splits = ["train"] * 40 + ["val"] * 10 + ["test"] * 10
    retriever = Retriever.from_features(x, y, pairing, splits=splits, model=AWCCA(grid=3))
    retriever.save(tmp_path / "model")
    path = files_of(tmp_path / "model") / "config.json"
    config = json.loads(path.read_text("utf-8"))
    leaves = [
        place for place in places(config) if not isinstance(reduce(getitem, place, config), (dict, list))
    ]
    assert len(leaves) > 100
    for place in leaves:
        path.write_text(json.dumps(replace_at(config, place, {"unexpected": []})), "utf-8")
        seal_config(tmp_path / "model")
        with pytest.raises(InputError, match=r"config\.json") as caught:
            Retriever.load(tmp_path / "model")
        assert "\n" not in str(caught.value), place


def test_an_unknown_key_or_choice_is_refused_when_it_is_read(make, tmp_path):
    make().retriever.save(tmp_path / "model")
    path = files_of(tmp_path / "model") / "config.json"
    config = json.loads(path.read_text("utf-8"))
    for place in ((), ("model",), ("model", "encoders", "text"), ("model", "facts"), ("items",)):
        inner = reduce(getitem, place, config)
        path.write_text(json.dumps(replace_at(config, place, {**inner, "colour": "red"})), "utf-8")
        seal_config(tmp_path / "model")
        with pytest.raises(InputError, match=r"config\.json.*unknown (field|key) .colour"):
            Retriever.load(tmp_path / "model")
    path.write_text(json.dumps(replace_at(config, ("model", "index", "kind"), "tree")), "utf-8")
    seal_config(tmp_path / "model")
    with pytest.raises(InputError, match=r"config\.json: model\.index\.kind='tree' is unknown"):
        Retriever.load(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_thousand_damaged_folders(tmp_path):
    save_models(tmp_path)
    counts = damage(tmp_path, 1000, 0)
    assert counts["wrong"] == []
    # Both outcomes occur, so that the test tests something.
    assert counts["refused"] > 800
    assert counts["answered"] > 200
    assert counts["warned"] < 20
    assert counts["grown"] < 300


def test_links_are_not_followed(make, tmp_path):
    made = make()
    for name in ("items.jsonl", "model.safetensors", "index.safetensors", "config.json"):
        folder = tmp_path / name / "model"
        made.retriever.save(folder)
        path = files_of(folder) / name
        path.rename(tmp_path / f"{name}.moved")
        path.symlink_to(tmp_path / f"{name}.moved")
        for mmap in (False, True):
            with pytest.raises(InputError, match="is a link"):
                Retriever.load(folder, mmap=mmap)


@pytest.mark.parametrize("name", ["search.vectors", "annotate.vectors", "features"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_are_refused_when_they_are_read(make, tmp_path, name, value):
    make().retriever.save(tmp_path / "model")
    file, name = ("features", "image") if name == "features" else ("index", name)
    path = files_of(tmp_path / "model") / f"{file}.safetensors"
    arrays = dict(read_tensors(path))
    arrays[name].flat[7] = value
    write_tensors(path, arrays)
    seal(tmp_path / "model")
    with pytest.raises(InputError, match=f"{file}.safetensors: '{name}' has numbers that are not finite"):
        Retriever.load(tmp_path / "model")


def test_a_mapped_vector_that_is_not_finite_is_one_error(make, tmp_path):
    made = make()
    made.retriever.save(tmp_path / "model")
    path = files_of(tmp_path / "model") / "index.safetensors"
    arrays = dict(read_tensors(path))
    arrays["search.vectors"][5, 0] = np.inf
    write_tensors(path, arrays)
    seal(tmp_path / "model")
    mapped = Retriever.load(tmp_path / "model", mmap=True)
    with pytest.raises(InputError, match="a stored vector is not finite"):
        mapped.search(made.y)


def test_a_vector_too_large_for_half_precision_is_refused_and_changes_nothing(make, tmp_path):
    made = make(dtype="float16", model=AWCCA(params=(1.0, 1.0), similarity="l2"))
    before = made.retriever.search(made.y[:1], k=5)
    with pytest.raises(InputError, match="numbers too large for dtype=float16; choose float32"):
        made.retriever.add(np.vstack([made.x[:1], made.x[:1] * 1e5]), ids=["fits", "large"])
    assert made.retriever.item("fits") is None
    assert made.retriever.search(made.y[:1], k=5) == before
    made.retriever.save(tmp_path / "model")
    assert Retriever.load(tmp_path / "model").search(made.y[:1], k=5) == before


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_nobody_waits_for_a_file_that_is_none(make, tmp_path, kind, monkeypatch):
    make().retriever.save(tmp_path / "model")
    files = sorted(path for path in (tmp_path / "model").rglob("*") if path.is_file())
    for path in files:
        folder = tmp_path / "copy"
        shutil.copytree(tmp_path / "model", folder)
        copy = folder / path.relative_to(tmp_path / "model")
        copy.unlink()
        if kind == "pipe":
            os.mkfifo(copy)
        elif kind == "socket":
            monkeypatch.chdir(copy.parent)  # its name may not be long
            with socket.socket(socket.AF_UNIX) as own:
                own.bind(copy.name)
        else:
            copy.mkdir()
        for mmap in (False, True):
            if copy.name in ("README.md", ".lock") or copy.stem in ("moments", "estimator"):
                Retriever.load(folder, mmap=mmap)
            else:
                with pytest.raises(InputError, match=rf"{copy.name} is missing, or is not a file"):
                    Retriever.load(folder, mmap=mmap)
        shutil.rmtree(folder)
