"""Sentence encoders of any make, behind one verb: ``encode(sentences)`` gives one row for each sentence."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from diptych._arrays import Array, namespace
from diptych._checks import InputError, check_view, missing_package_error
from diptych._persistence import file_digest, map_npy
from diptych.text._hkse import BLOCK_ROWS, HKSE, hkse_fingerprint
from diptych.text._words import Corpus, blocks, ignored_words, no_known_word, sentence_lengths


@runtime_checkable
class SentenceEncoder(Protocol):
    """Anything that turns a list of sentences into an array with one row for each.

    One with a ``fingerprint`` (a string that changes when its features would) is told from others.
    """

    def encode(self, sentences: list[str]) -> Array:
        """One row for each sentence."""
        ...


def sentence_encoder(
    source: Any, *, sentences: Sequence[str] | None = None, device: str | None = None
) -> SentenceEncoder:
    """The encoder that ``source`` names or is; its output is checked, whatever it is.

    Parameters
    ----------
    source
        - a fitted ``HKSE``; an object with ``encode``, any other fitted transformer, or any function from a
          list of sentences to an array;
        - the path of a ``.npy`` file, or an array, with features computed elsewhere (skip-thought vectors,
          for one), row i for ``sentences[i]``;
        - the name or the local folder of a sentence-transformers model.
    sentences
        For precomputed features: the sentence that each row belongs to.
    device
        For sentence-transformers: where it runs.

    Examples
    --------
    >>> import numpy as np
    >>> lengths = sentence_encoder(lambda sentences: np.array([[len(s)] for s in sentences]))
    >>> lengths.encode(["a dog", "two cats"])
    array([[5.],
           [8.]])
    """
    if isinstance(source, str | os.PathLike) and Path(source).suffix == ".npy":
        return PrecomputedEncoder(map_npy(Path(source)), _needed(sentences, source))
    if isinstance(source, str | os.PathLike):
        return SentenceTransformersEncoder(source, device=device)
    if isinstance(source, HKSE):
        return HKSEEncoder(source)
    if isinstance(source, np.ndarray):
        return PrecomputedEncoder(source, _needed(sentences, "an array"))
    for verb in ("encode", "transform"):
        if callable(getattr(source, verb, None)):
            return CallableEncoder(getattr(source, verb), str(getattr(source, "fingerprint", "")))
    if callable(source):
        return CallableEncoder(source)
    raise InputError(
        f"{type(source).__name__} is no sentence encoder; give a function, an object with encode(), the path "
        "of a .npy file, or the name of a sentence-transformers model."
    )


class CallableEncoder:
    """A function from a list of sentences to an array.

    ``fingerprint`` tells it from others and changes when its features would; without one, nothing can.
    """

    def __init__(self, function: Callable[[list[str]], Any], fingerprint: str = "") -> None:
        self._function, self.fingerprint = function, fingerprint

    def encode(self, sentences: list[str]) -> Array:
        """One row for each sentence."""
        sentences = _listed(sentences)
        features = check_view(self._function(sentences), "the encoder's output")
        if features.shape[0] != len(sentences):
            raise InputError(
                f"the encoder gave {features.shape[0]} rows for {len(sentences)} sentences; expected as many."
            )
        return features


class HKSEEncoder:
    """A fitted HKSE. A sentence without a known word is the training mean; such a query is refused."""

    def __init__(self, hkse: HKSE) -> None:
        self.hkse, self.fingerprint = hkse, hkse_fingerprint(hkse)

    def encode(self, sentences: list[str]) -> Array:
        """One row for each sentence."""
        return self.hkse.transform(_listed(sentences), unknown="mean")

    def encode_queries(self, sentences: list[str]) -> tuple[Array, list[tuple[str, ...]]]:
        """One row for each query, and the words of each that have no vector and were ignored.

        A query without any known word is an ``InputError`` that names its words.
        """
        index, tokenizer = self.hkse.vectors_.index, self.hkse.tokenizer
        parts, ignored = [], list[tuple[str, ...]]()
        for block in blocks(_listed(sentences), BLOCK_ROWS):
            corpus = Corpus.of(block, tokenizer)
            rows, ends = corpus.known(index)
            known, all_words = sentence_lengths(ends), sentence_lengths(corpus.ends)
            for sentence, n_known, n_words in zip(block, known.tolist(), all_words.tolist(), strict=True):
                words = ignored_words(sentence, index, tokenizer) if n_known < n_words else ()
                if n_known == 0:
                    raise no_known_word(repr(sentence[:60]), words)
                ignored.append(words)
            parts.append(self.hkse._embed(rows, ends))
        return namespace(parts[0]).concat(parts), ignored


class SentenceTransformersEncoder(CallableEncoder):
    """A sentence-transformers model; weights are read as safetensors, and no code of the model's is run."""

    def __init__(
        self, name: str | os.PathLike[str], *, device: str | None = None, batch_size: int = 64
    ) -> None:
        try:
            library = importlib.import_module("sentence_transformers")
        except ImportError:
            raise missing_package_error(f"the encoder {os.fspath(name)!r} needs", "sentence") from None
        self._given = os.path.abspath(name) if os.path.isdir(name) else os.fspath(name), device, batch_size
        model = library.SentenceTransformer(
            os.fspath(name),
            device=device,
            trust_remote_code=False,
            model_kwargs={"use_safetensors": True},
        )
        self.label, self.origin = os.path.basename(self._given[0]), {"source": self._given[0]}
        super().__init__(
            lambda sentences: model.encode(
                sentences, batch_size=batch_size, convert_to_numpy=True, show_progress_bar=False
            ),
            folder_fingerprint(Path(name)) or f"sentence-transformers:{os.fspath(name)}",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process loads the model itself.
        name, device, batch_size = self._given
        return partial(type(self), device=device, batch_size=batch_size), (name,)


class PrecomputedEncoder:
    """Features computed elsewhere, looked up by sentence; of one that occurs twice, the first row."""

    def __init__(self, features: Any, sentences: Sequence[str]) -> None:
        if features.ndim != 2 or features.dtype.kind != "f" or len(features) != len(sentences):
            raise InputError(
                f"the features are {features.dtype}{list(features.shape)} for {len(sentences)} sentences; "
                "expected real numbers, one row for each sentence."
            )
        self._features = features
        self.fingerprint = ""
        self._rows: dict[str, int] = {}
        for row, sentence in enumerate(sentences):
            self._rows.setdefault(sentence, row)

    def encode(self, sentences: list[str]) -> Array:
        """The stored row of each sentence."""
        sentences = _listed(sentences)
        rows = [self._rows.get(sentence, -1) for sentence in sentences]
        if -1 in rows:
            missing = rows.index(-1)
            raise InputError(
                f"sentences[{missing}] ({sentences[missing][:60]!r}) has no precomputed features; an encoder "
                "that computes them is needed for new sentences."
            )
        return check_view(np.asarray(self._features[rows]), "features")


def folder_fingerprint(folder: Path) -> str:
    """Return the fingerprint of a sentence-transformers folder; empty where it holds no weights.

    Everything counts that decides the features: weights, modules, settings and tokenizer.
    """
    if not folder.is_dir() or not any(folder.rglob("*.safetensors")):
        return ""
    kinds = {".safetensors", ".json", ".txt", ".model"}
    files = sorted(path for path in folder.rglob("*") if path.suffix in kinds and path.is_file())
    listed = "".join(f"{path.relative_to(folder).as_posix()}\0{file_digest(path)}\n" for path in files)
    return f"sentence-transformers:{hashlib.sha256(listed.encode()).hexdigest()[:32]}"


def _needed(sentences: Sequence[str] | None, source: object) -> Sequence[str]:
    if sentences is None:
        raise InputError(f"precomputed features ({source}) need sentences=, the sentence of each row.")
    return sentences


def _listed(sentences: Any) -> list[str]:
    if isinstance(sentences, str):
        raise InputError("sentences is one string; give a list of sentences: [sentence].")
    return list(sentences)
