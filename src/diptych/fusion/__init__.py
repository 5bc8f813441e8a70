"""Several feature blocks and several models, corrected for hubness and searched as one inner product."""

from diptych.fusion._blocks import Block
from diptych.fusion._fusion import PRESETS, Fusion
from diptych.fusion._hubness import Correction
from diptych.fusion._members import Part

__all__ = ["PRESETS", "Block", "Correction", "Fusion", "Part"]
