"""A model folder that points to a database, served over HTTP and used from the command line."""

import time

import numpy as np
import pytest

from commands import config, refused, run, run_json
from diptych import HKSE, Retriever
from diptych.data import read_pairs
from diptych.retrieval.stores._base import RefusedError
from diptych.service import _writes
from diptych.service._limits import as_problem
from saved_files import files_of
from servers import ids, png, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")


@pytest.fixture
def pointing(scenes_folder, fresh, tmp_path):
    """A model folder that points to a database, and the address of the database."""
    address = fresh(retry_seconds=2)
    encoder = HKSE(word_features=60, sentence_features=60)
    pairs = read_pairs(scenes_folder / "scenes")
    Retriever("pyramid", encoder, index=address).fit(pairs).save(tmp_path / "model")
    return tmp_path / "model", address


def test_every_route_returns_the_results_of_the_retriever(pointing, make_client):
    folder, address = pointing
    client, retriever = make_client(folder, writable=True), Retriever.connect(address)
    model = client.get("/v1/model").json()
    assert model["items"] == {"image": 160, "text": retriever.store.count("text")}
    assert model["index"]["kind"] == "postgresql"
    assert address.partition("host=")[2][:8] not in str(model)
    query = {"text": "a red star", "k": 5}
    assert ids(client.post("/v1/search", json=query)) == [h.id for h in retriever.search("a red star", k=5)]
    filtered = client.post("/v1/search", json=query | {"where": {"split": ["test"]}})
    assert ids(filtered) == [h.id for h in retriever.search("a red star", k=5, where={"split": "test"})]
    shown = model["examples"]["image"][0]["id"]
    assert len(ids(client.post("/v1/annotate", json={"id": shown}))) == 12
    assert ids(client.post("/v1/similar", json={"id": shown}))[0] == shown
    assert client.get(f"/v1/items/{shown}").json()["captions"]
    assert client.get(f"/v1/items/{shown}/thumbnail").status_code == 200
    wait_until(lambda: client.get("/v1/audit").status_code == 200)
    assert (
        client.get("/v1/audit").json()["pairs"][0]["caption"]["id"] == next(iter(retriever.audit())).text_id
    )
    assert "diptych_items" in client.get("/metrics").text


def test_additions_are_stored_in_the_database(pointing, make_client, monkeypatch):
    folder, address = pointing
    client, other = make_client(folder, writable=True), Retriever.connect(address)
    form = {"id": "mine", "captions": ["a scarlet star"]}
    assert client.post("/v1/items", files={"image": png()}, data=form).status_code == 201
    assert other.item("mine#0") is not None
    assert client.post("/v1/items", files={"image": png()}, data=form).status_code == 409
    assert len(list(folder.glob("uploads/*"))) == 1
    other.remove("mine")
    assert client.get("/v1/items/mine").status_code == 404
    assert client.delete("/v1/items/mine").status_code == 404
    make_client.stop()
    monkeypatch.setattr(_writes, "UNUSED_SECONDS", -1)
    # Items that another process removed do not come back when the server starts again.
    again = make_client(folder, writable=True)
    assert again.get("/v1/items/mine").status_code == 404
    assert not list(folder.glob("uploads/*"))


def test_a_refit_of_another_process_is_served_as_a_new_version(pointing, make_client):
    folder, address = pointing
    client = make_client(folder)
    before = client.get("/healthz").json()["version"]
    assert "refitted" not in client.get("/v1/model").json()["facts"]
    Retriever.connect(address).refit()
    assert ids(client.post("/v1/search", json={"text": "a star"}))
    wait_until(lambda: client.get("/healthz").json()["version"] != before)
    wait_until(lambda: "refitted" in client.get("/v1/model").json()["facts"])
    assert client.service.holder.reloads == {"loaded": 1, "failed": 0}


def test_a_model_with_other_encoders_is_served_once_it_is_loaded(pointing, make_client, scenes_folder):
    folder, address = pointing
    client = make_client(folder)
    encoder = HKSE(word="lin", sentence="lin")
    newer = Retriever("pyramid", encoder, index=address).fit(read_pairs(scenes_folder / "scenes"))
    query = {"text": "a red star", "k": 5}
    wait_until(lambda: client.post("/v1/search", json=query).status_code != 503)
    assert ids(client.post("/v1/search", json=query)) == [hit.id for hit in newer.search("a red star", k=5)]


