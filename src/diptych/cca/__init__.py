"""Canonical correlation analysis of two paired views: moments → spectra → filters → weighting → model."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA
    from diptych.cca._canonical import CanonicalModel, bjorck_golub, regularized_cca
    from diptych.cca._classic import CCA, PLS
    from diptych.cca._filters import SpectralFilter, Tikhonov, TruncatedSVD, g_hard, g_soft
    from diptych.cca._generalized import GCCA
    from diptych.cca._moments import Moments
    from diptych.cca._projector import Projector
    from diptych.cca._spectra import Spectra, moments_from_spectra, spectra, spectra_from_moments
    from diptych.cca._streaming import Engine
    from diptych.cca._weighting import maps, normalize, powers, project

__all__ = [
    "AWCCA",
    "CCA",
    "GCCA",
    "PLS",
    "CanonicalModel",
    "Engine",
    "Moments",
    "Projector",
    "Spectra",
    "SpectralFilter",
    "Tikhonov",
    "TruncatedSVD",
    "bjorck_golub",
    "g_hard",
    "g_soft",
    "maps",
    "moments_from_spectra",
    "normalize",
    "powers",
    "project",
    "regularized_cca",
    "spectra",
    "spectra_from_moments",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_awcca": ["AWCCA"],
        "_canonical": ["CanonicalModel", "bjorck_golub", "regularized_cca"],
        "_classic": ["CCA", "PLS"],
        "_filters": ["SpectralFilter", "Tikhonov", "TruncatedSVD", "g_hard", "g_soft"],
        "_generalized": ["GCCA"],
        "_moments": ["Moments"],
        "_projector": ["Projector"],
        "_spectra": ["Spectra", "moments_from_spectra", "spectra", "spectra_from_moments"],
        "_streaming": ["Engine"],
        "_weighting": ["maps", "normalize", "powers", "project"],
    },
)
