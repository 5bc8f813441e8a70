"""Search both ways between two paired views: pictures and sentences, or any other two."""

from diptych.cca import AWCCA
from diptych.checks import InputError
from diptych.ranking import retrieval_scores
from diptych.retrieval import Retriever
from diptych.text import HKSE

__version__ = "0.1.0"

__all__ = ["AWCCA", "HKSE", "InputError", "Retriever", "retrieval_scores"]
