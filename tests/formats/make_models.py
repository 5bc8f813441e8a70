"""Writes a small model of each kind, and what it answers, to the folder of the current format; a program.

Models of a released format are never written again: they show that new code still reads old files.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from diptych import AWCCA, HKSE, Retriever
from diptych._persistence import FORMAT_VERSION, LOCK
from diptych.fusion import Fusion

FORMATS = Path(__file__).parent
TEXTS = [
    f"a {colour} {animal} {verb}"
    for colour in ("red", "green", "blue")
    for animal in ("dog", "cat", "bird", "fish")
    for verb in ("runs", "sleeps")
]


def make_views():
    """Return two views of 40 pairs that have three causes in common."""
    rng = np.random.default_rng(0)
    causes = rng.normal(size=(40, 3))
    return [causes @ rng.normal(size=(3, width)) + 0.3 * rng.normal(size=(40, width)) for width in (5, 4)]


def make_awcca(folder):
    """Save an AWCCA whose regularisation was selected."""
    AWCCA(grid=3).fit(*make_views()).save(folder)


def make_fusion(folder):
    """Save a fusion of two text blocks with a hubness correction."""
    x, y = make_views()
    Fusion(grid=3, bank=20, hubness=("csls",)).fit(x, {"first": y[:, :2], "second": y[:, 2:]}).save(folder)


def make_hkse(folder):
    """Save an HKSE of words learned from a few texts."""
    HKSE(word_features=6, sentence_features=5).fit(TEXTS).save(folder)


def make_retriever(folder):
    """Save a retriever with its text encoder, features, metadata, and items that were added later."""
    hkse = HKSE(word="lin", sentence="lin").fit(TEXTS)
    y = hkse.transform(TEXTS)
    x = y @ np.random.default_rng(0).normal(size=(y.shape[1], 4))
    retriever = Retriever.from_features(
        x,
        y,
        captions=TEXTS,
        text_encoder=hkse,
        metadata={"3": {"colour": "red"}},
        model=AWCCA(params=(1.0, 1.0)),
    )
    retriever.save(folder)
    retriever.add(x[:1] + 0.5, y[:1], ids=["new"], texts=["a red dog runs"])
    retriever.add(x[2:3] - 0.5, ids=["alone"])
    retriever.remove("7")
    retriever.store.close()


def answer_awcca(folder):
    """Return vectors of both tasks."""
    x, y = make_views()
    model = AWCCA.load(folder)
    return {
        task: [v.tolist() for v in model.transform(x[:4], y[:4], task=task)]
        for task in ("search", "annotate")
    }


def answer_fusion(folder):
    """Return vectors of both tasks."""
    x, y = make_views()
    model, texts = Fusion.load(folder), {"first": y[:4, :2], "second": y[:4, 2:]}
    return {
        task: [v.tolist() for v in model.transform(x[:4], texts, task=task)]
        for task in ("search", "annotate")
    }


def answer_hkse(folder):
    """Return features of texts."""
    return HKSE.load(folder).transform(["a blue dog sleeps", "the red fish"]).tolist()


def answer_retriever(folder):
    """Return ids and scores of searches by text and by features, and of a refit."""
    retriever = Retriever.load(folder)
    x = retriever.store.features("image", ["5"])[0]
    answers = {
        "text": retriever.search("a red dog runs", k=3),
        "filter": retriever.search("a red dog runs", k=3, where={"colour": "red"}),
        "image": retriever.annotate(x, k=3),
        "similar": retriever.similar(image=x, k=3),
    }
    retriever.refit()
    answers["refitted"] = retriever.search("a red dog runs", k=3)
    return {name: [[hit.id, hit.score] for hit in hits] for name, hits in answers.items()}


KINDS = {
    "awcca": (make_awcca, answer_awcca),
    "fusion": (make_fusion, answer_fusion),
    "hkse": (make_hkse, answer_hkse),
    "retriever": (make_retriever, answer_retriever),
}


def main(place):
    for name, (make, answer) in KINDS.items():
        make(place / name)
        (place / name / LOCK).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as scratch:  # an answer may change the model
            shutil.copytree(place / name, Path(scratch) / name)
            answers = answer(Path(scratch) / name)
        (place / f"{name}.json").write_text(json.dumps(answers, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FORMATS / str(FORMAT_VERSION))
