"""A database as the place where collections are kept."""

from __future__ import annotations

from diptych._checks import check_choice
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import VIEWS, check_unique
from diptych.retrieval.stores._base import Collection, Content, Given, Home, Rows
from diptych.retrieval.stores._faiss import DTYPES
from diptych.retrieval.stores.postgres._connection import Address, Connection, Connections
from diptych.retrieval.stores.postgres._items import check_storable
from diptych.retrieval.stores.postgres._loading import Plan, alone, given_blocks, load
from diptych.retrieval.stores.postgres._migrations import migrate
from diptych.retrieval.stores.postgres._store import PostgresCollection
from diptych.retrieval.stores.postgres._versions import (
    Follower,
    GoneError,
    Version,
    current_number,
    fetch_text_encoder,
    nothing,
    read_version,
)
from diptych.text import HKSE


class Database(Home):
    """A schema of a PostgreSQL database.

    Parameters
    ----------
    address
        ``postgresql://user@host/database``, with settings of PostgreSQL's and of ``Address``.
    dtype
        Of the vectors that are loaded from here.
    """

    def __init__(self, address: str, dtype: str = "float32") -> None:
        self._given, self._address = address, Address.parse(address)
        self._dtype, self.name = check_choice(dtype, DTYPES, "dtype"), self._address.public
        self._connections = Connections(self._address, self._prepare)
        self._filling = False

    def check(self) -> None:
        """Connect, and make the tables that every schema has."""
        self._filling = True
        self._connections.run(lambda connection: None)

    def fill(self, fitted: Fitted, given: Given, rows: Rows, keep: bool, encoders: Encoders) -> Collection:
        """Load items with their features; they take the place of what was there in one step."""
        everything = [item for own in given.values() for item in own]
        check_unique(everything, ())
        check_storable(everything, self._address.max_item)
        plan = Plan(
            fitted,
            {view: encoders.describe(view) for view in VIEWS},
            encoders.hkse,
            self._dtype,
            self._address.index == "hnsw",
            keep,
            lambda _: given_blocks(given, rows),
        )
        attempts: list[int] = []

        def attempt(connection: Connection) -> Version:
            with alone(connection, self._address):
                if current_number(connection, self._address.schema)[0] not in attempts:
                    load(connection, self._address, plan, attempts)
                return _current(connection, self._address)

        self.check()
        return self._collection(self._connections.run(attempt))

    def open(self, *, own_text: bool = True) -> Content:
        """What is there; without ``own_text``, all but the text encoder."""

        def attempt(connection: Connection) -> tuple[Version, HKSE | None]:
            version = _current(connection, self._address)
            text = fetch_text_encoder(connection, self._address, version) if own_text else None
            return version, text

        version, text = self._connections.run(attempt)
        options = {"index": self._given, "dtype": version.dtype, "keep_features": version.keeps_features}
        return Content(self._collection(version), options, dict(version.known), text)

    def _prepare(self, connection: Connection) -> None:
        migrate(connection, self._address, create=self._filling)

    def _collection(self, version: Version) -> PostgresCollection:
        return PostgresCollection(Follower(self._connections, version, self.open))


def _current(connection: Connection, address: Address) -> Version:
    while True:
        number, _ = current_number(connection, address.schema)
        if number is None:
            raise nothing(address)
        try:
            return read_version(connection, address, number)
        except GoneError:
            continue
