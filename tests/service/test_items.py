"""Items over HTTP: listed page by page, added in batches, changed and replaced."""

import json
import shutil
from pathlib import Path

import pytest

from diptych import Retriever
from servers import detail, ids, in_process, png, problem

pytestmark = pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")


@pytest.fixture
def writable(make_client, copied_folder):
    return make_client(copied_folder, writable=True)


@pytest.fixture
def of_rows(make_client, of_features, tmp_path):
    """A client of a writable model of features, and the features."""
    place, x, y = of_features
    copied = shutil.copytree(place, tmp_path / "rows")
    return make_client(copied, writable=True), x.tolist(), y.tolist()


def uploads(folder):
    return [path for path in folder.parent.rglob("*uploads*/*") if path.is_file()]


def test_pages_of_items(client, retriever):
    page = client.get("/v1/items").json()
    assert (page["total"], page["more"], len(page["items"])) == (len(retriever), True, 50)
    assert [item["id"] for item in page["items"]] == [item.id for item in retriever.items(limit=50)]
    images = retriever.items("image", where={"split": "test"})
    page = client.get(
        "/v1/items", params={"view": "image", "where": 'split = "test"', "offset": 3, "limit": 4}
    ).json()
    assert [item["id"] for item in page["items"]] == [item.id for item in images[3:7]]
    assert page["total"] == len(images)
    assert page["items"][0] == client.get(f"/v1/items/{page['items'][0]['id'].replace('/', '%2F')}").json()
    as_json = client.get("/v1/items", params={"where": json.dumps({"split": "test"}), "limit": 1}).json()
    assert as_json["total"] == len(retriever.items(where={"split": "test"}))
    last = client.get("/v1/items", params={"offset": len(retriever) - 1, "order_by": "-split"}).json()
    assert (len(last["items"]), last["more"]) == (1, False)


@pytest.mark.parametrize(
    ("parameters", "status", "kind", "words"),
    [
        ({"limit": 0}, 422, "bad-request", "limit: Input should be greater than or equal to 1"),
        ({"limit": 201}, 422, "bad-input", "limit=201 exceeds the limit of this server"),
        ({"offset": -1}, 422, "bad-request", "offset"),
        ({"view": "leaf"}, 422, "bad-request", "view"),
        ({"colour": "red"}, 422, "bad-request", "colour"),
        ({"where": "year >="}, 422, "bad-filter", "is wrong at its end"),
        ({"where": "x" * 20_000}, 422, "bad-filter", "at most 16384"),
        ({"order_by": "splitt"}, 422, "bad-filter", "did you mean 'split'"),
        ({"order_by": "\0"}, 422, "bad-input", "is not a metadata key"),
    ],
)
def test_pages_that_there_are_not(client, parameters, status, kind, words):
    assert words in detail(client.get("/v1/items", params=parameters), status, kind)


