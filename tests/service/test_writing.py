"""Nothing that was acknowledged is lost: not by a crash, not by a fold, not by a new version."""

import io
import json
import shutil
import signal
import threading
import time
import warnings
from dataclasses import replace
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image

from diptych import AWCCA, InputError, Retriever
from diptych._checks import DataWarning
from diptych._persistence import current_version, lock_for_serving
from diptych.service._model import Shelf
from diptych.service._writes import Journal, Writer, read_entries
from saved_files import files_of

pytestmark = pytest.mark.filterwarnings("ignore::diptych.checks.DataWarning")


def picture(colour="red"):
    file = io.BytesIO()
    Image.new("RGB", (48, 48), colour).save(file, "PNG")
    return file.getvalue()


def test_add_find_and_remove(served, own_folder):
    client = served(own_folder, writable=True)
    said = {"id": "mine", "captions": ["a scarlet star", "one red square"], "metadata": '{"owner": "me"}'}
    added = client.post("/v1/items", files={"image": picture()}, data=said)
    assert added.status_code == 201, added.text
    assert added.json() == {"image": "mine", "captions": ["mine#0", "mine#1"]}
    assert added.headers["location"] == "/v1/items/mine"
    found = client.post("/v1/annotate", files={"image": picture()}, data={"where": '{"owner": "me"}'})
    assert {hit["id"] for hit in found.json()["results"][0]["hits"]} == {"mine#0", "mine#1"}
    searched = client.post("/v1/search", json={"text": "a scarlet star", "where": {"owner": "me"}})
    assert [hit["id"] for hit in searched.json()["results"][0]["hits"]] == ["mine"]
    assert client.get("/v1/items/mine/thumbnail").status_code == 200
    again = client.post("/v1/items", files={"image": picture()}, data=said)
    assert (again.status_code, again.json()["type"].split(":")[-1]) == (409, "taken")
    assert client.delete("/v1/items/mine").json() == {"removed": 3}
    assert client.get("/v1/items/mine").status_code == 404
    assert client.delete("/v1/items/mine").status_code == 404


def test_captions_alone(served, own_folder):
    client = served(own_folder, writable=True)
    added = client.post("/v1/items", json={"captions": ["a green star"], "id": "lonely"})
    assert added.json() == {"image": None, "captions": ["lonely#0"]}
    assert client.get("/v1/items/lonely%230").json()["text"] == "a green star"
    assert client.post("/v1/items", json={"captions": []}).status_code == 422
    assert client.post("/v1/items", files={"x": b""}, data={}).status_code == 422


@pytest.mark.parametrize(
    "said",
    [
        {"id": "a\x00b"},
        {"id": "x" * 600},
        {"metadata": "[1]"},
        {"metadata": "{"},
        {"metadata": json.dumps({"a": "x" * 20_000})},
        {"colour": "red"},
    ],
)
def test_bad_additions_leave_nothing_behind(served, own_folder, said):
    client = served(own_folder, writable=True)
    assert client.post("/v1/items", files={"image": picture()}, data=said).status_code == 422
    assert client.get("/v1/model").json()["items"]["image"] == 160
    assert not list(own_folder.glob("uploads/*"))


def test_stopping_folds_the_journal_into_the_model(served, own_folder):
    client = served(own_folder, writable=True)
    client.post("/v1/items", files={"image": picture()}, data={"id": "kept", "captions": "a red star"})
    client.post("/v1/items", files={"image": picture("blue")}, data={"id": "dropped"})
    client.delete("/v1/items/dropped")
    assert client.service.shelf.writer.pending == 3
    served.stop()
    # What is gone again leaves no trace; the rest is kept for a model that is fitted anew.
    assert [entry["id"] for entry in read_entries(own_folder / "journal.jsonl")[0]] == ["kept"]
    assert len(list((own_folder / "uploads").iterdir())) == 1
    retriever = Retriever.load(own_folder)
    assert retriever.item("kept#0") is not None
    assert retriever.item("dropped") is None


