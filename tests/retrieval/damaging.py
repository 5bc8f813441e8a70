"""Damages copies of model folders in every way it knows, and loads, asks and saves each; run as a program.

Arguments: the folder of the models, how many copies to damage, a seed. Prints JSON: how many were refused and
how many answered, what went wrong otherwise, and the memory taken.
"""

import json
import os
import random
import shutil
import sqlite3
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from diptych import InputError, Retriever
from diptych._persistence import read_tensors, write_tensors
from diptych.retrieval import Hits
from saved_files import execute, files_of, places, seal

NUMBERS = [0, 1, -1, 7, 2**31, 10**9, 2**63, -(2**70), 10**40, 0.5, 1e308, -1e308]
TEXTS = ["", "x", "²", "1", "hnsw", "float16", "hkse", "pyramid", "../../etc/passwd", "/etc/passwd", "\ud800"]
LISTS = [[], [1], [[[[[]]]]], [None] * 50, [1e308, -1]]
OBJECTS = [{}, {"a": 1}, {"unsaved": "x"}, {"gamma": "x"}, {"k": -1}]
VALUES = [None, True, False, float("nan"), float("inf"), "x" * 9999, *NUMBERS, *TEXTS, *LISTS, *OBJECTS]


def change_json(content, rng):
    """A JSON object with one to three places changed, removed or added."""
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(places(content))
        parent = content
        for key in place[:-1]:
            parent = parent[key]
        if rng.random() < 0.2:
            del parent[place[-1]]
        elif rng.random() < 0.1 and isinstance(parent, dict):
            parent[f"{place[-1]}x"] = parent.pop(place[-1])
        else:
            parent[place[-1]] = rng.choice(VALUES)
        if not places(content):
            break
    return content


def change_bytes(raw, rng):
    """Bytes with some flipped, cut off, zeroed, repeated or appended; or a header that lies."""
    raw = bytearray(raw)
    way = rng.choice(
        ["flip", "flip", "cut", "zero", "append", "repeat", "length", "header", "empty", "noise"]
    )
    at = rng.randrange(len(raw) + 1)
    if way == "flip":
        for _ in range(rng.choice([1, 1, 3, 50])):
            raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif way == "cut":
        del raw[at:]
    elif way == "zero":
        raw[at : at + rng.randint(1, 400)] = bytes(len(raw[at : at + rng.randint(1, 400)]))
    elif way == "append":
        raw += rng.randbytes(rng.randint(1, 100))
    elif way == "repeat":
        raw[at:at] = raw[at : at + 64]
    elif way == "length":
        raw[:8] = rng.choice([0, 1, 7, 2**20, 2**26, 2**26 + 1, 2**31, 2**62, 2**64 - 1]).to_bytes(
            8, "little"
        )
    elif way == "header":
        end = min(len(raw), 8 + int.from_bytes(raw[:8], "little"))
        digits = [place for place in range(8, end) if chr(raw[place]).isdigit()]
        for _ in range(rng.randint(1, 4)):
            if digits:
                raw[rng.choice(digits)] = ord(rng.choice("0123456789"))
    else:
        raw = bytearray() if way == "empty" else bytearray(rng.randbytes(len(raw)))
    return bytes(raw)


def change_numbers(path, rng):
    """Numbers of a safetensors file that become infinite, tiny, huge or NaN; or an array that is emptied."""
    arrays = {name: np.array(array) for name, array in read_tensors(path).items()}
    name = rng.choice(sorted(arrays))
    if rng.random() < 0.2 and arrays[name].ndim:
        arrays[name] = arrays[name][: rng.randrange(2)]
    elif arrays[name].dtype.kind == "f" and arrays[name].size:
        for _ in range(rng.choice([1, 1, 5, arrays[name].size])):
            value = rng.choice([np.inf, -np.inf, np.nan, 1e38, -1e38, 1e300, 1e-310, 0.0, -1.0])
            with np.errstate(over="ignore"):
                arrays[name].flat[rng.randrange(arrays[name].size)] = value
    write_tensors(path, arrays)


def change_items(folder, rng):
    """Rows of the database with other values, lost or added; tables that are dropped."""
    value = rng.choice([None, -1, 0, 2**62, 0.5, "", "x", "../../x", b"\xff", "[" * 9999, "x" * 2**21, "{}"])
    key = f"(SELECT key FROM items ORDER BY key LIMIT 1 OFFSET {rng.randrange(40)})"
    columns = ["key", "row", "id", "item"]
    statement, values = rng.choice(
        [
            (f"UPDATE items SET {rng.choice(columns)} = ? WHERE key = {key}", [value]),
            (f"UPDATE items SET {rng.choice(columns)} = ?", [value]),
            (f"DELETE FROM items WHERE key = {key}", []),
            (f"INSERT INTO changes (key) VALUES ({key})", []),
            (f"UPDATE current SET {rng.choice(['version', 'sha256', 'contents'])} = ?", [value]),
            (f"DROP TABLE {rng.choice(['items', 'changes', 'current'])}", []),
        ]
    )
    if rng.random() < 0.4:
        ((item,),) = execute(folder, f"SELECT item FROM items WHERE key = {key}")
        changed = json.dumps(change_json(json.loads(item), rng))
        statement, values = f"UPDATE items SET item = ? WHERE key = {key}", [changed]
    elif rng.random() < 0.4:
        ((contents,),) = execute(folder, "SELECT contents FROM current")
        layout = json.dumps(change_json(json.loads(contents), rng))
        statement, values = "UPDATE current SET contents = ?", [layout]
    with suppress(sqlite3.Error):
        execute(folder, statement, *values)


