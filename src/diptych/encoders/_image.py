"""Image encoders: the protocol, any function as an encoder, a descriptor without weights.

An encoder of the first view need not be one of images: see ``FunctionEncoder``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    cast,
    runtime_checkable,
)

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, check_choice
from diptych.encoders._decoding import DEFAULT_MAX_PIXELS, UnreadableImage, is_image, open_image

if TYPE_CHECKING:
    from PIL import Image

Inputs: TypeAlias = Literal["images", "paths", "texts"]
INPUTS: tuple[Inputs, ...] = ("images", "paths", "texts")

View: TypeAlias = Literal["image", "text"]

_SHOWN = 60  # characters of a text that a message quotes


@runtime_checkable
class ImageEncoder(Protocol):
    """Anything that turns images into features, one row per image.

    An encoder of other things has the attribute ``inputs``: ``"paths"`` if ``encode`` takes the names of
    files and reads them itself, ``"texts"`` if it takes strings.

    Examples
    --------
    >>> from diptych.encoders import PyramidDescriptor
    >>> isinstance(PyramidDescriptor(), ImageEncoder)
    True
    """

    @property
    def dimension(self) -> int:
        """Number of columns of the features; 0 if that is not known before something is encoded."""
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
    >>> from diptych.encoders import PyramidDescriptor
    >>> isinstance(PyramidDescriptor(), StagedEncoder)
    True
    """

    def prepare(self, image: Image.Image) -> Any:
        """Do the work that needs one image alone; called from several threads."""
        ...

    def encode_prepared(self, prepared: Sequence[Any]) -> Array:
        """Return the features of images that went through ``prepare``, one row per image."""
        ...


class FunctionEncoder:
    """Encode images, files of any kind, or texts of any kind with a function.

    Parameters
    ----------
    function
        Maps a list of inputs to an array with one row per input. An input for which it raises an
        ``InputError`` is left out, as images are that cannot be read.
    name
        Identifies the function; change it when the features change.
    inputs
        What the function takes: ``"images"`` (8-bit RGB Pillow images), ``"paths"`` (names of files, which it
        reads itself: audio, video), or ``"texts"`` (the items themselves, as strings: molecules, sequences).

    Examples
    --------
    >>> import numpy as np
    >>> sizes = FunctionEncoder(lambda images: np.array([i.size for i in images], float), "sizes")
    >>> sizes.dimension
    2
    >>> atoms = FunctionEncoder(lambda texts: [[t.count("C"), t.count("O")] for t in texts], "atoms", "texts")
    >>> atoms.encode(["CCO", "CC(=O)O"]).tolist()
    [[2, 1], [2, 2]]
    """

    def __init__(self, function: Callable[[list[Any]], Array], name: str, inputs: Inputs = "images") -> None:
        self._function, self.name, self.fingerprint = function, name, f"function:{name}"
        self.inputs = cast(Inputs, check_choice(inputs, INPUTS, "inputs"))
        self.dimension = 0
        if inputs == "images":
            self.encode([make_example()])

    def encode(self, inputs: Sequence[Any]) -> Array:
        """Return the features of inputs, one row per input."""
        features = to_numpy(self._function(list(inputs)))
        self.dimension = self.dimension or (int(features.shape[1]) if features.ndim == 2 else 0)
        return features


def make_example() -> Image.Image:
    """Return the image on which the width of features is measured."""
    from PIL import Image

    return Image.new("RGB", (256, 256), "grey")


def inputs_of(encoder: Any) -> Inputs:
    """Return what an encoder of the first view takes."""
    return cast(Inputs, check_choice(getattr(encoder, "inputs", "images"), INPUTS, "encoder.inputs"))


def open_input(source: Any, inputs: Inputs, what: str, max_pixels: int = DEFAULT_MAX_PIXELS) -> Any:
    """Return what an encoder takes for one item: a decoded image, the name of a file, or a text.

    ``what`` is the name of the view, for messages.
    """
    if inputs == "images":
        if is_image(source):
            return source.convert("RGB")
        return open_image(source, max_pixels=max_pixels)
    if inputs == "texts":
        if not isinstance(source, str) or not source.strip():
            raise InputError(f"{source!r} is not a text, which the {what} encoder takes.")
        return source
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            f"{type(source).__name__} is not the name of a file, which the {what} encoder takes."
        )
    path = os.fsdecode(source)
    if not os.path.isfile(path):
        raise InputError(f"{path} does not exist or is not a file; check the path.")
    if os.path.getsize(path) == 0:
        raise InputError(f"{path} is empty (0 bytes); replace the file.")
    return path


class PreparedInput(NamedTuple):
    """What an encoder takes for one item, after the work that can run ahead; and which file or text it is."""

    value: Any
    source: str


def prepare_input(encoder: ImageEncoder, source: Any, what: str, max_pixels: int = DEFAULT_MAX_PIXELS) -> Any:
    """Open one item for an encoder and do the work that can run ahead; return the error if that fails."""
    inputs = inputs_of(encoder)
    try:
        value = open_input(source, inputs, what, max_pixels)
        name = "" if inputs == "images" else value
        if isinstance(encoder, StagedEncoder):
            value = encoder.prepare(value) if inputs == "images" else _try(encoder.prepare, value, name, what)
        return value if isinstance(value, InputError) else PreparedInput(value, name)
    except InputError as problem:
        if inputs == "images" and not isinstance(problem, UnreadableImage):
            raise
        return problem


def encode_inputs(
    encoder: ImageEncoder, prepared: Sequence[PreparedInput], what: str
) -> tuple[np.ndarray[Any, Any], dict[int, InputError]]:
    """Return the features of what ``prepare_input`` returned, and by position the errors of those refused.

    If an encoder of files or texts fails, they are encoded one by one, to tell which of them it refuses.
    """
    encode = encoder.encode_prepared if isinstance(encoder, StagedEncoder) else encoder.encode
    try:
        return to_numpy(encode([value for value, _ in prepared])), {}
    except Exception:
        if inputs_of(encoder) == "images":
            raise
        rows = [_try(encode, [value], source, what) for value, source in prepared]
    refused = {i: row for i, row in enumerate(rows) if isinstance(row, InputError)}
    readable = [to_numpy(row) for i, row in enumerate(rows) if i not in refused]
    if len({row.shape for row in readable}) > 1:
        shapes = " and ".join(str(list(row.shape)) for row in readable[:2])
        raise InputError(f"the {what} encoder gave arrays of several shapes ({shapes}); expected one width.")
    return np.concatenate(readable) if readable else np.empty((0, 0)), refused


def _try(function: Callable[[Any], Any], argument: Any, source: str, what: str) -> Any:
    """Call a function of an encoder for one item; return the error by which it refuses the item."""
    shown = source if len(source) <= _SHOWN or os.path.exists(source) else f"{source[:_SHOWN]}…"
    try:
        return function(argument)
    except (InputError, OSError) as error:
        named = os.path.exists(source) and source in str(error)
        return InputError(error if named else f"{shown}: {error}")
    except Exception as error:  # functions of users raise classes of their own
        reason = f": {error}" if str(error) else ""
        raise InputError(
            f"the {what} encoder failed on {shown} ({type(error).__name__}{reason}); let it raise "
            "InputError for what cannot be read, which is then left out."
        ) from error


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
        from PIL import Image

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
