"""Stored pairs that look wrong, over HTTP."""

import threading

import numpy as np
import pytest

from diptych import InputError, Retriever
from diptych.data import PairedDataset, PairedViews
from diptych.retrieval import audit_pairs
from diptych.service import _service
from servers import detail, problem, wait_until


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """A saved model of 200 images with two captions each, of which three have exchanged their images."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 8)).astype(np.float32)
    pairing = np.repeat(np.arange(200), 2)
    y = (x[pairing, :6] + 0.1 * rng.normal(size=(400, 6))).astype(np.float32)
    y[[10, 50, 90]] = y[[50, 90, 10]]
    metadata = {f"{i}#{j}": {"part": i % 2} for i in range(200) for j in range(2)}
    place = tmp_path_factory.mktemp("exchanged") / "model"
    Retriever.from_features(x, y, pairing, metadata=metadata).save(place)
    return place, x, y, pairing


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Requests wait for an audit, however slow the machine is."""
    monkeypatch.setattr(_service, "AUDIT_SECONDS", 60)


def test_stored_pairs_are_audited_as_pairs_are(exchanged):
    place, x, y, pairing = exchanged
    audit = Retriever.load(place).audit()
    data = PairedDataset(tuple(map(str, range(200))), ("",) * 400, pairing)
    expected = audit_pairs(PairedViews(data, x, y))

    np.testing.assert_allclose(audit.scores, expected.scores, atol=1e-5)
    np.testing.assert_allclose(audit.wrong, expected.wrong, atol=1e-4)
    lowest = [pair.text_id for pair in audit][:3]
    assert set(lowest) == {"5#0", "25#0", "45#0"}


def test_the_lowest_pairs_are_listed_page_by_page(make_client, exchanged):
    client, audit = make_client(exchanged[0]), Retriever.load(exchanged[0]).audit()
    listed, more = [], True
    while more:
        page = client.get("/v1/audit", params={"offset": len(listed), "limit": 150}).json()
        listed, more = listed + page["pairs"], page["more"]
    # Nearly equal scores may change places: the server may use another number of threads.
    assert {pair["caption"]["id"] for pair in listed} == {pair.text_id for pair in audit}
    assert all(pair["caption"]["image"] == pair["image"]["id"] for pair in listed)
    assert [pair["score"] for pair in listed] == pytest.approx([pair.score for pair in audit], rel=1e-5)
    assert [pair["flagged"] for pair in listed] == [pair.flagged for pair in audit]
    assert (page["total"], page["flagged"], page["outdated"]) == (400, audit.flagged.sum(), False)
    assert page["share"] == pytest.approx(audit.share, rel=1e-5)
    odd = client.get("/v1/audit", params={"where": "part = 1"}).json()
    assert odd["total"] == 200
    assert {pair["caption"]["metadata"]["part"] for pair in odd["pairs"]} == {1}
    assert problem(client.get("/v1/audit", params={"where": "colour = 1"})) == (422, "bad-filter")
    assert "at most 200" in detail(client.get("/v1/audit", params={"limit": 201}), 422)


def test_what_changes_is_audited_again_and_the_last_audit_shown_meanwhile(
    make_client, exchanged, tmp_path, monkeypatch
):
    Retriever.load(exchanged[0]).save(tmp_path / "model")
    client, audit, may_run, runs = make_client(tmp_path / "model", writable=True), Retriever.audit, None, []

    def run_slowly(retriever):
        runs.append(may_run.wait(60))
        return audit(retriever)

    monkeypatch.setattr(Retriever, "audit", run_slowly)
    monkeypatch.setattr(_service, "AUDIT_SECONDS", 0.05)
    may_run = threading.Event()
    for _ in range(2):
        refused = client.get("/v1/audit")
        assert problem(refused) == (503, "busy")
        assert refused.headers["retry-after"] == "5"
    may_run.set()
    wait_until(lambda: client.get("/v1/audit").status_code == 200)
    assert len(runs) == 1
    may_run = threading.Event()
    before = client.get("/v1/audit").json()
    removed = before["pairs"][0]["caption"]["id"]
    client.delete(f"/v1/items/{removed.replace('#', '%23')}")
    page = client.get("/v1/audit").json()
    assert (page["total"], page["flagged"], page["outdated"]) == (399, before["flagged"] - 1, True)
    assert removed not in {pair["caption"]["id"] for pair in page["pairs"]}
    may_run.set()
    wait_until(lambda: not client.get("/v1/audit").json()["outdated"])
    assert client.get("/v1/audit").json()["total"] == 399
    assert len(runs) == 2


def test_a_library_too_large_for_a_clients_request_is_not_audited(make_client, exchanged):
    client = make_client(exchanged[0], audit_captions=399)
    assert "at most 399 captions, and this library has 400" in detail(client.get("/v1/audit"), 422)
    assert make_client(exchanged[0], audit_captions=400).get("/v1/audit").status_code == 200


def test_an_audit_that_is_not_possible_says_why(make_client, rng):
    x = rng.normal(size=(60, 4)).astype(np.float32)
    for retriever, reason in (
        (Retriever.from_features(x, x), "there are 60 images with captions; an audit needs 100."),
        (Retriever.from_features(x, x, keep_features=False), "the features of the items are not kept"),
    ):
        with pytest.raises(InputError, match=reason):
            retriever.audit()
        client = make_client(retriever)
        assert detail(client.get("/v1/audit"), 422, "bad-input").startswith(reason)
