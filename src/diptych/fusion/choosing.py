"""For one task: the best way to use every part, on validation, and their scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from diptych.checks import Task
from diptych.fusion.blocks import Blocks
from diptych.fusion.parts import FittedPart, Use
from diptych.fusion.weights import Judge, Scored, best_correction

VIEW_OF_ITEMS: dict[Task, str] = {"search": "x", "annotate": "y"}
VIEW_OF_QUERIES: dict[Task, str] = {"search": "y", "annotate": "x"}


@dataclass(frozen=True, eq=False)
class Trial:
    """Validation items and queries of a task, and a bank of training queries, as blocks."""

    judge: Judge
    items: Blocks
    queries: Blocks
    bank: Blocks

    @property
    def task(self) -> Task:
        """What is looked for."""
        return self.judge.task


def uses_of(weightings: Sequence[str], relaxations: Sequence[float]) -> list[Use]:
    """Every way to try: the asymmetric weighting has the path's own γ, others also multiples of it."""
    return [
        Use(weighting, float(relaxation))
        for weighting in weightings
        for relaxation in ((1.0,) if weighting == "asymmetric" else relaxations)
    ]


def best_use(
    one: FittedPart, trial: Trial, uses: list[Use], n_components: int | None, kinds: Sequence[str]
) -> tuple[Use, Scored, dict[str, Any]]:
    """The use with the best corrected scores, its scores before correction, and all that was tried."""
    items, queries = VIEW_OF_ITEMS[trial.task], VIEW_OF_QUERIES[trial.task]
    best: tuple[float, Use, Scored] | None = None
    tried = []
    for use, linear in one.uses(trial.task, uses, n_components):
        found = linear.embed(one.part.rows(trial.items, items), items)
        asked, bank = (
            linear.embed(one.part.rows(rows, queries), queries) for rows in (trial.queries, trial.bank)
        )
        scored = Scored(asked @ found.T, bank @ found.T)
        correction, value, corrected = best_correction(trial.judge, scored, kinds)
        tried.append(
            {
                **vars(use),
                "recall": trial.judge.recall(scored.scores),
                "corrected": trial.judge.recall(corrected),
                "correction": vars(correction),
            }
        )
        if best is None or value > best[0]:
            best = value, use, scored
    assert best is not None
    told = {"part": str(one.part), "value": best[0], "best": vars(best[1]), "tried": tried}
    return best[1], best[2], told
