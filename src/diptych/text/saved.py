"""HKSE on disk: the draws themselves, never a seed, since random streams change between NumPy versions."""

from __future__ import annotations

import hashlib
import os
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych import folders, storage
from diptych.arrays import to_numpy
from diptych.checks import InputError
from diptych.text.bags import Coverage
from diptych.text.fourier import check_gamma
from diptych.text.tokens import TOKENIZER, Tokenizer, tokenize
from diptych.text.vectors import table_from_tensors, table_tensors

if TYPE_CHECKING:
    from diptych.text.hkse import HKSE

FORMAT_VERSION = 1
KIND = "hkse"
TENSORS = "hkse.safetensors"
CUSTOM = "custom"
INSIDE = "text-encoder"
"""Where a retriever keeps its text encoder."""

_PARAMETERS = ("word", "sentence", "word_features", "sentence_features", "gamma", "eta")


def save_hkse(model: HKSE, folder: str | os.PathLike[str]) -> None:
    """Write a fitted model to a model folder."""
    with folders.new_version(folder, KIND) as draft:
        write_hkse(model, draft.path)


def write_hkse(model: HKSE, folder: Path) -> None:
    """Write the files of a fitted model."""
    seed = model.random_state
    config = {
        "parameters": {name: _plain(getattr(model, name)) for name in _PARAMETERS},
        "random_state": int(seed) if isinstance(seed, Integral) else None,
        "tokenizer": _tokenizer_name(model),
        "gamma": model.gamma_,
        "vocabulary_size": len(model.vocabulary_),
        "coverage": model.coverage_.as_dict(),
    }
    storage.write_tensors(folder / TENSORS, _tensors(model), {})
    folders.write_config(folder, KIND, FORMAT_VERSION, config)


def hkse_fingerprint(model: HKSE) -> str:
    """Tells a fitted model from any other: a digest of its words, vectors and draws."""
    digest = hashlib.sha256(_identity(model))
    for name, tensor in sorted(_tensors(model).items()):
        digest.update(name.encode() + np.ascontiguousarray(tensor).tobytes())
    return f"hkse:{digest.hexdigest()[:32]}"


def load_hkse(kind: type[HKSE], folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> HKSE:
    """Read a model that ``save_hkse`` wrote, or the text encoder in the folder of a retriever."""

    def read(version: folders.Version) -> HKSE:
        inside = version.path / INSIDE
        return read_hkse(kind, inside if inside.is_dir() else version.path, tokenizer)

    return folders.read_current(folder, read)


def read_hkse(kind: type[HKSE], path: Path, tokenizer: Tokenizer | None = None) -> HKSE:
    """Read the files that ``write_hkse`` wrote."""
    if path.is_symlink():
        raise InputError(f"{path} is a link; expected the text encoder's folder.")
    tensors, config, _ = folders.read_files(path, KIND, FORMAT_VERSION, TENSORS)
    named = config.get("tokenizer")
    if named != TOKENIZER and tokenizer is None:
        which = "of its own" if named == CUSTOM else f"called {str(named)[:60]!r}"
        raise InputError(
            f"{path} was fitted with a tokenizer {which}, which is not stored; give it again: "
            "HKSE.load(folder, tokenizer=...)."
        )
    file = path / TENSORS
    table = table_from_tensors(tensors, file)
    try:
        parameters = {name: config["parameters"][name] for name in _PARAMETERS}
        size, gamma = int(config["vocabulary_size"]), config["gamma"]
        stored = config["coverage"]
        often = [(str(word), int(count)) for word, count in stored["most_frequent_unknown"]]
        coverage = Coverage(**{**stored, "most_frequent_unknown": often})
        seed = None if config["random_state"] is None else int(config["random_state"])
        if parameters["word"] == "rbf":
            check_gamma(gamma, median=False)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"{path / storage.CONFIG} lacks or garbles a setting; save the model again."
        ) from None
    if not 1 <= size <= len(table):
        raise InputError(f"{path} has a vocabulary of {size} among {len(table)} words; save the model again.")
    model = kind(vectors=table, **parameters, random_state=seed, tokenizer=tokenizer or tokenize)
    model._check_parameters()
    model.vectors_, model.vocabulary_ = table, list(table.words[:size])
    model.gamma_, model.coverage_ = gamma, coverage
    width = table.dimensions
    for level, features in (("word", model.word_features), ("sentence", model.sentence_features)):
        weights = offsets = None
        if getattr(model, level) == "rbf":
            weights = _float32(storage.take(tensors, f"{level}_weights", (width, features), file))
            offsets = _float32(storage.take(tensors, f"{level}_offsets", (features,), file))
            width = features
        setattr(model, f"{level}_weights_", weights)
        setattr(model, f"{level}_offsets_", offsets)
        if level == "word":
            model.word_table_ = model._word_level(table.matrix[:size])
            model.mean_ = _float32(storage.take(tensors, "mean", (width,), file))
    model._n_features_out = width
    return model


def _tensors(model: HKSE) -> dict[str, np.ndarray[Any, Any]]:
    tensors = {**table_tensors(model.vectors_), "mean": to_numpy(model.mean_)}
    for level in ("word", "sentence"):
        weights, offsets = getattr(model, f"{level}_weights_"), getattr(model, f"{level}_offsets_")
        if weights is not None:
            tensors |= {f"{level}_weights": to_numpy(weights), f"{level}_offsets": to_numpy(offsets)}
    return tensors


def _tokenizer_name(model: HKSE) -> str:
    return TOKENIZER if model.tokenizer is tokenize else CUSTOM


def _identity(model: HKSE) -> bytes:
    return repr((model.word, model.sentence, len(model.vocabulary_), _tokenizer_name(model))).encode()


def _float32(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(np.float32, copy=False)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
