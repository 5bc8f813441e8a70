"""``fit`` and ``evaluate``: make a searchable model from pairs or features, and measure it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError, check_choice, check_task, count
from diptych.cli import _options as opt
from diptych.cli._options import (
    INDEX,
    MODEL,
    RUN,
    TableOptions,
    list_hkse_settings,
    list_model_settings,
    make_hkse,
    make_image_encoder,
    make_text_encoder,
    open_data,
    open_engine,
    read_metadata_columns,
    read_settings,
    read_views,
    refuse_settings,
    refuse_unused,
)
from diptych.cli._output import (
    RESUMES,
    EncodingBars,
    describe_model,
    hide_library_bars,
    limit_threads,
    make_console,
    metrics_table,
    print_json,
    recall_table,
    report_errors,
    show_progress,
)

if TYPE_CHECKING:
    from diptych.cca import AWCCA
    from diptych.data import PairedDataset, PairedViews
    from diptych.fusion import Fusion

Settings = dict[str, dict[str, Any]]

FILES = "Files"


def fit(
    ctx: typer.Context,
    source: opt.Source,
    texts: opt.Texts = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the model to.")],
    pairs: opt.Pairs = None,
    images: opt.ImagesFolder = None,
    image_column: opt.ImageColumn = None,
    caption_column: opt.CaptionColumn = None,
    encoding: opt.Encoding = None,
    metadata: opt.Metadata = None,
    views: opt.Views = opt.VIEWS,
    image_encoder: opt.ImageEncoderNames = None,
    recipe: opt.Recipe = None,
    weights: opt.Weights = None,
    text_encoder: opt.TextEncoderNames = None,
    vectors: opt.Vectors = None,
    preset: Annotated[
        str | None,
        typer.Option(rich_help_panel=MODEL, help="best: several models as one, more accurate and slower."),
    ] = None,
    filter: Annotated[
        str, typer.Option(rich_help_panel=MODEL, help="Regularisation: tikhonov, tsvd or guided.")
    ] = "tikhonov",
    metric: Annotated[
        str,
        typer.Option(
            rich_help_panel=MODEL,
            help="What to select by on validation pairs: r@K, mean_recall, median_rank, mean_rank.",
        ),
    ] = "r@1",
    polish: Annotated[
        bool,
        typer.Option(
            "--polish",
            rich_help_panel=MODEL,
            help="Learn further from the training pairs with a contrastive loss, if validation gains.",
        ),
    ] = False,
    config: opt.Config = None,
    index: Annotated[
        str,
        typer.Option(rich_help_panel=INDEX, help="flat (exact), hnsw, or postgresql://user@host/database."),
    ] = "flat",
    dtype: Annotated[
        str, typer.Option(rich_help_panel=INDEX, help="Type of the stored vectors: float32 or float16.")
    ] = "float32",
    dask: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=RUN, help="Sum the training pairs on Dask: a scheduler's address, or local."
        ),
    ] = None,
    random_state: opt.RandomState = 0,
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Fit a searchable model on pairs, or on features of both views, and report its recall.

    Images and captions are encoded first. Interrupted work resumes when the same command runs again. The
    regularisation is selected on the val split, or on held-out training pairs if there is none.

    Example: `diptych fit captions.csv --images photos --out model`

    Example: `diptych fit resnet50.npy minilm.npy --pairs dataset_flickr8k.json --out model`
    """
    from diptych._persistence import check_writable
    from diptych.cca import AWCCA
    from diptych.data import PairedDataset
    from diptych.fusion import Fusion
    from diptych.retrieval import Retriever
    from diptych.retrieval._folder import KIND

    silent, start = quiet or as_json, time.perf_counter()
    with report_errors(RESUMES), limit_threads(threads):
        settings = read_settings(
            ctx,
            config,
            model=list_model_settings(preset),
            hkse=list_hkse_settings(),
            retriever=("keep_features",),
        )
        if preset is not None:
            refuse_unused(ctx, ("filter", "metric"), f"with --preset {preset}")
            refuse_unused(ctx, ("polish",), f"with --preset {preset}; preset best polishes already")
        options: dict[str, Any] = {"random_state": random_state} | settings["model"]
        model: AWCCA | Fusion
        if preset is not None:
            model = Fusion(preset, **options, verbose=False if silent else None)
        else:
            own: dict[str, Any] = {"filter": filter, "metric": metric, "polish": polish}
            model = AWCCA(**own | options, verbose=False if silent else None)
            if dask is not None and model.solver == "svd":
                raise InputError("solver='svd' cannot be used with --dask; leave one of them out.")
        model.check_parameters()
        check_writable(out, KIND)
        hide_library_bars(silent)
        columns = read_metadata_columns(metadata)
        table = TableOptions(image_column, caption_column, encoding, read_views(views), columns)
        data = open_data(source, texts, pairs, images, table)
        is_raw = isinstance(data, PairedDataset)
        if text_encoder in (None, [], ["auto"]):
            means_hkse = vectors is not None or settings["hkse"]
            text_encoder = ["hkse" if means_hkse else "auto"] if is_raw else None
        _refuse_unused(ctx, data, text_encoder or [], model, settings)
        retriever = Retriever(
            make_image_encoder(image_encoder, recipe, weights) or ("auto" if is_raw else None),
            make_text_encoder(text_encoder, device, make_hkse(vectors, random_state, settings["hkse"])),
            model,
            index=index,
            dtype=dtype,
            device=device,
            views=table.views,
            **settings["retriever"],
        )
        work = out.absolute().with_name(f".{out.name}.features")
        with open_engine(dask) as engine:
            if is_raw:
                with show_progress("encoding", silent) as bar:
                    features = retriever.encode(data, features=work, watch=EncodingBars(*bar))  # type: ignore[arg-type]
            else:
                features = data  # type: ignore[assignment]
            retriever.fit(features, engine=engine, checkpoint=out.absolute().with_name(f".{out.name}.sum"))
        retriever.save(out)
        shutil.rmtree(work, ignore_errors=True)
        seconds = round(time.perf_counter() - start, 1)
        info = retriever.info() | {"model": str(out), "seconds": seconds}
        if as_json:
            print_json(info)
        elif not quiet:
            _print_fitted(info)


