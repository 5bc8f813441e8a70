"""Figures 3, 7 and 8: a caption among its nearest images in the plane, and queries with their hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from PIL import Image

from diptych import InputError
from diptych.cca import Tikhonov, normalize, project, regularized_cca
from diptych.encoders import tokenize
from diptych.report import ShownHit, figure, heading, show_hits
from reproduction.comparisons import ASYMMETRIC, Powers, sweep
from reproduction.experiment import (
    BLUE,
    VERMILLION,
    Content,
    Experiment,
    Results,
    guided_gammas,
    new_figure,
    select,
)
from reproduction.results import TASKS, Floats, Result, Rows, Task
from reproduction.setting import Setting

WEIGHTINGS: dict[str, Powers] = {
    "query generation (ΣUᵀx, Vᵀy)": (1.0, 0.0),
    "CCA (Uᵀx, Vᵀy)": (0.0, 0.0),
    "search generation (Uᵀx, ΣVᵀy)": (0.0, 1.0),
}
PLANE_GRID = 5
SHOWN, EXAMPLES, PACKS = 6, 3, 3


class _Embedder:
    """Guided Tikhonov at ``params`` (k of either view), on the features of the single experiments."""

    def __init__(self, setting: Setting, params: tuple[int, int], powers: Powers) -> None:
        self._setting, self._spectra = setting, setting.spectra(setting.image, setting.hkse)
        g_x, g_y = guided_gammas(self._spectra, params)
        self._model = regularized_cca(self._spectra, Tikhonov(g_x), Tikhonov(g_y))
        self._factors = [self._model.correlations**power for power in powers]

    def embed(self, rows: Rows, *, packs: bool = False) -> tuple[Floats, Floats, Rows]:
        """Return unit vectors of some images and of their captions (or packs), and their pairing."""
        setting, spectra = self._setting, self._spectra
        x, y, pairing = (setting.packs if packs else setting.views)(setting.image, setting.hkse, rows)
        u = project(x, spectra.x_mean, self._model.x_weights) * self._factors[0]
        return normalize(u), self._embed_texts(y), pairing

    def embed_text(self, text: str) -> Floats:
        """Return the unit vector of a text that need not be a caption."""
        if not any(word in self._setting.words.vectors for word in tokenize(text)):
            raise InputError(f"no word of the query {text!r} has a vector; ask with other words.")
        features = self._setting.hkse.embed([text])
        return np.asarray(self._embed_texts(features)[0])

    def _embed_texts(self, y: Floats) -> Floats:
        v = project(y, self._spectra.y_mean, self._model.y_weights)
        return np.asarray(normalize(v * self._factors[1]))


def largest(scores: Floats, number: int) -> Floats:
    """Return the places of the ``number`` largest scores, the largest first.

    >>> largest(np.array([0.1, 0.9, 0.5]), 2)
    array([1, 2])
    """
    return np.argsort(-scores, kind="stable")[:number]


def _lay_out(setting: Setting) -> Result:
    weightings = tuple(WEIGHTINGS.values())
    grid = ("log", PLANE_GRID)
    best = sweep(setting, setting.hkse, setting.run.validation, weightings, grid)["search 1"]

    def compute() -> Result:
        rows, wanted = setting.run.test, setting.options.query
        embedders = {
            name: _Embedder(setting, point["params"], powers)
            for point, (name, powers) in zip(best, WEIGHTINGS.items(), strict=True)
        }
        vectors = {name: embedder.embed(rows) for name, embedder in embedders.items()}
        captions = [setting.data.dataset.captions[int(j)] for j in setting.data.dataset.caption_rows(rows)]
        count = min(setting.options.neighbours, len(rows))
        row: int | None
        if wanted is None:
            row = _choose_caption(list(vectors.values()), count, setting.seed)
        else:
            row = next((j for j, text in enumerate(captions) if tokenize(text) == tokenize(wanted)), None)
        panels = {}
        for name, (x, y, pairing) in vectors.items():
            assert row is not None or wanted is not None
            query = y[row] if row is not None else embedders[name].embed_text(str(wanted))
            order = largest(x @ query, len(x))
            nearest, truth = order[:count], None if row is None else int(pairing[row])
            places = reduce_to_plane(np.vstack([x[nearest], query]), setting.seed)
            panels[name] = {
                "rows": rows[nearest],
                "places": places[:-1].round(3),
                "query": places[-1].round(3),
                "truth": None if truth is None else int(rows[truth]),
                "rank": None if truth is None else int(np.flatnonzero(order == truth)[0]) + 1,
            }
        return {"panels": panels, "caption": str(wanted) if row is None else captions[row]}

    inputs = {
        "best": best,
        "neighbours": setting.options.neighbours,
        "seed": setting.seed,
        "query": setting.options.query,
    }
    return setting.fetch("plane", (setting.image, setting.hkse), inputs, compute)


def _choose_caption(vectors: list[tuple[Floats, Floats, Rows]], count: int, seed: int) -> int:
    """Return the first caption, in random order, whose image is among the nearest under every weighting."""
    pairing = vectors[0][2]
    order = np.random.default_rng(seed).permutation(len(pairing))
    for query in order:
        if all(pairing[query] in largest(x @ y[query], count) for x, y, _ in vectors):
            return int(query)
    return int(order[0])


def _perplexity(points: int) -> float:
    return min(12.0, max(2.0, (points - 1) / 4))


def reduce_to_plane(points: Floats, seed: int) -> Floats:
    """Lay out unit vectors in the plane by t-SNE on cosines."""
    from sklearn.manifold import TSNE

    options = {"metric": "cosine", "init": "random", "random_state": seed, "n_jobs": 1}
    tsne = TSNE(2, perplexity=_perplexity(len(points)), **options)
    return np.asarray(tsne.fit_transform(points.astype(np.float64)), dtype=np.float64)


THUMBNAIL_SIDE = 56


def draw_planes(
    panels: Mapping[str, Mapping[str, Any]], load_image: Callable[[int], Image.Image | None]
) -> Any:
    """Draw a caption and the images around it, one panel per weighting.

    ``panels`` has for each title: ``rows`` (images), ``places`` (n × 2), ``query`` (the caption's place),
    ``truth`` (the row of the right image) and ``rank`` (its rank), which are None for a text that is no
    caption. Images without a file are drawn as dots.
    """
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    figure = new_figure(11.4, 4.3)
    for axes, (title, panel) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        places, query = np.array(panel["places"], dtype=float), np.array(panel["query"], dtype=float)
        # The right image is drawn last, above the others.
        nearest = zip(panel["rows"], places, strict=True)
        for row, place in sorted(nearest, key=lambda item: bool(item[0] == panel["truth"])):
            right = row == panel["truth"]
            image = load_image(row)
            if image is None:
                axes.plot(*place, marker="o", color=BLUE if right else "0.6", markersize=9 if right else 6)
                continue
            small = image.copy()
            small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            frame = {"edgecolor": BLUE if right else "0.7", "linewidth": 3.2 if right else 0.4}
            content = OffsetImage(np.asarray(small.convert("RGB")), zoom=0.62)
            axes.add_artist(AnnotationBbox(content, place, pad=0.22 if right else 0.02, bboxprops=frame))
        axes.plot(*query, marker="*", markersize=19, color=VERMILLION, markeredgecolor="white", zorder=10)
        points = np.vstack([places, query])
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.1 * (high - low) + 1e-9
        axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("0.8")
        rank = "" if panel["rank"] is None else f"\nthe right image has rank {panel['rank']}"
        axes.set_title(title + rank, fontsize=9)
    return figure


def _show_plane(setting: Setting, results: Results) -> list[Content]:
    result = results["t-SNE"]
    count = len(next(iter(result["panels"].values()))["rows"])
    return [
        f"“{result['caption']}” (★) and the {count} nearest test images under three weightings, laid out by "
        f"t-SNE on cosines ({setting.image.name}, {setting.hkse.name}). Each weighting has its own best "
        f"truncated SVD by r@1 on the validation images over a {PLANE_GRID} × {PLANE_GRID} grid even in log "
        f"σ², and the model is guided Tikhonov there. Perplexity {_perplexity(count + 1):g}, random start, "
        f"seed {setting.seed}. {_describe_query(setting, result)}",
        figure(
            draw_planes(result["panels"], setting.data.load_image),
            "t-SNE keeps near neighbours near; distances in the plane have no other meaning.",
            "Images around a caption under three weightings",
            raster=True,
        ),
    ]


def _describe_query(setting: Setting, result: Result) -> str:
    if setting.options.query is None:
        return (
            "The caption is the first of a random order whose image, framed in blue, is among the nearest "
            "under all three."
        )
    if next(iter(result["panels"].values()))["rank"] is None:
        return "The text was given; it is no caption of a test image, so no image is the right one."
    return "The caption was given; its image is framed in blue where it is among the nearest."


def _find_examples(setting: Setting) -> Result:
    choice = select(setting, setting.image, setting.hkse, setting.run.validation, "tsvd", "rank")
    params = {task: choice[task]["params"] for task in TASKS}

    def compute() -> Result:
        dataset, rows = setting.data.dataset, setting.run.test
        captions = dataset.caption_rows(rows)
        embedders: dict[Task, _Embedder] = {
            task: _Embedder(setting, params[task], ASYMMETRIC[task]) for task in TASKS
        }
        rng = np.random.default_rng(setting.seed)
        x, y, pairing = embedders["search"].embed(rows)
        search = []
        for query in _draw_examples(np.array([np.argmax(x @ v) for v in y]) == pairing, rng):
            scores = x @ y[query]
            search.append(
                {
                    "caption": dataset.captions[int(captions[query])],
                    "truth": int(rows[pairing[query]]),
                    "rank": int(np.sum(scores > scores[pairing[query]])) + 1,
                    "hits": [{"row": int(rows[i]), "score": scores[i]} for i in largest(scores, SHOWN)],
                }
            )
        x, y, pairing = embedders["annotate"].embed(rows)
        annotate = []
        is_right = pairing[np.array([np.argmax(y @ u) for u in x])] == np.arange(len(x))
        for query in _draw_examples(is_right, rng):
            scores = y @ x[query]
            hits = [
                {
                    "caption": dataset.captions[int(captions[j])],
                    "score": scores[j],
                    "right": bool(pairing[j] == query),
                }
                for j in largest(scores, SHOWN)
            ]
            annotate.append({"row": int(rows[query]), "hits": hits})
        return {
            "search": search,
            "annotate": annotate,
            "packs": _find_packs(setting, embedders["annotate"], rng),
        }

    inputs = {"params": params, "seed": setting.seed}
    return setting.fetch("examples", (setting.image, setting.hkse), inputs, compute)


def _draw_examples(is_right: Any, rng: np.random.Generator) -> list[int]:
    """Draw ``EXAMPLES`` queries whose first hit is right and as many whose first hit is wrong."""
    return [
        int(i)
        for wanted in (True, False)
        for i in rng.permutation(np.flatnonzero(is_right == wanted))[:EXAMPLES]
    ]


def _find_packs(setting: Setting, embedder: _Embedder, rng: np.random.Generator) -> list[Result]:
    """Describe some test images by the nearest packs of captions of training images."""
    dataset = setting.data.dataset
    queries = np.sort(rng.permutation(setting.run.test)[:EXAMPLES])
    x, _, _ = embedder.embed(queries)
    _, packs, _ = embedder.embed(setting.train, packs=True)
    described = np.array([row for row in setting.train if len(dataset.caption_rows([row]))])
    examples = []
    for row, query in zip(queries, x, strict=True):
        scores = packs @ query
        hits = [
            {
                "score": scores[i],
                "captions": [dataset.captions[j] for j in dataset.caption_rows([int(described[i])])],
            }
            for i in largest(scores, PACKS)
        ]
        examples.append({"row": int(row), "packs": hits})
    return examples


def _show_examples(setting: Setting, results: Results) -> list[Content]:
    result = results["queries"]

    def image(row: int) -> Image.Image | str:
        return setting.data.load_image(row) or setting.data.dataset.image_ids[row]

    parts: list[Content] = [
        f"Test queries drawn at random: {EXAMPLES} whose first hit is right and {EXAMPLES} whose first hit "
        f"is wrong ({setting.image.name}, {setting.hkse.name}, guided). Numbers are cosines.",
        heading("Search: a caption and the images found for it"),
    ]
    for example in result["search"]:
        query = f"“{example['caption']}” The right image has rank {example['rank']}."
        hits = [ShownHit(image(h["row"]), h["score"], h["row"] == example["truth"]) for h in example["hits"]]
        parts.append(show_hits(query, hits))
    parts.append(heading("Annotation: an image and the captions found for it"))
    for example in result["annotate"]:
        hits = [ShownHit(hit["caption"], hit["score"], hit["right"]) for hit in example["hits"]]
        parts.append(show_hits(image(example["row"]), hits))
    parts.append(heading("Packs: a test image and the nearest packs of training captions"))
    for example in result["packs"]:
        hits = [ShownHit(" / ".join(pack["captions"]), pack["score"]) for pack in example["packs"]]
        parts.append(show_hits(image(example["row"]), hits))
    return parts


PLANE = Experiment(
    "plane",
    ("Figure 3",),
    "The space around a caption",
    lambda setting: {"t-SNE": partial(_lay_out, setting)},
    _show_plane,
)
EXAMPLES_SHOWN = Experiment(
    "examples",
    ("Figure 7", "Figure 8"),
    "Examples",
    lambda setting: {"queries": partial(_find_examples, setting)},
    _show_examples,
)