def test_a_batch_is_added_as_a_whole(of_rows):
    client, x, y = of_rows
    batch = [
        {
            "id": "a",
            "features": x[0],
            "captions": ["one", "two"],
            "caption_features": y[:2],
            "metadata": {"n": 1},
        },
        {"id": "b", "features": x[1]},
        {"id": "c", "features": x[2], "caption_features": y[2]},
    ]
    before = client.get("/v1/items", params={"limit": 1}).json()["total"]
    added = client.post("/v1/items", json=batch)
    assert added.status_code == 201, added.text
    expected = [{"image": "a", "captions": ["a#0", "a#1"]}, {"image": "b", "captions": []}]
    assert added.json() == [*expected, {"image": "c", "captions": ["c#0"]}]
    assert client.get("/v1/items/c%230").json()["image"] == "c"
    assert client.get("/v1/items/a%231").json()["metadata"] == {"n": 1}
    assert problem(client.post("/v1/items", json=[{"id": "d", "features": x[3]}, batch[1]])) == (409, "taken")
    assert client.get("/v1/items/d").status_code == 404

    lines = "\n".join(json.dumps(line) for line in [{"id": "d", "features": x[3]}, batch[0]])
    headers = {"Content-Type": "application/x-ndjson"}
    skipped = client.post("/v1/items?on_conflict=skip", content=lines + "\n\n", headers=headers)
    assert skipped.json() == [{"image": "d", "captions": []}, {"image": None, "captions": []}]
    replaced = client.post("/v1/items?on_conflict=replace", json=[{"id": "a", "features": x[9]}])
    assert replaced.json() == [{"image": "a", "captions": []}]
    assert set(ids(client.post("/v1/similar", json={"features": x[9], "view": "image", "k": 2}))) == {
        "9",
        "a",
    }
    assert client.get("/v1/items", params={"limit": 1}).json()["total"] == before + 7

    for content, status, words in (
        (
            [{"id": "e", "features": x[0]}, {"captions": ["alone"], "caption_features": y[0]}],
            422,
            "in another",
        ),
        ([{"id": "e", "features": x[0]}, {"id": 5}], 422, "1: id: "),
        ([{"features": x[0]}] * 65, 422, "at most 64"),
        ([{"features": x[0], "caption_features": y[:40]}] * 2, 422, "at most 64"),
        ([], 422, "has no query"),
        ([{"features": [0.0] * 12}], 422, "only zeros"),
        ([{"features": x[0], "metadata": {"a": {"b": 1}}}], 422, "nested"),
    ):
        assert words in detail(client.post("/v1/items", json=content), status)
    assert problem(client.post("/v1/items", content=b'{"id":\n', headers=headers)) == (400, "no-json")
    assert problem(client.post("/v1/items?on_conflict=keep", json=batch)) == (422, "bad-request")
    assert client.get("/v1/items", params={"limit": 1}).json()["total"] == before + 7


def test_an_item_is_added_by_its_features(of_rows, of_features, tmp_path):
    client, x, y = of_rows
    whole = {
        "id": "whole",
        "features": x[80],
        "captions": ["the first", "the second"],
        "caption_features": y[80:82],
        "metadata": {"new": True},
    }
    assert client.post("/v1/items", json=whole).json() == {
        "image": "whole",
        "captions": ["whole#0", "whole#1"],
    }
    assert problem(client.post("/v1/items", json=whole)) == (409, "taken")
    alone = client.post("/v1/items", json={"id": "alone", "caption_features": [y[84]]})
    assert alone.json() == {"image": None, "captions": ["alone#0"]}
    for wrong in (
        {"features": x[80][:11]},
        {"features": x[80:82]},
        {"features": x[80], "captions": ["no encoder"]},
        {"captions": ["one"], "caption_features": y[80:82]},
        {"caption_features": [[1e39] * 9]},
        {},
    ):
        assert client.post("/v1/items", json=wrong).status_code == 422, wrong
    query = {"features": y[80], "k": 1, "where": {"new": True}}
    (hit,) = client.post("/v1/search", json=query).json()["results"][0]["hits"]
    assert hit["id"] == "whole"
    found = client.post("/v1/annotate", json={"features": x[80], "where": {"new": True}})
    assert {hit["text"] for hit in found.json()["results"][0]["hits"]} == {"the first", "the second"}
    # The server adds what a retriever adds.
    retriever = Retriever.load(shutil.copytree(of_features[0], tmp_path / "other"))
    retriever.add([x[80]], y[80:82], pairing=[0, 0], ids=["whole"])
    expected = retriever.search(y[80], k=1, where=["whole"])[0].score
    assert hit["score"] == pytest.approx(expected, rel=1e-4)


def test_metadata_and_texts_are_changed(writable, easy, copied_folder):
    other, url = Retriever.load(copied_folder), f"/v1/items/{easy.id.replace('/', '%2F').replace('#', '%23')}"
    changed = writable.patch(url, json={"metadata": {"tag": "x", "split": None}})
    assert changed.status_code == 200, changed.text
    assert changed.json() == writable.get(url).json()
    assert other.item(easy.id).metadata == {"tag": "x"}
    words = other.items("text")[0].text
    assert writable.patch(url, json={"text": words}).json()["text"] == words
    assert (other.item(easy.id).text, other.item(easy.id).image) == (words, easy.image)
    assert other.items("text")[-1].id == easy.id
    for body, words in (
        ({}, "give metadata, text, features"),
        ({"metadata": {"a": [[1]]}}, "nested"),
        ({"features": [1.0]}, "features have 1 numbers"),
        ({"text": ""}, "text"),
    ):
        assert words in detail(writable.patch(url, json=body), 422)
    assert problem(writable.patch(url, files={"image": png()})) == (422, "bad-input")
    assert problem(writable.patch("/v1/items/nobody", json={"text": "a"})) == (404, "unknown-item")


