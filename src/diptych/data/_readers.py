"""Readers of image-caption pairs: published datasets, tables, and folders of images.

Files come from others, so their size is bounded, nothing in them is executed, and no name in them leads out
of the folder of images.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._checks import (
    IMAGE_AND_TEXT,
    InputError,
    ViewNames,
    check_choice,
    check_view_names,
    count,
    plural,
)
from diptych._threads import prefetch, thread_count
from diptych.data._files import MAX_TEXT_BYTES, check_file, contained_path, read_lines
from diptych.data._pairs import SPLITS, PairedDataset, normalize_split
from diptych.data._photos import list_photos, read_photo
from diptych.data._tables import TABLE_SUFFIXES, ColumnNames, MetadataReader, Rows, open_table
from diptych.encoders._decoding import EXTENSIONS

FLICKR8K_TOKENS = "Flickr8k.token.txt"
FLICKR30K_TOKENS = "results_20130124.token"
_FLICKR8K_SPLITS = {
    "train": "Flickr_8k.trainImages.txt",
    "val": "Flickr_8k.devImages.txt",
    "test": "Flickr_8k.testImages.txt",
}
_IMAGE_COLUMNS = (
    *("image", "image_path", "file_name", "filename", "file", "path", "filepath", "img", "picture", "photo"),
    *("image_name", "image_id"),
)
_CAPTION_COLUMNS = (
    *("caption", "captions", "text", "sentence", "sentences", "description", "comment", "alt", "title"),
    *("raw", "label"),
)
_SPLIT_COLUMNS = ("split", "subset", "partition", "fold")

Format: TypeAlias = Literal["json", "tokens", "flickr8k", "table", "folder"]

_FORMATS: dict[str, Format] = {
    ".json": "json",
    ".token": "tokens",
    ".txt": "tokens",
    **dict.fromkeys(TABLE_SUFFIXES, "table"),
}
PAIRS_SUFFIXES = tuple(_FORMATS)


def read_pairs(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    encoding: str | None = None,
    metadata: ColumnNames | None = None,
    format: Format | None = None,
    views: tuple[str, str] = IMAGE_AND_TEXT,
    needs_captions: bool = True,
    max_bytes: int = MAX_TEXT_BYTES,
) -> PairedDataset:
    r"""Read image-caption pairs, or pairs of any two other things, from a file or a folder.

    Parameters
    ----------
    path
        A Karpathy split file (``restval`` counts as training), a COCO caption file (the split is in its
        name), a Flickr token file, a table (CSV, TSV, JSON lines, Parquet; one row per caption, or a list
        of captions per row), or a folder that holds one of these or images. The captions of images in a
        folder are the lines of the ``.txt`` files beside them, or else what the image files say (IPTC and XMP
        description, title, headline; ``.xmp`` files beside them too), with date, place, camera and keywords
        as metadata.
    images
        The folder of the images. None: for a table its own folder, or ``images`` beside it; for other
        files the paths stay unknown. For COCO it holds ``train2014`` and ``val2014``, or all images.
    image_column, caption_column, split_column
        Columns of a table; None: the usual names (``image``, ``file_name``, …; ``caption``, ``text``, …;
        ``split``).
    encoding
        Encoding of a CSV or TSV file, such as ``"cp1252"``; None: UTF-8, or UTF-16 if the file starts with
        its byte-order mark.
    metadata
        Columns of a table whose values become metadata, which searches can filter by: names, or ``"all"``
        for every other column. A caption has the values of its row; an image has the value that all its
        rows have, or the list of their values. In CSV and TSV files, a column whose cells are all whole
        numbers, numbers, true or false, or ISO dates has these types, and an empty cell is no value.
    format
        ``"json"`` (Karpathy or COCO), ``"tokens"``, ``"flickr8k"``, ``"table"`` or ``"folder"``; None:
        detected.
    views
        What the pairs are, as messages call them: ``("audio", "text")``. Columns of a table may have these
        names too. If the first is not ``"image"``, a folder holds any files with ``.txt`` files beside
        them; and a table without ``images`` whose first item is no file holds the items themselves, such
        as SMILES strings.
    needs_captions
        False: a folder may have no captions, and of a table without a column of captions the other columns
        are metadata of the images.
    max_bytes
        Larger files raise an ``InputError``.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> table = Path(mkdtemp()) / "captions.csv"
    >>> _ = table.write_text("image,caption\ncat.jpg,A cat.\ncat.jpg,It sleeps.\ndog.jpg,A dog.\n")
    >>> pairs = read_pairs(table)
    >>> pairs.image_ids, pairs.captions
    (('cat.jpg', 'dog.jpg'), ('A cat.', 'It sleeps.', 'A dog.'))
    """
    names = check_view_names(views)
    columns = {"image_column": image_column, "caption_column": caption_column, "split_column": split_column}
    settings = {**columns, "encoding": encoding, "metadata": metadata}
    folder = None if images is None else Path(images)
    options = _Options(folder, columns, encoding, metadata, max_bytes, names, needs_captions)
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; give a file of pairs or a folder of {plural(names.image)}.")
    if format is None:
        format, path = detect_format(path)
    check_choice(format, tuple(_READERS), "format")
    for name, value in settings.items():
        if value is not None and format != "table":
            raise InputError(f"{name} has no effect on {path}, which is not a table; leave it out.")
    if folder is not None:
        _check_folder(folder, names)
    return _READERS[format](path, options).with_views(names)


@dataclass(frozen=True)
class _Options:
    images: Path | None
    columns: Mapping[str, str | None]
    encoding: str | None
    metadata: ColumnNames | None
    max_bytes: int
    views: ViewNames
    needs_captions: bool = True

    def paths(self, names: Sequence[str]) -> tuple[Path, ...] | None:
        return None if self.images is None else tuple(contained_path(self.images, name) for name in names)


def detect_format(path: Path) -> tuple[Format, Path]:
    """Return the format of the pairs at ``path``, and the file to read: of a folder, the one file in it."""
    if path.is_dir():
        if all((path / name).is_file() for name in (FLICKR8K_TOKENS, *_FLICKR8K_SPLITS.values())):
            return "flickr8k", path
        if (path / FLICKR30K_TOKENS).is_file():
            return "tokens", path / FLICKR30K_TOKENS
        files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
        candidates = [file for file in files if file.suffix.lower() in TABLE_SUFFIXES]
        candidates += [file for file in files if re.fullmatch(r"(dataset|captions)_.*\.json", file.name)]
        if len(candidates) > 1:
            names = ", ".join(file.name for file in candidates[:4])
            raise InputError(f"{path} holds {len(candidates)} files of pairs ({names}); name one.")
        if not candidates:
            return "folder", path
        path = candidates[0]
    if (suffix := path.suffix.lower()) not in _FORMATS:
        raise InputError(f"{path} is not a file of pairs; expected {', '.join(PAIRS_SUFFIXES)}, or a folder.")
    return _FORMATS[suffix], path


def _read_json(path: Path, options: _Options) -> PairedDataset:
    """Read a COCO caption file (``captions_train2014.json``) or a split file (``dataset_coco.json``)."""
    path = check_file(path, options.max_bytes)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); download or write it again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return (_parse_coco if "annotations" in content else _parse_karpathy)(content, path, options)


def _parse_coco(content: dict[str, Any], path: Path, options: _Options) -> PairedDataset:
    try:
        rows = {entry["id"]: row for row, entry in enumerate(content["images"])}
        names = tuple(str(entry["file_name"]) for entry in content["images"])
        annotations = [(rows[a["image_id"]], str(a["caption"]), str(a["id"])) for a in content["annotations"]]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not a COCO caption file ({error!r} is missing); expected images and annotations "
            "with image_id, id and caption."
        ) from None
    if not annotations:
        raise InputError(f"{path} holds no captions.")
    # Annotations come in no order; sorting keeps the captions of an image together.
    annotations.sort(key=lambda annotation: annotation[0])
    pairing, captions, caption_ids = zip(*annotations, strict=True)
    split = next((split for split in SPLITS if split in path.name.lower()), None)
    return PairedDataset(
        names,
        tuple(caption.strip() for caption in captions),
        np.array(pairing, np.int64),
        caption_ids,
        None if split is None else (split,) * len(names),
        options.paths(names),
    )


def _parse_karpathy(content: dict[str, Any], path: Path, options: _Options) -> PairedDataset:
    entries = content.get("images")
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path} has no list of images; expected the layout of Karpathy's split files.")
    names, splits, subfolders, captions, pairing, caption_ids = [], [], [], [], [], []
    for row, entry in enumerate(entries):
        try:
            names.append(str(entry["filename"]))
            splits.append(normalize_split(str(entry.get("split", ""))))
            subfolders.append(str(entry.get("filepath", "")))
            for sentence in entry["sentences"]:
                captions.append(str(sentence["raw"]))
                pairing.append(row)
                caption_ids.append(sentence.get("sentid"))
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}: image {row} is not as expected ({error!r} is missing).") from None
    paths = None
    if options.images is not None:
        # COCO's images are in the subfolders that the file names, or all together.
        bases = {name: contained_path(options.images, name) for name in set(subfolders) if name}
        bases = {name: base for name, base in bases.items() if base.is_dir()}
        paths = tuple(
            contained_path(bases.get(subfolder, options.images), name)
            for subfolder, name in zip(subfolders, names, strict=True)
        )
    return PairedDataset(
        tuple(names),
        tuple(captions),
        np.array(pairing, np.int64),
        () if None in caption_ids else tuple(map(str, caption_ids)),
        tuple(splits) if any(splits) else None,
        paths,
    )


def _read_tokens(path: Path, options: _Options) -> PairedDataset:
    """Read a token file (``Flickr8k.token.txt``, ``results_20130124.token``): ``image.jpg#0<TAB>caption``."""
    rows: dict[str, int] = {}
    captions, pairing, caption_ids = [], [], []
    for number, line in read_lines(path, options.max_bytes):
        label, tab, caption = line.partition("\t")
        name, mark, index = label.strip().rpartition("#")
        if not tab or not mark or not name or not index.isdigit():
            raise InputError(
                f"{path}, line {number} is {line[:60]!r}; expected a file name, '#', a number, a tab and a "
                f"{options.views.caption}."
            )
        pairing.append(rows.setdefault(name, len(rows)))
        captions.append(caption.strip())
        caption_ids.append(f"{name}#{index}")
    if not captions:
        name = options.views.caption
        raise InputError(
            f"{path} holds no {plural(name)}; expected lines of a file name, #0, a tab and a {name}."
        )
    return PairedDataset(
        tuple(rows),
        tuple(captions),
        np.array(pairing, np.int64),
        tuple(caption_ids),
        paths=options.paths(list(rows)),
    )


