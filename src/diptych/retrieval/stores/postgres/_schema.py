"""The tables: those that every schema has, with their migrations, and those of each model version.

====================  ====================================================================================
``schema_version``    number of the last migration
``versions``          one row for each model version, with what its tables contain
``files``             the files of each version's model, in pieces
``current_version``   a single row: the version in use
``batches``           tokens of finished writes, so that none is repeated
``items_N``           the items that were loaded with version N; refits of N share them
``image_features_N``  their features, and ``text_features_N``
``search_N``          vectors of the images for version N, and ``annotate_N`` of the texts
====================  ====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.errors import InsufficientPrivilege, LockNotAvailable, UndefinedFile

from diptych._checks import TASKS, InputError, Task
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores._base import Contents
from diptych.retrieval.stores.postgres._connection import Address, Connection

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE {schema}.versions (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            items bigint,
            dtype text NOT NULL,
            graph boolean NOT NULL,
            keeps_features boolean NOT NULL,
            dimensions integer[] NOT NULL,
            widths integer[] NOT NULL,
            first_new_key bigint,
            created timestamptz NOT NULL DEFAULT now())""",
        """CREATE TABLE {schema}.files (
            version bigint REFERENCES {schema}.versions ON DELETE CASCADE,
            name text, number integer, content bytea NOT NULL,
            PRIMARY KEY (version, name, number))""",
        "ALTER TABLE {schema}.files ALTER content SET STORAGE EXTERNAL",
        """CREATE TABLE {schema}.current_version (
            one boolean PRIMARY KEY DEFAULT true CHECK (one),
            version bigint REFERENCES {schema}.versions,
            previous bigint REFERENCES {schema}.versions,
            changes bigint NOT NULL DEFAULT 0)""",
        "INSERT INTO {schema}.current_version DEFAULT VALUES",
        """CREATE TABLE {schema}.batches (
            token uuid PRIMARY KEY, done timestamptz NOT NULL DEFAULT now())""",
        "CREATE INDEX ON {schema}.batches (done)",
    ),
    (  # tables of vectors had a column that nothing needs any more, and writes were counted
        """DO $$ DECLARE vectors regclass; BEGIN
            FOR vectors IN SELECT attrelid FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
                WHERE relnamespace = '{schema}'::regnamespace AND attname = 'norm' LOOP
                EXECUTE 'ALTER TABLE ' || vectors || ' DROP COLUMN norm';
            END LOOP; END $$""",
        "ALTER TABLE {schema}.current_version DROP COLUMN changes",
    ),
    # the previous version was kept until the next switch
    ("ALTER TABLE {schema}.current_version DROP COLUMN previous",),
)
"""Statements that lead from each version of the schema to the next; released ones are never changed."""

MAX_DIMENSION = 16_000
"""Largest number of columns of pgvector's types."""

MAX_GRAPH_DIMENSION = {"vector": 2000, "halfvec": 4000}
"""Largest number of columns that pgvector builds a graph over."""


class NoModelError(InputError):
    """There is no model in the schema of an address."""

    def __init__(self, address: Address) -> None:
        super().__init__(
            f"the database {address.public} holds no model in the schema {address.schema!r}; fit one with "
            "this address, or name another schema with ?schema=NAME."
        )


def migrate(connection: Connection, address: Address, *, create: bool) -> None:
    """Bring a schema to the latest version; a missing schema is created only with ``create``."""
    version = _schema_version(connection, address)
    if version == len(MIGRATIONS):
        return
    if version == 0 and not create:
        raise NoModelError(address)
    schema = sql.Identifier(address.schema)
    try:
        with connection.transaction():
            lock_writes(connection, address.schema)
            if version == 0:
                _check_encoding(connection, address)
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
                connection.execute(
                    sql.SQL(
                        "CREATE TABLE IF NOT EXISTS {}.schema_version "
                        "(version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
                    ).format(schema)
                )
            # Another process may have migrated before this one got the lock.
            for number in range(_schema_version(connection, address), len(MIGRATIONS)):
                for statement in MIGRATIONS[number]:
                    connection.execute(sql.SQL(statement).format(schema=schema))
                done = sql.SQL("INSERT INTO {}.schema_version (version) VALUES (%s)").format(schema)
                connection.execute(done, [number + 1])
    except (InsufficientPrivilege, UndefinedFile) as error:
        raise InputError(
            f"cannot create the tables in {address.public} ({address.describe_error(error)}); ask an "
            "administrator to run CREATE EXTENSION vector and to allow this user to create a schema."
        ) from None


