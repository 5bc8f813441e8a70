"""The address of a database, and connections to it that are made again when they are lost."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote, unquote, urlencode

import psycopg
from pgvector.psycopg import register_vector
from psycopg.conninfo import conninfo_to_dict
from psycopg.types.json import set_json_loads
from psycopg_pool import ConnectionPool

from diptych._checks import InputError, UnavailableError
from diptych.retrieval._filters import MAX_INTEGER, MIN_INTEGER
from diptych.retrieval.stores._base import RefusedError

# The parts of an address that a model folder may contain: nothing secret, and no names of local files.
_SAVED = ("user", "host", "port", "dbname", "sslmode")
_SCHEMA = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.-]+", re.ASCII)
_RANGES = {
    "ef_search": (1, 1000),
    "m": (2, 100),
    "ef_construction": (4, 1000),
    "retry_seconds": (0, 86_400),
    "connections": (1, 1000),
    "max_item": (64, 2**28),
    "max_model": (1, 2**50),
}
SETTINGS = ("schema", "index", *_RANGES)


@dataclass(frozen=True)
class Address:
    """Where a database is and how it is used."""

    server: Mapping[str, Any] = field(repr=False)  # for the driver; it may include a password
    schema: str = "diptych"  # of the tables
    index: str | None = None  # "exact" or "hnsw" for new models; None: as before, or exact
    ef_search: int = 200  # candidates that a search in an HNSW graph keeps
    m: int = 16  # links per vector in a graph
    ef_construction: int = 128  # candidates while a graph is built
    retry_seconds: int = 30  # how long to try to reconnect after a connection was lost
    connections: int = 8  # most connections of one process
    max_item: int = 2**20  # most characters of an item
    max_model: int = 2**33  # most bytes of a model that are read

    @classmethod
    def parse(cls, address: str) -> Address:
        """Parse an address; errors do not repeat it, since it may contain a password."""
        head, _, query = address.partition("?")
        settings: dict[str, Any] = {}
        rest = []
        for part in query.split("&") if query else ():
            name, _, value = part.partition("=")
            if name in SETTINGS:
                settings[name] = _read_setting(name, unquote(value))
            else:
                rest.append(part)
        try:
            server = conninfo_to_dict("?".join([head, "&".join(rest)]) if rest else head)
        except psycopg.Error:
            raise InputError(
                "the address of the database is not valid; use postgresql://user@host:port/database, with "
                "special characters percent-encoded and only settings of PostgreSQL or diptych."
            ) from None
        return cls(server, **settings)

    @classmethod
    def parse_saved(cls, address: Any) -> Address:
        """Parse the address in a model folder, which must not make the driver open local files."""
        parsed = cls.parse(address) if isinstance(address, str) else None
        if parsed is None or not set(parsed.server) <= set(_SAVED):
            raise InputError(
                "the model folder contains an address that diptych does not write; pass the address of the "
                "database as index=."
            )
        return parsed

    @property
    def public(self) -> str:
        """The address without secrets."""
        server = {name: str(self.server[name]) for name in _SAVED if self.server.get(name) is not None}
        user, host, name = server.pop("user", ""), server.pop("host", ""), server.pop("dbname", "")
        port = server.pop("port", "")
        place = f"{quote(user, safe='')}@" if user else ""
        if _HOST.fullmatch(host):
            place += host + (f":{port}" if port.isdigit() else "")
        else:
            server |= {key: value for key, value in (("host", host), ("port", port)) if value}
        for setting in fields(self)[1:]:
            if (value := getattr(self, setting.name)) != setting.default:
                server[setting.name] = value
        query = f"?{urlencode(server, quote_via=quote)}" if server else ""
        return f"postgresql://{place}/{quote(name, safe='')}{query}"

    def describe_error(self, error: psycopg.Error) -> str:
        """Return the message of an error on one line, without passwords and the final full stop."""
        message = error.diag.message_primary or str(error).partition("\n")[0] or type(error).__name__
        for name in ("password", "sslpassword"):
            if secret := self.server.get(name):
                message = message.replace(str(secret), "…")
        return " ".join(message.split()).rstrip(".")


def _read_setting(name: str, value: str) -> str | int:
    if name in _RANGES:
        low, high = _RANGES[name]
        valid = value.isascii() and value.isdigit() and low <= int(value) <= high
        expected = f"a whole number from {low} to {high}"
    elif name == "schema":
        valid, expected = bool(_SCHEMA.fullmatch(value)), "letters, digits and underscores, 63 at most"
    else:
        valid, expected = value in ("exact", "hnsw"), "exact or hnsw"
    if not valid:
        raise InputError(f"{name}={value[:80]!r} in the address is not {expected}.")
    return int(value) if name in _RANGES else value


Connection: TypeAlias = psycopg.Connection[Any]

T = TypeVar("T")

OLDEST_PGVECTOR = (0, 8)
"""The first version of pgvector that searches a graph further until enough items pass a filter."""

_LONGEST_PAUSE = 1.0  # between attempts to reconnect
_LONGEST_WAIT = 1e6  # for a free connection, which a long refit may hold

# Errors are raised in the caller; without a handler, Python would also print the driver's warnings.
logging.getLogger("psycopg").addHandler(logging.NullHandler())


class _LostError(Exception):
    """The server cannot be reached, or a connection to it was lost."""


class Connections:
    """A pool of connections to one server, which runs actions again whose connection was lost.

    The pool does not report why connecting fails, and pauses ever longer between its attempts. So the first
    connection, for ``prepare``, and the first after a loss are made here, and then a new pool.
    """

    def __init__(self, address: Address, prepare: Callable[[Connection], None]) -> None:
        self.address, self._prepare = address, prepare
        self._prepared, self._lock, self._local = False, threading.Lock(), threading.local()
        self._pools: dict[int, ConnectionPool[Connection]] = {}  # by process: a fork cannot use its parent's
        self._name = f"the database {address.public}"
        defaults = {"connect_timeout": 10, "application_name": "diptych"}
        self._settings = {**defaults, **address.server, "autocommit": True}
        weakref.finalize(self, _close, self._pools)

    def run(self, action: Callable[[Connection], T], *, share: bool = False) -> T:
        """Call ``action`` with a connection, and again with another one if the connection is lost.

        With ``share``, nested calls of ``run`` in the same thread use the same connection.
        """
        shared: Connection | None = getattr(self._local, "connection", None)
        if shared is not None:
            return action(shared)
        deadline, pause = 0.0, 0.05
        while True:
            try:
                return self._attempt(action, share)
            except _LostError as lost:
                if not self._prepared:
                    raise UnavailableError(f"cannot reach {self._name}: {lost}.") from None
                deadline = deadline or time.monotonic() + self.address.retry_seconds
                if time.monotonic() + pause > deadline:
                    raise UnavailableError(
                        f"the connection to {self._name} was lost and could not be restored within "
                        f"{self.address.retry_seconds} s: {lost}."
                    ) from None
                time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311, so that clients do not return at once
                pause = min(2 * pause, _LONGEST_PAUSE)
            except psycopg.Error as error:
                message = self.address.describe_error(error)
                raise RefusedError(f"{self._name} refused: {message}.") from None

    def _attempt(self, action: Callable[[Connection], T], share: bool) -> T:
        pool = self._open_pool()
        connection: Connection | None = None
        try:
            with pool.connection(_LONGEST_WAIT) as connection:
                self._local.connection = connection if share else None
                return action(connection)
        except psycopg.Error as error:
            if connection is None or connection.closed:
                pool.close(0)  # its other connections are lost, too
                raise _LostError(self.address.describe_error(error)) from None
            raise
        finally:
            self._local.connection = None

    def _open_pool(self) -> ConnectionPool[Connection]:
        process = os.getpid()
        pool = self._pools.get(process)
        if pool is not None and not pool.closed:
            return pool
        try:
            connection = psycopg.connect(**self._settings)
        except psycopg.Error as error:
            raise _LostError(self.address.describe_error(error)) from None
        with connection:
            try:
                if not self._prepared:
                    self._prepare(connection)
                check_pgvector(connection, self.address)
            except psycopg.Error:
                if connection.closed:
                    raise _LostError("the server closed the connection") from None
                raise
        with self._lock:
            self._prepared, pool = True, self._pools.get(process)
            if pool is None or pool.closed:
                pool = self._pools[process] = ConnectionPool(
                    kwargs=self._settings,
                    configure=partial(_configure, ef_search=self.address.ef_search),
                    min_size=0,
                    max_size=self.address.connections,
                    num_workers=1,
                    reconnect_timeout=0,
                    reconnect_failed=_close_soon,
                    open=True,
                )
        return pool


def _close(pools: dict[int, ConnectionPool[Connection]]) -> None:
    if (pool := pools.get(os.getpid())) is not None:
        pool.close(0)


def _close_soon(pool: ConnectionPool[Connection]) -> None:
    """Close a pool from one of its own threads, which it cannot wait for; waiting callers get an error."""
    threading.Thread(target=pool.close, args=(0,), daemon=True).start()


def _find_pgvector(connection: Connection) -> tuple[str, str] | None:
    statement = (
        "SELECT extversion, nspname FROM pg_extension JOIN pg_namespace ON extnamespace = pg_namespace.oid "
        "WHERE extname = 'vector'"
    )
    return connection.execute(statement).fetchone()


def check_pgvector(connection: Connection, address: Address) -> None:
    """Refuse a database whose pgvector is missing or too old."""
    extension = _find_pgvector(connection)
    if extension is None or tuple(map(int, extension[0].split(".")[:2])) < OLDEST_PGVECTOR:
        version = "no pgvector" if extension is None else f"pgvector {extension[0]}"
        raise InputError(
            f"the database {address.public} has {version}; install {'.'.join(map(str, OLDEST_PGVECTOR))} or "
            "newer, then run CREATE EXTENSION vector, or ALTER EXTENSION vector UPDATE."
        )


def _configure(connection: Connection, ef_search: int) -> None:
    """Prepare a new connection for vectors, searches and durable writes."""
    extension = _find_pgvector(connection)
    connection.execute(
        # Compiling a plan, or using one made for other values of a filter, takes longer than most searches.
        "SELECT set_config('search_path', %s, false), set_config('jit', 'off', false), "
        "set_config('plan_cache_mode', 'force_custom_plan', false), "
        "set_config('hnsw.ef_search', %s, false), set_config('hnsw.iterative_scan', 'strict_order', false), "
        # A confirmed write is on the disk, whatever the server's own setting.
        "set_config('synchronous_commit', CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
        "ELSE current_setting('synchronous_commit') END, false)",
        (f'"{extension[1] if extension else "public"}"', str(ef_search)),
    )
    register_vector(connection)
    set_json_loads(_read_json, connection)


def _read_integer(digits: str) -> int | float:
    """Read an integer of PostgreSQL, which writes large floats as such."""
    is_short = len(digits) <= len(str(MIN_INTEGER))
    return int(digits) if is_short and MIN_INTEGER <= int(digits) <= MAX_INTEGER else float(digits)


_decoder = json.JSONDecoder(parse_int=_read_integer)


def _read_json(raw: str | bytes) -> Any:
    return _decoder.decode(raw.decode() if isinstance(raw, bytes) else raw)
