"""Models and clients for the tests: applications in this process, and real servers."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import httpx
import numpy as np
import pytest
from starlette.testclient import TestClient

from diptych import HKSE, Retriever
from diptych.fusion import Fusion, Part
from diptych.scenes import make_scenes
from diptych.service._app import build_app
from diptych.service._limits import Limits
from diptych.service._model import ModelHolder
from diptych.service._service import Service
from other_views import fit_molecules, write_encoders

LOCAL = "http://127.0.0.1"


@pytest.fixture(scope="session")
def scenes_folder(tmp_path_factory):
    """A folder with images and a saved model."""
    place = tmp_path_factory.mktemp("scenes")
    pairs = make_scenes(160, size=96).write(place / "scenes")
    encoder = HKSE(word_features=120, sentence_features=120)
    Retriever("pyramid", encoder).fit(pairs).save(place / "model")
    return place


@pytest.fixture(scope="session")
def folder(scenes_folder):
    """The saved model; tests that change it use ``own_folder``."""
    return scenes_folder / "model"


@pytest.fixture
def own_folder(folder, tmp_path):
    """A copy of the model that may be changed."""
    return shutil.copytree(folder, tmp_path / "model")


@pytest.fixture(scope="session")
def fused_folder(tmp_path_factory):
    """A saved fusion of two feature blocks on each side."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(240, 5))

    def block(width):
        return (hidden @ rng.normal(size=(5, width)) + rng.normal(size=(240, width))).astype(np.float32)

    views = {"photos": block(9), "sketches": block(7)}, {"words": block(8), "tones": block(6)}
    place = tmp_path_factory.mktemp("fused") / "model"
    Retriever.from_features(*views, model=Fusion(grid=3)).save(place)
    return place


@pytest.fixture(scope="session")
def fused_scenes(retriever, tmp_path_factory):
    """A saved fusion of the scenes; each of two parts knows every second word, so that both are needed."""
    images, captions = (list(retriever.store.items(view)) for view in ("image", "text"))
    words = sorted({word for item in captions for word in item.text.lower().split()})
    counts = np.array(
        [[item.text.lower().split().count(word) for word in words] for item in captions], np.float32
    )
    rows = {item.id: row for row, item in enumerate(images)}
    place = tmp_path_factory.mktemp("fused-scenes") / "model"
    Retriever.from_features(
        {"pyramid": retriever.store.features("image", list(rows))},
        {"words": counts[:, ::2], "others": counts[:, 1::2]},
        [rows[item.image] for item in captions],
        ids=list(rows),
        caption_ids=[item.id for item in captions],
        captions=[item.text for item in captions],
        paths=[item.path for item in images],
        model=Fusion(grid=5, parts=[Part(("pyramid",), ("words",)), Part(("pyramid",), ("others",))]),
    ).save(place)
    return place


@pytest.fixture(scope="session")
def retriever(folder):
    return Retriever.load(folder)


@pytest.fixture(scope="session")
def easy(retriever, path_of):
    """A caption that is the first hit of its image, and the other way round."""
    for item in retriever.store.items():
        if (
            item.view == "text"
            and retriever.search(item.text, k=1)[0].id == item.image
            and retriever.annotate(path_of(item.image), k=1)[0].id == item.id
        ):
            return item
    raise AssertionError("no caption is the first hit of its image")


@pytest.fixture(scope="session")
def path_of(retriever):
    """Return the path of an image by its id."""
    return lambda item_id: retriever.item(item_id).path


def in_process(place, *, writable=False, token=None, headers=None, log=False, **limits):
    """Return a client of an application in this process."""
    holder = ModelHolder.open(place, writable=writable)
    service = Service(holder, Limits(**{"decoders": 1, **limits}), token, threads=1, watch_seconds=0.05)
    app = build_app(service, log_queries=log)
    client = TestClient(app, LOCAL, headers=headers, raise_server_exceptions=False)
    client.service = service
    return client


