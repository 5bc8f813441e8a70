"""A thousand damaged folders: an answer that looks right, or one sentence; never anything else."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA, HKSE, InputError, Retriever
from saved_files import files_of

WORDS = (
    ["red", "green", "blue"],
    ["dog", "cat", "bird", "fish"],
    ["runs", "sleeps", "jumps", "flies", "swims"],
)


def save_models(folder):
    """Three small models: with an HKSE and features, with graphs, and without features in half precision."""
    sentences = [f"a {a} {b} {c}" for a in WORDS[0] for b in WORDS[1] for c in WORDS[2]]
    hkse = HKSE(word="lin", sentence="lin").fit(sentences)
    y = hkse.transform(sentences)[:, :]
    x = y @ np.random.default_rng(0).normal(size=(y.shape[1], 6))
    x, pairing = x[::2], np.arange(60) // 2
    for name, options in {
        "model-hkse": {"text_encoder": hkse},
        "model-hnsw": {"index": "hnsw"},
        "model-half": {
            "dtype": "float16",
            "keep_features": False,
            "model": AWCCA(params=(1.0, 1.0), similarity="l2"),
        },
    }.items():
        options = {"model": AWCCA(params=(1.0, 1.0)), **options}
        metadata = {"3": {"colour": "red"}}
        Retriever.from_features(x, y, pairing, captions=sentences, metadata=metadata, **options).save(
            folder / name
        )


def damaged(folder, count, seed):
    found = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "damaging.py"), str(folder), str(count), str(seed)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_thousand_damaged_folders(tmp_path):
    save_models(tmp_path)
    found = damaged(tmp_path, 1000, 0)
    assert found["wrong"] == []
    # Both outcomes occur, so that the test tests something.
    assert found["refused"] > 800
    assert found["answered"] > 200
    assert found["warned"] < 20
    assert found["grown"] < 300


def test_links_are_not_followed(make_here, tmp_path):
    made = make_here()
    for name in ("items.jsonl", "model.safetensors", "index.safetensors", "config.json"):
        folder = tmp_path / name / "model"
        made.retriever.save(folder)
        path = files_of(folder) / name
        path.rename(tmp_path / f"{name}.moved")
        path.symlink_to(tmp_path / f"{name}.moved")
        for mmap in (False, True):
            with pytest.raises(InputError, match="is a link"):
                Retriever.load(folder, mmap=mmap)
