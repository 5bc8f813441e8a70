"""The exact index against brute force: whatever was added, removed and allowed."""

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.retrieval.stores._faiss import VectorIndex


def brute_force(held, queries, k, allowed=None):
    """Keys of the ``k`` largest inner products of each query; equal ones by key; no NaN."""
    keys = np.array([key for key in sorted(held) if allowed is None or key in allowed], np.int64)
    found = []
    for query in queries:
        scores = np.array([query @ held[key] for key in keys.tolist()], np.float32)
        order = [row for row in np.lexsort((keys, -scores)) if not np.isnan(scores[row])][:k]
        found.append([(float(scores[row]), int(keys[row])) for row in order])
    return found


def answers(found):
    scores, keys = found
    return [
        [(s, key) for s, key in zip(*pair, strict=True) if key >= 0]
        for pair in zip(scores.tolist(), keys.tolist(), strict=True)
    ]


@given(
    dtype=st.sampled_from(["float32", "float16"]),
    chunk_rows=st.sampled_from([1, 2, 3, 7, 1000]),  # results of 32 chunks are merged at a time
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "add", "remove"]), st.integers(1, 12), st.randoms()), max_size=12
    ),
    k=st.one_of(st.integers(1, 6), st.integers(1, 40)),
    n_queries=st.sampled_from([1, 2, 25]),  # FAISS takes another way from 20 queries on
    share=st.one_of(st.none(), st.floats(0, 1)),
    seed=st.integers(0, 2**16),
)
def test_search_equals_brute_force_whatever_came_and_went(
    dtype, chunk_rows, steps, k, n_queries, share, seed
):
    rng = np.random.default_rng(seed)
    tested, held, next_key = VectorIndex(3, dtype), {}, 0
    tested._chunk_rows = chunk_rows
    for verb, n, random in steps:
        if verb == "add":
            # Few values, so that scores are exact and often equal.
            vectors = rng.integers(-2, 3, (n, 3)).astype(np.float32)
            vectors[rng.random(n) < 0.1, 1] = np.nan
            keys = next_key + np.cumsum(rng.integers(1, 4, n))  # keys may skip some
            tested.add(keys, vectors)
            held |= dict(zip(keys.tolist(), vectors, strict=True))
            next_key = int(keys[-1]) + 1
        else:
            gone = random.sample(sorted(held), min(n, len(held)))
            assert tested.remove(np.array([*gone, next_key + 5], np.int64)) == len(gone)
            for key in gone:
                del held[key]
    queries = rng.integers(-2, 3, (n_queries, 3)).astype(np.float32)
    allowed = None
    if share is not None:
        allowed = np.array([key for key in range(next_key + 3) if rng.random() < share], np.int64)
    scores, keys = tested.search(queries, k, allowed=allowed)
    assert scores.shape == keys.shape == (n_queries, k)
    assert np.all(scores[keys < 0] == -np.inf)
    chosen = None if allowed is None else set(allowed.tolist())
    assert answers((scores, keys)) == brute_force(held, queries, k, chosen)
    assert len(tested) == len(held)
    assert tested.keys.tolist() == sorted(held)
    some = np.array(sorted(held)[::2], np.int64)
    expected = [held[key] for key in some.tolist()]
    np.testing.assert_array_equal(tested.vectors_of(some), np.reshape(expected, (-1, 3)))


def test_equal_scores_are_cut_off_by_key():
    tested = VectorIndex(1)
    tested.add(np.arange(400), np.r_[np.ones((399, 1)), [[2.0]]].astype(np.float32))
    for n_queries in (1, 30):
        for k in (2, 5, 150):
            keys = tested.search(np.ones((n_queries, 1)), k)[1]
            assert keys.tolist() == [[399, *range(k - 1)]] * n_queries


def test_the_number_of_chunks_follows_the_items_when_old_ones_make_room_for_new_ones():
    tested = VectorIndex(2)
    for key in range(600):
        tested.add(np.array([key]), np.ones((1, 2), np.float32))
        if key >= 100:
            tested.remove(np.array([key - 100]))
    assert len(tested) == 100
    assert len(tested.chunks()) <= 2


def test_what_a_reader_holds_never_changes(rng):
    tested, vectors = VectorIndex(3), rng.normal(size=(50, 3)).astype(np.float32)
    tested.add(np.arange(10), vectors[:10])
    held = tested.chunks()
    tested.add(np.arange(10, 50), vectors[10:])
    tested.remove(np.arange(0, 50, 2))
    assert [chunk.keys.tolist() for chunk in held] == [list(range(10))]
    np.testing.assert_array_equal(held[0].vectors, vectors[:10])


def test_a_graph_over_nothing_is_refused():
    with pytest.raises(InputError, match="the index is empty"):
        VectorIndex(3).build_graph()


def test_an_index_lies_over_arrays_as_they_are(rng, tmp_path):
    vectors = rng.normal(size=(3000, 5)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    tested = VectorIndex.of(mapped, np.arange(3000))
    assert all(isinstance(chunk.vectors, np.memmap) for chunk in tested.chunks())
    queries = rng.normal(size=(4, 5)).astype(np.float32)
    expected = np.argsort(-(queries @ vectors.T), axis=1)[:, :7]
    np.testing.assert_array_equal(tested.search(queries, 7)[1], expected)
    # Changes go into memory, never into the file.
    tested.remove(expected[0])
    tested.add(np.array([3000]), 9 * queries[:1])
    assert tested.search(queries[:1], 1)[1].tolist() == [[3000]]
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), vectors)


@pytest.mark.parametrize(
    ("keys", "columns", "words"),
    [
        ([3, 4], 2, "does not follow 4"),
        ([6, 6], 2, "keys must ascend"),
        ([7, 6], 2, "keys must ascend"),
        ([7, 8], 3, "of an index with 2 columns"),
        ([7], 2, "for 1 keys"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(keys, columns, words):
    tested = VectorIndex(2)
    tested.add(np.arange(5), np.ones((5, 2), np.float32))
    with pytest.raises(InputError, match=words):
        tested.add(np.array(keys), np.ones((2, columns), np.float32))
    assert tested.keys.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InputError, match="dtype='int8' is unknown"):
        VectorIndex(2, "int8")


def test_readers_see_whole_additions(rng):
    """Vectors are added in groups of four; no search ever finds a part of a group."""
    tested, done = VectorIndex(1), threading.Event()
    tested._chunk_rows = 6
    torn = []

    def read():
        while not done.is_set():
            keys = tested.search(np.ones((1, 1)), 4000)[1][0]
            if np.count_nonzero(keys >= 0) % 4:
                torn.append(keys)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for key in range(0, 800, 4):
        tested.add(np.arange(key, key + 4), np.ones((4, 1), np.float32))
        if key % 24 == 0:
            tested.remove(np.arange(key - 8, key - 4))
    done.set()
    for reader in readers:
        reader.join()
    assert not torn
