"""The ``README.md`` of a saved model: what it is, how to use it, what it was fitted on and how good it is.

Names and descriptions come from whoever fitted the model. They are escaped wherever they enter, so that
they can neither break a table nor bring markup of their own.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych._checks import TASKS, Task, count
from diptych.report._page import TITLES, one_line

FEW_PAIRS = 50
"""Below so many training pairs a model's choices are mostly chance, and its card says so."""

SHOWN_CORRELATIONS = 5
PICTURE = "regularization.png"

CORRELATIONS = {
    "correlations": "of the regularised model (Σ)",
    "train_correlations": "of its variates on the training pairs",
    "validation_correlations": "of its variates on validation pairs",
}
COLUMNS = {
    "r@1": "r@1",
    "r@5": "r@5",
    "r@10": "r@10",
    "median_rank": "median rank",
    "mean_rank": "mean rank",
}


@dataclass(frozen=True)
class EncoderFacts:
    """What made the features of a view: a name for people, a fingerprint for programs, the columns.

    ``kept`` says that the model has it, or knows where it is; otherwise it must be given with every query.
    """

    name: str
    fingerprint: str
    dimension: int
    kept: bool = True


@dataclass(frozen=True)
class TaskFacts:
    """One task's model: the filters of both views in words, and its canonical correlations.

    ``correlations`` are those of the regularised model, the others those of its variates on training and on
    validation pairs, as far as they were measured. All may be the first few; ``components`` counts them.
    """

    filter_x: str
    filter_y: str
    components: int
    correlations: Sequence[float] = ()
    train_correlations: Sequence[float] = ()
    validation_correlations: Sequence[float] = ()


@dataclass(frozen=True)
class IndexFacts:
    """What can be found: items of each view by its name, and how they are looked up.

    ``recall`` is the share of true nearest neighbours that an approximate index finds; None: it is exact.
    """

    items: Mapping[str, int]
    kind: str = "exact"
    dtype: str = "float32"
    recall: float | None = None


@dataclass(frozen=True)
class Card:
    """Everything a model card says, as plain data.

    Attributes
    ----------
    name
        What the model is called.
    folder
        Name of the folder it lies in, for the commands.
    library
        Version of the library that fitted it.
    date
        When, in words or as a date.
    pairs
        For each split, the number of images and of captions.
    image_encoder, text_encoder
        What made the features; None where features were given.
    tasks
        The model of each task.
    params
        Parameters of the estimator that are worth knowing.
    selected_on
        In words, which pairs chose the regularisation; None if it was given.
    seconds
        Time that fitting took.
    quality
        In sentences, what it was measured on and what that is worth; see ``describe_quality``.
    metrics
        For ``"validation"`` and ``"test"``, the five numbers of each task; None if it was not measured.
    index
        What can be found; None if nothing is indexed.
    files
        What lies beside the card: name and meaning.
    has_picture
        Whether ``regularization.png`` lies beside the card.
    """

    name: str
    folder: str
    library: str
    date: str
    pairs: Mapping[str, tuple[int, int]]
    image_encoder: EncoderFacts | None
    text_encoder: EncoderFacts | None
    tasks: Mapping[Task, TaskFacts]
    params: Mapping[str, object] = field(default_factory=dict)
    selected_on: str | None = None
    seconds: float | None = None
    quality: str = "It was not measured: try it before you rely on it."
    metrics: Mapping[str, Mapping[Task, Mapping[str, float]]] | None = None
    index: IndexFacts | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    has_picture: bool = False


def model_card(facts: Card) -> str:
    """Write ``facts`` as Markdown that a newcomer and a reviewer can both read.

    Examples
    --------
    >>> encoder = EncoderFacts("ResNet-50", "onnx:1f2e", 2048)
    >>> card = Card("beaches", "beaches", "1.0", "2025-01-31", {"train": (100, 500)}, encoder, None, {})
    >>> print(model_card(card).splitlines()[0])
    # beaches
    """
    sections = (_what, _use, _trained_on, _recalls, _regularization, _scores, _limits, _files)
    return "\n\n".join(part for section in sections for part in section(facts)) + "\n"


