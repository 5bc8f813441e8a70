"""COCO's caption files, ``captions_train2014.json`` and its kin."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.data.files import DEFAULT_MAX_BYTES, check_folder, contained_path, read_json_object
from diptych.data.pairs import PairedDataset


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
