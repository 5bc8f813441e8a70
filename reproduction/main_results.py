"""Tables 5 and 6, the main results: asymmetric weighting with all image and text features."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from diptych.ranking import ranks, summary
from diptych.report import Row, paragraph
from reproduction.data import YOURS
from reproduction.experiment import Content, Experiment, Jobs, Results, select_and_test
from reproduction.features import Features
from reproduction.results import TASKS, Result, Rows, digest
from reproduction.setting import AS_PUBLISHED, OURS, Setting
from reproduction.tables import (
    PUBLISHED,
    PublishedRow,
    ReportTable,
    head_row,
    mean_runs,
    mean_scores,
    published,
    published_row,
    recall_table,
)

METHODS = (
    ("guided", "guided", "rank"),
    ("guided, k even in log σ²", "guided", "log"),
    ("Tikhonov", "tikhonov", "log"),
)
"""Name, filter, and how the grid is spaced."""
TITLES = {
    AS_PUBLISHED: "Image features as they are, as in the paper",
    OURS: "Ours, not the paper's: square roots of image features, rows of unit length",
}
CHANCE_DIMENSIONS = 32
RECALLS = ("r@1", "r@5", "r@10")


def _jobs(setting: Setting) -> Jobs:
    """List one job for each pair of features and seed, and one for chance."""
    pairs = setting.feature_pairs()
    jobs: Jobs = {}
    for name in setting.texts:
        # All images of one text and seed in a row: its captions are embedded once.
        places = [i for i, (_, _, text) in enumerate(pairs) if text.name == name]
        is_drawn = pairs[places[0]][2].seeded or "flickr30k-paper" in setting.data.protocols
        for seed in range(setting.options.seeds if is_drawn else 1):
            for i in places:
                kind, image, text = pairs[i]
                label = f"{image.name} ({kind}) × {text.name}, seed {seed}"
                jobs[label] = partial(_score_pair, setting, i, seed)
    return {**jobs, "chance": partial(chance, setting)}


def _score_pair(setting: Setting, position: int, seed: int) -> Result:
    seeded = setting.with_seed(seed)
    kind, image, text = seeded.feature_pairs()[position]
    inputs = {"kind": kind, "grid": setting.options.grid, "methods": METHODS}
    result = seeded.fetch(
        "main", (image, text), inputs, lambda: {"rows": list(_score_methods(seeded, image, text))}
    )
    names = {"images": image.name, "features": kind, "text": text.name, "seed": seed}
    return {"rows": [{**names, **row} for row in result["rows"]]}


def _score_methods(setting: Setting, image: Features, text: Features) -> Iterator[Result]:
    for protocol, plan in setting.plans.items():
        # Runs with the same validation images share the selection.
        tests: dict[str, tuple[Rows, list[Rows]]] = {}
        for run in plan.runs:
            tests.setdefault(digest(run.validation), (run.validation, []))[1].append(run.test)
        for name, filter_name, spacing in METHODS:
            runs = [
                scores
                for validation, rows in tests.values()
                for scores in select_and_test(setting, image, text, validation, rows, filter_name, spacing)
            ]
            yield {"protocol": protocol, "method": name, **mean_runs(runs)}


def chance(setting: Setting) -> Result:
    """Score random embeddings under each protocol: the floor of every table."""

    def compute() -> Result:
        rng = np.random.default_rng(setting.seed)
        rows = []
        for protocol, plan in setting.plans.items():
            runs: list[Result] = []
            for run in plan.runs:
                captions = setting.data.dataset.caption_rows(run.test)
                pairing = np.searchsorted(run.test, setting.data.dataset.pairing[captions])
                x, y = (rng.standard_normal((n, CHANCE_DIMENSIONS)) for n in (len(run.test), len(captions)))
                runs.append({task: summary(ranks(x, y, pairing, task=task)) for task in TASKS})
            rows.append({"protocol": protocol, "method": "random embeddings", **mean_scores(runs)})
        return {"rows": rows}

    return setting.fetch("chance", (), {}, compute)


def merge_seeds(results: Results) -> list[Result]:
    """Merge the rows that differ only in their seed: the mean and, over several seeds, the spread."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results.values():
        for row in result["rows"]:
            names = ("protocol", "features", "images", "text", "method")
            groups.setdefault(tuple(str(row.get(name, "")) for name in names), []).append(row)
    return [
        {
            **rows[0],
            **mean_scores(rows),
            "seeds": len(rows),
            "spread": {
                f"{task} {name}": float(np.std([row[task][name] for row in rows], ddof=1))
                for task in TASKS
                for name in RECALLS
                if len(rows) > 1
            },
        }
        for rows in groups.values()
    ]


