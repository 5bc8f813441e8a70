"""The description of a retriever as plain data, and its model card."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diptych._checks import InputError
from diptych._model_folder import FOR_PEOPLE
from diptych._persistence import library_version, name_in_errors
from diptych.cca._description import ModelDescription
from diptych.report import draw_regularization_path, draw_reliability
from diptych.report._card import FIGURE_FILE, RELIABILITY_FILE, Card, model_card
from diptych.retrieval._calibration import describe_calibration
from diptych.retrieval._items import VIEWS

if TYPE_CHECKING:
    from diptych.retrieval._retriever import Retriever

_FILES = {
    "config.json": "encoders, filters, regularisation path, recalls and checksums",
    "model.safetensors": "the projectors of both tasks",
    "estimator.safetensors": "the fitted model, for a refit",
    "moments.safetensors": "the moments of the training pairs, for a refit",
    "index.safetensors": "the vectors of all items",
    "features.safetensors": "the features of all items",
    "items.jsonl": "the items",
    "text-encoder": "the text encoder",
    FIGURE_FILE: "the scores of the regularisation path",
    RELIABILITY_FILE: "probabilities and shares of right hits",
}


def describe(retriever: Retriever) -> dict[str, Any]:
    """Return what is known of a retriever, as plain data."""
    searcher = retriever.searcher
    fitted, store = searcher.fitted, searcher.store
    encoders = {}
    for view in VIEWS:
        record, dimension = searcher.encoders.describe(view), fitted.width(view)
        encoders[view] = {"name": record.name, "fingerprint": record.fingerprint, "dimension": dimension}
    return {
        "library": library_version(),
        "views": list(retriever.views),
        "encoders": encoders,
        **_describe_model(fitted.description),
        "index": {"kind": store.kind, "dtype": store.dtype},
        "keep_features": bool(retriever.keep_features),
        "items": {view: store.count(view) for view in VIEWS},
        "facts": fitted.facts,
        "calibration": describe_calibration(fitted.calibration),
    }


def _describe_model(model: ModelDescription) -> dict[str, Any]:
    """Return filters, components and correlations of each task, or the parts of a fusion."""
    plain = msgspec.to_builtins(msgspec.structs.replace(model, path=None))
    names = ("filters", "components", "epochs", "correlations", "parts", "corrections")
    return {name: plain[name] for name in names if plain[name]}


def write_card(retriever: Retriever, folder: Path, name: str, repo: str = "", front_matter: str = "") -> None:
    """Write the model card, with figures if matplotlib is installed.

    ``repo`` is the repository that the model is published in, whose card starts with ``front_matter``.
    """
    info, encoders = describe(retriever), retriever.searcher.encoders
    model = retriever.searcher.fitted.description
    if model.path is not None:
        with suppress(InputError):
            draw_regularization_path(model.path, folder / FIGURE_FILE, views=retriever.views)
    with suppress(InputError):  # without matplotlib, and without probabilities
        draw_reliability(info["calibration"], folder / RELIABILITY_FILE, views=retriever.views)
    files = {file: meaning for file, meaning in _FILES.items() if (folder / file).exists()}
    kept = [
        view
        for view in VIEWS
        if info["encoders"][view]["name"] and encoders.can_reopen(view, published=bool(repo))
    ]
    card = Card(name, info, model, files, kept, repo)
    with name_in_errors(folder / FOR_PEOPLE[0]):
        (folder / FOR_PEOPLE[0]).write_text(front_matter + model_card(card), "utf-8")
