"""What an experiment runs on: the data, how much to run, the features of every split and their spectra."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from scipy.sparse import csr_array

from diptych.cca import Moments, Spectra, spectra_from_moments
from diptych.cca.selection import Problem, make_problem
from reproduction.data import YOURS, PaperData
from reproduction.features import CaptionWords, Features, HKSEFeatures, StoredFeatures
from reproduction.protocols import ProtocolRun, ProtocolSplits, split_by_protocol
from reproduction.results import Cache, Floats, Result, Rows, digest

VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "HKSE(lin, lin)": (("lin", "lin"),),
    "HKSE(lin, rbf)": (("lin", "rbf"),),
    "HKSE(rbf, lin)": (("rbf", "lin"),),
    "HKSE(rbf, rbf)": (("rbf", "rbf"),),
    "[HKSE(lin, rbf) || HKSE(rbf, rbf)]": (("lin", "rbf"), ("rbf", "rbf")),
}
BLOCK_IMAGES = 2000
EMBEDDED_KEPT = 2
"""Embeddings of so many texts stay in memory."""
AS_PUBLISHED, OURS = "as they are", "square root, unit length"
"""How features are normalised in the main tables: as in the paper, and as this library recommends."""

V = TypeVar("V")


@dataclass(frozen=True)
class Options:
    """How much of each experiment is run.

    >>> Options.for_dataset("coco").sentence_features, Options.for_dataset("coco", quick=True).grid
    (3000, 7)
    """

    grid: int = 20  # points per side
    map_shape: tuple[int, int] = (37, 91)  # points of the dense maps
    word_features: int = 2000  # m and m' of HKSE
    sentence_features: int = 2000
    alphas: int = 11  # points of the curve over (Σ^α, Σ^(1−α))
    timed_points: int = 4  # grid points per side on which the textbook route is timed
    all_images: bool = True  # every image feature in the main tables, or only the first and the user's own
    draws: int = 10  # of the approximation of HKSE, as are the next three
    sampled_words: int = 1500
    sampled_captions: int = 400
    feature_counts: tuple[int, ...] = (125, 250, 500, 1000, 2000, 4000, 8000)
    neighbours: int = 40  # images in a panel of the t-SNE figure
    seeds: int = 1  # of the main tables
    query: str | None = None  # the text of the t-SNE figure; None chooses a test caption
    quick: bool = False  # a small version, whose verdicts are indicative

    @classmethod
    def for_dataset(
        cls, name: str, *, quick: bool = False, seeds: int = 1, query: str | None = None
    ) -> Options:
        """Return the paper's options (m' = 3000 on COCO, 2000 elsewhere), or those of a small version."""
        options = QUICK if quick else cls(sentence_features=3000 if name == "coco" else 2000)
        return replace(options, seeds=seeds, query=query)


QUICK = Options(
    grid=7,
    map_shape=(10, 13),
    word_features=300,
    sentence_features=300,
    alphas=5,
    timed_points=2,
    all_images=False,
    draws=6,
    sampled_words=600,
    sampled_captions=150,
    feature_counts=(125, 500, 2000),
    neighbours=24,
    quick=True,
)


class _Recent(Generic[V]):
    """Keeps the ``size`` values that were used last; others are computed again when they are needed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[Hashable, V] = OrderedDict()

    def fetch(self, key: Hashable, compute: Callable[[], V]) -> V:
        if key not in self._values:
            value = compute()
            while len(self._values) >= self._size:
                self._values.popitem(last=False)
            self._values[key] = value
        self._values.move_to_end(key)
        return self._values[key]


@dataclass(frozen=True)
class _RowNumbers:
    """A varying column in the place of the other view, when only one view is decomposed."""

    rows: int
    name: str = "row numbers"
    fingerprint: str = ""
    dimension: int = 1
    seeded: bool = False

    def take(self, rows: Rows) -> Floats:
        return np.asarray(rows[:, None] / self.rows, dtype=np.float32)


