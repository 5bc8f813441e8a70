"""Servers for the tests: applications in this process, servers in threads, and ``diptych serve`` itself."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import threading
import time

import httpx
from PIL import Image
from starlette.testclient import TestClient

from diptych import Retriever
from diptych.service._app import build_app
from diptych.service._limits import Limits
from diptych.service._model import LoadedModel, ModelHolder
from diptych.service._serve import listen, make_server, page_url
from diptych.service._service import Service

LOCAL = "http://127.0.0.1"
TOKEN = "0123456789abcdef0123"


def ids(answer, at=0):
    """The ids of the hits of a query."""
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"][at]["hits"]]


def problem(answer):
    """The status and the kind of a refusal."""
    return answer.status_code, answer.json()["type"].rpartition(":")[2]


def detail(answer, *expected):
    """The message of a refusal with this status, or with this status and kind."""
    assert problem(answer)[: len(expected)] == expected, answer.text
    return answer.json()["detail"]


def png(colour="red"):
    """A small image."""
    file = io.BytesIO()
    Image.new("RGB", (48, 48), colour).save(file, "PNG")
    return file.getvalue()


def wait_until(condition, seconds=60):
    """Wait for something that another thread or process does."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def make_service(place, *, writable=False, token=None, encoder=None, send_files=False, **limits):
    """Return the service of a model folder, or of a retriever in memory."""
    if isinstance(place, Retriever):
        holder = ModelHolder(LoadedModel(place, "model", "1", send_files=send_files))
    else:
        holder = ModelHolder.open(place, writable=writable, image_encoder=encoder)
    return Service(holder, Limits(**{"decoders": 1, **limits}), token, threads=1, watch_seconds=0.05)


def in_process(place, *, headers=None, log=False, **options):
    """Return a client of an application in this process."""
    service = make_service(place, **options)
    client = TestClient(
        build_app(service, log_queries=log), LOCAL, headers=headers, raise_server_exceptions=False
    )
    client.service = service
    return client


@contextlib.contextmanager
def serving(place, **options):
    """Serve in a thread, with the limits on connections; yield the address."""
    server = make_server(make_service(place, **options))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield page_url(listener).rstrip("/")
        finally:
            server.should_exit = True
            thread.join()


class Server:
    """``diptych serve`` as a user starts it."""

    def __init__(self, folder, *flags, group=False, **environment):
        command = [sys.executable, "-m", "diptych", "serve", str(folder), "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(
            [*command, *flags],
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
        wait_until(self.answers)

    def answers(self):
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/healthz", timeout=5)

    def kill(self):
        """End the process at once, as a power cut does."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Stop the process as an operator does; return the exit code and the log."""
        self.process.send_signal(signal.SIGTERM)
        _, logged = self.process.communicate(timeout=60)
        return self.process.returncode, logged
