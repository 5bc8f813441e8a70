"""Connections that keep the server waiting are bounded in number and time; the oldest gives way.

A client that means to ask sends its request within milliseconds. One that opens a connection and sends
little or nothing costs it nothing and takes a place from others. So the places of connections whose request
has not arrived are few, for each address and in all, and where they are taken the connection that has waited
longest is closed. Requests that have arrived, and those that have proven the token, are not among them;
connections that were answered before and may be used again have places of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from diptych.service._schemas import Limits

TRUST = "diptych.trust"
"""In the scope of a request: to be called once it has proven the token."""

ACCEPTED_AT_ONCE = 64
"""Connections that are accepted in one go: few, so that a request is read before many more have come."""

HEADER_BYTES = 64 * 2**10
LINGER_SECONDS = 5.0

_FILES = 8192


class Waiting:
    """The connections whose request has not arrived, in the order in which they began to wait.

    Parameters
    ----------
    most
        How many there may be.
    most_of_one
        How many of one address.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._all: dict[Connection, str] = {}
        self._of: dict[str, dict[Connection, None]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def enter(self, connection: Connection, address: str) -> None:
        """Let a connection wait, and close the one that has waited longest if that is one too many."""
        if connection in self._all:
            return
        self._all[connection] = address
        own = self._of.setdefault(address, {})
        own[connection] = None
        if len(own) > self._most_of_one:
            oldest = next(iter(own))
        elif len(self._all) > self._most:
            oldest = next(iter(self._all))
        else:
            return
        self.leave(oldest)
        oldest.transport.abort()

    def leave(self, connection: Connection) -> None:
        """It waits no longer."""
        address = self._all.pop(connection, None)
        if address is not None:
            own = self._of[address]
            del own[connection]
            if not own:
                del self._of[address]


class Connection(asyncio.Protocol):
    """What is added to uvicorn's protocol of either parser: clocks, and a place among the waiting."""

    waiting: Waiting
    resting: Waiting
    limits: Limits

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    cycle: Any
    flow: Any
    scope: Any

    _clock: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _address = ""
    _answered = _trusted = False
    _header_bytes = 0
    _left: int | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to wait for a request."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        self._look()
        self._start_clock(self.limits.header_seconds)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request; of one that is answered already, throw them away."""
        if self._left is not None:
            self._left -= len(data)
            if self._left < 0:
                self.transport.abort()
            return
        super().data_received(data)
        if self._is_idle:
            self._header_bytes += len(data)
            if self._header_bytes > HEADER_BYTES:
                self.transport.abort()
            elif self._clock is None:
                self._start_clock(self.limits.header_seconds)
        else:
            self._header_bytes = 0
            self._stop_clock()
            self.scope[TRUST] = self._trust
        self._look()

    def on_response_complete(self) -> None:
        """Wait for the next request, or close if the rest of this one was not wanted."""
        self._leave()
        self._trusted, self._answered = False, True
        if self.cycle.response_complete and self.cycle.more_body and not self.transport.is_closing():
            self._linger()
        else:
            super().on_response_complete()  # type: ignore[misc]
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Give the place back."""
        self._leave()
        self._stop_clock()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give whoever reads an answer some time to take it."""
        super().pause_writing()
        self._stalled = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Some of it was taken."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    @property
    def _is_idle(self) -> bool:
        """Whether there is no request, or only the beginning of its headers."""
        return self.cycle is None or self.cycle.response_complete

    def _look(self) -> None:
        """Take the place that fits: among the waiting until a request has arrived or proven the token."""
        if self._is_idle or (self.cycle.more_body and not self._trusted):
            (self.resting if self._answered else self.waiting).enter(self, self._address)
        else:
            self._leave()

    def _leave(self) -> None:
        self.waiting.leave(self)
        self.resting.leave(self)

    def _trust(self) -> None:
        self._trusted = not self._is_idle
        self._look()

    def _linger(self) -> None:
        """Say that no more is answered, and read on a little: closing at once would take the answer back."""
        self._left = self.limits.upload_bytes
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._start_clock(LINGER_SECONDS)

    def _start_clock(self, seconds: float) -> None:
        self._stop_clock()
        self._clock = self.loop.call_later(seconds, self.transport.abort)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


def protocol(limits: Limits, files: int) -> type[asyncio.Protocol]:
    """The protocol of one server, in a process that may have so many ``files`` open."""
    most = min(limits.unfinished, files // 8)
    waiting, resting = (Waiting(most, limits.unfinished_per_address) for _ in range(2))
    own = {"waiting": waiting, "resting": resting, "limits": limits}
    return type("Guarded", (Connection, AutoHTTPProtocol), own)


def raise_file_limit() -> int:
    """Let this process have more files open, where it may; returns how many it can have."""
    try:
        import resource
    except ImportError:  # Windows counts sockets otherwise
        return _FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return _FILES if soft == resource.RLIM_INFINITY else soft
