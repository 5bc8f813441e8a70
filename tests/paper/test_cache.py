"""Results on disk: only what changed is computed, and half a result is none."""

import json

import numpy as np
import pytest

from diptych.paper._cache import Cache, digest, digest_array, plain


def test_a_result_is_computed_once(tmp_path):
    calls = []

    def compute():
        calls.append(1)
        return {"value": np.float64(0.1), "rows": np.arange(3), "missing": float("nan")}

    first = Cache(tmp_path).remember("a b", {"x": 1}, compute)
    again = Cache(tmp_path)
    assert (
        again.remember("a b", {"x": 1}, compute)
        == first
        == {"value": 0.1, "rows": [0, 1, 2], "missing": None}
    )
    assert len(calls) == 1
    assert (again.computed, again.found) == ([], ["a b"])


def test_what_changed_is_computed_again(tmp_path):
    cache = Cache(tmp_path)
    for inputs in ({"x": 1}, {"x": 2}, {"x": 1, "version": 2}):
        cache.remember("a", inputs, lambda inputs=inputs: {"for": inputs})
    assert cache.remember("a", {"x": 2}, lambda: {"for": "nothing"})["for"] == {"x": 2}
    assert len(cache.computed) == 3


def test_an_interruption_leaves_nothing_half_done(tmp_path):
    cache = Cache(tmp_path)
    cache.remember("finished", {}, lambda: {"done": True})

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.remember("unfinished", {}, interrupted)
    assert [json.loads(file.read_text())["name"] for file in tmp_path.iterdir()] == ["finished"]


def test_a_damaged_file_is_computed_again(tmp_path):
    Cache(tmp_path).remember("a", {}, lambda: {"value": 1})
    next(tmp_path.glob("*.json")).write_text('{"result": ')
    assert Cache(tmp_path).remember("a", {}, lambda: {"value": 1}) == {"value": 1}


def test_digests_follow_the_content():
    rows = np.arange(12.0).reshape(4, 3)
    assert digest_array(rows) == digest_array(rows.copy(), block_bytes=24)
    assert digest_array(rows) != digest_array(rows.astype(np.float32))
    assert digest_array(rows) != digest_array(rows.reshape(3, 4))
    assert digest({"a": rows}) == digest({"a": rows.tolist()})
    assert plain({"a": (np.int64(1), None)}) == {"a": [1, None]}
