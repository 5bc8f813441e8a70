"""Karpathy's split files: ``dataset_flickr8k.json``, ``dataset_flickr30k.json``, ``dataset_coco.json``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.data.files import DEFAULT_MAX_BYTES, check_folder, contained_path, read_json_object
from diptych.data.pairs import PairedDataset, split_name


def read_karpathy(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read a split file; ``restval`` counts as training, as the paper has it.

    Parameters
    ----------
    path
        The JSON file.
    images
        Folder of the image files; for COCO the one that holds ``train2014`` and ``val2014``, or one with
        all of them together.
    max_bytes
        A larger file is refused.
    """
    return parse_karpathy(read_json_object(path, max_bytes), str(path), images)


def parse_karpathy(
    content: Mapping[str, Any], source: str, images: str | os.PathLike[str] | None = None
) -> PairedDataset:
    """Pairs from the parsed content of a split file."""
    entries = content.get("images")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{source} has no list of images; expected the layout of Karpathy's split files.")
    locate = None if images is None else _Locator(images)
    ids, splits, paths, captions, pairing, tokens, caption_ids = [], [], [], [], [], [], []
    for row, entry in enumerate(entries):
        try:
            name, sentences = str(entry["filename"]), list(entry["sentences"])
            splits.append(split_name(str(entry.get("split", ""))))
            raws = [str(sentence["raw"]) for sentence in sentences]
            words = [tuple(map(str, s["tokens"])) if "tokens" in s else None for s in sentences]
            numbers = [s.get("sentid") for s in sentences]
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{source}: image {row} is not as expected ({error!r} is missing).") from None
        ids.append(name)
        if locate is not None:
            paths.append(locate(str(entry.get("filepath", "")), name))
        captions += raws
        tokens += words
        caption_ids += numbers
        pairing += [row] * len(raws)
    return PairedDataset(
        tuple(ids),
        tuple(captions),
        np.array(pairing, np.int64),
        () if None in caption_ids else tuple(map(str, caption_ids)),
        tuple(splits) if any(splits) else None,
        tuple(paths) if locate is not None else None,
        None if None in tokens else tuple(words for words in tokens if words is not None),
    )


class _Locator:
    """Finds images that may or may not lie in the subfolder that the file names."""

    def __init__(self, images: str | os.PathLike[str]) -> None:
        self._folder = check_folder(images)
        self._bases: dict[str, Path] = {}

    def __call__(self, subfolder: str, name: str) -> Path:
        if subfolder not in self._bases:
            inner = contained_path(self._folder, subfolder) if subfolder else self._folder
            self._bases[subfolder] = inner if inner.is_dir() else self._folder
        return contained_path(self._bases[subfolder], name)
