"""The paper's experiments: what was published beside what comes out here."""

from diptych.paper._cache import Cache, Options
from diptych.paper._claims import VERDICTS, Claim, published
from diptych.paper._materials import Materials, gather
from diptych.paper._runner import CACHE, EXPERIMENTS, REPORT, Reproduction, Step, chosen_names
from diptych.paper._setting import Setting

__all__ = [
    "CACHE",
    "EXPERIMENTS",
    "REPORT",
    "VERDICTS",
    "Cache",
    "Claim",
    "Materials",
    "Options",
    "Reproduction",
    "Setting",
    "Step",
    "chosen_names",
    "gather",
    "published",
]
