"""``fit`` and ``evaluate``: from feature files to a model, and what it is worth."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from diptych.cca import AWCCA
from diptych.checks import TASKS, InputError, check_choice
from diptych.cli.console import AsJson, Quiet, Threads, limited_to, said_plainly, say
from diptych.data import FeatureStore, PairedDataset, PairedViews, join, open_features, read_pairs
from diptych.ranking import retrieval_scores

Images = Annotated[
    Path, typer.Argument(metavar="IMAGES", help="Features of the first view, one row an item.")
]
Texts = Annotated[Path, typer.Argument(metavar="TEXTS", help="Features of the second view.")]
Pairs = Annotated[
    Path | None,
    typer.Option(
        help="Which text belongs to which image: a pairs file or folder (its splits are used), or a .npy of "
        "row numbers of IMAGES. Without it, rows pair in order."
    ),
]
Device = Annotated[str, typer.Option(help="cpu, or a torch device such as cuda.")]


def fit(
    images: Images,
    texts: Texts,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the model to.")],
    pairs: Pairs = None,
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
    random_state: Annotated[int, typer.Option(help="Seed of the held-out choice.")] = 0,
    solver: Annotated[str, typer.Option(help="auto, gram or svd.")] = "auto",
    precision: Annotated[str, typer.Option(help="float64 or float32.")] = "float64",
    path_metrics: Annotated[str, typer.Option(help="metric or all.")] = "metric",
    normalize: Annotated[
        str, typer.Option(help="Of IMAGES,TEXTS: none, unit, signed-sqrt or sqrt-unit each.")
    ] = "none,none",
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model on feature files; select its regularisation; report recalls on the test split.

    Example: `diptych fit resnet50.npy minilm.npy --pairs dataset_flickr8k.json --out model`
    """
    with said_plainly(), limited_to(threads):
        views = open_views(images, texts, pairs)
        training, validation, test = (on_device(part, device) for part in splits_of(views))
        model = AWCCA(
            filter=filter,
            params=None if params is None else _pair(params, "params"),
            grid=_grid(grid),
            metric=metric,
            weighting=_pair(weighting, "weighting") if "," in weighting else weighting,  # type: ignore[arg-type]
            similarity=similarity,  # type: ignore[arg-type]
            n_components=_components(n_components),
            validation_fraction=validation_fraction,
            random_state=random_state,
            solver=solver,  # type: ignore[arg-type]
            precision=precision,  # type: ignore[arg-type]
            path_metrics=path_metrics,
            normalize=tuple(part.strip() for part in normalize.split(",")),  # type: ignore[arg-type]
            verbose=not (quiet or as_json),
        )
        start = time.perf_counter()
        model.fit(*training, validation=validation if params is None or n_components == "auto" else None)
        seconds = time.perf_counter() - start
        model.save(out)
        found = describe(model, out, seconds)
        found["validation"] = recalls(model, validation)
        found["test"] = recalls(model, test)
        say(found, quiet, as_json)


