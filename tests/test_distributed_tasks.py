"""The functions that run on a worker, called here in threads of this process."""

import pickle
import subprocess
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl

from diptych._checks import DataWarning

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


def test_simultaneous_tasks_collect_their_own_warnings():
    barrier = threading.Barrier(4, timeout=10)

    def task(number):
        barrier.wait()
        if number % 2:
            warnings.warn(f"of {number}", DataWarning, stacklevel=1)
        barrier.wait()
        return number

    show = warnings.showwarning
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda number: run_task(task, pickle.dumps(number)), range(4)))
    assert [result.value for result in results] == [0, 1, 2, 3]
    assert [result.warnings for result in results] == [(), ("of 1",), (), ("of 3",)]
    assert warnings.showwarning is show
    assert merge_results(max, results).warnings == ("of 1", "of 3")


def test_a_failing_task_restores_threads_and_warnings():
    show, before = warnings.showwarning, blas_threads()
    with pytest.raises(ZeroDivisionError):
        run_task(lambda item: 1 // item, pickle.dumps(0))
    assert (warnings.showwarning, blas_threads()) == (show, before)


def test_dask_sees_the_size_of_a_result():
    class Sums:
        def __init__(self):
            self.xx = np.zeros((100, 100))

    sizeof = pytest.importorskip("dask.sizeof").sizeof
    assert sizeof(TaskResult(Sums())) >= 80_000
    assert sizeof(TaskResult([np.zeros(1000)])) >= 8_000
