"""Damaged data files are read or raise one clear error, and take little memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_damaged_files_are_read_or_refused(tmp_path):
    for library in ("h5py", "pyarrow"):
        pytest.importorskip(library)
    command = [sys.executable, str(Path(__file__).parent / "damage_files.py"), str(tmp_path), "1000", "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["wrong"] == []
    assert report["refused"] > 500
    assert report["read"] > 50
    assert report["memory"] < 200
