"""A process that opens pictures for another: what a hostile file does to it, it does to nobody else.

It reads orders on its standard input and answers on its standard output: frames of a length and that many
bytes, JSON or pixels, nothing that could be executed. It may use a bounded amount of memory; the time limit
is kept by the one who asks, by ending it.
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
from diptych.image import open_image

SPARE_BYTES = 512 * 2**20
BYTES_PER_PIXEL = 20
"""What the costliest mode takes on its way to RGB."""

_LENGTH = struct.Struct("<Q")


def write_frame(stream: IO[bytes], content: bytes) -> None:
    """Send bytes."""
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: IO[bytes], most: int) -> bytes:
    """Receive bytes; ``EOFError`` if there are none, or more than agreed."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length) if length <= most else b""
    if len(content) != length:
        raise EOFError
    return content


def opened(order: dict[str, Any], content: bytes, max_pixels: int) -> tuple[dict[str, Any], bytes]:
    """A picture as it was ordered: its pixels, or a smaller copy of it as a WebP file."""
    picture = open_image(order.get("path") or content, max_pixels=max_pixels)
    side = order.get("side")
    if side is None:
        return {"width": picture.width, "height": picture.height}, picture.tobytes()
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=85, method=2)
    return {"width": picture.width, "height": picture.height}, file.getvalue()


def work(orders: IO[bytes], answers: IO[bytes], max_pixels: int, max_bytes: int) -> None:
    """Answer orders until there are no more."""
    write_frame(answers, b"ready")
    while True:
        try:
            order = json.loads(read_frame(orders, max_bytes))
            content = read_frame(orders, max_bytes)
        except EOFError:
            return
        try:
            said, payload = opened(order, content, max_pixels)
        except InputError as error:
            said, payload = {"error": str(error)}, b""
        except MemoryError:
            said, payload = {"error": "the picture takes more memory than is given to one."}, b""
        write_frame(answers, json.dumps(said).encode())
        write_frame(answers, payload)


def confine(max_pixels: int) -> None:
    """Take no more memory than pictures of this size need, where the system can see to that."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        most = now + SPARE_BYTES + BYTES_PER_PIXEL * max_pixels
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):  # another system: the limit on pixels has to do
        return


def main() -> None:
    """Serve the process that started this one."""
    # Ctrl+C is for the server, at whose end the orders end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    max_pixels, max_bytes = int(sys.argv[1]), int(sys.argv[2])
    # Whatever a library prints must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    confine(max_pixels)
    try:
        work(sys.stdin.buffer, answers, max_pixels, max_bytes)
    except BrokenPipeError:  # whoever asked has ended
        os._exit(1)


if __name__ == "__main__":
    main()
