"""The model that is served now, and the next one, loaded aside and put in its place in one step."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from diptych import folders
from diptych.checks import InputError
from diptych.folders import ChangedError
from diptych.retrieval.collection import UnavailableError
from diptych.service.journal import read_entries
from diptych.service.served import Served
from diptych.service.writing import Writer

log = logging.getLogger("diptych.service")


class Shelf:
    """Holds the version that is served. Requests take it once and finish on it, whatever comes after.

    Parameters
    ----------
    served
        The first version.
    load
        Reads the folder; None: nothing is ever reloaded.
    folder
        Where versions appear.
    writer
        What was added since, to be added to a new version as well; None: nothing is written.
    """

    def __init__(
        self,
        served: Served,
        *,
        folder: Path | None = None,
        load: Callable[[], Served] | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.current, self.writer = served, writer
        self._folder, self._load = folder, load
        self._shared = served.retriever.collection.version
        self._refused = ""
        self.writing = asyncio.Lock()
        self.reloads = {"loaded": 0, "failed": 0}

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False, **encoders: Any) -> Shelf:
        """Load a folder, and what its journal holds; later versions are loaded as they appear."""
        if writable:  # what is written goes to this folder, whatever a link to it names later
            folder = folders.real_folder(folder)

        def load() -> Served:
            return Served.load(folder, **encoders)

        served = load()
        writer = Writer(folder) if writable else None
        if writer is not None and (replayed := writer.replay(served.retriever)):
            log.info("replayed %d entries of the journal", replayed)
        if writer is None and (left := _unsaved(folder, served)):
            log.warning("%d changes in the journal of %s are not served without --writable", left, folder)
        return cls(served, folder=folder, load=load, writer=writer)

    async def watch(self, seconds: float = 1.0) -> None:
        """Look for a new version again and again."""
        while True:
            await asyncio.sleep(seconds)
            await self.refresh()

    async def refresh(self) -> bool:
        """Load the version on disk if it is another one than before; returns whether it is served now."""
        if self._load is None or self._new_version() is None:
            return False
        async with self.writing:
            if (found := self._new_version()) is None:  # this server has saved it itself
                return False
            try:
                served = await asyncio.to_thread(self._loaded)
            except (InputError, OSError) as error:
                if isinstance(error, InputError):  # anything else may pass
                    self._refused = found
                self.reloads["failed"] += 1
                log.error("the new version is not served, the old one is: %s", error)
                return False
            self._shared = served.retriever.collection.version
            self.current = served
        self.reloads["loaded"] += 1
        log.info("serving version %s", served.version)
        return True

    def fold(self) -> None:
        """Save what was added; where another version lies in the folder by now, it stays in the journal."""
        if self.writer is None:
            return
        try:
            self.writer.fold(self.current.retriever)
        except UnavailableError as error:
            log.warning("pictures that no item shows any more are left: %s", error)
        except (ChangedError, FileNotFoundError):
            log.warning("%s holds another version by now; what was added stays in the journal", self._folder)
        except (InputError, OSError) as error:
            log.error("what was added could not be saved and stays in the journal: %s", error)

    def _loaded(self) -> Served:
        assert self._load is not None
        served = self._load()
        if self.writer is not None:
            self.writer.replay(served.retriever)
        return served

    def _new_version(self) -> str | None:
        """What is in the folder, or in the database it points to, if that is neither served nor refused."""
        if self._folder is None:
            return None
        try:
            current = folders.find_current(self._folder)
        except (InputError, OSError) as error:
            found = f"unreadable: {error}"
        else:
            if current is None:
                return None
            base, shared = self.current.retriever.base, self.current.retriever.collection.version
            if base is not None and current.id == base.version.id and shared == self._shared:
                return None
            found = f"{current.id} {shared}"
        return found if found != self._refused else None


def _unsaved(folder: Path, served: Served) -> int:
    """How many entries of a folder's journal are not part of the version that is served."""
    entries, _ = read_entries(folders.real_folder(folder) / folders.JOURNAL)
    base = served.retriever.base
    return sum(base is None or entry["n"] > base.journal for entry in entries)
