"""Searches in a few threads; queries that wait at the same time share one pass over the index.

One pass costs nearly the same for one query as for twenty, since most of its time goes into reading the
vectors. While a pass runs, the queries that arrive are collected, and the next pass answers all of them. A
query that arrives alone does not wait for others.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import threadpoolctl

from diptych._checks import InputError, Task
from diptych.retrieval import Hits
from diptych.service._limits import Limits, Slots
from diptych.service._model import EncodedQueries, LoadedModel, Queries

Key: TypeAlias = tuple[LoadedModel, Task, str]
"""What queries must have in common to be searched in one pass: also their options, as JSON."""

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class _Request:
    queries: Queries
    k: int
    offset: int
    options: dict[str, Any]  # those that its batch has in common
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
            return await self._run(lambda: function(*args, **kwargs))

    async def search(
        self,
        model: LoadedModel,
        task: Task,
        queries: Queries,
        k: int,
        *,
        offset: int = 0,
        plus: list[Any] | None = None,
        minus: list[Any] | None = None,
        **options: Any,
    ) -> list[Hits]:
        """Return the k best items for each query, as ``Retriever.search`` does with these options.

        Queries with the same options share passes, whatever their ``k`` and ``offset``; composed ones do not.
        """
        with self.slots:
            request = _Request(queries, k, offset, options, asyncio.get_running_loop().create_future())
            key = (model, task, json.dumps(options, sort_keys=True))
            if plus or minus:
                request.options.update(plus=plus or (), minus=minus or ())
                (answer,) = await self._run(lambda: _search_batch(key, [request]))
                if isinstance(answer, Exception):
                    raise answer
                return answer
            if key in self._waiting:
                self._waiting[key].append(request)
            else:
                self._waiting[key] = deque([request])
                batches = asyncio.create_task(self._search_waiting(key))
                self._tasks.add(batches)
                batches.add_done_callback(self._tasks.discard)
            return await request.hits

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def _search_waiting(self, key: Key) -> None:
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
                answers = await self._run(lambda batch=batch: _search_batch(key, batch))  # type: ignore[misc]
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


def _search_batch(key: Key, batch: list[_Request]) -> list[list[Hits] | Exception]:
    model, task, _ = key
    search = model.retriever.search if task == "search" else model.retriever.annotate
    encoded = _encode_batch(model, batch)
    features = [each[0] for each in encoded if not isinstance(each, Exception)]
    if not features:
        return [each for each in encoded if isinstance(each, Exception)]
    # The longest list serves all: a shorter one is its beginning.
    ends = [r.offset + r.k for r, each in zip(batch, encoded, strict=True) if not isinstance(each, Exception)]
    results = iter(search(np.concatenate(features), max(ends), **batch[0].options))
    answers: list[list[Hits] | Exception] = []
    for request, each in zip(batch, encoded, strict=True):
        if isinstance(each, Exception):
            answers.append(each)
            continue
        pages = [next(results).page(request.offset, request.k) for _ in each[1]]
        for hits, words in zip(pages, each[1], strict=True):
            hits.ignored_words = tuple(dict.fromkeys((*words, *hits.ignored_words)))
        answers.append(pages)
    return answers


def _encode_batch(model: LoadedModel, batch: list[_Request]) -> list[EncodedQueries | Exception]:
    """Encode the texts of a batch together, unless one is refused: then each request alone."""
    texts = [text for r in batch if isinstance(r.queries, list) for text in r.queries]
    try:
        features, ignored = model.encode_queries(texts) if texts else (np.empty((0, 0)), [])
    except InputError as error:
        return [error] if len(batch) == 1 else [each for r in batch for each in _encode_batch(model, [r])]
    encoded: list[EncodedQueries | Exception] = []
    start = 0
    for request in batch:
        if isinstance(request.queries, list):
            end = start + len(request.queries)
            encoded.append((features[start:end], ignored[start:end]))
            start = end
        else:
            encoded.append(model.encode_queries(request.queries))
    return encoded


def _limit_threads(threads: int | None) -> None:
    # OpenMP counts threads separately for each thread that calls it.
    if threads is not None:
        threadpoolctl.threadpool_limits(threads)
