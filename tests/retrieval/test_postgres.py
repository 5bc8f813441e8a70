"""A store in PostgreSQL: sharing by processes, pointers in model folders, limits, hostile content, graphs."""

import re

import numpy as np
import pytest
from pgvector import HalfVector, Vector
from psycopg import sql

from diptych import AWCCA, HKSE, InputError, Retriever
from diptych.retrieval._filters import Filter, parse_filter
from diptych.retrieval.stores.postgres import PostgresStore
from diptych.retrieval.stores.postgres._connection import Address
from diptych.retrieval.stores.postgres._rows import Rows
from filled_stores import fill, unit_rows
from saved_files import files_of
from tolerance import assert_same_hits, rounding

CLOSE = rounding(np.float32, 2000)
"""A loaded HKSE computes the features of a few words alone, and not as rows of a table."""

MODEL = {"params": (2.0, 3.0)}


def schema_of(address):
    return Address.parse(address).schema


@pytest.fixture
def filled(make, fresh):
    """A retriever in a schema of its own, the address, and the features."""
    address = fresh()
    made = make(index=address)
    return made.retriever, address, made.x, made.y


def ids(hits):
    return [hit.id for hit in hits]


class TestSharing:
    def test_the_tables_of_replaced_versions_are_dropped(self, filled, make, database):
        one, address, _, _ = filled
        make(seed=2, index=address)
        for _ in range(3):
            one.refit()
        tables = [name for name in database.tables(schema_of(address)) if name[-1].isdigit()]
        assert len(tables) == 2 + 3, tables

    def test_a_new_text_encoder_is_loaded_with_the_new_version(self, drawn, thumbnails, fresh):
        address, few = fresh(), drawn.select(range(40))
        first = HKSE(word="lin", sentence="lin")
        second = HKSE(word_features=40, sentence_features=20)
        options = {"model": AWCCA(params=(5.0, 5.0)), "index": address}
        one = Retriever(thumbnails, first, **options).fit(few)
        other = Retriever.connect(address, thumbnails)
        query = few.captions[0]
        old_features = one.encoders.hkse.encode([query])
        assert ids(other.search(query)) == ids(one.search(query))
        newer = Retriever(thumbnails, second, **options).fit(few)
        assert_same_hits(other.search(query), newer.search(query), CLOSE)
        assert other.encoders.hkse.parameters.word_features == 40
        assert other.annotate(few.paths[0]) == newer.annotate(few.paths[0])
        # Features of the old encoder are not compared with vectors of the new model.
        with pytest.raises(InputError, match="other encoders"):
            one.search(old_features)
        assert_same_hits(one.search(query), newer.search(query), CLOSE)

    def test_a_calibration_is_stored_with_the_model(self, views, fresh):
        (x, y, pairing), address = views(n=180), fresh()
        one = Retriever.from_features(x[:60], y[:120], pairing[:120], model=AWCCA(**MODEL), index=address)
        one.add(x[60:62], ids=["a", "b"])
        one.calibrate(x[60:], y[120:], pairing[120:] - 60)
        other = Retriever.connect(address)
        assert other.fitted.calibration == one.fitted.calibration
        assert other.search(y[0], where=["a", "b"])[0].probability is not None

    def test_a_filter_function_may_search_itself(self, filled):
        retriever, _, x, y = filled
        best = retriever.search(y[0], k=1)[0].id
        hits = retriever.search(y[0], where=lambda item: item.id == retriever.search(y[0], k=1)[0].id)
        assert ids(hits) == [best]


