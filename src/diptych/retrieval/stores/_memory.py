"""A store in the memory of this process, or in memory-mapped files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import TASKS, InputError, Task, check_choice
from diptych.retrieval._filters import Filter, check_metadata_keys
from diptych.retrieval._items import (
    SEARCHED,
    TASK_OF,
    VIEWS,
    Item,
    Places,
    StoredItem,
    View,
    check_unique,
    unknown_item,
)
from diptych.retrieval.stores._base import Block, Contents, Floats, Matches, State, TakenError
from diptych.retrieval.stores._columns import Columns
from diptych.retrieval.stores._faiss import DTYPES, VectorIndex

Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

KINDS = ("flat", "hnsw")

_SAMPLE = 500  # queries by which the recall of a graph is measured


class ItemTable:
    """Items under integer keys that ascend with addition and are never used twice.

    Items from a file stay as they are stored there; each is unpacked with ``places`` when it is asked for.
    """

    def __init__(self, items: Sequence[Item] = (), places: Places | None = None) -> None:
        self._items: dict[int, Item | StoredItem] = {}
        self.places = places
        self._keys: dict[str, int] = {}
        self._captions: dict[str, list[int]] = {}
        self._columns = {view: Columns(view, self._items) for view in VIEWS}
        self.next_key = 0
        self.add(items)

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        return ((key, self.make_item(item)) for key, item in self._list())

    def get(self, key: int) -> Item | None:
        """Return the item under a key; None if it was removed."""
        item = self._items.get(key)
        return None if item is None else self.make_item(item)

    def records(self, keys: Keys) -> list[list[Any]] | None:
        """Return what is stored under the keys of each row up to the first −1; None if one was removed."""
        get, ends = self._items.get, np.count_nonzero(keys >= 0, axis=1).tolist()
        rows = [list(map(get, row[:end])) for row, end in zip(keys.tolist(), ends, strict=True)]
        return None if any(None in row for row in rows) else rows

    def key(self, item_id: str) -> int | None:
        """Return the key of an id; None if no item has it."""
        return self._keys.get(item_id)

    def keys(self, view: View) -> Keys:
        return np.array([key for key, item in self._list() if item.view == view], np.int64)

    def keys_of(self, ids: Iterable[str]) -> Keys:
        """Return the keys of those ids that are stored, ascending."""
        keys = map(self._keys.get, ids)
        return np.unique(np.array([key for key in keys if key is not None], np.int64))

    def find(self, view: View, where: Filter) -> Keys | None:
        """Return the keys of a view's items that pass a filter, ascending; None if all do."""
        where.check_stored(self._keys)
        if where.condition is None:
            return None if where.ids is None else self.keys_of(where.ids)
        keys = self._columns[view].find(where.condition, self.next_key)
        return keys if where.ids is None else np.intersect1d(keys, self.keys_of(where.ids), True)

    def check_keys(self, where: Filter) -> None:
        """Refuse a filter with a metadata key that no item has; see ``check_metadata_keys``."""
        if len(self):
            names = (columns.names(self.next_key) for columns in self._columns.values())
            check_metadata_keys(where, set().union(*names))

    def caption_keys(self, image_id: str) -> list[int]:
        return list(self._captions.get(image_id, ()))

    def check_new(self, items: Sequence[Item | StoredItem]) -> None:
        """Refuse ids that are stored already, or given twice."""
        ids = {item.id for item in items}
        if len(ids) < len(items):
            check_unique(items)
        if not self._keys.keys().isdisjoint(ids):
            raise TakenError(next(item.id for item in items if item.id in self._keys))

    def add(self, items: Sequence[Item | StoredItem], keys: Keys | None = None) -> Keys:
        """Add items under ``keys``, none of which was used before; None: under the next ones. Return them."""
        self.check_new(items)
        if keys is None:
            keys = np.arange(self.next_key, self.next_key + len(items), dtype=np.int64)
        pairs = list(zip(keys.tolist(), items, strict=True))
        self._items.update(pairs)
        self._keys.update((item.id, key) for key, item in pairs)
        for key, item in pairs:
            if item.image is not None:
                self._captions.setdefault(item.image, []).append(key)
        self.next_key = max(self.next_key, int(keys.max(initial=-1)) + 1)
        return keys

    def remove(self, keys: Sequence[int]) -> None:
        for key in keys:
            item = self._items.pop(key)
            del self._keys[item.id]
            if item.image is not None:
                captions = self._captions[item.image]
                captions.remove(key)
                if not captions:
                    del self._captions[item.image]
        for columns in self._columns.values():
            columns.remove(np.array(keys, np.int64))

    def _list(self) -> Iterable[tuple[int, Item | StoredItem]]:
        while True:
            # A list of pairs would be a million new objects, which the garbage collector visits repeatedly.
            # Making the copy may let another thread run that changes the items.
            with suppress(RuntimeError):
                return self._items.copy().items()

    def make_item(self, item: Item | StoredItem) -> Item:
        """Return an item as it is shown, from what is stored of it."""
        if isinstance(item, Item):
            return item
        assert self.places is not None
        return self.places.unpack(item)


