"""How to prepare images for a network file that does not say: chosen by retrieval on training pairs.

The two encoders of a retriever: found by name, told apart by fingerprint, asked for when missing.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.base import clone

from diptych._arrays import to_numpy
from diptych._checks import TASKS, DataWarning, InputError, count
from diptych._threads import prefetch, thread_count
from diptych.cca import AWCCA
from diptych.data import PairedDataset, Progress
from diptych.image import ImageEncoder, OnnxEncoder, Recipe, UnreadableImage, image_encoder, open_image
from diptych.image._onnx import network_fingerprint
from diptych.retrieval._items import View
from diptych.text import HKSE, SentenceEncoder, sentence_encoder
from diptych.text._encoders import HKSEEncoder, folder_fingerprint

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
    loaded = prefetch(load, [int(row) for row in rows], workers, _BATCH + workers)
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


FLAGS = {"image": "image_encoder", "text": "text_encoder"}


@dataclass(frozen=True)
class Known:
    """What a model remembers of an encoder.

    Attributes
    ----------
    name
        For people.
    fingerprint
        Tells it from others; empty: nothing does.
    origin
        Where it comes from, as plain values: ``source`` (a path or a name), for images also ``recipe`` and
        ``weights``; empty: nobody but the user can give it again.
    """

    name: str = ""
    fingerprint: str = ""
    origin: Mapping[str, Any] = field(default_factory=dict)

    def reopen(self, view: View) -> Any:
        """Open the encoder where it was, if it is still the same; otherwise say what has become of it.

        A network or a folder is opened only after its digest was found equal, and nothing is downloaded
        because a model names it.
        """
        source = str(self.origin["source"])
        recipe = Recipe.from_dict(self.origin["recipe"]) if "recipe" in self.origin else None
        weights = self.origin.get("weights")
        place = str(source if weights is None else weights)
        if source == "pyramid":
            return self._same(image_encoder(source), source)
        if not os.path.isabs(place):
            raise InputError(
                f"{source} may have to be downloaded, which is not done because a model names it"
            )
        if not (os.path.isdir if view == "text" else os.path.isfile)(place):
            raise InputError(f"{place} is not there any more")
        if weights is not None:  # arrays, which can be read before they are compared
            return self._same(image_encoder(source, recipe, weights=weights), place)
        path = Path(place)
        found = folder_fingerprint(path) if view == "text" else network_fingerprint(path, recipe or Recipe())
        if found != self.fingerprint:
            raise self._changed(place)
        return self._same(sentence_encoder(place) if view == "text" else image_encoder(place, recipe), place)

    def _same(self, encoder: Any, place: str) -> Any:
        if encoder.fingerprint != self.fingerprint:
            raise self._changed(place)
        return encoder

    def _changed(self, place: str) -> InputError:
        return InputError(f"{place} is not the same any more (its digest differs)")


class Encoders:
    """An image encoder and a text encoder, either of which may be missing.

    Parameters
    ----------
    image
        As ``diptych.image.image_encoder`` takes it, or an ``ImageEncoder``.
    text
        ``"hkse"``, an ``HKSE`` (fitted or not), or what ``diptych.text.sentence_encoder`` takes.
    known
        What each must be; nothing known: whatever is given.
    """

    def __init__(self, image: Any = None, text: Any = None, known: dict[View, Known] | None = None) -> None:
        self.known: dict[View, Known] = known or {}
        self._lost: dict[View, str] = {}
        if isinstance(image, str | os.PathLike):
            image = self._named(image)
        if image is not None and not isinstance(image, ImageEncoder):
            raise InputError(
                f"{type(image).__name__} is no image encoder; give an .onnx file, a name, or an object with "
                "encode(), dimension and fingerprint."
            )
        self._open: dict[View, Any] = {"image": image, "text": None}
        self._unfitted: HKSE | None = None
        if isinstance(text, str) and text == "hkse":
            text = HKSE()
        if isinstance(text, HKSE) and not hasattr(text, "vectors_"):
            self._unfitted = clone(text)
        elif text is not None:
            # A string has an encode() of its own, which is not meant.
            fingerprinted = hasattr(text, "encode") and not isinstance(text, np.ndarray | str)
            self._open["text"] = text if fingerprinted else sentence_encoder(text)
        for view, encoder in self._open.items():
            self._check(view, encoder)

    @property
    def image(self) -> ImageEncoder | None:
        """The image encoder: as given, or as the model remembers it, opened when it is first needed."""
        encoder: ImageEncoder | None = self._encoder("image")
        return encoder

    @image.setter
    def image(self, encoder: ImageEncoder) -> None:
        self._open["image"] = encoder

    @property
    def text(self) -> Any:
        """The text encoder: as given, or as the model remembers it, opened when it is first needed."""
        return self._encoder("text")

    @property
    def hkse(self) -> HKSE | None:
        """The fitted HKSE, where that is the text encoder."""
        text = self._open["text"]
        return text.hkse if isinstance(text, HKSEEncoder) else None

    def kept(self, view: View, known: Mapping[View, Known]) -> Any:
        """Return the encoder that is open here, if it is the one that is known."""
        encoder, wanted = self._open[view], known.get(view, Known()).fingerprint
        same = encoder is not None and wanted in ("", str(getattr(encoder, "fingerprint", "")))
        return encoder if same else None

    def fit_text(self, captions: Sequence[str]) -> None:
        """Fit an HKSE that is not fitted yet."""
        if self._unfitted is not None:
            self._open["text"] = sentence_encoder(self._unfitted.fit(captions))

    def describe(self, view: View) -> Known:
        """What to remember of an encoder."""
        encoder = self._open[view]
        if encoder is None:
            return self.known.get(view, Known())
        fingerprint = str(getattr(encoder, "fingerprint", ""))
        kind = fingerprint.partition(":")[0] or type(encoder).__name__
        name = str(getattr(encoder, "label", "") or getattr(encoder, "name", "")) or kind
        return Known(name, fingerprint, dict(getattr(encoder, "origin", {})))

    def name(self, view: View) -> str:
        """What encodes a view, for people."""
        waiting = view == "text" and self._open["text"] is None and self._unfitted is not None
        return "hkse (not fitted)" if waiting else self.describe(view).name or "none"

    def encode_images(self, images: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Features of pictures: paths, bytes or Pillow images."""
        encoder = self.image
        if encoder is None:
            raise self.missing("image")
        pictures = [i.convert("RGB") if isinstance(i, Image.Image) else open_image(i) for i in images]
        return _one_each(encoder.encode(pictures), len(pictures), "image")

    def encode_texts(self, sentences: Sequence[str]) -> np.ndarray[Any, Any]:
        """Features of sentences."""
        encoder = self._text_encoder(sentences)
        return _one_each(encoder.encode(list(sentences)), len(sentences), "text")

    def encode_queries(self, sentences: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[tuple[str, ...]]]:
        """Features of text queries, and the words of each that were ignored, where the encoder can tell.

        An encoder with ``encode_queries`` can, and refuses a query without a known word.
        """
        encoder = self._text_encoder(sentences)
        ignored: list[tuple[str, ...]] = [()] * len(sentences)
        if hasattr(encoder, "encode_queries"):
            features, ignored = encoder.encode_queries(list(sentences))
        else:
            features = encoder.encode(list(sentences))
        return _one_each(features, len(sentences), "text"), ignored

    def _text_encoder(self, sentences: Sequence[str]) -> Any:
        if self.text is None:
            raise self.missing("text")
        for sentence in sentences:
            if not isinstance(sentence, str) or not sentence.strip():
                raise InputError(f"{sentence!r} is no sentence; give at least one word.")
        return self.text

    def _named(self, source: str | os.PathLike[str]) -> ImageEncoder:
        """Open an image encoder by its name, with the recipe that the model was made with."""
        known = self.known.get("image", Known())
        if os.fspath(source) != "pyramid" and "recipe" in known.origin:
            return image_encoder(source, Recipe.from_dict(known.origin["recipe"]))
        encoder = image_encoder(source)
        if isinstance(encoder, OnnxEncoder) and encoder.assumed and known.fingerprint:
            others = map(encoder.with_recipe, encoder.candidates.values())
            return next((other for other in others if other.fingerprint == known.fingerprint), encoder)
        return encoder

    def _encoder(self, view: View) -> Any:
        known = self.known.get(view, Known())
        if self._open[view] is None and view not in self._lost and known.origin and self._unfitted is None:
            try:
                self._open[view] = known.reopen(view)
            except InputError as error:
                self._lost[view] = str(error).rstrip(".")
        return self._open[view]

    def missing(self, view: View) -> InputError:
        """Return the error that says why there is no encoder, and what to give."""
        known, things = self.known.get(view, Known()), "images" if view == "image" else "texts"
        option = FLAGS[view].replace("_", "-")
        if view in self._lost:
            return InputError(
                f"this model has no {view} encoder here: its {things} were encoded by {known.name}, but "
                f"{self._lost[view]}; give it with --{option} ({FLAGS[view]}= in Python)."
            )
        made = f"its {things} were encoded by {known.name}" if known.name else "it was made from features"
        return InputError(
            f"this model has no {view} encoder here: {made}. Give {FLAGS[view]}= in Python or "
            f"--{option} on the command line, or give features."
        )

    def _check(self, view: View, encoder: Any) -> None:
        wanted = self.known.get(view, Known()).fingerprint
        found = str(getattr(encoder, "fingerprint", "")) if encoder is not None else ""
        if wanted and encoder is not None and found != wanted:
            raise InputError(
                f"the {view} encoder given is {found or type(encoder).__name__!r}, but the model was made "
                f"with {wanted!r}; give that one (the same file, weights and preprocessing)."
            )


def is_array(given: Any) -> bool:
    """Whether this is an array or a table of features, rather than something to encode."""
    if isinstance(given, str | bytes):
        return False
    if hasattr(given, "ndim") and hasattr(given, "dtype"):
        texts = given.ndim == 1 and getattr(given.dtype, "kind", "f") in "OUT"
        return not (texts and all(isinstance(each, str) for each in given))
    return hasattr(given, "columns") and hasattr(given, "__array__")


def as_list(given: Any) -> tuple[list[Any], bool]:
    """What was given as a list, and whether it was a single thing: a path, bytes, a picture, a sentence."""
    if isinstance(given, str | bytes | Path | Image.Image) or hasattr(given, "__fspath__"):
        return [given], True
    if not isinstance(given, Iterable):
        raise InputError(f"{given!r} is no picture, sentence or array of features, nor a list of them.")
    return list(given), False


def _one_each(features: Any, n: int, view: View) -> np.ndarray[Any, Any]:
    rows = to_numpy(features)
    if rows.ndim != 2 or len(rows) != n:
        raise InputError(
            f"the {view} encoder gave an array of shape {list(rows.shape)} for {count(n, view)}; expected "
            "one row for each."
        )
    return rows
