"""``fit`` and ``evaluate``: make a searchable model from pairs or features, and measure it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from diptych._checks import InputError, ViewNames, check_choice, check_task, count
from diptych.cli import _options as opt
from diptych.cli._encoders import Device, EncoderOptions, LoadOptions
from diptych.cli._options import TableOptions, list_hkse_settings, open_engine, read_settings, read_views
from diptych.cli._run import (
    ResumedRun,
    RunOptions,
    hide_library_bars,
    name_gallery,
    option,
    print_table,
    refuse_settings,
    refuse_unused,
    run_option,
)

if TYPE_CHECKING:
    from diptych.cca import AWCCA
    from diptych.data import PairedDataset
    from diptych.fusion import Fusion
    from diptych.retrieval import Evaluation, Retriever

model_option, index_option, file_option = (
    partial(option, panel=name) for name in ("Model", "Index", "Files")
)

Settings = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ModelOptions:
    """What is fitted, and how its settings are selected."""

    preset: Annotated[str | None, model_option("best: several models as one, more accurate and slower.")] = (
        None
    )
    filter: Annotated[str | None, model_option("Regularisation: tikhonov (the default), tsvd or guided.")] = (
        None
    )
    metric: Annotated[
        str | None,
        model_option(
            "What to select by on validation pairs: r@K (r@1 is the default), mean_recall, median_rank or "
            "mean_rank."
        ),
    ] = None
    polish: Annotated[
        bool,
        model_option(
            "Learn further from the training pairs with a contrastive loss, if validation gains.", "--polish"
        ),
    ] = False
    config: Annotated[
        Path | None,
        model_option("TOML file with more settings, as in Python: [model], [hkse], [retriever]."),
    ] = None
    random_state: opt.RandomState = None

    def read(self) -> Settings:
        """Return the settings of the model, of hkse and of the retriever, from options and the file."""
        names = ("filter", "metric", "polish", "random_state")
        flags = {name: value for name in names if (value := getattr(self, name)) not in (None, False)}
        if self.preset is not None:
            refuse_unused(self, ("filter", "metric"), f"with --preset {self.preset}")
            refuse_unused(self, ("polish",), f"with --preset {self.preset}; preset best polishes already")
        allowed = {"model": self._list_settings(), "hkse": list_hkse_settings()}
        settings = read_settings(self.config, flags, **allowed, retriever=("keep_features",))
        return {**settings, "model": flags | settings["model"]}

    def _list_settings(self) -> list[str]:
        """Return the parameters that ``[model]`` may set: those of AWCCA, or of Fusion for a preset."""
        from diptych.cca import AWCCA
        from diptych.fusion import PRESETS, Fusion

        if self.preset is None:
            return [name for name in AWCCA().get_params() if name != "verbose"]
        names = Fusion(check_choice(self.preset, tuple(PRESETS), "preset")).get_params()
        return [name for name in names if name not in ("preset", "blocks", "parts", "verbose")]

    def make(self, settings: dict[str, Any], verbose: bool | None) -> AWCCA | Fusion:
        """Return the model to fit."""
        from diptych.cca import AWCCA
        from diptych.fusion import Fusion

        if self.preset is not None:
            return Fusion(self.preset, **settings, verbose=verbose)
        if settings.get("params") is not None:
            unused = {"grid", "path_metrics", "validation_fraction"} & set(settings)
            if settings.get("n_components") == "auto":  # which is selected
                unused.discard("validation_fraction")
            refuse_settings(sorted(unused), "with params, which leave nothing to select")
        return AWCCA(**settings, verbose=verbose)


def fit(
    source: opt.Source,
    texts: opt.Texts = None,
    *,
    out: Annotated[Path, option("Folder to write the model to.", "--out", "-o")],
    pairs: opt.Pairs = None,
    table: TableOptions,
    metadata: opt.Metadata = None,
    views: opt.Views = opt.VIEWS,
    encoders: EncoderOptions,
    vectors: opt.Vectors = None,
    index: Annotated[str, index_option("flat (exact), hnsw, or postgresql://user@host/database.")] = "flat",
    dtype: Annotated[str, index_option("Type of the stored vectors: float32 or float16.")] = "float32",
    model: ModelOptions,
    dask: Annotated[
        str | None, run_option("Sum the training pairs on Dask: a scheduler's address, or local.")
    ] = None,
    device: Device = "cpu",
    run: ResumedRun,
) -> None:
    """Fit a searchable model on pairs, or on features of both views, and measure it.

    Images and captions are encoded first. Interrupted work resumes when the same command runs again. The
    regularisation is selected on the val split, or on held-out training pairs if there is none. A library of
    photos (diptych index) as --out keeps its items, its encoders and the similarity of its two towers.

    Example: `diptych fit captions.csv --images photos --out model`

    Example: `diptych fit resnet50.npy minilm.npy --pairs dataset_flickr8k.json --out model`
    """
    from diptych.data import PairedDataset
    from diptych.data._feature_store import remove_store
    from diptych.encoders import HKSE
    from diptych.retrieval import Retriever
    from diptych.retrieval.stores._files import check_writable

    start = time.perf_counter()
    library = _open_library(out, encoders, device)
    if library is not None and not (model.filter or model.metric or model.polish):
        model = replace(model, preset="best")  # which uses the similarity of the two towers
    settings = model.read()
    estimator = model.make(settings["model"], False if run.silent else None)
    estimator.check_parameters()
    if dask is not None and settings["model"].get("solver") == "svd":
        raise InputError("solver='svd' cannot be used with --dask; leave one of them out.")
    check_writable(out)
    hide_library_bars(run.silent)
    data = table.open(source, texts, pairs, read_views(views), metadata)
    is_raw = isinstance(data, PairedDataset)
    dataset = data if isinstance(data, PairedDataset) else data.dataset
    if "validation_fraction" in settings["model"] and "val" in dataset.split_sizes():
        refuse_settings(["validation_fraction"], "on pairs with a val split, which is used to select")
    if library is None:
        encoders = _choose_text_encoder(encoders, vectors, settings["hkse"], is_raw)
    if not _draws(settings["model"], model.preset, encoders.text_encoder, dataset):
        refuse_unused(model, ("random_state",), "here, where nothing is drawn at random")
    seed: dict[str, Any] = {} if model.random_state is None else {"random_state": model.random_state}
    if library is None:
        retriever = Retriever(
            encoders.open_image_encoder() or ("auto" if is_raw else None),
            encoders.open_text_encoder(device, HKSE(vectors, **seed | settings["hkse"])),
            estimator,
            index=index,
            dtype=dtype,
            device=device,
            views=dataset.views,
            **settings["retriever"],
        )
    else:
        given = {"--vectors": vectors, "--views": views != opt.VIEWS}
        given |= {"--index": index != "flat", "--dtype": dtype != "float32"}
        given |= {f"{key} in the settings": True for key in (*settings["hkse"], *settings["retriever"])}
        refuse_settings(
            [name for name, value in given.items() if value],
            "on a library of photos, which has its encoders and its index",
        )
        retriever = library
        retriever.model = estimator
    work, checkpoint = (out.absolute().with_name(f".{out.name}.{kind}") for kind in ("features", "sum"))
    with open_engine(dask) as engine:
        if isinstance(data, PairedDataset):
            data = retriever.encode(data, features=work)
        retriever.fit(data, engine=engine, checkpoint=checkpoint, keep_items=library is not None)
    retriever.save(out)
    if is_raw:
        for name in ("images", "texts"):
            remove_store(work / name)
        with suppress(OSError):  # files of others are there
            work.rmdir()
    info = retriever.info() | {"model": str(out), "seconds": round(time.perf_counter() - start, 1)}
    run.show(info, _describe_fit(info))


def _open_library(out: Path, encoders: EncoderOptions, device: str) -> Retriever | None:
    """Return the library of photos in a folder, with its encoders; None if there is none."""
    from diptych._database import FILE
    from diptych.retrieval._sync import PhotoFolders
    from diptych.retrieval.stores._files import has_items

    if not (out / FILE).is_file() or not has_items(out.resolve()):
        return None
    retriever = LoadOptions(**vars(encoders), device=device).load(out, mmap=False)
    return retriever if PhotoFolders(retriever.store).list() else None


def _choose_text_encoder(
    encoders: EncoderOptions, vectors: Path | None, hkse: dict[str, Any], is_raw: bool
) -> EncoderOptions:
    """Return the encoders with the one of texts: hkse if it has settings, which nothing else takes."""
    names = encoders.text_encoder or []
    of_hkse = ["--vectors"] * (vectors is not None) + [f"{key} in [hkse]" for key in hkse]
    if not is_raw:
        if "hkse" in names:
            raise InputError(
                "--text-encoder hkse is fitted on captions, and these are features; leave it out."
            )
        refuse_settings(of_hkse, "on features")
        return encoders
    if names in ([], ["auto"]):
        names = ["hkse" if of_hkse else "auto"]
    if "hkse" not in names:
        refuse_settings(of_hkse, f"with --text-encoder {' and '.join(names)}; they belong to hkse")
    return replace(encoders, text_encoder=names)


def _draws(
    settings: dict[str, Any], preset: str | None, text_encoders: list[str] | None, dataset: PairedDataset
) -> bool:
    """Return whether a fit draws anything at random: features of hkse, pairs to hold out, or batches."""
    from diptych.retrieval._recommended import default_encoder

    uses_hkse = "hkse" in (text_encoders or ())
    uses_hkse |= text_encoders == ["auto"] and default_encoder("text") is None
    selects = settings.get("params") is None or settings.get("n_components") == "auto"
    holds_out = selects and "val" not in dataset.split_sizes()
    return uses_hkse or holds_out or preset is not None or bool(settings.get("polish"))


def _describe_fit(info: dict[str, Any]) -> Iterator[str]:
    """Say in words what was learned, how good it is, and where the time went."""
    from diptych.report._card import describe_fit

    yield from describe_fit(info)
    facts, names = info["facts"], ViewNames(*info["views"])
    for task, recall in facts.get("graph_recall", {}).items():
        yield f"{task}: the graph finds {100 * recall:.1f} % of the exact ten best"
    parts = {name: value for name, value in facts["seconds"].items() if name != "all"}
    parts["reading, indexing and writing"] = max(0.0, info["seconds"] - sum(parts.values()))
    times = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
    yield f"{info['seconds']:.1f} s in all: {times}"
    items = " and ".join(count(n, names.of(view)) for view, n in info["items"].items())
    yield f"wrote {info['model']}: {items} to search; diptych info {info['model']} says more"


@dataclass(frozen=True)
class FileOptions:
    """Files that ``evaluate`` writes."""

    csv: Annotated[Path | None, file_option("CSV file of the metrics.")] = None
    latex: Annotated[Path | None, file_option("LaTeX table of the metrics.")] = None
    run: Annotated[Path | None, file_option("TREC run: the best items of each query.")] = None
    qrels: Annotated[Path | None, file_option("TREC qrels: which items are right.")] = None
    task: Annotated[str, file_option("Of --run and --qrels: search or annotate.")] = "search"
    depth: Annotated[int, file_option("Items of each query in --run.", min=1)] = 100

    def check(self) -> None:
        """Refuse what has no effect, before anything is computed."""
        check_task(self.task)
        if self.run is None:
            refuse_unused(self, ("depth",), "without --run")
        if self.run is None and self.qrels is None:
            refuse_unused(self, ("task",), "without --run or --qrels")

    def write(self, result: Evaluation) -> list[Path]:
        """Write the files that were asked for, and return their names."""
        if self.csv is not None:
            result.write_csv(self.csv)
        if self.latex is not None:
            result.write_latex(self.latex)
        if self.run is not None:
            result.write_run(self.run, task=self.task, depth=self.depth)
        if self.qrels is not None:
            result.write_qrels(self.qrels, task=self.task)
        return [file for file in (self.csv, self.latex, self.run, self.qrels) if file is not None]


def evaluate(
    model: opt.Model,
    source: opt.Source,
    texts: opt.Texts = None,
    split: Annotated[
        str | None, option("Split of the pairs: train, val, test or all. Default: test, or all if not split.")
    ] = None,
    pairs: opt.Pairs = None,
    *,
    table: TableOptions,
    encoders: LoadOptions,
    files: FileOptions,
    how: RunOptions,
) -> None:
    """Measure how well a model retrieves known pairs, both ways.

    Recalls, MRR, nDCG and mAP are in percent. Intervals are of 95 %, by bootstrap over images.

    Example: `diptych evaluate model resnet50.npy minilm.npy --pairs dataset_flickr8k.json --split test`
    """
    from diptych._progress import progress_bar
    from diptych.data import PairedDataset
    from diptych.retrieval._evaluation import TITLES

    if split is not None:
        check_choice(split, ("train", "val", "test", "all"), "split")
    files.check()
    retriever = encoders.load(model)
    data = table.open(source, texts, pairs, retriever.views)
    is_raw = isinstance(data, PairedDataset)
    has_splits = (data if isinstance(data, PairedDataset) else data.dataset).splits is not None
    if split not in (None, "all") and not has_splits:
        refuse_settings(["--split"], "on pairs without splits")
    if not is_raw:
        refuse_unused(encoders, ("image_encoder", "recipe", "weights", "text_encoder"), "on features")
    name = (split or "test") if has_splits else "all"
    with progress_bar("measuring", how.bars):
        result = retriever.evaluate(data, None if name == "all" else name)
    written = files.write(result)
    if how.quiet and not how.as_json:
        return
    intervals = result.intervals()
    if not how.as_json:
        rows = ([title, *result.cells(metric, intervals)] for metric, title in TITLES.items())
        print_table(name_gallery(name, *result.galleries.values()), ["metric", *result], rows)
    content = {name: result, "intervals": intervals, "galleries": result.galleries}
    how.show(content, [f"wrote {file}" for file in written])