def test_an_image_is_changed_and_replaced_with_its_upload(writable, copied_folder):
    added = writable.put("/v1/items/mine", files={"image": png()}, data={"captions": ["a red star"]})
    assert (added.status_code, added.json()) == (201, {"image": "mine", "captions": ["mine#0"]})
    assert added.headers["location"] == "/v1/items/mine"
    (first,) = uploads(copied_folder)
    changed = writable.patch("/v1/items/mine", files={"image": png("blue")}, data={"metadata": '{"n": 1}'})
    assert changed.status_code == 200, changed.text
    assert changed.json()["metadata"] == {"n": 1}
    assert [item["id"] for item in changed.json()["captions"]] == ["mine#0"]
    (second,) = uploads(copied_folder)
    assert first != second
    assert Path(Retriever.load(copied_folder).item("mine").path).read_bytes() == png("blue")
    assert writable.put("/v1/items/mine", files={"image": png("green")}).status_code == 201
    (third,) = uploads(copied_folder)
    assert third.read_bytes() == png("green")
    assert writable.get("/v1/items/mine").json()["metadata"] == {}
    skipped = writable.post("/v1/items?on_conflict=skip", files={"image": png()}, data={"id": "mine"})
    assert skipped.json() == {"image": None, "captions": []}
    assert "location" not in skipped.headers
    assert uploads(copied_folder) == [third]
    for path, body in (
        ("mine", {"captions": ["alone"]}),
        ("mine", {"id": "other", "features": [1.0]}),
        ("x" * 600, {"features": [1.0]}),
    ):
        assert writable.put(f"/v1/items/{path}", json=body).status_code == 422
    assert problem(writable.put("/v1/items/mine", files={"image": b"no image"})) == (422, "unreadable-image")
    assert uploads(copied_folder) == [third]


def test_items_in_memory_are_listed_and_a_read_only_server_changes_none(client, of_features):
    with in_process(Retriever.load(of_features[0])) as in_memory:
        assert in_memory.get("/v1/items", params={"limit": 1}).json()["total"] == 240
    for answer in (
        client.post("/v1/items", json=[{"captions": ["a"]}]),
        client.put("/v1/items/a", json={"features": [1.0]}),
        client.patch("/v1/items/a", json={"metadata": {}}),
    ):
        assert problem(answer) == (403, "read-only")


def test_a_confirmed_pair_is_a_caption_of_the_image(writable, client, copied_folder):
    image, other = (item["id"] for item in writable.get("/v1/items?view=image&limit=2").json()["items"])
    body = {"text": "a boat that nobody described", "right": [image, other]}
    ids = writable.post("/v1/learn", json=body).json()["learned"]
    assert writable.post("/v1/learn", json=body | {"right": image}).json() == {"learned": ids[:1]}
    stored = Retriever.load(copied_folder)
    assert [stored.item(name).image for name in ids] == [image, other]
    assert stored.item(ids[0]).text == body["text"]
    where = {"where": "confirmed = true"}
    assert {item["id"] for item in writable.get("/v1/items", params=where).json()["items"]} == set(ids)
    removed = writable.delete(f"/v1/items/{ids[0].replace('/', '%2F').replace('#', '%23')}")
    assert removed.json() == {"removed": 1}
    for wrong, status in (
        ({"right": ["no such image"]}, 422),
        ({"right": []}, 422),
        ({"right": ["x"] * 1000}, 422),
        ({"text": None}, 422),
        ({"features": [1.0]}, 422),
        ({"wrong": [image]}, 422),
    ):
        assert writable.post("/v1/learn", json=body | wrong).status_code == status, wrong
    assert problem(client.post("/v1/learn", json=body)) == (403, "read-only")


def test_a_pair_is_confirmed_by_features(of_rows):
    client, _, y = of_rows
    (pair,) = client.post("/v1/learn", json={"features": y[3], "right": "5"}).json()["learned"]
    assert client.get(f"/v1/items/{pair.replace('#', '%23')}").json()["image"] == "5"
    refused = client.post("/v1/learn", json={"text": "a star", "right": "5"})
    assert problem(refused) == (422, "no-encoder")
