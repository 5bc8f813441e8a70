"""Search both ways between two paired views: images and texts, or any other two."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych._checks import InputError
    from diptych.cca import AWCCA, CCA, GCCA, PLS
    from diptych.data import read_pairs
    from diptych.encoders import HKSE
    from diptych.fusion import Fusion
    from diptych.ranking import retrieval_scores
    from diptych.retrieval import Retriever

__version__ = "0.1.0"

__all__ = [
    "AWCCA",
    "CCA",
    "GCCA",
    "HKSE",
    "PLS",
    "Fusion",
    "InputError",
    "Retriever",
    "read_pairs",
    "retrieval_scores",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_checks": ["InputError"],
        "cca": ["AWCCA", "CCA", "GCCA", "PLS"],
        "data": ["read_pairs"],
        "encoders": ["HKSE"],
        "fusion": ["Fusion"],
        "ranking": ["retrieval_scores"],
        "retrieval": ["Retriever"],
    },
)
