"""Groups of near-identical rows: the threshold that the data give, and what it separates."""

import io
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

from diptych.data import read_pairs
from diptych.data._duplicates import (
    LEAST_SIMILARITY,
    SAFE_SIMILARITY,
    center_rows,
    choose_threshold,
    find_near_duplicates,
    group_rows,
    least_similarity,
)
from diptych.encoders import PyramidDescriptor
from tolerance import rounding


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def group(rows, threshold):
    return group_rows(rows, threshold, lambda share: None)


def centered(*parts):
    """Rows of length 1 as they are compared."""
    rows = np.vstack(parts)
    center_rows(rows)
    return rows


def count_groups(labels):
    return int(np.count_nonzero(np.bincount(labels) > 1))


def test_near_duplicates_of_training_rows_are_found(rng):
    x = rng.normal(size=(20, 8))
    held_out = np.vstack([rng.normal(size=(3, 8)), x[5] + 1e-6])
    assert find_near_duplicates(x, held_out).tolist() == [3]


def make_collection(rng, n, hidden, width=64):
    """Rows of a collection with classes of unequal density, as features of real items have."""
    centres = 2 * rng.normal(size=(8, hidden))
    cause = centres[rng.integers(0, 8, n)] + rng.uniform(0.5, 1.5, (n, 1)) * rng.normal(size=(n, hidden))
    return cause @ rng.normal(size=(hidden, width)) / np.sqrt(hidden)


def test_a_direction_that_all_features_share_hides_no_difference(rng):
    """As with the sentence kernel of an HKSE, where the cosine of any two texts is nearly 1."""
    different = make_collection(rng, 300, 20)
    shared = unit(different + 300 * rng.normal(size=64))
    assert (shared @ shared.T).min() > 0.999
    copies = unit(shared[:5] + 1e-6 * rng.normal(size=(5, 64)))
    rows = centered(shared, copies)
    labels = group(rows, choose_threshold(rows))
    assert count_groups(labels) == 5
    assert np.array_equal(labels[:5], labels[300:])


def test_copies_of_the_mean_are_one_group(rng):
    rows = centered(unit(np.vstack([np.ones((40, 8)), rng.normal(size=(1, 8)), np.ones((40, 8))])))
    same = centered(unit(np.ones((60, 8))))
    assert count_groups(group(rows, 0.99)) == 1
    assert len(set(group(same, 0.99).tolist())) == 1


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([80, 300, 1200]),
    st.sampled_from([12, 20, 60]),
    st.sampled_from([0.0, 0.02, 0.15, 0.5]),
    st.sampled_from([1, 2, 5, 30]),
    st.sampled_from([0.0, 0.01, 0.03]),
)
def test_planted_copies_are_found_and_different_items_are_not(seed, n, hidden, share, copies, noise):
    rng = np.random.default_rng(seed)
    rows = make_collection(rng, n, hidden)
    n_groups = max(1, round(share * n / copies)) if share else 0
    originals = np.repeat(np.arange(n_groups), copies)
    size = np.linalg.norm(rows, axis=1, keepdims=True)[originals] / np.sqrt(rows.shape[1])
    planted = rows[originals] + noise * size * rng.normal(size=(len(originals), rows.shape[1]))
    rows = centered(unit(rows), unit(planted))
    order = rng.permutation(len(rows))
    labels = np.empty(len(rows), int)
    labels[order] = group(rows[order], choose_threshold(rows[order]))
    truth = np.concatenate([np.arange(n), originals])
    together = labels[:, None] == labels
    same = truth[:, None] == truth
    np.fill_diagonal(together, False)
    np.fill_diagonal(same, False)
    # Chance pairs are expected in one of a hundred collections; examples are searched for, so some have one.
    assert np.count_nonzero(together & ~same) <= 2
    # In a few classes of few items, or in few dimensions, different items come as close as rough copies.
    if noise == 0 or (n >= 300 and (noise < 0.03 or n * hidden >= 18_000)):
        assert np.count_nonzero(together & same) >= 0.95 * np.count_nonzero(same)


def test_a_collection_without_duplicates_has_none():
    """In 100 collections about one pair is expected beyond the threshold."""
    n_groups = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        rows = unit(make_collection(rng, 300, [8, 16, 40][seed % 3]))
        n_groups += count_groups(group(rows, choose_threshold(rows)))
    assert n_groups <= 4


