"""The routes of the HTTP API."""

import json
import re
import shutil
import threading
import time
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image
from prometheus_client import generate_latest

from diptych import Retriever
from diptych.retrieval.stores._folder import FolderStore
from diptych.service._model import LoadedModel
from diptych.service._schemas import MAX_PARTS
from saved_files import save_without_features
from servers import TOKEN, detail, ids, problem, wait_until


def test_search_returns_the_hits_of_the_retriever(client, retriever, easy):
    answer = client.post("/v1/search", json={"text": easy.text, "k": 7})
    assert ids(answer) == [hit.id for hit in retriever.search(easy.text, k=7)]
    first = answer.json()["results"][0]["hits"][0]
    assert first["id"] == easy.image
    assert easy.text in [caption["text"] for caption in first["captions"]]
    assert first["score"] == pytest.approx(retriever.search(easy.text, k=1)[0].score, abs=1e-5)


def test_results_are_in_the_order_of_the_queries(client, retriever, easy):
    texts = [easy.text, "two blue boats", "a star"]
    answer = client.post("/v1/search", json={"text": texts, "k": 3})
    assert [part["query"] for part in answer.json()["results"]] == texts
    for at, text in enumerate(texts):
        assert ids(answer, at) == [hit.id for hit in retriever.search(text, k=3)]


def test_an_uploaded_and_a_stored_image_get_the_same_captions(client, easy, path_of):
    with open(path_of(easy.image), "rb") as file:
        uploaded = client.post("/v1/annotate", files={"image": file}, data={"k": "6"})
    by_id = client.post("/v1/annotate", json={"id": easy.image, "k": 6})
    assert ids(uploaded) == ids(by_id)
    assert ids(uploaded)[0] == easy.id
    assert uploaded.json()["results"][0]["hits"][0]["text"] == easy.text


def test_several_images_with_a_filter(client, retriever, easy, path_of):
    other = next(item.id for item in retriever.store.items() if item.id != easy.image)
    parts = [("image", (name, Path(path_of(name)).read_bytes())) for name in (easy.image, other)]
    fields = {"k": "4", "where": json.dumps({"split": "train"})}
    answer = client.post("/v1/annotate", files=parts, data=fields)
    for at, name in enumerate((easy.image, other)):
        expected = retriever.annotate(
            path_of(name), k=4, where=lambda item: item.metadata["split"] == "train"
        )
        assert ids(answer, at) == [hit.id for hit in expected]


