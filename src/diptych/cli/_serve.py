"""``diptych serve``: the web page and the HTTP API of a model."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from diptych._checks import missing_package_error
from diptych.cli._encoders import EncoderOptions
from diptych.cli._options import Model
from diptych.cli._run import Threads, option, say

limit_option = partial(option, panel="Limits")


def serve(
    model: Model,
    host: str = option("127.0.0.1", "Address to listen on; any other than loopback needs a token."),
    port: int = option(8000, "Port to listen on; 0: any free one.", min=0, max=65535),
    token: str | None = option(
        None, "Secret that clients must send; prefer DIPTYCH_TOKEN.", envvar="DIPTYCH_TOKEN"
    ),
    writable: bool = option(False, "Let clients add and remove items, durably."),
    *,
    encoders: EncoderOptions,
    max_upload_mb: float = limit_option(20, "Size of a request with files.", min=0.001),
    max_file_mb: float = limit_option(1024, "Size of an audio or video file to send.", min=0.001),
    max_pixels: int = limit_option(40_000_000, "Pixels of one image.", min=1),
    max_k: int = limit_option(200, "Hits per query.", min=1),
    max_batch: int = limit_option(64, "Queries per request.", min=1),
    max_concurrency: int = limit_option(8, "Threads that search and encode.", min=1),
    decode_seconds: float = limit_option(10, "Time to decode one image.", min=0.1),
    log_queries: bool = option(False, "Write queries to the access log."),
    send_files: bool = option(False, "Let clients download all files of items as they are."),
    no_browser: bool = option(False, "Do not open a browser."),
    threads: Threads = None,
    quiet: bool = option(False, "Write no access log.", "-q"),
) -> None:
    """Serve a web page that searches both ways, and an HTTP API.

    A new version that is saved to MODEL is loaded without a restart.

    Example: `diptych serve model`
    """
    try:
        from diptych.service._limits import Limits
        from diptych.service._serve import serve as run
    except ModuleNotFoundError:
        raise missing_package_error("serving needs", "serve") from None
    limits = Limits(
        upload_bytes=int(max_upload_mb * 2**20),
        file_bytes=int(max_file_mb * 2**20),
        pixels=max_pixels,
        k=max_k,
        batch=max_batch,
        concurrency=max_concurrency,
        decode_seconds=decode_seconds,
    )
    run(
        Path(model),
        host=host,
        port=port,
        token=token,
        writable=writable,
        limits=limits,
        log_queries=log_queries,
        threads=threads,
        quiet=quiet,
        image_encoder=encoders.open_image_encoder(),
        text_encoder=encoders.open_text_encoder(),
        send_files=send_files,
        browser=not no_browser and sys.stdout.isatty(),
        say=say,
    )
