"""No acknowledged change is lost by a crash, by other processes, or by a new model."""

import asyncio
import json
import os
import shutil
import signal
import threading
import warnings
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from diptych import InputError, Retriever
from diptych._checks import DataWarning
from diptych.retrieval.stores import _folder
from diptych.retrieval.stores._memory import MemoryStore
from diptych.service import _writes
from diptych.service._model import ModelHolder
from diptych.service._writes import Addition
from saved_files import execute, files_of
from servers import png, problem, wait_until

pytestmark = pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")


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


def test_changes_are_in_the_folder_at_once(make_client, copied_folder):
    client, other = make_client(copied_folder, writable=True), Retriever.load(copied_folder)
    client.post("/v1/items", files={"image": png()}, data={"id": "kept", "captions": "a red star"})
    client.post("/v1/items", files={"image": png("blue")}, data={"id": "dropped"})
    assert len(list((copied_folder / "uploads").iterdir())) == 2
    client.delete("/v1/items/dropped")
    assert len(list((copied_folder / "uploads").iterdir())) == 1
    for retriever in (other, Retriever.load(copied_folder)):
        assert retriever.item("kept#0") is not None
        assert retriever.item("dropped") is None


def test_several_servers_and_programs_change_one_folder(make_client, copied_folder, tmp_path):
    (tmp_path / "link").symlink_to(copied_folder)
    one, two = make_client(copied_folder, writable=True), make_client(tmp_path / "link", writable=True)
    other = Retriever.load(copied_folder)
    for number, client in enumerate([one, two, one]):
        body = {"captions": ["a violet star"], "id": f"item {number}"}
        assert client.post("/v1/items", json=body).status_code == 201
    other.remove("item 1#0")
    other.add([png("pink")], ids=["theirs"])
    for client in (one, two):
        for name, status in (("item 0#0", 200), ("item 1#0", 404), ("item 2#0", 200), ("theirs", 200)):
            assert client.get(f"/v1/items/{quote(name)}").status_code == status
        (hit,) = client.post("/v1/similar", json={"id": "theirs", "k": 1}).json()["results"][0]["hits"]
        assert hit["id"] == "theirs"
        assert problem(client.post("/v1/items", json={"captions": ["a"], "id": "item 0"})) == (409, "taken")


def full(*args):
    raise OSError(28, "No space left on device")


def test_nothing_changes_on_a_full_disk(make_client, copied_folder, easy, monkeypatch):
    client = make_client(copied_folder, writable=True)
    monkeypatch.setattr(_folder, "write_layout", full)
    monkeypatch.setattr(MemoryStore, "keys_to_remove", full)
    assert problem(client.post("/v1/items", json={"captions": ["a star"], "id": "lost"})) == (507, "disk")
    assert client.get("/v1/items/lost%230").status_code == 404
    stored = f"/v1/items/{quote(easy.image, safe='')}"
    assert problem(client.delete(stored)) == (507, "disk")
    assert client.get(stored).status_code == 200


def test_an_upload_that_is_refused_leaves_no_file(make_client, copied_folder, monkeypatch):
    client = make_client(copied_folder, writable=True)
    assert client.post("/v1/items", files={"image": png()}, data={"id": "kept"}).status_code == 201
    before = list((copied_folder / "uploads").iterdir())
    assert len(before) == 1
    for error, status in ((OSError(28, "No space left on device"), 507), (InputError("no"), 422)):

        def fail(*args, error=error):
            raise error

        monkeypatch.setattr(_folder, "write_layout", fail)
        for colour in ("green", "red"):  # the second is also the file of another item
            answer = client.post("/v1/items", files={"image": png(colour)}, data={"id": "refused"})
            assert answer.status_code == status
    assert list((copied_folder / "uploads").iterdir()) == before
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
    before = sorted(path for path in copied_folder.parent.rglob("*") if "sqlite-" not in path.name)
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
    assert sorted(path for path in copied_folder.parent.rglob("*") if "sqlite-" not in path.name) == before
    if "moved" in how:
        client = make_client(moved, writable=True)
        assert client.get("/v1/items/kept/thumbnail").status_code == 200


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
    retriever = Retriever.load(copied_folder)
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
    assert client.get("/v1/items/brand%20new").status_code == 200
    newer.refit()
    wait_until(lambda: client.get("/healthz").json()["version"] != before)
    wait_until(lambda: "refitted" in client.get("/v1/model").json()["facts"])
    stop.set()
    asking.join()
    assert client.get("/v1/items/brand%20new").status_code == 200
    assert len(statuses) > 3
    assert set(statuses) == {200}


