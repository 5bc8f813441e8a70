"""The image at the top of the README: the search page of the demo's model, with a caption that nobody picked.

Needs what ``make demo`` wrote, and Chromium: ``python benchmarks/readme_image.py``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

from measuring import require

require("playwright", "pip install playwright")

from playwright.sync_api import sync_playwright  # noqa: E402

from diptych.data import read_pairs  # noqa: E402

ROOT = Path(__file__).parent.parent
DEMO = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo-output"
CHROMIUM = "/usr/bin/chromium"


def main() -> None:
    test = read_pairs(DEMO / "scenes").subset("test")
    # The longest caption of the first test image: nobody picked it.
    query = max((test.captions[row] for row in test.caption_rows([0])), key=len)
    command = [sys.executable, "-u", "-m", "diptych", "serve", str(DEMO / "best"), "--port", "0", "-q"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        assert server.stdout is not None
        try:
            url = next(match[1] for line in server.stdout if (match := re.search(r"Open (http\S+)", line)))
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1200, "height": 850})
            page.goto(f"{url}?q={quote(query)}&where.split=test", wait_until="networkidle")
            page.screenshot(path=ROOT / "docs" / "page.png")
            browser.close()
        finally:
            server.terminate()
    print(f"wrote docs/page.png: what the page shows for {query!r}")


if __name__ == "__main__":
    main()
