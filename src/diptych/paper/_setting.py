"""The prepared problem: views of every split, their spectra, and the memory of what was computed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from diptych._arrays import group_sum
from diptych.cca import Moments, Spectra, spectra_from_moments
from diptych.cca.selection import Problem, make_problem
from diptych.data import ProtocolRun, ProtocolSplits, split_by_protocol
from diptych.paper._cache import Cache, Options, Result, digest
from diptych.paper._discovery import YOURS
from diptych.paper._materials import Materials
from diptych.paper._sources import Embedded, Floats, Rows, Source, Stored, Words
from diptych.ranking import Truth

VARIANTS: dict[str, tuple[tuple[str, str], ...]] = {
    "HKSE(lin, lin)": (("lin", "lin"),),
    "HKSE(lin, rbf)": (("lin", "rbf"),),
    "HKSE(rbf, lin)": (("rbf", "lin"),),
    "HKSE(rbf, rbf)": (("rbf", "rbf"),),
    "[HKSE(lin, rbf) || HKSE(rbf, rbf)]": (("lin", "rbf"), ("rbf", "rbf")),
}
BLOCK_IMAGES = 2000
SPECTRA_KEPT, HALVES_KEPT, EMBEDDED_KEPT, PROBLEMS_KEPT = 2, 10, 2, 3
"""So many are held in memory; the others are computed again when they are asked for."""
OURS = "square root, unit length"


@dataclass(frozen=True, eq=False)
class Half:
    """One view's part of the spectra."""

    count: int
    mean: Floats
    values: Floats
    vectors: Floats
    resolution: float


@dataclass(frozen=True)
class _Numbered:
    """One column that varies, in the place of the view that is not looked at."""

    rows: int
    name: str = "row numbers"
    fingerprint: str = ""
    dimension: int = 1
    seeded: bool = False

    def take(self, rows: Rows) -> Floats:
        return np.asarray(rows[:, None] / self.rows, dtype=np.float32)


