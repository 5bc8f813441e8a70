"""Image encoders: the protocol, a network or any function as an encoder, and a descriptor without weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import Image

from diptych._arrays import Array
from diptych._checks import InputError
from diptych.image._preprocessing import Pixels, Recipe, normalize_pixels, prepare_image

Network: TypeAlias = Callable[[np.ndarray[Any, np.dtype[np.float32]]], np.ndarray[Any, Any]]
"""Maps float32 [n, 3, height, width] to n rows of anything that a recipe can pool."""

DEFAULT_RUN_PIXELS = 2**20
"""Pixels that go through a network at once, which bounds its memory; a larger crop goes alone."""

_GREY = ("RGB", (256, 256), "grey")


@runtime_checkable
class ImageEncoder(Protocol):
    """Anything that turns images into features, one row per image.

    Examples
    --------
    >>> from diptych.image import PyramidDescriptor
    >>> isinstance(PyramidDescriptor(), ImageEncoder)
    True
    """

    @property
    def dimension(self) -> int:
        """Number of columns of the features."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identifies the encoder; it must change whenever the features would change.

        A feature store refuses to mix features of different fingerprints.
        """
        ...

    def encode(self, images: Sequence[Image.Image]) -> Array:
        """Return the features of 8-bit RGB images, one row per image."""
        ...


@runtime_checkable
class StagedEncoder(ImageEncoder, Protocol):
    """An image encoder whose work on each single image can run ahead, in other threads.

    Examples
    --------
    >>> from diptych.image import PyramidDescriptor
    >>> isinstance(PyramidDescriptor(), StagedEncoder)
    True
    """

    def prepare(self, image: Image.Image) -> Any:
        """Do the work that needs one image alone; called from several threads."""
        ...

    def encode_prepared(self, prepared: Sequence[Any]) -> Array:
        """Return the features of images that went through ``prepare``, one row per image."""
        ...


class NetworkEncoder:
    """Encode images with a network, by a recipe.

    Parameters
    ----------
    network
        Maps float32 [n, 3, height, width] to its raw output.
    recipe
        Preprocessing of the images, and pooling of the output.
    name
        Identifies the network and its weights; part of the fingerprint, together with the recipe.
    dimension
        Number of columns of the features; None: measured on one grey image.
    run_pixels
        Maximal number of pixels that go through the network at once; a larger crop goes alone.

    Examples
    --------
    >>> from PIL import Image
    >>> recipe = Recipe(mean=(0, 0, 0), std=(1, 1, 1), pooling="mean")
    >>> encoder = NetworkEncoder(lambda batch: batch, recipe, "mean colour")
    >>> encoder.encode([Image.new("RGB", (8, 8), "red")])
    array([[1., 0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        network: Network,
        recipe: Recipe,
        name: str,
        *,
        dimension: int | None = None,
        run_pixels: int = DEFAULT_RUN_PIXELS,
    ) -> None:
        if run_pixels < 1:
            raise InputError(f"run_pixels={run_pixels} is below 1; pass the number of pixels per run.")
        self.network, self.recipe, self.name, self.run_pixels = network, recipe, name, run_pixels
        self.fingerprint = recipe_fingerprint(name, recipe)
        self.dimension = dimension or self._measure_dimension()

    def encode(self, images: Sequence[Image.Image]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the features of 8-bit RGB images, one row per image."""
        return self.encode_prepared([self.prepare(image) for image in images])

    def prepare(self, image: Image.Image) -> Pixels:
        """Return the resized crops of one image, still 8-bit."""
        return prepare_image(image, self.recipe)

    def encode_prepared(self, prepared: Sequence[Pixels]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Return the features of prepared images: for each, the average over its crops."""
        features = np.empty((len(prepared), self.dimension), np.float32)
        for rows in _group_by_shape(prepared, self.run_pixels):
            features[rows] = self._run([prepared[row] for row in rows])
        return features

    def _run(self, prepared: Sequence[Pixels]) -> np.ndarray[Any, Any]:
        batch = normalize_pixels(np.concatenate(prepared), self.recipe)
        step = max(1, self.run_pixels // (batch.shape[2] * batch.shape[3]))
        parts = [
            pool_output(self.network(batch[i : i + step]), self.recipe) for i in range(0, len(batch), step)
        ]
        per_crop = np.concatenate(parts).reshape(len(prepared), len(prepared[0]), -1)
        return np.asarray(per_crop.mean(axis=1))

    def _measure_dimension(self) -> int:
        pixels = self.prepare(Image.new(*_GREY))[:1]
        return int(pool_output(self.network(normalize_pixels(pixels, self.recipe)), self.recipe).shape[1])


class FunctionEncoder:
    """Encode images with any function.

    Parameters
    ----------
    function
        Maps a list of 8-bit RGB Pillow images to an array with one row per image.
    name
        Identifies the function; change it when the features change.

    Examples
    --------
    >>> import numpy as np
    >>> sizes = FunctionEncoder(lambda images: np.array([i.size for i in images], float), "sizes")
    >>> sizes.dimension
    2
    """

    def __init__(self, function: Callable[[list[Image.Image]], Array], name: str) -> None:
        self._function = function
        self.fingerprint = f"function:{name}"
        self.dimension = int(function([Image.new(*_GREY)]).shape[1])

    def encode(self, images: Sequence[Image.Image]) -> Array:
        """Return the features of 8-bit RGB images, one row per image."""
        return self._function(list(images))


def recipe_fingerprint(name: str, recipe: Recipe) -> str:
    """Return the fingerprint of a network with a recipe; ``name`` identifies the network and its weights."""
    return f"{name}:{hashlib.sha256(recipe.to_json().encode()).hexdigest()[:16]}"


def pool_output(output: np.ndarray[Any, Any], recipe: Recipe) -> np.ndarray[Any, Any]:
    """Reduce a network's raw output to one row of features per image."""
    output = np.asarray(output, np.float32)
    if recipe.pooling == "mean" and output.ndim == 4:
        return np.asarray(output.mean(axis=(2, 3)))
    if recipe.pooling == "mean" and output.ndim == 3:
        return np.asarray(output.mean(axis=1))
    if recipe.pooling == "first" and output.ndim == 3:
        return output[:, 0]
    if output.ndim == 4 and output.shape[2:] == (1, 1):
        return output[:, :, 0, 0]
    if output.ndim == 2:
        return output
    raise InputError(
        f"The network's output has shape {list(output.shape)}, which pooling={recipe.pooling!r} cannot "
        'reduce; set pooling to "mean" for feature maps or tokens, "first" for a class token, or choose '
        "another output."
    )


def _group_by_shape(prepared: Sequence[Pixels], run_pixels: int) -> list[list[int]]:
    """Group the rows of images of one shape, in order, so that each group fits into one run.

    The groups depend on the images alone, so that encoding the same images again gives the same bits.
    """
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for row, pixels in enumerate(prepared):
        by_shape.setdefault(pixels.shape, []).append(row)
    groups = []
    for shape, rows in by_shape.items():
        step = max(1, run_pixels // (shape[0] * shape[1] * shape[2]))
        groups += [rows[i : i + step] for i in range(0, len(rows), step)]
    return groups


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
