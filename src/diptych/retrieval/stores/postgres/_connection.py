"""Where a database is, and how it is to be used: all of it in one address, the secret part kept apart.

Connections that are made again when they break, and errors in one sentence.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlencode

import psycopg
from pgvector.psycopg import register_vector
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus

from diptych._checks import InputError
from diptych.retrieval.stores._base import RefusedError, UnavailableError

KINDS = ("exact", "hnsw")

_SAVED = (
    "user",
    "host",
    "port",
    "dbname",
    "sslmode",
)  # what a folder may say: nothing secret, no file's name
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.-]+", re.ASCII)


def _schema(value: str) -> str:
    if not _SCHEMA.fullmatch(value):
        raise ValueError("letters, digits and underscores, 63 at most")
    return value


def _kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError("exact or hnsw")
    return value


def _number(low: float, high: float) -> Callable[[str], int]:
    def read(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not low <= int(value) <= high:
            raise ValueError(f"a whole number from {low:.0f} to {high:.0f}")
        return int(value)

    return read


@dataclass(frozen=True)
class Address:
    """An address, read.

    Attributes
    ----------
    server
        What the driver is told; a password may be part of it, so it is never shown.
    schema
        The tables' schema.
    index
        ``"exact"`` or ``"hnsw"``, of what is loaded from here; None: as it was, or exact.
    ef_search
        Candidates that a search through a graph keeps in hand.
    m, ef_construction
        Links of each vector in a graph, and candidates while it is built.
    retry_seconds
        How long a lost connection is looked for.
    connections
        At most so many at once.
    max_item
        Characters of one item; longer ones are refused.
    max_model
        Bytes of a model that are read from the database.
    max_memory
        Bytes of vectors that are read for packs, or for another weighting.
    """

    server: Mapping[str, Any] = field(repr=False)
    schema: str = "diptych"
    index: str | None = None
    ef_search: int = 200
    m: int = 16
    ef_construction: int = 128
    retry_seconds: int = 30
    connections: int = 8
    max_item: int = 2**20
    max_model: int = 2**33
    max_memory: int = 2**32

    @classmethod
    def parse(cls, address: str) -> Address:
        """Read an address; what cannot be read is not said again, since it may hold a password."""
        head, _, query = address.partition("?")
        settings: dict[str, Any] = {}
        rest = []
        for part in query.split("&") if query else ():
            name, _, value = part.partition("=")
            if name not in _SETTINGS:
                rest.append(part)
                continue
            try:
                settings[name] = _SETTINGS[name](unquote(value))
            except ValueError as error:
                raise InputError(f"{name}={unquote(value)[:80]!r} in the address is not {error}.") from None
        try:
            server = conninfo_to_dict("?".join([head, "&".join(rest)]) if rest else head)
        except psycopg.Error:
            raise InputError(
                "the address of the database cannot be read; give postgresql://user@host:port/database, "
                "special characters as % and two digits, and only settings that PostgreSQL or diptych knows."
            ) from None
        return cls(server, **settings)

    @classmethod
    def saved(cls, address: Any) -> Address:
        """Read what a model's folder says: a place, and nothing that would open files of this machine."""
        found = cls.parse(address) if isinstance(address, str) else None
        if found is None or not set(found.server) <= set(_SAVED):
            raise InputError(
                "the model's folder holds an address that diptych never writes; give the database's with "
                "index=."
            )
        return found

    @property
    def public(self) -> str:
        """The address without its secrets."""
        server = {name: str(self.server[name]) for name in _SAVED if self.server.get(name) is not None}
        user, host, name = server.pop("user", ""), server.pop("host", ""), server.pop("dbname", "")
        port = server.pop("port", "")
        place = f"{quote(user, safe='')}@" if user else ""
        if _HOST.fullmatch(host):
            place += host + (f":{port}" if port.isdigit() else "")
        else:
            server |= {key: value for key, value in (("host", host), ("port", port)) if value}
        for each in fields(self)[1:]:
            if (value := getattr(self, each.name)) != each.default:
                server[each.name] = value
        query = f"?{urlencode(server, quote_via=quote)}" if server else ""
        return f"postgresql://{place}/{quote(name, safe='')}{query}"

    def without_secrets(self, text: str) -> str:
        """``text``, on one line, with no password in it."""
        for name in ("password", "sslpassword"):
            if secret := self.server.get(name):
                text = text.replace(str(secret), "…")
        return " ".join(text.split())


_SETTINGS: dict[str, Callable[[str], Any]] = {
    "schema": _schema,
    "index": _kind,
    "ef_search": _number(1, 1000),
    "m": _number(2, 100),
    "ef_construction": _number(4, 1000),
    "retry_seconds": _number(0, 86_400),
    "connections": _number(1, 1000),
    "max_item": _number(64, 2**28),
    "max_model": _number(1, 2**50),
    "max_memory": _number(1, 2**50),
}


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
