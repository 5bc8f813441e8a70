"""One HTML page that contains everything it shows: no scripts, no network, light and dark, print and phone.

Parts are built by small functions and put together by ``page``::

    page(
        "Results",
        "What was measured, and how.",
        [section("Recall", paragraph("On 1,000 images."), table(["model", "r@1"], [["CCA", 21.6]]))],
    )

Text is escaped where it enters; what the functions return is ``Html`` and is not escaped again.
"""

from __future__ import annotations

import base64
import io
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from PIL import Image

from diptych._checks import IMAGE_AND_TEXT, Task, ViewNames, plural


def task_titles(names: ViewNames) -> dict[Task, str]:
    """Return the titles of the tasks in figures and cards."""
    return {
        "search": f"search: {names.text} → {plural(names.image)}",
        "annotate": f"annotate: {names.image} → {plural(names.text)}",
    }


TITLES = task_titles(IMAGE_AND_TEXT)

THUMBNAIL_SIDE = 224


def one_line(text: str, longest: int = 200) -> str:
    r"""Return ``text`` on one line of at most ``longest`` characters, without invisible characters.

    Those can reverse the direction of a line or hide a part of it.

    >>> one_line("a dog\n\tin   the snow")
    'a dog in the snow'
    """
    # Cut first, so that a text of megabytes is not processed as a whole.
    words = " ".join(text[: 8 * longest].split())
    visible = "".join(letter for letter in words if letter.isprintable())
    return visible if len(visible) <= longest else visible[: longest - 1].rstrip() + "…"


Best = Literal["high", "low"]


class Html(str):
    """Markup; any other string is text, and is escaped."""

    __slots__ = ()


class Section(NamedTuple):
    """A part of a page; the titles are its table of contents."""

    title: str
    body: Html


@dataclass(frozen=True)
class Row:
    """A row of a table.

    The first cell of a ``head`` row spans the table; ``quiet`` rows (published figures) are in italics and
    are never the best.
    """

    cells: Sequence[Any]
    kind: Literal["plain", "head", "quiet"] = "plain"


@dataclass(frozen=True)
class ShownHit:
    """One hit of a query: an image or a text, its score, and whether it is right."""

    item: Image.Image | str
    score: float
    right: bool = False


def page(title: str, lead: str | Html, sections: Iterable[Section], *, footer: str | Html = "") -> str:
    """Return a whole HTML document."""
    sections = list(sections)
    links = "".join(
        f'<li><a href="#{_anchor(i, name)}">{escape(name)}</a></li>' for i, (name, _) in enumerate(sections)
    )
    body = "".join(
        f'<section id="{_anchor(i, name)}"><h2>{escape(name)}</h2>{content}</section>'
        for i, (name, content) in enumerate(sections)
    )
    style = files("diptych.report").joinpath("style.css").read_text("utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="lead">{text(lead)}</p>'
        + (f"<nav><ul>{links}</ul></nav>" if len(sections) > 2 else "")
        + body
        + (f"<footer>{text(footer)}</footer>" if footer else "")
        + "</main></body></html>\n"
    )


def section(title: str, *parts: str | Html) -> Section:
    """Return a part of the page with a heading; plain strings become paragraphs."""
    return Section(title, Html("".join(p if isinstance(p, Html) else paragraph(p) for p in parts)))


def text(words: str | Html) -> Html:
    """Return ``words`` as markup, escaped unless they are markup already."""
    return words if isinstance(words, Html) else Html(escape(str(words)))


def join(*parts: str | Html) -> Html:
    """Concatenate text and markup."""
    return Html("".join(map(text, parts)))


def heading(words: str) -> Html:
    """Return a small heading within a section."""
    return Html(f"<h3>{escape(words)}</h3>")


def paragraph(words: str | Html, *, note: bool = False) -> Html:
    """Return a paragraph; a ``note`` is small and grey."""
    return Html(f"<p{_class('note' if note else '')}>{text(words)}</p>")


