"""``diptych serve``: the web page and the HTTP API of a model."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

from diptych._checks import missing_package_error
from diptych.cli._encoders import EncoderOptions
from diptych.cli._options import Model
from diptych.cli._run import Threads, option, say

limit_option = partial(option, panel="Limits")


def serve(
    model: Model,
    host: Annotated[
        str, option("Address to listen on; any other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, option("Port to listen on; 0: any free one.", min=0, max=65535)] = 8000,
    token: Annotated[
        str | None,
        option("Secret that clients must send; prefer DIPTYCH_TOKEN.", envvar="DIPTYCH_TOKEN"),
    ] = None,
    writable: Annotated[bool, option("Let clients add and remove items, durably.", "--writable")] = False,
    *,
    encoders: EncoderOptions,
    max_upload_mb: Annotated[float, limit_option("Size of a request with files.", min=0.001)] = 20,
    max_file_mb: Annotated[
        float,
        limit_option("Size of an audio or video file to send.", min=0.001),
    ] = 1024,
    max_pixels: Annotated[int, limit_option("Pixels of one image.", min=1)] = 40_000_000,
    max_k: Annotated[int, limit_option("Hits per query.", min=1)] = 200,
    max_batch: Annotated[int, limit_option("Queries per request.", min=1)] = 64,
    max_concurrency: Annotated[int, limit_option("Threads that search and encode.", min=1)] = 8,
    decode_seconds: Annotated[float, limit_option("Time to decode one image.", min=0.1)] = 10,
    log_queries: Annotated[bool, option("Write queries to the access log.", "--log-queries")] = False,
    send_files: Annotated[
        bool,
        option("Let clients download files that are no image, audio or video.", "--send-files"),
    ] = False,
    no_browser: Annotated[bool, option("Do not open a browser.", "--no-browser")] = False,
    threads: Threads = None,
    quiet: Annotated[bool, option("Write no access log.", "--quiet", "-q")] = False,
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
