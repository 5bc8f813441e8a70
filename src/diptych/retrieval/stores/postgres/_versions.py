"""Models in a database: which is current, the files each is made of, and how one takes another's place.

Reading from a database whose model others may replace: always from one snapshot, and of one version.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from psycopg import sql
from psycopg.errors import LockNotAvailable, UndefinedTable

from diptych._checks import InputError
from diptych._persistence import CONFIG, TENSORS, check_format, read_json
from diptych.cca import Moments
from diptych.retrieval._embedding import Embedding, embedding_of
from diptych.retrieval._encoders import Known
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval._model_files import (
    MODEL,
    MOMENTS,
    TEXT,
    known_encoders,
    read_model,
    read_moments,
    read_text_encoder,
)
from diptych.retrieval.stores._base import Content, OtherEncodersError
from diptych.retrieval.stores.postgres._connection import Address, Connection, Connections
from diptych.retrieval.stores.postgres._schema import Tables, drop
from diptych.text import HKSE

KIND, FORMAT_VERSION = "version", 1
TEXT_FILES = (f"{TEXT}/{CONFIG}", f"{TEXT}/model.safetensors")
FILES = (CONFIG, MODEL, MOMENTS, *TEXT_FILES)
"""All that a version may consist of; nothing else is ever written to a disk from a database."""

PIECE = 2**22
"""Bytes of a file in one row."""


class GoneError(Exception):
    """A version was dropped while it was being read: there is a newer one."""


@dataclass(frozen=True, eq=False)
class Version:
    """A version that was read.

    Attributes
    ----------
    tables
        Where its rows are.
    fitted, embedding
        The model, without its moments, and as vectors.
    known
        The encoders that its features came from.
    dtype, graph
        Of its vectors, and whether there is a graph over them.
    keeps_features
        Whether the features of its items are there.
    has_moments, has_text
        Whether its moments and its text encoder are there.
    learned
        Items with smaller keys were there when the model was fitted.
    """

    tables: Tables
    fitted: Fitted
    embedding: Embedding
    known: dict[View, Known]
    dtype: str
    graph: bool
    keeps_features: bool
    has_moments: bool
    has_text: bool
    learned: int

    @property
    def id(self) -> int:
        """Its number."""
        return self.tables.version


def current_number(connection: Connection, schema: str) -> tuple[int | None, int]:
    """The version of now, and how many changes there were."""
    return told(ask_current(connection, schema), schema)


def ask_current(connection: Connection, schema: str) -> Any:
    """Ask which version is current; ``told`` waits for the answer."""
    statement = sql.SQL("SELECT version, changes FROM {}.current_version").format(sql.Identifier(schema))
    return connection.execute(statement)


def told(cursor: Any, schema: str) -> tuple[int | None, int]:
    """The answer to ``ask_current``."""
    row = cursor.fetchone()
    if row is None:
        raise InputError(f"the schema {schema!r} has lost its current version; restore the database.")
    return row[0], row[1]


def nothing(address: Address) -> InputError:
    """There is no version at all."""
    return InputError(
        f"the database {address.public} holds no model in the schema {address.schema!r}; fit one with this "
        "address, or name another schema as ?schema=NAME."
    )


def changed(connection: Connection, schema: str) -> None:
    """Count a change, so that others know that what they derived is old."""
    connection.execute(
        sql.SQL("UPDATE {}.current_version SET changes = changes + 1").format(sql.Identifier(schema))
    )


def read_version(connection: Connection, address: Address, version: int) -> Version:
    """Read a version; its files are checked as those of a folder are."""
    schema = address.schema
    statement = sql.SQL("SELECT items, learned FROM {}.versions WHERE id = %s").format(sql.Identifier(schema))
    row = connection.execute(statement, [version]).fetchone()
    if row is None:
        raise GoneError
    with tempfile.TemporaryDirectory() as scratch:
        folder, sizes = Path(scratch), _sizes(connection, schema, version)
        _fetch(connection, address, version, (CONFIG, MODEL), folder)
        try:
            config = read_json(folder / CONFIG)
            check_format(config, KIND, folder / CONFIG)
            fitted = read_model(folder, config)
            return Version(
                Tables(schema, version, int(row[0])),
                fitted,
                embedding_of(fitted.model),
                known_encoders(config),
                "float16" if config["index"]["dtype"] == "float16" else "float32",
                config["index"]["kind"] == "hnsw",
                config["keep_features"] is True,
                MOMENTS in sizes,
                all(name in sizes for name in TEXT_FILES),
                int(row[1]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InputError(
                f"version {version} in {address.public} is damaged ({_placeless(error, folder)}); fit "
                "again, or restore the database."
            ) from None


def fetch_moments(connection: Connection, address: Address, version: Version) -> Moments | None:
    """The moments of a version's training pairs, if they are known."""
    if not version.has_moments:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        _fetch(connection, address, version.id, (MOMENTS,), Path(scratch))
        return read_moments(Path(scratch), version.fitted.model)


