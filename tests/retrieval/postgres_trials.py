"""Trials with processes that share a database and a server that is killed; run as a program.

Arguments: ``loads``, ``refits`` or ``shares``; a folder; how often, or for how many seconds; a seed. Prints
counts as JSON.
"""

import functools
import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import numpy as np

from database import Database
from diptych import AWCCA, Retriever
from placing import place_by_hand

WIDTHS = {"image": 12, "text": 9}
MODEL = {"params": (1.0, 1.0)}
UNFINISHED = """SELECT FROM trial.versions
WHERE first_new_key IS NULL AND to_regclass('trial.search_' || id) IS NOT NULL"""
SIZES = {"two": 4000, "one": 60}
"""Numbers of images of the two data sets that replace each other."""


@functools.cache
def features(name, view):
    """Return the features of an item, which follow from its name."""
    seed = [*name.partition("#")[0].encode()]
    cause = np.random.default_rng(seed).normal(size=WIDTHS["image"])
    noise = np.random.default_rng([*seed, ord(view[0])]).normal(size=WIDTHS[view])
    return cause[: WIDTHS[view]] + 0.5 * noise


def rows(names, view):
    return np.stack([features(name, view) for name in names])


def fit(name, n, address):
    names = [f"{name} {i}" for i in range(n)]
    options = {"ids": names, "model": AWCCA(**MODEL), "index": address}
    return Retriever.from_features(rows(names, "image"), rows(names, "text"), **options)


def check(retriever, query):
    """Check that all hits have vectors of one model; return the ids of the images."""
    hits = retriever.search(query, k=10**6)
    projector = retriever._current.get().projectors["search"]  # of the model that this search used
    names = [hit.id for hit in hits]
    images, texts = projector.items(rows(names, "image")), projector.queries(rows(names, "text"))
    expected = place_by_hand(images, texts, range(len(names))) @ projector.queries(query[None])[0]
    np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-5)
    return names


def check_whole(retriever, query):
    """Check, while nobody writes, that every item has a vector, features and its caption."""
    names = check(retriever, query)
    texts = [hit.id for hit in retriever.annotate(np.ones(WIDTHS["image"]), k=10**6)]
    assert {text.rpartition("#")[0] for text in texts} == set(names)
    for view, own in (("image", names), ("text", texts)):
        assert sorted(own) == sorted(item.id for item in retriever.store.items(view))
        np.testing.assert_allclose(retriever.store.features(view, own), rows(own, view), rtol=1e-5)
    return names


def fork(action, *args):
    """Start a process that calls ``action``; its exit code is 0 if that succeeds."""
    child = os.fork()
    if child:
        return child
    try:
        warnings.simplefilter("ignore")
        action(*args)
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def load_forever(address, pipe):
    while True:
        for name, n in SIZES.items():
            fit(name, n, address)
            os.write(pipe, f"{name}\n".encode())


def refit_forever(address, pipe, number):
    retriever = Retriever.connect(address)
    for i in range(10**6):
        name = f"new {number} {i}"
        retriever.add(rows([name], "image"), rows([name], "text"), ids=[name])
        os.write(pipe, f"{name}\n".encode())
        retriever.refit()


def kill_while_writing(times, seed, loads):
    """Kill the server while a process loads or refits, and check the items afterwards."""
    database, rng = Database(), random.Random(seed)
    address, query = database.address(schema="trial"), np.ones(WIDTHS["text"])
    reader = fit("one", 60, address)
    for view in WIDTHS:  # cached, so that most of the time is spent loading
        rows([f"two {i}" for i in range(SIZES["two"])], view)
    seen, acknowledged, staged = {"one": 0, "two": 0, "more": 0}, set(), 0
    for number in range(times):
        out, pipe = os.pipe()
        child = fork(load_forever, address, pipe) if loads else fork(refit_forever, address, pipe, number)
        os.close(pipe)
        output = os.read(out, 2**16)  # the child has finished one round
        if loads and number % 2 == 0:  # kill it in the middle of a load
            while not database.ask(UNFINISHED):
                time.sleep(0.005)
        else:
            time.sleep(rng.uniform(0, 1.0 if loads else 0.3))
        database.kill()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while more := os.read(out, 2**16):
            output += more
        os.close(out)
        database.start()
        names = set(check_whole(reader, query))  # a client that was connected before reconnects by itself
        if loads:
            own, *others = {name.split()[0] for name in names}
            assert not others, "a mixture of two loads"
            assert len(names) == SIZES[own]
            seen[own] += 1
        else:
            acknowledged |= set(output.decode().splitlines())
            assert acknowledged <= names, "an acknowledged item is gone"
            extra = names - acknowledged - {f"one {i}" for i in range(60)}
            assert len(extra) <= number + 1, "more than one item for each kill that nobody acknowledged"
            seen["more"] += 1
        tables = database.tables("trial")
        staged += len([name for name in tables if name.startswith("search_")]) > 1
    fit("one", 60, address)
    after = [name for name in database.tables("trial") if name.startswith(("search_", "items_"))]
    return {"seen": seen, "staged": staged, "acknowledged": len(acknowledged), "after": len(after)}


def change(address, number, until):
    """Add pairs, and remove some of them again."""
    retriever, rng = Retriever.connect(address), random.Random(number)
    own = []
    for i in range(10**6):
        if time.monotonic() > until:
            break
        names = [f"{number} {i} {j}" for j in range(3)]
        retriever.add(rows(names, "image"), rows(names, "text"), ids=names)
        assert set(names) <= set(check(retriever, np.ones(WIDTHS["text"])))
        own += names
        if i % 2:
            removed = own.pop(rng.randrange(len(own)))
            assert retriever.remove(removed) == 2
            assert not list(retriever.store.items(ids=[removed]))
    Path(os.environ["TRIAL"], f"left {number}").write_text("\n".join(own))


def look(address, number, until):
    """Search, and check that every result comes from a single model."""
    retriever, rng = Retriever.connect(address), np.random.default_rng(number)
    models, searches = set(), 0
    while time.monotonic() < until:
        check(retriever, rng.normal(size=WIDTHS["text"]))
        retriever.annotate(rng.normal(size=WIDTHS["image"]), k=5)
        models.add(retriever.version)
        searches += 1
    Path(os.environ["TRIAL"], f"seen {number}").write_text(f"{len(models)} {searches}")


def learn(address, until):
    """Refit again and again."""
    retriever = Retriever.connect(address)
    while time.monotonic() < until:
        retriever.refit()


def share(place, seconds):
    """Let processes add, remove, search and refit at the same time, then count the items."""
    database = Database()
    os.environ["TRIAL"] = str(place)
    address = database.address(schema="trial")
    first = fit("one", 60, address)
    until = time.monotonic() + seconds
    jobs = [(change, address, n, until) for n in range(2)] + [(look, address, n, until) for n in (7, 8)]
    children = [fork(*job) for job in (*jobs, (learn, address, until))]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * len(children), codes
    left = [name for n in range(2) for name in (place / f"left {n}").read_text().splitlines()]
    names = check_whole(first, np.ones(WIDTHS["text"]))
    assert sorted(names) == sorted([*left, *(f"one {i}" for i in range(60))])
    counts = np.array([(place / f"seen {n}").read_text().split() for n in (7, 8)], int)
    return {"items": len(names), "models": counts[:, 0].tolist(), "searches": counts[:, 1].tolist()}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    what, place, amount, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    result = share(place, amount) if what == "shares" else kill_while_writing(amount, seed, what == "loads")
    print(json.dumps(result))