class TestFolders:
    def test_a_folder_only_points_to_the_database(self, filled, tmp_path):
        retriever, address, x, y = filled
        retriever.save(tmp_path / "model")
        names = {path.name for path in files_of(tmp_path / "model").iterdir()}
        assert names <= {"config.json", "README.md", "regularization.png"}
        loaded = Retriever.load(tmp_path / "model")
        assert loaded.search(y[:5]) == retriever.search(y[:5])
        assert loaded.info() == retriever.info()
        loaded.add(x[:1], ids=["new"])
        assert [item.id for item in PostgresStore(address).items(ids=["new"])] == ["new"]

    def test_several_processes_change_the_same_items_and_a_save_replaces_the_pointer(
        self, filled, make, tmp_path
    ):
        retriever, _, x, y = filled
        folder = tmp_path / "model"
        retriever.save(folder)
        mine, other = Retriever.load(folder), Retriever.load(folder)
        other.add(x[:1], ids=["theirs"])
        mine.add(x[:1], ids=["mine"])
        mine.save(folder)
        loaded = Retriever.load(folder)
        assert {"mine", "theirs"} <= {hit.id for hit in loaded.search(y[0], k=1000)}
        make().retriever.save(folder)
        assert Retriever.load(folder).index == "flat"
        mine.save(folder)
        assert Retriever.load(folder).item("mine") is not None
        assert len(list((folder / "versions").iterdir())) == 1

    def test_no_password_is_saved_or_shown(self, database, filled, tmp_path):
        retriever, address, _, y = filled
        secret = "s3cret/&%"
        quoted = address.replace("postgres:@", "postgres:s3cret%2F%26%25@")
        assert quoted != address
        known = Retriever.connect(quoted)
        assert known.search(y[0]) == retriever.search(y[0])
        assert repr(known).startswith("<Retriever: image encoder none; text encoder none; index postgresql (")
        known.save(tmp_path / "model")
        files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
        assert len(files) > 3
        texts = [path.read_bytes().decode("utf-8", "replace") for path in files]
        texts += [known.index, repr(known.info()), repr(Address.parse(quoted)), repr(known)]
        for text in texts:
            assert "s3cret" not in text
            assert secret not in text
        assert Retriever.load(tmp_path / "model", index=quoted).search(y[0]) == retriever.search(y[0])

    def test_an_address_for_a_folder_with_items_of_its_own_is_refused(self, make, tmp_path):
        make().retriever.save(tmp_path / "model")
        with pytest.raises(InputError, match="index="):
            Retriever.load(tmp_path / "model", index="postgresql://host/database")


class TestLimits:
    def test_a_text_above_the_limit_is_refused_until_the_limit_is_raised(self, filled):
        retriever, address, x, y = filled
        text = "word " * 2_000_000
        with pytest.raises(InputError, match=r"takes 10\d{6} characters; at most 1048576 are stored"):
            retriever.add(captions=y[:1], texts=[text], caption_ids=["long"])
        wide = Retriever.connect(f"{address}&max_item=20000000")
        wide.add(captions=y[:1], texts=[text], caption_ids=["long"])
        assert [item.text for item in PostgresStore(address).items(ids=["long"])] == [text]

    def test_a_model_above_the_limit_is_not_read(self, filled):
        _, address, _, _ = filled
        with pytest.raises(InputError, match="at most 100 are read"):
            Retriever.connect(f"{address}&max_model=100")


