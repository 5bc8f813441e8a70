"""The examples of docs/distributed.md run as they are printed."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA
from example_files import code_blocks, write_network, write_photos

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
PAGE = Path(__file__).parent.parent / "docs" / "distributed.md"

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the examples use."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "features").mkdir()
    for part in range(4):
        x = rng.normal(size=(30, 8))
        np.save(f"features/x-{part}.npy", x.astype(np.float16))
        noise = 0.3 * rng.normal(size=(150, 6))
        np.save(f"features/y-{part}.npy", (np.repeat(x[:, :6], 5, axis=0) + noise).astype(np.float16))
    write_photos(tmp_path, 30, size=64)
    return tmp_path


def test_fit_on_a_local_cluster(folder):
    names = {"__name__": "__main__"}
    exec(code_blocks(PAGE)[0], names)
    loaded = AWCCA.load("model")
    assert loaded.models_["search"].train_correlations[0] > 0.5
    assert len(names["training"]) == 3


def test_features_encoded_on_several_machines(folder):
    pytest.importorskip("onnxruntime")
    write_network(folder / "resnet50.onnx")
    (folder / "machine.py").write_text(code_blocks(PAGE)[1])
    for machine in range(2):
        subprocess.run([sys.executable, "machine.py", str(machine)], check=True)
    names = {}
    exec(code_blocks(PAGE)[2], names)
    assert names["model"].spectra_.count == 150
    assert (len(names["model"].x_mean_), len(names["model"].y_mean_)) == (48, 200)


def test_fit_on_a_cluster_by_address(folder):
    # The worker is two threads of this process; the engine reaches it by TCP like any other.
    kind = {"processes": False, "protocol": "tcp", "dashboard_address": ":0"}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, **kind) as cluster:
        names = {}
        exec(code_blocks(PAGE)[3].replace("tcp://scheduler:8786", cluster.scheduler_address), names)
    assert names["model"].models_["search"].train_correlations[0] > 0.5
