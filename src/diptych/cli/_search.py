"""``search``, ``annotate``, ``similar``, ``info``, ``add``, ``remove``, ``export``: use or change a model."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import DataWarning, InputError, ViewNames, count, plural, with_article
from diptych.cli import _options as opt
from diptych.cli._options import (
    K,
    TableOptions,
    make_image_encoder,
    make_text_encoder,
    open_data,
    read_metadata_columns,
    refuse_unused,
)
from diptych.cli._output import (
    describe_correlations,
    describe_model,
    exit_if_unreadable,
    limit_threads,
    make_console,
    print_json,
    recall_table,
    report_errors,
    split_readable,
)

if TYPE_CHECKING:
    from diptych.data import PairedDataset, PairedViews
    from diptych.image._encoders import Inputs
    from diptych.retrieval import Duplicates, Hit, Hits, Item, Pack, Retriever

MAX_NAMED_WORDS = 10

Features = Annotated[Path | None, typer.Option(help="File of features to search with, one query per row.")]
Weighting = Annotated[
    str | None,
    typer.Option(
        help="Another weighting, to compare: asymmetric, search-generation, symmetric or none; of a fusion, "
        "a part that diptych info names, or uncorrected."
    ),
]
Plus = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART",
        help="A text or an image file to add to the query; PART:0.5 gives it a weight. May be repeated.",
    ),
]
Minus = Annotated[
    list[str] | None, typer.Option(metavar="PART", help="What to subtract from the query, as --plus.")
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER",
        help="Only items with such metadata: 'year >= 2010 and tag = \"beach\"', or JSON.",
    ),
]
Offset = Annotated[int, typer.Option(min=0, help="Leave out this many of the best, for the next page.")]
MinProbability = Annotated[
    float | None, typer.Option(min=0, max=1, help="Leave out what is less likely to be right.")
]
_WEIGHT = re.compile(r"(.+):([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.DOTALL)


def search(
    ctx: typer.Context,
    model: opt.Model,
    queries: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to search for.")
    ] = None,
    k: K = 10,
    offset: Offset = 0,
    plus: Plus = None,
    minus: Minus = None,
    where: Where = None,
    min_probability: MinProbability = None,
    features: Features = None,
    weighting: Weighting = None,
    text_encoder: opt.TextEncoderNames = None,
    image_encoder: opt.ImageEncoderNames = None,
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Find images for texts, with scores and, where they are known, probabilities.

    Example: `diptych search model "a dog in the snow" -k 5`

    Example: `diptych search model "a dog" --plus snow --plus photo.jpg --minus people:0.5`

    Example: `diptych search model "a dog" --where 'year >= 2010' --offset 10 --min-probability 0.2`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        if features is not None and not (plus or minus):
            refuse_unused(ctx, ("text_encoder", "device"), "on features")
        if not (plus or minus):
            refuse_unused(ctx, ("image_encoder",), "without --plus or --minus")
        encoders = make_image_encoder(image_encoder), make_text_encoder(text_encoder, device)
        retriever = Retriever.load(model, *encoders, mmap=True)
        inputs = _read_queries(queries, features, with_article(retriever.views.text))
        options = _make_options(offset, plus, minus, where, min_probability=min_probability)
        hits = retriever.search(inputs, k, weighting=weighting, **options)
        _print_hits(queries, hits, quiet, as_json, options)


def annotate(
    ctx: typer.Context,
    model: opt.Model,
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE]...", help="Image files, or what the model's encoder takes."),
    ] = None,
    k: K = 5,
    packs: Annotated[
        bool, typer.Option("--packs", help="Rank all captions of an image as one result.")
    ] = False,
    offset: Offset = 0,
    plus: Plus = None,
    minus: Minus = None,
    where: Where = None,
    min_probability: MinProbability = None,
    features: Features = None,
    weighting: Weighting = None,
    image_encoder: opt.ImageEncoderNames = None,
    recipe: opt.Recipe = None,
    weights: opt.Weights = None,
    text_encoder: opt.TextEncoderNames = None,
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Find texts for images, with scores and, where they are known, probabilities.

    Example: `diptych annotate model photo.jpg -k 3`

    Example: `diptych annotate model photo.jpg --plus "at night" --minus other.jpg:0.5`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        if features is not None and not (plus or minus):
            refuse_unused(ctx, ("image_encoder", "recipe", "weights"), "on features")
        if not (plus or minus):
            refuse_unused(ctx, ("text_encoder",), "without --plus or --minus")
        encoders = make_image_encoder(image_encoder, recipe, weights), make_text_encoder(text_encoder, device)
        retriever = Retriever.load(model, *encoders, mmap=True, device=device)
        inputs = _read_queries(images, features, with_article(retriever.views.image))
        unreadable: dict[str, str] = {}
        if features is None and len(inputs) > 1:
            inputs, unreadable = split_readable(inputs, retriever.encoders)
            if not inputs:
                raise InputError(" ".join(unreadable.values()))
            images = inputs
        options = _make_options(offset, plus, minus, where, min_probability=min_probability)
        hits = retriever.annotate(inputs, k, packs=packs, weighting=weighting, **options)
        _print_hits(images, hits, quiet, as_json, options)
        exit_if_unreadable(unreadable)


def similar(
    ctx: typer.Context,
    model: opt.Model,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A text, or an image file with --image.")],
    image: Annotated[bool, typer.Option("--image", help="QUERY is an image file.")] = False,
    k: K = 10,
    offset: Offset = 0,
    plus: Plus = None,
    minus: Minus = None,
    where: Where = None,
    image_encoder: opt.ImageEncoderNames = None,
    recipe: opt.Recipe = None,
    weights: opt.Weights = None,
    text_encoder: opt.TextEncoderNames = None,
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Find images similar to an image, or texts similar to a text.

    Example: `diptych similar model photo.jpg --image`

    Example: `diptych similar model photo.jpg --image --plus snow`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        if not (plus or minus):
            if image:
                refuse_unused(ctx, ("text_encoder",), "with --image")
            else:
                refuse_unused(ctx, ("image_encoder", "recipe", "weights"), "without --image")
        encoder = make_image_encoder(image_encoder, recipe, weights)
        retriever = Retriever.load(model, encoder, make_text_encoder(text_encoder, device), mmap=True)
        options = _make_options(offset, plus, minus, where)
        image_or_text: dict[str, Any] = {"image" if image else "text": query}
        hits = retriever.similar(**image_or_text, k=k, **options)
        _print_hits([query], [hits], quiet, as_json, options)


def duplicates(
    model: opt.Model,
    view: Annotated[str, typer.Option(help="What to compare: image or text.")] = "image",
    threshold: Annotated[
        float | None,
        typer.Option(help="Cosine from which two items are near-identical; by default chosen from the data."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file with small copies of the images.")
    ] = None,
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """List groups of near-identical images or texts.

    Example: `diptych duplicates model --out duplicates.html`
    """
    from diptych._threads import progress_bar
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        retriever = Retriever.load(model, mmap=True)
        with progress_bar("finding duplicates", False if quiet or as_json else None):
            groups = retriever.duplicates(view, threshold)  # type: ignore[arg-type]
        if out is not None:
            groups.write_sheet(out)
        if as_json:
            print_json(groups.to_json())
        elif not quiet:
            _print_duplicates(groups, chosen=threshold is None)
            if out is not None:
                print(f"wrote {out}")


def info(
    model: opt.Model, threads: opt.Threads = None, quiet: opt.Quiet = False, as_json: opt.AsJson = False
) -> None:
    """Show what a model is, what it was fitted on, and how good it is.

    Example: `diptych info model`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        content = Retriever.load(model, mmap=True).info()
        if as_json:
            print_json(content)
        elif not quiet:
            _print_info(content, model)


