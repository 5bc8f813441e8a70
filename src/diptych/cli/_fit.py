"""``fit`` and ``evaluate``: from pairs or features to a searchable model, and what it is worth."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from diptych._checks import InputError, check_choice, count
from diptych._persistence import check_writable
from diptych.cca import AWCCA
from diptych.cli._options import (
    AsJson,
    CaptionColumn,
    Columns,
    Device,
    Encoding,
    ImageColumn,
    ImageEncoderName,
    ImagesFolder,
    Model,
    Pairs,
    Quiet,
    RandomState,
    Recipe,
    Sentence,
    SentenceFeatures,
    Source,
    TextEncoderName,
    Texts,
    Threads,
    Vectors,
    Weights,
    Word,
    WordFeatures,
    components_of,
    read_encoder_name,
    open_engine,
    make_image_encoder,
    make_text_encoder,
    grid_of,
    make_hkse,
    open_data,
    pair_of_numbers,
    refuse_unused,
)
from diptych.cli._output import (
    EncodingBars,
    show_progress,
    limit_threads,
    describe_model,
    make_console,
    print_json,
    recall_table,
    report_errors,
)
from diptych.data import PairedDataset, PairedViews
from diptych.fusion import Fusion
from diptych.retrieval import Retriever
from diptych.retrieval._encoders import Known
from diptych.retrieval._folder import KIND

SET_BY_PRESET = (
    *("filter", "params", "grid", "metric", "weighting", "similarity", "n_components", "solver"),
    *("precision", "path_metrics", "normalize", "dask"),
)
"""Flags whose place a preset takes."""
OF_HKSE = ("vectors", "word", "sentence", "word_features", "sentence_features")
RESUMES = "run the same command again to go on where it stopped"


def fit(
    ctx: typer.Context,
    source: Source,
    texts: Texts = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the model to.")],
    pairs: Pairs = None,
    images: ImagesFolder = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    encoding: Encoding = None,
    image_encoder: ImageEncoderName = None,
    recipe: Recipe = None,
    weights: Weights = None,
    text_encoder: TextEncoderName = None,
    vectors: Vectors = None,
    word: Word = "rbf",
    sentence: Sentence = "rbf",
    word_features: WordFeatures = 2000,
    sentence_features: SentenceFeatures = 2000,
    preset: Annotated[
        str | None,
        typer.Option(help="best: fuse all that makes it more accurate, with settings of its own."),
    ] = None,
    filter: Annotated[str, typer.Option(help="tikhonov, tsvd or guided.")] = "tikhonov",
    params: Annotated[
        str | None, typer.Option(help="P_X,P_Y for both tasks; default: selected on validation pairs.")
    ] = None,
    grid: Annotated[str, typer.Option(help="Points per side, or log,N or rank,N.")] = "20",
    metric: Annotated[str, typer.Option(help="r@K, mean_recall, median_rank or mean_rank.")] = "r@1",
    weighting: Annotated[
        str, typer.Option(help="asymmetric, search-generation, symmetric, none, or powers A,B.")
    ] = "asymmetric",
    similarity: Annotated[str, typer.Option(help="cosine or l2.")] = "cosine",
    n_components: Annotated[str | None, typer.Option(help="Dimension of the embeddings, or auto.")] = None,
    validation_fraction: Annotated[float, typer.Option(help="Held out when there is no val split.")] = 0.15,
    random_state: RandomState = 0,
    solver: Annotated[str, typer.Option(help="auto, gram or svd.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    path_metrics: Annotated[str, typer.Option(help="metric or all.")] = "metric",
    normalize: Annotated[
        str, typer.Option(help="Of images,texts: none, unit, signed-sqrt or sqrt-unit each.")
    ] = "none,none",
    index: Annotated[
        str, typer.Option(help="flat (exact), hnsw, or postgresql://user@host/database.")
    ] = "flat",
    dtype: Annotated[str, typer.Option(help="Of the index: float32 or float16.")] = "float32",
    keep_features: Annotated[bool, typer.Option(help="Keep the items' features, for a refit.")] = True,
    dask: Annotated[
        str | None,
        typer.Option(help="Sum the training pairs there: the address of a Dask scheduler, or local."),
    ] = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a searchable model on pairs, or on features of both views; report its recalls.

    Pictures and captions are encoded first; interrupted work, a pass over large features included, goes on
    where it stopped. With a train split the regularisation is selected on the val split; without, on a share
    that is held out.

    Example: `diptych fit captions.csv --images photos --image-encoder resnet50.onnx --out model`

    Example: `diptych fit resnet50.npy minilm.npy --pairs dataset_flickr8k.json --out model`
    """
    silent, start = quiet or as_json, time.perf_counter()
    with report_errors(RESUMES), limit_threads(threads):
        if preset is not None:
            refuse_unused(ctx, SET_BY_PRESET, f"with --preset {preset}")
        if params is not None:
            refuse_unused(ctx, ("grid", "path_metrics"), "with --params, which leave nothing to select")
        if not 0.0 < validation_fraction < 1.0:
            raise InputError(
                f"--validation-fraction {validation_fraction} is not a share; give one such as 0.15."
            )
        if dask is not None and solver == "svd":
            raise InputError("--solver svd cannot be used with --dask; leave one of them out.")
        seeds = {"validation_fraction": validation_fraction, "random_state": random_state}
        model: AWCCA | Fusion
        if preset is not None:
            model = Fusion(preset, **seeds)  # type: ignore[arg-type]
        else:
            model = AWCCA(
                filter=filter,
                params=None if params is None else pair_of_numbers(params, "params"),
                grid=grid_of(grid),
                metric=metric,
                weighting=pair_of_numbers(weighting, "weighting") if "," in weighting else weighting,  # type: ignore[arg-type]
                similarity=similarity,  # type: ignore[arg-type]
                n_components=components_of(n_components),
                solver=solver,  # type: ignore[arg-type]
                precision=precision,  # type: ignore[arg-type]
                path_metrics=path_metrics,
                normalize=tuple(part.strip() for part in normalize.split(",")),  # type: ignore[arg-type]
                verbose=not silent,
                **seeds,  # type: ignore[arg-type]
            )
        model.check_parameters()
        check_writable(out, KIND)
        data = open_data(source, texts, pairs, images, Columns(image_column, caption_column, encoding))
        raw = isinstance(data, PairedDataset)
        _refuse_unused_for(ctx, data, text_encoder, model)
        chosen_text: Any = None
        if text_encoder not in (None, "hkse"):
            chosen_text = make_text_encoder(text_encoder, device)
        elif raw:
            chosen_text = make_hkse(vectors, word, sentence, word_features, sentence_features, random_state)
        retriever = Retriever(
            make_image_encoder(image_encoder, recipe, weights) or ("auto" if raw else None),
            chosen_text,
            model,
            index=index,
            dtype=dtype,
            keep_features=keep_features,
            device=device,
        )
        work = out.absolute().with_name(f".{out.name}.features")
        with open_engine(dask) as engine:
            if raw:
                with show_progress("encoding", silent) as shown:
                    views = retriever.encode(data, features=work, watch=EncodingBars(*shown))  # type: ignore[arg-type]
            else:
                views = data  # type: ignore[assignment]
                retriever.encoders.known = {
                    "image": Known(read_encoder_name(source), read_encoder_name(source)),
                    "text": Known(read_encoder_name(texts), read_encoder_name(texts)),
                }
            retriever.fit(views, engine=engine, checkpoint=out.absolute().with_name(f".{out.name}.sum"))
        retriever.save(out)
        shutil.rmtree(work, ignore_errors=True)
        seconds = round(time.perf_counter() - start, 1)
        found = retriever.info() | {"model": str(out), "seconds": seconds}
        if as_json:
            print_json(found)
        elif not quiet:
            _show_fitted(found)


