"""Search both ways between two paired views: pictures and sentences, or any other two."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diptych._checks import InputError
    from diptych.cca import AWCCA
    from diptych.ranking import retrieval_scores
    from diptych.retrieval import Retriever
    from diptych.text import HKSE

__version__ = "0.1.0"

__all__ = ["AWCCA", "HKSE", "InputError", "Retriever", "retrieval_scores"]

# Names are imported when they are first asked for, so that a part of the library loads that part alone.
_HOMES = {
    "AWCCA": "diptych.cca",
    "HKSE": "diptych.text",
    "InputError": "diptych._checks",
    "Retriever": "diptych.retrieval",
    "retrieval_scores": "diptych.ranking",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'diptych' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