def add(
    ctx: typer.Context,
    model: opt.Model,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Image files, pairs, or two files of features."),
    ],
    refit: Annotated[bool, typer.Option("--refit", help="Fit again, with the pairs added.")] = False,
    pairs: opt.Pairs = None,
    images: opt.ImagesFolder = None,
    image_column: opt.ImageColumn = None,
    caption_column: opt.CaptionColumn = None,
    encoding: opt.Encoding = None,
    metadata: opt.Metadata = None,
    image_encoder: opt.ImageEncoderNames = None,
    recipe: opt.Recipe = None,
    weights: opt.Weights = None,
    text_encoder: opt.TextEncoderNames = None,
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Add images or pairs to a model. It learns from new pairs only with --refit.

    Example: `diptych add model new-photo.jpg`

    Example: `diptych add model new-captions.csv --images photos --refit`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        retriever = Retriever.load(
            model,
            make_image_encoder(image_encoder, recipe, weights),
            make_text_encoder(text_encoder, device),
            device=device,
        )
        name = retriever.views.image
        if _are_items(sources, retriever.encoders.inputs):
            table_options = ("image_column", "caption_column", "encoding", "metadata")
            unused = ("pairs", "images", *table_options, "text_encoder")
            refuse_unused(ctx, unused, f"on {plural(name)}, which have no {plural(retriever.views.caption)}")
            if refit:
                raise InputError(
                    f"--refit learns from pairs, and {plural(name)} alone have none; leave it out."
                )
        columns = read_metadata_columns(metadata)
        table = TableOptions(image_column, caption_column, encoding, retriever.views, columns)
        ids, unreadable = _add(retriever, sources, pairs, images, table)
        if refit:
            retriever.refit()
        retriever.save(model)
        content = {"model": str(model), "added": ids, "refitted": refit, "unreadable": unreadable or None}
        _print_change(content, f"added {count(len(ids), 'item')}", quiet, as_json)
        exit_if_unreadable(unreadable)


