"""Several feature blocks and several models, corrected for hubness and searched as one inner product."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.fusion._blocks import Block
    from diptych.fusion._fitting import PRESETS
    from diptych.fusion._fusion import Fusion
    from diptych.fusion._hubness import Correction
    from diptych.fusion._members import Part

__all__ = ["PRESETS", "Block", "Correction", "Fusion", "Part"]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_blocks": ["Block"],
        "_fitting": ["PRESETS"],
        "_fusion": ["Fusion"],
        "_hubness": ["Correction"],
        "_members": ["Part"],
    },
)
