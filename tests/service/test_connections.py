"""Slow clients are limited, and do not affect others."""

import asyncio
import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from diptych import InputError
from diptych.service._limits import Limits
from diptych.service._serve import HEADER_BYTES, raise_file_limit
from servers import TOKEN, problem, wait_until

HALF = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


def body_of(length, headers=b""):
    return (
        b"POST /v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n%s"
        b"Content-Length: %d\r\n\r\n{" % (headers, length)
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


def test_unfinished_bodies_do_not_count_as_open_requests(serve, folder):
    url = serve(folder, token=TOKEN, requests=2)
    right = {"Authorization": f"Bearer {TOKEN}"}
    slow = [send(url, body_of(100)) for _ in range(10)]

    def list_statuses():
        answers = (
            httpx.get(f"{url}/v1/model", headers=right),
            httpx.post(f"{url}/v1/session", json={"token": TOKEN}),
            httpx.get(f"{url}/healthz"),
        )
        return [answer.status_code for answer in answers]

    assert list_statuses() == [200, 204, 200]
    # Requests with the token are counted from their start, apart from those without.
    slow += [send(url, body_of(100, b"Authorization: Bearer %s\r\n" % TOKEN.encode())) for _ in range(2)]
    wait_until(lambda: list_statuses() == [503, 204, 200])
    for connection in slow:
        connection.close()


def test_a_body_that_arrives_at_a_full_server_gets_503(make_client, monkeypatch):
    client, arrived, done = make_client(requests=1), threading.Event(), threading.Event()

    async def search(*args, **options):
        arrived.set()
        await asyncio.to_thread(done.wait)
        raise InputError("nothing is found")

    def ask():
        return problem(client.post("/v1/search", json={"text": "a star"}))

    monkeypatch.setattr(client.service.batcher, "search", search)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask)
        assert arrived.wait(60)
        refused = ask()
        done.set()
        assert (refused, first.result()) == ((503, "busy"), (422, "bad-input"))
