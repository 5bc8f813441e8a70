"""Results on disk: only what changed is computed, and partial results are not stored."""

import json

import numpy as np
import pytest

from reproduction.results import Cache, code_digest, digest, digest_array, plain


def test_a_result_is_computed_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"value": np.float64(0.1), "rows": np.arange(3), "missing": float("nan")}

    first = Cache(tmp_path).fetch("a b", {"x": 1}, compute)
    again = Cache(tmp_path)
    assert (
        again.fetch("a b", {"x": 1}, compute) == first == {"value": 0.1, "rows": [0, 1, 2], "missing": None}
    )
    assert len(calls) == 1
    assert (again.computed, again.read) == ([], ["a b"])


def test_a_result_with_other_inputs_is_computed_again(tmp_path):
    cache = Cache(tmp_path)
    for inputs in ({"x": 1}, {"x": 2}, {"x": 1, "version": 2}):
        cache.fetch("a", inputs, lambda inputs=inputs: {"for": inputs})
    assert cache.fetch("a", {"x": 2}, lambda: {"for": "nothing"})["for"] == {"x": 2}
    assert len(cache.computed) == 3


def test_an_interruption_stores_no_partial_result(tmp_path):
    cache = Cache(tmp_path)
    cache.fetch("finished", {}, lambda: {"done": True})

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.fetch("unfinished", {}, interrupted)
    assert [json.loads(file.read_text())["name"] for file in tmp_path.iterdir()] == ["finished"]


def test_a_change_of_the_code_is_computed_again(tmp_path, monkeypatch):
    Cache(tmp_path).fetch("a", {}, lambda: {"value": 1})
    monkeypatch.setattr("reproduction.results.code_digest", lambda: "other code")
    assert Cache(tmp_path).fetch("a", {}, lambda: {"value": 2}) == {"value": 2}


def test_the_code_digest_covers_the_cca_code(monkeypatch, tmp_path):
    package = tmp_path / "diptych"
    (package / "cca").mkdir(parents=True)
    (package / "service").mkdir()
    (tmp_path / "reproduction").mkdir()
    monkeypatch.setattr("diptych.__file__", str(package / "__init__.py"))
    monkeypatch.setattr("reproduction.results.__file__", str(tmp_path / "reproduction" / "results.py"))

    def digest_after(file, text):
        (package / file).write_text(text)
        return code_digest.__wrapped__()

    first = digest_after("cca/_fit.py", "x = 1")
    assert digest_after("cca/_fit.py", "x = 2") != first
    assert digest_after("cca/_fit.py", "x = 1") == first
    assert digest_after("service/_app.py", "x = 1") == first
    assert digest_after("../reproduction/maps.py", "x = 1") != first


def test_a_damaged_file_is_computed_again(tmp_path):
    Cache(tmp_path).fetch("a", {}, lambda: {"value": 1})
    next(tmp_path.glob("*.json")).write_text('{"result": ')
    assert Cache(tmp_path).fetch("a", {}, lambda: {"value": 1}) == {"value": 1}


def test_digests_follow_the_content():
    rows = np.arange(12.0).reshape(4, 3)
    assert digest_array(rows) == digest_array(rows.copy(), block_bytes=24)
    assert digest_array(rows) != digest_array(rows.astype(np.float32))
    assert digest_array(rows) != digest_array(rows.reshape(3, 4))
    assert digest({"a": rows}) == digest({"a": rows.tolist()})
    assert plain({"a": (np.int64(1), None)}) == {"a": [1, None]}
