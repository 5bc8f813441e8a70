"""Items that are no images: files that are sent as they are, uploads for other encoders, names of views."""

import json
import os
import shutil
import tempfile

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from diptych import InputError, Retriever
from diptych.service import Limits, create_app
from diptych.service._app import build_app
from diptych.service._model import ModelHolder
from diptych.service._service import Service
from other_views import encode_captions, fit_molecules, fit_tones, make_tones, tone_encoder, write_encoders

LOCAL = "http://127.0.0.1"
TOKEN = "0123456789abcdef0123"


@pytest.fixture(scope="module")
def tones(tmp_path_factory):
    return make_tones(tmp_path_factory.mktemp("tones"))


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
    return client_of(fit_tones(tones))


def test_an_audio_file_is_sent_as_it_is(audio, tones):
    (path, *_), _ = tones
    answer = audio.get("/v1/items/tone%200/file")
    assert (answer.status_code, answer.content) == (200, path.read_bytes())
    assert answer.headers["content-type"] == "audio/wav"
    assert answer.headers["accept-ranges"] == "bytes"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "media-src 'self' blob:" in answer.headers["content-security-policy"]
    head = audio.head("/v1/items/tone%200/file")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(path.stat().st_size)
    again = audio.get("/v1/items/tone%200/file", headers={"If-None-Match": answer.headers["etag"]})
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
    answer = audio.get("/v1/items/tone%200/file", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (206, whole[part])
    start = part.indices(len(whole))[0]
    end = start + len(answer.content) - 1
    assert answer.headers["content-range"] == f"bytes {start}-{end}/{len(whole)}"


@pytest.mark.parametrize(
    "asked", ["bytes=9-2", "bytes=", "bytes=-", "bytes=a-b", "items=0-1", "bytes=0-1,5-6"]
)
def test_ranges_that_are_not_understood_are_ignored(audio, tones, asked):
    answer = audio.get("/v1/items/tone%200/file", headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, tones[0][0].read_bytes())


@pytest.mark.parametrize("asked", ["bytes=99999999-", "bytes=-0"])
def test_a_range_beyond_the_file_is_refused(audio, tones, asked):
    answer = audio.get("/v1/items/tone%200/file", headers={"Range": asked})
    assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (416, "no-range")
    assert answer.headers["content-range"] == f"bytes */{tones[0][0].stat().st_size}"


def test_a_range_of_a_file_that_has_changed_is_ignored(audio, tones):
    headers = {"Range": "bytes=0-9", "If-Range": '"of another file"'}
    assert audio.get("/v1/items/tone%200/file", headers=headers).status_code == 200


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
    client = client_of(fit_tones(tones, paths))
    for number, name in enumerate(files):
        answer = client.get(f"/v1/items/tone%20{number}/file")
        assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (404, "no-file"), name
        assert str(tmp_path) not in answer.text
    linked = client.get(f"/v1/items/tone%20{len(files)}/file")
    assert linked.content == tones[0][1].read_bytes()


def test_a_file_that_has_changed_since_is_checked_again(client_of, tones, tmp_path):
    own = tmp_path / "own.wav"
    own.write_bytes(tones[0][0].read_bytes())
    client = client_of(fit_tones(tones, [own, *tones[0][1:]]))
    assert client.get("/v1/items/tone%200/file").status_code == 200
    own.write_text("the password is swordfish")
    assert client.get("/v1/items/tone%200/file").status_code == 404


def test_files_of_other_types_are_attachments_if_they_are_sent(client_of, tones, tmp_path):
    page = tmp_path / "pagé.html"
    page.write_text("<script>alert(document.domain)</script>")
    retriever = fit_tones(tones, [page, *tones[0][1:]], views=("document", "text"))
    item = client_of(retriever).get("/v1/items/tone%200").json()
    assert (item["media"], item["file_url"], item["file_name"]) == ("file", None, "pagé.html")
    client = client_of(retriever, send_files=True)
    item = client.get("/v1/items/tone%200").json()
    answer = client.get(item["file_url"])
    assert answer.content == page.read_bytes()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''pag%C3%A9.html"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_large_files_are_not_sent(client_of, tones):
    size = tones[0][0].stat().st_size
    answer = client_of(fit_tones(tones), file_bytes=size - 1).get("/v1/items/tone%200/file")
    assert answer.status_code == 404
    assert f"has {size:,} bytes; at most {size - 1:,} are sent" in answer.json()["detail"]
    assert client_of(fit_tones(tones), file_bytes=size).get("/v1/items/tone%200/file").status_code == 200


def test_files_need_the_token(client_of, tones):
    client = client_of(fit_tones(tones), token=TOKEN)
    for method in ("GET", "HEAD"):
        assert client.request(method, "/v1/items/tone%200/file").status_code == 401
        headers = {"Authorization": f"Bearer {TOKEN}"}
        assert client.request(method, "/v1/items/tone%200/file", headers=headers).status_code == 200


def test_there_is_no_file_of_captions_images_and_features(audio, client, easy, make_client, fused_folder):
    for own, item_id in (
        (audio, "tone%200%230"),
        (audio, "nobody"),
        (client, easy.image.replace("/", "%2F")),
        (make_client(fused_folder), "0"),
    ):
        answer = own.get(f"/v1/items/{item_id}/file")
        assert answer.status_code == 404, item_id
    assert audio.get("/v1/items/tone%200/image").status_code == 404
    assert audio.get("/v1/items/tone%200/thumbnail").status_code == 404


def test_an_item_says_how_to_show_it(audio, client, easy, tones):
    item = audio.get("/v1/items/tone%200").json()
    assert item["media"] == "audio"
    assert item["file_url"] == "/v1/items/tone%200/file"
    assert item["file_name"] == "0.wav"
    assert "thumbnail" not in item
    assert str(tones[0][0].parent) not in json.dumps(item)
    hit = audio.post("/v1/search", json={"id": "tone 0#0", "k": 1}).json()["results"][0]["hits"][0]
    assert hit["media"] == "audio"
    image = client.get(f"/v1/items/{easy.image.replace('/', '%2F')}").json()
    assert (image["media"], "file_url" in image) == ("image", False)


def test_messages_use_the_names_of_the_views(client_of, tones):
    client = client_of(fit_tones(tones))
    model = client.get("/v1/model").json()
    assert model["views"] == {"image": "audio", "text": "text"}
    assert model["nouns"]["image"] == ["audio item", "audio items"]
    assert model["can"]["image"] == (
        "This server has no audio encoder for this model; choose one of the stored audio items instead."
    )
    wrong = client.post("/v1/search", json={"id": "tone 0"})
    assert wrong.json()["detail"] == "'tone 0' is an audio item; give the id of a caption."
    short = client.post("/v1/annotate", json={"features": [1, 2]})
    assert short.json()["detail"].endswith("for audio items.")
    refused = client.post("/v1/annotate", files={"image": ("x.wav", b"RIFF")})
    assert (refused.status_code, refused.json()["type"].split(":")[-1]) == (422, "no-encoder")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def upload(client, name, content, **fields):
    return client.post("/v1/annotate", files={"image": (name, content)}, data=fields)


def test_an_uploaded_audio_file_finds_texts(client_of, tones, temporary):
    """A program has the encoder of its retriever in memory."""
    retriever = fit_tones(tones, image_encoder=tone_encoder())
    client = client_of(retriever)
    model = client.get("/v1/model").json()
    assert (model["can"]["image"], model["inputs"], model["uploads"]) == (None, "paths", [".wav"])
    for number in (3, 40):
        path, caption = tones[0][number], tones[1][number]
        answer = upload(client, "Straße 7.WAV", path.read_bytes(), k=3)
        assert answer.status_code == 200, answer.text
        hits = answer.json()["results"][0]["hits"]
        assert [hit["id"] for hit in hits] == [hit.id for hit in retriever.annotate(path, k=3)]
        assert hits[0]["text"] == caption
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.wav", b""),
        ("x.wav", b"RIFF\xff\xff\xff\xffWAVE"),
        ("x.wav", os.urandom(4000)),
        ("x.mp3", b"ID3"),
        ("x", b"RIFF"),
        ("../../x.wav/../y", b"RIFF"),
    ],
)
def test_unreadable_uploads_are_refused(client_of, tones, temporary, name, content):
    answer = upload(client_of(fit_tones(tones, image_encoder=tone_encoder())), name, content)
    assert (answer.status_code, answer.json()["type"].split(":")[-1]) == (422, "unreadable-file")
    assert str(temporary) not in answer.text
    assert list(temporary.iterdir()) == []


