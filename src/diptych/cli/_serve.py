"""``diptych serve``: the web page and the HTTP API of a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from diptych._checks import missing_package_error
from diptych.cli._options import (
    ImageEncoderNames,
    Model,
    Recipe,
    TextEncoderNames,
    Threads,
    Weights,
    make_image_encoder,
    make_text_encoder,
)
from diptych.cli._output import make_console, report_errors

LIMITS = "Limits"


def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="DIPTYCH_TOKEN", help="Secret that clients must send; prefer DIPTYCH_TOKEN."),
    ] = None,
    writable: Annotated[
        bool, typer.Option("--writable", help="Let clients add and remove items, durably.")
    ] = False,
    image_encoder: ImageEncoderNames = None,
    recipe: Recipe = None,
    weights: Weights = None,
    text_encoder: TextEncoderNames = None,
    max_upload_mb: Annotated[
        float, typer.Option(min=0.001, help="Size of a request with files.", rich_help_panel=LIMITS)
    ] = 20,
    max_file_mb: Annotated[
        float,
        typer.Option(min=0.001, help="Size of an audio or video file to send.", rich_help_panel=LIMITS),
    ] = 1024,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Pixels of one image.", rich_help_panel=LIMITS)
    ] = 40_000_000,
    max_k: Annotated[int, typer.Option(min=1, help="Hits per query.", rich_help_panel=LIMITS)] = 200,
    max_batch: Annotated[int, typer.Option(min=1, help="Queries per request.", rich_help_panel=LIMITS)] = 64,
    max_concurrency: Annotated[
        int, typer.Option(min=1, help="Threads that search and encode.", rich_help_panel=LIMITS)
    ] = 8,
    decode_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time to decode one image.", rich_help_panel=LIMITS)
    ] = 10,
    log_queries: Annotated[
        bool, typer.Option("--log-queries", help="Write queries to the access log.")
    ] = False,
    send_files: Annotated[
        bool,
        typer.Option("--send-files", help="Let clients download files that are no image, audio or video."),
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open a browser.")] = False,
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Write no access log.")] = False,
) -> None:
    """Open a web page that searches images with text and text with images, and serve the HTTP API.

    A new version that is saved to MODEL is loaded without a restart.

    Example: `diptych serve model`
    """
    with report_errors("the server has stopped"):
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
            image_encoder=make_image_encoder(image_encoder, recipe, weights),
            text_encoder=make_text_encoder(text_encoder),
            send_files=send_files,
            browser=not no_browser and sys.stdout.isatty(),
            say=make_console().print,
        )
