"""The places of generated scenes."""

from __future__ import annotations

import math
from collections.abc import Callable

from PIL import Image, ImageDraw

from diptych.data.generated.description import Dice
from diptych.data.generated.things import Colour, mixed


def draw_backdrop(name: str, side: int, dice: Dice) -> Image.Image:
    """The place called ``name``, ``side`` pixels square."""
    return _PLACES[name](side, dice)


def _gradient(side: int, *colours: Colour) -> Image.Image:
    column = Image.new("RGB", (1, len(colours)))
    column.putdata(colours)
    return column.resize((side, side), Image.Resampling.BILINEAR)


def _hill(
    draw: ImageDraw.ImageDraw, side: int, level: float, swell: float, phase: float, fill: Colour
) -> None:
    steps = 24
    ridge = [
        (round(side * i / steps), round(side * (level + swell * math.sin(phase + 5 * i / steps))))
        for i in range(steps + 1)
    ]
    draw.polygon([(0, side), *ridge, (side, side)], fill=fill)


def _hills(side: int, dice: Dice, sky: tuple[Colour, Colour], *grounds: Colour) -> Image.Image:
    image = _gradient(side, *sky)
    draw = ImageDraw.Draw(image)
    for i, ground in enumerate(grounds):
        _hill(draw, side, 0.62 + 0.14 * i, 0.035 + 0.01 * i, dice.between(0, 6.3), ground)
    return image


def _sprinkle(
    image: Image.Image, dice: Dice, fill: Colour, count: int, top: float, bottom: float, size: float
) -> Image.Image:
    draw, side = ImageDraw.Draw(image), image.width
    for _ in range(count):
        x, y = dice.between(0, side), dice.between(top * side, bottom * side)
        r = max(1, round(size * side * dice.between(0.5, 1.0)))
        draw.ellipse((round(x) - r, round(y) - r, round(x) + r, round(y) + r), fill=fill)
    return image


def _clouds(image: Image.Image, dice: Dice, fill: Colour) -> Image.Image:
    draw, side = ImageDraw.Draw(image), image.width
    for _ in range(dice.whole(1, 3)):
        x, y, r = (
            dice.between(0.05, 0.85) * side,
            dice.between(0.06, 0.3) * side,
            dice.between(0.03, 0.055) * side,
        )
        for dx, dy, scale in ((0, 0, 1.0), (1.1, -0.5, 1.25), (2.3, 0, 1.0)):
            box = (
                x + dx * r - scale * r,
                y + dy * r - scale * r,
                x + dx * r + scale * r,
                y + dy * r + scale * r,
            )
            draw.ellipse(tuple(map(round, box)), fill=fill)
    return image


def _meadow(side: int, dice: Dice) -> Image.Image:
    image = _hills(side, dice, ((158, 212, 240), (226, 243, 246)), (158, 204, 122), (126, 184, 98))
    return _sprinkle(_clouds(image, dice, (250, 252, 253)), dice, (244, 240, 190), 14, 0.85, 1.0, 0.008)


def _sea(side: int, dice: Dice) -> Image.Image:
    image = _gradient(side, (176, 216, 240), (224, 240, 246))
    draw = ImageDraw.Draw(_clouds(image, dice, (251, 252, 253)))
    blues: tuple[Colour, ...] = ((96, 168, 208), (76, 148, 196), (60, 128, 182))
    for i, blue in enumerate(blues):
        level, phase, waves = 0.58 + 0.14 * i, dice.between(0, 6.3), 40
        crest = [
            (round(side * k / waves), round(side * (level + 0.012 * math.sin(phase + 1.9 * k))))
            for k in range(waves + 1)
        ]
        draw.polygon([(0, side), *crest, (side, side)], fill=blue)
    return image


def _desert(side: int, dice: Dice) -> Image.Image:
    return _hills(side, dice, ((250, 222, 172), (253, 240, 212)), (236, 196, 132), (224, 176, 110))


def _snow(side: int, dice: Dice) -> Image.Image:
    image = _hills(side, dice, ((172, 196, 220), (216, 228, 240)), (232, 239, 246), (246, 249, 252))
    return _sprinkle(image, dice, (253, 254, 255), 40, 0.0, 1.0, 0.009)


def _night(side: int, dice: Dice) -> Image.Image:
    image = _gradient(side, (20, 24, 58), (46, 48, 100), (76, 72, 132))
    image = _sprinkle(image, dice, (242, 238, 208), 45, 0.0, 0.9, 0.006)
    draw, x, r = ImageDraw.Draw(image), dice.between(0.12, 0.88) * side, 0.06 * side
    draw.ellipse(
        (round(x - r), round(0.05 * side), round(x + r), round(0.05 * side + 2 * r)), fill=(250, 243, 205)
    )
    return image


