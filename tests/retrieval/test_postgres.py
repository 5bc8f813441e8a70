"""A collection in PostgreSQL: what is stored and shared, what is refused, and who notices what."""

import json
import os
import re
import subprocess
import sys
import threading

import numpy as np
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych import AWCCA, HKSE, InputError, Retriever
from diptych._checks import TASKS
from diptych.cca._canonical import CanonicalModel
from diptych.cca._filters import Tikhonov
from diptych.retrieval import Item
from diptych.retrieval._homes import home_of
from diptych.retrieval._items import matcher
from diptych.retrieval.stores.postgres import _migrations as migrations
from diptych.retrieval.stores.postgres import _vectors as vectors
from diptych.retrieval.stores.postgres._connection import Address
from diptych.retrieval.stores.postgres._items import by_metadata
from diptych.retrieval.stores.postgres._schema import Tables, check_graph, create_vectors
from saved_files import edit_config, files_of
from tolerance import assert_same_hits, rounding

MODEL = {"params": (2.0, 3.0)}


def schema_of(address):
    return Address.parse(address).schema


@pytest.fixture
def filled(views, fresh):
    """A retriever in a schema of its own, its address, and what it was made of."""
    x, y, pairing = views()
    address = fresh()
    return Retriever.from_features(x, y, pairing, model=AWCCA(**MODEL), index=address), address, x, y


def ids(hits):
    return [hit.id for hit in hits]


class TestSharing:
    def test_another_process_needs_nothing_but_the_address(self, filled, tmp_path):
        retriever, address, _, y = filled
        np.save(tmp_path / "query.npy", y[0])
        program = (
            "import sys, json, numpy as np\nfrom diptych import Retriever\n"
            "found = Retriever.connect(sys.argv[1]).search(np.load(sys.argv[2]), k=5)\n"
            "print(json.dumps([hit.to_json() for hit in found]))\n"
        )
        command = [sys.executable, "-c", program, address, str(tmp_path / "query.npy")]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert json.loads(said) == [hit.to_json() for hit in retriever.search(y[0], k=5)]

    def test_what_one_adds_and_removes_the_other_sees(self, filled):
        one, address, x, y = filled
        other = Retriever.connect(address)
        one.add(x[:1], y[:1], ids=["new"], metadata={"new": {"by": "one"}})
        assert other.search(y[0], k=100, where={"by": "one"})[0].id == "new"
        packs = [each.annotate(x[0], packs=True, k=100) for each in (other, one)]
        assert_same_hits(*packs, rounding(np.float32, 8))
        other.remove("new")
        assert "new" not in ids(one.search(y[0], k=100))
        with pytest.raises(InputError, match="no item 'new'"):
            one.remove("new")

    @pytest.mark.parametrize("times", [1, 3])
    def test_refits_are_noticed_by_the_next_call_of_every_kind(self, filled, times):
        one, address, x, y = filled
        one.add(x[:1], ids=["old"], metadata={"old": {"kind": "old"}})
        rng = np.random.default_rng(0)
        calls = {
            "search": lambda r: r.search(y[0], k=5),
            "filtered": lambda r: r.search(y[0], k=5, where={"kind": "new"}),
            "function": lambda r: r.search(y[0], k=5, where=lambda item: item.id.startswith("new")),
            "ids": lambda r: r.search(y[0], k=5, where=["1", "2"]),
            "annotate": lambda r: r.annotate(x[0], k=5),
            "packs": lambda r: r.annotate(x[0], k=5, packs=True),
            "weighting": lambda r: r.search(y[0], k=5, weighting="none"),
            "similar": lambda r: r.similar(image=x[0], k=5),
            "embed": lambda r: r.embed_images(x[:3]).tolist(),
            "info": lambda r: r.info(),
        }
        others = {name: Retriever.connect(address) for name in calls}
        before = {name: call(others[name]) for name, call in calls.items()}
        names = [f"new {i}" for i in range(30)]
        more = x[:30] + rng.normal(size=(30, 8)), y[:30] + rng.normal(size=(30, 7))
        one.add(*more, ids=names, metadata={name: {"kind": "new"} for name in names})
        for _ in range(times):  # after the second, the tables of the first version are gone
            one.refit()
        for name, call in calls.items():
            found = call(others[name])
            assert found == call(one), name
            assert found != before[name], name

    def test_a_refit_of_another_process_is_learned_from(self, filled):
        one, address, x, y = filled
        other = Retriever.connect(address)
        one.add(x[:5], y[:5], ids=[f"first {i}" for i in range(5)])
        one.refit()
        other.add(x[:7], y[:7], ids=[f"second {i}" for i in range(7)])
        other.refit()
        assert one.info()["facts"]["refitted"] == {"pairs": 120 + 5 + 7, "before": 120 + 5}

    def test_a_fit_of_another_process_replaces_everything_at_once(self, filled, views, database):
        one, address, _, _ = filled
        x, y, pairing = views(seed=2, n=50)
        names = [f"other {i}" for i in range(50)]
        Retriever.from_features(x, y, pairing, ids=names, model=AWCCA(**MODEL), index=address)
        assert set(ids(one.search(y[0], k=500))) == set(names)
        # The version before is kept for those who are still reading it, and no other.
        for _ in range(3):
            one.refit()
        kept = [name for name in database.tables(schema_of(address)) if name[-1].isdigit()]
        assert len(kept) == 2 * 2 + 3, kept

    def test_a_new_text_encoder_is_taken_with_the_new_version(self, drawn, thumbnails, fresh):
        address, few = fresh(), drawn.select(range(40))
        first = HKSE(word="lin", sentence="lin")
        second = HKSE(word_features=40, sentence_features=20)
        options = {"model": AWCCA(params=(5.0, 5.0)), "index": address}
        one = Retriever(thumbnails, first, **options).fit(few)
        other = Retriever.connect(address, thumbnails)
        query = few.captions[0]
        assert ids(other.search(query)) == ids(one.search(query))
        newer = Retriever(thumbnails, second, **options).fit(few)
        assert other.search(query) == newer.search(query)
        assert other.encoders.hkse.word_features == 40
        assert other.annotate(few.paths[0]) == newer.annotate(few.paths[0])
        # Features that were made by the old encoder are not compared with vectors of the new model.
        with pytest.raises(InputError, match="features of other encoders"):
            one.search(first.fit(few.captions).transform([query]))
        assert one.search(query) == newer.search(query)

    def test_threads_of_one_process_take_turns_with_few_connections(self, views, fresh):
        x, y, pairing = views()
        retriever = Retriever.from_features(x, y, pairing, model=AWCCA(**MODEL), index=fresh(connections=1))
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(retriever.search(y[:9], k=3))) for _ in range(6)
        ]
        for thread in (*threads, refit := threading.Thread(target=retriever.refit)):
            thread.start()
        for thread in (*threads, refit):
            thread.join(timeout=30)
            assert not thread.is_alive()
        assert len(found) == 6


