"""``search``, ``annotate``, ``similar`` and ``info``: a model in use."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from diptych._checks import DataWarning, InputError, count
from diptych.cli._options import (
    AsJson,
    Device,
    ImageEncoderName,
    K,
    Model,
    Quiet,
    Recipe,
    TextEncoderName,
    Threads,
    Weights,
    make_image_encoder,
    make_text_encoder,
    refuse_unused,
)
from diptych.cli._output import (
    describe_correlations,
    exit_if_unreadable,
    limit_threads,
    describe_model,
    make_console,
    print_json,
    recall_table,
    report_errors,
    split_readable,
)
from diptych.data import open_features
from diptych.retrieval import Hit, Hits, Pack, Retriever

MOST_NAMED = 10
"""Ignored words that a note names."""

Features = Annotated[
    Path | None,
    typer.Option(help="A file of features to ask with, one query a row."),
]
Weighting = Annotated[
    str | None, typer.Option(help="asymmetric, search-generation, symmetric or none, to compare with.")
]


def search(
    ctx: typer.Context,
    model: Model,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[SENTENCE]...", help="What to look for.")
    ] = None,
    k: K = 10,
    features: Features = None,
    weighting: Weighting = None,
    text_encoder: TextEncoderName = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find images for sentences. Scores are cosines, not probabilities.

    Example: `diptych search model "a dog in the snow" -k 5`
    """
    with report_errors(), limit_threads(threads):
        asked = _asked(queries, features, "a sentence")
        if features is not None:
            refuse_unused(ctx, ("text_encoder", "device"), "on features")
        retriever = Retriever.load(model, None, make_text_encoder(text_encoder, device), mmap=True)
        found = retriever.search(asked, k, weighting=weighting)  # type: ignore[arg-type]
        _show(queries, found, quiet, as_json)


