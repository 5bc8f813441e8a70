"""A store in the memory of this process, or in memory-mapped files."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import TASKS, InputError, Task, check_choice
from diptych.retrieval._filters import Exists, Filter, check_metadata_keys, is_number
from diptych.retrieval._items import (
    SEARCHED,
    TASK_OF,
    VIEWS,
    Item,
    Places,
    StoredItem,
    View,
    check_unique,
    other_view,
    unknown_item,
)
from diptych.retrieval.stores._base import (
    Block,
    Change,
    Contents,
    Floats,
    Keys,
    Listing,
    Matches,
    State,
    TakenError,
)
from diptych.retrieval.stores._columns import Columns
from diptych.retrieval.stores._faiss import DTYPES, VectorIndex

KINDS = ("flat", "hnsw")

_ATTEMPTS = 10  # to read while items are replaced
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
        self._n_captions = 0
        self._columns = {view: Columns(view, self._items) for view in VIEWS}
        self.next_key = 0
        self.check_new(items)
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

    def check_keys(self, where: Filter, argument: str = "where") -> None:
        """Refuse a filter with a metadata key that no item has; see ``check_metadata_keys``."""
        if len(self):
            names = (columns.names(self.next_key) for columns in self._columns.values())
            check_metadata_keys(where, set().union(*names), argument)

    def order(self, keys: Keys, name: str, *, descending: bool) -> Keys:
        """Return keys in the order of the metadata key ``name``; see ``Listing``."""
        numbers, texts, others = list[tuple[Any, int]](), list[tuple[Any, int]](), list[tuple[Any, int]]()
        for key in keys.tolist():
            value = None if (item := self._items.get(key)) is None else item.metadata.get(name)
            kind = numbers if is_number(value) else texts if isinstance(value, str) else others
            kind.append((value, key))
        if not numbers and not texts:
            self.check_keys(Filter(condition=Exists(name)), "order_by")
        for values in (numbers, texts):
            values.sort(key=itemgetter(0), reverse=descending)
        return np.array([key for _, key in (*numbers, *texts, *others)], np.int64)

    def caption_keys(self, image_id: str) -> list[int]:
        return list(self._captions.get(image_id, ()))

    def count_paired(self, view: View) -> int:
        """Return how many images have a caption, or texts an image."""
        return len(self._captions) if view == "image" else self._n_captions

    def check_new(self, items: Sequence[Item | StoredItem], replacing: Collection[int] = ()) -> None:
        """Refuse ids that are given twice, or are stored under other keys than those ``replacing``."""
        ids = {item.id for item in items}
        if len(ids) < len(items):
            check_unique(items)
        if not self._keys.keys().isdisjoint(ids):
            for item in items:
                if (key := self._keys.get(item.id)) is not None and key not in replacing:
                    raise TakenError(item.id)

    def add(self, items: Sequence[Item | StoredItem], keys: Keys | None = None) -> Keys:
        """Add items under ``keys``, none of which was used before; None: under the next ones. Return them.

        Others with the same ids are to be removed next; see ``check_new``.
        """
        if keys is None:
            keys = np.arange(self.next_key, self.next_key + len(items), dtype=np.int64)
        pairs = list(zip(keys.tolist(), items, strict=True))
        self._items.update(pairs)
        self._keys.update((item.id, key) for key, item in pairs)
        for key, item in pairs:
            if item.image is not None:
                self._captions.setdefault(item.image, []).append(key)
                self._n_captions += 1
        self.next_key = max(self.next_key, int(keys.max(initial=-1)) + 1)
        return keys

    def change(self, key: int, item: Item | StoredItem) -> None:
        """Put another item with the same id in the place of one."""
        self._items[key] = item
        self._columns[item.view].change(key)

    def remove(self, keys: Sequence[int]) -> None:
        for key in keys:
            item = self._items.pop(key)
            if self._keys[item.id] == key:
                del self._keys[item.id]
            if item.image is not None:
                captions = self._captions[item.image]
                captions.remove(key)
                self._n_captions -= 1
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
        self._writing, self._replaced = threading.RLock(), 0

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
        for attempt in itertools.count():
            before = self._replaced
            allowed = None if where is None else self.table.find(SEARCHED[task], where)
            if where is not None and allowed is not None and not len(allowed) and not attempt:
                self.table.check_keys(where)
            if attempt:  # an item was removed after its vector matched: search among those that are left
                present = self.table.keys(SEARCHED[task])
                allowed = present if allowed is None else np.intersect1d(allowed, present)
            deepest = min(max(int(k), int(depth or 0)), max(1, len(index)))
            products, keys = index.search(queries, deepest, allowed=allowed)
            records = self.table.records(keys[:, :k])
            if records is not None and (allowed is None or self._is_settled(before, attempt)):
                break
            where = None if where is None else replace(where, all_stored=False)
        assert records is not None
        return Matches(products, records, self.table.make_item, lambda: index.last_coordinates(keys))

    def _is_settled(self, before: int, attempt: int) -> bool:
        """Return whether no item was replaced since ``before``, or there were enough attempts to read.

        An item is replaced under another key, so one that is filtered by one key and searched by the
        other would be missed.
        """
        return attempt >= _ATTEMPTS or (before == self._replaced and before % 2 == 0)

    def add(self, blocks: Sequence[Block], version: str = "", *, replace: bool = False) -> None:
        with self._writing:
            self.check_new(blocks, replace=replace)
            for block in blocks:
                self.put(block.view, block.items, block.vectors, block.features)

    def check_new(self, blocks: Sequence[Block], *, replace: bool = False) -> list[int]:
        """Refuse items that ``add`` cannot add, before anything is changed.

        Return the keys of the items that they take the place of.
        """
        replacing: list[int] = []
        for block in blocks if replace else ():
            for key in self.table.keys_of(item.id for item in block.items).tolist():
                stored = self.table.get(key)
                if stored is not None and stored.view != block.view:
                    raise other_view(stored.id)
                replacing.append(key)
        self.table.check_new([item for block in blocks for item in block.items], set(replacing))
        for block in blocks:
            self.indexes[TASK_OF[block.view]].convert(block.vectors)
        return replacing

    def put(
        self,
        view: View,
        items: Sequence[Item | StoredItem],
        vectors: Floats,
        features: Floats | None,
        keys: Keys | None = None,
    ) -> None:
        """Add items of a view with their rows, under ``keys`` or the next ones, in place of those stored.

        A search meets the items that are replaced, or those in their place.
        """
        replaced = self.table.keys_of(item.id for item in items)
        self._replaced += len(replaced) > 0  # odd while items are being replaced
        # The item before its vector, so that no search meets a vector without its item.
        keys = self.table.add(items, keys)
        if view in self.kept and features is not None:
            self.kept[view].add(keys, features, replaced)
        elif view in self.kept:
            self.kept[view].remove(replaced)
        self.indexes[TASK_OF[view]].add(keys, vectors, replaced)
        self.table.remove(replaced.tolist())
        self._replaced += len(replaced) > 0

    def update(
        self, ids: Sequence[str], change: Change, version: str = "", content: Block | None = None
    ) -> list[Item]:
        with self._writing:
            changed = self.change_items(ids, change)
            items = list(changed.values())
            if content is not None:
                self.add([replace(content, items=items)], replace=True)
            else:
                for key, item in changed.items():
                    self.table.change(key, item)
        return items

    def change_items(self, ids: Sequence[str], change: Change) -> dict[int, Item]:
        """Return what ``change`` makes of some items, by their keys; unknown ids are refused."""
        changed = {}
        for item_id in ids:
            key = self.table.key(item_id)
            item = None if key is None else self.table.get(key)
            if key is None or item is None:
                raise unknown_item(item_id)
            changed[key] = change(item)
        return changed

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
        images: Sequence[str] | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        pairs: Iterable[tuple[int, Item | None]] = self.table
        if ids is not None or images is not None:
            if images is None:
                keys = self.table.keys_of(ids or ()).tolist()
            else:
                keys = sorted({key for image in images for key in self.table.caption_keys(image)})
            pairs = [(key, self.table.get(key)) for key in keys]
        for key, item in pairs:
            if item is not None and view in (None, item.view) and (not new or key >= self.learned):
                yield item

    def page(self, listing: Listing) -> tuple[list[Item], int]:
        for attempt in itertools.count():
            before = self._replaced
            keys = self._list_keys(listing)
            page = [self.table.get(key) for key in keys[listing.offset : listing.end].tolist()]
            if self._is_settled(before, attempt):
                break
            if listing.where is not None:
                listing = replace(listing, where=replace(listing.where, all_stored=False))
        return [item for item in page if item is not None], len(keys)

    def _list_keys(self, listing: Listing) -> Keys:
        """Return the keys of the items on all pages, in order."""
        views = VIEWS if listing.view is None else (listing.view,)
        keys: Keys = np.sort(np.concatenate([self.indexes[TASK_OF[view]].keys for view in views]))
        if listing.where is not None:
            allowed = [self.table.find(view, listing.where) for view in views]
            if not any(some is None for some in allowed):
                keys = keys[np.isin(keys, np.concatenate([some for some in allowed if some is not None]))]
            if not len(keys):
                self.table.check_keys(listing.where)
        if listing.order_by is not None:
            keys = self.table.order(keys, listing.order_by, descending=listing.descending)
        return keys

    def count(self, view: View | None = None) -> int:
        return len(self.table) if view is None else len(self.indexes[TASK_OF[view]])

    def count_kinds(self, view: View) -> tuple[int, int]:
        paired = self.table.count_paired(view)
        return paired, max(0, self.count(view) - paired)

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
                table.check_new(block.items)
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