@dataclass(eq=False)
class Setting:
    """What every experiment uses: the data, how much to run, and the results that were computed before."""

    data: PaperData
    options: Options = field(default_factory=Options)
    cache: Cache = field(default_factory=Cache)
    seed: int = 0  # of the random features, and of the splits where a protocol draws them
    _spectra: _Recent[Spectra] = field(default_factory=lambda: _Recent(2), repr=False)
    _view_spectra: _Recent[Spectra] = field(default_factory=lambda: _Recent(10), repr=False)
    _problems: _Recent[Problem] = field(default_factory=lambda: _Recent(3), repr=False)
    _embedded: list[HKSEFeatures] = field(default_factory=list, repr=False)
    _by_seed: dict[int, Setting] = field(default_factory=dict, repr=False)

    def with_seed(self, seed: int) -> Setting:
        """Return this setting with another seed; results are shared, features and spectra are not."""
        if seed == self.seed:
            return self
        if seed not in self._by_seed:
            self._by_seed[seed] = Setting(self.data, self.options, self.cache, seed)
        return self._by_seed[seed]

    @cached_property
    def plans(self) -> dict[str, ProtocolSplits]:
        """Training, validation and test images of each protocol."""
        if self.data.name == "scenes":
            train, validation, test = map(self.data.dataset.image_rows, ("train", "val", "test"))
            return {"scenes": ProtocolSplits("scenes", train, (ProtocolRun(validation, test),))}
        return {
            name: split_by_protocol(name, self.data.dataset, random_state=self.seed)
            for name in self.data.protocols
        }

    @property
    def train(self) -> Rows:
        """Training images; the protocols of one dataset share them."""
        return next(iter(self.plans.values())).train

    @property
    def single_plan(self) -> ProtocolSplits:
        """The protocol of the single experiments: the one with the largest test set."""
        return max(self.plans.values(), key=lambda plan: len(plan.runs[0].test))

    @property
    def run(self) -> ProtocolRun:
        """Validation and test images of the single experiments: the first run of ``single_plan``."""
        return self.single_plan.runs[0]

    @cached_property
    def words(self) -> CaptionWords:
        dataset = self.data.dataset
        return CaptionWords(dataset.captions, dataset.caption_rows(self.train), self.data.read_vectors)

    @cached_property
    def texts(self) -> dict[str, Features]:
        """Text features by name: the variants of HKSE, and those of sentence encoders."""
        sizes = self.options.word_features, self.options.sentence_features
        variants: dict[str, Features] = {
            name: HKSEFeatures(name, self.words, kinds, *sizes, self.seed) for name, kinds in VARIANTS.items()
        }
        return variants | {text.name: text for text in self.data.texts}

    @property
    def image(self) -> StoredFeatures:
        return self.data.images[0]

    @property
    def mean_words(self) -> Features:
        """Mean word vectors, the text of Tables 2 to 4 and of Figure 2."""
        return self.texts["HKSE(lin, lin)"]

    @property
    def hkse(self) -> HKSEFeatures:
        """HKSE(rbf, rbf), the text of the paper's maps and examples."""
        text = self.texts["HKSE(rbf, rbf)"]
        assert isinstance(text, HKSEFeatures)
        return text

    def feature_pairs(self) -> list[tuple[str, Features, Features]]:
        """List (normalisation, image, text) of the main tables, grouped by text: each is embedded once."""
        images = [
            image
            for i, image in enumerate(self.data.images)
            if self.options.all_images or i == 0 or image.name.endswith(YOURS)
        ]
        pairs: list[tuple[str, Features, Features]] = []
        for text in self.texts.values():
            pairs += [(AS_PUBLISHED, image, text) for image in images]
            # A square root evens out a few large image features; sentence encoders get unit length.
            scaled = replace(text, normalization="unit") if isinstance(text, StoredFeatures) else text
            pairs += [(OURS, replace(image, normalization="sqrt-unit"), scaled) for image in images]
        return pairs

    def views(self, image: Features, text: Features, rows: Rows) -> tuple[Floats, Floats, Rows]:
        """Return ``X, Y, pairing`` of some images and their captions."""
        images, captions, pairing = self.data.dataset.paired_rows(rows)
        if isinstance(text, HKSEFeatures):
            self._embedded = [*(features for features in self._embedded if features is not text), text]
            for older in self._embedded[:-EMBEDDED_KEPT]:
                older.release()
        return image.take(images), text.take(captions), pairing

    def packs(self, image: Features, text: Features, rows: Rows) -> tuple[Floats, Floats, Rows]:
        """Return ``X``, the mean of each image's captions, and the pairing row by row.

        The model is linear, so the mean of a pack's vectors is the vector of its mean.
        """
        x, y, pairing = self.views(image, text, rows)
        return *mean_captions(x, y, pairing), np.arange(len(np.unique(pairing)))

    def spectra(self, image: Features, text: Features) -> Spectra:
        """Return the spectra of the training pairs.

        Each view is decomposed once; only T0 = V_xᵀ (XᵀY) V_y is computed for each pair of views.
        """

        def compute() -> Spectra:
            blank = _RowNumbers(len(self.data.dataset.pairing))
            x = self._view_spectra.fetch(image.fingerprint, lambda: self._decompose(image, blank))
            y = self._view_spectra.fetch(text.fingerprint, lambda: self._decompose(blank, text))
            cross = np.zeros((image.dimension, text.dimension))
            for start in range(0, len(self.train), BLOCK_IMAGES):
                rows, captions, pairing = self.views(image, text, self.train[start : start + BLOCK_IMAGES])
                sums = sum_captions(captions - y.y_mean, pairing, len(rows))
                cross += (rows - x.x_mean).T @ sums
            t0 = (x.v_x.T @ cross) @ y.v_y
            views = x.x_mean, y.y_mean, x.s_x, x.v_x, y.s_y, y.v_y
            return Spectra(x.count, *views, t0, max(x.resolution, y.resolution))

        return self._spectra.fetch((image.fingerprint, text.fingerprint), compute)

    def _decompose(self, image: Features, text: Features) -> Spectra:
        moments = Moments.zero(image.dimension, text.dimension)
        for start in range(0, len(self.train), BLOCK_IMAGES):
            moments.update(*self.views(image, text, self.train[start : start + BLOCK_IMAGES]))
        return spectra_from_moments(moments)

    def problem(
        self,
        image: Features,
        text: Features,
        rows: Rows,
        *,
        similarity: str = "cosine",
        packs: bool = False,
    ) -> Problem:
        """Return some images and their captions, or packs, in the eigenbases of the training pairs."""

        def compute() -> Problem:
            views = (self.packs if packs else self.views)(image, text, rows)
            return make_problem(self.spectra(image, text), views)

        key = image.fingerprint, text.fingerprint, digest(rows), packs
        return replace(self._problems.fetch(key, compute), similarity=similarity)

    def fetch(
        self,
        name: str,
        features: tuple[Features, ...],
        inputs: Mapping[str, Any],
        compute: Callable[[], Result],
    ) -> Result:
        """Return a stored result, or compute it.

        It is computed again when the features, the splits, ``inputs`` or the library's code have changed.
        """
        dependencies = {
            "features": [source.fingerprint for source in features],
            "splits": self._splits,
            "seed": self.seed if any(source.seeded for source in features) else 0,
            **inputs,
        }
        return self.cache.fetch(name, dependencies, compute)

    @cached_property
    def _splits(self) -> str:
        runs = [[p.name, p.train, [[r.validation, r.test] for r in p.runs]] for p in self.plans.values()]
        return digest([runs, self.data.dataset.pairing])

    def describe(self) -> dict[str, Any]:
        """Return options and features as plain data, for ``results.json``."""
        return {
            "dataset": self.data.title,
            "protocols": list(self.plans),
            "options": asdict(self.options),
            "images": [features.name for features in self.data.images],
            "texts": list(self.texts),
            "word vectors": self.data.vectors_origin,
            "files": [file._asdict() for file in self.data.files],
        }


def mean_captions(x: Floats, y: Floats, pairing: Rows) -> tuple[Floats, Floats]:
    """Return the images that have captions, and the mean of each one's captions.

    >>> import numpy as np
    >>> mean_captions(np.eye(2), np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1]))[1]
    array([[2.],
           [5.]])
    """
    described, counts = np.unique(pairing, return_counts=True)
    return x[described], sum_captions(y, pairing, len(x))[described] / counts[:, None].astype(y.dtype)


def sum_captions(y: Floats, pairing: Rows, n_images: int) -> Floats:
    places = np.ones(len(y), dtype=y.dtype), (pairing, np.arange(len(y)))
    return np.asarray(csr_array(places, (n_images, len(y))) @ y)
