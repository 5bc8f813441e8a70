"""From pairs to a fitted model: encode, fit on the training split, measure on the others."""

from __future__ import annotations

import copy
import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from diptych._arrays import fields_to_numpy, to_numpy
from diptych._checks import (
    FEW_PAIRS,
    IMAGE_AND_TEXT,
    TASKS,
    DataWarning,
    InputError,
    ViewNames,
    check_view,
    count,
    plural,
)
from diptych._progress import progress_bar
from diptych._threads import one_blas_thread
from diptych.cca import AWCCA, Engine, Moments, moments_from_spectra
from diptych.cca._fitted import FittedAWCCA
from diptych.cca._projector import split_blocks
from diptych.cca._streaming import ArrayBlocks, Preparation, sum_blocks
from diptych.cca.selection import holdout_size
from diptych.cca.selection._grids import Path as SelectionPath
from diptych.cca.selection._grids import hold_out
from diptych.data import PairedDataset, PairedViews, Progress, encode_images, encode_texts, join
from diptych.data._duplicates import find_near_duplicates
from diptych.data._feature_store import remove_store
from diptych.fusion import Fusion
from diptych.fusion._fitted import FittedFusion
from diptych.report._card import describe_quality
from diptych.retrieval._calibration import FEWEST_IMAGES, Calibration, fit_calibration
from diptych.retrieval._embedding import Layout, OutlierDetector, count_features, make_projectors
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._evaluation import Part, measure_metrics
from diptych.retrieval._inputs import join_blocks
from diptych.retrieval._items import SIDES, VIEWS, View
from diptych.retrieval._searcher import Fitted

_HELD_OUT = 0.2
"""Share of the training images that probabilities are measured on, where there is no validation split."""

NOT_MEASURED_AGAIN = (
    "it was refitted, and there are no features of a stored val split that it was not fitted on; "
    "Retriever.calibrate measures them on held-out pairs"
)
"""Why a refitted model has no probabilities."""

SAMPLED_PAIRS = 256
"""Training pairs that a model remembers, to warn when it is evaluated on them."""

Unseen: TypeAlias = tuple[FittedAWCCA | FittedFusion, Part]
"""A model, and pairs that it was not fitted on."""

Watch: TypeAlias = Callable[[str, Progress], None]
"""A function that is called with what is being encoded, and the progress."""


