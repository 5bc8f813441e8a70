"""A contact sheet: queries and what was found for each, pictures as thumbnails, the right answers marked."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from diptych._checks import InputError
from diptych.report._figures import BLUE, fit_lines, new_figure, write_figure

Picture: TypeAlias = Image.Image

THUMBNAIL_SIDE = 256
"""Pixels on the longer side of what is kept of a picture."""

MOST_ROWS, MOST_ANSWERS = 40, 12

# Inches, and points for text.
WIDTH, MARGIN, GAP = 8.6, 0.12, 0.1
LARGEST_CELL, QUERY_CELL = 1.25, 1.5
QUERY_SIZE, TEXT_SIZE = 10.0, 9.0
LINE, ROW_GAP = 0.18, 0.2
SIGN = "✓"
GREY = "0.35"


@dataclass(frozen=True)
class Answer:
    """One thing that was found: a picture or a sentence, its score, and whether it is right."""

    item: Picture | str
    score: float
    right: bool = False


@dataclass(frozen=True)
class ContactRow:
    """A query and its answers, best first: pictures for a sentence, sentences for a picture."""

    query: Picture | str
    answers: Sequence[Answer]


def draw_contact_sheet(rows: Sequence[ContactRow], file: str | os.PathLike[str] | None = None) -> Any:
    """Draw ``rows`` one below the other and return the matplotlib figure; write it if a file is given.

    Right answers carry a sign, and right pictures a frame as well, so that no colour is needed to see them.
    Of every picture only a thumbnail is kept.

    Parameters
    ----------
    rows
        At most 40, each with 1 to 12 answers.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    """
    if not 1 <= len(rows) <= MOST_ROWS:
        raise InputError(f"{len(rows)} rows were given for one sheet; give from 1 to {MOST_ROWS}.")
    for place, row in enumerate(rows):
        _check_row(row, place)
    parts = [_SentenceRow(row) if isinstance(row.query, str) else _PictureRow(row) for row in rows]
    foot = LINE + 0.12 if any(answer.right for row in rows for answer in row.answers) else 0.0
    height = 2 * MARGIN + sum(part.height for part in parts) + ROW_GAP * (len(parts) - 1) + foot
    sheet = _Sheet(new_figure(WIDTH, height, layout=None), height)
    top = MARGIN
    for part in parts:
        part.draw(sheet, top)
        top += part.height + ROW_GAP
    if foot:
        note = f"{SIGN} the right one. Scores compare within one row only."
        sheet.write(MARGIN, height - MARGIN - LINE, [note], TEXT_SIZE - 1, color=GREY)
    if file is not None:
        write_figure(sheet.figure, file)
    return sheet.figure


class _Sheet:
    """A figure on which things are placed in inches from its upper left corner."""

    def __init__(self, figure: Any, height: float) -> None:
        self.figure, self._height = figure, height

    def write(self, left: float, top: float, lines: list[str], size: float, **style: Any) -> None:
        for place, line in enumerate(lines):
            # By its baseline, or lines without high letters would sit higher than their neighbours.
            baseline = top + size / 72 + place * LINE
            # The text is the user's: a dollar sign in it begins no formula.
            self.figure.text(
                left / WIDTH, 1 - baseline / self._height, line, fontsize=size, parse_math=False, **style
            )

    def show(self, left: float, bottom: float, side: float, picture: Picture, framed: bool) -> None:
        """Put a thumbnail into a cell that is ``side`` wide, in the middle and at the bottom."""
        width, height = (side * length / max(picture.size) for length in picture.size)
        box = left + (side - width) / 2, self._height - bottom, width, height
        scale = WIDTH, self._height, WIDTH, self._height
        axes = self.figure.add_axes([length / whole for length, whole in zip(box, scale, strict=True)])
        axes.imshow(np.asarray(picture), aspect="auto")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=BLUE if framed else "0.8", linewidth=3.0 if framed else 0.5)


class _SentenceRow:
    """The sentence above, the pictures that were found in a row beneath, each with its score."""

    def __init__(self, row: ContactRow) -> None:
        self._answers = row.answers
        self._query = fit_lines(str(row.query), WIDTH - 2 * MARGIN, QUERY_SIZE, 2)
        self._thumbnails = [_thumbnail(answer.item) for answer in row.answers]
        whole = WIDTH - 2 * MARGIN + GAP
        self._side = min(LARGEST_CELL, whole / len(row.answers) - GAP)
        self._bottom = LINE * len(self._query) + 0.08 + self._side * max(map(_height, self._thumbnails))
        self.height = self._bottom + 0.06 + LINE

    def draw(self, sheet: _Sheet, top: float) -> None:
        sheet.write(MARGIN, top, self._query, QUERY_SIZE)
        bottom = top + self._bottom
        for place, (answer, picture) in enumerate(zip(self._answers, self._thumbnails, strict=True)):
            left = MARGIN + place * (self._side + GAP)
            sheet.show(left, bottom, self._side, picture, answer.right)
            middle = left + self._side / 2
            sheet.write(middle, bottom + 0.06, [_score(answer)], TEXT_SIZE, ha="center", **_style(answer))


class _PictureRow:
    """The picture on the left, the sentences that were found beside it, each with its score before it."""

    SCORE_WIDTH = 0.75

    def __init__(self, row: ContactRow) -> None:
        self._answers = row.answers
        self._thumbnail = _thumbnail(row.query)
        self._left = MARGIN + QUERY_CELL + 0.2
        width = WIDTH - MARGIN - self._left - self.SCORE_WIDTH
        self._lines = [fit_lines(str(answer.item), width, TEXT_SIZE, 2) or [""] for answer in row.answers]
        self._picture_height = QUERY_CELL * _height(self._thumbnail)
        self.height = max(self._picture_height, sum(LINE * len(lines) + 0.06 for lines in self._lines))

    def draw(self, sheet: _Sheet, top: float) -> None:
        sheet.show(MARGIN, top + self._picture_height, QUERY_CELL, self._thumbnail, framed=False)
        for answer, lines in zip(self._answers, self._lines, strict=True):
            right_edge = self._left + self.SCORE_WIDTH - 0.15
            sheet.write(right_edge, top, [_score(answer)], TEXT_SIZE, ha="right", **_style(answer))
            color = BLUE if answer.right else GREY
            sheet.write(self._left + self.SCORE_WIDTH, top, lines, TEXT_SIZE, color=color)
            top += LINE * len(lines) + 0.06


def _score(answer: Answer) -> str:
    number = f"{answer.score:.2f}".replace("-", "−")
    return f"{SIGN} {number}" if answer.right else number


def _style(answer: Answer) -> dict[str, str]:
    return {"color": BLUE, "fontweight": "bold"} if answer.right else {"color": GREY}


def _height(picture: Picture) -> float:
    """Height in units of the longer side."""
    return picture.height / max(picture.size)


def _thumbnail(picture: Picture | str) -> Picture:
    """``picture`` in RGB on white, its longer side at most ``THUMBNAIL_SIDE``."""
    assert isinstance(picture, Image.Image)
    if picture.mode not in ("RGB", "L"):
        shown = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown).convert("RGB")
    scale = min(1.0, THUMBNAIL_SIDE / max(picture.size))
    width, height = (max(1, round(length * scale)) for length in picture.size)
    small = picture.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return small if small.mode == "RGB" else small.convert("RGB")


def _check_row(row: ContactRow, place: int) -> None:
    if not 1 <= len(row.answers) <= MOST_ANSWERS:
        raise InputError(
            f"row {place} of the sheet has {len(row.answers)} answers; give from 1 to {MOST_ANSWERS}."
        )
    given = isinstance(row.query, str), isinstance(row.query, Image.Image)
    expected = {(True, False): Image.Image, (False, True): str}.get(given)
    if expected is None or not all(isinstance(answer.item, expected) for answer in row.answers):
        raise InputError(
            f"row {place} of the sheet mixes its sides; give a sentence with pictures as answers, or a "
            "Pillow picture with sentences."
        )
    for shown in (row.query, *(answer.item for answer in row.answers)):
        if isinstance(shown, Image.Image) and min(shown.size) < 1:
            raise InputError(f"row {place} of the sheet holds a picture without pixels; leave it out.")
    if not all(math.isfinite(answer.score) for answer in row.answers):
        raise InputError(f"row {place} of the sheet has a score that is not finite; give numbers.")
