"""A store filled with vectors, for tests of one kind of store."""

import numpy as np

from diptych.retrieval._items import Item
from diptych.retrieval.stores._base import Block, Contents


def unit_rows(rng, n, dimension):
    """Return random vectors of length 1."""
    rows = rng.normal(size=(n, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def fill(store, vectors, *, metadata=None, recalls=None):
    """Put images "0", "1", … with these vectors into a store, and no texts."""
    n, dimension = vectors.shape
    items = [Item(str(i), "image", metadata={} if metadata is None else metadata[i]) for i in range(n)]
    contents = Contents(
        dimensions={"search": dimension, "annotate": dimension},
        widths={"image": dimension, "text": dimension},
        keep_features=True,
        same_vectors=False,
        blocks=[Block("image", items, vectors, vectors)],
        sample_queries=lambda task, k: vectors[:k],
        report_recall=lambda task, recall: None if recalls is None else recalls.update({task: recall}),
        write_model=lambda folder: (folder / "config.json").write_text("{}"),
    )
    return store.replace(lambda: contents)
