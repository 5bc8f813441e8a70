"""Options that several commands share, and what they stand for: pairs, features, settings, an engine."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diptych._checks import IMAGE_AND_TEXT, InputError, ViewNames, check_view_names
from diptych.cli._run import option

if TYPE_CHECKING:
    from diptych.data import PairedDataset, PairedViews
    from diptych.retrieval import Retriever

data_option = partial(option, panel="Data")

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, written by fit.")]
Source = Annotated[
    Path,
    typer.Argument(metavar="SOURCE", help="Pairs (a file or a folder), or features of the first view."),
]
Texts = Annotated[
    Path | None, typer.Argument(metavar="[TEXTS]", help="Features of the second view, if SOURCE is features.")
]
Views = Annotated[
    str,
    typer.Option(
        help="What the pairs are, such as audio,text (docs/modalities.md).",
        metavar="NAME,NAME",
        rich_help_panel="Data",
    ),
]
Vectors = Annotated[
    Path | None,
    typer.Option(
        help="Word vectors for hkse. Default: learned from the training captions.", rich_help_panel="Encoders"
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="FILTER", help="Only items with such metadata: 'year >= 2010 and tag = \"beach\"', or JSON."
    ),
]
RandomState = Annotated[int | None, typer.Option(help="Random seed. Default: 0.", rich_help_panel="Run")]
MAX_CONFIG_BYTES = 2**20
VIEWS = ",".join(IMAGE_AND_TEXT)
"""The default of ``--views``."""


@dataclass(frozen=True)
class ColumnOptions:
    """How to read a table of pairs."""

    image_column: str | None = data_option(None, "Table column with the names of image files.")
    caption_column: str | None = data_option(None, "Table column with the captions.")
    encoding: str | None = data_option(None, "Encoding of a CSV or TSV that is not UTF-8, such as cp1252.")

    def read(self, path: Path, views: ViewNames, *, needs_captions: bool = True) -> PairedDataset:
        """Read the pairs at ``path``."""
        from diptych.data import read_pairs

        settings = dict(vars(self))
        settings.pop("pairs", None)
        columns = _read_columns(settings.pop("metadata", None))
        return read_pairs(path, views=views, metadata=columns, needs_captions=needs_captions, **settings)


@dataclass(frozen=True)
class TableOptions(ColumnOptions):
    """How to read a table of pairs, and where its images are."""

    images: Path | None = data_option(None, "Folder of the image files, or other files.")


@dataclass(frozen=True)
class SourceOptions(TableOptions):
    """How to read pairs, or features of both views."""

    pairs: Path | None = data_option(
        None,
        "For features: a pairs file or folder, or a .npy with the row of SOURCE for each text. Default: "
        "row to row.",
    )

    def open(
        self, source: Path, texts: Path | None, views: ViewNames, *, needs_captions: bool = True
    ) -> PairedDataset | PairedViews:
        """Open what a command works on: pairs with images, or features of both views."""
        from diptych.data import PairedDataset, PairedViews, join, open_features

        pairs = self.pairs
        if texts is None:
            if pairs is not None:
                raise InputError("--pairs needs two files of features; give both, or the pairs alone.")
            return self.read(source, views, needs_captions=needs_captions)
        if pairs is not None and pairs.suffix != ".npy":
            return join(self.read(pairs, views), _open_features(source), _open_features(texts))
        if self != type(self)(pairs=pairs):
            raise InputError(
                "--images, --image-column, --caption-column, --encoding and --metadata need a table of "
                "pairs; leave them out, or give one."
            )
        x, y = open_features(source), open_features(texts)
        if pairs is None and len(x) != len(y):
            raise InputError(
                f"{source} has {len(x)} rows and {texts} has {len(y)}; say which belong together with "
                "--pairs."
            )
        pairing: Any = range(len(y)) if pairs is None else _read_pairing(pairs, len(y))
        dataset = PairedDataset(tuple(map(str, range(len(x)))), ("",) * len(y), pairing, views=views)
        return PairedViews(dataset, x, y, encoders=(_read_encoder(source), _read_encoder(texts)))


@dataclass(frozen=True)
class MetadataOptions(SourceOptions):
    """How to read pairs, or features of both views, with metadata of the items."""

    metadata: str | None = data_option(
        None,
        "Table columns whose values searches can filter by; all: every other column.",
        metavar="NAME,NAME",
    )


def load(model: Path, *, mmap: bool = True) -> Retriever:
    """Load a model for a command that encodes nothing."""
    from diptych.retrieval import Retriever

    return Retriever.load(model, mmap=mmap)


def read_views(names: str) -> ViewNames:
    """Return the names of the views of ``--views``."""
    parts = [name.strip() for name in names.split(",")]
    if len(parts) != 2:
        raise InputError(f"--views {names} is not a pair of names; give two, such as --views audio,text.")
    return check_view_names(parts)


def read_settings(
    path: Path | None, flags: dict[str, Any], **allowed: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Read a ``--config`` file: for each allowed table, its settings under the names of the Python API.

    A table or key that is not allowed, and a key that is among the ``flags`` too, is an error.
    """
    settings: dict[str, dict[str, Any]] = {table: {} for table in allowed}
    if path is None:
        return settings
    for table, values in _parse_toml(path).items():
        if table not in allowed or not isinstance(values, dict):
            tables = ", ".join(f"[{name}]" for name in allowed)
            raise InputError(f"{path}: {table!r} is not a table of settings here; use {tables}.")
        names = list(allowed[table])
        for key, value in values.items():
            if key not in names:
                close = difflib.get_close_matches(key, names, 1)
                hint = f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names)}."
                raise InputError(f"{path}: [{table}] has no setting {key!r}; {hint}")
            if key in flags:
                option = f"--{key.replace('_', '-')}"
                raise InputError(f"{key} is set by {option} and in {path}; keep one of them.")
            settings[table][key] = tuple(value) if isinstance(value, list) else value
    return settings


