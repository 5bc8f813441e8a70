"""The service under load, beside the bare index in the same run.

A server process holds 100,000 items of 512 dimensions; 50 clients ask it for a minute over loopback, each
its next question as soon as the last is answered. Before that, in the same process and on the same threads,
the index is asked directly. Texts are encoded by a table, so that what is measured is the service and the
index, not an encoder.

With ``--slow 1400`` the same clients ask twice: first alone, then beside that many connections, opened by
another process, which send half of their headers, or all of them and the beginning of a body, then a byte a
second; each that the server closes is opened again five seconds later.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from typing import Any

from common import pin_threads, record


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--dimensions", type=int, default=512)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--slow", type=int, default=0, help="Connections that send next to nothing.")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--as-server", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--as-slow", metavar="URL", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_retriever(items: int, dimensions: int) -> tuple[Any, list[str]]:
    """Pairs with a spectrum that falls off as real ones do, and a table of sentences as the text encoder."""
    import numpy as np

    from diptych import AWCCA, Retriever
    from diptych.text import sentence_encoder

    rng = np.random.default_rng(0)
    fall = (1 + np.arange(dimensions, dtype=np.float32)) ** -0.5
    hidden = rng.standard_normal((items, dimensions), np.float32) * fall
    views = []
    for _ in range(2):
        turned = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0].astype(np.float32)
        noise = 0.4 * rng.standard_normal((items, dimensions), np.float32) * fall
        views.append((hidden + noise) @ turned)
    sentences = [f"sentence number {i}" for i in range(items)]
    retriever = Retriever.from_features(
        *views,
        captions=sentences,
        text_encoder=sentence_encoder(views[1], texts=sentences),
        model=AWCCA(params=(1e-2, 1e-2)),
    )
    return retriever, sentences


def bare(retriever: Any, sentences: list[str], batch: int, k: int, seconds: float = 5.0) -> float:
    """Queries per second of the index itself."""
    import numpy as np

    rows = retriever.encoders.encode_texts(sentences[: batch * 8])
    vectors = retriever.searcher.embedding.queries(rows, "search")
    index = retriever.store.indexes["search"]
    blocks = np.split(vectors, 8)
    index.search(blocks[0], k)
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        index.search(blocks[(done // batch) % 8], k)
        done += batch
    return done / (time.perf_counter() - start)


def serve(asked: argparse.Namespace) -> None:
    """The server's side."""
    import faiss

    from diptych.service._app import Service
    from diptych.service._model import LoadedModel, ModelHolder
    from diptych.service._serve import listen, page_url, run

    retriever, sentences = make_retriever(asked.items, asked.dimensions)
    faiss.omp_set_num_threads(asked.threads)
    alone = bare(retriever, sentences, 1, asked.k)
    together = bare(retriever, sentences, asked.clients, asked.k)
    service = Service(ModelHolder(LoadedModel(retriever, "load", "1")), threads=asked.threads)
    with listen("127.0.0.1", 0) as listener:
        told = {"url": page_url(listener), "alone": alone, "together": together}
        run(service, listener, say=lambda line: print(json.dumps(told) if "Open" in line else "", flush=True))


async def client(
    address: tuple[str, int], number: int, asked: argparse.Namespace, until: float, seen: dict[str, Any]
) -> None:
    """One client that asks again and again on one connection."""
    host, port = address
    reader, writer = await asyncio.open_connection(host, port)
    turn = number * 7919
    while time.perf_counter() < until:
        turn = (turn + 104_729) % asked.items
        body = json.dumps({"text": f"sentence number {turn}", "k": asked.k}).encode()
        head = f"POST /v1/search HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        start = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        seen["seconds"].append(time.perf_counter() - start)
        if not answer.startswith(b"HTTP/1.1 200"):
            seen["errors"] += 1
        elif number == 0:  # one of them reads what it is given
            hits = json.loads(content)["results"][0]["hits"]
            seen["read"] += 1
            seen["right"] += hits[0]["id"] == str(turn)
            seen["errors"] += len(hits) != asked.k
    writer.close()


