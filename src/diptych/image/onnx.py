"""Networks in ONNX files, run by onnxruntime."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.image.encoder import DEFAULT_RUN_PIXELS, NetworkEncoder
from diptych.image.recipe import Recipe, as_recipe
from diptych.storage import file_digest

_FLOATS = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}


class OnnxEncoder(NetworkEncoder):
    """Any image network in an ONNX file.

    Parameters
    ----------
    path
        The model: one input, pictures as [n, 3, height, width] or [n, height, width, 3].
    recipe
        What it expects: a ``Recipe``, the name of a preset, or plain values. None: read from the JSON
        file beside the model (``resnet.json`` for ``resnet.onnx``).
    threads
        Threads of the network; None leaves the choice to onnxruntime.
    run_pixels
        At most so many pixels go through the network at once.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        recipe: Recipe | str | Mapping[str, Any] | None = None,
        *,
        threads: int | None = None,
        run_pixels: int = DEFAULT_RUN_PIXELS,
    ) -> None:
        path = Path(path)
        if not path.is_file():
            raise InputError(f"{path} does not exist; give the ONNX file of an image network.")
        recipe = Recipe.beside(path) if recipe is None else as_recipe(recipe)
        session = _session(path, threads)
        run, width = _network(session, recipe, path)
        super().__init__(run, recipe, f"onnx:{_digest(path)}", dimension=width, run_pixels=run_pixels)
        self.label = path.name
        self._path, self._threads = path.absolute(), threads

    def __reduce__(self) -> tuple[Any, ...]:
        # A session cannot be sent to another process; the file is opened again there.
        return _reopened, (self._path, self.recipe, self._threads, self.run_pixels, self.fingerprint)


def _reopened(
    path: Path, recipe: Recipe, threads: int | None, run_pixels: int, fingerprint: str
) -> OnnxEncoder:
    encoder = OnnxEncoder(path, recipe, threads=threads, run_pixels=run_pixels)
    if encoder.fingerprint != fingerprint:
        raise InputError(f"{path} is another network here than where it was sent from; copy the same file.")
    return encoder


def _digest(path: Path) -> str:
    # Large models keep their weights in a second file, by custom named model.onnx.data or model.onnx_data.
    files = sorted(
        file for file in path.parent.iterdir() if file.name.startswith(path.name) and file.is_file()
    )
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()[:32]


def _session(path: Path, threads: int | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            'onnxruntime is not installed, and ONNX models need it: pip install "diptych[onnx]"'
        ) from None
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


def _network(session: Any, recipe: Recipe, path: Path) -> tuple[Any, int | None]:
    inputs, outputs = session.get_inputs(), {out.name: out for out in session.get_outputs()}
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].type not in _FLOATS:
        found = ", ".join(f"{i.name} {i.type}{list(i.shape)}" for i in inputs)
        raise InputError(f"{path} takes {found}; expected one input of floats with 4 axes (pictures).")
    output = recipe.output or next(iter(outputs))
    if output not in outputs:
        raise InputError(f"{path} has no output {output!r}; it has {', '.join(outputs)}.")
    name, dtype = inputs[0].name, _FLOATS[inputs[0].type]
    channels_last = inputs[0].shape[1] != 3 and inputs[0].shape[3] == 3
    one_at_a_time = inputs[0].shape[0] == 1

    def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        batch = batch.astype(dtype, copy=False)
        batch = np.moveaxis(batch, 1, 3) if channels_last else batch
        pieces = [batch[i : i + 1] for i in range(len(batch))] if one_at_a_time else [batch]
        try:
            results = [session.run([output], {name: np.ascontiguousarray(piece)})[0] for piece in pieces]
        except Exception as error:  # onnxruntime raises a class of its own for each kind of refusal
            raise InputError(
                f"{path.name} takes {name} of shape {inputs[0].shape} and refused {list(batch.shape)} "
                f"({str(error).splitlines()[0]}); set size and crop in its recipe."
            ) from None
        return np.concatenate(results)

    shape = outputs[output].shape
    width = shape[1] if len(shape) == 2 else None
    return run, width if isinstance(width, int) else None
