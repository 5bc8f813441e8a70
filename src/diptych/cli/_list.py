"""``list``: show which items a model has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from diptych._checks import count
from diptych.cli import _options as opt
from diptych.cli._run import RunOptions, label, option

if TYPE_CHECKING:
    from diptych.retrieval import Item


def list(
    model: opt.Model,
    where: opt.Where = None,
    order_by: str | None = option(None, "Metadata key to order by; -KEY: the greatest first.", metavar="KEY"),
    view: str | None = option(None, "Only items of one view: image or text."),
    limit: int = option(20, "Number of items.", "-k", min=1),
    offset: int = option(0, "Leave out this many, for the next page.", min=0),
    *,
    run: RunOptions,
) -> None:
    """List the items of a model, filtered, in order of addition or of a metadata value.

    Example: `diptych list model --view image --where 'year >= 2010' --order-by=-date`
    """
    from diptych.retrieval._inputs import read_listing, read_where

    searcher = opt.load(model).searcher
    listing = read_listing(view, order_by, offset, limit)  # type: ignore[arg-type]
    items, total = searcher.list_items(listing, read_where(where))
    more = offset + len(items) < total
    content = {"model": str(model), "total": total, "more": more, "items": [item.to_json() for item in items]}
    noun = "item" if view is None else searcher.encoders.views.of(listing.view or "image")
    run.show(content, _describe(items, f"{len(items):,} of {count(total, noun)}"))


def _describe(items: Sequence[Item], summary: str) -> Iterator[str]:
    width = max((len(item.id) for item in items), default=0)
    for item in items:
        about = ", ".join(f"{name} = {value}" for name, value in item.metadata.items())
        content = "" if label(item) == item.id else label(item)
        parts = (f"{item.id:{width}}", content, about)
        yield "  ".join(filter(None, parts)).rstrip()
    yield summary
