"""The gate: who may come in, how much they may carry, and what browsers are told to allow."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from starlette.requests import ClientDisconnect

from diptych._checks import InputError
from diptych.service._connections import TRUST
from diptych.service._schemas import Limits, Problem, as_problem, busy

log = logging.getLogger("diptych.service")

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "diptych_session"
MIN_TOKEN = 16
HEALTH, SESSION = "/healthz", "/v1/session"
SESSION_BYTES = 8192
"""Of a request to be let in: all that a stranger may send."""
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def is_loopback(host: str) -> bool:
    """Whether a name or address leads to this machine alone."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> str | None:
    """``token`` if it can guard a server that listens on ``host``."""
    if token is None or token == "":
        if not is_loopback(host):
            raise InputError(
                f"binding to {host} lets other machines in, which takes a token; give --token or set "
                "DIPTYCH_TOKEN, or bind to 127.0.0.1."
            )
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable():
        raise InputError(
            f"the token has {len(token)} characters; give {MIN_TOKEN} or more plain ones, for example from: "
            "openssl rand -hex 24"
        )
    return token


class Gate:
    """Stands before an application and turns away what must not reach it.

    Parameters
    ----------
    app
        The application.
    limits
        Sizes and times of requests.
    token
        What callers must know; None: nothing, and then only this machine's own names are answered to.
    is_open
        Whether a path may be read without the token: the page itself, which holds no data.
    """

    def __init__(
        self, app: App, limits: Limits, token: str | None = None, is_open: Callable[[str], bool] | None = None
    ) -> None:
        self._app, self._limits, self._token = app, limits, token
        self._is_open = is_open or (lambda path: False)
        self._inside = {True: 0, False: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        answer = _Answer(send, scope["path"])
        trusted = counted = False

        def enter() -> None:
            """Count a request; strangers take no place from those who have proven the token."""
            nonlocal counted
            if counted or scope["path"] == HEALTH:
                return
            if self._inside[trusted] >= self._limits.requests:
                raise busy("many requests are open")
            self._inside[trusted] += 1
            counted = True

        try:
            self._check_origin(scope, headers)
            trusted = self._check_token(scope["path"], headers)
            if trusted:
                scope.get(TRUST, lambda: None)()
            most = self._most(scope["path"], headers)
            if trusted or not _carries(headers):
                enter()
            # A request that is still arriving takes nothing yet but its connection.
            bounded = _bounded(receive, most, self._limits.body_seconds, enter)
            await self._app(scope, bounded, answer.send)
        except ClientDisconnect:
            pass
        except Exception as error:
            problem = as_problem(error)
            if problem.status_code == 500:
                log.exception("a request met a defect")
            if answer.begun:
                raise
            await problem.response()(scope, receive, answer.send)
        finally:
            if counted:
                self._inside[trusted] -= 1

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        """A page of somebody else's, in the browser of the user, is not the user."""
        host = headers.get("host", "")
        if self._token is None and not is_loopback(_split(f"//{host}").hostname or ""):
            raise Problem(421, "wrong-host", f"this server does not answer to the name {host[:100]!r}.")
        origin = headers.get("origin")
        if origin is not None and scope["method"] not in ("GET", "HEAD") and _split(origin).netloc != host:
            raise Problem(403, "other-origin", "requests from pages of other servers are not answered.")

    def _check_token(self, path: str, headers: dict[str, str]) -> bool:
        """Whether a request has proven the token; without it, most are refused."""
        if self._token is None:
            return False
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and same(given.strip(), self._token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            cookie = None
        if cookie is not None and same(cookie.value, session_of(self._token)):
            return True
        if path in (HEALTH, SESSION) or self._is_open(path):
            return False
        raise Problem(
            401,
            "token-needed",
            "this server asks for a token; send it as Authorization: Bearer TOKEN.",
            {"WWW-Authenticate": "Bearer"},
        )

    def _most(self, path: str, headers: dict[str, str]) -> int:
        """How many bytes a request may carry."""
        carried = headers.get("content-type", "").partition(";")[0].strip().lower()
        most = self._limits.upload_bytes if carried == "multipart/form-data" else self._limits.json_bytes
        if path == SESSION:
            most = SESSION_BYTES
        given = headers.get("content-length", "0")
        if given.isdigit() and int(given) > most:
            raise too_large(most)
        return most


def same(given: str, wanted: str) -> bool:
    """Whether two secrets are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())


def session_of(token: str) -> str:
    """What the page's cookie holds: proof of the token, from which it cannot be told."""
    return hmac.new(token.encode(), b"diptych session", hashlib.sha256).hexdigest()


def too_large(most: int) -> Problem:
    """More than was agreed."""
    return Problem(413, "too-large", f"the request is larger than {most:,} bytes; send less at a time.")


def _split(address: str) -> SplitResult:
    """The parts of an address; of what is none, no parts."""
    try:
        parts = urlsplit(address)
        _ = parts.hostname
    except ValueError:
        return urlsplit("")
    return parts


def _carries(headers: dict[str, str]) -> bool:
    """Whether more follows the headers of a request."""
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


def _bounded(receive: Receive, most: int, seconds: float, arrived: Callable[[], None]) -> Receive:
    """``receive``, for so many bytes and so long; says when all has ``arrived``."""
    taken, done = 0, False
    deadline: float | None = None

    async def bounded() -> Message:
        nonlocal taken, done, deadline
        if done:  # what follows the request is the end of the connection, and may take its time
            return await receive()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds if deadline is None else deadline
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Problem(
                408,
                "too-slow",
                f"the request took more than {seconds:g} seconds to arrive; send it again.",
            ) from None
        taken += len(message.get("body", b""))
        done = message["type"] != "http.request" or not message.get("more_body", False)
        if taken > most:
            raise too_large(most)
        if done:
            arrived()
        return message

    return bounded


class _Answer:
    """Sends an answer with the headers that every answer carries."""

    def __init__(self, send: Send, path: str) -> None:
        self._send, self.begun = send, False
        self._more = dict(HEADERS)
        if path.startswith("/v1/") or path in ("/metrics", HEALTH):
            self._more["Cache-Control"] = "no-store"

    async def send(self, message: Message) -> None:
        """One message of it."""
        if message["type"] == "http.response.start":
            self.begun = True
            there = {name.lower() for name, _ in message["headers"]}
            more = [(name.lower().encode(), value.encode()) for name, value in self._more.items()]
            message["headers"] = [*message["headers"], *(each for each in more if each[0] not in there)]
        await self._send(message)