@pytest.fixture
def make_client(folder):
    """Make clients: ``make_client(folder, writable=True, k=5)``."""
    with contextlib.ExitStack() as stack:

        def make(place=folder, **options):
            return stack.enter_context(in_process(place, **options))

        make.stop = stack.close
        yield make


@pytest.fixture(scope="module")
def client(folder):
    """One client for a module of tests that change nothing."""
    with in_process(folder) as client:
        yield client


class Server:
    """``diptych serve`` as a user starts it."""

    def __init__(self, folder, *flags, code=None, group=False, **environment):
        command = [sys.executable, "-m", "diptych", "serve", str(folder), "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(
            [*command, *flags] if code is None else [sys.executable, "-c", code, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            start_new_session=group,
        )
        output = ""
        while not (url := re.search(r"http://\S+/", output)):
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(output + self.process.stderr.read())
            output += line
        self.url = url[0].rstrip("/")
        # The address is printed before the first request can be answered.
        until = time.monotonic() + 60
        while True:
            try:
                httpx.get(f"{self.url}/healthz", timeout=5)
                return
            except httpx.TransportError:
                assert time.monotonic() < until
                time.sleep(0.05)

    def kill(self):
        """End the process at once, as a power cut does."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stop the process as an operator does; return the exit code and the log."""
        self.process.send_signal(signal.SIGTERM)
        _, logged = self.process.communicate(timeout=60)
        return self.process.returncode, logged


@pytest.fixture
def start():
    """Start servers: ``start(folder, *flags)``."""
    servers = []

    def begin(*args, **kwargs):
        servers.append(Server(*args, **kwargs))
        return servers[-1]

    yield begin
    for server in servers:
        if server.process.poll() is None:
            server.kill()
        for pipe in (server.process.stdout, server.process.stderr):
            pipe.close()


@pytest.fixture(scope="module")
def live(folder):
    """One server for a module of tests that change nothing."""
    server = Server(folder, "--quiet")
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def live_guarded(folder):
    """One server with a token, and with the usual limit of 1,024 open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, hard), hard))
    try:
        server = Server(folder, "--quiet", DIPTYCH_TOKEN="0123456789abcdef0123")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    yield server.url
    server.kill()


LIMITED = """
import sys
from pathlib import Path
from diptych.service._service import Service
from diptych.service._limits import Limits
from diptych.service._model import ModelHolder
from diptych.service._serve import listen, run
limits = Limits(decoders=1, **{options})
with listen("127.0.0.1", 0) as listener:
    service = Service(ModelHolder.open(Path(sys.argv[1])), limits, threads=1)
    run(service, listener, say=lambda line: print(line, flush=True))
"""


@pytest.fixture(scope="module")
def live_hurried(folder):
    """One server with short time limits."""
    server = Server(folder, code=LIMITED.format(options={"header_seconds": 0.5, "body_seconds": 1.0}))
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def live_of_few(folder):
    """One server with at most three waiting connections."""
    server = Server(folder, code=LIMITED.format(options={"connections": 3}))
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def live_writable(folder, tmp_path_factory):
    """One server for a module of tests that change a copy of the model."""
    place = shutil.copytree(folder, tmp_path_factory.mktemp("writable") / "model")
    server = Server(place, "--writable", "--quiet")
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def live_of_molecules(tmp_path_factory):
    """One writable server of a model whose first view is texts."""
    place = tmp_path_factory.mktemp("of-molecules")
    fit_molecules().save(place / "model")
    encoder = f"{write_encoders(place)}:atoms"
    server = Server(place / "model", "--writable", "--quiet", "--image-encoder", encoder)
    yield server.url
    server.kill()


@pytest.fixture(scope="module")
def live_of_features(tmp_path_factory):
    """One writable server of a model of features."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(80, 2))
    y = hidden + 0.1 * rng.normal(size=hidden.shape)
    place = tmp_path_factory.mktemp("of-features") / "model"
    Retriever.from_features(np.hstack([hidden, hidden[:, :1]]) + 0.1 * rng.normal(size=(80, 3)), y).save(
        place
    )
    server = Server(place, "--writable", "--quiet")
    yield server.url
    server.kill()
