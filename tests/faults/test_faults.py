"""Every fault that lost something once, twenty times each; ``trials.py`` can go on for an hour."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from faults.trials import TRIALS

PROGRAM = Path(__file__).parent / "trials.py"
ROUNDS = 20

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")]


@pytest.mark.parametrize("name", TRIALS)
def test_nothing_is_lost(name):
    command = [sys.executable, str(PROGRAM), name, "--rounds", str(ROUNDS)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1200)
    assert done.stdout, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == 0, found
    assert found["rounds"] >= ROUNDS
    # The fault struck, so that the trial has shown something.
    assert found["struck"] > 0