def test_items_and_their_images(client, easy, path_of):
    place = f"/v1/items/{quote(easy.image, safe='')}"
    item = client.get(place).json()
    assert item["view"] == "image"
    assert easy.id in [caption["id"] for caption in item["captions"]]
    assert path_of(easy.image) not in json.dumps(item)
    for size in ("image", "thumbnail"):
        answer = client.get(f"{place}/{size}")
        assert answer.headers["content-type"] == "image/webp"
        assert answer.content[8:12] == b"WEBP"
        again = client.get(f"{place}/{size}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    assert client.get(f"/v1/items/{quote(easy.id, safe='')}").json()["text"] == easy.text


def test_the_model_is_described(client, retriever):
    description = client.get("/v1/model").json()
    assert description["items"] == {"image": 160, "text": 800}
    recall = retriever.info()["facts"]["metrics"]["test"]["search"]["r@1"]
    assert description["facts"]["metrics"]["test"]["search"]["r@1"] == pytest.approx(recall, abs=1e-3)
    path = retriever.fitted.model.path_
    scores = np.array(description["path"]["scores"]["search"], float)  # null where there is only a bound
    exact = path.exact["search"]
    assert np.array_equal(np.isfinite(scores), exact)
    assert np.allclose(scores[exact], path.scores["search"][path.metric][exact], atol=1e-3)
    assert np.allclose(description["path"]["y"], path.grid.y, rtol=1e-5)
    assert description["path"]["choice"]["annotate"] == list(path.choice["annotate"])
    assert len(description["spectrum"]["search"]["correlation"]) == description["components"]["search"]
    assert description["facets"]["split"] == ["test", "train", "val"]
    assert description["examples"]["text"]
    assert description["card"].startswith("# ")
    assert description["can"] == {"text": None, "image": None}


def test_health_and_metrics(client, easy):
    line = 'diptych_requests_total{method="POST",route="/v1/search",status="200"} '
    assert client.get("/healthz").json()["status"] == "ok"
    client.post("/v1/search", json={"text": easy.text})
    before = float(client.get("/metrics").text.partition(line)[2].split()[0])
    client.post("/v1/search", json={"text": easy.text})
    counters = client.get("/metrics").text
    assert float(counters.partition(line)[2].split()[0]) == before + 1
    assert "diptych_items 960.0" in counters


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/search", {"text": "zzyzx"}, 422, "bad-input"),
        ("/v1/search", {"text": "   "}, 422, "bad-request"),
        ("/v1/search", {"text": "a star", "id": "x"}, 422, "bad-request"),
        ("/v1/search", {}, 422, "bad-request"),
        ("/v1/search", {"text": "a star", "k": 100_000}, 422, "bad-input"),
        ("/v1/search", {"text": ["a star"] * 65}, 422, "bad-input"),
        ("/v1/search", {"text": []}, 422, "bad-input"),
        ("/v1/search", {"text": "star " * 1000}, 422, "bad-input"),
        ("/v1/search", {"text": "a star\ud800"}, 422, "bad-request"),
        ("/v1/search", {"text": "a star", "weighting": [1, 2]}, 422, "bad-request"),
        ("/v1/search", {"id": "nobody"}, 404, "unknown-item"),
        ("/v1/annotate", {"id": "nobody"}, 404, "unknown-item"),
        ("/v1/annotate", {"id": []}, 422, "bad-input"),
        ("/v1/similar", {"id": "nobody"}, 404, "unknown-item"),
        ("/v1/items", {"captions": ["a star"]}, 403, "read-only"),
    ],
)
def test_errors_are_problem_details(client, path, body, status, kind):
    answer = client.post(path, content=json.dumps(body), headers={"content-type": "application/json"})
    assert problem(answer) == (status, kind)
    assert answer.headers["content-type"] == "application/problem+json"
    details = answer.json()
    assert details["status"] == status
    assert details["title"]
    assert details["detail"]


@pytest.mark.parametrize(
    ("path", "body", "field", "detail"),
    [
        ("search", {"id": "a\0b"}, "id.0", "it contains an unpaired surrogate or a control character"),
        ("search", {"text": ["a star", " "]}, "text.1", "it is empty; give at least one word"),
        ("search", {"text": 5}, "text", "expected a string, or a list of strings"),
        ("search", {"text": "a", "plus": [{"id": ["a", "b"]}]}, "plus.0", "give one text, one id or"),
        ("search", {"text": "a", "plus": [7]}, "plus.0", "expected a text, or an object with text, id"),
        ("annotate", {"id": ""}, "id.0", "String should have at least 1 character"),
        ("similar", {"id": ["a", "b"]}, "", "give one id, the features of one item, or one file"),
        ("search", {"text": "a", "colour": "red"}, "colour", "Extra inputs are not permitted"),
    ],
)
def test_messages_name_the_field_and_nothing_internal(client, path, body, field, detail):
    answer = client.post(f"/v1/{path}", json=body)
    (error,) = answer.json()["errors"]
    assert answer.status_code == 422
    assert error["field"] == field
    assert error["detail"].startswith(detail)
    assert "function" not in answer.text
    assert "[" not in answer.json()["detail"]


def test_other_content_than_json_and_forms_is_refused(client):
    assert client.post("/v1/annotate", content=b"x", headers={"content-type": "text/csv"}).status_code == 415
    assert client.post("/v1/annotate", data={"k": "3"}, files={"x": b"y"}).status_code == 422
    for path in ("search", "annotate", "similar", "session"):
        bad = client.post(f"/v1/{path}", content=b"{", headers={"content-type": "application/json"})
        assert problem(bad) == (400, "no-json")
        for kind in (None, "text/plain", "application/x-www-form-urlencoded"):
            headers = {} if kind is None else {"content-type": kind}
            other = client.post(f"/v1/{path}", content=b"{not json", headers=headers)
            assert problem(other) == (415, "wrong-type")


