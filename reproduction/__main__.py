"""``python -m reproduction flickr8k --data FOLDER``: run the experiments and write the report."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from diptych import InputError
from reproduction.data import find_data
from reproduction.runner import Reproduction, check_experiments, list_experiments
from reproduction.setting import Options


def read_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m reproduction",
        description="Compute every table and figure of the paper, and compare the numbers with the published "
        "ones. Writes report.html, results.json, and every table as CSV, LaTeX and Markdown. Results are "
        "stored in the folder: a second run computes only what changed in the data, the options or the code.",
    )
    parser.add_argument("dataset", help="flickr8k, flickr30k, coco, scenes, or the name of a protocol")
    add = parser.add_argument
    add("--data", type=Path, help="folder of the split file and features; not needed for scenes")
    add("--out", "-o", type=Path, default=Path("reproduction-output"), help="folder for the report")
    add("--quick", action="store_true", help="a small version: coarse grids, fewer features")
    add("--only", help=f"some experiments, by name or by the paper's numbers: {list_experiments()}")
    add("--seeds", type=int, default=1, help="seeds of the main tables, for mean and spread")
    add("--query", help="the text of the t-SNE figure; by default a test caption is chosen")
    add("--vectors", type=Path, help="word vectors, if they are not in the data folder")
    add("--images", type=Path, help="folder of the image files, if it is not in the data folder")
    add(
        "--features",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="your own image or text features, one row per image or caption in the order of the split file; "
        "repeatable; the tables mark their rows",
    )
    add("--quiet", "-q", action="store_true", help="print nothing but errors")
    options = parser.parse_args(words)
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds} is not positive")
    return options


def run(arguments: argparse.Namespace) -> None:
    """Run the experiments and write the report."""
    start, quiet = time.perf_counter(), arguments.quiet
    if arguments.out.exists() and not arguments.out.is_dir():
        raise InputError(f"{arguments.out} is a file; name a folder for the report.")
    only = None if arguments.only is None else [name.strip() for name in arguments.only.split(",")]
    names = check_experiments(only)
    if arguments.query is not None and "plane" not in names:
        raise InputError("--query is the text of the experiment plane; add plane to --only.")
    data = find_data(
        arguments.dataset,
        arguments.data,
        vectors=arguments.vectors,
        images=arguments.images,
        features=arguments.features,
        quick=arguments.quick,
    )
    options = Options.for_dataset(
        data.name, quick=arguments.quick, seeds=arguments.seeds, query=arguments.query
    )
    reproduction = Reproduction(data, options, arguments.out)
    if not quiet:
        for file, use in data.files:
            print(f"{file}: {use}", file=sys.stderr)
    for step in reproduction.run(names):
        if not quiet:
            print(f"{step.done + 1} of {step.total}: {step.label}", file=sys.stderr)
    files = reproduction.write(" ".join(["python -m reproduction", *map(shlex.quote, sys.argv[1:])]))
    if not quiet:
        _print(reproduction, files, time.perf_counter() - start)


def _print(reproduction: Reproduction, files: list[Path], seconds: float) -> None:
    cache = reproduction.setting.cache
    print("claims: " + ", ".join(f"{words} {number}" for words, number in reproduction.verdicts().items()))
    if reproduction.caveat:
        print(reproduction.caveat)
    print("seconds: " + ", ".join(f"{name} {value:.0f}" for name, value in reproduction.seconds.items()))
    print(
        f"{len(cache.computed)} results computed, {len(cache.read)} read from the folder; {seconds:.0f} s; "
        f"wrote {files[0]} and {len(files) - 1} files of numbers and tables"
    )


def main(words: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    arguments = read_arguments(words)
    try:
        run(arguments)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        again = "finished results are stored; run the same command again to continue"
        print(f"interrupted; {again}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
