"""Five ways to say what a generated scene shows; none of them says everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diptych.scenes._describe import Dice, Group, Scene

SHAPE_WORDS: dict[str, tuple[str, ...]] = {
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
COLOUR_WORDS: dict[str, tuple[str, ...]] = {
    "red": ("red", "scarlet"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "golden"),
    "green": ("green", "leafy green"),
    "teal": ("teal", "turquoise"),
    "blue": ("blue", "royal blue"),
    "purple": ("purple", "violet"),
    "pink": ("pink", "rosy"),
    "brown": ("brown", "chocolate"),
    "black": ("black", "dark"),
    "white": ("white", "snowy white"),
    "grey": ("grey", "silver"),
}
TEXTURE_WORDS: dict[str, tuple[str, ...]] = {
    "striped": ("striped", "stripy"),
    "dotted": ("dotted", "spotted", "polka-dot"),
    "checkered": ("checkered", "checked"),
}
SIZE_WORDS: dict[str, tuple[str, ...]] = {
    "small": ("small", "tiny", "little"),
    "medium": ("medium-sized",),
    "large": ("large", "big", "huge"),
}
PLACE_WORDS: dict[str, tuple[str, ...]] = {
    "meadow": ("in a meadow", "over green hills", "in a grassy field"),
    "sea": ("at sea", "by the ocean", "over blue water"),
    "desert": ("in the desert", "among sand dunes", "on the sand"),
    "snow": ("in the snow", "on a snowy day", "in a winter landscape"),
    "night": ("at night", "under a starry sky", "in the moonlight"),
    "sunset": ("at sunset", "in the evening sky", "at dusk"),
    "city": ("in the city", "in front of tall buildings", "by a skyline"),
    "table": ("on a wooden table", "on wooden planks", "on a desk"),
    "paper": ("on squared paper", "on a sheet of paper", "on graph paper"),
    "blackboard": ("on a blackboard", "on a chalkboard", "on a school board"),
    "bricks": ("on a brick wall", "in front of a wall", "on red bricks"),
    "carpet": ("on a carpet", "on a spotted rug", "on a lilac carpet"),
}
RELATION_WORDS: dict[str, tuple[str, ...]] = {
    "left of": ("to the left of", "left of"),
    "right of": ("to the right of", "right of"),
    "above": ("above", "over", "on top of"),
    "below": ("below", "under", "beneath"),
}
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
NUMBERS = ("one", "two", "three", "four", "five")


@dataclass(frozen=True)
class Detail:
    """How often each attribute is mentioned."""

    size: float
    texture: float
    colour: float


_FULL, _SOME, _BRIEF = Detail(0.55, 0.7, 0.95), Detail(0.25, 0.35, 0.65), Detail(0.05, 0.1, 0.35)


def captions(scene: Scene) -> tuple[str, ...]:
    """Five captions of ``scene``, each built on another plan and with words of its own.

    Examples
    --------
    >>> from diptych.data.generated.description import describe
    >>> captions(describe("0"))[0].endswith(".")
    True
    """
    dice = Dice(f"words {scene.seed}")
    plans = _ALONE if scene.other is None else _BESIDE
    chosen = dice.shuffled(plans)[:5]
    return tuple(_sentence(plan(scene, dice)) for plan in chosen)


def phrase(group: Group, dice: Dice, detail: Detail) -> str:
    """``group`` as a noun phrase: "two small red stars"."""
    words = []
    if dice.chance(detail.size) and group.size != "medium":
        words.append(dice.pick(SIZE_WORDS[group.size]))
    if group.texture != "plain" and dice.chance(detail.texture):
        words.append(dice.pick(TEXTURE_WORDS[group.texture]))
    if dice.chance(detail.colour):
        colours = COLOUR_WORDS[group.colour]
        # The everyday word comes first and is the most frequent.
        words.append(colours[0] if dice.chance(0.7) else dice.pick(colours))
    shapes = SHAPE_WORDS[group.shape]
    noun = shapes[0] if dice.chance(0.6) else dice.pick(shapes)
    words.append(noun if group.count == 1 else plural(noun))
    return f"{_quantity(group.count, words[0], dice)} {' '.join(words)}"


def plural(noun: str) -> str:
    """More than one of ``noun``.

    >>> plural("box"), plural("butterfly"), plural("fish")
    ('boxes', 'butterflies', 'fish')
    """
    if noun == "fish":
        return noun
    if noun.endswith(("x", "s", "sh", "ch")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _quantity(count: int, following: str, dice: Dice) -> str:
    if count == 1:
        return "an" if following[0] in "aeiou" else "a"
    if count == 2 and dice.chance(0.15):
        return "a pair of"
    if count >= 4 and dice.chance(0.15):
        return "several"
    return NUMBERS[count - 1]


def _place(scene: Scene, dice: Dice) -> str:
    return dice.pick(PLACE_WORDS[scene.backdrop])


def _be(group: Group) -> str:
    return "is" if group.count == 1 else "are"


def _relation(name: str | None, dice: Dice) -> str:
    return dice.pick(RELATION_WORDS[str(name)])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _other(scene: Scene) -> Group:
    assert scene.other is not None
    return scene.other


def _alone_full(scene: Scene, dice: Dice) -> str:
    return f"{phrase(scene.main, dice, _FULL)} {_place(scene, dice)}"


def _alone_there(scene: Scene, dice: Dice) -> str:
    return f"there {_be(scene.main)} {phrase(scene.main, dice, _SOME)} {_place(scene, dice)}"


def _alone_picture(scene: Scene, dice: Dice) -> str:
    return f"a picture of {phrase(scene.main, dice, _FULL)} and nothing else"


def _alone_place(scene: Scene, dice: Dice) -> str:
    return f"{_place(scene, dice)} we see {phrase(scene.main, dice, _SOME)}"


def _alone_brief(scene: Scene, dice: Dice) -> str:
    return f"only {phrase(scene.main, dice, _BRIEF)} {_place(scene, dice)}"


def _alone_by_itself(scene: Scene, dice: Dice) -> str:
    return f"{phrase(scene.main, dice, _FULL)} {_be(scene.main)} alone {_place(scene, dice)}"


def _full(scene: Scene, dice: Dice) -> str:
    main, other = phrase(scene.main, dice, _FULL), phrase(_other(scene), dice, _SOME)
    return f"{main} {_relation(scene.relation, dice)} {other} {_place(scene, dice)}"


def _reversed(scene: Scene, dice: Dice) -> str:
    other, main = phrase(_other(scene), dice, _FULL), phrase(scene.main, dice, _SOME)
    return f"{other} {_be(_other(scene))} {_relation(OPPOSITE[str(scene.relation)], dice)} {main}"


def _there(scene: Scene, dice: Dice) -> str:
    main, other = phrase(scene.main, dice, _SOME), phrase(_other(scene), dice, _BRIEF)
    return f"there {_be(scene.main)} {main} and {other} {_place(scene, dice)}"


def _place_first(scene: Scene, dice: Dice) -> str:
    main, other = phrase(scene.main, dice, _SOME), phrase(_other(scene), dice, _SOME)
    return f"{_place(scene, dice)}, {main} {_relation(scene.relation, dice)} {other}"


def _main_only(scene: Scene, dice: Dice) -> str:
    return f"a drawing of {phrase(scene.main, dice, _FULL)} {_place(scene, dice)}"


def _brief(scene: Scene, dice: Dice) -> str:
    main, other = phrase(scene.main, dice, _BRIEF), phrase(_other(scene), dice, _BRIEF)
    return f"{main} {_relation(scene.relation, dice)} {other}"


def _seen_with(scene: Scene, dice: Dice) -> str:
    main, other = phrase(scene.main, dice, _FULL), phrase(_other(scene), dice, _FULL)
    return f"we see {main} together with {other}"


_ALONE: tuple[Callable[[Scene, Dice], str], ...] = (
    *(_alone_full, _alone_there, _alone_picture, _alone_place, _alone_brief, _alone_by_itself),
)
_BESIDE: tuple[Callable[[Scene, Dice], str], ...] = (
    *(_full, _reversed, _there, _place_first, _main_only, _brief, _seen_with),
)
