"""The sentence encoder protocol, and encoders of every kind behind it."""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from diptych._arrays import Array
from diptych._checks import InputError, check_view, import_package
from diptych._persistence import file_digest
from diptych.encoders._fastembed import FASTEMBED, open_fastembed
from diptych.encoders._hkse_encoder import is_hkse
from diptych.encoders._words import iterate_texts


@runtime_checkable
class SentenceEncoder(Protocol):
    """Anything that turns a list of texts into features, one row per text.

    An encoder may have a ``fingerprint``: a string that changes whenever the features would change.

    Examples
    --------
    >>> import numpy as np
    >>> class Lengths:
    ...     def encode(self, texts):
    ...         return np.array([[float(len(text))] for text in texts])
    >>> isinstance(Lengths(), SentenceEncoder)
    True
    """

    def encode(self, texts: list[str], /) -> Array:
        """Return the features of texts, one row per text."""
        ...


class Transformer(Protocol):
    """A fitted scikit-learn transformer of texts."""

    def transform(self, texts: list[str], /) -> Array: ...


TextFunction: TypeAlias = Callable[[list[str]], Array]


def sentence_encoder(
    source: str | os.PathLike[str] | SentenceEncoder | Transformer | TextFunction,
    *,
    device: str | None = None,
) -> SentenceEncoder:
    """Return the sentence encoder that ``source`` is or names; its output is checked.

    Parameters
    ----------
    source
        - a fitted ``HKSE``;
        - an object with ``encode``, another fitted transformer, or a function from a list of texts to an
          array;
        - ``"fastembed:NAME"`` or ``"fastembed:FOLDER"``;
        - the name or the local folder of a sentence-transformers model.
    device
        For sentence-transformers: the device of the model.

    Examples
    --------
    >>> import numpy as np
    >>> lengths = sentence_encoder(lambda texts: np.array([[len(text)] for text in texts]))
    >>> lengths.encode(["a dog", "two cats"])
    array([[5.],
           [8.]])
    """
    if isinstance(source, str | os.PathLike):
        if os.fspath(source).startswith(FASTEMBED):
            return open_fastembed("text", os.fspath(source).removeprefix(FASTEMBED))
        return SentenceTransformersEncoder(source, device=device)
    if is_hkse(source):
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(source)
        encoder: SentenceEncoder = source.encoder_
        return encoder
    for method in ("encode", "transform"):
        if callable(getattr(source, method, None)):
            fingerprint = str(getattr(source, "fingerprint", ""))
            name = "" if fingerprint else type(source).__name__
            return CallableEncoder(getattr(source, method), fingerprint, name)
    if callable(source):
        name = getattr(source, "__name__", "")
        return CallableEncoder(source, name=name if name.isidentifier() else "function")
    raise InputError(
        f"{type(source).__name__} is not a sentence encoder; pass a function, an object with encode(), "
        "fastembed:NAME, or the name of a sentence-transformers model."
    )


class CallableEncoder:
    """Encodes texts with a function from a list of texts to an array.

    ``fingerprint`` identifies the function; it is empty if there is nothing to identify it by. ``name`` is
    for people.
    """

    def __init__(self, function: TextFunction, fingerprint: str = "", name: str = "") -> None:
        self._function, self.fingerprint, self.name = function, fingerprint, name

    def encode(self, texts: list[str]) -> Array:
        """Return the features of texts, one row per text."""
        texts = list(iterate_texts(texts))
        features = check_view(self._function(texts), "the encoder's output")
        if features.shape[0] != len(texts):
            raise InputError(
                f"The encoder returned {features.shape[0]} rows for {len(texts)} texts; expected one each."
            )
        return features


class SentenceTransformersEncoder(CallableEncoder):
    """Encodes texts with a sentence-transformers model; no code of the model runs.

    Of a folder only safetensors are read, because the fingerprint covers no other weights.
    """

    def __init__(self, name: str | os.PathLike[str], *, device: str | None = None) -> None:
        name = os.fspath(name)
        library = import_package("sentence_transformers", f"the encoder {name!r} needs", "sentence")
        _check_version(library.__version__)
        pickled = [
            path
            for path in Path(name).rglob("pytorch_model*.bin")
            if not any(path.parent.glob("*.safetensors"))
        ]
        if pickled:
            raise InputError(
                f"{pickled[0]} contains pickled weights, which are not read; save the model again with "
                "sentence-transformers, which writes safetensors."
            )
        try:
            with _hide_progress() if os.path.isdir(name) else nullcontext():
                model = library.SentenceTransformer(
                    name, device=device, trust_remote_code=False, model_kwargs={"use_safetensors": True}
                )
        except Exception as error:  # the library and transformers have many exceptions without a common base
            reason = (str(error).splitlines() or [type(error).__name__])[0].strip().rstrip(".")
            raise InputError(
                f"{name!r} could not be opened as a sentence-transformers model ({reason}); give the folder "
                "of one, or its name on the Hugging Face Hub."
            ) from None
        encode = partial(model.encode, batch_size=64, convert_to_numpy=True, show_progress_bar=False)
        super().__init__(encode, folder_fingerprint(Path(name)) or f"sentence-transformers:{name}")
        source = os.path.abspath(name) if os.path.isdir(name) else name
        self.label, self.origin, self._device = os.path.basename(source), {"source": source}, device

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process loads the model itself.
        return partial(type(self), device=self._device), (self.origin["source"],)


def folder_fingerprint(folder: Path) -> str:
    """Return the fingerprint of a sentence-transformers folder; empty if it has no weights.

    It covers everything that decides the features: weights, modules, settings and tokenizer.
    """
    if not folder.is_dir() or not any(folder.rglob("*.safetensors")):
        return ""
    suffixes = {".safetensors", ".json", ".txt", ".model"}
    files = sorted(path for path in folder.rglob("*") if path.suffix in suffixes and path.is_file())
    listing = "".join(f"{path.relative_to(folder).as_posix()}\0{file_digest(path)}\n" for path in files)
    return f"sentence-transformers:{hashlib.sha256(listing.encode()).hexdigest()[:32]}"


def _check_version(version: str) -> None:
    # Before 6.0 the library imports the code that a local folder names, whatever trust_remote_code says.
    if int(version.partition(".")[0]) < 6:
        raise InputError(
            f"sentence-transformers {version} runs the code that a model folder names; install 6.0 or later: "
            'pip install "sentence-transformers>=6"'
        )


@contextmanager
def _hide_progress() -> Iterator[None]:
    """Keep transformers from drawing a bar while it reads weights from the disk, which takes a second."""
    logging = importlib.import_module("transformers.utils.logging")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
