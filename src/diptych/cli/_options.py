"""Options that several commands share, grouped in help panels, and the objects they stand for."""

from __future__ import annotations

import difflib
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from diptych._checks import IMAGE_AND_TEXT, InputError, ViewNames, check_choice, check_view_names

if TYPE_CHECKING:
    import numpy as np

    from diptych.data import PairedDataset, PairedViews
    from diptych.text import HKSE

DATA, ENCODERS, MODEL, INDEX, RUN = "Data", "Encoders", "Model", "Index", "Run"
"""Help panels, in the order of the work."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Model folder, written by fit.")]
Source = Annotated[
    Path,
    typer.Argument(
        metavar="SOURCE", help="Pairs (a file, a folder, hf:user/name), or features of the first view."
    ),
]
Texts = Annotated[
    Path | None, typer.Argument(metavar="[TEXTS]", help="Features of the second view, if SOURCE is features.")
]
Pairs = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=DATA,
        help="For features: a pairs file or folder, or a .npy with the row of SOURCE for each text. "
        "Default: row to row.",
    ),
]
ImagesFolder = Annotated[
    Path | None,
    typer.Option("--images", rich_help_panel=DATA, help="Folder of the image files, or other files."),
]
Views = Annotated[
    str,
    typer.Option(
        rich_help_panel=DATA,
        metavar="NAME,NAME",
        help="What the pairs are, such as audio,text (docs/modalities.md).",
    ),
]
ImageColumn = Annotated[
    str | None, typer.Option(rich_help_panel=DATA, help="Table column with the names of image files.")
]
CaptionColumn = Annotated[
    str | None, typer.Option(rich_help_panel=DATA, help="Table column with the captions.")
]
Encoding = Annotated[
    str | None,
    typer.Option(rich_help_panel=DATA, help="Encoding of a CSV or TSV that is not UTF-8, such as cp1252."),
]
Metadata = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=DATA,
        metavar="NAME,NAME",
        help="Table columns whose values searches can filter by; all: every other column.",
    ),
]
ImageEncoderNames = Annotated[
    list[str] | None,
    typer.Option(
        "--image-encoder",
        rich_help_panel=ENCODERS,
        help="An .onnx file, fastembed:NAME, fastembed:FOLDER, torchvision:NAME, timm:NAME, pyramid (no "
        "weights), or FILE.py:NAME: an encoder in your own Python file, which is run. See diptych encoders. "
        "Several: give the option several times.",
    ),
]
Recipe = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=ENCODERS,
        help="Preprocessing of the image network (docs/data.md). Default: what the network says, or what "
        "retrieves best.",
    ),
]
Weights = Annotated[
    Path | None, typer.Option(rich_help_panel=ENCODERS, help="Safetensors weights of a named image network.")
]
TextEncoderNames = Annotated[
    list[str] | None,
    typer.Option(
        "--text-encoder",
        rich_help_panel=ENCODERS,
        help="fastembed:NAME, fastembed:FOLDER, a sentence-transformers model, hkse, the folder of a saved "
        "HKSE, or FILE.py:NAME: a function in your own Python file, which is run. See diptych encoders. "
        "Several: give the option several times.",
    ),
]
Vectors = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=ENCODERS, help="Word vectors for hkse. Default: learned from the training captions."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=MODEL,
        help="TOML file with more settings, under the names of the Python API: [model], [hkse], [retriever].",
    ),
]
HkseConfig = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=ENCODERS,
        help="TOML file with more settings of hkse, under the names of the Python API: [hkse].",
    ),
]
RandomState = Annotated[int, typer.Option(rich_help_panel=RUN, help="Random seed.")]
Device = Annotated[str, typer.Option(rich_help_panel=RUN, help="cpu, or a torch device such as cuda.")]
Threads = Annotated[
    int | None, typer.Option(min=1, rich_help_panel=RUN, help="Number of threads. Default: all cores.")
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", rich_help_panel=RUN, help="Print no progress bar and no table.")
]
AsJson = Annotated[
    bool, typer.Option("--json", rich_help_panel=RUN, help="Print one JSON object instead of tables.")
]
K = Annotated[int, typer.Option("-k", min=1, help="Number of results.")]

MAX_CONFIG_BYTES = 2**20


@dataclass(frozen=True)
class TableOptions:
    """How to read a table of pairs: the options of ``read_pairs``."""

    image_column: str | None = None
    caption_column: str | None = None
    encoding: str | None = None
    views: ViewNames = IMAGE_AND_TEXT
    metadata: Sequence[str] | Literal["all"] | None = None


VIEWS = ",".join(IMAGE_AND_TEXT)
"""The default of ``--views``."""


def read_views(names: str) -> ViewNames:
    """Return the names of the views of ``--views``."""
    parts = [name.strip() for name in names.split(",")]
    if len(parts) != 2:
        raise InputError(f"--views {names} is not a pair of names; give two, such as --views audio,text.")
    return check_view_names(parts)


def read_metadata_columns(names: str | None) -> list[str] | Literal["all"] | None:
    """Return the columns of ``--metadata``."""
    if names is None or names.strip() == "all":
        return None if names is None else "all"
    columns = [name.strip() for name in names.split(",")]
    if "" in columns:
        raise InputError(
            f"--metadata {names!r} has no name between two commas; give names, such as year,tag."
        )
    return columns


def refuse_unused(ctx: typer.Context, names: Iterable[str], reason: str) -> None:
    """Raise an error for options that were set but have no effect; ``reason`` continues "has no effect"."""
    options = {param.name: param.opts[0] for param in ctx.command.params}
    refuse_settings([options[name] for name in names if is_set(ctx, name)], reason)


def refuse_settings(names: list[str], reason: str) -> None:
    """Raise an error for settings, by name, that have no effect."""
    if names:
        has, it = ("has", "it") if len(names) == 1 else ("have", "them")
        raise InputError(f"{' and '.join(names)} {has} no effect {reason}; leave {it} out.")


def is_set(ctx: typer.Context, name: str) -> bool:
    """Return whether an option was given by the user."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")


