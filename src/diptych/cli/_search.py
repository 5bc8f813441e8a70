"""``search``, ``annotate`` and ``similar``: ask a model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError, with_article
from diptych.cli import _options as opt
from diptych.cli._encoders import LoadOptions
from diptych.cli._run import RunOptions, align, exit_if_unreadable, label, option, say, split_readable

if TYPE_CHECKING:
    from diptych.retrieval import Hits
    from diptych.retrieval._encoders import Encoders
    from diptych.retrieval._items import View

MAX_NAMED_WORDS = 10
_WEIGHT = re.compile(r"(.+):([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.DOTALL)

K = Annotated[int, typer.Option("-k", help="Number of results.", min=1)]


@dataclass(frozen=True)
class QueryOptions:
    """What is added to a query, and which hits are shown."""

    offset: int = option(0, "Leave out this many of the best, for the next page.", min=0)
    plus: list[str] | None = option(
        None,
        "A text or an image file to add to the query; PART:0.5 gives it a weight. May be repeated.",
        metavar="PART",
    )
    minus: list[str] | None = option(None, "What to subtract from the query, as --plus.", metavar="PART")
    where: opt.Where = None

    @property
    def is_composed(self) -> bool:
        """Whether something is added to the query, or subtracted from it."""
        return bool(self.plus or self.minus)

    def parse(self) -> dict[str, Any]:
        """Return the options as the library takes them: parts with the weights written behind."""
        read = {name: value for name, value in vars(self).items() if name != "features"}
        return read | {name: list(map(_read_part, read[name] or ())) for name in ("plus", "minus")}


@dataclass(frozen=True)
class SearchOptions(QueryOptions):
    """What queries are, what is added to them, and which hits are shown."""

    min_probability: float | None = option(None, "Leave out what is less likely to be right.", min=0, max=1)
    features: Path | None = option(None, "File of features to search with, one query per row.")
    weighting: str | None = option(
        None, "To compare, of a fusion: a part alone that diptych info names, or uncorrected."
    )


def search(
    model: opt.Model,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to search for.")
    ] = None,
    k: K = 10,
    *,
    options: SearchOptions,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Find images for texts, with scores and, if measured, probabilities.

    Example: `diptych search model "a dog in the snow" -k 5`

    Example: `diptych search model "a dog" --plus snow --plus photo.jpg --minus people:0.5`

    Example: `diptych search model "a dog" --where 'year >= 2010' --offset 10 --min-probability 0.2`
    """
    _ask("text", model, queries, k, options, encoders, run)


def annotate(
    model: opt.Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE]...", help="Image files, or what the model's encoder takes."),
    ] = None,
    k: K = 5,
    *,
    options: SearchOptions,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Find texts for images, with scores and, if measured, probabilities.

    Example: `diptych annotate model photo.jpg -k 3`

    Example: `diptych annotate model photo.jpg --plus "at night" --minus other.jpg:0.5`
    """
    _ask("image", model, images, k, options, encoders, run)


def similar(
    model: opt.Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A text, or an image file.")],
    image: bool = option(False, "QUERY is of the first view; only needed where that is no file."),
    k: K = 10,
    *,
    options: QueryOptions,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Find images similar to an image, or texts similar to a text.

    Example: `diptych similar model photo.jpg`

    Example: `diptych similar model photo.jpg --plus snow`
    """
    retriever = encoders.load(model)
    is_image = image or _is_file(query, retriever.encoders)
    view: View = "image" if is_image else "text"
    if not options.is_composed:
        other_view: View = "text" if is_image else "image"
        encoders.refuse(other_view, f"on {with_article(retriever.views.of(view))}")
    image_or_text: dict[str, Any] = {view: query}
    _show_hits([query], [retriever.similar(**image_or_text, k=k, **options.parse())], options, run)


def _ask(
    view: View,
    model: Path,
    names: list[str] | None,
    k: int,
    options: SearchOptions,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Search with texts, images or features, and show the hits."""
    if not options.is_composed:
        encoders.refuse("text" if view == "image" else "image", "without --plus or --minus")
        if options.features is not None:
            encoders.refuse(view, "on features")
    retriever = encoders.load(model)
    if bool(names) == (options.features is not None):
        name = with_article(retriever.views.of(view))
        raise InputError(f"give {name} to search with, or --features, one of the two.")
    unreadable: dict[str, str] = {}
    if view == "image" and names and len(names) > 1:
        names, unreadable = split_readable(names, retriever.encoders)
    queries: Any = names
    if options.features is not None:
        from diptych.data import open_features

        queries = open_features(options.features)
    find: Any = retriever.search if view == "text" else retriever.annotate
    _show_hits(names, find(queries, k, **options.parse()), options, run)
    exit_if_unreadable(unreadable)


def _is_file(query: str, encoders: Encoders) -> bool:
    """Return whether a query names a file: one that exists, or one that is named as an image."""
    from diptych.encoders._decoding import EXTENSIONS

    if encoders.inputs == "texts":
        return False
    is_named = encoders.inputs == "images" and os.path.splitext(query)[1].lower() in EXTENSIONS
    return is_named or os.path.isfile(query)


def _read_part(part: str) -> Any:
    match = _WEIGHT.fullmatch(part)
    return part if match is None else (match[1], float(match[2]))


def _show_hits(
    inputs: Sequence[str] | None, results: Sequence[Hits], options: QueryOptions, run: RunOptions
) -> None:
    names = list(inputs) if inputs else [f"row {i}" for i in range(len(results))]
    answers = list(zip(names, results, strict=True))
    for name, hits in answers:
        if words := hits.ignored_words:
            query = f" of {name!r}" if len(names) > 1 else ""
            more = f" and {len(words) - MAX_NAMED_WORDS} more" if len(words) > MAX_NAMED_WORDS else ""
            listed = ", ".join(words[:MAX_NAMED_WORDS])
            say(f"note: ignored words{query} the model does not know: {listed}{more}", error=True)
    lines = (line for answer in answers for line in _describe_hits(*answer, options))
    run.show({"answers": [_to_json(*answer) for answer in answers]}, lines)


def _to_json(name: str, hits: Hits) -> dict[str, Any]:
    words = list(hits.ignored_words)
    return {"query": name, "hits": [hit.to_json() for hit in hits], "ignored_words": words, "more": hits.more}


def _describe_hits(name: str, hits: Hits, options: QueryOptions) -> Iterator[str]:
    """Return a query and a table of its hits."""
    likely = any(hit.probability is not None for hit in hits)
    rows = [("score", "probability", "item") if likely else ("score", "item")]
    for hit in hits:
        probability = () if hit.probability is None else (f"{hit.probability:.3f}",)
        rows.append((f"{hit.score:.3f}", *probability, label(hit)))
    yield name
    yield from align(rows, slice(0, -1))
    if not hits:
        yield _explain_none(options)


def _explain_none(options: QueryOptions) -> str:
    """Return why there are no hits."""
    least = getattr(options, "min_probability", None)
    if options.offset:
        return f"there are no more than {options.offset} hits"
    if least is not None:
        return f"no hit has a probability of {least:g} or more"
    if options.where is not None:
        return "no item has such metadata"
    return "the model has no items; add some with diptych add"
