from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.data import PROTOCOLS, PairedDataset, split_by_image, split_by_protocol
from diptych.data._pairs import normalize_split


def pairs(n=6, captions=2, **options):
    return PairedDataset.of(
        [(f"{i}.jpg", [f"{i} {k}" for k in range(captions)]) for i in range(n)], **options
    )


def test_selection_keeps_captions_with_their_images():
    chosen = pairs().select([4, 1])
    assert chosen.image_ids == ("4.jpg", "1.jpg")
    assert chosen.captions == ("1 0", "1 1", "4 0", "4 1")
    assert chosen.pairing.tolist() == [1, 1, 0, 0]
    assert chosen.caption_ids == ("1.jpg#0", "1.jpg#1", "4.jpg#0", "4.jpg#1")


@given(st.lists(st.integers(0, 4), max_size=30), st.sets(st.integers(0, 4)), st.randoms())
def test_selection_keeps_pairs_for_any_pairing(pairing, rows, random):
    dataset = PairedDataset(
        tuple("abcde"), tuple(f"c{j}" for j in range(len(pairing))), np.array(pairing, int)
    )
    order = list(rows)
    random.shuffle(order)
    chosen = dataset.select(order)
    expected = {(dataset.image_ids[i], dataset.captions[j]) for j, i in enumerate(pairing) if i in rows}
    pairs_left = {(chosen.image_ids[i], chosen.captions[j]) for j, i in enumerate(chosen.pairing.tolist())}
    assert pairs_left == expected


def test_a_subset_has_the_paths_and_splits_of_its_images(tmp_path):
    dataset = pairs(3, splits=["train", "test", ""], paths=[tmp_path / f"{i}.jpg" for i in range(3)])
    test = dataset.subset("test")
    assert test.paths == (tmp_path / "1.jpg",)
    assert test.splits == ("test",)
    assert dataset.split_sizes() == {"train": 1, "test": 1}
    assert dataset.subset("val").n_images == 0
    with pytest.raises(InputError, match="dev"):
        dataset.subset("dev")
    with pytest.raises(InputError, match="not split"):
        pairs().subset("test")


@pytest.mark.parametrize(
    ("images", "captions", "pairing", "splits", "message"),
    [
        ("aa", "x", [0], None, "more than once"),
        ("a", "x", [1], None, "pairing"),
        ("a", "xy", [0], None, "pairing"),
        ("a", "x", [0], ("train", "val"), "splits"),
        ("a", "x", [0], ("holdout",), "holdout"),
    ],
)
def test_inconsistent_parts_are_refused(images, captions, pairing, splits, message):
    with pytest.raises(InputError, match=message):
        PairedDataset(tuple(images), tuple(captions), np.array(pairing), splits=splits)


def test_rows_that_do_not_exist_or_are_named_twice_are_refused():
    for rows, message in (([1, 1], "twice"), ([6], "whole numbers")):
        with pytest.raises(InputError, match=message):
            pairs().select(rows)


def test_the_pairing_is_read_only():
    with pytest.raises(ValueError, match="read-only"):
        pairs().pairing[0] = 3


def test_split_names_are_normalised():
    assert [normalize_split(name) for name in ("Train", "dev", "TEST ", "restval", "")] == [
        *("train", "val", "test", "train", ""),
    ]
    with pytest.raises(InputError, match="extra"):
        normalize_split("extra")


def test_random_splits_are_by_image_and_seeded():
    splits = split_by_image(pairs(200), validation=0.1, test=50, random_state=3)
    assert splits.split_sizes() == {"train": 130, "val": 20, "test": 50}
    assert splits.splits == split_by_image(pairs(200), validation=0.1, test=50, random_state=3).splits
    assert splits.splits != split_by_image(pairs(200), validation=0.1, test=50, random_state=4).splits


@pytest.mark.parametrize("options", [{"validation": 3, "test": 3}, {"test": 1.5}, {"validation": -1}])
def test_impossible_splits_are_refused(options):
    with pytest.raises(InputError):
        split_by_image(pairs(6), **options)


@cache
def with_sizes(*sizes):
    names = [name for name, size in zip(("train", "val", "test"), sizes, strict=True) for _ in range(size)]
    return PairedDataset.of([(str(i), []) for i in range(sum(sizes))], splits=names)


