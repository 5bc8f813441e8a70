"""How well an audit finds captions of Flickr8k that belong to other images, and what it brings to a fit.

``found``: of all 40,000 captions, some are exchanged at random. The audit scores every pair by a model that
was not fitted on it. ``recall``: some of the training captions are exchanged, and AW-CCA is fitted on all of
them, on those that the audit does not flag, and on those that were not exchanged. Recalls are those of the
test split, which is read once. The filters are selected on the validation split, whose captions are as they
are.

With ``--validation`` the last thousand training images take the place of the validation split, that of the
test split is taken by validation, and nothing is recorded.
"""

from __future__ import annotations

from measuring import (
    CAPTIONS,
    TRAIN,
    VALIDATION,
    load_flickr8k,
    log_test_run,
    pin_threads,
    record,
)

pin_threads(1)

import argparse  # noqa: E402

import numpy as np  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from diptych import Retriever  # noqa: E402
from diptych.data import PairedDataset, PairedViews  # noqa: E402
from diptych.retrieval import audit_pairs  # noqa: E402

FEATURES = {
    "DINOv2-S × MiniLM": ("dinov2s-halves", "minilm"),
    "ResNet-50 × MiniLM": ("resnet50-sqrt", "minilm"),
    "ResNet-50 × HKSE": ("resnet50-sqrt", "hkse-rbf-rbf"),
}
REFITTED = ("DINOv2-S × MiniLM", "ResNet-50 × MiniLM")
"""Those of the recalls, for which many models are fitted."""

EXCHANGED = 0.03
SHUFFLED = (0.1, 0.3, 0.5, 0.75)


def exchange(pairing: np.ndarray, share: float) -> np.ndarray:
    """Return a pairing in which a share of the captions, drawn at random, have exchanged their images."""
    rows = np.random.default_rng(0).permutation(len(pairing))[: round(share * len(pairing))]
    exchanged = pairing.copy()
    exchanged[rows] = np.roll(pairing[rows], 1)
    return exchanged


def measure_found(name: str, images: int) -> list[dict]:
    """Exchange some captions of the first images, and audit them; and audit the captions as they are."""
    x, y, pairing = load_flickr8k(*FEATURES[name])
    x, y, pairing = x[:images], y[: images * CAPTIONS], pairing[: images * CAPTIONS]
    ids = tuple(map(str, range(images)))
    rows = []
    for share in (EXCHANGED, 0.0):
        exchanged = exchange(pairing, share)
        wrong = exchanged != pairing
        data = PairedDataset(ids, ("",) * len(y), exchanged)
        audit = audit_pairs(PairedViews(data, x, y))
        lowest = np.argsort(audit.scores)[: wrong.sum()]
        row = {
            "features": name,
            "exchanged": f"{100 * share:.0f} %",
            "area under the ROC curve": f"{roc_auc_score(wrong, -audit.scores):.3f}" if share else "–",
            "exchanged among as many lowest": f"{100 * wrong[lowest].mean():.0f} %" if share else "–",
            "estimated share": f"{100 * audit.share:.1f} %",
            "flagged": f"{audit.flagged.sum():,}",
            "flagged that are exchanged": f"{100 * wrong[audit.flagged].mean():.0f} %" if share else "–",
            "exchanged that are flagged": f"{100 * audit.flagged[wrong].mean():.0f} %" if share else "–",
        }
        print(row, flush=True)
        rows.append(row)
    return rows


def measure_recall(name: str, train: int) -> list[dict]:
    """Fit on shuffled training captions: on all of them, without the flagged ones, and on the clean ones."""
    x, y, pairing = load_flickr8k(*FEATURES[name])
    images = train + 2 * VALIDATION
    x, y, pairing = x[:images], y[: images * CAPTIONS], pairing[: images * CAPTIONS]
    splits = ["train"] * train + ["val"] * VALIDATION + ["test"] * VALIDATION
    rows = []
    for share in SHUFFLED:
        exchanged = pairing.copy()
        exchanged[: train * CAPTIONS] = exchange(pairing[: train * CAPTIONS], share)
        clean = np.flatnonzero(exchanged == pairing)
        retrievers = {
            "as they are": Retriever.from_features(x, y, exchanged, splits=splits),
            "without the flagged": Retriever.from_features(x, y, exchanged, splits=splits, audit=True),
            "the clean ones": Retriever.from_features(x, y[clean], pairing[clean], splits=splits),
        }
        row = {"features": name, "shuffled": f"{100 * share:.0f} %"}
        row |= {fitted: describe_recall(retriever) for fitted, retriever in retrievers.items()}
        audited = retrievers["without the flagged"].info()["facts"]["audit"]
        row["left out"] = f"{100 * audited['left_out'] / audited['pairs']:.0f} %"
        print(row, flush=True)
        rows.append(row)
    return rows


def describe_recall(retriever: Retriever) -> str:
    """Return r@1 of both tasks on the test split."""
    metrics = retriever.info()["facts"]["metrics"]["test"]
    return f"{metrics['search']['r@1']:.1f} / {metrics['annotate']['r@1']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("found", "recall"))
    parser.add_argument("--validation", action="store_true", help="do not read the test split")
    parser.add_argument("--only", choices=list(FEATURES), help="one pair of features; needs --validation")
    options = parser.parse_args()
    if options.only and not options.validation:
        parser.error("--only is for trials: give --validation too")
    if options.validation:
        report(options)
        return
    with log_test_run(__file__) as logged:
        logged += (rows := report(options))
    if options.what == "found":
        record("audit", rows, FOUND)
    else:
        record("audit_recall", rows, RECALL)


def report(options: argparse.Namespace) -> list[dict]:
    """Measure what was asked for."""
    train = TRAIN - VALIDATION if options.validation else TRAIN
    names = [options.only] if options.only else FEATURES if options.what == "found" else REFITTED
    if options.what == "found":
        return [row for name in names for row in measure_found(name, train + 2 * VALIDATION)]
    return [row for name in names for row in measure_recall(name, train)]


FOUND = (
    "All 8,000 images with five captions each; five folds by image. Exchanged among as many lowest: of as "
    "many pairs with the lowest scores as were exchanged. Flagged: more likely wrong than right."
)

RECALL = (
    "AW-CCA, r@1 of search / annotate on the 1,000 test images and their 5,000 captions, after fitting on "
    "30,000 training captions of which a share was exchanged at random: on all of them, without those that "
    "an audit flags, and on those that were not exchanged."
)

if __name__ == "__main__":
    main()
