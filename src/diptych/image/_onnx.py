"""Networks in ONNX files, run by onnxruntime."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import DataWarning, InputError, missing_package_error
from diptych._persistence import file_digest
from diptych.image._base import DEFAULT_RUN_PIXELS, NetworkEncoder, recipe_fingerprint
from diptych.image._preprocessing import PRESETS, STATISTICS, Recipe, as_recipe, full_image

_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}

USUAL_SIDE = 224
"""Side of the images that most networks take which take one size only."""


class OnnxEncoder(NetworkEncoder):
    """Any image network in an ONNX file.

    Parameters
    ----------
    path
        The model: one input, images as [n, 3, height, width] or [n, height, width, 3].
    recipe
        What it expects: a ``Recipe``, the name of a preset, or plain values. None: what the JSON file beside
        the model says (``resnet.json`` for ``resnet.onnx``), or its own metadata (``diptych.recipe``). Where
        nothing says it, ImageNet's statistics are assumed, with a ``DataWarning`` when an image is encoded;
        ``Retriever.fit`` has pairs, and chooses among ``candidates`` by them.
    threads
        Threads of the network; None leaves the choice to onnxruntime.
    run_pixels
        At most so many pixels go through the network at once.

    Attributes
    ----------
    assumed
        Whether the recipe is only assumed.
    candidates
        Usual recipes that fit the size of the network's input, by name; the most usual first.
    """

    assumed: bool
    candidates: dict[str, Recipe]
    _warned: bool

    def __init__(
        self,
        path: str | os.PathLike[str],
        recipe: Recipe | str | Mapping[str, Any] | None = None,
        *,
        threads: int | None = None,
        run_pixels: int = DEFAULT_RUN_PIXELS,
    ) -> None:
        path = Path(path).absolute()
        if not path.is_file():
            raise InputError(f"{path} does not exist; give the ONNX file of an image network.")
        chosen = Recipe.beside(path) if recipe is None else as_recipe(recipe)
        graph = _Graph(path, _session(path, threads))
        if chosen is None:
            metadata = graph.session.get_modelmeta().custom_metadata_map
            chosen = Recipe.from_metadata(metadata, path.name)
        self._threads = threads
        self._start(graph, chosen, digest_network(path), run_pixels)

    def with_recipe(self, recipe: Recipe) -> OnnxEncoder:
        """Return an encoder that runs the same network by another recipe."""
        other = object.__new__(type(self))
        other._threads = self._threads
        other._start(self._graph, recipe, self._digest, self.run_pixels)
        return other

    @property
    def label(self) -> str:
        """The name of the file, and that of the recipe if it has one."""
        return self._graph.path.name + (f" ({self.recipe_name})" if self.recipe_name else "")

    @property
    def recipe_name(self) -> str:
        """What the recipe is called; empty where it is none of the usual ones."""
        named = {**PRESETS, **self.candidates}
        return next((name for name, recipe in named.items() if recipe == self.recipe), "")

    @property
    def origin(self) -> dict[str, Any]:
        """Where the encoder comes from, as plain values: what ``image_encoder`` takes."""
        return {"source": str(self._graph.path), "recipe": asdict(self.recipe)}

    def encode_prepared(self, prepared: Any) -> np.ndarray[Any, Any]:
        """Features of images that went through ``prepare``."""
        if self.assumed and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._graph.path.name} does not say how it wants its images; {self.recipe_name} is "
                "assumed. Name another with --recipe (recipe= in Python) if that is wrong.",
                DataWarning,
                stacklevel=3,
            )
        return super().encode_prepared(prepared)

    def _start(self, graph: _Graph, recipe: Recipe | None, digest: str, run_pixels: int) -> None:
        self._graph, self._digest, self._warned = graph, digest, False
        self.candidates, self.assumed = graph.candidates(), recipe is None
        recipe = next(iter(self.candidates.values())) if recipe is None else graph.fitted(recipe)
        network, width = graph.network(recipe)
        super().__init__(network, recipe, f"onnx:{digest}", dimension=width, run_pixels=run_pixels)

    def __reduce__(self) -> tuple[Any, ...]:
        # A session cannot be sent to another process; the file is opened again there.
        return _reopened, (
            *(self._graph.path, self.recipe, self._threads, self.run_pixels, self.fingerprint),
        )


def network_fingerprint(path: str | os.PathLike[str], recipe: Recipe) -> str:
    """Return the fingerprint of an ONNX file with a recipe, without giving the file to onnxruntime."""
    return recipe_fingerprint(f"onnx:{digest_network(Path(path))}", recipe)


def _reopened(
    path: Path, recipe: Recipe, threads: int | None, run_pixels: int, fingerprint: str
) -> OnnxEncoder:
    encoder = OnnxEncoder(path, recipe, threads=threads, run_pixels=run_pixels)
    if encoder.fingerprint != fingerprint:
        raise InputError(f"{path} is another network here than where it was sent from; copy the same file.")
    return encoder


def digest_network(path: Path) -> str:
    """Return a digest of an ONNX file and of the files that hold its weights."""
    # Large models keep their weights in a second file, by custom named model.onnx.data or model.onnx_data.
    files = sorted(
        file for file in path.parent.iterdir() if file.name.startswith(path.name) and file.is_file()
    )
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:32]


def _session(path: Path, threads: int | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise missing_package_error("ONNX models need", "onnx") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Interrupted work must resume to the same bits.
    options.use_deterministic_compute = True
    # Pictures come in many sizes; one memory pattern for each would make memory grow with them.
    options.enable_mem_pattern = False
    # Threads that spin while they wait would take the cores from those that decode.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(
            str(path),
            options,
            providers=[
                p
                for p in ("CUDAExecutionProvider", "CPUExecutionProvider")
                if p in onnxruntime.get_available_providers()
            ],
        )
    except Exception as error:  # onnxruntime raises a class of its own for each kind of damage
        raise InputError(f"{path} could not be loaded as an ONNX model ({error}).") from None


class _Graph:
    """What an ONNX file says of its input and outputs."""

    def __init__(self, path: Path, session: Any) -> None:
        self.path, self.session = path, session
        inputs = session.get_inputs()
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _FLOATS:
            found = ", ".join(f"{i.name} {i.type}{list(i.shape)}" for i in inputs)
            raise InputError(f"{path} takes {found}; expected one input of floats with 4 axes (images).")
        self.input, self.outputs = inputs[0], {out.name: out for out in session.get_outputs()}
        shape = self.input.shape
        self.channels_last = shape[1] != 3 and shape[3] == 3
        self.one_at_a_time = shape[0] == 1
        sides = shape[1:3] if self.channels_last else shape[2:4]
        self.sides = tuple(side if isinstance(side, int) and side > 0 else None for side in sides)

    def fitted(self, recipe: Recipe) -> Recipe:
        """Return ``recipe`` with the full image brought to the one size that the network takes."""
        height, width = self.sides
        if recipe.size is None and recipe.crop == "none" and height is not None and width is not None:
            return replace(recipe, size=(height, width), max_side=None)
        return recipe

    def candidates(self) -> dict[str, Recipe]:
        """Return the usual recipes that fit the size of the input, by name, the most usual first."""
        height, width = self.sides
        side = height or width
        if side is None and not self._takes(3 * USUAL_SIDE // 4, USUAL_SIDE + 32):
            # Exported as if it took any size, but its positions are those of one.
            side = USUAL_SIDE
        if side is not None and (height or side) == (width or side):
            names = [f"{name}-{side}" for name in STATISTICS]
        else:
            names = [full_image(name) for name in STATISTICS]
        return {name: self.fitted(Recipe.preset(name)) for name in names}

    def network(self, recipe: Recipe) -> tuple[Any, int | None]:
        """Return a function that runs the network, and the width of its output where that is known."""
        flat = (name for name, out in self.outputs.items() if len(out.shape) == 2)
        output = recipe.output or next(flat, next(iter(self.outputs)))
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
        except Exception as error:  # onnxruntime raises a class of its own for each kind of refusal
            raise InputError(
                f"{self.path.name} takes {name} of shape {self.input.shape} and refused {list(batch.shape)} "
                f"({str(error).splitlines()[0]}); set size and crop in its recipe."
            ) from None
        return np.concatenate(results)

    def _takes(self, height: int, width: int) -> bool:
        try:
            self._run(np.zeros((1, 3, height, width), np.float32), next(iter(self.outputs)))
        except InputError:
            return False
        return True
