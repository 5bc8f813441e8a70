"""Pictures and captions as blocks of features: each block decodes and encodes its own, where it is used."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np

from diptych.arrays import to_numpy
from diptych.checks import DataWarning, InputError, count
from diptych.data.encoding import digest_files
from diptych.data.pairs import PairedDataset
from diptych.image.decoding import DEFAULT_MAX_PIXELS, UnreadableImage, open_image
from diptych.image.encoder import ImageEncoder, StagedEncoder
from diptych.image.sources import image_encoder as named_encoder
from diptych.prefetch import ahead, thread_count
from diptych.text.encoders import SentenceEncoder, sentence_encoder

_BATCH_CAPTIONS = 1024
_PROBES = 8


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
    >>> from diptych.data import scenes
    >>> from diptych.text import HKSE
    >>> pairs = scenes(12).write(mkdtemp())
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

        return ahead(load, paths, self.workers, self.batch_size + 2 * self.workers)

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
            probe = self.encode_texts(list(captions[:_PROBES]))
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
