"""The image at the top of the README: unseen captions, and what a model finds among unseen scenes."""

from __future__ import annotations

from pathlib import Path

from measuring import pin_threads, scale_rows

pin_threads(2)

import numpy as np  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

from diptych import AWCCA  # noqa: E402
from diptych.image import PyramidDescriptor  # noqa: E402
from diptych.scenes import make_scenes  # noqa: E402
from diptych.text import HKSE  # noqa: E402

ROWS, SHOWN = 4, 7


def main() -> None:
    scenes = make_scenes(8000, random_state=0)
    dataset, images = scenes.dataset, list(scenes.images)
    x = PyramidDescriptor().encode(images)
    train, test = dataset.image_rows("train"), dataset.image_rows("test")
    text = HKSE(word_features=1000, sentence_features=1000).fit(dataset.subset("train").captions)
    captions = dataset.caption_rows(train)
    y = text.transform([dataset.captions[j] for j in captions], unknown="mean")
    model = AWCCA().fit(x[train], y, np.searchsorted(train, dataset.pairing[captions]))
    # The longest caption of each of the first test images: nobody picked them.
    truths = test[:ROWS]
    queries = [max((dataset.captions[j] for j in dataset.caption_rows([t])), key=len) for t in truths]
    items, vectors = model.transform(x[test], text.transform(queries), task="search")
    best = np.argsort(-vectors @ scale_rows(items).T, axis=1)[:, :SHOWN]
    figure = Figure(figsize=(8.6, 5.6), layout="constrained")
    for row, query, hits, truth in zip(figure.subfigures(ROWS, 1), queries, best, truths, strict=True):
        row.suptitle(query, fontsize=10, x=0.01, ha="left")
        for axes, place in zip(row.subplots(1, SHOWN), hits, strict=True):
            axes.imshow(images[test[place]])
            axes.set(xticks=[], yticks=[])
            for side in axes.spines.values():
                side.set(visible=test[place] == truth, color="#0072b2", linewidth=3)
    target = Path(__file__).parent.parent / "docs" / "search.png"
    figure.savefig(target, dpi=110)
    print(f"wrote {target.name}: the first {SHOWN} of {len(test)} unseen images for {ROWS} unseen captions")


if __name__ == "__main__":
    main()
