"""What the tests themselves rely on: an end that leaves nothing behind, and Ctrl+C in the background."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tolerance import rounding

HERE = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

SERVER = """
import time
from database import Database
database = Database()
print(database.folder, database._server.get_pid(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_no_database_outlives_tests_that_are_killed():
    psutil, _ = pytest.importorskip("psutil"), pytest.importorskip("database")
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=HERE) as tests:
        folder, pid = tests.stdout.readline().split()
        server = psutil.Process(int(pid))
        assert server.is_running()
        tests.send_signal(signal.SIGKILL)
    server.wait(timeout=30)
    assert not server.is_running()
    deadline = time.monotonic() + 30
    while Path(folder).exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not Path(folder).exists()


def test_an_interruption_arrives_in_the_background(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "import os, pytest, signal, time\n"
        "def test_it():\n"
        "    with pytest.raises(KeyboardInterrupt):\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(1)\n"
    )
    options = ["-p", "conftest", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'made'}"]
    command = [sys.executable, "-m", "pytest", *options, "-q", "test_it.py"]
    found = subprocess.run(
        ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**HERE, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
    )
    assert found.returncode == 0, found.stdout


def test_rounding_covers_other_orders_of_a_sum_and_little_more():
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for terms in (10, 1000, 100_000):
            numbers = rng.normal(size=terms).astype(dtype)
            allowed = rounding(dtype, terms, np.abs(numbers).sum())
            one_by_one = np.cumsum(numbers, dtype=dtype)[-1]
            assert abs(float(one_by_one) - float(np.sum(numbers))) <= allowed
            # What is no rounding is seen: a term left out, of a thousand in float32.
            assert terms > 1000 or allowed < np.abs(numbers).sum() / terms
