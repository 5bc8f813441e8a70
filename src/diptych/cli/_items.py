"""Work with a fitted model: its items and pairs, what is known of it, copies of it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError, ViewNames, count, plural, with_article
from diptych.cli import _options as opt
from diptych.cli._encoders import LoadOptions
from diptych.cli._options import MetadataOptions
from diptych.cli._run import (
    RECALLS,
    RunOptions,
    align,
    exit_if_unreadable,
    label,
    name_gallery,
    option,
    refuse_unused,
    split_readable,
)

if TYPE_CHECKING:
    from diptych.data import PairedDataset, PairedViews
    from diptych.encoders._image import Inputs
    from diptych.retrieval import Duplicates, Item, Retriever

_CORRELATIONS = {
    "correlations": "Σ",
    "train_correlations": "training",
    "validation_correlations": "validation",
}

Repository = Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hub: user/name.")]


def add(
    model: opt.Model,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...", help="Image files, folders of photos, a table, or two files of features."
        ),
    ],
    refit: bool = option(False, "Fit again, with the pairs added."),
    *,
    table: MetadataOptions,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Add images or pairs to a model. It learns from new pairs only with --refit.

    Of folders of photos, which the model remembers, and of tables, what is there unchanged is skipped. A
    table without captions gives metadata.

    Example: `diptych add model new-photo.jpg`

    Example: `diptych add library more-photos`

    Example: `diptych add model new-captions.csv --images photos --refit`
    """
    from diptych.cli._index import show_sync, update

    retriever = encoders.load(model, mmap=False)
    names, inputs = retriever.views, retriever.encoders.inputs
    are_folders = inputs == "images" and not retriever.store.address and _are_photo_folders(sources)
    are_items = _are_items(sources, inputs)
    if are_folders or are_items:
        reason = f"on {plural(names.image)}, which have no {plural(names.caption)}"
        reason = "on folders of photos" if are_folders else reason
        refuse_unused(table, vars(table), reason)
    if are_folders:
        report = update(retriever, list(map(Path, sources)), run)
        if refit:
            retriever.refit()
        show_sync(report, model, run)
        return
    unreadable, updated = dict[str, str](), list[str]()
    if are_items:
        encoders.refuse("text", reason)
        if refit:
            raise InputError(
                f"--refit learns from pairs, and {plural(names.image)} alone have none; leave it out."
            )
        readable, unreadable = split_readable(sources, retriever.encoders)
        ids = retriever.add(readable)
    else:
        if len(sources) > 2:
            raise InputError(
                f"{sources[0]} is not {with_article(names.image)} file; give {names.image} files, or pairs, "
                "or two files of features, not a mixture."
            )
        if len(sources) == 1 and not _are_pairs(sources[0]) and retriever.encoders.image is None:
            raise retriever.encoders.missing("image")
        source, *texts = map(Path, sources)
        data = table.open(source, texts[0] if texts else None, names, needs_captions=False)
        ids, updated, unreadable = _add_data(retriever, data, source)
    if refit:
        retriever.refit()
    retriever.save(model)
    content = {"model": str(model), "added": ids, "updated": updated, "refitted": refit}
    said = f", updated {count(len(updated), 'item')}" if updated else ""
    line = f"added {count(len(ids), 'item')}{said}; wrote {model}"
    run.show({**content, "unreadable": unreadable or None}, [line])
    exit_if_unreadable(unreadable)


def _add_data(
    retriever: Retriever, data: PairedDataset | PairedViews, source: Path
) -> tuple[list[str], list[str], dict[str, str]]:
    """Add pairs or features; return the ids of new items and of changed ones, and what cannot be read."""
    from diptych.data import PairedDataset
    from diptych.retrieval._merging import merge_pairs

    if not isinstance(data, PairedDataset):
        return retriever.add(**_make_arguments(data)), [], {}
    updated, data = merge_pairs(retriever, data)
    unreadable: dict[str, str] = {}
    if data.n_images and retriever.encoders.inputs != "texts":
        if data.paths is None:
            images = plural(retriever.views.image)
            raise InputError(f"{source} does not say where its {images} are; give their folder as --images.")
        _, unreadable = split_readable(map(str, data.paths), retriever.encoders)
        if unreadable:
            data = data.select([i for i, path in enumerate(data.paths) if str(path) not in unreadable])
    return retriever.add(**_make_arguments(data)) if data.n_images else [], updated, unreadable


