"""How good a ranking is: ranks by counting, recall, median rank; arrays only."""

from diptych.ranking.metrics import Metric, mean_recall, metric
from diptych.ranking.ranks import Truth, annotate_ranks, ranks, search_ranks, tie_slack
from diptych.ranking.scores import mean_rank, median_rank, recall_at_k, retrieval_scores, summary

__all__ = [
    "Metric",
    "Truth",
    "annotate_ranks",
    "mean_rank",
    "mean_recall",
    "median_rank",
    "metric",
    "ranks",
    "recall_at_k",
    "retrieval_scores",
    "search_ranks",
    "summary",
    "tie_slack",
]
