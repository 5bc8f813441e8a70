"""Several feature blocks and several models, corrected for hubness, searched as one inner product."""

from diptych.fusion._blocks import Block
from diptych.fusion._fusion import PRESETS, Fusion
from diptych.fusion._hubness import (
    Correction,
    activated,
    csls_offsets,
    gated,
    inverted_softmax_offsets,
    offsets,
)
from diptych.fusion._members import Part

__all__ = [
    "PRESETS",
    "Block",
    "Correction",
    "Fusion",
    "Part",
    "activated",
    "csls_offsets",
    "gated",
    "inverted_softmax_offsets",
    "offsets",
]
