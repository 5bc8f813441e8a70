"""Networks as image encoders: any function by a recipe, and networks in ONNX files, run by onnxruntime."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._checks import DataWarning, InputError, missing_package_error
from diptych._persistence import file_digest
from diptych._threads import set_session_options
from diptych.encoders._image import make_example
from diptych.encoders._preprocessing import (
    PRESETS,
    STATISTICS,
    Pixels,
    Recipe,
    RecipeLike,
    as_recipe,
    full_image_preset,
    normalize_pixels,
    prepare_image,
)

if TYPE_CHECKING:
    from PIL import Image

Network: TypeAlias = Callable[[np.ndarray[Any, np.dtype[np.float32]]], np.ndarray[Any, Any]]
"""Maps float32 [n, 3, height, width] to n rows of anything that a recipe can pool."""

RUN_PIXELS = 2**20
"""Pixels that go through a network at once, which bounds its memory; a larger crop goes alone."""

_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}

USUAL_SIDE = 224
"""The usual side of the input of networks with a fixed input size."""

_TENSORS_IN = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
"""Numbers of the fields of ONNX messages that lead to tensors, and from these to names of files."""


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

    Examples
    --------
    >>> from PIL import Image
    >>> recipe = Recipe(mean=(0, 0, 0), std=(1, 1, 1), pooling="mean")
    >>> encoder = NetworkEncoder(lambda batch: batch, recipe, "mean colour")
    >>> encoder.encode([Image.new("RGB", (8, 8), "red")])
    array([[1., 0., 0.]], dtype=float32)
    """

    def __init__(self, network: Network, recipe: Recipe, name: str, *, dimension: int | None = None) -> None:
        self.network, self.recipe, self.name = network, recipe, name
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
        # Images of one shape go through the network together, some crops at a time. That depends on the
        # images alone, so that encoding the same images again gives the same bits.
        rows_of_shapes: dict[tuple[int, ...], list[int]] = {}
        for row, pixels in enumerate(prepared):
            rows_of_shapes.setdefault(pixels.shape, []).append(row)
        features = np.empty((len(prepared), self.dimension), np.float32)
        for (n_crops, height, width, _), rows in rows_of_shapes.items():
            crops = np.concatenate([prepared[row] for row in rows])
            step = max(1, RUN_PIXELS // (height * width))
            parts = [self._run(crops[start : start + step]) for start in range(0, len(crops), step)]
            features[rows] = np.concatenate(parts).reshape(len(rows), n_crops, -1).mean(axis=1)
        return features

    def _run(self, crops: Pixels) -> np.ndarray[Any, Any]:
        return pool_output(self.network(normalize_pixels(crops, self.recipe)), self.recipe)

    def _measure_dimension(self) -> int:
        return int(self._run(self.prepare(make_example())[:1]).shape[1])


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


class OnnxEncoder(NetworkEncoder):
    """Encode images with a network in an ONNX file.

    Parameters
    ----------
    path
        The ONNX file. The network has one input: images as [n, 3, height, width] or [n, height, width, 3].
    recipe
        Preprocessing: a ``Recipe``, the name of a preset, or its fields as a dict; or the name of a
        normalisation alone (``"caffe"``), with the image cropped or resized to the network's input size.
        None: the recipe in the JSON file beside the network (``resnet.json`` for ``resnet.onnx``) or in the
        network's metadata (``diptych.recipe``). Without either, ``"imagenet"`` is assumed, and a
        ``DataWarning`` says so when an image is encoded.
    threads
        Threads of the network; None: onnxruntime's default.

    Attributes
    ----------
    assumed
        Whether the recipe is only assumed.

    Examples
    --------
    >>> encoder = OnnxEncoder("resnet50.onnx", "resnet-full-image")  # doctest: +SKIP
    >>> encoder.encode([open_image("dog.jpg")]).shape  # doctest: +SKIP
    (1, 2048)
    """

    def __init__(
        self, path: str | os.PathLike[str], recipe: RecipeLike | None = None, *, threads: int | None = None
    ) -> None:
        path = Path(path).absolute()
        if not path.is_file():
            raise InputError(f"{path} does not exist; pass the ONNX file of an image network.")
        name = f"onnx:{_digest_network(path)}"  # first: it checks the files that the runtime will open
        graph = _Graph(path, _session(path, threads))
        if recipe is None:
            metadata = graph.session.get_modelmeta().custom_metadata_map
            recipe = Recipe.beside(path) or Recipe.from_metadata(metadata, path.name)
        self.assumed, self._warned = recipe is None, False
        if recipe is None or (isinstance(recipe, str) and recipe in STATISTICS):
            recipe = graph.name_preset(recipe or "imagenet")
        recipe = graph.fit_recipe(as_recipe(recipe))
        self._graph, self._threads = graph, threads
        network, width = graph.network(recipe)
        super().__init__(network, recipe, name, dimension=width)

    @property
    def label(self) -> str:
        """Name of the file, followed by the name of the recipe if it has one."""
        return self._graph.path.name + (f" ({self.recipe_name})" if self.recipe_name else "")

    @property
    def recipe_name(self) -> str:
        """Name of the recipe; empty unless it is a preset."""
        names = [*PRESETS, *(f"{statistics}-{self.recipe.crop_size}" for statistics in STATISTICS)]
        recipes = {name: self._graph.fit_recipe(Recipe.preset(name)) for name in names}
        return next((name for name, recipe in recipes.items() if recipe == self.recipe), "")

    @property
    def origin(self) -> dict[str, Any]:
        """Arguments with which ``image_encoder`` makes the same encoder."""
        return {"source": str(self._graph.path), "recipe": asdict(self.recipe)}

    def encode_prepared(self, prepared: Sequence[Pixels]) -> np.ndarray[Any, np.dtype[np.float32]]:
        if self.assumed and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._graph.path.name} does not say how to prepare its images; {self.recipe_name} is "
                'assumed. If that is wrong, name another, such as --recipe caffe (recipe="caffe" in Python).',
                DataWarning,
                stacklevel=3,
            )
        return super().encode_prepared(prepared)

    def __reduce__(self) -> tuple[Any, ...]:
        # A session cannot be pickled, so another process opens the file itself.
        open_again = partial(OnnxEncoder, self._graph.path, self.recipe, threads=self._threads)
        return reopen, (open_again, self.fingerprint)