def test_large_uploads_are_refused(client_of, tones):
    client = client_of(fit_tones(tones, image_encoder=tone_encoder()), upload_bytes=5000)
    assert upload(client, "x.wav", bytes(6000)).status_code == 413


def test_audio_without_stored_features_is_encoded_again(client_of, tones):
    retriever = fit_tones(tones, image_encoder=tone_encoder(), keep_features=False)
    answer = client_of(retriever).post("/v1/annotate", json={"id": "tone 3", "k": 2})
    found = [hit["id"] for hit in answer.json()["results"][0]["hits"]]
    assert found == [hit.id for hit in retriever.annotate(tones[0][3], k=2)]


def test_a_first_view_of_texts_is_queried_by_texts(client_of):
    retriever = fit_molecules()
    client = client_of(retriever)
    assert client.get("/v1/model").json()["inputs"] == "texts"
    item = client.get("/v1/items/CCO").json()
    assert (item["text"], item["media"], item["has_file"]) == ("CCO", None, False)
    answer = client.post("/v1/annotate", json={"text": ["CCO", "CCCN"], "k": 3})
    found = [[hit["text"] for hit in result["hits"]] for result in answer.json()["results"]]
    assert found == [[hit.text for hit in hits] for hits in retriever.annotate(["CCO", "CCCN"], k=3)]
    refused = upload(client, "x.wav", b"RIFF")
    assert refused.json()["detail"] == "this model takes texts for a molecule, not files."


