"""Images of generated scenes: objects, each a few layers in a unit square, on one of twelve backgrounds.

Everything is drawn in integer coordinates with Pillow, so that the pixels are the same on every platform.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, TypeAlias

from PIL import Image, ImageDraw

from diptych.scenes._describe import COLOURS, RGB, Dice, Group, Scene

Points: TypeAlias = tuple[tuple[float, float], ...]


class Layer(NamedTuple):
    """One part of an object. ``tone`` fills it: the object's texture, a shade, a fixed colour, or a hole."""

    kind: Literal["polygon", "ellipse", "rectangle", "dome"]
    points: Points
    tone: str = "fill"


def _polygon(*points: tuple[float, float], tone: str = "fill") -> Layer:
    return Layer("polygon", points, tone)


def _ellipse(x: float, y: float, rx: float, ry: float, tone: str = "fill") -> Layer:
    return Layer("ellipse", ((x - rx, y - ry), (x + rx, y + ry)), tone)


def _box(x0: float, y0: float, x1: float, y1: float, tone: str = "fill") -> Layer:
    return Layer("rectangle", ((x0, y0), (x1, y1)), tone)


def _circle(count: int, *radii: float, turn: float = -0.25) -> Points:
    """Return points around the centre, at the given distances in turn."""
    angles = [2 * math.pi * (i / count + turn) for i in range(count)]
    distances = [radii[i % len(radii)] for i in range(count)]
    return tuple(
        (0.5 + r * math.cos(a), 0.5 + r * math.sin(a)) for a, r in zip(angles, distances, strict=True)
    )


