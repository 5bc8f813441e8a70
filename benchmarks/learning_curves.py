"""Recall against the number of training pairs, and how γ is best chosen when there are few.

Pairs are images of Flickr8k's training split with one caption each, drawn at random; recall is on the
official validation images, which none of the ways to choose γ looks at but the last, a yardstick that nobody
with few pairs has. The test split is not touched.
"""

from __future__ import annotations

from recording import RESULTS, pin_threads, real_data, record

pin_threads(1)

import numpy as np  # noqa: E402

import flickr8k  # noqa: E402
from diptych import AWCCA, retrieval_scores  # noqa: E402

SIZES = (100, 300, 1000, 3000, 6000)
DRAWS = 5
WAYS = {
    "15 % held out, refitted": {},
    "leave-one-out": {"selection": "leave-one-out"},
    "Ledoit-Wolf": {"selection": "ledoit-wolf"},
    "OAS": {"selection": "oas"},
    "chosen on the reported images": {"seen": True},
}
TASKS = ("search", "annotate")


def main() -> None:
    rows = []
    for texts in ("minilm", "hkse-rbf-rbf"):
        x, y, pairing = flickr8k.load(real_data(), "resnet50-sqrt", texts)
        training, validation, _ = flickr8k.splits(x, y, pairing)
        del x, y
        for size in SIZES if texts == "minilm" else SIZES[:3]:
            for way, given in WAYS.items():
                row = one(texts, size, way, dict(given), training, validation)
                print(row, flush=True)
                rows.append(row)
    record(
        "learning_curves",
        rows,
        "r@1 / r@10 on the official validation images, mean ± standard deviation over draws of the training "
        "pairs (one caption per image), ResNet-50 square root, unit length; grid of 12 per side.",
    )
    draw(rows)


def draw(rows: list[dict]) -> None:
    """r@1 with MiniLM against the number of pairs, with the spread over draws."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    styles = dict(
        zip(
            WAYS,
            (("#1f5fa8", "-"), ("#c05a1c", "-"), ("#6b7a89", "-"), ("#6b7a89", ":"), ("#9aa5b1", "--")),
            strict=True,
        )
    )
    figure, panels = pyplot.subplots(1, 2, figsize=(8.6, 3.3), layout="constrained", sharey=True)
    for axes, task in zip(panels, TASKS, strict=True):
        for way, (colour, line) in styles.items():
            own = [row for row in rows if row["γ"] == way and row["text"] == "minilm"]
            values = np.array([[float(v) for v in row[task].split(" / ")[0].split(" ± ")] for row in own])
            sizes = [row["pairs"] for row in own]
            axes.errorbar(
                sizes, values[:, 0], values[:, 1], color=colour, linestyle=line, capsize=2, label=way
            )
        axes.set(xscale="log", title=task, xlabel="training pairs", xticks=SIZES, xticklabels=map(str, SIZES))
        axes.minorticks_off()
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("r@1")
    panels[0].legend(frameon=False, fontsize=8, title="γ", alignment="left")
    figure.savefig(RESULTS / "learning_curves.svg", metadata={"Date": None})


def one(texts: str, size: int, way: str, given: dict, training: tuple, validation: tuple) -> dict:
    found: dict[str, list] = {task: [] for task in TASKS}
    seen = given.pop("seen", False)
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        images = rng.choice(len(training[0]), size, replace=False)
        captions = images * flickr8k.CAPTIONS + rng.integers(0, flickr8k.CAPTIONS, size)
        model = AWCCA(grid=12, precision="float32", random_state=draw, **given)
        model.fit(training[0][images], training[1][captions], validation=validation if seen else None)
        for task in TASKS:
            scores = retrieval_scores(*model.transform(*validation[:2], task=task), validation[2], task=task)
            found[task].append((scores["r@1"], scores["r@10"]))
    row = {"text": texts, "pairs": size, "γ": way}
    for task in TASKS:
        mean, spread = np.mean(found[task], axis=0), np.std(found[task], axis=0)
        row[task] = f"{mean[0]:.1f} ± {spread[0]:.1f} / {mean[1]:.1f} ± {spread[1]:.1f}"
    return row


if __name__ == "__main__":
    main()
