"""Many threads at once: what is found was there, whole, while it was looked for."""

import itertools
import os
import signal
import threading
import time
import traceback

import faiss
import numpy as np
import pytest

from diptych import Retriever
from diptych.retrieval.stores._faiss import VectorIndex


class Busy:
    """Threads that repeat what they do until each has done it a few times; the first error is kept."""

    def __init__(self):
        self.stop, self.errors, self._threads, self.left = threading.Event(), [], [], {}

    def repeat(self, name, action, rounds=20):
        self.left[name] = rounds

        def loop():
            try:
                while not self.stop.is_set():
                    action()
                    self.left[name] -= 1
                    if max(self.left.values()) <= 0:
                        self.stop.set()
            except Exception:
                self.errors.append(f"{name}: {traceback.format_exc()}")
                self.stop.set()

        self._threads.append(threading.Thread(target=loop, daemon=True))

    def run(self):
        for thread in self._threads:
            thread.start()
        assert self.stop.wait(60), self.left
        for thread in self._threads:
            thread.join(timeout=30)
        assert not any(thread.is_alive() for thread in self._threads), "a thread never ended"
        assert not self.errors, self.errors[0]


class Presence:
    """When each item may have been there: from before it was added until after it was removed."""

    def __init__(self, ids):
        self.began, self.ended = dict.fromkeys(ids, 0.0), {}

    def check(self, hits, start, end, whole=True):
        ids = [hit.id for hit in hits]
        assert len(set(ids)) == len(ids), "an item was found twice"
        # What a graph finds late stands behind, by products that round differently.
        assert np.diff([hit.score for hit in hits]).max(initial=-1.0) < 1e-6
        for name in ids:
            assert self.began[name] <= end, f"{name} was found before it was added"
            assert self.ended.get(name, np.inf) >= start, f"{name} was found after it was removed"


@pytest.fixture
def busy(make):
    """A retriever in which threads add, remove and look, for a while; ``extra`` adds more to do."""
    return lambda *args, **options: run_busy(make, *args, **options)


def run_busy(make, extra=lambda busy, retriever: None, **options):
    made = make(metadata={str(i): {"fixed": i < 20} for i in range(60)}, **options)
    retriever, rng = made.retriever, np.random.default_rng(0)
    ids = [str(i) for i in range(60)]
    presence = Presence([*ids, *(f"{i}#{j}" for i in ids for j in range(2))])
    numbers, live, lock = itertools.count(), list(ids[20:]), threading.Lock()
    work = Busy()
    fixed = ids[:20]  # never removed, so that a filter may name them

    def add():
        names = [f"new {next(numbers)}" for _ in range(3)]
        captions = [f"{name}#{j}" for j, name in enumerate(names)]
        now = time.perf_counter()
        presence.began.update(dict.fromkeys([*names, *captions], now))
        retriever.add(made.x[:3] + 0.01, made.y[:3], ids=names, caption_ids=captions)
        with lock:
            live.extend(names)

    def add_unnamed():
        now = time.perf_counter()
        for name in retriever.add(captions=made.y[:2]):
            presence.began[name] = now
            retriever.remove(name)
            presence.ended[name] = time.perf_counter()

    def remove():
        with lock:
            names = [live.pop(rng.integers(len(live))) for _ in range(2)] if len(live) > 20 else []
        captions = [item.id for name in names for item in retriever.store.items(images=[name])]
        retriever.remove(names)
        presence.ended.update(dict.fromkeys([*names, *captions], time.perf_counter()))

    def timed(ask):
        start = time.perf_counter()
        found = ask()
        return found, start, time.perf_counter()

    def search():
        for ask in (
            lambda: retriever.search(made.y[:2], k=7)[1],
            lambda: retriever.search(made.y[0], k=1000),
            lambda: retriever.search(made.y[0], k=9, where=lambda item: not item.metadata.get("fixed")),
            lambda: retriever.search(made.y[0], k=9, where=fixed),
            lambda: retriever.similar(image=made.x[0], k=30),
        ):
            presence.check(*timed(ask))
        for where in (fixed, {"fixed": True}):
            hits = retriever.search(made.y[0], k=100, where=where)
            assert sorted(hit.id for hit in hits) == sorted(fixed)

    def annotate():
        # Texts without a name are known by their name once they are there: they are left out.
        def named(item):
            return item.image is not None

        for ask in (
            lambda: retriever.annotate(made.x[0], k=7, where=named),
            lambda: retriever.annotate(made.x[0], k=1000, where=named),
        ):
            presence.check(*timed(ask))

    for number in range(2):
        work.repeat(f"add {number}", add)
        work.repeat(f"search {number}", search)
    for name, action in {"remove": remove, "unnamed": add_unnamed, "annotate": annotate}.items():
        work.repeat(name, action)
    extra(work, retriever)
    work.run()
    # What is left is whole: every item has a vector and features, and the other way round.
    store = retriever.store
    found = {
        "image": retriever.search(made.y[0], k=10**6),
        "text": retriever.annotate(made.x[0], k=10**6),
    }
    for view, hits in found.items():
        ids = [item.id for item in store.items(view)]
        assert sorted(hit.id for hit in hits) == sorted(ids)
        assert len(store.features(view, ids)) == len(ids)
    return made


pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far")


def test_searching_while_others_add_and_remove(busy):
    busy()


def test_searching_a_graph_while_others_add_and_remove(busy):
    busy(index="hnsw")


def test_searching_while_others_refit(busy):
    busy(lambda work, retriever: work.repeat("refit", retriever.refit, rounds=5))


def test_saving_while_others_add_and_remove(busy, tmp_path, same_answers):
    loaded = []

    def save(retriever):
        retriever.save(tmp_path / "model")  # where it is from the first time on
        retriever.save(tmp_path / f"copy {len(loaded)}")
        found = Retriever.load(tmp_path / f"copy {len(loaded)}")
        ids = {hit.id for hit in found.search(np.ones(7), k=10**6)}
        assert len(ids) == found.store.count("image")
        for item in found.store.items():
            assert item.image is None or found.item(item.image) is not None
        loaded.append(len(ids))

    made = busy(lambda work, retriever: work.repeat("save", lambda: save(retriever), rounds=5))
    same_answers(Retriever.load(tmp_path / "model"), made.retriever, made.x[:3], made.y[:3])
    assert len(loaded) >= 5


def test_many_threads_may_add_items_without_ids(make):
    made, named, barrier = make(), [], threading.Barrier(4)

    def add():
        barrier.wait()
        for _ in range(20):
            named.extend(made.retriever.add(made.x[:2]))

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(named)) == len(named) == 160


@pytest.mark.parametrize("filtered", [False, True])
def test_an_item_removed_during_a_search_makes_room_for_the_next(make, monkeypatch, filtered):
    made = make()
    expected = [hit.id for hit in made.retriever.search(made.y[0], k=6)]
    search, gone = VectorIndex.search, []

    def removing(self, *args, **options):
        found = search(self, *args, **options)
        if not gone:
            gone.append(made.retriever.remove(expected[1]))
        return found

    monkeypatch.setattr(VectorIndex, "search", removing)
    # A filter that can be gone through once only is remembered.
    where = iter(expected) if filtered else None
    found = [hit.id for hit in made.retriever.search(made.y[0], k=5, where=where)]
    assert found == [expected[0], *expected[2:]]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_searches_too(make):
    made, n_threads = make(shape={"n": 500}), faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(2)
    try:
        first = made.retriever.search(made.y, k=1)
        child = os.fork()
        if child == 0:
            signal.alarm(60)  # rather than wait for ever
            os._exit(0 if made.retriever.search(made.y, k=1) == first else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        faiss.omp_set_num_threads(n_threads)
