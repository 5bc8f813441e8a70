"""How well each text fits its image: scores of given pairs, beside those of held-out pairs.

The score of a pair is the mean over the projectors of both tasks, without a hubness correction. So it can be
compared between pairs, as scores of hits cannot.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from diptych._checks import TASKS, InputError, Task
from diptych._persistence import Schema, replace_file
from diptych.cca._projector import Projector

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_QUANTILES = 201
_BLOCK = 4096

_Score: TypeAlias = Annotated[float, msgspec.Meta(ge=-1e100, le=1e100)]
_Scores: TypeAlias = Annotated[tuple[_Score, ...], msgspec.Meta(min_length=2, max_length=1001)]


class PairReference(Schema, frozen=True):
    """Scores of held-out pairs at evenly spaced quantiles, from the least to the greatest.

    ``true`` are the pairs as they are; for ``false`` each text has another image, drawn at random.
    """

    true: _Scores
    false: _Scores

    def __post_init__(self) -> None:
        """Refuse quantiles that fall."""
        if any(np.any(np.diff(scores) < 0) for scores in (self.true, self.false)):
            raise InputError("the scores of held-out pairs fall; expected quantiles that increase")

    @classmethod
    def measure(
        cls, projectors: Mapping[Task, Projector], x: Any, y: Any, pairing: Integers
    ) -> PairReference:
        """Measure the reference on held-out pairs."""
        others = exchange(pairing, len(x), np.random.default_rng(0))
        levels = np.linspace(0, 1, _QUANTILES)
        true, false = (
            tuple(np.quantile(mean_scores(projectors, x, y, rows), levels).tolist())
            for rows in (pairing, others)
        )
        return cls(true, false)


class PairScore(NamedTuple):
    """How well a text fits its image.

    ``score`` is a cosine, or minus a distance for a model with ``similarity="l2"``. The percentiles say which
    share of the held-out true pairs, and of false ones, has a smaller score; None if none were measured.
    """

    score: float
    true_percentile: float | None
    false_percentile: float | None


@dataclass(frozen=True, eq=False)
class PairScores:
    """How well texts fit their images, as ``Retriever.score_pairs`` returns it: one ``PairScore`` for each.

    Attributes
    ----------
    scores
        An array with the score of each pair.
    true_percentiles, false_percentiles
        Arrays with the share, in percent, of held-out true pairs, and of held-out texts with an image drawn
        at random, that have a smaller score; None if the model has no such reference.
    absent
        Why there are no percentiles; None if there are.
    """

    scores: Floats
    true_percentiles: Floats | None = None
    false_percentiles: Floats | None = None
    absent: str | None = None

    @classmethod
    def compare(cls, scores: Floats, reference: PairReference | str) -> PairScores:
        """Return scores with their percentiles; or with the reason why there is no reference."""
        if isinstance(reference, str):
            return cls(scores, absent=reference)
        true, false = (
            np.interp(scores, quantiles, np.linspace(0, 100, len(quantiles)))
            for quantiles in (reference.true, reference.false)
        )
        return cls(scores, true, false)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.scores)

    def __iter__(self) -> Iterator[PairScore]:
        """Iterate over the pairs, in the order in which they were given."""
        none = [None] * len(self)
        percentiles = (
            none if values is None else values.tolist()
            for values in (self.true_percentiles, self.false_percentiles)
        )
        return map(PairScore, self.scores.tolist(), *percentiles)

    def to_json(self) -> list[dict[str, float | None]]:
        """Return the pairs as plain data."""
        return [
            {name: None if value is None else round(value, 6) for name, value in pair._asdict().items()}
            for pair in self
        ]


def mean_scores(projectors: Mapping[Task, Projector], x: Any, y: Any, pairing: Integers) -> Floats:
    """Return the score of each pair, the mean over both tasks; row j of y belongs to ``pairing[j]`` of x."""
    scores = np.empty(len(y))
    for start in range(0, len(y), _BLOCK):
        block = slice(start, start + _BLOCK)
        rows, local = np.unique(pairing[block], return_inverse=True)
        pairs = np.asarray(x[rows]), np.asarray(y[block]), local
        scores[block] = np.mean([projectors[task].pair_scores(*pairs) for task in TASKS], axis=0)
    return scores


def exchange(pairing: Integers, n: int, rng: np.random.Generator) -> Integers:
    """Return for each text the row of another of n images, drawn at random."""
    return (pairing + rng.integers(1, n, len(pairing))) % n


def write_csv(path: str | os.PathLike[str], rows: list[dict[str, Any]]) -> None:
    """Write plain data with a row for each pair; a file that exists is replaced."""
    with replace_file(path) as staged, open(staged, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
