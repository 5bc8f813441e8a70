"""Whichever process is killed, and whenever: the old or the new state, and no confirmed write is lost."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from database import Proxy
from diptych import InputError, Retriever
from diptych.retrieval._items import Item
from diptych.retrieval.stores._base import Block
from diptych.retrieval.stores.postgres import PostgresStore
from diptych.retrieval.stores.postgres import _store as store_module
from filled_stores import fill, unit_rows

pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far")


def trial(*arguments):
    """Run ``postgres_trials.py`` as a program."""
    here = Path(__file__).parent
    result = subprocess.run(
        [sys.executable, str(here / "postgres_trials.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")]),
        },
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.mark.slow
@forks
def test_a_server_killed_while_loading_holds_one_complete_load(tmp_path):
    result = trial("loads", tmp_path / "server", 5, 0)
    assert result["seen"]["one"] + result["seen"]["two"] == 5
    # It was killed in the middle of loads, and later loads have dropped the unfinished ones.
    assert result["staged"] > 0
    assert result["after"] == 2


@pytest.mark.slow
@forks
def test_a_server_killed_while_adding_and_refitting_holds_all_confirmed_items(tmp_path):
    result = trial("refits", tmp_path / "server", 4, 0)
    assert result["acknowledged"] >= 4


@pytest.mark.slow
@forks
def test_processes_add_remove_and_search_while_another_refits(tmp_path):
    result = trial("shares", tmp_path, 3, 0)
    assert min(result["models"]) > 1
    assert min(result["searches"]) > 3
    assert result["items"] > 60


@pytest.fixture
def filled(make, fresh):
    address = fresh()
    made = make(index=address)
    return made.retriever, address, made.x, made.y


@pytest.mark.slow
def test_threads_continue_when_the_server_is_started_again(database, filled):
    retriever, _, x, y = filled
    stop, errors, added, rounds = threading.Event(), [], [], {"add": 0, "search": 0, "refit": 0}

    def repeat(name, action):
        try:
            while not stop.is_set():
                action()
                rounds[name] += 1
        except Exception as error:
            errors.append(f"{name}: {error!r}")

    def add():
        names = [f"new {len(added)}"]
        # A second addition of the same id would be refused.
        assert retriever.add(x[:1], y[:1], ids=names) == [*names, f"{names[0]}#0"]
        added.extend(names)

    threads = [
        threading.Thread(target=repeat, args=("add", add)),
        threading.Thread(target=repeat, args=("refit", retriever.refit)),
        threading.Thread(target=repeat, args=("search", lambda: retriever.search(y[:3], k=5))),
    ]
    for thread in threads:
        thread.start()
    for _ in range(3):
        before = dict(rounds)
        while not errors and min(rounds[name] - before[name] for name in rounds) < 1:
            stop.wait(0.05)
        database.kill()
        stop.wait(0.2)
        database.start()
    before = dict(rounds)
    while not errors and min(rounds[name] - before[name] for name in rounds) < 1:
        stop.wait(0.05)
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []
    stored = [item.id for item in retriever.store.items() if item.id.startswith("new")]
    assert sorted(stored) == sorted([*added, *(f"{name}#0" for name in added)])


@pytest.fixture
def proxy(database):
    proxy = Proxy(database)
    yield proxy
    proxy.close()


class TestLostCommits:
    """The connection breaks at a COMMIT, before the server receives it or before the client hears back."""

    @pytest.fixture(params=["before", "after"])
    def stores(self, request, proxy, fresh, rng):
        """A store, one through the proxy that loses the next commit, and the stored vectors."""
        address, rows = fresh(), unit_rows(rng, 30, 4)
        store = fill(PostgresStore(address, create=True), rows)
        through = PostgresStore(proxy.address(address.rpartition("=")[2]))
        assert through.count() == 30
        proxy.cut = request.param
        yield store, through, rows
        assert proxy.cuts == 1
        assert proxy.cut is None

    def test_items_are_added_once(self, stores):
        store, through, rows = stores
        items = [Item("a", "image"), Item("b", "image")]
        through.add([Block("image", items, rows[:2], rows[:2])], "1")
        assert store.count() == 32
        assert [item.id for item in store.items(new=True)] == ["a", "b"]
        assert len(store.search("search", rows[:1], 100, None, "1")[0]) == 32

    def test_items_are_removed_once(self, stores):
        store, through, _ = stores
        assert through.remove(["7", "8"]) == 2
        assert store.count() == 28

    def test_a_search_is_repeated(self, stores):
        store, through, rows = stores
        results = [each.search("search", rows[:3], 5, None, "1") for each in (through, store)]
        assert results[0] == results[1]

    def test_a_load_is_repeated_as_a_whole(self, stores):
        store, through, rows = stores
        fill(through, rows[:20])
        assert store.count() == through.count() == 20
        assert store.state() == through.state()


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_refit_is_repeated_as_a_whole(proxy, filled, moment):
    retriever, address, _, y = filled
    through = Retriever.connect(proxy.address(address.rpartition("=")[2]))
    through.search(y[0])
    proxy.cut = moment
    through.refit()
    assert proxy.cuts == 1
    assert retriever.info()["facts"]["refitted"]["pairs"] == 120
    assert through.search(y[0]) == retriever.search(y[0])


def test_a_swap_whose_confirmation_is_lost_is_not_repeated(proxy, filled, monkeypatch):
    retriever, address, _, y = filled
    through = Retriever.connect(proxy.address(address.rpartition("=")[2]))
    through.search(y[0])
    put_in_use = store_module.put_in_use

    def lose_confirmation(*args):
        proxy.cut = "after"
        put_in_use(*args)

    monkeypatch.setattr(store_module, "put_in_use", lose_confirmation)
    through.refit()
    assert proxy.cuts == 1
    assert through.store.state().version == "2"
    assert retriever.search(y[0]) == through.search(y[0])


def test_a_refit_that_fails_leaves_no_tables(database, make, fresh):
    address = fresh()
    retriever = make(index=address, keep_features=False).retriever
    with pytest.raises(InputError, match="'0#0'"):
        retriever.refit()
    tables = database.tables(address.rpartition("=")[2])
    assert [name for name in tables if name.startswith("search_")] == ["search_1"]