def _sunset(side: int, dice: Dice) -> Image.Image:
    image = _gradient(side, (104, 88, 150), (214, 118, 140), (250, 176, 120), (254, 218, 150))
    draw, x, r = ImageDraw.Draw(image), dice.between(0.2, 0.8) * side, 0.15 * side
    draw.ellipse(
        (round(x - r), round(0.74 * side - r), round(x + r), round(0.74 * side + r)), fill=(255, 240, 190)
    )
    _hill(draw, side, 0.78, 0.02, dice.between(0, 6.3), (110, 78, 122))
    _hill(draw, side, 0.88, 0.02, dice.between(0, 6.3), (76, 58, 100))
    return image


def _city(side: int, dice: Dice) -> Image.Image:
    image = _gradient(side, (186, 196, 224), (240, 222, 214))
    draw, x = ImageDraw.Draw(image), 0.0
    while x < 1:
        width, top = dice.between(0.1, 0.18), dice.between(0.42, 0.66)
        wall = mixed((122, 128, 156), (92, 98, 130), dice.unit())
        draw.rectangle((round(x * side), round(top * side), round((x + width) * side), side), fill=wall)
        pane, gap = 0.022 * side, 0.045 * side
        for row in range(int((1 - top) * side / gap)):
            for column in range(1, int(width * side / gap)):
                if dice.chance(0.55):
                    px, py = x * side + column * gap - pane / 2, top * side + (row + 0.5) * gap
                    draw.rectangle(
                        (round(px), round(py), round(px + pane), round(py + pane)), fill=(250, 226, 160)
                    )
        x += width + 0.004
    return image


def _table(side: int, dice: Dice) -> Image.Image:
    image = Image.new("RGB", (side, side), (198, 152, 106))
    draw, planks = ImageDraw.Draw(image), 5
    for i in range(planks):
        top, bottom = i * side // planks, (i + 1) * side // planks
        shade = mixed((206, 160, 112), (180, 132, 90), dice.unit())
        draw.rectangle((0, top, side, bottom), fill=shade)
        for _ in range(4):
            y = round(dice.between(top, bottom))
            draw.line(
                (0, y, side, y + round(dice.between(-0.01, 0.01) * side)),
                fill=mixed(shade, (120, 80, 50), 0.25),
                width=2,
            )
        draw.line((0, bottom, side, bottom), fill=(146, 102, 68), width=max(2, side // 120))
    return image


def _paper(side: int, dice: Dice) -> Image.Image:
    image = Image.new("RGB", (side, side), (251, 247, 236))
    draw, step, start = ImageDraw.Draw(image), side // 12, round(dice.between(0, side / 12))
    for at in range(start, side, step):
        for line in ((at, 0, at, side), (0, at, side, at)):
            draw.line(line, fill=(196, 216, 230), width=max(1, side // 200))
    return image


def _blackboard(side: int, dice: Dice) -> Image.Image:
    image = _gradient(side, (52, 84, 74), (44, 72, 66))
    draw, frame = ImageDraw.Draw(image), side // 24
    for _ in range(3):
        x, y = dice.between(0, 0.7) * side, dice.between(0.1, 0.9) * side
        draw.line(
            (round(x), round(y), round(x + 0.3 * side), round(y - 0.04 * side)),
            fill=(64, 98, 88),
            width=side // 16,
        )
    draw.rectangle((0, 0, side - 1, side - 1), outline=(170, 124, 82), width=frame)
    return image


def _bricks(side: int, dice: Dice) -> Image.Image:
    image = Image.new("RGB", (side, side), (230, 214, 200))
    draw, height, width = ImageDraw.Draw(image), side / 11, side / 5
    for row in range(11):
        for column in range(-1, 6):
            x, y = (column + 0.5 * (row % 2)) * width, row * height
            shade = mixed((206, 132, 108), (186, 110, 92), dice.unit())
            draw.rectangle(
                (round(x), round(y), round(x + width * 0.94), round(y + height * 0.86)), fill=shade
            )
    return image


def _carpet(side: int, dice: Dice) -> Image.Image:
    image = Image.new("RGB", (side, side), (230, 206, 226))
    draw, step, shift = ImageDraw.Draw(image), side / 9, dice.unit()
    for row in range(-1, 10):
        for column in range(-1, 10):
            x, y, r = (column + shift + 0.5 * (row % 2)) * step, (row + shift) * step, step * 0.2
            draw.ellipse((round(x - r), round(y - r), round(x + r), round(y + r)), fill=(206, 172, 206))
    return image


_PLACES: dict[str, Callable[[int, Dice], Image.Image]] = {
    "meadow": _meadow,
    "sea": _sea,
    "desert": _desert,
    "snow": _snow,
    "night": _night,
    "sunset": _sunset,
    "city": _city,
    "table": _table,
    "paper": _paper,
    "blackboard": _blackboard,
    "bricks": _bricks,
    "carpet": _carpet,
}
