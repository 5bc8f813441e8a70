"""Pictures opened in processes of their own, with a time limit; thumbnails kept while there is room."""

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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from PIL import Image

from diptych.image import UnreadableImage
from diptych.service._decoder import read_frame, write_frame
from diptych.service._schemas import Limits, busy

THUMBNAIL, WHOLE = 320, 1600
"""Longest sides of what is shown."""

_START_SECONDS = 120.0


@dataclass(frozen=True)
class Shown:
    """A picture as it goes to a browser."""

    content: bytes
    etag: str
    media_type: str = "image/webp"


class Decoder:
    """One process that opens pictures, started again when it dies or is ended for taking too long."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def ask(self, order: dict[str, Any], content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Send an order; ``UnreadableImage`` if it cannot be met in time."""
        seconds = self._limits.decode_seconds
        for _ in range(2):  # a process may have died before, for a reason of its own
            process, late = self.start(), threading.Event()
            clock = threading.Timer(seconds, _end, (process, late))
            clock.start()
            try:
                said, payload = self._exchanged(process, order, content)
            except (EOFError, OSError):
                process.kill()
                process.wait()
                if late.is_set():
                    raise UnreadableImage(
                        f"the picture could not be opened within {seconds:g} seconds; give a plainer one."
                    ) from None
                continue
            finally:
                clock.cancel()
            if "error" in said:
                raise UnreadableImage(said["error"])
            return said, payload
        raise UnreadableImage("the picture breaks its decoder; give another one.")

    def _exchanged(
        self, process: subprocess.Popen[bytes], order: dict[str, Any], content: bytes
    ) -> tuple[dict[str, Any], bytes]:
        assert process.stdin is not None
        assert process.stdout is not None
        write_frame(process.stdin, json.dumps(order).encode())
        write_frame(process.stdin, content)
        said = json.loads(read_frame(process.stdout, 2**16))
        return said, read_frame(process.stdout, 3 * self._limits.pixels)

    def start(self) -> subprocess.Popen[bytes]:
        """The process, running."""
        if self._process is None or self._process.poll() is not None:
            if self._closed:
                raise busy("it is shutting down")
            largest = str(self._limits.upload_bytes + 2**16)
            command = [sys.executable, "-m", "diptych.service._decoder", str(self._limits.pixels), largest]
            self._process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=_environment(),
                # Ctrl+C is for the server, which ends it; in a group of its own it is not told.
                start_new_session=True,
            )
            assert self._process.stdout is not None
            # Starting is not part of the time that a picture may take.
            clock = threading.Timer(_START_SECONDS, self._process.kill)
            clock.start()
            with contextlib.suppress(EOFError):
                read_frame(self._process.stdout, 16)
            clock.cancel()
        return self._process

    def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


class Pictures:
    """Opens pictures, a few at a time, and remembers the small ones.

    Parameters
    ----------
    limits
        How large, how long, how many at once, and how much memory for thumbnails.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoders = [Decoder(limits) for _ in range(limits.decoders)]
        self._free: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        for decoder in self._decoders:
            self._free.put(decoder)
        self._threads = ThreadPoolExecutor(limits.decoders, "pictures")
        self._waiting = 0
        self._kept: OrderedDict[tuple[str, str, int], Shown] = OrderedDict()
        self._kept_bytes = 0

    def warm(self) -> None:
        """Start the processes now, so that the first picture need not wait for one."""
        for _ in self._decoders:
            self._threads.submit(self._asked, None, b"")

    async def pixels(self, *, content: bytes = b"", path: str | None = None) -> Image.Image:
        """A picture, uploaded or of the index, as an encoder takes it."""
        said, payload = await self._ask({"path": path} if path else {}, content)
        return Image.frombytes("RGB", (said["width"], said["height"]), payload)

    async def shown(self, version: str, item_id: str, path: str, side: int) -> Shown:
        """A picture of the index, no larger than ``side``, never as the bytes that lie on disk."""
        key = (version, f"{item_id}\0{path}", side)
        if (kept := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            return kept
        _, payload = await self._ask({"path": path, "side": side}, b"")
        made = Shown(payload, hashlib.sha256(payload).hexdigest()[:24])
        if side <= THUMBNAIL:
            self._keep(key, made)
        return made

    @property
    def kept_bytes(self) -> int:
        """Memory that thumbnails take."""
        return self._kept_bytes

    def close(self) -> None:
        """End all processes."""
        for decoder in self._decoders:
            decoder.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _keep(self, key: tuple[str, str, int], made: Shown) -> None:
        if key not in self._kept:
            self._kept[key] = made
            self._kept_bytes += len(made.content)
        while self._kept_bytes > self._limits.thumbnail_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= len(oldest.content)

    async def _ask(self, order: dict[str, Any], content: bytes) -> tuple[dict[str, Any], bytes]:
        if self._waiting >= self._limits.waiting:
            raise busy("many pictures are waiting to be opened")
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, self._asked, order, content
            )
        finally:
            self._waiting -= 1

    def _asked(self, order: dict[str, Any] | None, content: bytes) -> tuple[dict[str, Any], bytes]:
        decoder = self._free.get()
        try:
            if order is None:
                decoder.start()
                return {}, b""
            return decoder.ask(order, content)
        finally:
            self._free.put(decoder)


def _environment() -> dict[str, str]:
    """What Python needs to start: no token or password goes where hostile files are opened."""
    wanted = ("PYTHON", "LD_LIBRARY_PATH", "DYLD_", "LC_", "LANG", "SYSTEMROOT", "TEMP", "TMP", "VIRTUAL_ENV")
    return {
        name: value
        for name, value in os.environ.items()
        if name.upper() == "PATH" or name.upper().startswith(wanted)
    }


def _end(process: subprocess.Popen[bytes], late: threading.Event) -> None:
    late.set()
    process.kill()
