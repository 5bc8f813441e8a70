"""Slow clients are limited, and do not affect others."""

import asyncio
import contextlib
import socket
import threading
import time

import httpx
import pytest

from diptych.service._limits import Limits, Problem
from diptych.service._security import Access, Gate
from diptych.service._serve import HEADER_BYTES, raise_file_limit
from servers import TOKEN, wait_until

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


def body_of(length):
    return (
        b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n{" % length
    )


def place(url):
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def send(url, content):
    """Return a connection on which this was sent."""
    connection = socket.create_connection(place(url), timeout=30)
    connection.sendall(content)
    return connection


def is_closed(connection, seconds=0.0):
    """Whether the server has closed a connection, or does so in time; what it sends before is read."""
    connection.settimeout(max(seconds, 0.001))
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.slow
def test_unfinished_requests_do_not_block_others(live_guarded, easy):
    """1,100 half-sent headers and 300 unfinished bodies of one address, beside normal clients of it."""
    raise_file_limit()
    stop, seconds, wrong = threading.Event(), [], []

    def ask(reuse):
        """Ask for health without the token and search with it, on one connection or on new ones."""
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(httpx.Client(base_url=live_guarded, timeout=20))
            while not stop.is_set():
                if not reuse:
                    client = stack.enter_context(httpx.Client(base_url=live_guarded, timeout=20))
                start = time.monotonic()
                try:
                    answers = (
                        client.get("/healthz"),
                        client.post(
                            "/v1/search",
                            json={"text": easy.text, "k": 3},
                            headers={"Authorization": f"Bearer {TOKEN}"},
                        ),
                    )
                    wrong.extend(answer.text for answer in answers if answer.status_code != 200)
                except httpx.TransportError as error:
                    wrong.append(repr(error))
                seconds.append(time.monotonic() - start)
                time.sleep(0.02)

    clients = [threading.Thread(target=ask, args=(reuse,)) for reuse in (True, True, False)]
    for thread in clients:
        thread.start()
    wait_until(lambda: len(seconds) >= 12)
    alone, slow = max(seconds), []
    try:
        for number in range(1400):
            slow.append(send(live_guarded, body_of(100) if number % 14 < 3 else HALF))
        before, until = len(seconds), time.monotonic() + 3
        while time.monotonic() < until or len(seconds) < before + 20:
            for connection in slow:
                with contextlib.suppress(OSError):
                    connection.send(b" ")
            time.sleep(0.5)
        closed = sum(map(is_closed, slow))
    finally:
        stop.set()
        for thread in clients:
            thread.join()
        for connection in slow:
            connection.close()
    assert wrong == []
    assert len(seconds) > 30
    assert max(seconds) < 5 + 5 * alone  # a busy machine is slow without them too
    assert closed >= 1400 - Limits().connections


def test_slow_headers_are_cut_off(serve, folder):
    url = serve(folder, header_seconds=0.5)
    slow = [send(url, HALF), send(url, b"")]
    idle = send(url, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b"200 OK" in idle.recv(65536)
    idle.sendall(HALF)  # the next request on a connection that has answered one

    def has_closed(connection):
        with contextlib.suppress(OSError):
            connection.send(b"x")  # a byte now and then does not stop the clock
        return is_closed(connection, 0.1)

    for connection in (*slow, idle):
        wait_until(lambda connection=connection: has_closed(connection))
        connection.close()


def test_too_long_headers_are_cut_off(serve, folder):
    with send(serve(folder), HALF) as connection:
        with contextlib.suppress(OSError):
            for _ in range(40):
                connection.sendall(b"x" * (HEADER_BYTES // 8))
        assert is_closed(connection, 30)


def test_the_rest_of_a_refused_body_is_not_read(serve, folder):
    """The response arrives while the body is still being sent, and the connection is closed."""
    url, right = serve(folder, token=TOKEN), b"Authorization: Bearer %s\r\n" % TOKEN.encode()
    for path, extra, status in (
        (b"search", b"", b"401"),
        (b"session", b"", b"413"),
        (b"annotate", right, b"413"),
    ):
        head = b"POST /v1/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n%s" % (
            path,
            extra,
        )
        with send(url, head + b"Content-Length: 8000000000\r\n\r\n" + b"x" * 100_000) as connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 " + status)
            sent = 0
            with contextlib.suppress(OSError):
                while sent < 400_000_000:
                    sent += connection.send(b"x" * 2**20)
            assert sent < 100_000_000


def test_a_client_that_reads_nothing_is_disconnected(serve, folder):
    url = serve(folder, body_seconds=1.0)
    ask = b"GET /v1/model HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(place(url))
        connection.settimeout(1)

        def is_disconnected():
            try:
                connection.sendall(ask * 200)
            except TimeoutError:  # neither side takes anything
                return False
            except OSError:
                return True

        wait_until(is_disconnected)


def test_the_connection_that_has_waited_longest_is_closed(serve, folder):
    """A server with at most three waiting connections, and no limit on their time here."""
    url = serve(folder, connections=3, header_seconds=600, body_seconds=600)
    busy = [send(url, HALF) for _ in range(3)]
    kept = send(url, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b"200 OK" in kept.recv(65536)  # it waits again, since this moment
    assert is_closed(busy[0], 30)
    more = [send(url, body_of(100)) for _ in range(2)]
    assert all(is_closed(connection, 30) for connection in busy[1:])
    assert not any(map(is_closed, (kept, *more)))
    more.append(send(url, HALF))
    assert is_closed(kept, 30)
    for connection in (*busy, kept, *more):
        connection.close()


def make_scope(path, headers=(), method="POST"):
    named = {"host": "127.0.0.1", "content-type": "application/json", **dict(headers)}
    return {
        "type": "http",
        "path": path,
        "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }


def test_unfinished_bodies_do_not_count_as_open_requests():
    async def answer(scope, receive, send):
        if scope["method"] == "POST":
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def run():
        gate = Gate(answer, Limits(requests=2), Access(TOKEN))
        never = asyncio.Event()
        statuses = []

        async def unfinished():
            await never.wait()

        async def send(message):
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        length = {"content-length": "100"}
        slow = [
            asyncio.create_task(gate(make_scope("/v1/session", length), unfinished, send)) for _ in range(10)
        ]
        await asyncio.sleep(0.05)
        assert statuses == []

        async def whole():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        token = {"authorization": f"Bearer {TOKEN}"}
        await gate(make_scope("/healthz", method="GET"), whole, send)
        await gate(make_scope("/v1/search", length | token), whole, send)
        await gate(make_scope("/v1/session", length), whole, send)
        assert statuses == [200, 200, 200]
        # Requests with the token are counted from their start, apart from those without.
        trusted = [
            asyncio.create_task(gate(make_scope("/v1/search", length | token), unfinished, send))
            for _ in range(2)
        ]
        await asyncio.sleep(0.05)
        await gate(make_scope("/v1/search", length | token), whole, send)
        await gate(make_scope("/v1/session", length), whole, send)
        await gate(make_scope("/healthz", method="GET"), whole, send)
        for task in (*slow, *trusted):
            task.cancel()
        return statuses[3:]

    assert asyncio.run(run()) == [503, 200, 200]


def test_a_body_that_arrives_at_a_full_server_gets_503():
    async def run():
        statuses = []

        async def answer(scope, receive, send):
            try:
                await receive()
            except Problem as problem:
                statuses.append(problem.status_code)
                raise

        async def send(message):
            statuses.append(message.get("status"))

        async def whole():
            return {"type": "http.request", "body": b"{}", "more_body": False}

        gate = Gate(answer, Limits(requests=1), Access(None))
        gate._open_requests[False] = 1
        await gate(make_scope("/v1/search", {"content-length": "2"}), whole, send)
        return statuses

    assert asyncio.run(run())[:2] == [503, 503]
