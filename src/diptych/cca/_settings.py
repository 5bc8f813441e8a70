"""The checks of ``AWCCA``'s settings that need no data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from diptych._checks import InputError, check_choice, check_count, check_seed, check_similarity
from diptych.cca._filters import SHRINKAGES, Shrinkage, check_filter
from diptych.cca._moments import PRECISIONS
from diptych.cca._spectra import SOLVERS
from diptych.cca._weighting import check_normalization, check_weighting
from diptych.ranking import metric

Selection: TypeAlias = Literal["validation", "leave-one-out"] | Shrinkage
SELECTIONS: tuple[Selection, ...] = ("validation", "leave-one-out", *SHRINKAGES)


def check_settings(settings: Any) -> None:
    """Raise an error for wrong settings of an ``AWCCA``; its grid and params are not looked at."""
    check_filter(settings.filter)
    check_choice(settings.solver, SOLVERS, "solver")
    check_choice(settings.precision, PRECISIONS, "precision")
    check_similarity(settings.similarity)
    check_choice(settings.path_metrics, ("metric", "all"), "path_metrics")
    check_weighting(settings.weighting)
    check_choice(settings.selection, SELECTIONS, "selection")
    if settings.params is None:
        _check_selection(settings)
    metric(settings.metric)
    if settings.polish and (settings.similarity != "cosine" or settings.selection != "validation"):
        raise InputError(
            "polish=True learns cosines, and chooses its epochs on validation pairs; use "
            "similarity='cosine' and selection='validation'."
        )
    check_seed(settings.random_state)
    if settings.n_components not in (None, "auto"):
        check_count(settings.n_components, "n_components")
    if not isinstance(settings.normalize, (tuple, list)) or len(settings.normalize) != 2:
        raise InputError(
            f"normalize={settings.normalize!r} is not a pair; give one name for X and one for Y."
        )
    for name in settings.normalize:
        check_normalization(name)


def _check_selection(settings: Any) -> None:
    """Raise an error for settings that cannot be selected without validation pairs."""
    selection = settings.selection
    if selection == "validation":
        return
    if settings.filter != "tikhonov" or settings.n_components == "auto":
        raise InputError(
            f"selection={selection!r} selects Tikhonov's γ and no dimension; use filter='tikhonov' and a "
            "number for n_components, or selection='validation'."
        )
    if selection == "leave-one-out" and (
        settings.weighting != "asymmetric" or settings.n_components is not None
    ):
        raise InputError(
            "selection='leave-one-out' supports the asymmetric weighting at full dimension only; use "
            "selection='validation' for others."
        )
