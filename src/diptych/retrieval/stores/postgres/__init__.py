"""PostgreSQL with pgvector as the place of a collection; imported only where an address asks for it."""

from diptych.retrieval.stores.postgres._database import Database

__all__ = ["Database"]
