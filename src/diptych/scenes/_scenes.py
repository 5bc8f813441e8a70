"""Generated pictures with captions whose true content is known: any number, no download."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import overload

from PIL import Image

from diptych._checks import InputError
from diptych._persistence import replace_file
from diptych.data._pairs import PairedDataset, split_by_image
from diptych.scenes._captions import captions
from diptych.scenes._describe import Scene, describe
from diptych.scenes._draw import draw_scene

TABLE = "captions.jsonl"
LARGEST_SIDE = 4096


class Pictures(Sequence[Image.Image]):
    """The pictures of scenes, each drawn when it is asked for."""

    def __init__(self, scenes: Sequence[Scene], side: int) -> None:
        self._scenes, self._side = scenes, side

    def __len__(self) -> int:
        return len(self._scenes)

    @overload
    def __getitem__(self, index: int) -> Image.Image: ...

    @overload
    def __getitem__(self, index: slice) -> Pictures: ...

    def __getitem__(self, index: int | slice) -> Image.Image | Pictures:
        """One picture, or some of them, not drawn yet."""
        if isinstance(index, slice):
            return Pictures(self._scenes[index], self._side)
        return draw_scene(self._scenes[index], self._side)

    def __iter__(self) -> Iterator[Image.Image]:
        return (draw_scene(scene, self._side) for scene in self._scenes)


@dataclass(frozen=True, eq=False)
class Scenes:
    """Generated scenes.

    Attributes
    ----------
    descriptions
        What each picture truly shows.
    pictures
        A sequence that draws them on demand.
    dataset
        Five captions for each, split 70 / 15 / 15 by image; ``write`` gives one with paths.
    """

    descriptions: tuple[Scene, ...]
    pictures: Pictures
    dataset: PairedDataset

    def __len__(self) -> int:
        return len(self.descriptions)

    def write(self, folder: str | os.PathLike[str]) -> PairedDataset:
        """Write the pictures as PNG files and the captions as JSON lines; ``read_pairs`` reads the folder.

        Each line also holds the split and the true description.
        """
        folder = Path(folder)
        (folder / "images").mkdir(parents=True, exist_ok=True)
        dataset = self.dataset
        with replace_file(folder / TABLE) as staged, open(staged, "w", encoding="utf-8") as table:
            for row, picture in enumerate(self.pictures):
                name = dataset.image_ids[row]
                picture.save(folder / "images" / name, compress_level=1)
                own = [dataset.captions[j] for j in dataset.caption_rows([row])]
                line = {
                    "image": f"images/{name}",
                    "captions": own,
                    "split": dataset.splits[row] if dataset.splits else "",
                    "description": asdict(self.descriptions[row]),
                }
                table.write(json.dumps(line) + "\n")
        return PairedDataset(
            tuple(f"images/{name}" for name in dataset.image_ids),
            dataset.captions,
            dataset.pairing,
            splits=dataset.splits,
            paths=tuple(folder / "images" / name for name in dataset.image_ids),
        )


def make_scenes(n: int, random_state: int = 0, *, size: int = 112) -> Scenes:
    """Imagine ``n`` scenes: shapes, colours, sizes, textures, counts and relations in twelve places.

    The same numbers give the same scenes, on any platform; more scenes begin with the fewer.

    Parameters
    ----------
    n
        How many.
    random_state
        Seed.
    size
        Side of the pictures in pixels.

    Examples
    --------
    >>> some = make_scenes(20)
    >>> some.dataset.n_captions, some.pictures[0].size
    (100, (112, 112))
    >>> print(some.dataset.captions[0])
    A drawing of three grey pyramids on a wooden table.
    """
    if n < 1:
        raise InputError(f"n={n} scenes cannot be made; ask for one at least.")
    if not 16 <= size <= LARGEST_SIDE:
        raise InputError(f"size={size} is not a side from 16 to {LARGEST_SIDE} pixels.")
    found = tuple(describe(f"{random_state}:{number}") for number in range(n))
    pairs = PairedDataset.of(
        (f"scene-{number:06d}.png", captions(scene)) for number, scene in enumerate(found)
    )
    held_out = {"validation": 0.15, "test": 0.15} if n >= 3 else {"validation": 0, "test": 0}
    return Scenes(found, Pictures(found, size), split_by_image(pairs, random_state=random_state, **held_out))