def test_a_model_of_features_is_searched_by_its_items(make_client, of_features, caplog):
    client = make_client(of_features[0])
    description = client.get("/v1/model").json()
    for view in ("image", "text"):
        assert description["can"][view].startswith(f"This server has no {view} encoder")
        assert not any(word in description["can"][view] for word in ("Python", "=", "--", ":"))
    assert "--image-encoder" in caplog.text  # for whoever runs it
    assert problem(client.post("/v1/search", json={"text": "a star"})) == (422, "no-encoder")
    caption = description["examples"]["text"][0]
    assert caption["image"] in ids(client.post("/v1/search", json={"id": caption["id"], "k": 5}))
    assert len(ids(client.post("/v1/annotate", json={"id": "3", "k": 2}))) == 2
    assert ids(client.post("/v1/similar", json={"id": "3", "k": 2}))[0] == "3"
    assert client.get("/v1/items/3/thumbnail").status_code == 404


def test_a_fusion_offers_its_parts(make_client, fused_scenes):
    client, retriever = make_client(fused_scenes), Retriever.load(fused_scenes)
    description = client.get("/v1/model").json()
    parts = ["pyramid × words", "pyramid × others"]
    assert (
        description["weighting"],
        sorted(description["weightings"]),
        description["path"],
        description["spectrum"],
    ) == ("fusion", sorted([*parts, "uncorrected"]), None, {})
    assert [part["name"] for part in description["parts"]["search"]] == parts
    assert sum(part["weight"] for part in description["parts"]["search"]) == pytest.approx(1)
    assert "nearest training queries" in description["corrections"]["annotate"]
    item = description["examples"]["text"][0]
    features = retriever.store.features("text", [item["id"]])[0]
    answers = set()
    for weighting in (None, "uncorrected", *parts):
        answer = client.post("/v1/search", json={"id": item["id"], "k": 4, "weighting": weighting})
        assert ids(answer) == [hit.id for hit in retriever.search(features, k=4, weighting=weighting)]
        assert answer.json()["weighting"] == (weighting or "fusion")
        answers.add(tuple(ids(answer)))
        assert len(ids(client.post("/v1/annotate", json={"id": item["image"], "weighting": weighting}))) == 12
    assert len(answers) > 2
    for wrong in ("none", "x" * 2000):
        refused = client.post("/v1/search", json={"id": item["id"], "weighting": wrong})
        assert refused.status_code == 422
    assert refused.json()["type"].endswith("bad-request")


def test_a_model_without_a_fusion_has_no_parts(client):
    description = client.get("/v1/model").json()
    assert (description["parts"], description["corrections"], description["weightings"]) == ({}, {}, [])
    refused = client.post("/v1/search", json={"text": "a star", "weighting": "heavy"})
    assert problem(refused) == (422, "bad-input")


def test_items_without_stored_features_are_encoded_again(make_client, scenes_folder, tmp_path, easy):
    save_without_features(Retriever.load(scenes_folder / "model"), tmp_path / "slim")
    client = make_client(tmp_path / "slim")
    assert ids(client.post("/v1/annotate", json={"id": easy.image, "k": 1})) == [easy.id]
    assert ids(client.post("/v1/search", json={"id": easy.id, "k": 1})) == [easy.image]


def test_an_uploaded_image_finds_similar_images(client, retriever, easy, path_of):
    path = path_of(easy.image)
    with open(path, "rb") as file:
        content = file.read()
    form = {"k": 4, "offset": 1, "where": 'split != "train"', "plus": '["at night"]'}
    answer = client.post("/v1/similar", files={"image": ("a.png", content)}, data=form)
    expected = retriever.similar(image=path, k=4, offset=1, where='split != "train"', plus=["at night"])
    assert ids(answer) == [hit.id for hit in expected]
    assert answer.json()["results"][0]["query"] == "a.png"
    for refused in (
        client.post("/v1/similar", files=[("image", content), ("image", content)]),
        client.post("/v1/similar", files={"image": content}, data={"weighting": "uncorrected"}),
        client.post("/v1/similar", files={"image": content}, data={"view": "image"}),
    ):
        assert problem(refused) == (422, "bad-request")


