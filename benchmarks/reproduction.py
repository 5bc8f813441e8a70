"""Insert the tables of a ``diptych reproduce`` run into docs/reproduction.md.

    diptych reproduce flickr8k --data FOLDER --out reproduction
    python benchmarks/reproduction.py reproduction

The text between ``<!-- tables/NAME.md -->`` and ``<!-- end -->`` is replaced by that file of the run.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "reproduction.md"
BLOCK = re.compile(r"(<!-- (tables/\w+\.md) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(document: str, run: Path) -> str:
    """Return ``document`` with every block replaced by its file in ``run``."""
    names = {name for _, name, _ in BLOCK.findall(document)}
    if not names:
        sys.exit("the document has no blocks to fill")
    missing = sorted(name for name in names if not (run / name).is_file())
    if missing:
        sys.exit(f"{run} has no {', '.join(missing)}; pass the --out folder of a whole run")
    return BLOCK.sub(lambda block: f"{block[1]}\n{(run / block[2]).read_text('utf-8')}\n{block[3]}", document)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the --out folder of a whole run")
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    options = parser.parse_args()
    options.document.write_text(fill(options.document.read_text("utf-8"), options.run), "utf-8")
    print(f"{options.document}: tables of {options.run}")


if __name__ == "__main__":
    main()
