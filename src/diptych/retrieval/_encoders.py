"""The two encoders of a retriever: opened by name, compared by fingerprint."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from PIL import Image
from sklearn.base import clone

from diptych._arrays import to_numpy
from diptych._checks import (
    IMAGE_AND_TEXT,
    TASKS,
    DataWarning,
    InputError,
    ViewNames,
    count,
    plural,
    with_article,
)
from diptych._fastembed import FASTEMBED, find_fastembed
from diptych._persistence import Schema
from diptych._threads import prefetch, thread_count
from diptych.cca import AWCCA
from diptych.data import PairedDataset, Progress
from diptych.image import ImageEncoder, OnnxEncoder, Recipe, UnreadableImage, image_encoder, open_image
from diptych.image._encoders import Inputs, encode_inputs, inputs_of, prepare_input
from diptych.image._onnx import network_fingerprint
from diptych.retrieval._items import VIEWS, View, file_name
from diptych.retrieval._recommended import default_encoder
from diptych.text import HKSE, SentenceEncoder, sentence_encoder
from diptych.text._encoders import HKSEEncoder, folder_fingerprint

MOST_IMAGES = 150
"""Training images that a recipe is chosen on."""

FEWEST_IMAGES = 20
"""With fewer images the choice would be chance."""

CHANCE = 1.0
"""Points of mean recall that mean nothing on so few images: within them the more usual recipe is chosen."""

LONGEST_SIDE = 192
"""Of the images for a network of any input size while a recipe is chosen, to limit the time it takes."""

_BATCH = 16
_ARGUMENTS = {"image": "image_encoder", "text": "text_encoder"}


class Origin(Schema, frozen=True):
    """Where an encoder can be opened again.

    ``source`` is a path or a name. Image encoders may have a ``recipe`` and a file of ``weights``; for models
    of fastembed it is a folder. ``beside`` is the path from the model folder, for encoders that are moved
    together with it.
    """

    source: str
    recipe: dict[str, Any] | None = None
    weights: str | None = None
    beside: str | None = None

    def __post_init__(self) -> None:
        """Refuse a recipe that is none."""
        if self.recipe is not None:
            Recipe.from_dict(self.recipe)

    @property
    def path(self) -> str:
        """The file or folder of the encoder, or a name if it has none."""
        return self.source if self.weights is None else self.weights


class EncoderRecord(Schema, frozen=True):
    """What a model knows of an encoder: a name for people, a fingerprint, and where to open it again.

    An empty fingerprint matches any encoder. Without an origin, the user has to give the encoder again.
    """

    name: str = ""
    fingerprint: str = ""
    origin: Origin | None = None

    @property
    def can_reopen(self) -> bool:
        """Whether the encoder can be opened again as long as its files stay where they are."""
        return self.origin is not None and (
            self.origin.source == "pyramid" or os.path.isabs(self.origin.path)
        )

    def relative_to(self, folder: Path | None) -> EncoderRecord:
        """Return the record with the path of the encoder from a model folder."""
        if folder is None or self.origin is None or not os.path.isabs(self.origin.path):
            return self
        with suppress(ValueError):  # on another drive of Windows
            beside = os.path.relpath(os.path.realpath(self.origin.path), folder)
            return msgspec.structs.replace(self, origin=msgspec.structs.replace(self.origin, beside=beside))
        return self

    def strip_paths(self) -> EncoderRecord:
        """Return the record as it is published: with file names instead of the paths of this machine."""
        if self.origin is None:
            return self
        source = file_name(self.origin.source)
        kind, colon, path = source.partition(":")
        source = f"{kind}:{file_name(path)}" if colon else source
        weights = self.origin.weights and file_name(self.origin.weights)
        origin = Origin(source, self.origin.recipe, weights)
        return EncoderRecord(file_name(self.name), self.fingerprint, origin)

    def locate(self, folder: Path) -> EncoderRecord:
        """Return the record with the path of an encoder that was moved together with a model folder."""
        origin = self.origin
        if origin is None or origin.beside is None:
            return self
        if not os.path.exists(origin.path):
            field = "source" if origin.weights is None else "weights"
            moved = os.path.abspath(folder / origin.beside)
            origin = msgspec.structs.replace(origin, **{field: moved})
        return msgspec.structs.replace(self, origin=msgspec.structs.replace(origin, beside=None))

    def reopen(self, view: View) -> Any:
        """Open the encoder again, or raise an ``InputError`` that says why it cannot be.

        A network or a folder is opened only after its digest was compared, and nothing is downloaded because
        a model names it.
        """
        assert self.origin is not None
        source, path = self.origin.source, self.origin.path
        recipe = None if self.origin.recipe is None else Recipe.from_dict(self.origin.recipe)
        if source == "pyramid":
            encoder: Any = image_encoder(source)
        elif source.startswith(FASTEMBED):
            files = find_fastembed(view, source.removeprefix(FASTEMBED), Path(path))
            self._compare(files.fingerprint, str(files.folder))
            encoder = files.open()
        elif not os.path.isabs(path):
            raise InputError(
                f"{source} may have to be downloaded, which is not done because a model names it"
            )
        elif not (os.path.isdir if view == "text" else os.path.isfile)(path):
            raise InputError(f"{path} does not exist any more")
        elif self.origin.weights is not None:  # plain arrays, which are safe to read before they are compared
            encoder = image_encoder(source, recipe, weights=path)
        elif view == "text":
            self._compare(folder_fingerprint(Path(path)), path)
            encoder = sentence_encoder(path)
        else:
            self._compare(network_fingerprint(Path(path), recipe or Recipe()), path)
            encoder = image_encoder(path, recipe)
        self._compare(encoder.fingerprint, path)
        return encoder

    def _compare(self, fingerprint: str, path: str) -> None:
        if fingerprint != self.fingerprint:
            raise InputError(f"{path} has changed (its digest differs)")


class Encoders:
    """An image encoder and a text encoder, either of which may be missing.

    Parameters
    ----------
    image
        As ``diptych.image.image_encoder`` takes it, an ``ImageEncoder``, or ``"auto"``.
    text
        ``"hkse"``, an ``HKSE`` (fitted or not), what ``diptych.text.sentence_encoder`` takes, or ``"auto"``.
    known
        The encoders that a model was fitted with; others are refused.
    views
        What messages call an image and a text.
    """

    def __init__(
        self,
        image: Any = None,
        text: Any = None,
        known: Mapping[View, EncoderRecord] | None = None,
        views: ViewNames = IMAGE_AND_TEXT,
    ) -> None:
        self.known: dict[View, EncoderRecord] = dict(known or {})
        self.views = views
        self._failures: dict[View, str] = {}
        self._unfitted: HKSE | None = None
        # What "auto" stands for may have to be downloaded, so it is opened when something is encoded.
        self._auto: list[View] = []
        if isinstance(image, str) and image == "auto":
            image = None
            if views.image == "image":
                self._auto.append("image")
        if isinstance(text, str) and text == "auto":
            text = None
            self._auto.append("text")
        if isinstance(image, str | os.PathLike):
            image = self._open_image_encoder(image)
        if image is not None and not isinstance(image, ImageEncoder):
            raise InputError(
                f"{type(image).__name__} is not {with_article(f'{views.image} encoder')}; give an .onnx "
                "file, a name, or an object with encode(), dimension and fingerprint."
            )
        if isinstance(text, str) and text == "hkse":
            text = HKSE()
        if isinstance(text, HKSE) and not hasattr(text, "vectors_"):
            self._unfitted, text = clone(text), None
        # A string has an encode() of its own, which is not meant.
        if text is not None and (isinstance(text, np.ndarray | str) or not hasattr(text, "encode")):
            text = sentence_encoder(text)
        self._open: dict[View, Any] = {"image": image, "text": text}
        for view, encoder in self._open.items():
            self._check(view, encoder)

    @property
    def image(self) -> ImageEncoder | None:
        """The image encoder; one that the model knows is opened when it is first needed."""
        encoder: ImageEncoder | None = self._get("image")
        return encoder

    @image.setter
    def image(self, encoder: ImageEncoder) -> None:
        self._open["image"] = encoder

    @property
    def inputs(self) -> Inputs:
        """What the encoder of the first view takes: images, paths or texts; images if none is open."""
        return inputs_of(self._open["image"])

    @property
    def text(self) -> Any:
        """The text encoder; one that the model knows is opened when it is first needed."""
        return self._get("text")

    @property
    def hkse(self) -> HKSE | None:
        """The fitted HKSE, if that is the text encoder."""
        text = self._open["text"]
        return text.hkse if isinstance(text, HKSEEncoder) else None

    def match_open(self, view: View, known: Mapping[View, EncoderRecord]) -> Any:
        """Return the open encoder if it is the one that ``known`` names; None otherwise."""
        encoder, fingerprint = self._open[view], known.get(view, EncoderRecord()).fingerprint
        return encoder if fingerprint in ("", _fingerprint(encoder)) else None

    def choose_defaults(self, random_state: int | None = 0, *, fuses: bool = False) -> None:
        """Open an encoder for each view that was left at ``"auto"``, unless the other view has none.

        ``fuses`` says that the model is a fusion, which can use the similarity of two towers itself.
        """
        has_text = self._unfitted is not None or "text" in self._auto or self.text is not None
        if not has_text or ("image" not in self._auto and self.image is None):
            return
        chosen, self._auto = open_defaults(self._auto, random_state, fuses=fuses), []
        if isinstance(hkse := chosen.get("text"), HKSE):
            self._unfitted, chosen["text"] = hkse, None
        self._open |= chosen

    def fit_text(self, captions: Sequence[str]) -> None:
        """Fit an HKSE that is not fitted yet."""
        if self._unfitted is not None:
            self._open["text"] = sentence_encoder(self._unfitted.fit(captions))

    def remember(self, fingerprints: Sequence[str]) -> None:
        """Remember which encoders made the features that a model is fitted on, where none is open here."""
        for view, fingerprint in zip(VIEWS, fingerprints, strict=True):
            if fingerprint and self._open[view] is None:
                self.known[view] = EncoderRecord(fingerprint, fingerprint)

    def describe(self, view: View) -> EncoderRecord:
        """Return what a model should know of an encoder."""
        encoder = self._open[view]
        if encoder is None:
            return self.known.get(view, EncoderRecord())
        fingerprint, origin = _fingerprint(encoder), getattr(encoder, "origin", {})
        kind = fingerprint.partition(":")[0] or type(encoder).__name__
        name = str(getattr(encoder, "label", "") or getattr(encoder, "name", "")) or kind
        return EncoderRecord(name, fingerprint, Origin(**origin) if origin else None)

    def name(self, view: View) -> str:
        """Return the name of an encoder for people."""
        if view in self._auto:
            return "auto"
        waiting = view == "text" and self._open["text"] is None and self._unfitted is not None
        return "hkse (not fitted)" if waiting else self.describe(view).name or "none"

    def encode_images(self, images: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the features of images: paths, bytes or Pillow images; or of what the encoder takes."""
        encoder, name = self.image, self.views.image
        if encoder is None:
            raise self.missing("image")
        with ExitStack() as stack:
            if self.inputs == "paths":
                images = [stack.enter_context(_as_file(image)) for image in images]
            prepared = [prepare_input(encoder, image, name) for image in images]
            for each in prepared:
                if isinstance(each, InputError):
                    raise each
            features, refused = encode_inputs(encoder, prepared, name)
        for error in refused.values():
            raise error
        return self._check_rows(features, len(prepared), "image")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the features of texts."""
        return self._check_rows(self._check_texts(texts).encode(list(texts)), len(texts), "text")

    def encode_queries(self, texts: Sequence[str]) -> tuple[np.ndarray[Any, Any], list[tuple[str, ...]]]:
        """Return the features of text queries, and the words of each that the encoder ignored.

        Only an encoder with ``encode_queries`` reports them, and refuses a query without a known word.
        """
        encoder = self._check_texts(texts)
        if hasattr(encoder, "encode_queries"):
            features, ignored = encoder.encode_queries(list(texts))
            return self._check_rows(features, len(texts), "text"), ignored
        return self._check_rows(encoder.encode(list(texts)), len(texts), "text"), [()] * len(texts)

    def missing(self, view: View) -> InputError:
        """Return the error that says why there is no encoder, and what to give."""
        record, name = self.known.get(view, EncoderRecord()), self.views.of(view)
        argument = _ARGUMENTS[view]
        option = argument.replace("_", "-")
        encoded = f"its {plural(name)} were encoded by {record.name}"
        if view in self._failures:
            return InputError(
                f"this model has no {name} encoder here: {encoded}, but {self._failures[view]}; give it with "
                f"--{option} ({argument}= in Python)."
            )
        encoded = encoded if record.name else "it was made from features"
        return InputError(
            f"this model has no {name} encoder here: {encoded}. Give {argument}= in Python or --{option} on "
            "the command line, or give features."
        )

    def _check_texts(self, texts: Sequence[str]) -> Any:
        if self.text is None:
            raise self.missing("text")
        for text in texts:
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"{text!r} is not {with_article(self.views.text)}; give at least one word.")
        return self.text

    def _check_rows(self, features: Any, n: int, view: View) -> np.ndarray[Any, Any]:
        rows, name = to_numpy(features), self.views.of(view)
        if rows.ndim != 2 or len(rows) != n:
            raise InputError(
                f"the {name} encoder gave an array of shape {list(rows.shape)} for {count(n, name)}; "
                "expected one row for each."
            )
        return rows

    def _open_image_encoder(self, source: str | os.PathLike[str]) -> ImageEncoder:
        """Open an image encoder by its name, with the recipe that the model was fitted with."""
        record, name = self.known.get("image", EncoderRecord()), os.fspath(source)
        takes_recipe = name != "pyramid" and not name.startswith(FASTEMBED)
        if takes_recipe and record.origin is not None and record.origin.recipe is not None:
            return image_encoder(source, Recipe.from_dict(record.origin.recipe))
        encoder = image_encoder(source)
        if isinstance(encoder, OnnxEncoder) and encoder.assumed and record.fingerprint:
            others = map(encoder.with_recipe, encoder.candidates.values())
            return next((other for other in others if other.fingerprint == record.fingerprint), encoder)
        return encoder

    def _get(self, view: View) -> Any:
        record = self.known.get(view, EncoderRecord())
        if self._open[view] is None and view not in self._failures and record.origin and not self._unfitted:
            try:
                self._open[view] = record.reopen(view)
            except InputError as error:
                self._failures[view] = str(error).rstrip(".")
        return self._open[view]

    def _check(self, view: View, encoder: Any) -> None:
        expected = self.known.get(view, EncoderRecord()).fingerprint
        if encoder is not None and expected not in ("", fingerprint := _fingerprint(encoder)):
            raise InputError(
                f"the {self.views.of(view)} encoder given is {fingerprint or type(encoder).__name__!r}, but "
                f"the model was made with {expected!r}; give that one (the same file, weights and "
                "preprocessing)."
            )


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
            stacklevel=4,
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
        stacklevel=4,
    )
    return encoder.with_recipe(encoder.candidates[best])


def open_defaults(
    views: Sequence[View], random_state: int | None = 0, *, fuses: bool = False
) -> dict[View, Any]:
    """Return an encoder for each view that none was named for, and name it in a ``DataWarning``.

    Where fastembed is installed these are the recommended encoders, which it downloads once. Otherwise they
    are ``pyramid`` and an ``HKSE`` that is not fitted yet.
    """
    recommended = {view: chosen for view in views if (chosen := default_encoder(view)) is not None}
    if recommended:
        named = " and ".join(
            f"{c.name} for {v}s ({c.licence}, {c.gigabytes:g} GB)" for v, c in recommended.items()
        )
        advice = "diptych encoders lists others"
        if len(recommended) == len(VIEWS) and not fuses:
            advice += '; with fewer than about a thousand pairs, preset="best" is better, because it can use '
            advice += "the similarity of the two as they are"
        _warn(f"encoders chosen by default: {named}, downloaded once; {advice}.")
    encoders: dict[View, Any] = {}
    for view in views:
        if view in recommended:
            open_encoder, plain = _OPENERS[view]
            try:
                encoders[view] = open_encoder(recommended[view].name)
            except InputError as error:
                reason, named = str(error).rstrip("."), f'{_ARGUMENTS[view]}="{plain}"'
                raise InputError(f"{reason}; or give {named}, which needs no weights.") from None
        elif view == "image":
            _warn(
                "no image encoder was named, so pyramid is used, which knows only colours and shapes; photos "
                "need a network: pip install fastembed, or name one with --image-encoder network.onnx "
                "(image_encoder= in Python)."
            )
            encoders[view] = image_encoder("pyramid")
        else:
            _warn(
                "no text encoder was named, so hkse is fitted on the captions; diptych encoders lists others."
            )
            encoders[view] = HKSE(random_state=random_state)
    return encoders


_OPENERS: dict[View, tuple[Callable[[str], Any], str]] = {
    "image": (image_encoder, "pyramid"),
    "text": (sentence_encoder, "hkse"),
}


def _warn(message: str) -> None:
    warnings.warn(message, DataWarning, stacklevel=5)


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a table of features, rather than something to encode."""
    if isinstance(value, str | bytes):
        return False
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        texts = value.ndim == 1 and getattr(value.dtype, "kind", "f") in "OUT"
        return not (texts and all(isinstance(each, str) for each in value))
    return hasattr(value, "columns") and hasattr(value, "__array__")


def as_list(value: Any, names: ViewNames = IMAGE_AND_TEXT) -> tuple[list[Any], bool]:
    """Return inputs as a list, and whether it was a single one: a path, bytes, an image, a text."""
    if isinstance(value, str | bytes | Path | Image.Image) or hasattr(value, "__fspath__"):
        return [value], True
    if not isinstance(value, Iterable):
        items = ", ".join(map(with_article, names))
        raise InputError(f"{value!r} is not {items} or an array of features, nor a list of them.")
    return list(value), False


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


def _fingerprint(encoder: Any) -> str:
    return str(getattr(encoder, "fingerprint", ""))


@contextmanager
def _as_file(source: Any) -> Iterator[Any]:
    """Yield the bytes of a file as the name of a temporary file; anything else unchanged."""
    if not isinstance(source, bytes):
        yield source
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "query"
        path.write_bytes(source)
        yield path
