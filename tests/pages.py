"""What tests of the page have in common: windows, what is shown, and what a person does with a mouse."""

import base64
import re
from pathlib import Path

import pytest

WIDE = {"width": 1360, "height": 900}
PHONE = {"width": 320, "height": 640}
WINDOWS = pytest.mark.parametrize("width", [1360, 390])


def first_image(page):
    tile = page.locator(".grid:not(.placeholders) .tile").first
    tile.wait_for()
    return tile.get_attribute("data-item")


def first_caption(page):
    line = page.locator(".lines:not(.placeholders) .line").first
    line.wait_for()
    return line.get_attribute("data-caption")


def find_captions(page, which=".tile"):
    """Open an item, and search captions for it."""
    page.locator(which).first.click()
    page.get_by_role("link", name=re.compile("^Find ")).click()


def wait_for_notice(page, title):
    page.locator(".notice-title", has_text=title).wait_for()


def drop(page, path):
    """Drop a file on the page, as a person does with a mouse."""
    content = base64.b64encode(Path(path).read_bytes()).decode()
    transfer = page.evaluate_handle(
        """([content, name]) => {
          const bytes = Uint8Array.from(atob(content), (c) => c.charCodeAt(0));
          const transfer = new DataTransfer();
          transfer.items.add(new File([bytes], name, {type: "image/png"}));
          return transfer;
        }""",
        [content, Path(path).name],
    )
    page.dispatch_event("#drop", "dragenter", {"dataTransfer": transfer})
    page.dispatch_event("#drop", "drop", {"dataTransfer": transfer})


def ids(hits):
    return [hit.id for hit in hits]


def check_width(page, width):
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def shown_ids(page, count=12):
    """The ids of the results, once there are as many."""
    page.wait_for_function(
        """(count) => !document.querySelector("[aria-busy=true]")
          && document.querySelectorAll(".tile, .line").length === count""",
        arg=count,
    )
    return page.locator(".tile, .line").evaluate_all(
        "hits => hits.map((hit) => hit.dataset.item ?? hit.dataset.caption)"
    )


def contrast(page, selector):
    """WCAG's ratio of an element's colour to what lies behind it."""
    return page.evaluate(
        """(selector) => {
          const light = (colour) => {
            const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
              .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b;
          };
          const element = document.querySelector(selector);
          const ground = (place) => getComputedStyle(place).backgroundColor;
          let behind = element;
          while (ground(behind) === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
          const [a, b] = [getComputedStyle(element).color, ground(behind)].map(light);
          return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        }""",
        selector,
    )
