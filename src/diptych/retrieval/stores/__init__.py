"""Where items and their vectors are stored: in memory with FAISS, or in PostgreSQL."""

from __future__ import annotations

from typing import Any

from diptych._checks import InputError, check_choice, missing_package_error
from diptych.retrieval.stores._base import Store
from diptych.retrieval.stores._faiss import DTYPES
from diptych.retrieval.stores._memory import KINDS, MemoryStore

SCHEMES = ("postgresql://", "postgres://")


def open_store(index: Any, dtype: str = "float32", *, create: bool = True) -> Store:
    """Return the store for ``index``: ``"flat"``, ``"hnsw"``, or the address of a PostgreSQL database.

    Without ``create``, a database must hold a model already.
    """
    check_choice(dtype, DTYPES, "dtype")
    if isinstance(index, str) and index in KINDS:
        return MemoryStore(index, dtype)
    if isinstance(index, str) and index.startswith(SCHEMES):
        _import_driver()
        from diptych.retrieval.stores.postgres import PostgresStore

        return PostgresStore(index, dtype, create=create)
    # It may be an address with a password in it, so it is not repeated.
    shown = repr(index) if isinstance(index, str) and index.isalnum() else "this"
    raise InputError(f"index={shown} is unknown; choose one of 'flat', 'hnsw', or 'postgresql://…'.")


def read_address(address: Any) -> str:
    """Return the address in a model folder; anything but the place of a database is an ``InputError``."""
    _import_driver()
    from diptych.retrieval.stores.postgres._connection import Address

    return Address.parse_saved(address).public


def _import_driver() -> None:
    try:
        import pgvector  # noqa: F401
        import psycopg  # noqa: F401
        import psycopg_pool  # noqa: F401
    except ImportError:
        raise missing_package_error("an index in PostgreSQL needs", "postgres") from None
