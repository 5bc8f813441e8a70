"""A fusion is the same model on an engine, on a torch device, after an interruption, and here."""

import logging

import numpy as np
import pytest

from diptych import Fusion, InputError
from diptych.cca import _streaming
from diptych.cca.selection import _path
from engines import InTree
from generated_pairs import make_dual_features, make_fused_blocks
from tolerance import assert_close

TASKS = ("search", "annotate")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several blocks of pairs from little data, and the route of the grid that an engine scores."""
    monkeypatch.setattr("diptych.cca._moments.CPU_BLOCK_BYTES", 2**14)
    monkeypatch.setattr("diptych.fusion._blocks.DEVICE_BLOCK_BYTES", 2**14)
    monkeypatch.setattr(_path, "SCREEN_BYTES", 0)


def fit(**where):
    return make_model().fit(*make_fused_blocks(0, 150), validation=make_fused_blocks(1, 60), **where)


def make_model():
    return Fusion(grid=5, bank=100, n_components=4, precision="float64", polish=False)


@pytest.fixture(scope="module")
def here():
    return fit()


def assert_same_model(one, other):
    unseen = make_fused_blocks(2, 50)
    for task in TASKS:
        mine, its = one.members_[task], other.members_[task]
        assert [(m.part, m.use, m.weight) for m in mine] == [(m.part, m.use, m.weight) for m in its]
        assert one.hubness_[task].correction == other.hubness_[task].correction
        assert_close(score(one, unseen, task), score(other, unseen, task), 500, condition=50.0)
        assert isinstance(one.hubness_[task].bank, np.ndarray)
    assert isinstance(one.moments_.xx, np.ndarray)
    assert_close(one.moments_.xy, other.moments_.xy, 500)


def score(model, pairs, task):
    x, y = model.transform(*pairs[:2], task=task)
    return x @ y.T


def test_an_engine_sums_the_pairs_and_scores_the_grids(here):
    engine = InTree()
    assert_same_model(fit(engine=engine), here)
    # One pass for each normalisation of four blocks, one for the model, one for the held-out pairs.
    assert engine.functions.count("moments") == 4 * 3 + 2
    # Five parts of two blocks on either side; extended grids are scored in two pieces.
    assert engine.functions.count("RowScorer") >= 5


@pytest.mark.slow
def test_a_cluster_fits_the_same_model(here):
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    from diptych.distributed import DaskEngine

    options = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    with distributed.LocalCluster(n_workers=2, **options) as cluster, distributed.Client(cluster) as client:
        assert_same_model(fit(engine=DaskEngine(client)), here)


def test_a_torch_device_fits_the_same_model(here):
    pytest.importorskip("torch")
    assert_same_model(fit(device="cpu"), here)
    x, y = make_dual_features(200, seed=3)
    on_cpu, on_torch = (Fusion(grid=4, polish=False).fit(x, y, device=device) for device in (None, "cpu"))
    for task in TASKS:
        assert_close(score(on_cpu, (x, y), task), score(on_torch, (x, y), task), 500, condition=100.0)


def test_an_interrupted_fit_continues_and_leaves_no_half_model(here, tmp_path, monkeypatch):
    monkeypatch.setattr(_streaming.Checkpoint, "is_due", lambda self: True)
    merge = _streaming.Moments.merge

    def interrupt(self, block):
        if self.xy.shape == (22, 21) and self.count > 100:  # in the pass over all blocks side by side
            raise KeyboardInterrupt
        merge(self, block)

    file = tmp_path / "sum"
    with monkeypatch.context() as patch:
        patch.setattr(_streaming.Moments, "merge", interrupt)
        model = make_model()
        with pytest.raises(KeyboardInterrupt):
            model.fit(*make_fused_blocks(0, 150), validation=make_fused_blocks(1, 60), checkpoint=file)
    assert not hasattr(model, "members_")
    assert not hasattr(model, "geometry_")
    assert file.exists()
    assert_same_model(fit(checkpoint=file), here)
    assert not file.exists()


def test_blocks_of_pairs_are_refused():
    x, y, pairing = make_fused_blocks(0, 50)
    with pytest.raises(InputError, match="a fusion reads its views several times"):
        Fusion().fit([(x["a"], y["c"], pairing)])


def test_progress_is_shown(capsys):
    Fusion(parts="together", grid=4, verbose=True).fit(*make_fused_blocks(0, 60))
    shown = capsys.readouterr().err
    for step in ("summing", "fitting parts", "choosing for search", "choosing for annotate"):
        assert step in shown
