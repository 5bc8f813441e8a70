"""Files of items as they are: which kind of file it is, which may be sent, and uploads for an encoder.

Images are decoded and encoded again before they are sent (``_images``). Audio and video are sent as they are,
so that browsers can play and seek in them.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from diptych.encoders._decoding import EXTENSIONS as IMAGE_SUFFIXES
from diptych.retrieval._encoders import Encoders
from diptych.service._limits import Problem, UnreadableFile

log = logging.getLogger("diptych.service")

Media: TypeAlias = Literal["image", "audio", "video", "file"]
"""How a browser shows the file of an item; ``"file"``: not at all."""

MEDIA_TYPES = {
    ".wav": "audio/wav",
    ".mp3": "audio/mpeg",
    ".ogg": "audio/ogg",
    ".oga": "audio/ogg",
    ".opus": "audio/ogg",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".aac": "audio/aac",
    ".mp4": "video/mp4",
    ".webm": "video/webm",
    ".ogv": "video/ogg",
}
"""Files that are sent as they are, for a browser to play."""

ANY_TYPE = "application/octet-stream"

# The first bytes of these formats; of MP3 and AAC without tags, those of a frame.
_MEDIA_HEAD = re.compile(
    rb"RIFF....WAVE|RF64....WAVE|ID3|\xff[\xe2\xe3\xf0-\xf3\xf8-\xfb]|OggS|fLaC|....ftyp|\x1a\x45\xdf\xa3",
    re.DOTALL,
)
_ONE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


@dataclass(frozen=True)
class SentFile:
    """A file that may be sent."""

    path: str
    status: os.stat_result
    media_type: str


def suffix(name: str) -> str:
    """Return the suffix of a file name, in lower case."""
    return PurePath(name).suffix.lower()


def media_of(path: str | None, *, default: Media) -> Media | None:
    """Return how to show a file, by its suffix; ``default`` for one with an unknown suffix."""
    if path is None:
        return None
    own = suffix(path)
    if own in MEDIA_TYPES:
        return "audio" if MEDIA_TYPES[own].startswith("audio/") else "video"
    return "image" if own in IMAGE_SUFFIXES else default


def check_file(path: str, max_bytes: int, *, any_type: bool) -> SentFile:
    """Return a file of an item that may be sent as it is, or raise a problem.

    That is audio and video, by the suffix of the file that the path leads to and by its first bytes, so that
    neither a name nor a link in a folder from a stranger makes the server send anything else. With
    ``any_type``, it is any file, which browsers must not show.
    """
    path = os.path.realpath(path)
    media_type = MEDIA_TYPES.get(suffix(path), ANY_TYPE)
    if media_type == ANY_TYPE and not any_type:
        raise _no_file("is neither audio nor video, and is not sent")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise _no_file("is missing")
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        raise _no_file("is missing") from None
    if media_type != ANY_TYPE and not _MEDIA_HEAD.match(head):
        raise _no_file("is neither audio nor video, and is not sent")
    if status.st_size > max_bytes:
        raise _no_file(f"has {status.st_size:,} bytes; at most {max_bytes:,} are sent")
    return SentFile(path, status, media_type)


def send_file(request: Request, file: SentFile) -> Response:
    """Return the response with a file, or the part of it that the request asks for."""
    attached = "attachment" if file.media_type == ANY_TYPE else "inline"
    response = FileResponse(
        file.path,
        media_type=file.media_type,
        stat_result=file.status,
        filename=os.path.basename(file.path).encode(errors="replace").decode(),
        content_disposition_type=attached,
        headers={"Cache-Control": "private, max-age=300"},
    )
    if request.headers.get("if-none-match") == response.headers["etag"]:
        kept = {key: response.headers[key] for key in ("etag", "cache-control")}
        return Response(status_code=304, headers=kept)
    if not _has_range(request, file.status.st_size):
        # Starlette answers malformed ranges with 400; RFC 9110 says to ignore what is not understood.
        headers = request.scope["headers"]
        request.scope["headers"] = [(key, value) for key, value in headers if key != b"range"]
    return response


def encode_first_view(encoders: Encoders, inputs: list[str]) -> np.ndarray[Any, Any]:
    """Return the features of files or texts of the first view, from an encoder that reads them itself.

    It may be any function, and raise anything for an input that it cannot read. The message for clients has
    none of that: it may name a path on this machine.
    """
    if encoders.image is None:
        raise encoders.missing("image")
    try:
        return encoders.encode_images(inputs)
    except Exception:
        log.warning("the encoder cannot read an input", exc_info=True)
        raise UnreadableFile("the encoder cannot read it; send another.") from None


@contextmanager
def temporary_file(content: bytes, own_suffix: str) -> Iterator[str]:
    """Write an upload to a temporary file; yield its path."""
    with tempfile.TemporaryDirectory(prefix="diptych-") as folder:
        path = os.path.join(folder, f"upload{own_suffix}")
        with open(path, "wb") as file:
            file.write(content)
        yield path


def _no_file(reason: str) -> Problem:
    return Problem(404, "no-file", f"the file of this item {reason}.")


def _has_range(request: Request, size: int) -> bool:
    """Return whether a request asks for one part of a file; raise a problem if the file has no such part."""
    match = _ONE_RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    if match is None or not any(match.groups()):
        return False
    first, last = match.groups()
    start = int(first) if first else max(size - int(last), 0)
    if first and last and int(last) < start:
        return False
    if start < size:
        return True
    if "if-range" in request.headers:
        return False
    raise Problem(
        416,
        "no-range",
        f"the file has {size} bytes, none of them in this range.",
        {"Content-Range": f"bytes */{size}"},
    )
