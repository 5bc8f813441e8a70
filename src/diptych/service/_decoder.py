"""A process that decodes images for the server, so that a malicious file can harm only this process.

It reads jobs from its standard input and writes results to its standard output: frames of a length and that
many bytes, which are JSON or pixels. It limits its own memory; the server enforces the time limit by killing
it.
"""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import sys
from typing import IO, Any

from PIL import Image

from diptych._checks import InputError
from diptych.encoders import open_image

SPARE_BYTES = 512 * 2**20
BYTES_PER_PIXEL = 20
"""Memory that the most expensive image mode needs on its way to RGB."""

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes], max_bytes: int) -> bytes:
    """Read one frame; raise ``EOFError`` if there is none, or if it is longer than ``max_bytes``."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length) if length <= max_bytes else b""
    if len(content) != length:
        raise EOFError
    return content


def _decode(job: dict[str, Any], content: bytes, max_pixels: int) -> tuple[dict[str, Any], bytes]:
    """Return the size and the pixels of an image, or of a smaller copy (``side``) as a WebP file."""
    image = open_image(job.get("path") or content, max_pixels=max_pixels)
    side = job.get("side")
    if side is None:
        return {"width": image.width, "height": image.height}, image.tobytes()
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "WEBP", quality=85, method=2)
    return {"width": image.width, "height": image.height}, file.getvalue()


def _work(jobs: IO[bytes], results: IO[bytes], max_pixels: int, max_bytes: int) -> None:
    write_frame(results, b"ready")
    while True:
        try:
            job = json.loads(read_frame(jobs, max_bytes))
            content = read_frame(jobs, max_bytes)
        except EOFError:
            return
        try:
            result, payload = _decode(job, content, max_pixels)
        except InputError as error:
            result, payload = {"error": str(error)}, b""
        except MemoryError:
            result, payload = {"error": "decoding the image needs too much memory; send a smaller one."}, b""
        write_frame(results, json.dumps(result).encode())
        write_frame(results, payload)


def _limit_memory(max_pixels: int) -> None:
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        limit = used + SPARE_BYTES + BYTES_PER_PIXEL * max_pixels
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # not Linux: only the limit on pixels applies
        return


def _main() -> None:
    # Ctrl+C is meant for the server; when that ends, so does the input of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    max_pixels, max_bytes = int(sys.argv[1]), int(sys.argv[2])
    # Anything a library prints must not mix with the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory(max_pixels)
    try:
        _work(sys.stdin.buffer, results, max_pixels, max_bytes)
    except BrokenPipeError:  # the server has ended
        os._exit(1)


if __name__ == "__main__":
    _main()
