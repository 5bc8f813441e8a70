"""Datasets of the Hugging Face Hub, and local folders in the same formats, as rows of a table of pairs.

``datasets`` downloads and reads them; it has no dataset scripts any more, so none is ever run. Images are
written to a folder as the dataset holds them, without decoding.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import parse_qs

from PIL import Image

from diptych._checks import DataWarning, InputError, count, import_package
from diptych.data._files import explain_hub_errors
from diptych.data._pairs import normalize_split
from diptych.data._tables import Rows
from diptych.encoders._decoding import EXTENSIONS, FORMATS

PREFIX = "hf:"

MAX_IMAGE_BYTES = 256 * 2**20
"""A larger image of a dataset is refused before it is written."""

_CAPTION_NUMBER = re.compile(r"captions?_?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class HubDataset:
    """A dataset that is open: its splits by their names in the dataset, and the folder it is in, if local."""

    name: str
    splits: Mapping[str, Any]
    folder: Path | None

    @property
    def features(self) -> Mapping[str, Any]:
        """The columns with their types, which all splits share."""
        return next(iter(self.splits.values())).features  # type: ignore[no-any-return]

    def find_image_columns(self) -> list[str]:
        """Return the columns that hold images."""
        datasets = importlib.import_module("datasets")
        return [name for name, kind in self.features.items() if isinstance(kind, datasets.Image)]

    def find_numbered_captions(self) -> list[str]:
        """Return the columns ``caption_0``, ``caption_1``, … in the order of their numbers."""
        matches = [match for name in self.features if (match := _CAPTION_NUMBER.fullmatch(name))]
        return [match[0] for match in sorted(matches, key=lambda match: int(match[1]))]

    def default_folder(self) -> Path:
        """Return where images are written if the user names no folder: in the cache of ``datasets``."""
        cache = Path(importlib.import_module("datasets").config.HF_DATASETS_CACHE)
        return cache / "diptych" / re.sub(r"[^\w.-]+", "--", self.name.partition("?")[0]).strip("-.")

    def rows(
        self, image: str, captions: Sequence[str], split: str | None, images: Path, max_bytes: int
    ) -> Rows:
        """Write the images into a folder; yield the file, captions and split of each row.

        Parameters
        ----------
        image, captions, split
            Columns; if ``split`` is None, the splits are those of the dataset.
        images
            The folder. The name of a file is made of the name in the dataset and the SHA-256 of the content,
            so a file that is there already is not written again, and rows with the same image share it.
        max_bytes
            The most characters that all captions together may have.
        """
        size, number, empty = 0, 0, 0
        for name, table in self.splits.items():
            split_name = _name_split(name, single=len(self.splits) == 1)
            folder = re.sub(r"[^\w-]+", "_", name)  # a name from a file must not lead out of the images
            for row in self._read(table, image, captions, split):
                number += 1
                texts = [text for column in captions for text in _list_texts(row[column])]
                size += sum(len(text) for text in texts if isinstance(text, str))
                if size > max_bytes:
                    raise InputError(
                        f"{self.name} has more than {max_bytes:,} characters of captions; raise max_bytes."
                    )
                file = self._write_image(row[image], images, folder)
                if file is None:
                    empty += 1
                    continue
                row_split = split_name if split is None else row[split]
                yield number, {"image": file, "caption": texts, "split": row_split}
        if empty:
            warnings.warn(
                f"{count(empty, 'row')} of {self.name} without an image left out.", DataWarning, stacklevel=4
            )

    def _read(
        self, table: Any, image: str, captions: Sequence[str], split: str | None
    ) -> Iterator[Mapping[str, Any]]:
        datasets = importlib.import_module("datasets")
        columns = [image, *captions, *([] if split is None else [split])]
        with explain_hub_errors(self.name):
            table = table.select_columns(list(dict.fromkeys(columns)))
            yield from table.with_format(None).cast_column(image, datasets.Image(decode=False))

    def _write_image(self, cell: Mapping[str, Any] | None, images: Path, folder: str) -> str | None:
        """Write the image of a row and return its file, relative to ``images``; None if there is no image."""
        if cell is None or (cell["bytes"] is None and not cell["path"]):
            return None
        content = cell["bytes"]
        if content is None:
            path = self._check_path(cell["path"])
            _check_size(path.stat().st_size, self.name)
            content = path.read_bytes()
        _check_size(len(content), self.name)
        digest = hashlib.sha256(content).hexdigest()
        original = PurePosixPath((cell["path"] or "").replace("\\", "/"))
        suffix = original.suffix.lower() if original.suffix.lower() in EXTENSIONS else _detect_suffix(content)
        stem = re.sub(r"[^\w.-]+", "_", original.stem)[:80].strip("._-")
        file = f"{folder}/{stem}-{digest[:12]}{suffix}" if stem else f"{folder}/{digest[:20]}{suffix}"
        target = images / file
        if not target.is_file() or target.stat().st_size != len(content):
            target.parent.mkdir(parents=True, exist_ok=True)
            staged = target.with_name(f".{target.name}.{os.getpid()}")
            try:
                staged.write_bytes(content)
                staged.replace(target)
            finally:
                staged.unlink(missing_ok=True)
        return file

    def _check_path(self, name: str) -> Path:
        """Return the path of an image that a dataset names: in its own folder, or downloaded with it."""
        datasets, hub = (importlib.import_module(module) for module in ("datasets", "huggingface_hub"))
        roots = [Path(datasets.config.HF_DATASETS_CACHE), Path(hub.constants.HF_HUB_CACHE)]
        roots += [] if self.folder is None else [self.folder]
        path = Path(os.path.realpath(name))
        if not any(path.is_relative_to(os.path.realpath(root)) for root in roots):
            raise InputError(
                f"{self.name} names the image {name!r}, which is not part of the dataset; it is not opened."
            )
        if not path.is_file():
            raise InputError(
                f"{self.name} names the image {name!r}, which does not exist; check the dataset."
            )
        return path


def open_hub_dataset(name: str) -> HubDataset:
    """Open ``hf:user/name``, or ``hf:./folder``; ``?config=…&split=…&revision=…`` may follow."""
    datasets = import_package("datasets", f"{name} needs", "hub")
    source, _, query = name.removeprefix(PREFIX).replace("\\", "/").partition("?")
    settings = parse_qs(query, keep_blank_values=True)
    folder = Path(source).expanduser() if re.match(r"[./~]|[A-Za-z]:", source) else None
    for key, values in settings.items():
        if key not in ("config", "split", "revision") or "" in values or (key != "split" and len(values) > 1):
            raise InputError(f"{name}: {key!r} is not understood; after ? give config=, split= or revision=.")
    if folder is None and not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        raise InputError(f"{name} is not a dataset; give hf:user/name, or hf:./folder for a local folder.")
    if folder is not None and not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give hf:./folder, or hf:user/name for the Hub.")
    config, revision = (settings.get(key, [None])[0] for key in ("config", "revision"))
    saved = folder is not None and any((folder / f).is_file() for f in ("dataset_dict.json", "state.json"))
    if (folder is not None and revision is not None) or (saved and config is not None):
        key = "config" if revision is None else "revision"
        raise InputError(f"{name}: {key}= has no effect on a local folder; leave it out.")
    with explain_hub_errors(name):
        if saved:
            opened = datasets.load_from_disk(str(folder))
        else:
            opened = datasets.load_dataset(
                source if folder is None else str(folder), config, revision=revision
            )
    splits = dict(opened) if isinstance(opened, dict) else {str(opened.split or "train"): opened}
    for split in settings.get("split", ()):
        if split not in splits:
            raise InputError(f"{name} has no split {split!r}; it has {', '.join(splits)}.")
    splits = {split: splits[split] for split in settings.get("split", splits)}
    for split in splits:
        _name_split(split, single=len(splits) == 1)
    return HubDataset(name, splits, folder)


def _name_split(split: str, *, single: bool) -> str:
    """Return our name of a split; a dataset that is not split has one, called train or by any other name."""
    try:
        name = normalize_split(split)
    except InputError:
        if single:
            return ""
        raise InputError(
            f"the dataset has the split {split!r}, which is neither train, validation nor test; name the "
            "splits to read after ?, for example split=train&split=test."
        ) from None
    return "" if single and name == "train" else name


def _list_texts(cell: Any) -> list[Any]:
    texts = cell if isinstance(cell, list | tuple) else [cell]
    return [text for text in texts if text is not None]


def _check_size(size: int, name: str) -> None:
    if size > MAX_IMAGE_BYTES:
        raise InputError(f"{name} has an image of {size:,} bytes; at most {MAX_IMAGE_BYTES:,} are read.")


def _detect_suffix(content: bytes) -> str:
    """Return the usual extension of an image file by its header; "" if it is of no known format."""
    with suppress(Exception), Image.open(io.BytesIO(content), formats=FORMATS) as image:
        return f".{(image.format or '').lower()}".replace(".jpeg2000", ".jp2").replace(".jpeg", ".jpg")
    return ""
