"""Items and vectors to fill stores with."""

import numpy as np

from diptych.retrieval._items import Item
from diptych.retrieval.stores._base import Block, Contents


def unit_rows(rng, n, dimension):
    """Return random vectors of length 1."""
    rows = rng.normal(size=(n, dimension)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_block(items, vectors, norms=None, features=None):
    """Return a block of items of one view."""
    norms = np.ones(len(vectors), np.float32) if norms is None else norms
    return Block(items[0].view, items, vectors, norms, features)


def make_contents(blocks, dimension, *, widths=None, keep_features=True, recalls=None, queries=None):
    """Return contents for ``Store.replace``, with a model that is one small file."""
    return Contents(
        dimensions={"search": dimension, "annotate": dimension},
        widths={"image": dimension, "text": dimension} if widths is None else widths,
        keep_features=keep_features,
        blocks=blocks,
        sample_queries=lambda task, n: None if queries is None else queries[:n],
        report_recall=lambda task, recall: None if recalls is None else recalls.update({task: recall}),
        write_model=lambda folder: (folder / "config.json").write_text("{}"),
    )


def fill(store, vectors, *, metadata=None, recalls=None):
    """Put images "0", "1", … with these vectors into a store, and no texts."""
    items = [
        Item(str(i), "image", metadata={} if metadata is None else metadata[i]) for i in range(len(vectors))
    ]
    blocks = [make_block(items, vectors, features=vectors)]
    return store.replace(lambda: make_contents(blocks, vectors.shape[1], recalls=recalls, queries=vectors))
