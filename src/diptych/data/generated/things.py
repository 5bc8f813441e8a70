"""The things of generated scenes, each a few layers in a unit square, filled with a colour and a texture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from PIL import Image, ImageDraw

Colour: TypeAlias = tuple[int, int, int]
Points: TypeAlias = tuple[tuple[float, float], ...]

PALETTE: dict[str, Colour] = {
    "red": (222, 60, 58),
    "orange": (243, 146, 55),
    "yellow": (250, 211, 76),
    "green": (88, 168, 88),
    "teal": (42, 157, 154),
    "blue": (66, 118, 205),
    "purple": (136, 88, 180),
    "pink": (243, 150, 184),
    "brown": (139, 94, 66),
    "black": (46, 48, 58),
    "white": (250, 249, 245),
    "grey": (148, 153, 163),
}


@dataclass(frozen=True)
class Layer:
    """One outline; ``tone`` says what fills it: the thing's texture, a shade of it, a colour, or nothing."""

    kind: Literal["polygon", "ellipse", "box", "upper half", "lower half"]
    points: Points
    tone: str = "fill"


def _polygon(*points: tuple[float, float], tone: str = "fill") -> Layer:
    return Layer("polygon", points, tone)


def _ellipse(x: float, y: float, rx: float, ry: float, tone: str = "fill") -> Layer:
    return Layer("ellipse", ((x - rx, y - ry), (x + rx, y + ry)), tone)


def _box(x0: float, y0: float, x1: float, y1: float, tone: str = "fill") -> Layer:
    return Layer("box", ((x0, y0), (x1, y1)), tone)


def _around(corners: int, radii: tuple[float, ...], tone: str = "fill", turn: float = -0.25) -> Layer:
    angles = [2 * math.pi * (i / corners + turn) for i in range(corners)]
    return _polygon(
        *(
            (0.5 + radii[i % len(radii)] * math.cos(a), 0.5 + radii[i % len(radii)] * math.sin(a))
            for i, a in enumerate(angles)
        ),
        tone=tone,
    )


def _petals(count: int, distance: float, radius: float) -> tuple[Layer, ...]:
    turns = [2 * math.pi * (i / count - 0.25) for i in range(count)]
    return tuple(
        _ellipse(0.5 + distance * math.cos(a), 0.5 + distance * math.sin(a), radius, radius) for a in turns
    )


