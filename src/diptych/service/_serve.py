"""A server that listens, says where, and stops without dropping anybody."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from diptych._checks import InputError, count
from diptych._persistence import lock_for_serving
from diptych.service._app import create_app
from diptych.service._connections import ACCEPTED_AT_ONCE, protocol, raise_file_limit
from diptych.service._model import Shelf
from diptych.service._schemas import Limits
from diptych.service._security import check_token
from diptych.service._service import Service

GRACE_SECONDS = 15
BACKLOG = 2048
"""Connections that may wait to be accepted."""


@dataclass(frozen=True)
class Settings:
    """How a model is served.

    Attributes
    ----------
    host, port
        Where to listen; port 0: any that is free.
    token
        What callers must know; needed where other machines can reach ``host``.
    writable
        Whether items may be added and removed.
    limits
        Bounds of requests.
    log_queries
        Log what was asked.
    threads
        BLAS and OpenMP threads of one search; None: all cores.
    quiet
        No access log.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    writable: bool = False
    limits: Limits = field(default_factory=Limits)
    log_queries: bool = False
    threads: int | None = None
    quiet: bool = False


def serve(
    folder: Path,
    settings: Settings,
    *,
    image_encoder: Any = None,
    text_encoder: Any = None,
    browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a model's folder until the process is told to stop.

    Parameters
    ----------
    folder
        What ``Retriever.save`` wrote; a new version that is saved there is served from then on.
    settings
        How.
    image_encoder, text_encoder
        The encoders, where they are not in the folder.
    browser
        Open the page in a browser.
    say
        Told where the page is.
    """
    token = check_token(settings.host, settings.token)
    _log_to_stderr(settings.quiet)
    with contextlib.ExitStack() as held:
        listener = held.enter_context(contextlib.closing(listening(settings.host, settings.port)))
        if settings.writable:
            held.enter_context(lock_for_serving(folder))
        shelf = Shelf.open(
            folder, writable=settings.writable, image_encoder=image_encoder, text_encoder=text_encoder
        )
        service = Service(shelf, settings.limits, token, settings.threads)
        run(service, listener, log_queries=settings.log_queries, browser=browser, say=say)


class _Server(uvicorn.Server):
    """A server that accepts a few connections at once, and lets many wait for that."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen: asyncio takes both numbers for one, and sets the second by the first."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop at the first Ctrl+C; a second one does not cut short what takes seconds and saves items."""
        if not self.should_exit:
            super().handle_exit(sig, frame)


def run(
    service: Service,
    listener: socket.socket,
    *,
    log_queries: bool = False,
    browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve on a socket that listens already."""
    app = create_app(service, log_queries=log_queries)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
        http=protocol(service.limits, raise_file_limit()),
        backlog=ACCEPTED_AT_ONCE,
        # Anybody can write X-Forwarded-For: it is believed from those that the operator names, if any.
        proxy_headers=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
    )
    server = _Server(config)
    url = address(listener)
    counts = service.served.describe()["items"]
    say(f"{service.served.name}: {count(counts['image'], 'picture')}, {count(counts['text'], 'sentence')}")
    say(f"Open {url} (Ctrl+C stops)")
    if browser:
        threading.Thread(target=_open, args=(server, url), daemon=True).start()
    server.run([listener])


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens on an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # Named as TCP, connections are told not to hold small packets back, 40 ms an answer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"cannot listen on {host}, port {port} ({reason}); choose another --port or --host."
        ) from None
    return listener


def address(listener: socket.socket) -> str:
    """Where a browser on this machine finds a socket."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104, every address of this machine, this one included
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _open(server: uvicorn.Server, url: str) -> None:
    while not server.started:
        if server.should_exit:
            return
        time.sleep(0.05)
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(url)


def _log_to_stderr(quiet: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING
    )
    logging.getLogger("diptych.service").setLevel(logging.INFO)
    logging.getLogger("diptych.access").setLevel(logging.WARNING if quiet else logging.INFO)
