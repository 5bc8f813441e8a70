"""What a generated scene contains: the one description that both its picture and its captions follow."""

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
    *(
        "red",
        "orange",
        "yellow",
        "green",
        "teal",
        "blue",
        "purple",
        "pink",
        "brown",
        "black",
        "white",
        "grey",
    ),
)
TEXTURES = ("plain", "striped", "dotted", "checkered")
SIZES = ("small", "medium", "large")
RELATIONS = ("left of", "right of", "above", "below")

BACKDROPS = {
    # Colours that would be lost on the backdrop are not drawn on it.
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


@dataclass(frozen=True)
class Group:
    """One kind of thing, one to five times."""

    shape: str
    colour: str
    texture: str
    size: str
    count: int


@dataclass(frozen=True)
class Scene:
    """The true content of a picture.

    Attributes
    ----------
    backdrop
        Where it is.
    main
        What it shows.
    other
        What stands beside that, if anything.
    relation
        Where ``main`` is, seen from ``other``.
    seed
        Fixes what the description leaves open: exact places, shades, and words.
    """

    backdrop: str
    main: Group
    other: Group | None
    relation: str | None
    seed: str


class Dice:
    """A stream of choices that is the same on every platform and in every version.

    Only ``random()`` is used: the standard library promises its sequence, and that of nothing else.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random  # noqa: S311, pictures need no secrecy

    def unit(self) -> float:
        """A number from 0 up to 1."""
        return self._random()

    def between(self, low: float, high: float) -> float:
        """A number from ``low`` up to ``high``."""
        return low + (high - low) * self._random()

    def whole(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return low + int((high - low + 1) * self._random())

    def pick(self, choices: Sequence[Choice]) -> Choice:
        """One of ``choices``."""
        return choices[int(len(choices) * self._random())]

    def chance(self, probability: float) -> bool:
        """True that often."""
        return self._random() < probability

    def shuffled(self, items: Sequence[Choice]) -> list[Choice]:
        """``items`` in a new order."""
        return [items[i] for i in sorted(range(len(items)), key=[self._random() for _ in items].__getitem__)]


def describe(seed: str) -> Scene:
    """Imagine a scene."""
    dice = Dice(f"scene {seed}")
    backdrop = dice.pick(tuple(BACKDROPS))
    main = _group(dice, backdrop, None, most=5)
    if dice.chance(0.2):
        return Scene(backdrop, main, None, None, seed)
    other = _group(dice, backdrop, main, most=3)
    return Scene(backdrop, main, other, dice.pick(RELATIONS), seed)


def _group(dice: Dice, backdrop: str, beside: Group | None, most: int) -> Group:
    shapes = [shape for shape in SHAPES if beside is None or shape != beside.shape]
    colours = [colour for colour in COLOURS if colour not in BACKDROPS[backdrop]]
    texture = "plain" if dice.chance(0.5) else dice.pick(TEXTURES[1:])
    # One or two of a thing are seen more often than five.
    count = min(dice.whole(1, most), dice.whole(1, most + 1))
    return Group(dice.pick(shapes), dice.pick(colours), texture, dice.pick(SIZES), count)