def test_a_long_journal_is_folded_while_requests_go_on(served, own_folder):
    client = served(own_folder, writable=True)
    client.service.shelf.writer.fold_at = 2
    for name in ("one", "two"):
        client.post("/v1/items", json={"captions": ["a star"], "id": name})
    until = time.monotonic() + 30
    while client.service.shelf.writer.pending and time.monotonic() < until:
        client.get("/healthz")
        time.sleep(0.02)
    assert Retriever.load(own_folder).item("two#0") is not None
    # A fold is no new version: it is not loaded again.
    time.sleep(0.2)
    assert client.service.shelf.reloads == {"loaded": 0, "failed": 0}


def test_a_crash_between_saving_and_forgetting_changes_nothing(own_folder):
    writer, retriever = Writer(own_folder), Retriever.load(own_folder)
    rows = retriever.encoders.encode_images([picture()])
    writer.add(retriever, (picture(), rows), ["a red star"], "first", {})
    writer.add(retriever, None, ["a blue star"], "second", {})
    writer.remove(retriever, "first")
    writer.add(retriever, (picture("blue"), rows), [], "first", {"again": True})
    retriever.save(own_folder)  # and the power goes before forget()
    known = {item.id for item in retriever.store.items()}
    loaded = Retriever.load(own_folder)
    Writer(own_folder).replay(loaded)
    assert {item.id for item in loaded.store.items()} == known
    assert loaded.item("first").metadata == {"again": True}


def test_a_line_cut_short_was_never_acknowledged(tmp_path):
    (tmp_path / "model").mkdir()
    journal = Journal(tmp_path / "model")
    journal.append({"op": "remove", "id": "a"})
    journal.close()
    with open(journal.path, "ab") as file:
        file.write(b'{"op": "remove", "id": "b')
    again = Journal(tmp_path / "model")
    assert [entry["id"] for entry in again] == ["a"]
    again.append({"op": "remove", "id": "c"})
    again.close()
    assert [entry["id"] for entry in Journal(tmp_path / "model")] == ["a", "c"]


def test_a_damaged_journal_is_not_passed_over(tmp_path):
    (tmp_path / "model").mkdir()
    lines = '{"op": "remove", "id": "a", "n": 1}\nnonsense\n{"op": "add", "n": 2}\n'
    (tmp_path / "model" / "journal.jsonl").write_text(lines)
    with pytest.raises(InputError, match="line 2"):
        Journal(tmp_path / "model")


def test_a_full_disk_acknowledges_nothing(served, own_folder, monkeypatch):
    client = served(own_folder, writable=True)

    def full(entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client.service.shelf.writer.journal, "append", full)
    answer = client.post("/v1/items", json={"captions": ["a star"], "id": "lost"})
    assert answer.status_code == 507
    assert client.get("/v1/items/lost%230").status_code == 404


def test_a_full_disk_removes_nothing(served, own_folder, easy, monkeypatch):
    client = served(own_folder, writable=True)

    def full(entry):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(client.service.shelf.writer.journal, "append", full)
    answer = client.delete(f"/v1/items/{quote(easy.image, safe='')}")
    assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (507, "disk")
    assert client.get(f"/v1/items/{quote(easy.image, safe='')}").status_code == 200


def test_an_id_that_is_taken_leaves_no_file(served, own_folder, easy):
    client = served(own_folder, writable=True)
    answer = client.post("/v1/items", files={"image": picture("pink")}, data={"id": easy.image})
    assert answer.status_code == 409
    assert not [path for path in own_folder.parent.rglob("*uploads*/*") if path.is_file()]


