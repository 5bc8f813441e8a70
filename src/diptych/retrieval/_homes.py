"""Where a collection is kept, by the form of ``index``: in this process, or in a database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diptych._checks import InputError, check_choice, missing_package_error
from diptych.retrieval._embedding import embedding_of
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import VIEWS, Items, View
from diptych.retrieval.stores._base import Content, Floats, Given, Home, Keys, Rows
from diptych.retrieval.stores._faiss import DTYPES, VectorIndex
from diptych.retrieval.stores._memory import MemoryCollection

if TYPE_CHECKING:
    from diptych.retrieval.stores.postgres import Database


KINDS = ("flat", "hnsw")
SCHEMES = ("postgresql://", "postgres://")


class Memory(Home):
    """Makes collections in memory.

    Parameters
    ----------
    kind
        ``"flat"``: exact. ``"hnsw"``: a graph.
    dtype
        Of the vectors.
    """

    def __init__(self, kind: str, dtype: str) -> None:
        self.name, self._dtype = check_choice(kind, KINDS, "index"), check_choice(dtype, DTYPES, "dtype")

    def fill(
        self, fitted: Fitted, given: Given, rows: Rows, keep: bool, encoders: Encoders
    ) -> MemoryCollection:
        """A collection of items with their features."""
        items, kept, first = Items(), dict[View, VectorIndex](), dict[View, int]()
        embedding = embedding_of(fitted.model)
        for view in VIEWS:
            first[view] = items.next_key
            keys = items.add(given.get(view, []))
            if keep:
                kept[view] = VectorIndex(embedding.features(view))
            if keep and len(keys):
                kept[view].add(keys, rows[view])

        def of(view: View, keys: Keys) -> Floats:
            found: Floats = rows[view][keys[0] - first[view] : keys[-1] + 1 - first[view]]
            return found

        return MemoryCollection.of(fitted, items, kept, of, self._dtype, self.name)


def home_of(index: Any, dtype: str = "float32") -> Home:
    """Where ``index`` says that collections are kept."""
    if isinstance(index, str) and index.startswith(SCHEMES):
        return database(index, dtype)
    if index not in KINDS:
        # It may be an address with a password in it: nothing of it is said again.
        shown = repr(index) if isinstance(index, str) and index.isalnum() else "what was given"
        raise InputError(f"index={shown} is unknown; choose one of 'flat', 'hnsw', or 'postgresql://…'.")
    return Memory(index, dtype)


def opened(address: Any, *, own_text: bool = True) -> Content:
    """What a database holds; without ``own_text``, all but the text encoder."""
    if not isinstance(address, str) or not address.startswith(SCHEMES):
        raise InputError("this is no address of a database; give one as postgresql://user@host/database.")
    return database(address).open(own_text=own_text)


def saved_address(said: Any) -> str:
    """The address that a model's folder says."""
    _needed()
    from diptych.retrieval.stores.postgres._connection import Address

    return Address.saved(said).public


def database(address: str, dtype: str = "float32") -> Database:
    """A database."""
    _needed()
    from diptych.retrieval.stores.postgres import Database

    return Database(address, dtype)


def _needed() -> None:
    try:
        import pgvector  # noqa: F401
        import psycopg  # noqa: F401
    except ImportError:
        raise missing_package_error("an index in PostgreSQL needs", "postgres") from None
