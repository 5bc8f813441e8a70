"""What every figure shares: matplotlib when it is needed, files that are whole or not there, colours."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any, Literal

from diptych import storage
from diptych.checks import InputError, not_installed
from diptych.report.wording import one_line

FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 160

# Okabe and Ito's colours, which stay apart for the colour-blind; their yellow is too pale for lines.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
BLACK = "#000000"


def new_figure(width: float, height: float, *, layout: Literal["constrained"] | None = "constrained") -> Any:
    """An empty matplotlib figure of ``width`` × ``height`` inches, which no window and no global state knows.

    Without ``layout``, whatever is put on the figure stays where it was put.
    """
    return _matplotlib("figure").Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout=layout)


def write_figure(figure: Any, file: str | os.PathLike[str]) -> None:
    """Write ``figure`` to ``file`` in the format its name asks for; never half of it."""
    suffix = os.path.splitext(os.fspath(file))[1].lower().lstrip(".")
    if suffix not in FORMATS:
        raise InputError(f"{file} is not a picture that can be written; give a name in .png, .svg or .pdf.")
    with storage.replacing_file(file) as staged:
        figure.savefig(staged, format=suffix, dpi=DOTS_PER_INCH)


def text_width(text: str, size: float) -> float:
    """The width of ``text`` in inches at most, in the font that figures have, at ``size`` points."""
    font = _matplotlib("font_manager").FontProperties(size=size)
    width, _, _ = _matplotlib("textpath").text_to_path.get_text_width_height_descent(text, font, False)
    # Outlines are measured; pixels round every letter, by half of one at the most.
    return float(width) / 72.0 + 0.5 * len(text) / DOTS_PER_INCH


def fit_lines(text: str, width: float, size: float, at_most: int) -> list[str]:
    """``text`` in lines no wider than ``width`` inches, at most so many; what is left out ends in "…"."""
    lines: list[str] = []
    rest = one_line(text, 120 * at_most)
    while rest and len(lines) < at_most:
        last = len(lines) == at_most - 1
        taken = _fitting(rest, width, size, "…" if last else "")
        if taken < len(rest) and not last:
            # A word longer than the line is cut where the line ends.
            space = rest.rfind(" ", 0, taken + 1)
            taken = space if space > 0 else taken
        line, rest = rest[:taken].rstrip(), rest[taken:].lstrip()
        lines.append(line + "…" if last and rest else line)
    return lines


def _fitting(text: str, width: float, size: float, ending: str) -> int:
    """How many letters of ``text`` fit: all of it, or so many with ``ending`` after them; one at least."""
    if text_width(text, size) <= width:
        return len(text)
    low, high = 1, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if text_width(text[:middle] + ending, size) <= width:
            low = middle
        else:
            high = middle
    return low


def _matplotlib(module: str) -> Any:
    """A module of matplotlib, imported here and not before: whoever draws nothing needs none."""
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError:
        raise not_installed("figures need", "report") from None