def test_openapi_has_limits_bounds_and_examples(make_client):
    openapi = make_client(k=33, batch=5).get("/v1/openapi.json").json()
    kinds = {"application/json", "multipart/form-data"}
    for path, more in (("annotate", set()), ("similar", set()), ("items", {"application/x-ndjson"})):
        assert set(openapi["paths"][f"/v1/{path}"]["post"]["requestBody"]["content"]) == kinds | more
    schemas = openapi["components"]["schemas"]
    for name in ("SearchRequest", "AnnotateRequest", "AnnotateRequestForm"):
        properties = schemas[name]["properties"]
        assert properties["k"]["maximum"] == 33
        assert (properties["offset"]["minimum"], properties["offset"]["maximum"]) == (0, 32)
        assert ("image" in properties, "text" in properties) == (("Form" in name), ("Form" not in name))
    search = schemas["SearchRequest"]
    assert [
        kind["maxItems"] for kind in search["properties"]["text"]["anyOf"] if kind["type"] == "array"
    ] == [5]
    assert search["properties"]["plus"]["maxItems"] == search["properties"]["minus"]["maxItems"] == MAX_PARTS
    assert {"plus", "offset"} <= {name for example in search["examples"] for name in example}
    part = schemas["Part"]["properties"]
    assert part["weight"]["exclusiveMinimum"] == 0
    assert any(kind.get("maxLength") == 2000 for kind in part["text"]["anyOf"])


def test_every_search_route_takes_features(make_client, of_features):
    place, x, y = of_features
    client, retriever = make_client(place), Retriever.load(place)
    assert client.get("/v1/model").json()["features"] == {"image": 12, "text": 9}
    one = client.post("/v1/search", json={"features": y[3].tolist(), "k": 4})
    assert one.json()["results"][0]["query"] is None
    several = client.post("/v1/search", json={"features": y[:5].tolist(), "k": 4})
    assert ids(one) == ids(several, 3)
    for at in range(5):
        assert ids(several, at) == [hit.id for hit in retriever.search(y[at], k=4)]
    captions = client.post("/v1/annotate", json={"features": x[7].tolist(), "k": 2})
    assert ids(captions) == [hit.id for hit in retriever.annotate(x[7], k=2)]
    like = client.post("/v1/similar", json={"features": x[7].tolist(), "view": "image", "k": 3})
    assert ids(like) == [hit.id for hit in retriever.similar(image=x[7], k=3)]
    assert ids(client.post("/v1/similar", json={"features": y[7].tolist(), "view": "text", "k": 1}))


def test_named_blocks_are_sent_by_name(make_client, fused_folder):
    client, retriever = make_client(fused_folder), Retriever.load(fused_folder)
    widths = {"image": {"photos": 9, "sketches": 7}, "text": {"words": 8, "tones": 6}}
    assert client.get("/v1/model").json()["features"] == widths
    row = np.linspace(-1, 1, 14, dtype=np.float32)
    expected = [hit.id for hit in retriever.search(row, k=3)]
    blocks = {"tones": row[8:].tolist(), "words": row[:8].tolist()}
    assert ids(client.post("/v1/search", json={"features": blocks, "k": 3})) == expected
    assert ids(client.post("/v1/search", json={"features": row.tolist(), "k": 3})) == expected
    twice = {"words": [row[:8].tolist()] * 2, "tones": [row[8:].tolist()] * 2}
    answer = client.post("/v1/search", json={"features": twice, "k": 3})
    assert ids(answer, 0) == ids(answer, 1) == expected
    for wrong, message in (
        (
            {"words": row[:8].tolist()},
            "'tones' is missing. This model takes 'words' (8 features), 'tones' (6 features)",
        ),
        (blocks | {"words": [1.0]}, "'words' has shape [1, 1]"),
        ({"words": [[1.0] * 8] * 2, "tones": [1.0] * 6}, "different numbers of rows"),
        ({}, "at least one named block"),
    ):
        assert message in detail(client.post("/v1/search", json={"features": wrong}), 422)


def test_wrong_features_are_refused(make_client, of_features):
    client = make_client(of_features[0])
    for features, message in (
        ([1.0] * 8, "8 numbers; this model expects 9 for texts"),
        ([1.0] * 8 + [1e39], "beyond the range of float32"),
        ([1.0] * 8 + [float("nan")], "NaN"),
        ([1.0] * 8 + [10**400], "beyond the range of float32"),
        ([1.0] * 8 + ["1"], "not a number"),
        ([1.0] * 8 + [True], "not a number"),
        ([1.0] * 8 + [None], "not a number"),
        ([[1.0] * 9, [1.0] * 8], "expected a list of numbers"),
        ([[[1.0] * 9]], "not a number"),
        ([[]], "expected a list of numbers"),
        ([], "expected a list of numbers"),
        ("1 2 3", "expected a list of numbers"),
        ({"y": [1.0] * 9}, "no named blocks"),
        ([[1.0] * 9] * 65, "at most 64"),
    ):
        content = json.dumps({"features": features})
        answer = client.post("/v1/search", content=content, headers={"content-type": "application/json"})
        assert answer.status_code == 422, message
        assert message in answer.json()["detail"]
        assert len(answer.json()["detail"]) < 300


