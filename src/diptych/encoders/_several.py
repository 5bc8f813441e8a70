"""Several encoders of a view as one: each makes a block of features, and the blocks are side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import count as count_from
from typing import Any

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import InputError, count
from diptych.encoders._image import Inputs, View, inputs_of


class SeveralEncoders:
    """Encodes the same inputs with each of several encoders, and puts their features side by side.

    Images are decoded once for all of them, and what each does with one image alone can run ahead: it is a
    ``StagedEncoder``. ``widths`` are the numbers of features of each; empty until they are known.
    """

    def __init__(self, encoders: Sequence[Any], widths: Sequence[int] = ()) -> None:
        self.encoders, self.widths = tuple(encoders), tuple(widths)

    @property
    def inputs(self) -> Inputs:
        """What each of them takes."""
        return inputs_of(self.encoders[0])

    @property
    def dimension(self) -> int:
        """Number of columns of the features; 0 if that is not known before something is encoded."""
        return sum(self.widths)

    @property
    def fingerprint(self) -> str:
        """Identifies all of the encoders, in order; empty if one of them has nothing to identify it by."""
        fingerprints = [str(getattr(encoder, "fingerprint", "")) for encoder in self.encoders]
        return join_names(fingerprints) if all(fingerprints) else ""

    def encode(self, inputs: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the features of inputs, one row per input."""
        return self.encode_prepared([self.prepare(item) for item in inputs])

    def prepare(self, item: Any) -> tuple[Any, ...]:
        """Do the work of each encoder that needs one input alone."""
        return tuple(
            encoder.prepare(item) if hasattr(encoder, "encode_prepared") else item
            for encoder in self.encoders
        )

    def encode_prepared(self, prepared: Sequence[tuple[Any, ...]]) -> np.ndarray[Any, Any]:
        """Return the features of inputs that went through ``prepare``, one row per input."""
        blocks, n = [], len(prepared)
        for i, encoder in enumerate(self.encoders):
            encode = encoder.encode_prepared if hasattr(encoder, "encode_prepared") else encoder.encode
            block = to_numpy(encode([parts[i] for parts in prepared]))
            if block.ndim != 2 or len(block) != n:
                raise InputError(
                    f"encoder {i + 1} of {len(self.encoders)} gave an array of shape {list(block.shape)} for "
                    f"{count(n, 'input')}; expected one row for each."
                )
            blocks.append(block)
        widths = tuple(block.shape[1] for block in blocks)
        if self.widths and n and widths != self.widths:
            actual, expected = (", ".join(map(str, numbers)) for numbers in (widths, self.widths))
            raise InputError(
                f"the {len(blocks)} encoders gave {actual} features; expected {expected}. Give the same "
                "encoders in the same order as when the model was fitted."
            )
        self.widths = widths if n else self.widths
        return np.concatenate(blocks, axis=1)


def join_encoders(view: View, encoders: Sequence[Any], widths: Sequence[int] = ()) -> Any:
    """Return the encoders of a view as one encoder; a single one as it is."""
    if len(encoders) == 1:
        return encoders[0]
    if view == "image":
        if len(kinds := {inputs_of(encoder) for encoder in encoders}) > 1:
            raise InputError(
                f"these encoders take different inputs ({' and '.join(sorted(kinds))}); all encoders of a "
                "view get the same."
            )
        dimensions = [int(encoder.dimension) for encoder in encoders]
        widths = widths or (dimensions if all(dimensions) else ())
    return SeveralEncoders(encoders, widths)


def split_encoders(encoder: Any) -> list[Any]:
    """Return the encoders that ``join_encoders`` has joined; none for None."""
    if isinstance(encoder, SeveralEncoders):
        return list(encoder.encoders)
    return [] if encoder is None else [encoder]


def join_names(names: Iterable[str]) -> str:
    """Return names, or fingerprints, of several encoders as one; "?" stands for one that has none."""
    return " + ".join(name or "?" for name in names)


def name_blocks(names: Iterable[str], taken: Collection[str]) -> list[str]:
    """Return a name for each feature block that no other block has, with a number where one is needed."""
    unique: list[str] = []
    for name in names:
        numbered = (name if i == 1 else f"{name} {i}" for i in count_from(1))
        unique.append(next(block for block in numbered if block not in unique and block not in taken))
    return unique
