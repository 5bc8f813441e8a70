"""The two encoders of a retriever: found by name, told apart by fingerprint, asked for when missing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from sklearn.base import clone

from diptych.arrays import to_numpy
from diptych.checks import InputError, count
from diptych.image import ImageEncoder, image_encoder, open_image
from diptych.retrieval.items import View
from diptych.text import HKSE, sentence_encoder
from diptych.text.encoders import HKSEEncoder

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
    """

    name: str = ""
    fingerprint: str = ""

    @property
    def built_in(self) -> bool:
        """Whether this library has it without being given anything."""
        return self.name == "pyramid"


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
        if isinstance(image, str | os.PathLike):
            image = image_encoder(image)
        if image is not None and not isinstance(image, ImageEncoder):
            raise InputError(
                f"{type(image).__name__} is no image encoder; give an .onnx file, a name, or an object with "
                "encode(), dimension and fingerprint."
            )
        self.image: ImageEncoder | None = image
        self._unfitted: HKSE | None = None
        self.text: Any = None
        if isinstance(text, str) and text == "hkse":
            text = HKSE()
        if isinstance(text, HKSE) and not hasattr(text, "vectors_"):
            self._unfitted = clone(text)
        elif text is not None:
            fingerprinted = hasattr(text, "encode") and not isinstance(text, np.ndarray)
            self.text = text if fingerprinted else sentence_encoder(text)
        for view, encoder in (("image", self.image), ("text", self.text)):
            self._check(view, encoder)  # type: ignore[arg-type]

    @property
    def hkse(self) -> HKSE | None:
        """The fitted HKSE, where that is the text encoder."""
        return self.text.hkse if isinstance(self.text, HKSEEncoder) else None

    def fits(self, view: View, known: Mapping[View, Known]) -> bool:
        """Whether there is an encoder here, and it is the one that is known."""
        encoder, wanted = self.image if view == "image" else self.text, known.get(view, Known()).fingerprint
        return encoder is not None and wanted in ("", str(getattr(encoder, "fingerprint", "")))

    def fit_text(self, captions: Sequence[str]) -> None:
        """Fit an HKSE that is not fitted yet."""
        if self._unfitted is not None:
            self.text = sentence_encoder(self._unfitted.fit(captions))

    def describe(self, view: View) -> Known:
        """What to remember of an encoder."""
        encoder = self.image if view == "image" else self.text
        if encoder is None:
            return self.known.get(view, Known())
        fingerprint = str(getattr(encoder, "fingerprint", ""))
        kind = fingerprint.partition(":")[0] or type(encoder).__name__
        return Known(str(getattr(encoder, "name", "")) or kind, fingerprint)

    def name(self, view: View) -> str:
        """What encodes a view, for people."""
        waiting = view == "text" and self.text is None and self._unfitted is not None
        return "hkse (not fitted)" if waiting else self.describe(view).name or "none"

    def encode_images(self, images: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Features of pictures: paths, bytes or Pillow images."""
        encoder = self.image
        if encoder is None:
            raise self._missing("image")
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
            raise self._missing("text")
        for sentence in sentences:
            if not isinstance(sentence, str) or not sentence.strip():
                raise InputError(f"{sentence!r} is no sentence; give at least one word.")
        return self.text

    def _missing(self, view: View) -> InputError:
        known, what = self.known.get(view, Known()), "pictures" if view == "image" else "sentences"
        made = f"its {what} were encoded by {known.name}" if known.name else "it was made from features"
        return InputError(
            f"this model has no {view} encoder here: {made}. Give {FLAGS[view]}= in Python or "
            f"--{FLAGS[view].replace('_', '-')} on the command line, or give features."
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
    """Whether this is an array of features, rather than something to encode."""
    return hasattr(given, "ndim") and hasattr(given, "dtype") and not isinstance(given, str | bytes)


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
