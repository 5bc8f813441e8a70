"""What a third view brings to retrieval: ``python benchmarks/multiview.py [--validation]``.

ResNet-50, DINOv2-S and MiniLM features of Flickr8k's images and captions, 30,000 rows: every caption with its
image. Models are fitted on the training split, and choose their parameters for each task by r@1 on the
validation split, among those of this file. With ``--validation`` the test split is not read.
"""

from __future__ import annotations

from measuring import load_flickr8k, log_test_run, pin_threads, record, split_flickr8k

pin_threads(2)

import argparse  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from typing import Any, TypeAlias  # noqa: E402

import numpy as np  # noqa: E402

from diptych import AWCCA  # noqa: E402
from diptych._threads import one_blas_thread  # noqa: E402
from diptych.cca._generalized import ViewSpectra, find_places, generalized_cca  # noqa: E402
from diptych.ranking import ranks, recall_at_k  # noqa: E402

TASKS = ("search", "annotate")
SHARES, COMPONENTS = (0.3, 1.0, 3.0), (128, 256, 512)
DIMENSIONS, ROUNDS = (128, 256, 381), 10
RESNET, DINO, TEXT = range(3)

NOTE = (
    "r@1 (search / annotate) of DINOv2-S, or of both image views, × MiniLM. Both: concatenated features for "
    "AW-CCA, which tries 12 × 12 values of γ, and the sum of both vectors elsewhere. Generalised CCA: γ of "
    f"all views is one multiple of their mean squared singular value ({', '.join(map(str, SHARES))}), with "
    f"the first {', '.join(map(str, COMPONENTS))} components; the view that is searched is weighted by the "
    "regularised correlation of images and texts, as AW-CCA does. Procrustes: orthogonal maps of "
    f"{', '.join(map(str, DIMENSIONS))} principal components of each view, of equal total variance, that "
    "bring each closest to the sum of the others."
)

Embed: TypeAlias = Callable[[int, np.ndarray], np.ndarray]
"""From the number of a view and its features to vectors."""

Candidate: TypeAlias = tuple[Embed, dict[int, np.ndarray]]
"""Vectors, and weights of their components for each image view."""


class Split:
    """Both image views, captions, and their pairing."""

    def __init__(self, images: np.ndarray, texts: np.ndarray, pairing: np.ndarray) -> None:
        self.views, self.pairing = (images[:, :2048], images[:, 2048:], texts), pairing

    def recall(self, candidate: Candidate, images: tuple[int, ...], task: str) -> float:
        """Return r@1; the image views are summed."""
        embed, weights = candidate
        x, y = sum(embed(view, self.views[view]) for view in images), embed(TEXT, self.views[TEXT])
        weight = np.maximum(sum(weights[view] for view in images), 0.0)
        x, y = (x * weight, y) if task == "search" else (x, y * weight)
        return recall_at_k(ranks(x, y, self.pairing, task=task), 1)


def take_views(spectra: ViewSpectra, first: int) -> ViewSpectra:
    """Return the spectra without the views before ``first``."""
    start = sum(len(s) for s, _ in spectra.axes[:first])
    cross = spectra.cross[start:, start:]
    return ViewSpectra(spectra.count, spectra.means[first:], spectra.axes[first:], cross, spectra.resolution)


def fit_gcca(spectra: ViewSpectra, first: int) -> Iterator[Candidate]:
    places = find_places([len(s) for s, _ in spectra.axes])
    for share in SHARES:
        _, weights = generalized_cca(spectra, spectra.scale_gammas(share), max(COMPONENTS))
        inner = [v.T @ u for u, (_, v) in zip(weights, spectra.axes, strict=True)]
        products = spectra.cross[:, places[-1]] @ inner[-1]
        shared = {
            view: np.sum(inner[view - first] * products[places[view - first]], axis=0)
            for view in range(first, TEXT)
        }
        for k in COMPONENTS:
            maps, weight = [u[:, :k] for u in weights], {view: each[:k] for view, each in shared.items()}
            yield make_embed(spectra, maps, first), weight


