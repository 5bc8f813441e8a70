"""Searches in a few threads; queries that wait at the same time share one pass over the index.

One pass costs nearly the same for one query as for twenty, since most of its time goes into reading the
vectors. While a pass runs, the queries that arrive are collected, and the next pass answers all of them. A
query that arrives alone does not wait for others.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import threadpoolctl

from diptych._checks import InputError, Task
from diptych.retrieval import Hits
from diptych.retrieval._inputs import Queries
from diptych.service._limits import Limits, Slots
from diptych.service._model import LoadedModel
from diptych.service._schemas import Matrix

Key: TypeAlias = tuple[LoadedModel, Task, str]
"""What queries must have in common to be searched in one pass: also their options, as JSON."""

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class _Request:
    queries: list[str] | Matrix
    hits: asyncio.Future[list[Hits]]


class Batcher:
    """Runs functions in ``limits.concurrency`` threads, and batches searches.

    ``threads`` is the number of BLAS and OpenMP threads that each of them uses (None: one per core), and
    ``on_batch`` is called with the number of queries of each batch.
    """

    def __init__(
        self, limits: Limits, threads: int | None = None, on_batch: Callable[[int], None] = lambda size: None
    ) -> None:
        self._limits, self._on_batch = limits, on_batch
        self._pool = ThreadPoolExecutor(limits.concurrency, "search", _limit_threads, (threads,))
        self._waiting: dict[Key, deque[_Request]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.slots = Slots(limits.concurrency + limits.waiting, "many queries are waiting")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread; raise a 503 problem if too many calls are waiting."""
        with self.slots:
            call = partial(function, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def search(
        self, model: LoadedModel, task: Task, queries: list[str] | Matrix, k: int, **options: Any
    ) -> list[Hits]:
        """Return the k best items for each query, texts or rows of checked features.

        The options are those of ``Retriever.search``. Queries with the same ones share passes.
        """
        options["k"] = k
        with self.slots:
            request = _Request(queries, asyncio.get_running_loop().create_future())
            # The parts of a composed query have no JSON, and it shares its pass with no other.
            key = (model, task, json.dumps(options, sort_keys=True, default=id))
            if key in self._waiting:
                self._waiting[key].append(request)
            else:
                self._waiting[key] = deque([request])
                search: Any = model.retriever.search if task == "search" else model.retriever.annotate
                batches = asyncio.create_task(self._search_waiting(key, partial(search, **options)))
                self._tasks.add(batches)
                batches.add_done_callback(self._tasks.discard)
            return await request.hits

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _search_waiting(self, key: Key, search: Callable[[Queries], list[Hits]]) -> None:
        waiting = self._waiting[key]
        while waiting:
            batch = [waiting.popleft()]
            size = len(batch[0].queries)
            while waiting and size + len(waiting[0].queries) <= self._limits.batch:
                batch.append(waiting.popleft())
                size += len(batch[-1].queries)
            self._on_batch(size)
            answers: list[list[Hits] | Exception]
            try:
                queries = [request.queries for request in batch]
                answers = await asyncio.get_running_loop().run_in_executor(
                    self._pool, _search_batch, key[0], search, queries
                )
            except Exception as error:  # every request of the batch gets it
                answers = [error] * len(batch)
            for request, answer in zip(batch, answers, strict=True):
                if request.hits.done():  # the client has disconnected
                    continue
                if isinstance(answer, Exception):
                    request.hits.set_exception(answer)
                else:
                    request.hits.set_result(answer)
        del self._waiting[key]


def _search_batch(
    model: LoadedModel, search: Callable[[Queries], list[Hits]], batch: list[list[str] | Matrix]
) -> list[list[Hits] | Exception]:
    encoded = _encode_batch(model, batch)
    accepted = [queries for queries in encoded if isinstance(queries, Queries)]
    if not accepted:
        return [error for error in encoded if isinstance(error, Exception)]
    ignored = [words for queries in accepted for words in queries.ignored_words]
    features = np.concatenate([queries.features for queries in accepted])
    hits = iter(search(Queries(features, False, ignored)))
    return [
        result if isinstance(result, Exception) else list(islice(hits, len(result.features)))
        for result in encoded
    ]


def _encode_batch(model: LoadedModel, batch: list[list[str] | Matrix]) -> list[Queries | Exception]:
    """Encode the texts of a batch together, unless one is refused: then those of each request alone."""
    texts = [text for queries in batch if isinstance(queries, list) for text in queries]
    try:
        features, ignored = model.retriever.encoders.encode_queries(texts) if texts else (np.empty(0), [])
    except InputError as error:
        if len(batch) == 1:
            return [error]
        return [result for queries in batch for result in _encode_batch(model, [queries])]
    encoded: list[Queries | Exception] = []
    start = 0
    for queries in batch:
        if isinstance(queries, list):
            end = start + len(queries)
            encoded.append(Queries(features[start:end], False, ignored[start:end]))
            start = end
        else:
            encoded.append(Queries(queries, False, [()] * len(queries)))
    return encoded


def run_in_background(function: Callable[[], T], threads: int | None) -> asyncio.Future[T]:
    """Call a function that takes long in a thread of its own, which does not keep the server from ending.

    ``threads`` is the number of its BLAS and OpenMP threads.
    """
    result = Future[T]()

    def run() -> None:
        _limit_threads(threads)
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="background", daemon=True).start()
    return asyncio.wrap_future(result)


def _limit_threads(threads: int | None) -> None:
    # OpenMP counts threads separately for each thread that calls it.
    if threads is not None:
        threadpoolctl.threadpool_limits(threads)
