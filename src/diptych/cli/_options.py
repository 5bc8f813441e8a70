"""Flags that several commands share, under the names of the Python API, and what they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from diptych._checks import InputError
from diptych._persistence import POINTER, map_npy
from diptych.data import FeatureStore, PairedDataset, PairedViews, join, open_features, read_pairs
from diptych.image import ImageEncoder, image_encoder
from diptych.text import HKSE, SentenceEncoder, sentence_encoder

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that fit wrote.")]
Source = Annotated[
    Path, typer.Argument(metavar="SOURCE", help="Pairs (a file or folder), or features of the first view.")
]
Texts = Annotated[
    Path | None, typer.Argument(metavar="[TEXTS]", help="Features of the second view, if SOURCE is features.")
]
Pairs = Annotated[
    Path | None,
    typer.Option(
        help="With features: a pairs file or folder (its splits are used), or a .npy with the row of SOURCE "
        "that each text belongs to. Without it, rows pair in order."
    ),
]
ImagesFolder = Annotated[Path | None, typer.Option("--images", help="Folder of the image files.")]
ImageColumn = Annotated[
    str | None, typer.Option(help="Column of a table that names the image files, if it has an unusual name.")
]
CaptionColumn = Annotated[
    str | None, typer.Option(help="Column of a table that holds the captions, if it has an unusual name.")
]
Encoding = Annotated[str | None, typer.Option(help="Of a CSV or TSV file that is not UTF-8, such as cp1252.")]
ImageEncoderName = Annotated[
    str | None,
    typer.Option(
        "--image-encoder", help="An .onnx file, torchvision:NAME, timm:NAME, or pyramid (no weights)."
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        help="How the network wants its images (docs/data.md); default: what it says, or what retrieves best."
    ),
]
Weights = Annotated[Path | None, typer.Option(help="Safetensors weights of a named image network.")]
TextEncoderName = Annotated[
    str | None,
    typer.Option(
        "--text-encoder",
        help="hkse, the folder of a saved one, or a sentence-transformers model.",
    ),
]
Vectors = Annotated[
    Path | None, typer.Option(help="Word vectors for hkse; default: learned from the training captions.")
]
Word = Annotated[str, typer.Option(help="hkse: lin or rbf words.")]
Sentence = Annotated[str, typer.Option(help="hkse: lin or rbf sentences.")]
WordFeatures = Annotated[int, typer.Option(min=1, help="hkse: random features of words.")]
SentenceFeatures = Annotated[int, typer.Option(min=1, help="hkse: random features of sentences.")]
RandomState = Annotated[int, typer.Option(help="Seed.")]
Device = Annotated[str, typer.Option(help="cpu, or a torch device such as cuda.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads; default: all cores.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
K = Annotated[int, typer.Option("-k", min=1, help="How many answers.")]


def make_image_encoder(
    name: str | None, recipe: str | None = None, weights: Path | None = None
) -> ImageEncoder | str | None:
    """The image encoder that the flags name, if any: its name alone lets a model add what it remembers."""
    if name is None:
        for flag, value in (("--recipe", recipe), ("--weights", weights)):
            if value is not None:
                raise InputError(f"{flag} belongs to --image-encoder, which is missing; give both.")
        return None
    if recipe is None and weights is None:
        return name
    return image_encoder(name, recipe, weights=weights)


def make_hkse(
    vectors: Path | None, word: str, sentence: str, word_features: int, sentence_features: int, seed: int
) -> HKSE:
    """The HKSE that the flags describe, not fitted yet."""
    return HKSE(
        vectors,
        word=word,  # type: ignore[arg-type]
        sentence=sentence,  # type: ignore[arg-type]
        word_features=word_features,
        sentence_features=sentence_features,
        random_state=seed,
    )


def make_text_encoder(name: str | None, device: str = "cpu") -> HKSE | SentenceEncoder | None:
    """The text encoder that a flag names, if any; not ``hkse``, which is fitted."""
    if name is None:
        return None
    if (Path(name) / POINTER).is_file():
        return HKSE.load(name)
    return sentence_encoder(name, device=None if device == "cpu" else device)


@dataclass(frozen=True)
class Columns:
    """Where a table of pairs has what, as far as flags say so."""

    image_column: str | None = None
    caption_column: str | None = None
    encoding: str | None = None


def refuse_unused(ctx: typer.Context, names: Iterable[str], reason: str) -> None:
    """Refuse flags that were given although they have no effect; ``reason`` goes on from "has no effect"."""
    options = {param.name: param.opts[0] for param in ctx.command.params}
    given = [options[name] for name in names if _was_given(ctx, name)]
    if given:
        has, it = ("has", "it") if len(given) == 1 else ("have", "them")
        raise InputError(f"{' and '.join(given)} {has} no effect {reason}; leave {it} out.")


def _was_given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def open_views(
    source: Path,
    texts: Path,
    pairs: Path | None,
    images: Path | None = None,
    columns: Columns = Columns(),  # noqa: B008
) -> PairedViews:
    """Features and pairs from files."""
    if pairs is not None and pairs.suffix != ".npy":
        dataset = read_pairs(pairs, images=images, **vars(columns))
        return join(dataset, _stored(source), _stored(texts))
    if images is not None or columns != Columns():
        raise InputError(
            "--images, --image-column, --caption-column and --encoding go with a table of pairs; leave them "
            "out, or give one."
        )
    x, y = open_features(source), open_features(texts)
    pairing = np.arange(len(y)) if pairs is None else _pairing(pairs, len(y))
    if pairs is None and len(x) != len(y):
        raise InputError(
            f"{source} has {len(x)} rows and {texts} has {len(y)}; say which belong together with --pairs."
        )
    if len(pairing) and int(pairing.max()) >= len(x):
        raise InputError(f"{pairs} names row {int(pairing.max())}, but {source} has rows 0 to {len(x) - 1}.")
    ids = tuple(str(i) for i in range(len(x)))
    return PairedViews(PairedDataset(ids, ("",) * len(y), pairing), x, y)


def open_data(
    source: Path,
    texts: Path | None,
    pairs: Path | None,
    images: Path | None,
    columns: Columns = Columns(),  # noqa: B008
) -> PairedDataset | PairedViews:
    """What a command works on: pairs with pictures, or features."""
    if texts is not None:
        return open_views(source, texts, pairs, images, columns)
    if pairs is not None:
        raise InputError("--pairs goes with two files of features; give both, or the pairs alone.")
    return read_pairs(source, images=images, **vars(columns))


@contextmanager
def open_engine(address: str | None) -> Iterator[Any]:
    """The engine that a flag names, if any: a Dask cluster, or one on this machine."""
    if address is None:
        yield None
        return
    from diptych.distributed import DaskEngine

    with DaskEngine(None if address == "local" else address) as engine:
        yield engine


def read_encoder_name(path: Path | None) -> str:
    """The fingerprint of the encoder that made a feature store; empty where nothing tells."""
    return FeatureStore.open(path).job.encoder if path is not None and path.is_dir() else ""


def pair_of_numbers(text: str, name: str) -> tuple[float, float]:
    """Two numbers with a comma between."""
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} {text!r} is not two numbers; give them as 0.5,2.") from None
    return first, second


def grid_of(text: str) -> Any:
    """A grid as ``AWCCA`` takes it."""
    spacing, _, points = text.rpartition(",")
    if not points.strip().isdigit():
        raise InputError(f"--grid {text!r} is not a grid; give a number, or log,20 or rank,20.")
    return (spacing.strip(), int(points)) if spacing else int(points)


def components_of(text: str | None) -> Any:
    """A number of components, ``"auto"`` or None."""
    if text is None or text == "auto":
        return text
    if not text.isdigit():
        raise InputError(f"--n-components {text!r} is not a dimension; give a whole number, or auto.")
    return int(text)


def _stored(path: Path) -> Any:
    # A feature store knows its ids, so pictures that could not be read are left out of the pairs.
    return FeatureStore.open(path) if path.is_dir() else open_features(path)


def _pairing(path: Path, n: int) -> np.ndarray[Any, Any]:
    pairing = map_npy(path)
    if pairing.shape != (n,) or pairing.dtype.kind not in "iu" or (n and pairing.min() < 0):
        raise InputError(
            f"{path} holds {pairing.dtype}{list(pairing.shape)}; expected {n} row numbers, one for each text."
        )
    return pairing.astype(np.int64)