def lock_writes(connection: Connection, schema: str) -> None:
    """Wait until nobody else writes to a schema, and keep others out until the transaction ends."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [f"diptych writes {schema}"])


@contextmanager
def exclusive(connection: Connection, schema: str) -> Iterator[None]:
    """Keep all others from writing to a schema for several transactions; they can still read."""
    connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [f"diptych writes {schema}"])
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # the lock ends with its connection
            connection.execute(
                "SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [f"diptych writes {schema}"]
            )


def _schema_version(connection: Connection, address: Address) -> int:
    exists = connection.execute(
        "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'schema_version'", [address.schema]
    ).fetchone()
    if exists is None:
        return 0
    last = sql.SQL("SELECT coalesce(max(version), 0) FROM {}.schema_version")
    row = connection.execute(last.format(sql.Identifier(address.schema))).fetchone()
    version = int(row[0]) if row else 0
    if version > len(MIGRATIONS):
        raise InputError(
            f"the schema {address.schema!r} of {address.public} has version {version}, newer than this "
            f"library's {len(MIGRATIONS)}; install a newer version of diptych."
        )
    return version


def _check_encoding(connection: Connection, address: Address) -> None:
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is None or row[0] != "UTF8":
        raise InputError(
            f"the database {address.public} is encoded as {row[0] if row else '?'}; create one encoded as "
            "UTF8, since ids and texts are Unicode."
        )


@dataclass(frozen=True)
class Version:
    """A stored model version: what its tables contain, and their names."""

    schema: str
    number: int
    generation: int  # the version with which the items were loaded; its refits share them
    dtype: str
    graph: bool
    keeps_features: bool
    dimensions: Mapping[Task, int]  # columns of the vectors
    widths: Mapping[View, int]  # columns of the features
    first_new_key: int | None = None  # items with smaller keys were there when the model was fitted

    @property
    def name(self) -> str:
        """The name by which callers of the store know it."""
        return str(self.number)

    @property
    def kind(self) -> str:
        """Pgvector's type of the vectors."""
        return "vector" if self.dtype == "float32" else "halfvec"

    def vectors(self, task: Task) -> sql.Identifier:
        """Return the table of a task's vectors: key, vector."""
        return sql.Identifier(self.schema, f"{task}_{self.number}")

    def features(self, view: View) -> sql.Identifier:
        """Return the table of a view's features: key, float32 bytes."""
        return sql.Identifier(self.schema, f"{view}_features_{self.generation}")

    @property
    def items(self) -> sql.Identifier:
        """The table of items."""
        return sql.Identifier(self.schema, f"items_{self.generation}")

    @property
    def keys(self) -> sql.Identifier:
        """The sequence of the items' keys."""
        return sql.Identifier(self.schema, f"items_{self.generation}_keys")


_COLUMNS = sql.SQL("id, coalesce(items, id), dtype, graph, keeps_features, dimensions, widths, first_new_key")


def _make_version(schema: str, row: tuple[Any, ...]) -> Version:
    number, generation, dtype, graph, keeps_features, dimensions, widths, first_new_key = row
    columns = dict(zip(TASKS, dimensions, strict=True)), dict(zip(VIEWS, widths, strict=True))
    return Version(schema, number, generation, dtype, graph, keeps_features, *columns, first_new_key)


def read_version(connection: Connection, schema: str) -> Version | None:
    """Return the version in use; None if no model has been stored."""
    statement = sql.SQL("SELECT {1} FROM {0}.current_version c LEFT JOIN {0}.versions v ON v.id = c.version")
    row = connection.execute(statement.format(sql.Identifier(schema), _COLUMNS)).fetchone()
    if row is None:
        raise InputError(
            f"the table current_version of the schema {schema!r} is empty; restore the database."
        )
    return None if row[0] is None else _make_version(schema, row)


def insert_version(
    connection: Connection, address: Address, contents: Contents, dtype: str, previous: Version | None
) -> Version:
    """Insert a version, which is not in use yet; ``previous`` is the one whose items and dtype it shares."""
    statement = sql.SQL(
        "INSERT INTO {}.versions (items, dtype, graph, keeps_features, dimensions, widths) "
        "VALUES (%s, %s, %s, %s, %s, %s) RETURNING {}"
    ).format(sql.Identifier(address.schema), _COLUMNS)
    values = [
        None if previous is None else previous.generation,
        dtype if previous is None else previous.dtype,
        previous.graph if previous is not None and address.index is None else address.index == "hnsw",
        contents.keep_features if previous is None else previous.keeps_features,
        [contents.dimensions[task] for task in TASKS],
        [contents.widths[view] for view in VIEWS],
    ]
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return _make_version(address.schema, row)


def put_in_use(connection: Connection, version: Version, first_new_key: int) -> None:
    """Put a version in place of the one in use, in one step."""
    schema = sql.Identifier(version.schema)
    with connection.transaction():
        connection.execute(
            sql.SQL("UPDATE {}.versions SET first_new_key = %s WHERE id = %s").format(schema),
            [first_new_key, version.number],
        )
        connection.execute(
            sql.SQL("UPDATE {}.current_version SET version = %s").format(schema), [version.number]
        )


