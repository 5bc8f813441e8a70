"""Experiment 8: a sentence and its nearest images, laid out in the plane under three embeddings."""

from __future__ import annotations

import numpy as np

from diptych.paper._cache import Result, digest
from diptych.paper._embedding import Embedder, first
from diptych.paper._experiment import Experiment, Job, Part, Results, Table
from diptych.paper._figures import draw_planes
from diptych.paper._setting import Setting
from diptych.paper._sources import Floats, Rows
from diptych.paper._weighted import Pair
from diptych.paper._weighting import sweep
from diptych.report._page import figure

VERSION = 1
WAYS: dict[str, Pair] = {
    "query generation (ΣUᵀx, Vᵀy)": (1.0, 0.0),
    "CCA (Uᵀx, Vᵀy)": (0.0, 0.0),
    "search generation (Uᵀx, ΣVᵀy)": (0.0, 1.0),
}
PLANE_GRID = 5


def _planes(setting: Setting) -> Result:
    image, text = setting.image, setting.hkse
    grid = ("log", PLANE_GRID)
    pairs = tuple(WAYS.values())
    best = sweep(setting, image, text, setting.run.validation, pairs, grid)

    def compute() -> Result:
        rows = setting.run.test
        embedded = {
            way: Embedder(setting, "search", tuple(best["search 1"][i]["params"])).views(rows, powers=pair)
            for i, (way, pair) in enumerate(WAYS.items())
        }
        count = min(setting.options.neighbours, len(rows))
        query = _sentence(embedded, count, setting.seed)
        captions = setting.materials.dataset.caption_rows(rows)
        truth = int(next(iter(embedded.values()))[2][query])
        panels = {}
        for way, (x, y, _) in embedded.items():
            order = first(x @ y[query], len(x))
            near = order[:count]
            places = in_the_plane(np.vstack([x[near], y[query : query + 1]]), setting.seed)
            panels[way] = {
                "rows": rows[near],
                "places": places[:-1].round(3),
                "query": places[-1].round(3),
                "truth": int(rows[truth]),
                "rank": int(np.flatnonzero(order == truth)[0]) + 1,
            }
        return {"panels": panels, "sentence": setting.materials.dataset.captions[int(captions[query])]}

    inputs = {"best": best["search 1"], "neighbours": setting.options.neighbours, "ways": WAYS}
    inputs |= {"seed": setting.seed, "test": digest(setting.run.test)}
    return setting.remember("plane", VERSION, (image, text), inputs, compute)


def _sentence(embedded: dict[str, tuple[Floats, Floats, Rows]], count: int, seed: int) -> int:
    """The first sentence, in random order, whose picture is among the nearest under every embedding."""
    pairing = next(iter(embedded.values()))[2]
    order = np.random.default_rng(seed).permutation(len(pairing))
    for query in order:
        if all(pairing[query] in first(x @ y[query], count) for x, y, _ in embedded.values()):
            return int(query)
    return int(order[0])


def perplexity(points: int) -> float:
    """Of t-SNE: 12, or a quarter of the points where there are few."""
    return min(12.0, max(2.0, (points - 1) / 4))


def in_the_plane(points: Floats, seed: int) -> Floats:
    """t-SNE of unit vectors by cosine."""
    from sklearn.manifold import TSNE

    found = TSNE(
        2, perplexity=perplexity(len(points)), metric="cosine", init="random", random_state=seed, n_jobs=1
    ).fit_transform(points.astype(np.float64))
    return np.asarray(found, dtype=np.float64)


def _show_planes(setting: Setting, results: Results) -> list[Part]:
    found = results["plane: t-SNE"]
    count = len(next(iter(found["panels"].values()))["rows"])
    return [
        f"“{found['sentence']}” (★) and the {count} nearest test pictures under three embeddings, laid out "
        f"by t-SNE on cosines ({setting.image.name}, {setting.hkse.name}; each embedding with its own best "
        f"truncated SVD by r@1 on the validation images over a {PLANE_GRID} × {PLANE_GRID} grid even in "
        f"log σ², guided Tikhonov there; perplexity {perplexity(count + 1):g}, random start, seed "
        f"{setting.seed}). The sentence is the first of a random order whose right picture, boxed in blue, "
        "is among the nearest under all three.",
        figure(
            draw_planes(found["panels"], setting.materials.picture),
            "Distances in the plane are those that t-SNE keeps: near neighbours, not lengths.",
            "Three planes of pictures around a sentence",
            raster=True,
        ),
    ]


def _plane_tables(results: Results) -> dict[str, Table]:
    panels = results["plane: t-SNE"]["panels"]
    return {
        "plane": [
            {"embedding": way, "image row": row, "x": place[0], "y": place[1], "right": row == panel["truth"]}
            for way, panel in panels.items()
            for row, place in zip(panel["rows"], panel["places"], strict=True)
        ]
    }


PLANE = Experiment(
    "plane",
    "The space around a sentence",
    lambda setting: [Job("plane: t-SNE", lambda: _planes(setting))],
    _show_planes,
    _plane_tables,
)
