"""How recall grows with pairs that people confirm: ``Retriever.learn`` and ``refit`` on Flickr8k.

A model is fitted on 300 captions of training images, as a collection with few captions has them. The other
training images are added without captions. Then captions of these are confirmed as queries that should have
found their image, and the model is refitted after 100, 300 and 1,000 of them. What is fitted on and what is
confirmed is drawn anew with each seed. Recall is measured on the validation split; the test split is not
read. A model must be fitted on some pairs before it can be refitted, so there is no start from none.
"""

from __future__ import annotations

from measuring import load_flickr8k, pin_threads, record, split_flickr8k

pin_threads(1)

import warnings  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

START, CONFIRMED, HELD_OUT, SEEDS = 300, (0, 100, 300, 1_000), 300, 3
USED = START + CONFIRMED[-1]
METRICS = [(task, metric) for task in ("search", "annotate") for metric in ("r@1", "r@10")]

NOTE = (
    "DINOv2-S and MiniLM features. Recalls in percent, among the 1,000 validation images and their 5,000 "
    "captions: mean over three seeds ± their standard deviation. Regularisation is selected once, when "
    "fitting on 300 pairs, and γ then grows with the number of pairs. Selected again: by the last refit, on "
    "300 other training pairs. The last row was fitted on all 1,300 pairs at once."
)


def measure(seed: int, training: Any, validation: Any) -> list[list[float]]:
    """Return the recalls at the start, after each refit, with parameters selected again, and of a new fit."""
    from diptych import AWCCA, Retriever
    from diptych.data import PairedDataset, PairedViews

    (x, y, pairing), (x_val, y_val, pairing_val) = training, validation
    chosen = np.random.default_rng(seed).permutation(len(x))
    captions = np.array([np.flatnonzero(pairing == row)[seed] for row in chosen[: USED + HELD_OUT]])
    names = tuple(f"val {row}" for row in range(len(x_val)))
    dataset = PairedDataset(names, ("",) * len(y_val), pairing_val)
    unseen = PairedViews(dataset, x_val, y_val)

    def read_recalls(retriever: Retriever) -> list[float]:
        result = retriever.evaluate(unseen, split=None)
        return [result[task][metric] for task, metric in METRICS]

    ids = [f"image {row}" for row in chosen]
    start = chosen[:START]
    retriever = Retriever.from_features(x[start], y[captions[:START]], ids=ids[:START], model=AWCCA())
    retriever.add(x[chosen[START:]], ids=ids[START:])
    recalls, done = [read_recalls(retriever)], 0
    for number in CONFIRMED[1:]:
        for row in range(START + done, START + number):
            retriever.learn(y[captions[row]], right=ids[row])
        done = number
        recalls.append(read_recalls(retriever.refit()))
    held_out = slice(USED, USED + HELD_OUT)
    retriever.refit(validation=(x[chosen[held_out]], y[captions[held_out]]))
    recalls.append(read_recalls(retriever))
    new = Retriever.from_features(x[chosen[:USED]], y[captions[:USED]], model=AWCCA())
    recalls.append(read_recalls(new))
    return recalls


def main() -> None:
    warnings.simplefilter("ignore")
    training, validation, _ = split_flickr8k(*load_flickr8k("dinov2s-halves", "minilm"))
    recalls = np.array([measure(seed, training, validation) for seed in range(SEEDS)])
    labels = [f"{number:,}" for number in CONFIRMED]
    labels += [f"{labels[-1]}, selected again", f"fitted on all {USED:,} pairs"]
    means, spreads = recalls.mean(axis=0), recalls.std(axis=0, ddof=1)
    rows = [
        {"confirmed pairs": label}
        | {
            f"{task} {metric}": f"{mean:.1f} ± {spread:.1f}"
            for (task, metric), mean, spread in zip(METRICS, own_means, own_spreads, strict=True)
        }
        for label, own_means, own_spreads in zip(labels, means, spreads, strict=True)
    ]
    print(*rows, sep="\n")
    record("learning_from_use", rows, NOTE)


if __name__ == "__main__":
    main()