class TestFolders:
    def test_a_folder_points_to_the_database_and_holds_nothing_else(self, filled, tmp_path):
        retriever, address, x, y = filled
        retriever.save(tmp_path / "model")
        held = {path.name for path in files_of(tmp_path / "model").iterdir()}
        assert held <= {"config.json", "README.md", "regularization.png"}
        loaded = Retriever.load(tmp_path / "model")
        assert loaded.search(y[:5]) == retriever.search(y[:5])
        assert loaded.info() == retriever.info()
        loaded.add(x[:1], ids=["new"])
        assert retriever.item("new") is not None

    def test_others_may_have_saved_the_same_pointer_but_nothing_else(self, filled, make_here, tmp_path):
        retriever, _, x, y = filled
        folder = tmp_path / "model"
        retriever.save(folder)
        mine, other = Retriever.load(folder), Retriever.load(folder)
        other.add(x[:1], ids=["theirs"])
        other.save(folder)
        mine.add(x[:1], ids=["mine"])
        mine.save(folder)
        loaded = Retriever.load(folder)
        assert {"mine", "theirs"} <= {hit.id for hit in loaded.search(y[0], k=1000)}
        mine = Retriever.load(folder)
        make_here().retriever.save(folder)
        with pytest.raises(InputError, match="holds another model by now; load it again"):
            mine.save(folder)
        assert Retriever.load(folder).index == "flat"

    def test_no_password_is_saved_or_told(self, database, filled, tmp_path):
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
        told = [path.read_bytes().decode("utf-8", "replace") for path in files]
        told += [known.index, repr(known.info()), repr(Address.parse(quoted)), repr(known)]
        for text in told:
            assert "s3cret" not in text
            assert secret not in text
        assert Retriever.load(tmp_path / "model", index=quoted).search(y[0]) == retriever.search(y[0])

    def test_an_address_for_a_folder_with_items_of_its_own_is_refused(self, make_here, tmp_path):
        make_here().retriever.save(tmp_path / "model")
        with pytest.raises(InputError, match="holds its items itself"):
            Retriever.load(tmp_path / "model", index="postgresql://host/database")

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://host/db?passfile=/etc/passwd",
            "postgresql://host/db?service=x",
            "postgresql://u:secret@h/d",
            5,
            None,
            "host=x",
        ],
    )
    def test_a_folder_that_says_more_than_a_place_is_refused(self, filled, tmp_path, address):
        filled[0].save(tmp_path / "model")
        edit_config(tmp_path / "model", address=address)
        with pytest.raises(InputError) as caught:
            Retriever.load(tmp_path / "model")
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)


