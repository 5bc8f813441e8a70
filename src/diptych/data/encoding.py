"""From pairs to feature stores: decoding runs ahead in threads while the encoder works."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych.arrays import to_numpy
from diptych.checks import InputError, check_choice
from diptych.data.pairs import PairedDataset
from diptych.data.store import DTYPES, FeatureStore, Job, started
from diptych.data.writing import StoreWriter, finished
from diptych.image.decoding import DEFAULT_MAX_PIXELS, UnreadableImage, open_image
from diptych.image.encoder import ImageEncoder, StagedEncoder
from diptych.prefetch import ahead, thread_count
from diptych.text.encoders import SentenceEncoder

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
    loaded = ahead(load, items[resumed:], workers, job.batch_size + 2 * workers)
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
