"""The paper's experiments: what was published beside what comes out here."""

from diptych.experiments.cache import Cache
from diptych.experiments.claims import VERDICTS, Claim
from diptych.experiments.materials import Materials, gather
from diptych.experiments.options import Options
from diptych.experiments.published import published
from diptych.experiments.runner import CACHE, EXPERIMENTS, REPORT, Reproduction, Step, chosen_names
from diptych.experiments.setting import Setting

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
