"""Copy the tables of a whole run of the reproduction to results/reproduction.json, and fill docs/ from it.

    python -m reproduction flickr8k --data FOLDER --out reproduction-output
    python benchmarks/fill_reproduction.py reproduction-output

The run must have been made by the code that is checked out, whose commit is recorded.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path

import fill_docs
from measuring import ROOT, describe_versions, identify_code, write_results

sys.path.insert(0, str(ROOT))
from reproduction.results import code_digest


def read_run(run: Path, pages: str) -> dict[str, object]:
    """Return the tables of a run that these pages show, with the code that made them."""
    file = run / "results.json"
    if not file.is_file():
        sys.exit(f"{run} has no results.json; pass the --out folder of a whole run")
    results = json.loads(file.read_text("utf-8"))
    if results.get("code") != code_digest():
        sys.exit(f"{run} was made by other code than this; run it again with what is checked out")
    if results["caveat"]:
        sys.exit(f"{run} is a quick run; the pages show a whole one")
    names = dict.fromkeys(re.findall(r"<!-- tables/(\w+)\.md -->", pages))
    missing = [name for name in names if not (run / "tables" / f"{name}.md").is_file()]
    if missing:
        sys.exit(f"{run}/tables has no {', '.join(missing)}; pass the --out folder of a whole run")
    tables = {name: (run / "tables" / f"{name}.md").read_text("utf-8").splitlines() for name in names}
    content = {"command": re.findall(r"`(.*?)`", tables["run"][0])[0], "versions": describe_versions()}
    content["date"] = time.strftime("%Y-%m-%d", time.localtime(file.stat().st_mtime))
    return {**content, **identify_code(), "tables": tables}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="the --out folder of a whole run")
    pages = "".join(path.read_text("utf-8") for path in fill_docs.list_pages())
    write_results("reproduction", read_run(parser.parse_args().run, pages))
    sys.argv[1:] = []
    fill_docs.main()


if __name__ == "__main__":
    main()
