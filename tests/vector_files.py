"""Files of word vectors for the tests."""

import numpy as np

WORDS = ["</s>", "dog", "New_York", "naïve", "犬", "1", "0.5", "tree"]
MATRIX = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)


def text(words=WORDS, matrix=MATRIX, header=False, end="\n"):
    """Return word vectors as text, like GloVe's or, with a header, word2vec's."""
    rows = [
        " ".join([word, *(repr(float(v)) for v in row)]) + end
        for word, row in zip(words, matrix, strict=True)
    ]
    return ((f"{len(words)} {matrix.shape[1]}\n" if header else "") + "".join(rows)).encode()


def binary(words=WORDS, matrix=MATRIX, newline=b"\n", header=None):
    """Return word vectors in word2vec's binary format."""
    rows = [
        w.encode() + b" " + row.astype("<f4").tobytes() + newline
        for w, row in zip(words, matrix, strict=True)
    ]
    return (header or f"{len(words)} {matrix.shape[1]}\n".encode()) + b"".join(rows)