def fetch_text_encoder(connection: Connection, address: Address, version: Version) -> HKSE | None:
    """The HKSE of a version, if it has one."""
    if not version.has_text:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        _fetch(connection, address, version.id, TEXT_FILES, Path(scratch))
        return read_text_encoder(Path(scratch))


def write_files(connection: Connection, schema: str, version: int, folder: Path) -> None:
    """Put the files of a version into rows, a piece in each."""
    statement = sql.SQL("INSERT INTO {}.files VALUES (%s, %s, %s, %b)").format(sql.Identifier(schema))
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        with open(path, "rb") as file:
            number = 0
            while piece := file.read(PIECE):
                connection.execute(statement, [version, name, number, piece])
                number += 1


def copy_files(connection: Connection, schema: str, source: int, target: int, names: Iterable[str]) -> None:
    """Give a version files of another."""
    connection.execute(
        sql.SQL(
            "INSERT INTO {0}.files SELECT %s, name, number, content FROM {0}.files "
            "WHERE version = %s AND name = ANY(%s)"
        ).format(sql.Identifier(schema)),
        [target, source, list(names)],
    )


def begin(connection: Connection, schema: str, generation: int | None) -> Tables:
    """Begin a version that nobody sees yet; of items of its own, or of those of a ``generation``."""
    statement = sql.SQL("INSERT INTO {0}.versions (items) VALUES (%s) RETURNING id").format(
        sql.Identifier(schema)
    )
    row = connection.execute(statement, [generation]).fetchone()
    assert row is not None
    version = int(row[0])
    if generation is None:
        own = sql.SQL("UPDATE {}.versions SET items = id WHERE id = %s").format(sql.Identifier(schema))
        connection.execute(own, [version])
    return Tables(schema, version, version if generation is None else generation)


def swap(connection: Connection, tables: Tables, learned: int) -> None:
    """Put a version in the place of the current one, in one step."""
    schema = sql.Identifier(tables.schema)
    with connection.transaction():
        connection.execute(
            sql.SQL("UPDATE {}.versions SET ready = true, learned = %s WHERE id = %s").format(schema),
            [learned, tables.version],
        )
        connection.execute(
            sql.SQL(
                "UPDATE {}.current_version SET previous = version, version = %s, changes = changes + 1"
            ).format(schema),
            [tables.version],
        )


def sweep(connection: Connection, schema: str, *, patient: bool = True) -> None:
    """Drop what no one needs: loads that died, and all versions but the current and the previous one.

    Unless ``patient``, a version that somebody reads is left for the next time.
    """
    name = sql.Identifier(schema)
    rows = connection.execute(
        sql.SQL(
            "SELECT v.id, v.items, v.items IS NULL OR NOT EXISTS (SELECT FROM {0}.versions o "
            "JOIN {0}.current_version c ON o.id IN (c.version, c.previous) WHERE o.items = v.items) "
            "FROM {0}.versions v WHERE NOT EXISTS "
            "(SELECT FROM {0}.current_version c WHERE v.id IN (c.version, c.previous))"
        ).format(name)
    ).fetchall()
    for version, generation, alone in rows:
        with suppress(LockNotAvailable), connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", ["0" if patient else "200ms"])
            tables = Tables(schema, int(version), int(generation if generation is not None else version))
            drop(connection, tables, items=bool(alone))
            connection.execute(sql.SQL("DELETE FROM {}.versions WHERE id = %s").format(name), [version])


