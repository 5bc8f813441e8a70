"""From pairs to a fitted model: encode, fit on the training split, measure on the others."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from diptych._checks import FEW_PAIRS, DataWarning, InputError, Task, ViewNames, count, plural
from diptych._progress import progress_bar
from diptych.cca import Engine, Moments, Projector
from diptych.cca._description import ModelDescription
from diptych.cca._projector import split_blocks
from diptych.cca.selection import holdout_size
from diptych.data import PairedDataset, PairedViews, encode_images, encode_texts, join
from diptych.data._duplicates import find_near_duplicates
from diptych.data._feature_store import remove_store
from diptych.report._card import describe_quality
from diptych.retrieval._audit import FLAGGED, estimate_wrong, score_unseen
from diptych.retrieval._calibration import FEWEST_IMAGES, Calibration, measure_held_out
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._evaluation import Part, measure_metrics
from diptych.retrieval._fitted import Fitted, Layout, Learned, OutlierDetector, make_projectors
from diptych.retrieval._items import SIDES, VIEWS, View
from diptych.retrieval._placing import Offset, describe_kinds

if TYPE_CHECKING:
    from diptych.cca import AWCCA
    from diptych.fusion import Fusion

SAMPLED_PAIRS = 256
"""Training pairs that a model remembers, to warn when it is evaluated on them."""


@contextmanager
def measure_seconds(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add how long a ``with`` block took to ``seconds``, under a name."""
    start = time.perf_counter()
    yield
    seconds[name] = round(time.perf_counter() - start, 3)


def encode_views(
    dataset: PairedDataset,
    encoders: Encoders,
    folder: str | os.PathLike[str] | None = None,
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
        with measure_seconds(seconds, f"encoding {what[0]}"):
            images = encode_images(dataset, encoders.image, place / "images")
        with measure_seconds(seconds, f"encoding {what[1]}"):
            texts = encode_texts(dataset, encoders.text, place / "texts")
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
    audit: bool = False,
) -> Fitted:
    """Fit ``model`` on the training split and measure it on the others.

    ``layout`` has names and widths of the feature blocks that lie side by side in a view. ``audit`` leaves
    out training pairs that look wrong. The other options are as ``AWCCA.fit`` takes them.
    """
    layout, seconds = layout or {}, dict(views.seconds)
    _check_layout(layout, views)
    with measure_seconds(whole := dict[str, float](), "all"):
        splits = _split_views(views)
        audited: dict[str, Any] = {}
        if audit:
            with measure_seconds(seconds, "audit"):
                splits, audited["audit"] = _leave_out_wrong(splits, getattr(model, "random_state", 0))
        _warn_if_few(len(splits.training[1]))
        leaks = _find_leaks(splits)
        options = {"engine": engine, "device": None if device == "cpu" else device, "checkpoint": checkpoint}
        fit = _fit(model, splits, layout, options, seconds)
        with progress_bar("measuring recall"), measure_seconds(seconds, "recalls"):
            metrics = _measure(fit, splits, device)
        with progress_bar("measuring probabilities"), measure_seconds(seconds, "probabilities"):
            offsets, calibration = _measure_held_out(fit, splits)
    seconds["all"] = round(sum(views.seconds.values()) + whole["all"], 3)
    description = fit.model.describe()
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "pairs": _sizes(views.dataset),
        "seconds": seconds,
        "training_sample": training_sample(views, ("train", "val") if fit.learned_validation else ("train",)),
        "leaks": leaks,
        **audited,
        **describe_selection(description, describe_held_out(splits, model.validation_fraction)),
        "metrics": metrics,
        **describe_kinds(offsets),
    }
    if layout:
        # As a list, because JSON objects may come back in another order.
        facts["blocks"] = {view: [list(block) for block in blocks.items()] for view, blocks in layout.items()}
    facts["quality"] = describe_quality(facts)
    learned = Learned(lambda: fit.model, lambda: fit.moments)
    return Fitted(fit.projectors, fit.outliers, description, learned, facts, calibration, offsets)


def leave_out_empty(views: PairedViews) -> PairedViews:
    """Return pairs without captions that have no word, from which nothing can be learned or measured.

    Of captions that were not encoded, but given as features, the text may just not be known: they stay.
    """
    dataset, was_encoded = views.dataset, bool(views.encoders[1])
    rows = np.array([row for row, caption in enumerate(dataset.captions) if caption.strip()], np.int64)
    if not was_encoded or len(rows) in (0, dataset.n_captions):
        return views
    captions, ids = (
        tuple(map(values.__getitem__, rows)) for values in (dataset.captions, dataset.caption_ids)
    )
    dataset = replace(dataset, captions=captions, caption_ids=ids, pairing=dataset.pairing[rows])
    return replace(views, dataset=dataset, y=np.asarray(views.y[rows]))


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
    """A model fitted on the training pairs, in NumPy and without its moments, and what follows from it.

    ``make_unseen`` returns a model and pairs that it was not fitted on, to measure probabilities.
    """

    model: AWCCA | Fusion
    moments: Moments
    projectors: dict[Task, Projector]
    outliers: dict[View, OutlierDetector]
    learned_validation: bool  # whether it was fitted on the validation pairs too
    make_unseen: Callable[[], tuple[AWCCA | Fusion, Part]]


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


