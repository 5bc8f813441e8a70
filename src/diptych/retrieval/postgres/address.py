"""Where a database is, and how it is to be used: all of it in one address, the secret part kept apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import quote, unquote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from diptych.checks import InputError

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
