"""The Retriever: encoders, a model for each task and an index, as one object."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from diptych.arrays import to_numpy
from diptych.cca import AWCCA
from diptych.cca.weighting import Weighting
from diptych.checks import DataWarning, InputError, check_choice, check_pairing, check_task, check_view
from diptych.data import PairedDataset, PairedViews
from diptych.fusion import Fusion
from diptych.normalize import normalize
from diptych.retrieval import saved
from diptych.retrieval.collection import Collection, Where, keep_features
from diptych.retrieval.embedding import SEARCHED, Layout
from diptych.retrieval.encoders import Encoders, as_list, is_array
from diptych.retrieval.fitting import Fitted, Recalls, Watch, encode_views, fit_model, on_device, recalls
from diptych.retrieval.index import DTYPES, VectorIndex
from diptych.retrieval.items import VIEWS, Item, Items, View
from diptych.retrieval.naming import Metadata, image_items, items_of, text_items
from diptych.retrieval.results import Hit

KINDS = ("flat", "hnsw")

_BATCH = 256


class Retriever:
    """Search pictures with sentences and sentences with pictures, or any two views with each other.

    Parameters
    ----------
    image_encoder
        An ``.onnx`` file, ``"torchvision:NAME"``, ``"timm:NAME"``, ``"pyramid"`` (no weights: for drawings
        and trials), or an object with ``encode``, ``dimension`` and ``fingerprint``.
    text_encoder
        ``"hkse"``, an ``HKSE``, the name or folder of a sentence-transformers model, or any function from
        a list of sentences to an array.
    model
        The ``AWCCA`` or ``Fusion`` to fit; None: an ``AWCCA`` with its defaults.
    preset
        ``"best"``: a ``Fusion`` of everything that makes retrieval more accurate; see ``docs/accuracy.md``.
    index
        ``"flat"``: exact. ``"hnsw"``: a graph, for many millions of items; its recall against exact search
        is measured when it is built.
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
        image_encoder: Any = "pyramid",
        text_encoder: Any = "hkse",
        model: AWCCA | Fusion | None = None,
        *,
        preset: str | None = None,
        index: str = "flat",
        dtype: str = "float32",
        keep_features: bool = True,
        device: str = "cpu",
    ) -> None:
        self.index = check_choice(index, KINDS, "index")
        self.dtype = check_choice(dtype, DTYPES, "dtype")
        self.encoders = Encoders(image_encoder, text_encoder)
        if model is not None and preset is not None:
            raise InputError("model and preset were both given; give one of them.")
        if model is None:
            model = AWCCA() if preset is None else Fusion(preset)
        self.model = model
        self.keep_features, self.device = keep_features, device
        self._collection: Collection | None = None
        self._writing = threading.RLock()

    @property
    def collection(self) -> Collection:
        """The items, their vectors and the fitted model; a refit puts another in its place."""
        if self._collection is None:
            raise InputError("this retriever is not fitted; call fit(), or load a saved one.")
        return self._collection

    def fit(
        self,
        data: PairedDataset | PairedViews,
        *,
        features: str | os.PathLike[str] | None = None,
        metadata: Metadata | None = None,
        layout: Mapping[View, Layout] | None = None,
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
            For features of several encoders side by side, and a ``Fusion``: for ``"image"`` and ``"text"``,
            the name and width of each block.
        watch
            Told about the progress of encoding.
        """
        views = data if isinstance(data, PairedViews) else self.encode(data, features=features, watch=watch)
        fitted = fit_model(clone(self.model), views, self.device, layout)
        items, kept, rows = Items(), dict[View, VectorIndex](), dict[View, np.ndarray[Any, Any]]()
        for view, given in zip(VIEWS, (views.x, views.y), strict=True):
            keys = items.add(items_of(views.dataset, _by_id(metadata))[view])
            rows[view] = check_view(np.asarray(given), f"{view} features")
            if self.keep_features:
                keep_features(kept, view, keys, rows[view])
        first = {"image": 0, "text": len(rows["image"])}

        def of(view: View, keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            found: np.ndarray[Any, Any] = rows[view][keys[0] - first[view] : keys[-1] + 1 - first[view]]
            return found

        self._collection = Collection.of(fitted, items, kept, of, self.dtype, self.index)
        return self

    def encode(
        self,
        data: PairedDataset,
        *,
        features: str | os.PathLike[str] | None = None,
        watch: Watch | None = None,
    ) -> PairedViews:
        """The first step of ``fit``: features of pairs, by encoders that are fitted on the training split."""
        split = "train" in data.split_sizes()
        self.encoders.fit_text((data.subset("train") if split else data).captions)
        return encode_views(data, self.encoders, features, watch)

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
            Features of the two views, one row an item; for a ``Fusion`` also named blocks, name → features.
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
        x, x_layout = _side_by_side(X, "X")
        y, y_layout = _side_by_side(Y, "Y")
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
        layout: dict[View, Layout] = {"image": x_layout, "text": y_layout}
        return retriever.fit(PairedViews(dataset, x, y), metadata=metadata, layout=layout)

    def refit(self, *, validation: tuple[Any, ...] | None = None) -> Retriever:
        """Fit again, on the training pairs and all pairs added since, and embed every item anew.

        Training pairs enter by their moments; they are not needed again. What was selected is kept, with γ
        grown by the number of pairs, unless there are pairs to select on. Searches go on meanwhile with the
        model as it was; additions and removals wait.

        Parameters
        ----------
        validation
            ``(X, Y)`` or ``(X, Y, pairing)``, as features, to select the regularisation on again.
        """
        with self._writing:
            self._collection = self._refitted(validation)
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
            Paths, Pillow images, bytes of image files, or a matrix of features.
        captions
            Sentences, or a matrix of features.
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
        named = _by_id(metadata)
        given, new = dict[View, list[Any]](), dict[View, list[Item]]()
        rows = dict[View, np.ndarray[Any, Any]]()
        if images is not None:
            given["image"], rows["image"] = self._given("image", images, paths)
        if captions is not None:
            given["text"], rows["text"] = self._given("text", captions, texts)
        with self._writing:
            known = self.collection.items
            if "image" in given:
                new["image"] = image_items(given["image"], ids, named, known)
            if "text" in given:
                owners = new.get("image")
                new["text"] = text_items(given["text"], owners, pairing, caption_ids, named, known)
            for view, own in new.items():
                self._warn_if_far(view, rows[view], own)
            self.collection.add(new, rows, self.keep_features)
        return [item.id for own in new.values() for item in own]

    def remove(self, ids: str | Iterable[str]) -> int:
        """Take items out; an image takes its captions with it. Returns how many items went."""
        if not isinstance(ids, Iterable):
            raise InputError(f"{ids!r} is no id; give the id of an item, or a list of ids.")
        with self._writing:
            return self.collection.remove([ids] if isinstance(ids, str) else list(ids))

    def search(
        self, text: Any, k: int = 10, *, where: Where | None = None, weighting: Weighting | None = None
    ) -> Any:
        """The ``k`` best pictures for a sentence; for several, a list of such lists.

        Parameters
        ----------
        text
            A sentence, a list of them, or features: one row, or a matrix.
        k
            How many.
        where
            Only items for which this function of an ``Item`` is true, or only these ids.
        weighting
            Another weighting than the model's, to compare with.
        """
        queries, single = self._queries("text", text)
        found = self.collection.found("search", queries, k, where, weighting)
        return found[0] if single else found

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
            A path, a Pillow image, the bytes of an image file, a list of these, or features.
        k
            How many.
        where
            Only items for which this function of an ``Item`` is true, or only these ids.
        packs
            Find all captions of one picture as a whole instead: a list of ``Pack``.
        weighting
            Another weighting than the model's, to compare with.
        """
        queries, single = self._queries("image", image)
        if packs:
            if where is not None or weighting is not None:
                raise InputError("packs are found among all pictures; leave out where and weighting.")
            several = self.collection.packs(queries, k)
            return several[0] if single else several
        found = self.collection.found("annotate", queries, k, where, weighting)
        return found[0] if single else found

    def similar(
        self, image: Any = None, text: Any = None, k: int = 10, *, where: Where | None = None
    ) -> list[Hit]:
        """Pictures like a picture, or sentences like a sentence, in the canonical space."""
        if (image is None) == (text is None):
            raise InputError("similar takes an image or a text, one of them.")
        view: View = "text" if image is None else "image"
        queries, single = self._queries(view, text if image is None else image)
        if not single:
            raise InputError("similar takes one item at a time; call it for each.")
        return self.collection.similar(view, queries, k, where)[0]

    def embed_images(self, images: Any, *, task: str = "search") -> np.ndarray[Any, Any]:
        """Vectors of pictures for a store of one's own: inner products with sentences' of a task rank."""
        return self._embed("image", images, task)

    def embed_texts(self, texts: Any, *, task: str = "search") -> np.ndarray[Any, Any]:
        """Vectors of sentences for a store of one's own: inner products with pictures' of a task rank."""
        return self._embed("text", texts, task)

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
            views = data
        part = views.of(np.arange(views.dataset.n_images)) if whole else views.split(str(split))
        return recalls(model, on_device(part, self.device))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything to ``folder``, atomically; see ``diptych.retrieval.saved``."""
        with self._writing:
            saved.save(self, folder)

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
    ) -> Retriever:
        """Read what ``save`` wrote; nothing in the folder is executed.

        Parameters
        ----------
        folder
            Where it lies.
        image_encoder, text_encoder
            The encoders, where they are not in the folder; they are checked against its fingerprints.
        mmap
            Leave vectors and features on disk and map them: loading takes no time and no memory, and their
            checksums are not compared.
        trust_graph
            Read an HNSW file as it is, which FAISS does not make safe for files of strangers; otherwise the
            graph is built anew.
        device
            Where evaluation runs.
        """
        own_text = text_encoder is None
        content = saved.load(folder, mmap=mmap, trust_graph=trust_graph, own_text=own_text)
        retriever = cls(None, None, content.collection.fitted.model, device=device, **content.options)
        retriever.encoders = content.encoders(image_encoder, text_encoder)
        retriever._collection = content.collection
        return retriever

    def info(self) -> dict[str, Any]:
        """What is known of the model, as plain data."""
        return saved.describe(self)

    def _refitted(self, validation: tuple[Any, ...] | None) -> Collection:
        old = self.collection
        before = old.fitted
        more = old.new_moments(self._encode_items)
        assert isinstance(before.model, AWCCA)
        assert before.moments is not None
        moments = before.moments + more
        model = AWCCA.unpacked(saved.copied(before.model))
        if validation is not None:
            model.params = None
            model.fit_moments(moments, validation=validation)
        else:
            model.refit_moments(moments, before.moments.count)
        del model.spectra_
        # What was measured and timed was another model.
        past = ("metrics", "seconds", "graph_recall")
        facts = {name: fact for name, fact in before.facts.items() if name not in past}
        facts["refitted"] = {"pairs": moments.count, "before": before.moments.count}
        fitted = Fitted(model, moments, before.reach, facts)

        def of(view: View, keys: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            return old.features_of(view, keys, self._encode_items)

        return Collection.of(fitted, old.items, old.features, of, self.dtype, self.index)

    def _given(
        self, view: View, given: Any, shown: Sequence[Any] | None
    ) -> tuple[list[Any], np.ndarray[Any, Any]]:
        """What was given to ``add``, as it is to be shown, and its features."""
        expected = self.collection.embedding.features(view)
        if is_array(given):
            rows = check_view(to_numpy(given), f"{view} features", n_features=expected)
            things = list(shown) if shown is not None else [None] * len(rows)
            if len(things) != len(rows):
                raise InputError(f"{len(things)} were given to show for {len(rows)} rows of {view} features.")
            return things, rows
        things, _ = as_list(given)
        if not things:
            raise InputError(f"the list of {view}s is empty; give at least one.")
        encode = self.encoders.encode_images if view == "image" else self.encoders.encode_texts
        blocks = [encode(things[i : i + _BATCH]) for i in range(0, len(things), _BATCH)]
        return things, check_view(np.concatenate(blocks), f"{view} features", n_features=expected)

    def _encode_items(self, view: View, items: list[Item]) -> np.ndarray[Any, Any]:
        """Features of indexed items from their files and sentences."""
        things = [item.path if view == "image" else item.text for item in items]
        if None in things:
            raise InputError(
                f"the features of the items were not kept, and {items[things.index(None)].id!r} has nothing "
                "to encode again; fit with keep_features=True."
            )
        if view == "image":
            return self.encoders.encode_images(things)
        return self.encoders.encode_texts([str(thing) for thing in things])

    def _warn_if_far(self, view: View, rows: np.ndarray[Any, Any], items: list[Item]) -> None:
        fitted = self.collection.fitted
        reach, how = fitted.reach[view], "none"
        if isinstance(fitted.model, AWCCA):
            how = fitted.model.normalize[VIEWS.index(view)]
        away = reach.distances(normalize(rows.astype(np.float32, copy=False), how))
        far, worst = int(np.count_nonzero(away > reach.limit)), int(np.argmax(away))
        if far:
            warnings.warn(
                f"{far} of {len(items)} new {view}(s) lie far from what this model was trained on "
                f"({items[worst].id!r}: {away[worst]:.1f} where {reach.limit:.1f} is the limit), and may be "
                "found badly; if there will be more like them, add pairs and refit().",
                DataWarning,
                stacklevel=3,
            )

    def _queries(self, view: View, given: Any) -> tuple[np.ndarray[Any, Any], bool]:
        """Features of queries, and whether it was a single one."""
        if is_array(given):
            rows = to_numpy(given)
            return (rows[None, :], True) if rows.ndim == 1 else (rows, False)
        things, single = as_list(given)
        if not things:
            raise InputError("there are no queries; give at least one.")
        if view == "text":
            return self.encoders.encode_texts(things, queries=True), single
        return self.encoders.encode_images(things), single

    def _embed(self, view: View, given: Any, task: str) -> np.ndarray[Any, Any]:
        chosen = check_task(task)
        queries, _ = self._queries(view, given)
        embedding = self.collection.embedding
        if SEARCHED[chosen] == view:
            return embedding.items(queries, chosen)[0]
        return embedding.queries(queries, chosen)


def _by_id(metadata: Metadata | None) -> Metadata:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InputError(f"metadata is a {type(metadata).__name__}; give a dict from ids to dicts.")
    return metadata or {}


def _side_by_side(view: Any, name: str) -> tuple[np.ndarray[Any, Any], Layout]:
    """A view as one matrix, and the blocks it is made of."""
    if not isinstance(view, Mapping):
        rows = to_numpy(check_view(view, name))
        return rows, {name.lower(): rows.shape[1]}
    blocks = {str(key): to_numpy(check_view(rows, f"{name}[{key!r}]")) for key, rows in view.items()}
    if len({len(rows) for rows in blocks.values()}) != 1:
        raise InputError(f"the blocks of {name} differ in their number of rows; give every item in each.")
    return np.concatenate(list(blocks.values()), axis=1), {key: b.shape[1] for key, b in blocks.items()}
