"""The Retriever: encoders, a model for each task and a store, as one object."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import numpy as np
from numpy.typing import ArrayLike

from diptych._arrays import Array
from diptych._checks import (
    IMAGE_AND_TEXT,
    InputError,
    ViewNames,
    check_choice,
    check_matrix,
    check_pairing,
    check_task,
    check_view_names,
    count,
    plural,
    with_article,
)
from diptych._progress import progress_bar
from diptych.retrieval._encoders import Encoders, needs_stored_hkse
from diptych.retrieval._filters import Where
from diptych.retrieval._fitted import Fitted, Layout
from diptych.retrieval._folder import LoadedModel, load, load_from_store, save
from diptych.retrieval._inputs import (
    CONFLICTS,
    Metadata,
    NewItems,
    QueryPart,
    Search,
    change_metadata,
    check_metadata,
    check_metadata_ids,
    dataset_items,
    encode_new_items,
    is_features,
    join_blocks,
    list_parts,
    read_changes,
    read_content,
    read_listing,
    read_new_items,
    read_where,
    stack_blocks,
    warn_outliers,
)
from diptych.retrieval._items import SEARCHED, VIEWS, Hits, Item, View, check_unique, unknown_item
from diptych.retrieval._searcher import CurrentModel, Searcher
from diptych.retrieval.stores import open_store
from diptych.retrieval.stores._base import ModelChanged, Store, TakenError
from diptych.retrieval.stores._folder import Reading

if TYPE_CHECKING:
    from PIL import Image

    from diptych.cca import AWCCA, Engine
    from diptych.data import PairedDataset, PairedViews
    from diptych.encoders import HKSE, ImageEncoder, SentenceEncoder
    from diptych.fusion import Fusion
    from diptych.retrieval._audit import Audit
    from diptych.retrieval._evaluation import Evaluation
    from diptych.retrieval._near_duplicates import Duplicates
    from diptych.retrieval._pair_scores import PairScores
    from diptych.retrieval._sync import SyncReport

    ImageFile: TypeAlias = str | os.PathLike[str] | bytes | Image.Image
    OneText: TypeAlias = str | list[float]
    ManyTexts: TypeAlias = list[str] | tuple[str, ...] | list[list[float]]
    OneImage: TypeAlias = ImageFile | list[float]
    ImageFiles: TypeAlias = list[str] | list[Path] | list[bytes] | list[Image.Image] | tuple[ImageFile, ...]
    ManyImages: TypeAlias = ImageFiles | list[list[float]]
    # The type of an array does not say whether it is one row or several.
    Features: TypeAlias = "SupportsArray | Mapping[str, ArrayLike]"
    Part: TypeAlias = ImageFile | Features | QueryPart
    Parts: TypeAlias = Part | Sequence[Part | tuple[Part, float]]
    FeatureBlocks: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
    OneImageEncoder: TypeAlias = str | os.PathLike[str] | ImageEncoder
    OneTextEncoder: TypeAlias = str | os.PathLike[str] | HKSE | SentenceEncoder | Callable[[list[str]], Array]
    ImageEncoderLike: TypeAlias = OneImageEncoder | Sequence[OneImageEncoder] | None
    TextEncoderLike: TypeAlias = OneTextEncoder | Sequence[OneTextEncoder] | None

T = TypeVar("T")


class SupportsArray(Protocol):
    """A tensor or data frame of features."""

    def __array__(self) -> np.ndarray[Any, Any]: ...


class SearchOptions(TypedDict, total=False):
    """What ``search`` and ``annotate`` take by name; ``Retriever.search`` explains it."""

    offset: int
    where: Where | None
    plus: Parts
    minus: Parts
    min_probability: float | None
    weighting: str | None


class Retriever:
    """Search images with texts and texts with images, or any two views with each other.

    Parameters
    ----------
    image_encoder
        An ``.onnx`` file, ``"fastembed:NAME"``, ``"pyramid"`` (no weights: for drawings and trials), or an
        object with ``encode``, ``dimension`` and ``fingerprint``, such as a ``TorchEncoder``;
        for other things than images, such as a ``FunctionEncoder``, see ``docs/modalities.md``. If an
        ``.onnx`` file does not say how to prepare images, ``fit`` chooses by retrieval on some training
        pairs. ``"auto"``: where fastembed is installed, the recommended encoder (``diptych encoders``), and
        ``"pyramid"`` otherwise; ``fit`` opens it, and names it in a ``DataWarning``. For other things than
        images, ``"auto"`` is none. A list of encoders makes one feature block each, which ``preset="best"``
        weighs; see ``docs/encoders.md``.
    text_encoder
        ``"hkse"``, an ``HKSE``, ``"fastembed:NAME"``, the name or folder of a sentence-transformers model, or
        any function from a list of texts to an array. ``"auto"``: the recommended one as for images, or
        ``"hkse"``. A list of these works as for images; one of them may be an HKSE.
    model
        The ``AWCCA`` or ``Fusion`` to fit; None: an ``AWCCA`` with its defaults.
    preset
        ``"best"``: a ``Fusion`` of everything that makes retrieval more accurate; see ``docs/accuracy.md``.
    index
        ``"flat"``: exact search in memory. ``"hnsw"``: a graph in memory, for many millions of items; its
        recall against exact search is measured when it is built. ``"postgresql://user@host/database"``:
        PostgreSQL with pgvector, for several processes; see ``docs/postgresql.md``.
    dtype
        Of the vectors in the index: ``"float32"``, or ``"float16"`` for half the memory.
    keep_features
        Keep the features of all items, so that ``refit`` need not encode them again. Without them, a model
        is smaller on disk.
    device
        Where fitting and evaluation run: ``"cpu"``, or a torch device such as ``"cuda"``.
    views
        What people call an item of each view: messages, reports and the page use these names.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(200, 4))
    >>> x = hidden @ rng.normal(size=(4, 10)) + 0.1 * rng.normal(size=(200, 10))
    >>> y = hidden @ rng.normal(size=(4, 8)) + 0.1 * rng.normal(size=(200, 8))
    >>> retriever = Retriever.from_features(x, y, ids=[f"image {i}" for i in range(200)])
    >>> [hit.id for hit in retriever.search(y[7], k=1)]
    ['image 7']
    >>> [hits[0].id for hits in retriever.search(y[7:9])]
    ['image 7', 'image 8']
    >>> retriever.annotate(x[7], k=1)[0].item.image
    'image 7'
    >>> retriever.add(x[:1], ids=["another"]), retriever.remove("another")
    (['another'], 1)
    """

    def __init__(
        self,
        image_encoder: ImageEncoderLike = "auto",
        text_encoder: TextEncoderLike = "auto",
        model: AWCCA | Fusion | None = None,
        *,
        preset: str | None = None,
        index: str = "flat",
        dtype: str = "float32",
        keep_features: bool = True,
        device: str = "cpu",
        views: tuple[str, str] = IMAGE_AND_TEXT,
    ) -> None:
        names = check_view_names(views)
        if model is not None and preset is not None:
            raise InputError("model and preset were both given; give one of them.")
        if model is None:
            from diptych.cca import AWCCA
            from diptych.fusion import Fusion

            model = AWCCA() if preset is None else Fusion(preset)
        model.check_parameters()
        encoders = Encoders(image_encoder, text_encoder, views=names)
        self._set_up(open_store(index, dtype), encoders, model, keep_features, device)

    def _set_up(
        self,
        store: Store,
        encoders: Encoders,
        model: AWCCA | Fusion | None,
        keep_features: bool,
        device: str,
    ) -> None:
        self._store, self._encoders, self._current = store, encoders, CurrentModel()
        if model is not None:
            self.model = model
        if not isinstance(keep_features, bool):
            raise InputError(f"keep_features={keep_features!r} is not true or false.")
        self.keep_features, self.device = keep_features, device
        self._writing = threading.RLock()

    def __repr__(self) -> str:
        """Return one line: whether it is fitted, its items, encoders, model and index."""
        searcher, store = self._current.searcher, self.store
        parts = [f"{self.views.of(view)} encoder {self.encoders.name(view)}" for view in VIEWS]
        if searcher is None:
            parts.append(repr(self.model))
        elif not store.address:  # counting in a database takes a while and may fail, which a repr must not
            parts.insert(0, ", ".join(count(store.count(view), self.views.of(view)) for view in VIEWS))
            parts.append(searcher.fitted.description.title)
        index = self.index if searcher is None or not store.address else f"{store.kind} ({self.index})"
        name = "Retriever, not fitted" if searcher is None else "Retriever"
        return f"<{name}: {'; '.join([*parts, f'index {index}'])}>"

    @cached_property
    def model(self) -> AWCCA | Fusion:
        """The ``AWCCA`` or ``Fusion`` that ``fit`` fits; of a loaded retriever, the one that was loaded."""
        return self._current.get().fitted.model

    @property
    def store(self) -> Store:
        """Where the items and their vectors are."""
        return self._store if self._current.searcher is None else self._current.searcher.store

    @property
    def version(self) -> str:
        """The version of the model in a folder or database, as last seen; empty in memory."""
        return self._current.version

    @property
    def index(self) -> str:
        """``"flat"``, ``"hnsw"``, or the address of the database without secrets."""
        return self.store.address or self.store.kind

    @property
    def dtype(self) -> str:
        """The dtype of the vectors in the index."""
        return self.store.dtype

    @property
    def views(self) -> ViewNames:
        """What people call an item of each view: ``("image", "text")`` unless others were given."""
        return self.encoders.views

    @property
    def encoders(self) -> Encoders:
        """The encoders of images and texts."""
        return self._encoders if self._current.searcher is None else self._current.searcher.encoders

    @property
    def searcher(self) -> Searcher:
        """The fitted model on its store; of a shared store, the model that is current now."""
        return self._current.read()

    @property
    def fitted(self) -> Fitted:
        """The fitted model and what is kept of its training data."""
        return self.searcher.fitted

    def __len__(self) -> int:
        """Return the number of items of both views; 0 if it is not fitted."""
        return 0 if self._current.searcher is None else self.store.count()

    def __contains__(self, item_id: object) -> bool:
        """Return whether an item has an id."""
        return isinstance(item_id, str) and self.item(item_id) is not None

    def __iter__(self) -> Iterator[Item]:
        """Iterate over all items in order of addition."""
        return iter(()) if self._current.searcher is None else self.store.items()

    def item(self, item_id: str) -> Item | None:
        """Return the item with an id; None if there is none."""
        return next(self.store.items(ids=[item_id]), None)

    def items(
        self,
        view: View | None = None,
        *,
        where: Where | None = None,
        order_by: str | None = None,
        offset: int = 0,
        limit: int | None = None,
    ) -> list[Item]:
        """Return items in order of addition, or of a metadata value.

        Parameters
        ----------
        view
            ``"image"`` or ``"text"``; None: both.
        where
            As ``search`` takes it.
        order_by
            A metadata key, or ``"-"`` and the key to begin with the greatest. Numbers come before texts, such
            as dates; items with neither follow at the end.
        offset, limit
            Leave out this many, and return at most so many; None: all.
        """
        listing = read_listing(view, order_by, offset, limit)
        return self.searcher.list_items(listing, read_where(where))[0]

    @overload
    def search(self, text: OneText, k: int = 10, **options: Unpack[SearchOptions]) -> Hits: ...

    @overload
    def search(self, text: ManyTexts, k: int = 10, **options: Unpack[SearchOptions]) -> list[Hits]: ...

    @overload
    def search(self, text: Features, k: int = 10, **options: Unpack[SearchOptions]) -> Hits | list[Hits]: ...

    def search(
        self,
        text: Any,
        k: int = 10,
        *,
        offset: int = 0,
        where: Where | None = None,
        plus: Parts = (),
        minus: Parts = (),
        min_probability: float | None = None,
        weighting: str | None = None,
    ) -> Any:
        """Return the ``k`` best images for a text, as ``Hits``; for several texts, a list of ``Hits``.

        ``hits.ignored_words`` holds the words of a text that the text encoder does not know and left out.

        Parameters
        ----------
        text
            A text, a list of texts, or features: one row, a matrix, or named blocks of these
            (``{"glove": …, "bert": …}``) for a model that was fitted on such.
        k
            The number of hits.
        offset
            Leave out this many of the best hits: the second page has ``offset=k``. Pages of one query never
            repeat or skip an item while the items stay the same; ``hits.more`` says whether there are others.
        where
            Only items whose metadata fulfil these conditions, as plain data (``{"split": "test", "year":
            {"$gte": 2010}}``) or as an expression (``'split = "test" and year >= 2010'``),
            only those for which this function of an ``Item`` is true, or only these ids.
        plus, minus
            What to add to a single query, and what to subtract: a list of texts, images (a path, a Pillow
            image, bytes, or a string that ends as an image file does) and features of texts, each alone or
            as ``(part, weight)``. The query itself has the weight 1. Such hits have no probability.
        min_probability
            Leave out hits with a smaller ``probability``; for models that have a calibration.
        weighting
            For a ``Fusion``, to compare with: one of its parts alone, by the name that ``info()["parts"]``
            has, or ``"uncorrected"``, all without the hubness correction.
        """
        parts, chosen = list_parts(plus, minus), read_where(where)
        return self._search(
            Search("text", "image", text, parts, k, offset, chosen, min_probability, weighting)
        )

    @overload
    def annotate(self, image: OneImage, k: int = 5, **options: Unpack[SearchOptions]) -> Hits: ...

    @overload
    def annotate(self, image: ManyImages, k: int = 5, **options: Unpack[SearchOptions]) -> list[Hits]: ...

    @overload
    def annotate(
        self, image: Features, k: int = 5, **options: Unpack[SearchOptions]
    ) -> Hits | list[Hits]: ...

    def annotate(
        self,
        image: Any,
        k: int = 5,
        *,
        offset: int = 0,
        where: Where | None = None,
        plus: Parts = (),
        minus: Parts = (),
        min_probability: float | None = None,
        weighting: str | None = None,
    ) -> Any:
        """Return the ``k`` best texts for an image, as ``Hits``; for several images, a list of ``Hits``.

        Parameters
        ----------
        image
            A path, a Pillow image, the bytes of an image file, a list of these, or features: one row, a
            matrix, or named blocks of these (``{"resnet": …, "dino": …}``) for a model fitted on such. What
            is no image is given as its encoder takes it: a path, or a text.
        k, offset, where, plus, minus, min_probability, weighting
            As ``search`` takes them; features in ``plus`` and ``minus`` are those of images.
        """
        parts, chosen = list_parts(plus, minus), read_where(where)
        return self._search(
            Search("image", "text", image, parts, k, offset, chosen, min_probability, weighting)
        )

    def similar(
        self,
        image: OneImage | Features | None = None,
        text: OneText | Features | None = None,
        k: int = 10,
        *,
        offset: int = 0,
        where: Where | None = None,
        plus: Parts = (),
        minus: Parts = (),
    ) -> Hits:
        """Return the ``k`` images most similar to an image, or texts most similar to a text.

        ``offset``, ``where``, ``plus`` and ``minus`` are as ``search`` takes them: images like this one, with
        more snow.
        """
        if (image is None) == (text is None):
            either = " or ".join(map(with_article, self.views))
            raise InputError(f"similar takes {either}; give one of them.")
        view: View = "text" if image is None else "image"
        query, parts = text if image is None else image, list_parts(plus, minus)
        hits: Hits = self._search(Search(view, view, query, parts, k, offset, read_where(where)))
        return hits

    def duplicates(self, view: View = "image", threshold: float | None = None) -> Duplicates:
        """Return groups of near-identical images or texts, the largest first.

        All items are compared by the cosine of their encoder's features minus their mean; where features are
        not kept, by that of the model's vectors, in which captions count too. Texts that are equal are always
        together. A group is what pairs of near-identical items connect.

        Parameters
        ----------
        view
            ``"image"`` or ``"text"``.
        threshold
            The cosine from which two items are near-identical; None: one that different items of this
            collection hardly reach, judged by the distances between neighbours. ``result.threshold`` has it.
        """
        from diptych.retrieval._near_duplicates import find_duplicates

        return self._current.run(lambda model: find_duplicates(model, view, threshold), uses_encoders=True)

    def audit(self) -> Audit:
        """Score every stored caption with its image, by models that were not fitted on the pair.

        So wrong captions are found among the items of any model that keeps their features;
        ``docs/audit.md`` says what the numbers mean.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(400, 8))
        >>> y = x[:, :6] + 0.3 * rng.normal(size=(400, 6))
        >>> y[[3, 5]] = y[[5, 3]]  # two captions are exchanged
        >>> [pair.image for pair in Retriever.from_features(x, y).audit() if pair.flagged]
        ['5', '3']
        """
        from diptych.retrieval._audit import audit_stored

        return self._current.run(audit_stored, uses_encoders=True)

    def score_pairs(
        self,
        images: OneImage | ManyImages | SupportsArray,
        texts: OneText | ManyTexts | SupportsArray,
        pairing: ArrayLike | None = None,
    ) -> PairScores:
        """Return how well each text fits its image, in scores that can be compared between pairs.

        They are not stored, and need not be among the items. ``docs/audit.md`` says what the scores mean.

        Parameters
        ----------
        images, texts
            As ``add`` takes them.
        pairing
            Text j is scored with image ``pairing[j]``; None: one text for each image.
        """
        from diptych.retrieval._calibration import read_reference
        from diptych.retrieval._pair_scores import PairScores, mean_scores

        def score(searcher: Searcher) -> PairScores:
            encoders, layout = searcher.encoders, searcher.fitted.layout

            def read(view: View, given: Any) -> np.ndarray[Any, Any]:
                things, features = read_new_items(encoders, view, given, None, layout)
                return encode_new_items(encoders, view, things) if features is None else features

            x, y = read("image", images), read("text", texts)
            scores = mean_scores(searcher.projectors, x, y, check_pairing(pairing, len(x), y))
            return PairScores.compare(scores, read_reference(searcher.fitted.calibration))

        return self._current.run(score, uses_encoders=not (is_features(images) or is_features(texts)))

    def embed_images(
        self, images: OneImage | ManyImages | Features, *, task: str = "search"
    ) -> np.ndarray[Any, Any]:
        """Return vectors of images for a store of your own; inner products with texts' vectors rank."""
        return self._embed("image", images, task)

    def embed_texts(
        self, texts: OneText | ManyTexts | Features, *, task: str = "search"
    ) -> np.ndarray[Any, Any]:
        """Return vectors of texts for a store of your own; see ``embed_images``."""
        return self._embed("text", texts, task)

    def export_onnx(self, path: str | os.PathLike[str], *, view: View = "text", task: str = "search") -> None:
        """Write an ONNX file that turns features of one view into vectors, for clients without Python.

        It computes what ``embed_texts`` or ``embed_images`` returns for features. A file that exists is
        replaced. The default is for clients that search with texts. Needs the package ``onnx``.

        Parameters
        ----------
        path
            The file to write.
        view
            Whose features the file takes, ``"image"`` or ``"text"``. They are one input, ``features``; where
            the model was fitted on several named blocks, one input for each block that the task uses.
        task
            ``"search"`` or ``"annotate"``: whose vectors the output, ``vectors``, holds.
        """
        from diptych.retrieval._export import export_onnx

        export_onnx(path, self.searcher, view, task)

    def fit(
        self,
        data: PairedDataset | PairedViews,
        *,
        features: str | os.PathLike[str] | None = None,
        metadata: Metadata | None = None,
        layout: Mapping[View, Layout] | None = None,
        engine: Engine | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        audit: bool = False,
        keep_items: bool = False,
    ) -> Retriever:
        """Fit on the training split, measure on the others, and add every item of ``data`` to the index.

        Captions without a word are kept, but nothing is learned from them, or measured on them.

        Parameters
        ----------
        data
            Pairs with images on disk, which are encoded; or pairs with features.
        features
            Folder for the encoded features: interrupted work continues where it stopped.
        metadata
            For some ids, plain values to filter by later.
        layout
            For features of several encoders side by side: for ``"image"`` and ``"text"``, the name and width
            of each block; None: as the encoders of this retriever have made them.
        engine, checkpoint
            Where the training pairs are summed, and a file to continue from after an interruption; see
            ``AWCCA.fit``.
        audit
            Do not learn from training pairs that look wrong, as ``audit_pairs`` finds them; ``info()`` says
            how many these were. They are items as all others.
        keep_items
            Keep the items that are here already, whose features must be of the same encoders. A photo of
            ``data`` that is among them, by its path, keeps its id and metadata.
        """
        from sklearn.base import clone

        from diptych.data import PairedViews
        from diptych.retrieval._training import fit_model, leave_out_empty

        self._check_settings()
        if metadata is not None:
            dataset = data.dataset if isinstance(data, PairedViews) else data
            check_metadata_ids(check_metadata(metadata), {*dataset.image_ids, *dataset.caption_ids})
        views = data if isinstance(data, PairedViews) else self.encode(data, features=features)
        views = replace(views, dataset=views.dataset.with_views(self.views))
        with progress_bar("fitting", self.model.verbose):
            fitted = fit_model(
                clone(self.model),
                leave_out_empty(views),
                device=self.device,
                engine=engine,
                checkpoint=checkpoint,
                layout=views.blocks if layout is None else layout,
                audit=audit,
            )
        rows = {
            view: check_matrix(np.asarray(features), f"{self.views.of(view)} features")
            for view, features in zip(VIEWS, (views.x, views.y), strict=True)
        }
        self.encoders.remember(views.encoders)
        encoded = bool(views.encoders[1])
        items = dataset_items(views.dataset, check_metadata(metadata), self.encoders.inputs, encoded=encoded)
        if not keep_items:
            self._fill(fitted, items, rows)
            return self
        from diptych.retrieval._merging import keep_others, match_items

        previous = self.searcher
        self._fill(fitted, match_items(previous.store, items), rows)
        keep_others(previous, self.searcher)
        return self

    def encode(
        self,
        data: PairedDataset,
        *,
        features: str | os.PathLike[str] | None = None,
    ) -> PairedViews:
        """Encode pairs with encoders fitted on the training split: the first step of ``fit``."""
        from diptych.retrieval._training import encode_views, measure_seconds

        self._check_settings()
        encoders, has_split = self.encoders, "train" in data.split_sizes()
        seed = getattr(self.model, "random_state", 0)
        encoders.choose_defaults(seed, fuses=self.model.takes_blocks)
        seconds: dict[str, float] = {}
        with progress_bar("encoding", self.model.verbose):
            with progress_bar("fitting the text encoder"), measure_seconds(seconds, "text encoder"):
                captions = (data.subset("train") if has_split else data).captions
                encoders.fit_text([caption for caption in captions if caption.strip()])
            views = encode_views(data, encoders, features)
        return replace(views, seconds={**seconds, **views.seconds})

    @classmethod
    def from_features(
        cls,
        X: FeatureBlocks,
        Y: FeatureBlocks,
        pairing: ArrayLike | None = None,
        *,
        ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        captions: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
        paths: Sequence[str | os.PathLike[str]] | None = None,
        metadata: Metadata | None = None,
        audit: bool = False,
        image_encoder: ImageEncoderLike = None,
        text_encoder: TextEncoderLike = None,
        **options: Any,
    ) -> Retriever:
        """Fit on features from any encoder.

        Parameters
        ----------
        X, Y
            Features of the two views, one row for each item; or named blocks, name → features, by which items
            and queries may then be given too. An ``AWCCA`` takes blocks side by side, a ``Fusion`` weighs
            them.
        pairing
            Row j of Y belongs to row ``pairing[j]`` of X; None: row to row.
        ids, caption_ids
            An id for each row of X and of Y; None: numbers.
        captions
            The text of each row of Y, to be shown with hits.
        splits
            ``"train"``, ``"val"``, ``"test"`` for each row of X; None: a share is held out to select on.
        paths
            The image file of each row of X.
        metadata
            For some ids, plain values to filter by later.
        audit
            As ``fit`` takes it.
        image_encoder, text_encoder, options
            As the constructor takes them; the encoders are for queries.
        """
        from diptych.data import PairedDataset, PairedViews

        x, x_layout = stack_blocks(X, "X")
        y, y_layout = stack_blocks(Y, "Y")
        rows = check_pairing(pairing, len(x), y)
        for name, values, matrix in (
            ("ids", ids, x),
            ("caption_ids", caption_ids, y),
            ("captions", captions, y),
        ):
            if values is not None and len(values) != len(matrix):
                raise InputError(
                    f"{name} has {len(values)} entries; expected {len(matrix)}, one for each row of "
                    f"{'X' if matrix is x else 'Y'}."
                )
        texts = ("",) * len(y) if captions is None else tuple("" if t is None else str(t) for t in captions)
        dataset = PairedDataset(
            tuple(map(str, range(len(x)) if ids is None else ids)),
            texts,
            rows,
            tuple(map(str, caption_ids)) if caption_ids is not None else (),
            None if splits is None else tuple(splits),
            None if paths is None else cast(tuple[Path, ...], tuple(paths)),
        )
        retriever = cls(image_encoder, text_encoder, **options)
        layouts = zip(VIEWS, (x_layout, y_layout), strict=True)
        layout: dict[View, Layout] = {view: blocks for view, blocks in layouts if blocks}
        return retriever.fit(PairedViews(dataset, x, y), metadata=metadata, layout=layout, audit=audit)

    @classmethod
    def from_model(
        cls,
        model: AWCCA | Fusion,
        *,
        features: tuple[FeatureBlocks, FeatureBlocks] | None = None,
        image_encoder: ImageEncoderLike = None,
        text_encoder: TextEncoderLike = None,
        **options: Any,
    ) -> Retriever:
        """Return a retriever for a model that is fitted already, without items; ``add`` them.

        Parameters
        ----------
        model
            The fitted model. An ``AWCCA`` that still has its spectra can be refitted from pairs added later.
        features
            A sample ``(X, Y)`` of its training features, to warn of new items that lie far from them.
        image_encoder, text_encoder, options
            As the constructor takes them.
        """
        from diptych.retrieval._refitting import adopt_model

        fitted = adopt_model(model, features, check_view_names(options.get("views", IMAGE_AND_TEXT)))
        retriever = cls(image_encoder, text_encoder, fitted.model, **options)
        retriever._fill(fitted, {}, {})
        return retriever

    @classmethod
    def zero_shot(
        cls,
        image_encoder: ImageEncoderLike = "auto",
        text_encoder: TextEncoderLike = "auto",
        **options: Any,
    ) -> Retriever:
        """Return a retriever without items that compares the features of a dual encoder as they are.

        It searches photos that have no captions: ``save`` it to a folder, and ``sync`` that with theirs.

        Parameters
        ----------
        image_encoder, text_encoder
            The two towers; ``"auto"``: CLIP, where fastembed is installed.
        options
            As the constructor takes them.
        """
        from diptych.fusion import Fusion
        from diptych.retrieval._recommended import find_towers, open_towers

        encoders = open_towers(image_encoder, text_encoder)
        model, towers = Fusion.zero_shot(find_towers(encoders)), (encoders.image, encoders.text)
        retriever = cls.from_model(model, image_encoder=towers[0], text_encoder=towers[1], **options)
        retriever.fitted.facts["quality"] = (
            "Nothing was fitted: scores are cosines of the features as encoded."
        )
        return retriever

    def refit(self, *, validation: tuple[Any, ...] | None = None) -> Retriever:
        """Fit again on the training pairs and all pairs added since, and embed every item again.

        Training pairs enter by their moments and are not needed again. The selected parameters are kept, with
        γ scaled by the number of pairs, unless there are validation pairs to select on. Searches continue
        meanwhile with the model as it was; additions and removals wait.

        Parameters
        ----------
        validation
            ``(X, Y)`` or ``(X, Y, pairing)``, as features or named blocks of them, to select the
            regularisation on again.
        """
        if validation is not None:
            x, y, *rest = validation
            validation = (self._join("image", x), self._join("text", y), *rest)
        from diptych.retrieval._refitting import refit

        with self._writing:
            new = self._current.run(lambda searcher: refit(searcher, validation), uses_encoders=False)
            self._current.use(new)
        return self

    def calibrate(
        self,
        images: ManyImages | Features,
        texts: ManyTexts | Features,
        pairing: ArrayLike | None = None,
    ) -> Retriever:
        """Measure the probabilities of hits on held-out pairs, which this model was not fitted on.

        ``score_pairs`` then compares with the scores of these pairs. ``fit`` does so by itself; this is for
        models that were fitted elsewhere, saved before there were probabilities, or refitted.

        Parameters
        ----------
        images, texts
            As ``add`` takes them; at least 100 images with texts.
        pairing
            Text j belongs to image ``pairing[j]``; None: one text for each image.
        """
        from diptych.retrieval._calibration import measure_held_out

        def measure(searcher: Searcher) -> Searcher:
            x = searcher.read_queries("image", images).features
            y = searcher.read_queries("text", texts).features
            rows = np.asarray(check_pairing(pairing, len(x), y))
            offsets, calibration = measure_held_out(
                searcher.projectors, x, y, rows, "the pairs that calibrate was given", self.views
            )
            if isinstance(calibration, str):
                raise InputError(f"{calibration}.")
            return searcher.recalibrate(calibration, offsets)

        with self._writing:
            encodes = not (is_features(images) or is_features(texts))
            self._current.use(self._current.run(measure, uses_encoders=encodes))
        return self

    def add(
        self,
        images: OneImage | ManyImages | Features | None = None,
        captions: OneText | ManyTexts | Features | None = None,
        *,
        pairing: ArrayLike | None = None,
        ids: Sequence[str] | None = None,
        caption_ids: Sequence[str] | None = None,
        texts: Sequence[str] | None = None,
        paths: Sequence[str | os.PathLike[str] | None] | None = None,
        metadata: Metadata | None = None,
        on_conflict: str = "error",
    ) -> list[str]:
        """Add items to the index without changing the model; return their ids. All are added, or none.

        Items that lie far from the training data are added with a ``DataWarning``.

        Parameters
        ----------
        images
            Paths, Pillow images, bytes of image files, or features: one row, a matrix, or named blocks.
        captions
            Texts, or features: one row, a matrix, or named blocks.
        pairing
            With both: caption j belongs to the new image ``pairing[j]``; None: one caption for each image.
            ``refit`` learns from these pairs.
        ids, caption_ids
            Ids; None: the paths, and numbers otherwise.
        texts, paths
            With features: the texts and image files they were made from.
        metadata
            For some ids, plain values to filter by.
        on_conflict
            What to do with an id that is stored: ``"error"``; ``"skip"``, which leaves that item as it is and
            does not encode it; or ``"replace"``, which puts the new item in place of it, and leaves captions
            of an image that are not given again. The ids of skipped items are not returned.
        """
        check_choice(on_conflict, CONFLICTS, "on_conflict")
        if images is None and captions is None:
            images_or_captions = f"{plural(self.views.image)} nor {plural(self.views.caption)}"
            raise InputError(f"add was given neither {images_or_captions}; give at least one.")
        about = check_metadata(metadata)
        inputs: dict[View, tuple[Any, Any]] = {"image": (images, paths), "text": (captions, texts)}

        def put(searcher: Searcher) -> tuple[dict[View, list[Item]], Mapping[View, np.ndarray[Any, Any]]]:
            read = {
                view: read_new_items(searcher.encoders, view, new_items, shown, searcher.fitted.layout)
                for view, (new_items, shown) in inputs.items()
                if new_items is not None
            }
            things = {view: some for view, (some, _) in read.items()}
            new = NewItems(things, pairing, ids, caption_ids, about)
            if on_conflict == "skip":
                new = searcher.without_stored(new)
            features = {}
            for view, (some, given) in read.items():
                if new.rows is not None:
                    some = [some[row] for row in new.rows[view]]
                    given = None if given is None else given[new.rows[view]]
                if given is not None:
                    features[view] = given
                elif some:
                    features[view] = encode_new_items(searcher.encoders, view, some)
            try:
                with self._writing:
                    current = self._writable(searcher)
                    return current.add_new(new, features, in_place=on_conflict == "replace"), features
            except TakenError:
                if on_conflict != "skip":
                    raise
            return put(searcher)  # another process has just added some of them

        encodes = not (is_features(images) or is_features(captions))
        items, features = self._current.run(put, uses_encoders=encodes)
        for view, added in items.items():
            if added:
                detector = self._current.get().fitted.outliers[view]
                warn_outliers(detector, self.views.of(view), features[view], added)
        return [item.id for added in items.values() for item in added]

    def update(
        self,
        item_id: str,
        *,
        image: ImageFile | None = None,
        text: str | None = None,
        features: Features | list[float] | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Item:
        """Change an item; return it as it is then.

        Metadata alone are changed in place, and nothing is encoded. An item with another image or text is
        encoded again, in place of the former one; it counts as added now, in the order of items and for
        ``refit``.

        Parameters
        ----------
        item_id
            The id, which stays.
        image
            For an image, another one: a path, a Pillow image, or bytes.
        text
            For a text, another one; also for an item of the first view that is a text.
        features
            One row, or named blocks: of the image or text that is given, or else in place of those stored.
        metadata
            Values of some names; None removes a name. Other names stay.
        """
        if image is not None and text is not None:
            raise InputError("update was given image and text; an item has one of them.")
        if image is None and text is None and features is None and metadata is None:
            raise InputError("update was given nothing to change; give image, text, features or metadata.")
        changes = {} if metadata is None else read_changes(metadata, item_id)

        def put(searcher: Searcher) -> Item:
            item = next(searcher.store.items(ids=[item_id]), None) if isinstance(item_id, str) else None
            if item is None:
                raise unknown_item(item_id)
            shown, rows = read_content(searcher.encoders, item, image, text, features, searcher.fitted.layout)

            def change(stored: Item) -> Item:
                return replace(stored, metadata=change_metadata(stored.metadata, changes), **shown)

            with self._writing:
                return self._writable(searcher).update(item, change, rows)

        return self._current.run(put, uses_encoders=features is None)

    def learn(self, text: OneText | Features, right: str | Sequence[str]) -> list[str]:
        """Store that a text should find some images, for the next ``refit``; return the ids of these pairs.

        The text becomes a caption of each of them, with ``confirmed: True`` in its metadata, all in one step;
        ``remove`` takes a pair back. A pair that was confirmed before is stored once.

        Parameters
        ----------
        text
            What was searched for: a text, or features, one row.
        right
            The id of an image that is right, or several.
        """
        from diptych.retrieval._merging import confirm_pairs

        return confirm_pairs(self, text, right)

    def _writable(self, searcher: Searcher) -> Searcher:
        """Return the current model, if it has the encoders of one that something was encoded with."""
        current = self._current.get()
        if current.encoders is not searcher.encoders:
            raise ModelChanged  # another thread has loaded a new model
        return current

    def remove(self, ids: str | Iterable[str]) -> int:
        """Remove items, and with an image its captions; return how many items were removed."""
        if not isinstance(ids, Iterable):
            raise InputError(f"{ids!r} is not an id; give the id of an item, or a list of ids.")
        ids = [ids] if isinstance(ids, str) else list(ids)
        for item_id in ids:
            if not isinstance(item_id, str):
                raise unknown_item(item_id)
        self._current.get()
        with self._writing:
            return self._current.run(lambda searcher: searcher.remove(ids), uses_encoders=False)

    def sync(
        self, folders: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), *, remove: bool = False
    ) -> SyncReport:
        """Bring a model folder up to date with folders of photos; return what has changed.

        New photos are added under their paths from the folder, with what their files say of themselves: date,
        place, camera and tags as metadata, descriptions and titles as captions (``docs/photos.md``). Photos
        whose file is unchanged, by size and time or else by SHA-256, are skipped; those whose file changed
        are encoded again; a file with another name is found again by its SHA-256. The library remembers the
        folders. Photos that were removed from it stay removed until their files change. What an interruption
        left is done by the next call.

        Parameters
        ----------
        folders
            A folder, or several; none: all that the library knows.
        remove
            Remove photos whose file is gone, with their captions; otherwise they are only named.
        """
        from diptych.retrieval._sync import sync

        self._current.read()
        chosen = [folders] if isinstance(folders, str | os.PathLike) else folders
        return sync(self, chosen, remove)

    def evaluate(self, data: PairedDataset | PairedViews, split: str | None = "test") -> Evaluation:
        """Return the recalls and other metrics of both tasks on one ``split`` of pairs; None: on all of them.

        The result is a dict, ``result["search"]["r@1"]``; it also has intervals, and writes files.
        """
        from diptych.data import PairedDataset
        from diptych.retrieval._evaluation import Evaluation, rank_pairs
        from diptych.retrieval._training import encode_views, leave_out_empty, warn_if_training

        searcher = self.searcher
        dataset = data if isinstance(data, PairedDataset) else data.dataset
        whole = split is None or dataset.splits is None
        if not whole and len(dataset.image_rows(str(split))) == 0:
            raise InputError(f"the pairs have no {split} split; choose another.")
        if isinstance(data, PairedDataset):
            views = encode_views(data if whole else data.subset(str(split)), searcher.encoders)
        else:
            views = replace(data, x=self._join("image", data.x), y=self._join("text", data.y))
        views = leave_out_empty(views)
        rows = np.arange(views.dataset.n_images) if whole else views.dataset.image_rows(str(split))
        warn_if_training(searcher.fitted.facts, views, rows)
        rankings = rank_pairs(searcher.projectors, views.of(rows), self.device)
        return Evaluation(rankings, views.dataset.select(rows))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write everything to a model folder, in place of what it holds, in one step.

        From then on, and after ``load``, the retriever is in that folder: what is added, removed or refitted
        is on the disk when the call returns, other processes may do so too, and a search finds what they
        have added. There is nothing more to save; in another folder, ``save`` makes a copy. A ``fit`` begins
        anew, in memory.
        """
        with self._writing:
            save(self, folder)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        image_encoder: ImageEncoderLike = None,
        text_encoder: TextEncoderLike = None,
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
            The model folder.
        image_encoder, text_encoder
            The encoders, if they are neither in the folder nor where they were when it was saved; they
            are checked against its fingerprints. Of several, give all, in the same order; ``"hkse"`` is the
            one in the folder. The encoders that the folder names are opened when they are first needed, and
            only if they are unchanged.
        mmap
            Leave vectors, features and the model on disk and map them: loading takes little time and memory.
        trust_graph
            Read an HNSW file as it is, which FAISS does not make safe for files of strangers; otherwise the
            graph is built again.
        device
            Where evaluation runs.
        index
            For a folder that points to a database: its address, if that has a password or has changed.
        """
        wants_text = needs_stored_hkse(text_encoder)
        loaded = load(folder, Reading(mmap, trust_graph), text=wants_text, index=index)
        return cls._from_loaded(loaded, image_encoder, text_encoder, device)

    @classmethod
    def connect(
        cls,
        address: str,
        image_encoder: ImageEncoderLike = None,
        text_encoder: TextEncoderLike = None,
        *,
        device: str = "cpu",
    ) -> Retriever:
        """Open the model at ``postgresql://user@host/database``; the rest as ``load`` takes it."""
        if not isinstance(address, str) or "://" not in address:
            raise InputError("this is not the address of a database; give postgresql://user@host/database.")
        loaded = load_from_store(open_store(address, create=False), text=needs_stored_hkse(text_encoder))
        return cls._from_loaded(loaded, image_encoder, text_encoder, device)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        branch: str | None = None,
        commit_message: str = "Push model with diptych",
        license: str = "unknown",
        keep_features: bool = False,
    ) -> str:
        """Publish the model in a repository of the Hugging Face Hub; return the address of the commit.

        Published are the model, the vectors of all items, their ids, texts and metadata, an ``HKSE`` with its
        word vectors, and the model card; no image, no path of this machine, and no network. Absolute paths
        that serve as ids become file names.

        Parameters
        ----------
        repo_id
            ``"user/name"``; it is created if it does not exist.
        private
            Whether a new repository is private; None: the default of the user or organisation, mostly public.
        token
            None: that of ``hf auth login``, or of the variable ``HF_TOKEN``.
        branch
            None: ``"main"``.
        commit_message
            The message of the commit.
        license
            The licence that the card names, as the Hub abbreviates it (``"cc-by-4.0"``).
        keep_features
            Publish features and moments too, so that others can ``refit``.
        """
        from diptych.retrieval._publishing import push

        return push(
            self,
            repo_id,
            private=private,
            token=token,
            branch=branch,
            commit_message=commit_message,
            license=license,
            keep_features=keep_features,
        )

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str | os.PathLike[str],
        image_encoder: ImageEncoderLike = None,
        text_encoder: TextEncoderLike = None,
        *,
        revision: str | None = None,
        token: str | None = None,
        images: str | os.PathLike[str] | None = None,
        mmap: bool = False,
        device: str = "cpu",
        max_gigabytes: float = 20.0,
    ) -> Retriever:
        """Read a model that others published; nothing in it is executed, and no path in it is opened.

        Only the files of a model are downloaded, to a folder beside the cache of ``huggingface_hub``. What is
        changed stays in memory, so ``save`` to a folder of your own.

        Parameters
        ----------
        repo_id
            ``"user/name"`` on the Hugging Face Hub, or a model folder that came from others.
        image_encoder, text_encoder
            The encoders of the model, unless they are part of it; they are checked against its fingerprints.
        revision
            A branch, a tag or a commit; None: the newest on the main branch.
        token
            None: that of ``hf auth login``, or of the variable ``HF_TOKEN``.
        images
            A folder with the image files under their ids, if you have them.
        mmap, device
            As ``load`` takes them.
        max_gigabytes
            A larger model is not downloaded.
        """
        from diptych.retrieval._publishing import find_model

        if images is not None and not os.path.isdir(images):
            raise InputError(f"{images} is not a folder; give the folder that holds the images.")
        folder = find_model(repo_id, revision, token, max_gigabytes)
        wants_text = needs_stored_hkse(text_encoder)
        loaded = load(folder, Reading(mmap, published=True, images=images), text=wants_text)
        return cls._from_loaded(loaded, image_encoder, text_encoder, device)

    def info(self) -> dict[str, Any]:
        """Return what is known of the model, as plain data."""
        from diptych.retrieval._description import describe

        return describe(self.searcher, self.keep_features)

    @classmethod
    def _from_loaded(
        cls, loaded: LoadedModel, image_encoder: Any, text_encoder: Any, device: str
    ) -> Retriever:
        retriever, encoders = cls.__new__(cls), loaded.encoders(image_encoder, text_encoder)
        retriever._set_up(loaded.store, encoders, None, loaded.keep_features, device)
        retriever._current.searcher = loaded.searcher(encoders)
        return retriever

    def _search(self, search: Search) -> Any:
        return self._current.run(lambda searcher: searcher.search(search), uses_encoders=search.uses_encoders)

    def _join(self, view: View, features: Any) -> Any:
        """Return named blocks of features as one row or matrix; anything else unchanged."""
        return join_blocks(features, self._current.get().fitted.layout, view, self.views)

    def _embed(self, view: View, things: Any, task: str) -> np.ndarray[Any, Any]:
        chosen, searcher = check_task(task), self.searcher
        features = searcher.read_queries(view, things).features
        if SEARCHED[chosen] == view:
            return searcher.projectors[chosen].items(features)
        return searcher.projectors[chosen].queries(features)

    def _check_settings(self) -> None:
        """Refuse, before any work, what would fail after it."""
        self.store.state()
        self.model.check_parameters()
        if self.device != "cpu":
            from diptych._devices import check_device

            check_device(self.device)

    def _fill(
        self, fitted: Fitted, items: Mapping[View, list[Item]], features: Mapping[View, np.ndarray[Any, Any]]
    ) -> None:
        check_unique(item for view_items in items.values() for item in view_items)
        with self._writing:
            filled = Searcher.fill(
                self.store, fitted, self.encoders, items, features, self.keep_features, self.model.verbose
            )
            self._current.use(filled)
