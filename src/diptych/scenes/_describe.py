"""Descriptions of generated scenes, and five captions for each, in different words, none of them complete."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from diptych._checks import plural

Choice = TypeVar("Choice")
RGB: TypeAlias = tuple[int, int, int]

SHAPES: dict[str, tuple[str, ...]] = {
    "circle": ("circle", "disc", "ball"),
    "square": ("square", "box", "block"),
    "triangle": ("triangle", "pyramid"),
    "star": ("star", "five-pointed star"),
    "heart": ("heart", "valentine"),
    "diamond": ("diamond", "rhombus"),
    "hexagon": ("hexagon", "honeycomb cell"),
    "ring": ("ring", "hoop", "donut"),
    "cross": ("cross", "plus sign"),
    "crescent": ("crescent", "sickle"),
    "house": ("house", "cottage", "home"),
    "tree": ("tree", "oak"),
    "boat": ("boat", "sailboat", "ship"),
    "balloon": ("balloon", "party balloon"),
    "fish": ("fish",),
    "flower": ("flower", "blossom", "daisy"),
    "mushroom": ("mushroom", "toadstool"),
    "rocket": ("rocket", "spaceship"),
    "umbrella": ("umbrella", "parasol"),
    "cup": ("cup", "mug"),
    "butterfly": ("butterfly",),
    "kite": ("kite",),
    "car": ("car", "automobile"),
    "key": ("key",),
}
COLOURS: dict[str, tuple[RGB, tuple[str, ...]]] = {
    "red": ((222, 60, 58), ("red", "scarlet")),
    "orange": ((243, 146, 55), ("orange", "tangerine")),
    "yellow": ((250, 211, 76), ("yellow", "golden")),
    "green": ((88, 168, 88), ("green", "leafy green")),
    "teal": ((42, 157, 154), ("teal", "turquoise")),
    "blue": ((66, 118, 205), ("blue", "royal blue")),
    "purple": ((136, 88, 180), ("purple", "violet")),
    "pink": ((243, 150, 184), ("pink", "rosy")),
    "brown": ((139, 94, 66), ("brown", "chocolate")),
    "black": ((46, 48, 58), ("black", "dark")),
    "white": ((250, 249, 245), ("white", "snowy white")),
    "grey": ((148, 153, 163), ("grey", "silver")),
}
"""How each colour is drawn, and its words, the most common one first."""

TEXTURES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted", "polka-dot"),
    "checkered": ("checkered", "checked"),
}
SIZES: dict[str, tuple[str, ...]] = {
    "small": ("small", "tiny", "little"),
    "medium": ("medium-sized",),
    "large": ("large", "big", "huge"),
}
RELATIONS: dict[str, tuple[str, ...]] = {
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath"),
}
BACKGROUNDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "meadow": (("in a meadow", "over green hills", "in a grassy field"), ("green", "teal")),
    "sea": (("at sea", "by the ocean", "over blue water"), ("blue", "teal")),
    "desert": (("in the desert", "among sand dunes", "on the sand"), ("orange", "yellow", "brown")),
    "snow": (("in the snow", "on a snowy day", "in a winter landscape"), ("white", "grey")),
    "night": (("at night", "under a starry sky", "in the moonlight"), ("black", "blue", "purple")),
    "sunset": (("at sunset", "in the evening sky", "at dusk"), ("orange", "pink", "red")),
    "city": (("in the city", "in front of tall buildings", "by a skyline"), ("grey", "black", "purple")),
    "table": (("on a wooden table", "on wooden planks", "on a desk"), ("brown", "orange")),
    "paper": (("on squared paper", "on a sheet of paper", "on graph paper"), ("white", "grey")),
    "blackboard": (("on a blackboard", "on a chalkboard", "on a school board"), ("black", "green", "grey")),
    "bricks": (("on a brick wall", "in front of a wall", "on red bricks"), ("red", "brown", "orange")),
    "carpet": (("on a carpet", "on a spotted rug", "on a lilac carpet"), ("pink", "purple")),
}
"""The phrases for each background, and the colours that cannot be seen on it, which no object there has."""


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

    ``main`` is the main group of objects, ``second`` another group or None, and ``relation`` where ``main``
    is relative to ``second``. ``seed`` decides the rest: exact positions, shades, and words of the captions.

    Examples
    --------
    >>> from diptych.scenes import make_scenes
    >>> scene = make_scenes(1).descriptions[0]
    >>> scene.background, scene.relation
    ('table', 'right of')
    """

    background: str
    main: Group
    second: Group | None
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

    def pick(self, choices: Collection[Choice]) -> Choice:
        return tuple(choices)[int(len(choices) * self._random())]

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def shuffle(self, items: Sequence[Choice]) -> list[Choice]:
        return [items[i] for i in sorted(range(len(items)), key=[self._random() for _ in items].__getitem__)]


