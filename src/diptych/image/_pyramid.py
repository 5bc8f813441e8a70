"""A descriptor without weights: what colours are where, and which way the edges run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from diptych.image._decoding import Picture

_SIDE = 96
_CELLS = (1, 2, 4)
_HUES, _SHADES, _ORIENTATIONS = 12, 4, 8


class PyramidDescriptor:
    """Colour and gradient statistics on a pyramid of cells, NumPy only.

    It is made for generated scenes and smoke tests, where it runs on a bare install in a millisecond. On
    photographs any trained network is far better: use ``OnnxEncoder``.

    Each picture is brought to 96 × 96 pixels. On the whole picture, on its quarters and on its
    sixteenths it counts: hues of colourful pixels (12 bins) and shades of the others (4 bins), and the
    direction of edges (8 bins, weighted by their strength); and it takes the mean colour and its spread.
    Counts enter as square roots, so that a small thing is not lost beside a large backdrop.

    Examples
    --------
    >>> from PIL import Image
    >>> descriptor = PyramidDescriptor()
    >>> descriptor.encode([Image.new("RGB", (40, 30), "navy")]).shape == (1, descriptor.dimension)
    True
    """

    origin: ClassVar[Mapping[str, str]] = {"source": "pyramid"}
    dimension = sum(n * n for n in _CELLS) * (_HUES + _SHADES + _ORIENTATIONS + 6)

    @property
    def fingerprint(self) -> str:
        """Changes with the layout of the descriptor."""
        layout = repr((1, _SIDE, _CELLS, _HUES, _SHADES, _ORIENTATIONS))
        return f"pyramid:{hashlib.sha256(layout.encode()).hexdigest()[:16]}"

    def encode(self, images: Sequence[Picture]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """One row of statistics for each picture."""
        return self.encode_prepared([self.prepare(image) for image in images])

    def prepare(self, image: Picture) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The statistics of one picture: all of the work, so that threads can share it."""
        small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        return describe_pixels(np.asarray(small, np.float32) / 255)

    def encode_prepared(
        self, prepared: Sequence[np.ndarray[Any, np.dtype[np.float32]]]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The rows that ``prepare`` gave, stacked."""
        return np.stack(prepared) if prepared else np.empty((0, self.dimension), np.float32)


def describe_pixels(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The descriptor of one picture [96, 96, 3] with values from 0 to 1."""
    colour, colour_weight = _colour_bins(rgb)
    edge, strength = _edge_bins(rgb.mean(axis=2))
    rows = np.arange(_SIDE) * 4 // _SIDE
    cells = (rows[:, None] * 4 + rows[None, :]).ravel()
    n_colours = _HUES + _SHADES
    colours = _counts(cells, colour, colour_weight, n_colours)
    edges = _counts(cells, edge, strength, _ORIENTATIONS)
    tiles = rgb.reshape(4, _SIDE // 4, 4, _SIDE // 4, 3)
    first, second = tiles.mean(axis=(1, 3)), (tiles * tiles).mean(axis=(1, 3))
    parts = []
    for n in _CELLS:
        means = _merged(first, n) / (4 // n) ** 2
        spread = np.sqrt(np.maximum(_merged(second, n) / (4 // n) ** 2 - means * means, 0))
        per_cell = n / _SIDE
        histograms = (np.sqrt(_merged(table, n)) * per_cell for table in (colours, edges))
        parts += [part.ravel() for part in (*histograms, means, spread)]
    return np.concatenate(parts).astype(np.float32)


def _colour_bins(rgb: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    high, low = rgb.max(axis=2), rgb.min(axis=2)
    chroma = high - low
    safe = np.where(chroma > 0, chroma, 1)
    r, g, b = np.moveaxis(rgb, 2, 0)
    sixth = np.where(high == r, (g - b) / safe, np.where(high == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    # Half a bin of shift keeps pure red, at the seam of the circle, in one bin.
    hue = np.floor(sixth * (_HUES / 6) + 0.5).astype(np.int64) % _HUES
    shade = np.minimum((high * _SHADES).astype(np.int64), _SHADES - 1)
    bins = np.where(chroma > 0.2, hue, _HUES + shade)
    return bins.ravel(), np.ones(bins.size, np.float32)


def _edge_bins(grey: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    dy, dx = np.gradient(grey)
    turn = np.arctan2(dy, dx) / np.pi % 1.0
    bins = np.floor(turn * _ORIENTATIONS + 0.5).astype(np.int64) % _ORIENTATIONS
    return bins.ravel(), np.hypot(dx, dy).ravel()


def _counts(
    cells: np.ndarray[Any, Any], bins: np.ndarray[Any, Any], weights: np.ndarray[Any, Any], n_bins: int
) -> np.ndarray[Any, Any]:
    counts = np.bincount(cells * n_bins + bins, weights, minlength=16 * n_bins)
    return counts.reshape(4, 4, n_bins)


def _merged(table: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """Sums over the finest 4 × 4 cells, merged to n × n."""
    step = 4 // n
    return np.asarray(table.reshape(n, step, n, step, -1).sum(axis=(1, 3)))
