"""The tables of one version: its vectors, and the items and features that it may share with others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from psycopg import sql

from diptych._checks import TASKS, InputError, Task
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores.postgres._connection import Connection

MAX_DIMENSION = 16_000
"""Columns of pgvector's types."""

MAX_GRAPH = {"vector": 2000, "halfvec": 4000}
"""Columns over which pgvector builds a graph."""


@dataclass(frozen=True)
class Tables:
    """Names.

    Attributes
    ----------
    schema
        Where they are.
    version
        Whose vectors.
    generation
        The version with which the items were loaded; its refits share them.
    """

    schema: str
    version: int
    generation: int

    def vectors(self, task: Task) -> sql.Identifier:
        """Of a task: key, the length that a vector had, and the vector."""
        return sql.Identifier(self.schema, f"{task}_{self.version}")

    def features(self, view: View) -> sql.Identifier:
        """Of a view: key, and features as float32."""
        return sql.Identifier(self.schema, f"{view}_features_{self.generation}")

    @property
    def items(self) -> sql.Identifier:
        """What there is."""
        return sql.Identifier(self.schema, f"items_{self.generation}")

    @property
    def keys(self) -> sql.Identifier:
        """The sequence of the items' keys."""
        return sql.Identifier(self.schema, f"items_{self.generation}_keys")

    def own(self, *, items: bool) -> Iterator[sql.Identifier]:
        """Tables of this version alone; with its ``items`` if no other shares them."""
        yield from (self.vectors(task) for task in TASKS)
        if items:
            yield from (self.items, *(self.features(view) for view in VIEWS))


def create_items(connection: Connection, tables: Tables) -> None:
    """Make the tables of items and features, and the sequence of their keys."""
    connection.execute(
        sql.SQL(
            "CREATE TABLE {} (key bigint NOT NULL, id text NOT NULL, view text NOT NULL, path text, "
            "text text, image text, metadata jsonb NOT NULL)"
        ).format(tables.items)
    )
    connection.execute(
        sql.SQL("CREATE SEQUENCE {} MINVALUE 0 OWNED BY {}.{}").format(
            tables.keys, tables.items, sql.Identifier("key")
        )
    )
    for view in VIEWS:
        # Numbers do not compress: they are not tried.
        table = tables.features(view)
        connection.execute(sql.SQL("CREATE TABLE {} (key bigint NOT NULL, row bytea NOT NULL)").format(table))
        connection.execute(sql.SQL("ALTER TABLE {} ALTER row SET STORAGE EXTERNAL").format(table))


def create_vectors(connection: Connection, tables: Tables, task: Task, kind: str, dimension: int) -> None:
    """Make the table of a task's vectors, of the type ``kind``."""
    if dimension > MAX_DIMENSION:
        raise InputError(
            f"vectors of {dimension} columns are longer than pgvector's {MAX_DIMENSION}; set n_components."
        )
    connection.execute(
        # Vectors stay in their rows as long as they fit into a page: fetched from elsewhere one by one,
        # they would make an exact search several times slower.
        sql.SQL("CREATE TABLE {} (key bigint NOT NULL, norm real NOT NULL, v {}({}) NOT NULL) ").format(
            tables.vectors(task), sql.SQL(kind), sql.Literal(dimension)
        )
        + sql.SQL("WITH (toast_tuple_target = 8160)")
    )


def index_items(connection: Connection, tables: Tables) -> None:
    """Index items and features, once they are loaded."""
    for statement in (
        "ALTER TABLE {} ADD PRIMARY KEY (key)",
        "ALTER TABLE {} ADD UNIQUE (id)",
        "CREATE INDEX ON {} (image)",
        "CREATE INDEX ON {} USING gin (metadata jsonb_path_ops)",
        "ANALYZE {}",
    ):
        connection.execute(sql.SQL(statement).format(tables.items))
    for view in VIEWS:
        connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (key)").format(tables.features(view)))


def index_vectors(connection: Connection, tables: Tables, task: Task) -> None:
    """Index vectors by their keys, once they are loaded."""
    table = tables.vectors(task)
    connection.execute(sql.SQL("ALTER TABLE {} ADD PRIMARY KEY (key)").format(table))
    connection.execute(sql.SQL("ANALYZE {}").format(table))


def check_graph(kind: str, dimension: int) -> None:
    """Refuse vectors that are too long for a graph."""
    if dimension > MAX_GRAPH["halfvec"]:
        raise InputError(
            f"vectors of {dimension} columns are too long for a graph in PostgreSQL (at most "
            f"{MAX_GRAPH['halfvec']}); set n_components, or leave out index=hnsw to search exactly."
        )


def build_graph(
    connection: Connection, tables: Tables, task: Task, kind: str, dimension: int, m: int, effort: int
) -> None:
    """Build an HNSW graph over a task's vectors; over their halves where those are too long for it."""
    column = compared(kind, dimension, sql.Identifier("v"))
    half = kind == "halfvec" or dimension > MAX_GRAPH["vector"]
    connection.execute(
        sql.SQL("CREATE INDEX ON {} USING hnsw (({}) {}) WITH (m = {}, ef_construction = {})").format(
            tables.vectors(task),
            column,
            sql.SQL("halfvec_ip_ops" if half else "vector_ip_ops"),
            sql.Literal(m),
            sql.Literal(max(effort, 2 * m)),
        )
    )


def compared(kind: str, dimension: int, vector: sql.Composable) -> sql.Composable:
    """What a graph compares of a vector."""
    if kind == "halfvec" or dimension <= MAX_GRAPH["vector"]:
        return vector
    return sql.SQL("{}::halfvec({})").format(vector, sql.Literal(dimension))


def drop(connection: Connection, tables: Tables, *, items: bool) -> None:
    """Drop the tables of a version, with its items if no other shares them; those that are gone are gone."""
    for table in tables.own(items=items):
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(table))
