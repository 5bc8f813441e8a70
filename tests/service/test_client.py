"""The client, with a real server at the other end."""

import sys

import numpy as np
import pytest
from PIL import Image

from diptych import InputError, Retriever
from diptych.client import Client, ServerError
from servers import TOKEN, listen, page_url, png


@pytest.fixture
def reader(live):
    with Client(live) as client:
        yield client


@pytest.fixture
def writer(live_writable):
    with Client(live_writable) as client:
        yield client


def names(hits):
    return [hit.id for hit in hits]


def test_queries_find_what_the_retriever_finds(reader, retriever, easy, path_of):
    path = path_of(easy.image)
    options = {"k": 4, "offset": 1, "where": {"split": ["train", "test"]}}
    for found, expected in (
        (reader.search(easy.text, **options), retriever.search(easy.text, **options)),
        (reader.search(id=easy.id, k=3), retriever.search(easy.text, k=3)),
        (
            reader.search("a star", plus=["night", {"id": easy.image, "weight": 0.5}], minus=["red"]),
            retriever.search("a star", 12, plus=["night", (path_of(easy.image), 0.5)], minus=["red"]),
        ),
        (reader.annotate(path, **options), retriever.annotate(path, **options)),
        (reader.annotate(path, plus=["night"], k=3), retriever.annotate(path, plus=["night"], k=3)),
        (reader.similar(path, k=3), retriever.similar(path, k=3)),
        (reader.similar(id=easy.id, k=3), retriever.similar(text=easy.text, k=3)),
    ):
        assert names(found.hits) == names(expected)
        np.testing.assert_allclose(
            [hit.score for hit in found.hits], [hit.score for hit in expected], rtol=1e-4, atol=1e-5
        )
        assert found.more == expected.more
    assert reader.search("a star zzz").ignored_words == ["zzz"]
    scored = reader.score(path, [easy.text, "two boats"])
    assert scored == reader.score({"id": easy.image}, [easy.text, "two boats"])
    expected = [pair.score for pair in retriever.score_pairs([path] * 2, [easy.text, "two boats"])]
    assert [pair.score for pair in scored] == pytest.approx(expected, abs=1e-4)


def test_items_are_listed_across_pages(reader, retriever):
    test = retriever.items("image", where='split = "test"')
    assert names(reader.items()) == names(retriever.items())
    assert names(reader.items("image", {"split": "test"}, "-split")) == names(test)
    assert names(reader.items("image", 'split = "test"')) == names(test)
    model = reader.model()
    assert (model["items"]["image"], model["writable"]) == (160, False)
    item = reader.item(test[0].id)
    assert (item.view, item.metadata) == ("image", dict(test[0].metadata))
    assert [caption["id"] for caption in item.captions] == [
        caption.id for caption in retriever.store.items("text", images=[item.id])
    ]


def test_items_are_added_changed_and_removed(writer, tmp_path):
    Image.new("RGB", (48, 48), "teal").save(tmp_path / "new.png")
    added = {"id": "c/1", "captions": ["a teal star", "a star"], "metadata": {"album": ["a", "b"]}}
    assert writer.add(tmp_path / "new.png", **added) == ["c/1", "c/1#0", "c/1#1"]
    with pytest.raises(ServerError, match="choose another id") as refused:
        writer.add(tmp_path / "new.png", **added)
    assert (refused.value.status, refused.value.kind) == (409, "taken")
    assert writer.add(png("red"), **added, on_conflict="skip") == []
    assert writer.item("c/1").metadata == {"album": ["a", "b"]}
    assert writer.update("c/1#0", text="a teal boat").text == "a teal boat"
    assert writer.update("c/1", png("blue"), metadata={"album": None, "year": 2024}).metadata == {
        "year": 2024
    }
    assert writer.learn("teal", "c/1") == [item.id for item in writer.items("text", "confirmed = true")]
    assert writer.remove("c/1") == 4
    with pytest.raises(ServerError, match="there is no item") as unknown:
        writer.item("c/1")
    assert (unknown.value.status, unknown.value.kind) == (404, "unknown-item")
    assert writer.remove(*writer.add(captions=["a star alone"], id="alone")) == 1


def test_features_may_be_arrays(live_of_features, of_features):
    place, x, y = of_features
    retriever = Retriever.load(place)
    with Client(live_of_features) as client:
        assert names(client.search(features=y[3], k=4).hits) == names(retriever.search(y[3], k=4))
        assert names(client.similar(features=x[3], view="image", k=2).hits) == names(
            retriever.similar(x[3], k=2)
        )
        with pytest.raises(InputError, match="got 2 queries; send one at a time"):
            client.search(features=y[:2])
        (added,) = client.add(features=x[3], id="copy")
        assert {hit.id for hit in client.similar(id=added, k=2).hits} == {"copy", "3"}
        client.remove(added)


def test_problems_say_what_is_wrong(live_guarded, reader, tmp_path, monkeypatch):
    with Client(live_guarded, "a wrong token, of course") as client:
        with pytest.raises(ServerError, match="needs a token") as refused:
            client.search("a star")
        assert (refused.value.status, refused.value.kind) == (401, "token-needed")
    with Client(live_guarded, TOKEN) as client:
        assert client.search("a star", k=1).hits
    with pytest.raises(ServerError, match="k=201 exceeds the limit") as refused:
        reader.search("a star", k=201)
    assert (refused.value.status, refused.value.kind) == (422, "bad-input")
    with pytest.raises(InputError, match="cannot read .*missing.png"):
        reader.annotate(tmp_path / "missing.png")
    with pytest.raises(InputError, match="starts with http"):
        Client("localhost:8000")
    with pytest.raises(InputError, match="other characters than ASCII"):
        Client(live_guarded, "é" * 16)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InputError, match="the client needs .*; install with: pip install"):
        Client(live_guarded)


def test_no_answer_and_other_answers_are_one_exception(live):
    with listen("127.0.0.1", 0) as silent:
        address = page_url(silent)
        with (
            Client(address, timeout=0.2) as client,
            pytest.raises(ServerError, match="does not answer") as slow,
        ):
            client.model()
    with Client(address) as client, pytest.raises(ServerError, match="does not answer") as closed:
        client.model()
    for error in (slow.value, closed.value):
        assert (error.status, error.kind) == (0, "no-answer")
    # A style sheet, in place of what the API answers.
    with Client(live) as client, pytest.raises(ServerError) as other:
        client._send("GET", "/style.css", dict[str, str])
    assert (other.value.status, other.value.kind) == (200, "unexpected")
