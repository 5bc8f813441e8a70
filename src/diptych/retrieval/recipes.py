"""How to prepare images for a network file that does not say: chosen by retrieval on training pairs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from diptych.arrays import to_numpy
from diptych.cca import AWCCA
from diptych.checks import TASKS, DataWarning, InputError
from diptych.data import PairedDataset, Progress
from diptych.image import OnnxEncoder, UnreadableImage, open_image
from diptych.prefetch import ahead, thread_count
from diptych.text import HKSE, SentenceEncoder, sentence_encoder

MOST_IMAGES = 150
"""Training images that a recipe is chosen on."""

FEWEST_IMAGES = 20
"""With fewer, the choice would be chance."""

CHANCE = 1.0
"""Points of mean recall that on so few images mean nothing: within them the more usual recipe is taken."""

LONGEST_SIDE = 192
"""Of the images that a network of any size sees while a recipe is chosen: a bound on the time it takes."""

_BATCH = 16


def choose_recipe(
    encoder: OnnxEncoder,
    pairs: PairedDataset,
    text: SentenceEncoder | None = None,
    *,
    random_state: int | None = 0,
    watch: Callable[[Progress], None] | None = None,
) -> OnnxEncoder:
    """Return ``encoder`` with the recipe among its candidates by which training pairs find each other best.

    A wrong recipe gives features that still look like features; only retrieval tells. For every candidate a
    model is fitted on the same training images and captions, at most 150 images, and each image is left out
    in turn (``AWCCA(selection="leave-one-out")``). The score is the mean recall at 1, 5 and 10 of both tasks
    at the best regularisation. Of those within a point of the best, the most usual is taken. The choice is
    told in a ``DataWarning``.

    Parameters
    ----------
    encoder
        A network whose recipe is assumed.
    pairs
        Pairs whose images lie on disk; of pairs with splits, those of the train split count.
    text
        The encoder of the captions; None: an ``HKSE`` of the training captions.
    random_state
        Seeds the choice of the images.
    watch
        Told about the progress.
    """
    training = pairs.subset("train") if "train" in pairs.split_sizes() else pairs
    sample, features = _encoded(encoder, training, random_state, watch)
    name = encoder.label.partition(" ")[0]
    if sample.n_images < FEWEST_IMAGES:
        warnings.warn(
            f"{name} does not say how it wants its images, and {sample.n_images} training image(s) are too "
            f"few to choose by; {encoder.recipe_name} is taken. Name another with --recipe (recipe= in "
            "Python).",
            DataWarning,
            stacklevel=4,
        )
        return encoder.with_recipe(encoder.recipe)
    if text is None:
        text = sentence_encoder(HKSE().fit(training.captions))
    captions = to_numpy(text.encode(list(sample.captions)))
    scores = {
        candidate: _score(rows, captions, sample.pairing, random_state)
        for candidate, rows in features.items()
    }
    best = next(candidate for candidate in scores if scores[candidate] >= max(scores.values()) - CHANCE)
    told = ", ".join(f"{candidate} {score:.1f}" for candidate, score in scores.items())
    warnings.warn(
        f"{name} does not say how it wants its images; {best} retrieves best on {sample.n_images} training "
        f"images (mean of r@1, r@5 and r@10: {told}). Name another with --recipe (recipe= in Python).",
        DataWarning,
        stacklevel=4,
    )
    return encoder.with_recipe(encoder.candidates[best])


def warn_of_pyramid() -> None:
    """Say that nobody named an image encoder, and what that costs."""
    warnings.warn(
        "no image encoder was named, so pyramid is used, which knows only colours and shapes; photos need a "
        'network: --image-encoder network.onnx (Retriever("network.onnx") in Python).',
        DataWarning,
        stacklevel=3,
    )


def _encoded(
    encoder: OnnxEncoder,
    training: PairedDataset,
    random_state: int | None,
    watch: Callable[[Progress], None] | None,
) -> tuple[PairedDataset, dict[str, np.ndarray[Any, Any]]]:
    """Return a sample of the pairs and, for each candidate, the features of its images, each decoded once."""
    if training.paths is None:
        raise InputError("these pairs do not know where their images lie; read them with images=FOLDER.")
    paths, begun = training.paths, time.perf_counter()
    described = np.unique(training.pairing)
    rows = np.random.default_rng(random_state).permutation(described)[:MOST_IMAGES]
    networks = {
        name: encoder.with_recipe(replace(recipe, max_side=LONGEST_SIDE) if recipe.size is None else recipe)
        for name, recipe in encoder.candidates.items()
    }

    def load(row: int) -> Any:
        try:
            image = open_image(paths[row])
            return row, {name: network.prepare(image) for name, network in networks.items()}
        except UnreadableImage:  # told where all images are encoded
            return None

    readable: list[int] = []
    features: dict[str, list[np.ndarray[Any, Any]]] = {name: [] for name in networks}
    workers, seen = thread_count(None), 0
    loaded = ahead(load, [int(row) for row in rows], workers, _BATCH + workers)
    for start in range(0, len(rows), _BATCH):
        drawn = [next(loaded) for _ in rows[start : start + _BATCH]]
        batch = [each for each in drawn if each is not None]
        readable += [row for row, _ in batch]
        for name, network in networks.items():
            if batch:
                features[name].append(network.encode_prepared([prepared[name] for _, prepared in batch]))
        seen += len(drawn)
        if watch is not None:
            watch(Progress(seen, len(rows), seen - len(readable), 0, time.perf_counter() - begun, 0.0))
    return training.select(readable), {name: np.concatenate(of) for name, of in features.items() if of}


def _score(
    images: np.ndarray[Any, Any], captions: np.ndarray[Any, Any], pairing: Any, random_state: int | None
) -> float:
    """Return the mean recall of both tasks, each image left out in turn; 0 where no model can be fitted."""
    if not np.isfinite(images).all() or not np.ptp(images, axis=0).any():
        return 0.0
    model = AWCCA(selection="leave-one-out", metric="mean_recall", grid=("log", 4), random_state=random_state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # this model is for comparison, and nobody's to mend
        model.fit(images, captions, pairing)
    assert model.path_ is not None
    return float(np.mean([model.path_.best(task) for task in TASKS]))
