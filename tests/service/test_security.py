"""The token, hosts and origins, sizes, headers, and the access log."""

import json
import logging
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

from diptych import InputError, Retriever
from diptych.service._security import (
    HEADERS,
    MOST_ADDRESSES,
    SESSION_SECONDS,
    WRONG_SECONDS,
    WRONG_TOKENS,
    Access,
    check_token,
    is_loopback,
)
from diptych.service._serve import make_server
from saved_files import edit_config, files_of
from servers import TOKEN, make_service


def test_loopback_addresses_are_recognised():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.5", "localhost.example.com")))


def test_listening_for_other_machines_needs_a_token():
    assert check_token("127.0.0.1", None) is None
    assert check_token("0.0.0.0", TOKEN) == TOKEN
    with pytest.raises(InputError, match="--token"):
        check_token("0.0.0.0", None)
    for weak in ("short", " " * 20, f"{TOKEN} ", "0123456789abcdef\t123", "0123456789abcdéf0123"):
        with pytest.raises(InputError, match="at least 16"):
            check_token("127.0.0.1", weak)


def test_every_response_has_the_security_headers(client):
    for path in ("/", "/app.js", "/v1/model", "/v1/items/none", "/nowhere"):
        answer = client.get(path)
        for name, value in HEADERS.items():
            assert answer.headers[name] == value
    policy = client.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "http" not in policy


def test_the_page_has_no_inline_script_or_style(client):
    page = client.get("/").text
    assert "<style" not in page
    assert "style=" not in page
    assert "onclick" not in page
    assert "https://" not in page.replace("http://www.w3.org", "")


def test_everything_but_the_page_and_health_needs_the_token(make_client, easy):
    client = make_client(token=TOKEN)
    for path in ("/", "/app.js", "/style.css", "/healthz"):
        assert client.get(path).status_code == 200
    item = f"/v1/items/{easy.image}"
    for path in ("/v1/model", "/metrics", f"{item}/thumbnail", f"{item}/file", "/v1/openapi.json"):
        for method in ("GET", "HEAD"):
            refused = client.request(method, path)
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
    for wrong in ("Bearer wrong", "Basic " + TOKEN, "Bearer", "Bearer é"):
        header = {"Authorization": wrong.encode("latin-1")}
        assert client.get("/v1/model", headers=header).status_code == 401
    assert client.get("/v1/model", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_the_token_is_exchanged_for_a_cookie(make_client, easy):
    client = make_client(token=TOKEN)
    assert client.post("/v1/session", json={"token": "x"}).status_code == 401
    answer = client.post("/v1/session", json={"token": TOKEN})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert f"Max-Age={SESSION_SECONDS}" in cookie
    assert TOKEN not in cookie
    assert client.get(f"/v1/items/{easy.image}/thumbnail").status_code == 200
    client.cookies.set("diptych_session", "forged", domain="127.0.0.1")
    client.cookies.delete("diptych_session")
    assert client.get("/v1/model", headers={"Cookie": "diptych_session=forged"}).status_code == 401


def test_a_cookie_expires(make_client, monkeypatch):
    client, now = make_client(token=TOKEN), time.time()
    client.post("/v1/session", json={"token": TOKEN})
    cookie = client.cookies["diptych_session"]
    expires, _, signature = cookie.partition(".")
    client.cookies.clear()

    def status(value):
        return client.get("/v1/model", headers={"Cookie": f"diptych_session={value}"}).status_code

    assert status(cookie) == 200
    for forged in (
        f"{int(expires) + 1}.{signature}",
        f"{expires}.",
        expires,
        f".{signature}",
        f"x.{signature}",
    ):
        assert status(forged) == 401
    monkeypatch.setattr("time.time", lambda: now + SESSION_SECONDS - 60)
    assert status(cookie) == 200
    monkeypatch.setattr("time.time", lambda: now + SESSION_SECONDS + 60)
    assert status(cookie) == 401


def test_guesses_are_limited(make_client):
    """Of 200 parallel guesses few are compared, and then the token itself is refused from that address."""
    client = make_client(token=TOKEN)

    def guess(number):
        if number % 2:
            return client.post("/v1/session", json={"token": f"guess {number}"})
        return client.get("/v1/model", headers={"Authorization": f"Bearer guess-{number}"})

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(guess, range(200)))
    assert Counter(answer.status_code for answer in answers) == {
        401: WRONG_TOKENS - 1,
        429: 201 - WRONG_TOKENS,
    }
    right = client.get("/v1/model", headers={"Authorization": f"Bearer {TOKEN}"})
    assert (right.status_code, right.headers["retry-after"]) == (429, "60")
    assert right.json()["type"].endswith("too-many")
    assert client.post("/v1/session", json={"token": TOKEN}).status_code == 429
    assert client.get("/v1/model").status_code == 429
    # What needs no token is answered as ever.
    assert client.get("/", headers={"Authorization": "Bearer wrong"}).status_code == 200
    assert client.get("/healthz").status_code == 200


