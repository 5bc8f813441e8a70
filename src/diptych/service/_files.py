"""Files of items and uploads: images, which are decoded in other processes, and audio, video or others.

Images are decoded and encoded again before they are sent. Audio and video are sent as they are, so that
browsers can play and seek in them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import mimetypes
import os
import queue
import re
import stat
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from PIL import Image
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse

from diptych.encoders import UnreadableImage
from diptych.encoders._decoding import EXTENSIONS as IMAGE_SUFFIXES
from diptych.retrieval._encoders import Encoders
from diptych.service._decoder import read_frame, write_frame
from diptych.service._limits import Limits, Problem, Slots, UnreadableFile, busy

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
SANDBOX = {"Content-Security-Policy": "sandbox; default-src 'none'"}
"""For a file that a browser shows nevertheless: no script of it runs."""

# The first bytes of these formats; of MP3 and AAC without tags, those of a frame.
_MEDIA_HEAD = re.compile(
    rb"RIFF....WAVE|RF64....WAVE|ID3|\xff[\xe2\xe3\xf0-\xf3\xf8-\xfb]|OggS|fLaC|....ftyp|\x1a\x45\xdf\xa3",
    re.DOTALL,
)
_ONE_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

THUMBNAIL_SIDE, IMAGE_SIDE = 320, 1600
"""Longest sides of the images sent to browsers."""

T = TypeVar("T")

_START_SECONDS = 120.0
_MAX_RESULT_BYTES = 2**16
_VARIABLES = frozenset(
    ("PATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "VIRTUAL_ENV")
)
_VARIABLE_PREFIXES = ("PYTHON", "DYLD_", "LC_")


@dataclass(frozen=True)
class Upload:
    """A file that was sent, and its name."""

    content: bytes
    name: str = ""

    @property
    def suffix(self) -> str:
        """The suffix of its name, in lower case."""
        return suffix(self.name)


@dataclass(frozen=True)
class WebpImage:
    """A decoded image, written again as WebP for browsers."""

    content: bytes
    etag: str


class Decoder:
    """One process that decodes images; it is started again when it dies or is killed for taking too long."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def decode(self, job: dict[str, Any], content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Run a job and return its result; raise ``UnreadableImage`` if it fails or takes too long."""
        seconds = self._limits.decode_seconds
        for _ in range(2):  # the process may have died before this job
            process, late = self.start(), threading.Event()
            timer = threading.Timer(seconds, _kill_late, (process, late))
            timer.start()
            try:
                result, payload = self._exchange(process, job, content)
            except (EOFError, OSError):
                process.kill()
                process.wait()
                if late.is_set():
                    raise UnreadableImage(
                        f"the image could not be decoded within {seconds:g} seconds; send a simpler one."
                    ) from None
                continue
            finally:
                timer.cancel()
            if "error" in result:
                raise UnreadableImage(result["error"])
            return result, payload
        raise UnreadableImage("decoding the image crashed the decoder; send another image.")

    def _exchange(
        self, process: subprocess.Popen[bytes], job: dict[str, Any], content: bytes
    ) -> tuple[dict[str, Any], bytes]:
        assert process.stdin is not None
        assert process.stdout is not None
        write_frame(process.stdin, json.dumps(job).encode())
        write_frame(process.stdin, content)
        result = json.loads(read_frame(process.stdout, _MAX_RESULT_BYTES))
        return result, read_frame(process.stdout, 3 * self._limits.pixels)

    def start(self) -> subprocess.Popen[bytes]:
        """Return the process, started if it is not running."""
        if self._process is None or self._process.poll() is not None:
            if self._closed:
                raise busy("it is shutting down")
            limits = (str(self._limits.pixels), str(self._limits.upload_bytes + _MAX_RESULT_BYTES))
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "diptych.service._decoder", *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # Ctrl+C is meant for the server
            )
            assert self._process.stdout is not None
            # The time to start does not count against the image.
            timer = threading.Timer(_START_SECONDS, self._process.kill)
            timer.start()
            with contextlib.suppress(EOFError):
                read_frame(self._process.stdout, 16)
            timer.cancel()
        return self._process

    def close(self) -> None:
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


