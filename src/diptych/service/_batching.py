"""Questions answered by a few threads: those that wait together are asked together, the rest wait or go.

One pass over an index costs nearly the same for one query as for twenty, since it is the vectors that have
to be fetched. So while one pass runs, the questions that arrive are gathered, and the next pass answers all
of them. A lone question waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np
import threadpoolctl

from diptych._checks import InputError, Task
from diptych.cca._weighting import Weighting
from diptych.retrieval import Hit, Hits
from diptych.service._model import Served
from diptych.service._schemas import Limits, busy

Queries: TypeAlias = list[str] | np.ndarray[Any, Any]
"""Sentences, or rows of features."""

Key: TypeAlias = tuple[Served, Task, Weighting | None]
Answer: TypeAlias = list[list[Hit]] | Exception

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, eq=False)
class Question:
    """Some queries of one request."""

    queries: Queries
    k: int
    answer: asyncio.Future[list[list[Hit]]]


class Desk:
    """Where questions are taken.

    Parameters
    ----------
    limits
        Threads, and how many questions may wait.
    threads
        BLAS and OpenMP threads of each; None: as many as there are cores.
    """

    def __init__(self, limits: Limits, threads: int | None = None) -> None:
        self._limits = limits
        self._pool = ThreadPoolExecutor(limits.concurrency, "answers", _limited, (threads,))
        self._inside = 0
        self._gathered: dict[Key, deque[Question]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.passes: Callable[[int], None] = lambda questions: None

    @property
    def inside(self) -> int:
        """Questions that wait or are being answered."""
        return self._inside

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in a thread, or say that too many are waiting."""
        with self._place():
            return await self._run(lambda: function(*args, **kwargs))

    async def ask(
        self, served: Served, task: Task, queries: Queries, k: int, weighting: Weighting | None
    ) -> list[list[Hit]]:
        """The best items for each query, in one pass with the questions that wait at the same time."""
        with self._place():
            question = Question(queries, k, asyncio.get_running_loop().create_future())
            key = (served, task, weighting)
            waiting = self._gathered.get(key)
            if waiting is None:
                self._gathered[key] = deque([question])
                drain = asyncio.create_task(self._drain(key))
                self._tasks.add(drain)
                drain.add_done_callback(self._tasks.discard)
            else:
                waiting.append(question)
            return await question.answer

    def close(self) -> None:
        """Let go of the threads, once they are done."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def _drain(self, key: Key) -> None:
        waiting = self._gathered[key]
        while waiting:
            some = [waiting.popleft()]
            size = len(some[0].queries)
            while waiting and size + len(waiting[0].queries) <= self._limits.batch:
                some.append(waiting.popleft())
                size += len(some[-1].queries)
            self.passes(size)
            try:
                answers = await self._run(lambda some=some: _answered(key, some))  # type: ignore[misc]
            except Exception as error:  # what goes wrong with all of them is told to each
                answers = [error] * len(some)
            for question, answer in zip(some, answers, strict=True):
                if question.answer.done():  # whoever asked is gone
                    continue
                if isinstance(answer, Exception):
                    question.answer.set_exception(answer)
                else:
                    question.answer.set_result(answer)
        del self._gathered[key]

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._inside >= self._limits.concurrency + self._limits.waiting:
            raise busy("many questions are waiting")
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1


def encoded(served: Served, queries: Queries) -> tuple[np.ndarray[Any, Any], list[tuple[str, ...]]]:
    """Features of queries, and the words of each that were ignored."""
    if isinstance(queries, np.ndarray):
        return queries, [()] * len(queries)
    return served.retriever.encoders.encode_queries(queries)


def _answered(key: Key, questions: list[Question]) -> list[Answer]:
    served, task, weighting = key
    asked = _encoded_together(served, questions)
    answers: list[Answer] = [found if isinstance(found, Exception) else [] for found in asked]
    good = [(i, *found) for i, found in enumerate(asked) if not isinstance(found, Exception)]
    if good:
        # The largest k serves all: a shorter list is the beginning of a longer one.
        k = max(questions[i].k for i, *_ in good)
        ask = served.retriever.search if task == "search" else served.retriever.annotate
        found = iter(ask(np.concatenate([rows for _, rows, _ in good]), k, weighting=weighting))
        for i, _, ignored in good:
            answers[i] = [Hits(next(found)[: questions[i].k], words) for words in ignored]
    return answers


def _encoded_together(
    served: Served, questions: list[Question]
) -> list[tuple[np.ndarray[Any, Any], list[tuple[str, ...]]] | Exception]:
    """What ``encoded`` gives for each question; sentences together, unless one of them is refused."""
    spoken = [q for q in questions if isinstance(q.queries, list)]
    sentences = [sentence for q in spoken for sentence in q.queries]
    try:
        rows, ignored = encoded(served, sentences) if sentences else (np.empty((0, 0)), [])
    except InputError as error:
        if len(questions) == 1:
            return [error]
        return [found for q in questions for found in _encoded_together(served, [q])]
    asked, start = list[tuple[np.ndarray[Any, Any], list[tuple[str, ...]]] | Exception](), 0
    for q in questions:
        if isinstance(q.queries, list):
            end = start + len(q.queries)
            asked.append((rows[start:end], ignored[start:end]))
            start = end
        else:
            asked.append(encoded(served, q.queries))
    return asked


def _limited(threads: int | None) -> None:
    # OpenMP counts threads for each thread that calls it.
    if threads is not None:
        threadpoolctl.threadpool_limits(threads)
