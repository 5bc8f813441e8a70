"""The text files that Flickr8k and Flickr30k come with."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from diptych.checks import InputError
from diptych.data.files import DEFAULT_MAX_BYTES, check_folder, contained_path, read_lines
from diptych.data.pairs import PairedDataset

FLICKR8K_TOKENS = "Flickr8k.token.txt"
FLICKR8K_SPLITS = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
FLICKR30K_TOKENS = "results_20130124.token"


def read_flickr8k(
    folder: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read Flickr8k's own files: ``Flickr8k.token.txt`` and the three lists of images.

    Images come in the order of the lists, training first. Captions of images that no list names are left
    out: the token file has about a hundred of those.
    """
    folder = check_folder(folder)
    pairs = read_flickr_tokens(folder / FLICKR8K_TOKENS, images=images, max_bytes=max_bytes)
    row_of = {name: row for row, name in enumerate(pairs.image_ids)}
    rows, splits = [], []
    for split, file in FLICKR8K_SPLITS.items():
        for number, line in read_lines(folder / file, max_bytes):
            name = line.strip()
            if name not in row_of:
                raise InputError(
                    f"{folder / file}, line {number}: {name!r} has no captions in the token file."
                )
            rows.append(row_of[name])
            splits.append(split)
    return pairs.select(rows).with_splits(splits)


def read_flickr_tokens(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read a token file (``Flickr8k.token.txt``, ``results_20130124.token``): ``image.jpg#0<TAB>caption``."""
    folder = None if images is None else check_folder(images)
    rows: dict[str, int] = {}
    captions, pairing, caption_ids = [], [], []
    for number, line in read_lines(path, max_bytes):
        label, tab, caption = line.partition("\t")
        name, mark, index = label.strip().rpartition("#")
        if not tab or not mark or not name or not index.isdigit():
            raise InputError(
                f"{path}, line {number} is {line[:60]!r}; expected an image name, '#', a number, a tab and a "
                "caption."
            )
        pairing.append(rows.setdefault(name, len(rows)))
        captions.append(caption.strip())
        caption_ids.append(f"{name}#{index}")
    if not captions:
        raise InputError(f"{path} holds no captions; expected lines of image.jpg#0, a tab and a caption.")
    paths: tuple[Path, ...] | None = None
    if folder is not None:
        paths = tuple(contained_path(folder, name) for name in rows)
    return PairedDataset(
        tuple(rows), tuple(captions), np.array(pairing, np.int64), tuple(caption_ids), paths=paths
    )
