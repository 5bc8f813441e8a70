"""``encoders``: what is installed, and which encoder to name for which need."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from diptych.cli import _options as opt
from diptych.cli._output import make_console, print_json, report_errors

if TYPE_CHECKING:
    from diptych.retrieval._recommended import Recommendation


def encoders(
    everything: Annotated[bool, typer.Option("--all", help="List every model of fastembed.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """List the encoders: what is installed, and which to name for which need.

    Example: `diptych encoders`

    Example: `diptych encoders --all`
    """
    from diptych.retrieval._recommended import FIELDS, RECOMMENDED, installed_packages

    with report_errors():
        packages = installed_packages()
        listed = _list_all() if everything else list(RECOMMENDED)
        if as_json:
            rows = [asdict(each) for each in listed]
            print_json({"installed": packages, "encoders": rows, "fields": dict(FIELDS)})
            return
        console = make_console()
        for package, version in packages.items():
            console.print(f"{package} {version or f'is not installed: pip install {package}'}")
        for line in _align(listed):
            console.print(line)
        for field, pointer in FIELDS.items():
            console.print(f"{field} images: {pointer}")
        console.print("Give the name as --image-encoder or --text-encoder; docs/encoders.md says more.")


def _list_all() -> list[Recommendation]:
    from diptych._fastembed import FASTEMBED, list_fastembed_models
    from diptych.retrieval._items import VIEWS
    from diptych.retrieval._recommended import Recommendation

    return [
        Recommendation(
            *(view, each.description, FASTEMBED + each.name),
            *(each.dimension, each.gigabytes, each.licence),
        )
        for view in VIEWS
        for each in list_fastembed_models(view)
    ]


def _align(listed: Iterable[Recommendation]) -> list[str]:
    """Return the lines of a table; one of rich would break names that are to be copied."""
    rows = [("view", "name", "dimension", "GB", "licence", "for")]
    for each in listed:
        size = f"{each.gigabytes:g}" if each.gigabytes else "-"
        rows.append((each.view, each.name, str(each.dimension), size, each.licence or "-", each.need))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