def test_the_threshold_of_few_or_equal_rows_is_a_safe_one(rng):
    assert choose_threshold(unit(rng.normal(size=(49, 8)))) == SAFE_SIMILARITY
    assert choose_threshold(unit(np.ones((500, 8)))) == SAFE_SIMILARITY
    # Noise of many dimensions is far apart: no similarity of less than this is near-identical.
    assert choose_threshold(unit(rng.normal(size=(300, 500)))) == LEAST_SIMILARITY


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([0.2, 0.7, 0.9, 1.0]))
def test_groups_are_connected_components(seed, n, threshold):
    from scipy.sparse.csgraph import connected_components

    rng = np.random.default_rng(seed)
    rows = unit(rng.normal(size=(n, 3)))[rng.integers(0, n, n)]
    scores = np.asarray(rows, np.float64) @ rows.T
    tolerance = rounding(np.float32, 3)
    if np.min(np.abs(scores - threshold), where=scores < 1 - tolerance, initial=1) < tolerance:
        return  # rounding would decide
    expected = connected_components(scores >= threshold - tolerance)[1]
    labels = group(rows, threshold)
    assert ((labels[:, None] == labels) == (expected[:, None] == expected)).all()


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr("diptych.data._duplicates._ROWS", 1024)
    monkeypatch.setattr("diptych.data._duplicates._EDGES", 1000)


def measure_memory(function):
    """Return what a function returns, and the bytes that it needed."""
    tracemalloc.start()
    try:
        return function(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_groups_across_blocks_and_memory(small_blocks):
    """A chain through all blocks is one group, and only blocks of similarities are in memory."""
    angles = np.linspace(0, np.pi / 2, 6000)
    chain = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    far = np.array([[-1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]], np.float32)
    rows, shares = np.vstack([far[:1], chain, far[1:]]), []
    labels, peak = measure_memory(lambda: group_rows(rows, 0.9999, shares.append))
    assert sorted(np.bincount(labels).tolist()) == [1, 2, 6000]
    assert labels[0] == labels[6001]
    assert peak < 32 * 2**20, f"{peak / 2**20:.1f} MiB for similarities of 137 MiB"
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert least_similarity(rows, np.arange(1, 6001)) == pytest.approx(0, abs=1e-6)
    assert least_similarity(rows, np.array([5])) == 1


def test_one_group_of_everything_takes_no_more_memory(rng, small_blocks):
    rows = unit(1 + 0.01 * rng.normal(size=(6000, 8)))
    labels, peak = measure_memory(lambda: group(rows, 0.5))
    assert (labels == labels[0]).all()
    assert peak < 32 * 2**20, f"{peak / 2**20:.0f} MiB for 36 million similar pairs"


def encode_again(image, quality):
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


CHANGES = {
    "JPEG of quality 40": lambda image: encode_again(image, 40),
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "cropped by 3 %": lambda image: ImageOps.crop(image, image.width * 3 // 100),
    "brighter by 4 %": lambda image: ImageEnhance.Brightness(image).enhance(1.04),
}


@pytest.mark.data
@pytest.mark.slow
def test_changed_photos_are_found_among_real_ones(real_data):
    pairs = read_pairs(
        real_data / "flickr8k" / "dataset_flickr8k.json", images=real_data / "flickr8k" / "images"
    )
    photos = [Image.open(path).convert("RGB") for path in pairs.subset("test").paths[:300]]
    encoder = PyramidDescriptor()
    rows = unit(encoder.encode(photos))
    alone = centered(rows)
    assert count_groups(group(alone, choose_threshold(alone))) == 0
    for name, change in CHANGES.items():
        # A third of the photos has a copy.
        copies = centered(rows, unit(encoder.encode([change(photo) for photo in photos[:100]])))
        labels = group(copies, choose_threshold(copies))
        recall = np.mean(labels[300:] == labels[:100])
        assert count_groups(labels) == round(100 * recall), f"{name}: different photos are in one group"
        assert np.bincount(labels).max() <= 2, name
        assert recall >= 0.9, f"{name}: {recall}"


@pytest.mark.data
@pytest.mark.slow
def test_real_features_have_few_near_duplicates(real_data):
    """A planted copy is found; among the test photos, no two of which are copies, nothing is."""
    features = np.load(real_data / "flickr8k" / "resnet50.npy").astype(np.float32)
    rows = unit(features[:3000])
    rows[1000] = unit(features[500:501] * 1.02 + 0.01)[0]
    center_rows(rows)
    labels = group(rows, choose_threshold(rows))
    assert labels[1000] == labels[500]
    assert count_groups(labels) < 15
    thumbnails = centered(unit(np.load(real_data / "flickr8k" / "resnet50_thumbs.npy").astype(np.float32)))
    assert count_groups(group(thumbnails, choose_threshold(thumbnails))) == 0
