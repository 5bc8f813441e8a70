"""Whatever is killed, and whenever: the old state or the new one, and nothing acknowledged is lost."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from diptych import AWCCA, InputError, Retriever

pytestmark = pytest.mark.filterwarnings("ignore:.*lie far")
MODEL = {"params": (2.0, 3.0)}


def trial(*arguments):
    """Run ``postgres_trials.py`` as a program."""
    here = Path(__file__).parent
    found = subprocess.run(
        [sys.executable, str(here / "postgres_trials.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONPATH": str(here.parent),
        },
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.mark.slow
@forks
def test_killed_while_loading_one_whole_load_remains(tmp_path):
    result = trial("loads", tmp_path / "server", 5, 0)
    assert result["seen"]["one"] + result["seen"]["two"] == 5
    # It was killed at work, and the loads after it cleaned up.
    assert result["staged"] > 0
    assert result["after"] == 2 + 2


@pytest.mark.slow
@forks
def test_killed_while_adding_and_refitting_what_was_acknowledged_remains(tmp_path):
    result = trial("refits", tmp_path / "server", 4, 0)
    assert result["acknowledged"] >= 4


@pytest.mark.slow
@forks
def test_processes_share_a_database_while_one_of_them_refits(tmp_path):
    result = trial("shares", tmp_path, 3, 0)
    assert min(result["models"]) > 1
    assert min(result["searches"]) > 3
    assert result["items"] > 60


@pytest.fixture
def filled(views, fresh):
    x, y, pairing = views()
    address = fresh()
    return Retriever.from_features(x, y, pairing, model=AWCCA(**MODEL), index=address), address, x, y


@pytest.mark.slow
def test_threads_at_work_go_on_by_themselves_when_the_server_comes_back(database, filled):
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
        # Were it done twice, the second time would be refused.
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
    found = [item.id for item in retriever.store.items() if item.id.startswith("new")]
    assert sorted(found) == sorted([*added, *(f"{name}#0" for name in added)])


class TestInDoubt:
    """The connection breaks at a COMMIT, before the server hears of it or before the client does."""

    @pytest.fixture
    def proxy(self, database):
        from database import Proxy

        proxy = Proxy(database)
        yield proxy
        proxy.close()

    @pytest.fixture(params=["before", "after"])
    def broken(self, request, proxy, filled):
        retriever, address, x, y = filled
        schema = address.rpartition("=")[2]
        through = Retriever.connect(proxy.address(schema))
        through.search(y[0])
        proxy.cut = request.param
        yield through, retriever, x, y
        assert proxy.cuts == 1
        assert proxy.cut is None

    def test_items_are_added_once(self, broken):
        through, retriever, x, y = broken
        assert through.add(x[:2]) == ["item-180", "item-181"]
        assert retriever.store.count() == 182
        assert len(retriever.search(y[0], k=100)) == 62
        assert through.add(x[:1], ids=["next"]) == ["next"]

    def test_items_are_removed_once(self, broken):
        through, retriever, _, _ = broken
        assert through.remove(["7", "8"]) == 6
        assert retriever.store.count() == 174

    def test_a_search_is_asked_again(self, broken):
        through, retriever, _, y = broken
        assert through.search(y[0]) == retriever.search(y[0])

    def test_a_refit_is_done_as_a_whole(self, broken, database):
        through, retriever, x, y = broken
        through.refit()
        assert retriever.info()["facts"]["refitted"]["pairs"] == 120
        assert through.search(y[0]) == retriever.search(y[0])


def test_a_swap_whose_answer_is_lost_is_not_done_again(database, filled, monkeypatch):
    from database import Proxy
    from diptych.retrieval.stores.postgres import _versions as versions

    retriever, address, _, y = filled
    proxy = Proxy(database)
    through = Retriever.connect(proxy.address(address.rpartition("=")[2]))
    through.search(y[0])
    swap = versions.swap

    def cutting(*args):
        proxy.cut = "after"
        swap(*args)

    monkeypatch.setattr(versions, "swap", cutting)
    through.refit()
    assert proxy.cuts == 1
    assert through.version == "2"
    assert retriever.search(y[0]) == through.search(y[0])
    proxy.close()


def test_a_server_that_stays_away_is_one_sentence(database, filled):
    _, address, _, y = filled
    retriever = Retriever.connect(f"{address}&retry_seconds=1")
    database.kill()
    try:
        with pytest.raises(InputError, match="was lost and not found again within 1 s") as caught:
            retriever.search(y[0])
        assert "\n" not in str(caught.value)
    finally:
        database.start()
    assert len(retriever.search(y[0])) == 10


def test_a_refit_that_fails_leaves_what_was_there(database, views, fresh):
    (x, y, pairing), address = views(), fresh()
    options = {"model": AWCCA(**MODEL), "keep_features": False, "index": address}
    retriever = Retriever.from_features(x, y, pairing, **options)
    expected = retriever.search(y[:5])
    with pytest.raises(InputError, match="features of the items were not kept, and '0' has nothing"):
        retriever.refit()
    assert retriever.search(y[:5]) == expected
    tables = database.tables(address.rpartition("=")[2])
    assert [name for name in tables if name.startswith("search_")] == ["search_1"]
