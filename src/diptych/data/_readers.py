"""Reading files that others wrote: bounded, never executed, and never outside of their folder.

The text files that Flickr8k and Flickr30k come with.

COCO's caption files, ``captions_train2014.json`` and its kin.

Karpathy's split files: ``dataset_flickr8k.json``, ``dataset_flickr30k.json``, ``dataset_coco.json``.

A folder of images with a text file beside each, and finding out what a path holds.

Captions in a table: CSV, TSV, JSON lines or Parquet, one row per caption or per image.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from diptych._checks import DataWarning, InputError, count, is_unicode, missing_package_error
from diptych.data._pairs import PairedDataset, split_name
from diptych.image._decoding import EXTENSIONS

DEFAULT_MAX_BYTES = 2 * 2**30
"""The largest file of pairs that is read; the largest published one has 0.15 GiB."""


def npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, type, and where the numbers begin, of an open ``.npy`` file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    return shape, fortran, dtype, file.tell()


def check_file(path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Path:
    """``path`` if it is a file of at most ``max_bytes``."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; check the path.")
    size = path.stat().st_size
    if size > max_bytes:
        raise InputError(f"{path} has {size:,} bytes; at most {max_bytes:,} are read. Raise max_bytes.")
    return path


def read_json_object(path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file."""
    path = check_file(path, max_bytes)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); download or write it again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return content


def read_lines(path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file that are not blank, with their numbers from 1."""
    path = check_file(path, max_bytes)
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def contained_path(folder: str | os.PathLike[str], name: str) -> Path:
    """``folder / name`` for a name read from a file, which must not lead out of the folder.

    >>> contained_path("photos", "a/b.jpg").as_posix()
    'photos/a/b.jpg'
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    drive = len(name) > 1 and name[1] == ":"
    if not name or "\0" in name or parts.is_absolute() or drive or ".." in parts.parts:
        raise InputError(
            f"the file name {name!r} leads out of {folder}; names must be relative to the folder of images."
        )
    return Path(folder, *parts.parts)


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """``folder`` if it is one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that holds the images.")
    return folder


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


def read_coco(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read a COCO caption file; its name tells the split (``train`` or ``val`` in it), if any."""
    return parse_coco(read_json_object(path, max_bytes), str(path), images)


def parse_coco(
    content: Mapping[str, Any], source: str, images: str | os.PathLike[str] | None = None
) -> PairedDataset:
    """Pairs from the parsed content of a caption file."""
    folder = None if images is None else check_folder(images)
    try:
        rows = {entry["id"]: row for row, entry in enumerate(content["images"])}
        names = [str(entry["file_name"]) for entry in content["images"]]
        annotations = [(rows[a["image_id"]], str(a["caption"]), str(a["id"])) for a in content["annotations"]]
    except (KeyError, TypeError) as error:
        raise InputError(
            f"{source} is not a COCO caption file ({error!r} is missing); expected images and annotations "
            "with image_id, id and caption."
        ) from None
    if not annotations:
        raise InputError(f"{source} holds no captions.")
    # Annotations come in no order; captions are kept together, image by image.
    annotations.sort(key=lambda annotation: annotation[0])
    file = Path(source).name.lower()
    split = next((name for name in ("train", "val", "test") if name in file), None)
    return PairedDataset(
        tuple(names),
        tuple(caption.strip() for _, caption, _ in annotations),
        np.array([row for row, _, _ in annotations], np.int64),
        tuple(number for _, _, number in annotations),
        None if split is None else (split,) * len(names),
        None if folder is None else tuple(contained_path(folder, name) for name in names),
    )


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


SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
IMAGE_COLUMNS = (
    *("image", "image_path", "file_name", "filename", "file", "path", "filepath", "img", "picture", "photo"),
    *("image_name", "image_id"),
)
CAPTION_COLUMNS = (
    *("caption", "captions", "text", "sentence", "sentences", "description", "comment", "alt", "title"),
    *("raw", "label"),
)
SPLIT_COLUMNS = ("split", "subset", "partition", "fold")


def read_table(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    encoding: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read captions from a table.

    Parameters
    ----------
    path
        ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``. Rows of one image need not stand together; a cell
        of JSON lines or Parquet may hold a list of captions.
    images
        Folder that the image names are relative to; None: the table's own, or ``images`` beside it.
    image_column, caption_column, split_column
        Names of the columns; None: found by their usual names (``image``, ``file_name``, …; ``caption``,
        ``text``, …; ``split``).
    encoding
        Of a CSV or TSV file, such as ``"cp1252"``; None: UTF-8, or UTF-16 where the file begins by saying so.
    max_bytes
        A larger file is refused.
    """
    path = check_file(path, max_bytes)
    columns, rows = _open(path, max_bytes, encoding)
    if not any(name.strip() for name in columns):
        raise InputError(f"{path} is empty; expected columns such as image and caption, one row per caption.")
    image = _column(columns, image_column, IMAGE_COLUMNS, "image", path)
    caption = _column(columns, caption_column, CAPTION_COLUMNS, "caption", path)
    split = None
    if split_column is not None or any(name.lower() in SPLIT_COLUMNS for name in columns):
        split = _column(columns, split_column, SPLIT_COLUMNS, "split", path)
    order: dict[str, int] = {}
    captions, pairing, splits = [], [], []
    for number, row in rows:
        name = row.get(image)
        if not isinstance(name, (str, int)) or not str(name).strip():
            raise InputError(f"{path}, row {number}: column {image!r} holds {name!r}; expected a file name.")
        known = len(order)
        at = order.setdefault(str(name).strip(), known)
        own_split = split_name(str(row.get(split) or "")) if split else ""
        if at == known:
            splits.append(own_split)
        elif splits[at] != own_split:
            raise InputError(
                f"{path}, row {number}: {name!r} is in {own_split or 'no split'!r} here and in "
                f"{splits[at] or 'no split'!r} before; put all captions of an image in one split."
            )
        for text in _texts(row.get(caption), path, number, caption):
            captions.append(text)
            pairing.append(at)
    if not captions:
        raise InputError(f"{path} holds no captions; expected one row for each.")
    base = _base(path, images, next(iter(order)))
    return PairedDataset(
        tuple(order),
        tuple(captions),
        np.array(pairing, np.int64),
        splits=tuple(splits) if any(splits) else None,
        paths=tuple(contained_path(base, name) for name in order),
    )


def _base(path: Path, images: str | os.PathLike[str] | None, first: str) -> Path:
    if images is not None:
        return check_folder(images)
    beside = path.parent / "images"
    inside = beside.is_dir() and not contained_path(path.parent, first).is_file()
    return beside if inside else path.parent


def _texts(cell: Any, path: Path, number: int, column: str) -> Iterable[str]:
    texts = cell if isinstance(cell, (list, tuple)) else [cell]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{path}, row {number}: column {column!r} holds {cell!r}; expected text.")
    return [text.strip() for text in texts]


def _column(columns: Sequence[str], given: str | None, usual: Sequence[str], what: str, path: Path) -> str:
    if given is not None:
        if given not in columns:
            raise InputError(f"{path} has no column {given!r}; it has {', '.join(columns)}.")
        return given
    by_name = {name.strip().lower(): name for name in reversed(columns)}
    found = next((by_name[name] for name in usual if name in by_name), None)
    if found is None:
        raise InputError(
            f"{path} has the columns {', '.join(columns)}, and none is known to hold the {what}; "
            f"name it with {what}_column."
        )
    return found


def _open(
    path: Path, max_bytes: int, encoding: str | None
) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _open_delimited(path, encoding)
    if encoding is not None:
        raise InputError(f"encoding={encoding!r} is for CSV and TSV files; leave it out for {path}.")
    if suffix in (".jsonl", ".ndjson"):
        return _open_json_lines(path, max_bytes)
    if suffix == ".parquet":
        return _open_parquet(path, max_bytes)
    raise InputError(f"{path} is not a table of a known kind; expected {', '.join(SUFFIXES)}.")


def _open_delimited(
    path: Path, encoding: str | None
) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    text = _encoding(path, encoding)
    header = next((line for line in _decoded(path, text) if line.strip()), "")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=header.count)
    columns = next(csv.reader([header.rstrip("\r\n")], delimiter=delimiter), [])

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        reader = csv.DictReader(_decoded(path, text), delimiter=delimiter)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise InputError(f"{path} could not be read as {path.suffix[1:].upper()} ({error}).") from None

    return columns, rows()


def _decoded(path: Path, encoding: str) -> Iterator[str]:
    try:
        with open(path, encoding=encoding, newline="") as file:
            yield from file
    except UnicodeError as error:
        place = f" at byte {error.start:,}" if isinstance(error, UnicodeDecodeError) else ""
        if not encoding.startswith("utf-8"):
            raise InputError(
                f"{path} is not {encoding} text (wrong{place}); name its true encoding."
            ) from None
        raise InputError(
            f"{path} is not UTF-8 text (wrong{place}); if Excel on Windows wrote it, give encoding='cp1252', "
            "or save it as CSV UTF-8."
        ) from None


def _encoding(path: Path, given: str | None) -> str:
    """The encoding of a text file: as given, or UTF-16 where it begins with that mark, or UTF-8."""
    if given is None:
        with open(path, "rb") as file:
            return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        if codecs.lookup(given)._is_text_encoding:
            return "utf-8-sig" if codecs.lookup(given).name == "utf-8" else given
    except (LookupError, ValueError):
        pass
    raise InputError(f"encoding={given!r} is unknown; give a name such as cp1252, latin-1 or utf-16.")


def _open_json_lines(path: Path, max_bytes: int) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, line in read_lines(path, max_bytes):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number} is not valid JSON ({error}).") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number} is not a JSON object.")
            yield number, row

    first = next(rows(), (1, {}))[1]
    return list(first), rows()