def _read_flickr8k(folder: Path, options: _Options) -> PairedDataset:
    """Read Flickr8k's own files: ``Flickr8k.token.txt`` and the three lists of images.

    Images come in the order of the lists, training first. Captions of images in no list are left out: the
    token file has about a hundred of those.
    """
    pairs = _read_tokens(folder / FLICKR8K_TOKENS, options)
    row_of = {name: row for row, name in enumerate(pairs.image_ids)}
    rows, splits = [], []
    for split, file in _FLICKR8K_SPLITS.items():
        for number, line in read_lines(folder / file, options.max_bytes):
            name = line.strip()
            if name not in row_of:
                raise InputError(
                    f"{folder / file}, line {number}: {name!r} has no captions in the token file."
                )
            rows.append(row_of[name])
            splits.append(split)
    return pairs.select(rows).with_splits(splits)


def _read_folder(folder: Path, options: _Options) -> PairedDataset:
    """Read files, in subfolders too, with captions in the ``.txt`` files beside them, or in photos."""
    names = options.views
    _check_folder(folder, names)
    files = list_photos(folder, partial(_is_item, names=names))
    threads = thread_count(None)
    texts = dict(zip(files, prefetch(read_photo, files.values(), threads, 4 * threads), strict=True))
    captions = {
        f"{name}#{end}": caption for name, text in texts.items() for end, caption in text.captions.items()
    }
    if options.needs_captions and not captions:
        raise InputError(
            f"{folder} has {count(len(files), names.image)} and no {plural(names.caption)}; expected a "
            f"table of {plural(names.caption)}, or a .txt file beside each {names.image}."
        )
    return PairedDataset(
        tuple(files),
        tuple(captions.values()),
        np.repeat(np.arange(len(files)), [len(text.captions) for text in texts.values()]),
        tuple(captions),
        paths=tuple(files.values()),
        metadata={name: text.metadata for name, text in texts.items() if text.metadata},
    )


