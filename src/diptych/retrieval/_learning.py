"""Models that are not fitted on pairs at hand: learned again from moments, or fitted elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np

from diptych._arrays import fields_to_numpy, to_numpy
from diptych._checks import TASKS, InputError, check_view
from diptych.cca import AWCCA, Moments, moments_from_spectra
from diptych.fusion import Fusion
from diptych.report._card import describe_quality
from diptych.retrieval._drift import Reach
from diptych.retrieval._embedding import embedding_of
from diptych.retrieval._fit import Fitted
from diptych.retrieval._inputs import joined
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval._model_files import copied
from diptych.retrieval.stores._base import Collection, Encode


def learned_again(old: Collection, encode: Encode, validation: tuple[Any, ...] | None) -> Fitted:
    """The model of a collection, fitted on its training pairs and all pairs added since."""
    before = old.fitted
    more = old.new_moments(encode)
    known = old.training_moments()
    assert isinstance(before.model, AWCCA)
    assert known is not None
    moments = known + more
    model = AWCCA.unpacked(copied(before.model))
    if validation is not None:
        model.params = None
        model.fit_moments(moments, validation=validation)
    else:
        model.refit_moments(moments, known.count)
    del model.spectra_
    # What was measured and timed was another model.
    past = ("metrics", "seconds", "graph_recall")
    facts = {name: fact for name, fact in before.facts.items() if name not in past}
    facts["refitted"] = {"pairs": moments.count, "before": known.count}
    if validation is not None and model.path_ is not None:
        facts["selection"] = {
            "pairs": "the validation pairs that refit was given",
            "metric": model.path_.metric,
            **{task: model.path_.best(task) for task in TASKS},
        }
    facts["quality"] = describe_quality(facts)
    return Fitted(model, moments, before.reach, facts)


def adopted(model: Any, features: tuple[Any, Any] | None) -> Fitted:
    """A model that was fitted elsewhere; ``features`` are a sample of what it was trained on."""
    if not isinstance(model, AWCCA | Fusion):
        raise InputError(f"{type(model).__name__} is no model; give a fitted AWCCA or Fusion.")
    if not hasattr(model, "models_" if isinstance(model, AWCCA) else "members_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit() first.")
    moments: Moments | None = None
    hows: tuple[str, ...] = ("none", "none")
    if isinstance(model, AWCCA):
        hows = tuple(model.normalize)
        if hasattr(model, "spectra_"):
            moments = fields_to_numpy(moments_from_spectra(model.spectra_, model.precision))
        model = AWCCA.unpacked(copied(model))
    embedding, reach = embedding_of(model), dict[View, Reach]()
    if features is not None and len(features) != 2:
        raise InputError(f"features has {len(features)} parts; give a sample of both views, (X, Y).")
    for i, view in enumerate(VIEWS):
        width = embedding.features(view)
        if features is None:
            # Nothing is known of where the training items lay, so nothing is far from them.
            reach[view] = Reach(np.zeros(width, np.float32), np.ones(width, np.float32), float("inf"))
        else:
            sample = joined(features[i], Fitted(model, None, {}), view)
            rows = to_numpy(check_view(sample, f"{view} features", n_features=width))
            reach[view] = Reach.of(rows, hows[i])
    pairs = {} if moments is None else {"moments": {"pairs": moments.count}}
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "pairs": {}, **pairs}
    return Fitted(model, moments, reach, facts)