def test_errors_of_the_database_do_not_reveal_its_address(fresh, caplog):
    """The full message is logged for the operator of the server, and not sent."""
    from diptych.retrieval.stores.postgres._connection import Address, Connections

    with pytest.raises(RefusedError, match="postgresql://") as caught:
        Connections(Address.parse(fresh()), lambda _: None).run(lambda c: c.execute("SELECT nothing"))
    problem = as_problem(caught.value)
    assert (problem.status_code, "postgres" in problem.detail) == (422, False)
    assert "the database postgresql://" in caplog.text


@pytest.mark.slow
def test_an_unreachable_database_is_a_503_until_it_is_back(pointing, make_client, database):
    client = make_client(pointing[0])
    assert ids(client.post("/v1/search", json={"text": "a star"}))
    database.kill()
    try:
        response = client.post("/v1/search", json={"text": "a star"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert "postgresql" not in response.text
        assert client.get("/healthz").status_code == 200
        start = time.monotonic()
        assert "diptych_items NaN" in client.get("/metrics").text
        assert time.monotonic() - start < 1.9  # less than retry_seconds
    finally:
        database.start()
    assert ids(client.post("/v1/search", json={"text": "a star"}))


class TestCommands:
    def test_fit_search_add_remove_info_evaluate(self, tmp_path, monkeypatch, fresh):
        monkeypatch.chdir(tmp_path)
        rng = np.random.default_rng(0)
        hidden = rng.normal(size=(90, 4))
        for name, width in (("x", 10), ("y", 8)):
            rows = hidden @ rng.normal(size=(4, width)) + 0.1 * rng.normal(size=(90, width))
            np.save(f"{name}.npy", rows.astype(np.float32))
        address = fresh().replace("postgres:@", "postgres:s3cret@")
        result = run(
            "fit", "x.npy", "y.npy", "--out", "model", *config(model={"grid": 4}), "--index", address
        )
        assert "s3cret" not in result.output
        answers = run_json("search", "model", "--features", "y.npy", "-k", "1")["answers"]
        assert sum(answer["hits"][0]["id"] == str(i) for i, answer in enumerate(answers)) > 70
        run("remove", "model", "0", "4")
        info = run("info", "model")
        assert "index: postgresql, float32; 88 images and 88 texts" in info.stdout
        for name in "xy":
            np.save(f"new-{name}.npy", np.load(f"{name}.npy")[:1])
        added = run_json("add", "model", "new-x.npy", "new-y.npy", "--refit")
        assert (added["added"], added["refitted"]) == (["0", "0#0"], True)
        evaluated = run_json("evaluate", "model", "x.npy", "y.npy")
        assert evaluated["all"]["search"]["r@1"] > 70
        assert len(run_json("annotate", "model", "--features", "x.npy", "-k", "1")["answers"]) == 90
        assert "s3cret" not in (files_of(tmp_path / "model") / "config.json").read_text()

    @pytest.mark.parametrize(
        "address", ["postgresql://user:s3cret@127.0.0.1:1/db", "postgresql://user:s3cret@nowhere.invalid/db"]
    )
    def test_an_unreachable_server_is_one_sentence_before_any_work(self, tmp_path, monkeypatch, address):
        monkeypatch.chdir(tmp_path)
        for name in "xy":
            np.save(f"{name}.npy", np.eye(60, dtype=np.float32))
        message = refused("fit", "x.npy", "y.npy", "--out", "model", "--index", address)
        assert "cannot reach the database postgresql://user@" in message
        assert "s3cret" not in message
        assert not (tmp_path / "model").exists()

    def test_a_wrong_password_is_one_sentence(self, tmp_path, monkeypatch, database):
        """The tests' server trusts all local users; here it asks one of them for a password."""
        monkeypatch.chdir(tmp_path)
        for name in "xy":
            np.save(f"{name}.npy", np.eye(60, dtype=np.float32))
        with database.connect() as connection:
            connection.execute("CREATE ROLE careful LOGIN PASSWORD 'right'")
        rules = database.folder / "pg_hba.conf"
        before = rules.read_text()
        rules.write_text(f"local all careful scram-sha-256\n{before}")
        try:
            database.ask("SELECT pg_reload_conf()")
            address = database.server.replace("postgres:@", "careful:wrong@", 1)
            message = refused("fit", "x.npy", "y.npy", "--out", "model", "--index", address)
            assert 'password authentication failed for user "careful"' in message
            assert "wrong" not in message
        finally:
            rules.write_text(before)
            database.ask("SELECT pg_reload_conf()")
            with database.connect() as connection:
                connection.execute("DROP ROLE careful")
