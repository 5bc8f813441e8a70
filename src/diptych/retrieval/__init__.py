"""Search images with texts and texts with images: encoders, a model and a store as one object."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.retrieval._audit import Audit, AuditedPair, audit_pairs
    from diptych.retrieval._evaluation import Evaluation
    from diptych.retrieval._items import Hit, Hits, Item
    from diptych.retrieval._near_duplicates import DuplicateGroup, Duplicates
    from diptych.retrieval._pair_scores import PairScore, PairScores
    from diptych.retrieval._retriever import Retriever
    from diptych.retrieval._sync import SyncReport

__all__ = [
    "Audit",
    "AuditedPair",
    "DuplicateGroup",
    "Duplicates",
    "Evaluation",
    "Hit",
    "Hits",
    "Item",
    "PairScore",
    "PairScores",
    "Retriever",
    "SyncReport",
    "audit_pairs",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_audit": ["Audit", "AuditedPair", "audit_pairs"],
        "_near_duplicates": ["DuplicateGroup", "Duplicates"],
        "_evaluation": ["Evaluation"],
        "_items": ["Hit", "Hits", "Item"],
        "_pair_scores": ["PairScore", "PairScores"],
        "_retriever": ["Retriever"],
        "_sync": ["SyncReport"],
    },
)
