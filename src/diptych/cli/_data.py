"""``check`` and ``encode``: look at pairs, and encode them into features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError, ViewNames, count, plural
from diptych.cli import _options as opt
from diptych.cli._encoders import Device, ImageEncoderOptions, TextEncoderOptions
from diptych.cli._options import ColumnOptions, TableOptions, list_hkse_settings, read_settings, read_views
from diptych.cli._run import RunOptions, option, refuse_unused

if TYPE_CHECKING:
    from diptych.data import FeatureStore, PairsReport
    from diptych.encoders import HKSE

PairsFile = Annotated[Path, typer.Argument(metavar="PAIRS", help="A pairs file, or a folder.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")]


@dataclass(frozen=True)
class StoreOptions:
    """How features are stored."""

    batch_size: int | None = option(None, "Items encoded together.", min=1)
    dtype: str = option("float32", "float32 or float16.")
    views: opt.Views = opt.VIEWS

    def settings(self) -> dict[str, Any]:
        """Return the settings of ``encode_images`` and ``encode_texts``."""
        size = {} if self.batch_size is None else {"batch_size": self.batch_size}
        return {"dtype": self.dtype, **size}


@dataclass(frozen=True)
class HkseOptions:
    """How hkse is fitted."""

    vectors: opt.Vectors = None
    config: Path | None = option(None, "TOML file with more settings of hkse, as in Python: [hkse].")
    random_state: opt.RandomState = None
    save_encoder: Path | None = option(None, "Folder to save the fitted hkse to.")

    def make(self) -> HKSE:
        """Return an unfitted HKSE with these settings."""
        from diptych.encoders import HKSE

        seed: dict[str, Any] = {} if self.random_state is None else {"random_state": self.random_state}
        settings = read_settings(self.config, seed, hkse=list_hkse_settings())["hkse"]
        return HKSE(self.vectors, **seed | settings)


def check(pairs: PairsFile, views: opt.Views = opt.VIEWS, *, table: TableOptions, run: RunOptions) -> None:
    """Check pairs and their images; exit with 1 when something is wrong.

    Files that are not images, of --views audio,text for example, must exist and not be empty.

    Example: `diptych check captions.csv --images photos`

    Example: `diptych check photos`
    """
    from diptych.data import inspect_pairs

    names = read_views(views)
    dataset = table.read(pairs, names, needs_captions=False)
    report = inspect_pairs(dataset, workers=run.threads, verbose=run.bars)
    run.show(
        {**asdict(report), "problems": report.problems, "ok": report.ok}, _describe_report(report, names)
    )
    if not report.ok:
        raise typer.Exit(1)


def encode_images(
    pairs: PairsFile,
    out: Out,
    *,
    table: TableOptions,
    encoder: ImageEncoderOptions,
    store: StoreOptions,
    run: RunOptions,
) -> None:
    """Encode images into a feature store; interrupted work resumes.

    Example: `diptych encode images captions.csv --images photos --image-encoder resnet50.onnx -o x`
    """
    from diptych import data
    from diptych.encoders import image_encoder
    from diptych.retrieval._recommended import open_defaults

    names = read_views(store.views)
    dataset = table.read(pairs, names)
    _refuse_several(encoder.image_encoder, "--image-encoder")
    network = encoder.open_image_encoder()
    if isinstance(network, str) and network != "auto":
        network = image_encoder(network)
    elif network in (None, "auto"):
        if names.image != "image":
            raise InputError(f"there is no {names.image} encoder; name one with --image-encoder.")
        network = open_defaults(["image"])["image"]
    features = data.encode_images(dataset, network, out, verbose=run.bars, **store.settings())
    _show_store(features, run)
    if not features.ids:
        raise InputError(
            f"none of {count(len(features.skipped), names.image)} can be read; see diptych check."
        )


def encode_text(
    pairs: PairsFile,
    out: Out,
    device: Device = "cpu",
    *,
    columns: ColumnOptions,
    encoder: TextEncoderOptions,
    hkse: HkseOptions,
    store: StoreOptions,
    run: RunOptions,
) -> None:
    """Encode captions into a feature store; hkse is fitted on the training captions.

    Example: `diptych encode text captions.csv --text-encoder hkse --vectors GoogleNews.bin -o text-features`
    """
    from diptych import data
    from diptych.encoders import HKSE, sentence_encoder
    from diptych.retrieval._recommended import open_defaults

    names = read_views(store.views)
    _refuse_several(encoder.text_encoder, "--text-encoder")
    [name] = encoder.text_encoder or ["auto" if hkse == HkseOptions() else "hkse"]
    if name not in ("auto", "hkse"):
        refuse_unused(hkse, vars(hkse), f"with --text-encoder {name}; it belongs to hkse")
    elif device != "cpu":
        which = "hkse" if name == "hkse" else "the default encoder"
        raise InputError(f"--device has no effect with {which}, which runs on the CPU; leave it out.")
    dataset = columns.read(pairs, names)
    chosen: Any = hkse.make() if name == "hkse" else encoder.open_text_encoder(device)
    if name == "auto":
        chosen = open_defaults(["text"])["text"]
    if isinstance(chosen, HKSE) and name in ("auto", "hkse"):
        split = "train" in dataset.split_sizes()
        with run.progress("fitting the text encoder"):
            chosen.fit((dataset.subset("train") if split else dataset).captions)
        if hkse.save_encoder is not None:
            chosen.save(hkse.save_encoder)
    encode = sentence_encoder(chosen)
    features = data.encode_texts(dataset, encode, out, verbose=run.bars, **store.settings())
    _show_store(features, run)


def _refuse_several(names: list[str] | None, option: str) -> None:
    if names is not None and len(names) > 1:
        raise InputError(
            f"encode takes one {option}, and {len(names)} were given; run it once for each, or use fit."
        )


def _describe_report(report: PairsReport, names: ViewNames) -> Iterator[str]:
    sizes = ", ".join(f"{name} {size}" for name, size in report.splits.items()) or "not split"
    yield f"{count(report.images, names.image)} ({sizes}), {count(report.captions, names.caption)}"
    summaries = (
        (f"{plural(names.caption)} per {names.image}", report.captions_per_image),
        (f"words per {names.caption}", report.caption_words),
    )
    for name, summary in summaries if report.captions else ():
        yield f"{name}: {summary.smallest} to {summary.largest}, median {summary.median:g}"
    if report.in_files:
        told = ", ".join(f"{n} with {what}" for what, n in report.in_files.items())
        yield f"in the files of {plural(names.image)}: {told}"
    if not report.images_checked:
        yield f"no {names.image} files were checked: give their folder as --images"
    if report.copies:
        yield f"{count(len(report.copies), 'group')} of equal {plural(names.image)} within a split"
    for name, reason in report.unreadable:
        yield f"unreadable: {name}: {reason}"
    for problem in report.problems:
        yield f"problem: {problem}"


def _show_store(store: FeatureStore, run: RunOptions) -> None:
    rows, dimension = len(store.ids), store.job.dimension
    content = {"store": str(store.folder), "rows": rows, "dimension": dimension}
    lines = [f"skipped: {item.id}: {item.reason}" for item in store.skipped]
    lines.append(f"{count(rows, 'row')} of {count(dimension, 'number')} in {store.folder}")
    run.show({**content, "skipped": [asdict(item) for item in store.skipped]}, lines)
