import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.ranking import mean_rank, median_rank, metric, pair_ranks, ranks, recall_at_k
from diptych.ranking._ranks import best_items
from tolerance import assert_close


def sort_lists(x, y, pairing, task):
    """Sort every list with the true items placed last among their equals, and read off their places."""
    result = [0] * len(y)
    for j in range(len(y)) if task == "search" else ():
        scores = x @ y[j]
        result[j] = sorted(range(len(x)), key=lambda i: (-scores[i], i == pairing[j])).index(pairing[j]) + 1
    for i in set(pairing.tolist()) if task == "annotate" else ():
        scores = y @ x[i]
        order = sorted(range(len(y)), key=lambda j: (-scores[j], pairing[j] == i, j))
        for place, j in enumerate(order, 1):
            if pairing[j] == i:
                result[j] = place
    return result


def assert_sorted(x, y, pairing, expected, task, **options):
    """Assert that the places of all pairs are those of a sort, and ranks the first of each query."""
    places = pair_ranks(x, y, pairing, task=task, **options)
    found = ranks(x, y, pairing, task=task, **options)
    assert type(places) is type(found) is type(x)
    assert to_numpy(places).tolist() == expected
    queries = to_numpy(pairing) if task == "annotate" else np.arange(len(y))
    first = [to_numpy(places)[queries == query].min() for query in np.unique(queries)]
    assert to_numpy(found).tolist() == first


@st.composite
def problems(draw):
    n_x, n_y, width = draw(st.integers(1, 6)), draw(st.integers(1, 12)), draw(st.integers(1, 3))
    # Small integers make ties common and products exact; unit items make cosine exact.
    values = st.integers(-2, 2).map(float)
    x = draw(hnp.arrays(np.float64, (n_x, width), elements=values))
    y = draw(hnp.arrays(np.float64, (n_y, width), elements=values))
    pairing = draw(hnp.arrays(np.int64, (n_y,), elements=st.integers(0, n_x - 1)))
    return x, y, pairing


@given(problems(), st.sampled_from(["search", "annotate"]), st.sampled_from([1, 40, 10**6]))
def test_places_by_l2_equal_a_sort_with_the_tie_rule(problem, task, block_bytes):
    x, y, pairing = problem
    # −‖x−y‖² as an inner product of augmented vectors, exact in small integers.
    ax = np.hstack([2 * x, -np.sum(x * x, 1, keepdims=True), np.ones((len(x), 1))])
    ay = np.hstack([y, np.ones((len(y), 1)), -np.sum(y * y, 1, keepdims=True)])
    expected = sort_lists(ax, ay, pairing, task)
    assert_sorted(x, y, pairing, expected, task, similarity="l2", block_bytes=block_bytes)


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_places_by_cosine_equal_a_sort(rng, backend, task):
    x, y = rng.normal(size=(40, 7)), rng.normal(size=(90, 7))
    pairing = rng.integers(0, 40, 90)
    unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, y)]
    expected = sort_lists(*unit, pairing, task)
    assert_sorted(backend(x), backend(y), backend(pairing), expected, task, block_bytes=5000)


@pytest.mark.parametrize("task", ["search", "annotate"])
@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_best_items_are_those_of_a_sort(rng, backend, task, similarity):
    x, y = rng.normal(size=(40, 7)), rng.normal(size=(90, 7))
    pairing = rng.integers(0, 40, 90)
    options = {"task": task, "similarity": similarity, "block_bytes": 5000}
    blocks = list(best_items(backend(x), backend(y), backend(pairing), 4, **options))
    assert len(blocks) > 1
    assert type(blocks[0][0]) is type(blocks[0][1]) is type(backend(x))
    rows, scores = (np.concatenate([to_numpy(block[i]) for block in blocks]) for i in (0, 1))
    queries, items = (y, x) if task == "search" else (x[np.unique(pairing)], y)
    if similarity == "cosine":
        expected = (
            queries @ items.T / np.linalg.norm(queries, axis=1)[:, None] / np.linalg.norm(items, axis=1)
        )
    else:
        expected = -np.linalg.norm(queries[:, None] - items, axis=2)
    order = np.argsort(-expected, axis=1)[:, :4]
    np.testing.assert_array_equal(rows, order)
    assert_close(scores, np.take_along_axis(expected, order, 1), 20)


