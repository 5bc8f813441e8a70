"""Items that are no images: files that are sent as they are, uploads for other encoders, names of views."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from diptych import InputError, Retriever
from diptych.service import Limits, create_app
from other_views import encode_captions, fit_molecules, fit_tones, tone_encoder, write_encoders
from servers import LOCAL, detail, in_process, problem


@pytest.fixture(scope="module")
def retriever_of_tones(tones):
    return fit_tones(tones)


@pytest.fixture(scope="module")
def encoding_retriever(tones):
    """One whose encoder of the first view is in memory, as in a program."""
    return fit_tones(tones, image_encoder=tone_encoder())


@pytest.fixture(scope="module")
def audio(retriever_of_tones):
    with TestClient(create_app(retriever_of_tones, limits=Limits(decoders=1), threads=1), LOCAL) as client:
        yield client


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


def test_a_part_of_a_file_is_sent(audio, tones):
    whole = tones[0][0].read_bytes()

    def ask(**headers):
        return audio.get("/v1/items/tone%200/file", headers=headers)

    for asked, part in (
        ("bytes=0-9", slice(0, 10)),
        ("bytes=100-", slice(100, None)),
        ("bytes=-7", slice(-7, None)),
        ("bytes=5-99999999", slice(5, None)),
    ):
        answer = ask(Range=asked)
        assert (answer.status_code, answer.content) == (206, whole[part])
        start = part.indices(len(whole))[0]
        end = start + len(answer.content) - 1
        assert answer.headers["content-range"] == f"bytes {start}-{end}/{len(whole)}"
    # What is not understood is ignored, and so is a part of a file that has changed.
    for asked in ("bytes=9-2", "bytes=", "bytes=-", "bytes=a-b", "items=0-1", "bytes=0-1,5-6"):
        assert (ask(Range=asked).status_code, ask(Range=asked).content) == (200, whole)
    assert ask(**{"Range": "bytes=0-9", "If-Range": '"of another file"'}).status_code == 200
    for asked in ("bytes=99999999-", "bytes=-0"):
        answer = ask(Range=asked)
        assert problem(answer) == (416, "no-range")
        assert answer.headers["content-range"] == f"bytes */{len(whole)}"


def test_only_audio_and_video_are_sent(make_client, tones, tmp_path):
    """Neither a name nor a link makes the server send another file."""
    sound = tones[0][0].read_bytes()
    secret = tmp_path / "secret"
    secret.write_text("the password is swordfish")
    files = {
        name: tmp_path / name
        for name in (
            *("secret", "renamed.wav", "page.html", "drawing.svg", "missing.wav", "folder.wav", "pipe.wav"),
            *("link.wav", "link-to-link.mp3", "utf16.mp3", "empty.wav"),
        )
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
    client = make_client(fit_tones(tones, paths))
    for number, name in enumerate(files):
        answer = client.get(f"/v1/items/tone%20{number}/file")
        assert problem(answer) == (404, "no-file"), name
        assert str(tmp_path) not in answer.text
    linked = client.get(f"/v1/items/tone%20{len(files)}/file")
    assert linked.content == tones[0][1].read_bytes()


def test_a_file_that_has_changed_since_is_checked_again(make_client, tones, tmp_path):
    copy = tmp_path / "copy.wav"
    copy.write_bytes(tones[0][0].read_bytes())
    client = make_client(fit_tones(tones, [copy, *tones[0][1:]]))
    assert client.get("/v1/items/tone%200/file").status_code == 200
    copy.write_text("the password is swordfish")
    assert client.get("/v1/items/tone%200/file").status_code == 404


def test_files_of_other_types_are_attachments_if_they_are_sent(make_client, tones, tmp_path):
    page = tmp_path / "pagé.html"
    page.write_text("<script>alert(document.domain)</script>")
    retriever = fit_tones(tones, [page, *tones[0][1:]], views=("document", "text"))
    item = make_client(retriever).get("/v1/items/tone%200").json()
    assert (item["media"], item["file_url"], item["file_name"]) == ("file", None, "pagé.html")
    client = make_client(retriever, send_files=True)
    item = client.get("/v1/items/tone%200").json()
    answer = client.get(item["file_url"])
    assert answer.content == page.read_bytes()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == "attachment; filename*=utf-8''pag%C3%A9.html"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_originals_of_images_are_attachments_if_they_are_sent(make_client, retriever, easy, path_of):
    plain, client = make_client(retriever), make_client(retriever, send_files=True)
    place = f"/v1/items/{easy.image.replace('/', '%2F')}"
    item, content = client.get(place).json(), Path(path_of(easy.image)).read_bytes()
    assert (item["media"], item["file_name"]) == ("image", Path(easy.image).name)
    assert item["thumbnail"] == f"{place}/thumbnail"
    answer = client.get(item["file_url"])
    assert (answer.status_code, answer.content) == (200, content)
    assert answer.headers["content-type"] == "image/png"
    assert answer.headers["content-disposition"] == f'attachment; filename="{Path(easy.image).name}"'
    assert answer.headers["content-security-policy"].startswith("sandbox")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get(item["file_url"], headers={"Range": "bytes=1-3"}).content == b"PNG"
    assert {"file_url", "file_name"}.isdisjoint(plain.get(place).json())
    assert problem(plain.get(f"{place}/file")) == (404, "no-file")


def test_a_drawing_with_a_script_never_runs(make_client, tones, tmp_path):
    """A file that is called an image in the model may be anything."""
    drawing = tmp_path / "drawing.svg"
    drawing.write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    client = make_client(fit_tones(tones, [drawing, *tones[0][1:]], views=("image", "text")), send_files=True)
    answer = client.get(client.get("/v1/items/tone%200").json()["file_url"])
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"


def test_large_files_are_not_sent(make_client, tones, retriever_of_tones):
    size = tones[0][0].stat().st_size
    assert f"has {size:,} bytes; at most {size - 1:,} are sent" in detail(
        make_client(retriever_of_tones, file_bytes=size - 1).get("/v1/items/tone%200/file"), 404
    )
    assert make_client(retriever_of_tones, file_bytes=size).get("/v1/items/tone%200/file").status_code == 200


def test_there_is_no_file_of_captions_images_and_features(audio, client, easy, make_client, fused_folder):
    for server, item_id in (
        (audio, "tone%200%230"),
        (audio, "nobody"),
        (client, easy.image.replace("/", "%2F")),
        (make_client(fused_folder), "0"),
    ):
        answer = server.get(f"/v1/items/{item_id}/file")
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


def test_messages_use_the_names_of_the_views(make_client, retriever_of_tones):
    client = make_client(retriever_of_tones)
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
    assert problem(refused) == (422, "no-encoder")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder of temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def upload(client, name, content, **fields):
    return client.post("/v1/annotate", files={"image": (name, content)}, data=fields)


def test_an_uploaded_audio_file_finds_texts(make_client, tones, temporary, encoding_retriever):
    """A program has the encoder of its retriever in memory."""
    retriever, client = encoding_retriever, make_client(encoding_retriever)
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


def test_unreadable_uploads_are_refused(make_client, encoding_retriever, temporary):
    client = make_client(encoding_retriever)
    for name, content in (
        ("x.wav", b""),
        ("x.wav", b"RIFF\xff\xff\xff\xffWAVE"),
        ("x.wav", os.urandom(4000)),
        ("x.mp3", b"ID3"),
        ("x", b"RIFF"),
        ("../../x.wav/../y", b"RIFF"),
    ):
        answer = upload(client, name, content)
        assert problem(answer) == (422, "unreadable-file")
        assert str(temporary) not in answer.text
        assert list(temporary.iterdir()) == []


def test_audio_without_stored_features_is_encoded_again(make_client, tones):
    retriever = fit_tones(tones, image_encoder=tone_encoder(), keep_features=False)
    answer = make_client(retriever).post("/v1/annotate", json={"id": "tone 3", "k": 2})
    found = [hit["id"] for hit in answer.json()["results"][0]["hits"]]
    assert found == [hit.id for hit in retriever.annotate(tones[0][3], k=2)]


def test_a_first_view_of_texts_is_queried_by_texts(make_client):
    retriever = fit_molecules()
    client = make_client(retriever)
    assert client.get("/v1/model").json()["inputs"] == "texts"
    item = client.get("/v1/items/CCO").json()
    assert (item["text"], item["media"], item["has_file"]) == ("CCO", None, False)
    answer = client.post("/v1/annotate", json={"text": ["CCO", "CCCN"], "k": 3})
    found = [[hit["text"] for hit in result["hits"]] for result in answer.json()["results"]]
    assert found == [[hit.text for hit in hits] for hits in retriever.annotate(["CCO", "CCCN"], k=3)]
    refused = upload(client, "x.wav", b"RIFF")
    assert refused.json()["detail"] == "this model takes texts for a molecule, not files."


def test_a_first_view_of_files_or_images_takes_no_texts(client, make_client, encoding_retriever):
    for server in (client, make_client(encoding_retriever)):
        assert "takes files" in detail(server.post("/v1/annotate", json={"text": "CCO"}), 422, "bad-input")


def test_a_retriever_that_is_not_fitted_is_refused():
    with pytest.raises(InputError, match="not fitted"):
        create_app(Retriever(tone_encoder(), encode_captions, views=("audio", "text")))


def test_encoders_of_a_retriever_cannot_be_replaced(tones):
    with pytest.raises(InputError, match="own encoders"):
        create_app(fit_tones(tones), image_encoder=tone_encoder())


def test_images_of_another_name_are_shown_as_images(make_client, tones, tmp_path):
    Image.new("RGB", (8, 8), "teal").save(tmp_path / "chart.png")
    client = make_client(fit_tones(tones, [tmp_path / "chart.png", *tones[0][1:]], views=("chart", "text")))
    assert client.get("/v1/items/tone%200").json()["media"] == "image"
    assert client.get("/v1/items/tone%200/image").headers["content-type"] == "image/webp"


def test_uploaded_audio_is_added_and_moves_with_the_model(tones, tmp_path):
    fit_tones(tones, image_encoder=tone_encoder()).save(tmp_path / "model")
    content = tones[0][3].read_bytes()
    client = in_process(tmp_path / "model", writable=True, encoder=tone_encoder())  # never stopped
    added = client.post("/v1/items", files={"image": ("new tone.WAV", content)}, data={"id": "new"})
    assert added.status_code == 201, added.text
    (stored,) = (tmp_path / "model" / "uploads").iterdir()
    assert stored.suffix == ".wav"
    shutil.move(tmp_path / "model", tmp_path / "moved")
    client = in_process(tmp_path / "moved", writable=True, encoder=tone_encoder())
    assert client.get("/v1/items/new/file").content == content
    hits = client.post("/v1/annotate", json={"id": "new", "k": 1}).json()["results"][0]["hits"]
    assert hits[0]["text"] == tones[1][3]
    refused = client.post("/v1/items", files={"image": ("x.exe", content)})
    assert problem(refused) == (422, "unreadable-file")


def test_an_item_that_is_a_text_is_added(tmp_path):
    retriever = fit_molecules()
    encoder = retriever.encoders.image
    retriever.save(tmp_path / "model")
    client = in_process(tmp_path / "model", writable=True, encoder=encoder)  # never stopped
    added = client.post("/v1/items", json={"text": "CNCNCN", "id": "new"})
    assert added.status_code == 201, added.text
    client = in_process(tmp_path / "model", writable=True, encoder=encoder)
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
