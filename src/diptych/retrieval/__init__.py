"""Search images with texts and texts with images: encoders, a model and a store as one object."""

from diptych.retrieval._items import Hit, Hits, Item, Pack
from diptych.retrieval._retriever import Retriever

__all__ = ["Hit", "Hits", "Item", "Pack", "Retriever"]