def network_fingerprint(path: str | os.PathLike[str], recipe: Recipe) -> str:
    """Return the fingerprint of an ONNX file with a recipe, without loading the network."""
    return recipe_fingerprint(f"onnx:{_digest_network(Path(path))}", recipe)


def reopen(open_encoder: Callable[[], Any], fingerprint: str) -> Any:
    """Open an encoder that another process has sent; refuse it if its files are not the same here."""
    encoder = open_encoder()
    if encoder.fingerprint != fingerprint:
        raise InputError(
            f"{encoder.label} is not the same as in the process that sent it; copy the same files."
        )
    return encoder


def _digest_network(path: Path) -> str:
    digests = map(file_digest, list_network_files(path))
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:32]


def _session(path: Path, threads: int | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise missing_package_error("ONNX models need", "onnx") from None
    options = onnxruntime.SessionOptions()
    set_session_options(options)
    if threads is not None:
        options.intra_op_num_threads = threads
    # Other providers may compile for minutes, or send images to another machine.
    available = onnxruntime.get_available_providers()
    providers = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # onnxruntime has many exception classes without a common base
        raise InputError(f"{path} could not be loaded as an ONNX network ({error}).") from None


class _Graph:
    """The input and outputs of the network in an ONNX file."""

    def __init__(self, path: Path, session: Any) -> None:
        self.path, self.session = path, session
        inputs = session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _FLOATS:
            types = ", ".join(f"{i.name} {i.type}{list(i.shape)}" for i in inputs)
            raise InputError(f"{path} takes {types}; expected one input of floats with 4 axes (images).")
        self.input, self.outputs = inputs[0], {out.name: out for out in session.get_outputs()}
        shape = self.input.shape
        self.channels_last = shape[1] != 3 and shape[3] == 3
        self.one_at_a_time = shape[0] == 1
        sides = shape[1:3] if self.channels_last else shape[2:4]
        self.sides = tuple(side if isinstance(side, int) and side > 0 else None for side in sides)

    def fit_recipe(self, recipe: Recipe) -> Recipe:
        """Return ``recipe``; a full image is resized if the network has a fixed input size."""
        height, width = self.sides
        if recipe.size is None and recipe.crop == "none" and height is not None and width is not None:
            return replace(recipe, size=(height, width), max_side=None)
        return recipe

    def name_preset(self, statistics: str) -> str:
        """Return the name of the preset with these ``STATISTICS`` that fits the input size."""
        height, width = self.sides
        side = height or width
        if side is None and not self._accepts(3 * USUAL_SIDE // 4, USUAL_SIDE + 32):
            # The file declares any size, but the network works with one only (position embeddings).
            side = USUAL_SIDE
        if side is not None and (height or side) == (width or side):
            return f"{statistics}-{side}"
        return full_image_preset(statistics)

    def network(self, recipe: Recipe) -> tuple[Network, int | None]:
        """Return a function that runs the network, and the width of its output if the file declares it."""
        matrices = (name for name, out in self.outputs.items() if len(out.shape) == 2)
        output = recipe.output or next(matrices, next(iter(self.outputs)))
        if output not in self.outputs:
            raise InputError(f"{self.path} has no output {output!r}; it has {', '.join(self.outputs)}.")
        shape = self.outputs[output].shape
        width = shape[1] if len(shape) == 2 else None
        return lambda batch: self._run(batch, output), width if isinstance(width, int) else None

    def _run(self, batch: np.ndarray[Any, Any], output: str) -> np.ndarray[Any, Any]:
        name = self.input.name
        batch = batch.astype(_FLOATS[self.input.type], copy=False)
        batch = np.moveaxis(batch, 1, 3) if self.channels_last else batch
        pieces = [batch[i : i + 1] for i in range(len(batch))] if self.one_at_a_time else [batch]
        try:
            results = [self.session.run([output], {name: np.ascontiguousarray(p)})[0] for p in pieces]
        except Exception as error:  # onnxruntime has many exception classes without a common base
            raise InputError(
                f"{self.path.name} takes {name} of shape {self.input.shape} and refused {list(batch.shape)} "
                f"({str(error).splitlines()[0]}); set size and crop in the recipe."
            ) from None
        return np.concatenate(results)

    def _accepts(self, height: int, width: int) -> bool:
        try:
            self._run(np.zeros((1, 3, height, width), np.float32), next(iter(self.outputs)))
        except InputError:
            return False
        return True


def list_network_files(path: Path) -> list[Path]:
    """Return an ONNX file and the files that it says its weights are in, sorted."""
    try:
        with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            places = _find_external_data(content)
    except ValueError as error:
        raise InputError(f"{path} could not be loaded as an ONNX network ({error}).") from None
    files = sorted({path, *(path.parent / place for place in places)})
    if missing := [file for file in files if not file.is_file()]:
        raise InputError(f"{missing[0]} does not exist, and {path.name} has weights in it; restore the file.")
    return files


def _find_external_data(content: mmap) -> set[str]:
    """Return the names of other files in a serialised ``ModelProto``; a ``ValueError`` if it is none."""
    places, messages = set[str](), [("model", 0, len(content))]
    while messages:
        kind, start, end = messages.pop()
        entry: dict[int, bytes] = {}
        for number, first, last in _read_fields(content, start, end):
            if kind == "entry":
                entry[number] = content[first:last]
            elif number in _TENSORS_IN[kind]:
                messages.append((_TENSORS_IN[kind][number], first, last))
        if entry.get(1) == b"location":
            places.add(entry.get(2, b"").decode())
    return places


def _read_fields(content: mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of the fields of a protobuf message that are messages or strings."""

    def read_number() -> int:
        nonlocal at
        value = shift = 0
        while at < end and shift < 64:
            byte, at = content[at], at + 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ValueError("it is cut short")

    while at < end:
        number, kind = divmod(read_number(), 8)
        if kind not in (0, 1, 2, 5):
            raise ValueError("it is not a protobuf message")
        size = {1: 8, 5: 4}.get(kind) or read_number()
        start, at = at, at if kind == 0 else at + size
        if at > end:
            raise ValueError("it is cut short")
        if kind == 2:
            yield number, start, at
