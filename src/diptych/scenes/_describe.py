"""Descriptions of generated scenes; images and captions are both made from them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

Choice = TypeVar("Choice")

SHAPES = (
    *("circle", "square", "triangle", "star", "heart", "diamond", "hexagon", "ring", "cross", "crescent"),
    *("house", "tree", "boat", "balloon", "fish", "flower", "mushroom", "rocket", "umbrella", "cup"),
    *("butterfly", "kite", "car", "key"),
)
COLOURS = (
    *("red", "orange", "yellow", "green", "teal", "blue"),
    *("purple", "pink", "brown", "black", "white", "grey"),
)
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = ("small", "medium", "large")
RELATIONS = ("left of", "right of", "above", "below")

BACKGROUNDS = {
    "meadow": ("green", "teal"),
    "sea": ("blue", "teal"),
    "desert": ("orange", "yellow", "brown"),
    "snow": ("white", "grey"),
    "night": ("black", "blue", "purple"),
    "sunset": ("orange", "pink", "red"),
    "city": ("grey", "black", "purple"),
    "table": ("brown", "orange"),
    "paper": ("white", "grey"),
    "blackboard": ("black", "green", "grey"),
    "bricks": ("red", "brown", "orange"),
    "carpet": ("pink", "purple"),
}
"""Each background with the colours that cannot be seen on it; no object there has one of them."""


@dataclass(frozen=True)
class Group:
    """One to five equal objects in a generated image.

    Examples
    --------
    >>> from diptych.scenes import make_scenes
    >>> make_scenes(1).descriptions[0].main
    Group(shape='triangle', colour='grey', texture='plain', size='medium', count=3)
    """

    shape: str
    colour: str
    texture: str
    size: str
    count: int


@dataclass(frozen=True)
class Scene:
    """The true content of a generated image.

    ``main`` is the main group of objects, ``other`` a second group or None, and ``relation`` where ``main``
    is relative to ``other``. ``seed`` decides the rest: exact positions, shades, and words of the captions.

    Examples
    --------
    >>> from diptych.scenes import make_scenes
    >>> scene = make_scenes(1).descriptions[0]
    >>> scene.background, scene.relation
    ('table', 'right of')
    """

    background: str
    main: Group
    other: Group | None
    relation: str | None
    seed: str


class Dice:
    """Random choices that are the same on every platform and in every Python version.

    They use ``random()`` alone, because the standard library guarantees the sequence of no other method.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random  # noqa: S311, images need no secrecy

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random()

    def integer(self, low: int, high: int) -> int:
        return low + int((high - low + 1) * self._random())

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(len(choices) * self._random())]

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def shuffle(self, items: Sequence[Choice]) -> list[Choice]:
        return [items[i] for i in sorted(range(len(items)), key=[self._random() for _ in items].__getitem__)]


def describe(seed: str) -> Scene:
    """Draw a random scene; the same seed gives the same scene."""
    dice = Dice(f"scene {seed}")
    background = dice.pick(tuple(BACKGROUNDS))
    main = _draw_group(dice, background, None, max_count=5)
    if dice.chance(0.2):
        return Scene(background, main, None, None, seed)
    other = _draw_group(dice, background, main, max_count=3)
    return Scene(background, main, other, dice.pick(RELATIONS), seed)


def _draw_group(dice: Dice, background: str, main: Group | None, max_count: int) -> Group:
    shapes = [shape for shape in SHAPES if main is None or shape != main.shape]
    colours = [colour for colour in COLOURS if colour not in BACKGROUNDS[background]]
    texture = "plain" if dice.chance(0.5) else dice.pick(TEXTURES[1:])
    # The smaller of two draws: small counts are more frequent than large ones.
    count = min(dice.integer(1, max_count), dice.integer(1, max_count + 1))
    return Group(dice.pick(shapes), dice.pick(colours), texture, dice.pick(SIZES), count)