def test_a_request_has_one_kind_of_query(make_client, of_features):
    client, row = make_client(of_features[0]), [1.0] * 9
    for path, body in (
        ("/v1/search", {"features": row, "text": "a star"}),
        ("/v1/search", {"features": row, "id": "1#0"}),
        ("/v1/annotate", {"features": [1.0] * 12, "id": "1"}),
        ("/v1/annotate", {}),
        ("/v1/similar", {"features": row, "id": "1", "view": "text"}),
        ("/v1/similar", {"features": row}),
        ("/v1/similar", {"id": "1", "view": "image"}),
        ("/v1/similar", {"features": [row, row], "view": "text"}),
    ):
        assert client.post(path, json=body).status_code == 422, (path, body)


def test_every_reference_in_openapi_exists(client):
    openapi = client.get("/v1/openapi.json").json()
    used = set(re.findall(r'"\$ref": "#/components/schemas/([^"]+)"', json.dumps(openapi)))
    assert "JsonValue" in used
    assert used <= openapi["components"]["schemas"].keys()


def test_any_id_can_be_requested(make_client, tmp_path, rng):
    hidden = rng.normal(size=(60, 3))
    y = hidden + 0.1 * rng.normal(size=hidden.shape)
    odd = ["a/image", "b\nc", "d/thumbnail", "e%2Fimage", "/f", "g?h#i", "é ü", "a"]
    file = tmp_path / "red.png"
    Image.new("RGB", (40, 30), "red").save(file)
    names = [*odd, *(f"n{i}" for i in range(60 - len(odd)))]
    Retriever.from_features(hidden, y, ids=names, paths=[file] * 60).save(tmp_path / "model")
    client = make_client(tmp_path / "model")
    for name in odd:
        place = f"/v1/items/{quote(name, safe='')}"
        item = client.get(place)
        assert (item.status_code, item.json()["id"]) == (200, name)
        assert item.json()["image_url"] == f"{place}/image"
        for size in ("image", "thumbnail"):
            assert client.get(f"{place}/{size}").headers["content-type"] == "image/webp"


def test_a_response_never_contains_a_path(make_client, scenes_folder, tmp_path, easy, path_of, monkeypatch):
    """The item is encoded again, and its file is missing."""
    shutil.copytree(scenes_folder / "model", tmp_path / "model")
    retriever = Retriever.load(tmp_path / "model")
    monkeypatch.setattr(FolderStore, "features", lambda *args: None)
    rows = retriever.encoders.encode_images([path_of(easy.image)])
    retriever.add(rows, ids=["lost"], paths=[tmp_path / "secret" / "lost.png"])
    client = make_client(scenes_folder / "model")
    client.service.holder.current = LoadedModel(retriever, "model", retriever.version)
    client.service.holder._load = None
    for path in ("/v1/annotate", "/v1/similar"):
        answer = client.post(path, json={"id": "lost"})
        assert problem(answer) == (404, "no-image")
        assert "secret" not in answer.text


def test_requests_are_counted_by_route(make_client, easy):
    client = make_client(token=TOKEN)
    for path in ("/", "/app.js", "/v1/model", f"/v1/items/{quote(easy.image, safe='')}/image", "/nowhere"):
        client.get(path)
    client.post("/v1/search", json={"text": easy.text})
    counters = generate_latest(client.service.metrics.registry).decode()
    for route, method, status in (
        ("/", "GET", 200),
        ("/app.js", "GET", 200),
        ("/v1/model", "GET", 401),
        ("/v1/items/{item_id}/image", "GET", 401),
        ("/v1/search", "POST", 401),
        ("unmatched", "GET", 401),
    ):
        line = f'diptych_requests_total{{method="{method}",route="{route}",status="{status}"}} 1.0'
        assert line in counters


