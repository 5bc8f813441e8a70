"""Fault trials: processes are killed and folders change while models are saved, loaded and served.

Run as a program::

    python tests/faults/trials.py                   # every trial, 20 rounds each, as the tests do
    python tests/faults/trials.py --minutes 60      # again and again for an hour, at other moments
    python tests/faults/trials.py loads_beside_saves --rounds 1000

Prints one line of JSON for each trial: its name, the rounds, what was lost or wrong, and how often the fault
really struck (a trial that never struck has shown nothing). The exit code is 1 if anything was lost or wrong.
"""

import argparse
import asyncio
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
from diptych._model_folder import current_version, lock_for_serving
from diptych.cli import app
from diptych.data import read_pairs
from diptych.encoders import image_encoder
from diptych.retrieval._calibration import fit_calibration
from diptych.retrieval._encoders import EncoderRecord
from diptych.scenes import make_scenes
from diptych.service import _serve as serving
from diptych.service._files import Images
from diptych.service._limits import MovedError
from diptych.service._model import LoadedModel, ModelHolder
from diptych.service._writes import Upload, read_entries
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
    retriever.save(folder)


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


def together(rng, *works):
    """Run functions in threads at about the same moment; returns what they raised."""
    raised, gate = [], threading.Barrier(len(works))

    def run(work, wait):
        gate.wait()
        time.sleep(wait)
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work, rng.uniform(0, 0.06))) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


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
    query = np.linspace(-1, 1, models[0].fitted.width("text"))

    def save(model):
        model.base = None  # as one that was fitted, which replaces what is there
        model.save(place / "model")

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


