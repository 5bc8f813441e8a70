"""Blocks of images and captions that are encoded when they are needed, without a feature store."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, overload

import numpy as np

from diptych._checks import DataWarning, InputError, count
from diptych._threads import thread_count
from diptych.data._encode import (
    BATCH_CAPTIONS,
    Pipeline,
    check_paths,
    digest_files,
    fingerprint_text_encoder,
    make_image_pipeline,
)
from diptych.data._feature_store import Features
from diptych.data._pairs import PairedDataset, RowNumbers
from diptych.image import ImageEncoder
from diptych.image import image_encoder as make_image_encoder
from diptych.image._decoding import DEFAULT_MAX_PIXELS
from diptych.text import SentenceEncoder, sentence_encoder

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
        An ``ImageEncoder``, or what ``diptych.image.image_encoder`` takes.
    text_encoder
        A fitted ``HKSE``, an object with ``encode``, or what ``diptych.text.sentence_encoder`` takes.
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
    >>> from diptych.text import HKSE
    >>> pairs = make_scenes(12).write(mkdtemp())
    >>> hkse = HKSE(word_features=8, sentence_features=8).fit(pairs.captions)
    >>> blocks = encoded_blocks(pairs, "pyramid", hkse, images=5)
    >>> x, y, pairing = blocks[0].load()
    >>> len(blocks), x.shape, y.shape
    (3, (4, 630), (20, 8))
    """
    paths = check_paths(dataset)
    for name, value in (("images", images), ("batch_size", batch_size), ("max_pixels", max_pixels)):
        if value < 1:
            raise InputError(f"{name}={value} is below 1; give at least 1.")
    if isinstance(image_encoder, str | os.PathLike):
        image_encoder = make_image_encoder(image_encoder)
    if not isinstance(text_encoder, SentenceEncoder) or isinstance(text_encoder, np.ndarray):
        text_encoder = sentence_encoder(text_encoder)
    encoders = BlockEncoders(image_encoder, text_encoder, max_pixels, batch_size, thread_count(workers))
    # An image without captions is in no pair.
    described = np.unique(dataset.pairing)
    if len(described) == 0:
        raise InputError("these pairs have no captions to encode.")
    by_image = np.argsort(dataset.pairing, kind="stable")
    parts = np.array_split(described, -(-len(described) // images))
    ends = np.searchsorted(dataset.pairing[by_image], [part[-1] for part in parts], "right")
    blocks = []
    for rows, captions in zip(parts, np.split(by_image, ends[:-1]), strict=True):
        block = PairedDataset(
            tuple(dataset.image_ids[i] for i in rows),
            tuple(dataset.captions[j] for j in captions),
            np.searchsorted(rows, dataset.pairing[captions]),
            paths=tuple(paths[i].absolute() for i in rows),
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
        """First and last image, for messages."""
        return f"the images {self.pairs.image_ids[0]} to {self.pairs.image_ids[-1]}"

    def load(self) -> tuple[Features, Features, RowNumbers]:
        """Return ``x, y, pairing`` of the images that can be read."""
        assert self.shared is not None
        pairs, encoders = self.pairs, self.shared
        pipeline = make_image_pipeline(
            encoders.image, encoders.max_pixels, encoders.batch_size, encoders.workers
        )
        batches = list(pipeline.run(check_paths(pairs)))
        unreadable = dict(each for batch in batches for each in batch.unreadable)
        if len(unreadable) == pairs.n_images:
            raise InputError(
                f"of {count(pairs.n_images, 'image')}, none could be read (the first: {unreadable[0]}); "
                "check them with diptych check."
            )
        if unreadable:
            pairs = pairs.select([row for row in range(pairs.n_images) if row not in unreadable])
            warnings.warn(
                f"{len(unreadable)} of {self.name} could not be read and are left out with their captions "
                f"({next(iter(unreadable.values()))}).",
                DataWarning,
                stacklevel=2,
            )
        texts = Pipeline(str, encoders.text.encode, BATCH_CAPTIONS, 1).run(pairs.captions)
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
        text = fingerprint_text_encoder(encoders.text, self.blocks[0].pairs.captions)
        digest = hashlib.sha256(f"{encoders.image.fingerprint} {encoders.max_pixels} {text}".encode())
        for pairs in (block.pairs for block in self.blocks):
            files = digest_files(pairs.image_ids, check_paths(pairs))
            digest.update(files.encode() + repr((pairs.captions, pairs.pairing.tolist())).encode())
        return digest.hexdigest()[:32]