def _parse_toml(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        content = file.read(MAX_CONFIG_BYTES + 1)
    if len(content) > MAX_CONFIG_BYTES:
        raise InputError(f"{path} is larger than {MAX_CONFIG_BYTES} bytes; it is no file of settings.")
    try:
        return tomllib.loads(content.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from None


def list_hkse_settings() -> list[str]:
    """Return the parameters that ``[hkse]`` may set; the vectors have an option, a tokenizer is code."""
    from diptych.encoders import HKSE

    return [name for name in HKSE().get_params() if name not in ("vectors", "tokenizer")]


def open_engine(address: str | None) -> AbstractContextManager[Any]:
    """Return the engine of ``--dask``, if any: a Dask cluster, or one on this machine."""
    if address is None:
        return nullcontext()
    from diptych.distributed import DaskEngine

    return DaskEngine(None if address == "local" else address)


def _read_columns(names: str | None) -> list[str] | Literal["all"] | None:
    """Return the columns of ``--metadata``."""
    if names is None or names.strip() == "all":
        return None if names is None else "all"
    columns = [name.strip() for name in names.split(",")]
    if "" in columns:
        raise InputError(
            f"--metadata {names!r} has no name between two commas; give names, such as year,tag."
        )
    return columns


def _open_features(path: Path) -> Any:
    from diptych.data import FeatureStore, open_features

    # A feature store knows its ids, so images that could not be read are left out of the pairs.
    return FeatureStore.open(path) if path.is_dir() else open_features(path)


def _read_encoder(path: Path) -> str:
    """Return the fingerprint of the encoder that made a feature store; "" for other files."""
    from diptych.data import FeatureStore

    return FeatureStore.open(path).job.encoder if path.is_dir() else ""


def _read_pairing(path: Path, n: int) -> Any:
    """Return the row of the first view for each of ``n`` texts."""
    from diptych._persistence import map_npy

    pairing = map_npy(path)
    if pairing.shape != (n,) or pairing.dtype.kind not in "iu":
        raise InputError(
            f"{path} holds {pairing.dtype}{list(pairing.shape)}; expected {n} row numbers, one for each text."
        )
    return pairing
