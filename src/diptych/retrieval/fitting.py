"""From pairs to a fitted model: encode, fit on the training split, say what it is worth and what it saw."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych.cca import AWCCA, Engine, Moments, moments_from_spectra
from diptych.cca.persistence import unpack
from diptych.checks import TASKS, DataWarning, InputError
from diptych.data import PairedDataset, PairedViews, Progress, encode_images, encode_texts, join
from diptych.data.leakage import near_duplicates
from diptych.fusion import Fusion
from diptych.ranking import retrieval_scores, summary
from diptych.report.card import FEW_PAIRS
from diptych.retrieval.embedding import Layout, in_blocks, layout_of
from diptych.retrieval.encoders import Encoders
from diptych.retrieval.items import View
from diptych.retrieval.reach import Reach
from diptych.transfer import on_device

Part: TypeAlias = tuple[Any, Any, Any]
Recalls: TypeAlias = dict[str, dict[str, float]]
Watch: TypeAlias = Callable[[str, Progress], None]
"""Told what is being encoded, and how far that is."""


@dataclass(frozen=True)
class Whereabouts:
    """Where a fit runs: as ``AWCCA.fit`` takes it, with ``"cpu"`` for no device."""

    device: str = "cpu"
    engine: Engine | None = None
    checkpoint: str | os.PathLike[str] | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model and what is kept of its training data.

    Attributes
    ----------
    model
        In NumPy, wherever it was fitted.
    moments
        Of the normalised training pairs; None for a fusion, which has several.
    reach
        Where the training items of each view lie.
    facts
        Plain data: pairs per split, recalls, seconds, what the selection was made on.
    """

    model: AWCCA | Fusion
    moments: Moments | None
    reach: dict[View, Reach]
    facts: dict[str, Any] = field(default_factory=dict)


def encode_views(
    dataset: PairedDataset,
    encoders: Encoders,
    folder: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
) -> PairedViews:
    """Features of both sides; with a ``folder``, interrupted work goes on where it stopped."""
    if encoders.image is None or encoders.text is None:
        missing: View = "image" if encoders.image is None else "text"
        raise InputError(
            f"there is no {missing} encoder to encode these pairs with; give one, or fit on features."
        )
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(folder) if folder is not None else Path(scratch)

        def told(what: str) -> Callable[[Progress], None] | None:
            return None if watch is None else lambda done: watch(what, done)

        images = encode_images(dataset, encoders.image, place / "images", progress=told("pictures"))
        texts = encode_texts(dataset, encoders.text, place / "texts", progress=told("captions"))
        if not images.ids:
            raise InputError(
                f"not one of {len(images.skipped)} pictures could be read (the first: "
                f"{images.skipped[0].reason}); look at them with diptych check."
            )
        if images.skipped:
            first = images.skipped[0]
            warnings.warn(
                f"{len(images.skipped)} picture(s) could not be read and are left out with their captions "
                f"({first.id}: {first.reason}); diptych check lists them.",
                DataWarning,
                stacklevel=4,
            )
        views = join(dataset, images, texts)
        if folder is None:
            views = PairedViews(views.dataset, np.array(views.x), np.array(views.y))
    return views


def split_views(views: PairedViews) -> tuple[Part, Part | None, Part | None]:
    """Training, validation and test pairs; None for a split that is not there."""
    if views.dataset.splits is None:
        return views.of(np.arange(views.dataset.n_images)), None, None
    sizes = views.dataset.split_sizes()
    if "train" not in sizes:
        raise InputError("the pairs have no train split; mark some images as train.")
    val, test = (views.split(split) if split in sizes else None for split in ("val", "test"))
    return views.split("train"), val, test


def fit_model(
    model: AWCCA | Fusion,
    views: PairedViews,
    where: Whereabouts | None = None,
    layout: Mapping[View, Layout] | None = None,
) -> Fitted:
    """Fit ``model`` on the training split and measure it on the others.

    ``layout`` names the feature blocks that lie side by side in a view, for a fusion.
    """
    where = where or Whereabouts()
    start = time.perf_counter()
    training, validation, test = split_views(views)
    n_pairs = len(training[1])
    if n_pairs < FEW_PAIRS:
        warnings.warn(
            f"{n_pairs} training pairs are very few: what is selected is mostly chance. Give {FEW_PAIRS} at "
            "the least, better a thousand, or set params yourself.",
            DataWarning,
            stacklevel=4,
        )
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "pairs": _sizes(views.dataset),
        "leaks": _leaks(training, validation, test),
    }
    moments: Moments | None = None
    if isinstance(model, Fusion):
        if where.engine is not None:
            raise InputError("a fusion is fitted in this process; leave out the engine, or fit an AWCCA.")
        _fit_fusion(model, training, validation, layout or {}, facts)
    else:
        model, moments = _fit_awcca(model, training, validation, facts, where)
    hows = ("none", "none") if isinstance(model, Fusion) else model.normalize
    reach: dict[View, Reach] = {
        "image": Reach.of(training[0], hows[0]),
        "text": Reach.of(training[1], hows[1]),
    }
    begun = time.perf_counter()
    named = {"validation": validation, "test": test}
    if isinstance(model, Fusion) and model.selection_["refitted"]:
        del named["validation"]  # it was fitted on those as well
    facts["metrics"] = {
        name: recalls(model, part, where.device) for name, part in named.items() if part is not None
    }
    facts["seconds"]["recalls"] = round(time.perf_counter() - begun, 3)
    facts["seconds"]["all"] = round(time.perf_counter() - start, 3)
    return Fitted(model, moments, reach, facts)


