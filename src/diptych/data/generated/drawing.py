"""From the description of a scene to its picture."""

from __future__ import annotations

from PIL import Image

from diptych.data.generated.backdrops import draw_backdrop
from diptych.data.generated.description import Dice, Group, Scene
from diptych.data.generated.things import PALETTE, draw_thing

OVERSAMPLING = 3
"""Scenes are drawn this many times larger and averaged down: smooth edges on every platform alike."""

_WIDTHS = {"small": 0.15, "medium": 0.23, "large": 0.33}
_WHOLE = (0.06, 0.06, 0.94, 0.94)
_REGIONS = {
    # Where the main group and the other one stand: left, top, right, bottom.
    "left of": ((0.03, 0.08, 0.55, 0.95), (0.58, 0.08, 0.97, 0.95)),
    "right of": ((0.45, 0.08, 0.97, 0.95), (0.03, 0.08, 0.42, 0.95)),
    "above": ((0.06, 0.03, 0.94, 0.55), (0.06, 0.58, 0.94, 0.97)),
    "below": ((0.06, 0.45, 0.94, 0.97), (0.06, 0.03, 0.94, 0.42)),
}
_ROWS = {1: (1,), 2: (2,), 3: (1, 2), 4: (2, 2), 5: (2, 3)}


def draw_scene(scene: Scene, side: int) -> Image.Image:
    """Draw ``scene`` as a square RGB picture."""
    dice = Dice(f"picture {scene.seed}")
    large = side * OVERSAMPLING
    image = draw_backdrop(scene.backdrop, large, dice)
    if scene.other is None or scene.relation is None:
        _place(image, scene.main, _WHOLE, dice)
    else:
        region, beside = _REGIONS[scene.relation]
        _place(image, scene.other, beside, dice)
        _place(image, scene.main, region, dice)
    return image.reduce(OVERSAMPLING)


def _place(image: Image.Image, group: Group, region: tuple[float, float, float, float], dice: Dice) -> None:
    places, room = _arrangement(group.count, region, dice)
    width = min(_WIDTHS[group.size], 0.95 * room) * dice.between(0.92, 1.08)
    side = max(6, round(width * image.width))
    r, g, b = (min(255, max(0, c + dice.whole(-12, 12))) for c in PALETTE[group.colour])
    face, mask = draw_thing(group.shape, (r, g, b), group.texture, side)
    shadow, drop = mask.point([value // 4 for value in range(256)]), max(1, side // 20)
    for x, y in places:
        corner = round(x * image.width - side / 2), round(y * image.width - side / 2)
        image.paste((24, 26, 48), (corner[0] + drop, corner[1] + drop), shadow)
        image.paste(face, corner, mask)


def _arrangement(
    count: int, region: tuple[float, float, float, float], dice: Dice
) -> tuple[list[tuple[float, float]], float]:
    """Centres for ``count`` things in ``region``, and how wide each may be."""
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