def test_items_are_added_by_features_and_survive_a_crash(start, tmp_path):
    rng = np.random.default_rng(4)
    hidden = rng.normal(size=(90, 4))
    x = (hidden @ rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=(90, 12))).astype(np.float32)
    y = (hidden @ rng.normal(size=(4, 9)) + 0.1 * rng.normal(size=(90, 9))).astype(np.float32)
    Retriever.from_features(x[:80], y[:80]).save(tmp_path / "model")
    server = start(tmp_path / "model", "--writable", "--quiet")
    with httpx.Client(base_url=server.url, timeout=60) as client:
        whole = {
            "id": "whole",
            "features": x[80].tolist(),
            "captions": ["the first", "the second"],
            "caption_features": y[80:82].tolist(),
            "metadata": {"new": True},
        }
        added = client.post("/v1/items", json=whole)
        assert (added.status_code, added.json()["captions"]) == (201, ["whole#0", "whole#1"])
        assert client.post("/v1/items", json=whole).status_code == 409
        assert client.post("/v1/items", json={"id": "seen", "features": x[83].tolist()}).status_code == 201
        said = {"id": "said", "caption_features": [y[84].tolist()]}
        assert client.post("/v1/items", json=said).json() == {"image": None, "captions": ["said#0"]}
        for wrong in (
            {"features": x[80, :11].tolist()},
            {"features": x[80:82].tolist()},
            {"features": x[80].tolist(), "captions": ["no encoder"]},
            {"captions": ["one"], "caption_features": y[80:82].tolist()},
            {"caption_features": [[1e39] * 9]},
            {},
        ):
            assert client.post("/v1/items", json=wrong).status_code == 422, wrong
    server.kill()
    again = start(tmp_path / "model", "--writable", "--quiet")
    with httpx.Client(base_url=again.url, timeout=60) as client:
        assert client.get("/v1/model").json()["items"] == {"image": 82, "text": 83}
        asked = {"features": y[80].tolist(), "k": 1, "where": {"new": True}}
        assert client.post("/v1/search", json=asked).json()["results"][0]["hits"][0]["id"] == "whole"
        hits = client.post("/v1/annotate", json={"features": x[80].tolist(), "where": {"new": True}})
        found = hits.json()["results"][0]["hits"]
        assert {hit["text"] for hit in found} == {"the first", "the second"}
        # What was added is what a retriever adds.
        lock_for_serving = Retriever.load(tmp_path / "model")
        lock_for_serving.add(x[80:81], ids=["alone"])
        wanted = lock_for_serving.search(y[80], k=1, where=["alone"])[0].score
        scores = client.post("/v1/search", json=asked).json()["results"][0]["hits"][0]["score"]
        np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-6)
    again.stop()
    assert Retriever.load(tmp_path / "model").item("whole#1") is not None


def test_nothing_acknowledged_is_lost_when_the_server_is_killed(start, own_folder):
    server = start(own_folder, "--writable", "--quiet")
    acknowledged, stop = [], threading.Event()

    def write(worker):
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for number in range(10_000):
                name = f"{worker}-{number}"
                try:
                    files = {"image": picture(f"rgb({number % 250},{worker * 40},9)")}
                    said = {"id": name, "captions": "a red star"}
                    if client.post("/v1/items", files=files, data=said).status_code == 201:
                        acknowledged.append(name)
                except httpx.TransportError:
                    return
                if stop.is_set():
                    return

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while len(acknowledged) < 25 and time.monotonic() < until:
        time.sleep(0.01)
    server.kill()
    stop.set()
    for thread in threads:
        thread.join()
    assert len(acknowledged) >= 25
    again = start(own_folder, "--writable", "--quiet")
    with httpx.Client(base_url=again.url, timeout=30) as client:
        for name in acknowledged:
            assert client.get(f"/v1/items/{name}").status_code == 200
            assert client.get(f"/v1/items/{name}%230").status_code == 200
            assert client.get(f"/v1/items/{name}/thumbnail").status_code == 200
    code, logged = again.stop()
    assert code in (0, -signal.SIGTERM), logged
    assert "replayed" in logged
    retriever = Retriever.load(own_folder)
    entries = read_entries(own_folder / "journal.jsonl")[0]
    assert entries[-1]["n"] == retriever.base.journal
    assert all(retriever.item(name) is not None for name in acknowledged)


