"""Generated scenes: images with captions whose true content is known, for the demo and the tests."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from PIL import Image

from diptych._checks import InputError
from diptych._persistence import replace_file
from diptych.data._pairs import PairedDataset, split_by_image
from diptych.scenes._describe import Group, Scene, describe, write_captions
from diptych.scenes._draw import draw_scene

__all__ = ["Group", "Scene", "Scenes", "make_scenes"]

TABLE = "captions.jsonl"
LARGEST_SIDE = 4096


class SceneImages(Sequence[Image.Image]):
    """The images of scenes; each is drawn when it is read."""

    def __init__(self, scenes: Sequence[Scene], side: int) -> None:
        self._scenes, self._side = scenes, side

    def __len__(self) -> int:
        return len(self._scenes)

    def __getitem__(self, row: int) -> Image.Image:  # type: ignore[override]
        return draw_scene(self._scenes[row], self._side)


@dataclass(frozen=True, eq=False)
class Scenes:
    """Generated scenes; ``make_scenes`` returns them.

    Attributes
    ----------
    descriptions
        The true content of each image.
    images
        A sequence of Pillow images, which draws each image when it is read.
    dataset
        Five captions for each image, split 70 / 15 / 15 by image. It has no image files; ``write`` returns
        a dataset that has.

    Examples
    --------
    >>> scenes = make_scenes(20)
    >>> len(scenes), scenes.dataset.split_sizes()
    (20, {'train': 14, 'val': 3, 'test': 3})
    """

    descriptions: tuple[Scene, ...]
    images: SceneImages
    dataset: PairedDataset

    def __len__(self) -> int:
        return len(self.descriptions)

    def write(self, folder: str | os.PathLike[str]) -> PairedDataset:
        """Write the images as PNG files and the captions as JSON lines; ``read_pairs`` reads the folder.

        Each line also has the split and the description.
        """
        folder, dataset = Path(folder), self.dataset
        paths = tuple(folder / "images" / name for name in dataset.image_ids)
        image_ids = tuple(f"images/{name}" for name in dataset.image_ids)
        (folder / "images").mkdir(parents=True, exist_ok=True)
        with replace_file(folder / TABLE) as staged, open(staged, "w", encoding="utf-8") as table:
            for row, image in enumerate(self.images):
                image.save(paths[row], compress_level=1)
                line = {
                    "image": image_ids[row],
                    "captions": [dataset.captions[j] for j in dataset.caption_rows([row])],
                    "split": dataset.splits[row] if dataset.splits else "",
                    "description": asdict(self.descriptions[row]),
                }
                table.write(json.dumps(line) + "\n")
        return PairedDataset(image_ids, dataset.captions, dataset.pairing, splits=dataset.splits, paths=paths)


def make_scenes(n: int, random_state: int = 0, *, size: int = 112) -> Scenes:
    """Generate ``n`` scenes: objects of various shapes, colours, sizes and counts on twelve backgrounds.

    The same arguments give the same scenes on every platform. The first scenes do not depend on ``n``.

    Parameters
    ----------
    n
        Number of scenes.
    random_state
        Seed.
    size
        Side of the images in pixels.

    Examples
    --------
    >>> scenes = make_scenes(20)
    >>> scenes.dataset.n_captions, scenes.images[0].size
    (100, (112, 112))
    >>> print(scenes.dataset.captions[0])
    A drawing of three grey pyramids on a wooden table.
    """
    if n < 1:
        raise InputError(f"Cannot make n={n} scenes; pass a number of at least 1.")
    if not 16 <= size <= LARGEST_SIDE:
        raise InputError(f"size={size} is not a side from 16 to {LARGEST_SIDE} pixels.")
    scenes = tuple(describe(f"{random_state}:{number}") for number in range(n))
    pairs = PairedDataset.of(
        (f"scene-{number:06d}.png", write_captions(scene)) for number, scene in enumerate(scenes)
    )
    shares = {"validation": 0.15, "test": 0.15} if n >= 3 else {"validation": 0, "test": 0}
    dataset = split_by_image(pairs, random_state=random_state, **shares)
    return Scenes(scenes, SceneImages(scenes, size), dataset)
