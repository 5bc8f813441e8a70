"""``fit`` and ``evaluate``: make a searchable model from pairs or features, and measure it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from diptych._checks import InputError, ViewNames, check_choice, check_task, count
from diptych.cli import _options as opt
from diptych.cli._encoders import Device, EncoderOptions, LoadOptions
from diptych.cli._options import (
    MetadataOptions,
    SourceOptions,
    list_hkse_settings,
    open_engine,
    read_settings,
    read_views,
)
from diptych.cli._run import (
    RunOptions,
    align,
    name_gallery,
    option,
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
Encoders = TypeVar("Encoders", bound=EncoderOptions)

NOT_SETTINGS = ("preset", "blocks", "parts", "verbose")
"""Parameters of models that a file does not set."""


@dataclass(frozen=True)
class ModelOptions:
    """What is fitted, and how its settings are selected."""

    preset: str | None = model_option(None, "best: several models as one, more accurate and slower.")
    filter: str | None = model_option(None, "Regularisation: tikhonov (the default), tsvd or guided.")
    metric: str | None = model_option(
        None,
        "What to select by on validation pairs: r@K (r@1 is the default), mean_recall, median_rank or "
        "mean_rank.",
    )
    polish: bool = model_option(
        False, "Learn further from the training pairs with a contrastive loss, if validation gains."
    )
    audit: bool = model_option(False, "Do not learn from pairs that look wrong, as diptych audit flags them.")
    config: Path | None = model_option(
        None, "TOML file with more settings, as in Python: [model], [hkse], [retriever]."
    )
    random_state: opt.RandomState = None

    def make(self, verbose: bool | None) -> tuple[AWCCA | Fusion, Settings]:
        """Return the model to fit, and the settings of model, hkse and retriever, options included."""
        from diptych.cca import AWCCA
        from diptych.fusion import PRESETS, Fusion

        flags = {name: getattr(self, name) for name in ("filter", "metric", "polish", "random_state")}
        flags = {name: value for name, value in flags.items() if value not in (None, False)}
        if self.preset is None:
            model: AWCCA | Fusion = AWCCA()
        else:
            model = Fusion(check_choice(self.preset, tuple(PRESETS), "preset"))
            refuse_unused(self, ("filter", "metric"), f"with --preset {self.preset}")
            refuse_unused(self, ("polish",), f"with --preset {self.preset}; preset best polishes already")
        allowed = [name for name in model.get_params() if name not in NOT_SETTINGS]
        settings = read_settings(
            self.config, flags, model=allowed, hkse=list_hkse_settings(), retriever=("keep_features",)
        )
        settings["model"] |= flags
        model.set_params(**settings["model"], verbose=verbose)
        return model, settings


def fit(
    source: opt.Source,
    texts: opt.Texts = None,
    *,
    out: Path = option(..., "Folder to write the model to.", "-o"),
    table: MetadataOptions,
    views: opt.Views = opt.VIEWS,
    encoders: EncoderOptions,
    vectors: opt.Vectors = None,
    index: str = index_option("flat", "flat (exact), hnsw, or postgresql://user@host/database."),
    dtype: str = index_option("float32", "Type of the stored vectors: float32 or float16."),
    model: ModelOptions,
    dask: str | None = run_option(None, "Sum the training pairs on Dask: a scheduler's address, or local."),
    device: Device = "cpu",
    run: RunOptions,
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
    estimator, settings = model.make(run.bars)
    estimator.check_parameters()
    if dask is not None and settings["model"].get("solver") == "svd":
        raise InputError("solver='svd' cannot be used with --dask; leave one of them out.")
    check_writable(out)
    data = table.open(source, texts, read_views(views))
    is_raw = isinstance(data, PairedDataset)
    dataset = data if isinstance(data, PairedDataset) else data.dataset
    _refuse_selection(settings["model"], dataset)
    if library is None:
        encoders = choose_text_encoder(encoders, vectors, settings["hkse"], is_raw)
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
        retriever.fit(
            data,
            features=work if is_raw else None,
            engine=engine,
            checkpoint=checkpoint,
            audit=model.audit,
            keep_items=library is not None,
        )
    retriever.save(out)
    if is_raw:
        for name in ("images", "texts"):
            remove_store(work / name)
        with suppress(OSError):  # files of others are there
            work.rmdir()
    info = retriever.info() | {"model": str(out), "seconds": round(time.perf_counter() - start, 1)}
    run.show(info, _describe_fit(info))


def _refuse_selection(settings: dict[str, Any], dataset: PairedDataset) -> None:
    """Refuse settings of a selection that does not take place, or not on held-out training pairs."""
    if settings.get("params") is not None:
        unused = {"grid", "path_metrics", "validation_fraction"} & set(settings)
        if settings.get("n_components") == "auto":  # which is selected
            unused.discard("validation_fraction")
        refuse_settings(sorted(unused), "with params, which leave nothing to select")
    if "validation_fraction" in settings and "val" in dataset.split_sizes():
        refuse_settings(["validation_fraction"], "on pairs with a val split, which is used to select")


def _open_library(out: Path, encoders: EncoderOptions, device: str) -> Retriever | None:
    """Return the library of photos in a folder, with its encoders; None if there is none."""
    from diptych._database import FILE
    from diptych.retrieval._sync import PhotoFolders
    from diptych.retrieval.stores._files import has_items

    if not (out / FILE).is_file() or not has_items(out.resolve()):
        return None
    retriever = LoadOptions(**vars(encoders), device=device).load(out, mmap=False)
    return retriever if PhotoFolders(retriever.store).list() else None


def choose_text_encoder(
    encoders: Encoders, vectors: Path | None, hkse: dict[str, Any], is_raw: bool
) -> Encoders:
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

    csv: Path | None = file_option(None, "CSV file of the metrics.")
    latex: Path | None = file_option(None, "LaTeX table of the metrics.")
    run: Path | None = file_option(None, "TREC run: the best items of each query.")
    qrels: Path | None = file_option(None, "TREC qrels: which items are right.")
    task: str = file_option("search", "Of --run and --qrels: search or annotate.")
    depth: int = file_option(100, "Items of each query in --run.", min=1)

    def check(self) -> None:
        """Refuse what has no effect, before anything is computed."""
        check_task(self.task)
        if self.run is None:
            refuse_unused(self, ("depth",), "without --run")
        if self.run is None and self.qrels is None:
            refuse_unused(self, ("task",), "without --run or --qrels")

    def write(self, result: Evaluation) -> list[Path]:
        """Write the files that were asked for, and return their names."""
        written = []
        for file, write in (
            (self.csv, result.write_csv),
            (self.latex, result.write_latex),
            (self.run, partial(result.write_run, task=self.task, depth=self.depth)),
            (self.qrels, partial(result.write_qrels, task=self.task)),
        ):
            if file is not None:
                write(file)
                written.append(file)
        return written


def evaluate(
    model: opt.Model,
    source: opt.Source,
    texts: opt.Texts = None,
    split: str | None = option(
        None, "Split of the pairs: train, val, test or all. Default: test, or all if not split."
    ),
    *,
    table: SourceOptions,
    encoders: LoadOptions,
    files: FileOptions,
    how: RunOptions,
) -> None:
    """Measure how well a model retrieves known pairs, both ways.

    Recalls, MRR, nDCG and mAP are in percent. Intervals are of 95 %, by bootstrap over images.

    Example: `diptych evaluate model resnet50.npy minilm.npy --pairs dataset_flickr8k.json --split test`
    """
    from diptych.data import PairedDataset
    from diptych.retrieval._evaluation import TITLES

    if split is not None:
        check_choice(split, ("train", "val", "test", "all"), "split")
    files.check()
    retriever = encoders.load(model)
    data = table.open(source, texts, retriever.views)
    is_raw = isinstance(data, PairedDataset)
    has_splits = (data if isinstance(data, PairedDataset) else data.dataset).splits is not None
    if split not in (None, "all") and not has_splits:
        refuse_settings(["--split"], "on pairs without splits")
    if not is_raw:
        refuse_unused(encoders, ("image_encoder", "recipe", "text_encoder"), "on features")
    name = (split or "test") if has_splits else "all"
    with how.progress("measuring"):
        result = retriever.evaluate(data, None if name == "all" else name)
    written = files.write(result)
    if how.quiet and not how.as_json:
        return
    intervals = result.intervals()
    rows = [[title, *result.cells(metric, intervals)] for metric, title in TITLES.items()]
    header = [name_gallery(name, *result.galleries.values()), *result]
    lines = [*align([header, *rows], slice(1, None)), *(f"wrote {file}" for file in written)]
    how.show({name: result, "intervals": intervals, "galleries": result.galleries}, lines)