def _open_parquet(path: Path, max_bytes: int) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_package_error("Parquet files need", "parquet") from None
    try:
        # Repeated texts stay codes of a dictionary, so that their size is known before they are unpacked.
        file = pyarrow.parquet.ParquetFile(path)
        leaves = [file.schema.column(i) for i in range(len(file.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=texts)
        columns = list(file.schema_arrow.names)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} could not be read as Parquet ({error}).") from None
    packed = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
    too_large = InputError(
        f"{path} unpacks to more than {max_bytes:,} bytes, the limit; raise max_bytes, or split the table."
    )
    if packed > max_bytes:
        raise too_large

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        number = size = 0
        try:
            for batch in file.iter_batches():
                size += sum(map(_unpacked_bytes, batch.columns))
                if size > max_bytes:
                    raise too_large
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except InputError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{path} could not be read as Parquet ({error}).") from None

    return columns, rows()


def _unpacked_bytes(column: Any) -> int:
    """What the values of an Arrow array take once each stands by itself."""
    import pyarrow
    import pyarrow.compute

    if isinstance(column, pyarrow.ListArray | pyarrow.LargeListArray):
        return _unpacked_bytes(column.flatten())
    if isinstance(column, pyarrow.DictionaryArray):
        sizes = pyarrow.compute.binary_length(column.dictionary).cast("int64")
        return int(pyarrow.compute.sum(sizes.take(column.indices)).as_py() or 0)
    return int(column.nbytes)