class TestModelsMadeElsewhere:
    @pytest.mark.parametrize("features", [False, True])
    def test_a_fitted_model_is_filled_in_batches_and_refitted(self, home, views, tmp_path, features, recwarn):
        x, y, pairing = views(n=90)
        model = AWCCA(**MODEL).fit(x[:60], y[:120], pairing[:120])
        sample = (x[:60], y[:120]) if features else None
        retriever = Retriever.from_model(model, features=sample, index=home())
        assert retriever.search(y[0]) == []
        for start in range(0, 60, 20):
            rows = slice(2 * start, 2 * start + 40)
            batch = [str(i) for i in range(start, start + 20)]
            retriever.add(x[start : start + 20], y[rows], pairing=pairing[rows] - start, ids=batch)
        plain = Retriever.from_features(x[:60], y[:120], pairing[:120], model=AWCCA(**MODEL))
        for one, other in zip(retriever.search(y[:20]), plain.search(y[:20]), strict=True):
            assert ids(one) == ids(other)
        recwarn.clear()
        retriever.add(100 * x[60:61], ids=["far"])
        assert bool([w for w in recwarn if "lie far" in str(w.message)]) == features
        retriever.save(tmp_path / "model")
        again = Retriever.load(tmp_path / "model")
        assert again.search(y[:5]) == retriever.search(y[:5])
        retriever.refit()  # the pairs were added, so they count once more
        assert retriever.info()["facts"]["refitted"] == {"pairs": 240, "before": 120}

    def test_a_model_without_its_spectra_is_not_refitted(self, home, views, tmp_path):
        x, y, pairing = views()
        AWCCA(**MODEL).fit(x, y, pairing).save(tmp_path / "awcca")
        retriever = Retriever.from_model(AWCCA.load(tmp_path / "awcca"), index=home())
        retriever.add(x, y, pairing=pairing)
        with pytest.raises(InputError, match="moments of this model's training pairs are not known"):
            retriever.refit()
        retriever.save(tmp_path / "model")
        assert len(Retriever.load(tmp_path / "model").search(y[0], k=100)) == 60

    def test_what_is_no_fitted_model_is_refused(self, views):
        with pytest.raises(InputError, match="str is no model"):
            Retriever.from_model("model")
        with pytest.raises(ValueError, match="not fitted"):
            Retriever.from_model(AWCCA())
        x, y, pairing = views()
        with pytest.raises(InputError, match="features"):
            Retriever.from_model(AWCCA(**MODEL).fit(x, y, pairing), features=(x,))

    def test_an_hkse_is_stored_with_the_version(self, drawn, thumbnails, fresh):
        address, few = fresh(), drawn.select(range(40))
        hkse = HKSE(word="lin", sentence="lin")
        one = Retriever(thumbnails, hkse, AWCCA(params=(5.0, 5.0)), index=address, keep_features=False)
        one.fit(few)
        one.add([few.paths[0]], ["a red star"], ids=["again"])
        one.refit()
        other = Retriever.connect(address)
        assert other.search("a red star") == one.search("a red star")
        with pytest.raises(InputError, match="no image encoder here"):
            other.annotate(few.paths[0])
        with pytest.raises(InputError, match="the image encoder given is"):
            Retriever.connect(address, "pyramid")


