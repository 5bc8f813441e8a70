"""What runs on a worker, here in threads of this process."""

import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import threadpoolctl

from diptych._checks import DataWarning

pytest.importorskip("cloudpickle", reason="Dask is not installed")

from diptych.distributed import Packed, Part, applied, merged


def blas_threads():
    return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]


def test_a_task_has_one_blas_thread():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        assert set(applied(Packed(lambda item: blas_threads()), Packed(0)).value) == {1}
        assert blas_threads() == before == [2] * len(before)


def test_tasks_at_the_same_time_have_each_their_own_warnings():
    together = threading.Barrier(4, timeout=10)

    def task(number):
        together.wait()
        if number % 2:
            warnings.warn(f"of {number}", DataWarning, stacklevel=1)
        together.wait()
        return number

    show = warnings.showwarning
    function = Packed(None)
    function._thing = task  # a barrier cannot be pickled
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda number: applied(function, Packed(number)), range(4)))
    assert [part.value for part in parts] == [0, 1, 2, 3]
    assert [part.warned for part in parts] == [(), ("of 1",), (), ("of 3",)]
    assert warnings.showwarning is show
    assert merged(Packed(max), parts).warned == ("of 1", "of 3")


def test_a_task_that_fails_leaves_nothing_behind():
    show, before = warnings.showwarning, blas_threads()
    with pytest.raises(ZeroDivisionError):
        applied(Packed(lambda item: 1 // item), Packed(0))
    assert (warnings.showwarning, blas_threads()) == (show, before)


def test_what_is_packed_is_opened_once_and_sent_unopened():
    packed = Packed({"large": np.arange(3)})
    assert packed.open() is packed.open()
    again = pickle.loads(pickle.dumps(packed))
    assert "_thing" not in vars(again)
    assert again.open()["large"].tolist() == [0, 1, 2]


def test_dask_is_told_how_large_a_result_is():
    class Sums:
        def __init__(self):
            self.xx = np.zeros((100, 100))

    sizeof = pytest.importorskip("dask.sizeof").sizeof
    assert sizeof(Part(Sums())) >= 80_000
    assert sizeof(Part([np.zeros(1000)])) >= 8_000
    assert sizeof(Packed(bytes(5000))) >= 5000
