import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.data import PairedDataset, split_by_image
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


def test_paired_rows_number_images_captions_and_their_pairing():
    images, captions, pairing = pairs(3).paired_rows([2, 0])
    assert (images.tolist(), captions.tolist(), pairing.tolist()) == ([2, 0], [0, 1, 4, 5], [1, 1, 0, 0])
