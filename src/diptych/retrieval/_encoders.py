"""The encoders of a retriever, one or several for each view: opened by name, compared by fingerprint."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import (
    IMAGE_AND_TEXT,
    InputError,
    ViewNames,
    count,
    plural,
    with_article,
)
from diptych._persistence import Schema
from diptych.encoders._decoding import is_image
from diptych.encoders._fastembed import FASTEMBED, find_fastembed
from diptych.encoders._hkse_encoder import HKSEEncoder, is_hkse
from diptych.encoders._image import (
    ImageEncoder,
    Inputs,
    encode_inputs,
    inputs_of,
    prepare_input,
)
from diptych.encoders._preprocessing import Recipe
from diptych.encoders._several import join_encoders, join_names, name_blocks, split_encoders
from diptych.encoders._text import folder_fingerprint, sentence_encoder
from diptych.retrieval._items import VIEWS, View, file_name

ARGUMENTS = {"image": "image_encoder", "text": "text_encoder"}
"""The argument of ``Retriever`` for the encoder of each view."""


class Origin(Schema, frozen=True):
    """Where an encoder can be opened again.

    ``source`` is a path or a name. ONNX files have a ``recipe``; of a model of fastembed ``weights`` is the
    folder. ``beside`` is the path from the model folder, for encoders that are moved together with it.
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

    @property
    def can_reopen(self) -> bool:
        """Whether the encoder can be opened again as long as its files stay where they are."""
        return self.source == "pyramid" or os.path.isabs(self.path)

    def relative_to(self, folder: Path) -> Origin:
        """Return the origin with the path of the encoder from a model folder."""
        if os.path.isabs(self.path):
            with suppress(ValueError):  # on another drive of Windows
                beside = os.path.relpath(os.path.realpath(self.path), folder)
                return msgspec.structs.replace(self, beside=beside)
        return self

    def locate(self, folder: Path) -> Origin:
        """Return the origin of an encoder that may have been moved together with a model folder."""
        if self.beside is None:
            return self
        path = self.path if os.path.exists(self.path) else os.path.abspath(folder / self.beside)
        field = "source" if self.weights is None else "weights"
        return msgspec.structs.replace(self, beside=None, **{field: path})

    def strip_paths(self) -> Origin:
        """Return the origin as it is published: with file names instead of the paths of this machine."""
        source = file_name(self.source)
        kind, colon, path = source.partition(":")
        source = f"{kind}:{file_name(path)}" if colon else source
        return Origin(source, self.recipe, self.weights and file_name(self.weights))


