"""Encode images and captions, batch by batch, into feature stores or into blocks for a fit.

Images are decoded by threads ahead of the encoder, a bounded number at a time.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Self, TypeAlias, TypeVar, overload

import msgspec
import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import DataWarning, InputError, check_choice, count, plural
from diptych._threads import prefetch, thread_count
from diptych.data._feature_store import (
    DTYPES,
    Features,
    FeatureStore,
    Job,
    RowNumbers,
    StoreWriter,
    open_finished,
    read_job,
)
from diptych.data._pairs import PairedDataset
from diptych.encoders import ImageEncoder, SentenceEncoder, sentence_encoder
from diptych.encoders import image_encoder as make_image_encoder
from diptych.encoders._decoding import DEFAULT_MAX_PIXELS
from diptych.encoders._image import encode_inputs, inputs_of, prepare_input

_SAMPLE_BYTES = 4096
_PROBE_CAPTIONS = 8
_BATCH_CAPTIONS = 1024


@dataclass(frozen=True)
class Progress:
    """How far an encoding is; counts are numbers of inputs."""

    done: int  # including those of earlier runs
    total: int
    skipped: int  # because they could not be read
    resumed: int  # done by earlier runs
    seconds: float  # since this run began


ProgressCallback: TypeAlias = Callable[[Progress], None]


def encode_images(
    dataset: PairedDataset,
    encoder: ImageEncoder,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    workers: int | None = None,
    dtype: str = "float32",
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: ProgressCallback | None = None,
) -> FeatureStore:
    """Encode the images of some pairs, or whatever their first view holds, into a feature store.

    Interrupted work continues where it stopped and gives the same bytes as uninterrupted work. A store made
    by another encoder or from other files raises an ``InputError``. Images that cannot be read are listed
    in the store's ``skipped`` and have no row; ``join`` leaves them out of the pairs.

    Parameters
    ----------
    dataset
        Pairs that have the paths of their images; for an encoder of texts, the ids are what is encoded.
    encoder
        Any ``ImageEncoder``; a ``StagedEncoder`` prepares single images in the decoding threads.
    folder
        A new or empty folder, or that of the same work interrupted.
    batch_size
        Images encoded together; resumed work keeps the size it began with.
    workers
        Decoding threads; None: one for each core, 8 at most. About ``batch_size`` plus twice as many
        images are in memory at a time.
    dtype
        ``"float32"`` or ``"float16"``.
    max_pixels
        Larger images are skipped without being decoded.
    progress
        Called after every batch.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from diptych.encoders import PyramidDescriptor
    >>> from diptych.scenes import make_scenes
    >>> pairs = make_scenes(5, size=32).write(mkdtemp())
    >>> encode_images(pairs, PyramidDescriptor(), mkdtemp()).features.shape
    (5, 630)
    """
    sources = _list_sources(dataset, encoder)
    pipeline = _make_image_pipeline(
        encoder, dataset.views.image, max_pixels, batch_size, thread_count(workers)
    )
    fingerprint = encoder.fingerprint + ("" if max_pixels == DEFAULT_MAX_PIXELS else f":{max_pixels}")
    digest = _digest_sources(dataset, encoder)
    dimension = encoder.dimension or _measure_dimension(pipeline, sources)
    job = Job(fingerprint, digest, len(sources), dimension, dtype, batch_size)
    return _write_store(job, dataset.image_ids, sources, pipeline, folder, progress)


def encode_texts(
    dataset: PairedDataset,
    encoder: SentenceEncoder,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = _BATCH_CAPTIONS,
    dtype: str = "float32",
    progress: ProgressCallback | None = None,
) -> FeatureStore:
    """Encode the captions of some pairs into a feature store; see ``encode_images``.

    An encoder without a ``fingerprint`` is identified by the features of the first captions.

    Parameters
    ----------
    dataset, folder, batch_size, dtype, progress
        As in ``encode_images``.
    encoder
        Anything with ``encode(captions)``.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from diptych.encoders import sentence_encoder
    >>> pets = PairedDataset.of([("cat.jpg", ["A cat.", "It sleeps."]), ("dog.jpg", ["A dog."])])
    >>> lengths = sentence_encoder(lambda texts: np.array([[float(len(text))] for text in texts]))
    >>> encode_texts(pets, lengths, mkdtemp()).features.tolist()
    [[6.0], [10.0], [6.0]]
    """
    if not dataset.captions:
        raise InputError(f"these pairs have no {plural(dataset.views.caption)} to encode.")
    probe = list(dataset.captions[:_PROBE_CAPTIONS])
    dimension = _check_features(encoder.encode(probe), len(probe)).shape[1]
    digest = hashlib.sha256()
    for name, text in zip(dataset.caption_ids, dataset.captions, strict=True):
        digest.update(f"{name}\0{text}\n".encode())
    fingerprint = _fingerprint_text_encoder(encoder, dataset.captions)
    job = Job(fingerprint, digest.hexdigest()[:32], dataset.n_captions, dimension, dtype, batch_size)
    pipeline = _make_text_pipeline(encoder, batch_size)
    return _write_store(job, dataset.caption_ids, dataset.captions, pipeline, folder, progress)


@dataclass(frozen=True)
class EncodedBatch:
    """Features of the readable inputs of a batch, and the numbers and errors of the others."""

    features: Features
    size: int
    unreadable: list[tuple[int, InputError]]


@dataclass(frozen=True)
class Pipeline:
    """Loads single inputs in threads and encodes them in batches.

    Both return the errors of inputs that cannot be read instead of raising them; ``encode``, by position.
    """

    load: Callable[[Any], Any]
    encode: Callable[[list[Any]], tuple[Any, Mapping[int, InputError]]]
    batch_size: int
    workers: int

    def run(self, inputs: Sequence[Any], start: int = 0) -> Generator[EncodedBatch, None, None]:
        """Yield the batches of ``inputs`` from number ``start`` on."""
        window = self.batch_size + 2 * self.workers
        with closing(prefetch(self.load, inputs[start:], self.workers, window)) as loaded:
            for first in range(start, len(inputs), self.batch_size):
                batch = list(islice(loaded, self.batch_size))
                unreadable = {i: x for i, x in enumerate(batch) if isinstance(x, InputError)}
                good = [i for i in range(len(batch)) if i not in unreadable]
                features: Features = np.empty((0, 0))
                if good:
                    rows, refused = self.encode([batch[i] for i in good])
                    unreadable |= {good[i]: error for i, error in refused.items()}
                    if len(refused) < len(good):
                        features = _check_features(rows, len(good) - len(refused))
                errors = [(first + i, unreadable[i]) for i in sorted(unreadable)]
                yield EncodedBatch(features, len(batch), errors)


def _make_image_pipeline(
    encoder: ImageEncoder, what: str, max_pixels: int, batch_size: int, workers: int
) -> Pipeline:
    """Return the pipeline from sources to features; ``what`` names it in messages."""
    return Pipeline(
        lambda source: prepare_input(encoder, source, what, max_pixels),
        lambda prepared: encode_inputs(encoder, prepared, what),
        batch_size,
        workers,
    )


def _make_text_pipeline(encoder: SentenceEncoder, batch_size: int) -> Pipeline:
    return Pipeline(str, lambda texts: (encoder.encode(texts), {}), batch_size, 1)


def _measure_dimension(pipeline: Pipeline, sources: Sequence[Any]) -> int:
    """Return the width of the features of the first input that can be read; 1 if there is none."""
    with closing(replace(pipeline, batch_size=1).run(sources)) as batches:
        return next((batch.features.shape[1] for batch in batches if len(batch.features)), 1)


def _write_store(
    job: Job,
    ids: Sequence[str],
    inputs: Sequence[Any],
    pipeline: Pipeline,
    folder: str | os.PathLike[str],
    progress: ProgressCallback | None,
) -> FeatureStore:
    check_choice(job.dtype, DTYPES, "dtype")
    if job.batch_size < 1:
        raise InputError(f"batch_size={job.batch_size} is below 1; give the number of inputs of a batch.")
    if (finished := open_finished(folder, job)) is not None:
        return finished
    if (previous := read_job(folder)) is not None:
        # Resumed work keeps its batch size, because the last bits of a feature may depend on it.
        job = msgspec.structs.replace(job, batch_size=previous.batch_size)
        pipeline = replace(pipeline, batch_size=previous.batch_size)
    begin = time.perf_counter()
    with closing(StoreWriter(folder, job)) as writer, closing(pipeline.run(inputs, writer.done)) as batches:
        resumed = writer.done
        for batch in batches:
            features = batch.features if len(batch.features) else np.empty((0, job.dimension), job.dtype)
            # The path in a message may have bytes that are not UTF-8.
            skipped = [(i, str(error).encode(errors="replace").decode()) for i, error in batch.unreadable]
            writer.append(features, batch.size, skipped)
            if progress is not None:
                seconds = time.perf_counter() - begin
                progress(Progress(writer.done, job.count, len(writer.skipped), resumed, seconds))
        return writer.finish(ids)


def _list_sources(dataset: PairedDataset, encoder: ImageEncoder) -> Sequence[Path | str]:
    """Return what an encoder takes of the first view of some pairs: the files, or, as texts, the ids."""
    if inputs_of(encoder) == "texts":
        return dataset.image_ids
    if dataset.paths is None:
        raise InputError(f"these pairs have no {dataset.views.image} paths; read them with images=FOLDER.")
    return dataset.paths


def _check_features(features: Any, rows: int) -> Features:
    matrix = to_numpy(features)
    if matrix.ndim != 2 or len(matrix) != rows or matrix.dtype.kind not in "fiu":
        raise InputError(
            f"the encoder gave {matrix.dtype}{list(matrix.shape)} for {rows} inputs; expected one row of "
            "real numbers for each."
        )
    return matrix


def _fingerprint_text_encoder(encoder: SentenceEncoder, captions: Sequence[str]) -> str:
    """Return the encoder's own fingerprint, or a digest of its features of the first captions."""
    fingerprint = str(getattr(encoder, "fingerprint", ""))
    if fingerprint:
        return fingerprint
    probe = to_numpy(encoder.encode(list(captions[:_PROBE_CAPTIONS])))
    return hashlib.sha256(np.ascontiguousarray(probe).tobytes()).hexdigest()[:32]


