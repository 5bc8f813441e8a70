"""From pairs to a fitted model: encode, fit on the training split, say what it is worth and what it saw."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict

import numpy as np

from diptych._checks import TASKS, DataWarning, InputError, Task, count
from diptych._devices import on_device
from diptych.cca import AWCCA, Engine, Moments, moments_from_spectra
from diptych.cca._awcca import unpack
from diptych.cca.selection import held_out_size
from diptych.data import PairedDataset, PairedViews, Progress, encode_images, encode_texts, join
from diptych.data._pairs import find_near_duplicates
from diptych.fusion import Fusion
from diptych.ranking import retrieval_scores, summary
from diptych.report._card import FEW_PAIRS, describe_quality
from diptych.retrieval._drift import Reach
from diptych.retrieval._embedding import Layout, in_blocks, layout_of
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._items import VIEWS, View

SAMPLED_PAIRS = 256
"""Training pairs that a model remembers, to say when it is evaluated on them."""

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


class Selection(TypedDict):
    """What chose the regularisation, and how well the choice did there."""

    pairs: str
    metric: str
    search: float
    annotate: float
    grid: NotRequired[str]


class Refit(TypedDict):
    """How many pairs a model was fitted on again, and how many before."""

    pairs: int
    before: int


class Facts(TypedDict, total=False):
    """What a fit leaves behind for people: all of it plain data, checked when a saved model is read."""

    date: str
    pairs: dict[str, tuple[int, int]]
    moments: dict[str, int]
    seconds: dict[str, float]
    training_sample: str
    leaks: dict[str, int]
    blocks: dict[View, list[tuple[str, int]]]
    selection: Selection
    theory: str
    quality: str
    metrics: dict[str, dict[Task, dict[str, float]]]
    graph_recall: dict[Task, float]
    refitted: Refit


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
        if encoders.known:
            raise encoders.missing(missing)
        raise InputError(
            f"there is no {missing} encoder to encode these pairs with; give one, or fit on features."
        )
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(folder) if folder is not None else Path(scratch)

        def told(what: str) -> Callable[[Progress], None] | None:
            return None if watch is None else lambda done: watch(what, done)

        begun = time.perf_counter()
        images = encode_images(dataset, encoders.image, place / "images", progress=told("pictures"))
        seconds = {"encoding images": round(time.perf_counter() - begun, 3)}
        begun = time.perf_counter()
        texts = encode_texts(dataset, encoders.text, place / "texts", progress=told("captions"))
        seconds["encoding captions"] = round(time.perf_counter() - begun, 3)
        if not images.ids:
            raise InputError(
                f"of {count(len(images.skipped), 'picture')}, none could be read (the first: "
                f"{images.skipped[0].reason}); look at them with diptych check."
            )
        if images.skipped:
            first = images.skipped[0]
            warnings.warn(
                f"{count(len(images.skipped), 'picture')} could not be read, and fitting goes on without "
                f"({first.id}: {first.reason}); diptych check lists all of them.",
                DataWarning,
                stacklevel=4,
            )
        views = replace(join(dataset, images, texts), seconds=seconds)
        if folder is None:
            views = replace(views, x=np.array(views.x), y=np.array(views.y))
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

    ``layout`` names the feature blocks that lie side by side in a view.
    """
    where, layout = where or Whereabouts(), layout or {}
    for view, rows in zip(VIEWS, (views.x, views.y), strict=True):
        widths = layout.get(view, {}).values()
        if widths and sum(widths) != rows.shape[1]:
            raise InputError(
                f"the layout of the {view} features has {sum(widths)} columns in all, but they have "
                f"{rows.shape[1]}; give the width of every block."
            )
    start = time.perf_counter()
    training, validation, test = split_views(views)
    n_pairs = len(training[1])
    if n_pairs < FEW_PAIRS:
        warnings.warn(
            f"{count(n_pairs, 'training pair')} {'is' if n_pairs == 1 else 'are'} very few: what is selected "
            f"is mostly chance. Give {FEW_PAIRS} at the least, better a thousand, or set params yourself.",
            DataWarning,
            stacklevel=4,
        )
    refitted = isinstance(model, Fusion) and model.refits(validation)
    trained = ("train", "val") if refitted else ("train",)
    facts: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "pairs": _sizes(views.dataset),
        "seconds": dict(views.seconds),
        "training_sample": training_sample(views, trained),
        "leaks": _leaks(training, validation, test),
    }
    if layout:
        # Pairs, since what is stored as JSON may come back in another order.
        facts["blocks"] = {view: [list(block) for block in own.items()] for view, own in layout.items()}
    moments: Moments | None = None
    if isinstance(model, Fusion):
        _fit_fusion(model, training, validation, layout, facts)
    else:
        model, moments = _fit_awcca(model, training, validation, facts, where)
    hows = ("none", "none") if isinstance(model, Fusion) else model.normalize
    reach: dict[View, Reach] = {
        "image": Reach.of(training[0], hows[0]),
        "text": Reach.of(training[1], hows[1]),
    }
    begun = time.perf_counter()
    named = {"validation": validation, "test": test}
    if refitted:
        del named["validation"]  # it was fitted on those as well
    facts["metrics"] = {
        name: recalls(model, part, where.device) for name, part in named.items() if part is not None
    }
    facts["seconds"]["recalls"] = round(time.perf_counter() - begun, 3)
    facts["seconds"]["all"] = round(sum(views.seconds.values()) + time.perf_counter() - start, 3)
    facts["quality"] = describe_quality(facts)
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
    facts["seconds"]["spectra and models"] = round(seconds - spent, 3)
    if path is not None:
        best = {task: path.best(task) for task in TASKS}
        pairs = str(path.held_out)
        if model.selection == "validation":
            pairs = _held_out(training, validation, model.validation_fraction)
        facts["selection"] = {"pairs": pairs, "metric": path.metric, **best}
        if extension := path.describe_extension():
            facts["selection"]["grid"] = extension
    elif model.params is None:
        facts["theory"] = model.selection if model.selection != "validation" else "ledoit-wolf"
    if path is not None:
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
    facts["seconds"]["selection and models"] = round(time.perf_counter() - begun, 3)
    chosen: Any = model.selection_["tasks"]
    facts["selection"] = {
        "pairs": _held_out(training, validation, model.validation_fraction),
        "metric": "r@1",
        **{task: float(chosen[task]["recall"]["r@1"]) for task in TASKS},
    }


