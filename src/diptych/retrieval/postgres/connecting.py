"""Connections that are made again when they break, and errors in one sentence."""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg.pq import TransactionStatus

from diptych.checks import InputError
from diptych.retrieval.collection import RefusedError, UnavailableError
from diptych.retrieval.postgres.address import Address

Connection: TypeAlias = psycopg.Connection[Any]

T = TypeVar("T")

OLDEST = (0, 8)
"""The first version of pgvector whose graphs go on until a filter is satisfied."""

_LONGEST_PAUSE = 1.0


class LostError(Exception):
    """The server is not there, or not any more."""


class Connections:
    """A few connections to one server, for any number of threads.

    Parameters
    ----------
    address
        Where, and how many.
    prepare
        Called with the first connection that is made.
    """

    def __init__(self, address: Address, prepare: Callable[[Connection], None]) -> None:
        self.address, self._prepare = address, prepare
        self._places = threading.BoundedSemaphore(address.connections)
        self._idle: list[Connection] = []
        self._held, self._lock = threading.local(), threading.Lock()
        weakref.finalize(self, _close, self._idle, os.getpid())
        self._prepared, self._process = False, os.getpid()

    def run(self, action: Callable[[Connection], T], *, hold: bool = False) -> T:
        """Do something with a connection; all of it again, with another, if that is lost on the way.

        What is run within an action that is to ``hold`` its connection shares it.
        """
        held: Connection | None = getattr(self._held, "connection", None)
        if held is not None:
            return action(held)
        until, pause = 0.0, 0.05
        while True:
            try:
                with self._taken() as connection:
                    self._held.connection = connection if hold else None
                    try:
                        return action(connection)
                    finally:
                        self._held.connection = None
            except LostError as lost:
                if not self._prepared:  # it was never there
                    raise UnavailableError(f"cannot reach {self._name}: {lost}.") from None
                until = until or time.monotonic() + self.address.retry_seconds
                if time.monotonic() + pause > until:
                    raise UnavailableError(
                        f"the connection to {self._name} was lost and not found again within "
                        f"{self.address.retry_seconds} s: {lost}."
                    ) from None
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311, so that not all come back at once
                pause = min(2 * pause, _LONGEST_PAUSE)
            except psycopg.Error as error:
                raise RefusedError(f"{self._name} refused: {self._said(error)}.") from None

    def close(self) -> None:
        """Let go of the connections that nobody uses."""
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        _close(idle, os.getpid())

    @property
    def _name(self) -> str:
        return f"the database {self.address.public}"

    def _said(self, error: psycopg.Error) -> str:
        said = error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__
        return self.address.without_secrets(said).rstrip(".")

    @contextmanager
    def _taken(self) -> Iterator[Connection]:
        with self._places:
            connection = self._take() or self._connected()
            try:
                yield connection
            except psycopg.Error as error:
                if connection.closed:
                    self.close()  # the others broke with it
                    raise LostError(self._said(error)) from None
                raise
            finally:
                if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
                    connection.close()
                else:
                    with self._lock:
                        self._idle.append(connection)

    def _take(self) -> Connection | None:
        with self._lock:
            if self._process != os.getpid():
                self._idle.clear()  # those are its parent's, which goes on with them
                self._process = os.getpid()
            return self._idle.pop() if self._idle else None

    def _connected(self) -> Connection:
        settings = {"connect_timeout": 10, "application_name": "diptych", **self.address.server}
        try:
            connection = psycopg.connect(**settings, autocommit=True)
        except psycopg.Error as error:
            raise LostError(self._said(error)) from None
        try:
            if not self._prepared:
                self._prepare(connection)
            _settle(connection, self.address)
        except BaseException as error:
            lost = isinstance(error, psycopg.Error) and connection.closed
            connection.close()
            if lost:
                raise LostError("the server went away") from None
            raise
        self._prepared = True
        return connection


def _close(connections: list[Connection], process: int) -> None:
    while connections and process == os.getpid():
        connections.pop().close()


def _settle(connection: Connection, address: Address) -> None:
    """Make a new connection ready for vectors, searches and durable writes."""
    found = connection.execute(
        "SELECT extversion, nspname FROM pg_extension JOIN pg_namespace ON extnamespace = pg_namespace.oid "
        "WHERE extname = 'vector'"
    ).fetchone()
    if found is None or tuple(int(part) for part in found[0].split(".")[:2]) < OLDEST:
        there = "no pgvector" if found is None else f"pgvector {found[0]}"
        raise InputError(
            f"the database {address.public} has {there}; install {'.'.join(map(str, OLDEST))} or newer, "
            "and run CREATE EXTENSION vector, or ALTER EXTENSION vector UPDATE."
        )
    connection.execute(
        # Compiling a plan takes longer than most searches; a plan made for other values of a filter, too.
        "SELECT set_config('search_path', %s, false), set_config('jit', 'off', false), "
        "set_config('plan_cache_mode', 'force_custom_plan', false), "
        "set_config('hnsw.ef_search', %s, false), set_config('hnsw.iterative_scan', 'strict_order', false), "
        # What is acknowledged is on the disk, whatever the server's own setting.
        "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
        "ELSE current_setting('synchronous_commit') END, false)",
        (f'"{found[1]}"', str(address.ef_search)),
    )
    register_vector(connection)