def test_a_constant_score_is_never_a_hit():
    x = np.ones((5, 2))
    assert ranks(x, x, task="search").tolist() == [5] * 5
    assert ranks(x, x, task="annotate").tolist() == [5] * 5
    assert ranks(np.zeros((2, 2)), np.eye(2)).tolist() == [2, 2]


def test_other_own_captions_are_not_counted():
    x = np.eye(2)
    y = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    assert ranks(x, y, [0, 0, 1], task="annotate").tolist() == [1, 1]
    # The best own caption decides: the second own caption ties with it and is not counted either.
    assert ranks(x, y[[0, 0, 2]], [0, 0, 1], task="annotate").tolist() == [1, 1]


def test_images_without_captions_are_searched_but_do_not_query():
    x, y = np.eye(3), np.eye(3)[[0, 2]]
    assert ranks(x, y, [0, 2], task="annotate").shape == (2,)
    assert ranks(x, np.array([[0.2, 1.0, 0.0]]), [0], task="search").tolist() == [2]


def test_blocks_stay_within_memory():
    import tracemalloc

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 8)).astype(np.float32), rng.normal(size=(25000, 8)).astype(np.float32)
    pairing = np.repeat(np.arange(5000), 5)
    for task in ("search", "annotate"):
        for count in (ranks, pair_ranks):
            tracemalloc.start()
            count(x, y, pairing, task=task, block_bytes=8 * 2**20)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 14 * 2**20, f"{task} took {peak / 2**20:.1f} MiB for scores of 477 MiB"


def test_recall_median_and_mean_rank():
    given_ranks = np.array([1, 2, 5, 10, 11, 100])
    assert recall_at_k(given_ranks, 5) == 50.0
    assert median_rank(given_ranks) == 7.0  # zero-based 0 1 4 9 10 99: median 6.5, floor 6, plus 1
    assert median_rank(np.array([3])) == 3.0
    assert mean_rank(given_ranks) == 21.5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.eye(3), np.eye(4)), "3 rows and Y has 4"),
        ((np.ones((3, 2)), np.ones((3, 3))), "one common space"),
        ((np.eye(3), np.eye(3), [0, 1, 3]), "rows 0 to 2"),
        ((np.eye(3), np.eye(3), [0, 1]), "shape"),
        ((np.eye(3), np.eye(3), [0.0, 1.0, 2.0]), "integers"),
        ((np.eye(3) * np.nan, np.eye(3)), "NaN"),
        ((np.ones(3), np.eye(3)), "1 dimension"),
        ((np.ones((0, 3)), np.eye(3)), "empty"),
        ((np.full((2, 2), 1e200), np.full((2, 2), 1e200)), "scale them down"),
    ],
)
def test_wrong_input_is_refused(arguments, words):
    with pytest.raises(InputError, match=words) as caught:
        ranks(*arguments, similarity="l2")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ranks(np.eye(2), np.eye(2), task="find"), "'search', 'annotate'"),
        (lambda: ranks(np.eye(2), np.eye(2), similarity="dot"), "'cosine', 'l2'"),
        (lambda: ranks(np.eye(2), np.eye(2), block_bytes=0), "block_bytes"),
        (lambda: recall_at_k(np.array([], dtype=int), 1), "no ranks"),
        (lambda: recall_at_k(np.array([1]), 0), "below 1"),
        *((lambda name=name: metric(name), "choose") for name in ("r@0", "recall", "r@", 3)),
    ],
)
def test_unknown_names_and_numbers_are_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


RANKS = np.array([1, 2, 6, 11])


@pytest.mark.parametrize(
    ("name", "value", "cutoff", "sign"),
    [
        ("r@1", 25.0, 1, 1),
        ("r@7", 75.0, 7, 1),
        ("mean_recall", (25 + 50 + 75) / 3, None, 1),
        ("median_rank", 4.0, None, -1),
        ("mean_rank", 5.0, None, -1),
        (lambda ranks: float((ranks <= 2).sum()), 2.0, None, 1),
    ],
)
def test_metrics(name, value, cutoff, sign):
    result = metric(name)
    assert result(RANKS) == pytest.approx(value)
    assert result.cutoff == cutoff
    assert result.signed(5.0) == sign * 5.0
    assert result.name == ("<lambda>" if callable(name) else name)
