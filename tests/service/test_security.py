"""Who may come in, and what they may not do."""

import json
import logging

import httpx
import pytest
from PIL import Image

from diptych import InputError, Retriever
from diptych.service._security import HEADERS, check_token, is_loopback
from saved_files import edit_config, files_of, seal

TOKEN = "0123456789abcdef0123"


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        *(("127.0.0.1", True), ("127.8.8.8", True), ("localhost", True), ("::1", True), ("[::1]", True)),
        *(("0.0.0.0", False), ("::", False), ("192.168.1.5", False), ("localhost.example.com", False)),
    ],
)
def test_loopback(host, is_local):
    assert is_loopback(host) == is_local


def test_other_machines_are_let_in_with_a_token_only():
    assert check_token("127.0.0.1", None) is None
    assert check_token("0.0.0.0", TOKEN) == TOKEN
    with pytest.raises(InputError, match="--token"):
        check_token("0.0.0.0", None)
    with pytest.raises(InputError, match="at least 16"):
        check_token("127.0.0.1", "short")


def test_every_answer_carries_the_headers(client):
    for path in ("/", "/app.js", "/v1/model", "/v1/items/none", "/nowhere"):
        answer = client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_has_no_script_or_style_of_its_own_in_the_markup(client):
    page = client.get("/").text
    assert "<style" not in page
    assert "style=" not in page
    assert "onclick" not in page
    assert "https://" not in page.replace("http://www.w3.org", "")