def evaluate(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder that fit wrote.")],
    images: Images,
    texts: Texts,
    pairs: Pairs = None,
    split: Annotated[str, typer.Option(help="Of a split pairs file: train, val, test, or all.")] = "test",
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Recalls of a fitted model, both ways.

    Example: `diptych evaluate model resnet50.npy minilm.npy --pairs dataset_flickr8k.json --split test`
    """
    with said_plainly(), limited_to(threads):
        check_choice(split, ("train", "val", "test", "all"), "split")
        fitted = AWCCA.load(model)
        views = open_views(images, texts, pairs)
        every = split == "all" or views.dataset.splits is None
        part = views.of(np.arange(views.dataset.n_images)) if every else views.split(split)
        if len(part[0]) == 0:
            raise InputError(f"{pairs} has no {split} split; choose another with --split.")
        say({split if not every else "all": recalls(fitted, on_device(part, device))}, quiet, as_json)


def open_views(images: Path, texts: Path, pairs: Path | None) -> PairedViews:
    """Features and pairs from files."""
    if pairs is not None and pairs.suffix != ".npy":
        return join(read_pairs(pairs), _stored(images), _stored(texts))
    x, y = open_features(images), open_features(texts)
    pairing = np.arange(len(y)) if pairs is None else _pairing(pairs, len(y))
    if pairs is None and len(x) != len(y):
        raise InputError(
            f"{images} has {len(x)} rows and {texts} has {len(y)}; say which belong together with --pairs."
        )
    if len(pairing) and int(pairing.max()) >= len(x):
        raise InputError(f"{pairs} names row {int(pairing.max())}, but {images} has rows 0 to {len(x) - 1}.")
    ids = tuple(str(i) for i in range(len(x)))
    return PairedViews(PairedDataset(ids, tuple(str(j) for j in range(len(y))), pairing), x, y)


def splits_of(views: PairedViews) -> tuple[Any, Any, Any]:
    """Training, validation and test pairs; None for a split that is not there."""
    if views.dataset.splits is None:
        return views.of(np.arange(views.dataset.n_images)), None, None
    sizes = views.dataset.split_sizes()
    if "train" not in sizes:
        raise InputError("the pairs have no train split; mark some images as train.")
    training, validation, test = (views.split(s) if s in sizes else None for s in ("train", "val", "test"))
    return training, validation, test


def on_device(part: Any, device: str) -> Any:
    """Arrays on a torch device; NumPy stays NumPy on the CPU."""
    if part is None or device == "cpu":
        return part
    try:
        import torch
    except ImportError:
        raise InputError(
            f'--device {device} needs torch; install it with: pip install "diptych[torch]"'
        ) from None
    try:
        return tuple(torch.as_tensor(np.ascontiguousarray(array), device=device) for array in part)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"--device {device} is not to be had here ({str(error).splitlines()[0]}).") from None


def recalls(model: AWCCA, part: Any) -> dict[str, dict[str, float]] | None:
    """Retrieval scores of both tasks on some pairs."""
    if part is None:
        return None
    x, y, pairing = part
    found = {}
    for task in TASKS:
        ex, ey = model.transform(x, y, task=task)
        found[str(task)] = retrieval_scores(ex, ey, pairing, task=task, similarity=model.similarity)
    return found


def describe(model: AWCCA, out: Path, seconds: float) -> dict[str, Any]:
    """What was fitted, and how long it took."""
    path = model.path_
    found: dict[str, Any] = {
        "model": os.fspath(out),
        "pairs": model.spectra_.count,
        "seconds": {"all": round(seconds, 3)},
        "filters": {
            task: [str(model.models_[task].filter_x), str(model.models_[task].filter_y)] for task in TASKS
        },
        "components": {task: int(model.models_[task].correlations.shape[0]) for task in TASKS},
    }
    if path is not None:
        found["seconds"] = {
            "spectra and models": round(seconds - path.seconds, 3),
            f"selection ({path.grid.shape[0]} × {path.grid.shape[1]} grid, {path.route})": round(
                path.seconds, 3
            ),
        }
        found["selected on"] = path.held_out
    return found


def _stored(path: Path) -> Any:
    # A feature store knows its ids, so pictures that could not be read are left out of the pairs.
    return FeatureStore.open(path) if path.is_dir() else open_features(path)


def _pairing(path: Path, n: int) -> np.ndarray[Any, Any]:
    try:
        pairing: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(
            f"{path} is not an array of row numbers ({error}); write it with numpy.save."
        ) from None
    if pairing.shape != (n,) or pairing.dtype.kind not in "iu" or (n and pairing.min() < 0):
        raise InputError(
            f"{path} holds {pairing.dtype}{list(pairing.shape)}; expected {n} row numbers, one for each text."
        )
    return pairing.astype(np.int64)


def _pair(text: str, name: str) -> tuple[float, float]:
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} {text!r} is not two numbers; give them as 0.5,2.") from None
    return first, second


def _grid(text: str) -> Any:
    spacing, _, points = text.rpartition(",")
    if not points.strip().isdigit():
        raise InputError(f"--grid {text!r} is not a grid; give a number, or log,20 or rank,20.")
    return (spacing.strip(), int(points)) if spacing else int(points)


def _components(text: str | None) -> Any:
    if text is None or text == "auto":
        return text
    if not text.isdigit():
        raise InputError(f"--n-components {text!r} is not a dimension; give a whole number, or auto.")
    return int(text)