def describe_quality(facts: Mapping[str, Any]) -> str:
    """Say in plain sentences what a model was measured on; command line, card and page all show this.

    Parameters
    ----------
    facts
        What a fit leaves behind; see ``diptych.retrieval._fit``.

    Examples
    --------
    >>> selection = {"pairs": "the val split", "metric": "r@1", "search": 34.12, "annotate": 45.3}
    >>> print(describe_quality({"selection": selection}).partition(". ")[0])
    Selected on the val split; r@1 there: search 34.1, annotate 45.3
    """
    sentences = []
    if "selection" in facts:
        found = facts["selection"]
        scores = ", ".join(f"{task} {found[task]:.1f}" for task in TASKS)
        sentences.append(f"Selected on {found['pairs']}; {found['metric']} there: {scores}.")
        if "grid" in found:
            sentences.append(f"{found['grid'][0].upper()}{found['grid'][1:]}.")
        sentences.append("Those pairs chose the settings, so the figures are slightly optimistic.")
    elif "theory" in facts:
        sentences.append(f"The regularisation was taken from theory ({facts['theory']}), not selected.")
    else:
        sentences.append("The regularisation was given, not selected.")
    if "refitted" in facts:
        sentences.append(f"Refitted since, on {facts['refitted']['pairs']:,} pairs, and not measured again.")
    elif "test" in facts.get("metrics", {}):
        test = facts["metrics"]["test"]
        scores = ", ".join(f"{task} {test[task]['r@1']:.1f}" for task in TASKS)
        sentences.append(f"Measured on the test split, which had no part in it: r@1 {scores}.")
    else:
        sentences.append("Not measured on pairs that had no part in fitting or selection.")
    return " ".join(sentences)


def escape_markdown(text: object, longest: int = 200) -> str:
    r"""``text`` as words within a line of Markdown: no markup, no HTML, no end of a table's cell.

    >>> escape_markdown("a|b <b>*c*</b>")
    'a\\|b &lt;b&gt;\\*c\\*&lt;/b&gt;'
    """
    line = re.sub(r"[\\`*_\[\]|~#$&]", r"\\\g<0>", one_line(str(text), longest))
    # Entities and not backslashes: they hold even where a reader takes HTML before it takes Markdown.
    return line.replace("<", "&lt;").replace(">", "&gt;")


def _what(facts: Card) -> Iterator[str]:
    yield f"# {escape_markdown(facts.name) or 'model'}"
    yield (
        "A diptych model: it finds pictures for a sentence (search) and "
        "sentences for a picture (annotate). Both are mapped into one space by regularised canonical "
        "correlation analysis, one model for each task."
    )
    took = "" if facts.seconds is None else f" in {_duration(facts.seconds)}"
    yield (
        f"Fitted on {escape_markdown(facts.date) or 'an unknown day'}{took}, "
        f"with diptych {escape_markdown(facts.library) or 'of an unknown version'}."
    )


def _use(facts: Card) -> Iterator[str]:
    # A name that cannot stand in a line of code as it is would make commands that do something else.
    folder = facts.folder if facts.folder and facts.folder.isprintable() else "FOLDER"
    argument = shlex.quote(f"./{folder}" if folder.startswith("-") else folder)
    text, image = (one is not None and one.kept for one in (facts.text_encoder, facts.image_encoder))
    yield "## Use it"
    yield _code(
        "python",
        *([] if text else ["import numpy as np", ""]),
        "from diptych import Retriever",
        f"model = Retriever.load({json.dumps(folder, ensure_ascii=False)})",
        'model.search("a dog")'
        if text
        else 'model.search(np.load("texts.npy"))  # features, one row a query',
    )
    yield "or from the shell:"
    yield _code(
        "sh",
        f"diptych search {argument} " + ('"a dog"' if text else "--features texts.npy"),
        f"diptych annotate {argument} " + ("photo.jpg" if image else "--features images.npy"),
    )


def _trained_on(facts: Card) -> Iterator[str]:
    yield "## What it was fitted on"
    yield _table(
        ("pairs", "images", "captions"),
        ((name, _count(images), _count(captions)) for name, (images, captions) in facts.pairs.items()),
    )
    views = (("images", facts.image_encoder), ("sentences", facts.text_encoder))
    yield _table(
        ("view", "encoder", "fingerprint", "dimensions"),
        (
            (view, "features that were given", "", "")
            if made_by is None
            else (view, made_by.name, made_by.fingerprint, _count(made_by.dimension))
            for view, made_by in views
        ),
    )
    if facts.index is None:
        yield "Nothing is indexed yet: add pictures and sentences before searching."
        return
    index = facts.index
    items = ", ".join(escape_markdown(count(number, view)) for view, number in index.items.items())
    recall = "" if index.recall is None else f", finding {_percent(100 * index.recall)} % of the true nearest"
    kind, dtype = escape_markdown(index.kind), escape_markdown(index.dtype)
    yield f"Indexed when this card was written: {items or 'nothing'} ({kind}, {dtype}{recall})."