def test_a_token_guards_all_but_the_page_and_its_health(served, easy):
    client = served(token=TOKEN)
    for path in ("/", "/app.js", "/style.css", "/healthz"):
        assert client.get(path).status_code == 200
    for path in ("/v1/model", "/metrics", f"/v1/items/{easy.image}/thumbnail", "/v1/openapi.json"):
        refused = client.get(path)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
    for wrong in ("Bearer wrong", "Basic " + TOKEN, "Bearer", "Bearer é"):
        given = {"Authorization": wrong.encode("latin-1")}
        assert client.get("/v1/model", headers=given).status_code == 401
    assert client.get("/v1/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_page_trades_the_token_for_a_cookie(served, easy):
    client = served(token=TOKEN)
    assert client.post("/v1/session", json={"token": "x"}).status_code == 401
    answer = client.post("/v1/session", json={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    assert client.get(f"/v1/items/{easy.image}/thumbnail").status_code == 200
    client.cookies.set("diptych_session", "forged", domain="127.0.0.1")
    client.cookies.delete("diptych_session")
    assert client.get("/v1/model", headers={"Cookie": "diptych_session=forged"}).status_code == 401


def test_other_names_and_other_pages_are_turned_away(client, easy):
    # A page whose name was pointed at this machine, and one that posts to it.
    assert client.get("/v1/model", headers={"Host": "evil.example"}).status_code == 421
    asked = {"text": easy.text}
    refused = client.post("/v1/search", json=asked, headers={"Origin": "http://evil.example"})
    assert refused.status_code == 403
    allowed = client.post("/v1/search", json=asked, headers={"Origin": "http://127.0.0.1"})
    assert allowed.status_code == 200


def test_too_much_is_refused_before_it_is_read(served):
    client = served(json_bytes=2000, upload_bytes=30_000)
    long = client.post("/v1/search", json={"text": "a" * 3000})
    assert long.status_code == 413
    assert long.json()["type"].endswith("too-large")
    assert client.post("/v1/annotate", files={"image": b"x" * 40_000}).status_code == 413

    def unannounced():
        yield from (b"a" * 1000 for _ in range(50))

    said = {"content-type": "application/json"}
    assert client.post("/v1/search", content=unannounced(), headers=said).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/v1/items/..%2f..%2f..%2fetc%2fpasswd/image",
        "/v1/items/%2Fetc%2Fpasswd/image",
        "/..%2f..%2fpyproject.toml",
        "/page/../app.py",
        "/%2e%2e/serve.py",
        "/app.py",
    ],
)
def test_no_path_of_a_request_reaches_the_file_system(client, path):
    assert client.get(path).status_code == 404


def test_a_hostile_model_shows_pictures_and_nothing_else(served, tmp_path, rng):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    (tmp_path / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>")
    picture = tmp_path / "true.png"
    Image.new("RGB", (40, 30), "red").save(picture)
    hidden = rng.normal(size=(60, 3))
    places = [secret, "/etc/passwd", "/dev/zero", tmp_path / "page.svg", tmp_path / "gone.png", picture]
    paths = [*places, *[picture] * 54]
    y = hidden + 0.1 * rng.normal(size=hidden.shape)
    Retriever.from_features(hidden, y, paths=paths).save(tmp_path / "model")
    client = served(tmp_path / "model")
    for row in range(5):
        answer = client.get(f"/v1/items/{row}/image")
        assert answer.status_code == 404
        assert b"secret" not in answer.content
        assert str(tmp_path).encode() not in answer.content
    assert client.get("/v1/items/5/image").content[8:12] == b"WEBP"


def test_numbers_that_json_lacks_are_refused_where_they_are_read(served, own_folder, easy):
    items = files_of(own_folder) / "items.jsonl"
    whole = items.read_text()
    lines = whole.splitlines()
    first = json.loads(lines[0])
    first["metadata"]["weight"] = float("nan")
    items.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    seal(own_folder)
    with pytest.raises(InputError, match="line 1, is not an item"):
        served(own_folder)
    items.write_text(whole)
    facts = json.loads((files_of(own_folder) / "config.json").read_text())["facts"]
    edit_config(own_folder, facts={**facts, "odd": float("inf")})
    with pytest.raises(InputError, match="Infinity is not a JSON number"):
        served(own_folder)


def test_the_log_keeps_what_was_asked_to_itself(served, easy, caplog):
    with caplog.at_level(logging.INFO, "diptych.access"):
        served().post("/v1/search", json={"text": easy.text})
        assert "POST /v1/search 200" in caplog.text
        assert easy.text not in caplog.text
        served(log=True).post("/v1/search", json={"text": easy.text})
        assert easy.text in caplog.text


def test_more_than_can_be_served_are_told_to_come_back(served, easy):
    client = served(requests=1, waiting=1, concurrency=1)
    service = client.service
    service.batcher.pending = 2
    answer = client.post("/v1/search", json={"text": easy.text})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    service.batcher.pending = 0
    assert client.post("/v1/search", json={"text": easy.text}).status_code == 200


@pytest.mark.parametrize("host", ["[", "[::1", "127.0.0.1:x]["])
def test_a_host_that_is_none_is_refused(client, host):
    assert client.get("/v1/model", headers={"Host": host}).status_code == 421


def test_an_origin_that_is_none_is_refused(client, easy):
    answer = client.post("/v1/search", json={"text": easy.text}, headers={"Origin": "http://["})
    assert answer.status_code == 403


def test_a_defect_carries_the_headers_too(served, easy, monkeypatch, caplog):
    client = served()
    monkeypatch.setattr(client.service, "search", lambda *asked: 1 / 0)
    answer = client.post("/v1/search", json={"text": easy.text})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "ZeroDivisionError" in caplog.text
    counted = 'diptych_requests_total{method="POST",route="/v1/search",status="500"} 1.0'
    assert counted in client.get("/metrics").text


def test_who_asked_is_believed_from_named_proxies_only(start, folder):
    for trusted, seen in (({}, "127.0.0.1"), ({"FORWARDED_ALLOW_IPS": "127.0.0.1"}, "203.0.113.9")):
        server = start(folder, **trusted)
        httpx.get(f"{server.url}/v1/model", headers={"X-Forwarded-For": "203.0.113.9"})
        _, logged = server.stop()
        assert f"{seen} GET /v1/model 200" in logged


def test_a_filter_that_is_no_number_is_refused(client, easy):
    for value in ("NaN", "Infinity", "-Infinity", "[1, NaN]"):
        body = f'{{"text": "{easy.text}", "where": {{"split": {value}}}}}'
        answer = client.post("/v1/search", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 422