@contextmanager
def measure_seconds(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add how long a ``with`` block took to ``seconds``, under a name."""
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 3)


@contextmanager
def _watch_encoding(what: str, watch: Watch | None) -> Iterator[Callable[[Progress], None]]:
    """Yield a function to call with the progress of encoding: ``watch``, or else one that moves a bar."""
    if watch is not None:
        yield partial(watch, what)
        return
    with progress_bar(f"encoding {what}") as show:
        yield lambda progress: show(progress.done / max(1, progress.total))


def encode_views(
    dataset: PairedDataset,
    encoders: Encoders,
    folder: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
) -> PairedViews:
    """Encode both views of pairs; with a ``folder``, interrupted work continues where it stopped."""
    names = encoders.views
    dataset = dataset.with_views(names)
    if encoders.image is None or encoders.text is None:
        missing: View = "image" if encoders.image is None else "text"
        if encoders.records:
            raise encoders.missing(missing)
        raise InputError(
            f"there is no {names.of(missing)} encoder for these pairs; give one, or fit on features."
        )
    seconds: dict[str, float] = {}
    what = plural(names.image), plural(names.caption)
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(folder) if folder is not None else Path(scratch)
        with measure_seconds(seconds, f"encoding {what[0]}"), _watch_encoding(what[0], watch) as progress:
            images = encode_images(dataset, encoders.image, place / "images", progress=progress)
        with measure_seconds(seconds, f"encoding {what[1]}"), _watch_encoding(what[1], watch) as progress:
            texts = encode_texts(dataset, encoders.text, place / "texts", progress=progress)
        skipped = images.skipped
        listed = "; diptych check lists all of them" if names.image == "image" else ""
        if not images.ids:
            # Otherwise the right folder of images would be refused as other inputs of interrupted work.
            remove_store(images.folder)
            raise InputError(
                f"none of {count(len(skipped), names.image)} could be read (the first: {skipped[0].reason})"
                f"{listed}."
            )
        if skipped:
            warnings.warn(
                f"{count(len(skipped), names.image)} could not be read and will be left out "
                f"({skipped[0].id}: {skipped[0].reason}){listed}.",
                DataWarning,
                stacklevel=4,
            )
        views = join(dataset, images, texts)
        widths: dict[View, int] = {"image": views.x.shape[1], "text": views.y.shape[1]}
        views = replace(views, seconds=seconds, blocks=encoders.layout(widths))
        if folder is None:
            views = replace(views, x=np.array(views.x), y=np.array(views.y))
    return views


def fit_model(
    model: AWCCA | Fusion,
    views: PairedViews,
    *,
    device: str = "cpu",
    engine: Engine | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    layout: Mapping[View, Layout] | None = None,
) -> Fitted:
    """Fit ``model`` on the training split and measure it on the others.

    ``layout`` has names and widths of the feature blocks that lie side by side in a view; the other options
    are as ``AWCCA.fit`` takes them.
    """
    layout, seconds = layout or {}, dict(views.seconds)
    _check_layout(layout, views)
    with measure_seconds(whole := dict[str, float](), "all"):
        splits = _split_views(views)
        _warn_if_few(len(splits.training[1]))
        leaks = _find_leaks(splits)
        where = {"engine": engine, "device": None if device == "cpu" else device, "checkpoint": checkpoint}
        if isinstance(model, Fusion):
            fit = _fit_fusion(model, splits, layout, where, seconds)
        else:
            fit = _fit_awcca(model, splits, where, seconds)
        outliers = _fit_outlier_detectors(fit, splits)
        with progress_bar("measuring recall"), measure_seconds(seconds, "recalls"):
            metrics = _measure(fit, splits, device)
        with progress_bar("measuring probabilities"), measure_seconds(seconds, "probabilities"):
            unseen, pairs = fit.make_unseen()
            on = _describe_held_out(splits, fit.held_out)
            calibration = fit_calibration(make_projectors(unseen), *pairs, on, splits.names)
    seconds["all"] = round(sum(views.seconds.values()) + whole["all"], 3)
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "pairs": _sizes(views.dataset),
        "seconds": seconds,
        "training_sample": training_sample(views, ("train", "val") if fit.learned_validation else ("train",)),
        "leaks": leaks,
        **fit.selection,
        "metrics": metrics,
    }
    if layout:
        # As a list, because JSON objects may come back in another order.
        facts["blocks"] = {view: [list(block) for block in blocks.items()] for view, blocks in layout.items()}
    facts["quality"] = describe_quality(facts)
    return Fitted(fit.model, lambda: fit.moments, outliers, facts, calibration)


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
    assert fitted.load_moments is not None
    previous = fitted.load_moments()
    moments = previous + new
    model = _refit(fitted.model, moments, previous, validation)
    # These were measured on the previous model.
    old = ("metrics", "seconds", "graph_recall")
    facts = {name: fact for name, fact in fitted.facts.items() if name not in old}
    facts["refitted"] = {"pairs": moments.count, "before": previous.count}
    if validation is not None and isinstance(model, AWCCA) and model.path_ is not None:
        pairs = "the validation pairs that refit was given"
        facts["selection"] = _describe_path(model.path_, pairs)
    facts["quality"] = describe_quality(facts)
    calibration: Calibration = NOT_MEASURED_AGAIN
    if held_out is not None:
        unseen = model
        if isinstance(model, Fusion) and model.selection_.refitted:
            # It learned from the val split too, so it is measured by one that did not.
            without = moments - model.make_moments(*held_out)
            unseen = _refit(fitted.model, without, previous, None)
        on = f"the stored {_describe_val(held_out, names)}"
        calibration = fit_calibration(make_projectors(unseen), *held_out, on, names)
    return Fitted(model, lambda: moments, fitted.outliers, facts, calibration)


def adopt_model(
    model: AWCCA | Fusion, sample: tuple[Any, Any] | None = None, names: ViewNames = IMAGE_AND_TEXT
) -> Fitted:
    """Return a model that was fitted elsewhere; ``sample`` holds some training features of both views."""
    if not isinstance(model, AWCCA | Fusion):
        raise InputError(f"{type(model).__name__} is not a model; give a fitted AWCCA or Fusion.")
    if not hasattr(model, "models_" if isinstance(model, AWCCA) else "members_"):
        raise InputError(f"this {type(model).__name__} is not fitted; call fit() first.")
    facts: dict[str, Any] = {"date": datetime.now(UTC).date().isoformat(), "pairs": {}}
    load_moments: Callable[[], Moments] | None = None
    normalize = ("none", "none")
    if isinstance(model, AWCCA):
        normalize = model.normalize
        if hasattr(model, "spectra_") and model.spectra_.is_dense:
            moments = fields_to_numpy(moments_from_spectra(model.spectra_, model.precision))
            facts["moments"], load_moments = {"pairs": moments.count}, lambda: moments
        model = _copy_model(model)
    elif hasattr(model, "moments_"):
        model, of_fusion = _take_moments(model)
        facts["moments"], load_moments = {"pairs": of_fusion.count}, lambda: of_fusion
    if sample is not None and len(sample) != 2:
        raise InputError(f"features has {len(sample)} parts; give a sample of both views, (X, Y).")
    fitted = Fitted(model, load_moments, {}, facts)
    for i, view in enumerate(VIEWS):
        width = count_features(model, view)
        detector = OutlierDetector.unlimited(width)
        if sample is not None:
            rows = join_blocks(sample[i], fitted.layout, view, names)
            rows = check_view(rows, f"{names.of(view)} features", n_features=width)
            detector = OutlierDetector.fit(to_numpy(rows), normalize[i])
        fitted.outliers[view] = detector
    return fitted


def training_sample(views: PairedViews, splits: tuple[str, ...]) -> str:
    """Return a sample of the training pairs, by which ``training_share`` recognises them later.

    Every pair has a 64-bit hash. The smallest hashes are kept, in hexadecimal: among any other pairs, those
    with a hash below the largest kept one are a random sample too, so the two can be compared.
    """
    if views.dataset.splits is None:
        images = np.arange(views.dataset.n_images)
    else:
        images = np.flatnonzero(np.isin(views.dataset.splits, splits))
    return np.unique(_hash_pairs(views, images))[:SAMPLED_PAIRS].astype(">u8").tobytes().hex()


def training_share(sample: str, views: PairedViews, image_rows: np.ndarray[Any, Any]) -> float:
    """Return the share of the pairs of some images that a model was trained on, estimated from its sample."""
    kept = np.frombuffer(bytes.fromhex(sample), ">u8").astype(np.uint64)
    pairs = _hash_pairs(views, image_rows)
    if len(kept) >= SAMPLED_PAIRS:
        pairs = pairs[pairs <= kept[-1]]
    return float(np.isin(pairs, kept).mean()) if len(pairs) and len(kept) else 0.0


def warn_if_training(facts: Mapping[str, Any], views: PairedViews, image_rows: np.ndarray[Any, Any]) -> None:
    """Warn that a model is evaluated on pairs it was trained on."""
    share = training_share(str(facts.get("training_sample", "")), views, image_rows)
    if share > 0:
        some = "these are" if share == 1 else f"about {max(1, round(100 * share))} % of these pairs are"
        warnings.warn(
            f"{some} training pairs of this model, so the recalls are too high; evaluate it on pairs that it "
            "has not seen.",
            DataWarning,
            stacklevel=4,
        )


class _Splits(NamedTuple):
    """The pairs of each split, None for one that does not exist, and the names of the views."""

    training: Part
    validation: Part | None
    test: Part | None
    names: ViewNames


@dataclass(frozen=True, eq=False)
class _FitResult:
    """A model fitted on the training pairs, in NumPy and without its moments.

    ``normalize`` is how it normalises the features of each view first. ``selection`` has facts for people.
    ``make_unseen`` returns a model and pairs that it was not fitted on, to measure probabilities: a share
    ``held_out`` of the training pairs, unless there is a validation split.
    """

    model: AWCCA | Fusion
    moments: Moments
    normalize: tuple[str, str]
    learned_validation: bool  # whether it was fitted on the validation pairs too
    selection: dict[str, Any]
    held_out: float
    make_unseen: Callable[[], Unseen]


def _check_layout(layout: Mapping[View, Layout], views: PairedViews) -> None:
    for view, rows in zip(VIEWS, (views.x, views.y), strict=True):
        widths = layout.get(view, {}).values()
        if widths and sum(widths) != rows.shape[1]:
            name = views.dataset.views.of(view)
            raise InputError(
                f"the layout of the {name} features has {sum(widths)} columns in all, but they have "
                f"{rows.shape[1]}; give the width of every block."
            )


def _split_views(views: PairedViews) -> _Splits:
    names = views.dataset.views
    if views.dataset.splits is None:
        return _Splits(views.of(np.arange(views.dataset.n_images)), None, None, names)
    sizes = views.dataset.split_sizes()
    if "train" not in sizes:
        raise InputError(f"the pairs have no train split; mark some {plural(names.image)} as train.")
    val, test = (views.split(split) if split in sizes else None for split in ("val", "test"))
    return _Splits(views.split("train"), val, test, names)


def _warn_if_few(n_pairs: int) -> None:
    if n_pairs < FEW_PAIRS:
        warnings.warn(
            f"{count(n_pairs, 'training pair')} {'is' if n_pairs == 1 else 'are'} very few: what is selected "
            f"is mostly chance. Give at least {FEW_PAIRS}, better a thousand, or set params yourself.",
            DataWarning,
            stacklevel=5,
        )


def _fit_awcca(model: AWCCA, splits: _Splits, where: dict[str, Any], seconds: dict[str, float]) -> _FitResult:
    # With given parameters, validation pairs still measure the correlations.
    uses = model.params is not None or model.selection == "validation" or model.n_components == "auto"
    with measure_seconds(seconds, "spectra and models"):
        model.fit(*splits.training, validation=splits.validation if uses else None, **where)
        model.models_.values()  # decomposes them, which a search needs
    path, selection = model.path_, dict[str, Any]()
    if path is not None:
        seconds["spectra and models"] = round(seconds["spectra and models"] - path.seconds, 3)
        grid = f"selection ({path.grid.shape[0]} × {path.grid.shape[1]} grid, {path.route})"
        seconds[grid] = round(path.seconds, 3)
        pairs = str(path.held_out)
        if model.selection == "validation":
            pairs = _describe_held_out(splits, model.validation_fraction)
        selection["selection"] = _describe_path(path, pairs)
        if extension := path.describe_extension():
            selection["selection"]["grid"] = extension
    elif model.params is None:
        selection["theory"] = model.selection if model.selection != "validation" else "ledoit-wolf"
    moments, copied = moments_from_spectra(model.spectra_, model.precision), _copy_model(model)

    def make_unseen() -> Unseen:
        if splits.validation is not None:
            return copied, splits.validation
        return _fit_without(copied, moments.total, splits.training, where)

    return _FitResult(copied, moments, model.normalize, False, selection, _HELD_OUT, make_unseen)


def _fit_fusion(
    model: Fusion,
    splits: _Splits,
    layout: Mapping[View, Layout],
    where: dict[str, Any],
    seconds: dict[str, float],
) -> _FitResult:
    def split(part: Part) -> Part:
        x, y, pairing = part
        layouts = layout.get("image", {"x": x.shape[1]}), layout.get("text", {"y": y.shape[1]})
        return split_blocks(x, layouts[0]), split_blocks(y, layouts[1]), pairing

    def join(view: View, features: Mapping[str, Any]) -> Any:
        return np.concatenate(
            [np.asarray(features[name]) for name in model.block_widths()[SIDES[view]]], axis=1
        )

    validation = None if splits.validation is None else split(splits.validation)
    with measure_seconds(seconds, "selection and models"):
        unseen, held_out, _ = model.fit_unseen(split(splits.training), validation, **where)
    selected: Any = model.selection_.tasks
    selection: dict[str, Any] = {
        "pairs": _describe_held_out(splits, model.validation_fraction),
        "metric": "r@1",
        **{task: float(selected[task].recall["r@1"]) for task in TASKS},
    }
    copied, moments = _take_moments(model)
    pairs = join("image", held_out[0]), join("text", held_out[1]), held_out[2]
    return _FitResult(
        copied,
        moments,
        ("none", "none"),
        model.refits(splits.validation),
        {"selection": selection},
        model.validation_fraction,
        lambda: (unseen, pairs),
    )


def _fit_outlier_detectors(fit: _FitResult, splits: _Splits) -> dict[View, OutlierDetector]:
    return {
        view: OutlierDetector.fit(rows, normalize)
        for view, rows, normalize in zip(VIEWS, splits.training[:2], fit.normalize, strict=True)
    }


def _measure(fit: _FitResult, splits: _Splits, device: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics on the splits that the model was not fitted on."""
    parts = {"validation": None if fit.learned_validation else splits.validation, "test": splits.test}
    return {
        name: measure_metrics(fit.model, part, device) for name, part in parts.items() if part is not None
    }


def _describe_path(path: SelectionPath, pairs: str) -> dict[str, Any]:
    return {"pairs": pairs, "metric": path.metric, **{task: path.best(task) for task in TASKS}}


def _fit_without(model: AWCCA, total: float, training: Part, where: dict[str, Any]) -> Unseen:
    """Hold out a share of the training images; return a model fitted on the others, with those pairs.

    It has the parameters of ``model``, which was fitted on pairs of ``total`` weight.
    """
    x, y, pairing = training
    rest, held_out = hold_out(pairing, len(x), _HELD_OUT, 0)
    pairs = x[held_out.x], y[held_out.y], held_out.pairing
    if len(held_out.x) < FEWEST_IMAGES:
        return model, pairs  # too few to measure probabilities on
    prepare = Preparation(model.normalize, model.precision, where["device"])
    moments = sum_blocks(ArrayBlocks(x, y, pairing, rest.y), prepare, engine=where["engine"])
    with one_blas_thread():
        unseen = _copy_model(model).refit_moments(moments, total)
    return _copy_model(unseen), pairs


def _copy_model(model: AWCCA) -> AWCCA:
    """Return a copy in NumPy without the spectra, which are as large as the moments."""
    copied = copy.copy(model)
    # Both tasks often share one model.
    models = {id(canonical): fields_to_numpy(canonical) for canonical in model.models_.values()}
    copied.models_ = {task: models[id(canonical)] for task, canonical in model.models_.items()}
    copied.x_mean_, copied.y_mean_ = to_numpy(model.x_mean_), to_numpy(model.y_mean_)
    copied.__dict__.pop("spectra_", None)
    return copied


def _take_moments(model: Fusion) -> tuple[Fusion, Moments]:
    """Return a copy of a fusion without its moments, and these."""
    copied, moments = copy.copy(model), fields_to_numpy(model.moments_)
    del copied.moments_
    return copied, moments


def _refit(
    model: AWCCA | Fusion, moments: Moments, previous: Moments, validation: tuple[Any, ...] | None
) -> AWCCA | Fusion:
    """Return a copy fitted on moments; γ follows the number of pairs since the ``previous`` ones."""
    if isinstance(model, Fusion):
        return _take_moments(copy.copy(model).refit_moments(moments, previous.count))[0]
    model = _copy_model(model)
    if validation is not None:
        model.params = None
        model.fit_moments(moments, validation=validation)
    else:
        model.refit_moments(moments, previous.total)
    del model.spectra_
    return model


def _describe_held_out(splits: _Splits, fraction: float) -> str:
    """Describe the pairs that settings were selected on."""
    if splits.validation is not None:
        return f"the {_describe_val(splits.validation, splits.names)}"
    names, size = splits.names, holdout_size(len(np.unique(splits.training[2])), fraction)
    return (
        f"{size} of {count(len(splits.training[0]), f'training {names.image}')}, held out with their "
        f"{plural(names.caption)}; the model was then fitted on all of them"
    )


def _describe_val(pairs: Part, names: ViewNames) -> str:
    return f"val split ({count(len(pairs[0]), names.image)}, {count(len(pairs[1]), names.caption)})"


def _hash_pairs(views: PairedViews, image_rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Hash each pair of some images: the image's id and the caption, or else the caption's features."""
    dataset, hashes = views.dataset, []
    for row in dataset.caption_rows(image_rows):
        if dataset.captions[row]:
            pair = f"{dataset.image_ids[dataset.pairing[row]]}\n{dataset.captions[row]}"
            key = pair.encode(errors="surrogatepass")
        else:
            key = np.ascontiguousarray(views.y[row], "<f4").tobytes()
        hashes.append(hashlib.blake2b(key, digest_size=8).digest())
    return np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64)


def _sizes(dataset: PairedDataset) -> dict[str, list[int]]:
    """Return the numbers of images and captions of each split."""
    if dataset.splits is None:
        return {"train": [dataset.n_images, dataset.n_captions]}
    rows = {split: dataset.image_rows(split) for split in dataset.split_sizes()}
    return {split: [len(images), len(dataset.caption_rows(images))] for split, images in rows.items()}


def _find_leaks(splits: _Splits) -> dict[str, int]:
    """Count images of other splits that are copies of training images, and warn of them."""
    leaks, images = {}, plural(splits.names.image)
    for name, part in (("validation", splits.validation), ("test", splits.test)):
        copies = 0 if part is None else len(find_near_duplicates(splits.training[0], part[0]))
        if copies:
            leaks[name] = copies
            warnings.warn(
                f"{copies} of the {name} {images} that were compared are copies of training {images}, so the "
                f"recalls on {name} are too high; move copies into one split.",
                DataWarning,
                stacklevel=5,
            )
    return leaks