def _digest_sources(dataset: PairedDataset, encoder: ImageEncoder) -> str:
    """Return a digest of the sources: of files, the names, sizes, first and last kilobytes.

    Whole files are not read: that would take as long as decoding them, each time work is resumed.
    """
    digest, sources = hashlib.sha256(), _list_sources(dataset, encoder)
    if sources is dataset.image_ids:
        return hashlib.sha256("\0".join(dataset.image_ids).encode()).hexdigest()[:32]
    for name, source in zip(dataset.image_ids, sources, strict=True):
        try:
            with open(source, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                digest.update(f"{name}\0{size}\0".encode() + file.read(_SAMPLE_BYTES))
                file.seek(max(0, size - _SAMPLE_BYTES))
                digest.update(file.read(_SAMPLE_BYTES))
        except OSError:
            digest.update(f"{name}\0missing\0".encode())
    return digest.hexdigest()[:32]


B = TypeVar("B")


@dataclass(frozen=True, eq=False)
class BlockSequence(Sequence[B], Generic[B]):
    """Blocks in order; a slice of them has the same class."""

    blocks: tuple[B, ...]

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, index: int) -> B: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> B | Self:
        return type(self)(self.blocks[index]) if isinstance(index, slice) else self.blocks[index]


def encoded_blocks(
    dataset: PairedDataset,
    image_encoder: ImageEncoder | str | os.PathLike[str],
    text_encoder: Any,
    *,
    images: int = 512,
    batch_size: int = 32,
    workers: int | None = 1,
    max_pixels: int = DEFAULT_MAX_PIXELS,
) -> EncodedBlocks:
    """Make blocks for ``AWCCA.fit`` that are encoded when they are needed; no features are kept on disk.

    Images that cannot be read are left out with their captions, and a ``DataWarning`` for each block counts
    them; warnings from the workers of a cluster reach your process too.

    Parameters
    ----------
    dataset
        Pairs that have the paths of their images; for one split, ``dataset.subset("train")``.
    image_encoder
        An ``ImageEncoder``, or what ``diptych.encoders.image_encoder`` takes.
    text_encoder
        A fitted ``HKSE``, an object with ``encode``, or what ``diptych.encoders.sentence_encoder`` takes.
    images
        About how many images a block has.
    batch_size
        Images encoded together.
    workers
        Decoding threads for each block: 1 suits a cluster, where every worker has its own core; None:
        one for each core, 8 at most.
    max_pixels
        Larger images count as unreadable.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from diptych.scenes import make_scenes
    >>> from diptych.encoders import HKSE
    >>> pairs = make_scenes(12).write(mkdtemp())
    >>> hkse = HKSE(word_features=8, sentence_features=8).fit(pairs.captions)
    >>> blocks = encoded_blocks(pairs, "pyramid", hkse, images=5)
    >>> x, y, pairing = blocks[0].load()
    >>> len(blocks), x.shape, y.shape
    (3, (4, 630), (20, 8))
    """
    for name, value in (("images", images), ("batch_size", batch_size), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name}={value} is below 1; give at least 1.")
    if isinstance(image_encoder, str | os.PathLike):
        image_encoder = make_image_encoder(image_encoder)
    if not isinstance(text_encoder, SentenceEncoder) or isinstance(text_encoder, np.ndarray):
        text_encoder = sentence_encoder(text_encoder)
    sources = _list_sources(dataset, image_encoder)
    paths = None if sources is dataset.image_ids else [Path(source).absolute() for source in sources]
    encoders = BlockEncoders(image_encoder, text_encoder, max_pixels, batch_size, thread_count(workers))
    # An image without captions is in no pair.
    described = np.unique(dataset.pairing)
    if len(described) == 0:
        raise InputError(f"these pairs have no {plural(dataset.views.caption)} to encode.")
    by_image = np.argsort(dataset.pairing, kind="stable")
    parts = np.array_split(described, -(-len(described) // images))
    ends = np.searchsorted(dataset.pairing[by_image], [part[-1] for part in parts], "right")
    blocks = []
    for rows, captions in zip(parts, np.split(by_image, ends[:-1]), strict=True):
        block = PairedDataset(
            tuple(dataset.image_ids[i] for i in rows),
            tuple(dataset.captions[j] for j in captions),
            np.searchsorted(rows, dataset.pairing[captions]),
            paths=None if paths is None else tuple(paths[i] for i in rows),
            views=dataset.views,
        )
        blocks.append(EncodedBlock(block, encoders))
    return EncodedBlocks(tuple(blocks))


@dataclass(frozen=True, eq=False)
class BlockEncoders:
    """The encoders that all blocks share, and their settings."""

    image: ImageEncoder
    text: SentenceEncoder
    max_pixels: int
    batch_size: int
    workers: int


@dataclass(frozen=True, eq=False)
class EncodedBlock:
    """Some images and their captions, which ``load`` encodes; it can be sent to another process.

    An engine sends ``shared``, which all blocks have in common, once instead of with every block.
    """

    pairs: PairedDataset
    shared: BlockEncoders | None

    @property
    def name(self) -> str:
        """First and last item, for messages."""
        return f"the {plural(self.pairs.views.image)} {self.pairs.image_ids[0]} to {self.pairs.image_ids[-1]}"

    def load(self) -> tuple[Features, Features, RowNumbers]:
        """Return ``x, y, pairing`` of the images that can be read."""
        assert self.shared is not None
        pairs, encoders = self.pairs, self.shared
        pipeline = _make_image_pipeline(
            encoders.image,
            pairs.views.image,
            encoders.max_pixels,
            encoders.batch_size,
            encoders.workers,
        )
        batches = list(pipeline.run(_list_sources(pairs, encoders.image)))
        unreadable = dict(failure for batch in batches for failure in batch.unreadable)
        if len(unreadable) == pairs.n_images:
            raise InputError(
                f"of {count(pairs.n_images, pairs.views.image)}, none could be read (the first: "
                f"{unreadable[0]}); check them with diptych check."
            )
        if unreadable:
            pairs = pairs.select([row for row in range(pairs.n_images) if row not in unreadable])
            warnings.warn(
                f"{len(unreadable)} of {self.name} could not be read and are left out with their "
                f"{plural(pairs.views.caption)} ({next(iter(unreadable.values()))}).",
                DataWarning,
                stacklevel=2,
            )
        texts = _make_text_pipeline(encoders.text, _BATCH_CAPTIONS).run(pairs.captions)
        x = np.concatenate([batch.features for batch in batches if len(batch.features)])
        return x, np.concatenate([batch.features for batch in texts]), np.array(pairs.pairing)


@dataclass(frozen=True, eq=False)
class EncodedBlocks(BlockSequence[EncodedBlock]):
    """Blocks in the order of the images; see ``encoded_blocks``."""

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the images, the captions, their order or the encoders do."""
        encoders = self.blocks[0].shared
        assert encoders is not None
        text = _fingerprint_text_encoder(encoders.text, self.blocks[0].pairs.captions)
        digest = hashlib.sha256(f"{encoders.image.fingerprint} {encoders.max_pixels} {text}".encode())
        for pairs in (block.pairs for block in self.blocks):
            sources = _digest_sources(pairs, encoders.image)
            digest.update(sources.encode() + repr((pairs.captions, pairs.pairing.tolist())).encode())
        return digest.hexdigest()[:32]
