"""A fitted model and more pairs: refits from moments, models that were fitted elsewhere, and their files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import IMAGE_AND_TEXT, InputError, ViewNames, check_view
from diptych._persistence import (
    Schema,
    Tensors,
    convert,
    parse_object,
    parse_tensors,
    to_builtins,
    write_json,
)
from diptych.cca import AWCCA, Moments
from diptych.cca._saved import AWCCAConfig
from diptych.fusion import Fusion
from diptych.fusion._saved import FusionConfig
from diptych.report._card import describe_quality
from diptych.retrieval._calibration import Calibration, measure_held_out
from diptych.retrieval._evaluation import Part
from diptych.retrieval._fitted import Fitted, Learned, OutlierDetector, make_projectors
from diptych.retrieval._inputs import join_blocks
from diptych.retrieval._items import SIDES, VIEWS, View
from diptych.retrieval._placing import describe_kinds, is_caption
from diptych.retrieval._searcher import Searcher, batches
from diptych.retrieval._training import describe_selection, describe_val

NOT_MEASURED_AGAIN = (
    "it was refitted, and there are no features of a stored val split that it was not fitted on; "
    "Retriever.calibrate measures them on held-out pairs"
)
"""Why a refitted model has no probabilities."""


class EstimatorConfig(Schema, frozen=True):
    """An estimator as JSON; ``shared`` names arrays of the projectors for those that are not stored twice."""

    model: AWCCAConfig | FusionConfig
    shared: dict[str, str]


def refit(searcher: Searcher, validation: tuple[Any, ...] | None) -> Searcher:
    """Fit a model on the pairs added since as well, and embed all items again."""
    return searcher.replace_model(
        lambda: refit_model(
            searcher.fitted,
            sum_new_pairs(searcher),
            validation,
            _read_validation(searcher),
            searcher.encoders.views,
        )
    )


def refit_model(
    fitted: Fitted,
    new: Moments,
    validation: tuple[Any, ...] | None,
    held_out: Part | None,
    names: ViewNames,
) -> Fitted:
    """Return a model fitted on the training pairs of another and on new pairs, both by their moments.

    The selected parameters are kept, with γ scaled by the number of pairs, unless there are ``validation``
    pairs to select on again. Probabilities are measured on ``held_out``, the val split of the first fit.
    """
    model, previous = fitted.model, _load_moments(fitted)
    moments = previous + new
    refitted = model.refit_copy(moments, previous.total, validation)
    description = refitted.describe()
    # These were measured on the previous model.
    old = ("metrics", "seconds", "graph_recall", "library")
    facts = {name: fact for name, fact in fitted.facts.items() if name not in old}
    facts["refitted"] = {"pairs": moments.count, "before": previous.count}
    if validation is not None:
        facts |= describe_selection(description, "the validation pairs that refit was given")
    calibration: Calibration = NOT_MEASURED_AGAIN
    offsets = fitted.offsets
    if held_out is not None:
        unseen = refitted
        if model.learned_validation:  # then it is measured by a model that did not
            without = moments - model.make_moments(*held_out)
            unseen = model.refit_copy(without, previous.total)
        on = f"the stored {describe_val(held_out, names)}"
        offsets, calibration = measure_held_out(make_projectors(unseen), *held_out, on, names)
        facts |= describe_kinds(offsets)
    facts["quality"] = describe_quality(facts)
    learned = Learned(lambda: refitted, lambda: moments)
    projectors = make_projectors(refitted, names)
    return Fitted(projectors, fitted.outliers, description, learned, facts, calibration, offsets)


def adopt_model(
    model: AWCCA | Fusion, sample: tuple[Any, Any] | None = None, names: ViewNames = IMAGE_AND_TEXT
) -> Fitted:
    """Return a model that was fitted elsewhere; ``sample`` holds some training features of both views."""
    if not hasattr(model, "split_moments"):
        raise InputError(f"{type(model).__name__} is not a model; give a fitted AWCCA or Fusion.")
    if not model.__sklearn_is_fitted__():
        raise InputError(f"this {type(model).__name__} is not fitted; call fit() first.")
    if sample is not None and len(sample) != 2:
        raise InputError(f"features has {len(sample)} parts; give a sample of both views, (X, Y).")
    copied, moments = model.split_moments()
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "pairs": {}}
    learned = Learned(lambda: copied)
    if moments is not None:
        facts["moments"], learned = {"pairs": moments.count}, Learned(lambda: copied, lambda: moments)
    fitted = Fitted(make_projectors(copied, names), {}, copied.describe(), learned, facts)
    outliers: dict[View, OutlierDetector] = {}
    for i, view in enumerate(VIEWS):
        width = fitted.width(view)
        outliers[view] = OutlierDetector.unlimited(width)
        if sample is not None:
            rows = join_blocks(sample[i], fitted.layout, view, names)
            rows = to_numpy(check_view(rows, f"{names.of(view)} features", n_features=width))
            how = fitted.projectors["search"].normalization(SIDES[view])
            outliers[view] = OutlierDetector.fit(rows, how)
    return replace(fitted, outliers=outliers)


def sum_new_pairs(searcher: Searcher) -> Moments:
    """Return the moments of the pairs that were added since the model was fitted."""
    if searcher.fitted.learned.moments is None:
        raise InputError(
            "the moments of this model's training pairs are not known, so it cannot be refitted; fit it "
            "again on all pairs."
        )
    model, store = searcher.fitted.model, searcher.store
    moments = Moments.zero(*model.moment_widths().values(), precision=model.precision)
    for captions in batches(filter(is_caption, store.items("text", new=True))):
        images = list(store.items("image", ids=sorted({str(caption.image) for caption in captions})))
        rows = {image.id: row for row, image in enumerate(images)}
        paired = [caption for caption in captions if caption.image in rows]
        if paired:
            x, y = searcher.features_of("image", images), searcher.features_of("text", paired)
            pairing = np.array([rows[str(caption.image)] for caption in paired])
            moments += model.make_moments(x, y, pairing)
    return moments


def write_estimator(model: AWCCA | Fusion, stored: Mapping[str, Any], config: Path) -> Tensors:
    """Write the config of an estimator, and return its arrays without those that are ``stored`` already."""
    settings, tensors = model.pack()
    places = {_place(array): name for name, array in stored.items()}
    shared = {name: places[_place(array)] for name, array in tensors.items() if _place(array) in places}
    write_json(config, to_builtins(EstimatorConfig(settings, shared)))
    return {name: array for name, array in tensors.items() if name not in shared}


def parse_estimator(settings_json: bytes, arrays: bytes, stored: Tensors, config: Path) -> AWCCA | Fusion:
    """Return the estimator that ``write_estimator`` wrote; ``config`` is where, for messages."""
    settings = convert(parse_object(settings_json, config), EstimatorConfig, config)
    tensors = parse_tensors(arrays, config)
    for name, other in settings.shared.items():
        if other not in stored:
            raise InputError(f"{config} names an array {other!r} that is not there; save the model again.")
        tensors[name] = stored[other]
    if isinstance(settings.model, FusionConfig):
        return Fusion.unpack(settings.model, tensors, config)
    return AWCCA.unpack(settings.model, tensors, config)


def _place(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    return array.ctypes.data, array.shape, array.dtype.str, array.strides


def _load_moments(fitted: Fitted) -> Moments:
    assert fitted.learned.moments is not None
    moments, widths = fitted.learned.moments(), tuple(fitted.model.moment_widths().values())
    if (len(moments.x_mean), len(moments.y_mean)) != widths:
        raise InputError("the moments belong to a model of other features; save the model again.")
    return moments


def _read_validation(searcher: Searcher) -> Part | None:
    """Return the stored pairs of the val split that the model was fitted with; None if there are none."""
    store = searcher.store
    n_texts = searcher.fitted.facts.get("pairs", {}).get("val", (0, 0))[1]
    if not n_texts or not store.keeps_features:
        return None
    added = {item.id for item in store.items("text", new=True)}
    texts = [
        item
        for item in store.items("text")
        if item.metadata.get("split") == "val" and is_caption(item) and item.id not in added
    ]
    if not 0 < len(texts) <= n_texts:  # more: some were added later, and a refit has learned from them
        return None
    images = sorted({str(text.image) for text in texts})
    rows = {image: row for row, image in enumerate(images)}
    x = store.features("image", images)
    y = store.features("text", [text.id for text in texts])
    return None if x is None or y is None else (x, y, np.array([rows[str(text.image)] for text in texts]))
