"""The recipe of an image network that does not say how it wants its images, chosen by retrieval."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import TASKS, DataWarning, InputError
from diptych._threads import prefetch, thread_count
from diptych.cca import AWCCA
from diptych.data import PairedDataset, Progress
from diptych.image import OnnxEncoder, UnreadableImage, open_image
from diptych.text import HKSE, SentenceEncoder, sentence_encoder

MOST_IMAGES = 150
"""Training images that a recipe is chosen on."""

FEWEST_IMAGES = 20
"""With fewer images the choice would be chance."""

CHANCE = 1.0
"""Points of mean recall that mean nothing on so few images: within them the more usual recipe is chosen."""

LONGEST_SIDE = 192
"""Of the images for a network of any input size while a recipe is chosen, to limit the time it takes."""

_BATCH = 16


def choose_recipe(
    encoder: OnnxEncoder,
    pairs: PairedDataset,
    text: SentenceEncoder | None = None,
    *,
    random_state: int | None = 0,
    watch: Callable[[Progress], None] | None = None,
) -> OnnxEncoder:
    """Return ``encoder`` with the one of its candidate recipes that retrieves best on training pairs.

    A wrong recipe gives features that still look like features; only retrieval tells. For every candidate a
    model is fitted on the same training images and captions, and each image is left out in turn
    (``AWCCA(selection="leave-one-out")``). The score is the mean recall at 1, 5 and 10 of both tasks at the
    best regularisation. Of the candidates within a point of the best, the most usual is chosen, and a
    ``DataWarning`` names it. ``text`` encodes the captions; None fits an ``HKSE``.
    """
    training = pairs.subset("train") if "train" in pairs.split_sizes() else pairs
    sample, features = _encode_candidates(encoder, training, random_state, watch)
    name = encoder.label.partition(" ")[0]
    unclear, remedy = (
        f"{name} does not say how it wants its images",
        "Name another with --recipe (recipe= in Python).",
    )
    if sample.n_images < FEWEST_IMAGES:
        warnings.warn(
            f"{unclear}, and {sample.n_images} training image(s) are too few to choose by; "
            f"{encoder.recipe_name} is used. {remedy}",
            DataWarning,
            stacklevel=5,
        )
        return encoder.with_recipe(encoder.recipe)
    if text is None:
        text = sentence_encoder(HKSE().fit(training.captions))
    captions = to_numpy(text.encode(list(sample.captions)))
    scores = {
        candidate: _score_features(images, captions, sample.pairing, random_state)
        for candidate, images in features.items()
    }
    best = next(candidate for candidate in scores if scores[candidate] >= max(scores.values()) - CHANCE)
    listed = ", ".join(f"{candidate} {score:.1f}" for candidate, score in scores.items())
    warnings.warn(
        f"{unclear}; {best} retrieves best on {sample.n_images} training images (mean of r@1, r@5 and r@10: "
        f"{listed}). {remedy}",
        DataWarning,
        stacklevel=5,
    )
    return encoder.with_recipe(encoder.candidates[best])


def _encode_candidates(
    encoder: OnnxEncoder,
    training: PairedDataset,
    random_state: int | None,
    watch: Callable[[Progress], None] | None,
) -> tuple[PairedDataset, dict[str, np.ndarray[Any, Any]]]:
    """Return a sample of the pairs, and its images' features by each candidate."""
    if training.paths is None:
        raise InputError("these pairs have no image paths; read them with images=FOLDER.")
    paths, start = training.paths, time.perf_counter()
    rows = np.random.default_rng(random_state).permutation(np.unique(training.pairing))[:MOST_IMAGES]
    networks = {
        name: encoder.with_recipe(replace(recipe, max_side=LONGEST_SIDE) if recipe.size is None else recipe)
        for name, recipe in encoder.candidates.items()
    }

    def load(row: int) -> Any:
        try:
            image = open_image(paths[row])
            return row, {name: network.prepare(image) for name, network in networks.items()}
        except UnreadableImage:  # reported when all images are encoded
            return None

    readable: list[int] = []
    features: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in networks}
    workers = thread_count(None)
    loaded = prefetch(load, [int(row) for row in rows], workers, _BATCH + workers)
    for first in range(0, len(rows), _BATCH):
        done = min(first + _BATCH, len(rows))
        batch = [image for _ in range(first, done) if (image := next(loaded)) is not None]
        readable += [row for row, _ in batch]
        for name, network in networks.items():
            if batch:
                features[name].append(network.encode_prepared([prepared[name] for _, prepared in batch]))
        if watch is not None:
            watch(Progress(done, len(rows), done - len(readable), 0, time.perf_counter() - start, 0.0))
    return training.select(readable), {name: np.concatenate(of) for name, of in features.items() if of}


def _score_features(
    images: np.ndarray[Any, Any], captions: np.ndarray[Any, Any], pairing: Any, random_state: int | None
) -> float:
    """Return the mean recall of both tasks, each image left out in turn; 0 if no model can be fitted."""
    if not np.isfinite(images).all() or not np.ptp(images, axis=0).any():
        return 0.0
    model = AWCCA(selection="leave-one-out", metric="mean_recall", grid=("log", 4), random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # this model is only for comparison
        model.fit(images, captions, pairing)
    assert model.path_ is not None
    return float(np.mean([model.path_.best(task) for task in TASKS]))
