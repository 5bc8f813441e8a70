"""Draws in pieces: in order, wherever they run."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from diptych.stats import bootstrap, permutation_test
from diptych.stats._pairs import run_pieces
from engines import InTree
from generated_pairs import make_pairs


@dataclass(frozen=True)
class Numbers:
    values: Any
    labels: Any
    inner: Any = None


def add_label(numbers, draws):
    return [float(numbers.values[draw]) + int(numbers.labels[draw]) for draw in draws]


def name_kinds(numbers, draws):
    return [(type(numbers.inner.values).__module__, type(numbers.inner.labels).__module__) for _ in draws]


@pytest.mark.parametrize("engine", [None, InTree()])
@pytest.mark.parametrize("at_once", [1, 4, 10, 99])
def test_results_are_in_order(engine, at_once):
    numbers, shares = Numbers(np.arange(10.0), np.arange(10)), []
    results = run_pieces(add_label, numbers, 10, at_once, numbers.values, engine, None, shares.append)
    assert results == [2.0 * number for number in range(10)]
    if engine is None:
        assert sorted(shares) == [k / -(-10 // at_once) for k in range(1, -(-10 // at_once) + 1)]
    assert run_pieces(add_label, numbers, 0, at_once, numbers.values, engine, None, shares.append) == []


def test_workers_copy_only_torch_arrays_to_their_device():
    torch = pytest.importorskip("torch")
    # Rows are drawn with NumPy; an index that has become a CUDA tensor would not fit a NumPy array.
    numbers = Numbers(None, None, Numbers(torch.arange(3.0), np.arange(3)))
    kinds = run_pieces(name_kinds, numbers, 2, 1, numbers.inner.values, InTree(), "cpu", lambda share: None)
    assert kinds == [("torch", "numpy")] * 2


@pytest.mark.slow
def test_a_cluster_returns_the_same_results():
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    from diptych.distributed import DaskEngine

    pairs, _ = make_pairs(5, n=60)
    local = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=2, **local) as cluster, distributed.Client(cluster) as client:
        here, there = (
            (
                bootstrap((10.0, 10.0), *pairs, n_resamples=20, n_components=2, engine=engine),
                permutation_test((10.0, 10.0), *pairs, n_permutations=130, n_components=2, engine=engine),
            )
            for engine in (None, DaskEngine(client))
        )
    np.testing.assert_allclose(there[0].correlations.low, here[0].correlations.low, rtol=1e-9)
    np.testing.assert_allclose(there[0].x_weights.high, here[0].x_weights.high, atol=1e-9)
    np.testing.assert_allclose(there[1].null, here[1].null, rtol=1e-9)
