"""``check``, ``scenes`` and ``encode``: look at pairs, draw pairs, and encode them into features."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError, count, plural
from diptych.cli import _options as opt
from diptych.cli._options import (
    TableOptions,
    is_set,
    list_hkse_settings,
    make_hkse,
    make_image_encoder,
    make_text_encoder,
    read_settings,
    read_views,
    refuse_unused,
    take_one,
)
from diptych.cli._output import (
    RESUMES,
    hide_library_bars,
    limit_threads,
    make_console,
    print_json,
    report_errors,
    show_progress,
)

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from diptych.data import FeatureStore, Progress

PairsFile = Annotated[Path, typer.Argument(metavar="PAIRS", help="A pairs file, a folder, or hf:user/name.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")]
Batch = Annotated[int, typer.Option(min=1, help="Items encoded together.")]
Dtype = Annotated[str, typer.Option(help="float32 or float16.")]


def check(
    pairs: PairsFile,
    images: opt.ImagesFolder = None,
    image_column: opt.ImageColumn = None,
    caption_column: opt.CaptionColumn = None,
    encoding: opt.Encoding = None,
    views: opt.Views = opt.VIEWS,
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Check pairs and their images; exit with 1 when something is wrong.

    Files that are not images, of --views audio,text for example, must exist and not be empty.

    Example: `diptych check captions.csv --images photos`
    """
    from diptych.data import inspect_pairs, read_pairs

    with report_errors():
        hide_library_bars(quiet or as_json)
        names = read_views(views)
        with show_progress(f"checking {plural(names.image)}", quiet or as_json) as (progress, task):
            columns = TableOptions(image_column, caption_column, encoding, names)
            report = inspect_pairs(
                read_pairs(pairs, images=images, **vars(columns)),
                workers=threads,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
        if as_json:
            print_json({**asdict(report), "ok": report.ok})
        elif not quiet:
            console = make_console()
            sizes = ", ".join(f"{name} {size}" for name, size in report.splits.items()) or "not split"
            items = count(report.images, names.image), count(report.captions, names.caption)
            console.print(f"{items[0]} ({sizes}), {items[1]}")
            for name, summary in (
                (f"{plural(names.caption)} per {names.image}", report.captions_per_image),
                (f"words per {names.caption}", report.caption_words),
            ):
                console.print(f"{name}: {summary.smallest} to {summary.largest}, median {summary.median:g}")
            if not report.images_checked:
                console.print(f"no {names.image} files were checked: give their folder as --images")
            if report.copies:
                groups = count(len(report.copies), "group")
                console.print(f"{groups} of equal {plural(names.image)} within a split")
            for name, reason in report.unreadable:
                console.print(f"unreadable: {name}: {reason}")
            for problem in report.problems:
                console.print(f"problem: {problem}")
        if not report.ok:
            raise typer.Exit(1)


def scenes_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New or empty folder.")],
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="How many scenes.")] = 1000,
    random_state: opt.RandomState = 0,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Draw scenes with five captions each: images and a table of pairs, with splits.

    Example: `diptych scenes scenes -n 3000`
    """
    from diptych.scenes import make_scenes

    with report_errors():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and is not empty; give a new folder.")
        make_scenes(n, random_state=random_state).write(folder)
        if as_json:
            print_json({"folder": str(folder), "scenes": n})
        elif not quiet:
            make_console().print(f"drew {n} scenes into {folder}")


def encode_images_command(
    pairs: PairsFile,
    out: Out,
    image_column: opt.ImageColumn = None,
    caption_column: opt.CaptionColumn = None,
    encoding: opt.Encoding = None,
    image_encoder: opt.ImageEncoderNames = None,
    recipe: opt.Recipe = None,
    weights: opt.Weights = None,
    images: opt.ImagesFolder = None,
    views: opt.Views = opt.VIEWS,
    batch_size: Batch = 32,
    dtype: Dtype = "float32",
    threads: opt.Threads = None,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Encode images into a feature store; interrupted work resumes.

    Example: `diptych encode images captions.csv --images photos --image-encoder resnet50.onnx -o x`
    """
    from diptych.data import encode_images, read_pairs
    from diptych.image import OnnxEncoder
    from diptych.image import image_encoder as image_encoder_named
    from diptych.retrieval._encoders import open_defaults
    from diptych.retrieval._recipes import choose_recipe

    with (
        report_errors(RESUMES),
        limit_threads(threads),
        show_progress(f"encoding {plural(read_views(views).image)}", quiet or as_json) as (progress, task),
    ):
        columns = vars(TableOptions(image_column, caption_column, encoding, read_views(views)))
        dataset = read_pairs(pairs, images=images, **columns)
        named = make_image_encoder(take_one(image_encoder, "--image-encoder"), recipe, weights)
        if named not in (None, "auto"):
            encoder = image_encoder_named(named) if isinstance(named, str) else named
        elif dataset.views.image != "image":
            raise InputError(f"there is no {dataset.views.image} encoder; name one with --image-encoder.")
        else:
            encoder = open_defaults(["image"])["image"]
        if isinstance(encoder, OnnxEncoder) and encoder.assumed:
            encoder = choose_recipe(encoder, dataset, watch=lambda done: _update(progress, task, done))
        store = encode_images(
            dataset,
            encoder,
            out,
            batch_size=batch_size,
            dtype=dtype,
            progress=lambda done: _update(progress, task, done),
        )
        _report(store, quiet, as_json)
        if not store.ids:
            none = f"none of {count(len(store.skipped), dataset.views.image)} can be read"
            raise InputError(f"{none}; see diptych check.")


