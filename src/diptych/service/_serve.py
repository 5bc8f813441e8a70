"""The server process: the socket it listens on, uvicorn's settings, and limits on slow connections.

uvicorn has no limit on connections that keep it waiting. A client sends its request within milliseconds; one
that opens connections and sends little or nothing pays nothing for it and takes the place of others. So there
may be only a limited number of connections whose request has not arrived, and beyond it the one that has
waited longest is closed. Requests that have arrived, or have sent the token, do not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from diptych._checks import InputError, count
from diptych.service._app import build_app
from diptych.service._limits import Limits
from diptych.service._model import ModelHolder
from diptych.service._security import ON_TRUSTED, check_token, is_loopback
from diptych.service._service import Service

GRACE_SECONDS = 15
BACKLOG = 2048
"""Connections that may wait to be accepted."""
ACCEPTED_AT_ONCE = 64
"""Connections accepted in one step: few, so that a request is read before many more are accepted."""
HEADER_BYTES = 64 * 2**10
LINGER_SECONDS = 5.0

_MAX_FILES = 8192


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    limits: Limits | None = None,
    log_queries: bool = False,
    threads: int | None = None,
    quiet: bool = False,
    browser: bool = False,
    say: Callable[[str], None] = print,
    **options: Any,
) -> None:
    """Serve a model folder until the process is stopped.

    ``port`` 0 is any free one, ``quiet`` writes no access log, ``browser`` opens the page, and ``say`` is
    called with the lines for the user, such as the address of the page. The ``options`` are those of
    ``ModelHolder.open``; see ``create_app`` for the others.
    """
    token = check_token(host, token)
    _log_to_stderr(quiet)
    with _interrupt_once(), contextlib.ExitStack() as stack:
        listener = stack.enter_context(contextlib.closing(listen(host, port)))
        service = Service(ModelHolder.open(folder, **options), limits or Limits(), token, threads)
        run(service, listener, log_queries=log_queries, browser=browser, say=say)


@contextlib.contextmanager
def _interrupt_once() -> Iterator[None]:
    """Let Ctrl+C interrupt once and ignore any further: it could come at any moment while all is closed."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is interrupt:
            signal.signal(signal.SIGINT, previous)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, with a larger backlog: asyncio sets it to the number accepted at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, but never by force after a second Ctrl+C, since saving the items may take seconds.

        The second one may come at any moment, also while the first one is handled.
        """
        super().handle_exit(sig, frame)
        self.force_exit = False


def make_server(service: Service, *, log_queries: bool = False) -> uvicorn.Server:
    """Return the server of a service, with its limits."""
    config = uvicorn.Config(
        build_app(service, log_queries=log_queries),
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
        http=make_protocol(service.limits, raise_file_limit()),
        backlog=ACCEPTED_AT_ONCE,
        # Any client can send X-Forwarded-For: it counts only from proxies that the operator names.
        proxy_headers=bool(os.environ.get("FORWARDED_ALLOW_IPS")),
    )
    return _Server(config)


def run(
    service: Service,
    listener: socket.socket,
    *,
    log_queries: bool = False,
    browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve on a listening socket until the process is stopped."""
    server, url = make_server(service, log_queries=log_queries), page_url(listener)
    items, views = service.model.describe()["items"], service.model.views
    say(f"{service.model.name}: {count(items['image'], views.image)}, {count(items['text'], views.text)}")
    say(f"Open {url} (Ctrl+C stops)")
    if (address := network_url(listener)) is not None:
        say(f"On other devices of this network: {address} (with the token)")
    if browser:
        threading.Thread(target=_open_browser, args=(server, url), daemon=True).start()
    # Uvicorn takes signals over only once its event loop runs: Ctrl+C before that would end in a traceback.
    with server.capture_signals():
        server.run([listener])


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sets TCP_NODELAY only if the protocol is named; without it small responses take 40 ms more.
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


def page_url(listener: socket.socket) -> str:
    """Return the URL of the page for a browser on this machine."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):  # noqa: S104, all addresses, among them this one
        host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def network_url(listener: socket.socket) -> str | None:
    """Return the URL of the page for other devices of the local network; None if it is for this machine."""
    host, port = listener.getsockname()[:2]
    if host not in ("0.0.0.0", "::"):  # noqa: S104
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # chooses the way to an address of no one, and sends nothing
        address = probe.getsockname()[0]
        return None if is_loopback(address) else f"http://{address}:{port}/"
    return None


def _open_browser(server: uvicorn.Server, url: str) -> None:
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


class Connection(asyncio.Protocol):
    """Mixin for uvicorn's HTTP protocols: time limits, and a limit on the connections that wait.

    ``waiting`` has all connections of a server whose request has not arrived, in the order in which they
    began to wait, and at most ``most_waiting``.
    """

    waiting: dict[Connection, None]
    most_waiting: int
    limits: Limits

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any
    flow: Any
    scope: Any

    _timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _trusted = False
    _header_bytes = 0
    _discard_bytes: int | None = None
    """How much more is read and dropped after a refused request; None: nothing was refused."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._update_waiting()
        self._start_timer(self.limits.header_seconds)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of a request; drop those of one that was refused."""
        if self._discard_bytes is not None:
            self._discard_bytes -= len(data)
            if self._discard_bytes < 0:
                self.transport.abort()
            return
        super().data_received(data)
        if self._is_idle:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self.transport.abort()
            elif self._timer is None:
                self._start_timer(self.limits.header_seconds)
        else:
            self._header_bytes = 0
            self._stop_timer()
            self.scope[ON_TRUSTED] = self._trust
        self._update_waiting()

    def on_response_complete(self) -> None:
        """Wait for the next request, or close if this one was answered before it had arrived."""
        self.waiting.pop(self, None)
        self._trusted = False
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._linger()
        else:
            super().on_response_complete()  # type: ignore[misc]
        self._update_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self.waiting.pop(self, None)
        self._stop_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        # The client has this long to read more of the response.
        self._write_timer = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request yet, or only a part of its headers."""
        return self.cycle is None or self.cycle.response_complete

    def _update_waiting(self) -> None:
        if not self._is_idle and (self._trusted or not self.cycle.more_body):
            self.waiting.pop(self, None)
        elif self not in self.waiting:
            self.waiting[self] = None
            if len(self.waiting) > self.most_waiting:
                oldest = next(iter(self.waiting))
                del self.waiting[oldest]
                oldest.transport.abort()

    def _trust(self) -> None:
        self._trusted = not self._is_idle
        self._update_waiting()

    def _linger(self) -> None:
        # Closing at once would reset the connection, and the client might lose the response.
        self._discard_bytes = self.limits.upload_bytes
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._start_timer(LINGER_SECONDS)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def make_protocol(limits: Limits, max_files: int) -> type[asyncio.Protocol]:
    """Return the protocol class of one server, in a process that can have ``max_files`` files open."""
    attributes = {"waiting": {}, "most_waiting": min(limits.connections, max_files // 4), "limits": limits}
    return type("LimitedProtocol", (Connection, AutoHTTPProtocol), attributes)


def raise_file_limit() -> int:
    """Raise the limit on this process's open files if possible; return the limit."""
    try:
        import resource
    except ImportError:  # Windows does not count sockets as files
        return _MAX_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(_MAX_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            return limit
    return _MAX_FILES if soft == resource.RLIM_INFINITY else soft