THINGS: dict[str, tuple[Layer, ...]] = {
    "circle": (_ellipse(0.5, 0.5, 0.46, 0.46),),
    "square": (_box(0.1, 0.1, 0.9, 0.9),),
    "triangle": (_polygon((0.5, 0.06), (0.96, 0.9), (0.04, 0.9)),),
    "star": (_around(10, (0.5, 0.21)),),
    "heart": (
        _ellipse(0.29, 0.33, 0.235, 0.235),
        _ellipse(0.71, 0.33, 0.235, 0.235),
        _polygon((0.085, 0.44), (0.5, 0.24), (0.915, 0.44), (0.5, 0.94)),
    ),
    "diamond": (_polygon((0.5, 0.02), (0.86, 0.5), (0.5, 0.98), (0.14, 0.5)),),
    "hexagon": (_around(6, (0.49,), turn=0.0),),
    "ring": (_ellipse(0.5, 0.5, 0.47, 0.47), _ellipse(0.5, 0.5, 0.23, 0.23, "none")),
    "cross": (_box(0.34, 0.05, 0.66, 0.95), _box(0.05, 0.34, 0.95, 0.66)),
    "crescent": (_ellipse(0.47, 0.5, 0.45, 0.45), _ellipse(0.66, 0.42, 0.37, 0.37, "none")),
    "house": (
        _box(0.16, 0.42, 0.84, 0.95),
        _polygon((0.5, 0.05), (0.97, 0.46), (0.03, 0.46), tone="dark"),
        _box(0.42, 0.62, 0.6, 0.95, "wood"),
        _box(0.22, 0.55, 0.36, 0.7, "glass"),
        _box(0.66, 0.55, 0.79, 0.7, "glass"),
    ),
    "tree": (
        _ellipse(0.5, 0.27, 0.27, 0.25),
        _ellipse(0.28, 0.45, 0.24, 0.21),
        _ellipse(0.72, 0.45, 0.24, 0.21),
        _ellipse(0.5, 0.46, 0.3, 0.22),
        _box(0.44, 0.62, 0.56, 0.98, "wood"),
    ),
    "boat": (
        _polygon((0.52, 0.04), (0.92, 0.62), (0.52, 0.62)),
        _polygon((0.47, 0.16), (0.47, 0.62), (0.16, 0.62), tone="light"),
        _polygon((0.04, 0.68), (0.96, 0.68), (0.8, 0.94), (0.2, 0.94), tone="dark"),
        _box(0.475, 0.04, 0.515, 0.7, "wood"),
    ),
    "balloon": (
        _ellipse(0.5, 0.38, 0.33, 0.37),
        _polygon((0.5, 0.72), (0.56, 0.8), (0.44, 0.8), tone="dark"),
        _box(0.49, 0.8, 0.51, 0.99, "dark"),
        _ellipse(0.38, 0.24, 0.06, 0.09, "light"),
    ),
    "fish": (
        _ellipse(0.42, 0.5, 0.4, 0.27),
        _polygon((0.72, 0.5), (0.98, 0.24), (0.98, 0.76), tone="dark"),
        _polygon((0.36, 0.3), (0.58, 0.3), (0.54, 0.1), tone="dark"),
        _ellipse(0.2, 0.44, 0.06, 0.06, "paper"),
        _ellipse(0.19, 0.44, 0.03, 0.03, "ink"),
    ),
    "flower": (*_petals(6, 0.29, 0.2), _ellipse(0.5, 0.5, 0.17, 0.17, "gold")),
    "mushroom": (
        Layer("upper half", ((0.05, 0.06), (0.95, 1.0))),
        Layer("box", ((0.36, 0.53), (0.64, 0.95)), "cream"),
        _ellipse(0.5, 0.94, 0.14, 0.05, "cream"),
    ),
    "rocket": (
        _polygon((0.3, 0.56), (0.1, 0.86), (0.36, 0.8), tone="dark"),
        _polygon((0.7, 0.56), (0.9, 0.86), (0.64, 0.8), tone="dark"),
        _ellipse(0.5, 0.42, 0.21, 0.41),
        _polygon((0.4, 0.8), (0.6, 0.8), (0.5, 0.99), tone="gold"),
        _ellipse(0.5, 0.36, 0.1, 0.1, "glass"),
    ),
    "umbrella": (
        Layer("upper half", ((0.03, 0.08), (0.97, 1.0))),
        _ellipse(0.19, 0.54, 0.155, 0.09, "none"),
        _ellipse(0.5, 0.54, 0.155, 0.09, "none"),
        _ellipse(0.81, 0.54, 0.155, 0.09, "none"),
        _box(0.48, 0.03, 0.52, 0.9, "wood"),
        _box(0.48, 0.88, 0.62, 0.93, "wood"),
    ),
    "cup": (
        _ellipse(0.78, 0.5, 0.2, 0.2, "dark"),
        _ellipse(0.78, 0.5, 0.11, 0.11, "none"),
        _box(0.14, 0.22, 0.74, 0.86),
        _box(0.06, 0.88, 0.84, 0.94, "dark"),
        _ellipse(0.44, 0.22, 0.3, 0.07, "light"),
    ),
    "butterfly": (
        _ellipse(0.27, 0.34, 0.25, 0.27),
        _ellipse(0.73, 0.34, 0.25, 0.27),
        _ellipse(0.31, 0.72, 0.19, 0.2),
        _ellipse(0.69, 0.72, 0.19, 0.2),
        _ellipse(0.5, 0.52, 0.05, 0.34, "ink"),
    ),
    "kite": (
        _polygon((0.5, 0.02), (0.82, 0.36), (0.5, 0.8), (0.18, 0.36)),
        _polygon((0.5, 0.02), (0.5, 0.8), (0.18, 0.36), tone="dark"),
        _polygon((0.5, 0.84), (0.62, 0.8), (0.62, 0.9), tone="dark"),
        _polygon((0.5, 0.84), (0.38, 0.8), (0.38, 0.9), tone="dark"),
        _box(0.49, 0.8, 0.51, 0.99, "ink"),
    ),
    "car": (
        _polygon((0.22, 0.5), (0.34, 0.26), (0.7, 0.26), (0.84, 0.5), tone="dark"),
        _box(0.02, 0.46, 0.98, 0.74),
        _polygon((0.3, 0.46), (0.38, 0.31), (0.5, 0.31), (0.5, 0.46), tone="glass"),
        _polygon((0.55, 0.46), (0.55, 0.31), (0.67, 0.31), (0.76, 0.46), tone="glass"),
        _ellipse(0.24, 0.74, 0.13, 0.13, "ink"),
        _ellipse(0.76, 0.74, 0.13, 0.13, "ink"),
        _ellipse(0.24, 0.74, 0.055, 0.055, "paper"),
        _ellipse(0.76, 0.74, 0.055, 0.055, "paper"),
    ),
    "key": (
        _ellipse(0.24, 0.5, 0.22, 0.22),
        _ellipse(0.24, 0.5, 0.1, 0.1, "none"),
        _box(0.44, 0.44, 0.98, 0.56),
        _box(0.72, 0.5, 0.79, 0.72),
        _box(0.88, 0.5, 0.95, 0.68),
    ),
}