@trial
def two_writers(place, rounds, rng, count):
    """Two processes add to one model at once, each item in a save of its own; none is lost, no save fails."""
    folder = place / "model"
    make_model().save(folder)
    each = max(1, rounds // 2)

    def write(name):
        def work(ready):
            ready()
            for number in range(each):
                add(folder, f"{name}-{number}")

        return work

    before = int(current_version(folder).id.partition("-")[0])
    children = [in_child(write(name)) for name in ("a", "b")]
    codes = [end(*child) for child in children]
    count.rounds, count.struck = 2 * each, int(current_version(folder).id.partition("-")[0]) - before
    count.check(codes == [0, 0], f"exit codes {codes}")
    lost = {f"{name}-{number}" for name in "ab" for number in range(each)} - ids(load(folder))
    for name in sorted(lost):
        count.check(False, f"{name} is lost")


# A server that writes


def serve_in_child(folder, *, slow=False):
    """``diptych serve --writable`` in a process; returns its id, its pipe and its address.

    If it is ``slow``, every version but the first takes a while to load, and it says when it begins to.
    """

    def work(ready):
        sys.stdout = sys.stderr = open(folder.parent / "log", "a")  # noqa: SIM115
        Images.start = lambda self: None  # nothing is uploaded here
        loaded, began = LoadedModel.load.__func__, []

        def load_slowly(cls, *args, **kwargs):
            if began and slow:
                ready()
                time.sleep(0.6)
            began.append(1)
            return loaded(cls, *args, **kwargs)

        LoadedModel.load = classmethod(load_slowly)

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


def served_by_a_restart(folder):
    shelf = ModelHolder.open(folder, writable=True, image_encoder=Thumbnails())
    shelf.writer.journal.close()
    return ids(shelf.current.retriever)


@trial
def stopped_while_a_version_loads(place, rounds, rng, count):
    """SIGTERM while a server loads a new version: neither that nor what was added is lost."""
    folder = place / "model"
    while count.rounds < rounds:
        fresh(place, folder)
        child, reader, url = serve_in_child(folder, slow=True)
        kept = post(url, "acknowledged")
        make_model(1, "newer").save(folder)
        newer = current_version(folder)
        os.read(reader, 1)  # it has begun to load
        time.sleep(rng.uniform(0, 0.2))
        count.struck += current_version(folder) == newer
        end(child, reader, signal.SIGTERM)
        count.check("newer-0" in ids(load(folder)), "the new version is overwritten")
        now = served_by_a_restart(folder)
        count.check(kept and "acknowledged#0" in now and "newer-0" in now, "an acknowledged item is lost")
        count.rounds += 1


@trial
def servers_killed(place, rounds, rng, count):
    """SIGKILL while items are added and folded: what was acknowledged is there after a restart."""
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
    lost = set(acknowledged) - served_by_a_restart(folder)
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
    content = None if colour is None else picture(colour)
    given = None if content is None else (Upload(content), retriever.encoders.encode_images([content]))
    shelf.writer.add(retriever, given, [] if given else ["a red dog runs"], name, {})


@trial
def unreadable_version(place, rounds, rng, count):
    """A new version cannot be read: the server keeps its hands off it, and loses nothing."""
    folder = place / "model"
    while count.rounds < rounds:
        fresh(place, folder)
        shelf = opened(folder)
        write(shelf, "acknowledged")
        make_model(1, "newer").save(folder)
        version = current_version(folder)
        config = version.path / "config.json"
        whole = config.read_bytes()
        config.write_bytes(whole[: rng.randrange(len(whole))])
        count.check(not asyncio.run(shelf.refresh()), "it is served")
        count.struck += shelf.reloads["failed"]
        write(shelf, "after")
        shelf.save()
        shelf.writer.journal.close()
        count.check(current_version(folder) == version, "the new version is overwritten")
        config.write_bytes(whole)  # it is restored
        now = served_by_a_restart(folder)
        count.check({"acknowledged#0", "after#0", "newer-0"} <= now, "something is lost")
        count.rounds += 1


@trial
def saved_while_folding(place, rounds, rng, count):
    """A new version is saved while a server folds its journal: both are kept."""
    folder = place / "model"
    newer = make_model(1, "newer")
    while count.rounds < rounds:
        fresh(place, folder)
        shelf = opened(folder)
        write(shelf, "acknowledged")
        newer.base = None
        before = current_version(folder)
        raised = together(rng, shelf.save, partial(newer.save, folder))
        shelf.writer.journal.close()
        count.check(not raised, raised)
        count.struck += current_version(folder).id[:6] > before.id[:6]
        count.check("newer-0" in ids(load(folder)), "the new version is overwritten")
        count.check({"acknowledged#0", "newer-0"} <= served_by_a_restart(folder), "something is lost")
        count.rounds += 1


def _open_into(found, folder):
    found.append(opened(folder))


@trial
def replaced_while_starting(place, rounds, rng, count):
    """A version is replaced while a server starts: it serves one of the two under its own name."""
    folder = place / "model"
    newer = make_model(1, "newer")
    while count.rounds < rounds:
        fresh(place, folder)
        old, found, newer.base = current_version(folder), [], None
        raised = together(rng, partial(_open_into, found, folder), partial(newer.save, folder))
        count.check(not raised, raised)
        shelf = found[0]
        served = ids(shelf.current.retriever)
        is_old = shelf.current.folder_version == old.id
        count.struck += is_old
        count.check(("newer-0" in served) != is_old, "items under the name of another version")
        write(shelf, "acknowledged")
        shelf.save()
        shelf.writer.journal.close()
        count.check("newer-0" in ids(load(folder)), "the new version is overwritten")
        count.check({"acknowledged#0", "newer-0"} <= served_by_a_restart(folder), "something is lost")
        count.rounds += 1


@trial
def served_folder_replaced(place, rounds, rng, count):
    """A served folder is removed, moved or made anew: what is acknowledged is on disk."""
    while count.rounds < rounds:
        root = Path(tempfile.mkdtemp(dir=place))
        folder, moved = root / "model", root / "moved"
        fresh(place, folder)
        first, acknowledged, refused, wrong = opened(folder), [], [], []
        begun, replaced = threading.Event(), threading.Event()

        def add_items(
            first=first, done=acknowledged, refused=refused, late=wrong, begun=begun, over=replaced
        ):
            for number in range(1000):
                is_late, name = over.is_set(), f"item {number}"
                try:
                    write(first, name, f"rgb({number % 250},9,9)" if number % 2 else None)
                except (MovedError, OSError) as error:
                    refused.append(error)
                else:
                    (late if is_late else done).append(name if number % 2 else f"{name}#0")
                if number == 3:
                    begun.set()
                if len(refused) > 3 or len(late) > 3:
                    return

        thread = threading.Thread(target=add_items)
        thread.start()
        begun.wait()
        time.sleep(rng.uniform(0, 0.02))
        is_moved, is_made_anew = rng.random() < 0.5, rng.random() < 0.7
        while folder.exists():  # files are added while it is removed
            folder.rename(moved) if is_moved else shutil.rmtree(folder, ignore_errors=True)
        if is_made_anew:
            fresh(place, folder)
        replaced.set()
        thread.join()
        count.struck += bool(refused)
        count.check(not wrong, f"{wrong} were acknowledged, and are nowhere")
        if is_made_anew:
            with lock_for_serving(folder):  # a second server
                second = opened(folder)
                write(second, "second")
                version = current_version(folder)
                first.save()
                count.check(not asyncio.run(first.refresh()), "the first server loads what it does not lock")
                count.check(current_version(folder) == version, "the first server saved to the new folder")
                second.save()
                second.writer.journal.close()
            count.check("second#0" in served_by_a_restart(folder), "a change of the second server is lost")
        else:
            first.save()
            count.check(not folder.exists(), f"the folder is there again: {[*folder.rglob('*')]}")
        first.writer.journal.close()
        if is_moved:
            lost = set(acknowledged) - served_by_a_restart(moved)
            count.check(not lost, f"{sorted(lost)} are lost")
        count.rounds += 1


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


@trial
def replayed_uploads(place, rounds, rng, count):
    """Uploads are replayed after a crash, one of them replaced by an image that is too large to decode."""
    decode = Image.open
    while count.rounds < rounds:
        folder = Path(tempfile.mkdtemp(dir=place)) / "model"
        fresh(place, folder)
        shelf = opened(folder)
        names = ["first", "second", "third"]
        for name, colour in zip(names, ("red", "green", "blue"), strict=True):
            write(shelf, name, colour)
        shelf.writer.journal.close()  # and a power cut
        bad = rng.choice(names)
        entry = next(entry for entry in shelf.writer.journal.entries if entry.id == bad)
        Image.new("1", (7000, 7000)).save(folder / "uploads" / entry.file, "PNG")  # 49 megapixels, a few kB
        here = []
        Image.open = lambda *args, here=here, **options: here.append(args) or decode(*args, **options)
        try:
            now = served_by_a_restart(folder)
        finally:
            Image.open = decode
        count.check(not here, "an upload was decoded by the server itself")
        count.check(now >= {*names} - {bad}, "an upload is lost")
        count.struck += bad not in now
        kept = [entry.id for entry in read_entries(folder / "journal.jsonl")[0]]
        count.check(kept == names, f"the journal has {kept}")
        count.rounds += 1


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
    plain = ["notes.txt", "thesis.tex", "Über uns.md", "a b.csv", ".hidden", "config.json", "items.jsonl"]
    return rng.choice([*plain, numbered, hashed, f".README.md.{hashed[:12]}", f"{hashed}.wav"])


def user_files(rng, folder):
    """Write some files of a user into a folder, at places that we use too; return them."""
    version = find_version(folder)
    places = ["", "", "versions", "versions/2023", "uploads", "uploads/album", "src"]
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
    with lock_for_serving(folder):
        shelf = opened(folder)
        try:
            number = rng.randrange(10**9)
            write(shelf, f"kept-{number}", tuple(rng.randbytes(3)))
            write(shelf, f"removed-{number}", tuple(rng.randbytes(3)))
            write(shelf, f"caption-{number}")
            shelf.writer.remove(shelf.current.retriever, f"removed-{number}")
            shelf.save()
        finally:
            shelf.writer.journal.close()


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
    retriever.save(folder)


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
        "save": lambda: load(folder).save(folder),
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
        serve_and_stop(rng, folder)  # makes the journal and the uploads
        known = commands(place, folder, rng)
        elsewhere.mkdir()
        for name in ("photos/holiday.jpg", "work/2023/thesis.tex", "file.txt", "versions/mine/a"):
            (elsewhere / name).parent.mkdir(parents=True, exist_ok=True)
            (elsewhere / name).write_text(f"mine: {name}")
        version = f"versions/{current_version(folder).id}"
        names = ["uploads", "versions", "journal.jsonl", "current.json", ".lock", ".server.lock", version]
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
            found = fit_calibration(projectors, x, y, pairing, "drawn")
        except Exception as error:
            count.check(False, f"{kind}, {max(captions)}: {error!r}")
            continue
        count.check(isinstance(found, str) or set(found) == {"search", "annotate"}, found)
        count.struck += isinstance(found, dict)
        count.rounds += 1


# Processes that are killed, disks that are full


def killed_at(name, look):
    """Make a trial: a command goes on until its process is killed; ``look(folder)`` must hold afterwards.

    In every other round the kill comes at any time, in the others when something is half written.
    """

    def list_written(folder):
        versions = folder / "versions"
        return [*folder.glob(".*.diptych-*"), *(versions.iterdir() if versions.is_dir() else ())]

    def killed(place, rounds, rng, count):
        folder = place / "model"
        fresh(place, folder)
        seconds = 0.05
        while count.rounds < rounds:

            def forever(ready):
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115
                ready()
                while True:
                    commands(place, folder, rng)[name]()
                    ready()

            child, reader = in_child(forever)
            os.read(reader, 1)
            start = time.monotonic()
            if count.rounds % 4 == 0:  # how long one takes here, now
                os.read(reader, 1)
                seconds = time.monotonic() - start
            if count.rounds % 2:
                latest = start + 10 * seconds + 1
                while len(list_written(folder)) < 2 and time.monotonic() < latest:
                    pass
            else:
                time.sleep(rng.uniform(0, 1.5 * seconds))
            end(child, reader, signal.SIGKILL)
            count.struck += len(list_written(folder)) > 1
            try:
                look(folder)
            except Exception as error:
                count.check(False, repr(error))
            count.rounds += 1
        commands(place, folder, rng)[name]()
        count.check(not list(folder.glob(".*.diptych-*")), "a temporary file is left over")
        count.check(len(list((folder / "versions").iterdir())) == 1, "a version is left over")

    return killed


def look(folder):
    """A model that was changed is whole."""
    retriever = load(folder)
    assert len(retriever.search("a red dog runs", k=5)) == 5
    assert {"item-1", "item-47"} <= ids(retriever)


def look_at_fitted(folder):
    """A folder has one of the models that were fitted, whole."""
    query = np.linspace(-1, 1, 48)
    assert load(folder).annotate(query, k=48) in [make_model(seed).annotate(query, k=48) for seed in range(3)]


TRIALS["killed_saving"] = killed_at("save", look)
TRIALS["killed_adding"] = killed_at("add", look)
TRIALS["killed_refitting"] = killed_at("refit", look)
TRIALS["killed_exporting"] = killed_at("export", look)
TRIALS["killed_fitting"] = killed_at("fit in Python", look_at_fitted)


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
    """No file can grow beyond some size: a save fails with one error, and the model is as it was."""
    import resource

    folder = place / "model"
    fresh(place, folder)
    largest = (current_version(folder).path / "features.safetensors").stat().st_size
    while count.rounds < rounds:
        limit, before = rng.randrange(1, int(1.5 * largest)), current_version(folder)

        def save(ready, limit=limit):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            retriever = load(folder)
            retriever.add(captions=["a red dog runs"] * 20)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            try:
                retriever.save(folder)
            except OSError as error:
                os._exit(3 if str(folder) in str(error) else 4)

        code = end(*in_child(save))
        count.check(code in (0, 3), "an error that names no file" if code == 4 else f"exit code {code}")
        count.struck += code == 3
        count.check(code == 0 or current_version(folder) == before, "the pointer moved")
        count.check(len(list((folder / "versions").iterdir())) == 1, "a version is left over")
        look(folder)
        if code == 0:
            fresh(place, folder)
        count.rounds += 1


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


LEAST = {"loads_beside_saves": 200, "awcca_loads_beside_saves": 200}
"""Rounds of what is quick."""
MANY = {"loads_beside_saves": 1000, "two_writers": 200, "stopped_while_a_version_loads": 50}
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
