"""Run the examples of a page, and write what they print and draw: ``python docs/run_page.py statistics.md``.

The output of a block of Python is in the block of text below it; figures are written beside the page.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

EXAMPLE = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n.*?```\n)?", re.DOTALL)


def run_page(page: str) -> str:
    """Return a page in Markdown with the output of its examples, which run one after the other."""
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(match: re.Match[str]) -> str:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(match["code"], names)  # noqa: S102 - the examples of this project
        printed = "\n".join(line.rstrip() for line in output.getvalue().rstrip().splitlines())
        block = f"\n```text\n{printed}\n```\n" if printed else ""
        return f"```python\n{match['code']}```\n{block}"

    return EXAMPLE.sub(run, page)


if __name__ == "__main__":
    file = Path(__file__).with_name(sys.argv[1])
    os.chdir(file.parent)
    file.write_text(run_page(file.read_text("utf-8")), "utf-8")