def code(words: str, *, block: bool = False) -> Html:
    """Return a command or a name in fixed-width letters."""
    inner = f"<code>{escape(words)}</code>"
    return Html(f"<pre>{inner}</pre>" if block else inner)


def bullets(items: Iterable[str | Html]) -> Html:
    """Return a list."""
    return Html("<ul>" + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>")


def verdict(holds: bool | None, words: str) -> Html:
    """Return a verdict in words, and in colour unless ``holds`` is None."""
    if holds is None:
        return text(words)
    return Html(f'<span class="{"holds" if holds else "fails"}">{escape(words)}</span>')


def table(
    columns: Sequence[str],
    rows: Iterable[Row | Sequence[Any]],
    *,
    caption: str | Html = "",
    note: str | Html = "",
    best: Mapping[int, Best] | None = None,
    groups: Sequence[tuple[str, int]] = (),
) -> Html:
    """Return a table.

    Cells are text, markup, numbers or None; see ``format_cell``. Columns of words are aligned to the left.
    ``best`` says for which columns, by position, the highest or lowest number is in bold. ``groups`` are
    headings with the number of columns they span.
    """
    all_rows = [row if isinstance(row, Row) else Row(row) for row in rows]
    plain = [row for row in all_rows if row.kind != "head"]
    words = [_is_words([row.cells[i] for row in plain if i < len(row.cells)]) for i in range(len(columns))]
    head = "".join(
        f"<th{_class('words' if words[i] else '')}>{text(name)}</th>" for i, name in enumerate(columns)
    )
    body = []
    for row, bold in zip(all_rows, best_cells(all_rows, best), strict=True):
        if row.kind == "head":
            body.append(f'<tr class="head"><td colspan="{len(columns)}">{text(row.cells[0])}</td></tr>')
            continue
        cells = "".join(
            f"<td{_class('words' if words[i] else '', 'best' if i in bold else '')}>{format_cell(cell)}</td>"
            for i, cell in enumerate(row.cells)
        )
        body.append(f"<tr{_class('quiet' if row.kind == 'quiet' else '')}>{cells}</tr>")
    over = "".join(f'<th class="group" colspan="{span}">{text(name)}</th>' for name, span in groups)
    head = (f"<tr>{over}</tr>" if groups else "") + f"<tr>{head}</tr>"
    title = f"<caption>{text(caption)}</caption>" if caption else ""
    foot = paragraph(note, note=True) if note else ""
    return Html(
        f'<div class="scroll"><table>{title}<thead>{head}</thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>{foot}"
    )


def best_cells(rows: Sequence[Row], best: Mapping[int, Best] | None) -> list[set[int]]:
    """Return for each row the columns in which it has the best number; only plain rows are compared."""
    compared = [row for row in rows if row.kind == "plain"]
    top = {c: _extreme([r.cells[c] for r in compared], way) for c, way in (best or {}).items()}
    return [
        {c for c, value in top.items() if row.kind == "plain" and _same(row.cells[c], value)} for row in rows
    ]


def format_cell(value: Any) -> Html:
    """Format a cell: None as a dash, floats with one decimal place or three digits."""
    if value is None:
        return Html("–")
    if isinstance(value, bool) or not isinstance(value, float):
        return text(value if isinstance(value, str) else f"{value:,}" if type(value) is int else str(value))
    return Html(f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}")


def figure(drawing: Any, caption: str | Html, alt: str, *, raster: bool = False) -> Html:
    """Embed a matplotlib figure as SVG, or as PNG if it contains images or very many marks."""
    stream = io.BytesIO()
    if raster:
        drawing.savefig(stream, format="png", dpi=170)
        inside = f'<img src="{_data_uri(stream.getvalue(), "png")}" alt="{escape(alt)}">'
    else:
        drawing.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        drawn = stream.getvalue().decode("utf-8")
        drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
        # HTML knows svg and href without the addresses of their namespaces.
        drawn = re.sub(r' xmlns(:\w+)?="[^"]*"', "", drawn).replace("xlink:href", "href")
        # Matplotlib uses the same ids in every figure; a prefix makes them unique on the page.
        prefix = f"f{zlib.crc32(stream.getvalue()):08x}-"
        drawn = re.sub(r'\bid="', f'id="{prefix}', drawn)
        drawn = re.sub(r'(href="#|url\(#)', rf"\1{prefix}", drawn)
        inside = drawn.replace("<svg", f'<svg role="img" aria-label="{escape(alt)}"', 1)
    return Html(f'<figure><div class="plate">{inside}</div><figcaption>{text(caption)}</figcaption></figure>')


def show_hits(query: Image.Image | str, hits: Sequence[ShownHit]) -> Html:
    """Show a query and its hits below it, images as thumbnails and texts as a list; right hits are marked."""
    images, texts = "", ""
    for hit in hits:
        score = ("✓ " if hit.right else "") + f"{hit.score:.2f}".replace("-", "−")
        start = f"<li{_class('right' if hit.right else '')}>"
        if isinstance(hit.item, str):
            texts += f"{start}{score}: {escape(hit.item)}</li>"
        else:
            images += f"{start}{thumbnail(hit.item, f'hit with score {score}')}{score}</li>"
    shown = f"<p>{escape(query)}</p>" if isinstance(query, str) else thumbnail(query, "query")
    return _strip(shown, images, texts)


def show_items(items: Iterable[tuple[Image.Image | None, str]]) -> Html:
    """Show images side by side with a text below each; texts without an image as a list."""
    images, texts = "", ""
    for image, words in items:
        if image is None:
            texts += f"<li>{escape(one_line(words))}</li>"
        else:
            images += f"<li>{thumbnail(image, one_line(words))}{escape(one_line(words))}</li>"
    return _strip("", images, texts)


def _strip(query: str, images: str, texts: str) -> Html:
    """Put a query above the items of a list of images and of one of texts."""
    images = f"<ul>{images}</ul>" if images else ""
    texts = f'<ul class="texts">{texts}</ul>' if texts else ""
    return Html(f'<div class="strip">{query}{images}{texts}</div>')


def thumbnail(image: Image.Image, alt: str) -> str:
    """Return an image in RGB on white, at most ``THUMBNAIL_SIDE`` pixels wide and high, as markup."""
    if image.mode not in ("RGB", "L"):
        transparent = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), transparent)
    small = image.convert("RGB")
    small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=82)
    return f'<img src="{_data_uri(stream.getvalue(), "jpeg")}" alt="{escape(alt)}" loading="lazy">'


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _anchor(position: int, title: str) -> str:
    return f"{position + 1}-" + re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _is_words(cells: Sequence[Any]) -> bool:
    if any(cell is not None and not isinstance(cell, str) for cell in cells):
        return False
    # A number with a short unit (28.1 ± 0.3, 9 s, 3 of 10) is a number.
    texts = [re.sub(r"<[^>]*>", "", cell) for cell in cells if cell is not None]
    return any(not re.search(r"\d", text) or re.search(r"[^\W\d]{4}", text) for text in texts)


def _class(*names: str) -> str:
    joined = " ".join(filter(None, names))
    return f' class="{joined}"' if joined else ""


def _value(cell: Any) -> float | None:
    if isinstance(cell, str):
        number = re.match(r"[\s≈~]*(-?[\d.]+)", re.sub(r"<[^>]*>", "", cell))
        return float(number.group(1)) if number else None
    return None if cell is None or isinstance(cell, bool) else float(cell)


def _extreme(cells: Sequence[Any], way: Best) -> float | None:
    values = [v for v in map(_value, cells) if v is not None]
    return None if len(values) < 2 else max(values) if way == "high" else min(values)


def _same(cell: Any, value: float | None) -> bool:
    return value is not None and _value(cell) == value