class TestHostile:
    def test_items_that_cannot_be_stored_are_refused_and_nothing_is_added(self, filled):
        retriever, address, x, y = filled
        for options in (
            {"ids": ["a\0b"]},
            {"ids": ["a\udcffb"]},
            {"ids": ["a"], "paths": ["/\0"]},
            {"ids": ["a"], "metadata": {"a": {"b": ["\0"]}}},
            {"ids": ["a"], "metadata": {"a": {"\0": 1}}},
            {"ids": ["x" * 3000]},
            {"ids": ["a"], "metadata": {"a": {"b": "x" * 10_000_000}}},
            {"ids": ["a"], "metadata": {"a": {"b": 10**200_000}}},
        ):
            with pytest.raises(InputError) as caught:
                retriever.add(x[:1], **options)
            assert "\n" not in str(caught.value)
            assert len(str(caught.value)) < 500
        assert PostgresStore(address).count() == 180

    @pytest.mark.parametrize(
        ("statement", "words"),
        [
            ("UPDATE {}.files SET content = 'x' WHERE name = 'config.json'", "fit|damaged|restore|save"),
            ("UPDATE {}.files SET content = '[]' WHERE name = 'config.json'", "fit|damaged|restore|save"),
            ("UPDATE {}.files SET content = 'x' WHERE name = 'model.safetensors'", "fit|damaged|restore"),
            ("DELETE FROM {}.files WHERE name = 'model.safetensors'", "model.safetensors"),
            ("UPDATE {}.items_1 SET view = 'sound'", "in the database is damaged"),
            ("UPDATE {}.items_1 SET metadata = '5'", "in the database is damaged"),
            ("DELETE FROM {}.current_version", "current_version of the schema .* is empty"),
            ("DROP TABLE {}.search_1", "does not exist in .*; restore the table"),
        ],
    )
    def test_rows_are_checked_as_files_are(self, filled, database, statement, words):
        _, address, _, y = filled
        with database.connect() as connection:
            connection.execute(statement.format(schema_of(address)))
        with pytest.raises(InputError, match=words) as caught:
            Retriever.connect(address).search(y[0])
        assert "\n" not in str(caught.value)
        assert "/tmp" not in str(caught.value).replace(address.partition("host=")[2], "")

    def test_only_the_files_asked_for_are_written(self, filled, database):
        retriever, address, _, _ = filled
        with database.connect() as connection:
            for name in ("../outside", "other"):
                connection.execute(f"INSERT INTO {schema_of(address)}.files VALUES (1, '{name}', 0, 'x')")
        with retriever.store.model_files(["config.json", "missing"]) as (folder, version):
            assert version == "1"
            assert [path.name for path in folder.rglob("*")] == ["config.json"]
            assert not (folder.parent / "outside").exists()

    def test_features_of_another_length_are_refused(self, filled, database):
        retriever, address, x, y = filled
        retriever.search(y[0])  # features tell the offset at the first search
        with database.connect() as connection:
            connection.execute(f"UPDATE {schema_of(address)}.image_features_1 SET row = '\\x00'")
        with pytest.raises(InputError, match="features of another length"):
            retriever.refit()
        assert len(retriever.search(y[0], k=5)) == 5

    def test_a_refusal_of_the_server_is_one_sentence(self, filled, database):
        retriever, address, x, y = filled
        with database.connect() as connection:
            connection.execute(f"ALTER TABLE {schema_of(address)}.items_1 ADD CHECK (length(id) < 9)")
        with pytest.raises(InputError, match="refused: new row for relation") as caught:
            retriever.add(x[:1], ids=["a long name"])
        assert "\n" not in str(caught.value)
        assert retriever.add(x[:1], ids=["short"]) == ["short"]


def used_graph(store, query, where, *, graph=True):
    """Return the name of the graph that the server uses for a search; None if it compares all vectors."""

    def explain(connection):
        rows = Rows(connection, store._version)
        condition, values = rows.condition(where)
        statement = rows.search_statement("search", condition, graph=graph)
        vector = Vector if store.dtype == "float32" else HalfVector
        values |= {"query": vector(query), "k": 10, "candidates": 40}
        return connection.execute(sql.SQL("EXPLAIN ") + statement, values).fetchall()

    rows = store._connections.run(explain)
    match = re.search(
        r"Index Scan using (search_\S+?(?:_v_idx|_expr_idx)\S*)", "\n".join(row[0] for row in rows)
    )
    return match[1] if match else None


