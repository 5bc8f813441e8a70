"""Tables and figures of what was fitted."""

from diptych.report.regularization import draw_regularization_path

__all__ = ["draw_regularization_path"]
