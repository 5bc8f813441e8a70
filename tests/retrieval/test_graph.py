"""HNSW: approximate, and honest about it."""

import numpy as np
import pytest

from diptych import InputError, Retriever
from diptych.retrieval.stores._faiss import Graph, VectorIndex
from saved_files import files_of
from tolerance import assert_same_hits, rounding


@pytest.fixture(scope="module")
def vectors():
    """Vectors as canonical embeddings are: a few strong directions, many weak ones, length 1."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 24)) * 0.8 ** np.arange(24)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def indexed(vectors, dtype="float32"):
    tested = VectorIndex(vectors.shape[1], dtype)
    tested.add(np.arange(len(vectors)), vectors)
    return tested


def recall(found, exact):
    return np.mean([len(np.intersect1d(a, b)) / len(b) for a, b in zip(found, exact, strict=True)])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_recall_that_is_reported_is_the_recall_that_is_had(vectors, dtype):
    tested, queries = indexed(vectors, dtype), vectors[::30] + np.float32(0.01)
    graph = tested.build_graph(queries)
    exact = tested.search(queries, 10, exact=True)[1]
    assert graph.recall == recall(tested.search(queries, 10)[1], exact)
    assert graph.recall > 0.95
    assert tested.graph is graph
    assert tested.build_graph().recall > 0.95


def test_a_poor_graph_says_so(rng):
    scattered = rng.normal(size=(2000, 64)).astype(np.float32)
    assert indexed(scattered).build_graph(scattered[::30], neighbours=2).recall < 0.9


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


def test_items_that_come_and_go_after_the_build_are_honoured(vectors):
    tested, queries = indexed(vectors), vectors[:40]
    tested.build_graph()
    best = tested.search(queries, 1)[1][:, 0]
    tested.remove(best)
    assert not np.isin(tested.search(queries, 20)[1], best).any()
    tested.add(np.arange(5000, 5040), queries)
    np.testing.assert_array_equal(tested.search(queries, 1)[1][:, 0], np.arange(5000, 5040))
    tested.remove(np.arange(5000, 5020))
    exact = tested.search(queries, 10, exact=True)[1]
    assert recall(tested.search(queries, 10)[1], exact) > 0.95
    assert not np.isin(tested.search(queries, 30)[1], np.r_[best, 5000:5020]).any()


@pytest.fixture(scope="module", params=[0, 50])
def grown(request, vectors):
    """An index with a graph, and perhaps some newer vectors."""
    tested = indexed(vectors)
    tested.build_graph()
    if request.param:
        tested.add(np.arange(3000, 3000 + request.param), vectors[: request.param])
    return tested


@pytest.mark.parametrize("share", [0.9, 0.5, 0.12, 0.02, 0.001])
def test_filters_are_kept_and_selective_ones_are_exact(grown, vectors, share):
    tested, queries = grown, vectors[:50]
    allowed = np.flatnonzero(np.random.default_rng(1).random(len(tested)) < share)
    keys = tested.search(queries, 10, allowed=allowed)[1]
    exact = tested.search(queries, 10, allowed=allowed, exact=True)[1]
    assert np.isin(keys[keys >= 0], allowed).all()
    if share < 0.1:
        np.testing.assert_array_equal(keys, exact)
    else:
        assert recall(keys, exact) > 0.9


def test_all_are_found_when_all_are_asked_for(vectors):
    tested = indexed(vectors[:300])
    tested.build_graph()
    tested.remove(np.arange(100))
    keys = tested.search(vectors[:3], 250)[1]
    assert [sorted(row[row >= 0].tolist()) for row in keys] == [list(range(100, 300))] * 3
    tested.remove(np.arange(300))
    assert tested.search(vectors[:3], 5)[1].tolist() == [[-1] * 5] * 3


def test_vectors_that_are_no_numbers_do_no_harm(vectors):
    spoilt = vectors[:500].copy()
    spoilt[::50, 3] = np.nan
    tested = indexed(spoilt)
    tested.build_graph()
    keys = tested.search(vectors[1:20], 5)[1]
    assert not np.isin(keys, np.arange(0, 500, 50)).any()
    assert recall(keys, tested.search(vectors[1:20], 5, exact=True)[1]) > 0.8


def test_a_retriever_with_a_graph_reports_its_recall(make):
    made = make(index="hnsw", shape={"n": 400, "captions": 1})
    facts = made.retriever.info()["facts"]["graph_recall"]
    assert set(facts) == {"search", "annotate"}
    assert min(facts.values()) > 0.95
    exact = make(shape={"n": 400, "captions": 1})
    found, expected = made.retriever.search(made.y[:50], k=10), exact.retriever.search(made.y[:50], k=10)
    names = [[[hit.id for hit in hits] for hits in several] for several in (found, expected)]
    assert recall(*names) > 0.95
    # A filter that most items pass, and one that few pass.
    for where in (lambda item: item.id != "0", lambda item: item.id in ("3", "4")):
        found, expected = (each.retriever.search(made.y[3], k=5, where=where) for each in (made, exact))
        assert_same_hits(found, expected, rounding(np.float32, 8))


@pytest.mark.filterwarnings("ignore:.*lies? far")
def test_a_refit_builds_the_graph_anew_and_leaves_the_old_facts_alone(make, views):
    made = make(index="hnsw")
    before = made.retriever.info()["facts"]["graph_recall"]
    kept = dict(before)
    x, y, pairing = views(seed=1, n=70)
    made.retriever.add(x[60:], y[120:], pairing=pairing[120:] - 60, ids=[f"n{i}" for i in range(10)])
    made.retriever.refit()
    graph = made.retriever.store.indexes["search"].graph
    assert len(graph.keys) == 70
    assert before == kept


class TestOnDisk:
    @pytest.fixture
    def saved(self, make, tmp_path):
        made = make(index="hnsw", shape={"n": 300, "captions": 1})
        made.retriever.save(tmp_path / "model")
        made.folder = tmp_path / "model"
        return made

    def test_a_trusted_graph_is_read_and_gives_the_same(self, saved, same_answers, monkeypatch):
        def never(*_, **__):
            raise AssertionError("the graph was built")

        monkeypatch.setattr(Graph, "build", never)
        loaded = Retriever.load(saved.folder, trust_graph=True)
        same_answers(loaded, saved.retriever, saved.x[:9], saved.y[:9])
        assert loaded.info()["facts"]["graph_recall"]["search"] > 0.95

    def test_a_file_that_is_not_trusted_is_not_even_opened(self, saved, monkeypatch):
        for name in ("search.hnsw", "annotate.hnsw"):
            (files_of(saved.folder) / name).write_bytes(b"IHNf" + bytes(range(256)) * 40)

        def never(*_, **__):
            raise AssertionError("the file was read")

        monkeypatch.setattr(Graph, "read", never)
        loaded = Retriever.load(saved.folder)
        found, exact = loaded.search(saved.y[:9], k=5), saved.retriever.search(saved.y[:9], k=5)
        assert recall(*([[h.id for h in hits] for hits in several] for several in (found, exact))) > 0.9
        assert loaded.store.resident.indexes["search"].graph.recall > 0.95

    def test_a_trusted_file_that_was_changed_is_refused(self, saved):
        path = files_of(saved.folder) / "search.hnsw"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        with pytest.raises(InputError, match="its checksum differs"):
            Retriever.load(saved.folder, trust_graph=True)

    @pytest.mark.parametrize("more", [1, 300])
    def test_a_graph_of_other_items_is_searched_beside_them_or_built_again(self, saved, same_answers, more):
        retriever, rows = saved.retriever, np.arange(more) % 300
        retriever.remove("0")
        retriever.add(saved.x[rows], saved.y[rows], ids=[f"late {i}" for i in range(more)])
        loaded = Retriever.load(saved.folder, trust_graph=True)
        same_answers(loaded, retriever, saved.x[:9], saved.y[:9])
        graph = loaded.store.resident.indexes["search"].graph
        assert len(graph.keys) == (300 if more == 1 else 599)

    def test_what_is_no_graph_of_these_vectors_is_refused(self, saved, tmp_path):
        graph = saved.retriever.store.resident.indexes["search"].graph
        graph.write(tmp_path / "graph")
        assert len(Graph.read(tmp_path / "graph", graph.keys, graph.index.d).keys) == 300
        with pytest.raises(InputError, match="expected 299 of"):
            Graph.read(tmp_path / "graph", graph.keys[1:], graph.index.d)
        (tmp_path / "graph").write_bytes(b"nothing of the kind")
        with pytest.raises(InputError, match="is not a FAISS file"):
            Graph.read(tmp_path / "graph", graph.keys, graph.index.d)


def test_a_graph_over_an_empty_side(make, tmp_path):
    made = make(index="hnsw")
    made.retriever.remove([str(i) for i in range(60)])
    assert made.retriever.search(made.y[0]) == []
    made.retriever.save(tmp_path / "empty")
    loaded = Retriever.load(tmp_path / "empty")
    assert loaded.search(made.y[0]) == []
    assert loaded.annotate(made.x[0]) == []