def test_wrong_tokens_are_counted_by_address_and_forgotten(monkeypatch):
    access, now = Access(TOKEN), time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    for _ in range(100):  # an outdated cookie, which a browser sends with every image
        assert not access.accepts("browser", cookie="1.outdated")
    assert access.accepts("browser", token=TOKEN)
    for number in range(100):
        assert not access.accepts("attacker", token=f"guess {number}")
        assert not access.accepts("browser", token=f"guess {number}")
    assert not access.accepts("attacker", token=TOKEN)
    assert access.refuse("attacker", "no").status_code == 429
    assert access.accepts("browser", cookie=access.make_cookie())
    assert access.accepts("other", token=TOKEN)
    monkeypatch.setattr("time.monotonic", lambda: now + WRONG_SECONDS + 1)
    assert access.accepts("attacker", token=TOKEN)
    for number in range(3 * MOST_ADDRESSES):
        access.accepts(f"address {number}", token="wrong")
    assert len(access._wrong) == MOST_ADDRESSES


def test_other_hosts_and_origins_are_refused(client, easy):
    # DNS rebinding, and a form of another web page.
    for host in ("evil.example", "[", "[::1", "127.0.0.1:x]["):
        assert client.get("/v1/model", headers={"Host": host}).status_code == 421
    body = {"text": easy.text}
    for origin in ("http://evil.example", "http://["):
        assert client.post("/v1/search", json=body, headers={"Origin": origin}).status_code == 403
    allowed = client.post("/v1/search", json=body, headers={"Origin": "http://127.0.0.1"})
    assert allowed.status_code == 200


def test_too_large_requests_are_refused_before_they_are_read(make_client):
    client = make_client(json_bytes=2000, upload_bytes=30_000)
    long = client.post("/v1/search", json={"text": "a" * 3000})
    assert long.status_code == 413
    assert long.json()["type"].endswith("too-large")
    assert client.post("/v1/annotate", files={"image": b"x" * 40_000}).status_code == 413

    def unannounced():
        yield from (b"a" * 1000 for _ in range(50))

    headers = {"content-type": "application/json"}
    assert client.post("/v1/search", content=unannounced(), headers=headers).status_code == 413


def test_paths_outside_of_the_page_do_not_exist(client):
    for path in (
        "/v1/items/..%2f..%2f..%2fetc%2fpasswd/image",
        "/v1/items/%2Fetc%2Fpasswd/image",
        "/..%2f..%2fpyproject.toml",
        "/page/../app.py",
        "/%2e%2e/serve.py",
        "/app.py",
    ):
        assert client.get(path).status_code == 404, path


def test_a_malicious_model_shows_only_images(make_client, tmp_path, rng):
    secret = tmp_path / "secret.txt"
    secret.write_text("the secret")
    (tmp_path / "page.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>")
    image = tmp_path / "true.png"
    Image.new("RGB", (40, 30), "red").save(image)
    hidden = rng.normal(size=(60, 3))
    places = [secret, "/etc/passwd", "/dev/zero", tmp_path / "page.svg", tmp_path / "gone.png", image]
    paths = [*places, *[image] * 54]
    y = hidden + 0.1 * rng.normal(size=hidden.shape)
    Retriever.from_features(hidden, y, paths=paths).save(tmp_path / "model")
    client = make_client(tmp_path / "model")
    for row in range(5):
        answer = client.get(f"/v1/items/{row}/image")
        assert answer.status_code == 404
        assert b"secret" not in answer.content
        assert str(tmp_path).encode() not in answer.content
    assert client.get("/v1/items/5/image").content[8:12] == b"WEBP"


def test_numbers_that_json_lacks_are_refused_when_read(make_client, copied_folder, easy):
    facts = json.loads((files_of(copied_folder) / "config.json").read_text())["facts"]
    edit_config(copied_folder, facts={**facts, "odd": float("inf")})
    with pytest.raises(InputError, match="config.json is not valid JSON"):
        make_client(copied_folder)


def test_queries_are_logged_only_on_request(make_client, easy, caplog):
    with caplog.at_level(logging.INFO, "diptych.access"):
        make_client().post("/v1/search", json={"text": easy.text})
        assert "POST /v1/search 200" in caplog.text
        assert easy.text not in caplog.text
        make_client(log=True).post("/v1/search", json={"text": easy.text})
        assert easy.text in caplog.text


def test_a_busy_server_answers_503(make_client, easy):
    client = make_client(requests=1, waiting=1, concurrency=1)
    service = client.service
    service.batcher.slots.used = 2
    answer = client.post("/v1/search", json={"text": easy.text})
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    service.batcher.slots.used = 0
    assert client.post("/v1/search", json={"text": easy.text}).status_code == 200


def test_an_internal_error_has_the_security_headers(make_client, easy, monkeypatch, caplog):
    client = make_client()
    monkeypatch.setattr(client.service.batcher, "search", lambda *args, **options: 1 / 0)
    answer = client.post("/v1/search", json={"text": easy.text})
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "ZeroDivisionError" in caplog.text
    counted = 'diptych_requests_total{method="POST",route="/v1/search",status="500"} 1.0'
    assert counted in client.get("/metrics").text


def test_forwarded_addresses_are_used_only_from_trusted_proxies(folder, monkeypatch):
    """That uvicorn listens to this setting is its own matter; a whole server without it is in test_serve."""
    for proxy in ("", "127.0.0.1"):
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", proxy)
        config = make_server(make_service(folder)).config
        assert (config.proxy_headers, config.forwarded_allow_ips) == (bool(proxy), proxy)