OBJECTS: dict[str, tuple[Layer, ...]] = {
    "circle": (_ellipse(0.5, 0.5, 0.46, 0.46),),
    "square": (_box(0.1, 0.1, 0.9, 0.9),),
    "triangle": (_polygon((0.5, 0.06), (0.96, 0.9), (0.04, 0.9)),),
    "star": (_polygon(*_circle(10, 0.5, 0.21)),),
    "heart": (
        _ellipse(0.29, 0.33, 0.235, 0.235),
        _ellipse(0.71, 0.33, 0.235, 0.235),
        _polygon((0.085, 0.44), (0.5, 0.24), (0.915, 0.44), (0.5, 0.94)),
    ),
    "diamond": (_polygon((0.5, 0.02), (0.86, 0.5), (0.5, 0.98), (0.14, 0.5)),),
    "hexagon": (_polygon(*_circle(6, 0.49, turn=0.0)),),
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
    "flower": (
        *(_ellipse(x, y, 0.2, 0.2) for x, y in _circle(6, 0.29)),
        _ellipse(0.5, 0.5, 0.17, 0.17, "gold"),
    ),
    "mushroom": (
        Layer("dome", ((0.05, 0.06), (0.95, 1.0))),
        _box(0.36, 0.53, 0.64, 0.95, "cream"),
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
        Layer("dome", ((0.03, 0.08), (0.97, 1.0))),
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


def _mix(colour: RGB, tint: RGB, share: float) -> RGB:
    r, g, b = (round(c + (t - c) * share) for c, t in zip(colour, tint, strict=True))
    return r, g, b


def _draw_object(shape: str, colour: RGB, texture: str, side: int) -> tuple[Image.Image, Image.Image]:
    """Draw an object ``side`` pixels wide; return its colours and its mask."""
    dark, light = _mix(colour, (20, 22, 40), 0.3), _lighten(colour)
    face = _draw_texture(colour, light, texture, side)
    mask = Image.new("L", (side, side), 0)
    on_face, on_mask = ImageDraw.Draw(face), ImageDraw.Draw(mask)
    tones: dict[str, RGB] = {"dark": dark, "light": light, **_FIXED}
    for layer in OBJECTS[shape]:
        if layer.tone in tones:
            _draw_layer(on_face, layer, side, tones[layer.tone])
        _draw_layer(on_mask, layer, side, 0 if layer.tone == "none" else 255)
    return face, mask


def _lighten(colour: RGB) -> RGB:
    # On an object that is nearly white, only a darker texture is visible.
    return _mix(colour, (255, 255, 255), 0.55) if sum(colour) < 690 else _mix(colour, (120, 130, 150), 0.45)


def _draw_layer(draw: ImageDraw.ImageDraw, layer: Layer, side: int, fill: int | RGB) -> None:
    points = [(round(x * (side - 1)), round(y * (side - 1))) for x, y in layer.points]
    if layer.kind == "dome":
        draw.pieslice(points, 180, 360, fill=fill)
    else:
        getattr(draw, layer.kind)(points, fill=fill)


def _draw_texture(colour: RGB, second: RGB, texture: str, side: int) -> Image.Image:
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


class _Background:
    """A square image; each background is a method of its name, made of the shapes of the other methods."""

    def __init__(self, name: str, side: int, dice: Dice) -> None:
        self.side, self.dice = side, dice
        getattr(self, name)()

    def shade(self, *colours: RGB) -> None:
        """Begin the image with a vertical gradient."""
        column = Image.new("RGB", (1, len(colours)))
        column.putdata(colours)
        self.image = column.resize((self.side, self.side), Image.Resampling.BILINEAR)
        self.draw = ImageDraw.Draw(self.image)

    def disc(self, x: float, y: float, r: float, fill: RGB) -> None:
        self.draw.ellipse((round(x - r), round(y - r), round(x + r), round(y + r)), fill=fill)

    def wave(self, level: float, height: float, fill: RGB, angle: float = 5, pieces: int = 24) -> None:
        """Fill the image below a sine curve over ``angle`` radians, drawn in straight pieces."""
        side, phase = self.side, self.dice.between(0, 6.3)
        crest = [
            (round(side * i / pieces), round(side * (level + height * math.sin(phase + angle * i / pieces))))
            for i in range(pieces + 1)
        ]
        self.draw.polygon([(0, side), *crest, (side, side)], fill=fill)

    def hills(self, *colours: RGB) -> None:
        for i, colour in enumerate(colours):
            self.wave(0.62 + 0.14 * i, 0.035 + 0.01 * i, colour)

    def dots(self, fill: RGB, count: int, top: float, bottom: float, size: float) -> None:
        between, side = self.dice.between, self.side
        for _ in range(count):
            x, y = round(between(0, side)), round(between(top * side, bottom * side))
            self.disc(x, y, max(1, round(size * side * between(0.5, 1.0))), fill)

    def clouds(self, fill: RGB) -> None:
        between, side = self.dice.between, self.side
        for _ in range(self.dice.integer(1, 3)):
            x, y, r = between(0.05, 0.85) * side, between(0.06, 0.3) * side, between(0.03, 0.055) * side
            for dx, dy, scale in ((0, 0, 1.0), (1.1, -0.5, 1.25), (2.3, 0, 1.0)):
                self.disc(x + dx * r, y + dy * r, scale * r, fill)

    def meadow(self) -> None:
        self.shade((158, 212, 240), (226, 243, 246))
        self.hills((158, 204, 122), (126, 184, 98))
        self.clouds((250, 252, 253))
        self.dots((244, 240, 190), 14, 0.85, 1.0, 0.008)

    def sea(self) -> None:
        self.shade((176, 216, 240), (224, 240, 246))
        self.clouds((251, 252, 253))
        for i, blue in enumerate(((96, 168, 208), (76, 148, 196), (60, 128, 182))):
            self.wave(0.58 + 0.14 * i, 0.012, blue, angle=76, pieces=40)

    def desert(self) -> None:
        self.shade((250, 222, 172), (253, 240, 212))
        self.hills((236, 196, 132), (224, 176, 110))

    def snow(self) -> None:
        self.shade((172, 196, 220), (216, 228, 240))
        self.hills((232, 239, 246), (246, 249, 252))
        self.dots((253, 254, 255), 40, 0.0, 1.0, 0.009)

    def night(self) -> None:
        side, dice = self.side, self.dice
        self.shade((20, 24, 58), (46, 48, 100), (76, 72, 132))
        self.dots((242, 238, 208), 45, 0.0, 0.9, 0.006)
        x, r = dice.between(0.12, 0.88) * side, 0.06 * side
        box = round(x - r), round(0.05 * side), round(x + r), round(0.05 * side + 2 * r)
        self.draw.ellipse(box, fill=(250, 243, 205))

    def sunset(self) -> None:
        side, dice = self.side, self.dice
        self.shade((104, 88, 150), (214, 118, 140), (250, 176, 120), (254, 218, 150))
        self.disc(dice.between(0.2, 0.8) * side, 0.74 * side, 0.15 * side, (255, 240, 190))
        self.wave(0.78, 0.02, (110, 78, 122))
        self.wave(0.88, 0.02, (76, 58, 100))

    def city(self) -> None:
        side, dice = self.side, self.dice
        self.shade((186, 196, 224), (240, 222, 214))
        x = 0.0
        while x < 1:
            width, top = dice.between(0.1, 0.18), dice.between(0.42, 0.66)
            wall = _mix((122, 128, 156), (92, 98, 130), dice.between(0, 1))
            self.draw.rectangle(
                (round(x * side), round(top * side), round((x + width) * side), side), fill=wall
            )
            pane, gap = 0.022 * side, 0.045 * side
            for row in range(int((1 - top) * side / gap)):
                for column in range(1, int(width * side / gap)):
                    if dice.chance(0.55):
                        px, py = x * side + column * gap - pane / 2, top * side + (row + 0.5) * gap
                        box = round(px), round(py), round(px + pane), round(py + pane)
                        self.draw.rectangle(box, fill=(250, 226, 160))
            x += width + 0.004

    def table(self) -> None:
        side, dice = self.side, self.dice
        self.shade((198, 152, 106))
        planks = 5
        for i in range(planks):
            top, bottom = i * side // planks, (i + 1) * side // planks
            shade = _mix((206, 160, 112), (180, 132, 90), dice.between(0, 1))
            self.draw.rectangle((0, top, side, bottom), fill=shade)
            for _ in range(4):
                y = round(dice.between(top, bottom))
                slope, grain = round(dice.between(-0.01, 0.01) * side), _mix(shade, (120, 80, 50), 0.25)
                self.draw.line((0, y, side, y + slope), fill=grain, width=2)
            self.draw.line((0, bottom, side, bottom), fill=(146, 102, 68), width=max(2, side // 120))

    def paper(self) -> None:
        side, dice = self.side, self.dice
        self.shade((251, 247, 236))
        for at in range(round(dice.between(0, side / 12)), side, side // 12):
            for line in ((at, 0, at, side), (0, at, side, at)):
                self.draw.line(line, fill=(196, 216, 230), width=max(1, side // 200))

    def blackboard(self) -> None:
        side, dice = self.side, self.dice
        self.shade((52, 84, 74), (44, 72, 66))
        for _ in range(3):
            x, y = dice.between(0, 0.7) * side, dice.between(0.1, 0.9) * side
            ends = round(x), round(y), round(x + 0.3 * side), round(y - 0.04 * side)
            self.draw.line(ends, fill=(64, 98, 88), width=side // 16)
        self.draw.rectangle((0, 0, side - 1, side - 1), outline=(170, 124, 82), width=side // 24)

    def bricks(self) -> None:
        side, dice = self.side, self.dice
        self.shade((230, 214, 200))
        height, width = side / 11, side / 5
        for row in range(11):
            for column in range(-1, 6):
                x, y = (column + 0.5 * (row % 2)) * width, row * height
                shade = _mix((206, 132, 108), (186, 110, 92), dice.between(0, 1))
                box = round(x), round(y), round(x + width * 0.94), round(y + height * 0.86)
                self.draw.rectangle(box, fill=shade)

    def carpet(self) -> None:
        self.shade((230, 206, 226))
        step, shift = self.side / 9, self.dice.between(0, 1)
        for row in range(-1, 10):
            for column in range(-1, 10):
                x, y, r = (column + shift + 0.5 * (row % 2)) * step, (row + shift) * step, step * 0.2
                self.disc(x, y, r, (206, 172, 206))


OVERSAMPLING = 3
"""Images are drawn this many times larger and averaged down, which gives smooth edges on every platform."""

_WIDTHS = {"small": 0.15, "medium": 0.23, "large": 0.33}
_WHOLE = (0.06, 0.06, 0.94, 0.94)
_REGIONS = {
    # Boxes of the main and the second group: left, top, right, bottom.
    "left of": ((0.03, 0.08, 0.55, 0.95), (0.58, 0.08, 0.97, 0.95)),
    "right of": ((0.45, 0.08, 0.97, 0.95), (0.03, 0.08, 0.42, 0.95)),
    "above": ((0.06, 0.03, 0.94, 0.55), (0.06, 0.58, 0.94, 0.97)),
    "below": ((0.06, 0.45, 0.94, 0.97), (0.06, 0.03, 0.94, 0.42)),
}
_ROWS = {1: (1,), 2: (2,), 3: (1, 2), 4: (2, 2), 5: (2, 3)}


def draw_scene(scene: Scene, side: int) -> Image.Image:
    """Draw ``scene`` as a square RGB image."""
    dice = Dice(f"picture {scene.seed}")
    large = side * OVERSAMPLING
    image = _Background(scene.background, large, dice).image
    if scene.second is None or scene.relation is None:
        _draw_group(image, scene.main, _WHOLE, dice)
    else:
        region, beside = _REGIONS[scene.relation]
        _draw_group(image, scene.second, beside, dice)
        _draw_group(image, scene.main, region, dice)
    return image.reduce(OVERSAMPLING)


def _draw_group(
    image: Image.Image, group: Group, region: tuple[float, float, float, float], dice: Dice
) -> None:
    centres, room = _arrange(group.count, region, dice)
    width = min(_WIDTHS[group.size], 0.95 * room) * dice.between(0.92, 1.08)
    side = max(6, round(width * image.width))
    r, g, b = (min(255, max(0, c + dice.integer(-12, 12))) for c in COLOURS[group.colour][0])
    face, mask = _draw_object(group.shape, (r, g, b), group.texture, side)
    shadow, drop = mask.point([value // 4 for value in range(256)]), max(1, side // 20)
    for x, y in centres:
        corner = round(x * image.width - side / 2), round(y * image.width - side / 2)
        image.paste((24, 26, 48), (corner[0] + drop, corner[1] + drop), shadow)
        image.paste(face, corner, mask)


def _arrange(
    count: int, region: tuple[float, float, float, float], dice: Dice
) -> tuple[list[tuple[float, float]], float]:
    """Return the centres of ``count`` objects in ``region``, and the width that each may have."""
    left, top, right, bottom = region
    width, height = right - left, bottom - top
    rows = _ROWS[count]
    if width < 0.7 * height and count in (2, 3):
        rows = (1,) * count
    elif height < 0.7 * width and count == 3:
        rows = (3,)
    cell_height = height / len(rows)
    cell_width = width / max(rows)
    room = min(cell_width, cell_height)
    centres = []
    for row, columns in enumerate(rows):
        spread = width / columns
        for column in range(columns):
            x = left + (column + 0.5) * spread + dice.between(-0.12, 0.12) * (spread - 0.6 * room)
            y = top + (row + 0.5) * cell_height + dice.between(-0.12, 0.12) * cell_height
            centres.append((x, y))
    return centres, room
