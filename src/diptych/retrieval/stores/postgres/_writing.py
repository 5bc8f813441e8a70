"""Writes that are done once, whatever becomes of the connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar
from uuid import uuid4

from psycopg import sql

from diptych.retrieval.stores.postgres._connection import Connection, Connections
from diptych.retrieval.stores.postgres._migrations import lock
from diptych.retrieval.stores.postgres._versions import changed

T = TypeVar("T")

REMEMBERED = "1 day"
"""How long a batch is known to have been written; no connection is looked for that long."""


def written(connections: Connections, write: Callable[[Connection], T]) -> T:
    """Write in one transaction, alone among writers.

    If the connection is lost while the server says that it is done, nobody knows whether it was. A row with
    a token is part of the transaction: where it is found afterwards, all the rest is there too.
    """
    token, address = uuid4(), connections.address
    schema = sql.Identifier(address.schema)
    results: list[T] = []

    def attempt(connection: Connection) -> T:
        with connection.transaction():
            # It is waited for, so that an attempt before this one has ended by now.
            lock(connection, address)
            known = sql.SQL("SELECT FROM {}.batches WHERE token = %s").format(schema)
            if connection.execute(known, [token]).fetchone() is None:
                results[:] = [write(connection)]
                changed(connection, address.schema)
                done = sql.SQL("INSERT INTO {}.batches (token) VALUES (%s)").format(schema)
                connection.execute(done, [token])
                past = sql.SQL("DELETE FROM {}.batches WHERE done < now() - %s::interval").format(schema)
                connection.execute(past, [REMEMBERED])
        return results[0]

    return connections.run(attempt)