def change_files(folder, files, rng):
    """Files that are gone, swapped, links, pipes, or folders."""
    path = rng.choice(files)
    way = rng.choice(["gone", "swap", "link", "linked folder", "folder", "pipe", "forbidden"])
    if way == "gone":
        path.unlink()
    elif way == "swap":
        other = rng.choice(files)
        content = path.read_bytes()
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
    elif way == "link":
        path.unlink()
        path.symlink_to(rng.choice(["/etc/passwd", "nothing", path.name, "/dev/zero", "/"]))
    elif way == "linked folder" and (folder / "text-encoder").exists():
        shutil.move(folder / "text-encoder", folder / "elsewhere")
        (folder / "text-encoder").symlink_to("elsewhere")
    elif way == "folder":
        path.unlink()
        path.mkdir()
    elif way == "pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        path.chmod(0)


def damage(folder, rng):
    """Damage a folder in one to three ways; half of the time, make its checksums true again."""
    version = files_of(folder)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        if not files:
            return
        way = rng.choice(["bytes", "bytes", "bytes", "json", "json", "items", "files", "numbers", "numbers"])
        path = rng.choice(files)
        try:
            if way == "bytes":
                path.write_bytes(change_bytes(path.read_bytes(), rng))
            elif way == "json":
                path = version / rng.choice(["", "", "text-encoder"]) / "config.json"
                if not path.is_symlink():
                    path.write_text(json.dumps(change_json(json.loads(path.read_bytes()), rng)), "utf-8")
            elif way == "numbers":
                tensors = [path for path in files if path.suffix == ".safetensors"]
                change_numbers(rng.choice(tensors), rng)
            elif way == "items":
                if not (folder / "items.sqlite").is_symlink():
                    change_items(folder, rng)
            else:
                change_files(version, files, rng)
        except (OSError, ValueError, IndexError, RecursionError, sqlite3.Error):
            pass  # damaged beyond being damaged further
        if any(path.is_fifo() for path in folder.rglob("*")):
            return  # reading it again would wait for ever
    if rng.random() < 0.6:
        # It may be damaged beyond that.
        with suppress(
            *(OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, sqlite3.Error)
        ):
            if not (version / "config.json").is_symlink() and not (folder / "items.sqlite").is_symlink():
                seal(folder)


def check(hits, k, view):
    """Answers that look right: few enough, of the right kind, each once, the best first."""
    assert isinstance(hits, Hits)
    assert len(hits) <= k
    assert len({hit.id for hit in hits}) == len(hits)
    assert all(isinstance(hit.id, str) and hit.item.view == view for hit in hits)
    scores = [hit.score for hit in hits]
    assert all(isinstance(score, float) and np.isfinite(score) for score in scores)
    assert scores == sorted(scores, reverse=True)
    likely = [hit.probability for hit in hits if getattr(hit, "probability", None) is not None]
    assert all(0 <= probability <= 1 for probability in likely)


def ask(folder, mmap):
    """Load a model and ask it everything; whether it answered, or what it said."""
    try:
        retriever = Retriever.load(folder, mmap=mmap)
        widths = {view: retriever.fitted.width(view) for view in ("image", "text")}
        image, text = np.linspace(-1, 1, widths["image"]), np.linspace(-1, 1, widths["text"])
        check(retriever.search(text, k=5), 5, "image")
        weighting = "uncorrected" if "corrections" in retriever.info() else None
        check(retriever.search(text, k=500, where=lambda item: True, weighting=weighting), 500, "image")
        check(retriever.annotate(image, k=5), 5, "text")
        check(retriever.similar(image=image, k=5), 5, "image")
        if retriever.encoders.text is not None:
            check(retriever.search("a red dog", k=5), 5, "image")
            check(retriever.search("a red quokka", k=5), 5, "image")  # a word that only queries use
        json.dumps(retriever.info())
        if not mmap:
            # What can be loaded can be saved, and loaded again.
            again = folder.with_name("again")
            shutil.rmtree(again, ignore_errors=True)
            retriever.save(again)
            Retriever.load(again)
            if retriever.keep_features:
                retriever.refit()
            check(retriever.search(text, k=5), 5, "image")
    except InputError as error:
        return str(error)
    return None


def peak_memory():
    """Of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) // 1024


def main(source, count, seed):
    models = sorted(path for path in source.iterdir() if path.is_dir() and path.name.startswith("model"))
    copy, wrong = source / "damaged", []
    shutil.rmtree(copy, ignore_errors=True)
    refused = answered = warned = 0
    for model in models:
        assert ask(model, False) is None
        assert ask(model, True) is None
    before = peak_memory()
    for number in range(count):
        rng = random.Random(f"{seed}-{number}")
        shutil.copytree(rng.choice(models), copy)
        damage(copy, rng)
        for mmap in (False, True):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    said = ask(copy, mmap)
                except Exception:
                    wrong.append([number, mmap, traceback.format_exc()[-1500:]])
                    said = ""
            refused, answered = refused + (said is not None), answered + (said is None)
            warned = max(warned, len(caught))
            if said and "\n" in said:
                wrong.append([number, mmap, f"not one sentence: {said[:500]}"])
        shutil.rmtree(copy)
    counts = {"refused": refused, "answered": answered, "warned": warned, "grown": peak_memory() - before}
    print(json.dumps({**counts, "wrong": wrong[:20], "n_wrong": len(wrong)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
