"""The verbs that ask: search, annotate, similar, and the vectors of what is asked.

The Retriever: encoders, a model for each task and an index, as one object.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
from sklearn.base import clone

from diptych._checks import InputError, check_choice, check_matrix, check_pairing, check_task, count
from diptych._devices import check_device
from diptych._persistence import ChangedError, Version
from diptych.cca import AWCCA, Engine
from diptych.cca._weighting import Weighting
from diptych.data import PairedDataset, PairedViews
from diptych.fusion import Fusion
from diptych.image import OnnxEncoder
from diptych.retrieval._embedding import SEARCHED, Layout
from diptych.retrieval._encoders import Encoders, choose_recipe, is_array, warn_of_pyramid
from diptych.retrieval._fit import (
    Fitted,
    Recalls,
    Watch,
    Whereabouts,
    encode_views,
    fit_model,
    recalls,
    warn_if_training,
)
from diptych.retrieval._folder import Base, describe, load, read_version, save
from diptych.retrieval._homes import home_of, opened
from diptych.retrieval._inputs import (
    Metadata,
    by_id,
    encoded_again,
    image_items,
    items_given,
    items_of,
    joined,
    queries_of,
    side_by_side,
    text_items,
    warn_if_far,
)
from diptych.retrieval._items import VIEWS, Hit, Hits, Item, View, Where
from diptych.retrieval._learning import adopted, learned_again
from diptych.retrieval.stores._base import Collection, Content, Given, OtherEncodersError
from diptych.retrieval.stores._faiss import DTYPES
from diptych.retrieval.stores._memory import MemoryCollection

T = TypeVar("T")


class Asking:
    """Encoders and a collection: all that it takes to answer."""

    encoders: Encoders
    _collection: Collection | None

    @property
    def collection(self) -> Collection:
        """The items, their vectors and the fitted model; a refit puts another in its place."""
        if self._collection is None:
            raise InputError("this retriever is not fitted; call fit(), or load a saved one.")
        return self._collection

    def search(
        self, text: Any, k: int = 10, *, where: Where | None = None, weighting: Weighting | None = None
    ) -> Any:
        """The ``k`` best pictures for a sentence, as ``Hits``; for several, a list of such lists.

        ``hits.ignored_words`` names the words of a sentence that the text encoder does not know and left out.

        Parameters
        ----------
        text
            A sentence, a list of them, or features: one row, a matrix, or named blocks of these
            (``{"glove": …, "bert": …}``) for a model made from such.
        k
            How many.
        where
            Only items with these values of metadata (``{"split": "test", "colour": ["red", "blue"]}``), or
            for which this function of an ``Item`` is true, or only these ids.
        weighting
            Another weighting than the model's, to compare with.
        """
        return self._asked("text", text, lambda held, rows: held.found("search", rows, k, where, weighting))

    def annotate(
        self,
        image: Any,
        k: int = 5,
        *,
        where: Where | None = None,
        packs: bool = False,
        weighting: Weighting | None = None,
    ) -> Any:
        """The ``k`` best sentences for a picture; for several, a list of such lists.

        Parameters
        ----------
        image
            A path, a Pillow image, the bytes of an image file, a list of these, or features: one row, a
            matrix, or named blocks of these (``{"resnet": …, "dino": …}``) for a model made from such.
        k
            How many.
        where
            Only items with these values of metadata (``{"split": "test", "colour": ["red", "blue"]}``), or
            for which this function of an ``Item`` is true, or only these ids.
        packs
            Find all captions of one picture as a whole instead: a list of ``Pack``.
        weighting
            Another weighting than the model's, to compare with.
        """
        if packs and (where is not None or weighting is not None):
            raise InputError("packs are found among all pictures; leave out where and weighting.")

        def found(held: Collection, rows: np.ndarray[Any, Any]) -> Any:
            return held.packs(rows, k) if packs else held.found("annotate", rows, k, where, weighting)

        return self._asked("image", image, found)

    def similar(
        self, image: Any = None, text: Any = None, k: int = 10, *, where: Where | None = None
    ) -> list[Hit]:
        """Pictures like a picture, or sentences like a sentence, in the canonical space."""
        if (image is None) == (text is None):
            raise InputError("similar takes an image or a text, one of them.")
        view: View = "text" if image is None else "image"
        found: list[Hit] = self._asked(
            view,
            text if image is None else image,
            lambda held, rows: held.similar(view, rows, k, where),
            alone=True,
        )
        return found

    def embed_images(self, images: Any, *, task: str = "search") -> np.ndarray[Any, Any]:
        """Vectors of pictures for a store of one's own: inner products with sentences' of a task rank."""
        return self._embed("image", images, task)

    def embed_texts(self, texts: Any, *, task: str = "search") -> np.ndarray[Any, Any]:
        """Vectors of sentences for a store of one's own: inner products with pictures' of a task rank."""
        return self._embed("text", texts, task)

    def _asked(
        self,
        view: View,
        given: Any,
        answers: Callable[[Collection, np.ndarray[Any, Any]], list[Any]],
        alone: bool = False,
    ) -> Any:
        """Answers to queries; the first by itself if there was a single query, which ``alone`` demands."""
        given = self._joined(view, given)

        def ask() -> Any:
            # In this order: a collection may refuse what newer encoders made, but cannot know older ones.
            collection = self.collection
            queries = queries_of(self.encoders, view, given)
            if alone and not queries.single:
                raise InputError("similar takes one item at a time; call it for each.")
            found = answers(collection, queries.rows)
            if view == "text":
                found = list(map(Hits, found, queries.ignored_words or repeat(())))
            return found[0] if queries.single else found

        return self._encoded(ask, again=not is_array(given))

    def _joined(self, view: View, given: Any) -> Any:
        """``given``, with named blocks of features as one row or matrix."""
        return joined(given, self.collection.fitted, view) if isinstance(given, Mapping) else given

    def _encoded(self, action: Callable[[], T], *, again: bool) -> T:
        """Do something that encodes first; ``again`` if what is searched wants other encoders by then."""
        while True:
            try:
                return action()
            except OtherEncodersError as other:
                if not again:
                    raise
                content = other.reopen()
                kept = self.encoders.kept
                self.encoders = content.encoders(kept("image", content.known), kept("text", content.known))
                self._collection = content.collection

    def _embed(self, view: View, given: Any, task: str) -> np.ndarray[Any, Any]:
        chosen = check_task(task)
        queries = queries_of(self.encoders, view, self._joined(view, given)).rows
        embedding = self.collection.embedding
        if SEARCHED[chosen] == view:
            return embedding.items(queries, chosen)[0]
        return embedding.queries(queries, chosen)


class Retriever(Asking):
    """Search pictures with sentences and sentences with pictures, or any two views with each other.

    Parameters
    ----------
    image_encoder
        An ``.onnx`` file, ``"torchvision:NAME"``, ``"timm:NAME"``, ``"pyramid"`` (no weights: for drawings
        and trials), or an object with ``encode``, ``dimension`` and ``fingerprint``. Where an ``.onnx`` file
        does not say how it wants its images, ``fit`` chooses by retrieval on some training pairs. ``"auto"``:
        ``"pyramid"``, with a ``DataWarning`` when images are encoded.
    text_encoder
        ``"hkse"``, an ``HKSE``, the name or folder of a sentence-transformers model, or any function from
        a list of sentences to an array.
    model
        The ``AWCCA`` or ``Fusion`` to fit; None: an ``AWCCA`` with its defaults.
    preset
        ``"best"``: a ``Fusion`` of everything that makes retrieval more accurate; see ``docs/accuracy.md``.
    index
        ``"flat"``: exact. ``"hnsw"``: a graph, for many millions of items; its recall against exact search
        is measured when it is built. ``"postgresql://user@host/database"``: in PostgreSQL with pgvector, for
        several processes; see ``docs/postgresql.md``.
    dtype
        Of the vectors in the index: ``"float32"``, or ``"float16"`` for half the memory.
    keep_features
        Keep the features of all items, so that ``refit`` needs not encode them again. Without them, a model
        is smaller on disk.
    device
        Where fitting and evaluation run: ``"cpu"``, or a torch device such as ``"cuda"``.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(200, 4))
    >>> x = hidden @ rng.normal(size=(4, 10)) + 0.1 * rng.normal(size=(200, 10))
    >>> y = hidden @ rng.normal(size=(4, 8)) + 0.1 * rng.normal(size=(200, 8))
    >>> retriever = Retriever.from_features(x, y, ids=[f"picture {i}" for i in range(200)])
    >>> [hit.id for hit in retriever.search(y[7], k=1)]
    ['picture 7']
    """

    def __init__(
        self,
        image_encoder: Any = "auto",
        text_encoder: Any = "hkse",
        model: AWCCA | Fusion | None = None,
        *,
        preset: str | None = None,
        index: str = "flat",
        dtype: str = "float32",
        keep_features: bool = True,
        device: str = "cpu",
    ) -> None:
        self.dtype = check_choice(dtype, DTYPES, "dtype")
        self._home = home_of(index, self.dtype)
        self.index = self._home.name
        self._undecided = isinstance(image_encoder, str) and image_encoder == "auto"
        self.encoders = Encoders("pyramid" if self._undecided else image_encoder, text_encoder)
        if model is not None and preset is not None:
            raise InputError("model and preset were both given; give one of them.")
        if model is None:
            model = AWCCA() if preset is None else Fusion(preset)
        model.check_parameters()
        self.model = model
        self.keep_features, self.device = keep_features, device
        self._collection: Collection | None = None
        self.base: Base | None = None
        self._refitted: list[tuple[Any, ...] | None] = []
        self._writing = threading.RLock()

    def __repr__(self) -> str:
        """One line: whether it is fitted, what is in it, its encoders, model and index."""
        held = self._collection
        parts = [f"{view} encoder {self.encoders.name(view)}" for view in VIEWS]
        if held is None:
            parts.append(repr(self.model))
        elif not held.shared:
            # Asking a database takes a while and may fail, which a repr must not.
            parts.insert(0, ", ".join(count(held.items.count(view), view) for view in VIEWS))
            parts.append(_summary(held.fitted.model))
        index = self.index if held is None or not held.shared else f"{held.kind} ({self.index})"
        fitted = "Retriever, not fitted" if held is None else "Retriever"
        return f"<{fitted}: {'; '.join([*parts, f'index {index}'])}>"

    def fit(
        self,
        data: PairedDataset | PairedViews,
        *,
        features: str | os.PathLike[str] | None = None,
        metadata: Metadata | None = None,
        layout: Mapping[View, Layout] | None = None,
        engine: Engine | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        watch: Watch | None = None,
    ) -> Retriever:
        """Fit on the training split, measure on the others, and index every item of ``data``.

        Parameters
        ----------
        data
            Pairs with pictures on disk, which are encoded; or pairs with features.
        features
            Folder to keep encoded features in: interrupted work goes on where it stopped.
        metadata
            For some ids, plain values to filter by later.
        layout
            For features of several encoders side by side: for ``"image"`` and ``"text"``, the name and width
            of each block.
        engine, checkpoint
            Where an ``AWCCA`` sums its training pairs, and a file to go on from after an interruption; see
            ``AWCCA.fit``.
        watch
            Told about the progress of encoding.
        """
        self._check(engine)
        views = data if isinstance(data, PairedViews) else self.encode(data, features=features, watch=watch)
        fitted = fit_model(clone(self.model), views, Whereabouts(self.device, engine, checkpoint), layout)
        rows = {
            view: check_matrix(np.asarray(given), f"{view} features")
            for view, given in zip(VIEWS, (views.x, views.y), strict=True)
        }
        self._fill(fitted, items_of(views.dataset, by_id(metadata)), rows)
        return self

    def encode(
        self,
        data: PairedDataset,
        *,
        features: str | os.PathLike[str] | None = None,
        watch: Watch | None = None,
    ) -> PairedViews:
        """The first step of ``fit``: features of pairs, by encoders that are fitted on the training split."""
        self._check()
        if self._undecided:
            warn_of_pyramid()
        split = "train" in data.split_sizes()
        begun = time.perf_counter()
        self.encoders.fit_text((data.subset("train") if split else data).captions)
        seconds = {"text encoder": round(time.perf_counter() - begun, 3)}
        image, text = self.encoders.image, self.encoders.text
        if isinstance(image, OnnxEncoder) and image.assumed and text is not None:
            begun = time.perf_counter()
            told = None if watch is None else partial(watch, "images, to choose a recipe")
            seed = getattr(self.model, "random_state", 0)
            self.encoders.image = choose_recipe(image, data, text, random_state=seed, watch=told)
            seconds["choosing a recipe"] = round(time.perf_counter() - begun, 3)
        views = encode_views(data, self.encoders, features, watch)
        return replace(views, seconds={**seconds, **views.seconds})

    @classmethod
    def from_features(
        cls,
        X: Any,
        Y: Any,
        pairing: Any = None,
        *,
        ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        captions: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
        paths: Sequence[Any] | None = None,
        metadata: Metadata | None = None,
        image_encoder: Any = None,
        text_encoder: Any = None,
        **options: Any,
    ) -> Retriever:
        """Fit on vectors from any encoder.

        Parameters
        ----------
        X, Y
            Features of the two views, one row an item; or named blocks, name → features, by which items and
            queries may then be given too. An ``AWCCA`` takes them side by side, a ``Fusion`` weighs them.
        pairing
            Row j of Y belongs to row ``pairing[j]`` of X; None: row to row.
        ids, caption_ids
            A name for each row of X and of Y; None: numbers.
        captions
            The sentence of each row of Y, to be shown with what is found.
        splits
            ``"train"``, ``"val"``, ``"test"`` for each row of X; None: a share is held out to select on.
        paths
            Where the picture of each row of X lies.
        metadata
            For some ids, plain values to filter by later.
        image_encoder, text_encoder
            What made the features, if queries are to be encoded here.
        options
            As the constructor takes them.
        """
        x, x_layout = side_by_side(X, "X")
        y, y_layout = side_by_side(Y, "Y")
        pairing = check_pairing(pairing, len(x), y)
        names = tuple(map(str, ids)) if ids is not None else tuple(str(i) for i in range(len(x)))
        dataset = PairedDataset(
            names,
            ("",) * len(y)
            if captions is None
            else tuple("" if text is None else str(text) for text in captions),
            pairing,
            tuple(map(str, caption_ids)) if caption_ids is not None else (),
            None if splits is None else tuple(splits),
            None if paths is None else tuple(paths),
        )
        if len(names) != len(x) or dataset.n_captions != len(y):
            raise InputError(
                f"there are {len(names)} ids and {dataset.n_captions} captions for {len(x)} rows of X and "
                f"{len(y)} of Y; give one for each row."
            )
        retriever = cls(image_encoder, text_encoder, **options)
        layout: dict[View, Layout] = {
            v: own for v, own in zip(VIEWS, (x_layout, y_layout), strict=True) if own
        }
        return retriever.fit(PairedViews(dataset, x, y), metadata=metadata, layout=layout)

    @classmethod
    def from_model(
        cls,
        model: AWCCA | Fusion,
        *,
        features: tuple[Any, Any] | None = None,
        image_encoder: Any = None,
        text_encoder: Any = None,
        **options: Any,
    ) -> Retriever:
        """A retriever around a model that is fitted already, with nothing in it yet: fill it by ``add``.

        Parameters
        ----------
        model
            The fitted model. An ``AWCCA`` that still has its spectra can be refitted from pairs added later.
        features
            A sample ``(X, Y)`` of what it was trained on, by which new items are told to lie far; None: no
            item is ever called far.
        image_encoder, text_encoder
            What made the features, if items and queries are to be encoded here.
        options
            As the constructor takes them.
        """
        fitted = adopted(model, features)
        retriever = cls(image_encoder, text_encoder, fitted.model, **options)
        retriever._fill(fitted, {}, {})
        return retriever

    def refit(self, *, validation: tuple[Any, ...] | None = None) -> Retriever:
        """Fit again, on the training pairs and all pairs added since, and embed every item anew.

        Training pairs enter by their moments; they are not needed again. What was selected is kept, with γ
        grown by the number of pairs, unless there are pairs to select on. Searches go on meanwhile with the
        model as it was; additions and removals wait.

        Parameters
        ----------
        validation
            ``(X, Y)`` or ``(X, Y, pairing)``, as features or named blocks of them, to select the
            regularisation on again.
        """
        if validation is not None:
            x, y, *rest = validation
            validation = (self._joined("image", x), self._joined("text", y), *rest)
        with self._writing:
            self._collection = self.collection.refitted(
                lambda old: learned_again(old, self._encode_items, validation), self._encode_items
            )
            self._refitted = [validation]
        return self

    def add(
        self,
        images: Any = None,
        captions: Any = None,
        *,
        pairing: Any = None,
        ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        paths: Sequence[Any] | None = None,
        metadata: Metadata | None = None,
    ) -> list[str]:
        """Put items into the index, as the model is; returns their ids. All of them are added, or none.

        Items that lie far from what the model was trained on are added with a ``DataWarning``.

        Parameters
        ----------
        images
            Paths, Pillow images, bytes of image files, or features: one row, a matrix, or named blocks.
        captions
            Sentences, or features: one row, a matrix, or named blocks.
        pairing
            With both: caption j belongs to the new image ``pairing[j]``; None: one caption for each image.
            Pairs count for ``refit``.
        ids, caption_ids
            Names; None: the paths, and numbers otherwise.
        texts, paths
            With features: the sentences and the files they stand for.
        metadata
            For some ids, plain values to filter by.
        """
        if images is None and captions is None:
            raise InputError("add was given neither images nor captions; give at least one.")
        named = by_id(metadata)
        images, captions = self._joined("image", images), self._joined("text", captions)
        both = {"image": (images, paths), "text": (captions, texts)}

        def put() -> tuple[Given, dict[View, np.ndarray[Any, Any]]]:
            encoders, width = self.encoders, self.collection.embedding.features
            given, rows = dict[View, list[Any]](), dict[View, np.ndarray[Any, Any]]()
            for view in VIEWS:
                if both[view][0] is not None:
                    given[view], rows[view] = items_given(encoders, view, *both[view], width(view))

            def name(unused: Iterator[str]) -> Given:
                new = dict[View, list[Item]]()
                if "image" in given:
                    new["image"] = image_items(given["image"], ids, named, unused)
                if "text" in given:
                    owners = new.get("image")
                    new["text"] = text_items(given["text"], owners, pairing, caption_ids, named, unused)
                return new

            with self._writing:
                if self.encoders is encoders:
                    return self.collection.add(name, rows, self.keep_features), rows
            return put()  # a search has found other encoders meanwhile

        new, rows = self._encoded(put, again=not (is_array(images) or is_array(captions)))
        for view, own in new.items():
            warn_if_far(self.collection.fitted, view, rows[view], own)
        return [item.id for own in new.values() for item in own]

    def remove(self, ids: str | Iterable[str]) -> int:
        """Take items out; an image takes its captions with it. Returns how many items went."""
        if not isinstance(ids, Iterable):
            raise InputError(f"{ids!r} is no id; give the id of an item, or a list of ids.")
        with self._writing:
            return self.collection.remove([ids] if isinstance(ids, str) else list(ids))

    def evaluate(
        self, data: PairedDataset | PairedViews, split: str | None = "test", *, watch: Watch | None = None
    ) -> Recalls:
        """Recalls of both tasks on pairs: on one ``split`` of them, or on all (None, or pairs without)."""
        model = self.collection.fitted.model
        dataset = data if isinstance(data, PairedDataset) else data.dataset
        whole = split is None or dataset.splits is None
        if not whole and len(dataset.image_rows(str(split))) == 0:
            raise InputError(f"the pairs have no {split} split; choose another.")
        if isinstance(data, PairedDataset):
            chosen = data if whole else data.subset(str(split))
            views = encode_views(chosen, self.encoders, watch=watch)
        else:
            views = replace(data, x=self._joined("image", data.x), y=self._joined("text", data.y))
        rows = np.arange(views.dataset.n_images) if whole else views.dataset.image_rows(str(split))
        warn_if_training(self.collection.fitted.facts, views, rows)
        return recalls(model, views.of(rows), self.device)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything as a new version of ``folder``, atomically; see ``diptych.retrieval._folder``.

        What other processes have saved to the folder since this was loaded from there is kept: items that
        were added or removed here are added to it, or removed from it. If that cannot be done, because an id
        was given twice or the model was fitted on features of other encoders, it is an ``InputError``, and
        nothing is written. A retriever that was fitted here replaces what is in the folder.
        """
        with self._writing:
            save(self, folder, self._bring)
            self._refitted = []

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        image_encoder: Any = None,
        text_encoder: Any = None,
        *,
        mmap: bool = False,
        trust_graph: bool = False,
        device: str = "cpu",
        index: str | None = None,
    ) -> Retriever:
        """Read what ``save`` wrote; nothing in the folder is executed.

        Parameters
        ----------
        folder
            Where it lies.
        image_encoder, text_encoder
            The encoders, where they are neither in the folder nor where they were when it was saved; they
            are checked against its fingerprints. What the folder remembers is opened when it is first
            needed, and only if it is unchanged.
        mmap
            Leave vectors and features on disk and map them: loading takes no time and no memory, and their
            checksums are not compared.
        trust_graph
            Read an HNSW file as it is, which FAISS does not make safe for files of strangers; otherwise the
            graph is built anew.
        device
            Where evaluation runs.
        index
            For a folder that points to a database: its address, where that has a password or has changed.
        """
        own_text = text_encoder is None
        content, base = load(folder, mmap=mmap, trust_graph=trust_graph, own_text=own_text, index=index)
        retriever = cls._of(content, image_encoder, text_encoder, device)
        retriever.base = base
        return retriever

    @classmethod
    def connect(
        cls, address: str, image_encoder: Any = None, text_encoder: Any = None, *, device: str = "cpu"
    ) -> Retriever:
        """Open what a database holds; see ``docs/postgresql.md``.

        Parameters
        ----------
        address
            ``postgresql://user@host/database``.
        image_encoder, text_encoder
            The encoders, where they are neither in the database nor where they were when it was filled; they
            are checked against its fingerprints.
        device
            Where evaluation runs.
        """
        content = opened(address, own_text=text_encoder is None)
        return cls._of(content, image_encoder, text_encoder, device)

    def info(self) -> dict[str, Any]:
        """What is known of the model, as plain data."""
        return describe(self)

    @classmethod
    def _of(cls, content: Content, image_encoder: Any, text_encoder: Any, device: str) -> Retriever:
        retriever = cls(None, None, content.collection.fitted.model, device=device, **content.options)
        retriever.encoders = content.encoders(image_encoder, text_encoder)
        retriever._collection = content.collection
        return retriever

    def _check(self, engine: Engine | None = None) -> None:
        """Refuse, before any work, what would fail after it."""
        self._home.check()
        self.model.check_parameters()
        if self.device != "cpu":
            check_device(self.device)
        if engine is not None and isinstance(self.model, Fusion):
            raise InputError("a fusion is fitted in this process; leave out the engine, or fit an AWCCA.")

    def _fill(self, fitted: Fitted, given: Given, rows: Mapping[View, np.ndarray[Any, Any]]) -> None:
        with self._writing:
            self._collection = self._home.fill(fitted, given, rows, self.keep_features, self.encoders)
            self.base, self._refitted = None, []

    def _bring(self, current: Version) -> None:
        """Apply the changes made here to what others have saved meanwhile, and go on with that."""
        content, base = read_version(current, own_text=False)
        mine, theirs = self.collection, content.collection
        if not isinstance(mine, MemoryCollection) or not isinstance(theirs, MemoryCollection):
            raise ChangedError(f"{current.folder} holds another model by now; load it again.")
        for view in VIEWS:
            same = mine.embedding.features(view) == theirs.embedding.features(view)
            if not same or self.encoders.describe(view).fingerprint != content.known[view].fingerprint:
                raise ChangedError(
                    f"{current.folder} was fitted anew meanwhile, on features of another {view} encoder; "
                    "load it again and repeat the changes."
                )
        assert self.base is not None
        theirs.take_changes(mine, self.base.first_key, self._encode_items, content.options["keep_features"])
        for validation in self._refitted:
            learn = partial(learned_again, encode=self._encode_items, validation=validation)
            theirs = theirs.refitted(learn, self._encode_items)
        self._collection, self.base = theirs, replace(base, hkse=self.encoders.hkse)
        self.dtype, self.index = content.options["dtype"], content.options["index"]
        self.keep_features = content.options["keep_features"]

    def _encode_items(self, view: View, items: list[Item]) -> np.ndarray[Any, Any]:
        return encoded_again(self.encoders, view, items)


def _summary(model: AWCCA | Fusion) -> str:
    if isinstance(model, Fusion):
        return f"Fusion, preset {model.preset}"
    filters = (f"{task} {own.filter_x} and {own.filter_y}" for task, own in model.models_.items())
    return f"AWCCA, {', '.join(filters)}"