def test_a_new_version_is_served_without_dropping_requests(served, own_folder, easy):
    client = served(own_folder)
    before = client.get("/healthz").json()["version"]
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            statuses.append(client.post("/v1/search", json={"text": easy.text, "k": 3}).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    newer = Retriever.load(own_folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        newer.add([picture()], ids=["brand new"])
    newer.save(own_folder)
    until = time.monotonic() + 30
    while client.get("/healthz").json()["version"] == before and time.monotonic() < until:
        time.sleep(0.02)
    stop.set()
    asking.join()
    assert client.get("/healthz").json()["version"] != before
    assert client.get("/v1/items/brand%20new").status_code == 200
    assert len(statuses) > 3
    assert set(statuses) == {200}


def test_a_version_that_cannot_be_read_is_not_served(served, own_folder, easy):
    client = served(own_folder)
    (files_of(own_folder) / "config.json").write_text("{}")
    pointer = json.loads((own_folder / "current.json").read_text())
    (own_folder / "current.json").write_text(json.dumps({**pointer, "version": "000009-00000000"}))
    until = time.monotonic() + 30
    while not client.service.shelf.reloads["failed"] and time.monotonic() < until:
        time.sleep(0.02)
    assert client.service.shelf.reloads == {"loaded": 0, "failed": 1}
    assert client.post("/v1/search", json={"text": easy.text}).status_code == 200


def test_what_was_written_goes_along_to_a_new_version(served, own_folder):
    client = served(own_folder, writable=True)
    client.post("/v1/items", json={"captions": ["a violet star"], "id": "with me"})
    newer = Retriever.load(own_folder)
    newer.remove(next(item.id for item in newer.store.items()))
    newer.save(own_folder)
    until = time.monotonic() + 30
    while not client.service.shelf.reloads["loaded"] and time.monotonic() < until:
        time.sleep(0.02)
    assert client.get("/v1/model").json()["items"]["image"] == 159
    assert client.get("/v1/items/with%20me%230").status_code == 200


def test_without_writable_the_journal_is_mentioned(own_folder, caplog):
    journal = Journal(own_folder)
    journal.append({"op": "remove", "id": "x"})
    journal.close()
    Shelf.open(own_folder)
    assert "--writable" in caplog.text


def fitted_again(folder):
    """Put a model that was fitted anew, on the same pairs, into a folder."""
    retriever = Retriever.load(folder)
    added = {entry["id"] for entry in read_entries(folder / "journal.jsonl")[0]}
    retriever.remove([item.id for item in retriever.store.items() if item.id in added])
    retriever.base = None  # as fit() does
    retriever.save(folder)


def test_what_was_folded_goes_along_to_a_model_that_is_fitted_anew(served, own_folder):
    client = served(own_folder, writable=True)
    client.post("/v1/items", files={"image": picture()}, data={"id": "mine", "captions": "a red star"})
    gone = next(item.id for item in client.service.served.retriever.store.items())
    client.delete(f"/v1/items/{gone}")
    served.stop()
    for _ in range(2):
        fitted_again(own_folder)
        assert Retriever.load(own_folder).item("mine") is None
        client = served(own_folder, writable=True)
        assert client.get("/v1/items/mine").status_code == 200
        assert client.get("/v1/items/mine%230").status_code == 200
        assert client.get("/v1/items/mine/thumbnail").status_code == 200
        assert client.get(f"/v1/items/{gone}").status_code == 404
        served.stop()


def test_what_another_process_removed_does_not_come_back(served, own_folder):
    client = served(own_folder, writable=True)
    client.post("/v1/items", json={"captions": ["a star"], "id": "mine"})
    served.stop()
    other = Retriever.load(own_folder)
    other.remove("mine#0")
    other.save(own_folder)
    client = served(own_folder, writable=True)
    assert client.get("/v1/items/mine%230").status_code == 404
    client.post("/v1/items", json={"captions": ["a star"], "id": "more"})
    served.stop()
    assert [entry["id"] for entry in read_entries(own_folder / "journal.jsonl")[0]] == ["more"]


def test_an_addition_that_is_refused_leaves_no_file(served, own_folder):
    client = served(own_folder, writable=True)
    known = next(item.id for item in client.service.served.retriever.store.items())
    assert client.post("/v1/items", files={"image": picture()}, data={"id": known}).status_code == 409
    assert not list(own_folder.glob("uploads/*"))


def test_a_damaged_upload_does_not_keep_a_server_from_starting(served, own_folder, caplog):
    shelf = Shelf.open(own_folder, writable=True)
    retriever = shelf.current.retriever
    for name, colour in (("first", "red"), ("damaged", "green"), ("last", "blue")):
        rows = retriever.encoders.encode_images([picture(colour)])
        shelf.writer.add(retriever, (picture(colour), rows), [], name, {})
    shelf.writer.journal.close()  # and the power goes
    upload = own_folder / "uploads" / list(shelf.writer.journal)[1]["file"]
    whole = upload.read_bytes()
    upload.write_bytes(whole[:40])
    for _ in range(2):
        client = served(own_folder, writable=True)
        assert "'damaged' is not served" in caplog.text
        asked = [client.get(f"/v1/items/{name}").status_code for name in ("first", "damaged", "last")]
        assert asked == [200, 404, 200]
        served.stop()
        assert upload.read_bytes() == whole[:40]
        caplog.clear()
    upload.write_bytes(whole)  # it was restored
    client = served(own_folder, writable=True)
    assert client.get("/v1/items/damaged/thumbnail").status_code == 200
    served.stop()
    assert Retriever.load(own_folder).item("damaged") is not None


def test_features_of_an_older_model_do_not_keep_a_server_from_starting(served, tmp_path, caplog):
    x, y = np.random.default_rng(0).normal(size=(2, 60, 6)).astype(np.float32)
    model = AWCCA(params=(1.0, 1.0))
    Retriever.from_features(x, y, model=model).save(tmp_path / "model")
    shelf = Shelf.open(tmp_path / "model", writable=True)
    shelf.writer.add(shelf.current.retriever, (None, x[:1]), [], "early", {})
    shelf.writer.journal.close()  # and the power goes
    Retriever.from_features(x[:, :4], y, model=model).save(tmp_path / "model")
    client = served(tmp_path / "model", writable=True)
    assert "'early' is not served" in caplog.text
    assert client.get("/v1/model").json()["items"]["image"] == 60


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a defect")], ids=str)
def test_a_fold_that_fails_is_logged_and_the_next_one_saves(served, own_folder, monkeypatch, caplog, error):
    client = served(own_folder, writable=True)
    client.service.shelf.writer.fold_at = 1

    def failing(self, retriever):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "fold", failing)
        client.post("/v1/items", json={"captions": ["a star"], "id": "kept"})
        until = time.monotonic() + 30
        while "stays in the journal" not in caplog.text and time.monotonic() < until:
            time.sleep(0.01)
    assert "stays in the journal" in caplog.text
    served.stop()
    assert Retriever.load(own_folder).item("kept#0") is not None


def test_images_stay_when_the_folder_moves(served, own_folder):
    client = served(own_folder, writable=True)
    client.post("/v1/items", files={"image": picture()}, data={"id": "mine"})
    served.stop()
    for number in range(20):
        own_folder = own_folder.rename(own_folder.with_name(f"moved-{number}"))
        shelf = Shelf.open(own_folder, writable=True)
        shelf.fold()
        shelf.writer.journal.close()
        path = shelf.current.item("mine").path
        assert path == str(own_folder / "uploads" / path[-64:])
        assert len(list((own_folder / "uploads").iterdir())) == 1


def test_two_servers_do_not_write_to_one_model_through_a_link(own_folder, tmp_path):
    (tmp_path / "link").symlink_to(own_folder)
    with (
        lock_for_serving(own_folder),
        pytest.raises(InputError, match="being changed"),
        lock_for_serving(tmp_path / "link"),
    ):
        pass


def test_a_link_that_names_another_model_by_now_is_not_written_through(own_folder, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "link").symlink_to(own_folder)
    shelf = Shelf.open(tmp_path / "link", writable=True)
    shelf.writer.add(shelf.current.retriever, None, ["a star"], "kept", {})
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    shelf.fold()
    shelf.writer.journal.close()
    assert current_version(tmp_path / "other") == replace(current_version(folder), folder=tmp_path / "other")
    assert Retriever.load(own_folder).item("kept#0") is not None