def describe(seed: str) -> Scene:
    """Draw a random scene; the same seed gives the same scene."""
    dice = Dice(f"scene {seed}")
    background = dice.pick(BACKGROUNDS)
    main = _draw_group(dice, background, None, max_count=5)
    if dice.chance(0.2):
        return Scene(background, main, None, None, seed)
    second = _draw_group(dice, background, main, max_count=3)
    return Scene(background, main, second, dice.pick(RELATIONS), seed)


def _draw_group(dice: Dice, background: str, main: Group | None, max_count: int) -> Group:
    shapes = [shape for shape in SHAPES if main is None or shape != main.shape]
    colours = [colour for colour in COLOURS if colour not in BACKGROUNDS[background][1]]
    texture = "plain" if dice.chance(0.5) else dice.pick(tuple(TEXTURES)[1:])
    # The smaller of two draws: small counts are more frequent than large ones.
    count = min(dice.integer(1, max_count), dice.integer(1, max_count + 1))
    return Group(dice.pick(shapes), dice.pick(colours), texture, dice.pick(SIZES), count)


OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
NUMBERS = ("one", "two", "three", "four", "five")


_MENTIONED = {"full": (0.55, 0.7, 0.95), "some": (0.25, 0.35, 0.65), "brief": (0.05, 0.1, 0.35)}
"""Probabilities that a caption mentions the size, the texture and the colour of an object."""

# Templates of captions, and their phrases in the order in which they are drawn.
_PLANS_FOR_ONE_GROUP = (
    ("{main} {place}", "main:full place"),
    ("there {main is} {main} {place}", "main:some place"),
    ("a picture of {main} and nothing else", "main:full"),
    ("{place} we see {main}", "place main:some"),
    ("only {main} {place}", "main:brief place"),
    ("{main} {main is} alone {place}", "main:full place"),
)
_PLANS_FOR_TWO_GROUPS = (
    ("{main} {relation} {second} {place}", "main:full second:some relation place"),
    ("{second} {second is} {opposite} {main}", "second:full main:some opposite"),
    ("there {main is} {main} and {second} {place}", "main:some second:brief place"),
    ("{place}, {main} {relation} {second}", "main:some second:some place relation"),
    ("a drawing of {main} {place}", "main:full place"),
    ("{main} {relation} {second}", "main:brief second:brief relation"),
    ("we see {main} together with {second}", "main:full second:full"),
)


def write_captions(scene: Scene) -> tuple[str, ...]:
    """Write five captions of ``scene``, each by another plan.

    >>> write_captions(describe("0:0"))[0]
    'A drawing of three grey pyramids on a wooden table.'
    """
    dice = Dice(f"words {scene.seed}")
    plans = _PLANS_FOR_ONE_GROUP if scene.second is None else _PLANS_FOR_TWO_GROUPS
    return tuple(_write_caption(scene, dice, *plan) for plan in dice.shuffle(plans)[:5])


def _write_caption(scene: Scene, dice: Dice, template: str, phrases: str) -> str:
    groups = {"main": scene.main, "second": scene.second}
    words = {f"{name} is": "is" if group.count == 1 else "are" for name, group in groups.items() if group}
    for phrase in phrases.split():
        name, _, detail = phrase.partition(":")
        if group := groups.get(name):
            words[name] = _phrase(group, dice, *_MENTIONED[detail])
        elif name == "place":
            words[name] = dice.pick(BACKGROUNDS[scene.background][0])
        else:
            relation = scene.relation or ""
            words[name] = dice.pick(RELATIONS[relation if name == "relation" else OPPOSITE[relation]])
    text = template.format_map(words)
    return f"{text[0].upper()}{text[1:]}."


def _phrase(group: Group, dice: Dice, size: float, texture: float, colour: float) -> str:
    """Write ``group`` as a noun phrase, for example "two small red stars", given the probabilities."""
    words = []
    if dice.chance(size) and group.size != "medium":
        words.append(dice.pick(SIZES[group.size]))
    if group.texture != "plain" and dice.chance(texture):
        words.append(dice.pick(TEXTURES[group.texture]))
    if dice.chance(colour):
        _, colours = COLOURS[group.colour]
        # The common word comes first and is the most frequent.
        words.append(colours[0] if dice.chance(0.7) else dice.pick(colours))
    shapes = SHAPES[group.shape]
    noun = shapes[0] if dice.chance(0.6) else dice.pick(shapes)
    words.append(noun if group.count == 1 else plural(noun))
    return f"{_quantity(group.count, words[0], dice)} {' '.join(words)}"


def _quantity(count: int, next_word: str, dice: Dice) -> str:
    if count == 1:
        return "an" if next_word[0] in "aeiou" else "a"
    if count == 2 and dice.chance(0.15):
        return "a pair of"
    if count >= 4 and dice.chance(0.15):
        return "several"
    return NUMBERS[count - 1]