def _held_out(training: Part, validation: Part | None, fraction: float) -> str:
    """In words, the pairs that the settings were selected on."""
    if validation is not None:
        return f"the val split ({count(len(validation[0]), 'image')}, {count(len(validation[1]), 'caption')})"
    size = held_out_size(len(np.unique(training[2])), fraction)
    return (
        f"{size} of {count(len(training[0]), 'training image')}, held out for that with their captions; the "
        "model was then fitted on all of them"
    )


def training_sample(views: PairedViews, splits: tuple[str, ...]) -> str:
    """A sample of what a model was trained on, by which ``training_share`` knows its training pairs again.

    Every pair has a 64-bit hash; kept are the smallest ones, in hexadecimal, since of any other pairs those
    with a smaller hash than the largest of these are a random sample as well.
    """
    if views.dataset.splits is None:
        images = np.arange(views.dataset.n_images)
    else:
        images = np.flatnonzero(np.isin(views.dataset.splits, splits))
    return np.unique(_hashes(views, images))[:SAMPLED_PAIRS].astype(">u8").tobytes().hex()


def training_share(sample: str, views: PairedViews, image_rows: np.ndarray[Any, Any]) -> float:
    """The share of the pairs of some images that a model was trained on, judged by a sample of these."""
    kept = np.frombuffer(bytes.fromhex(sample), ">u8").astype(np.uint64)
    pairs = _hashes(views, image_rows)
    if len(kept) >= SAMPLED_PAIRS:
        pairs = pairs[pairs <= kept[-1]]
    return float(np.isin(pairs, kept).mean()) if len(pairs) and len(kept) else 0.0


def warn_if_training(facts: Mapping[str, Any], views: PairedViews, image_rows: np.ndarray[Any, Any]) -> None:
    """Say that a model is evaluated on pairs it was trained on."""
    share = training_share(str(facts.get("training_sample", "")), views, image_rows)
    if share > 0:
        some = "these are" if share == 1 else f"about {max(1, round(100 * share))} % of these pairs are"
        warnings.warn(
            f"{some} training pairs of this model, so the recalls are too good; evaluate it on pairs that it "
            "has not seen.",
            DataWarning,
            stacklevel=4,
        )


def _hashes(views: PairedViews, image_rows: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A hash of each pair of some images: of the image's id and the caption, or else of its features."""
    dataset, found = views.dataset, []
    for row in dataset.caption_rows(image_rows):
        if dataset.captions[row]:
            key = f"{dataset.image_ids[dataset.pairing[row]]}\n{dataset.captions[row]}".encode(
                errors="surrogatepass"
            )
        else:
            key = np.ascontiguousarray(views.y[row], "<f4").tobytes()
        found.append(hashlib.blake2b(key, digest_size=8).digest())
    return np.frombuffer(b"".join(found), ">u8").astype(np.uint64)


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
        same = find_near_duplicates(training[0], part[0])
        if len(same):
            found[name] = len(same)
            warnings.warn(
                f"{len(same)} of the {name} pictures looked at are all but the same as training pictures, so "
                f"the recalls on {name} are too good; move copies into one split.",
                DataWarning,
                stacklevel=5,
            )
    return found