NAMES = st.sampled_from(["a", "b", "c'd", '"', "%s", "{0}", "\\"])
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False, width=16),
    st.sampled_from(["", "a", "b", "1", "true", "null", "it's", '"', "\\", "\\u0000", "%s", "{}", "猫"]),
)
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner)
)


@pytest.fixture(scope="module")
def plain(views, database):
    """A retriever with nothing in it."""
    x, y, pairing = views()
    model = AWCCA(**MODEL).fit(x, y, pairing)
    return Retriever.from_model(model, index=database.address(schema="filters")), x, y


class TestFilters:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=5),
        st.dictionaries(NAMES, PLAIN | st.lists(PLAIN, max_size=3), max_size=2),
    )
    def test_the_server_chooses_what_python_would(self, plain, metadata, where):
        retriever, x, y = plain
        names = [f"item {i}" for i in range(len(metadata))]
        about = dict(zip(names, metadata, strict=True))
        retriever.add(np.tile(x[:1], (len(names), 1)), ids=names, metadata=about)
        try:
            if not set(where) <= {key for each in metadata for key in each}:
                with pytest.raises(InputError, match="no item has"):
                    retriever.search(y[0], k=10, where=where)
                return
            hits = retriever.search(y[0], k=10, where=where)
            fits = matcher(where)
            expected = [name for name in names if fits(Item(name, "image", metadata=about[name]))]
            assert ids(hits) == expected  # equal scores are ordered by key
            assert ids(retriever.search(y[0], k=10, where=where, weighting="none")) == expected
            assert all(hit.metadata == about[hit.id] for hit in hits)
        finally:
            retriever.remove(names)

    @pytest.mark.parametrize("where", [{"a": {"b": 1}}, {"a": [[1]]}, {5: "x"}, {"a": object()}])
    def test_what_is_no_plain_value_is_refused(self, make, where):
        made = make()
        with pytest.raises(InputError, match="holds no plain values"):
            made.retriever.search(made.y[0], where=where)

    def test_in_memory_and_in_the_database_alike(self, make):
        about = {str(i): {"colour": ["red", "blue", "green"][i % 3], "even": i % 2 == 0} for i in range(60)}
        made = make(metadata=about)
        for where in ({"colour": "red"}, {"colour": ["red", "blue"], "even": True}, {"colour": []}, {}):
            found = made.retriever.search(made.y[0], k=100, where=where)
            fits = matcher(where)
            assert {int(i) for i in ids(found)} == {
                i for i in range(60) if fits(Item("", "image", metadata=about[str(i)]))
            }
            chosen = (where, lambda item, fits=fits: fits(item))
            similar = [made.retriever.similar(image=made.x[0], k=100, where=each) for each in chosen]
            assert_same_hits(*similar, rounding(np.float32, 8))


HOSTILE = [
    "it's",
    '"quoted"',
    "a;DROP TABLE items--",
    "%s %(x)s",
    "{0}",
    "\\",
    "猫",
    "new\nline\u2028",
    "é" * 999,
]