def annotate(
    ctx: typer.Context,
    model: Model,
    pictures: Annotated[
        list[Path] | None, typer.Argument(metavar="[PICTURE]...", help="Image files.")
    ] = None,
    k: K = 5,
    packs: Annotated[bool, typer.Option("--packs", help="Find all captions of one picture.")] = False,
    features: Features = None,
    weighting: Weighting = None,
    image_encoder: ImageEncoderName = None,
    recipe: Recipe = None,
    weights: Weights = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find sentences for images. Scores are cosines, not probabilities.

    Example: `diptych annotate model photo.jpg -k 3`
    """
    with report_errors(), limit_threads(threads):
        asked = _asked(pictures, features, "an image file")
        unreadable: dict[str, str] = {}
        if features is not None:
            refuse_unused(ctx, ("image_encoder", "recipe", "weights"), "on features")
        elif len(asked) > 1:
            asked, unreadable = split_readable(asked)
            if not asked:
                raise InputError(" ".join(unreadable.values()))
            pictures = asked
        encoder = make_image_encoder(image_encoder, recipe, weights)
        retriever = Retriever.load(model, encoder, mmap=True, device=device)
        found = retriever.annotate(asked, k, packs=packs, weighting=weighting)  # type: ignore[arg-type]
        _show(pictures, found, quiet, as_json)
        exit_if_unreadable(unreadable)


def similar(
    ctx: typer.Context,
    model: Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A sentence, or an image file.")],
    picture: Annotated[bool, typer.Option("--picture", help="QUERY is an image file.")] = False,
    k: K = 10,
    image_encoder: ImageEncoderName = None,
    recipe: Recipe = None,
    weights: Weights = None,
    text_encoder: TextEncoderName = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Find images like an image, or sentences like a sentence.

    Example: `diptych similar model photo.jpg --picture`
    """
    with report_errors(), limit_threads(threads):
        if picture:
            refuse_unused(ctx, ("text_encoder",), "with --picture")
        else:
            refuse_unused(ctx, ("image_encoder", "recipe", "weights"), "without --picture")
        encoder = make_image_encoder(image_encoder, recipe, weights)
        retriever = Retriever.load(model, encoder, make_text_encoder(text_encoder, device), mmap=True)
        found = retriever.similar(image=query, k=k) if picture else retriever.similar(text=query, k=k)
        _show([query], [found], quiet, as_json)


def info(model: Model, threads: Threads = None, quiet: Quiet = False, as_json: AsJson = False) -> None:
    """Say what a model is, what it was fitted on, and how good it is.

    Example: `diptych info model`
    """
    with report_errors(), limit_threads(threads):
        found = Retriever.load(model, mmap=True).info()
        if as_json:
            print_json(found)
        elif not quiet:
            _show_info(found, model)


def _asked(given: Sequence[Any] | None, features: Path | None, what: str) -> Any:
    if bool(given) == (features is not None):
        raise InputError(f"give {what} to ask with, or --features, one of the two.")
    return open_features(features) if features is not None else list(given or ())


def _show(asked: Sequence[Any] | None, found: Sequence[Any], quiet: bool, as_json: bool) -> None:
    names = [str(each) for each in asked] if asked else [f"row {i}" for i in range(len(found))]
    for name, hits in zip(names, found, strict=True):
        if isinstance(hits, Hits) and hits.ignored_words:
            of = f" of {name!r}" if len(names) > 1 else ""
            words = hits.ignored_words
            more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
            said = f"ignored words{of} the model does not know: {', '.join(words[:MOST_NAMED])}{more}"
            warnings.warn(said, DataWarning, stacklevel=1)  # shown as a note
    if as_json:
        answers = [
            {"query": name, "hits": [hit.to_json() for hit in hits]}
            | ({"ignored_words": list(hits.ignored_words)} if isinstance(hits, Hits) else {})
            for name, hits in zip(names, found, strict=True)
        ]
        print_json({"answers": answers})
        return
    if quiet:
        return
    console = make_console()
    for name, hits in zip(names, found, strict=True):
        table = Table(title=name, title_justify="left", box=None, pad_edge=False)
        table.add_column("score", justify="right")
        table.add_column("found")
        for hit in hits:
            table.add_row(f"{hit.score:.3f}", _label(hit))
        console.print(table)
        if not hits:
            console.print("nothing is indexed; add items with diptych add")


def _label(hit: Hit | Pack) -> str:
    if isinstance(hit, Pack):
        return f"{hit.image}: {hit.best.text or hit.best.id} (+{len(hit.captions) - 1})"
    return hit.text or (hit.path and _shorten(hit.path)) or hit.id


def _shorten(path: str) -> str:
    """Name a path from the folder that the command runs in, where it lies below that."""
    here = os.path.join(os.path.realpath("."), "")
    return path[len(here) :] if path.startswith(here) else path


def _show_info(found: dict[str, Any], model: Path) -> None:
    console, facts = make_console(), found["facts"]
    made = f"fitted on {facts['date']} with " if facts.get("date") else ""
    console.print(f"{model}: {made}diptych {found['library']}")
    for view, encoder in found["encoders"].items():
        console.print(f"{view}s: {encoder['name'] or 'features'}, {count(encoder['dimension'], 'feature')}")
    sizes = ", ".join(
        f"{split} {count(n, 'image')} and {count(m, 'caption')}" for split, (n, m) in facts["pairs"].items()
    )
    console.print(f"pairs: {sizes}")
    if "refitted" in facts:
        console.print(
            f"refitted on {count(facts['refitted']['pairs'], 'pair')} ({facts['refitted']['before']} before)"
        )
    for line in (*describe_model(found), *describe_correlations(found)):
        console.print(line)
    indexed = " and ".join(count(n, view) for view, n in found["items"].items())
    console.print(f"index: {found['index']['kind']}, {found['index']['dtype']}; {indexed}")
    if "quality" in facts:
        console.print(facts["quality"])
    for part, scores in facts.get("metrics", {}).items():
        console.print(recall_table(part, scores))