class TestGraphs:
    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_long_vectors_are_found_in_a_float16_graph_and_compared_in_full(self, fresh, rng, dtype):
        rows = (rng.normal(size=(300, 40)) @ rng.normal(size=(40, 2100)) * np.linspace(1, 0.01, 2100)).astype(
            np.float32
        )
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        address = fresh(index="hnsw", options="-c enable_seqscan=off")
        store = fill(PostgresStore(address, dtype, create=True), rows)
        queries = rows[:20] + 0.02 * unit_rows(rng, 20, 2100)
        assert used_graph(store, queries[0], None) is not None
        results = store.search("search", queries, 5, None, store.state().version)
        scores = queries @ rows.T
        expected = np.argsort(-scores, axis=1)[:, :5]
        same = [
            len({item.id for item, _ in own} & set(map(str, best)))
            for own, best in zip(results, expected.tolist(), strict=True)
        ]
        assert np.mean(same) > 4.9
        best = np.array([own[0][1] for own in results])
        np.testing.assert_allclose(best, scores.max(axis=1), atol=1e-3 if dtype == "float16" else 1e-5)

    def test_rare_filters_return_as_many_items_as_there_are(self, fresh, views, database):
        rows = views(n=3000, captions=1)[0].astype(np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        about = [{"rare": i % 500 == 0, "half": i % 2 == 0, "n": i} for i in range(3000)]
        # The server would compare so few vectors one by one.
        address, recalls = fresh(index="hnsw", options="-c enable_seqscan=off -c enable_sort=off"), {}
        store = fill(PostgresStore(address, create=True), rows, metadata=about, recalls=recalls)
        assert recalls["search"] > 0.95
        graph = used_graph(store, rows[0], None)
        statement = "SELECT indexdef FROM pg_indexes WHERE indexname = %s AND schemaname = %s"
        ((definition,),) = database.ask(statement, graph, schema_of(address))
        assert "USING hnsw" in definition
        rare, half = parse_filter({"rare": True}), parse_filter({"half": True})
        assert used_graph(store, rows[0], half) is not None
        assert used_graph(store, rows[0], rare) is not None
        assert used_graph(store, rows[0], None, graph=False) is None
        chosen = [i for i in range(3000) if about[i]["rare"]]
        expected = [str(chosen[i]) for i in np.argsort(-(rows[chosen] @ rows[0]))]
        some_ids = Filter(ids=frozenset(map(str, chosen)))
        few = "rare = true and n < 3000 or n < 0"
        for where in (rare, some_ids, parse_filter({"half": True, "rare": True}), parse_filter(few)):
            (results,) = store.search("search", rows[:1], 10, where, "1")
            assert [item.id for item, _ in results] == expected
        assert len(store.search("search", rows[:1], 3000, None, "1")[0]) == 3000

    def test_a_graph_is_kept_by_a_refit_and_its_recall_is_reported(self, fresh, views):
        x, y, pairing = views()
        retriever = Retriever.from_features(x, y, pairing, model=AWCCA(**MODEL), index=fresh(index="hnsw"))
        for _ in range(2):
            assert min(retriever.info()["facts"]["graph_recall"].values()) > 0.95
            assert retriever.info()["index"]["kind"] == "postgresql, hnsw"
            retriever.refit()


def test_exact_results_and_loading_are_those_of_faiss(fresh, rng):
    faiss = pytest.importorskip("faiss")
    rows, queries = unit_rows(rng, 5000, 64), unit_rows(rng, 20, 64)
    store = fill(PostgresStore(fresh(), create=True), rows)
    index = faiss.IndexFlatIP(64)
    index.add(rows)
    scores, places = index.search(queries, 10)
    results = store.search("search", queries, 10, None, "1")
    assert [[int(item.id) for item, _ in own] for own in results] == places.tolist()
    np.testing.assert_allclose(
        [[score for _, score in own] for own in results], scores, atol=rounding(np.float32, 64)
    )
    blocks = list(store.vectors("search", "1"))
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), rows)
    np.testing.assert_array_equal(store.features("image", ["7", "7", "4999"]), rows[[7, 7, 4999]])
