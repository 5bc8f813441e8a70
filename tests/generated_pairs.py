"""Pairs for tests: two noisy views of a hidden cause."""

import numpy as np


def make_pairs(seed, n=90, captions=3, m_x=14, m_y=11, hidden=5, noise=0.7, rank_x=None):
    """Training and validation pairs with unequal, shuffled groups and images without captions."""
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(n, hidden))
    x = cause @ rng.normal(size=(hidden, m_x)) + noise * rng.normal(size=(n, m_x))
    if rank_x is not None:
        x = x[:, :rank_x] @ rng.normal(size=(rank_x, m_x))
    pairing = rng.permutation(rng.integers(0, n, n * captions))
    y = cause[pairing] @ rng.normal(size=(hidden, m_y)) + noise * rng.normal(size=(len(pairing), m_y))
    half = n // 2
    first = pairing < half
    return (x[:half], y[first], pairing[first]), (x[half:], y[~first], pairing[~first] - half)
