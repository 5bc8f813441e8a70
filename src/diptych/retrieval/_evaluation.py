"""How well a model retrieves known pairs: metrics, their intervals, and files of them for other programs."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias
from urllib.parse import quote

import numpy as np

from diptych._arrays import move_like, to_numpy
from diptych._checks import InputError, Similarity, Task, check_count, check_task
from diptych._devices import copy_to_device
from diptych._persistence import replace_file
from diptych.ranking import bootstrap_intervals, pair_ranks
from diptych.ranking._metrics import METRICS, summarize_pairs
from diptych.ranking._ranks import best_items

if TYPE_CHECKING:
    from diptych.cca import Projector
    from diptych.data import PairedDataset

Part: TypeAlias = tuple[Any, Any, Any]
"""Features of images, features of captions, and the pairing."""

Intervals: TypeAlias = dict[str, dict[str, tuple[float, float]]]

TITLES = dict(
    zip(METRICS, ("r@1", "r@5", "r@10", "median rank", "mean rank", "MRR", "nDCG@10", "mAP@R"), strict=True)
)
"""What people call the metrics."""

# Readers split a line wherever Python's str.split does; % is what the escapes begin with.
_UNSAFE = re.compile(r"[\s%\x00-\x1f\x7f]")


@dataclass(frozen=True, eq=False)
class _Ranking:
    """Vectors of one task whose similarities rank, and the place of each pair's item in its query's list."""

    x: Any
    y: Any
    similarity: Similarity
    places: np.ndarray[Any, Any]


class Evaluation(dict[str, dict[str, float]]):
    """Metrics of each task on known pairs, as ``Retriever.evaluate`` returns them.

    ``result["search"]["r@1"]`` is one of them. Recalls (``"r@1"``, ``"r@5"``, ``"r@10"``), ``"mrr"``,
    ``"ndcg@10"`` and ``"map@r"`` are in percent; ``"median_rank"`` and ``"mean_rank"`` are ranks, and 1 is
    the best. Ties count against the model.

    Examples
    --------
    >>> from diptych import Retriever
    >>> from diptych.data import PairedDataset, PairedViews
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(200, 8))
    >>> y = x[:, :6] + 0.5 * rng.normal(size=(200, 6))
    >>> retriever = Retriever.from_features(x[:150], y[:150])
    >>> new = PairedDataset.of([(f"image {i}", ["a caption"]) for i in range(50)])
    >>> result = retriever.evaluate(PairedViews(new, x[150:], y[150:]), None)
    >>> low, high = result.intervals()["search"]["ndcg@10"]
    >>> low < result["search"]["ndcg@10"] < high
    True
    """

    def __init__(self, rankings: Mapping[Task, _Ranking], dataset: PairedDataset) -> None:
        super().__init__(
            {
                task: summarize_pairs(ranking.places, _queries(task, dataset.pairing))
                for task, ranking in rankings.items()
            }
        )
        self._rankings, self._dataset = rankings, dataset

    @property
    def galleries(self) -> dict[str, int]:
        """How many items each task searched; metrics of larger galleries are lower."""
        return {"search": self._dataset.n_images, "annotate": self._dataset.n_captions}

    def intervals(
        self, n_resamples: int = 1000, *, confidence: float = 0.95, random_state: int | None = 0
    ) -> Intervals:
        """Return for each task and metric the limits of its bootstrap interval, ``(low, high)``.

        Images are resampled, each with its captions; the items that are searched stay the same. See
        ``diptych.ranking.bootstrap_intervals``.
        """
        pairing = self._dataset.pairing
        return {
            task: bootstrap_intervals(
                ranking.places,
                _queries(task, pairing),
                pairing,
                n_resamples=n_resamples,
                confidence=confidence,
                random_state=random_state,
            )
            for task, ranking in self._rankings.items()
        }

    def write_run(
        self, path: str | os.PathLike[str], *, task: str = "search", depth: int = 100, tag: str = "diptych"
    ) -> None:
        """Write the first ``depth`` items of every query as a TREC run: ``query Q0 item rank score tag``.

        ``ranx``, ``ir_measures`` and ``trec_eval`` read it together with the file of ``write_qrels``.
        Whitespace and ``%`` in ids are percent-encoded; ``urllib.parse.unquote`` decodes them. A file that
        exists is replaced.
        """
        chosen, n_items = check_task(task), check_count(depth, "depth")
        ranking, (queries, items) = self._rankings[chosen], self._ids(chosen)
        if _UNSAFE.search(tag) or not tag:
            raise InputError(f"tag={tag!r} is not one word; give a name without spaces.")

        def lines() -> Iterator[str]:
            remaining, pairing = iter(queries), move_like(self._dataset.pairing, ranking.x)
            vectors = ranking.x, ranking.y
            blocks = best_items(*vectors, pairing, n_items, task=chosen, similarity=ranking.similarity)
            for columns, scores in blocks:
                for row, values in zip(to_numpy(columns).tolist(), to_numpy(scores), strict=True):
                    query = next(remaining)
                    # As NumPy writes a float32, no two different ones become equal.
                    for rank, (item, score) in enumerate(zip(row, values, strict=True), 1):
                        yield f"{query} Q0 {items[item]} {rank} {score} {tag}\n"

        _write(path, lambda file: file.writelines(lines()))

    def write_qrels(self, path: str | os.PathLike[str], *, task: str = "search") -> None:
        """Write which items are right for each query as TREC qrels: ``query 0 item 1``; see ``write_run``."""
        chosen = check_task(task)
        images, captions = self._escaped()
        pairs = zip(self._dataset.pairing.tolist(), captions, strict=True)
        rows = (
            (caption, images[row]) if chosen == "search" else (images[row], caption) for row, caption in pairs
        )
        _write(path, lambda file: file.writelines(f"{query} 0 {item} 1\n" for query, item in rows))

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a row for each task and metric, with its interval: ``task,metric,value,low,high``."""
        limits = self.intervals()

        def write(file: TextIO) -> None:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["task", "metric", "value", "low", "high"])
            for task, metrics in self.items():
                table.writerows([task, name, value, *limits[task][name]] for name, value in metrics.items())

        _write(path, write)

    def write_latex(self, path: str | os.PathLike[str]) -> None:
        r"""Write a ``tabular`` with a row for each metric, for ``\usepackage{booktabs}``."""
        limits = self.intervals()
        rows = [[title, *self.cells(name, limits)] for name, title in TITLES.items()]
        lines = [
            r"% needs \usepackage{booktabs}; intervals of 95 %, bootstrap over images",
            rf"\begin{{tabular}}{{l{'r' * len(self)}}}",
            r"\toprule",
            " & ".join(["metric", *self]) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        _write(path, lambda file: file.write("\n".join(lines) + "\n"))

    def cells(self, name: str, limits: Intervals) -> list[str]:
        """Return a metric of each task with its interval, as tables show it."""
        digits = 0 if name == "median_rank" else 1
        return [
            f"{metrics[name]:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
            for task, metrics in self.items()
            for low, high in [limits[task][name]]
        ]

    def _escaped(self) -> tuple[list[str], list[str]]:
        """Return the ids of images and captions as TREC files have them."""
        data = self._dataset
        return list(map(_escape, data.image_ids)), list(map(_escape, data.caption_ids))

    def _ids(self, task: Task) -> tuple[Sequence[str], Sequence[str]]:
        """Return the ids of a task's queries, in the order of the ranking, and of its items."""
        images, captions = self._escaped()
        if task == "search":
            return captions, images
        return [images[row] for row in np.unique(self._dataset.pairing)], captions


def rank_pairs(projectors: Mapping[Task, Projector], part: Part, device: str = "cpu") -> dict[Task, _Ranking]:
    """Rank some pairs for both tasks, on a device."""
    x, y, pairing = part
    rankings = dict[Task, _Ranking]()
    for task, projector in projectors.items():
        features = {"x": x, "y": y}
        items, queries = projector.to_similarity(
            projector.items(features[projector.searched]), projector.queries(features[projector.queried])
        )
        vectors = {projector.searched: items, projector.queried: queries}
        of_x, of_y, rows = vectors["x"], vectors["y"], pairing
        if device != "cpu":
            of_x, of_y, rows = (copy_to_device(np.asarray(array), device) for array in (of_x, of_y, rows))
        similarity: Similarity = "l2" if projector.euclidean else "cosine"
        places = pair_ranks(of_x, of_y, rows, task=task, similarity=similarity)
        rankings[task] = _Ranking(of_x, of_y, similarity, to_numpy(places))
    return rankings


def measure_metrics(
    projectors: Mapping[Task, Projector], part: Part, device: str = "cpu"
) -> dict[str, dict[str, float]]:
    """Return the metrics of both tasks on some pairs, computed on a device."""
    rankings = rank_pairs(projectors, part, device)
    return {task: summarize_pairs(r.places, _queries(task, part[2])) for task, r in rankings.items()}


def _queries(task: Task, pairing: Any) -> Any:
    """Return the query of each pair, by number; None if each caption is one."""
    return pairing if task == "annotate" else None


def _escape(item_id: str) -> str:
    if not item_id:
        raise InputError("an id is empty, which a TREC file cannot express; give every item an id.")
    return _UNSAFE.sub(lambda sign: quote(sign[0], safe=""), item_id)


def _write(path: str | os.PathLike[str], write: Callable[[TextIO], Any]) -> None:
    with replace_file(path) as staged, open(staged, "w", encoding="utf-8", newline="") as file:
        write(file)
