"""Search both ways between two paired views: images and texts, or any other two."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diptych._checks import InputError
    from diptych.cca import AWCCA
    from diptych.data import read_pairs
    from diptych.fusion import Fusion
    from diptych.ranking import retrieval_scores
    from diptych.retrieval import Retriever
    from diptych.text import HKSE

__version__ = "0.1.0"

__all__ = ["AWCCA", "HKSE", "Fusion", "InputError", "Retriever", "read_pairs", "retrieval_scores"]

# Each name is imported at its first use, so that `import diptych` is quick.
_MODULES = {
    "AWCCA": "diptych.cca",
    "Fusion": "diptych.fusion",
    "HKSE": "diptych.text",
    "InputError": "diptych._checks",
    "Retriever": "diptych.retrieval",
    "read_pairs": "diptych.data",
    "retrieval_scores": "diptych.ranking",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'diptych' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
