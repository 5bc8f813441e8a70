"""Packs: the captions of one picture as a whole, represented by the mean of their embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from diptych.checks import InputError
from diptych.retrieval.embedding import Embedding
from diptych.retrieval.index import Chunk, VectorIndex


@dataclass(frozen=True, eq=False)
class Packs:
    """One vector for each picture that has captions; its key is the picture's place in ``images``."""

    images: list[str]
    index: VectorIndex


def make_packs(
    owner: Mapping[int, str], embedding: Embedding, chunks: Sequence[Chunk], dimension: int
) -> Packs:
    """Packs of the captions in ``chunks``; ``owner`` gives the picture of the keys that belong to one."""
    owned = [chunk.at(np.array([key in owner for key in chunk.keys.tolist()], bool)) for chunk in chunks]
    images = sorted({owner[key] for chunk in owned for key in chunk.keys.tolist()})
    if not images:
        raise InputError("no caption in the index belongs to a picture; add captions together with images.")
    place = {image: row for row, image in enumerate(images)}
    groups = np.array([place[owner[key]] for chunk in owned for key in chunk.keys.tolist()])
    vectors = np.concatenate([np.asarray(chunk.vectors, np.float32) for chunk in owned])
    norms = np.concatenate([chunk.norms for chunk in owned])
    index = VectorIndex(dimension)
    index.add(np.arange(len(images)), embedding.means(vectors, norms, groups, len(images)))
    return Packs(images, index)
