"""Fault trials: processes are killed and folders change while models are saved, loaded and served.

Run as a program::

    python tests/faults/trials.py                   # every trial, 20 rounds each, as the tests do
    python tests/faults/trials.py --minutes 60      # again and again for an hour, at other moments
    python tests/faults/trials.py loads_beside_saves --rounds 1000

Prints one line of JSON for each trial: its name, the rounds, what was lost or wrong, and how often the fault
really struck (a trial that never struck has shown nothing). The exit code is 1 if anything was lost or wrong.
"""

import argparse
import gc
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import httpx
import numpy as np
from PIL import Image
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1]))

from diptych import AWCCA, HKSE, InputError, Retriever
from diptych._checks import DataWarning
from diptych._model_folder import current_version
from diptych.cli import app
from diptych.data import read_pairs
from diptych.encoders import image_encoder
from diptych.retrieval._calibration import measure_held_out
from diptych.retrieval._encoders import EncoderRecord
from diptych.retrieval._folder import write_model
from diptych.retrieval.stores import _folder as stores
from diptych.retrieval.stores._folder import FolderStore
from diptych.scenes import make_scenes
from diptych.service import _serve as serving
from diptych.service._files import Images, Upload
from diptych.service._model import ModelHolder
from diptych.service._writes import Addition
from example_files import network_with_weights

WORDS = (["red", "green", "blue"], ["dog", "cat", "bird", "fish"], ["runs", "sleeps", "jumps", "flies"])
SENTENCES = [f"a {a} {b} {c}" for a in WORDS[0] for b in WORDS[1] for c in WORDS[2]]


class Thumbnails:
    """A picture as 4 × 4 colours: an image encoder that costs nothing."""

    dimension, fingerprint, name = 48, "thumbnails", "thumbnails"

    def encode(self, images):
        rows = [np.asarray(image.convert("RGB").resize((4, 4)), np.float32).ravel() for image in images]
        return np.stack(rows) / 255


def make_model(seed=0, name="item"):
    """A model of 48 drawings that do not exist and 48 sentences, with both encoders."""
    rng = np.random.default_rng(seed)
    hkse = HKSE(word="lin", sentence="lin", random_state=0).fit(SENTENCES)
    y = np.asarray(hkse.transform(SENTENCES))
    x = (y @ rng.normal(size=(y.shape[1], 48)) + rng.normal(size=(len(y), 48))).astype(np.float32)
    return Retriever.from_features(
        x,
        y,
        ids=[f"{name}-{i}" for i in range(len(x))],
        captions=SENTENCES,
        text_encoder=hkse,
        image_encoder=Thumbnails(),
        model=AWCCA(params=(1.0, 1.0)),
    )


def load(folder):
    return Retriever.load(folder, Thumbnails())


def ids(retriever):
    return {item.id for item in retriever.store.items()}


def add(folder, name):
    """Add an item to a saved model, as another process would."""
    retriever = load(folder)
    retriever.add(captions=["a red dog runs"], caption_ids=[name])


def picture(colour):
    file = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(file, "PNG")
    return file.getvalue()


TRIALS = {}


def trial(function):
    """Make a function a trial, under its name."""
    TRIALS[function.__name__] = function
    return function


class Count:
    """What a trial found."""

    def __init__(self):
        self.rounds, self.struck, self.wrong = 0, 0, []

    def check(self, holds, what):
        if not holds:
            self.wrong.append(f"round {self.rounds}: {what}")


