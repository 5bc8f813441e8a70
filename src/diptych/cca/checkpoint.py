"""A pass that was interrupted goes on from its last checkpoint, and ends with the same numbers."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from diptych import storage
from diptych.cca.moments import Moments
from diptych.checks import InputError

EVERY = 60.0
"""Seconds between checkpoints."""


class Checkpoint:
    """The sum so far and how many blocks are in it, in one file that is replaced as a whole.

    Parameters
    ----------
    path
        The file; there need not be one yet.
    identity
        What is being summed and how; a file of something else is refused.
    every
        Seconds between two writes.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str, every: float = EVERY) -> None:
        self.path, self.every = Path(path), every
        self._identity = hashlib.sha256(identity.encode()).hexdigest()
        self._written = time.monotonic()

    def resumed(self) -> tuple[Moments | None, int]:
        """The sum and the number of blocks in it; None and 0 at the beginning."""
        if not self.path.exists():
            return None, 0
        notes = storage.read_metadata(self.path)
        moments, blocks = Moments.load(self.path), notes.get("blocks", "")
        if notes.get("of") != self._identity or not blocks.isdecimal():
            raise InputError(
                f"{self.path} is a checkpoint of other data or of another normalisation or precision; name "
                "another file, or remove it to begin anew."
            )
        return moments, int(blocks)

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= self.every

    def write(self, moments: Moments, blocks: int) -> None:
        """Put the sum of the first ``blocks`` blocks in place of what was there."""
        moments.save(self.path, {"of": self._identity, "blocks": str(blocks)})
        self._written = time.monotonic()