def _is_item(file: Path, names: ViewNames) -> bool:
    """Return whether a file is an item of the first view: an image, or any file with texts beside it."""
    suffix = file.suffix.lower()
    if suffix in EXTENSIONS or names.image == "image":
        return suffix in EXTENSIONS
    return suffix != ".txt" and file.with_suffix(".txt").is_file()


def _read_table(path: Path, options: _Options) -> PairedDataset:
    """Read a CSV, TSV, JSON lines or Parquet file; rows of one image need not stand together."""
    path, names = check_file(path, options.max_bytes), options.views
    columns, rows = open_table(path, options.encoding, options.max_bytes)
    if not any(name.strip() for name in columns):
        raise InputError(
            f"{path} is empty; expected columns such as {names.image} and {names.caption}, one row per "
            f"{names.caption}."
        )

    def find(option: str, usual: Sequence[str], *, required: bool) -> str:
        """Return the column that was named, or one with a usual name; "" if there is none."""
        if (wanted := options.columns[option]) is not None:
            if wanted not in columns:
                raise InputError(f"{path} has no column {wanted!r}; it has {', '.join(columns)}.")
            return wanted
        by_name = {name.strip().lower(): name for name in reversed(columns)}
        column = next((by_name[name.lower()] for name in usual if name.lower() in by_name), "")
        if required and not column:
            raise InputError(
                f"{path} has the columns {', '.join(columns)}, and none has a usual name for the {usual[0]}; "
                f"name it with {option}."
            )
        return column

    image = find("image_column", (names.image, *_IMAGE_COLUMNS), required=True)
    caption = find("caption_column", (names.caption, *_CAPTION_COLUMNS), required=options.needs_captions)
    split = find("split_column", _SPLIT_COLUMNS, required=False)
    metadata = "all" if options.metadata is None and not caption else options.metadata
    reader = None
    if metadata is not None:
        is_typed = path.suffix.lower() not in (".csv", ".tsv")
        reader = MetadataReader(metadata, {image, caption, split}, path, typed=is_typed)
    pairs = _join_rows(rows, image, caption, split, path, names, reader)
    if reader is not None:
        pairs = replace(pairs, metadata=reader.finish(columns, pairs.image_ids, pairs.caption_ids))
    folder = options.images or _find_folder(path, pairs.image_ids[0], names)
    if folder is None:
        return pairs
    return replace(pairs, paths=tuple(contained_path(folder, name) for name in pairs.image_ids))


