"""Where items with partners lie, computed by hand."""

import numpy as np


def unit(rows):
    """Return rows of length 1; rows of zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)


def place_by_hand(items, partners, pairing, projector=None):
    """Return vectors of items between their directions and those of their partners, 3 to their number.

    Row j of ``partners``, vectors of queries, belongs to item ``pairing[j]``. With a projector, each part is
    placed alone, and the correction is that of where the items are now.
    """
    sizes = [(items.shape[1], 1.0)]
    if projector is not None:
        sizes = [(part.x.dimension, part.weight) for part in projector.parts]
    placed, start = [], 0
    for dimension, weight in sizes:
        columns = slice(start, start + dimension)
        sums = np.zeros((len(items), dimension), items.dtype)
        numbers = np.zeros((len(items), 1), items.dtype)
        for row, partner in zip(pairing, unit(partners[:, columns]), strict=True):
            sums[row] += partner
            numbers[row] += 1
        placed.append(weight * unit(3 * unit(items[:, columns]) + numbers * unit(sums)))
        start += dimension
    vectors = np.hstack(placed)
    if projector is not None and projector.hubness is not None:
        further = projector.hubness.item_coordinates(vectors.astype(np.float32))
        vectors = np.hstack([vectors, further[:, None]])
    return vectors
