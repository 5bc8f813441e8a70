"""Access control: the token, the host and origin of a request, its size, and headers for browsers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import time
from collections.abc import Callable, Container
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, cookie_parser
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych._checks import InputError
from diptych.service._limits import Limits, Problem, as_problem, busy

log = logging.getLogger("diptych.service")

COOKIE = "diptych_session"
MIN_TOKEN = 16
SESSION_SECONDS = 7 * 24 * 3600
"""How long a cookie is valid."""
WRONG_TOKENS, WRONG_SECONDS = 10, 60.0
"""How many different wrong tokens an address may send in this time."""
MOST_ADDRESSES = 1024
"""Addresses whose wrong tokens are counted; beyond it the one that was first seen is forgotten."""
HEALTH, SESSION = "/healthz", "/v1/session"
SESSION_BYTES = 8192
"""Size of a request for a session, the only body that clients without the token may send."""
ON_TRUSTED = "diptych.on_trusted"
"""Key of the request scope: a function to call once the request has sent the token."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "media-src 'self' blob:; connect-src 'self'; form-action 'none'; base-uri 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'"
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
    """Return whether a name or address is one of this machine's own."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> str | None:
    """Return the token, None for no token; refuse a weak one, and a missing one if others can connect."""
    if not token:
        if not is_loopback(host):
            raise InputError(
                f"listening on {host} lets other machines connect, which needs a token; give --token or set "
                "DIPTYCH_TOKEN, or listen on 127.0.0.1."
            )
        return None
    if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"the token is too short, or has other characters than printable ASCII without spaces; give at "
            f"least {MIN_TOKEN} of these, for example from: openssl rand -hex 24"
        )
    return token


class Access:
    """Compares what clients send with the token of the server, if it has one.

    An address that has sent several wrong tokens is not compared for a while: even the right one would be
    refused, so nobody can try many. An address that has sent the right one before is always compared, so that
    clients behind one proxy do not lock out each other.
    """

    def __init__(self, token: str | None) -> None:
        self.token = token
        # Of each address, hashes of wrong tokens and when they came; None if the right one was among them.
        self._wrong: dict[str, dict[int, float] | None] = {}

    def accepts(self, address: str, *, token: str = "", cookie: str = "") -> bool:
        """Return whether an address has sent the right token, or a valid cookie."""
        if self.token is None or not (token or cookie) or self._is_blocked(address):
            return False
        if len(self._wrong) >= MOST_ADDRESSES and address not in self._wrong:
            del self._wrong[next(iter(self._wrong))]
        if secrets_equal(token, self.token) or self._is_valid(cookie):
            self._wrong[address] = None
            return True
        if (wrong := self._wrong.setdefault(address, {})) is not None:
            wrong[hash((token, cookie))] = time.monotonic()
        return False

    def refuse(self, address: str, detail: str) -> Problem:
        """Return the problem for a request that was not accepted."""
        if self._is_blocked(address):
            seconds = {"Retry-After": f"{WRONG_SECONDS:.0f}"}
            return Problem(
                429, "too-many", "too many wrong tokens were sent; try again in a minute.", seconds
            )
        return Problem(401, "token-needed", detail, {"WWW-Authenticate": "Bearer"})

    def make_cookie(self) -> str:
        """Return a new value of the page's cookie, which proves the token without containing it."""
        return self._sign(str(int(time.time()) + SESSION_SECONDS))

    def _is_valid(self, cookie: str) -> bool:
        expires = cookie.partition(".")[0]
        in_time = expires.isascii() and expires.isdigit() and len(expires) < 16 and int(expires) > time.time()
        return secrets_equal(cookie, self._sign(expires)) and in_time

    def _sign(self, expires: str) -> str:
        signed = hmac.new(str(self.token).encode(), f"diptych session {expires}".encode(), hashlib.sha256)
        return f"{expires}.{signed.hexdigest()}"

    def _is_blocked(self, address: str) -> bool:
        if not (wrong := self._wrong.get(address)):
            return False
        start = time.monotonic() - WRONG_SECONDS
        self._wrong[address] = wrong = {secret: at for secret, at in wrong.items() if at > start}
        return len(wrong) >= WRONG_TOKENS


