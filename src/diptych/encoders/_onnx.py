"""Networks in ONNX files, run by onnxruntime."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import DataWarning, InputError, missing_package_error
from diptych._persistence import file_digest
from diptych._threads import set_session_options
from diptych.encoders._fastembed import list_network_files
from diptych.encoders._image import DEFAULT_RUN_PIXELS, Network, NetworkEncoder, recipe_fingerprint
from diptych.encoders._preprocessing import (
    PRESETS,
    STATISTICS,
    Pixels,
    Recipe,
    RecipeLike,
    as_recipe,
    full_image_preset,
)

_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}

USUAL_SIDE = 224
"""The usual side of the input of networks with a fixed input size."""


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
    run_pixels
        Maximal number of pixels that go through the network at once; a larger crop goes alone.

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
        self,
        path: str | os.PathLike[str],
        recipe: RecipeLike | None = None,
        *,
        threads: int | None = None,
        run_pixels: int = DEFAULT_RUN_PIXELS,
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
        super().__init__(network, recipe, name, dimension=width, run_pixels=run_pixels)

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
        state = (self._graph.path, self.recipe, self._threads, self.run_pixels, self.fingerprint)
        return _reopen, state


def network_fingerprint(path: str | os.PathLike[str], recipe: Recipe) -> str:
    """Return the fingerprint of an ONNX file with a recipe, without loading the network."""
    return recipe_fingerprint(f"onnx:{_digest_network(Path(path))}", recipe)


def _reopen(
    path: Path, recipe: Recipe, threads: int | None, run_pixels: int, fingerprint: str
) -> OnnxEncoder:
    encoder = OnnxEncoder(path, recipe, threads=threads, run_pixels=run_pixels)
    if encoder.fingerprint != fingerprint:
        raise InputError(
            f"{path} is not the same network as in the process that sent it; copy the same file."
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
