"""What other processes do to a model: they refit it in a shared store, or save to the same model folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from diptych._checks import InputError
from diptych._model_folder import ChangedError, Version
from diptych.retrieval._folder import Base, load_from_store, read_version
from diptych.retrieval._items import VIEWS
from diptych.retrieval._searcher import Searcher
from diptych.retrieval.stores._base import ModelChanged, RefusedError, UnavailableError
from diptych.retrieval.stores._memory import MemoryStore

T = TypeVar("T")


class CurrentModel:
    """The model that a retriever works with; of a shared store, the one that it held when last read."""

    def __init__(self) -> None:
        self.searcher: Searcher | None = None
        self._refused = ""  # the version in a shared store that this retriever has no encoders for
        self._loading = threading.RLock()

    @property
    def version(self) -> str:
        """The version of the model in a shared store, as last seen."""
        return self._refused or ("" if self.searcher is None else self.searcher.version)

    def get(self) -> Searcher:
        """Return it as last read."""
        if self.searcher is None:
            raise InputError("this retriever is not fitted; call fit(), or load a saved one.")
        return self.searcher

    def read(self) -> Searcher:
        """Return it as it is now."""
        searcher = self.get()
        if searcher.is_outdated():
            self._load(searcher, uses_encoders=True)
        return self.get()

    def use(self, searcher: Searcher) -> None:
        """Use a model from now on that was just put into a store."""
        self.searcher, self._refused = searcher, ""
        if searcher.store.shared:
            self._load(searcher, uses_encoders=True)

    def run(self, action: Callable[[Searcher], T], *, uses_encoders: bool) -> T:
        """Do something with the model; again if another process has put another model in the store.

        Without ``uses_encoders`` the action uses features, and a model with other encoders is an error.
        """
        while True:
            searcher = self.get()
            try:
                return action(searcher)
            except ModelChanged:
                pass
            except (UnavailableError, RefusedError):
                raise
            except InputError:  # features of another width may be meant for the new model
                if not searcher.is_outdated():
                    raise
            self._load(searcher, uses_encoders)

    def _load(self, outdated: Searcher, uses_encoders: bool) -> None:
        """Load the model that a shared store holds now in place of an outdated one."""
        with self._loading:
            if self.searcher is not outdated:  # another thread has done it
                return
            encoders = outdated.encoders
            loaded = load_from_store(outdated.store, opened=encoders)
            same = loaded.has_encoders(encoders)
            if not same and not uses_encoders:
                self._refused = loaded.version
                raise UnavailableError(
                    "another process has fitted this index on features of other encoders; open it again, "
                    "and pass features of those."
                )
            if not same or encoders.views != loaded.views:
                encoders = loaded.encoders(*(encoders.match_open(view, loaded.records) for view in VIEWS))
            self.searcher, self._refused = loaded.searcher(encoders), ""


def merge_changes(
    mine: Searcher, base: Base, current: Version, refits: Iterable[tuple[Any, ...] | None]
) -> tuple[Searcher, Base, bool]:
    """Apply the changes made here to the version of a folder that others have saved since ``base``.

    Return the result, the base to count further changes from, and whether it keeps features. ``refits`` are
    the validation pairs of refits since the last save.
    """
    loaded, new_base = read_version(current, text=False)
    if not isinstance(mine.store, MemoryStore) or not isinstance(loaded.store, MemoryStore):
        raise ChangedError(f"{current.folder} holds another model now; load it again.")
    merged = loaded.searcher(mine.encoders)
    for view in VIEWS:
        same_width = mine.embedding.features(view) == merged.embedding.features(view)
        if not same_width or mine.encoders.describe(view).fingerprint != loaded.records[view].fingerprint:
            raise ChangedError(
                f"{current.folder} was fitted again meanwhile, on features of another "
                f"{mine.encoders.views.of(view)} encoder; load it again and repeat the changes."
            )
    removed, added = mine.store.changes_since(base.first_key)
    stored = {item.id for item in merged.store.items(ids=removed)}
    merged.store.remove([item_id for item_id in dict.fromkeys(removed) if item_id in stored])
    items = {view: [item for item in added if item.view == view] for view in VIEWS}
    items = {view: rows for view, rows in items.items() if rows}
    merged.add(items, {view: mine.features_of(view, rows) for view, rows in items.items()})
    if mine.fitted.facts == merged.fitted.facts:  # the model is the same: a calibration made here holds
        merged = merged.recalibrate(mine.fitted.calibration)
    for validation in refits:
        merged = merged.refit(validation)
    return merged, replace(new_base, hkse=mine.encoders.hkse), loaded.keep_features
