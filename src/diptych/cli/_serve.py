"""``serve``: a page in the browser, and the same over HTTP."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from diptych._checks import missing_package_error
from diptych.cli._options import (
    ImageEncoderName,
    Model,
    Recipe,
    TextEncoderName,
    Threads,
    Weights,
    given_image_encoder,
    given_text_encoder,
)
from diptych.cli._output import said_plainly


def serve(
    model: Model,
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="DIPTYCH_TOKEN", help="What callers must know (better given as DIPTYCH_TOKEN)."),
    ] = None,
    writable: Annotated[
        bool, typer.Option("--writable", help="Let callers add and remove items; all of it is kept.")
    ] = False,
    image_encoder: ImageEncoderName = None,
    recipe: Recipe = None,
    weights: Weights = None,
    text_encoder: TextEncoderName = None,
    max_upload_mb: Annotated[float, typer.Option(min=0.001, help="Of one request with pictures.")] = 20,
    max_pixels: Annotated[int, typer.Option(min=1, help="Of one picture.")] = 40_000_000,
    max_k: Annotated[int, typer.Option(min=1, help="Answers to one query.")] = 200,
    max_batch: Annotated[int, typer.Option(min=1, help="Queries of one request.")] = 64,
    max_concurrency: Annotated[int, typer.Option(min=1, help="Threads that search and encode.")] = 8,
    decode_seconds: Annotated[float, typer.Option(min=0.1, help="To open one picture.")] = 10,
    log_queries: Annotated[
        bool, typer.Option("--log-queries", help="Log what was asked, not only that something was.")
    ] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Open no browser.")] = False,
    threads: Threads = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No access log.")] = False,
) -> None:
    """Open a page that searches pictures with words and words with pictures.

    A new version that is saved to MODEL is served from then on, without a restart.

    Example: `diptych serve model`
    """
    with said_plainly("the server has stopped"):
        try:
            from diptych.service._schemas import Limits
            from diptych.service._serve import Settings
            from diptych.service._serve import serve as run
        except ModuleNotFoundError:
            raise missing_package_error("serving needs", "serve") from None
        limits = Limits(
            upload_bytes=int(max_upload_mb * 2**20),
            pixels=max_pixels,
            k=max_k,
            batch=max_batch,
            concurrency=max_concurrency,
            decode_seconds=decode_seconds,
        )
        console = Console(highlight=False, soft_wrap=True, markup=False)
        run(
            Path(model),
            Settings(host, port, token, writable, limits, log_queries, threads, quiet),
            image_encoder=given_image_encoder(image_encoder, recipe, weights),
            text_encoder=given_text_encoder(text_encoder),
            browser=not no_browser and sys.stdout.isatty(),
            say=console.print,
        )
