"""Tables and figures of what was fitted."""

from diptych.report._card import Card, EncoderFacts, IndexFacts, TaskFacts, model_card
from diptych.report._contact import Answer, ContactRow, draw_contact_sheet
from diptych.report._figures import draw_recall_curves, draw_regularization_path

__all__ = [
    "Answer",
    "Card",
    "ContactRow",
    "EncoderFacts",
    "IndexFacts",
    "TaskFacts",
    "draw_contact_sheet",
    "draw_recall_curves",
    "draw_regularization_path",
    "model_card",
]
