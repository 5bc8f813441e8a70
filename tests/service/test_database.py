"""A model's folder that points to a database, served and used from the shell."""

import io
import time

import numpy as np
import pytest
from PIL import Image

from commands import config, refused, run, run_json
from diptych import HKSE, InputError, Retriever
from diptych.data import read_pairs
from diptych.retrieval.stores._base import RefusedError
from diptych.service._schemas import as_problem
from saved_files import files_of

pytestmark = pytest.mark.filterwarnings("ignore::diptych.checks.DataWarning")


@pytest.fixture
def pointing(drawn, fresh, tmp_path):
    """A folder that points to a database, and the address of that."""
    address = fresh(retry_seconds=2)
    encoder = HKSE(word_features=60, sentence_features=60)
    pairs = read_pairs(drawn / "scenes")
    Retriever(text_encoder=encoder, index=address).fit(pairs).save(tmp_path / "model")
    return tmp_path / "model", address


def picture(colour="red"):
    file = io.BytesIO()
    Image.new("RGB", (48, 48), colour).save(file, "PNG")
    return file.getvalue()


def ids(answer):
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["results"][0]["hits"]]


def test_every_route_answers_as_the_retriever_does(pointing, served):
    folder, address = pointing
    client, retriever = served(folder, writable=True), Retriever.connect(address)
    told = client.get("/v1/model").json()
    assert told["items"] == {"image": 160, "text": retriever.collection.items.count("text")}
    assert told["index"]["kind"] == "postgresql"
    assert address.partition("host=")[2][:8] not in str(told)
    asked = {"text": "a red star", "k": 5}
    assert ids(client.post("/v1/search", json=asked)) == [h.id for h in retriever.search("a red star", k=5)]
    filtered = client.post("/v1/search", json=asked | {"where": {"split": ["test"]}})
    assert ids(filtered) == [h.id for h in retriever.search("a red star", k=5, where={"split": "test"})]
    shown = told["examples"]["image"][0]["id"]
    assert len(ids(client.post("/v1/annotate", json={"id": shown}))) == 12
    packs = client.post("/v1/annotate", json={"id": shown, "packs": True}).json()["results"][0]["packs"]
    assert packs[0]["captions"]
    assert ids(client.post("/v1/similar", json={"id": shown}))[0] == shown
    assert ids(client.post("/v1/search", json=asked | {"weighting": "none"}))
    assert client.get(f"/v1/items/{shown}").json()["captions"]
    assert client.get(f"/v1/items/{shown}/thumbnail").status_code == 200
    assert "diptych_items" in client.get("/metrics").text


def test_what_is_added_is_in_the_database_and_in_no_journal(pointing, served):
    folder, address = pointing
    client, other = served(folder, writable=True), Retriever.connect(address)
    said = {"id": "mine", "captions": ["a scarlet star"]}
    assert client.post("/v1/items", files={"image": picture()}, data=said).status_code == 201
    assert "mine#0" in other.collection.items
    assert client.post("/v1/items", files={"image": picture()}, data=said).status_code == 409
    assert (folder / "journal.jsonl").stat().st_size == 0
    other.remove("mine")
    assert client.get("/v1/items/mine").status_code == 404
    assert client.delete("/v1/items/mine").status_code == 404
    served.stop()
    assert not list(folder.glob("uploads/*"))
    # What another process removed does not come back with the next start.
    again = served(folder, writable=True)
    assert again.get("/v1/items/mine").status_code == 404


