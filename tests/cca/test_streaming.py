"""A fit that streams: blocks, maps, checkpoints, devices and engines give the model of whole arrays."""

import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych.cca import Moments
from diptych.cca._streaming import ArrayBlocks, Checkpoint, Preparation, are_blocks, sum_blocks
from engines import InTree
from tolerance import assert_close


def pairs(n=300, seed=0):
    """Two noisy views of one hidden cause, one to five captions an image."""
    mixing, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
    pairing = np.repeat(np.arange(n), rng.integers(1, 6, n))
    cause = rng.normal(size=(n, 5))
    x = cause @ mixing.normal(size=(5, 14)) + 0.7 * rng.normal(size=(n, 14)) + 3.0
    y = cause[pairing] @ mixing.normal(size=(5, 11)) + 0.7 * rng.normal(size=(len(pairing), 11))
    return x, y, pairing


class Lazy:
    """A block that says when it is read."""

    def __init__(self, content, read=None):
        self.content, self.read = content, read if read is not None else []

    def load(self):
        self.read.append(self)
        return self.content


def cut(x, y, pairing, ends):
    """Blocks of whole images."""
    result = []
    for first, last in zip([0, *ends], [*ends, len(x)], strict=True):
        rows = (pairing >= first) & (pairing < last)
        if rows.any():
            result.append((x[first:last], y[rows], pairing[rows] - first))
    return result


@given(ends=st.lists(st.integers(1, 299), max_size=6, unique=True).map(sorted), lazy=st.booleans())
def test_any_cut_into_blocks_gives_the_moments_of_the_whole(ends, lazy):
    x, y, pairing = pairs()
    blocks = cut(x, y, pairing, ends)
    result = sum_blocks([Lazy(b) for b in blocks] if lazy else iter(blocks), Preparation())
    whole = Moments.of(x, y, pairing)
    assert result.count == whole.count
    for name in ("x_mean", "y_mean", "xx", "yy", "xy"):
        mine, its = getattr(result, name), getattr(whole, name)
        np.testing.assert_allclose(mine, its, atol=1e-10 * np.abs(its).max())


@pytest.mark.parametrize("how", [("none", "none"), ("sqrt-unit", "unit")])
def test_blocks_give_the_model_of_whole_arrays(how):
    x, y, pairing = pairs()
    held = pairs(n=60, seed=1)
    whole = AWCCA(grid=5, normalize=how, solver="gram").fit(x, y, pairing, validation=held)
    blocks = AWCCA(grid=5, normalize=how).fit(iter(cut(x, y, pairing, [70, 200])), validation=held)
    assert blocks.path_.choice == whole.path_.choice
    assert blocks.n_features_in_ == x.shape[1]
    for mine, its in zip(blocks.transform(x, y), whole.transform(x, y), strict=True):
        np.testing.assert_allclose(mine @ mine.T, its @ its.T, atol=1e-8)


def test_views_on_disk_are_never_read_whole(tmp_path, monkeypatch):
    x, y, pairing = pairs(n=4000)
    for name, rows in (("x", x), ("y", y)):
        np.save(tmp_path / f"{name}.npy", rows.astype(np.float16))
    mapped = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "xy"]
    monkeypatch.setattr("diptych.cca._moments.CPU_BLOCK_BYTES", 2**14)
    monkeypatch.setattr("diptych.cca.selection._grids.MAX_HELD_OUT", 50)
    largest, merge = [], Moments.merge
    monkeypatch.setattr(
        Moments, "merge", lambda self, block: (largest.append(block.sums.count), merge(self, block))
    )
    model = AWCCA(grid=4, solver="gram").fit(*mapped, pairing)
    assert len(largest) > 10
    # Blocks of the pass, and then the 50 images that were held out, with their captions.
    assert max(largest) <= 50 * 6
    assert "50 of 4000 rows" in model.path_.held_out
    assert model.score(x, y, pairing) > 5


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_changes_to_a_mapped_array_are_kept(tmp_path, mode):
    x, y, pairing = pairs(n=500)
    np.save(tmp_path / "x.npy", np.zeros_like(x))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r+" if mode == "r" else mode)
    mapped[:] = x
    if mode == "r":
        mapped.flush()
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    whole = AWCCA(params=(2.0, 3.0), solver="gram").fit(x, y, pairing)
    result = AWCCA(params=(2.0, 3.0), solver="gram").fit(mapped, y, pairing)
    np.testing.assert_array_equal(mapped, x)
    # Another way to read may sum in other blocks; singular vectors enlarge what that rounds.
    mine, its = result.models_["search"].x_weights, whole.models_["search"].x_weights
    assert_close(mine, its, len(y), condition=1e4)


def test_holding_out_in_one_pass_equals_two_fits():
    x, y, pairing = pairs(n=400)
    one = AWCCA(grid=6, solver="gram").fit(x, y, pairing)
    two = AWCCA(grid=6, solver="svd").fit(x, y, pairing)
    assert one.path_.choice == two.path_.choice
    assert one.path_.held_out == two.path_.held_out
    np.testing.assert_allclose(
        one.models_["search"].correlations, two.models_["search"].correlations, atol=1e-7
    )


