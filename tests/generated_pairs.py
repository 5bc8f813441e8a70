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


def make_dual_features(n, seed, *, noise=1.0, turned=20, broken=False, width=128, common=70, nuisance=10):
    """Return image and text features of n pairs from a synthetic dual encoder, used in a domain of its own.

    Both views see 70 common causes in the same directions. The domain adds causes that the views see in
    ``turned`` rotated directions, variation of either view alone, and noise. Each view has its own mean.
    ``broken`` turns all texts, so that the views have nothing in common as they are.
    """
    world, rng = np.random.default_rng(0), np.random.default_rng(seed)
    directions = np.linalg.qr(world.normal(size=(width, width)))[0]
    rotation = np.linalg.qr(world.normal(size=(turned, turned)))[0]
    own = 1.5 * world.normal(size=(2, nuisance, width)) / np.sqrt(width)
    means = 8 * world.normal(size=(2, width)) / np.sqrt(width)
    causes, domain = rng.normal(size=(n, common)), rng.normal(size=(n, turned))
    views = [
        causes @ directions[:common]
        + seen @ directions[common : common + turned]
        + rng.normal(size=(n, nuisance)) @ own[at]
        + noise * rng.normal(size=(n, width))
        + means[at]
        for at, seen in enumerate((domain, domain @ rotation))
    ]
    if broken:
        views[1] = views[1] @ np.linalg.qr(world.normal(size=(width, width)))[0]
    x, y = (view / np.linalg.norm(view, axis=1, keepdims=True) for view in views)
    return x.astype(np.float32), y.astype(np.float32)


def make_fused_blocks(seed, n, noise=1.0):
    """Pairs of two blocks on either side; all seeds give pairs of the same kind."""
    rng = np.random.default_rng(seed)
    kind = np.random.default_rng(7)
    cause = rng.normal(size=(n, 6))
    pairing = rng.permutation(np.repeat(np.arange(n), 2))

    def view(rows, width, offset=0.0, more=1.0):
        clean = cause[rows] @ kind.normal(size=(6, width))
        return clean + more * noise * rng.normal(size=(len(rows), width)) + offset

    every = np.arange(n)
    x = {"a": view(every, 14, 2.0), "b": 0.01 * view(every, 8, 5.0)}
    y = {"c": view(pairing, 12), "d": 100 * view(pairing, 9, 1.0, more=1.5)}
    return x, y, pairing


def make_graded_pairs(seed, n, captions=2, hidden=24, width=30):
    """Return pairs of views that see some causes clearly and others hardly; all seeds give the same kind."""
    world, rng = np.random.default_rng(5), np.random.default_rng(seed)
    noise, pairing = np.geomspace(0.2, 4.0, hidden), np.repeat(np.arange(n), captions)
    causes = rng.normal(size=(n, hidden))
    views = []
    for own in (causes, causes[pairing]):
        seen = (own + noise * rng.normal(size=own.shape)) @ np.linalg.qr(world.normal(size=(width, width)))[
            0
        ][:hidden]
        views.append(seen + 0.1 * rng.normal(size=seen.shape))
    return (*views, pairing)
