"""Encode images and captions, batch by batch, into feature stores.

Images are decoded by threads ahead of the encoder, a bounded number at a time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import InputError, check_choice, plural
from diptych._progress import progress_bar
from diptych._threads import prefetch, thread_count
from diptych.data._feature_store import DTYPES, Features, FeatureStore, Job, StoreWriter, open_finished
from diptych.data._pairs import PairedDataset
from diptych.encoders import ImageEncoder, SentenceEncoder
from diptych.encoders._decoding import DEFAULT_MAX_PIXELS
from diptych.encoders._image import encode_inputs, inputs_of, prepare_input

_SAMPLE_BYTES = 4096
_PROBE_CAPTIONS = 8
_BATCH_CAPTIONS = 1024


def encode_images(
    dataset: PairedDataset,
    encoder: ImageEncoder,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    workers: int | None = None,
    dtype: str = "float32",
    max_pixels: int = DEFAULT_MAX_PIXELS,
    verbose: bool | None = None,
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
    verbose
        Whether to show a progress bar, as in ``AWCCA``.

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
    what = dataset.views.image
    steps = make_image_steps(encoder, what, max_pixels, workers)
    fingerprint = encoder.fingerprint + ("" if max_pixels == DEFAULT_MAX_PIXELS else f":{max_pixels}")
    digest = _digest_sources(dataset, sources)
    dimension = encoder.dimension or _measure_dimension(sources, steps)
    job = Job(fingerprint, digest, len(sources), dimension, dtype, batch_size)
    with progress_bar(f"encoding {plural(what)}", verbose) as show:
        return _write_store(job, dataset.image_ids, sources, steps, folder, show)


def encode_texts(
    dataset: PairedDataset,
    encoder: SentenceEncoder,
    folder: str | os.PathLike[str],
    *,
    batch_size: int = _BATCH_CAPTIONS,
    dtype: str = "float32",
    verbose: bool | None = None,
) -> FeatureStore:
    """Encode the captions of some pairs into a feature store; see ``encode_images``.

    An encoder without a ``fingerprint`` is identified by the features of the first captions.

    Parameters
    ----------
    dataset, folder, batch_size, dtype, verbose
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
    features = _check_features(encoder.encode(probe), len(probe))
    fingerprint = str(getattr(encoder, "fingerprint", ""))
    if not fingerprint:
        fingerprint = hashlib.sha256(np.ascontiguousarray(features).tobytes()).hexdigest()[:32]
    digest = hashlib.sha256()
    for name, text in zip(dataset.caption_ids, dataset.captions, strict=True):
        digest.update(f"{name}\0{text}\n".encode())
    inputs, dimension = digest.hexdigest()[:32], features.shape[1]
    job = Job(fingerprint, inputs, dataset.n_captions, dimension, dtype, batch_size)
    steps = Steps(str, lambda texts: (encoder.encode(texts), {}), 1)
    with progress_bar(f"encoding {plural(dataset.views.caption)}", verbose) as show:
        return _write_store(job, dataset.caption_ids, dataset.captions, steps, folder, show)


class Steps(NamedTuple):
    """Loads single inputs in threads, and encodes them in batches.

    Both return the errors of inputs that cannot be read instead of raising them; ``encode``, by position.
    """

    load: Callable[[Any], Any]
    encode: Callable[[list[Any]], tuple[Any, Mapping[int, InputError]]]
    workers: int


def make_image_steps(
    encoder: ImageEncoder, what: str, max_pixels: int = DEFAULT_MAX_PIXELS, workers: int | None = None
) -> Steps:
    """Return the steps from images to features; ``what`` names an image in messages."""
    return Steps(
        lambda source: prepare_input(encoder, source, what, max_pixels),
        lambda prepared: encode_inputs(encoder, prepared, what),
        thread_count(workers),
    )


def encode_batches(
    inputs: Sequence[Any], steps: Steps, batch_size: int, start: int = 0
) -> Generator[tuple[Features, int, list[tuple[int, InputError]]], None, None]:
    """Yield of each batch its features, its size, and numbers and errors of inputs that cannot be read."""
    window = batch_size + 2 * steps.workers
    with closing(prefetch(steps.load, inputs[start:], steps.workers, window)) as loaded:
        for first in range(start, len(inputs), batch_size):
            batch = list(islice(loaded, batch_size))
            unreadable = {i: x for i, x in enumerate(batch) if isinstance(x, InputError)}
            good = [i for i in range(len(batch)) if i not in unreadable]
            features: Features = np.empty((0, 0))
            if good:
                rows, refused = steps.encode([batch[i] for i in good])
                unreadable |= {good[i]: error for i, error in refused.items()}
                if len(refused) < len(good):
                    features = _check_features(rows, len(good) - len(refused))
            yield features, len(batch), [(first + i, unreadable[i]) for i in sorted(unreadable)]


def _measure_dimension(sources: Sequence[Any], steps: Steps) -> int:
    """Return the width of the features of the first input that can be read; 1 if there is none."""
    with closing(encode_batches(sources, steps, batch_size=1)) as batches:
        return next((features.shape[1] for features, *_ in batches if len(features)), 1)


def _write_store(
    job: Job,
    ids: Sequence[str],
    inputs: Sequence[Any],
    steps: Steps,
    folder: str | os.PathLike[str],
    show: Callable[[float], None],
) -> FeatureStore:
    check_choice(job.dtype, DTYPES, "dtype")
    if job.batch_size < 1:
        raise InputError(f"batch_size={job.batch_size} is below 1; give the number of inputs of a batch.")
    if (finished := open_finished(folder, job)) is not None:
        return finished
    with (
        closing(StoreWriter(folder, job)) as writer,
        closing(encode_batches(inputs, steps, writer.job.batch_size, writer.done)) as batches,
    ):
        for features, size, unreadable in batches:
            # The path in a message may have bytes that are not UTF-8.
            skipped = [(i, str(error).encode(errors="replace").decode()) for i, error in unreadable]
            rows = features if len(features) else np.empty((0, job.dimension), job.dtype)
            writer.append(rows, size, skipped)
            show(writer.done / job.count)
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


def _digest_sources(dataset: PairedDataset, sources: Sequence[Path | str]) -> str:
    """Return a digest of the sources: of files, the names, sizes, first and last kilobytes.

    Whole files are not read: that would take as long as decoding them, each time work is resumed.
    """
    if sources is dataset.image_ids:
        return hashlib.sha256("\0".join(dataset.image_ids).encode()).hexdigest()[:32]
    digest = hashlib.sha256()
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
