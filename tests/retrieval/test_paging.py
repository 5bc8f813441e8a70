"""Pages of a search, joined, are one long search, whatever the store."""

import numpy as np
import pytest

from diptych import AWCCA, InputError, Retriever
from diptych.retrieval import Hits
from diptych.retrieval.stores._base import FIRST_STEP, search_in_steps
from diptych.retrieval.stores._faiss import VectorIndex

N = 900  # images; more than four steps of an approximate index
STORES = ["flat", "float16", "hnsw", "postgresql", "postgresql, hnsw"]


@pytest.fixture(params=STORES)
def paged(request, views):
    """A retriever whose graph, if it has one, is a poor one."""
    x, y, pairing = views(n=N, captions=1, m_x=68, m_y=64, hidden=60)
    options = {"index": "flat"}
    if request.param == "float16":
        options["dtype"] = "float16"
    elif request.param == "hnsw":
        options["index"] = "hnsw"
    elif "postgresql" in request.param:
        graph = {"index": "hnsw", "ef_search": 1, "options": "-c enable_seqscan=off"}
        fresh = request.getfixturevalue("fresh")
        options["index"] = fresh(**(graph if "hnsw" in request.param else {}))
    retriever = Retriever.from_features(
        x,
        y,
        pairing,
        model=AWCCA(params=(2.0, 3.0)),
        metadata={str(i): {"even": i % 2 == 0} for i in range(N)},
        **options,
    )
    if request.param == "hnsw":
        for index in retriever.store.indexes.values():
            index.build_graph(neighbours=2)
    return retriever, x, y


def join_pages(search, k):
    """Return the ids of all pages of ``k``, and check what each says of the next."""
    ids, offset, more = [], 0, True
    while more:
        hits = search(k=k, offset=offset)
        assert isinstance(hits, Hits)
        ids += [hit.id for hit in hits]
        offset, more = offset + k, hits.more
        assert len(hits) == k or not more
    assert len(search(k=k, offset=offset)) == 0
    return ids


def test_pages_joined_are_one_long_search(paged):
    retriever, x, y = paged
    searches = {
        "plain": lambda **page: retriever.search(y[3], **page),
        "filtered": lambda **page: retriever.search(y[3], where={"even": True}, **page),
        "composed": lambda **page: retriever.search(y[3], plus=[y[7]], **page),
        "annotate": lambda **page: retriever.annotate(x[3], **page),
        "similar": lambda **page: retriever.similar(image=x[3], **page),
    }
    for name, search in searches.items():
        whole = [hit.id for hit in search(k=N)]
        assert len(whole) == len(set(whole)) == (N // 2 if name == "filtered" else N), name
        for k in (61, 250):
            assert join_pages(search, k) == whole, (name, k)
    several = retriever.search(y[:3], k=300)
    for offset in (0, 90, 180):
        for hits, page in zip(several, retriever.search(y[:3], k=90, offset=offset), strict=True):
            assert [hit.id for hit in page] == [hit.id for hit in hits[offset : offset + 90]]
            assert page.more


@pytest.mark.parametrize("offset", [-1, 1.5, True, None, "2"])
def test_an_offset_is_a_number(make, offset):
    made = make()
    for call in (made.retriever.search, lambda row, **o: made.retriever.similar(text=row, **o)):
        with pytest.raises(InputError, match=f"offset={offset!r} is not a number of hits to leave out"):
            call(made.y[0], offset=offset)


def test_equal_scores_are_never_repeated_nor_skipped(views):
    x, y, pairing = views(n=60, captions=1)
    x[10:50] = x[10]
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    ids = join_pages(lambda **page: retriever.search(y[3], **page), 7)
    assert ids == [hit.id for hit in retriever.search(y[3], k=60)]
    assert len(set(ids)) == 60


def test_a_poor_graph_lists_the_same_for_every_k(rng):
    vectors = rng.normal(size=(3000, 48)).astype(np.float32)
    index = VectorIndex(48)
    index.add(np.arange(3000), vectors)
    assert index.build_graph(neighbours=2).recall < 0.8
    allowed = np.arange(0, 3000, 2)
    for only in (None, allowed):
        scores, keys = index.search(vectors[:5], 3000, allowed=only)
        n = 3000 if only is None else len(only)
        assert all(len(set(row[:n].tolist())) == n and set(row[n:].tolist()) <= {-1} for row in keys)
        for k in (1, 10, 99, 100, 101, 399, 400, 401, 1600, 1700):
            shorter = index.search(vectors[:5], k, allowed=only)
            np.testing.assert_array_equal(shorter[1], keys[:, :k])
            np.testing.assert_array_equal(shorter[0], scores[:, :k])


def test_steps_stop_when_there_are_enough_or_no_more():
    asked = []

    def search(places, size):
        asked.append((places, size))
        # The first query has 130 items, the others many; what was found before is found again, elsewhere.
        return [list(range(130 if place == 0 else 10_000))[:size][::-1] for place in places]

    results = search_in_steps(search, lambda hit: hit, 3, 120)
    assert asked == [([0, 1, 2], FIRST_STEP), ([0, 1, 2], 2 * FIRST_STEP)]
    assert [len(own) for own in results] == [120, 120, 120]
    assert results[0] == [*range(99, -1, -1), *range(129, 109, -1)]
    asked.clear()
    assert [len(own) for own in search_in_steps(search, lambda hit: hit, 2, 1000)] == [130, 1000]
    assert asked[-1] == ([1], 16 * FIRST_STEP)
