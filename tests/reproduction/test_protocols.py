"""The splits and the captions that the paper's protocols use."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from diptych import InputError
from diptych.data import PairedDataset
from reproduction.protocols import PROTOCOLS, first_caption_rows, keep_first_captions, split_by_protocol


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


def test_the_first_five_captions_of_each_image_are_kept():
    pairing = np.array([0, 1, *[0] * 6, 1])
    captions, ids = (tuple(f"{kind}{j}" for j in range(9)) for kind in "ci")
    dataset = PairedDataset(("a", "b", "c"), captions, pairing, ids, ("train", "val", "test"))
    kept = keep_first_captions(dataset)
    rows = [0, 1, 2, 3, 4, 5, 8]
    assert first_caption_rows(dataset).tolist() == rows
    assert kept.captions == tuple(f"c{j}" for j in rows)
    assert kept.caption_ids == tuple(f"i{j}" for j in rows)
    assert kept.pairing.tolist() == [0, 1, 0, 0, 0, 0, 1]
    assert (kept.image_ids, kept.splits) == (dataset.image_ids, dataset.splits)


def test_coco_protocols_need_five_captions_per_image():
    # Some of the 5,000 test images have seven captions.
    dataset = with_sizes(113_287, 5000, 5000)
    numbers = [7 if row % 1000 == 0 else 5 for row in range(5000)]
    pairing = np.repeat(dataset.image_rows("test"), numbers)
    dataset = replace(dataset, captions=("A dog.",) * len(pairing), pairing=pairing, caption_ids=())
    assert dataset.n_captions == 25_010
    first = keep_first_captions(dataset)
    for name in ("coco-5k", "coco-1k"):
        with pytest.raises(InputError, match="keep the first ones"):
            split_by_protocol(name, dataset)
        tested = np.concatenate([run.test for run in split_by_protocol(name, first).runs])
        assert len(first.caption_rows(tested)) == 25_000


def test_unknown_protocols_are_refused():
    with pytest.raises(InputError, match=PROTOCOLS[0]):
        split_by_protocol("flickr9k", with_sizes(6, 1, 1))
