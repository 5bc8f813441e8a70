"""The service under load, beside the bare index in the same run.

A server process holds 100,000 items of 512 dimensions; 50 clients search it for a minute over loopback, each
sending its next query as soon as the last is answered. Before that, in the same process and on the same
threads, the index is searched directly. Texts are encoded by a table, so that what is measured is the service
and the index, not an encoder.

With ``--slow 1400`` the same clients search twice: first alone, then beside that many connections, opened by
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

from measuring import clock, pin_threads, record, require


def read_options() -> argparse.Namespace:
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
    """Fit on pairs whose spectrum falls off as real ones do, with a table of texts as the text encoder."""
    import numpy as np

    from diptych import AWCCA, Retriever
    from diptych.encoders import sentence_encoder

    rng = np.random.default_rng(0)
    fall = (1 + np.arange(dimensions, dtype=np.float32)) ** -0.5
    hidden = rng.standard_normal((items, dimensions), np.float32) * fall
    views = []
    for _ in range(2):
        rotation = np.linalg.qr(rng.standard_normal((dimensions, dimensions)))[0].astype(np.float32)
        noise = 0.4 * rng.standard_normal((items, dimensions), np.float32) * fall
        views.append((hidden + noise) @ rotation)
    texts = [f"text number {i}" for i in range(items)]
    rows = {text: i for i, text in enumerate(texts)}
    retriever = Retriever.from_features(
        *views,
        captions=texts,
        text_encoder=sentence_encoder(lambda texts: views[1][[rows[text] for text in texts]]),
        model=AWCCA(params=(1e-2, 1e-2)),
    )
    return retriever, texts


def measure_index(retriever: Any, texts: list[str], batch: int, k: int, seconds: float = 5.0) -> float:
    """Return the queries per second of the index itself."""
    import numpy as np

    from diptych.retrieval._placing import add_offset

    features = retriever.encoders.encode_texts(texts[: batch * 8])
    vectors = add_offset(retriever.searcher.projectors["search"].queries(features), 0.0)
    index = retriever.store.indexes["search"]
    blocks = np.split(vectors, 8)
    index.search(blocks[0], k)
    answered, start = 0, clock()
    while clock() - start < seconds:
        index.search(blocks[(answered // batch) % 8], k)
        answered += batch
    return answered / (clock() - start)


def serve(options: argparse.Namespace) -> None:
    """Measure the bare index, then serve until terminated; print the address and the rates as JSON."""
    import faiss

    from diptych.service._model import LoadedModel, ModelHolder
    from diptych.service._serve import listen, page_url, run
    from diptych.service._service import Service

    retriever, texts = make_retriever(options.items, options.dimensions)
    faiss.omp_set_num_threads(options.threads)
    alone = measure_index(retriever, texts, 1, options.k)
    together = measure_index(retriever, texts, options.clients, options.k)
    service = Service(ModelHolder(LoadedModel(retriever, "load", "1")), threads=options.threads)
    with listen("127.0.0.1", 0) as listener:
        facts = {"url": page_url(listener), "alone": alone, "together": together}
        run(
            service, listener, say=lambda line: print(json.dumps(facts) if "Open" in line else "", flush=True)
        )


async def search_repeatedly(
    address: tuple[str, int], number: int, options: argparse.Namespace, until: float, results: dict[str, Any]
) -> None:
    """Search again and again on one connection."""
    host, port = address
    reader, writer = await asyncio.open_connection(host, port)
    turn = number * 7919
    while clock() < until:
        turn = (turn + 104_729) % options.items
        body = json.dumps({"text": f"text number {turn}", "k": options.k}).encode()
        head = f"POST /v1/search HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        start = clock()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        results["seconds"].append(clock() - start)
        if not answer.startswith(b"HTTP/1.1 200"):
            results["errors"] += 1
        elif number == 0:  # one of them reads its hits
            hits = json.loads(content)["results"][0]["hits"]
            results["read"] += 1
            results["right"] += hits[0]["id"] == str(turn)
            results["errors"] += len(hits) != options.k
    writer.close()


async def hold(address: tuple[str, int], number: int, until: float) -> None:
    """Keep the server waiting on one connection."""
    head = f"POST /v1/session HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nX-Slow: ".encode()
    if number % 14 < 3:
        head += b"yes\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{"
    while clock() < until:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head)
            while clock() < until:
                with contextlib.suppress(TimeoutError):
                    if not await asyncio.wait_for(reader.read(4096), 1.0):
                        break
                writer.write(b" ")
            writer.close()
        await asyncio.sleep(5.0)


async def hold_all(url: str, options: argparse.Namespace) -> None:
    """Open all slow connections, a few hundred new ones a second."""
    until = clock() + options.seconds
    holding = []
    for number in range(options.slow):
        holding.append(asyncio.create_task(hold(parse_address(url), number, until)))
        await asyncio.sleep(0.003)
    await asyncio.gather(*holding)


def parse_address(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    return host, int(port)


async def load(url: str, options: argparse.Namespace, seconds: float) -> dict[str, Any]:
    """Run all clients at once."""
    results: dict[str, Any] = {"seconds": [], "errors": 0, "read": 0, "right": 0}
    start = clock()
    clients = [
        search_repeatedly(parse_address(url), i, options, start + seconds, results)
        for i in range(options.clients)
    ]
    await asyncio.gather(*clients)
    return results | {"took": clock() - start}


def load_beside(url: str, options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """Run the same clients beside slow ones of another process."""
    ramp = 3.0 + options.slow * 0.004  # until all of them are there
    seconds = f"--seconds={options.seconds + ramp + 5}"
    with subprocess.Popen([sys.executable, __file__, "--as-slow", url, seconds, *flags]) as slow:
        time.sleep(ramp)
        results = asyncio.run(load(url, options, options.seconds))
        assert slow.poll() is None, "the slow connections ended before the others did"
        slow.terminate()
    return results


def make_row(what: str, results: dict[str, Any], bare_rate: float) -> dict[str, Any]:
    """Return one load as a row of the table."""
    times, rate = sorted(results["seconds"]), len(results["seconds"]) / results["took"]
    return {
        "what": what,
        "per second": f"{rate:.0f}",
        "p50": f"{1000 * times[len(times) // 2]:.0f} ms",
        "p99": f"{1000 * times[int(len(times) * 0.99)]:.0f} ms",
        "errors": results["errors"],
        "share of the bare index": f"{rate / bare_rate:.2f}",
    }


def main() -> None:
    options = read_options()
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        require(package, "pip install 'diptych[serve]'")
    pin_threads(options.threads)
    if options.as_server:
        serve(options)
        return
    if options.as_slow:
        asyncio.run(hold_all(options.as_slow, options))
        return
    names = ("items", "dimensions", "clients", "threads", "k", "slow")
    flags = [f"--{name}={getattr(options, name)}" for name in names]
    command = [sys.executable, __file__, "--as-server", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        facts = json.loads(next(line for line in server.stdout if line.strip()))
        time.sleep(2)
        asyncio.run(load(facts["url"], options, 3.0))  # threads and connections are warm from here on
        results = asyncio.run(load(facts["url"], options, options.seconds))
        beside = load_beside(facts["url"], options, flags) if options.slow else None
        server.terminate()
    times = results["seconds"]
    what = f"POST /v1/search, {options.clients} clients, {options.seconds:g} s"
    rows = [
        {"what": "bare index, one query at a time", "per second": f"{facts['alone']:.0f}"},
        {"what": f"bare index, {options.clients} at a time", "per second": f"{facts['together']:.0f}"},
        make_row(what, results, facts["together"]),
    ]
    if beside is not None:
        rows.append(make_row(f"the same beside {options.slow:,} slow connections", beside, facts["together"]))
    rows = [{key: row.get(key, "") for key in rows[-1]} for row in rows]
    note = (
        f"{options.items:,} items × {options.dimensions} dimensions, k = {options.k}, exact search in "
        f"float32; {len(times):,} requests, of {results['read']:,} that were read the right item came first "
        f"in {results['right']:,}. Clients run on the same cores as the server."
    )
    if options.no_record:
        print(rows, note)
    else:
        record("service_slow_clients" if options.slow else "service_load", rows, note)


if __name__ == "__main__":
    main()
