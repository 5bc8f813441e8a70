"""A fitted model as files: what a folder holds of it, and a database too.

``model.safetensors`` has the model of each task and where its training items lay, ``moments.safetensors``
what ``refit`` needs of the training pairs, ``text-encoder/`` the HKSE.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from diptych._checks import InputError
from diptych._persistence import link_files, read_tensors, take, write_tensors
from diptych.cca import AWCCA, Moments
from diptych.cca._awcca import unpack
from diptych.fusion import Fusion
from diptych.fusion._fusion import unpack as unpack_fusion
from diptych.retrieval._drift import OutlierDetector
from diptych.retrieval._embedding import embedding_of
from diptych.retrieval._encoders import Known
from diptych.retrieval._fit import Facts, Fitted
from diptych.retrieval._items import VIEWS, View
from diptych.text import HKSE
from diptych.text._hkse import INSIDE, read_hkse, write_hkse

MODEL, MOMENTS, TEXT = "model.safetensors", "moments.safetensors", INSIDE


def write_model(folder: Path, fitted: Fitted, hkse: HKSE | None, same: Path | None = None) -> dict[str, Any]:
    """Write a model; returns what the config beside it is to say.

    ``same`` is a folder that the same model was written to before: its files are linked, not written again.
    """
    tensors, model = fitted.model.packed()
    for view in VIEWS:
        tensors |= {f"outliers.{view}.mean": fitted.outliers[view].mean}
        tensors |= {f"outliers.{view}.variance": fitted.outliers[view].variance}
    if same is not None:
        for name in (MODEL, MOMENTS, TEXT):
            if (same / name).exists():
                link_files(same / name, folder / name)
    if not (folder / MODEL).exists():
        write_tensors(folder / MODEL, tensors, {})
    if fitted.load_moments is not None and not (folder / MOMENTS).exists():
        fitted.load_moments().save(folder / MOMENTS)
    if hkse is not None and not (folder / TEXT).exists():
        (folder / TEXT).mkdir()
        write_hkse(hkse, folder / TEXT)
    return {
        "kind": "fusion" if isinstance(fitted.model, Fusion) else "awcca",
        "model": model,
        "moments": fitted.load_moments is not None,
        # JSON has no infinity: null is no limit.
        "outliers": {v: limit if np.isfinite(limit := fitted.outliers[v].limit) else None for v in VIEWS},
        "text_encoder": hkse is not None,
    }


def read_model(folder: Path, config: Mapping[str, Any]) -> Fitted:
    """The model, without its moments."""
    tensors = read_tensors(folder / MODEL)
    model: AWCCA | Fusion
    if config["kind"] == "fusion":
        model = Fusion.unpacked(unpack_fusion(tensors, config["model"], folder))
    else:
        model = AWCCA.unpacked(unpack(tensors, config["model"], folder))
    embedding, outliers = embedding_of(model), dict[View, OutlierDetector]()
    normalize = ("none", "none") if isinstance(model, Fusion) else model.normalize
    for view, how in zip(VIEWS, normalize, strict=True):
        mean, variance = (
            take(tensors, f"outliers.{view}.{part}", (embedding.features(view),), folder / MODEL)
            for part in ("mean", "variance")
        )
        limit = config["outliers"][view]
        outliers[view] = OutlierDetector(
            how,
            mean,
            np.maximum(variance, np.finfo(np.float32).tiny),
            float("inf") if limit is None else float(limit),
        )
    return Fitted(model, None, outliers, read_facts(config["facts"]))


def read_facts(stored: Any) -> dict[str, Any]:
    """``stored`` if it is what a fit leaves behind, so that whatever shows or saves it can rely on it."""
    try:
        msgspec.convert(stored, Facts)
    except msgspec.ValidationError as error:
        raise ValueError(f"facts: {error}") from None
    return dict(stored)


def read_moments(folder: Path, model: AWCCA | Fusion) -> Moments:
    """The moments of a model's training pairs."""
    moments, embedding = Moments.load(folder / MOMENTS), embedding_of(model)
    if (len(moments.x_mean), len(moments.y_mean)) != tuple(embedding.features(view) for view in VIEWS):
        raise InputError(f"{folder / MOMENTS} belongs to a model of other features; save the model again.")
    return moments


def read_text_encoder(folder: Path) -> HKSE:
    """The HKSE."""
    return read_hkse(HKSE, folder / TEXT)


def known_encoders(config: Mapping[str, Any], folder: Path | None = None) -> dict[View, Known]:
    """What a config remembers of the encoders; ``folder`` is where the model lies."""
    known = {}
    for view in VIEWS:
        told = config["encoders"][view]
        origin = dict(told.get("origin", {}))
        beside = origin.pop("beside", None)
        if origin and not (
            isinstance(origin["source"], str)
            and isinstance(origin.get("weights", ""), str)
            and isinstance(origin.get("recipe", {}), dict)
        ):
            raise TypeError("the origin of an encoder is no text")
        place = "weights" if "weights" in origin else "source"
        if folder is not None and beside is not None and not os.path.exists(origin[place]):
            origin[place] = os.path.abspath(folder / str(beside))
        known[view] = Known(str(told["name"]), str(told["fingerprint"]), origin)
    return known