@dataclass(eq=False)
class Setting:
    """Everything an experiment asks for.

    Attributes
    ----------
    materials
        What there is.
    options
        How much to run.
    cache
        What was computed before.
    seed
        Of the random features, and of the splits where a protocol draws them.
    """

    materials: Materials
    options: Options = field(default_factory=Options)
    cache: Cache = field(default_factory=Cache)
    seed: int = 0
    _spectra: OrderedDict[tuple[str, str], Spectra] = field(default_factory=OrderedDict, repr=False)
    _halves: OrderedDict[str, Half] = field(default_factory=OrderedDict, repr=False)
    _problems: OrderedDict[tuple[Any, ...], Problem] = field(default_factory=OrderedDict, repr=False)
    _embedded: list[Embedded] = field(default_factory=list, repr=False)
    _seeded: dict[int, Setting] = field(default_factory=dict, repr=False)

    def with_seed(self, seed: int) -> Setting:
        """The same with another seed; results are shared, features and spectra are not."""
        if seed == self.seed:
            return self
        if seed not in self._seeded:
            self._seeded[seed] = Setting(self.materials, self.options, self.cache, seed)
        return self._seeded[seed]

    @cached_property
    def plans(self) -> dict[str, ProtocolSplits]:
        """Training, validation and test images of each protocol."""
        found = {}
        for name in self.materials.protocols:
            if name == "scenes":
                rows = (self.materials.dataset.image_rows(split) for split in ("train", "val", "test"))
                train, validation, test = rows
                found[name] = ProtocolSplits(name, train, (ProtocolRun(validation, test),))
            else:
                found[name] = split_by_protocol(name, self.materials.dataset, random_state=self.seed)
        return found

    @property
    def train(self) -> Rows:
        """Training images; the protocols of one dataset share them."""
        return next(iter(self.plans.values())).train

    @property
    def run(self) -> ProtocolRun:
        """The run that single experiments use: the first of the protocol with the largest test set."""
        return max((p.runs[0] for p in self.plans.values()), key=lambda run: len(run.test))

    @cached_property
    def words(self) -> Words:
        """Captions and vectors of their words."""
        dataset = self.materials.dataset
        captions = dataset.caption_rows(self.train)
        return Words(dataset.captions, captions, self.materials.read_vectors, self.materials.vectors_kind)

    @cached_property
    def texts(self) -> dict[str, Source]:
        """HKSE in all its variants, and the sentence encoders that were given."""
        made: dict[str, Source] = {
            name: Embedded(
                name, self.words, kinds, self.options.word_features, self.options.sentence_features, self.seed
            )
            for name, kinds in VARIANTS.items()
        }
        return made | {text.name: text for text in self.materials.texts}

    @property
    def image(self) -> Stored:
        """The image features of the single experiments."""
        return self.materials.images[0]

    @property
    def mean_words(self) -> Source:
        """Mean word vectors, the text of experiments 2, 3 and 4."""
        return self.texts["HKSE(lin, lin)"]

    @property
    def hkse(self) -> Source:
        """HKSE(rbf, rbf), the text of the paper's maps and examples."""
        return self.texts["HKSE(rbf, rbf)"]

    def pairs_of_features(self) -> list[tuple[str, Source, Source]]:
        """(kind, image, text) of the main tables; texts outermost, so that each is embedded once."""
        every, images = self.materials.images, self.materials.images
        if not self.options.all_images:
            images = [*every[:1], *(each for each in every[1:] if each.name.endswith(YOURS))]
        found: list[tuple[str, Source, Source]] = []
        for text in self.texts.values():
            found += [("as they are", image, text) for image in images]
            # Ours: bursty image features are tamed, and sentence encoders brought to unit length.
            scaled = replace(text, normalization="unit") if isinstance(text, Stored) else text
            found += [(OURS, replace(image, normalization="sqrt-unit"), scaled) for image in images]
        return found

    def views(self, image: Source, text: Source, rows: Rows) -> tuple[Floats, Floats, Rows]:
        """``X, Y, pairing`` of some images and their captions."""
        images, captions, pairing = self.materials.dataset.paired_rows(rows)
        if isinstance(text, Embedded):
            self._embedded = [*(each for each in self._embedded if each is not text), text]
            for older in self._embedded[:-EMBEDDED_KEPT]:
                older.forget()
        return image.take(images), text.take(captions), pairing

    def packs(self, image: Source, text: Source, rows: Rows) -> tuple[Floats, Floats, Rows]:
        """``X``, the mean of each image's captions, and the pairing that pairs row with row.

        Embeddings are linear, so a pack's mean embedding is the embedding of its mean.
        """
        x, y, pairing = self.views(image, text, rows)
        return *mean_captions(x, y, pairing), np.arange(len(np.unique(pairing)))

    def spectra(self, image: Source, text: Source) -> Spectra:
        """Of the training pairs; each view is decomposed once, and only T0 is made for each pair of views."""
        key = image.fingerprint, text.fingerprint
        if key not in self._spectra:
            x, y = self._half(image, "x"), self._half(text, "y")
            cross = np.zeros((image.dimension, text.dimension))
            for start in range(0, len(self.train), BLOCK_IMAGES):
                rows, captions, pairing = self.views(image, text, self.train[start : start + BLOCK_IMAGES])
                sums = group_sum(captions - y.mean, pairing, len(rows))
                cross += (rows - x.mean).T @ sums
            t0 = (x.vectors.T @ cross) @ y.vectors
            while len(self._spectra) >= SPECTRA_KEPT:
                self._spectra.popitem(last=False)
            views = x.mean, y.mean, x.values, x.vectors, y.values, y.vectors
            self._spectra[key] = Spectra(x.count, *views, t0, max(x.resolution, y.resolution))
        self._spectra.move_to_end(key)
        return self._spectra[key]

    def _half(self, source: Source, side: str) -> Half:
        """Mean, singular values and vectors of one view over the training pairs."""
        if source.fingerprint not in self._halves:
            blank = _Numbered(len(self.materials.dataset.pairing))
            image: Source = source if side == "x" else blank
            text: Source = blank if side == "x" else source
            moments = Moments.zero(image.dimension, text.dimension)
            for start in range(0, len(self.train), BLOCK_IMAGES):
                moments.update(*self.views(image, text, self.train[start : start + BLOCK_IMAGES]))
            found = spectra_from_moments(moments)
            parts = (getattr(found, f"{side}_mean"), getattr(found, f"s_{side}"), getattr(found, f"v_{side}"))
            while len(self._halves) >= HALVES_KEPT:
                self._halves.popitem(last=False)
            self._halves[source.fingerprint] = Half(found.count, *parts, found.resolution)
        self._halves.move_to_end(source.fingerprint)
        return self._halves[source.fingerprint]

    def problem(
        self,
        image: Source,
        text: Source,
        rows: Rows,
        *,
        similarity: str = "cosine",
        packs: bool = False,
    ) -> Problem:
        """Some images and their captions, or packs of captions, in the eigenbases of the training pairs."""
        key = image.fingerprint, text.fingerprint, digest(rows), packs
        if key not in self._problems:
            views = (self.packs if packs else self.views)(image, text, rows)
            while len(self._problems) >= PROBLEMS_KEPT:
                self._problems.popitem(last=False)
            self._problems[key] = make_problem(self.spectra(image, text), views)
        self._problems.move_to_end(key)
        return replace(self._problems[key], similarity=similarity)

    def remember(
        self,
        name: str,
        version: int,
        sources: tuple[Source, ...],
        inputs: Mapping[str, Any],
        compute: Callable[[], Result],
    ) -> Result:
        """``compute()``, unless features, splits, options and version are those of a result that is there."""
        follows_from = {
            "version": version,
            "features": [source.fingerprint for source in sources],
            "splits": self._splits,
            "seed": self.seed if any(source.seeded for source in sources) else 0,
            **inputs,
        }
        return self.cache.remember(name, follows_from, compute)

    @cached_property
    def _splits(self) -> str:
        runs = [[p.name, p.train, [[r.validation, r.test] for r in p.runs]] for p in self.plans.values()]
        return digest([runs, self.materials.dataset.pairing])

    def described(self) -> dict[str, Any]:
        """Options and features in plain words and numbers, for the files that are written."""
        return {
            "dataset": self.materials.title,
            "protocols": list(self.plans),
            "options": asdict(self.options),
            "images": [source.name for source in self.materials.images],
            "texts": list(self.texts),
            "word vectors": self.materials.vectors_kind,
            "found": [asdict(each) for each in self.materials.found],
        }


def mean_captions(x: Floats, y: Floats, pairing: Rows) -> tuple[Floats, Floats]:
    """Images that have captions, and the mean of each one's captions.

    >>> import numpy as np
    >>> mean_captions(np.eye(2), np.array([[1.0], [3.0], [5.0]]), np.array([0, 0, 1]))[1]
    array([[2.],
           [5.]])
    """
    described = Truth.of(pairing, len(x)).described
    sums = np.zeros((len(x), y.shape[1]), dtype=y.dtype)
    np.add.at(sums, pairing, y)
    counts = np.bincount(pairing, minlength=len(x))[described]
    return x[described], sums[described] / counts[:, None].astype(y.dtype)
