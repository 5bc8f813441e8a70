"""``search``, ``annotate`` and ``similar``: ask a model."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import DataWarning, InputError, with_article
from diptych.cli import _options as opt
from diptych.cli._encoders import LoadOptions
from diptych.cli._output import exit_if_unreadable, print_json, say, shorten, split_readable
from diptych.cli._run import RunOptions, option, refuse_unused

if TYPE_CHECKING:
    from diptych.retrieval import Hit, Hits
    from diptych.retrieval._encoders import Encoders

MAX_NAMED_WORDS = 10
_WEIGHT = re.compile(r"(.+):([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.DOTALL)

K = Annotated[int, option("Number of results.", "-k", min=1)]


@dataclass(frozen=True)
class QueryOptions:
    """What is added to a query, and which hits are shown."""

    offset: Annotated[int, option("Leave out this many of the best, for the next page.", min=0)] = 0
    plus: Annotated[
        list[str] | None,
        option(
            "A text or an image file to add to the query; PART:0.5 gives it a weight. May be repeated.",
            metavar="PART",
        ),
    ] = None
    minus: Annotated[
        list[str] | None, option("What to subtract from the query, as --plus.", metavar="PART")
    ] = None
    where: Annotated[
        str | None,
        option(
            "Only items with such metadata: 'year >= 2010 and tag = \"beach\"', or JSON.", metavar="FILTER"
        ),
    ] = None

    @property
    def is_composed(self) -> bool:
        """Whether something is added to the query, or subtracted from it."""
        return bool(self.plus or self.minus)

    def parse(self) -> dict[str, Any]:
        """Return the options as the library takes them: parts with the weights written behind."""
        plus, minus = ([_read_part(part) for part in parts or ()] for parts in (self.plus, self.minus))
        return {"offset": self.offset, "plus": plus, "minus": minus, "where": self.where}


@dataclass(frozen=True)
class SearchOptions(QueryOptions):
    """What queries are, what is added to them, and which hits are shown."""

    min_probability: Annotated[
        float | None, option("Leave out what is less likely to be right.", min=0, max=1)
    ] = None
    features: Annotated[Path | None, option("File of features to search with, one query per row.")] = None
    weighting: Annotated[
        str | None,
        option("To compare, of a fusion: a part alone that diptych info names, or uncorrected."),
    ] = None

    def parse(self) -> dict[str, Any]:
        """Return the options as the library takes them."""
        return {**super().parse(), "min_probability": self.min_probability, "weighting": self.weighting}

    def read_queries(self, inputs: list[str] | None, name: str) -> Any:
        """Return the queries: ``inputs``, or features; ``name`` is that of their view."""
        from diptych.data import open_features

        if bool(inputs) == (self.features is not None):
            raise InputError(f"give {with_article(name)} to search with, or --features, one of the two.")
        return list(inputs or ()) if self.features is None else open_features(self.features)


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
    if not options.is_composed:
        refuse_unused(encoders, ("image_encoder", "recipe", "weights"), "without --plus or --minus")
        if options.features is not None:
            refuse_unused(encoders, ("text_encoder", "device"), "on features")
    retriever = encoders.load(model)
    inputs = options.read_queries(queries, retriever.views.text)
    _show_hits(queries, retriever.search(inputs, k, **options.parse()), options, run)


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
    if not options.is_composed:
        refuse_unused(encoders, ("text_encoder",), "without --plus or --minus")
        if options.features is not None:
            refuse_unused(encoders, ("image_encoder", "recipe", "weights"), "on features")
    retriever = encoders.load(model)
    inputs = options.read_queries(images, retriever.views.image)
    unreadable: dict[str, str] = {}
    if options.features is None and len(inputs) > 1:
        images, unreadable = split_readable(inputs, retriever.encoders)
        inputs = images
    _show_hits(images, retriever.annotate(inputs, k, **options.parse()), options, run)
    exit_if_unreadable(unreadable)


def similar(
    model: opt.Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A text, or an image file.")],
    image: Annotated[
        bool, option("QUERY is of the first view; only needed where that is no file.", "--image")
    ] = False,
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
    if not options.is_composed and is_image:
        refuse_unused(encoders, ("text_encoder",), f"on {with_article(retriever.views.image)}")
    elif not options.is_composed:
        refuse_unused(encoders, ("image_encoder", "recipe", "weights"), "on a text")
    image_or_text: dict[str, Any] = {"image" if is_image else "text": query}
    _show_hits([query], [retriever.similar(**image_or_text, k=k, **options.parse())], options, run)


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
    for name, hits in zip(names, results, strict=True):
        if words := hits.ignored_words:
            query = f" of {name!r}" if len(names) > 1 else ""
            more = f" and {len(words) - MAX_NAMED_WORDS} more" if len(words) > MAX_NAMED_WORDS else ""
            note = f"ignored words{query} the model does not know: {', '.join(words[:MAX_NAMED_WORDS])}{more}"
            warnings.warn(note, DataWarning, stacklevel=1)  # printed as a note
    if run.as_json:
        print_json({"answers": [_to_json(*answer) for answer in zip(names, results, strict=True)]})
    elif not run.quiet:
        for name, hits in zip(names, results, strict=True):
            _print_hits(name, hits, options)


def _to_json(name: str, hits: Hits) -> dict[str, Any]:
    words = list(hits.ignored_words)
    return {"query": name, "hits": [hit.to_json() for hit in hits], "ignored_words": words, "more": hits.more}


def _print_hits(name: str, hits: Hits, options: QueryOptions) -> None:
    """Print a query and a table of its hits, by hand: a search should not wait for the import of rich."""
    columns = {"score": [f"{hit.score:.3f}" for hit in hits]}
    probabilities = [hit.probability for hit in hits if hit.probability is not None]
    if probabilities:
        columns["probability"] = [f"{probability:.3f}" for probability in probabilities]
    cells = [[title, *column] for title, column in columns.items()]
    cells = [[f"{cell:>{max(map(len, column))}}" for cell in column] for column in cells]
    say(name)
    for *row, label in zip(*cells, ["item", *map(_label, hits)], strict=True):
        say("  ".join([*row, label]))
    if not hits:
        say(_explain_none(options))


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


def _label(hit: Hit) -> str:
    return hit.text or (hit.path and shorten(hit.path)) or hit.id
