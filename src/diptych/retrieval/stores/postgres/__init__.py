"""A store in PostgreSQL with pgvector; imported only when an address asks for it."""

from __future__ import annotations

from typing import Any

from diptych.retrieval.stores.postgres._connection import Address
from diptych.retrieval.stores.postgres._store import PostgresStore

__all__ = ["PostgresStore", "read_saved_address"]


def read_saved_address(address: Any) -> str:
    """Return the address in a model folder; anything but a place is an ``InputError``."""
    return Address.parse_saved(address).public