def test_a_refit_elsewhere_is_served_as_a_new_version(pointing, served):
    folder, address = pointing
    client = served(folder)
    before = client.get("/healthz").json()["version"]
    assert "refitted" not in client.get("/v1/model").json()["facts"]
    Retriever.connect(address).refit()
    assert ids(client.post("/v1/search", json={"text": "a star"}))
    assert client.get("/healthz").json()["version"] != before
    until = time.monotonic() + 20
    while "refitted" not in client.get("/v1/model").json()["facts"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert client.service.shelf.reloads == {"loaded": 1, "failed": 0}


def test_a_model_of_other_encoders_is_served_after_a_moment(pointing, served, drawn):
    folder, address = pointing
    client = served(folder)
    encoder = HKSE(word="lin", sentence="lin")
    newer = Retriever(text_encoder=encoder, index=address).fit(read_pairs(drawn / "scenes"))
    asked, until = {"text": "a red star", "k": 5}, time.monotonic() + 20
    while (answer := client.post("/v1/search", json=asked)).status_code == 503:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert ids(answer) == [hit.id for hit in newer.search("a red star", k=5)]


def test_what_the_database_refuses_does_not_name_it(pointing, served, caplog):
    from diptych.retrieval.stores.postgres._connection import Address, Connections

    folder, address = pointing
    client = served(folder, writable=True)
    for where in ('{"split": NaN}', '{"split": [1, Infinity]}'):
        body = f'{{"text": "a red star", "where": {where}}}'
        answer = client.post("/v1/search", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422, answer.text
        assert "postgres" not in answer.text
    # Whatever else it may refuse: the sentence for whoever runs the server is logged, not sent.
    with pytest.raises(RefusedError, match="postgresql://") as refused:
        Connections(Address.parse(address), lambda one: None).run(lambda one: one.execute("SELECT nothing"))
    told = as_problem(refused.value)
    assert (told.status_code, "postgres" in told.detail) == (422, False)
    assert "the database postgresql://" in caplog.text
    with pytest.raises(InputError, match="finite"):
        Retriever.connect(address).search("a red star", where={"split": float("nan")})


@pytest.mark.slow
def test_a_database_that_is_away_is_a_503_and_comes_back(pointing, served, database):
    client = served(pointing[0])
    assert ids(client.post("/v1/search", json={"text": "a star"}))
    database.kill()
    try:
        answer = client.post("/v1/search", json={"text": "a star"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "postgresql" not in answer.text
        assert client.get("/healthz").status_code == 200
        start = time.monotonic()
        assert "diptych_items NaN" in client.get("/metrics").text
        assert time.monotonic() - start < 1.9  # less than the database is given to come back
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
        made = run("fit", "x.npy", "y.npy", "--out", "model", *config(model={"grid": 4}), "--index", address)
        assert made.exit_code == 0, made.output
        assert "s3cret" not in made.output
        found = run_json("search", "model", "--features", "y.npy", "-k", "1")["answers"]
        assert sum(answer["hits"][0]["id"] == str(i) for i, answer in enumerate(found)) > 70
        assert run("remove", "model", "0", "4").exit_code == 0
        info = run("info", "model")
        assert "index: postgresql, float32; 88 images and 88 texts" in info.stdout
        for name in "xy":
            np.save(f"new-{name}.npy", np.load(f"{name}.npy")[:1])
        added = run_json("add", "model", "new-x.npy", "new-y.npy", "--refit")
        assert (added["added"], added["refitted"]) == (["0", "0#0"], True)
        evaluated = run_json("evaluate", "model", "x.npy", "y.npy")
        assert evaluated["all"]["search"]["r@1"] > 70
        packs = run_json("annotate", "model", "--features", "x.npy", "--packs", "-k", "1")
        assert len(packs["answers"]) == 90
        assert "s3cret" not in (files_of(tmp_path / "model") / "config.json").read_text()

    @pytest.mark.parametrize(
        "address", ["postgresql://user:s3cret@127.0.0.1:1/db", "postgresql://user:s3cret@nowhere.invalid/db"]
    )
    def test_a_server_that_is_not_there_is_one_sentence_before_any_work(self, tmp_path, monkeypatch, address):
        monkeypatch.chdir(tmp_path)
        for name in "xy":
            np.save(f"{name}.npy", np.eye(60, dtype=np.float32))
        said = refused("fit", "x.npy", "y.npy", "--out", "model", "--index", address)
        assert "cannot reach the database postgresql://user@" in said
        assert "s3cret" not in said
        assert not (tmp_path / "model").exists()

    def test_a_wrong_password_is_one_sentence(self, tmp_path, monkeypatch, database):
        """The server of the tests trusts everyone on its socket; for one user it is told to ask."""
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
            said = refused("fit", "x.npy", "y.npy", "--out", "model", "--index", address)
            assert 'password authentication failed for user "careful"' in said
            assert "wrong" not in said
        finally:
            rules.write_text(before)
            database.ask("SELECT pg_reload_conf()")
            with database.connect() as connection:
                connection.execute("DROP ROLE careful")
