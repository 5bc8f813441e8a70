"""Work that is spread over threads: its results, its errors, and the threads that BLAS has meanwhile."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import threadpoolctl

from diptych import AWCCA, InputError, _threads
from diptych._threads import map_lapack, map_parallel, multiply, multiply_transposed, one_blas_thread
from tolerance import assert_close


def blas_threads() -> set[int]:
    # Not of FAISS, whose BLAS runs on OpenMP: its number belongs to the thread that asks.
    found = [each for each in threadpoolctl.threadpool_info() if "faiss" not in each["filepath"]]
    return {each["num_threads"] for each in found if each["user_api"] == "blas"}


def run_script(script: str) -> str:
    """Return what a script prints in a process of its own, where BLAS has two threads."""
    environment = {"OPENBLAS_NUM_THREADS": "2", "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def threads(monkeypatch):
    """Give BLAS and the functions under test this many threads, whatever the machine has."""
    with threadpoolctl.threadpool_limits(4, user_api="blas"):
        monkeypatch.setattr(_threads, "count_cores", lambda: 4)
        _threads._pool.cache_clear()
        yield 4
        assert blas_threads() == {4}
    _threads._pool.cache_clear()


LIKE = np.empty(0)


class TestMapParallel:
    def test_results_are_in_order_and_several_threads_made_them(self, threads):
        def work(item):
            time.sleep(0.001 * (item % 3))
            return item, threading.get_ident(), blas_threads()

        results = map_parallel(work, list(range(40)), LIKE)
        assert [item for item, _, _ in results] == list(range(40))
        assert 2 <= len({thread for _, thread, _ in results}) <= threads
        assert all(count == {1} for _, _, count in results)

    def test_a_slow_thread_takes_fewer_items(self, threads):
        slow = threading.get_ident()

        def work(item):
            time.sleep(0.1 if threading.get_ident() == slow else 0.001)
            return threading.get_ident()

        assert map_parallel(work, list(range(60)), LIKE).count(slow) < 10

    def test_a_call_inside_another_stays_on_its_thread(self, threads):
        def inner(item):
            return threading.get_ident()

        def outer(item):
            mine = map_parallel(inner, [0, 1, 2], LIKE) + map_lapack(inner, [0, 1], LIKE)
            return set(mine) == {threading.get_ident()}

        assert all(map_parallel(outer, list(range(8)), LIKE))

    def test_calls_at_the_same_time_share_the_threads(self, threads):
        at_once, most, lock = 0, 0, threading.Lock()

        def work(item):
            nonlocal at_once, most
            with lock:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.002)
            with lock:
                at_once -= 1

        callers = [
            threading.Thread(target=map_parallel, args=(work, list(range(30)), LIKE)) for _ in range(3)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert most <= threads - 1 + len(callers)

    @pytest.mark.parametrize("bad", [0, 5])
    def test_an_error_ends_the_rest(self, threads, bad):
        done = []

        def work(item):
            if item == bad:
                raise InputError("no")
            time.sleep(0.001)
            done.append(item)

        with pytest.raises(InputError, match="no"):
            map_parallel(work, list(range(1000)), LIKE)
        assert len(done) < 500
        assert map_parallel(lambda item: item, [1, 2], LIKE) == [1, 2]

    def test_it_works_in_a_forked_process(self):
        script = (
            "import os, numpy as np\n"
            "from diptych import _threads\n"
            "_threads.count_cores = lambda: 2\n"
            "matrix = np.ones((1500, 600))\n"
            "_threads.multiply(matrix, matrix.T)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    os._exit(0 if _threads.multiply(matrix, matrix.T)[0, 0] == 600 else 1)\n"
            "print(os.waitpid(child, 0)[1])\n"
        )
        assert run_script(script) == "0\n"


class TestOneBlasThread:
    def test_the_last_to_leave_restores_the_number(self, threads):
        first, second = one_blas_thread(), one_blas_thread()
        assert first.__enter__() == second.__enter__() == threads
        first.__exit__(None, None, None)
        assert blas_threads() == {1}
        second.__exit__(None, None, None)
        assert blas_threads() == {threads}

    def test_a_library_that_is_imported_inside_is_limited_too(self):
        script = (
            "import threadpoolctl\n"
            "from diptych import _threads\n"
            "def counts(): return {each['num_threads'] for each in threadpoolctl.threadpool_info()}\n"
            "with _threads.one_blas_thread():\n"
            "    import scipy.linalg\n"
            "    with _threads.one_blas_thread():\n"
            "        print(counts())\n"
            "print(counts())\n"
        )
        assert run_script(script) == "{1}\n{2}\n"

    def test_a_limit_of_the_user_is_kept(self, threads):
        with threadpoolctl.threadpool_limits(1, user_api="blas"), one_blas_thread() as count:
            assert count == 1

    def test_a_quota_below_the_threads_of_blas_counts(self, threads, monkeypatch):
        monkeypatch.setattr(_threads, "count_cores", lambda: 2)
        with one_blas_thread() as count:
            assert count == 2

    def test_a_fit_that_fails_restores_the_number(self, threads, rng):
        x = rng.normal(size=(60, 3))
        AWCCA(params=(1.0, 1.0)).fit(x, x)
        with pytest.raises(InputError, match="every row"):
            AWCCA(params=(1.0, 1.0)).fit(x, np.ones((60, 2)))


class TestMapLapack:
    @pytest.mark.parametrize(
        ("cores", "items", "share"), [(2, 1, 1), (4, 2, 1), (4, 1, 2), (16, 2, 4), (64, 1, 8)]
    )
    def test_the_items_share_half_of_the_threads(self, monkeypatch, cores, items, share):
        monkeypatch.setattr(_threads, "count_cores", lambda: cores)
        monkeypatch.setattr(_threads, "_blas_threads", lambda: cores)
        before = blas_threads()
        assert map_lapack(lambda item: blas_threads(), [0] * items, LIKE) == [{share}] * items
        assert blas_threads() == before

    def test_decompositions_at_the_same_time_are_right(self, threads, rng):
        matrices = [matrix @ matrix.T for matrix in rng.normal(size=(3, 200, 300))]
        for matrix, (values, vectors) in zip(
            matrices, map_lapack(np.linalg.eigh, matrices, LIKE), strict=True
        ):
            np.testing.assert_allclose((vectors * values) @ vectors.T, matrix, atol=1e-9 * values[-1])


class TestMultiply:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("shape", [(1500, 600, 700), (300, 700, 2000), (5, 3, 2)])
    def test_the_product_is_that_of_numpy(self, threads, rng, dtype, shape):
        left = rng.normal(size=shape[:2]).astype(dtype)
        right = rng.normal(size=shape[1:]).astype(dtype)
        expected = left.astype(np.float64) @ right
        for result in (multiply(left, right), multiply(np.asfortranarray(left), right.T.copy().T)):
            assert result.dtype == dtype
            assert_close(result, expected, terms=shape[1], dtype=dtype, magnitude=4 * shape[1])

    def test_stacks_of_matrices_are_multiplied_too(self, threads, rng):
        left, right = rng.normal(size=(4, 30, 20)), rng.normal(size=(20, 5))
        assert_close(multiply(left, right), left @ right, terms=20)

    @pytest.mark.parametrize("widths", [(130, 70), (1, 1), (1100, 300)])
    def test_products_of_columns(self, threads, rng, widths):
        x, y = (rng.normal(size=(90, width)) for width in widths)
        xx, xy, yy = multiply_transposed([(x, x), (x, y), (y, y)])
        for result, expected in ((xx, x.T @ x), (xy, x.T @ y), (yy, y.T @ y)):
            assert_close(result, expected, terms=90, magnitude=4 * 90)
        np.testing.assert_array_equal(xx, xx.T)

    def test_torch_arrays_are_multiplied_by_torch(self, rng):
        torch = pytest.importorskip("torch")
        x = torch.asarray(rng.normal(size=(300, 1000)))
        assert bool(torch.allclose(multiply(x, x.T), x @ x.T))
        (gram,) = multiply_transposed([(x, x)])
        assert bool(torch.allclose(gram, x.T @ x))
