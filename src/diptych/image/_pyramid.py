"""An image descriptor without weights: histograms of colours and edges."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from PIL import Image

_SIDE = 96
_CELLS = (1, 2, 4)
_HUES, _SHADES, _ORIENTATIONS = 12, 4, 8


class PyramidDescriptor:
    """Encode images by their colours and edges, with NumPy only.

    It is meant for generated scenes and quick tests: it needs no download and takes a millisecond per image.
    On photographs any trained network is far better; use ``OnnxEncoder``.

    Each image is resized to 96 × 96 pixels. The features describe the whole image, its quarters and its
    sixteenths: a histogram of the hues of colourful pixels (12 bins) and the shades of the others (4 bins),
    a histogram of edge directions weighted by their strength (8 bins), and the mean and standard deviation
    of the colour. Counts enter as square roots, so that small objects matter beside a large background.

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
        """Identifies the layout of the features."""
        layout = repr((1, _SIDE, _CELLS, _HUES, _SHADES, _ORIENTATIONS))
        return f"pyramid:{hashlib.sha256(layout.encode()).hexdigest()[:16]}"

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the features of 8-bit RGB images, one row per image."""
        return self.encode_prepared([self.prepare(image) for image in images])

    def prepare(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the features of one image; this is all of the work, so that threads can share it."""
        small = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
        return _describe_pixels(np.asarray(small, np.float32) / 255)

    def encode_prepared(
        self, prepared: Sequence[np.ndarray[Any, np.dtype[np.float32]]]
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Stack the rows that ``prepare`` returned."""
        return np.stack(prepared) if prepared else np.empty((0, self.dimension), np.float32)


def _describe_pixels(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return the features of one image [96, 96, 3] with values from 0 to 1."""
    edge, strength = _edge_bins(rgb.mean(axis=2))
    rows = np.arange(_SIDE) * 4 // _SIDE
    cells = (rows[:, None] * 4 + rows[None, :]).ravel()
    colours = _counts(cells, _colour_bins(rgb), None, _HUES + _SHADES)
    edges = _counts(cells, edge, strength, _ORIENTATIONS)
    tiles = rgb.reshape(4, _SIDE // 4, 4, _SIDE // 4, 3)
    first, second = tiles.mean(axis=(1, 3)), (tiles * tiles).mean(axis=(1, 3))
    parts = []
    for n in _CELLS:
        means = _merge_cells(first, n) / (4 // n) ** 2
        spread = np.sqrt(np.maximum(_merge_cells(second, n) / (4 // n) ** 2 - means * means, 0))
        per_cell = n / _SIDE
        histograms = (np.sqrt(_merge_cells(table, n)) * per_cell for table in (colours, edges))
        parts += [part.ravel() for part in (*histograms, means, spread)]
    return np.concatenate(parts).astype(np.float32)


def _colour_bins(rgb: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    high, low = rgb.max(axis=2), rgb.min(axis=2)
    chroma = high - low
    safe = np.where(chroma > 0, chroma, 1)
    r, g, b = np.moveaxis(rgb, 2, 0)
    sixth = np.where(high == r, (g - b) / safe, np.where(high == g, 2 + (b - r) / safe, 4 + (r - g) / safe))
    # The shift by half a bin keeps pure red, where the hue circle begins and ends, in one bin.
    hue = np.floor(sixth * (_HUES / 6) + 0.5).astype(np.int64) % _HUES
    shade = np.minimum((high * _SHADES).astype(np.int64), _SHADES - 1)
    return np.asarray(np.where(chroma > 0.2, hue, _HUES + shade)).ravel()


def _edge_bins(grey: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    dy, dx = np.gradient(grey)
    turn = np.arctan2(dy, dx) / np.pi % 1.0
    bins = np.floor(turn * _ORIENTATIONS + 0.5).astype(np.int64) % _ORIENTATIONS
    return bins.ravel(), np.hypot(dx, dy).ravel()


def _counts(
    cells: np.ndarray[Any, Any], bins: np.ndarray[Any, Any], weights: np.ndarray[Any, Any] | None, n_bins: int
) -> np.ndarray[Any, Any]:
    counts = np.bincount(cells * n_bins + bins, weights, minlength=16 * n_bins)
    return counts.reshape(4, 4, n_bins)


def _merge_cells(table: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    """Sum the 4 × 4 finest cells to n × n cells."""
    step = 4 // n
    return np.asarray(table.reshape(n, step, n, step, -1).sum(axis=(1, 3)))