def learn(
    model: opt.Model,
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="What was searched for.")] = None,
    right: list[str] | None = option(None, "Id or path of an image that is right; repeat it for several."),
    refit: bool = option(False, "Fit again, with all pairs since the last fit."),
    *,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Confirm which images a text should find. The model learns from it with --refit.

    Example: `diptych learn library "a boat at night" --right harbour/1.jpg --right harbour/7.jpg`

    Example: `diptych learn library --refit`
    """
    if (text is None) != (not right):
        raise InputError("TEXT and --right belong together; give both.")
    if text is None and not refit:
        raise InputError("there is nothing to learn; give TEXT and --right, or --refit.")
    retriever = encoders.load(model, mmap=False)
    ids = (
        [] if text is None else retriever.learn(text, _find_ids(retriever.store.items("image"), right or []))
    )
    lines = [f"learned {count(len(ids), 'pair')}; wrote {model}"] if ids else []
    if refit:
        retriever.refit()
        pairs = retriever.fitted.facts["refitted"]
        lines.append(f"refitted on {count(pairs['pairs'], 'pair')} ({pairs['before']} before)")
    run.show({"model": str(model), "learned": ids, "refitted": refit}, lines)


def remove(
    model: opt.Model,
    ids: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Ids of images or captions, or paths of images.")
    ],
    *,
    run: RunOptions,
) -> None:
    """Remove items from a model; an image is removed with its captions.

    Example: `diptych remove model new-photo.jpg`
    """
    retriever = opt.load(model, mmap=False)
    removed = retriever.remove(_find_ids(retriever.store.items(), ids))
    content = {"model": str(model), "removed": removed}
    run.show(content, [f"removed {count(removed, 'item')}; wrote {model}"])


def duplicates(
    model: opt.Model,
    view: str = option("image", "What to compare: image or text."),
    threshold: float | None = option(
        None, "Cosine from which two items are near-identical; by default chosen from the data."
    ),
    out: Path | None = option(None, "HTML file with small copies of the images.", "-o"),
    *,
    run: RunOptions,
) -> None:
    """List groups of near-identical images or texts.

    Example: `diptych duplicates model --out duplicates.html`
    """
    retriever = opt.load(model)
    with run.progress("finding duplicates"):
        groups = retriever.duplicates(view, threshold)  # type: ignore[arg-type]
    if out is not None:
        groups.write_sheet(out)
    run.show(groups.to_json(), _describe_duplicates(groups, threshold is None, out))


def info(model: opt.Model, *, run: RunOptions) -> None:
    """Check the files of a model; show what it is and how good it is.

    Example: `diptych info model`
    """
    from diptych.retrieval._folder import check_files

    content = opt.load(model).info()
    check_files(model)
    run.show(content, _describe_model(content, model))


def export(
    model: opt.Model,
    out: Path = option(..., "ONNX file to write.", "-o"),
    view: str = option("text", "Whose features the file takes: image or text."),
    task: str = option("search", "Whose vectors it returns: search or annotate."),
    *,
    run: RunOptions,
) -> None:
    """Write an ONNX file from features to vectors, for clients without Python.

    Example: `diptych export model --view text --task search --out projection.onnx`
    """
    opt.load(model).export_onnx(out, view=view, task=task)  # type: ignore[arg-type]
    run.show({"model": str(model), "view": view, "task": task, "out": str(out)}, [f"wrote {out}"])


def push(
    model: opt.Model,
    repo: Repository,
    private: bool = option(False, "Make a new repository private."),
    branch: str | None = option(None, "Branch to push to. Default: main."),
    message: str = option("Push model with diptych", "Message of the commit."),
    license: str = option("unknown", "Licence that the card names, such as cc-by-4.0."),
    keep_features: bool = option(False, "Publish what others need to refit the model."),
    *,
    run: RunOptions,
) -> None:
    """Publish a model on the Hugging Face Hub.

    Published are the model, the vectors of its items, their ids, texts and metadata, and the model card; no
    images and no paths. Log in first: `hf auth login`.

    Example: `diptych push model ada/beaches --private`
    """
    url = opt.load(model, mmap=False).push_to_hub(
        repo,
        private=private or None,
        branch=branch,
        commit_message=message,
        license=license,
        keep_features=keep_features,
    )
    content = {"model": str(model), "repository": repo, "commit": url}
    run.show(content, [f"published {model}: {url}"])


def pull(
    repo: Repository,
    out: Path = option(..., "Folder to write the model to.", "-o"),
    revision: str | None = option(None, "A branch, a tag or a commit. Default: the newest on main."),
    images: Path | None = option(None, "Folder with the image files under their ids, if you have them."),
    max_gigabytes: float = option(20.0, "Download no larger model."),
    *,
    run: RunOptions,
) -> None:
    """Download a published model from the Hugging Face Hub.

    Nothing in it is executed, and no path or network that it names is opened.

    Example: `diptych pull ada/beaches --out beaches`
    """
    from diptych.retrieval import Retriever
    from diptych.retrieval.stores._files import check_writable

    check_writable(out)
    options: dict[str, Any] = {"revision": revision, "images": images, "max_gigabytes": max_gigabytes}
    retriever = Retriever.from_pretrained(repo, **options)
    retriever.save(out)
    content = {"repository": repo, "model": str(out), "items": retriever.info()["items"]}
    run.show(content, [f"wrote {out}: {retriever}"])


def _describe_model(content: dict[str, Any], model: Path) -> Iterator[str]:
    from diptych.report._card import describe_probabilities

    facts, names = content["facts"], ViewNames(*content["views"])
    date = f"fitted on {facts['date']} with " if facts.get("date") else ""
    yield f"{model}: {date}diptych {content['library']}"
    for name, encoder in zip(names, content["encoders"].values(), strict=True):
        yield f"{plural(name)}: {encoder['name'] or 'features'}, {count(encoder['dimension'], 'feature')}"
    sizes = ", ".join(
        f"{split} {count(n, names.image)} and {count(m, names.caption)}"
        for split, (n, m) in facts["pairs"].items()
    )
    if sizes:
        yield f"pairs: {sizes}"
    if "refitted" in facts:
        pairs = count(facts["refitted"]["pairs"], "pair")
        yield f"refitted on {pairs} ({facts['refitted']['before']} before)"
    yield from _describe_tasks(content)
    items = " and ".join(count(n, names.of(view)) for view, n in content["items"].items())
    yield f"index: {content['index']['kind']}, {content['index']['dtype']}; {items}"
    if "quality" in facts:
        yield facts["quality"]
    yield describe_probabilities(content["calibration"])
    for split, scores in facts.get("metrics", {}).items():
        rows = [[task, *(f"{values[name]:.1f}" for name in RECALLS)] for task, values in scores.items()]
        title = name_gallery(split, *facts["pairs"].get({"validation": "val"}.get(split, split), ()))
        yield from align([[title, *RECALLS.values()], *rows], slice(1, None))


def _describe_tasks(content: dict[str, Any]) -> Iterator[str]:
    """Say for each task what was fitted; for a fusion, its parts and correction, else its correlations."""
    from diptych.cca._description import describe_polish
    from diptych.report._card import describe_correction

    for task, filters in content["filters"].items():
        components = f"{content['components'][task]} components"
        if "parts" in content:
            parts = content["parts"][task]
            yield f"{task}: {count(len(parts), 'part')}, {components}"
            yield from (f"  {part['weight']:.2g} × ({part['name']}), {part['use']}" for part in parts)
            yield f"  correction for hubness: {describe_correction(content['corrections'][task])}"
        else:
            views = zip(filters, content["views"], strict=True)
            chosen = ", ".join(f"{filter} on {plural(name)}" for filter, name in views)
            polish = f", {describe_polish(n)}" if (n := content["epochs"][task]) else ""
            yield f"{task}: {chosen}; {components}{polish}"
    for task, kinds in content.get("correlations", {}).items():
        shown = (
            f"{_CORRELATIONS[kind]} {' '.join(f'{value:.3f}' for value in values)}"
            for kind, values in kinds.items()
            if values
        )
        yield f"{task}, first canonical correlations: {'; '.join(shown)}"


def _describe_duplicates(groups: Duplicates, chosen: bool, out: Path | None) -> Iterator[str]:
    for number, group in enumerate(groups, 1):
        yield f"{number}: {count(len(group.items), 'item')}, similarity at least {group.similarity:.4f}"
        for item in group.items:
            name = label(item)
            yield f"  {item.id}" if name == item.id else f"  {item.id}: {name}"
    yield groups.summary()
    if chosen:
        yield "The threshold was chosen from the data; set another one with --threshold."
    if out is not None:
        yield f"wrote {out}"


def _are_items(sources: list[str], inputs: Inputs) -> bool:
    """Return whether these are items of the first view, rather than pairs or features."""
    from diptych.encoders._decoding import EXTENSIONS

    if inputs == "images":
        return all(Path(source).suffix.lower() in EXTENSIONS for source in sources)
    return len(sources) > 1 or not _are_pairs(sources[0])


def _are_photo_folders(sources: list[str]) -> bool:
    """Return whether these are folders of photos, rather than of pairs or features."""
    from diptych.data._readers import detect_format

    are = []
    for source in sources:
        with suppress(InputError):  # several tables
            are.append(os.path.isdir(source) and detect_format(Path(source))[0] == "folder")
    if any(are) and not all(are):
        raise InputError("folders of photos were given together with others; add one kind after the other.")
    return bool(are) and all(are)


def _are_pairs(source: str) -> bool:
    from diptych.data._readers import PAIRS_SUFFIXES

    return os.path.isdir(source) or Path(source).suffix.lower() in PAIRS_SUFFIXES


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
        captions = dataset.captions or None
        if captions is None:
            arguments |= {"pairing": None, "caption_ids": None}
        return arguments | {"images": paths or list(dataset.image_ids), "captions": captions}
    texts = [caption or None for caption in dataset.captions]
    return arguments | {"images": data.x, "captions": data.y, "texts": texts, "paths": paths}


def _find_ids(items: Iterable[Item], names: list[str]) -> list[str]:
    """Return the ids of items that are named by id, or by the path that search prints."""
    stored, by_path = set[str](), dict[str, list[str]]()
    for item in items:
        stored.add(item.id)
        if item.path is not None:
            by_path.setdefault(os.path.abspath(item.path), []).append(item.id)
    ids = []
    for name in names:
        matches = [name] if name in stored else by_path.get(os.path.abspath(name), [])
        if not matches:
            raise InputError(f"there is no item {name!r}, by id or by path.")
        if len(matches) > 1:
            raise InputError(
                f"{name} is the path of {count(len(matches), 'item')}; give an id: {', '.join(matches)}."
            )
        ids += matches
    return ids
