"""Experiments 4 and 11: one regularisation against another, and cosine against ℓ2."""

from __future__ import annotations

from typing import Any

from diptych.paper._cache import Result
from diptych.paper._claims import published
from diptych.paper._experiment import (
    Experiment,
    Job,
    Part,
    Results,
    Table,
    head_row,
    mean_runs,
    published_row,
    recall_cells,
    recall_record,
    recall_table,
)
from diptych.paper._selecting import selected_and_tested
from diptych.paper._setting import Setting
from diptych.paper._sources import Source
from diptych.report._page import Row

VERSION = 2
FILTERS = {"Tikhonov": "tikhonov", "T-SVD": "tsvd", "guided": "guided"}
SPACINGS = {"rank": "evenly spaced in rank, as in the paper", "log": "evenly spaced in log σ², our default"}


def _compared(
    setting: Setting, text: Source, filters: dict[str, str], spacing: str, similarity: str
) -> Result:
    plan = next(p for p in setting.plans.values() if any(run is setting.run for run in p.runs))
    image = setting.image

    def compute() -> Result:
        rows = {}
        for name, filter_name in filters.items():
            runs = [
                selected_and_tested(
                    setting, image, text, run.validation, [run.test], filter_name, spacing, similarity
                )[0]
                for run in plan.runs
            ]
            rows[name] = mean_runs(runs)
        return {"rows": rows}

    inputs = {"filters": filters, "spacing": spacing, "similarity": similarity, "grid": setting.options.grid}
    return setting.remember(f"regularization {spacing} {similarity}", VERSION, (image, text), inputs, compute)


def _jobs(setting: Setting) -> list[Job]:
    return [
        Job(
            f"regularization: {spacing}",
            lambda spacing=spacing: _compared(setting, setting.mean_words, FILTERS, spacing, "cosine"),  # type: ignore[misc]
        )
        for spacing in SPACINGS
    ]


def _show(setting: Setting, results: Results) -> list[Part]:
    theirs = published("regularization/flickr30k")
    body: list[Row | list[Any]] = []
    for spacing, words in SPACINGS.items():
        body.append(head_row(f"Ours: {setting.materials.title}, {setting.image.name}; grid {words}"))
        rows = results[f"regularization: {spacing}"]["rows"]
        body += [[name, *recall_cells(row, median=False)] for name, row in rows.items()]
    body.append(head_row(f"Published: {theirs.setting}"))
    body += [published_row([row.method], row.values) for row in theirs.rows]
    return [
        "Mean word vectors, asymmetric weighting. Guided Tikhonov takes γ = σ²_k at the k that truncated SVD "
        f"chose. Each is selected by r@1 on a {setting.options.grid} × {setting.options.grid} grid of "
        "validation scores.",
        recall_table("regularization", ["filter"], body, median=False),
    ]


def _tables(results: Results) -> dict[str, Table]:
    return {
        "regularization": [
            {"grid": spacing, "filter": name, **recall_record(row)}
            for spacing in SPACINGS
            for name, row in results[f"regularization: {spacing}"]["rows"].items()
        ]
    }


def _similarity_jobs(setting: Setting) -> list[Job]:
    guided = {"guided": "guided"}
    return [
        Job(
            f"similarity: {text.name}, {similarity}",
            lambda text=text, similarity=similarity: _compared(setting, text, guided, "rank", similarity),  # type: ignore[misc]
        )
        for text in (setting.mean_words, setting.hkse)
        for similarity in ("cosine", "l2")
    ]


def _show_similarity(setting: Setting, results: Results) -> list[Part]:
    body: list[Row | list[Any]] = []
    for text in (setting.mean_words, setting.hkse):
        body.append(head_row(f"{setting.image.name}, {text.name}, guided"))
        for similarity, words in (("cosine", "cosine"), ("l2", "ℓ2 distance")):
            scores = results[f"similarity: {text.name}, {similarity}"]["rows"]["guided"]
            body.append([words, *recall_cells(scores)])
    return [
        "The same embeddings compared by cosine or by Euclidean distance (Remark 1), each with filters that "
        "were selected for it. The paper gives no figures.",
        recall_table("similarity", ["compared by"], body, bold=False),
    ]


def _similarity_tables(results: Results) -> dict[str, Table]:
    return {
        "similarity": [
            {"setting": label.removeprefix("similarity: "), **recall_record(result["rows"]["guided"])}
            for label, result in results.items()
        ]
    }


REGULARIZATION = Experiment(
    "regularization", "Regularisation: Tikhonov, T-SVD, guided", _jobs, _show, _tables
)
SIMILARITY = Experiment(
    "similarity", "Cosine against ℓ2", _similarity_jobs, _show_similarity, _similarity_tables
)
