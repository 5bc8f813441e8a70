"""A save that is killed at any moment leaves a whole model, the old one or the new one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_killed_fifty_times_a_whole_model_remains(tmp_path):
    found = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "killing.py"), str(tmp_path), "50", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stderr[-2000:]
    result = json.loads(found.stdout.splitlines()[-1])
    assert sum(result["seen"].values()) == 50
    # It was killed at work, with both models in the folder at one time or another ...
    assert min(result["seen"].values()) > 0
    assert result["left"] > 0
    # ... and the next save cleaned up after it.
    assert result["after"] == 1