def evaluate(
    ctx: typer.Context,
    model: Model,
    source: Source,
    texts: Texts = None,
    pairs: Pairs = None,
    images: ImagesFolder = None,
    image_column: ImageColumn = None,
    caption_column: CaptionColumn = None,
    encoding: Encoding = None,
    split: Annotated[str, typer.Option(help="Of pairs with splits: train, val, test, or all.")] = "test",
    image_encoder: ImageEncoderName = None,
    recipe: Recipe = None,
    weights: Weights = None,
    text_encoder: TextEncoderName = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Recalls of a model, both ways.

    Example: `diptych evaluate model resnet50.npy minilm.npy --pairs dataset_flickr8k.json --split test`
    """
    with report_errors(), limit_threads(threads):
        check_choice(split, ("train", "val", "test", "all"), "split")
        data = open_data(source, texts, pairs, images, Columns(image_column, caption_column, encoding))
        dataset = data if isinstance(data, PairedDataset) else data.dataset
        if dataset.splits is None and split != "all":
            refuse_unused(ctx, ("split",), "on pairs without splits")
        if not isinstance(data, PairedDataset):
            refuse_unused(ctx, ("image_encoder", "recipe", "weights", "text_encoder"), "on features")
        retriever = Retriever.load(
            model,
            make_image_encoder(image_encoder, recipe, weights),
            make_text_encoder(text_encoder, device),
            mmap=True,
            device=device,
        )
        whole = split == "all" or dataset.splits is None
        with show_progress("encoding", quiet or as_json or not isinstance(data, PairedDataset)) as shown:
            found = retriever.evaluate(data, None if whole else split, watch=EncodingBars(*shown))
        name = "all" if whole else split
        if as_json:
            print_json({name: found})
        elif not quiet:
            make_console().print(recall_table(name, found))


def _refuse_unused_for(
    ctx: typer.Context, data: PairedDataset | PairedViews, text_encoder: str | None, model: AWCCA | Fusion
) -> None:
    """Refuse flags that do nothing for these data, with this text encoder and this model."""
    raw, fused = isinstance(data, PairedDataset), isinstance(model, Fusion)
    dataset = data if isinstance(data, PairedDataset) else data.dataset
    hkse = raw and text_encoder in (None, "hkse")
    if not raw and text_encoder == "hkse":
        raise InputError("--text-encoder hkse is fitted on captions, but features were given; leave it out.")
    if not hkse:
        reason = "on features" if not raw else f"with --text-encoder {text_encoder}; they belong to hkse"
        refuse_unused(ctx, OF_HKSE, reason)
    if fused and hkse:
        refuse_unused(ctx, ("device",), "with --preset, which runs on the CPU")
    selects = fused or model.params is None or model.n_components == "auto"
    if "val" in dataset.split_sizes():
        refuse_unused(ctx, ("validation_fraction",), "on pairs with a val split, which is selected on")
    elif not selects:
        refuse_unused(ctx, ("validation_fraction",), "with --params, which leave nothing to select")
    if not hkse and not fused and (not selects or "val" in dataset.split_sizes()):
        refuse_unused(ctx, ("random_state",), "here, where nothing is drawn at random")


def _show_fitted(found: dict[str, Any]) -> None:
    console, facts = make_console(), found["facts"]
    for part, scores in facts["metrics"].items():
        console.print(recall_table(part, scores))
    for line in describe_model(found):
        console.print(line)
    console.print(facts["quality"])
    for task, recall in facts.get("graph_recall", {}).items():
        console.print(f"{task}: the graph finds {100 * recall:.1f} % of the exact ten best")
    parts = {name: value for name, value in facts["seconds"].items() if name != "all"}
    parts["reading, indexing and writing"] = max(0.0, found["seconds"] - sum(parts.values()))
    spent = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
    sizes = " and ".join(f"{n} {view}s" for view, n in found["items"].items())
    console.print(
        f"{count(facts['pairs']['train'][1], 'training pair')}; {found['seconds']:.1f} s in all: {spent}"
    )
    console.print(f"wrote {found['model']}: {sizes} to search")