class Images:
    """Decodes images, ``limits.decoders`` at a time, and caches thumbnails."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoders = [Decoder(limits) for _ in range(limits.decoders)]
        self._free = queue.SimpleQueue[Decoder]()
        for decoder in self._decoders:
            self._free.put(decoder)
        self._threads = ThreadPoolExecutor(limits.decoders, "images")
        self._waiting = Slots(limits.waiting, "many images are waiting to be decoded")
        self._thumbnails: OrderedDict[tuple[str, str, int], WebpImage] = OrderedDict()
        self.cached_bytes = 0

    def start(self) -> None:
        """Start the processes, so that the first image does not wait for one."""
        for _ in self._decoders:
            self._threads.submit(self._call, Decoder.start)

    async def load_pixels(self, source: Upload | Path) -> Image.Image:
        """Decode an uploaded image, or the file of a stored one, for an encoder."""
        job = ({}, source.content) if isinstance(source, Upload) else ({"path": str(source)}, b"")

        def load(decoder: Decoder) -> Image.Image:
            result, payload = decoder.decode(*job)
            return Image.frombytes("RGB", (result["width"], result["height"]), payload)

        return await self._run(load)

    async def load_webp(self, version: str, item_id: str, path: str, side: int) -> WebpImage:
        """Return a stored image, at most ``side`` wide and high; never the bytes of its file."""
        key = (version, f"{item_id}\0{path}", side)
        if (cached := self._thumbnails.get(key)) is not None:
            self._thumbnails.move_to_end(key)
            return cached
        _, payload = await self._run(lambda decoder: decoder.decode({"path": path, "side": side}))
        image = WebpImage(payload, hashlib.sha256(payload).hexdigest()[:24])
        if side <= THUMBNAIL_SIDE:
            self._cache(key, image)
        return image

    def close(self) -> None:
        for decoder in self._decoders:
            decoder.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _cache(self, key: tuple[str, str, int], image: WebpImage) -> None:
        if key not in self._thumbnails:
            self._thumbnails[key] = image
            self.cached_bytes += len(image.content)
        while self.cached_bytes > self._limits.thumbnail_bytes:
            _, oldest = self._thumbnails.popitem(last=False)
            self.cached_bytes -= len(oldest.content)

    async def _run(self, function: Callable[[Decoder], T]) -> T:
        with self._waiting:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._call, function)

    def _call(self, function: Callable[[Decoder], T]) -> T:
        decoder = self._free.get()
        try:
            return function(decoder)
        finally:
            self._free.put(decoder)


def _kill_late(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()


def _environment() -> dict[str, str]:
    """Return the variables Python needs to start; a malicious file must not find a token or password."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper() in _VARIABLES or name.upper().startswith(_VARIABLE_PREFIXES)
    }


def suffix(name: str) -> str:
    """Return the suffix of a file name, in lower case."""
    return PurePath(name).suffix.lower()


def open_file(path: str, max_bytes: int, *, any_type: bool) -> FileResponse:
    """Return the response with a file of an item as it is, or raise a problem if it may not be sent.

    Only audio and video may be, by the suffix of the file that the path leads to and by its first bytes, so
    that neither a name nor a link in a folder from a stranger makes the server send anything else. With
    ``any_type``, any file may be, which browsers must not show: images have their own type, others none.
    """
    path = os.path.realpath(path)
    is_media = suffix(path) in MEDIA_TYPES
    media_type = MEDIA_TYPES.get(suffix(path), ANY_TYPE)
    if suffix(path) in IMAGE_SUFFIXES:  # none of which can have a script
        media_type = mimetypes.guess_type(path)[0] or ANY_TYPE
    if not (is_media or any_type):
        raise _no_file("is neither audio nor video, and is not sent")
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise _no_file("is missing")
        with open(path, "rb") as file:
            head = file.read(12)
    except OSError:
        raise _no_file("is missing") from None
    if is_media and not _MEDIA_HEAD.match(head):
        raise _no_file("is neither audio nor video, and is not sent")
    if status.st_size > max_bytes:
        raise _no_file(f"has {status.st_size:,} bytes; at most {max_bytes:,} are sent")
    return FileResponse(
        path,
        media_type=media_type,
        stat_result=status,
        filename=os.path.basename(path).encode(errors="replace").decode(),
        content_disposition_type="inline" if is_media else "attachment",
        headers={"Cache-Control": "private, max-age=300"} | ({} if is_media else SANDBOX),
    )


def is_known(request: Request, response: Response) -> bool:
    """Return whether the browser has the content of a response already."""
    return request.headers.get("if-none-match") == response.headers["etag"]


def send_file(request: Request, response: FileResponse) -> Response:
    """Return the response with a file, or the part of it that the request asks for."""
    if is_known(request, response):
        return NotModifiedResponse(response.headers)
    if not _has_range(request, int(response.headers["content-length"])):
        # Starlette answers malformed ranges with 400; RFC 9110 says to ignore what is not understood.
        headers = request.scope["headers"]
        request.scope["headers"] = [(key, value) for key, value in headers if key != b"range"]
    return response


def encode_first_view(encoders: Encoders, inputs: Sequence[str]) -> np.ndarray[Any, Any]:
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
