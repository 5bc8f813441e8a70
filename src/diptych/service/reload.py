"""The model that is served now, and the next one, loaded aside and put in its place in one step."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from diptych import storage
from diptych.checks import InputError
from diptych.retrieval.collection import UnavailableError
from diptych.service.journal import journal_of
from diptych.service.served import Served
from diptych.service.writing import Writer

log = logging.getLogger("diptych.service")

Signature: TypeAlias = tuple[int, int, int, str]


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
        self._seen = self._signature()
        self.writing = asyncio.Lock()
        self.reloads = {"loaded": 0, "failed": 0}

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False, **encoders: Any) -> Shelf:
        """Load a folder, and what its journal holds; later versions are loaded as they appear."""

        def load() -> Served:
            return Served.load(folder, **encoders)

        served = load()
        writer = Writer(folder) if writable else None
        if writer is not None and (replayed := writer.replay(served.retriever)):
            log.info("replayed %d entries of the journal", replayed)
        left = journal_of(folder)
        if writer is None and left.is_file() and left.stat().st_size:
            log.warning("%s holds items that are not served without --writable", left)
        return cls(served, folder=folder, load=load, writer=writer)

    async def watch(self, seconds: float = 1.0) -> None:
        """Look for a new version again and again."""
        while True:
            await asyncio.sleep(seconds)
            await self.refresh()

    async def refresh(self) -> bool:
        """Load the version on disk if it is another one than before; returns whether it is served now."""
        found = self._signature()
        if self._load is None or found is None or found == self._seen:
            return False
        async with self.writing:
            self._seen = found
            try:
                served = await asyncio.to_thread(self._loaded)
            except (InputError, OSError) as error:
                self.reloads["failed"] += 1
                log.error("the new version is not served, the old one is: %s", error)
                return False
            self.current = served
        self.reloads["loaded"] += 1
        log.info("serving version %s", served.version)
        return True

    def fold(self) -> None:
        """Save what was added, unless another version lies in the folder by now."""
        if self.writer is None:
            return
        if self._signature() != self._seen:
            log.warning("%s holds another version by now; what was added stays in the journal", self._folder)
            return
        try:
            self.writer.fold(self.current.retriever, self._saved)
        except UnavailableError as error:
            log.warning("pictures that no item shows any more are left: %s", error)

    def _loaded(self) -> Served:
        assert self._load is not None
        served = self._load()
        if self.writer is not None:
            self.writer.replay(served.retriever)
        return served

    def _saved(self) -> None:
        self._seen = self._signature()

    def _signature(self) -> Signature | None:
        """What changes when a folder is saved, or what it points to; None while there is none to see."""
        if self._folder is None:
            return None
        try:
            found = os.stat(Path(self._folder) / storage.CONFIG)
        except OSError:
            return None
        version = self.current.retriever.collection.version
        return found.st_mtime_ns, found.st_ino, found.st_size, version
