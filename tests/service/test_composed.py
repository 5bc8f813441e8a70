"""Composed queries, pages, filters and probabilities over HTTP."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA, Retriever
from diptych.service._schemas import MAX_FILTER, MAX_PARTS
from servers import detail, ids, problem


def result(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["results"][0]


def names(hits):
    return [hit.id for hit in hits]


def test_queries_are_composed_of_texts_items_and_features(client, retriever, easy, path_of):
    row = retriever.encoders.encode_texts(["two boats"])[0]
    body = {
        "text": "a red star",
        "k": 50,
        "plus": ["night", {"id": easy.image, "weight": 2}, {"id": easy.id}],
        "minus": [{"features": row.tolist(), "weight": 0.5}, {"text": "a tree"}],
    }
    expected = retriever.search(
        "a red star", k=50, plus=["night", (path_of(easy.image), 2), easy.text], minus=[(row, 0.5), "a tree"]
    )
    found = result(client.post("/v1/search", json=body))
    assert [hit["id"] for hit in found["hits"]] == names(expected)
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == pytest.approx([hit.score for hit in expected], abs=1e-4)
    assert {hit["probability"] for hit in found["hits"]} == {None}
    annotated = client.post("/v1/annotate", json={"id": easy.image, "plus": ["night"], "minus": ["a boat"]})
    assert ids(annotated) == names(
        retriever.annotate(path_of(easy.image), k=12, plus=["night"], minus=["a boat"])
    )
    similar = client.post("/v1/similar", json={"id": easy.image, "plus": ["night"], "k": 9})
    assert ids(similar) == names(retriever.similar(image=path_of(easy.image), plus=["night"], k=9))


def test_parts_come_with_an_uploaded_image(client, retriever, easy, path_of):
    fields = {
        "k": "6",
        "offset": "3",
        "plus": json.dumps(["night"]),
        "minus": json.dumps([{"text": "a boat", "weight": 0.5}]),
        "where": 'split = "train"',
    }
    answer = client.post("/v1/annotate", files={"image": Path(path_of(easy.image)).read_bytes()}, data=fields)
    options = {"plus": ["night"], "minus": [("a boat", 0.5)], "where": {"split": "train"}}
    assert ids(answer) == names(retriever.annotate(path_of(easy.image), k=6, offset=3, **options))
    broken = client.post("/v1/annotate", files={"image": b"x"}, data=fields | {"plus": "[night"})
    assert problem(broken) == (422, "bad-request")
    assert "plus: it is not valid JSON" in broken.text


def test_ignored_words_of_all_texts_are_named(client):
    body = {"text": "a red quokka", "plus": ["a wombat boat"], "minus": ["a numbat star"]}
    assert result(client.post("/v1/search", json=body))["ignored_words"] == ["quokka", "wombat", "numbat"]
    several = client.post("/v1/search", json={"text": ["a red quokka", "a star"]}).json()["results"]
    assert [part["ignored_words"] for part in several] == [["quokka"], []]


def test_a_string_is_never_a_file(client, path_of, easy, tmp_path):
    # The name has a word that the model knows; whether the folders have one too depends on where tests run.
    path = shutil.copy(path_of(easy.image), tmp_path / "a boat.png")
    found, as_text, as_image = (
        result(client.post("/v1/search", json={"text": "a star", "plus": [part]}))
        for part in (str(path), {"text": str(path)}, {"id": easy.image})
    )
    assert "png" in found["ignored_words"]
    assert found["hits"] == as_text["hits"]
    assert found["hits"] != as_image["hits"]


def test_wrong_requests_say_what_is_wrong(client):
    for body, kind, words in (
        ({"plus": [{"text": "night", "weight": 0}]}, "bad-request", "greater than 0"),
        ({"plus": [{"text": "night", "weight": -1}]}, "bad-request", "greater than 0"),
        ({"plus": [{"text": "night", "weight": 1e155}]}, "bad-request", "less than or equal to 1000"),
        ({"plus": [{"weight": 2}]}, "bad-request", "give exactly one of text, id or features"),
        ({"plus": [{"text": "night", "id": "x"}]}, "bad-request", "give exactly one of"),
        ({"plus": [{"text": "night", "path": "x"}]}, "bad-request", "path"),
        ({"plus": [3]}, "bad-request", "plus.0: expected a text, or an object with text, id or features"),
        ({"plus": "night"}, "bad-request", "plus"),
        ({"plus": [" "]}, "bad-request", "it is empty"),
        ({"plus": ["night"] * (MAX_PARTS + 1)}, "bad-request", f"at most {MAX_PARTS}"),
        ({"plus": ["night " * 500]}, "bad-input", "at most 2000 are accepted"),
        ({"plus": [{"features": [[1.0], [2.0]]}]}, "bad-request", "one id or one row of features"),
        ({"plus": [{"features": [1.0]}]}, "bad-input", "the features have 1 numbers"),
        ({"minus": ["a red star"]}, "bad-input", "cancel each other"),
        ({"plus": ["night"], "text": ["a star", "a boat"]}, "bad-input", "one query at a time"),
        ({"offset": -1}, "bad-request", "greater than or equal to 0"),
        ({"offset": 195, "k": 6}, "bad-input", "reach beyond the first 200 hits"),
        ({"min_probability": 1.5}, "bad-request", "less than or equal to 1"),
        ({"plus": ["night"], "min_probability": 0.1}, "bad-input", "min_probability"),
        ({"where": "split >"}, "bad-filter", "split >"),
        ({"where": {"split": {"$near": 1}}}, "bad-filter", "$near"),
        ({"where": {"spilt": 1}}, "bad-filter", "did you mean 'split'? The keys there are: 'split'"),
        ({"where": ["a"]}, "bad-filter", "expected an object, or an expression"),
        ({"where": {"split": ["x" * 500] * 40}}, "bad-filter", f"at most {MAX_FILTER} are accepted"),
        ({"where": "x" * (MAX_FILTER + 1)}, "bad-filter", f"at most {MAX_FILTER} are accepted"),
    ):
        assert words in detail(client.post("/v1/search", json={"text": "a red star"} | body), 422, kind)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "[1, NaN]"])
def test_a_filter_by_nan_or_infinity_is_refused(client, value):
    body = f'{{"text": "a star", "where": {{"split": {value}}}}}'
    answer = client.post("/v1/search", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422


def test_deep_requests_are_refused(client):
    for field, (start, middle, end) in {
        "where": ('{"$not":', '{"split": "x"}', "}"),
        "plus": ("[", "", "]"),
    }.items():
        for depth in (20, 900, 50_000):
            body = f'{{"text": "a star", "{field}": {start * depth}{middle}{end * depth}}}'
            for route in ("search", "annotate", "similar"):
                header = {"Content-Type": "application/json"}
                assert client.post(f"/v1/{route}", content=body, headers=header).status_code in (400, 422)


def test_a_part_that_is_no_item_is_unknown(client):
    answer = client.post("/v1/search", json={"text": "a star", "plus": [{"id": "nothing"}]})
    assert answer.status_code == 404


@pytest.mark.parametrize("route", ["search", "annotate", "similar"])
def test_pages_joined_are_one_long_search(client, easy, route):
    body = {"id": easy.id if route == "search" else easy.image}

    def ask(**page):
        found = result(client.post(f"/v1/{route}", json=body | page))
        return [hit["id"] for hit in found["hits"]], found["more"]

    pages = [ask(k=13, offset=offset) for offset in (0, 13, 26)]
    whole, more = ask(k=39)
    assert [hit for page, _ in pages for hit in page] == whole
    assert [more_of_page for _, more_of_page in pages] == [True, True, more]
    assert len(set(whole)) == 39


def test_filters_have_operators_and_expressions(client, retriever):
    expected = names(retriever.search("a red star", k=12, where={"split": {"$ne": "train"}}))
    for where in (
        {"split": {"$ne": "train"}},
        {"$not": {"split": "train"}},
        'split != "train"',
        'not split = "train"',
        {"$and": ['split != "train"', {"split": {"$exists": True}}]},
        '{"split": {"$nin": ["train"]}}',
        {"split": ["val", "test"]},
    ):
        assert ids(client.post("/v1/search", json={"text": "a red star", "where": where})) == expected
    assert ids(client.post("/v1/search", json={"text": "a red star", "where": {"split": "none such"}})) == []


@pytest.fixture(scope="module")
def calibrated():
    """A retriever with probabilities and metadata, with a good query and a bad one."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(900, 30))
    x, y = (hidden @ rng.normal(size=(30, m)) + rng.normal(size=(900, m)) for m in (40, 36))
    splits = ["train"] * 500 + ["val"] * 300 + ["test"] * 100
    metadata = {
        str(i): {
            "year": 1990 + i % 30,
            "taken": f"20{i % 20:02}-05-01",
            "tags": [f"t{i % 40}", "all"],
            "share": i / 900,
            "mixed": i if i % 2 else "x",
            "flag": bool(i % 2),
        }
        for i in range(900)
    }
    retriever = Retriever.from_features(
        x, y, splits=splits, metadata=metadata, model=AWCCA(params=(1.0, 1.0))
    )
    return retriever, y[-1], 5 * rng.normal(size=36)


