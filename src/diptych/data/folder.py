"""A folder of images with a text file beside each, and finding out what a path holds."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from diptych.checks import DataWarning, InputError, count, is_unicode
from diptych.data.coco import parse_coco
from diptych.data.files import DEFAULT_MAX_BYTES, check_folder, read_json_object, read_lines
from diptych.data.flickr import (
    FLICKR8K_SPLITS,
    FLICKR8K_TOKENS,
    FLICKR30K_TOKENS,
    read_flickr8k,
    read_flickr_tokens,
)
from diptych.data.karpathy import parse_karpathy
from diptych.data.pairs import PairedDataset
from diptych.data.tables import SUFFIXES, read_table
from diptych.image.decoding import EXTENSIONS


def read_pairs(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    encoding: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read pairs from whatever ``path`` is.

    Parameters
    ----------
    path
        A Karpathy split file, a Flickr token file, a COCO caption file, a table (CSV, TSV, JSON lines,
        Parquet), or a folder that holds one of these or images with ``.txt`` files beside them.
    images
        The folder of the image files, where it cannot be told from ``path``.
    image_column, caption_column, split_column
        Columns of a table, where their names are unusual.
    encoding
        Of a CSV or TSV file that is neither UTF-8 nor UTF-16.
    max_bytes
        A larger file is refused.
    """
    path = Path(path)
    columns = {"image_column": image_column, "caption_column": caption_column, "split_column": split_column}
    columns["encoding"] = encoding
    inside = _file_in(path) if path.is_dir() else path
    for name in columns:
        if (
            columns[name] is not None
            and path.exists()
            and (not inside or inside.suffix.lower() not in SUFFIXES)
        ):
            raise InputError(f"{path} is no table, so {name} has no effect; leave it out.")
    if path.is_dir():
        if inside is None:
            return read_folder(path, max_bytes=max_bytes)
        if inside.name == FLICKR8K_TOKENS:
            return read_flickr8k(path, images=images, max_bytes=max_bytes)
        path = inside
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return read_table(path, images=images, max_bytes=max_bytes, **columns)
    if suffix == ".json":
        content = read_json_object(path, max_bytes)
        parse = parse_coco if "annotations" in content else parse_karpathy
        return parse(content, str(path), images)
    if suffix in (".token", ".txt"):
        return read_flickr_tokens(path, images=images, max_bytes=max_bytes)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a file of pairs or a folder of images.")
    raise InputError(
        f"{path} is not a file of pairs; expected .json, .token, {', '.join(SUFFIXES)}, or a folder."
    )


def read_folder(folder: str | os.PathLike[str], *, max_bytes: int = DEFAULT_MAX_BYTES) -> PairedDataset:
    """Read images, in subfolders too, whose captions are the lines of the ``.txt`` file of the same name."""
    folder = check_folder(folder)
    paths = sorted(
        Path(base, name)
        for base, _, names in os.walk(folder)
        for name in names
        if Path(name).suffix.lower() in EXTENSIONS and not name.startswith(".")
    )
    unwritable = [path for path in paths if not is_unicode(path.relative_to(folder).as_posix())]
    if unwritable:
        warnings.warn(
            f"{len(unwritable)} image(s) have a file name that is not UTF-8 and are left out (the first: "
            f"{unwritable[0].name!r}); rename them.",
            DataWarning,
            stacklevel=3,
        )
        paths = [path for path in paths if path not in unwritable]
    found = []
    for path in paths:
        text = path.with_suffix(".txt")
        lines = [line.strip() for _, line in read_lines(text, max_bytes)] if text.is_file() else []
        found.append((path.relative_to(folder).as_posix(), lines))
    if not any(lines for _, lines in found):
        raise InputError(
            f"{folder} has {count(len(found), 'image')} and no captions; expected a table of captions, or a "
            ".txt file beside each image."
        )
    return PairedDataset.of(found, paths=paths)


def _file_in(folder: Path) -> Path | None:
    """The one file of pairs in ``folder``, or None if its captions must lie beside the images."""
    if (folder / FLICKR8K_TOKENS).is_file() and all((folder / f).is_file() for f in FLICKR8K_SPLITS.values()):
        return folder / FLICKR8K_TOKENS
    if (folder / FLICKR30K_TOKENS).is_file():
        return folder / FLICKR30K_TOKENS
    names = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    found = [path for path in names if path.suffix.lower() in SUFFIXES]
    found += [
        path for path in names if path.name.startswith(("dataset_", "captions_")) and path.suffix == ".json"
    ]
    if len(found) > 1:
        raise InputError(
            f"{folder} holds {len(found)} files of pairs ({', '.join(p.name for p in found[:4])}); name one."
        )
    return found[0] if found else None
