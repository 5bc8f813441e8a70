"""Malicious images are refused in time, without using up the server's memory."""

import io
import os
import signal
import statistics
import struct
import time
import zlib
from pathlib import Path

import httpx
import pytest
from PIL import Image

from diptych.encoders import UnreadableImage
from diptych.service._files import Decoder
from diptych.service._limits import Limits
from servers import problem

pytestmark = pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")


def png(width, height, mode="L"):
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "PNG")
    return file.getvalue()


def jpeg(side=64):
    file = io.BytesIO()
    Image.new("RGB", (side, side), "teal").save(file, "JPEG")
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def lying_png():
    """A header of a small image, and far more data behind it."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 5000, 5000, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(bytes(2**26))) + chunk(b"IEND", b"")


def bomb_in_text():
    """An image with a comment that expands to far more than itself."""
    note = chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**27)))
    plain = png(8, 8)
    return plain[:33] + note + plain[33:]


HARMLESS = ("a note that explodes", "pixels that explode")
"""Images whose comment or surplus data may also be left alone."""

MALICIOUS = {
    "400 megapixels in one bit": png(20_000, 20_000, "1"),
    "100 megapixels": png(10_000, 10_000, "1"),
    "a note that explodes": bomb_in_text(),
    "pixels that explode": lying_png(),
    "truncated": jpeg(512)[:200],
    "half a png": png(300, 300, "RGB")[:60],
    "svg with a script": b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>",
    "html": b"<!doctype html><script>alert(1)</script>",
    "gif and script": b"GIF89a/*\x00\x00*/=1;alert(1)//",
    "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n",
    "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\n",
    "zip": b"PK\x03\x04" + bytes(100),
    "elf": b"\x7fELF" + bytes(100),
    "empty": b"",
    "noise": os.urandom(5000),
    "pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.",
}


def test_malicious_uploads_are_refused(client):
    for name, content in MALICIOUS.items():
        answer = client.post("/v1/annotate", files={"image": ("x.png", content, "image/png")})
        if name in HARMLESS and answer.status_code == 200:
            continue
        assert problem(answer) == (422, "unreadable-image"), name


def test_an_image_that_is_also_html_is_sent_as_an_image(make_client, copied_folder):
    both = jpeg() + b"<script>alert(document.domain)</script>"
    client = make_client(copied_folder, writable=True)
    added = client.post("/v1/items", files={"image": ("a.html", both, "text/html")}, data={"id": "both"})
    assert added.status_code == 201
    for size in ("image", "thumbnail"):
        image = client.get(f"/v1/items/both/{size}")
        assert image.headers["content-type"] == "image/webp"
        assert image.headers["x-content-type-options"] == "nosniff"
        assert b"script" not in image.content


def test_the_name_of_an_upload_is_not_used_as_a_path(make_client, copied_folder):
    client = make_client(copied_folder, writable=True)
    name = "../../../../tmp/evil.png"
    client.post("/v1/items", files={"image": (name, jpeg(), "image/jpeg")}, data={"id": "named"})
    uploads = [path.name for path in (copied_folder / "uploads").iterdir()]
    assert len(uploads) == 1
    assert len(uploads[0]) == 73


def test_a_hanging_or_dead_decoder_is_replaced():
    decoder = Decoder(Limits(decode_seconds=1.0))
    try:
        decoder.decode({}, jpeg())
        os.kill(decoder.start().pid, signal.SIGSTOP)
        with pytest.raises(UnreadableImage, match="within 1 seconds"):
            decoder.decode({}, jpeg())
        result, pixels = decoder.decode({}, jpeg(16))
        assert (result["width"], len(pixels)) == (16, 3 * 16 * 16)
        os.kill(decoder.start().pid, signal.SIGKILL)
        result, _ = decoder.decode({}, jpeg(17))
        assert result["width"] == 17
    finally:
        decoder.close()


def memory_of(url):
    for line in httpx.get(f"{url}/metrics").text.splitlines():
        if line.startswith("process_resident_memory_bytes "):
            return float(line.split()[1])
    raise AssertionError("the metrics have no memory")


@pytest.mark.slow
def test_malicious_uploads_do_not_use_up_memory(live):
    with httpx.Client(base_url=live, timeout=60) as client:

        def upload_all():
            for content in MALICIOUS.values():
                answer = client.post("/v1/annotate", files={"image": ("x", content)})
                assert answer.status_code < 500

        upload_all()
        before = memory_of(live)
        for _ in range(2):
            upload_all()
        assert memory_of(live) < before + 30 * 2**20


@pytest.mark.slow
def test_many_small_requests_are_fast_and_need_no_memory(live):
    bodies = [b"", b"{", b"[]", b'{"text":1}', b'{"text":"a star","k":1}']
    with httpx.Client(base_url=live, headers={"content-type": "application/json"}, timeout=60) as client:
        for number in range(500):
            client.post("/v1/search", content=bodies[number % 5])
        before = memory_of(live)
        seconds = []
        for number in range(10_000):
            start = time.perf_counter()
            assert client.post("/v1/search", content=bodies[number % 5]).status_code < 500
            seconds.append(time.perf_counter() - start)
    assert memory_of(live) < before + 20 * 2**20
    # Without TCP_NODELAY each takes 40 ms.
    assert statistics.median(seconds) < 0.03


def test_decoders_get_no_secrets(monkeypatch):
    for name in ("DIPTYCH_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY", "LANGSMITH_API_KEY"):
        monkeypatch.setenv(name, "hush-hush")
    decoder = Decoder(Limits())
    try:
        environment = Path(f"/proc/{decoder.start().pid}/environ").read_bytes()
        assert b"hush-hush" not in environment
        result, _ = decoder.decode({}, jpeg(16))
        assert result["width"] == 16
    finally:
        decoder.close()
