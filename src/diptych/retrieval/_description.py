"""The description of a retriever as plain data, and its model card."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from diptych._checks import TASKS, InputError, Task
from diptych._database import FILE
from diptych._persistence import library_version, name_in_errors
from diptych.cca._description import ModelDescription
from diptych.report import draw_regularization_path, draw_reliability, model_card
from diptych.report._card import (
    CORRELATIONS,
    FIGURE_FILE,
    RELIABILITY_FILE,
    Card,
    EncoderFacts,
    FusedTaskFacts,
    IndexFacts,
    TaskFacts,
    describe_correction,
)
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
    facts, views = describe(searcher, keep_features), searcher.encoders.views
    fitted, model, store = searcher.fitted, searcher.fitted.description, searcher.store
    if model.path is not None:
        with suppress(InputError):
            draw_regularization_path(model.path, folder / FIGURE_FILE, views=views)
    with suppress(InputError):  # without matplotlib, and without probabilities
        draw_reliability(facts["calibration"], folder / RELIABILITY_FILE, views=views)
    encoders = [
        EncoderFacts(**encoder, kept=searcher.encoders.can_reopen(view, published=bool(repo)))
        if (encoder := facts["encoders"][view])["name"]
        else None
        for view in VIEWS
    ]
    recall = fitted.facts.get("graph_recall", {})
    card = Card(
        name=name,
        folder=name,
        repo=repo,
        library=facts["library"],
        date=str(fitted.facts.get("date", "")),
        pairs={split: (int(n), int(m)) for split, (n, m) in fitted.facts.get("pairs", {}).items()},
        image_encoder=encoders[0],
        text_encoder=encoders[1],
        tasks=_task_facts(facts),
        params=model.params,
        selected_on=fitted.facts.get("selection", {}).get("pairs"),
        seconds=fitted.facts.get("seconds", {}).get("all"),
        quality=fitted.facts.get("quality", Card.quality),
        metrics=fitted.facts.get("metrics") or None,
        index=IndexFacts(
            {views.of(view): facts["items"][view] for view in VIEWS},
            "exact" if store.kind == "flat" else store.kind,
            store.dtype,
            min(recall.values()) if recall else None,
        ),
        files={file: meaning for file, meaning in _FILES.items() if (folder / file).exists()}
        | ({} if store.address else _ITEM_FILES),
        has_figure=(folder / FIGURE_FILE).is_file(),
        views=views,
        calibration=facts["calibration"],
        has_reliability=(folder / RELIABILITY_FILE).is_file(),
    )
    with name_in_errors(folder / FOR_PEOPLE[0]):
        (folder / FOR_PEOPLE[0]).write_text(front_matter + model_card(card), "utf-8")


def _task_facts(facts: Mapping[str, Any]) -> dict[Task, TaskFacts | FusedTaskFacts]:
    if "parts" in facts:
        corrections = facts["corrections"]
        return {t: FusedTaskFacts(facts["parts"][t], describe_correction(corrections[t])) for t in TASKS}
    filters, components = facts["filters"], facts["components"]
    correlations = facts["correlations"]
    return {
        t: TaskFacts(
            filters[t][0],
            filters[t][1],
            components[t],
            *(correlations[t][name] or () for name in CORRELATIONS),
        )
        for t in TASKS
    }
