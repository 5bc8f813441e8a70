"""Items that are no images: files that are sent as they are, uploads for other encoders, names of views."""

import json
import os

import pytest
from starlette.testclient import TestClient
from tones import encode_captions, encode_tones, write_tones

from diptych import Retriever
from diptych._checks import ViewNames
from diptych.service import Limits, create_app

LOCAL = "http://127.0.0.1"
TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    return write_tones(tmp_path_factory.mktemp("tones"))


def fit(tones, paths=None, **options):
    """A model of tones, whose items may have other files."""
    files, captions = tones
    return Retriever.from_features(
        encode_tones(files),
        encode_captions(captions),
        ids=[file.name for file in files],
        captions=captions,
        paths=files if paths is None else paths,
        **options,
    )


@pytest.fixture
def client_of():
    """Make clients of retrievers in memory: ``client_of(retriever, k=5)``."""
    clients = []

    def make(retriever, *, send_files=False, token=None, **limits):
        app = create_app(
            retriever, limits=Limits(decoders=1, **limits), send_files=send_files, token=token, threads=1
        )
        clients.append(TestClient(app, LOCAL, raise_server_exceptions=False))
        return clients[-1].__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)


@pytest.fixture
def audio(client_of, tones):
    return client_of(fit(tones))


def test_an_audio_file_is_sent_as_it_is(audio, tones):
    (path, *_), _ = tones
    answer = audio.get("/v1/items/tone-000.wav/file")
    assert (answer.status_code, answer.content) == (200, path.read_bytes())
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "media-src 'self' blob:" in answer.headers["content-security-policy"]
    head = audio.head("/v1/items/tone-000.wav/file")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(path.stat().st_size)
    again = audio.get("/v1/items/tone-000.wav/file", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        ("bytes=0-9", slice(0, 10)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-7", slice(-7, None)),
        ("bytes=5-99999999", slice(5, None)),
    ],
)
def test_a_part_of_a_file_is_sent(audio, tones, asked, part):
    whole = tones[0][0].read_bytes()
    answer = audio.get("/v1/items/tone-000.wav/file", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, whole[part])
    start = part.indices(len(whole))[0]
    end = start + len(answer.content) - 1
    assert answer.headers["content-range"] == f"bytes {start}-{end}/{len(whole)}"


@pytest.mark.parametrize("asked", ["bytes=9-2", "bytes=", "bytes=-", "bytes=a-b", "items=0-1", "bytes=0-1,5-6"])
def test_ranges_that_are_not_understood_are_ignored(audio, tones, asked):
    answer = audio.get("/v1/items/tone-000.wav/file", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, tones[0][0].read_bytes())


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=-0"])
def test_a_range_beyond_the_file_is_refused(audio, tones, asked):
    answer = audio.get("/v1/items/tone-000.wav/file", headers={"Range": asked})
    assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (416, "no-range")
    assert answer.headers["content-range"] == f"bytes */{tones[0][0].stat().st_size}"


def test_a_range_of_a_file_that_has_changed_is_ignored(audio, tones):
    headers = {"Range": "bytes=0-9", "If-Range": '"of another file"'}
    assert audio.get("/v1/items/tone-000.wav/file", headers=headers).status_code == 200


def test_only_audio_and_video_are_sent(client_of, tones, tmp_path):
    """Neither a name nor a link makes the server send another file."""
    sound = tones[0][0].read_bytes()
    secret = tmp_path / "secret"
    secret.write_text("the password is swordfish")
    files = {
        "secret": secret,
        "renamed.wav": tmp_path / "renamed.wav",
        "page.html": tmp_path / "page.html",
        "drawing.svg": tmp_path / "drawing.svg",
        "missing.wav": tmp_path / "missing.wav",
        "folder.wav": tmp_path / "folder.wav",
        "pipe.wav": tmp_path / "pipe.wav",
        "link.wav": tmp_path / "link.wav",
        "link-to-link.mp3": tmp_path / "link-to-link.mp3",
        "utf16.mp3": tmp_path / "utf16.mp3",
        "empty.wav": tmp_path / "empty.wav",
    }
    files["renamed.wav"].write_bytes(secret.read_bytes())
    files["page.html"].write_bytes(sound)
    files["drawing.svg"].write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    files["folder.wav"].mkdir()
    os.mkfifo(files["pipe.wav"])
    files["link.wav"].symlink_to(secret)
    files["link-to-link.mp3"].symlink_to(files["link.wav"])
    files["utf16.mp3"].write_text("swordfish", "utf-16")
    files["empty.wav"].touch()
    (tmp_path / "linked.wav").symlink_to(tones[0][1])
    paths = [*files.values(), tmp_path / "linked.wav", *tones[0][len(files) + 1 :]]
    retriever = fit(tones, paths)
    retriever.views = ViewNames("audio", "text")
    client = client_of(retriever)
    for number, name in enumerate(files):
        answer = client.get(f"/v1/items/tone-{number:03d}.wav/file")
        assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (404, "no-file"), name
        assert str(tmp_path) not in answer.text
    linked = client.get(f"/v1/items/tone-{len(files):03d}.wav/file")
    assert linked.content == tones[0][1].read_bytes()