def encode_text_command(
    ctx: typer.Context,
    pairs: PairsFile,
    out: Out,
    image_column: opt.ImageColumn = None,
    caption_column: opt.CaptionColumn = None,
    encoding: opt.Encoding = None,
    text_encoder: opt.TextEncoderNames = None,
    vectors: opt.Vectors = None,
    config: opt.HkseConfig = None,
    random_state: opt.RandomState = 0,
    save_encoder: Annotated[Path | None, typer.Option(help="hkse: folder to save the encoder to.")] = None,
    views: opt.Views = opt.VIEWS,
    batch_size: Batch = 1024,
    dtype: Dtype = "float32",
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Encode captions into a feature store; hkse is fitted on the training captions.

    Example: `diptych encode text captions.csv --text-encoder hkse --vectors GoogleNews.bin -o text-features`
    """
    from diptych.data import encode_texts, read_pairs
    from diptych.retrieval._encoders import open_defaults
    from diptych.text import HKSE, sentence_encoder

    with (
        report_errors(RESUMES),
        limit_threads(threads),
        show_progress(f"encoding {plural(read_views(views).caption)}", quiet or as_json) as (progress, task),
    ):
        of_hkse = ("vectors", "config", "random_state", "save_encoder")
        [name] = take_one(text_encoder, "--text-encoder") or ["auto"]
        if name == "auto" and any(is_set(ctx, option) for option in of_hkse):
            name = "hkse"
        if name in ("auto", "hkse"):
            which = "hkse" if name == "hkse" else "the default encoder"
            refuse_unused(ctx, ("device",), f"with {which}, which runs on the CPU")
        else:
            refuse_unused(ctx, of_hkse, f"with --text-encoder {name}; it belongs to hkse")
        settings = read_settings(ctx, config, hkse=list_hkse_settings())
        table = TableOptions(image_column, caption_column, encoding, read_views(views))
        dataset = read_pairs(pairs, **vars(table))
        chosen = make_text_encoder([name], device, make_hkse(vectors, random_state, settings["hkse"]))
        if name == "auto":
            chosen = open_defaults(["text"])["text"]
        if isinstance(chosen, HKSE) and name in ("auto", "hkse"):
            split = "train" in dataset.split_sizes()
            chosen.fit((dataset.subset("train") if split else dataset).captions)
            if save_encoder is not None:
                chosen.save(save_encoder)
        store = encode_texts(
            dataset,
            sentence_encoder(chosen),
            out,
            batch_size=batch_size,
            dtype=dtype,
            progress=lambda done: _update(progress, task, done),
        )
        _report(store, quiet, as_json)


def _update(progress: Bar, task: TaskID, done: Progress) -> None:
    progress.update(task, completed=done.done, total=done.total)


def _report(store: FeatureStore, quiet: bool, as_json: bool) -> None:
    content: dict[str, Any] = {
        "store": str(store.folder),
        "rows": len(store.ids),
        "dimension": store.job.dimension,
        "skipped": [asdict(each) for each in store.skipped],
    }
    if as_json:
        print_json(content)
    elif not quiet:
        console = make_console()
        for each in store.skipped:
            console.print(f"skipped: {each.id}: {each.reason}")
        console.print(
            f"{count(content['rows'], 'row')} of {count(content['dimension'], 'number')} in {store.folder}"
        )