class MemoryStore:
    """A ``Store`` with its items in a table and its vectors in FAISS; its version is always empty.

    ``indexes`` hold the vectors of each task, ``kept`` the features of each view if they are kept, both under
    the keys of the ``table``. Items with keys below ``learned`` were there when the model was fitted.
    """

    address = ""
    shared = False

    def __init__(
        self,
        kind: str = "flat",
        dtype: str = "float32",
        *,
        table: ItemTable | None = None,
        indexes: Mapping[Task, VectorIndex] | None = None,
        kept: Mapping[View, VectorIndex] | None = None,
        learned: int = 0,
    ) -> None:
        self.kind = check_choice(kind, KINDS, "index")
        self.dtype = check_choice(dtype, DTYPES, "dtype")
        self.table = ItemTable() if table is None else table
        self.indexes, self.kept, self.learned = dict(indexes or {}), dict(kept or {}), learned
        self._writing = threading.RLock()

    @property
    def keeps_features(self) -> bool:
        return bool(self.kept)

    def state(self) -> State:
        return State("", self.table.next_key)

    def search(
        self,
        task: Task,
        queries: Floats,
        k: int,
        where: Filter | None,
        version: str = "",
        depth: int | None = None,
    ) -> Matches:
        index = self.indexes[task]
        allowed = None if where is None else self.table.find(SEARCHED[task], where)
        if where is not None and allowed is not None and not len(allowed):
            self.table.check_keys(where)
        while True:
            deepest = min(max(int(k), int(depth or 0)), max(1, len(index)))
            products, keys = index.search(queries, deepest, allowed=allowed)
            records = self.table.records(keys[:, :k])
            if records is not None:
                return Matches(products, records, self.table.make_item)
            # An item was removed after its vector matched: search again among the items that are left.
            present = self.table.keys(SEARCHED[task])
            allowed = present if allowed is None else np.intersect1d(allowed, present, assume_unique=True)

    def add(self, blocks: Sequence[Block], version: str = "") -> None:
        with self._writing:
            self.check_new(blocks)
            for block in blocks:
                self.put(block.view, block.items, block.vectors, block.features)

    def check_new(self, blocks: Sequence[Block]) -> None:
        """Refuse items that ``add`` cannot add, before anything is changed."""
        self.table.check_new([item for block in blocks for item in block.items])
        for block in blocks:
            self.indexes[TASK_OF[block.view]].convert(block.vectors)

    def put(
        self,
        view: View,
        items: Sequence[Item | StoredItem],
        vectors: Floats,
        features: Floats | None,
        keys: Keys | None = None,
    ) -> None:
        """Add items of a view with their rows, under ``keys`` or the next ones."""
        # The item before its vector, so that no search meets a vector without its item.
        keys = self.table.add(items, keys)
        if features is not None and view in self.kept:
            self.kept[view].add(keys, features)
        self.indexes[TASK_OF[view]].add(keys, vectors)

    def remove(self, ids: Sequence[str]) -> int:
        with self._writing:
            keys = self.keys_to_remove(ids)
            self.drop(keys)
        return len(keys)

    def keys_to_remove(self, ids: Iterable[str]) -> Keys:
        """Return the keys of items and of their captions; unknown ids are refused."""
        keys: set[int] = set()
        for item_id in ids:
            if (key := self.table.key(item_id)) is None:
                raise unknown_item(item_id)
            keys |= {key, *self.table.caption_keys(item_id)}
        return np.array(sorted(keys), np.int64)

    def drop(self, keys: Keys) -> None:
        """Remove the items under some keys."""
        for index in (*self.indexes.values(), *self.kept.values()):
            index.remove(keys)
        self.table.remove(keys.tolist())

    def items(
        self,
        view: View | None = None,
        *,
        ids: Sequence[str] | None = None,
        image: str | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        pairs: Iterable[tuple[int, Item | None]] = self.table
        if ids is not None or image is not None:
            keys = (
                self.table.caption_keys(image)
                if image is not None
                else self.table.keys_of(ids or ()).tolist()
            )
            pairs = [(key, self.table.get(key)) for key in keys]
        for key, item in pairs:
            if item is not None and view in (None, item.view) and (not new or key >= self.learned):
                yield item

    def count(self, view: View | None = None) -> int:
        return len(self.table) if view is None else len(self.indexes[TASK_OF[view]])

    def vectors(self, task: Task, version: str = "") -> Iterator[Block]:
        for chunk in self.indexes[task].chunks():
            items = [self.table.get(key) for key in chunk.keys.tolist()]
            present = [item for item in items if item is not None]
            if len(present) < len(items):
                chunk = chunk.at(np.array([item is not None for item in items]))
            yield Block(SEARCHED[task], present, chunk.vectors)

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        keys = [self.table.key(item_id) for item_id in ids]
        if view not in self.kept or None in keys:
            return None
        ascending, places = np.unique(np.array(keys, np.int64), return_inverse=True)
        rows = np.asarray(self.kept[view].vectors_of(ascending), np.float32)
        return rows[places] if len(rows) == len(ascending) else None

    def model_files(self, names: Sequence[str]) -> AbstractContextManager[tuple[Path, str]]:
        raise InputError("a model in memory has no files; save it first.")

    def replace(self, make: Callable[[], Contents], version: str | None = None) -> MemoryStore:
        contents, refit = make(), version is not None
        kept = self.kept if refit else {}
        if contents.keep_features and not refit:
            kept = {view: VectorIndex(contents.widths[view]) for view in VIEWS}
        table = self.table if refit else ItemTable()
        indexes = {task: VectorIndex(contents.dimensions[task], self.dtype) for task in TASKS}
        for block in contents.blocks:
            if refit:
                keys = np.array([table.key(item.id) for item in block.items], np.int64)
            else:
                keys = table.add(block.items)
                if block.view in kept and block.features is not None:
                    kept[block.view].add(keys, block.features)
            indexes[TASK_OF[block.view]].add(keys, block.vectors)
        for task, index in indexes.items():
            if self.kind == "hnsw" and len(index):
                contents.report_recall(task, index.build_graph(contents.sample_queries(task, _SAMPLE)).recall)
        return MemoryStore(
            self.kind,
            self.dtype,
            table=table,
            indexes=indexes,
            kept=kept,
            learned=table.next_key,
        )
