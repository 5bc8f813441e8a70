"""The functions that run on a worker, called here."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("cloudpickle", reason="Dask is not installed")

from diptych.distributed import TaskResult, merge_results

PROGRAM = """
import pickle
import threading
import time
import numpy as np
import threadpoolctl
from diptych._threads import map_parallel
from diptych.distributed import run_task

def blas_threads():
    return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]

def run_side_by_side(item):
    return map_parallel(lambda _: time.sleep(0.01) or threading.get_ident(), [0] * 8, np.empty(0))

with threadpoolctl.threadpool_limits(2, user_api="blas"):
    before = blas_threads()
    assert set(run_task(lambda item: blas_threads(), pickle.dumps(0)).value) == {1}
    assert blas_threads() == before == [2] * len(before)
    try:
        run_task(lambda item: 1 // item, pickle.dumps(0))
    except ZeroDivisionError:
        assert blas_threads() == before
    assert set(run_task(run_side_by_side, pickle.dumps(0)).value) == {threading.get_ident()}
"""


def test_a_task_has_one_thread():
    # In a process of its own: threads that other tests left behind may set the limit too.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_neighbouring_results_are_merged():
    assert merge_results(max, [TaskResult(1), TaskResult(2)]).value == 2


def test_dask_sees_the_size_of_a_result():
    class Sums:
        def __init__(self):
            self.xx = np.zeros((100, 100))

    sizeof = pytest.importorskip("dask.sizeof").sizeof
    assert sizeof(TaskResult(Sums())) >= 80_000
    assert sizeof(TaskResult([np.zeros(1000)])) >= 8_000
