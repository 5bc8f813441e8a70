"""Experiment 9: single answers, right ones and wrong ones, and packs for images outside training."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from diptych._checks import TASKS
from diptych.paper._cache import Result, digest
from diptych.paper._embedding import Embedder, embedder, first
from diptych.paper._experiment import Experiment, Job, Part, Results, Table
from diptych.paper._setting import Setting
from diptych.report._page import Html, Picture, bullets, heading, join, paragraph, pictures, text

VERSION = 1
SHOWN, EXAMPLES, PACKS = 6, 3, 3
THUMBNAIL = 224


def _examples(setting: Setting) -> Result:
    choices = {task: embedder(setting, task) for task in TASKS}

    def compute() -> Result:
        dataset, rows = setting.materials.dataset, setting.run.test
        captions = dataset.caption_rows(rows)
        rng = np.random.default_rng(setting.seed)
        x, y, pairing = choices["search"].views(rows)
        search = []
        for query in _right_and_wrong(np.array([np.argmax(x @ v) for v in y]) == pairing, rng):
            scores = x @ y[query]
            search.append(
                {
                    "sentence": dataset.captions[int(captions[query])],
                    "truth": int(rows[pairing[query]]),
                    "rank": int(np.sum(scores > scores[pairing[query]])) + 1,
                    "found": [{"row": int(rows[i]), "score": scores[i]} for i in first(scores, SHOWN)],
                }
            )
        x, y, pairing = choices["annotate"].views(rows)
        annotate = []
        for query in _right_and_wrong(
            pairing[np.array([np.argmax(y @ u) for u in x])] == np.arange(len(x)), rng
        ):
            scores = y @ x[query]
            annotate.append(
                {
                    "row": int(rows[query]),
                    "found": [
                        {
                            "sentence": dataset.captions[int(captions[j])],
                            "score": scores[j],
                            "right": bool(pairing[j] == query),
                        }
                        for j in first(scores, SHOWN)
                    ],
                }
            )
        return {"search": search, "annotate": annotate, "packs": _packs(setting, choices["annotate"], rng)}

    inputs = {"params": [each.params for each in choices.values()], "seed": setting.seed}
    inputs |= {"test": digest(setting.run.test)}
    return setting.remember("examples", VERSION, (setting.image, setting.hkse), inputs, compute)


def _right_and_wrong(right: Any, rng: np.random.Generator) -> list[int]:
    """Some queries that were answered right and as many that were not, at random."""
    chosen = []
    for wanted in (True, False):
        places = np.flatnonzero(right == wanted)
        chosen += [int(i) for i in rng.permutation(places)[:EXAMPLES]]
    return chosen


def _packs(setting: Setting, annotator: Embedder, rng: np.random.Generator) -> list[Result]:
    """Images outside the training set, described by the packs of captions of training images."""
    dataset = setting.materials.dataset
    asked = np.sort(rng.permutation(setting.run.test)[:EXAMPLES])
    x, _, _ = annotator.views(asked)
    _, packs, _ = annotator.views(setting.train, packs=True)
    described = np.array([row for row in setting.train if len(dataset.caption_rows([row]))])
    found = []
    for row, query in zip(asked, x, strict=True):
        scores = packs @ query
        found.append(
            {
                "row": int(row),
                "packs": [
                    {
                        "score": scores[i],
                        "captions": [dataset.captions[j] for j in dataset.caption_rows([int(described[i])])],
                    }
                    for i in first(scores, PACKS)
                ],
            }
        )
    return found


def thumbnail(setting: Setting, row: int) -> bytes | None:
    """A small JPEG of an image row's picture, or None where there is none."""
    picture = setting.materials.picture(row)
    if picture is None:
        return None
    small = picture.convert("RGB")
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    stream = io.BytesIO()
    small.save(stream, "JPEG", quality=82)
    return stream.getvalue()


def _strip(setting: Setting, words: str | Html, items: list[tuple[int, str, bool]]) -> Html:
    """Pictures under a line of words; image names where there are no pictures."""
    shown = [(thumbnail(setting, row), caption, right, row) for row, caption, right in items]
    if any(data is None for data, *_ in shown):
        names = [f"{setting.materials.dataset.image_ids[row]}: {caption}" for _, caption, _, row in shown]
        return join(paragraph(words), bullets(names))
    return pictures([(words, [Picture(data, caption, right) for data, caption, right, _ in shown if data])])


def _show_examples(setting: Setting, results: Results) -> list[Part]:
    found = results["examples: answers"]
    parts: list[Part] = [
        f"Test queries drawn at random: {EXAMPLES} that are answered right and {EXAMPLES} that are not "
        f"({setting.image.name}, {setting.hkse.name}, guided). Numbers are cosines, not probabilities.",
        heading("Search: a sentence, and the first pictures for it"),
    ]
    for each in found["search"]:
        words = f"“{each['sentence']}” The right picture is number {each['rank']}."
        items = [(hit["row"], f"{hit['score']:.2f}", hit["row"] == each["truth"]) for hit in each["found"]]
        parts.append(_strip(setting, words, items))
    parts.append(heading("Annotation: a picture, and the first sentences for it"))
    for each in found["annotate"]:
        parts.append(_strip(setting, "", [(each["row"], "", False)]))
        parts.append(bullets(_sentence_line(hit) for hit in each["found"]))
    parts.append(
        heading("Packs: a picture outside the training set, and the nearest packs of training captions")
    )
    for each in found["packs"]:
        parts.append(_strip(setting, "", [(each["row"], "", False)]))
        parts.append(
            bullets(f"{pack['score']:.2f}: {' / '.join(pack['captions'])}" for pack in each["packs"])
        )
    return parts


def _sentence_line(hit: Result) -> Html:
    line = text(f"{hit['score']:.2f}: {hit['sentence']}")
    return Html(f'<span class="holds">✓ {line}</span>') if hit["right"] else line


def _example_tables(results: Results) -> dict[str, Table]:
    found = results["examples: answers"]
    return {
        "examples_search": [
            {"sentence": each["sentence"], "rank of the right picture": each["rank"], "row": hit["row"]}
            | {"score": hit["score"]}
            for each in found["search"]
            for hit in each["found"]
        ],
        "examples_annotate": [
            {"image row": each["row"], **hit} for each in found["annotate"] for hit in each["found"]
        ],
    }


EXAMPLES_SHOWN = Experiment(
    "examples",
    "Examples",
    lambda setting: [Job("examples: answers", lambda: _examples(setting))],
    _show_examples,
    _example_tables,
)
