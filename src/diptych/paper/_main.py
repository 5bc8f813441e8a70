"""Experiment 1, the main tables: asymmetric weighting with every image and text feature at hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from diptych._checks import TASKS
from diptych.paper._cache import Result, digest
from diptych.paper._claims import PublishedRow, published
from diptych.paper._discovery import YOURS
from diptych.paper._experiment import (
    Experiment,
    Job,
    Part,
    Results,
    Table,
    head_row,
    mean_runs,
    mean_scores,
    published_row,
    recall_record,
    recall_table,
)
from diptych.paper._selecting import selected_and_tested
from diptych.paper._setting import OURS, Setting
from diptych.paper._sources import Rows, Source
from diptych.paper._tables import ReportTable
from diptych.ranking import ranks, summary
from diptych.report._page import Row, paragraph

VERSION = 2
METHODS = (
    ("guided", "guided", "rank"),
    ("guided, k even in log σ²", "guided", "log"),
    ("Tikhonov", "tikhonov", "log"),
)
"""Name, filter, and how the grid is spaced."""
PUBLISHED = {"flickr8k": "main/flickr8k", "coco-1k": "main/coco-1k", "coco-5k": "main/coco-5k"}
PUBLISHED |= {"flickr30k-paper": "main/flickr30k", "flickr30k-karpathy": "main/flickr30k"}
CHANCE_DIMENSIONS = 32
_MINE = "guided"


def jobs(setting: Setting) -> list[Job]:
    """One job for each pair of features and seed, and one for chance."""
    pairs = setting.pairs_of_features()
    found = []
    for name in setting.texts:
        # All images of one text and seed in a row: its captions are embedded once.
        own = [position for position, (_, _, text) in enumerate(pairs) if text.name == name]
        drawn = pairs[own[0]][2].seeded or "flickr30k-paper" in setting.materials.protocols
        for seed in range(setting.options.seeds if drawn else 1):
            for position in own:
                kind, image, text = pairs[position]
                label = f"main: {image.name} ({kind}) × {text.name}, seed {seed}"
                found.append(Job(label, _row(setting, position, seed)))
    return [*found, Job("main: chance", lambda: chance(setting))]


def _row(setting: Setting, position: int, seed: int) -> Any:
    def compute() -> Result:
        seeded = setting.with_seed(seed)
        kind, image, text = seeded.pairs_of_features()[position]
        inputs = {"kind": kind, "grid": setting.options.grid, "methods": METHODS}
        found = seeded.remember(
            "main", VERSION, (image, text), inputs, lambda: {"rows": list(_scores(seeded, image, text))}
        )
        named = {"images": image.name, "features": kind, "text": text.name, "seed": seed}
        return {"rows": [{**named, **row} for row in found["rows"]]}

    return compute


def _scores(setting: Setting, image: Source, text: Source) -> Iterator[Result]:
    for protocol, plan in setting.plans.items():
        # Runs that share their validation images share the choice.
        shared: dict[str, tuple[Rows, list[Rows]]] = {}
        for run in plan.runs:
            shared.setdefault(digest(run.validation), (run.validation, []))[1].append(run.test)
        for name, filter_name, spacing in METHODS:
            runs = [
                scores
                for validation, tests in shared.values()
                for scores in selected_and_tested(
                    setting, image, text, validation, tests, filter_name, spacing
                )
            ]
            yield {"protocol": protocol, "method": name, **mean_runs(runs)}


def chance(setting: Setting) -> Result:
    """What the protocol gives for embeddings that know nothing: the floor of every table."""

    def compute() -> Result:
        rng = np.random.default_rng(setting.seed)
        rows = []
        for protocol, plan in setting.plans.items():
            runs: list[Result] = []
            for run in plan.runs:
                captions = setting.materials.dataset.caption_rows(run.test)
                pairing = np.searchsorted(run.test, setting.materials.dataset.pairing[captions])
                x, y = (rng.standard_normal((n, CHANCE_DIMENSIONS)) for n in (len(run.test), len(captions)))
                runs.append({task: summary(ranks(x, y, pairing, task=task)) for task in TASKS})
            rows.append({"protocol": protocol, "method": "random embeddings", **mean_scores(runs)})
        return {"rows": rows}

    return setting.remember("chance", VERSION, (), {}, compute)


def merged(results: Results) -> list[Result]:
    """Rows with their seeds brought together: mean and, over several seeds, spread."""
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in results.values():
        for row in result["rows"]:
            key = tuple(
                str(row.get(name, "")) for name in ("protocol", "features", "images", "text", "method")
            )
            groups.setdefault(key, []).append(row)
    found = []
    for rows in groups.values():
        row = {**rows[0], **mean_scores(rows), "seeds": len(rows)}
        row["spread"] = {
            f"{task} {name}": float(np.std([each[task][name] for each in rows], ddof=1))
            for task in TASKS
            for name in ("r@1", "r@5", "r@10")
            if len(rows) > 1
        }
        found.append(row)
    return found


def show(setting: Setting, results: Results) -> list[Part]:
    """One table per protocol and set of features, published rows beside ours."""
    rows = merged(results)
    parts: list[Part] = []
    for protocol, plan in setting.plans.items():
        run, count = plan.runs[0], len(plan.runs)
        parts.append(
            f"Protocol {protocol}: {len(plan.train):,} training images, {len(run.validation):,} validation "
            f"and {len(run.test):,} test images{f', the mean of {count} runs' if count > 1 else ''}; every "
            "caption is a search query with one right image, every image an annotation query whose best own "
            "caption counts. Filters are chosen for each task by r@1 on validation images, on a "
            f"{setting.options.grid} × {setting.options.grid} grid: guided with k evenly spaced in rank as "
            "in the paper, guided with k evenly spaced in log σ², and Tikhonov."
        )
        mine = [row for row in rows if row["protocol"] == protocol]
        for features in ("as they are", OURS):
            title = (
                "Image features as they are, as in the paper"
                if features == "as they are"
                else "Ours, not the paper's: square roots of image features, rows of unit length"
            )
            parts.append(_table(protocol, features, mine, title))
    spread = " ± is the standard deviation over seeds." if setting.options.seeds > 1 else ""
    parts.append(
        paragraph(
            "Italic rows are published figures, not ours. One standard error of a recall near 25 % over "
            f"1,000 images is about 1.4 points; differences and their intervals are with the claims.{spread}"
            + _marks(setting),
            note=True,
        )
    )
    return parts


def _marks(setting: Setting) -> str:
    names = [source.name for source in (*setting.materials.images, *setting.materials.texts)]
    words = f" {YOURS} marks your own features." if any(name.endswith(YOURS) for name in names) else ""
    if any(name.startswith("VGG-16") for name in names):
        words += " VGG-16 on one view of each image is not the paper's VGG-19 with ten crops: its rows and "
        words += "the published ones are not comparable."
    return words


def _table(protocol: str, features: str, rows: list[Result], title: str) -> ReportTable:
    theirs = list(published(PUBLISHED[protocol]).rows) if protocol in PUBLISHED else []
    mine = [row for row in rows if row.get("features") == features]
    beside = theirs if features == "as they are" else []
    body: list[Row | list[Any]] = []
    for text in dict.fromkeys([*(row["text"] for row in mine), *(r.text for r in beside if _is_aw(r))]):
        body.append(head_row(text))
        body += [_published(row) for row in beside if _is_aw(row) and row.text == text]
        body += [
            [row["images"], row["method"], *_cells(row)]
            for images in dict.fromkeys(row["images"] for row in mine)
            for row in mine
            if row["text"] == text and row["images"] == images
        ]
    if beside:
        body.append(head_row("Other methods, published"))
        body += [_published(row) for row in beside if not _is_aw(row)]
    body.append(head_row("Chance"))
    body += [["", row["method"], *_cells(row)] for row in rows if row["method"] == "random embeddings"]
    name = f"main_{protocol}" + ("_ours" if features == OURS else "")
    return recall_table(name.replace("-", "_"), ["images", "filter or method"], body, caption=title)


def _is_aw(row: PublishedRow) -> bool:
    return row.method == _MINE


def _published(row: PublishedRow) -> Row:
    method = "guided" if _is_aw(row) else ", ".join(filter(None, [row.method, row.text]))
    return published_row([row.images, f"{method} (published, {row.by})"], row.values)


def _cells(row: Result) -> list[Any]:
    cells: list[Any] = []
    for task in TASKS:
        for name in ("r@1", "r@5", "r@10"):
            spread = row["spread"].get(f"{task} {name}")
            value = row[task][name]
            cells.append(f"{value:.1f} ± {spread:.1f}" if spread is not None else value)
        median = row[task]["median_rank"]
        cells.append(int(median) if float(median).is_integer() else median)
    return cells


def tables(results: Results) -> dict[str, Table]:
    """Every row with its numbers."""
    names = ("protocol", "features", "images", "text", "method", "seeds")
    return {
        "main": [
            {**{name: row.get(name, "") for name in names}, **recall_record(row)}
            | {f"{key} spread": value for key, value in row["spread"].items()}
            for row in merged(results)
        ]
    }


MAIN = Experiment("main", "Main tables", jobs, show, tables)
