"""The store protocol: where items and their vectors live.

A store works on plain data: ids, vectors, metadata, a filter, k. It knows nothing of models and encoders;
``diptych.retrieval._searcher`` builds on it, once for all stores. To add a database, implement ``Store`` and
run ``tests/retrieval/test_stores.py`` on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from diptych._checks import InputError, Task
from diptych.retrieval._filters import Filter
from diptych.retrieval._items import Item, View

Floats: TypeAlias = np.ndarray[Any, Any]
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

FIRST_STEP = 100
"""Hits that an approximate index is asked for at least; a search for no more is one search of it."""

T = TypeVar("T")

Change: TypeAlias = Callable[[Item], Item]
"""Returns what an item is to be, with the same id and view."""


class RefusedError(InputError):
    """A shared store refused a request; the message names its user, host and schema."""


class TakenError(InputError):
    """An id is in the store already."""

    def __init__(self, item_id: str) -> None:
        super().__init__(f"the id {item_id!r} is in the index already; give every item an id of its own.")
        self.item_id = item_id


class ModelChanged(Exception):  # noqa: N818, a signal to load the new model, not an error
    """The store holds vectors of another model version than the caller's: load that and try again."""


@dataclass(frozen=True)
class State:
    """What a store holds at one moment."""

    version: str  # names the model whose vectors are stored
    added: int  # items ever added; new items without an id are numbered from here


@dataclass(frozen=True, eq=False)
class Block:
    """Some items of one view with their vectors."""

    view: View
    items: Sequence[Item]
    vectors: Floats  # ready to be compared by inner product
    features: Floats | None = None  # if the store is to keep them for a refit


@dataclass(frozen=True)
class Listing:
    """Which items to list, and in which order.

    By the metadata key ``order_by``, items with a number come before those with a text; others follow. Those,
    and equal ones, are in order of addition; without ``order_by``, all are.
    """

    view: View | None = None
    where: Filter | None = None
    order_by: str | None = None
    descending: bool = False
    offset: int = 0
    limit: int | None = None  # None: all

    @property
    def end(self) -> int | None:
        """Where the page ends; None: with the last item."""
        return None if self.limit is None else self.offset + self.limit


@dataclass(frozen=True, eq=False)
class Contents:
    """A model and the vectors of all items, for ``Store.replace``.

    A store with an approximate index measures its recall with ``sample_queries(task, n)``, at most n query
    vectors or None, and calls ``report_recall`` before ``write_model``. A shared store keeps the files that
    ``write_model`` writes to an empty folder.
    """

    dimensions: Mapping[Task, int]  # columns of the vectors
    widths: Mapping[View, int]  # columns of the features
    keep_features: bool  # of these and later items
    same_vectors: bool  # the stored ones: only what is known of the model changes
    blocks: Iterable[Block]  # all items in order of addition, images before texts; iterated once
    sample_queries: Callable[[Task, int], Floats | None]
    report_recall: Callable[[Task, float], None]
    write_model: Callable[[Path], None]


class Matches(Sequence[list[tuple[Item, float]]]):
    """The best items of each query with their inner products, largest first; items are made when read.

    Parameters
    ----------
    products
        A row of float32 for each query, −∞ where there are no more items.
    records
        For each query, what is stored of as many of its best items as were asked for.
    make_item
        Returns the item of a record.
    read_last
        Returns the last coordinate of the vector behind each product, 0 where there is none.
    """

    def __init__(
        self,
        products: Floats,
        records: Sequence[Sequence[T]],
        make_item: Callable[[T], Item],
        read_last: Callable[[], Floats],
    ) -> None:
        self.products, self.records, self.make_item = products, records, make_item
        self.read_last = read_last

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, query: Any) -> Any:
        records = self.records[query]
        if isinstance(query, slice):
            return [self[row] for row in range(*query.indices(len(self)))]
        products = self.products[query].tolist()
        return [(self.make_item(record), product) for record, product in zip(records, products, strict=False)]

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, Matches) else other)


def search_in_steps(
    search: Callable[[list[int], int], list[list[T]]], key: Callable[[T], int], n_queries: int, k: int
) -> list[list[T]]:
    """Return the k best of each query from an approximate index, the same whatever ``k`` is.

    What such an index finds depends on how many are requested of it, so pages of one result could repeat or
    skip items. So it is only asked for certain numbers, 100, 200, 400 and so on, until there are enough,
    and what it finds late stands behind what it found before. Up to 100 hits are one search, as ever; k hits
    are fewer than 4 k hits of the index.

    ``search`` takes places of queries and a number of hits, and returns fewer only if there are no more.
    """
    results: list[list[T]] = [[] for _ in range(n_queries)]
    seen: list[set[int]] = [set() for _ in range(n_queries)]
    size, places = FIRST_STEP, list(range(n_queries))
    while places:
        unfinished = []
        for place, hits in zip(places, search(places, size), strict=True):
            results[place] += [hit for hit in hits if key(hit) not in seen[place]]
            seen[place].update(map(key, hits))
            if len(hits) == size and len(results[place]) < k:
                unfinished.append(place)
        size, places = 2 * size, unfinished
    return [hits[:k] for hits in results]