class EncoderRecord(Schema, frozen=True):
    """What a model knows of an encoder: a name for people, a fingerprint, and where to open it again.

    An empty fingerprint matches any encoder. Without an origin, the user has to give the encoder again.
    ``several`` are the records of several encoders of one view; name and fingerprint are then those of all.
    """

    name: str = ""
    fingerprint: str = ""
    origin: Origin | None = None
    several: tuple[EncoderRecord, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Refuse one encoder as several, and several of several."""
        if self.several is not msgspec.UNSET and (
            len(self.several) < 2 or any(part.parts for part in self.several)
        ):
            raise InputError("several: expected the records of at least two encoders")

    @property
    def parts(self) -> tuple[EncoderRecord, ...]:
        """The records of several encoders; empty if it is one."""
        return () if self.several is msgspec.UNSET else self.several

    @classmethod
    def of(cls, encoder: Any) -> EncoderRecord:
        """Return what a model should know of an encoder."""
        if len(encoders := split_encoders(encoder)) > 1:
            return cls._join(tuple(map(cls.of, encoders)))
        fingerprint, origin = str(getattr(encoder, "fingerprint", "")), getattr(encoder, "origin", {})
        kind = fingerprint.partition(":")[0] or type(encoder).__name__
        name = str(getattr(encoder, "label", "") or getattr(encoder, "name", "")) or kind
        return cls(name, fingerprint, Origin(**origin) if origin else None)

    @classmethod
    def _join(cls, parts: tuple[EncoderRecord, ...]) -> EncoderRecord:
        name, fingerprint = join_names(p.name for p in parts), join_names(p.fingerprint for p in parts)
        return cls(name, fingerprint, None, parts)

    @property
    def short_name(self) -> str:
        """The name of its features as a block: that of a file or network, without folder or library."""
        if self.origin is None:
            return self.name
        if self.origin.source.endswith(".onnx"):
            return Path(file_name(self.origin.source)).stem
        return re.split("[/:]", self.name)[-1] or self.name

    def accepts(self, record: EncoderRecord) -> bool:
        """Return whether another record is of the same encoder."""
        if not self.parts:
            return self.fingerprint in ("", record.fingerprint)
        same_number = len(self.parts) == len(record.parts)
        return same_number and all(a.accepts(b) for a, b in zip(self.parts, record.parts, strict=True))

    @property
    def can_reopen(self) -> bool:
        """Whether the encoder can be opened again as long as its files stay where they are."""
        return self.origin is not None and self.origin.can_reopen

    def relative_to(self, folder: Path) -> EncoderRecord:
        """Return the record with the path of the encoder from a model folder."""
        return self._change_origins(lambda origin: origin.relative_to(folder))

    def locate(self, folder: Path) -> EncoderRecord:
        """Return the record of an encoder that may have been moved together with a model folder."""
        return self._change_origins(lambda origin: origin.locate(folder))

    def strip_paths(self) -> EncoderRecord:
        """Return the record as it is published: with file names instead of the paths of this machine."""
        return self._change_origins(Origin.strip_paths, file_name)

    def _change_origins(
        self, change: Callable[[Origin], Origin], rename: Callable[[str], str] = str
    ) -> EncoderRecord:
        if self.parts:
            return self._join(tuple(part._change_origins(change, rename) for part in self.parts))
        if self.origin is None:
            return self
        return EncoderRecord(rename(self.name), self.fingerprint, change(self.origin))

    def reopen(self, view: View) -> Any:
        """Open the encoder again, or raise an ``InputError`` that says why it cannot be.

        A network or a folder is opened only after its digest was compared, and nothing is downloaded because
        a model names it.
        """
        if self.origin is None:
            raise InputError(f"{self.name} is not stored with the model")
        from diptych.encoders._named import image_encoder
        from diptych.encoders._networks import network_fingerprint

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


@dataclass(frozen=True)
class Auto:
    """``fit`` chooses an encoder, and opens it when something is encoded: it may have to be downloaded."""


@dataclass(frozen=True, eq=False)
class Unfitted:
    """Text encoders, one of which is an HKSE that is fitted on the captions first."""

    encoders: Sequence[Any]


@dataclass(frozen=True, eq=False)
class Ready:
    """An open encoder; ``unfitted`` is what it was made from, if the next ``fit`` is to fit it again."""

    encoder: Any
    unfitted: Unfitted | None = None


@dataclass(frozen=True)
class Closed:
    """The encoder of a saved model, opened when it is first needed; ``failure`` says why that is impossible.

    If the model has no record of an encoder, there is none.
    """

    failure: str = ""


State: TypeAlias = Auto | Unfitted | Ready | Closed


class Encoders:
    """The image encoders and the text encoders, mostly one of each; either may be missing.

    Several encoders of a view are one encoder for everybody else: see ``SeveralEncoders``.

    Parameters
    ----------
    image
        As ``diptych.encoders.image_encoder`` takes it, an ``ImageEncoder``, a list of these, or ``"auto"``.
    text
        ``"hkse"``, an ``HKSE`` (fitted or not), what ``diptych.encoders.sentence_encoder`` takes, a list of
        these, or ``"auto"``.
    records
        The encoders that a model was fitted with; others are refused.
    views
        What messages call an image and a text.
    hkse
        The HKSE that is stored with the model.
    layout
        Names and widths of the feature blocks of each view of the model.
    """

    def __init__(
        self,
        image: Any = None,
        text: Any = None,
        records: Mapping[View, EncoderRecord] | None = None,
        views: ViewNames = IMAGE_AND_TEXT,
        hkse: HKSEEncoder | None = None,
        layout: Callable[[View], Mapping[str, int]] = lambda view: {},
    ) -> None:
        self.records: dict[View, EncoderRecord] = dict(records or {})
        self.views = views
        self._stored = hkse
        self._widths = {view: tuple(layout(view).values()) for view in VIEWS}
        if text is None and not self._record("text").parts:
            text = self._stored
        self._states: dict[View, State] = {
            view: self._read(view, source) for view, source in zip(VIEWS, (image, text), strict=True)
        }

    @property
    def image(self) -> ImageEncoder | None:
        """The image encoder; one that the model knows is opened when it is first needed."""
        encoder: ImageEncoder | None = self._get("image")
        return encoder

    @property
    def inputs(self) -> Inputs:
        """What the encoder of the first view takes: images, paths or texts; images if none is open."""
        return inputs_of(self._find_open("image"))

    @property
    def text(self) -> Any:
        """The text encoder; one that the model knows is opened when it is first needed."""
        return self._get("text")

    @property
    def hkse(self) -> HKSEEncoder | None:
        """The fitted HKSE, if that is the text encoder or one of them."""
        encoders = (*split_encoders(self._find_open("text")), self._stored)
        return next((encoder for encoder in encoders if isinstance(encoder, HKSEEncoder)), None)

    def match_open(self, view: View, records: Mapping[View, EncoderRecord]) -> Any:
        """Return the open encoder if it is the one that another model was fitted with; None otherwise."""
        encoder = self._find_open(view)
        if encoder is None:
            return None
        return encoder if records.get(view, EncoderRecord()).accepts(EncoderRecord.of(encoder)) else None

    def can_reopen(self, view: View, *, published: bool = False) -> bool:
        """Return whether a saved or published model can open the encoder of a view again."""
        record = self.describe(view).strip_paths() if published else self.describe(view)
        stored = getattr(self.hkse, "fingerprint", None)
        return all(part.can_reopen or part.fingerprint == stored for part in record.parts or (record,))

    def choose_defaults(self, random_state: int | None = 0, *, fuses: bool = False) -> None:
        """Open an encoder for each view that was left at ``"auto"``, unless the other view has none.

        ``fuses`` says that the model is a fusion, which can use the similarity of two towers itself.
        """
        if any(isinstance(self._states[view], Closed) and self._get(view) is None for view in VIEWS):
            return
        auto = [view for view in VIEWS if isinstance(self._states[view], Auto)]
        from diptych.retrieval._recommended import open_defaults

        for view, encoder in open_defaults(auto, random_state, fuses=fuses).items():
            self._states[view] = Unfitted([encoder]) if is_hkse(encoder) else Ready(encoder)

    def fit_text(self, captions: Sequence[str]) -> None:
        """Fit an HKSE that is not fitted yet, or that an earlier fit has fitted."""
        state = self._states["text"]
        unfitted = state.unfitted if isinstance(state, Ready) else state
        if isinstance(unfitted, Unfitted):
            encoders = [
                sentence_encoder(encoder.fit(captions)) if is_hkse(encoder) else encoder
                for encoder in unfitted.encoders
            ]
            self._states["text"] = Ready(join_encoders("text", encoders), unfitted)

    def layout(self, widths: Mapping[View, int]) -> dict[View, dict[str, int]]:
        """Return names and widths of the feature blocks of each view; none if no view has several encoders.

        ``widths`` are the numbers of features of each view. A fusion takes no name twice.
        """
        several = {view: split_encoders(self._find_open(view)) for view in VIEWS}
        layout: dict[View, dict[str, int]] = {}
        used_names: set[str] = set()
        for view, encoders in several.items() if max(map(len, several.values())) > 1 else ():
            names = name_blocks((EncoderRecord.of(encoder).short_name for encoder in encoders), used_names)
            sizes = self._find_open(view).widths if len(encoders) > 1 else [widths[view]]
            layout[view] = dict(zip(names, sizes, strict=True))
            used_names |= set(names)
        return layout

    def remember(self, fingerprints: Sequence[str]) -> None:
        """Remember which encoders made the features that a model is fitted on, where none is open here."""
        for view, fingerprint in zip(VIEWS, fingerprints, strict=True):
            if fingerprint and self._find_open(view) is None:
                self.records[view] = EncoderRecord(fingerprint, fingerprint)

    def describe(self, view: View) -> EncoderRecord:
        """Return what a model should know of an encoder."""
        encoder = self._find_open(view)
        return self._record(view) if encoder is None else EncoderRecord.of(encoder)

    def name(self, view: View) -> str:
        """Return the name of an encoder for people."""
        state = self._states[view]
        if isinstance(state, Auto):
            return "auto"
        if isinstance(state, Unfitted):
            return join_names(
                "hkse (not fitted)" if is_hkse(encoder) else EncoderRecord.of(encoder).name
                for encoder in state.encoders
            )
        return self.describe(view).name or "none"

    def encode_images(self, images: Sequence[Any]) -> np.ndarray[Any, Any]:
        """Return the features of images: paths, bytes or Pillow images; or of what the encoder takes."""
        encoder, name = self.image, self.views.image
        if encoder is None:
            raise self.missing("image")
        with ExitStack() as stack:
            if self.inputs == "paths":
                images = [stack.enter_context(_as_file(image)) for image in images]
            prepared = [prepare_input(encoder, image, name) for image in images]
            for image in prepared:
                if isinstance(image, InputError):
                    raise image
            features, refused = encode_inputs(encoder, prepared, name)
        for error in refused.values():
            raise error
        return self._check_rows(features, len(prepared), "image")

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray[Any, Any]:
        """Return the features of texts to be stored, which may be empty."""
        encoder = self._check_texts(texts, least=0)
        return self._check_rows(encoder.encode(list(texts)), len(texts), "text")

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
        record, state, name = self._record(view), self._states[view], self.views.of(view)
        argument = ARGUMENTS[view]
        option = argument.replace("_", "-")
        encoded = f"its {plural(name)} were encoded by {record.name}"
        if isinstance(state, Closed) and state.failure:
            wanted = self._list_parts(view) + "," if record.parts else "it"
            return InputError(
                f"this model has no {name} encoder here: {encoded}, but {state.failure}; give "
                f"{wanted} with --{option} ({argument}= in Python)."
            )
        encoded = encoded if record.name else "it was made from features"
        return InputError(
            f"this model has no {name} encoder here: {encoded}. Give {argument}= in Python or --{option} on "
            "the command line, or give features."
        )

    def _check_texts(self, texts: Sequence[str], least: int = 1) -> Any:
        if self.text is None:
            raise self.missing("text")
        for text in texts:
            if not isinstance(text, str) or len(text.strip()) < least:
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

    def _record(self, view: View) -> EncoderRecord:
        return self.records.get(view, EncoderRecord())

    def _find_open(self, view: View) -> Any:
        """Return the encoder of a view if it is open; None otherwise."""
        state = self._states[view]
        return state.encoder if isinstance(state, Ready) else None

    def _read(self, view: View, source: Any) -> State:
        """Return the state of what the user has given for a view: an encoder, a list, a name, or None."""
        if source is None:
            return Closed()
        if isinstance(source, str) and source == "auto":
            return Auto() if view == "text" or self.views.image == "image" else Closed()
        return self._open(view, source)

    def _open(self, view: View, chosen: Any) -> Unfitted | Ready:
        """Open the encoder, or the list of encoders, that the user has given for a view."""
        name, record = self.views.of(view), self._record(view)
        sources = list(chosen) if isinstance(chosen, list | tuple) else split_encoders(chosen)
        if not sources:
            raise InputError(f"the list of {name} encoders is empty; give at least one.")
        if any(isinstance(source, str) and source == "auto" for source in sources):
            raise InputError(f"'auto' in a list of {name} encoders stands for none of them; name each.")
        if record.parts and len(sources) != len(record.parts):
            raise InputError(
                f"{count(len(sources), f'{name} encoder')} given, but the model was made with "
                f"{len(record.parts)}; give {self._list_parts(view)}."
            )
        expected = record.parts or (record if len(sources) == 1 else EncoderRecord(),) * len(sources)
        open_one = self._open_image_encoder if view == "image" else self._open_text_encoder
        encoders = [open_one(source, part) for source, part in zip(sources, expected, strict=True)]
        ready = [EncoderRecord.of(encoder) for encoder in encoders if not is_hkse(encoder)]
        for i, part in enumerate(ready):
            if part.fingerprint and part.fingerprint in [previous.fingerprint for previous in ready[:i]]:
                raise InputError(f"the {name} encoder {part.name} was given twice; give it once.")
        if sum(is_hkse(encoder) or isinstance(encoder, HKSEEncoder) for encoder in encoders) > 1:
            raise InputError("a model stores one hkse; give one of them.")
        if any(map(is_hkse, encoders)):
            return Unfitted(encoders)
        for part, wanted in zip(ready, expected, strict=True) if record.parts else ():
            if not wanted.accepts(part):
                part_name, wanted_name = (
                    f"{r.name} ({r.fingerprint})" if r.fingerprint else r.name for r in (part, wanted)
                )
                raise InputError(
                    f"of the {name} encoders given, {part_name} is where the model has {wanted_name}; give "
                    f"{self._list_parts(view)} (the same files, weights and preprocessing)."
                )
        encoder = self._join(view, encoders)
        if not record.accepts(described := EncoderRecord.of(encoder)):
            raise InputError(
                f"the {name} encoder given is {described.fingerprint or described.name!r}, but the model was "
                f"made with {record.fingerprint!r}; give that one (the same file, weights and preprocessing)."
            )
        return Ready(encoder)

    def _join(self, view: View, encoders: Sequence[Any]) -> Any:
        widths = self._widths[view]
        return join_encoders(view, encoders, widths if len(widths) == len(encoders) else ())

    def _list_parts(self, view: View) -> str:
        names = ", ".join(part.name for part in self._record(view).parts)
        return f"all of them, in this order: {names}"

    def _open_image_encoder(self, source: Any, record: EncoderRecord) -> ImageEncoder:
        """Open an image encoder; one by its name, with the recipe that the model was fitted with."""
        if not isinstance(source, str | os.PathLike):
            if isinstance(source, ImageEncoder):
                return source
            raise InputError(
                f"{type(source).__name__} is not {with_article(f'{self.views.image} encoder')}; give an "
                ".onnx file, a name, or an object with encode(), dimension and fingerprint."
            )
        from diptych.encoders._named import image_encoder

        name = os.fspath(source)
        takes_recipe = name != "pyramid" and not name.startswith(FASTEMBED)
        if takes_recipe and record.origin is not None and record.origin.recipe is not None:
            return image_encoder(source, Recipe.from_dict(record.origin.recipe))
        return image_encoder(source)

    def _open_text_encoder(self, source: Any, record: EncoderRecord) -> Any:
        """Open a text encoder; an HKSE that is to be fitted is copied."""
        if isinstance(source, str) and source == "hkse":
            if self._stored is not None:
                return self._stored
            if record.fingerprint:
                raise InputError("no hkse is stored with this model; give the encoder it was made with.")
            from diptych.encoders._hkse import HKSE

            source = HKSE()
        if is_hkse(source) and not hasattr(source, "encoder_"):
            from sklearn.base import clone

            return clone(source)
        # A string has an encode() of its own, which is not meant.
        if isinstance(source, np.ndarray | str) or not hasattr(source, "encode"):
            return sentence_encoder(source)
        return source

    def _get(self, view: View) -> Any:
        """Return the encoder of a view, opened if the model knows where; None if there is none."""
        record = self._record(view)
        if self._states[view] == Closed() and (record.origin is not None or record.parts):
            try:
                encoders = [self._reopen(view, part) for part in record.parts or (record,)]
                self._states[view] = Ready(self._join(view, encoders))
            except InputError as error:
                self._states[view] = Closed(str(error).rstrip("."))
        return self._find_open(view)

    def _reopen(self, view: View, record: EncoderRecord) -> Any:
        if self._stored is not None and self._stored.fingerprint == record.fingerprint:
            return self._stored
        return record.reopen(view)


def needs_stored_hkse(text: Any) -> bool:
    """Return whether a text encoder, as users give it for a saved model, is the HKSE stored in it."""
    sources = text if isinstance(text, list | tuple) else [text]
    return any(source is None or (isinstance(source, str) and source == "hkse") for source in sources)


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a table of features, rather than something to encode."""
    if isinstance(value, str | bytes):
        return False
    if hasattr(value, "ndim") and hasattr(value, "dtype"):
        texts = value.ndim == 1 and getattr(value.dtype, "kind", "f") in "OUT"
        return not (texts and all(isinstance(text, str) for text in value))
    return hasattr(value, "columns") and hasattr(value, "__array__")


def as_list(value: Any, names: ViewNames = IMAGE_AND_TEXT) -> tuple[list[Any], bool]:
    """Return inputs as a list, and whether it was a single one: a path, bytes, an image, a text."""
    if isinstance(value, list | tuple):
        return list(value), False
    if isinstance(value, str | bytes) or hasattr(value, "__fspath__") or is_image(value):
        return [value], True
    if not isinstance(value, Iterable):
        items = ", ".join(map(with_article, names))
        raise InputError(f"{value!r} is not {items} or an array of features, nor a list of them.")
    return list(value), False


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