def test_a_model_that_cannot_be_read_is_a_503_until_it_can(make_client, copied_folder, easy, caplog):
    client = make_client(copied_folder)
    version = files_of(copied_folder).name
    execute(copied_folder, "UPDATE current SET version = '000009-00000000'")
    wait_until(lambda: client.service.holder.reloads["failed"])
    refused = client.post("/v1/search", json={"text": easy.text})
    assert refused.status_code == 503
    assert str(copied_folder) not in refused.text
    assert str(copied_folder) in caplog.text
    execute(copied_folder, "UPDATE current SET version = ?", version)
    wait_until(lambda: client.post("/v1/search", json={"text": easy.text}).status_code == 200)


def test_a_read_only_server_follows_a_link_and_a_folder_that_is_replaced(
    make_client, copied_folder, folder, tmp_path
):
    (tmp_path / "link").symlink_to(copied_folder)
    client = make_client(tmp_path / "link")
    shutil.copytree(folder, tmp_path / "other")
    Retriever.load(tmp_path / "other").add([png()], ids=["of the other"])
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    wait_until(lambda: client.get("/v1/items/of%20the%20other").status_code == 200)


def test_a_model_that_is_fitted_anew_replaces_all_items(make_client, copied_folder, of_features):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "mine"})
    _, x, y = of_features
    Retriever.from_features(x, y).save(copied_folder)
    wait_until(lambda: client.get("/v1/model").json()["items"] == {"image": 120, "text": 120})
    assert client.get("/v1/items/mine").status_code == 404
    added = client.post("/v1/items", json={"id": "new", "features": x[0].tolist()})
    assert added.status_code == 201, added.text


def test_uploads_without_an_item_are_removed_when_a_server_starts(make_client, copied_folder, monkeypatch):
    client = make_client(copied_folder, writable=True)
    for name in ("kept", "removed"):
        client.post("/v1/items", files={"image": png()}, data={"id": name})
    Retriever.load(copied_folder).remove("removed")
    uploads = copied_folder / "uploads"
    assert len(list(uploads.iterdir())) == 2
    make_client(copied_folder, writable=True)  # another server might be adding what is that young
    assert len(list(uploads.iterdir())) == 2
    monkeypatch.setattr(_writes, "UNUSED_SECONDS", -1)
    make_client(copied_folder)
    assert len(list(uploads.iterdir())) == 2
    make_client(copied_folder, writable=True)
    assert len(list(uploads.iterdir())) == 1
    assert client.get("/v1/items/kept/thumbnail").status_code == 200


def test_uploads_are_kept_when_the_folder_moves(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    client.post("/v1/items", files={"image": png()}, data={"id": "mine"})
    make_client.stop()
    for number in range(3):
        copied_folder = copied_folder.rename(copied_folder.with_name(f"moved-{number}"))
        holder = ModelHolder.open(copied_folder, writable=True)
        path = Path(holder.current.retriever.item("mine").path)
        assert path.parent == copied_folder / "uploads"
        assert path.read_bytes() == png()
        assert len(list((copied_folder / "uploads").iterdir())) == 1


def test_changes_go_to_the_folder_that_was_opened(copied_folder, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "link").symlink_to(copied_folder)
    holder = ModelHolder.open(tmp_path / "link", writable=True)
    retriever = holder.current.retriever
    features = retriever.encoders.encode_texts(["a star"])
    holder.writer.add(retriever, [Addition(None, None, ["a star"], features, {}, "kept")])
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path / "other")
    asyncio.run(holder.refresh())
    assert holder.reloads["loaded"] == 0
    assert Retriever.load(tmp_path / "other").item("kept#0") is None
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


@pytest.mark.parametrize("name", ["uploads", "items.sqlite-wal"])
@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_a_server_does_not_write_through_links_or_wait_for_pipes(copied_folder, tmp_path, name, kind):
    elsewhere = tmp_path / "elsewhere"
    (copied_folder / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(copied_folder / name)
    else:
        (copied_folder / name).symlink_to(elsewhere)
    if kind == "link":
        elsewhere.mkdir() if name == "uploads" else elsewhere.write_text("mine")
    with pytest.raises(InputError, match=f"{name} is (a link|neither a file nor a folder)"):
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
    assert "uploads is a link" in refused.text
    client.delete("/v1/items/before")
    make_client.stop()
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["holiday.jpg"]