def _fit_awcca(
    model: AWCCA, training: Part, validation: Part | None, facts: dict[str, Any], where: Whereabouts
) -> tuple[AWCCA, Moments]:
    # Where parameters are given, validation pairs still measure the correlations.
    uses = model.params is not None or model.selection == "validation" or model.n_components == "auto"
    begun = time.perf_counter()
    model.fit(
        *training,
        validation=validation if uses else None,
        engine=where.engine,
        device=None if where.device == "cpu" else where.device,
        checkpoint=where.checkpoint,
    )
    seconds = time.perf_counter() - begun
    moments = moments_from_spectra(model.spectra_, model.precision)
    path = model.path_
    spent = 0.0 if path is None else path.seconds
    facts["seconds"] = {"spectra and models": round(seconds - spent, 3)}
    if path is not None:
        facts["selected_on"] = "; ".join(filter(None, (path.held_out, path.describe_extension())))
        if validation is None:
            best = {t: float(path.scores[t][path.metric][path.choice[t]]) for t in TASKS}
            facts["held_out"] = {"metric": path.metric, **best}
        grid = f"selection ({path.grid.shape[0]} × {path.grid.shape[1]} grid, {path.route})"
        facts["seconds"][grid] = round(spent, 3)
    # Without its spectra, which are as large as the moments.
    kept = AWCCA.unpacked(unpack(*model.packed(), Path("model")))
    return kept.set_params(filter=model.filter), moments


def _fit_fusion(
    model: Fusion,
    training: Part,
    validation: Part | None,
    layout: Mapping[View, Layout],
    facts: dict[str, Any],
) -> None:
    def blocks(part: Part) -> Part:
        x, y, pairing = part
        shapes = (layout.get("image", {"x": x.shape[1]}), layout.get("text", {"y": y.shape[1]}))
        return in_blocks(x, shapes[0]), in_blocks(y, shapes[1]), pairing

    begun = time.perf_counter()
    model.fit(*blocks(training), validation=None if validation is None else blocks(validation))
    facts["seconds"] = {"selection and models": round(time.perf_counter() - begun, 3)}
    facts["selected_on"] = model.selection_["validation"]


def recalls(model: AWCCA | Fusion, part: Part, device: str = "cpu") -> Recalls:
    """Retrieval scores of both tasks on some pairs."""
    if device != "cpu" and isinstance(model, AWCCA):
        part = tuple(on_device(np.asarray(array), device) for array in part)
    x, y, pairing = part
    if isinstance(model, Fusion):
        x, y = in_blocks(x, layout_of(model, "image")), in_blocks(y, layout_of(model, "text"))
        return {str(task): summary(model.ranks(x, y, pairing, task=task)) for task in TASKS}
    found = {}
    for task in TASKS:
        ex, ey = model.transform(x, y, task=task)
        found[str(task)] = retrieval_scores(ex, ey, pairing, task=task, similarity=model.similarity)
    return found


def _sizes(dataset: PairedDataset) -> dict[str, list[int]]:
    if dataset.splits is None:
        return {"train": [dataset.n_images, dataset.n_captions]}
    rows = {split: dataset.image_rows(split) for split in dataset.split_sizes()}
    return {split: [len(images), len(dataset.caption_rows(images))] for split, images in rows.items()}


def _leaks(training: Part, validation: Part | None, test: Part | None) -> dict[str, int]:
    found = {}
    for name, part in (("validation", validation), ("test", test)):
        if part is None:
            continue
        same = near_duplicates(training[0], part[0])
        if len(same):
            found[name] = len(same)
            warnings.warn(
                f"{len(same)} of the {name} pictures looked at are all but the same as training pictures, so "
                f"the recalls on {name} are too good; move copies into one split.",
                DataWarning,
                stacklevel=5,
            )
    return found
