"""The model card: ``README.md`` of a model folder, for the people who use the model.

Names and descriptions come from the user who fitted the model. They are escaped, so that they can neither
break a table nor add markup.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from diptych._checks import FEW_PAIRS, IMAGE_AND_TEXT, TASKS, Task, ViewNames, count, plural, with_article
from diptych.cca._description import SHOWN_CORRELATIONS
from diptych.report._page import one_line, task_titles

FIGURE_FILE = "regularization.png"
RELIABILITY_FILE = "reliability.png"
CORRELATIONS = {
    "correlations": "of the regularised model (Σ)",
    "train_correlations": "of its variates on the training pairs",
    "validation_correlations": "of its variates on validation pairs",
}
METRICS = ("r@1", "r@5", "r@10", "median_rank", "mean_rank")


@dataclass(frozen=True)
class EncoderFacts:
    """The encoder of one view: its name, fingerprint and number of features.

    ``kept`` is False if the model has no encoder to apply, so that every query must be features.

    >>> encoder = EncoderFacts("ResNet-50", "onnx:1f2e", 2048)
    """

    name: str
    fingerprint: str
    dimension: int
    kept: bool = True


@dataclass(frozen=True)
class TaskFacts:
    """The model of one task: the filters of both views, and its canonical correlations.

    ``correlations`` are those of the regularised model, the others those of its variates on training and on
    validation pairs, where measured. Only the first few are needed; ``components`` is their number.

    >>> task = TaskFacts("γ = 12.3", "γ = 0.45", 300, correlations=(0.98, 0.97))
    """

    filter_x: str
    filter_y: str
    components: int
    correlations: Sequence[float] = ()
    train_correlations: Sequence[float] = ()
    validation_correlations: Sequence[float] = ()


@dataclass(frozen=True)
class FusedTaskFacts:
    """The models of one task of a fusion, and its hubness correction as ``describe_correction`` says it.

    Each of ``parts`` has a ``name``, the ``weight`` of its cosine in the score, its ``use`` in words, and its
    number of ``components``.

    >>> part = {"name": "resnet × hkse", "weight": 1.0, "use": "asymmetric weighting", "components": 300}
    >>> task = FusedTaskFacts([part], "none")
    """

    parts: Sequence[Mapping[str, Any]]
    correction: str


@dataclass(frozen=True)
class IndexFacts:
    """The index: the number of items of each view, and how they are searched.

    ``recall`` is the share of the true nearest neighbours that an approximate index finds; None: it is exact.

    >>> index = IndexFacts({"images": 8000, "texts": 40000}, "HNSW", recall=0.987)
    """

    items: Mapping[str, int]
    kind: str = "exact"
    dtype: str = "float32"
    recall: float | None = None


@dataclass(frozen=True)
class Card:
    """The content of a model card.

    Attributes
    ----------
    name, folder
        Names of the model and of its folder; the commands use the folder.
    library, date, seconds
        Version of the library that fitted the model, when, and how long that took.
    pairs
        For each split, the number of images and of captions.
    image_encoder, text_encoder
        What computed the features; None if features were passed.
    tasks
        The model of each task.
    params
        Parameters of the estimator that users should know.
    selected_on
        Which pairs the regularisation was selected on; None if it was not selected.
    quality
        What the model was measured on; see ``describe_quality``.
    metrics
        For ``"validation"`` and ``"test"``, the five metrics of each task; None if it was not measured.
    index
        None if nothing is indexed.
    files
        Names and descriptions of the other files of the folder.
    has_figure, has_reliability
        Whether ``regularization.png`` and ``reliability.png`` are in the folder.
    calibration
        What is known of the probabilities, as ``Retriever.info`` has it.
    repo
        The repository of the Hugging Face Hub that the model is published in.
    views
        What the card calls an item of each view.

    Examples
    --------
    >>> card = Card("beaches", "beaches", "1.0", "2025-01-31", {"train": (100, 500)}, None, None, {})
    """

    name: str
    folder: str
    library: str
    date: str
    pairs: Mapping[str, tuple[int, int]]
    image_encoder: EncoderFacts | None
    text_encoder: EncoderFacts | None
    tasks: Mapping[Task, TaskFacts | FusedTaskFacts]
    params: Mapping[str, object] = field(default_factory=dict)
    selected_on: str | None = None
    seconds: float | None = None
    quality: str = "It was not measured: try it before you rely on it."
    metrics: Mapping[str, Mapping[Task, Mapping[str, float]]] | None = None
    index: IndexFacts | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    has_figure: bool = False
    repo: str = ""
    views: ViewNames = IMAGE_AND_TEXT
    calibration: Mapping[str, Any] | None = None
    has_reliability: bool = False


def model_card(facts: Card) -> str:
    """Return the model card as Markdown.

    Examples
    --------
    >>> encoder = EncoderFacts("ResNet-50", "onnx:1f2e", 2048)
    >>> card = Card("beaches", "beaches", "1.0", "2025-01-31", {"train": (100, 500)}, encoder, None, {})
    >>> print(model_card(card).splitlines()[0])
    # beaches
    """
    sections = (_model, _use, _training, _quality, _regularization, _scores, _limits, _files)
    return "\n\n".join(part for section in sections for part in section(facts)) + "\n"


def describe_quality(facts: Mapping[str, Any]) -> str:
    """Describe what a model was selected and measured on; command line, card and page show this.

    ``facts`` are those that ``diptych.retrieval._training`` stores with a model.

    >>> selection = {"pairs": "the val split", "metric": "r@1", "search": 34.12, "annotate": 45.3}
    >>> print(describe_quality({"selection": selection}).partition(". ")[0])
    Selected on the val split; r@1 there: search 34.1, annotate 45.3
    """
    sentences = []
    if "selection" in facts:
        selection = facts["selection"]
        scores = ", ".join(f"{task} {selection[task]:.1f}" for task in TASKS)
        sentences.append(f"Selected on {selection['pairs']}; {selection['metric']} there: {scores}.")
        if "grid" in selection:
            sentences.append(f"{selection['grid'][0].upper()}{selection['grid'][1:]}.")
        sentences.append("The settings were selected on those pairs, so the figures are slightly optimistic.")
    elif "theory" in facts:
        sentences.append(f"The regularisation is from theory ({facts['theory']}), not selected.")
    else:
        sentences.append("The regularisation was set by the user, not selected.")
    if "refitted" in facts:
        sentences.append(
            f"Refitted afterwards on {facts['refitted']['pairs']:,} pairs, and not measured again."
        )
    elif "test" in facts.get("metrics", {}):
        test = facts["metrics"]["test"]
        sizes = facts.get("pairs", {}).get("test")
        among = {
            task: "" if sizes is None else f" among {n:,}"
            for task, n in zip(TASKS, sizes or (0, 0), strict=True)
        }
        scores = ", ".join(f"{task} {test[task]['r@1']:.1f}{among[task]}" for task in TASKS)
        sentences.append(f"Measured on the test split, which fitting did not use: r@1 {scores}.")
    else:
        sentences.append("Not measured on pairs that fitting and selection did not use.")
    return " ".join(sentences)


def describe_fit(info: Mapping[str, Any]) -> list[str]:
    """Say in words what a model learned from, and how good it is among how many; shown after a fit.

    ``info`` is what ``Retriever.info`` returns.

    >>> encoders = {"image": {"name": "resnet50.onnx"}, "text": {"name": "hkse"}}
    >>> facts = {"pairs": {"train": (6000, 30000)}, "metrics": {}}
    >>> print(describe_fit({"views": ["image", "text"], "encoders": encoders, "facts": facts})[0])
    Learned from 6,000 images with 30,000 captions; images are seen by resnet50.onnx, texts by hkse.
    """
    facts, names = info["facts"], ViewNames(*info["views"])
    pairs, metrics = facts["pairs"], facts["metrics"]
    # Where validation pairs were not measured, the model was fitted on them too.
    learned = ["train", *(["val"] if "val" in pairs and "validation" not in metrics else [])]
    images, captions = (sum(pairs[split][view] for split in learned) for view in (0, 1))
    seen = [info["encoders"][view]["name"] or "the features given" for view in ("image", "text")]
    lines = [
        f"Learned from {count(images, names.image)} with {count(captions, names.caption)}; "
        f"{plural(names.image)} are seen by {seen[0]}, {plural(names.text)} by {seen[1]}."
    ]
    for measured, split, what in (
        ("test", "test", "test {}, which it had not seen"),
        ("validation", "val", "validation {}, on which its settings were chosen"),
    ):
        if measured in metrics:
            (n, m), scores = pairs[split], metrics[measured]
            for task, number, items, queries in (
                ("search", n, names.image, plural(names.text)),
                ("annotate", m, names.caption, plural(names.image)),
            ):
                right = "the right one" if task == "search" else "a right one"
                lines.append(
                    f"Among {number:,} {what.format(plural(items))}, {right} comes first for "
                    f"{scores[task]['r@1']:.1f} % of the {queries}, and among the first ten for "
                    f"{scores[task]['r@10']:.1f} %."
                )
            return lines
    if "selection" in facts:
        selection = facts["selection"]
        scores = ", ".join(f"{task} {selection[task]:.1f}" for task in TASKS)
        figures = f"{selection['metric']} was {scores}"
        if selection["metric"] == "r@1":
            figures = (
                f"the right {names.image} came first for {selection['search']:.1f} % of the "
                f"{plural(names.text)}, and a right {names.text} for {selection['annotate']:.1f} % of the "
                f"{plural(names.image)}"
            )
        lines.append(f"Settings were chosen on {selection['pairs']}. There, {figures}: slightly optimistic.")
    else:
        lines.append("It was not measured on pairs that it had not seen.")
    return lines


def describe_correction(correction: Mapping[str, Any]) -> str:
    """Describe a hubness correction, given as plain data; command line, card and page show this.

    >>> describe_correction({"kind": "csls", "strength": 0.3, "neighbours": 10, "gated": False})
    'an item loses 0.3 of its mean score with the 10 nearest training queries (CSLS)'
    >>> describe_correction({"kind": "none"})
    'none'
    """
    if correction["kind"] == "none":
        return "none"
    gate = "; less for a query that is unlike those" if correction.get("gated") else ""
    return (
        f"an item loses {correction['strength']:g} of its mean score with the {correction['neighbours']} "
        f"nearest training queries ({correction['kind'].upper()}){gate}"
    )


def describe_probabilities(calibration: Mapping[str, Any]) -> str:
    """Describe the probabilities of hits, given as plain data, in one line, as the command line shows them.

    >>> describe_probabilities({"absent": "there was 1 held-out image with texts; probabilities need 100"})
    'probabilities: none, because there was 1 held-out image with texts; probabilities need 100'
    """
    if "absent" in calibration:
        return f"probabilities: none, because {calibration['absent']}"
    errors = ", ".join(f"{task} error {calibration[task]['ece']:.3f}" for task in TASKS)
    return f"probabilities: {errors} (cross-validated on {calibration['search']['on']})"


def escape_markdown(text: object, longest: int = 200) -> str:
    r"""Escape ``text`` for one line of Markdown: no markup, no HTML, no end of a table's cell.

    >>> escape_markdown("a|b <b>*c*</b>")
    'a\\|b &lt;b&gt;\\*c\\*&lt;/b&gt;'
    """
    line = re.sub(r"[\\`*_\[\]|~#$&]", r"\\\g<0>", one_line(str(text), longest))
    # Entities instead of backslashes: some readers parse HTML before Markdown.
    return line.replace("<", "&lt;").replace(">", "&gt;")


def _model(facts: Card) -> Iterator[str]:
    yield f"# {escape_markdown(facts.name) or 'model'}"
    image, text = facts.views
    yield (
        f"A diptych model: it finds {plural(image)} for {with_article(text)} (search) and {plural(text)} for "
        f"{with_article(image)} (annotate). Both are mapped into one space by regularised canonical "
        "correlation analysis, for each task by a model of its own."
    )
    duration = "" if facts.seconds is None else f" in {_duration(facts.seconds)}"
    yield (
        f"Fitted on {escape_markdown(facts.date) or 'an unknown day'}{duration}, "
        f"with diptych {escape_markdown(facts.library) or 'of an unknown version'}."
    )


def _use(facts: Card) -> Iterator[str]:
    # A name with line breaks or control characters could turn the command into another one.
    folder = facts.folder if facts.folder and facts.folder.isprintable() else "FOLDER"
    argument = shlex.quote(f"./{folder}" if folder.startswith("-") else folder)
    example = "photo.jpg" if facts.views.image == "image" else "FILE"
    text, image = (one is not None and one.kept for one in (facts.text_encoder, facts.image_encoder))
    image_file, text_file = (f"{plural(name).replace(' ', '-')}.npy" for name in facts.views)
    yield "## Use it"
    yield _code(
        "python",
        *([] if text else ["import numpy as np", ""]),
        "from diptych import Retriever",
        f"model = Retriever.from_pretrained({json.dumps(facts.repo)})"
        if facts.repo
        else f"model = Retriever.load({json.dumps(folder, ensure_ascii=False)})",
        'model.search("a dog")'
        if text
        else f'model.search(np.load("{text_file}"))  # features, one row per query',
    )
    yield "or from the shell:"
    yield _code(
        "sh",
        *([f"diptych pull {shlex.quote(facts.repo)} --out {argument}"] if facts.repo else []),
        f"diptych search {argument} " + ('"a dog"' if text else f"--features {text_file}"),
        f"diptych annotate {argument} " + (example if image else f"--features {image_file}"),
    )


def _training(facts: Card) -> Iterator[str]:
    names = facts.views
    yield "## What it was fitted on"
    yield _table(
        ("pairs", plural(names.image), plural(names.caption)),
        ((name, f"{images:,}", f"{captions:,}") for name, (images, captions) in facts.pairs.items()),
    )
    views = zip(map(plural, names), (facts.image_encoder, facts.text_encoder), strict=True)
    yield _table(
        ("view", "encoder", "fingerprint", "dimensions"),
        (
            (view, "none: features were passed", "", "")
            if encoder is None
            else (view, encoder.name, encoder.fingerprint, f"{encoder.dimension:,}")
            for view, encoder in views
        ),
    )
    if facts.index is None:
        yield f"Nothing is indexed yet: add {' and '.join(map(plural, names))} before searching."
        return
    index = facts.index
    items = ", ".join(escape_markdown(count(number, view)) for view, number in index.items.items())
    recall = "" if index.recall is None else f", finding {100 * index.recall:.1f} % of the true nearest"
    kind, dtype = escape_markdown(index.kind), escape_markdown(index.dtype)
    yield f"Indexed when this card was written: {items or 'nothing'} ({kind}, {dtype}{recall})."


def _quality(facts: Card) -> Iterator[str]:
    yield "## How good it is"
    yield escape_markdown(facts.quality, longest=1000)
    if not facts.metrics:
        return
    titles = task_titles(facts.views)
    yield _table(
        ("pairs", "task", *(name.replace("_", " ") for name in METRICS)),
        (
            (split, titles[task], *(_metric(name, by_task[task].get(name)) for name in METRICS))
            for split, by_task in facts.metrics.items()
            for task in TASKS
            if task in by_task
        ),
    )
    yield (
        "r@k is the percentage of queries whose right item is among the first k hits: higher is better. "
        "The best rank is 1."
    )


def _regularization(facts: Card) -> Iterator[str]:
    titles = task_titles(facts.views)
    tasks = [(titles[task], facts.tasks[task]) for task in TASKS if task in facts.tasks]
    fused = [(title, task) for title, task in tasks if isinstance(task, FusedTaskFacts)]
    yield "## Parts" if fused else "## Regularisation"
    if facts.selected_on is not None:
        yield f"Selected for each task by retrieval on {escape_markdown(facts.selected_on.rstrip('. '))}."
    if fused:
        yield from _parts(fused, facts.views)
    else:
        yield from _filters([(title, task) for title, task in tasks if isinstance(task, TaskFacts)], facts)
    if facts.params:
        yield _table(("parameter", "value"), ((name, _value(value)) for name, value in facts.params.items()))
    if facts.has_figure:
        yield f"![Scores of every grid point for both tasks, and the selected one]({FIGURE_FILE})"


def _parts(tasks: Sequence[tuple[str, FusedTaskFacts]], names: ViewNames) -> Iterator[str]:
    yield (
        f"Each part is a model of some features, by which it is named: of {plural(names.image)} × of "
        f"{plural(names.text)}. A score is the sum of the parts' cosines, each times its weight, less a "
        "correction for items that are near every query (hubness)."
    )
    yield _table(
        ("task", "part", "weight", "compared by", "components"),
        (
            (title, part["name"], f"{part['weight']:.2g}", part["use"], f"{part['components']:,}")
            for title, task in tasks
            for part in task.parts
        ),
    )
    yield _table(("task", "correction for hubness"), ((title, task.correction) for title, task in tasks))


def _filters(tasks: Sequence[tuple[str, TaskFacts]], facts: Card) -> Iterator[str]:
    yield _table(
        ("task", *map(plural, facts.views), "components"),
        ((title, task.filter_x, task.filter_y, f"{task.components:,}") for title, task in tasks),
    )
    if any(len(task.correlations) for _, task in tasks):
        yield _table(
            ("first canonical correlations", *(title for title, _ in tasks)),
            (
                (name, *(_correlations(getattr(task, attribute), task.components) for _, task in tasks))
                for attribute, name in CORRELATIONS.items()
            ),
        )
        yield (
            "Those of the regularised model weight the vectors; regularisation lowers them and chance raises "
            "them. Those on validation pairs are realistic."
        )


def _scores(facts: Card) -> Iterator[str]:
    yield "## How to read its scores"
    if facts.params.get("similarity", "cosine") == "l2":
        meaning = "minus the distance between two vectors"
    elif "preset" in facts.params:
        meaning = "a weighted sum of cosines, minus a correction for items that are near every query"
    else:
        meaning = "the cosine of two vectors, from -1 to 1"
    yield (
        f"A score is {meaning}. It is not a probability. Compare scores within one query only, not across "
        "queries, tasks or models. There is always a best hit, even if nothing fits the query."
    )
    calibration = facts.calibration
    if calibration is None:
        return
    yield "## How to read its probabilities"
    if "absent" in calibration:
        yield f"Hits have none, because {escape_markdown(calibration['absent'], longest=500)}."
        return
    titles = task_titles(facts.views)
    yield (
        "The probability of a hit is how likely it is right, if the gallery that was searched has a right "
        "item at all. It takes the size of the gallery into account, never changes the order, and can be "
        "compared between queries."
    )
    yield _table(
        ("task", "pairs", "gallery", "method", "expected calibration error"),
        (
            (
                titles[task],
                f"{facts['pairs']:,}",
                f"{facts['gallery']:,}",
                facts["method"],
                f"{facts['ece']:.3f}",
            )
            for task, facts in ((task, calibration[task]) for task in TASKS if task in calibration)
        ),
    )
    on = escape_markdown(calibration["search"]["on"], longest=300)
    yield (
        f"Measured by cross-validation on {on}. The error is the mean difference between probability and "
        "share of right hits, of the ten best hits of each query in 15 bins."
    )
    if facts.has_reliability:
        yield f"![The share of right hits against their probability, for both tasks]({RELIABILITY_FILE})"


def _limits(facts: Card) -> Iterator[str]:
    captions = facts.pairs["train"][1] if "train" in facts.pairs else None
    yield "## Limits"
    lines = [
        "It knows only what its training pairs show. Results for other objects and words are guesses, and it "
        "repeats what the pairs say wrongly or unfairly, especially about people.",
        f"The figures hold for {' and '.join(map(plural, facts.views))} like the training pairs; measure the "
        "model again on others.",
        f"With fewer than {FEW_PAIRS} pairs, the model and the selected settings are mostly chance.",
    ]
    if captions is not None and captions < FEW_PAIRS:
        lines.append(
            f"**This model was fitted on {count(captions, 'pair')}: use it only to try things out.**"
        )
    yield "\n".join(f"- {line}" for line in lines)


def _files(facts: Card) -> Iterator[str]:
    listed = {"README.md": "this card", **facts.files}
    if facts.has_figure:
        listed.setdefault(FIGURE_FILE, "the scores of the regularisation path")
    if facts.has_reliability:
        listed.setdefault(RELIABILITY_FILE, "probabilities and shares of right hits")
    yield "## Files"
    yield _table(("file", "content"), listed.items())
    yield "Loading the model executes no code from these files: they are arrays, JSON, text and figures."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; every cell is escaped here and nowhere else."""
    lines = ["| " + " | ".join(escape_markdown(cell) for cell in row) + " |" for row in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def _code(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```"])


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
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
