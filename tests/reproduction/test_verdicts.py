"""A paired bootstrap over images: the right spread, whole images, the same images for both methods."""

import numpy as np
import pytest

from reproduction.verdicts import RESAMPLES, Answers, draw_images, make_intervals, resample_recall

N = 800


def answers(hits, per_image=1):
    """Ranks 1 or 20 for each image, the same for all its captions."""
    ranks = np.repeat(np.where(hits, 1, 20), per_image)
    return Answers(ranks, np.repeat(np.arange(len(hits)), per_image), len(hits))


def compare_recall(first, second, k):
    value, resampled = resample_recall(first, second, k)
    return make_intervals([value], [resampled])[0]


def test_joint_intervals_contain_all_true_values_as_often_as_one_contains_its_own(rng):
    alone, together = [], []
    for _ in range(150):
        estimates = rng.normal(size=6)
        intervals = make_intervals(estimates, estimates[:, None] + rng.normal(size=(6, RESAMPLES)))
        alone.append(all(interval.low <= 0 <= interval.high for interval in intervals))
        together.append(all(interval.joint_low <= 0 <= interval.joint_high for interval in intervals))
    # 95 % of 150, and 0.95 to the power of six.
    assert 0.9 < np.mean(together) < 0.985
    assert np.mean(alone) < 0.82


def test_joint_intervals_of_the_same_value_are_no_wider(rng):
    resampled = rng.normal(size=RESAMPLES)
    one, same = make_intervals([0.0], [resampled])[0], make_intervals([0.0] * 6, [resampled] * 6)[0]
    assert (same.joint_low, same.joint_high) == (one.joint_low, one.joint_high)
    assert one.joint_low == pytest.approx(one.low, abs=0.02)


def test_intervals_have_the_spread_of_paired_differences(rng):
    first, second = rng.random(N) < 0.5, rng.random(N) < 0.4
    interval = compare_recall([answers(first)], [answers(second)], 1)
    gain = first.astype(float) - second
    assert interval.value == pytest.approx(100 * gain.mean())
    error = 100 * gain.std() / np.sqrt(N)
    # Percentiles of 2,000 resamples are known to a few percent of the width.
    assert interval.low == pytest.approx(interval.value - 1.96 * error, abs=0.25 * error)
    assert interval.high == pytest.approx(interval.value + 1.96 * error, abs=0.25 * error)


def test_queries_that_both_methods_answer_alike_cancel(rng):
    hits = rng.random(N) < 0.3
    changed = hits.copy()
    changed[:4] = ~changed[:4]
    assert compare_recall([answers(hits)], [answers(hits)], 1).high == 0.0
    interval = compare_recall([answers(hits)], [answers(changed)], 1)
    # Four images of 800 differ: unpaired, the interval would be ten times as wide.
    assert interval.high - interval.low < 1.2


def test_captions_of_an_image_are_drawn_together(rng):
    first, second = rng.random(N) < 0.5, rng.random(N) < 0.45
    one = compare_recall([answers(first)], [answers(second)], 1)
    five = compare_recall([answers(first, 5)], [answers(second, 5)], 1)
    # Five captions that always agree give no more information than one.
    assert (five.low, five.high) == pytest.approx((one.low, one.high))


def test_cut_offs_and_unequal_numbers_of_captions():
    owners = np.array([0, 0, 0, 1])
    first, second = Answers(np.array([1, 5, 9, 30]), owners, 2), Answers(np.array([30, 30, 30, 1]), owners, 2)
    assert [compare_recall([first], [second], k).value for k in (1, 5, 10)] == pytest.approx([0, 25, 50])


def test_runs_and_seeds_are_averaged(rng):
    hits = [rng.random(N) < share for share in (0.6, 0.4, 0.3, 0.3)]
    runs = compare_recall([answers(hits[0]), answers(hits[1])], [answers(hits[2]), answers(hits[3])], 1)
    expected = 100 * np.mean([hits[0].mean() - hits[2].mean(), hits[1].mean() - hits[3].mean()])
    assert runs.value == pytest.approx(expected)
    seeds = Answers(np.where(np.stack(hits[:2]), 1, 20), np.arange(N), N)
    interval = compare_recall([seeds], [answers(hits[2])], 1)
    assert interval.value == pytest.approx(100 * ((hits[0].mean() + hits[1].mean()) / 2 - hits[2].mean()))


def test_every_resample_draws_as_many_images_and_the_seed_is_fixed():
    weights = draw_images(50)
    assert weights.shape == (RESAMPLES, 50)
    assert np.all(weights.sum(axis=1) == 50)
    draw_images.cache_clear()
    np.testing.assert_array_equal(draw_images(50), weights)