def test_a_first_view_of_files_or_images_takes_no_texts(client, client_of, tones):
    for own in (client, client_of(fit_tones(tones, image_encoder=tone_encoder()))):
        refused = own.post("/v1/annotate", json={"text": "CCO"})
        assert (refused.status_code, refused.json()["type"].split(":")[-1]) == (422, "bad-input")
        assert "takes files" in refused.json()["detail"]


def test_a_retriever_that_is_not_fitted_is_refused():
    with pytest.raises(InputError, match="not fitted"):
        create_app(Retriever(tone_encoder(), encode_captions, views=("audio", "text")))


def test_encoders_of_a_retriever_cannot_be_replaced(tones):
    with pytest.raises(InputError, match="own encoders"):
        create_app(fit_tones(tones), image_encoder=tone_encoder())


def test_images_of_another_name_are_shown_as_images(client_of, tones, tmp_path):
    Image.new("RGB", (8, 8), "teal").save(tmp_path / "chart.png")
    client = client_of(fit_tones(tones, [tmp_path / "chart.png", *tones[0][1:]], views=("chart", "text")))
    assert client.get("/v1/items/tone%200").json()["media"] == "image"
    assert client.get("/v1/items/tone%200/image").headers["content-type"] == "image/webp"


def writable(folder, encoder):
    """A client of a server that adds items; it saves them only if it is used as a context manager."""
    holder = ModelHolder.open(folder, writable=True, image_encoder=encoder)
    return TestClient(build_app(Service(holder, Limits(decoders=1), threads=1)), LOCAL)


def test_uploaded_audio_is_added_and_survives_a_crash(tones, tmp_path):
    """As a journal entry, and as an item of the saved model, at another place."""
    fit_tones(tones, image_encoder=tone_encoder()).save(tmp_path / "model")
    content = tones[0][3].read_bytes()

    def serve(folder):
        return writable(folder, tone_encoder())

    client = serve(tmp_path / "model")
    added = client.post("/v1/items", files={"image": ("new tone.WAV", content)}, data={"id": "new"})
    assert added.status_code == 201, added.text
    (stored,) = (tmp_path / "model" / "uploads").iterdir()
    assert stored.suffix == ".wav"
    with serve(tmp_path / "model") as client:  # not saved: it is replayed, and saved at the end
        assert client.get("/v1/items/new/file").content == content
    shutil.move(tmp_path / "model", tmp_path / "moved")
    client = serve(tmp_path / "moved")
    assert client.get("/v1/items/new/file").content == content
    hits = client.post("/v1/annotate", json={"id": "new", "k": 1}).json()["results"][0]["hits"]
    assert hits[0]["text"] == tones[1][3]
    refused = client.post("/v1/items", files={"image": ("x.exe", content)})
    assert refused.json()["type"].endswith("unreadable-file")


def test_an_item_that_is_a_text_is_added_and_survives_a_crash(tmp_path):
    retriever = fit_molecules()
    encoder = retriever.encoders.image
    retriever.save(tmp_path / "model")
    client = writable(tmp_path / "model", encoder)
    added = client.post("/v1/items", json={"text": "CNCNCN", "id": "new"})
    assert added.status_code == 201, added.text
    with writable(tmp_path / "model", encoder) as client:  # not saved: it is replayed, and saved at the end
        assert client.get("/v1/items/new").json()["text"] == "CNCNCN"
    client = writable(tmp_path / "model", encoder)
    assert client.get("/v1/items/new").json()["text"] == "CNCNCN"
    found = client.post("/v1/similar", json={"id": "new", "k": 1}).json()["results"][0]["hits"]
    assert found[0]["id"] == "new"
    for body in ({"text": "C", "features": [1.0] * 9}, {"text": "C" * 3000}, {"text": " "}):
        assert client.post("/v1/items", json=body).status_code == 422


def test_the_command_serves_audio_with_an_encoder_from_a_file(start, tones, tmp_path):
    fit_tones(tones, text_encoder=encode_captions).save(tmp_path / "model")
    file = write_encoders(tmp_path)
    encoders = ("--image-encoder", f"{file}:tones", "--text-encoder", f"{file}:encode_captions")
    server = start(tmp_path / "model", "--quiet", "--writable", *encoders)
    with httpx.Client(base_url=server.url, timeout=60) as client:
        hits = upload(client, "x.wav", tones[0][3].read_bytes(), k=1).json()["results"][0]["hits"]
        assert hits[0]["text"] == tones[1][3]
        found = client.post("/v1/search", json={"text": tones[1][3], "k": 1}).json()["results"][0]["hits"][0]
        part = client.get(found["file_url"], headers={"Range": "bytes=0-3"})
        assert (part.status_code, part.content) == (206, b"RIFF")
        added = client.post("/v1/items", files={"image": ("x.wav", tones[0][3].read_bytes())})
        assert added.status_code == 201
    _, logged = server.stop()
    assert "Traceback" not in logged
