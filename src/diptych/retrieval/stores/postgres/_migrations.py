"""The tables that every schema has, and how older ones become those of today."""

from __future__ import annotations

from psycopg import sql
from psycopg.errors import InsufficientPrivilege, UndefinedFile

from diptych._checks import InputError
from diptych.retrieval.stores.postgres._connection import Address, Connection
from diptych.retrieval.stores.postgres._versions import nothing

STEPS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE {schema}.versions (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            items bigint,
            ready boolean NOT NULL DEFAULT false,
            learned bigint NOT NULL DEFAULT 0,
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
    ),
    (
        """CREATE TABLE {schema}.batches (
            token uuid PRIMARY KEY, done timestamptz NOT NULL DEFAULT now())""",
        "CREATE INDEX ON {schema}.batches (done)",
    ),
)


def migrate(
    connection: Connection, address: Address, *, create: bool, steps: tuple[tuple[str, ...], ...] = STEPS
) -> None:
    """Bring a schema to the last of ``steps``; one that is not there is made only if ``create`` is set."""
    schema = sql.Identifier(address.schema)
    if (found := _step(connection, address)) == len(steps):
        return
    if found == 0 and not create:
        raise nothing(address)
    try:
        with connection.transaction():
            lock(connection, address)
            if found == 0:
                _check_encoding(connection, address)
                connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
                connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
                connection.execute(
                    sql.SQL(
                        "CREATE TABLE IF NOT EXISTS {}.steps "
                        "(step integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now())"
                    ).format(schema)
                )
            # Another process may have been first.
            for step in range(_step(connection, address), len(steps)):
                for statement in steps[step]:
                    connection.execute(sql.SQL(statement).format(schema=schema))
                connection.execute(
                    sql.SQL("INSERT INTO {}.steps (step) VALUES (%s)").format(schema), [step + 1]
                )
    except (InsufficientPrivilege, UndefinedFile) as error:
        said = address.without_secrets(error.diag.message_primary or "")
        raise InputError(
            f"the tables in {address.public} cannot be made ({said}); let an administrator run CREATE "
            "EXTENSION vector and allow this user to create a schema."
        ) from None


def lock(connection: Connection, address: Address, *, session: bool = False) -> None:
    """Be the only one that writes to a schema: until the transaction ends, or the session."""
    function = sql.SQL("pg_advisory_lock" if session else "pg_advisory_xact_lock")
    connection.execute(
        sql.SQL("SELECT {}(hashtextextended(%s, 0))").format(function), [f"diptych writes {address.schema}"]
    )


def unlock(connection: Connection, address: Address) -> None:
    """Let others write to a schema again."""
    connection.execute(
        "SELECT pg_advisory_unlock(hashtextextended(%s, 0))", [f"diptych writes {address.schema}"]
    )


def _step(connection: Connection, address: Address) -> int:
    """How far a schema is; newer than this library is refused."""
    there = connection.execute(
        "SELECT 1 FROM pg_tables WHERE schemaname = %s AND tablename = 'steps'", [address.schema]
    ).fetchone()
    if there is None:
        return 0
    last = sql.SQL("SELECT coalesce(max(step), 0) FROM {}.steps").format(sql.Identifier(address.schema))
    row = connection.execute(last).fetchone()
    found = int(row[0]) if row else 0
    if found > len(STEPS):
        raise InputError(
            f"the schema {address.schema!r} of {address.public} is at step {found}, newer than this library "
            f"knows ({len(STEPS)}); install a newer version of diptych."
        )
    return found


def _check_encoding(connection: Connection, address: Address) -> None:
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is None or row[0] != "UTF8":
        raise InputError(
            f"the database {address.public} is encoded as {row[0] if row else '?'}; make one in UTF8, since "
            "names and sentences are Unicode."
        )
