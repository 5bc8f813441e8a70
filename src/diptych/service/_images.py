"""Images decoded in separate processes with a time limit, and a cache of thumbnails."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from PIL import Image

from diptych.encoders import UnreadableImage
from diptych.service._decoder import read_frame, write_frame
from diptych.service._limits import Limits, Slots, busy

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

    def load_pixels(self, content: bytes = b"", path: str | None = None) -> Image.Image:
        """Decode an uploaded image, or the file of a stored one, for an encoder."""
        result, payload = self.decode({"path": path} if path else {}, content)
        return Image.frombytes("RGB", (result["width"], result["height"]), payload)

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
                # Ctrl+C is meant for the server, which ends this process itself.
                start_new_session=True,
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
        self._free: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
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

    async def load_pixels(self, content: bytes = b"", path: str | None = None) -> Image.Image:
        """Decode an uploaded image, or the file of a stored one, for an encoder."""
        return await self._run(lambda decoder: decoder.load_pixels(content, path))

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
