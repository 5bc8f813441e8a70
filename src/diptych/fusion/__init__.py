"""Several feature blocks and several models, corrected for hubness, searched as one inner product."""

from diptych.fusion.blocks import Block
from diptych.fusion.estimator import Fusion
from diptych.fusion.hubness import (
    Correction,
    activated,
    csls_offsets,
    gated,
    inverted_softmax_offsets,
    offsets,
)
from diptych.fusion.parts import Part
from diptych.fusion.presets import PRESETS

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
