"""Word vectors from the captions themselves, when no file of vectors is at hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.extmath import randomized_svd

from diptych.checks import InputError, check_count
from diptych.text.bags import Corpus
from diptych.text.fourier import stream
from diptych.text.tokens import Tokenizer, tokenize
from diptych.text.vectors import WordVectors

DEFAULT_DIMENSIONS = 300
CONTEXT_POWER = 0.75
MAX_VOCABULARY = 200_000


def learn_word_vectors(
    sentences: Iterable[Any],
    dimensions: int = DEFAULT_DIMENSIONS,
    *,
    min_count: int = 2,
    tokenizer: Tokenizer = tokenize,
    random_state: Any = 0,
) -> WordVectors:
    """Word vectors by positive pointwise mutual information within sentences, and a truncated SVD.

    Words that keep the same company get similar vectors. Captions are short, so the company of a word is
    its whole sentence. Everything is sparse: half a million captions take seconds.

    Parameters
    ----------
    sentences
        Strings, or lists of words.
    dimensions
        Length of the vectors, at most the number of words less one.
    min_count
        Words that occur less often get no vector.
    tokenizer
        Cuts strings into words.
    random_state
        Seed of the randomised SVD.

    Returns
    -------
    WordVectors
        Vectors of unit length, frequent words first.

    Examples
    --------
    >>> captions = ["a dog runs", "a dog jumps", "a cat sleeps", "a cat sits", "the cat sits", "the dog runs"]
    >>> vectors = learn_word_vectors(captions, dimensions=3)
    >>> vectors.words
    ('a', 'dog', 'cat', 'runs', 'sits', 'the')
    """
    corpus = Corpus.of(sentences, tokenizer)
    return vectors_of_corpus(corpus, dimensions, min_count=min_count, random_state=random_state)


def vectors_of_corpus(
    corpus: Corpus, dimensions: int = DEFAULT_DIMENSIONS, *, min_count: int = 2, random_state: Any = 0
) -> WordVectors:
    """What ``learn_word_vectors`` does, on sentences that are read already."""
    check_count(dimensions, "dimensions")
    counts = corpus.counts()
    frequent = np.flatnonzero(counts >= check_count(min_count, "min_count"))
    chosen = frequent[np.argsort(-counts[frequent], kind="stable")][:MAX_VOCABULARY]
    if len(chosen) < 2:
        raise InputError(
            f"the sentences hold {len(chosen)} words that occur {min_count} times or more; give more "
            "sentences, a lower min_count, or a file of word vectors."
        )
    bag = corpus.bag(presence=True)[:, chosen]
    information = positive_information(cooccurrences(bag))
    if information.nnz == 0:
        raise InputError(
            "the words meet no more often than by chance, so their company teaches nothing; "
            "give more sentences, or a file of word vectors."
        )
    rank = min(dimensions, len(chosen) - 1)
    vectors = factor(information, rank, stream(random_state, 2))
    return WordVectors([corpus.words[i] for i in chosen], vectors)


def cooccurrences(bag: Any) -> Any:
    """How many sentences hold both words, for each pair of different words (sparse, symmetric)."""
    together = (bag.T @ bag).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    return together


def positive_information(together: Any) -> Any:
    r"""Positive pointwise mutual information :math:`\max(0, \log\frac{p(w,c)}{p(w)\,q(c)})`, sparse.

    The context probability q is raised to the power ¾, which keeps rare contexts from dominating.
    """
    together = together.tocoo()
    if together.nnz == 0:
        return together.tocsr()
    sums = np.asarray(together.sum(axis=1), dtype=np.float64).ravel()
    contexts = sums**CONTEXT_POWER
    total = sums.sum()
    expected = sums[together.row] / total * contexts[together.col] / contexts.sum()
    values = np.log(together.data / total / expected)
    kept = values > 0.0
    entries = (values[kept].astype(np.float32), (together.row[kept], together.col[kept]))
    return scipy.sparse.csr_matrix(entries, shape=together.shape)


def factor(matrix: Any, rank: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    r"""Rows of :math:`U S^{1/2}` of the truncated SVD, each brought to unit length."""
    seed = int(rng.integers(2**31))
    u, s, _ = randomized_svd(matrix, rank, n_iter=4, random_state=seed)
    vectors = u * np.sqrt(s)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)  # type: ignore[no-any-return]