def secrets_equal(secret: str, expected: str) -> bool:
    """Compare two secrets in a time that does not depend on where they differ."""
    return hmac.compare_digest(secret.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


def client_address(scope: Scope) -> str:
    """Return the address that a request comes from; empty if it is not known."""
    return str(scope["client"][0]) if scope.get("client") else ""


class Gate:
    """Middleware that refuses requests before they reach the application.

    Without a token, only loopback host names are answered. ``open_paths`` need no token: the page itself,
    which has no data.
    """

    def __init__(self, app: ASGIApp, limits: Limits, access: Access, open_paths: Container[str] = ()) -> None:
        self._app, self._limits, self._access, self._open_paths = app, limits, access, open_paths
        self._open_requests = {True: 0, False: 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        path, headers = scope["path"], Headers(scope=scope)
        trusted = counted = started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                response_headers = MutableHeaders(scope=message)
                cache = "no-cache" if path in self._open_paths else "no-store"
                for name, value in (*HEADERS.items(), ("Cache-Control", cache)):
                    response_headers.setdefault(name, value)
            await send(message)

        def count() -> None:
            # Those with and without the token are counted apart, so that the latter cannot block the former.
            nonlocal counted
            if counted or path == HEALTH:
                return
            if self._open_requests[trusted] >= self._limits.requests:
                raise busy("many requests are open")
            self._open_requests[trusted] += 1
            counted = True

        try:
            self._check_origin(scope["method"], headers)
            trusted = self._check_token(path, headers, client_address(scope))
            if trusted:
                scope.get(ON_TRUSTED, lambda: None)()
            max_bytes = self._check_size(path, headers)
            if trusted or not ("transfer-encoding" in headers or headers.get("content-length", "0") != "0"):
                count()
            # Any other request is counted once its body has arrived: until then it costs only a connection.
            bounded = _limit_body(receive, max_bytes, self._limits.body_seconds, count)
            await self._app(scope, bounded, send_with_headers)
        except ClientDisconnect:
            pass
        except Exception as error:
            problem = as_problem(error)
            if problem.status_code == 500:
                log.exception("a request failed with an internal error")
            if started:
                raise
            await problem.response()(scope, receive, send_with_headers)
        finally:
            if counted:
                self._open_requests[trusted] -= 1

    def _check_origin(self, method: str, headers: Headers) -> None:
        """Refuse requests that a web page of another server sends from the user's browser."""
        host = headers.get("host", "")
        # Against DNS rebinding. Starlette's ``TrustedHostMiddleware`` compares with a list, which cannot hold
        # all of 127.0.0.0/8, and answers 400 in plain text where 421 (RFC 9110) with problem details is due.
        if self._access.token is None and not is_loopback(_split_url(f"//{host}").hostname or ""):
            raise Problem(421, "wrong-host", f"this server does not answer to the name {host[:100]!r}.")
        origin = headers.get("origin")
        if origin is not None and method not in ("GET", "HEAD") and _split_url(origin).netloc != host:
            raise Problem(403, "other-origin", "requests from web pages of other servers are refused.")

    def _check_token(self, path: str, headers: Headers, address: str) -> bool:
        """Return whether a request has sent the token; refuse one that needs it and has not."""
        if self._access.token is None:
            return False
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._access.accepts(address, token=token.strip()):
            return True
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        if self._access.accepts(address, cookie=cookie):
            return True
        if path in (HEALTH, SESSION) or path in self._open_paths:
            return False
        raise self._access.refuse(
            address, "this server needs a token; send it as Authorization: Bearer TOKEN."
        )

    def _check_size(self, path: str, headers: Headers) -> int:
        """Return how many bytes the body may have; refuse a body that is announced as larger."""
        is_form = media_type(headers) == "multipart/form-data"
        max_bytes = self._limits.upload_bytes if is_form else self._limits.json_bytes
        if path == SESSION:
            max_bytes = SESSION_BYTES
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > max_bytes:
            raise _too_large(max_bytes)
        return max_bytes


def media_type(headers: Headers) -> str:
    """Return the media type of a request, without its parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _too_large(max_bytes: int) -> Problem:
    return Problem(413, "too-large", f"the request is larger than {max_bytes:,} bytes; send less at a time.")


def _split_url(url: str) -> SplitResult:
    """Split a URL; a malformed one has no parts."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname
    except ValueError:
        return urlsplit("")
    return parts


def _limit_body(receive: Receive, max_bytes: int, seconds: float, on_complete: Callable[[], None]) -> Receive:
    """Wrap ``receive`` such that the body has a limited size and time; call ``on_complete`` at its end."""
    size, complete = 0, False
    deadline: float | None = None

    async def receive_limited() -> Message:
        nonlocal size, complete, deadline
        if complete:  # only the end of the connection can follow, at any time
            return await receive()
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + seconds
        try:
            async with asyncio.timeout_at(deadline):
                message = await receive()
        except TimeoutError:
            raise Problem(
                408, "too-slow", f"the request took more than {seconds:g} seconds to arrive; send it again."
            ) from None
        size += len(message.get("body", b""))
        complete = message["type"] != "http.request" or not message.get("more_body", False)
        if size > max_bytes:
            raise _too_large(max_bytes)
        if complete:
            on_complete()
        return message

    return receive_limited