def evaluate(
    ctx: typer.Context,
    model: opt.Model,
    source: opt.Source,
    texts: opt.Texts = None,
    split: Annotated[str, typer.Option(help="Split of the pairs: train, val, test, or all.")] = "test",
    pairs: opt.Pairs = None,
    images: opt.ImagesFolder = None,
    image_column: opt.ImageColumn = None,
    caption_column: opt.CaptionColumn = None,
    encoding: opt.Encoding = None,
    image_encoder: opt.ImageEncoderNames = None,
    recipe: opt.Recipe = None,
    weights: opt.Weights = None,
    text_encoder: opt.TextEncoderNames = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", rich_help_panel=FILES, help="CSV file of the metrics.")
    ] = None,
    latex: Annotated[
        Path | None, typer.Option("--latex", rich_help_panel=FILES, help="LaTeX table of the metrics.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option("--run", rich_help_panel=FILES, help="TREC run: the best items of each query."),
    ] = None,
    qrels: Annotated[
        Path | None, typer.Option("--qrels", rich_help_panel=FILES, help="TREC qrels: which items are right.")
    ] = None,
    task: Annotated[
        str, typer.Option(rich_help_panel=FILES, help="Of --run and --qrels: search or annotate.")
    ] = "search",
    depth: Annotated[
        int, typer.Option(min=1, rich_help_panel=FILES, help="Items of each query in --run.")
    ] = 100,
    threads: opt.Threads = None,
    device: opt.Device = "cpu",
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Measure how well a model retrieves known pairs, both ways.

    Recalls, MRR, nDCG and mAP are in percent. Intervals are of 95 %, by bootstrap over images.

    Example: `diptych evaluate model resnet50.npy minilm.npy --pairs dataset_flickr8k.json --split test`
    """
    from diptych.data import PairedDataset
    from diptych.retrieval import Retriever

    with report_errors(), limit_threads(threads):
        check_choice(split, ("train", "val", "test", "all"), "split")
        check_task(task)
        if run is None:
            refuse_unused(ctx, ("depth",), "without --run")
        if run is None and qrels is None:
            refuse_unused(ctx, ("task",), "without --run or --qrels")
        retriever = Retriever.load(
            model,
            make_image_encoder(image_encoder, recipe, weights),
            make_text_encoder(text_encoder, device),
            mmap=True,
            device=device,
        )
        table = TableOptions(image_column, caption_column, encoding, retriever.views)
        data = open_data(source, texts, pairs, images, table)
        is_raw = isinstance(data, PairedDataset)
        dataset = data if isinstance(data, PairedDataset) else data.dataset
        if dataset.splits is None and split != "all":
            refuse_unused(ctx, ("split",), "on pairs without splits")
        if not is_raw:
            refuse_unused(ctx, ("image_encoder", "recipe", "weights", "text_encoder"), "on features")
        name = "all" if dataset.splits is None else split
        with show_progress("encoding", quiet or as_json or not is_raw) as bar:
            result = retriever.evaluate(data, None if name == "all" else name, watch=EncodingBars(*bar))
        if csv is not None:
            result.write_csv(csv)
        if latex is not None:
            result.write_latex(latex)
        if run is not None:
            result.write_run(run, task=task, depth=depth)
        if qrels is not None:
            result.write_qrels(qrels, task=task)
        if as_json:
            print_json({name: result, "intervals": result.intervals()})
        elif not quiet:
            console = make_console()
            console.print(metrics_table(name, result))
            for file in filter(None, (csv, latex, run, qrels)):
                console.print(f"wrote {file}")


def _refuse_unused(
    ctx: typer.Context,
    data: PairedDataset | PairedViews,
    text_encoders: list[str],
    model: AWCCA | Fusion,
    settings: Settings,
) -> None:
    """Raise an error for options and settings that have no effect on these data with this model."""
    from diptych.data import PairedDataset
    from diptych.fusion import Fusion
    from diptych.retrieval._recommended import default_encoder

    is_raw, is_fusion = isinstance(data, PairedDataset), isinstance(model, Fusion)
    dataset = data if isinstance(data, PairedDataset) else data.dataset
    has_validation = "val" in dataset.split_sizes()
    uses_hkse = "hkse" in text_encoders or (text_encoders == ["auto"] and default_encoder("text") is None)
    if not is_raw and "hkse" in text_encoders:
        raise InputError("--text-encoder hkse is fitted on captions, but features were given; leave it out.")
    if not uses_hkse:
        reason = (
            "on features"
            if not is_raw
            else f"with --text-encoder {' and '.join(text_encoders)}; they belong to hkse"
        )
        refuse_unused(ctx, ("vectors",), reason)
        refuse_settings([f"{key} in [hkse]" for key in settings["hkse"]], reason)
    selects = is_fusion or model.params is None or model.n_components == "auto"
    unused = {"grid", "path_metrics"} & set(settings["model"]) if not is_fusion and model.params else set()
    refuse_settings(sorted(unused), "with params, which leave nothing to select")
    if "validation_fraction" in settings["model"] and (has_validation or not selects):
        why = (
            "on pairs with a val split, which is used to select"
            if has_validation
            else ("with params, which leave nothing to select")
        )
        refuse_settings(["validation_fraction"], why)
    if not uses_hkse and not is_fusion and not model.polish and (not selects or has_validation):
        refuse_unused(ctx, ("random_state",), "here, where nothing is drawn at random")


def _print_fitted(info: dict[str, Any]) -> None:
    console, facts = make_console(), info["facts"]
    for part, scores in facts["metrics"].items():
        console.print(recall_table(part, scores))
    for line in describe_model(info):
        console.print(line)
    console.print(facts["quality"])
    for task, recall in facts.get("graph_recall", {}).items():
        console.print(f"{task}: the graph finds {100 * recall:.1f} % of the exact ten best")
    parts = {name: value for name, value in facts["seconds"].items() if name != "all"}
    parts["reading, indexing and writing"] = max(0.0, info["seconds"] - sum(parts.values()))
    times = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
    sizes = " and ".join(
        count(n, name) for name, n in zip(info["views"], info["items"].values(), strict=True)
    )
    console.print(
        f"{count(facts['pairs']['train'][1], 'training pair')}; {info['seconds']:.1f} s in all: {times}"
    )
    console.print(f"wrote {info['model']}: {sizes} to search")