def fit_procrustes(spectra: ViewSpectra, first: int) -> Iterator[Candidate]:
    """Rotate each view to the sum of the others, one after another."""
    places = find_places([len(s) for s, _ in spectra.axes])
    for k in DIMENSIONS:
        cut = [slice(at.start, at.start + k) for at in places]
        scales = [np.linalg.norm(s[:k]) for s, _ in spectra.axes]
        turns = [np.eye(k)]
        for step in range(1, ROUNDS * len(cut)):
            view = step % len(cut)
            others = [w for w in range(len(turns)) if w != view]
            target = sum(spectra.cross[cut[view], cut[w]] @ turns[w] / scales[w] for w in others)
            left, _, right = np.linalg.svd(target)
            turns[view : view + 1] = [left @ right]
        parts = zip(spectra.axes, turns, scales, strict=True)
        yield (
            make_embed(spectra, [v[:, :k] @ turn / scale for (_, v), turn, scale in parts], first),
            np.ones(k),
        )


def make_embed(spectra: ViewSpectra, maps: list[np.ndarray], first: int) -> Embed:
    return lambda view, rows: (rows - spectra.means[view - first]) @ maps[view - first]


def measure(tried: list[Candidate], images: tuple[int, ...], splits: dict[str, Split]) -> dict[str, str]:
    """Return r@1 on each split of the candidates that are best on validation, one for each task."""
    best = {
        task: max(tried, key=lambda candidate: splits["validation"].recall(candidate, images, task))
        for task in TASKS
    }
    return {
        name: " / ".join(f"{split.recall(best[task], images, task):.1f}" for task in TASKS)
        for name, split in splits.items()
    }


def measure_awcca(training: Split, images: tuple[int, ...], splits: dict[str, Split]) -> dict[str, str]:
    def pairs(split: Split) -> tuple[Any, Any, Any]:
        return np.hstack([split.views[view] for view in images]), split.views[TEXT], split.pairing

    model = AWCCA(grid=12).fit(*pairs(training), validation=pairs(splits["validation"]))
    return {
        name: " / ".join(f"{model.score(*pairs(split), task=task):.1f}" for task in TASKS)
        for name, split in splits.items()
    }


def measure_all(names: tuple[str, ...]) -> list[dict[str, str]]:
    resnet, texts, pairing = load_flickr8k("resnet50-sqrt", "minilm")
    dino, _, _ = load_flickr8k("dinov2s-halves", "minilm")
    training, *unseen = (Split(*split) for split in split_flickr8k(np.hstack([resnet, dino]), texts, pairing))
    splits = dict(zip(names, unseen, strict=False))
    with one_blas_thread():
        repeated = [training.views[view][training.pairing] for view in (RESNET, DINO)]
        spectra = ViewSpectra.of([*repeated, training.views[TEXT]])
    tried = {
        f"{method}, {3 - first} views": list(fit(take_views(spectra, first), first))
        for method, fit in (("generalised CCA", fit_gcca), ("Procrustes", fit_procrustes))
        for first in (1, 0)
    }
    rows = []
    for name, images in (("DINOv2-S", (DINO,)), ("both", (RESNET, DINO))):
        rows.append({"method": "AW-CCA", "images": name} | measure_awcca(training, images, splits))
        for method, candidates in tried.items():
            if len(images) == 1 or method.endswith("3 views"):
                rows.append({"method": method, "images": name} | measure(candidates, images, splits))
                print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--validation", action="store_true", help="do not read the test split")
    if parser.parse_args().validation:
        measure_all(("validation",))
        return
    with log_test_run(__file__) as logged:
        logged += (rows := measure_all(("validation", "test")))
    record("multiview", rows, NOTE)


if __name__ == "__main__":
    main()
