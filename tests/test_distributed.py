"""The Dask engine gives the same bits on any number of workers, and when workers are lost."""

import logging
import os
import signal
import sys
import threading
import time
import warnings
from operator import add

import numpy as np
import pytest

from diptych import AWCCA
from diptych._checks import InputError
from diptych.cca import Engine, Moments
from diptych.cca._streaming import Preparation
from diptych.data import shards
from diptych.stats._pairs import run_pieces
from generated_pairs import make_pairs
from troubled_blocks import Block, Deadly, Opened, add_shared, fail

distributed = pytest.importorskip("distributed", reason="Dask is not installed")

from diptych.distributed import DaskEngine, _make_graph  # noqa: E402

pytestmark = pytest.mark.slow
WORKERS = 3
MATRICES = ("x_mean", "y_mean", "xx", "yy", "xy")


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster):
    with distributed.Client(cluster) as client:
        yield client


@pytest.fixture
def engine(client, cluster):
    try:
        client.wait_for_workers(WORKERS, timeout=60)
    except TimeoutError:  # a nanny went with its worker in a test before
        cluster.scale(0)
        cluster.scale(WORKERS)
        client.wait_for_workers(WORKERS, timeout=60)
    return DaskEngine(client)


def moments(engine, blocks):
    return engine.reduce(add, engine.map(Preparation().moments, blocks))


def assert_same_bits(found, expected):
    assert found.count == expected.count
    for name in MATRICES:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.fixture(scope="module")
def expected():
    """The sum of the same tree, computed in this process."""

    class Here:
        def map(self, function, items):
            return [function(item) for item in items]

        def reduce(self, function, mapped):
            while len(mapped) > 1:
                groups = [mapped[i : i + 2] for i in range(0, len(mapped), 2)]
                mapped = [function(*group) if len(group) == 2 else group[0] for group in groups]
            return mapped[0]

    return moments(Here(), [Block(seed) for seed in range(30)])


def worker_pid(client):
    return next(iter(client.run(os.getpid).values()))


def test_the_class_is_an_engine(engine):
    assert isinstance(engine, Engine)


def test_the_sum_equals_that_of_one_process(engine, expected):
    blocks = [Block(seed) for seed in range(30)]
    found = moments(engine, blocks)
    total = Moments.zero(30, 20)
    for block in blocks:
        total.update(*block.load())
    for name in MATRICES:
        np.testing.assert_allclose(getattr(found, name), getattr(total, name), rtol=1e-10, atol=1e-10)
    assert_same_bits(found, expected)


def test_the_bits_do_not_depend_on_the_number_of_workers(engine, cluster, client, expected):
    try:
        for workers in (2, 1):
            cluster.scale(workers)
            while len(client.scheduler_info()["workers"]) != workers:
                time.sleep(0.05)
            assert_same_bits(moments(engine, [Block(seed) for seed in range(30)]), expected)
    finally:
        cluster.scale(WORKERS)


def test_neighbours_are_merged_in_order(engine):
    assert engine.reduce(add, engine.map(lambda i: [i], range(37))) == list(range(37))


@pytest.mark.parametrize("n", [1, 2, 4, 5, 16, 17, 65])
def test_the_tree_depends_on_the_number_of_items_alone(n):
    engine = DaskEngine.__new__(DaskEngine)
    graphs = [_make_graph(engine.map(str, items), add)[0] for items in (range(n), range(100, 100 + n))]
    shapes = [sorted(key[1:] for key in graph if isinstance(key, tuple)) for graph in graphs]
    assert shapes[0] == shapes[1]
    assert len([key for key in shapes[0] if len(key) == 1]) == n


def test_few_partial_results_are_in_memory_at_a_time(engine, client):
    most, done = [], threading.Event()

    def watch():
        while not done.wait(0.02):
            most.append(client.run_on_scheduler(count_results))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        moments(engine, [Block(seed, 0.03) for seed in range(64)])
    finally:
        done.set()
        watching.join()
    assert 1 <= max(most) <= 2 * WORKERS + 12


def count_results(dask_scheduler):
    return sum(ts.state == "memory" and isinstance(key, tuple) for key, ts in dask_scheduler.tasks.items())


def test_a_killed_worker_changes_no_bit(engine, client, expected):
    client.run(Block(0).load)  # so that all workers have imported everything
    threading.Timer(0.7, os.kill, (worker_pid(client), signal.SIGKILL)).start()
    begun = time.monotonic()
    found = moments(engine, [Block(seed, 0.2) for seed in range(30)])
    assert time.monotonic() - begun < 60  # Dask notices the lost connection, and waits for no timeout
    assert_same_bits(found, expected)


def test_the_only_worker_is_killed(expected):
    # What the tasks share is lost with it, and computed again on the one that replaces it.
    with DaskEngine(workers=1) as engine:
        engine.client.run(Block(0).load)
        threading.Timer(0.7, os.kill, (worker_pid(engine.client), signal.SIGKILL)).start()
        assert_same_bits(moments(engine, [Block(seed, 0.1) for seed in range(30)]), expected)


def test_a_lost_scheduler_is_an_error():
    with DaskEngine(workers=1) as engine:
        threading.Timer(1, engine._cluster.close).start()
        with pytest.raises(InputError, match="connection to the Dask scheduler was lost"):
            moments(engine, [Block(seed, 0.2) for seed in range(300)])


def test_a_failing_task_is_tried_again(engine, expected, tmp_path):
    blocks = [Block(seed) for seed in range(30)]
    blocks[3] = Block(3, first=fail, marker=tmp_path / "tried")
    assert_same_bits(moments(engine, blocks), expected)
    assert (tmp_path / "tried").stat().st_size == 2