class TestHostile:
    @pytest.mark.parametrize("name", HOSTILE)
    def test_names_of_any_kind_come_back(self, filled, name):
        retriever, address, x, y = filled
        about = {"metadata": {name: {name: name}}, "texts": [f"about {name}"], "paths": [f"/{name}"]}
        retriever.add(x[:1], y[:1], ids=[name], **about)
        other = Retriever.connect(address)
        hit = other.search(y[0], where=name)[0]
        assert (hit.id, hit.path, hit.metadata) == (name, f"/{name}", {name: name})
        assert ids(other.search(y[0], where={name: name})) == [name]
        assert other.annotate(x[0], where=f"{name}#0")[0].text == f"about {name}"
        assert other.remove(name) == 2

    @pytest.mark.parametrize(
        "what",
        [
            {"ids": ["a\0b"]},
            {"ids": ["a\udcffb"]},
            {"ids": ["a"], "paths": ["/\0"]},
            {"ids": ["a"], "metadata": {"a": {"b": ["\0"]}}},
            {"ids": ["a"], "metadata": {"a": {"\0": 1}}},
            {"ids": ["x" * 3000]},
            {"ids": ["a"], "metadata": {"a": {"b": "x" * 10_000_000}}},
            {"ids": ["a"], "metadata": {"a": {"b": 10**200_000}}},
        ],
        ids=["nul", "half", "path", "value", "name", "id", "long", "number"],
    )
    def test_what_cannot_be_stored_is_one_sentence_and_stores_nothing(self, filled, views, what):
        retriever, address, x, y = filled
        with pytest.raises(InputError) as caught:
            retriever.add(x[:1], **what)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
        assert retriever.store.count() == 180

    def test_a_text_beyond_the_limit_and_a_limit_that_is_raised(self, filled):
        retriever, address, x, y = filled
        text = "word " * 2_000_000
        with pytest.raises(InputError, match=r"takes 10\d{6} characters; at most 1048576 are stored"):
            retriever.add(captions=y[:1], texts=[text], caption_ids=["long"])
        wide = Retriever.connect(f"{address}&max_item=20000000")
        wide.add(captions=y[:1], texts=[text], caption_ids=["long"])
        assert retriever.item("long").text == text

    def test_filters_by_what_cannot_be_there_find_nothing(self, filled):
        retriever, _, _, y = filled
        retriever.add(captions=y[:1], caption_ids=["with a"], metadata={"with a": {"a": "b"}})
        assert retriever.search(y[0], where={"a": "\0"}) == []
        with pytest.raises(InputError, match=r"the key '\\udcff', which no item has"):
            retriever.search(y[0], where={"\udcff": 1})
        with pytest.raises(InputError, match="there is no item"):
            retriever.search(y[0], where="a\0")
        assert retriever.item("a\0") is None

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://user:s3cret@nowhere.invalid/db",
            "postgresql://user:s3cret@127.0.0.1:1/db",
            "postgresql://user:s3cret@host:port:port/db",
            "postgresql://user:s3cret@host/db?nonsense=1",
            "postgresql://user:s3cret@host/db?schema=pg_catalog",
            "postgresql://user:s3cret@host/db?schema=a;b",
            "postgresql://user:s3cret@host/db?index=tree",
            "postgresql://user:s3cret@host/db?ef_search=0",
            "mysql://user:s3cret@host/db",
        ],
    )
    def test_an_address_that_leads_nowhere_is_one_sentence_without_the_password(self, address):
        for action in (
            lambda: Retriever.connect(address),
            lambda: Retriever.from_model(AWCCA(**MODEL).fit(np.eye(6), np.eye(6)[:, :4]), index=address),
        ):
            with pytest.raises(InputError) as caught:
                action()
            assert "s3cret" not in str(caught.value)
            assert "\n" not in str(caught.value)

    def test_a_database_without_a_model_is_left_as_it_is(self, database, fresh):
        address = fresh()
        with pytest.raises(InputError, match="holds no model in the schema"):
            Retriever.connect(address)
        assert database.tables(schema_of(address)) == []

    @pytest.mark.parametrize(
        ("statement", "words"),
        [
            ("UPDATE {}.files SET content = 'x' WHERE name = 'config.json'", "is damaged"),
            ("UPDATE {}.files SET content = '[]' WHERE name = 'config.json'", "is damaged"),
            ("UPDATE {}.files SET content = 'x' WHERE name = 'model.safetensors'", "is damaged"),
            ("DELETE FROM {}.files WHERE name = 'model.safetensors'", "lacks model.safetensors"),
            ("UPDATE {}.items_1 SET view = 'sound'", "in the database is damaged"),
            ("UPDATE {}.items_1 SET metadata = '5'", "in the database is damaged"),
            ("DELETE FROM {}.current_version", "lost its current version"),
        ],
    )
    def test_rows_are_checked_as_files_are(self, filled, database, statement, words):
        _, address, _, y = filled
        with database.connect() as connection:
            connection.execute(statement.format(schema_of(address)))
        with pytest.raises(InputError, match=words) as caught:
            Retriever.connect(address).search(y[0])
        assert "\n" not in str(caught.value)

    def test_features_and_vectors_of_other_lengths_are_refused(self, filled, database):
        retriever, address, x, y = filled
        with database.connect() as connection:
            connection.execute(f"UPDATE {schema_of(address)}.image_features_1 SET row = '\\x00'")
        with pytest.raises(InputError, match="features of another length"):
            retriever.refit()
        assert len(retriever.search(y[0], k=5)) == 5

    def test_bounds_of_what_is_read(self, filled):
        _, address, x, y = filled
        with pytest.raises(InputError, match="at most 100 are read"):
            Retriever.connect(f"{address}&max_model=100")
        few = Retriever.connect(f"{address}&max_memory=100")
        for ask in (lambda: few.annotate(x[0], packs=True), lambda: few.search(y[0], weighting="none")):
            with pytest.raises(InputError, match="needs all vectors in memory"):
                ask()
        assert len(few.search(y[0])) == 10

    def test_a_refusal_of_the_server_is_one_sentence(self, filled, database):
        retriever, address, x, y = filled
        with database.connect() as connection:
            connection.execute(f"ALTER TABLE {schema_of(address)}.items_1 ADD CHECK (length(id) < 9)")
        with pytest.raises(InputError, match="refused: new row for relation") as caught:
            retriever.add(x[:1], ids=["a long name"])
        assert "\n" not in str(caught.value)
        assert retriever.add(x[:1], ids=["short"]) == ["short"]


