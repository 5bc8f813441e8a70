"""Word vectors that are learned from texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from diptych._checks import InputError, check_count
from diptych.encoders._kernels import Seed, make_generator
from diptych.encoders._word_vectors import WordVectors
from diptych.encoders._words import Corpus, Text, Tokenizer, tokenize

DEFAULT_DIMENSIONS = 300
CONTEXT_POWER = 0.75
MAX_VOCABULARY = 200_000


def learn_word_vectors(
    texts: Iterable[Text] | Corpus,
    dimensions: int = DEFAULT_DIMENSIONS,
    *,
    min_count: int = 2,
    tokenizer: Tokenizer = tokenize,
    random_state: Seed = 0,
) -> WordVectors:
    """Learn word vectors from texts, for example from captions when there is no file of word vectors.

    Words that occur together with the same words get similar vectors: the matrix of positive pointwise
    mutual information of words within a text is factorised by a truncated SVD. Captions are short, so the
    whole text is the context of each word. All matrices are sparse; half a million captions take seconds.

    Parameters
    ----------
    texts
        Strings, or lists of words.
    dimensions
        Length of the vectors; at most the number of words.
    min_count
        Words that occur less often get no vector.
    tokenizer
        Function that splits a string into words.
    random_state
        Seed of the randomised SVD.

    Returns
    -------
    WordVectors
        Vectors of unit length, the most frequent words first.

    Examples
    --------
    >>> captions = ["a dog runs", "a dog jumps", "a cat sleeps", "a cat sits", "the cat sits", "the dog runs"]
    >>> vectors = learn_word_vectors(captions, dimensions=3)
    >>> vectors.words
    ('a', 'dog', 'cat', 'runs', 'sits', 'the')
    """
    corpus = texts if isinstance(texts, Corpus) else Corpus.of(texts, tokenizer)
    check_count(dimensions, "dimensions")
    counts = corpus.counts()
    frequent = np.flatnonzero(counts >= check_count(min_count, "min_count"))
    chosen = frequent[np.argsort(-counts[frequent], kind="stable")][:MAX_VOCABULARY]
    if len(chosen) < 2:
        raise InputError(
            f"The texts have {len(chosen)} words that occur {min_count} times or more; pass more texts, a "
            "lower min_count, or a file of word vectors."
        )
    presence = corpus.presence()[:, chosen]
    # How many texts have both of two words. A word occurs with itself too: otherwise words that can replace
    # each other (numbers or colours, where captions follow a pattern) would have the same contexts, and so
    # the same vector.
    information = positive_information(presence.T @ presence)
    if information.nnz == 0:
        import scipy.sparse

        # All texts have the same words, which tells nothing about any of them.
        information = scipy.sparse.identity(len(chosen), np.float32, "csr")
    rank = min(dimensions, len(chosen))
    vectors = _factorize(information, rank, make_generator(random_state, 2))
    return WordVectors([corpus.words[i] for i in chosen], vectors)


def positive_information(together: Any) -> Any:
    r"""Return the positive pointwise mutual information :math:`\max(0, \log\frac{p(w,c)}{p(w)\,q(c)})`.

    The context probability q is raised to the power ¾, so that rare contexts do not dominate.
    """
    import scipy.sparse

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


def _factorize(matrix: Any, rank: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    r"""Return the rows of :math:`U S^{1/2}` of the truncated SVD, scaled to unit length."""
    from sklearn.utils.extmath import randomized_svd

    seed = int(rng.integers(2**31))
    u, s, _ = randomized_svd(matrix, rank, n_iter=4, random_state=seed)
    vectors = u * np.sqrt(s)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)  # type: ignore[no-any-return]