def test_a_file_that_has_changed_since_is_checked_again(client_of, tones, tmp_path):
    own = tmp_path / "own.wav"
    own.write_bytes(tones[0][0].read_bytes())
    client = client_of(fit(tones, [own, *tones[0][1:]]))
    assert client.get("/v1/items/tone-000.wav/file").status_code == 200
    own.write_text("the password is swordfish")
    assert client.get("/v1/items/tone-000.wav/file").status_code == 404


def test_files_of_other_types_are_attachments_if_they_are_sent(client_of, tones, tmp_path):
    page = tmp_path / "pagé.html"
    page.write_text("<script>alert(document.domain)</script>")
    retriever = fit(tones, [page, *tones[0][1:]])
    retriever.views = ViewNames("document", "text")
    item = client_of(retriever).get("/v1/items/tone-000.wav").json()
    assert (item["media"], item["file_url"], item["file_name"]) == ("file", None, "pagé.html")
    client = client_of(retriever, send_files=True)
    item = client.get("/v1/items/tone-000.wav").json()
    answer = client.get(item["file_url"])
    assert answer.content == page.read_bytes()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''pag%C3%A9.html"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_large_files_are_not_sent(client_of, tones):
    size = tones[0][0].stat().st_size
    answer = client_of(fit(tones), file_bytes=size - 1).get("/v1/items/tone-000.wav/file")
    assert answer.status_code == 404
    assert f"has {size:,} bytes; at most {size - 1:,} are sent" in answer.json()["detail"]
    assert client_of(fit(tones), file_bytes=size).get("/v1/items/tone-000.wav/file").status_code == 200


def test_files_need_the_token(client_of, tones):
    client = client_of(fit(tones), token=TOKEN)
    for method in ("GET", "HEAD"):
        assert client.request(method, "/v1/items/tone-000.wav/file").status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert client.request(method, "/v1/items/tone-000.wav/file", headers=headers).status_code == 200


def test_there_is_no_file_of_captions_images_and_features(audio, client, easy, make_client, fused_folder):
    for own, item_id in (
        (audio, "tone-000.wav%230"),
        (audio, "nobody"),
        (client, easy.image.replace("/", "%2F")),
        (make_client(fused_folder), "0"),
    ):
        answer = own.get(f"/v1/items/{item_id}/file")
        assert answer.status_code == 404, item_id
    assert audio.get("/v1/items/tone-000.wav/image").status_code == 404
    assert audio.get("/v1/items/tone-000.wav/thumbnail").status_code == 404


def test_an_item_says_how_to_show_it(audio, client, easy, tones):
    item = audio.get("/v1/items/tone-000.wav").json()
    assert item["media"] == "audio"
    assert item["file_url"] == "/v1/items/tone-000.wav/file"
    assert item["file_name"] == "tone-000.wav"
    assert "thumbnail" not in item
    assert str(tones[0][0].parent) not in json.dumps(item)
    hit = audio.post("/v1/search", json={"id": "tone-000.wav#0", "k": 1}).json()["results"][0]["hits"][0]
    assert hit["media"] == "audio"
    image = client.get(f"/v1/items/{easy.image.replace('/', '%2F')}").json()
    assert (image["media"], "file_url" in image) == ("image", False)


def test_messages_use_the_names_of_the_views(client_of, tones):
    retriever = fit(tones)
    retriever.views = ViewNames("audio", "text")
    client = client_of(retriever)
    model = client.get("/v1/model").json()
    assert model["views"] == {"image": "audio", "text": "text"}
    assert model["nouns"]["image"] == ["audio item", "audio items"]
    assert model["can"]["image"] == (
        "This server has no audio encoder for this model; choose one of the stored audio items instead."
    )
    wrong = client.post("/v1/search", json={"id": "tone-000.wav"})
    assert wrong.json()["detail"] == "'tone-000.wav' is an audio item; give the id of a caption."
    short = client.post("/v1/annotate", json={"features": [1, 2]})
    assert short.json()["detail"].endswith("for audio items.")
    refused = client.post("/v1/annotate", files={"image": ("x.wav", b"RIFF")})
    assert (refused.status_code, refused.json()["type"].split(":")[-1]) == (422, "no-encoder")
