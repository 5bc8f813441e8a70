"""Embeddings of a selected model, for looking at single answers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from diptych._checks import Task
from diptych._normalize import to_unit_length
from diptych.cca import CanonicalModel, Spectra, regularized_cca
from diptych.cca._filters import make_filters
from diptych.paper._selecting import select
from diptych.paper._setting import Setting
from diptych.paper._sources import Floats, Rows
from diptych.paper._weighted import Pair, embedded
from diptych.paper._weighting import ASYMMETRIC


def embedder(setting: Setting, task: Task) -> Embedder:
    """The guided model of a task on the single experiments' features (HKSE(rbf, rbf))."""
    choice = select(setting, setting.image, setting.hkse, setting.run.validation, "tsvd", "rank")
    return Embedder(setting, task, tuple(choice[task]["params"]))


@dataclass(eq=False)
class Embedder:
    """Embeds images and captions of the dataset so that inner products are cosines.

    Attributes
    ----------
    task
        Whose asymmetric weighting is used, unless another is asked for.
    params
        k of either view; the model is guided Tikhonov there.
    """

    setting: Setting
    task: Task
    params: tuple[int, int]

    @cached_property
    def spectra(self) -> Spectra:
        """Of the training pairs."""
        return self.setting.spectra(self.setting.image, self.setting.hkse)

    @cached_property
    def model(self) -> CanonicalModel:
        """The fitted model; one SVD, however much is embedded."""
        filters = make_filters("guided", self.params, self.spectra.s_x, self.spectra.s_y)
        return regularized_cca(self.spectra, *filters)

    def views(
        self, rows: Rows, *, packs: bool = False, powers: Pair | None = None
    ) -> tuple[Floats, Floats, Rows]:
        """Images and captions (or packs) of some image rows, weighted for the task, and their pairing."""
        setting = self.setting
        x, y, pairing = (setting.packs if packs else setting.views)(setting.image, setting.hkse, rows)
        u, v, sigma = embedded(self.spectra, self.model, x, y)
        a, b = ASYMMETRIC[self.task] if powers is None else powers
        return to_unit_length(u * sigma**a), to_unit_length(v * sigma**b), pairing


def first(scores: Floats, count: int) -> Floats:
    """Places of the ``count`` largest, the largest first.

    >>> first(np.array([0.1, 0.9, 0.5]), 2)
    array([1, 2])
    """
    return np.argsort(-scores, kind="stable")[:count]
