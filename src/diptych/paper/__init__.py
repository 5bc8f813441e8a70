"""Reproduce the paper's experiments on your data, and compare the results with the published ones."""

from diptych.paper._claims import Claim
from diptych.paper._data import PaperData, find_data
from diptych.paper._runner import EXPERIMENTS, Reproduction
from diptych.paper._setting import Options
from diptych.paper._tables import PublishedTable, published

__all__ = [
    "EXPERIMENTS",
    "Claim",
    "Options",
    "PaperData",
    "PublishedTable",
    "Reproduction",
    "find_data",
    "published",
]