def _recalls(facts: Card) -> Iterator[str]:
    yield "## How good it is"
    yield escape_markdown(facts.quality, longest=1000)
    if not facts.metrics:
        return
    yield _table(
        ("pairs", "task", *COLUMNS.values()),
        (
            (split, TITLES[task], *(_metric(name, by_task[task].get(name)) for name in COLUMNS))
            for split, by_task in facts.metrics.items()
            for task in TASKS
            if task in by_task
        ),
    )
    yield (
        "r@k is the percentage of queries whose right answer is among the first k, more is better; a rank "
        "of 1 is the best."
    )


def _regularization(facts: Card) -> Iterator[str]:
    yield "## Regularisation"
    if facts.selected_on is not None:
        yield f"Selected for each task by retrieval on {escape_markdown(facts.selected_on.rstrip('. '))}."
    tasks = [(TITLES[task], facts.tasks[task]) for task in TASKS if task in facts.tasks]
    yield _table(
        ("task", "images", "sentences", "components"),
        ((title, of.filter_x, of.filter_y, _count(of.components)) for title, of in tasks),
    )
    if any(len(of.correlations) for _, of in tasks):
        yield _table(
            ("first canonical correlations", *(title for title, _ in tasks)),
            (
                (name, *(_correlations(getattr(of, where), of.components) for _, of in tasks))
                for where, name in CORRELATIONS.items()
            ),
        )
        yield (
            "Those of the regularised model weigh what is searched; they are shrunk by regularisation and "
            "raised by chance. Those on validation pairs are the ones to believe."
        )
    if facts.params:
        yield _table(("parameter", "value"), ((name, _value(value)) for name, value in facts.params.items()))
    if facts.has_picture:
        yield f"![Every point that was tried, for both tasks, and the chosen one]({PICTURE})"


def _scores(facts: Card) -> Iterator[str]:
    yield "## How to read its scores"
    if facts.params.get("similarity", "cosine") == "l2":
        yield (
            "Answers are ordered by the distance between embeddings, the nearest first. Distances are not "
            "probabilities, and they compare answers to one query only: from one query to another, or from "
            "one model to another, they mean nothing."
        )
        return
    if "preset" in facts.params:
        meaning = "a weighted sum of cosines, less a correction for items that are near everything"
    else:
        meaning = "the cosine between two embeddings, from -1 to 1"
    yield (
        f"A score is {meaning}. It is not a probability. Scores order "
        "the answers to one query; compare none across queries, tasks or models. There is always a best "
        "answer, even if nothing fits."
    )


def _limits(facts: Card) -> Iterator[str]:
    captions = facts.pairs["train"][1] if "train" in facts.pairs else None
    yield "## Limits"
    lines = [
        "It knows only what its training pairs show. Things and words that they lack are guessed at, and "
        "what they say wrongly or unfairly, of people above all, it repeats.",
        "It holds for pictures and sentences like the training pairs; measure it again on others.",
        f"With fewer than {FEW_PAIRS} pairs, what was learnt and what was chosen are mostly chance.",
    ]
    if captions is not None and captions < FEW_PAIRS:
        lines.append(
            f"**This model was fitted on {count(captions, 'pair')}: use it for trying things out only.**"
        )
    yield "\n".join(f"- {line}" for line in lines)


def _files(facts: Card) -> Iterator[str]:
    listed = {"README.md": "this card", **facts.files}
    if facts.has_picture:
        listed.setdefault(PICTURE, "the picture above")
    yield "## Files"
    yield _table(("file", "what it holds"), listed.items())
    yield "Loading the model executes none of them: they are arrays, JSON, text and pictures."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every cell is escaped here and nowhere else."""
    lines = ["| " + " | ".join(escape_markdown(cell) for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def _code(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


def _count(number: int) -> str:
    return f"{number:,}"


def _percent(value: float) -> str:
    return f"{value:.1f}"


def _metric(name: str, value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:g}" if name == "median_rank" else f"{value:.1f}"


def _correlations(values: Sequence[float], components: int) -> str:
    shown = ", ".join(f"{value:.3f}" for value in values[:SHOWN_CORRELATIONS])
    if not shown:
        return "not measured"
    return f"{shown}, …" if components > SHOWN_CORRELATIONS else shown


def _value(value: object) -> str:
    """A parameter in words; a pair is said without brackets."""
    if isinstance(value, (tuple, list)):
        return ", ".join(_value(each) for each in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