def drop_unused(connection: Connection, schema: str, *, wait: bool = True) -> None:
    """Drop all versions but the one in use.

    Without ``wait``, versions that somebody reads now are left for the next time.
    """
    current, versions = read_version(connection, schema), sql.Identifier(schema, "versions")
    rows = connection.execute(sql.SQL("SELECT {} FROM {}").format(_COLUMNS, versions)).fetchall()
    for version in (_make_version(schema, row) for row in rows):
        if current is not None and version.number == current.number:
            continue
        tables = [version.vectors(task) for task in TASKS]
        if current is None or version.generation != current.generation:
            tables += [version.items, *(version.features(view) for view in VIEWS)]
        with suppress(LockNotAvailable), connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", ["0" if wait else "200ms"])
            for table in tables:
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
            connection.execute(sql.SQL("DELETE FROM {} WHERE id = %s").format(versions), [version.number])


def create_items(connection: Connection, version: Version) -> None:
    """Create the tables of items and features, and the sequence of their keys."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (key bigint NOT NULL, id text NOT NULL, view text NOT NULL, path text, "
            "text text, image text, metadata jsonb NOT NULL)"
        ).format(version.items)
    )
    connection.execute(
        sql.SQL("CREATE SEQUENCE {} MINVALUE 0 OWNED BY {}.{}").format(
            version.keys, version.items, sql.Identifier("key")
        )
    )
    for view in VIEWS:
        table = version.features(view)
        connection.execute(sql.SQL("CREATE TABLE {} (key bigint NOT NULL, row bytea NOT NULL)").format(table))
        # Features do not compress, so the server should not try.
        connection.execute(sql.SQL("ALTER TABLE {} ALTER row SET STORAGE EXTERNAL").format(table))


def create_vectors(connection: Connection, version: Version, task: Task) -> None:
    """Create the table of a task's vectors."""
    dimension, longest = version.dimensions[task], MAX_GRAPH_DIMENSION["halfvec"]
    if dimension > MAX_DIMENSION:
        raise InputError(
            f"vectors with {dimension} columns are too long for pgvector (at most {MAX_DIMENSION}); set "
            "n_components."
        )
    if version.graph and dimension > longest:
        raise InputError(
            f"vectors with {dimension} columns are too long for an HNSW graph in PostgreSQL (at most "
            f"{longest}); set n_components, or leave out index=hnsw to search exactly."
        )
    connection.execute(
        # Vectors stay in their rows as long as they fit into a page: fetching each from a separate table
        # would make an exact search several times slower.
        sql.SQL(
            "CREATE TABLE {} (key bigint NOT NULL, v {}({}) NOT NULL) WITH (toast_tuple_target = 8160)"
        ).format(version.vectors(task), sql.SQL(version.kind), sql.Literal(dimension))
    )


def index_items(connection: Connection, version: Version) -> None:
    """Index items and features, after they are loaded."""
    for statement in (
        "ALTER TABLE {} ADD PRIMARY KEY (key)",
        "ALTER TABLE {} ADD UNIQUE (id)",
        "CREATE INDEX ON {} (image)",
        "CREATE INDEX ON {} USING gin (metadata jsonb_path_ops)",
        "ANALYZE {}",
    ):
        connection.execute(sql.SQL(statement).format(version.items))
    for view in VIEWS:
        connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (key)").format(version.features(view)))


def index_vectors(connection: Connection, version: Version, task: Task, address: Address) -> None:
    """Index vectors by key, after they are loaded, and build a graph over them if the version has one.

    It compares float16 where the vectors are too long for float32.
    """
    for statement in ("ALTER TABLE {} ADD PRIMARY KEY (key)", "ANALYZE {}"):
        connection.execute(sql.SQL(statement).format(version.vectors(task)))
    if not version.graph:
        return
    half = version.kind == "halfvec" or version.dimensions[task] > MAX_GRAPH_DIMENSION["vector"]
    connection.execute(
        sql.SQL("CREATE INDEX ON {} USING hnsw (({}) {}) WITH (m = {}, ef_construction = {})").format(
            version.vectors(task),
            cast_for_graph(version, task, sql.Identifier("v")),
            sql.SQL("halfvec_ip_ops" if half else "vector_ip_ops"),
            sql.Literal(address.m),
            sql.Literal(max(address.ef_construction, 2 * address.m)),
        )
    )


def cast_for_graph(version: Version, task: Task, vector: sql.Composable) -> sql.Composable:
    """Return the SQL of a vector as a graph compares it."""
    dimension = version.dimensions[task]
    if version.kind == "halfvec" or dimension <= MAX_GRAPH_DIMENSION["vector"]:
        return vector
    return sql.SQL("{}::halfvec({})").format(vector, sql.Literal(dimension))
