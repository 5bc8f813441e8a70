"""Items for what users give: pairs with names of their own, or things that get one here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from diptych.checks import InputError, check_pairing, is_unicode
from diptych.data import PairedDataset
from diptych.retrieval.items import Item, View

Metadata: TypeAlias = Mapping[str, Mapping[str, Any]]
"""For some ids, plain values."""

MAX_DEPTH = 100
"""How deep metadata may be nested: what one Python can write, another must be able to read."""


def items_of(dataset: PairedDataset, metadata: Metadata) -> dict[View, list[Item]]:
    """Items of pairs; their split is part of their metadata."""
    places = dataset.paths or (None,) * dataset.n_images
    paths = [None if place is None else os.path.abspath(os.fsdecode(place)) for place in places]
    splits = dataset.splits or ("",) * dataset.n_images

    def of(name: str, row: int) -> Mapping[str, Any]:
        own = plain(metadata.get(name, {}), name)
        return {"split": splits[row], **own} if splits[row] else own

    images = [
        Item(name, "image", path=path, metadata=of(name, row))
        for row, (name, path) in enumerate(zip(dataset.image_ids, paths, strict=True))
    ]
    captions = zip(dataset.caption_ids, dataset.captions, dataset.pairing.tolist(), strict=True)
    texts = [
        Item(name, "text", text=text or None, image=dataset.image_ids[row], metadata=of(name, row))
        for name, text, row in captions
    ]
    return {"image": images, "text": texts}


def image_items(
    things: Sequence[Any], ids: Sequence[str] | None, metadata: Metadata, unused: Iterator[str]
) -> list[Item]:
    """Items for new pictures: named by ``ids``, by their path, or by a name of ``unused``."""
    paths = [os.fspath(t) if isinstance(t, str | os.PathLike) else None for t in things]
    names = ids if ids is not None else [path or next(unused) for path in paths]
    _check_length(len(things), names, "ids")
    for name in (*names, *(path for path in paths if path is not None)):
        if not is_unicode(str(name)):
            raise InputError(f"the name {str(name)!r} is not valid Unicode text; rename the file or the id.")
    return [
        Item(
            str(name),
            "image",
            path=None if path is None else os.path.abspath(path),
            metadata=plain(metadata.get(str(name), {}), name),
        )
        for name, path in zip(names, paths, strict=True)
    ]


def text_items(
    sentences: Sequence[str | None],
    images: Sequence[Item] | None,
    pairing: Any,
    ids: Sequence[str] | None,
    metadata: Metadata,
    unused: Iterator[str],
) -> list[Item]:
    """Items for new sentences: named by ``ids``, by their picture and a number, or by ``unused``."""
    owners: list[str | None] = [None] * len(sentences)
    if images is not None:
        rows = check_pairing(pairing, len(images), np.empty((len(sentences), 1)))
        owners = [images[row].id for row in rows.tolist()]
    texts = [None if sentence is None else str(sentence) for sentence in sentences]
    names = ids
    if names is None:
        names = [f"{o}#{i}" if o else next(unused) for i, o in enumerate(owners)]
    _check_length(len(sentences), names, "caption_ids")
    return [
        Item(str(name), "text", text=text, image=owner, metadata=plain(metadata.get(str(name), {}), name))
        for name, text, owner in zip(names, texts, owners, strict=True)
    ]


def plain(metadata: Mapping[str, Any], name: object) -> dict[str, Any]:
    """``metadata`` as it will be once written as JSON and read again."""
    try:
        found = json.loads(json.dumps(metadata, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the metadata of {name!r} cannot be stored ({error}); give strings, numbers, lists and dicts."
        ) from None
    if not isinstance(found, dict):
        raise InputError(f"the metadata of {name!r} is {metadata!r}; give a dict of names and plain values.")
    layer: list[Any] = [found]
    for _ in range(MAX_DEPTH):
        parts = (part for each in layer for part in (each.values() if isinstance(each, dict) else each))
        layer = [part for part in parts if isinstance(part, dict | list)]
        if not layer:
            return found
    raise InputError(f"the metadata of {name!r} cannot be stored: it is nested more than {MAX_DEPTH} deep.")


def _check_length(n: int, given: Sequence[Any], name: str) -> None:
    if len(given) != n:
        raise InputError(f"{name} has {len(given)} entries; expected {n}, one for each item.")
