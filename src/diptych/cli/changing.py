"""``add`` and ``remove``: items in and out of a saved model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diptych.checks import InputError
from diptych.cli.console import limited_to, plain_console, print_json, said_plainly
from diptych.cli.options import (
    AsJson,
    Device,
    ImageEncoderName,
    ImagesFolder,
    Model,
    Pairs,
    Quiet,
    Recipe,
    TextEncoderName,
    Threads,
    Weights,
    given_image_encoder,
    given_text_encoder,
    open_data,
)
from diptych.data import PairedDataset
from diptych.image.decoding import EXTENSIONS
from diptych.retrieval import Retriever


def add(
    model: Model,
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Image files; or pairs; or two files of features."),
    ],
    pairs: Pairs = None,
    images: ImagesFolder = None,
    refit: Annotated[bool, typer.Option("--refit", help="Learn from the pairs added, too.")] = False,
    image_encoder: ImageEncoderName = None,
    recipe: Recipe = None,
    weights: Weights = None,
    text_encoder: TextEncoderName = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Add pictures, or pairs, to a model. It does not learn from them unless --refit is given.

    Example: `diptych add model new-photo.jpg`

    Example: `diptych add model new-captions.csv --images photos --refit`
    """
    with said_plainly(), limited_to(threads):
        retriever = Retriever.load(
            model,
            given_image_encoder(image_encoder, recipe, weights),
            given_text_encoder(text_encoder, device),
            device=device,
        )
        added = retriever.add(**_what(sources, pairs, images))
        if refit:
            retriever.refit()
        retriever.save(model)
        _say({"model": str(model), "added": added, "refitted": refit}, f"added {len(added)}", quiet, as_json)


def remove(
    model: Model,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Of pictures or captions.")],
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Take items out of a model; a picture takes its captions with it.

    Example: `diptych remove model new-photo.jpg`
    """
    with said_plainly(), limited_to(threads):
        retriever = Retriever.load(model)
        gone = retriever.remove(ids)
        retriever.save(model)
        _say({"model": str(model), "removed": gone}, f"removed {gone}", quiet, as_json)


def _what(sources: list[Path], pairs: Path | None, images: Path | None) -> dict[str, Any]:
    """The arguments of ``Retriever.add`` for what was named."""
    if all(path.suffix.lower() in EXTENSIONS for path in sources):
        return {"images": [str(path) for path in sources]}
    if len(sources) > 2:
        raise InputError(
            f"{sources[0]} is no picture; give image files, or pairs, or two files of features, but no "
            "mixture."
        )
    data = open_data(sources[0], sources[1] if len(sources) == 2 else None, pairs, images)
    dataset = data if isinstance(data, PairedDataset) else data.dataset
    paths = None if dataset.paths is None else [str(path) for path in dataset.paths]
    found: dict[str, Any] = {
        "pairing": dataset.pairing,
        "ids": dataset.image_ids,
        "caption_ids": dataset.caption_ids,
    }
    if not isinstance(data, PairedDataset):
        texts = [caption or None for caption in dataset.captions]
        return found | {"images": data.x, "captions": data.y, "texts": texts, "paths": paths}
    if paths is None:
        raise InputError(f"{sources[0]} does not tell where its pictures lie; say so with --images.")
    return found | {"images": paths, "captions": dataset.captions}


def _say(found: dict[str, Any], sentence: str, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif not quiet:
        plain_console().print(f"{sentence} item(s); wrote {found['model']}")