def _leave_out_wrong(splits: _Splits, random_state: int | None) -> tuple[_Splits, dict[str, int]]:
    """Leave out training pairs that an audit flags; return the splits, and how many they were, as facts."""
    x, y, pairing = splits.training
    wrong, _ = estimate_wrong(*score_unseen(x, y, pairing, splits.names, random_state))
    kept = np.flatnonzero(wrong <= FLAGGED)
    facts = {"left_out": len(pairing) - len(kept), "pairs": len(pairing)}
    return splits._replace(training=(x, y[kept], pairing[kept])), facts


def _warn_if_few(n_pairs: int) -> None:
    if n_pairs < FEW_PAIRS:
        warnings.warn(
            f"{count(n_pairs, 'training pair')} {'is' if n_pairs == 1 else 'are'} very few: what is selected "
            f"is mostly chance. Give at least {FEW_PAIRS}, better a thousand, or set params yourself.",
            DataWarning,
            stacklevel=5,
        )


def _fit(
    model: AWCCA | Fusion,
    splits: _Splits,
    layout: Mapping[View, Layout],
    options: dict[str, Any],
    seconds: dict[str, float],
) -> _FitResult:
    def split(part: Part) -> Any:
        if not model.takes_blocks:
            return part
        *views, pairing = part
        blocks = [
            split_blocks(rows, layout.get(view, {SIDES[view]: rows.shape[1]}))
            for view, rows in zip(VIEWS, views, strict=True)
        ]
        return *blocks, pairing

    validation = None if splits.validation is None else split(splits.validation)
    with measure_seconds(seconds, "models"):
        training = split(splits.training)
        make_unseen = model.fit_unseen(training, validation, fewest=FEWEST_IMAGES, **options)
    if (path := getattr(model, "path_", None)) is not None:
        seconds["models"] = round(seconds["models"] - path.seconds, 3)
        grid = f"selection ({path.grid.shape[0]} × {path.grid.shape[1]} grid, {path.route})"
        seconds[grid] = round(path.seconds, 3)
    fitted, moments = model.split_moments()
    assert moments is not None
    projectors = make_projectors(fitted, splits.names)
    outliers = {
        view: OutlierDetector.fit(rows, projectors["search"].normalization(SIDES[view]))
        for view, rows in zip(VIEWS, splits.training[:2], strict=True)
    }
    return _FitResult(fitted, moments, projectors, outliers, fitted.learned_validation, make_unseen)


def _measure(fit: _FitResult, splits: _Splits, device: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics on the splits that the model was not fitted on."""
    parts = {"validation": None if fit.learned_validation else splits.validation, "test": splits.test}
    return {
        name: measure_metrics(fit.projectors, part, device)
        for name, part in parts.items()
        if part is not None
    }


def _measure_held_out(fit: _FitResult, splits: _Splits) -> tuple[dict[Task, Offset], Calibration]:
    """Measure offsets and probabilities on pairs that the model was not fitted on."""
    unseen, (*views, pairing) = fit.make_unseen()
    projectors = make_projectors(unseen)
    x, y = (
        np.concatenate([np.asarray(rows[name]) for name in projectors["search"].blocks[side]], axis=1)
        if isinstance(rows, Mapping)
        else np.asarray(rows)
        for side, rows in zip(SIDES.values(), views, strict=True)
    )
    on = describe_held_out(splits, len(x))
    return measure_held_out(projectors, x, y, pairing, on, splits.names)


def describe_selection(description: ModelDescription, pairs: str) -> dict[str, Any]:
    """Return what selected the regularisation, as facts; ``pairs`` says on which it was."""
    path, selection = description.path, dict[str, Any]()
    if description.best:
        if path is not None and path.route == "leave-one-out":
            pairs = str(path.held_out)
        selection["selection"] = {"pairs": pairs, "metric": description.metric, **description.best}
        if path is not None and (extension := path.describe_extension()):
            selection["selection"]["grid"] = extension
    elif description.theory is not None:
        selection["theory"] = description.theory
    return selection


def describe_held_out(splits: _Splits, held_out: float | int) -> str:
    """Describe the pairs that settings were selected on, or probabilities were measured on.

    Without a val split these are a share of the training images, or as many of them.
    """
    if splits.validation is not None:
        return f"the {describe_val(splits.validation, splits.names)}"
    names, size = splits.names, held_out if isinstance(held_out, int) else None
    if size is None:
        size = holdout_size(len(np.unique(splits.training[2])), held_out)
    return (
        f"{size} of {count(len(splits.training[0]), f'training {names.image}')}, held out with their "
        f"{plural(names.caption)}; the model was then fitted on all of them"
    )


def describe_val(pairs: Part, names: ViewNames) -> str:
    """Describe the val split."""
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
