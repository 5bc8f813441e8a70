"""``add`` and ``remove``: items in and out of a saved model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych._checks import InputError, count
from diptych.cli._options import (
    AsJson,
    CaptionColumn,
    Columns,
    Device,
    Encoding,
    ImageColumn,
    ImageEncoderName,
    ImagesFolder,
    Model,
    Pairs,
    Quiet,
    Recipe,
    TextEncoderName,
    Threads,
    Weights,
    make_image_encoder,
    make_text_encoder,
    open_data,
    refuse_unused,
)
from diptych.cli._output import (
    exit_if_unreadable,
    limit_threads,
    make_console,
    print_json,
    report_errors,
    split_readable,
)
from diptych.data import PairedDataset, PairedViews
from diptych.image._decoding import EXTENSIONS
from diptych.retrieval import Retriever
from diptych.retrieval._items import Catalogue


def add(
    ctx: typer.Context,
    model: Model,
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="SOURCE...", help="Image files; or pairs; or two files of features."),
    ],
    pairs: Pairs = None,
    images: ImagesFolder = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    encoding: Encoding = None,
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
    """Add images, or pairs, to a model. It does not learn from them unless --refit is given.

    Example: `diptych add model new-photo.jpg`

    Example: `diptych add model new-captions.csv --images photos --refit`
    """
    with report_errors(), limit_threads(threads):
        if _are_images(sources):
            names = ("pairs", "images", "image_column", "caption_column", "encoding", "text_encoder")
            refuse_unused(ctx, names, "on image files")
            if refit:
                raise InputError("--refit learns from pairs, and images alone have none; leave it out.")
        retriever = Retriever.load(
            model,
            make_image_encoder(image_encoder, recipe, weights),
            make_text_encoder(text_encoder, device),
            device=device,
        )
        columns = Columns(image_column, caption_column, encoding)
        added, unreadable = _add(retriever, sources, pairs, images, columns)
        if refit:
            retriever.refit()
        retriever.save(model)
        found = {"model": str(model), "added": added, "refitted": refit, "unreadable": unreadable or None}
        _say(found, f"added {count(len(added), 'item')}", quiet, as_json)
        exit_if_unreadable(unreadable)


def remove(
    model: Model,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Of images or captions; or paths of images.")
    ],
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Remove items from a model; an image takes its captions with it.

    Example: `diptych remove model new-photo.jpg`
    """
    with report_errors(), limit_threads(threads):
        retriever = Retriever.load(model)
        gone = retriever.remove(_ids(retriever.collection.items, ids))
        retriever.save(model)
        _say({"model": str(model), "removed": gone}, f"removed {count(gone, 'item')}", quiet, as_json)


def _are_images(sources: list[Path]) -> bool:
    return all(path.suffix.lower() in EXTENSIONS for path in sources)


def _add(
    retriever: Retriever, sources: list[Path], pairs: Path | None, images: Path | None, columns: Columns
) -> tuple[list[str], dict[str, str]]:
    """Add what was named, but for images that cannot be read; returns the ids, and those with the reason."""
    if _are_images(sources):
        good, unreadable = split_readable(sources)
        if not good:
            raise InputError(" ".join(unreadable.values()))
        return retriever.add([str(path) for path in good]), unreadable
    data = _open(sources, pairs, images, columns)
    if not isinstance(data, PairedDataset):
        return retriever.add(**_arguments(data)), {}
    if data.paths is None:
        raise InputError(f"{sources[0]} does not tell where its images lie; say so with --images.")
    good, unreadable = split_readable(data.paths)
    if not good:
        raise InputError(f"none of {count(data.n_images, 'image')} can be read; see diptych check.")
    if unreadable:
        data = data.select([row for row, path in enumerate(data.paths) if str(path) not in unreadable])
    return retriever.add(**_arguments(data)), unreadable


def _ids(items: Catalogue, names: list[str]) -> list[str]:
    """The ids of items that were named by their id, or by the path that search prints."""
    by_path: dict[str, list[str]] = {}
    if any(name not in items for name in names):
        for _, item in items:
            if item.path is not None:
                by_path.setdefault(os.path.abspath(item.path), []).append(item.id)
    found = []
    for name in names:
        ids = [name] if name in items else by_path.get(os.path.abspath(name), [])
        if not ids:
            raise InputError(f"there is no item {name!r}, by id or by path.")
        if len(ids) > 1:
            raise InputError(
                f"{name} is the path of {count(len(ids), 'item')}; give an id: {', '.join(ids)}."
            )
        found += ids
    return found


def _open(
    sources: list[Path], pairs: Path | None, images: Path | None, columns: Columns
) -> PairedDataset | PairedViews:
    if len(sources) > 2:
        raise InputError(
            f"{sources[0]} is not an image file; give image files, or pairs, or two files of features, not "
            "a mixture."
        )
    return open_data(sources[0], sources[1] if len(sources) == 2 else None, pairs, images, columns)


def _arguments(data: PairedDataset | PairedViews) -> dict[str, Any]:
    """The arguments of ``Retriever.add`` for pairs or features."""
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
    return found | {"images": paths, "captions": dataset.captions}


def _say(found: dict[str, Any], sentence: str, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(found)
    elif not quiet:
        make_console().print(f"{sentence}; wrote {found['model']}")