def measure_recall(exact: Iterable[Iterable[int]], approximate: Iterable[Iterable[int]]) -> float:
    """Return the share of the exact results of all queries that an approximate index found."""
    pairs = [(set(best), set(found)) for best, found in zip(exact, approximate, strict=True)]
    total = sum(len(best) for best, _ in pairs)
    return sum(len(best & found) for best, found in pairs) / total if total else 1.0


class Store(Protocol):
    """Items and their vectors, read by any number of threads while one at a time writes."""

    address: str  # of the database, without secrets; empty for a folder and in memory
    shared: bool  # whether other processes use it too: changes are stored at once, and calls take a while

    @property
    def kind(self) -> str:
        """How vectors are searched, for people: "flat", "hnsw", "postgresql", "postgresql, hnsw"."""

    @property
    def dtype(self) -> str:
        """The dtype of the vectors: "float32" or "float16"."""

    @property
    def keeps_features(self) -> bool:
        """Whether the features of items are stored."""

    def state(self) -> State:
        """Return the current state. A store that was opened to be filled makes its tables first."""

    def search(
        self,
        task: Task,
        queries: Floats,
        k: int,
        where: Filter | None,
        version: str,
        depth: int | None = None,
    ) -> Matches:
        """Return the k items with the largest inner products for each query, largest first.

        With ``depth``, the products of so many are returned, and the first k items.
        Equal products are ordered by addition. The result for a smaller k is the beginning of that for a
        larger one (for an approximate index, see ``search_in_steps``). The filter means what
        ``Filter.matches`` says. Its ids that are of the other view match nothing, and so do those that are
        not stored, unless ``all_stored`` makes them an ``InputError``. If nothing matches because of a
        metadata key that no item has, that is an ``InputError`` too (``check_metadata_keys``). Raises
        ``ModelChanged`` if ``version`` is not the stored one.
        """

    def add(self, blocks: Sequence[Block], version: str, *, replace: bool = False) -> None:
        """Add items, all of them or none; an id that is in the store is a ``TakenError``.

        With ``replace``, the item with that id goes in the same step, but not its captions; one of the other
        view is an ``InputError``.
        """

    def update(
        self, ids: Sequence[str], change: Change, version: str, content: Block | None = None
    ) -> list[Item]:
        """Put what ``change`` makes of some items, of one view, in place of them; return it.

        It leaves id and view as they are, and may be called twice. Unknown ids are refused, and nothing is
        changed then. The items keep their vectors and their place in the order; with other ``content``, whose
        items do not matter, they count as added now.
        """

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items, and with an image its captions; return how many. Unknown ids are refused."""

    def items(
        self,
        view: View | None = None,
        *,
        ids: Sequence[str] | None = None,
        images: Sequence[str] | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        """Iterate over items in order of addition.

        Only those of a view, with one of these ids, that are captions of these images, or that were added
        since the model was fitted (``new``).
        """

    def page(self, listing: Listing) -> tuple[list[Item], int]:
        """Return a page of items, and how many there are on all pages.

        A metadata key that no item has is refused: as the order, or in a filter that nothing passes.
        """

    def count(self, view: View | None = None) -> int:
        """Return the number of items, of one view or of both."""

    def count_kinds(self, view: View) -> tuple[int, int]:
        """Return how many items of a view have partners, and how many have none.

        These are images with and without captions, or texts with and without an image. Every search asks, so
        a store to which counting takes long may answer with what it knew a minute ago.
        """

    def vectors(self, task: Task, version: str) -> Iterator[Block]:
        """Iterate over all items of a task with their vectors, in order of addition, without features."""

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        """Return stored features in the order of ``ids``; None if those of one item are not stored."""

    def model_files(self, names: Sequence[str]) -> AbstractContextManager[tuple[Path, str]]:
        """Give a folder with the stored files of the model that have these names, and the model's version.

        Names of files that the model does not have are left out. A store in memory has no files.
        """

    def replace(self, make: Callable[[], Contents], version: str | None = None) -> Store:
        """Replace the stored model and all vectors in one step; return the store to use from now on.

        ``make`` is called once no other process writes, and again if all has to be repeated. Without
        ``version``, the blocks bring new items in place of the stored ones (fit). With it, the stored items
        stay and the blocks bring new vectors for them (refit): ``ModelChanged`` if the version is not the
        stored one, and files that ``write_model`` does not write are taken over from the stored model.
        """