def plan(retriever, query, where, *, graph):
    """The graph by which the server answers a search; None: it looks at vectors one by one."""
    now = retriever.collection._follower.version
    condition, values = vectors.sql.SQL("TRUE"), {}
    if where is not None:
        condition, values = by_metadata(now.tables, "image", where)
    statement = vectors._statement(
        now.tables, "search", condition, now.embedding.dimension("search"), now.dtype, graph=graph
    )
    asked = now.embedding.queries(query[None], "search")[0]
    own = vectors.Vector if now.dtype == "float32" else vectors.HalfVector
    values |= {"query": own(asked), "k": 10, "more": 40}
    explain = vectors.sql.SQL("EXPLAIN ") + statement
    rows = retriever.collection._connections.run(lambda c: c.execute(explain, values).fetchall())
    found = re.search(
        r"Index Scan using (search_\S+?(?:_v_idx|_expr_idx)\S*)", "\n".join(row[0] for row in rows)
    )
    return found[1] if found else None


class TestGraphs:
    def test_vectors_too_long_for_a_graph_are_refused_with_what_to_do(self, fresh, views):
        address = Address.parse(fresh(index="hnsw"))
        check_graph("vector", 4000)
        with pytest.raises(InputError, match="4001 columns are too long for a graph .* n_components, or"):
            check_graph("vector", 4001)
        with pytest.raises(InputError, match="16001 columns are longer than pgvector's"):
            create_vectors(None, Tables(address.schema, 1, 1), "search", "vector", 16_001)

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    def test_long_vectors_go_through_a_graph_over_halves_and_are_compared_whole(self, fresh, rng, dtype):
        x, weights = rng.normal(size=(300, 40)), rng.normal(size=(40, 2100))
        parts = CanonicalModel(np.linspace(1, 0.01, 2100), weights, weights, Tikhonov(1.0), Tikhonov(1.0))
        model = AWCCA.unpacked(({}, dict.fromkeys(TASKS, parts), np.zeros(40), np.zeros(40), None))
        address = fresh(index="hnsw", options="-c enable_seqscan=off")
        options = {"index": address, "dtype": dtype, "keep_features": False}
        retriever = Retriever.from_model(model, **options)
        exact = Retriever.from_model(model, dtype=dtype)
        for each in (retriever, exact):
            each.add(x, ids=[str(i) for i in range(300)])
        queries = x[:20] + 0.5 * rng.normal(size=(20, 40))
        assert plan(retriever, queries[0], None, graph=True) is not None
        found, expected = retriever.search(queries, k=5), exact.search(queries, k=5)
        same = [len({*ids(a)} & {*ids(b)}) for a, b in zip(found, expected, strict=True)]
        assert np.mean(same) > 4.9
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a[0].score, b[0].score, atol=1e-3 if dtype == "float16" else 1e-5)

    def test_filters_that_few_pass_still_give_as_many_as_there_are(self, fresh, views, database):
        x, y, pairing = views(n=3000, captions=1)
        about = {str(i): {"rare": i % 500 == 0, "half": i % 2 == 0} for i in range(3000)}
        options = {"model": AWCCA(**MODEL), "metadata": about}
        # So few are looked at one by one, unless the server is told not to.
        address = fresh(index="hnsw", options="-c enable_seqscan=off -c enable_sort=off")
        graph = Retriever.from_features(x, y, pairing, index=address, **options)
        exact = Retriever.from_features(x, y, pairing, **options)
        assert min(graph.info()["facts"]["graph_recall"].values()) > 0.95
        used = plan(graph, y[0], None, graph=True)
        defining = "SELECT indexdef FROM pg_indexes WHERE indexname = %s AND schemaname = %s"
        (defined,) = database.ask(defining, used, schema_of(address))
        assert "USING hnsw" in defined[0]
        assert plan(graph, y[0], {"half": True}, graph=True) is not None
        assert plan(graph, y[0], {"rare": True}, graph=True) is not None
        assert plan(graph, y[0], None, graph=False) is None
        for where in ({"rare": True}, lambda item: item.metadata["rare"], {"half": True, "rare": True}):
            assert ids(graph.search(y[0], k=10, where=where)) == ids(exact.search(y[0], k=10, where=where))
        assert len(graph.search(y[0], k=3000)) == 3000
        graph.refit()
        assert graph.store.kind == "postgresql, hnsw"


