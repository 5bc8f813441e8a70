"""A contact sheet: queries with their hits, images as thumbnails, the right hits marked."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from diptych._checks import InputError
from diptych.report._figures import BLUE, fit_lines, new_figure, write_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THUMBNAIL_SIDE = 256
"""Pixels on the longer side of a thumbnail."""
MOST_ROWS, MOST_HITS = 40, 12

# Inches, and points for text.
WIDTH, MARGIN, GAP = 8.6, 0.12, 0.1
LARGEST_CELL, QUERY_CELL, SCORE_WIDTH = 1.25, 1.5, 0.75
QUERY_SIZE, TEXT_SIZE = 10.0, 9.0
LINE, ROW_GAP = 0.18, 0.2
CHECK_MARK, GREY = "✓", "0.35"


@dataclass(frozen=True)
class SheetHit:
    """One hit of a query: an image or a text, its score, and whether it is right.

    >>> SheetHit("a dog in the snow", 0.83, right=True).score
    0.83
    """

    item: Image.Image | str
    score: float
    right: bool = False


@dataclass(frozen=True)
class SheetRow:
    """A query and its hits, best first: images for a text, or texts for an image.

    >>> len(SheetRow(Image.new("RGB", (8, 8)), [SheetHit("a dog", 0.8), SheetHit("a cat", 0.3)]).hits)
    2
    """

    query: Image.Image | str
    hits: Sequence[SheetHit]


def draw_contact_sheet(rows: Sequence[SheetRow], file: str | os.PathLike[str] | None = None) -> Figure:
    """Draw queries with their hits, one below the other; write the figure if a file is named.

    Right hits have a check mark, and right images a frame as well, so that they are visible without colour.

    Parameters
    ----------
    rows
        1 to 40 rows, each with 1 to 12 hits.
    file
        ``.png``, ``.svg`` or ``.pdf``.

    Examples
    --------
    >>> image = Image.new("RGB", (40, 30), "navy")
    >>> figure = draw_contact_sheet([SheetRow("a dark blue image", [SheetHit(image, 0.9, right=True)])])
    >>> figure.texts[0].get_text()
    'a dark blue image'
    """
    if not 1 <= len(rows) <= MOST_ROWS:
        raise InputError(f"got {len(rows)} rows for one sheet; pass from 1 to {MOST_ROWS}.")
    for number, row in enumerate(rows):
        _check_row(row, number)
    parts = [_TextRow(row) if isinstance(row.query, str) else _ImageRow(row) for row in rows]
    foot = LINE + 0.12 if any(hit.right for row in rows for hit in row.hits) else 0.0
    height = 2 * MARGIN + sum(part.height for part in parts) + ROW_GAP * (len(parts) - 1) + foot
    sheet = _Sheet(new_figure(WIDTH, height, layout=None), height)
    top = MARGIN
    for part in parts:
        part.draw(sheet, top)
        top += part.height + ROW_GAP
    if foot:
        note = f"{CHECK_MARK} the right one. Scores can be compared within one row only."
        sheet.write(MARGIN, height - MARGIN - LINE, [note], TEXT_SIZE - 1, color=GREY)
    if file is not None:
        write_figure(sheet.figure, file)
    return sheet.figure


class _Sheet:
    """A figure on which things are placed in inches from its upper left corner."""

    def __init__(self, figure: Figure, height: float) -> None:
        self.figure, self._height = figure, height

    def write(self, left: float, top: float, lines: list[str], size: float, **style: Any) -> None:
        for number, line in enumerate(lines):
            # Placed by the baseline: lines without high letters would sit higher than their neighbours.
            baseline = 1 - (top + size / 72 + number * LINE) / self._height
            # parse_math=False: a dollar sign in the user's text begins no formula.
            self.figure.text(left / WIDTH, baseline, line, fontsize=size, parse_math=False, **style)

    def show(self, left: float, bottom: float, side: float, image: Image.Image, framed: bool) -> None:
        """Put a thumbnail at the bottom centre of a cell that is ``side`` wide."""
        width, height = (side * length / max(image.size) for length in image.size)
        x, y = left + (side - width) / 2, self._height - bottom
        axes = self.figure.add_axes((x / WIDTH, y / self._height, width / WIDTH, height / self._height))
        axes.imshow(np.asarray(image), aspect="auto")
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(color=BLUE if framed else "0.8", linewidth=3.0 if framed else 0.5)


class _TextRow:
    """A text above its images, each with its score below."""

    def __init__(self, row: SheetRow) -> None:
        self._hits = row.hits
        self._query = fit_lines(str(row.query), WIDTH - 2 * MARGIN, QUERY_SIZE, 2)
        self._thumbnails = [_thumbnail(hit.item) for hit in row.hits]
        self._side = min(LARGEST_CELL, (WIDTH - 2 * MARGIN + GAP) / len(row.hits) - GAP)
        tallest = max(image.height / max(image.size) for image in self._thumbnails)
        self._bottom = LINE * len(self._query) + 0.08 + self._side * tallest
        self.height = self._bottom + 0.06 + LINE

    def draw(self, sheet: _Sheet, top: float) -> None:
        sheet.write(MARGIN, top, self._query, QUERY_SIZE)
        bottom = top + self._bottom
        for number, (hit, image) in enumerate(zip(self._hits, self._thumbnails, strict=True)):
            left = MARGIN + number * (self._side + GAP)
            sheet.show(left, bottom, self._side, image, hit.right)
            middle = left + self._side / 2
            sheet.write(middle, bottom + 0.06, [_score(hit)], TEXT_SIZE, ha="center", **_style(hit))


class _ImageRow:
    """An image on the left of its texts, each with its score before it."""

    def __init__(self, row: SheetRow) -> None:
        self._hits = row.hits
        self._thumbnail = _thumbnail(row.query)
        self._left = MARGIN + QUERY_CELL + 0.2
        width = WIDTH - MARGIN - self._left - SCORE_WIDTH
        self._lines = [fit_lines(str(hit.item), width, TEXT_SIZE, 2) or [""] for hit in row.hits]
        self._image_height = QUERY_CELL * self._thumbnail.height / max(self._thumbnail.size)
        self.height = max(self._image_height, sum(LINE * len(lines) + 0.06 for lines in self._lines))

    def draw(self, sheet: _Sheet, top: float) -> None:
        sheet.show(MARGIN, top + self._image_height, QUERY_CELL, self._thumbnail, framed=False)
        for hit, lines in zip(self._hits, self._lines, strict=True):
            score_edge = self._left + SCORE_WIDTH - 0.15
            sheet.write(score_edge, top, [_score(hit)], TEXT_SIZE, ha="right", **_style(hit))
            color = BLUE if hit.right else GREY
            sheet.write(self._left + SCORE_WIDTH, top, lines, TEXT_SIZE, color=color)
            top += LINE * len(lines) + 0.06


def _score(hit: SheetHit) -> str:
    number = f"{hit.score:.2f}".replace("-", "−")
    return f"{CHECK_MARK} {number}" if hit.right else number


def _style(hit: SheetHit) -> dict[str, str]:
    return {"color": BLUE, "fontweight": "bold"} if hit.right else {"color": GREY}


def _thumbnail(image: Image.Image | str) -> Image.Image:
    """Return the image in RGB on white, its longer side at most ``THUMBNAIL_SIDE``."""
    assert isinstance(image, Image.Image)
    if image.mode not in ("RGB", "L"):
        transparent = image.convert("RGBA")
        white = Image.new("RGBA", transparent.size, "white")
        image = Image.alpha_composite(white, transparent).convert("RGB")
    scale = min(1.0, THUMBNAIL_SIDE / max(image.size))
    width, height = (max(1, round(length * scale)) for length in image.size)
    small = image.resize((width, height), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return small if small.mode == "RGB" else small.convert("RGB")


def _check_row(row: SheetRow, number: int) -> None:
    if not 1 <= len(row.hits) <= MOST_HITS:
        raise InputError(f"row {number} of the sheet has {len(row.hits)} hits; pass from 1 to {MOST_HITS}.")
    expected = Image.Image if isinstance(row.query, str) else str
    is_query = isinstance(row.query, (str, Image.Image))
    if not is_query or not all(isinstance(hit.item, expected) for hit in row.hits):
        raise InputError(
            f"row {number} of the sheet mixes images and texts; pass a text with Pillow images as hits, or a "
            "Pillow image with texts as hits."
        )
    for item in (row.query, *(hit.item for hit in row.hits)):
        if isinstance(item, Image.Image) and min(item.size) < 1:
            raise InputError(f"row {number} of the sheet has an image without pixels; leave it out.")
    if not all(math.isfinite(hit.score) for hit in row.hits):
        raise InputError(f"row {number} of the sheet has a score that is not finite; pass numbers.")