def read_settings(
    ctx: typer.Context, path: Path | None, **allowed: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Read a ``--config`` file: for each allowed table, its settings under the names of the Python API.

    A table or key that is not allowed, and a key that an option of the command sets too, is an error.
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
            if key in ctx.params and is_set(ctx, key):
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


def list_model_settings(preset: str | None) -> list[str]:
    """Return the parameters that ``[model]`` may set: those of AWCCA, or of Fusion for a preset."""
    from diptych.cca import AWCCA
    from diptych.fusion import PRESETS, Fusion

    if preset is None:
        return [name for name in AWCCA().get_params() if name != "verbose"]
    names = Fusion(check_choice(preset, tuple(PRESETS), "preset")).get_params()
    return [name for name in names if name not in ("preset", "blocks", "parts", "verbose")]


def list_hkse_settings() -> list[str]:
    """Return the parameters that ``[hkse]`` may set; the vectors have an option, a tokenizer is code."""
    from diptych.text import HKSE

    return [name for name in HKSE().get_params() if name not in ("vectors", "tokenizer")]


def make_hkse(vectors: Path | None, random_state: int, settings: dict[str, Any]) -> HKSE:
    """Return an unfitted HKSE; ``settings`` are those of ``[hkse]``."""
    from diptych.text import HKSE

    return HKSE(vectors, **{"random_state": random_state} | settings)


def make_image_encoder(
    names: list[str] | None, recipe: str | None = None, weights: Path | None = None
) -> Any:
    """Return the image encoder of the options, or a list of several, as ``Retriever`` takes them.

    Bare names are kept, so that a model can add its recipes.
    """
    for option, value in (("--recipe", recipe), ("--weights", weights)):
        if value is not None and not names:
            raise InputError(f"{option} needs --image-encoder; give both.")
        if value is not None and len(names or ()) > 1:
            raise InputError(
                f"{option} is for one --image-encoder, and {len(names or ())} were given; write the recipe "
                "into a JSON file beside each network, or give the encoders in Python."
            )
    if not names:
        return None
    if recipe is not None or weights is not None:
        from diptych.image import image_encoder

        return image_encoder(names[0], recipe, weights=weights)
    own = [_open_own_image_encoder(name) for name in names]
    return own if len(own) > 1 else own[0]


def _open_own_image_encoder(name: str) -> Any:
    from diptych.image import ImageEncoder

    own = load_from_file(name)
    if own is not None and not isinstance(own, ImageEncoder):
        raise InputError(f"{name} is not an encoder; make one with diptych.image.FunctionEncoder.")
    return name if own is None else own


def make_text_encoder(names: list[str] | None, device: str = "cpu", hkse: HKSE | str = "hkse") -> Any:
    """Return the text encoder of the options, or a list of several, as ``Retriever`` takes them.

    ``hkse`` is what that name stands for: an HKSE to fit, or the one that is stored with a model.
    """
    if not names:
        return None
    own = [hkse if name == "hkse" else _open_text_encoder(name, device) for name in names]
    return own if len(own) > 1 else own[0]


def _open_text_encoder(name: str, device: str) -> Any:
    """Return a saved or named text encoder; ``auto`` stays a name."""
    if name == "auto":
        return name
    from diptych._persistence import POINTER
    from diptych.text import HKSE, sentence_encoder

    if (Path(name) / POINTER).is_file():
        return HKSE.load(name)
    if (own := load_from_file(name)) is not None:
        return sentence_encoder(own)
    return sentence_encoder(name, device=None if device == "cpu" else device)


def take_one(names: list[str] | None, option: str) -> list[str] | None:
    """Return the names of an option of ``encode``, which takes one encoder."""
    if names is not None and len(names) > 1:
        raise InputError(
            f"encode takes one {option}, and {len(names)} were given; run it once for each, or use fit."
        )
    return names


def load_from_file(name: str) -> Any:
    """Return the object that FILE.py:NAME names in a Python file of the user; None for any other name.

    Only a command runs such a file: what a model folder names is never run.
    """
    path, _, own = name.rpartition(":")
    if not path.endswith(".py"):
        return None
    if not Path(path).is_file():
        raise InputError(f"{path} does not exist or is not a file; check the path.")
    spec = spec_from_file_location(Path(path).stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(spec.name, module)  # dataclasses and pickle look it up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} could not be run ({type(error).__name__}: {error}).") from error
    if not hasattr(module, own):
        raise InputError(f"{path} has no {own!r}; give FILE.py:NAME, the name of an encoder in it.")
    return getattr(module, own)


def open_data(
    source: Path,
    texts: Path | None,
    pairs: Path | None,
    images: Path | None,
    table: TableOptions = TableOptions(),  # noqa: B008
) -> PairedDataset | PairedViews:
    """Open what a command works on: pairs with images, or features of both views."""
    import numpy as np

    from diptych.data import PairedDataset, PairedViews, join, open_features, read_pairs

    if texts is None:
        if pairs is not None:
            raise InputError("--pairs needs two files of features; give both, or the pairs alone.")
        return read_pairs(source, images=images, **vars(table))
    if pairs is not None and pairs.suffix != ".npy":
        dataset = read_pairs(pairs, images=images, **vars(table))
        return join(dataset, _open_features(source), _open_features(texts))
    if images is not None or replace(table, views=IMAGE_AND_TEXT) != TableOptions():
        raise InputError(
            "--images, --image-column, --caption-column, --encoding and --metadata need a table of pairs; "
            "leave them out, or give one."
        )
    x, y = open_features(source), open_features(texts)
    pairing = np.arange(len(y)) if pairs is None else _read_pairing(pairs, len(y))
    if pairs is None and len(x) != len(y):
        raise InputError(
            f"{source} has {len(x)} rows and {texts} has {len(y)}; say which belong together with --pairs."
        )
    if len(pairing) and int(pairing.max()) >= len(x):
        raise InputError(f"{pairs} names row {int(pairing.max())}, but {source} has rows 0 to {len(x) - 1}.")
    ids = tuple(str(i) for i in range(len(x)))
    encoders = _read_encoder(source), _read_encoder(texts)
    dataset = PairedDataset(ids, ("",) * len(y), pairing, views=table.views)
    return PairedViews(dataset, x, y, encoders=encoders)


def _open_features(path: Path) -> Any:
    from diptych.data import FeatureStore, open_features

    # A feature store knows its ids, so images that could not be read are left out of the pairs.
    return FeatureStore.open(path) if path.is_dir() else open_features(path)


def _read_encoder(path: Path) -> str:
    """Return the fingerprint of the encoder that made a feature store; "" for other files."""
    from diptych.data import FeatureStore

    return FeatureStore.open(path).job.encoder if path.is_dir() else ""


def _read_pairing(path: Path, n: int) -> np.ndarray[Any, Any]:
    import numpy as np

    from diptych._persistence import map_npy

    pairing = map_npy(path)
    if pairing.shape != (n,) or pairing.dtype.kind not in "iu" or (n and pairing.min() < 0):
        raise InputError(
            f"{path} holds {pairing.dtype}{list(pairing.shape)}; expected {n} row numbers, one for each text."
        )
    return pairing.astype(np.int64)


@contextmanager
def open_engine(address: str | None) -> Iterator[Any]:
    """Yield the engine of ``--dask``, if any: a Dask cluster, or one on this machine."""
    if address is None:
        yield None
        return
    from diptych.distributed import DaskEngine

    with DaskEngine(None if address == "local" else address) as engine:
        yield engine
