"""The image at the top of the README: unseen captions, and what a model finds among unseen scenes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common import pin_threads

pin_threads(2)

from diptych import AWCCA  # noqa: E402
from diptych.image import PyramidDescriptor  # noqa: E402
from diptych.scenes import make_scenes  # noqa: E402
from diptych.text import HKSE  # noqa: E402

ROWS, SHOWN = 4, 7


def main() -> None:
    drawn = make_scenes(8000, random_state=0)
    dataset, pictures = drawn.dataset, list(drawn.images)
    x = PyramidDescriptor().encode(pictures)
    train, test = dataset.image_rows("train"), dataset.image_rows("test")
    text = HKSE(word_features=1000, sentence_features=1000).fit(dataset.subset("train").captions)
    captions = dataset.caption_rows(train)
    y = text.transform([dataset.captions[j] for j in captions], unknown="mean")
    model = AWCCA().fit(x[train], y, np.searchsorted(train, dataset.pairing[captions]))
    # The longest caption of each of the first test pictures: nobody picked them.
    truths = test[:ROWS]
    asked = [max((dataset.captions[j] for j in dataset.caption_rows([t])), key=len) for t in truths]
    images, queries = model.transform(x[test], text.transform(asked), task="search")
    images = images / np.linalg.norm(images, axis=1, keepdims=True)
    best = np.argsort(-queries @ images.T, axis=1)[:, :SHOWN]
    figure = Figure(figsize=(8.6, 5.6), layout="constrained")
    for row, query, found, truth in zip(figure.subfigures(ROWS, 1), asked, best, truths, strict=True):
        row.suptitle(query, fontsize=10, x=0.01, ha="left")
        for axes, place in zip(row.subplots(1, SHOWN), found, strict=True):
            axes.imshow(pictures[test[place]])
            axes.set(xticks=[], yticks=[])
            for side in axes.spines.values():
                side.set(visible=test[place] == truth, color="#0072b2", linewidth=3)
    target = Path(__file__).parent.parent / "docs" / "search.png"
    figure.savefig(target, dpi=110)
    print(
        f"wrote {target.name}: the first {SHOWN} of {len(test)} unseen pictures for {ROWS} unseen sentences"
    )


if __name__ == "__main__":
    main()
