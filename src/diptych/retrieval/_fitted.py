"""A fitted model with what is kept of its training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, cast

from diptych._checks import Task
from diptych.cca._fitted import FittedAWCCA
from diptych.cca._moments import Moments
from diptych.fusion._fitted import FittedFusion
from diptych.retrieval._calibration import Calibration
from diptych.retrieval._embedding import Layout, OutlierDetector, fusion_layout
from diptych.retrieval._items import View

if TYPE_CHECKING:
    from diptych.cca import AWCCA
    from diptych.fusion import Fusion


NOT_CALIBRATED = "it was fitted without; Retriever.calibrate measures them on held-out pairs"
"""Why a model has no probabilities that was fitted elsewhere, or saved before there were any."""


class Selection(TypedDict):
    """The pairs that the regularisation was selected on, and the best value of the metric there."""

    pairs: str
    metric: str
    search: float
    annotate: float
    grid: NotRequired[str]


class Refit(TypedDict):
    """The number of pairs after a refit, and before."""

    pairs: int
    before: int


class Facts(TypedDict, total=False):
    """What a fit records for people, as plain data; checked when a saved model is read."""

    date: str
    pairs: dict[str, tuple[int, int]]
    moments: dict[str, int]
    seconds: dict[str, float]
    training_sample: str
    leaks: dict[str, int]
    blocks: dict[View, list[tuple[str, int]]]
    selection: Selection
    theory: str
    quality: str
    metrics: dict[str, dict[Task, dict[str, float]]]
    graph_recall: dict[Task, float]
    refitted: Refit


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model, in NumPy, and what is kept of its training data.

    ``core`` is the model, of a loaded one without the estimator, because a search needs no scikit-learn.
    ``load_moments`` returns the moments of the training pairs, of the features as the model takes them, which
    only a refit needs; it is None if they are not known. ``facts`` are as in ``Facts``. ``calibration`` has
    the probabilities of both tasks, or says why there are none.
    """

    core: FittedAWCCA | FittedFusion
    load_moments: Callable[[], Moments] | None
    outliers: dict[View, OutlierDetector]
    facts: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration = NOT_CALIBRATED

    @property
    def model(self) -> AWCCA | Fusion:
        """The model as an ``AWCCA`` or ``Fusion``."""
        if not hasattr(self.core, "fit"):
            object.__setattr__(self, "core", self.core.make_estimator())
        return cast("AWCCA | Fusion", self.core)

    def layout(self, view: View) -> Layout:
        """Return names and widths of a view's feature blocks; empty if its features have no blocks."""
        if isinstance(self.core, FittedFusion):
            return fusion_layout(self.core, view)
        return {str(name): int(width) for name, width in self.facts.get("blocks", {}).get(view, [])}
