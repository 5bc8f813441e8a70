"""The product: encoders, models and an index as one object, searched both ways, saved as a folder."""

from diptych.retrieval.index import VectorIndex
from diptych.retrieval.items import Item
from diptych.retrieval.results import Hit, Hits, Pack
from diptych.retrieval.retriever import Retriever

__all__ = ["Hit", "Hits", "Item", "Pack", "Retriever", "VectorIndex"]