def remove(
    model: opt.Model,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of images or captions, or paths of images.")
    ],
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Remove items from a model; an image is removed with its captions.

    Example: `diptych remove model new-photo.jpg`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        retriever = Retriever.load(model)
        removed = retriever.remove(_find_ids(retriever.store.items(), ids))
        retriever.save(model)
        content = {"model": str(model), "removed": removed}
        _print_change(content, f"removed {count(removed, 'item')}", quiet, as_json)


def export(
    model: opt.Model,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="ONNX file to write.")],
    view: Annotated[str, typer.Option(help="Whose features the file takes: image or text.")] = "text",
    task: Annotated[str, typer.Option(help="Whose vectors it returns: search or annotate.")] = "search",
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write an ONNX file that turns features of one view into vectors, for clients without Python.

    Example: `diptych export model --view text --task search --out projection.onnx`
    """
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        Retriever.load(model, mmap=True).export_onnx(out, view=view, task=task)  # type: ignore[arg-type]
        if as_json:
            print_json({"model": str(model), "view": view, "task": task, "out": str(out)})
        elif not quiet:
            make_console().print(f"wrote {out}")


def _read_queries(inputs: Sequence[Any] | None, features: Path | None, what: str) -> Any:
    if bool(inputs) == (features is not None):
        raise InputError(f"give {what} to search with, or --features, one of the two.")
    from diptych.data import open_features

    return open_features(features) if features is not None else list(inputs or ())


def _make_options(
    offset: int, plus: list[str] | None, minus: list[str] | None, where: str | None, **more: Any
) -> dict[str, Any]:
    """Return the options of a search as the library takes them: parts with the weights written behind."""

    def read(part: str) -> Any:
        match = _WEIGHT.fullmatch(part)
        return part if match is None else (match[1], float(match[2]))

    parts = {"plus": list(map(read, plus or ())), "minus": list(map(read, minus or ()))}
    return {"offset": offset, **parts, "where": where, **more}


def _print_hits(
    inputs: Sequence[Any] | None,
    results: Sequence[Any],
    quiet: bool,
    as_json: bool,
    options: dict[str, Any],
) -> None:
    from diptych.retrieval import Hits

    names = [str(name) for name in inputs] if inputs else [f"row {i}" for i in range(len(results))]
    for name, hits in zip(names, results, strict=True):
        if isinstance(hits, Hits) and hits.ignored_words:
            query = f" of {name!r}" if len(names) > 1 else ""
            words = hits.ignored_words
            more = f" and {len(words) - MAX_NAMED_WORDS} more" if len(words) > MAX_NAMED_WORDS else ""
            note = f"ignored words{query} the model does not know: {', '.join(words[:MAX_NAMED_WORDS])}{more}"
            warnings.warn(note, DataWarning, stacklevel=1)  # printed as a note
    if as_json:
        answers = [
            {"query": name, "hits": [hit.to_json() for hit in hits]}
            | (_describe_hits(hits) if isinstance(hits, Hits) else {})
            for name, hits in zip(names, results, strict=True)
        ]
        print_json({"answers": answers})
        return
    if quiet:
        return
    for name, hits in zip(names, results, strict=True):
        if isinstance(hits, Hits) and hits.no_match:
            name += "\nno good match: probably none of the items fits"
        columns = {"score": [f"{hit.score:.3f}" for hit in hits]}
        known = [getattr(hit, "probability", None) for hit in hits]
        if hits and None not in known:
            columns["probability"] = [f"{probability:.3f}" for probability in known]
        cells = [[title, *own] for title, own in columns.items()]
        cells = [[f"{cell:>{max(map(len, own))}}" for cell in own] for own in cells]
        # By hand: a search should not wait for the import of rich.
        print(name)
        for *row, label in zip(*cells, ["item", *map(_label, hits)], strict=True):
            print("  ".join([*row, label]))
        if not hits:
            print(_explain_none(options))


def _describe_hits(hits: Hits) -> dict[str, Any]:
    """Return what is known of a result as a whole, for JSON."""
    about: dict[str, Any] = {"ignored_words": list(hits.ignored_words), "more": hits.more}
    if hits.match_probability is not None:
        about |= {"no_match": hits.no_match, "match_probability": round(hits.match_probability, 6)}
    return about


def _explain_none(options: dict[str, Any]) -> str:
    """Return why there are no hits."""
    if options["offset"]:
        return f"there are no more than {options['offset']} hits"
    if options.get("min_probability") is not None:
        return f"no hit has a probability of {options['min_probability']:g} or more"
    if options["where"] is not None:
        return "no item has such metadata"
    return "the model has no items; add some with diptych add"


def _print_duplicates(groups: Duplicates, chosen: bool) -> None:
    for number, group in enumerate(groups, 1):
        print(f"{number}: {count(len(group.items), 'item')}, similarity at least {group.similarity:.4f}")
        for item in group.items:
            name = item.text or (item.path and _shorten(item.path))
            print(f"  {item.id}" if name in (None, item.id) else f"  {item.id}: {name}")
    print(groups.summary())
    if chosen:
        print("The threshold was chosen from the data; set another one with --threshold.")


def _label(hit: Hit | Pack) -> str:
    from diptych.retrieval import Pack

    if isinstance(hit, Pack):
        return f"{hit.image}: {hit.best.text or hit.best.id} (+{len(hit.captions) - 1})"
    return hit.text or (hit.path and _shorten(hit.path)) or hit.id


def _shorten(path: str) -> str:
    """Return a path below the working folder as relative to it."""
    here = os.path.join(os.path.realpath("."), "")
    return path[len(here) :] if path.startswith(here) else path


def _print_info(content: dict[str, Any], model: Path) -> None:
    from diptych.report._card import describe_probabilities

    console, facts = make_console(), content["facts"]
    date = f"fitted on {facts['date']} with " if facts.get("date") else ""
    console.print(f"{model}: {date}diptych {content['library']}")
    names = ViewNames(*content["views"])
    for name, encoder in zip(names, content["encoders"].values(), strict=True):
        width = count(encoder["dimension"], "feature")
        console.print(f"{plural(name)}: {encoder['name'] or 'features'}, {width}")
    sizes = ", ".join(
        f"{split} {count(n, names.image)} and {count(m, names.caption)}"
        for split, (n, m) in facts["pairs"].items()
    )
    console.print(f"pairs: {sizes}")
    if "refitted" in facts:
        console.print(
            f"refitted on {count(facts['refitted']['pairs'], 'pair')} ({facts['refitted']['before']} before)"
        )
    for line in (*describe_model(content), *describe_correlations(content)):
        console.print(line)
    items = " and ".join(count(n, names.of(view)) for view, n in content["items"].items())
    console.print(f"index: {content['index']['kind']}, {content['index']['dtype']}; {items}")
    if "quality" in facts:
        console.print(facts["quality"])
    console.print(describe_probabilities(content["calibration"]))
    for part, scores in facts.get("metrics", {}).items():
        console.print(recall_table(part, scores))


def _are_items(sources: list[str], inputs: Inputs) -> bool:
    """Return whether these are items of the first view, rather than pairs or features."""
    from diptych.image._decoding import EXTENSIONS

    suffixes = [Path(source).suffix.lower() for source in sources]
    if inputs == "images":
        return all(suffix in EXTENSIONS for suffix in suffixes)
    return len(sources) > 1 or not _are_pairs(sources[0])


def _are_pairs(source: str) -> bool:
    from diptych.data._readers import PAIRS_SUFFIXES

    return os.path.isdir(source) or Path(source).suffix.lower() in PAIRS_SUFFIXES


def _add(
    retriever: Retriever,
    sources: list[str],
    pairs: Path | None,
    images: Path | None,
    table: opt.TableOptions,
) -> tuple[list[str], dict[str, str]]:
    """Add items, and return their ids and the images that cannot be read, with the reason."""
    from diptych.data import PairedDataset

    encoders, name = retriever.encoders, retriever.views.image
    if _are_items(sources, encoders.inputs):
        readable, unreadable = split_readable(sources, encoders)
        if not readable:
            raise InputError(" ".join(unreadable.values()))
        return retriever.add(readable), unreadable
    if len(sources) > 2:
        raise InputError(
            f"{sources[0]} is not {with_article(name)} file; give {name} files, or pairs, or two files of "
            "features, not a mixture."
        )
    if len(sources) == 1 and not _are_pairs(sources[0]) and encoders.image is None:
        raise encoders.missing("image")
    source, *texts = map(Path, sources)
    data = open_data(source, texts[0] if texts else None, pairs, images, table)
    if not isinstance(data, PairedDataset) or encoders.inputs == "texts":
        return retriever.add(**_make_arguments(data)), {}
    if data.paths is None:
        raise InputError(
            f"{source} does not say where its {plural(name)} are; give their folder as --images."
        )
    readable, unreadable = split_readable(map(str, data.paths), encoders)
    if not readable:
        raise InputError(f"none of {count(data.n_images, name)} can be read; see diptych check.")
    if unreadable:
        data = data.select([row for row, path in enumerate(data.paths) if str(path) not in unreadable])
    return retriever.add(**_make_arguments(data)), unreadable


def _make_arguments(data: PairedDataset | PairedViews) -> dict[str, Any]:
    """Return the arguments of ``Retriever.add`` for pairs or features."""
    from diptych.data import PairedDataset

    dataset = data if isinstance(data, PairedDataset) else data.dataset
    paths = None if dataset.paths is None else [str(path) for path in dataset.paths]
    arguments: dict[str, Any] = {
        "pairing": dataset.pairing,
        "ids": dataset.image_ids,
        "caption_ids": dataset.caption_ids,
        "metadata": dataset.metadata,
    }
    if isinstance(data, PairedDataset):
        return arguments | {"images": paths or list(dataset.image_ids), "captions": dataset.captions}
    texts = [caption or None for caption in dataset.captions]
    return arguments | {"images": data.x, "captions": data.y, "texts": texts, "paths": paths}


def _find_ids(items: Iterable[Item], names: list[str]) -> list[str]:
    """Return the ids of items that are named by id, or by the path that search prints."""
    known, by_path = set[str](), dict[str, list[str]]()
    for item in items:
        known.add(item.id)
        if item.path is not None:
            by_path.setdefault(os.path.abspath(item.path), []).append(item.id)
    ids = []
    for name in names:
        matches = [name] if name in known else by_path.get(os.path.abspath(name), [])
        if not matches:
            raise InputError(f"there is no item {name!r}, by id or by path.")
        if len(matches) > 1:
            raise InputError(
                f"{name} is the path of {count(len(matches), 'item')}; give an id: {', '.join(matches)}."
            )
        ids += matches
    return ids


def _print_change(content: dict[str, Any], summary: str, quiet: bool, as_json: bool) -> None:
    if as_json:
        print_json(content)
    elif not quiet:
        make_console().print(f"{summary}; wrote {content['model']}")
