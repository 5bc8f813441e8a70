"""Damaged data files: what can be read, or one sentence; never anything else, and no memory to speak of."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_thousand_damaged_files(tmp_path):
    for library in ("h5py", "pyarrow"):
        pytest.importorskip(library)
    command = [sys.executable, str(Path(__file__).parent / "damaging.py"), str(tmp_path), "1000", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["wrong"] == []
    assert found["refused"] > 500
    assert found["read"] > 50
    assert found["grown"] < 200
