"""The description of a retriever as plain data, and its model card."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diptych._checks import InputError
from diptych._database import FILE
from diptych._persistence import library_version, name_in_errors
from diptych.cca._description import ModelDescription
from diptych.report import draw_regularization_path, draw_reliability
from diptych.report._card import FIGURE_FILE, RELIABILITY_FILE, Card, model_card
from diptych.retrieval._calibration import describe_calibration
from diptych.retrieval._items import VIEWS
from diptych.retrieval.stores._files import FOR_PEOPLE, ROWS

if TYPE_CHECKING:
    from diptych.retrieval._searcher import Searcher

_FILES = {
    "config.json": "encoders, filters, regularisation path, recalls and checksums",
    "model.safetensors": "the projectors of both tasks",
    "estimator.safetensors": "the fitted model, for a refit",
    "moments.safetensors": "the moments of the training pairs, for a refit",
    "text-encoder": "the text encoder",
    FIGURE_FILE: "the scores of the regularisation path",
    RELIABILITY_FILE: "probabilities and shares of right hits",
}
_ITEM_FILES = {FILE: "the items", ROWS: "the vectors of all items, and their features if they are kept"}


def describe(searcher: Searcher, keep_features: bool) -> dict[str, Any]:
    """Return what is known of a retriever, as plain data."""
    fitted, store = searcher.fitted, searcher.store
    encoders = {}
    for view in VIEWS:
        record, dimension = searcher.encoders.describe(view), fitted.width(view)
        encoders[view] = {"name": record.name, "fingerprint": record.fingerprint, "dimension": dimension}
    return {
        "library": library_version(),
        "views": list(searcher.encoders.views),
        "encoders": encoders,
        **_describe_model(fitted.description),
        "index": {"kind": store.kind, "dtype": store.dtype},
        "keep_features": bool(keep_features),
        "items": {view: store.count(view) for view in VIEWS},
        "facts": fitted.facts,
        "calibration": describe_calibration(fitted.calibration),
    }


def _describe_model(model: ModelDescription) -> dict[str, Any]:
    """Return filters, components and correlations of each task, or the parts of a fusion."""
    plain = msgspec.to_builtins(msgspec.structs.replace(model, path=None))
    names = ("filters", "components", "epochs", "correlations", "parts", "corrections")
    return {name: plain[name] for name in names if plain[name]}


def write_card(
    searcher: Searcher, keep_features: bool, folder: Path, name: str, repo: str = "", front_matter: str = ""
) -> None:
    """Write the model card, with figures if matplotlib is installed.

    ``repo`` is the repository that the model is published in, whose card starts with ``front_matter``.
    """
    info, encoders = describe(searcher, keep_features), searcher.encoders
    model, views = searcher.fitted.description, encoders.views
    if model.path is not None:
        with suppress(InputError):
            draw_regularization_path(model.path, folder / FIGURE_FILE, views=views)
    with suppress(InputError):  # without matplotlib, and without probabilities
        draw_reliability(info["calibration"], folder / RELIABILITY_FILE, views=views)
    files = {file: meaning for file, meaning in _FILES.items() if (folder / file).exists()}
    files |= {} if searcher.store.address else _ITEM_FILES
    kept = [
        view
        for view in VIEWS
        if info["encoders"][view]["name"] and encoders.can_reopen(view, published=bool(repo))
    ]
    card = Card(name, info, model, files, kept, repo)
    with name_in_errors(folder / FOR_PEOPLE[0]):
        (folder / FOR_PEOPLE[0]).write_text(front_matter + model_card(card), "utf-8")