def test_a_lasting_error_is_raised_unchanged(client, tmp_path):
    engine = DaskEngine(client, retries=0)
    with pytest.raises(OSError, match="out of reach for a moment"):
        moments(engine, [Block(seed, first=fail, marker=tmp_path / str(seed)) for seed in range(3)])


def test_a_block_that_kills_its_workers_is_an_error(engine, client):
    allowed = client.run_on_scheduler(allow_failures, 1)
    try:
        with pytest.raises(InputError, match="2 workers died one after another on the same block"):
            moments(engine, [Deadly(0)])
    finally:
        client.run_on_scheduler(allow_failures, allowed)


def allow_failures(number, dask_scheduler):
    before, dask_scheduler.allowed_failures = dask_scheduler.allowed_failures, number
    return before


def write(folder, x, y, files=3):
    for part, rows in enumerate(np.array_split(np.arange(len(x)), files)):
        np.save(folder / f"x-{part}.npy", x[rows])
        np.save(folder / f"y-{part}.npy", y[rows])
    return shards(folder / "x-*.npy", folder / "y-*.npy", rows=7)


def test_errors_name_the_damaged_shard(engine, rng, tmp_path):
    x, y = rng.normal(size=(60, 4)), rng.normal(size=(60, 3))
    x[25, 2] = np.nan
    with pytest.raises(InputError, match=r"x-1.npy\[0:7\] with .*X contains NaN"):
        moments(engine, write(tmp_path, x, y))
    x[25, 2] = 0
    blocks = write(tmp_path, x, y)
    content = (tmp_path / "y-2.npy").read_bytes()
    (tmp_path / "y-2.npy").write_bytes(content[:200])
    with pytest.raises(InputError, match=r"y-2.npy could not be read"):
        moments(engine, blocks)


def test_a_fit_selects_the_same_on_the_cluster(engine, tmp_path):
    (x, y, pairing), validation = make_pairs(0)
    names = [tmp_path / f"{name}.npy" for name in "xyp"]
    for name, array in zip(names, (x, y, pairing), strict=True):
        np.save(name, array)
    blocks = shards(*names, rows=20)
    settings = {"grid": 6, "normalize": ("unit", "none")}
    here = AWCCA(**settings).fit(blocks, validation=validation)
    there = AWCCA(**settings).fit(blocks, validation=validation, engine=engine)
    for task, model in here.models_.items():
        assert here.path_.choice[task] == there.path_.choice[task]
        np.testing.assert_allclose(model.correlations, there.models_[task].correlations, atol=1e-10)


def test_arrays_in_memory_are_sent_without_a_warning(engine):
    (x, y, pairing), validation = make_pairs(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        there = AWCCA(params=(1.0, 1.0)).fit(x, y, pairing, engine=engine)
    here = AWCCA(params=(1.0, 1.0)).fit(x, y, pairing)
    np.testing.assert_allclose(here.spectra_.s_x, there.spectra_.s_x, atol=1e-10)


def test_a_large_function_is_unpickled_once_by_each_worker(engine, tmp_path):
    function = Opened(tmp_path / "log")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert engine.reduce(add, engine.map(function, range(24))) == list(range(24))
    opened = (tmp_path / "log").read_text().split()
    assert len(opened) == len(set(opened)) <= WORKERS


def test_what_items_share_is_sent_once(engine, tmp_path):
    shared = Opened(tmp_path / "log")
    found = run_pieces(add_shared, shared, 24, 2, np.empty(0), engine, None, lambda share: None)
    assert found == list(range(24))
    opened = (tmp_path / "log").read_text().split()
    assert len(opened) == len(set(opened)) <= WORKERS


def test_an_interruption_cancels_the_run(engine, client):
    for _ in range(3):  # Python drops an interrupt that arrives while it removes a weak reference
        threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            moments(engine, [Block(seed, 0.3) for seed in range(200)])
        except KeyboardInterrupt:
            break
    else:
        pytest.fail("the run was not interrupted")
    deadline = time.monotonic() + 5
    while client.run_on_scheduler(count_tasks) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.run_on_scheduler(count_tasks) == 0


def count_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


def test_an_address_connects_to_a_scheduler(cluster):
    with DaskEngine(cluster.scheduler_address) as engine:
        assert engine.reduce(add, engine.map(len, ["a", "bc"])) == 3


def test_its_own_cluster_ends_with_the_engine():
    with DaskEngine(workers=1) as engine:
        pid = worker_pid(engine.client)
        assert engine.reduce(add, engine.map(abs, [-1, -2])) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


class TestBadInput:
    @pytest.mark.parametrize(
        "address", ["tcp://127.0.0.1:9", "nonsense", "http://127.0.0.1:1", "tcp://no such host:1"]
    )
    def test_an_address_without_a_scheduler(self, address):
        begun = time.monotonic()
        with pytest.raises(InputError, match=f"no Dask scheduler answers at '{address}' within"):
            DaskEngine(address, timeout=0.5)
        assert time.monotonic() - begun < 5

    @pytest.mark.parametrize(
        "wrong",
        [{"workers": 0}, {"retries": -1}, {"timeout": 0}, {"timeout": float("nan")}, {"client": 3}],
    )
    def test_wrong_settings(self, wrong):
        with pytest.raises(InputError, match=next(iter(wrong)).replace("client", "is not a Dask client")):
            DaskEngine(**wrong)

    def test_dask_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(InputError, match=r'pip install "dask\[distributed\]>='):
            DaskEngine()

    def test_nothing_to_reduce(self, engine):
        with pytest.raises(InputError, match="nothing to reduce"):
            engine.reduce(add, engine.map(abs, []))

    def test_an_item_that_cannot_be_pickled(self, engine):
        with pytest.raises(InputError, match="cannot be sent to another process"):
            engine.reduce(add, engine.map(abs, [threading.Lock()]))
