"""What a matrix in a file is: rows of it can be read, here or in another process, without the rest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.data.sharded.remote import Options, reading

DEFAULT_MAX_BYTES = 2 * 2**30
"""The most that a piece which is packed as a whole (a row group, a chunk) may unpack to."""


@dataclass(frozen=True)
class Matrix(ABC):
    """A matrix in a file; it can be sent to another process, and is opened anew for each reading.

    Attributes
    ----------
    name
        Absolute path or URL.
    rows, width
        Its shape.
    dtype
        Of its numbers.
    key
        Name of the column or array in the file; None: the only one.
    grain
        Rows that are packed together: ranges that keep to multiples of it read nothing twice.
    version
        Changes when the content does.
    options
        Of the file system; may hold secrets, so never shown.
    max_bytes
        Limit on what a packed piece may unpack to.
    """

    name: str
    rows: int
    width: int
    dtype: str
    key: str | None = None
    grain: int = 1
    version: str = ""
    options: Options = field(default=None, repr=False)
    max_bytes: int = DEFAULT_MAX_BYTES

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Rows from ``start`` to ``stop``; memory-mapped where the file is local and plain."""
        with reading(self.name):
            rows = self._read(start, stop)
        if rows.shape != (stop - start, self.width):
            raise InputError(
                f"{self.name} gave an array of shape {list(rows.shape)} for rows {start} to {stop - 1}; "
                f"expected {self.width} columns. It changed or is damaged."
            )
        return rows

    @abstractmethod
    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]: ...