async def hold(address: tuple[str, int], number: int, until: float) -> None:
    """One connection that keeps the server waiting."""
    head = f"POST /v1/session HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nX-Slow: ".encode()
    if number % 14 < 3:
        head += b"yes\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{"
    while time.perf_counter() < until:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head)
            while time.perf_counter() < until:
                with contextlib.suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(4096), 1.0):
                        break
                writer.write(b" ")
            writer.close()
        await asyncio.sleep(5.0)


async def hold_all(url: str, asked: argparse.Namespace) -> None:
    """All slow connections at once, a few hundred new ones a second."""
    until = time.perf_counter() + asked.seconds
    holding = []
    for number in range(asked.slow):
        holding.append(asyncio.create_task(hold(place(url), number, until)))
        await asyncio.sleep(0.003)
    await asyncio.gather(*holding)


def place(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    return host, int(port)


async def load(url: str, asked: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """All clients at once."""
    seen: dict[str, Any] = {"seconds": [], "errors": 0, "read": 0, "right": 0}
    start = time.perf_counter()
    clients = [client(place(url), i, asked, start + seconds, seen) for i in range(asked.clients)]
    await asyncio.gather(*clients)
    return seen | {"took": time.perf_counter() - start}


def load_beside(url: str, asked: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """The same clients, beside slow ones of another process."""
    ramp = 3.0 + asked.slow * 0.004  # until all of them are there
    seconds = f"--seconds={asked.seconds + ramp + 5}"
    with subprocess.Popen([sys.executable, __file__, "--as-slow", url, seconds, *flags]) as slow:
        time.sleep(ramp)
        seen = asyncio.run(load(url, asked, asked.seconds))
        assert slow.poll() is None, "the slow connections ended before the others did"
        slow.terminate()
    return seen


def row(what: str, seen: dict[str, Any], bare_rate: float) -> dict[str, Any]:
    """One load as a row of the table."""
    times, rate = sorted(seen["seconds"]), len(seen["seconds"]) / seen["took"]
    return {
        "what": what,
        "per second": f"{rate:.0f}",
        "p50": f"{1000 * times[len(times) // 2]:.0f} ms",
        "p99": f"{1000 * times[int(len(times) * 0.99)]:.0f} ms",
        "errors": seen["errors"],
        "share of the bare index": f"{rate / bare_rate:.2f}",
    }


def main() -> None:
    asked = parsed()
    pin_threads(asked.threads)
    if asked.as_server:
        serve(asked)
        return
    if asked.as_slow:
        asyncio.run(hold_all(asked.as_slow, asked))
        return
    names = ("items", "dimensions", "clients", "threads", "k", "slow")
    flags = [f"--{name}={getattr(asked, name)}" for name in names]
    command = [sys.executable, __file__, "--as-server", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        told = json.loads(next(line for line in server.stdout if line.strip()))
        time.sleep(2)
        asyncio.run(load(told["url"], asked, 3.0))  # threads and connections are warm from here on
        seen = asyncio.run(load(told["url"], asked, asked.seconds))
        beside = load_beside(told["url"], asked, flags) if asked.slow else None
        server.terminate()
    times = seen["seconds"]
    what = f"POST /v1/search, {asked.clients} clients, {asked.seconds:g} s"
    rows = [
        {"what": "bare index, one query at a time", "per second": f"{told['alone']:.0f}"},
        {"what": f"bare index, {asked.clients} at a time", "per second": f"{told['together']:.0f}"},
        row(what, seen, told["together"]),
    ]
    if beside is not None:
        rows.append(row(f"the same beside {asked.slow:,} slow connections", beside, told["together"]))
    rows = [{key: row.get(key, "") for key in rows[-1]} for row in rows]
    note = (
        f"{asked.items:,} items × {asked.dimensions} dimensions, k = {asked.k}, exact search in float32; "
        f"{len(times):,} requests, of {seen['read']:,} that were read the right item came first in "
        f"{seen['right']:,}. Clients run on the same cores as the server."
    )
    if asked.no_record:
        print(rows, note)
    else:
        record("service_slow_clients" if asked.slow else "service_load", rows, note)


if __name__ == "__main__":
    main()
