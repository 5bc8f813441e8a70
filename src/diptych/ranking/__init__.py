"""Ranks of the true items, recall and the other retrieval metrics."""

from diptych.ranking._metrics import (
    Metric,
    bootstrap_intervals,
    map_at_r,
    mean_rank,
    mean_recall,
    mean_reciprocal_rank,
    median_rank,
    metric,
    ndcg_at_k,
    recall_at_k,
    retrieval_scores,
    summary,
)
from diptych.ranking._ranks import pair_ranks, ranks

__all__ = [
    "Metric",
    "bootstrap_intervals",
    "map_at_r",
    "mean_rank",
    "mean_recall",
    "mean_reciprocal_rank",
    "median_rank",
    "metric",
    "ndcg_at_k",
    "pair_ranks",
    "ranks",
    "recall_at_k",
    "retrieval_scores",
    "summary",
]
