"""What selection finds on Flickr8k: filters and grids side by side, chosen on validation, shown on test."""

from __future__ import annotations

from recording import pin_threads, real_data, record

pin_threads(2)

import flickr8k  # noqa: E402
from diptych import AWCCA, retrieval_scores  # noqa: E402

FEATURES = [
    ("resnet50", "hkse-lin-lin"),
    ("resnet50", "hkse-rbf-rbf"),
    ("resnet50-sqrt", "hkse-rbf-rbf"),
    ("resnet50-sqrt", "minilm"),
]
SEARCHES = [
    ("tikhonov", ("log", 20)),
    ("tikhonov", ("rank", 20)),
    ("tsvd", ("log", 20)),
    ("tsvd", ("rank", 20)),
    ("guided", ("log", 20)),
    ("guided", ("rank", 20)),
]


def main() -> None:
    rows: list[dict[str, str]] = []
    for images, texts in FEATURES:
        x, y, pairing = flickr8k.load(real_data(), images, texts)
        training, validation, test = flickr8k.splits(x, y, pairing)
        for name, grid in SEARCHES:
            model = AWCCA(filter=name, grid=grid).fit(*training, validation=validation)
            row = {"images": images, "text": texts, "filter": name, "grid": grid[0]}
            for task in ("search", "annotate"):
                found = retrieval_scores(*model.transform(*test[:2], task=task), test[2], task=task)
                row[f"{task}: chosen"] = str(model.path_.choice[task])
                row[f"{task}: validation r@1"] = f"{model.score(*validation, task=task):.2f}"
                row[f"{task}: test"] = (
                    " / ".join(f"{found[k]:.1f}" for k in ("r@1", "r@5", "r@10"))
                    + f" / {found['median_rank']:.0f}"
                )
            rows.append(row)
            print(row, flush=True)
    record(
        "selection_quality",
        rows,
        "Test: r@1 / r@5 / r@10 / median rank on the official 1,000 images. Chosen: place on the grid of 20 "
        "per side, (0, 0) the strongest regularisation. Validation r@1 is that of the final model.",
    )


if __name__ == "__main__":
    main()
