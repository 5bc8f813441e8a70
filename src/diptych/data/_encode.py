"""From pairs to feature stores: decoding runs ahead in threads while the encoder works.

Pictures and captions as blocks of features: each block decodes and encodes its own, where it is used.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, overload

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import DataWarning, InputError, check_choice, count
from diptych._threads import prefetch, thread_count
from diptych.data._feature_store import DTYPES, FeatureStore, Job, StoreWriter, finished, started
from diptych.data._pairs import PairedDataset
from diptych.image._base import ImageEncoder, StagedEncoder
from diptych.image._decoding import DEFAULT_MAX_PIXELS, UnreadableImage, open_image
from diptych.image._named import image_encoder as named_encoder
from diptych.text._encoders import SentenceEncoder, sentence_encoder

_SAMPLE_BYTES = 4096
_PROBES = 8


@dataclass(frozen=True)
class Progress:
    """How far an encoding is.

    Attributes
    ----------
    done, total
        Inputs dealt with, earlier runs included, and all of them.
    skipped
        Inputs that could not be read.
    resumed
        Inputs that earlier runs had dealt with.
    seconds
        Time since this run began.
    waiting
        Of it, the time the encoder waited for decoded pictures.
    """

    done: int
    total: int
    skipped: int
    resumed: int
    seconds: float
    waiting: float

    @property
    def rate(self) -> float:
        """Inputs per second in this run."""
        return (self.done - self.resumed) / self.seconds if self.seconds > 0 else 0.0


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
    """Encode the images of ``dataset`` into a feature store.

    Interrupted work goes on where it stopped and gives the same bytes as work that was not. A store made
    by another encoder or from other files is refused. Images that cannot be read are listed in the
    store's ``skipped`` and have no row; ``join`` leaves them out of the pairs.

    Parameters
    ----------
    dataset
        Pairs that know where their images lie.
    encoder
        Any ``ImageEncoder``; the part of a ``StagedEncoder`` that looks at one picture alone runs in the
        decoding threads.
    folder
        New, empty, or that of the same work interrupted.
    batch_size
        Images encoded together; resumed work keeps the size it began with.
    workers
        Decoding threads; None: one for each core, 8 at most. About ``batch_size`` plus twice as many
        pictures are held in memory, however many there are on disk.
    dtype
        ``"float32"`` or ``"float16"``.
    max_pixels
        Larger pictures are skipped, undecoded.
    progress
        Called after every batch.
    """
    if dataset.paths is None:
        raise InputError("these pairs do not know where their images lie; read them with images=FOLDER.")
    paths = dataset.paths

    def load(path: Path) -> Any:
        try:
            picture = open_image(path, max_pixels=max_pixels)
            return encoder.prepare(picture) if isinstance(encoder, StagedEncoder) else picture
        except UnreadableImage as problem:
            return problem

    def encode(batch: list[Any]) -> Any:
        return encoder.encode_prepared(batch) if isinstance(encoder, StagedEncoder) else encoder.encode(batch)

    inputs = digest_files(dataset.image_ids, paths)
    fingerprint = f"{encoder.fingerprint}{'' if max_pixels == DEFAULT_MAX_PIXELS else f':{max_pixels}'}"
    job = _job(fingerprint, inputs, len(paths), encoder.dimension, dtype, batch_size, folder)
    return _run(job, dataset.image_ids, paths, load, encode, folder, thread_count(workers), progress)


def encode_texts(
    dataset: PairedDataset,
    encoder: SentenceEncoder,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = 1024,
    dtype: str = "float32",
    progress: ProgressCallback | None = None,
) -> FeatureStore:
    """Encode the captions of ``dataset`` into a feature store; see ``encode_images``.

    An encoder without a ``fingerprint`` is told from others by what it makes of the first captions.

    Parameters
    ----------
    dataset
        Any pairs.
    encoder
        Anything with ``encode(sentences)``.
    folder
        New, empty, or that of the same work interrupted.
    batch_size
        Captions encoded together; resumed work keeps the size it began with.
    dtype
        ``"float32"`` or ``"float16"``.
    progress
        Called after every batch.
    """
    if not dataset.captions:
        raise InputError("these pairs have no captions to encode.")
    probe = _as_matrix(encoder.encode(list(dataset.captions[:_PROBES])), min(_PROBES, dataset.n_captions))
    fingerprint = str(getattr(encoder, "fingerprint", "")) or _digest([np.ascontiguousarray(probe).tobytes()])
    content = (
        f"{name}\0{text}\n".encode() for name, text in zip(dataset.caption_ids, dataset.captions, strict=True)
    )
    job = _job(fingerprint, _digest(content), dataset.n_captions, probe.shape[1], dtype, batch_size, folder)
    return _run(job, dataset.caption_ids, dataset.captions, str, encoder.encode, folder, 1, progress)


def digest_files(ids: Sequence[str], paths: Sequence[Path]) -> str:
    """Digest of the files' names, sizes, and of the first and last few kilobytes of each.

    Whole files are not read: that would take as long as decoding them, each time work is resumed.
    """

    def content() -> Iterator[bytes]:
        for name, path in zip(ids, paths, strict=True):
            try:
                with open(path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    yield f"{name}\0{size}\0".encode()
                    yield file.read(_SAMPLE_BYTES)
                    file.seek(max(0, size - _SAMPLE_BYTES))
                    yield file.read(_SAMPLE_BYTES)
            except OSError:
                yield f"{name}\0missing\0".encode()

    return _digest(content())


def _run(
    job: Job,
    ids: Sequence[str],
    items: Sequence[Any],
    load: Callable[[Any], Any],
    encode: Callable[[list[Any]], Any],
    folder: str | os.PathLike[str],
    workers: int,
    progress: ProgressCallback | None,
) -> FeatureStore:
    before = finished(folder, job)
    if before is not None:
        return before
    writer = StoreWriter(folder, job)
    begun, waiting, resumed = time.perf_counter(), 0.0, writer.done
    loaded = prefetch(load, items[resumed:], workers, job.batch_size + 2 * workers)
    try:
        while writer.done < job.count:
            size = min(job.batch_size, job.count - writer.done)
            asked = time.perf_counter()
            batch = [next(loaded) for _ in range(size)]
            waiting += time.perf_counter() - asked
            skipped = [
                (writer.done + i, str(x)) for i, x in enumerate(batch) if isinstance(x, UnreadableImage)
            ]
            good = [x for x in batch if not isinstance(x, UnreadableImage)]
            rows = _as_matrix(encode(good), len(good)) if good else np.empty((0, job.dimension), job.dtype)
            writer.append(rows, size, skipped)
            if progress is not None:
                seconds = time.perf_counter() - begun
                progress(Progress(writer.done, job.count, len(writer.skipped), resumed, seconds, waiting))
    finally:
        loaded.close()  # type: ignore[attr-defined]
        writer.close()
    return writer.finish(ids)


def _job(
    fingerprint: str,
    inputs: str,
    count: int,
    dimension: int,
    dtype: str,
    batch_size: int,
    folder: str | os.PathLike[str],
) -> Job:
    check_choice(dtype, DTYPES, "dtype")
    if batch_size < 1:
        raise InputError(f"batch_size={batch_size} is below 1; give the number of inputs of a batch.")
    before = started(folder)
    return Job(fingerprint, inputs, count, dimension, dtype, before.batch_size if before else batch_size)


def _as_matrix(features: Any, rows: int) -> np.ndarray[Any, Any]:
    matrix = to_numpy(features)
    if matrix.ndim != 2 or len(matrix) != rows or matrix.dtype.kind != "f":
        raise InputError(
            f"the encoder gave {matrix.dtype}{list(matrix.shape)} for {rows} inputs; expected one row of "
            "real numbers for each."
        )
    return matrix


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()[:32]


_BATCH_CAPTIONS = 1024
_BLOCK_PROBES = 8


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
    """Blocks for ``AWCCA.fit`` that are encoded when their turn comes; nothing is kept on disk.

    Pictures that cannot be read are left out with their captions, and a ``DataWarning`` for each block
    counts them; on a cluster it is repeated in the process that asked.

    Parameters
    ----------
    dataset
        Pairs that know where their images lie; of a split, ``dataset.subset("train")``.
    image_encoder
        An ``ImageEncoder``, or what ``diptych.image.image_encoder`` takes.
    text_encoder
        A fitted ``HKSE``, an object with ``encode``, or what ``diptych.text.sentence_encoder`` takes.
    images
        Images of a block, about.
    batch_size
        Images encoded together.
    workers
        Decoding threads for each block: 1 suits a cluster, where every worker has a core of its own; None:
        one for each core, 8 at most.
    max_pixels
        Larger pictures count as unreadable.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from diptych.scenes import make_scenes
    >>> from diptych.text import HKSE
    >>> pairs = make_scenes(12).write(mkdtemp())
    >>> hkse = HKSE(word_features=8, sentence_features=8).fit(pairs.captions)
    >>> blocks = encoded_blocks(pairs, "pyramid", hkse, images=5)
    >>> x, y, pairing = blocks[0].load()
    >>> len(blocks), x.shape, y.shape
    (3, (4, 630), (20, 8))
    """
    if dataset.paths is None:
        raise InputError("these pairs do not know where their images lie; read them with images=FOLDER.")
    for name, value in (("images", images), ("batch_size", batch_size), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name}={value} is below 1; give at least 1.")
    if isinstance(image_encoder, str | os.PathLike):
        image_encoder = named_encoder(image_encoder)
    if not isinstance(text_encoder, SentenceEncoder) or isinstance(text_encoder, np.ndarray):
        text_encoder = sentence_encoder(text_encoder)
    shared = Encoding(image_encoder, text_encoder, batch_size, thread_count(workers), max_pixels)
    # An image without captions is in no pair.
    described = np.unique(dataset.pairing)
    if len(described) == 0:
        raise InputError("these pairs have no captions to encode.")
    by_image = np.argsort(dataset.pairing, kind="stable")
    parts = np.array_split(described, -(-len(described) // images))
    ends = np.searchsorted(dataset.pairing[by_image], [part[-1] for part in parts], "right")
    captions = np.split(by_image, ends[:-1])
    blocks = (_block(dataset, *part, shared) for part in zip(parts, captions, strict=True))
    return EncodedBlocks(tuple(blocks))


@dataclass(frozen=True, eq=False)
class Encoding:
    """What all blocks have in common: the encoders, and how they are used."""

    image: ImageEncoder
    text: SentenceEncoder
    batch_size: int
    workers: int
    max_pixels: int

    def pictures(self, paths: Sequence[Path]) -> Iterator[Any]:
        """Each picture as far as it can be prepared alone, or why it cannot be read."""

        def load(path: Path) -> Any:
            try:
                picture = open_image(path, max_pixels=self.max_pixels)
                return self.image.prepare(picture) if isinstance(self.image, StagedEncoder) else picture
            except UnreadableImage as problem:
                return problem

        return prefetch(load, paths, self.workers, self.batch_size + 2 * self.workers)

    def encode_images(self, batch: list[Any]) -> np.ndarray[Any, Any]:
        """Features of pictures that ``pictures`` gave."""
        if isinstance(self.image, StagedEncoder):
            return to_numpy(self.image.encode_prepared(batch))
        return to_numpy(self.image.encode(batch))

    def encode_texts(self, captions: list[str]) -> np.ndarray[Any, Any]:
        """Features of captions."""
        starts = range(0, len(captions), _BATCH_CAPTIONS)
        parts = [to_numpy(self.text.encode(captions[i : i + _BATCH_CAPTIONS])) for i in starts]
        return np.concatenate(parts)

    def told_from_others(self, captions: Sequence[str]) -> str:
        """Changes when the features would; a text encoder without a fingerprint is told by what it gives."""
        text = str(getattr(self.text, "fingerprint", ""))
        if not text:
            probe = self.encode_texts(list(captions[:_BLOCK_PROBES]))
            text = hashlib.sha256(np.ascontiguousarray(probe).tobytes()).hexdigest()
        return f"{self.image.fingerprint} {self.max_pixels} {text}"


@dataclass(frozen=True, eq=False)
class EncodedBlock:
    """Some images and their captions, encoded by ``load``; it can be sent to another process.

    Attributes
    ----------
    ids, paths
        Names of the images and where they lie.
    captions, pairing
        The sentences; sentence j belongs to image ``pairing[j]`` of these.
    shared
        What it has in common with others; an engine sends that once, and not with every block.
    """

    ids: tuple[str, ...]
    paths: tuple[Path, ...]
    captions: tuple[str, ...]
    pairing: np.ndarray[Any, np.dtype[np.int64]]
    shared: Encoding | None

    @property
    def name(self) -> str:
        """Its first and last image."""
        return f"the images {self.ids[0]} to {self.ids[-1]}"

    def load(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """``x, y, pairing`` of the images that can be read."""
        assert self.shared is not None
        place = np.full(len(self.paths), -1, np.int64)
        unreadable: list[UnreadableImage] = []
        parts, batch, kept = [], [], 0
        for number, picture in enumerate(self.shared.pictures(self.paths)):
            if isinstance(picture, UnreadableImage):
                unreadable.append(picture)
                continue
            place[number] = kept
            kept += 1
            batch.append(picture)
            if len(batch) == self.shared.batch_size:
                parts.append(self.shared.encode_images(batch))
                batch = []
        if batch:
            parts.append(self.shared.encode_images(batch))
        if not parts:
            raise InputError(
                f"of {count(len(self.paths), 'picture')}, none could be read (the first: {unreadable[0]}); "
                "look at them with diptych check."
            )
        if unreadable:
            warnings.warn(
                f"{len(unreadable)} of {self.name} could not be read and are left out with their captions "
                f"({unreadable[0]}).",
                DataWarning,
                stacklevel=2,
            )
        rows = place[self.pairing]
        captions = [text for text, row in zip(self.captions, rows, strict=True) if row >= 0]
        return np.concatenate(parts), self.shared.encode_texts(captions), rows[rows >= 0]


@dataclass(frozen=True, eq=False)
class EncodedBlocks(Sequence[EncodedBlock]):
    """Blocks in the order of the images; a slice of them is of the same kind.

    Attributes
    ----------
    blocks
        The blocks.
    """

    blocks: tuple[EncodedBlock, ...]

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, index: int) -> EncodedBlock: ...

    @overload
    def __getitem__(self, index: slice) -> EncodedBlocks: ...

    def __getitem__(self, index: int | slice) -> EncodedBlock | EncodedBlocks:
        return EncodedBlocks(self.blocks[index]) if isinstance(index, slice) else self.blocks[index]

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the pictures, the captions, their order or the encoders do."""
        first = self.blocks[0]
        assert first.shared is not None
        digest = hashlib.sha256(first.shared.told_from_others(first.captions).encode())
        for block in self.blocks:
            facts = repr((block.captions, block.pairing.tolist()))
            digest.update(digest_files(block.ids, block.paths).encode() + facts.encode())
        return digest.hexdigest()[:32]


def _block(
    dataset: PairedDataset, images: np.ndarray[Any, Any], rows: np.ndarray[Any, Any], shared: Encoding
) -> EncodedBlock:
    assert dataset.paths is not None
    return EncodedBlock(
        tuple(dataset.image_ids[i] for i in images),
        tuple(dataset.paths[i].absolute() for i in images),
        tuple(dataset.captions[j] for j in rows),
        np.searchsorted(images, dataset.pairing[rows]),
        shared,
    )
