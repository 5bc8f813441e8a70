"""What every test may ask for: the real data, the backends, and a database."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl+C reaches the tests and the programs they start; a shell's background job would ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real features that DIPTYCH_DATA points to; without it the test is skipped by name."""
    folder = os.environ.get("DIPTYCH_DATA")
    if folder and (Path(folder) / "flickr8k").is_dir():
        return Path(folder)
    message = f"DIPTYCH_DATA={folder!r} does not lead to a folder with flickr8k in it"
    if os.environ.get("DIPTYCH_REQUIRE_DATA") == "1":
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(params=["numpy", "torch"])
def backend(request):
    """A function that takes NumPy arrays into a backend; every test with it runs on each."""
    if request.param == "numpy":
        return np.asarray
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return lambda array: torch.as_tensor(np.ascontiguousarray(array))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def database():
    """A real PostgreSQL."""
    Database = pytest.importorskip("database").Database
    database = Database()
    yield database
    database.stop()


@pytest.fixture
def fresh(database):
    """Addresses of schemas with nothing in them: ``fresh(index="hnsw")``."""
    yield database.address
    database.drop_schemas()