def test_metrics_do_not_wait_for_a_database(make_client, monkeypatch):
    client = make_client()
    answers = threading.Event()
    monkeypatch.setattr(type(client.service.model.retriever.store), "shared", True)
    monkeypatch.setattr(type(client.service.model.retriever.store), "count", lambda _: answers.wait(60))
    start = time.monotonic()
    assert "diptych_items NaN" in client.get("/metrics").text
    assert time.monotonic() - start < 10
    monkeypatch.undo()
    answers.set()
    wait_until(lambda: "diptych_items 960.0" in client.get("/metrics").text)


def test_the_description_has_no_paths_of_encoders(make_client, monkeypatch):
    client, info_of = make_client(), Retriever.info
    where = {"origin": {"source": "/home/someone/network.onnx"}}

    def info(retriever):
        description = info_of(retriever)
        return description | {
            "encoders": {view: one | where for view, one in description["encoders"].items()}
        }

    monkeypatch.setattr(Retriever, "info", info)
    answer = client.get("/v1/model")
    assert set(answer.json()["encoders"]["image"]) == {"name", "fingerprint", "dimension"}
    assert "/home/someone" not in answer.text


def test_pairs_are_scored(client, retriever, easy, path_of):
    texts = [easy.text, "two blue boats"]
    expected = retriever.score_pairs([path_of(easy.image)] * 2, texts)
    with open(path_of(easy.image), "rb") as file:
        uploaded = client.post("/v1/score", files={"image": ("photo.png", file)}, data={"text": texts}).json()
    assert [pair["image"] for pair in uploaded["pairs"]] == ["photo.png"] * 2
    assert [pair["text"] for pair in uploaded["pairs"]] == texts
    np.testing.assert_allclose([pair["score"] for pair in uploaded["pairs"]], expected.scores, atol=1e-5)
    assert uploaded["absent"] == expected.absent
    image = retriever.store.features("image", [easy.image])[0].tolist()
    caption = retriever.store.features("text", [easy.id])[0].tolist()
    for body in (
        {"image": {"id": easy.image}, "text": texts},
        {"image": {"features": image}, "text": {"text": texts}},
        {"image": {"id": [easy.image, easy.image]}, "text": {"text": texts}},
        {"image": {"id": easy.image}, "text": {"id": easy.id}},
        {"image": {"features": image}, "text": {"features": caption}},
    ):
        answer = client.post("/v1/score", json=body)
        assert answer.status_code == 200, answer.text
        scores = [pair["score"] for pair in answer.json()["pairs"]]
        np.testing.assert_allclose(scores, expected.scores[: len(scores)], atol=1e-5)
    assert [answer.json()["pairs"][0][name] for name in ("image", "text")] == [None, None]


def test_scored_pairs_have_percentiles(make_client, tmp_path):
    x = np.random.default_rng(0).normal(size=(640, 5)).astype(np.float32)
    retriever = Retriever.from_features(x, x[:, :4])
    retriever.save(tmp_path / "model")
    body = {"image": {"id": ["3", "4"]}, "text": {"features": x[3:5, :4].tolist()}}
    answer = make_client(tmp_path / "model").post("/v1/score", json=body).json()
    assert answer["absent"] is None
    for pair, expected in zip(answer["pairs"], retriever.score_pairs(x[3:5], x[3:5, :4]), strict=True):
        assert pair["true_percentile"] == pytest.approx(expected.true_percentile, abs=1e-2)
        assert pair["false_percentile"] == pytest.approx(expected.false_percentile, abs=1e-2)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"text": "a star"}, 422, "image: Field required"),
        ({"image": {"id": ["a", "b"]}, "text": "a star"}, 422, "2 images for 1 text"),
        ({"image": {"id": "x", "features": [1.0]}, "text": "a star"}, 422, "exactly one of"),
        ({"image": ["x"], "text": "a star"}, 422, "image"),
        ({"image": {"id": "nothing"}, "text": "a star"}, 404, "no item 'nothing'"),
        ({"image": {"features": [1.0]}, "text": "a star"}, 422, "expects"),
        ({"image": {"text": "a star"}, "text": "a star"}, 422, "takes files"),
        ({"image": {"id": "x"}, "text": ["a"] * 65}, 422, "at most 64"),
        ({"image": {"id": "x"}, "text": "a" * 2001}, 422, "at most 2000"),
    ],
)
def test_pairs_that_cannot_be_scored(client, body, status, words):
    assert words in detail(client.post("/v1/score", json=body), status)