_FIXED = {
    "wood": (116, 80, 58),
    "glass": (205, 232, 240),
    "gold": (250, 205, 80),
    "cream": (247, 236, 212),
    "ink": (44, 44, 54),
    "paper": (252, 252, 250),
}


def mixed(colour: Colour, other: Colour, share: float) -> Colour:
    """``colour`` with a share of another in it."""
    r, g, b = (round(c + (o - c) * share) for c, o in zip(colour, other, strict=True))
    return r, g, b


def draw_thing(shape: str, colour: Colour, texture: str, side: int) -> tuple[Image.Image, Image.Image]:
    """A thing ``side`` pixels wide: its colours and the mask of where it is."""
    dark, light = mixed(colour, (20, 22, 40), 0.3), _lighter(colour)
    face = _textured(colour, light, texture, side)
    mask = Image.new("L", (side, side), 0)
    on_face, on_mask = ImageDraw.Draw(face), ImageDraw.Draw(mask)
    tones: dict[str, Colour] = {"dark": dark, "light": light, **_FIXED}
    for layer in THINGS[shape]:
        if layer.tone in tones:
            _outline(on_face, layer, side, tones[layer.tone])
        _outline(on_mask, layer, side, 0 if layer.tone == "none" else 255)
    return face, mask


def _lighter(colour: Colour) -> Colour:
    # A texture on something nearly white must be darker than it to be seen.
    return mixed(colour, (255, 255, 255), 0.55) if sum(colour) < 690 else mixed(colour, (120, 130, 150), 0.45)


def _outline(draw: ImageDraw.ImageDraw, layer: Layer, side: int, fill: int | Colour) -> None:
    points = [(round(x * (side - 1)), round(y * (side - 1))) for x, y in layer.points]
    if layer.kind == "polygon":
        draw.polygon(points, fill=fill)
    elif layer.kind == "ellipse":
        draw.ellipse(points, fill=fill)
    elif layer.kind == "box":
        draw.rectangle(points, fill=fill)
    else:
        start = 180 if layer.kind == "upper half" else 0
        draw.pieslice(points, start, start + 180, fill=fill)


def _textured(colour: Colour, second: Colour, texture: str, side: int) -> Image.Image:
    face = Image.new("RGB", (side, side), colour)
    if texture == "plain":
        return face
    draw, step = ImageDraw.Draw(face), max(2, side // 7)
    if texture == "striped":
        for y in range(0, side, step):
            draw.rectangle((0, y, side, y + step * 9 // 20), fill=second)
    elif texture == "dotted":
        radius = step * 3 // 10
        for row, y in enumerate(range(step // 2, side, step)):
            for x in range(step // 2 + (row % 2) * step // 2, side + step, step):
                draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=second)
    else:
        for row, y in enumerate(range(0, side, step)):
            for x in range((row % 2) * step, side, 2 * step):
                draw.rectangle((x, y, x + step - 1, y + step - 1), fill=second)
    return face
