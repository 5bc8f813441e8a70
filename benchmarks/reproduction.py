"""Put the tables of a run of ``diptych reproduce`` into docs/reproduction.md.

    diptych reproduce flickr8k --data FOLDER --out reproduction
    python benchmarks/reproduction.py reproduction

Whatever stands between ``<!-- tables/NAME.md -->`` and ``<!-- end -->`` is replaced by that file of the run.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "reproduction.md"
BLOCK = re.compile(r"(<!-- (tables/\w+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(document: str, run: Path) -> str:
    """``document`` with every block taken from ``run``; a file that is missing is an error."""
    names = {name for _, name, _ in BLOCK.findall(document)}
    missing = sorted(name for name in names if not (run / name).is_file())
    if missing or not names:
        sys.exit(
            f"{run} has no {', '.join(missing)}; give the --out folder of a whole run"
            if names
            else "no blocks"
        )
    return BLOCK.sub(lambda block: f"{block[1]}\n{(run / block[2]).read_text('utf-8')}\n{block[3]}", document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the --out folder of a whole run")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    given = parser.parse_args()
    given.document.write_text(fill(given.document.read_text("utf-8"), given.run), "utf-8")
    print(f"{given.document}: tables of {given.run}")


if __name__ == "__main__":
    main()