def test_probabilities_are_part_of_results(make_client, calibrated):
    retriever, good, bad = calibrated
    client = make_client(retriever)
    answer = client.post("/v1/search", json={"features": [good.tolist(), bad.tolist()], "k": 7})
    assert answer.status_code == 200
    for found, expected in zip(
        answer.json()["results"], retriever.search(np.stack([good, bad]), 7), strict=True
    ):
        assert [hit["probability"] for hit in found["hits"]] == pytest.approx(
            [hit.probability for hit in expected], abs=1e-4
        )
        assert found["more"] is True
    limit = result(answer)["hits"][0]["probability"] / 2
    likely = result(
        client.post("/v1/search", json={"features": good.tolist(), "k": 7, "min_probability": limit})
    )
    assert 0 < len(likely["hits"]) < 7
    assert min(hit["probability"] for hit in likely["hits"]) >= limit
    assert likely["more"] is False


def test_the_model_tells_ranges_keys_and_calibration(make_client, calibrated):
    about = make_client(calibrated[0]).get("/v1/model").json()
    assert about["ranges"] == {
        "share": pytest.approx([0, 899 / 900], abs=1e-5),
        "taken": ["2000-05-01", "2019-05-01"],
        "year": [1990, 2019],
    }
    assert about["keys"] == ["flag", "mixed", "share", "split", "tags", "taken", "year"]
    assert about["histograms"]["year"] == [60] * 15  # two years each
    assert about["histograms"]["share"] == np.histogram(np.arange(900) / 900, 20)[0].tolist()
    assert set(about["calibration"]) == {"search", "annotate"}
    assert {"method", "pairs", "ece"} <= set(about["calibration"]["search"])