def test_a_resumed_pass_gives_the_same_numbers_and_removes_its_checkpoint(tmp_path):
    x, y, pairing = pairs()
    blocks, file = cut(x, y, pairing, [50, 100, 150, 200]), tmp_path / "sum"
    whole = sum_blocks(blocks, Preparation())

    class StoppedError(Exception):
        pass

    def interrupted():
        yield from blocks[:3]
        raise StoppedError

    with pytest.raises(StoppedError):
        sum_blocks(interrupted(), Preparation(), checkpoint=Checkpoint(file, "these", every=0))
    done = Checkpoint(file, "these").read()[1]
    assert 0 < done <= 3
    read = []
    lazy = [Lazy(block, read) for block in blocks]
    again = sum_blocks(lazy, Preparation(), checkpoint=Checkpoint(file, "these", every=0))
    assert len(read) == len(blocks) - done  # what was summed before is not read again
    for name in ("x_mean", "y_mean", "xx", "yy", "xy"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name))
    broken = [*blocks, (x[:2] * np.nan, y[:2])]  # what comes later is named by its place in the whole
    with pytest.raises(InputError, match="block 5: X contains NaN"):
        sum_blocks(broken, Preparation(), checkpoint=Checkpoint(file, "these", every=0))
    with pytest.raises(InputError, match="checkpoint of other data"):
        sum_blocks(lazy, Preparation(), checkpoint=Checkpoint(file, "those"))
    AWCCA(params=(1.0, 1.0), solver="gram").fit(x, y, pairing, checkpoint=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_checkpoint_of_other_arrays_is_refused(tmp_path):
    x, y, pairing = pairs()
    file = tmp_path / "sum"
    mine = ArrayBlocks(x, y, pairing)
    assert mine.fingerprint == ArrayBlocks(x.copy(), y.copy(), pairing).fingerprint
    assert mine.fingerprint != ArrayBlocks(x + 1, y, pairing).fingerprint
    sum_blocks(mine, Preparation(), checkpoint=Checkpoint(file, f"{mine.fingerprint}", every=0))
    with pytest.raises(InputError, match="remove it to start again"):
        AWCCA(params=(1.0, 1.0), solver="gram").fit(x + 1, y, pairing, checkpoint=file)


KILLED = textwrap.dedent("""
    import os, signal, sys, time
    import numpy as np
    sys.path.insert(0, sys.argv[3])
    from diptych import AWCCA
    from diptych.cca._streaming import Checkpoint
    from test_streaming import cut, pairs
    Checkpoint.__init__.__defaults__ = (0.0,)
    blocks = cut(*pairs(), range(10, 300, 10))

    class Slow:
        fingerprint = "slow"
        def __len__(self): return len(blocks)
        def __iter__(self):
            for number, block in enumerate(blocks):
                print(number, flush=True)
                if sys.argv[1] == "slow": time.sleep(0.05)
                yield block

    model = AWCCA(params=(2.0, 3.0)).fit(Slow(), checkpoint=sys.argv[2] + "/sum")
    model.save(sys.argv[2] + "/model")
""")


@pytest.mark.slow
def test_a_killed_fit_ends_with_the_same_numbers(tmp_path):
    def start(how, folder):
        folder.mkdir(exist_ok=True)
        arguments = [sys.executable, "-c", KILLED, how, str(folder), os.path.dirname(__file__)]
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=os.environ | paths)

    assert start("fast", tmp_path / "whole").wait() == 0
    process = start("slow", tmp_path / "killed")
    for line in process.stdout:
        if line.strip() == "12":
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    assert (tmp_path / "killed" / "sum").exists()
    assert start("fast", tmp_path / "killed").wait() == 0
    assert not (tmp_path / "killed" / "sum").exists()
    whole, killed = (AWCCA.load(tmp_path / name / "model") for name in ("whole", "killed"))
    for task in ("search", "annotate"):
        np.testing.assert_array_equal(whole.models_[task].x_weights, killed.models_[task].x_weights)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_device_gives_the_same_model_in_numpy(device):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    x, y, pairing = pairs(n=500)
    held = pairs(n=60, seed=1)
    here = AWCCA(grid=5, solver="gram").fit(x, y, pairing, validation=held)
    there = AWCCA(grid=5, solver="gram").fit(x, y, pairing, validation=held, device=device)
    assert isinstance(there.models_["search"].x_weights, np.ndarray)
    assert isinstance(there.spectra_.t0, np.ndarray)
    assert there.path_.choice == here.path_.choice
    for mine, its in zip(there.transform(x, y), here.transform(x, y), strict=True):
        np.testing.assert_allclose(mine @ mine.T, its @ its.T, atol=1e-8)
    np.testing.assert_allclose(there.transform(x, device=device), there.transform(x), atol=1e-9)
    small = AWCCA(grid=4).fit(x[:40], y[pairing < 40], pairing[pairing < 40], device=device)
    assert isinstance(small.models_["search"].x_weights, np.ndarray)