def _show(setting: Setting, results: Results) -> list[Content]:
    rows = merge_seeds(results)
    grid = f"{setting.options.grid} × {setting.options.grid}"
    parts: list[Content] = []
    for protocol, plan in setting.plans.items():
        run, count = plan.runs[0], len(plan.runs)
        parts.append(
            f"Protocol {protocol}: {len(plan.train):,} training images, {len(run.validation):,} validation "
            f"and {len(run.test):,} test images{f', the mean of {count} runs' if count > 1 else ''}. Every "
            "caption is a search query with one right image; every image is an annotation query, and the "
            "rank of its best own caption counts. Filters are selected for each task by r@1 on the "
            f"validation images, on a {grid} grid: guided with k evenly spaced in rank as in the paper, "
            "guided with k evenly spaced in log σ², and Tikhonov."
        )
        protocol_rows = [row for row in rows if row["protocol"] == protocol]
        parts += [_table(protocol, features, protocol_rows) for features in TITLES]
    note = (
        "Rows in italics are published figures. One standard error of a recall near 25 % over 1,000 images "
        "is about 1.4 points; the section on claims gives differences with their intervals."
    )
    note += " ± is the standard deviation over seeds." if setting.options.seeds > 1 else ""
    names = [features.name for features in (*setting.data.images, *setting.data.texts)]
    note += f" {YOURS} marks your own features." if any(name.endswith(YOURS) for name in names) else ""
    if any(name.startswith("VGG-16") for name in names):
        note += (
            " VGG-16 on one view of each image is not the paper's VGG-19 with ten crops: its rows cannot be "
            "compared with the published ones."
        )
    return [*parts, paragraph(note, note=True)]


def _table(protocol: str, features: str, rows: list[Result]) -> ReportTable:
    feature_rows = [row for row in rows if row.get("features") == features]
    is_as_published = features == AS_PUBLISHED and protocol in PUBLISHED
    published_rows = list(published(PUBLISHED[protocol]).rows) if is_as_published else []
    guided = [row for row in published_rows if row.method == "guided"]
    body: list[Row | list[Any]] = []
    for text in dict.fromkeys([*(row["text"] for row in feature_rows), *(row.text for row in guided)]):
        body.append(head_row(text))
        body += [_published(row) for row in guided if row.text == text]
        body += [
            [row["images"], row["method"], *_cells(row)]
            for images in dict.fromkeys(row["images"] for row in feature_rows)
            for row in feature_rows
            if row["text"] == text and row["images"] == images
        ]
    if published_rows:
        body.append(head_row("Other methods, published"))
        body += [_published(row) for row in published_rows if row.method != "guided"]
    body.append(head_row("Chance"))
    body += [["", row["method"], *_cells(row)] for row in rows if row["method"] == "random embeddings"]
    name = f"main_{protocol}" + ("_ours" if features == OURS else "")
    return recall_table(
        name.replace("-", "_"), ["images", "filter or method"], body, caption=TITLES[features]
    )


def _published(row: PublishedRow) -> Row:
    method = row.method if row.method == "guided" else ", ".join(filter(None, [row.method, row.text]))
    return published_row([row.images, f"{method} (published, {row.by})"], row.values)


def _cells(row: Result) -> list[Any]:
    cells: list[Any] = []
    for task in TASKS:
        for name in RECALLS:
            spread, value = row["spread"].get(f"{task} {name}"), row[task][name]
            cells.append(f"{value:.1f} ± {spread:.1f}" if spread is not None else value)
        median = row[task]["median_rank"]
        cells.append(int(median) if float(median).is_integer() else median)
    return cells


MAIN = Experiment("main", ("Table 5", "Table 6"), "Main tables", _jobs, _show)