@pytest.mark.parametrize(
    ("name", "sizes", "runs", "tested"),
    [
        ("flickr8k", (6000, 1000, 1000), 1, 1000),
        ("flickr30k-karpathy", (29000, 1014, 1000), 1, 1000),
        ("coco-5k", (113287, 5000, 5000), 1, 5000),
        ("coco-1k", (113287, 5000, 5000), 5, 1000),
    ],
)
def test_protocols_use_the_splits_of_the_file(name, sizes, runs, tested):
    dataset = with_sizes(*sizes)
    protocol = split_by_protocol(name, dataset)
    assert len(protocol.train) == sizes[0]
    assert [len(run.validation) for run in protocol.runs] == [sizes[1]] * runs
    assert [len(run.test) for run in protocol.runs] == [tested] * runs
    together = np.concatenate([run.test for run in protocol.runs])
    np.testing.assert_array_equal(together, dataset.image_rows("test"))
    with pytest.raises(InputError, match=name):
        split_by_protocol(name, with_sizes(10, 2, 2))


def test_the_papers_flickr30k_protocol_is_disjoint_and_seeded():
    dataset = PairedDataset.of([(str(i), []) for i in range(31783)])
    protocol = split_by_protocol("flickr30k-paper", dataset, random_state=1)
    assert len(protocol.train) == 25783
    assert [(len(run.validation), len(run.test)) for run in protocol.runs] == [(1000, 1000)] * 3
    parts = [protocol.train, *(rows for run in protocol.runs for rows in (run.validation, run.test))]
    assert sorted(np.concatenate(parts).tolist()) == list(range(31783))
    same, different = (split_by_protocol("flickr30k-paper", dataset, random_state=seed) for seed in (1, 2))
    np.testing.assert_array_equal(same.runs[2].test, protocol.runs[2].test)
    assert not np.array_equal(different.runs[2].test, protocol.runs[2].test)
    with pytest.raises(InputError, match="Flickr30k"):
        split_by_protocol("flickr30k-paper", with_sizes(6000, 1000, 1000))


def test_first_captions_keeps_the_first_captions_of_each_image():
    dataset = PairedDataset(
        ("a", "b", "c"),
        ("a0", "b0", "a1", "a2", "b1"),
        np.array([0, 1, 0, 0, 1]),
        ("1", "2", "3", "4", "5"),
        ("train", "val", "test"),
    )
    kept = dataset.first_captions(2)
    assert kept.captions == ("a0", "b0", "a1", "b1")
    assert kept.pairing.tolist() == [0, 1, 0, 1]
    assert kept.caption_ids == ("1", "2", "3", "5")
    assert (kept.image_ids, kept.splits) == (dataset.image_ids, dataset.splits)
    assert dataset.first_caption_rows(2).tolist() == [0, 1, 2, 4]
    assert dataset.first_captions(9).captions == dataset.captions
    with pytest.raises(InputError, match="below 1"):
        dataset.first_captions(0)


def test_coco_protocols_need_five_captions_per_image():
    # Some of the 5,000 test images have seven captions.
    dataset = with_sizes(113_287, 5000, 5000)
    numbers = [7 if row % 1000 == 0 else 5 for row in range(5000)]
    pairing = np.repeat(dataset.image_rows("test"), numbers)
    dataset = replace(dataset, captions=("A dog.",) * len(pairing), pairing=pairing, caption_ids=())
    assert dataset.n_captions == 25_010
    first = dataset.first_captions(5)
    for name in ("coco-5k", "coco-1k"):
        with pytest.raises(InputError, match=r"first_captions\(5\)"):
            split_by_protocol(name, dataset)
        tested = np.concatenate([run.test for run in split_by_protocol(name, first).runs])
        assert len(first.caption_rows(tested)) == 25_000


def test_unknown_protocols_are_refused():
    with pytest.raises(InputError, match=PROTOCOLS[0]):
        split_by_protocol("flickr9k", pairs())


def test_paired_rows_number_images_captions_and_their_pairing():
    images, captions, pairing = pairs(3).paired_rows([2, 0])
    assert (images.tolist(), captions.tolist(), pairing.tolist()) == ([2, 0], [0, 1, 4, 5], [1, 1, 0, 0])