def test_validation_of_another_library_is_copied_to_the_device():
    torch = pytest.importorskip("torch")
    x, y, pairing = pairs()
    mixed = [(bx, torch.as_tensor(by), p) for bx, by, p in cut(x, y, pairing, [100, 200])]
    result = AWCCA(params=(2.0, 3.0)).fit(mixed, device="cpu")
    whole = AWCCA(params=(2.0, 3.0), solver="gram").fit(x, y, pairing)
    np.testing.assert_allclose(result.x_mean_, whole.x_mean_)
    np.testing.assert_allclose(
        result.models_["search"].correlations, whole.models_["search"].correlations, atol=1e-9
    )


def test_blocks_are_copied_in_order_and_errors_are_raised():
    pytest.importorskip("torch")
    from diptych._devices import copy_blocks

    blocks = [(np.full((3, 2), i, np.float16), None) for i in range(20)]
    result = [(block[0][0, 0].item(), block[1]) for block in copy_blocks(iter(blocks), "cpu")]
    assert result == [(float(i), None) for i in range(20)]

    def failing():
        yield blocks[0]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        list(copy_blocks(failing(), "cpu"))
    # Stopping early leaves no thread behind that would wait forever.
    for _ in copy_blocks(iter(blocks), "cpu"):
        break
    with pytest.raises(InputError, match="there is no device"):
        AWCCA(params=(1.0, 1.0)).fit(*pairs(), device="cuda:99")


@pytest.mark.parametrize(
    "options", [{}, {"filter": "tsvd"}, {"weighting": "symmetric"}, {"metric": "median_rank"}]
)
def test_an_engine_scores_the_grid_alike(options):
    x, y, pairing = pairs()
    held, engine = pairs(n=60, seed=1), InTree()
    here = AWCCA(grid=7, solver="gram", path_metrics="all", **options).fit(x, y, pairing, validation=held)
    blocks = cut(x, y, pairing, [100, 200])
    there = AWCCA(grid=7, path_metrics="all", **options).fit(blocks, validation=held, engine=engine)
    assert engine.mapped >= 3 + there.path_.grid.shape[0]
    assert there.path_.extended == here.path_.extended
    assert there.path_.choice == here.path_.choice
    for task in ("search", "annotate"):
        for name, scores in here.path_.scores[task].items():
            np.testing.assert_allclose(there.path_.scores[task][name], scores, atol=0.5)


def test_an_engine_with_a_checkpoint_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr("diptych.cca._streaming.BLOCKS_PER_CHECKPOINT", 2)
    x, y, pairing = pairs()
    blocks, read = cut(x, y, pairing, [50, 100, 150, 200]), []
    lazy, file = [Lazy(block, read) for block in blocks], tmp_path / "sum"

    class Fails(InTree):
        def map(self, function, items):
            if self.mapped >= 4:
                raise OSError("the cluster is gone")
            return super().map(function, items)

    with pytest.raises(OSError, match="cluster"):
        sum_blocks(lazy, Preparation(), engine=Fails(here=True), checkpoint=Checkpoint(file, "a", every=0))
    before = len(read)
    result = sum_blocks(
        lazy, Preparation(), engine=InTree(here=True), checkpoint=Checkpoint(file, "a", every=0)
    )
    assert len(read) - before == 1
    np.testing.assert_allclose(result.xy, Moments.of(x, y, pairing).xy, atol=1e-9)


def test_blocks_are_read_one_at_a_time():
    import threading
    import time

    x, y, pairing = pairs()
    inside, most = [], []

    class Shared(Lazy):
        def load(self):
            inside.append(threading.get_ident())
            time.sleep(0.002)
            most.append(len(inside))
            inside.pop()
            return self.content

    sum_blocks([Shared(b) for b in cut(x, y, pairing, range(20, 300, 20))], Preparation())
    assert len(most) == 15
    assert max(most) == 1


def test_wrong_blocks_are_refused(rng):
    x, y, pairing = pairs()
    good = cut(x, y, pairing, [100])
    model = AWCCA(params=(1.0, 1.0))
    bad = x.copy()
    bad[120, 1] = np.nan
    for blocks, message in (
        ([], "Y"),
        (iter([]), "there are no blocks"),
        (iter([x]), "expected \\(x, y\\)"),
        (cut(bad, y, pairing, [100]), "block 1: X contains NaN"),
        ([good[0], (x[:, :3], y, pairing)], "but the moments have"),
        ([(x, y)], "block 0: X has 300 rows and Y has"),
        (iter([(x[:1], y[:1])]), "found 1 pair"),
    ):
        with pytest.raises(InputError, match=message):
            model.fit(blocks)
    for settings, arguments, message in (
        ({"params": (1.0, 1.0)}, (None, pairing), "own pairing"),
        ({}, (), "give validation pairs, or params"),
        ({"params": (1.0, 1.0), "solver": "svd"}, (), "solver='gram'"),
        ({"selection": "leave-one-out"}, (), "blocks do not allow"),
    ):
        with pytest.raises(InputError, match=message):
            AWCCA(**settings).fit(iter(good), *arguments)
    assert not are_blocks(x)
    assert not are_blocks(x.tolist())
    assert not are_blocks("blocks")
