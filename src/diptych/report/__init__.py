"""Figures, pages and model cards about fitted models."""

from diptych.report._card import Card, EncoderFacts, FusedTaskFacts, IndexFacts, TaskFacts, model_card
from diptych.report._figures import draw_recall_curves, draw_regularization_path

__all__ = [
    "Card",
    "EncoderFacts",
    "FusedTaskFacts",
    "IndexFacts",
    "TaskFacts",
    "draw_recall_curves",
    "draw_regularization_path",
    "model_card",
]