def _join_rows(
    rows: Rows,
    image: str,
    caption: str,
    split: str,
    path: Path,
    names: ViewNames,
    metadata: MetadataReader | None,
) -> PairedDataset:
    """Return the pairs in the rows of a table, given its columns; ``metadata`` takes each row."""
    image_rows: dict[str, int] = {}
    captions: list[str] = []
    pairing: list[int] = []
    splits: list[str] = []
    for number, cells in rows:
        name = cells.get(image)
        if not isinstance(name, (str, int)) or not str(name).strip():
            raise InputError(f"{path}, row {number}: column {image!r} holds {name!r}; expected a name.")
        row = image_rows.setdefault(str(name).strip(), len(image_rows))
        row_split = normalize_split(str(cells.get(split) or "")) if split else ""
        if row == len(splits):
            splits.append(row_split)
        elif splits[row] != row_split:
            raise InputError(
                f"{path}, row {number}: {name!r} is in {row_split or 'no split'!r} here and in "
                f"{splits[row] or 'no split'!r} before; put all rows of one {names.image} in one split."
            )
        cell = cells.get(caption) if caption else []
        texts: Sequence[Any] = cell if isinstance(cell, (list, tuple)) else [cell]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"{path}, row {number}: column {caption!r} holds {cell!r}; expected text.")
        captions += [text.strip() for text in texts]
        pairing += [row] * len(texts)
        if metadata is not None:
            metadata.add(number, cells, row, len(texts))
    if not captions and (caption or not image_rows):
        missing = plural(names.caption if caption else names.image)
        raise InputError(f"{path} holds no {missing}; expected one row for each.")
    return PairedDataset(
        tuple(image_rows),
        tuple(captions),
        np.array(pairing, np.int64),
        splits=tuple(splits) if any(splits) else None,
    )


def _find_folder(table: Path, name: str, names: ViewNames) -> Path | None:
    """Return the folder of a table's files, by the name of the first; None if that is no file."""
    beside = table.parent / "images"
    if names.image == "image":
        in_place = not beside.is_dir() or contained_path(table.parent, name).is_file()
        return table.parent if in_place else beside
    with suppress(InputError, OSError, ValueError):  # a text need not be a possible file name
        return next((f for f in (table.parent, beside) if contained_path(f, name).is_file()), None)
    return None


_READERS: dict[Format, Callable[[Path, _Options], PairedDataset]] = {
    "json": _read_json,
    "tokens": _read_tokens,
    "flickr8k": _read_flickr8k,
    "table": _read_table,
    "folder": _read_folder,
}


def _check_folder(folder: Path, names: ViewNames) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that holds the {plural(names.image)}.")