class TestMigrations:
    def test_a_schema_of_the_first_step_becomes_one_of_today(self, database, filled):
        retriever, address, x, y = filled
        schema = schema_of(address)
        expected = retriever.search(y[:5])
        with database.connect() as connection:  # as the first step left it
            connection.execute(f"DROP TABLE {schema}.batches")
            connection.execute(f"DELETE FROM {schema}.steps WHERE step > 1")
        older = Retriever.connect(address)
        assert older.search(y[:5]) == expected
        assert older.add(x[:1], ids=["new"]) == ["new"]
        assert database.ask(f"SELECT max(step) FROM {schema}.steps") == [(len(migrations.STEPS),)]

    def test_step_by_step_ends_where_all_at_once_does(self, database, fresh):
        shapes = []
        for steps in ([1, 2], [2]):
            address = Address.parse(fresh())
            with psycopg.connect(database.server, autocommit=True) as connection:
                for step in steps:
                    migrations.migrate(connection, address, create=True, steps=migrations.STEPS[:step])
            shapes.append(
                database.ask(
                    "SELECT table_name, column_name, data_type FROM information_schema.columns "
                    "WHERE table_schema = %s ORDER BY 1, 2",
                    address.schema,
                )
            )
        assert shapes[0] == shapes[1]
        assert len(shapes[0]) > 10

    def test_processes_that_migrate_at_the_same_time_do_it_once(self, database, fresh):
        address, errors = Address.parse(fresh()), []

        def migrate():
            try:
                with psycopg.connect(database.server, autocommit=True) as connection:
                    migrations.migrate(connection, address, create=True)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=migrate) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(database.ask(f"SELECT step FROM {address.schema}.steps")) == len(migrations.STEPS)

    def test_a_newer_schema_is_refused_with_the_command_that_helps(self, database, filled):
        _, address, _, _ = filled
        with database.connect() as connection:
            connection.execute(f"INSERT INTO {schema_of(address)}.steps (step) VALUES (99)")
        with pytest.raises(InputError, match="install a newer version of diptych"):
            Retriever.connect(address)


def test_without_the_driver_the_command_that_helps_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match=r'pip install "pgvector>=.*" "psycopg\[binary\]>='):
        home_of("postgresql://host/database")
    assert Retriever(None, None, index="flat").index == "flat"


def test_a_filter_may_search_itself(filled):
    retriever, _, x, y = filled
    best = retriever.search(y[0], k=1)[0].id
    found = retriever.search(y[0], where=lambda item: item.id == retriever.search(y[0], k=1)[0].id)
    assert ids(found) == [best]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_a_forked_child_makes_connections_of_its_own(filled):
    retriever, _, _, y = filled
    expected = retriever.search(y[0])
    (before,) = (connection.info.backend_pid for connection in retriever.collection._connections._idle)
    child = os.fork()
    if child == 0:
        os._exit(0 if retriever.search(y[0]) == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert retriever.search(y[0]) == expected
    (after,) = (connection.info.backend_pid for connection in retriever.collection._connections._idle)
    assert after == before
