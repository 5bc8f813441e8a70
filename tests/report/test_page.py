"""The page: it contains everything, text is escaped, numbers are aligned right and the best is bold."""

import base64
import io
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diptych.report._page import (
    Html,
    Row,
    ShownHit,
    bullets,
    code,
    figure,
    format_cell,
    page,
    paragraph,
    section,
    show_hits,
    show_items,
    table,
    verdict,
)

NASTY = '<script>alert("x")</script> & co'


def drawing():
    from diptych.report._figures import new_figure

    drawn = new_figure(3, 2)
    axes = drawn.subplots()
    axes.plot([1, 2, 3], label="a")
    axes.legend()
    return drawn


@pytest.fixture(scope="module")
def html():
    return page(
        NASTY,
        NASTY,
        [
            section(NASTY, NASTY, paragraph(NASTY, note=True), code(NASTY, block=True), bullets([NASTY])),
            section(
                "Table",
                table([NASTY, "r@1"], [[NASTY, 1.0], Row([NASTY], "head")], caption=NASTY, note=NASTY),
            ),
            section("Figure", figure(drawing(), NASTY, NASTY), figure(drawing(), "twice", "twice")),
            section("Hits", show_hits(NASTY, [ShownHit(NASTY, 0.5, True)]), verdict(True, NASTY)),
        ],
        footer=NASTY,
    )


def test_everything_is_escaped(html):
    assert "<script" not in html
    assert 'alert("x")' not in html
    assert "&lt;script&gt;" in html


def test_a_page_loads_nothing_from_the_network(html):
    assert not re.search(r"https?://", html)
    linked = re.findall(r'(?:src|href)="([^"]*)"', html)
    assert linked
    assert all(link.startswith(("#", "data:image/")) for link in linked)
    assert "@import" not in html
    assert "url(http" not in html


def test_inner_links_have_targets_and_ids_are_unique(html):
    names = re.findall(r'\bid="([^"]*)"', html)
    assert len(names) == len(set(names))
    targets = {link[1:] for link in re.findall(r'href="(#[^"]*)"', html)}
    assert targets <= set(names)


def test_the_best_of_a_column_is_bold_and_published_rows_are_not_compared():
    rows = [["a", 10.0, 3], ["b", 20.0, 5], Row(["published", 99.0, 1], "quiet"), Row(["Group"], "head")]
    groups = [("", 1), ("search", 2)]
    html = table(["model", "r@1", "median"], rows, best={1: "high", 2: "low"}, groups=groups)
    assert '<th class="group" colspan="2">search</th>' in html
    assert re.findall(r'class="best">([^<]*)<', html) == ["3", "20.0"]
    assert '<tr class="quiet">' in html
    assert 'colspan="3">Group' in html


def test_equal_numbers_are_all_best_and_a_single_row_is_not():
    assert table(["m", "r"], [["a", 2.0], ["b", 2.0]], best={1: "high"}).count('class="best"') == 2
    assert "best" not in table(["m", "r"], [["a", 2.0]], best={1: "high"})


@pytest.mark.parametrize(
    ("cells", "left"),
    [
        (["guided", "Tikhonov"], True),
        (["28.1 ± 0.3", "≈ 0.5"], False),
        (["3 of 10", "9 s"], False),
        (["500 images drawn here", "2 more"], True),
        ([1.0, "–"], False),
    ],
)
def test_words_are_set_to_the_left_and_numbers_to_the_right(cells, left):
    html = table(["column"], [[cell] for cell in cells])
    assert ('class="words"' in html) is left


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *((None, "–"), (21.66, "21.7"), (0.0123, "0.0123"), (0.0, "0.0"), (12345, "12,345")),
        *(("a<b", "a&lt;b"), (Html("<b>bold</b>"), "<b>bold</b>")),
    ],
)
def test_cells(value, shown):
    assert format_cell(value) == shown


def test_verdicts_are_visible_without_colour():
    assert verdict(True, "holds") == '<span class="holds">holds</span>'
    assert verdict(False, "does not hold") == '<span class="fails">does not hold</span>'
    assert verdict(None, "not measured") == "not measured"


def test_light_and_dark_print_and_phone(html):
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html
    assert 'name="viewport"' in html


def decode_images(markup):
    coded = re.findall(r'src="data:image/jpeg;base64,([^"]*)"', markup)
    return [Image.open(io.BytesIO(base64.b64decode(text))) for text in coded]


def test_right_hits_are_marked_in_words_and_by_class():
    image = Image.new("RGB", (40, 30), "navy")
    images = show_hits("a dog", [ShownHit(image, 0.8), ShownHit(image, -0.1, True)])
    assert images.startswith('<div class="strip"><p>a dog</p><ul><li><img')
    assert re.findall(r">(✓ )?([−\d.]+)</li>", images) == [("", "0.80"), ("✓ ", "−0.10")]
    assert images.count('<li class="right">') == 1
    texts = show_hits(image, [ShownHit("a dog", 0.7, True), ShownHit("a cat", 0.6)])
    assert texts.endswith(
        '<ul class="texts"><li class="right">✓ 0.70: a dog</li><li>0.60: a cat</li></ul></div>'
    )
    assert len(decode_images(texts)) == 1


@pytest.mark.parametrize("size", [(4000, 3000), (3000, 4000), (2000, 2), (1, 1), (224, 224)])
def test_thumbnails_are_small_and_keep_their_shape(size):
    image = Image.new("RGB", size, "red")
    (small,) = decode_images(show_hits("red", [ShownHit(image, 1.0)]))
    assert max(small.size) == min(224, max(size))
    assert (
        abs(small.width / small.height - size[0] / size[1]) <= 0.02 * size[0] / size[1]
        or min(small.size) == 1
    )
    assert image.size == size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_images_of_any_mode_are_shown(mode):
    (small,) = decode_images(show_hits(Image.new(mode, (30, 20)), []))
    assert (small.mode, small.size) == ("RGB", (30, 20))
    if mode == "RGBA":  # transparent, and so white
        assert (np.asarray(small) == 255).all()


@pytest.mark.browser
def test_long_names_below_images_do_not_overlap(tmp_path):
    chromium = Path("/usr/bin/chromium")
    if not chromium.exists():
        (pytest.fail if os.environ.get("DIPTYCH_REQUIRE_BROWSER") == "1" else pytest.skip)(
            "there is no browser"
        )
    from playwright.sync_api import sync_playwright

    names = ["IMG_20230514_183422_Burst01_edited_copy_2.jpg", "x" * 120, "a short name"]
    items = show_items((Image.new("RGB", (60, 40)), name) for name in names)
    (tmp_path / "sheet.html").write_text(page("Sheet", "", [section("Groups", items)]), "utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(chromium), args=["--no-sandbox"])
        script = (
            "[...document.querySelectorAll('.strip li')].map(item => item.scrollWidth - item.clientWidth)"
        )
        for width in (1100, 360):
            opened = browser.new_page(viewport={"width": width, "height": 600})
            opened.goto((tmp_path / "sheet.html").as_uri())
            assert opened.evaluate(script) == [0, 0, 0]
        browser.close()
