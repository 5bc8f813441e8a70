"""No acknowledged change is lost by a crash, by saving, or by a new version of the model."""

import asyncio
import io
import json
import os
import shutil
import signal
import threading
import warnings
from contextlib import closing
from dataclasses import replace
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from PIL import Image

from diptych import AWCCA, InputError, Retriever
from diptych._checks import DataWarning
from diptych._model_folder import current_version, lock_for_serving
from diptych._persistence import replace_file
from diptych.service import _writes
from diptych.service._limits import MovedError
from diptych.service._model import ModelHolder
from diptych.service._writes import Entry, Journal, Upload, Writer, read_entries
from saved_files import files_of
from servers import in_process, problem, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")


def png(colour="red"):
    file = io.BytesIO()
    Image.new("RGB", (48, 48), colour).save(file, "PNG")
    return file.getvalue()


def test_items_are_added_found_and_removed(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    fields = {"id": "mine", "captions": ["a scarlet star", "one red square"], "metadata": '{"owner": "me"}'}
    added = client.post("/v1/items", files={"image": png()}, data=fields)
    assert added.status_code == 201, added.text
    assert added.json() == {"image": "mine", "captions": ["mine#0", "mine#1"]}
    assert added.headers["location"] == "/v1/items/mine"
    captions = client.post("/v1/annotate", files={"image": png()}, data={"where": '{"owner": "me"}'})
    assert {hit["id"] for hit in captions.json()["results"][0]["hits"]} == {"mine#0", "mine#1"}
    searched = client.post("/v1/search", json={"text": "a scarlet star", "where": {"owner": "me"}})
    assert [hit["id"] for hit in searched.json()["results"][0]["hits"]] == ["mine"]
    assert client.get("/v1/items/mine/thumbnail").status_code == 200
    again = client.post("/v1/items", files={"image": png()}, data=fields)
    assert problem(again) == (409, "taken")
    assert client.delete("/v1/items/mine").json() == {"removed": 3}
    assert client.get("/v1/items/mine").status_code == 404
    assert client.delete("/v1/items/mine").status_code == 404


def test_captions_are_added_without_an_image(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    added = client.post("/v1/items", json={"captions": ["a green star"], "id": "lonely"})
    assert added.json() == {"image": None, "captions": ["lonely#0"]}
    assert client.get("/v1/items/lonely%230").json()["text"] == "a green star"
    assert client.post("/v1/items", json={"captions": []}).status_code == 422
    assert client.post("/v1/items", files={"x": b""}, data={}).status_code == 422


def test_a_refused_addition_changes_nothing(make_client, copied_folder, easy):
    client = make_client(copied_folder, writable=True)
    for fields in (
        {"id": "a\x00b"},
        {"id": "x" * 600},
        {"metadata": "[1]"},
        {"metadata": "{"},
        {"metadata": json.dumps({"a": "x" * 20_000})},
        {"metadata": json.dumps({"n": 2**63})},
        {"metadata": "[" * 200 + "]" * 200},
        {"colour": "red"},
    ):
        assert client.post("/v1/items", files={"image": png()}, data=fields).status_code == 422, fields
    two = [("image", png()), ("image", png("blue"))]
    assert client.post("/v1/items", files=two).status_code == 422
    taken = client.post("/v1/items", files={"image": png("pink")}, data={"id": easy.image})
    assert problem(taken) == (409, "taken")
    assert client.get("/v1/model").json()["items"]["image"] == 160
    assert not [path for path in copied_folder.parent.rglob("*uploads*/*") if path.is_file()]


def test_stopping_saves_the_changes_with_the_model(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "kept", "captions": "a red star"})
    client.post("/v1/items", files={"image": png("blue")}, data={"id": "dropped"})
    client.delete("/v1/items/dropped")
    assert client.service.holder.writer.pending == 3
    make_client.stop()
    # Additions that were removed again are dropped; the others stay for a newly fitted model.
    assert [entry.id for entry in read_entries(copied_folder / "journal.jsonl")[0]] == ["kept"]
    assert len(list((copied_folder / "uploads").iterdir())) == 1
    retriever = Retriever.load(copied_folder)
    assert retriever.item("kept#0") is not None
    assert retriever.item("dropped") is None


def test_many_changes_are_saved_while_requests_go_on(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.service.holder.writer.save_after = 2
    for name in ("one", "two"):
        client.post("/v1/items", json={"captions": ["a star"], "id": name})
    wait_until(lambda: client.get("/healthz") and not client.service.holder.writer.pending)
    assert Retriever.load(copied_folder).item("two#0") is not None
    # Saving makes no version that has to be loaded.
    assert asyncio.run(client.service.holder.refresh()) is False
    assert client.service.holder.reloads == {"loaded": 0, "failed": 0}


def test_entries_that_were_saved_are_not_replayed(copied_folder):
    writer, retriever = Writer(copied_folder), Retriever.load(copied_folder)
    rows = retriever.encoders.encode_images([png()])
    writer.add(retriever, (Upload(png()), rows), ["a red star"], "first", {})
    writer.add(retriever, None, ["a blue star"], "second", {})
    writer.remove(retriever, "first")
    writer.add(retriever, (Upload(png("blue")), rows), [], "first", {"again": True})
    retriever.save(copied_folder)  # and a power cut before the journal is rewritten
    before = {item.id for item in retriever.store.items()}
    loaded = Retriever.load(copied_folder)
    Writer(copied_folder).replay(loaded)
    assert {item.id for item in loaded.store.items()} == before
    assert loaded.item("first").metadata == {"again": True}


def full(entry):
    raise OSError(28, "No space left on device")


def test_nothing_changes_on_a_full_disk(make_client, copied_folder, easy, monkeypatch):
    client = make_client(copied_folder, writable=True)
    monkeypatch.setattr(client.service.holder.writer.journal, "append", full)
    assert problem(client.post("/v1/items", json={"captions": ["a star"], "id": "lost"})) == (507, "disk")
    assert client.get("/v1/items/lost%230").status_code == 404
    stored = f"/v1/items/{quote(easy.image, safe='')}"
    assert problem(client.delete(stored)) == (507, "disk")
    assert client.get(stored).status_code == 200


def test_an_upload_that_is_refused_leaves_no_file(make_client, copied_folder, monkeypatch):
    client = make_client(copied_folder, writable=True)
    journal = client.service.holder.writer.journal
    assert client.post("/v1/items", files={"image": png()}, data={"id": "kept"}).status_code == 201
    for error, status in ((OSError(28, "No space left on device"), 507), (InputError("no"), 422)):

        def fail(entry, error=error):
            raise error

        monkeypatch.setattr(journal, "append", fail)
        for colour in ("green", "red"):  # the second is the file of another item
            answer = client.post("/v1/items", files={"image": png(colour)}, data={"id": "refused"})
            assert answer.status_code == status
    assert [path.name for path in journal.uploads.iterdir()] == [Upload(png()).stored_name]
    assert client.get("/v1/items/kept/thumbnail").status_code == 200


@pytest.mark.parametrize("how", ["removed", "moved", "made anew", "moved and made anew", "a file"])
def test_a_folder_that_is_gone_takes_no_changes(make_client, copied_folder, folder, how):
    client = make_client(copied_folder, writable=True)
    assert client.post("/v1/items", files={"image": png()}, data={"id": "kept"}).status_code == 201
    moved = copied_folder.with_name("moved")
    copied_folder.rename(moved)
    if "moved" not in how:
        shutil.rmtree(moved)
    if "anew" in how:
        shutil.copytree(folder, copied_folder)
    elif how == "a file":
        copied_folder.write_text("")
    before = sorted(copied_folder.parent.rglob("*"))
    for answer in (
        client.post("/v1/items", files={"image": png("blue")}, data={"id": "lost"}),
        client.post("/v1/items", json={"captions": ["a star"], "id": "lost"}),
        client.delete("/v1/items/kept"),
    ):
        assert problem(answer) == (507, "disk")
        assert "restart the server" in answer.json()["detail"]
    assert client.get("/v1/items/lost").status_code == 404
    assert client.get("/v1/items/lost%230").status_code == 404
    assert client.get("/v1/items/kept").status_code == 200
    make_client.stop()
    assert sorted(copied_folder.parent.rglob("*")) == before
    if "moved" in how:
        client = make_client(moved, writable=True)
        assert client.get("/v1/items/kept/thumbnail").status_code == 200


@pytest.mark.parametrize(
    "write",
    [lambda journal: journal.store_upload(Upload(b"new")), lambda journal: journal.rewrite([])],
    ids=["upload", "journal"],
)
def test_a_folder_that_is_removed_while_a_file_is_written_is_not_made_again(
    copied_folder, monkeypatch, write
):
    def removed_before(path, **options):
        shutil.rmtree(copied_folder)
        return replace_file(path, **options)

    with closing(Journal(copied_folder)) as journal:
        monkeypatch.setattr(_writes, "replace_file", removed_before)
        with pytest.raises((MovedError, FileNotFoundError)):
            write(journal)
    assert not copied_folder.exists()


def add_and_crash(folder, **colours):
    """Add images to a model, and end as in a power cut; return their uploads."""
    holder = ModelHolder.open(folder, writable=True)
    for name, colour in colours.items():
        rows = holder.current.retriever.encoders.encode_images([png(colour)])
        holder.writer.add(holder.current.retriever, (Upload(png(colour)), rows), [], name, {})
    holder.writer.journal.close()
    return {entry.id: folder / "uploads" / entry.file for entry in holder.writer.journal.entries}


def test_uploads_are_replayed_in_a_process_of_their_own(copied_folder, monkeypatch, caplog):
    upload = add_and_crash(copied_folder, small="red", large="green")["large"]
    Image.new("1", (7000, 7000)).save(upload, "PNG")
    monkeypatch.setattr("PIL.Image.open", lambda *args: 1 / 0)
    again = ModelHolder.open(copied_folder, writable=True)
    again.writer.journal.close()
    assert again.current.retriever.item("small") is not None
    assert again.current.retriever.item("large") is None
    assert "'large' cannot be added" in caplog.text
    assert "at most 40,000,000 are decoded" in caplog.text


def test_items_added_by_features_survive_a_crash(of_features, tmp_path):
    _, x, y = of_features
    place = tmp_path / "model"
    Retriever.from_features(x[:80], y[:80]).save(place)
    client = in_process(place, writable=True)  # never stopped, so it saves nothing
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
    assert client.post("/v1/items", json={"id": "image only", "features": x[83].tolist()}).status_code == 201
    body = {"id": "caption", "caption_features": [y[84].tolist()]}
    assert client.post("/v1/items", json=body).json() == {"image": None, "captions": ["caption#0"]}
    for wrong in (
        {"features": x[80, :11].tolist()},
        {"features": x[80:82].tolist()},
        {"features": x[80].tolist(), "captions": ["no encoder"]},
        {"captions": ["one"], "caption_features": y[80:82].tolist()},
        {"caption_features": [[1e39] * 9]},
        {},
    ):
        assert client.post("/v1/items", json=wrong).status_code == 422, wrong
    with in_process(place, writable=True) as client:
        assert client.get("/v1/model").json()["items"] == {"image": 82, "text": 83}
        query = {"features": y[80].tolist(), "k": 1, "where": {"new": True}}
        (hit,) = client.post("/v1/search", json=query).json()["results"][0]["hits"]
        assert hit["id"] == "whole"
        hits = client.post("/v1/annotate", json={"features": x[80].tolist(), "where": {"new": True}})
        texts = {hit["text"] for hit in hits.json()["results"][0]["hits"]}
        assert texts == {"the first", "the second"}
        # The server adds what a retriever adds.
        retriever = Retriever.load(place)
        retriever.add(x[80:81], ids=["again"])
        expected = retriever.search(y[80], k=1, where=["again"])[0].score
        np.testing.assert_allclose(hit["score"], expected, rtol=1e-4, atol=1e-6)
    assert Retriever.load(place).item("whole#1") is not None


def test_acknowledged_items_survive_a_killed_server(start, copied_folder):
    server = start(copied_folder, "--writable", "--quiet")
    acknowledged, stop = [], threading.Event()

    def write(worker):
        with httpx.Client(base_url=server.url, timeout=30) as client:
            for number in range(10_000):
                name = f"{worker}-{number}"
                try:
                    files = {"image": png(f"rgb({number % 250},{worker * 40},9)")}
                    fields = {"id": name, "captions": "a red star"}
                    if client.post("/v1/items", files=files, data=fields).status_code == 201:
                        acknowledged.append(name)
                except httpx.TransportError:
                    return
                if stop.is_set():
                    return

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(acknowledged) >= 25)
    server.kill()
    stop.set()
    for thread in threads:
        thread.join()
    again = start(copied_folder, "--writable", "--quiet")
    with httpx.Client(base_url=again.url, timeout=30) as client:
        for name in acknowledged:
            assert client.get(f"/v1/items/{name}").status_code == 200
            assert client.get(f"/v1/items/{name}%230").status_code == 200
            assert client.get(f"/v1/items/{name}/thumbnail").status_code == 200
    code, logged = again.stop()
    assert code in (0, -signal.SIGTERM), logged
    assert "replayed" in logged
    retriever = Retriever.load(copied_folder)
    entries = read_entries(copied_folder / "journal.jsonl")[0]
    assert entries[-1].n == retriever.base.journal
    assert all(retriever.item(name) is not None for name in acknowledged)


def test_a_new_version_is_loaded_without_failing_requests(make_client, copied_folder, easy):
    client = make_client(copied_folder)
    before = client.get("/healthz").json()["version"]
    statuses, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            statuses.append(client.post("/v1/search", json={"text": easy.text, "k": 3}).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    newer = Retriever.load(copied_folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        newer.add([png()], ids=["brand new"])
    newer.save(copied_folder)
    wait_until(lambda: client.get("/healthz").json()["version"] != before)
    stop.set()
    asking.join()
    assert client.get("/v1/items/brand%20new").status_code == 200
    assert len(statuses) > 3
    assert set(statuses) == {200}


def test_a_version_that_cannot_be_read_is_not_loaded(make_client, copied_folder, easy):
    client = make_client(copied_folder)
    (files_of(copied_folder) / "config.json").write_text("{}")
    pointer = json.loads((copied_folder / "current.json").read_text())
    (copied_folder / "current.json").write_text(json.dumps({**pointer, "version": "000009-00000000"}))
    wait_until(lambda: client.service.holder.reloads["failed"])
    assert client.service.holder.reloads == {"loaded": 0, "failed": 1}
    assert client.post("/v1/search", json={"text": easy.text}).status_code == 200


def test_changes_are_applied_to_a_new_version(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", json={"captions": ["a violet star"], "id": "with me"})
    newer = Retriever.load(copied_folder)
    newer.remove(next(item.id for item in newer.store.items()))
    newer.save(copied_folder)
    wait_until(lambda: client.service.holder.reloads["loaded"])
    assert client.get("/v1/model").json()["items"]["image"] == 159
    assert client.get("/v1/items/with%20me%230").status_code == 200


def test_ignored_changes_are_logged_without_writable(copied_folder, caplog):
    journal = Journal(copied_folder)
    journal.append(Entry(op="remove", id="x"))
    journal.close()
    ModelHolder.open(copied_folder)
    assert "--writable" in caplog.text


def save_refitted(folder):
    """Save a model that was fitted again, on the same pairs, to its folder."""
    retriever = Retriever.load(folder)
    added = {entry.id for entry in read_entries(folder / "journal.jsonl")[0]}
    retriever.remove([item.id for item in retriever.store.items() if item.id in added])
    retriever.base = None  # as fit() does
    retriever.save(folder)


def test_saved_changes_are_applied_to_a_newly_fitted_model(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "mine", "captions": "a red star"})
    removed = next(item.id for item in client.service.model.retriever.store.items())
    client.delete(f"/v1/items/{removed}")
    make_client.stop()
    for _ in range(2):
        save_refitted(copied_folder)
        assert Retriever.load(copied_folder).item("mine") is None
        client = make_client(copied_folder, writable=True)
        assert client.get("/v1/items/mine").status_code == 200
        assert client.get("/v1/items/mine%230").status_code == 200
        assert client.get("/v1/items/mine/thumbnail").status_code == 200
        assert client.get(f"/v1/items/{removed}").status_code == 404
        make_client.stop()


def test_items_removed_by_another_process_stay_removed(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", json={"captions": ["a star"], "id": "mine"})
    make_client.stop()
    other = Retriever.load(copied_folder)
    other.remove("mine#0")
    other.save(copied_folder)
    client = make_client(copied_folder, writable=True)
    assert client.get("/v1/items/mine%230").status_code == 404
    client.post("/v1/items", json={"captions": ["a star"], "id": "more"})
    make_client.stop()
    assert [entry.id for entry in read_entries(copied_folder / "journal.jsonl")[0]] == ["more"]


def test_a_server_starts_with_a_damaged_upload(make_client, copied_folder, caplog):
    upload = add_and_crash(copied_folder, first="red", damaged="green", last="blue")["damaged"]
    whole = upload.read_bytes()
    upload.write_bytes(whole[:40])
    for _ in range(2):
        client = make_client(copied_folder, writable=True)
        assert "'damaged' cannot be added" in caplog.text
        statuses = [client.get(f"/v1/items/{name}").status_code for name in ("first", "damaged", "last")]
        assert statuses == [200, 404, 200]
        make_client.stop()
        assert upload.read_bytes() == whole[:40]
        caplog.clear()
    upload.write_bytes(whole)  # it was restored
    client = make_client(copied_folder, writable=True)
    assert client.get("/v1/items/damaged/thumbnail").status_code == 200
    make_client.stop()
    assert Retriever.load(copied_folder).item("damaged") is not None


def test_a_server_starts_with_features_of_an_older_model(make_client, tmp_path, caplog):
    x, y = np.random.default_rng(0).normal(size=(2, 60, 6)).astype(np.float32)
    model = AWCCA(params=(1.0, 1.0))
    Retriever.from_features(x, y, model=model).save(tmp_path / "model")
    holder = ModelHolder.open(tmp_path / "model", writable=True)
    holder.writer.add(holder.current.retriever, (None, x[:1]), [], "early", {})
    holder.writer.journal.close()  # and a power cut
    Retriever.from_features(x[:, :4], y, model=model).save(tmp_path / "model")
    client = make_client(tmp_path / "model", writable=True)
    assert "'early' cannot be added" in caplog.text
    assert client.get("/v1/model").json()["items"]["image"] == 60


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a defect")], ids=str)
def test_a_failed_save_is_logged_and_the_next_one_saves(
    make_client, copied_folder, monkeypatch, caplog, error
):
    client = make_client(copied_folder, writable=True)
    client.service.holder.writer.save_after = 1

    def failing(self, retriever):
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "save", failing)
        client.post("/v1/items", json={"captions": ["a star"], "id": "kept"})
        wait_until(lambda: "stay in the journal" in caplog.text)
    make_client.stop()
    assert Retriever.load(copied_folder).item("kept#0") is not None


def test_uploads_are_kept_when_the_folder_moves(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "mine"})
    make_client.stop()
    for number in range(3):
        copied_folder = copied_folder.rename(copied_folder.with_name(f"moved-{number}"))
        holder = ModelHolder.open(copied_folder, writable=True)
        holder.save()
        holder.writer.journal.close()
        path = holder.current.retriever.item("mine").path
        assert path == str(copied_folder / "uploads" / path[-64:])
        assert len(list((copied_folder / "uploads").iterdir())) == 1


def test_two_servers_do_not_write_to_one_model_through_a_link(copied_folder, tmp_path):
    (tmp_path / "link").symlink_to(copied_folder)
    with (
        lock_for_serving(copied_folder),
        pytest.raises(InputError, match="being changed"),
        lock_for_serving(tmp_path / "link"),
    ):
        pass


def test_changes_go_to_the_folder_that_was_opened(copied_folder, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "link").symlink_to(copied_folder)
    holder = ModelHolder.open(tmp_path / "link", writable=True)
    holder.writer.add(holder.current.retriever, None, ["a star"], "kept", {})
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    holder.save()
    holder.writer.journal.close()
    assert current_version(tmp_path / "other") == replace(current_version(folder), folder=tmp_path / "other")
    assert Retriever.load(copied_folder).item("kept#0") is not None


def test_files_of_others_in_uploads_stay(make_client, copied_folder):
    others = {"holiday.jpg": b"mine", "0" * 64: b"mine too", ".hidden": b"", "album/beach.jpg": b"more"}
    for name, content in others.items():
        (copied_folder / "uploads" / name).parent.mkdir(parents=True, exist_ok=True)
        (copied_folder / "uploads" / name).write_bytes(content)
    for colour in ("red", "blue"):
        client = make_client(copied_folder, writable=True)
        for name in ("kept", "removed"):
            image = png(colour) if name == "kept" else png(f"dark{colour}")
            added = client.post("/v1/items", files={"image": image}, data={"id": f"{name} {colour}"})
            assert added.status_code == 201
        assert client.delete(f"/v1/items/removed {colour}").status_code == 200
        make_client.stop()
    files = {
        path.relative_to(copied_folder / "uploads").as_posix(): path.read_bytes()
        for path in (copied_folder / "uploads").rglob("*")
        if path.is_file()
    }
    assert others.items() <= files.items()
    assert {files[name] for name in files.keys() - others.keys()} == {png("red"), png("blue")}


def test_an_upload_that_was_changed_is_not_deleted(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "mine"})
    (upload,) = (copied_folder / "uploads").iterdir()
    upload.write_bytes(b"somebody else has written here")
    client.delete("/v1/items/mine")
    make_client.stop()
    assert upload.read_bytes() == b"somebody else has written here"


@pytest.mark.parametrize("name", ["uploads", "journal.jsonl", ".server.lock"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_a_server_does_not_write_through_links_or_wait_for_pipes(copied_folder, tmp_path, name, kind):
    elsewhere = tmp_path / "elsewhere"
    if kind == "pipe":
        os.mkfifo(copied_folder / name)
    else:
        (copied_folder / name).symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir() if name == "uploads" else elsewhere.write_text("mine")
    with (
        pytest.raises(InputError, match=f"{name} is (a link|neither a file nor a folder)"),
        lock_for_serving(copied_folder),
    ):
        ModelHolder.open(copied_folder, writable=True)
    assert elsewhere.exists() == (kind == "link")
    if elsewhere.is_file():
        assert elsewhere.read_text() == "mine"


def test_an_upload_does_not_go_through_a_link_that_is_made_later(make_client, copied_folder, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "holiday.jpg").write_text("mine")
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "before"})
    shutil.rmtree(copied_folder / "uploads")
    (copied_folder / "uploads").symlink_to(tmp_path / "photos")
    refused = client.post("/v1/items", files={"image": png("blue")}, data={"id": "after"})
    assert refused.status_code == 507
    assert "uploads or a file in it is a link" in refused.text
    client.delete("/v1/items/before")
    make_client.stop()
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        *((b"dear diary", 1), (b"\xff\xfe", 1), (b"1\n2", 1), (b'{"op": "add", "id": "a"}\nnotes', 1)),
        (b'{"op": "remove", "id": "a", "n": 1}\nnonsense\n{"op": "add", "n": 2}\n', 2),
    ],
)
def test_a_journal_that_is_none_or_damaged_is_not_cut(tmp_path, content, line):
    (tmp_path / "journal.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=f"line {line}, is not an entry of a journal"):
        Journal(tmp_path)
    assert (tmp_path / "journal.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    "tail",
    [*(b'{"o', b'{"op": "add", "id": "b\0\0', b"\0" * 40, b'{"op\0\0\0\0\0\0', b'{"op": "remove", "id": "b')],
)
def test_the_end_of_a_journal_after_a_crash_is_dropped(tmp_path, tail):
    journal = Journal(tmp_path)
    journal.append(Entry(op="remove", id="a"))
    journal.close()
    whole = journal.path.read_bytes()
    journal.path.write_bytes(whole + tail)
    again = Journal(tmp_path)
    assert journal.path.read_bytes() == whole
    again.append(Entry(op="remove", id="c"))
    again.close()
    assert [entry.id for entry in read_entries(journal.path)[0]] == ["a", "c"]
