"""The functions that run on a worker, called here in threads of this process."""

import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl

pytest.importorskip("cloudpickle", reason="Dask is not installed")

from diptych.distributed import TaskResult, merge_results, run_task


def blas_threads():
    return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]


PROGRAM = """
import threadpoolctl
import pickle
from diptych.distributed import run_task

def blas_threads():
    return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]

with threadpoolctl.threadpool_limits(2, user_api="blas"):
    before = blas_threads()
    assert set(run_task(lambda item: blas_threads(), pickle.dumps(0)).value) == {1}
    assert blas_threads() == before == [2] * len(before)
"""


def test_a_task_has_one_blas_thread():
    # In a process of its own: threads that other tests left behind may set the limit too.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_failing_task_restores_the_threads():
    before = blas_threads()
    with pytest.raises(ZeroDivisionError):
        run_task(lambda item: 1 // item, pickle.dumps(0))
    assert blas_threads() == before


def test_the_last_of_simultaneous_tasks_restores_the_threads():
    before, first = blas_threads(), threading.Event()

    def task(number):
        if number == 0:
            first.set()
            return None
        first.wait(timeout=10)
        return blas_threads()

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda number: run_task(task, pickle.dumps(number)), range(2)))
    assert set(results[1].value) == {1}
    assert merge_results(max, [TaskResult(1), TaskResult(2)]).value == 2
    assert blas_threads() == before


def test_dask_sees_the_size_of_a_result():
    class Sums:
        def __init__(self):
            self.xx = np.zeros((100, 100))

    sizeof = pytest.importorskip("dask.sizeof").sizeof
    assert sizeof(TaskResult(Sums())) >= 80_000
    assert sizeof(TaskResult([np.zeros(1000)])) >= 8_000
