"""A thousand damaged folders: an answer that looks right, or one message; never anything else."""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from functools import reduce
from operator import getitem
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA, HKSE, Fusion, InputError, Retriever
from diptych.encoders import WordVectors
from saved_files import execute, files_of, places, rows_of, seal_config

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
    for place in ((), ("encoders", "text"), ("facts",), ("description",)):
        inner = reduce(getitem, place, config)
        path.write_text(json.dumps(replace_at(config, place, {**inner, "colour": "red"})), "utf-8")
        seal_config(tmp_path / "model")
        with pytest.raises(InputError, match=r"config\.json.*unknown (field|key) .colour"):
            Retriever.load(tmp_path / "model")


def test_a_wrong_value_anywhere_in_the_database_is_refused_when_it_is_read(make, tmp_path):
    made = make(metadata={"3": {"colour": "red"}}, paths=[f"/{i}.png" for i in range(60)])
    made.retriever.save(tmp_path / "model")
    ((contents,),) = execute(tmp_path / "model", "SELECT contents FROM current")
    layout = json.loads(contents)
    changes = [
        ("current", "contents", json.dumps(replace_at(layout, place, value)))
        for place in places(layout)
        for value in ({"unexpected": []}, -1, "../../x", None)
        if place[0] != "images"
    ]
    changes += [("current", "contents", value) for value in (b"\0", 5, "", "{", "[]")]
    changes += [("current", "version", value) for value in (None, 5, "", "../../x", "000001-01234567")]
    changes += [("current", "sha256", value) for value in (b"0", "0")]
    ((item,),) = execute(tmp_path / "model", "SELECT item FROM items WHERE key = 179")
    item = json.loads(item)
    for place, values in {
        **dict.fromkeys([("id",), ("text",), ("image",), ("path",)], (5, [], {})),
        ("view",): (None, 5, "else", "image"),
        ("metadata",): (None, [], 5, {"n": 2**63}),
        ("upload",): ("../../etc/passwd", 5, None),
        ("colour",): ("red",),
    }.items():
        changes += [("items", "item", json.dumps({**item, place[0]: value})) for value in values]
    changes += [("items", "item", value) for value in (b"\xff", 5, "", "[1]", "[" * 50_000)]
    changes += [("items", "item", '{"id": "a", "view": "text", "metadata": {"n": NaN}}')]
    changes += [("items", "row", value) for value in (-1, 7, 10**9, "x", 2**62, b"0", 0.5)]
    assert len(changes) > 80
    for number, (table, column, value) in enumerate(changes):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "model", folder)
        where = "key = (SELECT max(key) FROM items)" if table == "items" else "true"
        try:
            execute(folder, f"UPDATE {table} SET {column} = ? WHERE {where}", value)
        except sqlite3.IntegrityError:
            continue  # SQLite itself refuses it
        for mmap in (False, True):
            with pytest.raises(InputError) as caught:
                Retriever.load(folder, mmap=mmap).search(made.y[0])
            assert "\n" not in str(caught.value), (table, column, value)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END",
        "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n",
        "ALTER TABLE items ADD COLUMN more TEXT",
        "CREATE INDEX more ON items (item)",
        "DROP TABLE changes",
        "PRAGMA application_id = 5",
        "PRAGMA user_version = 99",
        "DELETE FROM current",
        """INSERT INTO items VALUES (999, 0, 'x', '{"id": "x", "view": "image"}')""",
    ],
)
def test_a_database_with_other_tables_or_rows_is_refused(make, tmp_path, statement):
    make().retriever.save(tmp_path / "model")
    execute(tmp_path / "model", statement)
    with pytest.raises(InputError) as caught:
        Retriever.load(tmp_path / "model")
    assert "\n" not in str(caught.value)


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
    make().retriever.save(tmp_path / "model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    checked = 0
    for path in files:
        if path.name in ("README.md", "items.sqlite-wal", "items.sqlite-shm") or path.stem == "moments":
            continue
        folder = tmp_path / f"copy {checked}"
        shutil.copytree(tmp_path / "model", folder)
        copy = folder / path.relative_to(tmp_path / "model")
        copy.rename(tmp_path / f"moved {checked}")
        copy.symlink_to(tmp_path / f"moved {checked}")
        checked += 1
        for mmap in (False, True):
            if path.stem == "estimator":  # which only a refit reads
                with pytest.raises(InputError, match="is a link"):
                    Retriever.load(folder, mmap=mmap).refit()
            else:
                with pytest.raises(InputError, match="is a link"):
                    Retriever.load(folder, mmap=mmap)
    assert checked >= 9


@pytest.mark.parametrize(("name", "width"), [("search", 8), ("annotate", 8), ("image", 8), ("text", 7)])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_are_refused_when_they_are_read(make, tmp_path, name, width, value):
    made = make()
    made.retriever.save(tmp_path / "model")
    rows_of(tmp_path / "model", name, width)[1, 3] = value
    with pytest.raises(InputError, match=f"{name} has numbers that are not finite"):
        Retriever.load(tmp_path / "model")
    if name == "search" and value == np.inf:
        with pytest.raises(InputError, match="a stored vector is not finite"):
            Retriever.load(tmp_path / "model", mmap=True).search(made.y)


@pytest.mark.parametrize("name", ["search", "annotate", "image", "text"])
@pytest.mark.parametrize("mmap", [False, True])
def test_rows_that_are_missing_are_one_error(make, tmp_path, name, mmap):
    make().retriever.save(tmp_path / "model")
    (path,) = (tmp_path / "model" / "rows").glob(f"*.{name}")
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(InputError, match="is too short for"):
        Retriever.load(tmp_path / "model", mmap=mmap)
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        Retriever.load(tmp_path / "model", mmap=mmap)


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
            if copy.name == "README.md" or copy.stem in ("moments", "estimator"):
                Retriever.load(folder, mmap=mmap)
            else:
                with pytest.raises(InputError, match=rf"{copy.name} is (missing, or is not|neither) a file"):
                    Retriever.load(folder, mmap=mmap)
        shutil.rmtree(folder)