def _sizes(connection: Connection, schema: str, version: int) -> dict[str, int]:
    statement = sql.SQL(
        "SELECT name, sum(octet_length(content)) FROM {}.files WHERE version = %s GROUP BY name"
    ).format(sql.Identifier(schema))
    return {row[0]: int(row[1]) for row in connection.execute(statement, [version]).fetchall()}


def _fetch(
    connection: Connection, address: Address, version: int, names: tuple[str, ...], folder: Path
) -> None:
    """Write files of a version to a folder, piece by piece."""
    sizes = _sizes(connection, address.schema, version)
    if not sizes:
        raise GoneError
    if missing := [name for name in names if name not in sizes]:
        raise InputError(f"version {version} in {address.public} lacks {missing[0]}; fit again.")
    size = sum(sizes[name] for name in names)
    if size > address.max_model:
        raise InputError(
            f"version {version} in {address.public} takes {size} bytes; at most {address.max_model} are "
            "read. Allow more with ?max_model=."
        )
    statement = sql.SQL(
        "SELECT content FROM {}.files WHERE version = %s AND name = %s AND number = %s"
    ).format(sql.Identifier(address.schema))
    with connection.cursor(binary=True) as cursor:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            with open(folder / name, "wb") as file:
                number, row = 0, _piece(cursor, statement, version, name, 0)
                while row is not None:
                    file.write(row)
                    number += 1
                    row = _piece(cursor, statement, version, name, number)
                if file.tell() != sizes[name]:
                    raise GoneError


def _piece(cursor: Any, statement: sql.Composed, version: int, name: str, number: int) -> bytes | None:
    row = cursor.execute(statement, [version, name, number]).fetchone()
    return None if row is None else row[0]


def _placeless(error: Exception, folder: Path) -> str:
    """What an error says, without where the files lay for a moment."""
    return str(error).replace(f"{folder}/", "").rstrip(".")


T = TypeVar("T")


class Follower:
    """Holds the version that was current when it last looked, and looks at every question.

    Parameters
    ----------
    connections
        To the server.
    version
        The version that was current.
    reopen
        Opens anew what is there, with its encoders.
    """

    def __init__(self, connections: Connections, version: Version, reopen: Callable[[], Content]) -> None:
        self.connections, self.address = connections, connections.address
        self.version, self._reopen = version, reopen
        self.seen = version.id
        self._lock = threading.Lock()

    def read(self, ask: Callable[[Connection, Version], T], *, streamed: bool = False) -> T:
        """Ask within one snapshot of the database, of the version that is current there.

        Unless rows are ``streamed``, statements go out before the answer about the version is waited for; it
        counts all the same.
        """

        def attempt(connection: Connection) -> T:
            while True:
                version, missing = self.version, ""
                refused: InputError | None = None
                try:
                    with ExitStack() as stack:
                        if not streamed:
                            stack.enter_context(connection.pipeline())
                        stack.enter_context(connection.transaction())
                        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                        asked = ask_current(connection, self.address.schema)
                        current = told(asked, self.address.schema)[0] if streamed else version.id
                        if current == version.id:
                            try:
                                found = ask(connection, version)
                            except InputError as error:
                                refused = error
                            if streamed or told(asked, self.address.schema)[0] == version.id:
                                if refused is not None:
                                    raise refused
                                return found
                except UndefinedTable as error:  # it was replaced twice since it was loaded
                    missing = str(error.diag.message_primary)
                if self.followed(connection) is version and missing:
                    raise InputError(f"{missing} in {self.address.public}; restore it, or fit again.")

        return self.connections.run(attempt)

    def followed(self, connection: Connection) -> Version:
        """The version that is current now, loaded if it is a new one."""
        with self._lock:
            while True:
                number, _ = current_number(connection, self.address.schema)
                if number is None:
                    raise nothing(self.address)
                if number == self.version.id:
                    return self.version
                try:
                    new = read_version(connection, self.address, number)
                except GoneError:
                    continue
                self.seen = number
                if any(self.version.known[view].fingerprint != new.known[view].fingerprint for view in VIEWS):
                    raise OtherEncodersError(self._reopen)
                self.version = new