def in_child(work):
    """Run ``work(ready)`` in a process of its own; returns its id and a pipe that ``ready`` writes to."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            work(lambda: os.write(writer, b"."))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    return child, reader


def end(child, reader, how=None):
    """Wait for a process, or end it first; returns its exit code, negative for a signal."""
    if how is not None:
        os.kill(child, how)
    _, status = os.waitpid(child, 0)
    os.close(reader)
    return os.waitstatus_to_exitcode(status)


# Loading and saving at once


def load_beside_saves(folder, models, save, answer, rounds, rng, count):
    """Load a folder while a process saves two models there in turn; each load must answer as one of them."""
    expected = [answer(model) for model in models]
    save(models[0])

    def save_forever(ready):
        ready()
        while True:
            for model in models:
                save(model)

    child, reader = in_child(save_forever)
    os.read(reader, 1)
    last = ""
    while count.rounds < rounds:
        count.rounds += 1
        try:
            found, now = answer(folder), current_version(folder).id
        except Exception as error:
            count.check(False, repr(error))
            continue
        count.check(any(np.array_equal(found, whole) for whole in expected), "neither of the two models")
        count.struck, last = count.struck + (now != last), now
    end(child, reader, signal.SIGKILL)


@trial
def loads_beside_saves(place, rounds, rng, count):
    """A process saves two models in turn without a pause; every load gives one of the two, whole."""
    models = [make_model(seed, name) for seed, name in enumerate(("one", "two"))]

    def write_files(model, path):
        write_model(path, model.searcher, True, place=place / "model")

    query = np.linspace(-1, 1, models[0].fitted.width("text"))

    def save(model):
        FolderStore.write(place / "model", model.store, partial(write_files, model))

    def answer(model):
        if isinstance(model, Path):
            model = Retriever.load(model, mmap=rng.random() < 0.5)
        return [(hit.id, hit.score) for hit in model.search(query, k=48)]

    load_beside_saves(place / "model", models, save, answer, rounds, rng, count)


@trial
def awcca_loads_beside_saves(place, rounds, rng, count):
    """The same for a model without an index."""
    data = np.random.default_rng(0).normal(size=(60, 40))
    models = [AWCCA(params=(g, g)).fit(data, data[:, :30]) for g in (1.0, 5.0)]

    def answer(model):
        return (AWCCA.load(model) if isinstance(model, Path) else model).transform(data[:3])

    load_beside_saves(
        place / "model", models, lambda model: model.save(place / "model"), answer, rounds, rng, count
    )


def search_for_ever(folder, expected):
    """Search a folder until a file appears; what was found at the end must be what is expected then."""
    retriever, query = load(folder), np.linspace(-1, 1, 48)
    while not (folder.parent / "done").exists():
        hits = retriever.annotate(query, k=10**6)
        found = [hit.id for hit in hits]
        assert len(set(found)) == len(found)
        for hit in hits:
            assert hit.text == "a red dog runs" or hit.id.startswith("item-")
            assert np.isfinite(hit.score)
    assert {hit.id for hit in retriever.annotate(query, k=10**6)} == expected()


@trial
def writers_and_readers(place, rounds, rng, count):
    """Four processes add, and remove some, beside two that search: all is there, nothing twice."""
    folder = place / "model"
    make_model().save(folder)
    each = max(1, rounds // 4)

    def write(name):
        def work(ready):
            retriever = load(folder)
            ready()
            for number in range(each):
                retriever.add(captions=["a red dog runs"], caption_ids=[f"{name}-{number}"])
                if number % 3 == 2:
                    retriever.remove([f"{name}-{number - 1}", f"{name}-{number - 2}"])

        return work

    kept = {f"{name}-{number}" for name in "abcd" for number in range(each)}
    gone = {f"{name}-{number - i}" for name in "abcd" for number in range(2, each, 3) for i in (1, 2)}
    stores.COMPACTED = 50  # so that rows are written again now and then
    texts = {item.id for item in load(folder).store.items("text")} | (kept - gone)
    readers = [in_child(lambda ready: search_for_ever(folder, lambda: texts)) for _ in range(2)]
    writers = [in_child(write(name)) for name in "abcd"]
    codes = [end(*child) for child in writers]
    (place / "done").touch()
    codes += [end(*child) for child in readers]
    count.rounds = count.struck = 4 * each
    count.check(codes == [0] * 6, f"exit codes {codes}")
    stored = [item.id for item in load(folder).store.items("text")]
    count.check(len(set(stored)) == len(stored), "an item is there twice")
    count.check(set(stored) == texts, f"lost or too many: {sorted(set(stored) ^ texts)[:9]}")


# A server that writes


def serve_in_child(folder):
    """``diptych serve --writable`` in a process; returns its id, its pipe and its address."""

    def work(ready):
        sys.stdout = sys.stderr = open(folder.parent / "log", "a")  # noqa: SIM115
        Images.start = lambda self: None  # nothing is uploaded here

        def say(line):
            if found := re.search(r"http://\S+", line):
                (folder.parent / "address").write_text(found[0])
                ready()

        serving.serve(folder, port=0, writable=True, quiet=True, image_encoder=Thumbnails(), say=say)

    (folder.parent / "address").unlink(missing_ok=True)
    child, reader = in_child(work)
    if not os.read(reader, 1):
        raise RuntimeError((folder.parent / "log").read_text())
    url = (folder.parent / "address").read_text().rstrip("/")
    while True:  # the address is known before the first request can be answered
        try:
            httpx.get(f"{url}/healthz", timeout=60)
            return child, reader, url
        except httpx.TransportError:
            time.sleep(0.01)


def post(url, name):
    """Add a caption; returns whether that was acknowledged."""
    said = {"captions": ["a red dog runs"], "id": name}
    try:
        return httpx.post(f"{url}/v1/items", json=said, timeout=60).status_code == 201
    except httpx.TransportError:
        return False


@trial
def servers_killed(place, rounds, rng, count):
    """SIGKILL while items are added: what was acknowledged is there after a restart."""
    folder, acknowledged = place / "model", []
    fresh(place, folder)
    while count.rounds < rounds:
        child, reader, url = serve_in_child(folder)
        stop = threading.Event()

        def write(url=url, stop=stop, number=count.rounds):
            for at in range(1000):
                name = f"item-{number}-{at}"
                if stop.is_set() or not post(url, name):
                    return
                acknowledged.append(f"{name}#0")

        thread = threading.Thread(target=write)
        before = len(acknowledged)
        thread.start()
        while len(acknowledged) < before + 2:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.05))
        end(child, reader, signal.SIGKILL if rng.random() < 0.7 else signal.SIGTERM)
        stop.set()
        thread.join()
        count.struck += 1
        count.rounds += 1
    lost = set(acknowledged) - ids(load(folder))
    for name in sorted(lost):
        count.check(False, f"{name} is lost")


def fresh(place, folder):
    """A new copy of the model."""
    shutil.rmtree(folder, ignore_errors=True)
    if not (place / "original").exists():
        make_model().save(place / "original")
    shutil.copytree(place / "original", folder)


def opened(folder):
    return ModelHolder.open(folder, writable=True, image_encoder=Thumbnails())


def write(shelf, name, colour=None):
    """Add to what is served: a caption, or a picture."""
    retriever = shelf.current.retriever
    if colour is None:
        captions = ["a red dog runs"]
        new = Addition(None, None, captions, retriever.encoders.encode_texts(captions), {}, name)
    else:
        content = picture(colour)
        new = Addition(Upload(content), retriever.encoders.encode_images([content]), [], None, {}, name)
    shelf.writer.add(retriever, [new])


# What clients and files can make a server do


@trial
def unknown_filter_keys(place, rounds, rng, count):
    """40 filters of 16 kB in a round, with keys that no item has: they cost no memory, and no time later."""
    rows = np.random.default_rng(0).normal(size=(2000, 4)).astype(np.float32)
    about = {str(i): {"year": 1950 + i % 70} for i in range(len(rows))}
    model = Retriever.from_features(rows, rows, metadata=about, model=AWCCA(params=(1.0, 1.0)))

    def seconds():
        start = time.perf_counter()
        model.search(rows[0], where="year >= 2000")
        return time.perf_counter() - start

    before, memory = min(seconds() for _ in range(20)), None
    while count.rounds < rounds:
        for at in range(40):
            where = {f"{count.rounds} {at} {key} {'x' * 40}": {"$ne": rng.random()} for key in range(250)}
            count.struck += len(model.search(rows[0], where=where)) == 10
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        memory = memory or used
        count.rounds += 1
    count.check(used - memory < 20 * 1024, f"{(used - memory) / 1024:.0f} MiB more after the first round")
    after = min(seconds() for _ in range(20))
    count.check(
        after < 5 * before + 0.001, f"a filter took {1000 * before:.2f} ms, now {1000 * after:.2f} ms"
    )


# Files of others, links and pipes in a model folder


def snapshot(*places):
    """What is in some folders or files: their names, links and contents."""
    found = {}
    for path in (path for place in places for path in (place, *sorted(place.rglob("*")))):
        if path.is_symlink():
            found[path] = os.readlink(path)
        elif path.is_file():
            found[path] = path.read_bytes()
        else:
            found[path] = "folder" if path.is_dir() else "other"
    return found


def random_name(rng):
    """A name that a user might give, or that looks like one of ours."""
    numbered = f"{rng.randrange(10**6):06d}-{rng.randrange(16**8):08x}"
    hashed = f"{rng.randrange(16**64):064x}"
    plain = ["notes.txt", "thesis.tex", "Über uns.md", "a b.csv", ".hidden", "config.json", "x.search"]
    return rng.choice([*plain, numbered, hashed, f".README.md.{hashed[:12]}", f"{hashed}.wav"])


def user_files(rng, folder):
    """Write some files of a user into a folder, at places that we use too; return them."""
    version = find_version(folder)
    places = ["", "", "versions", "versions/2023", "rows", "rows/2023", "uploads", "uploads/album", "src"]
    if version is not None:
        places += [
            f"versions/{version.id}",
            f"versions/{version.id}/text-encoder",
            f"versions/{version.id}/new",
        ]
    written = set()
    for _ in range(rng.randint(1, 6)):
        path = folder / rng.choice(places) / random_name(rng)
        if not os.path.lexists(path):  # else it is one of ours
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.randbytes(rng.randrange(40)))
            written.add(path)
    for name in rng.sample(["README.md", "regularization.png", "reliability.png"], rng.randint(0, 2)):
        with open(folder / name, rng.choice(["ab", "wb"])) as file:
            file.write(b"mine " + rng.randbytes(9))
        written.add(folder / name)
    return written


def find_version(folder):
    try:
        return current_version(folder)
    except InputError:
        return None


def serve_and_stop(rng, folder):
    """Serve a folder with changes: an image that stays, one that is removed again, and a caption."""
    shelf, number = opened(folder), rng.randrange(10**9)
    write(shelf, f"kept-{number}", tuple(rng.randbytes(3)))
    write(shelf, f"removed-{number}", tuple(rng.randbytes(3)))
    write(shelf, f"caption-{number}")
    shelf.writer.remove(shelf.current.retriever, f"removed-{number}")


def run_command(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exit_code == 2 and result.stderr.splitlines()[-1].startswith("error: "):
        raise InputError(result.stderr)
    assert result.exit_code == 0, result.output


def refit(folder, rng):
    """Refit a saved model with two pairs more."""
    retriever = load(folder)
    number = rng.randrange(10**9)
    rows = np.random.default_rng(number).normal(size=(2, 48)).astype(np.float32)
    texts = retriever.encoders.encode_texts(SENTENCES[:2])
    retriever.add(rows, texts, ids=[f"pair-{number}-{i}" for i in range(2)])
    retriever.refit()


def commands(place, folder, rng):
    """Everything that writes to a model folder, by name."""
    data = place / "data"
    if not data.is_dir():
        data.mkdir()
        for name, width in (("x", 7), ("y", 5)):
            np.save(data / f"{name}.npy", np.random.default_rng(width).normal(size=(60, width)))
        (data / "settings.toml").write_text("[model]\nparams = [1, 1]\n")
    fit = ["fit", data / "x.npy", data / "y.npy", "-o", folder, "-q", "--config", data / "settings.toml"]
    return {
        "fit": partial(run_command, *fit),
        "fit in Python": lambda: make_model(rng.randrange(3)).save(folder),
        "add": lambda: add(folder, f"new-{rng.randrange(10**9)}"),
        "remove": lambda: run_command("remove", folder, next(iter(ids(load(folder))))),
        "refit": lambda: refit(folder, rng),
        "export": lambda: load(folder).export_onnx(folder / "p.onnx", view="text", task="search"),
        "compact": lambda: load(folder).store.compact(),
        "serve": partial(serve_and_stop, rng, folder),
    }


@trial
def files_of_others(place, rounds, rng, count):
    """Files of a user survive every command, in a project folder and in a model folder."""
    while count.rounds < rounds:
        folder = place / f"project-{count.rounds}"
        is_model = rng.random() < 0.7
        if is_model:
            fresh(place, folder)
        folder.mkdir(exist_ok=True)
        mine = user_files(rng, folder)
        known, done = commands(place, folder, rng), []
        for _ in range(rng.randint(2, 6)):
            before, name = snapshot(*mine), rng.choice(list(known))
            try:
                known[name]()
                done.append(name)
            except InputError:
                pass  # a model of other features cannot be added to, for instance
            except Exception as error:
                count.check(False, f"{name}: {error!r}")
            count.check(snapshot(*mine) == before, f"{name} changed a file of the user")
            if is_model:
                mine |= user_files(rng, folder)
        count.check(is_model or not done, f"{done} wrote to a folder without a record")
        count.struck += bool(done) or not is_model
        shutil.rmtree(folder)
        count.rounds += 1


@trial
def links_and_pipes(place, rounds, rng, count):
    """Where a link or a pipe takes the place of a file, nothing elsewhere changes, and nobody waits."""
    signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("it waits")))
    while count.rounds < rounds:
        root = place / f"round-{count.rounds}"
        folder, elsewhere = root / "model", root / "elsewhere"
        root.mkdir()
        fresh(place, folder)
        serve_and_stop(rng, folder)  # makes the uploads
        gc.collect()  # a database that is still open would write its log to the file, wherever that is moved
        known = commands(place, folder, rng)
        elsewhere.mkdir()
        for name in ("photos/holiday.jpg", "work/2023/thesis.tex", "file.txt", "versions/mine/a"):
            (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
            (elsewhere / name).write_text(f"mine: {name}")
        version = f"versions/{current_version(folder).id}"
        rows = [f"rows/{path.name}" for path in (folder / "rows").iterdir()]
        names = ["uploads", "versions", "rows", "items.sqlite", "items.sqlite-wal", version, *rows]
        inner = [path.relative_to(folder).as_posix() for path in (folder / version).rglob("*")]
        upload = f"uploads/{next(iter(sorted((folder / 'uploads').iterdir()))).name}"
        for name in rng.sample([*names, *names, upload, "README.md", *inner], rng.choice([1, 1, 2])):
            replace_by_link(folder / name, elsewhere, rng)
        before, done = snapshot(elsewhere), []
        for name in rng.choices(list(known), k=3):
            signal.alarm(60)
            try:
                known[name]()
                done.append(name)
            except InputError:
                count.struck += 1
            except Exception as error:
                # The system says in one sentence that something is a folder, or not allowed.
                count.check(isinstance(error, OSError) and error.filename is not None, f"{name}: {error!r}")
            finally:
                signal.alarm(0)
            count.check(snapshot(elsewhere) == before, f"{name} changed something elsewhere")
        shutil.rmtree(root)
        count.rounds += 1


def replace_by_link(path, elsewhere, rng):
    """Put a link, a pipe or a socket where something was, which may now lie elsewhere."""
    if not os.path.lexists(path) or path.is_symlink():
        return
    moved = elsewhere / f"moved-{len(list(elsewhere.iterdir()))}"
    is_folder, kind = (
        path.is_dir(),
        rng.choice(["moved", "moved", "other", "nothing", "chain", "pipe", "socket"]),
    )
    if kind in ("moved", "chain"):
        path.rename(moved)
    elif is_folder:
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
        return
    if kind == "socket":
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket may not be long
        with socket.socket(socket.AF_UNIX) as own:
            own.bind(path.name)
        os.chdir(here)
        return
    target = moved
    if kind == "other":
        target = elsewhere / rng.choice(["photos", "work", "versions"] if is_folder else ["file.txt"])
    elif kind == "nothing":
        target = elsewhere / "nothing"
    elif kind == "chain":
        target = elsewhere / f"link-{moved.name}"
        target.symlink_to(moved)
    path.symlink_to(target if rng.random() < 0.5 else os.path.relpath(target, path.parent))


@trial
def weights_elsewhere(place, rounds, rng, count):
    """A network whose weights lie in another file is known by them, and not by other files beside it."""
    while count.rounds < rounds:
        folder = Path(tempfile.mkdtemp(dir=place))
        name = rng.choice(
            ["weights.bin", "small.onnx.data", "small.onnx_data", "in/side", "größe", "a b", ".w"]
        )
        where = rng.choice(["initializer", "constant"])
        path = network_with_weights(folder / "small.onnx", name, elsewhere=where)
        record = EncoderRecord.of(image_encoder(path, {}))
        backup = rng.choice(["small.onnx.bak", "small.onnx.data", "small.onnx_data.old", "small.onnx.1", "x"])
        if backup != name:
            (folder / backup).write_bytes(rng.randbytes(99))
        try:
            record.reopen("image")
        except InputError as error:
            count.check(False, f"{backup} locks the model out: {error}")
        raw = bytearray((folder / name).read_bytes())
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
        (folder / name).write_bytes(raw)
        try:
            record.reopen("image")
            count.check(False, f"another {name} is not noticed")
        except InputError as error:
            count.check("has changed" in str(error), repr(error))
            count.struck += 1
        count.rounds += 1


@trial
def many_captions(place, rounds, rng, count):
    """With any number of captions for a held-out image there are probabilities, or a reason for none."""
    pairs = np.random.default_rng(0).normal(size=(2, 200, 5))
    projectors = Retriever.from_features(*pairs, model=AWCCA(params=(1.0, 1.0))).searcher.projectors
    while count.rounds < rounds:
        images, kind = rng.randint(100, 120), rng.choice(["many", "many", "few", "uneven"])
        captions = [rng.randint(501, 1100) if kind == "many" else rng.randint(1, 9)] * images
        if kind == "uneven":
            captions[rng.randrange(images)] = rng.randint(2000, 20000)
        pairing = np.repeat(np.arange(images), captions)
        generator = np.random.default_rng(rng.randrange(10**6))
        x = generator.normal(size=(images, 5))
        y = x[pairing] + generator.normal(size=(len(pairing), 5))
        try:
            found = measure_held_out(projectors, x, y, pairing, "drawn")[1]
        except Exception as error:
            count.check(False, f"{kind}, {max(captions)}: {error!r}")
            continue
        count.check(isinstance(found, str) or set(found) == {"search", "annotate", "pairs"}, found)
        count.struck += isinstance(found, dict)
        count.rounds += 1


# Processes that are killed, disks that are full


def list_changes(folder, change, rng):
    """Change a folder again and again; yield what is there, is not, or has another text (``=``).

    Each is yielded once the call has returned.
    """
    retriever = load(folder)
    for number in range(10**9):
        name = f"{change}-{rng.randrange(10**9)}"
        if change == "fit":
            make_model(1, name).save(folder)
            yield "+", f"{name}-0"
            continue
        retriever.add(captions=["a red dog runs"] * 3, caption_ids=[name, f"{name}b", f"{name}c"])
        yield "+", f"{name}b"
        if change == "update":
            retriever.update(f"{name}b", text=SENTENCES[1], metadata={"number": number})
            yield "=", f"{name}b"
        if change in ("remove", "compact"):
            retriever.remove([name, f"{name}c"])
            yield "-", name
        if change == "compact":
            retriever.store.compact()
        if change == "refit" and number % 2:
            rows = np.random.default_rng(number).normal(size=(2, 48)).astype(np.float32)
            texts = retriever.encoders.encode_texts(SENTENCES[:2])
            retriever.add(rows, texts, ids=[f"{name} x", f"{name} y"])
            retriever.refit()
            yield "+", f"{name} x"


def killed_while(change):
    """Make a trial: a process changes a folder until it is killed; what was acknowledged is as it was said.

    In every other round the kill comes at any time, in the others when something is half written.
    """

    def killed(place, rounds, rng, count):
        folder = place / "model"
        fresh(place, folder)
        there, gone, updated = set(), set(), set()

        def is_half_written():
            names = [path.name for path in (folder / "versions").iterdir()]
            return len(names) > 1 or len(list((folder / "rows").iterdir())) > 4

        while count.rounds < rounds:
            log = place / f"acknowledged-{count.rounds}"

            def work(ready, log=log, seed=count.rounds):
                with open(log, "a", buffering=1) as file:
                    for sign, name in list_changes(folder, change, random.Random(f"{change} {seed}")):
                        file.write(f"{sign}{name}\n")
                        ready()

            child, reader = in_child(work)
            os.read(reader, 1)
            latest = time.monotonic() + 5
            if count.rounds % 2 and change in ("refit", "compact", "fit"):
                while not is_half_written() and time.monotonic() < latest:
                    pass
            else:
                time.sleep(rng.uniform(0, 0.3))
            end(child, reader, signal.SIGKILL)
            lines = log.read_text().splitlines() if log.exists() else []
            added = {line[1:] for line in lines if line.startswith("+")}
            there, gone = (
                (added if change == "fit" else there | added),
                gone | {line[1:] for line in lines if line.startswith("-")},
            )
            updated |= {line[1:] for line in lines if line.startswith("=")}
            count.struck += bool(lines)
            try:
                retriever = load(folder)
                now = ids(retriever)
                kept = all(retriever.item(name).text == SENTENCES[1] for name in updated)
                count.check(kept, "an update is lost")
                if change == "fit":  # the last one, or the one that was written when the kill came
                    count.check(len(now) == 96, f"{len(now)} items")
                else:
                    count.check(there <= now, f"lost: {sorted(there - now)[:5]}")
                    count.check(not gone & now, f"there again: {sorted(gone & now)[:5]}")
                count.check(
                    len(retriever.annotate(np.linspace(-1, 1, 48), k=10**6))
                    == len(now) - 48 - sum(name.endswith((" x", " y")) for name in now),
                    "an item without a vector",
                )
            except Exception as error:
                count.check(False, repr(error))
            count.rounds += 1
        refit(folder, rng)
        count.check(not is_half_written(), "a file is left over")

    return killed


for change in ("add", "update", "remove", "refit", "compact", "fit"):
    TRIALS[f"killed_while_{change}"] = killed_while(change)


def look(folder):
    """A model that was changed is whole."""
    retriever = load(folder)
    assert len(retriever.search("a red dog runs", k=5)) == 5
    assert {"item-1", "item-47"} <= ids(retriever)


@trial
def killed_encoding(place, rounds, rng, count):
    """Encoding is killed; it goes on where it was, and ends with the features of one that was not."""
    make_scenes(24, size=32).write(place / "scenes")
    pairs = read_pairs(place / "scenes")
    encoder = HKSE(word="lin", sentence="lin")
    expected = Retriever("pyramid", encoder).encode(pairs).x
    store, number = place / "features-0", 0
    while count.rounds < rounds:

        def encode(ready, store=store):
            ready()
            Retriever("pyramid", encoder).encode(pairs, features=store)

        child, reader = in_child(encode)
        os.read(reader, 1)
        time.sleep(rng.uniform(0, 0.2))
        code = end(child, reader, signal.SIGKILL)
        count.struck += code != 0
        found = Retriever("pyramid", encoder).encode(pairs, features=store).x
        count.check(np.allclose(found, expected, atol=1e-5), "other features")
        count.rounds += 1
        number += 1
        store = place / f"features-{number}"


@trial
def full_disk(place, rounds, rng, count):
    """No file can grow beyond some size: an addition or refit fails with one error, and nothing changes."""
    folder = place / "model"
    fresh(place, folder)
    largest = max(path.stat().st_size for path in (folder / "rows").iterdir())
    while count.rounds < rounds:
        limit, before = rng.randrange(1, int(1.5 * largest)), ids(load(folder))
        refits = rng.random() < 0.5

        def change(ready, limit=limit, refits=refits):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            retriever = load(folder)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                retriever.refit() if refits else retriever.add(captions=["a red dog runs"] * 20)
            except OSError as error:
                os._exit(3 if str(folder) in str(error) else 4)

        code = end(*in_child(change))
        count.check(code in (0, 3), "an error that names no file" if code == 4 else f"exit code {code}")
        count.struck += code == 3
        count.check(code == 0 or ids(load(folder)) == before, "other items")
        look(folder)
        if code == 0:
            fresh(place, folder)
        count.rounds += 1
    add(folder, "after")
    refit(folder, rng)
    count.check(len(list((folder / "versions").iterdir())) == 1, "a version is left over")


@trial
def read_only_disk(place, rounds, rng, count):
    """A folder that may only be read is loaded; saving is one error."""
    with tempfile.TemporaryDirectory() as outside:
        os.chmod(outside, 0o755)
        folder = Path(outside) / "model"
        fresh(place, folder)
        paths = [folder, *folder.rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)

        def work(ready):
            if os.getuid() == 0:  # whom nothing is forbidden
                os.setuid(65534)
            look(folder)
            try:
                add(folder, "new")
            except OSError:
                os._exit(3)

        while count.rounds < rounds:
            code = end(*in_child(work))
            count.check(code == 3, f"exit code {code}")
            count.struck += code == 3
            count.rounds += 1
        for path in paths:
            path.chmod(0o755)


LEAST = {"loads_beside_saves": 100, "awcca_loads_beside_saves": 200, "writers_and_readers": 400}
"""Rounds of what is quick."""
MANY = {"loads_beside_saves": 1000, "writers_and_readers": 8000}
"""Rounds in a long run, where the number matters."""


def run(name, rounds, seed):
    count, start = Count(), time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        try:
            TRIALS[name](Path(place), rounds, random.Random(f"{name} {seed}"), count)
        except Exception:
            count.check(False, traceback.format_exc()[-1500:])
    return {
        "trial": name,
        "rounds": count.rounds,
        "struck": count.struck,
        "wrong": len(count.wrong),
        "seconds": round(time.perf_counter() - start, 1),
        "examples": count.wrong[:3],
    }


def main():
    warnings.simplefilter("ignore", DataWarning)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("trials", nargs="*", choices=[*TRIALS, []], help="all of them if none is named")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--minutes", type=float, help="go on for so long, each time with another seed")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    until = time.monotonic() + 60 * (asked.minutes or 0)
    seed, wrong = asked.seed, 0
    while True:
        for name in asked.trials or TRIALS:
            rounds = max(asked.rounds, (MANY if asked.minutes else LEAST).get(name, 0))
            found = run(name, rounds, seed)
            wrong += found["wrong"]
            print(json.dumps({**found, "seed": seed}), flush=True)
        seed += 1
        if time.monotonic() >= until:
            break
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
