"""What an experiment is: jobs that give plain numbers, and how the numbers are shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from diptych._checks import TASKS
from diptych.paper._cache import Result
from diptych.paper._setting import Setting
from diptych.paper._tables import ReportTable
from diptych.report._page import Best, Html, Row

Results: TypeAlias = dict[str, Result]
"""Results of an experiment's jobs, by label."""
Table: TypeAlias = list[dict[str, Any]]
Part: TypeAlias = str | Html | ReportTable
"""What a section of the report is made of; its tables are written as files too."""

RECALL_NAMES = ("r@1", "r@5", "r@10", "med r")


@dataclass(frozen=True)
class Job:
    """One step: what is computed, under which label; it is finished or not, and never half."""

    label: str
    compute: Callable[[], Result]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes
    ----------
    name
        As ``--only`` takes it.
    title
        Its heading in the report.
    jobs
        The steps for a setting.
    show
        The parts of its section, from the results of the jobs.
    tables
        Its numbers as named tables of plain rows, for CSV.
    """

    name: str
    title: str
    jobs: Callable[[Setting], list[Job]]
    show: Callable[[Setting, Results], list[Part]]
    tables: Callable[[Results], dict[str, Table]]


def recall_table(
    name: str,
    first: Sequence[str],
    rows: Sequence[Row | Sequence[Any]],
    *,
    median: bool = True,
    bold: bool = True,
    caption: str = "",
) -> ReportTable:
    """A table with ``first`` columns, then the recalls of search and of annotate under their names."""
    names = RECALL_NAMES if median else RECALL_NAMES[:3]
    best: dict[int, Best] = {
        len(first) + i: "low" if name == "med r" else "high" for i, name in enumerate(names * len(TASKS))
    }
    groups = [*(("", 1) for _ in first), *((task, len(names)) for task in TASKS)]
    columns = [*first, *(names * len(TASKS))]
    return ReportTable(name, columns, rows, caption=caption, best=best if bold else None, groups=groups)


def recall_cells(scores: Mapping[str, Any], *, median: bool = True) -> list[float | None]:
    """The cells of a row: r@1, r@5, r@10 and the median rank of search, then of annotate."""
    names = ("r@1", "r@5", "r@10", "median_rank") if median else ("r@1", "r@5", "r@10")
    return [scores[task][name] if task in scores else None for task in TASKS for name in names]


def recall_record(scores: Mapping[str, Any]) -> dict[str, float]:
    """The same for a file of numbers."""
    return {f"{task} {name}": value for task in TASKS for name, value in scores.get(task, {}).items()}


def mean_scores(runs: Sequence[Mapping[str, Any]]) -> Result:
    """The mean of every metric of both tasks over runs."""
    return {
        task: {name: sum(run[task][name] for run in runs) / len(runs) for name in runs[0][task]}
        for task in TASKS
    }


def mean_runs(runs: Sequence[Mapping[str, Any]]) -> Result:
    """The mean scores of runs, and the ranks of each run's queries for comparisons."""
    ranks = {task: [run["query_ranks"][task] for run in runs] for task in TASKS}
    return {**mean_scores(runs), "query_ranks": ranks}


def published_row(names: Sequence[str], values: Sequence[float | None]) -> Row:
    """A row of published figures, with the digits they were published with."""
    return Row([*names, *(None if value is None else f"{value}" for value in values)], "quiet")


def head_row(words: str) -> Row:
    """A row that names those below it."""
    return Row([words], "head")
