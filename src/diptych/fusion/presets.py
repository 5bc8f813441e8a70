"""Presets: sets of ingredients under one name, the same in Python and in the shell."""

from __future__ import annotations

from typing import Any

from diptych.checks import check_choice

PRESETS: dict[str, dict[str, Any]] = {
    "best": {
        "parts": "family",
        "weightings": ("asymmetric", "residual"),
        "hubness": ("none", "csls"),
        "refit": True,
        "n_components": 512,
    },
    "plain": {
        "parts": "together",
        "weightings": ("asymmetric",),
        "hubness": ("none",),
        "refit": False,
        "n_components": "all",
    },
}
"""``"best"``: every ingredient that helped (``docs/accuracy.md``). ``"plain"``: AW-CCA as in the paper."""


def preset(name: str) -> dict[str, Any]:
    """The ingredients under ``name``."""
    return dict(PRESETS[check_choice(name, tuple(PRESETS), "preset")])
