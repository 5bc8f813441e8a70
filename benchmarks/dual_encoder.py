"""A dual encoder adapted to a domain: zero-shot cosine, AW-CCA and both fused, by the number of pairs.

The dual encoder is synthetic (``make_dual_features`` of the tests), so the table shows what a fusion does
with few and with many pairs, and not how accurate any real encoder is.
"""

from __future__ import annotations

from measuring import clock, pin_threads, record

pin_threads(1)

import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from diptych import AWCCA, Fusion  # noqa: E402
from diptych.ranking import ranks, recall_at_k  # noqa: E402
from generated_pairs import make_dual_features  # noqa: E402

TASKS = ("search", "annotate")
SIZES = (50, 100, 300, 1000, 3000)
DRAWS = 5
UNSEEN = 1000


def measure_size(n: int, unseen: tuple) -> dict:
    """Fit on ``n`` pairs, several draws of them, and return the mean r@1 on unseen pairs."""
    models = {
        "AW-CCA": lambda: AWCCA(grid=12),
        '`preset="best"` without identity': lambda: Fusion(parts="together", grid=12),
        '`preset="best"`': lambda: Fusion(grid=12),
    }
    recalls: dict[str, list] = {name: [] for name in models}
    seconds: dict[str, float] = dict.fromkeys(models, 0.0)
    weights = []
    for draw in range(DRAWS):
        pairs = make_dual_features(n, seed=draw)
        for name, make in models.items():
            start = clock()
            model = make().fit(*pairs)
            seconds[name] += clock() - start
            recalls[name].append([model_recall(model, unseen, task) for task in TASKS])
        members = (member for task in TASKS for member in model.members_[task])
        weights.append(sum(m.weight for m in members if m.part.kind == "identity") / len(TASKS))
    row = {"pairs": n, "zero-shot": ", ".join(f"{recall_at_k(ranks(*unseen, task=t), 1):.1f}" for t in TASKS)}
    for name, values in recalls.items():
        mean, spread = np.mean(values, axis=0), np.std(values, axis=0)
        row[name] = ", ".join(f"{m:.1f} ± {s:.1f}" for m, s in zip(mean, spread, strict=True))
    _, without, best = (f"{total / DRAWS:.1f} s" for total in seconds.values())
    return {**row, "weight of the identity": f"{np.mean(weights):.2f}", "fit": f"{best} ({without} without)"}


def model_recall(model: AWCCA | Fusion, unseen: tuple, task: str) -> float:
    if isinstance(model, Fusion):
        return recall_at_k(model.ranks(*unseen, task=task), 1)
    return recall_at_k(ranks(*model.transform(*unseen, task=task), task=task), 1)


def main() -> None:
    unseen = make_dual_features(UNSEEN, seed=999)
    rows = []
    for n in SIZES:
        rows.append(measure_size(n, unseen))
        print(rows[-1], flush=True)
    record(
        "dual_encoder",
        rows,
        f"Synthetic dual encoder. r@1 (search, annotate) on {UNSEEN:,} unseen pairs, mean ± standard "
        f"deviation over {DRAWS} draws of the training pairs, 15 % of them held out to choose on; grid of 12 "
        "per side.",
    )


if __name__ == "__main__":
    main()
