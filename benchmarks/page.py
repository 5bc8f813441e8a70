"""The page with 100,000 images in a browser: the first pictures, the middle of all, a filter.

Beside it the same with 1,000 images, and a page that is nothing but an icon of the same server. Each step is
measured in a window of 1360 × 900 pixels, from the action until every image in the window is decoded, with an
empty cache of the browser at the first one. Features are random; a drawing serves many items.

    python benchmarks/page.py
"""

from __future__ import annotations

from measuring import clock, pin_threads, record, require

pin_threads(1)
require("playwright", "pip install playwright")

import datetime  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402
from statistics import median  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np  # noqa: E402
from playwright.sync_api import Browser, sync_playwright  # noqa: E402

from diptych import AWCCA, Retriever  # noqa: E402
from diptych.encoders import sentence_encoder  # noqa: E402
from diptych.scenes import make_scenes  # noqa: E402
from servers import serving  # noqa: E402

SIZES, DRAWINGS, DIMENSIONS, RUNS = (1_000, 100_000), 500, 64, 5
SIDE = 320
IS_SHOWN = """() => {
  const images = [...document.querySelectorAll("ol .tile img")].filter((image) => {
    const box = image.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  });
  const isIdle = !document.querySelector("[aria-busy]");
  return isIdle && images.length > 5 && images.every((image) => image.complete && image.naturalWidth);
}"""
TO_THE_MIDDLE = "scrollTo({top: document.documentElement.scrollHeight / 2, behavior: 'instant'})"


def make_library(items: int, paths: list[str]) -> Retriever:
    """Fit on random features of images that were taken over years at 50 places."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((items, DIMENSIONS), np.float32)
    views = [hidden + rng.standard_normal((items, DIMENSIONS), np.float32) for _ in range(2)]
    days = [datetime.date(2000, 1, 1) + datetime.timedelta(i // 12) for i in range(items)]
    metadata = {
        f"image {i}": {"taken": day.isoformat(), "place": f"place {i % 50}"} for i, day in enumerate(days)
    }
    return Retriever.from_features(
        *views,
        ids=list(metadata),
        paths=[paths[i % len(paths)] for i in range(items)],
        captions=[f"text number {i}" for i in range(items)],
        text_encoder=sentence_encoder(lambda texts: views[1][[int(text.split()[-1]) for text in texts]]),
        model=AWCCA(params=(1e-2, 1e-2)),
        metadata=metadata,
    )


def visit(browser: Browser, base: str) -> dict[str, float]:
    """Take all steps once; return the seconds of each, and how large the document is in the middle."""
    seconds = {}
    page = browser.new_context(viewport={"width": 1360, "height": 900}).new_page()

    def step(name: str, act: Callable[[], object], condition: str = IS_SHOWN) -> None:
        start = clock()
        act()
        page.wait_for_function(condition)
        seconds[name] = clock() - start

    def enter(label: str, text: str) -> None:
        page.get_by_label(label).fill(text)
        page.get_by_label(label).press("Enter")

    step("an icon alone", lambda: page.goto(f"{base}/icon.svg"), "() => true")
    step("the page, until its first pictures are shown", lambda: page.goto(f"{base}/"))
    step("scroll to the middle", lambda: page.evaluate(TO_THE_MIDDLE))
    seconds["elements of the document there"] = page.evaluate("document.querySelectorAll('*').length")
    step("in the order of a date", lambda: page.get_by_label("order by").select_option("taken"))
    step("scroll to the middle of that", lambda: page.evaluate(TO_THE_MIDDLE))
    step("a filter", lambda: enter("place", "place 7"))
    step("a search among these", lambda: enter("Describe the image", "text number 700"))
    page.context.close()
    return seconds


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        scenes = make_scenes(DRAWINGS, size=SIDE)
        paths = [os.path.join(folder, f"{i}.png") for i in range(DRAWINGS)]
        for path, image in zip(paths, scenes.images, strict=True):
            image.save(path)
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        columns = {}
        for items in SIZES:
            with serving(make_library(items, paths)) as base:
                columns[items] = [visit(browser, base) for _ in range(RUNS + 1)][1:]
        browser.close()

    def show(name: str, runs: list[dict[str, float]]) -> str:
        value = median(run[name] for run in runs)
        return f"{value:,.0f}" if name.startswith("elements") else f"{1000 * value:,.0f} ms"

    rows = [
        {"step": name} | {f"{items:,} images": show(name, runs) for items, runs in columns.items()}
        for name in columns[SIZES[0]][0]
    ]
    record("page", rows, f"Medians of {RUNS} visits; {DRAWINGS} drawings of {SIDE} × {SIDE} pixels.")


if __name__ == "__main__":
    main()
