"""What an image encoder is, and the one that runs any network by a recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from PIL import Image

from diptych._arrays import Array
from diptych._checks import InputError
from diptych.image._decoding import Picture
from diptych.image._preprocessing import Pixels, Recipe, network_input, prepare

Network: TypeAlias = Callable[[np.ndarray[Any, np.dtype[np.float32]]], np.ndarray[Any, Any]]
"""Takes float32 [n, 3, height, width], gives n rows of anything that a recipe can pool."""

DEFAULT_RUN_PIXELS = 2**20
"""Pixels that go through a network at once, unless one crop alone has more: a bound on its memory."""


@runtime_checkable
class ImageEncoder(Protocol):
    """Anything that turns pictures into rows of features.

    ``fingerprint`` changes whenever the features would: stores of features refuse to mix two of them.
    """

    @property
    def dimension(self) -> int:
        """Columns of the features."""
        ...

    @property
    def fingerprint(self) -> str:
        """Tells this encoder from any other."""
        ...

    def encode(self, images: Sequence[Picture]) -> Array:
        """One row of features for each picture."""
        ...


@runtime_checkable
class StagedEncoder(ImageEncoder, Protocol):
    """An encoder whose work on single pictures can be done ahead, by other threads."""

    def prepare(self, image: Picture) -> Any:
        """The part that looks at one picture alone; called from several threads."""
        ...

    def encode_prepared(self, prepared: Sequence[Any]) -> Array:
        """The rest, for pictures that went through ``prepare``."""
        ...


class NetworkEncoder:
    """Run pictures through a network by a recipe.

    Parameters
    ----------
    network
        From float32 [n, 3, height, width] to its raw output.
    recipe
        What the network expects, and how its output is pooled.
    name
        Identifies the network and its weights; the fingerprint is made of it and of the recipe.
    dimension
        Columns of the features; None: found by showing the network one grey picture.
    run_pixels
        At most so many pixels go through the network at once (one crop at least).

    Examples
    --------
    >>> from PIL import Image
    >>> plain = Recipe(mean=(0, 0, 0), std=(1, 1, 1), pooling="mean")
    >>> colour = NetworkEncoder(lambda batch: batch, plain, "mean colour")
    >>> colour.encode([Image.new("RGB", (8, 8), "red")])
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
            raise InputError(f"run_pixels={run_pixels} is below 1; give the pixels of one pass.")
        self.network, self.recipe, self.name, self.run_pixels = network, recipe, name, run_pixels
        self.fingerprint = recipe_fingerprint(name, recipe)
        self.dimension = dimension or self._probe()

    def encode(self, images: Sequence[Picture]) -> np.ndarray[Any, Any]:
        """One row of features for each picture."""
        return self.encode_prepared([self.prepare(image) for image in images])

    def prepare(self, image: Picture) -> Pixels:
        """Resized crops of one picture, still 8-bit."""
        return prepare(image, self.recipe)

    def encode_prepared(self, prepared: Sequence[Pixels]) -> np.ndarray[Any, Any]:
        """Features of pictures that went through ``prepare``; the average over the crops of each."""
        features = np.empty((len(prepared), self.dimension), np.float32)
        for rows in _equal_shapes(prepared, self.run_pixels):
            features[rows] = self._run([prepared[row] for row in rows])
        return features

    def _run(self, prepared: Sequence[Pixels]) -> np.ndarray[Any, Any]:
        n_crops = len(prepared[0])
        batch = network_input(np.concatenate(prepared), self.recipe)
        per_run = max(1, self.run_pixels // (batch.shape[2] * batch.shape[3]))
        parts = [
            pooled(self.network(batch[i : i + per_run]), self.recipe) for i in range(0, len(batch), per_run)
        ]
        vectors = np.concatenate(parts)
        return np.asarray(vectors.reshape(len(prepared), n_crops, -1).mean(axis=1))

    def _probe(self) -> int:
        grey = self.prepare(Image.new("RGB", (256, 256), "grey"))
        return int(pooled(self.network(network_input(grey[:1], self.recipe)), self.recipe).shape[1])


class FunctionEncoder:
    """Any function from a list of pictures to an array with a row for each.

    Parameters
    ----------
    function
        Takes a list of 8-bit RGB Pillow images.
    name
        Tells it from other encoders; change it when the features change.

    Examples
    --------
    >>> import numpy as np
    >>> sizes = FunctionEncoder(lambda pictures: np.array([p.size for p in pictures], float), "sizes")
    >>> sizes.dimension
    2
    """

    def __init__(self, function: Callable[[list[Picture]], Array], name: str) -> None:
        self._function = function
        self.fingerprint = f"function:{name}"
        self.dimension = int(function([Image.new("RGB", (256, 256), "grey")]).shape[1])

    def encode(self, images: Sequence[Picture]) -> Array:
        """One row of features for each picture."""
        return self._function(list(images))


def recipe_fingerprint(name: str, recipe: Recipe) -> str:
    """Return the fingerprint of a network with a recipe; ``name`` identifies the network and its weights."""
    return f"{name}:{hashlib.sha256(recipe.to_json().encode()).hexdigest()[:16]}"


def pooled(output: np.ndarray[Any, Any], recipe: Recipe) -> np.ndarray[Any, Any]:
    """A network's raw output as one vector per picture."""
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
        f"the network gives an array of shape {list(output.shape)} and pooling is {recipe.pooling!r}; set "
        'pooling to "mean" for feature maps or tokens, "first" for a class token, or choose another output.'
    )


def _equal_shapes(prepared: Sequence[Pixels], run_pixels: int) -> list[list[int]]:
    """Rows that can share a pass: of equal shape, in order, and few enough.

    Which rows share a pass follows from the pictures alone, so that work done twice gives the same bits.
    """
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for row, pixels in enumerate(prepared):
        by_shape.setdefault(pixels.shape, []).append(row)
    groups = []
    for shape, rows in by_shape.items():
        step = max(1, run_pixels // (shape[0] * shape[1] * shape[2]))
        groups += [rows[i : i + step] for i in range(0, len(rows), step)]
    return groups
