"""The product: encoders, models and an index as one object, searched both ways, saved as a folder."""

from diptych.retrieval._items import Hit, Hits, Item, Pack
from diptych.retrieval._retriever import Retriever
from diptych.retrieval.stores._faiss import VectorIndex

__all__ = ["Hit", "Hits", "Item", "Pack", "Retriever", "VectorIndex"]
