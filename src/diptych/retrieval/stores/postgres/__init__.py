"""A store in PostgreSQL with pgvector; imported only when an address asks for it."""

from diptych.retrieval.stores.postgres._store import PostgresStore

__all__ = ["PostgresStore"]
