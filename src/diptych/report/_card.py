"""The model card: ``README.md`` of a model folder, for the people who use the model.

Names and descriptions come from the user who fitted the model. They are escaped, so that they can neither
break a table nor add markup.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from diptych._checks import FEW_PAIRS, TASKS, Task, ViewNames, count, plural, with_article
from diptych.cca._description import SHOWN_CORRELATIONS, ModelDescription
from diptych.report._page import one_line, task_titles

FIGURE_FILE = "regularization.png"
RELIABILITY_FILE = "reliability.png"
CORRELATIONS = {
    "correlations": "of the regularised model (Σ)",
    "train_correlations": "of its variates on the training pairs",
    "validation_correlations": "of its variates on validation pairs",
}
VIEWS: tuple[Literal["image", "text"], ...] = ("image", "text")
METRICS = ("r@1", "r@5", "r@10", "median_rank", "mean_rank")


@dataclass(frozen=True)
class Card:
    """What a model card is written from.

    ``name`` is that of the model and of its folder, ``info`` is what ``Retriever.info`` returns, ``model``
    the description in it as an object. ``files`` has names and meanings of the other files of the folder.
    ``kept`` are the views (``"image"``, ``"text"``) whose encoder is applied when the model is opened;
    queries of another view must be features. ``repo`` is the repository of the Hugging Face Hub that the
    model is published in.
    """

    name: str
    info: Mapping[str, Any]
    model: ModelDescription
    files: Mapping[str, str]
    kept: Collection[str] = ()
    repo: str = ""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the fit measured."""
        return self.info["facts"]  # type: ignore[no-any-return]

    @property
    def views(self) -> ViewNames:
        """What the card calls an item of each view."""
        return ViewNames(*self.info["views"])

    @property
    def titles(self) -> dict[Task, str]:
        """The tasks in words."""
        return task_titles(self.views)


def model_card(card: Card) -> str:
    """Return the model card as Markdown."""
    sections = (_model, _use, _training, _quality, _regularization, _scores, _limits, _files)
    return "\n\n".join(part for section in sections for part in section(card)) + "\n"


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
    sentences += _describe_audit(facts)
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
    if "library" in facts:
        kinds = facts["library"]
        sentences.append(
            f"In a library of {kinds['items']:,} held-out items, three in four with their pairs: search r@1 "
            f"{100 * kinds['paired']:.1f} for these, {100 * kinds['alone']:.1f} for new items."
        )
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
        f"{plural(names.image)} are seen by {seen[0]}, {plural(names.text)} by {seen[1]}.",
        *_describe_audit(facts),
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


def _describe_audit(facts: Mapping[str, Any]) -> list[str]:
    """Say how many training pairs an audit left out, if there was one."""
    if "audit" not in facts:
        return []
    left_out, pairs = facts["audit"]["left_out"], count(facts["audit"]["pairs"], "training pair")
    return [f"An audit left out {left_out:,} of {pairs}, which look wrong."]


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


def _model(card: Card) -> Iterator[str]:
    yield f"# {escape_markdown(card.name) or 'model'}"
    (image, text), seconds = card.views, card.facts.get("seconds", {}).get("all")
    yield (
        f"A diptych model: it finds {plural(image)} for {with_article(text)} (search) and {plural(text)} for "
        f"{with_article(image)} (annotate). Both are mapped into one space by regularised canonical "
        "correlation analysis, for each task by a model of its own."
    )
    yield (
        f"Fitted on {escape_markdown(card.facts.get('date', '')) or 'an unknown day'}"
        f"{'' if seconds is None else f' in {_duration(seconds)}'}, with diptych "
        f"{escape_markdown(card.info['library']) or 'of an unknown version'}."
    )


def _use(card: Card) -> Iterator[str]:
    # A name with line breaks or control characters could turn the command into another one.
    folder = card.name if card.name and card.name.isprintable() else "FOLDER"
    argument = shlex.quote(f"./{folder}" if folder.startswith("-") else folder)
    example = "photo.jpg" if card.views.image == "image" else "FILE"
    image_file, text_file = (f"{plural(name).replace(' ', '-')}.npy" for name in card.views)
    yield "## Use it"
    yield _code(
        "python",
        *([] if "text" in card.kept else ["import numpy as np", ""]),
        "from diptych import Retriever",
        f"model = Retriever.from_pretrained({json.dumps(card.repo)})"
        if card.repo
        else f"model = Retriever.load({json.dumps(folder, ensure_ascii=False)})",
        'model.search("a dog")'
        if "text" in card.kept
        else f'model.search(np.load("{text_file}"))  # features, one row per query',
    )
    yield "or from the shell:"
    yield _code(
        "sh",
        *([f"diptych pull {shlex.quote(card.repo)} --out {argument}"] if card.repo else []),
        f"diptych search {argument} " + ('"a dog"' if "text" in card.kept else f"--features {text_file}"),
        f"diptych annotate {argument} " + (example if "image" in card.kept else f"--features {image_file}"),
    )


def _training(card: Card) -> Iterator[str]:
    names, info = card.views, card.info
    yield "## What it was fitted on"
    yield _table(
        ("pairs", plural(names.image), plural(names.caption)),
        ((split, f"{n:,}", f"{m:,}") for split, (n, m) in card.facts.get("pairs", {}).items()),
    )
    encoders = {names.of(view): info["encoders"][view] for view in VIEWS}
    yield _table(
        ("view", "encoder", "fingerprint", "dimensions"),
        (
            (plural(view), encoder["name"], encoder["fingerprint"], f"{encoder['dimension']:,}")
            if encoder["name"]
            else (plural(view), "none: features were passed", "", "")
            for view, encoder in encoders.items()
        ),
    )
    if not any(info["items"].values()):
        yield f"Nothing is indexed yet: add {' and '.join(map(plural, names))} before searching."
        return
    items = ", ".join(escape_markdown(count(info["items"][view], names.of(view))) for view in VIEWS)
    kind, dtype = escape_markdown(info["index"]["kind"]), escape_markdown(info["index"]["dtype"])
    recalls = card.facts.get("graph_recall", {}).values()
    recall = f", finding {100 * min(recalls):.1f} % of the true nearest" if recalls else ""
    kind = "exact" if kind == "flat" else kind
    yield f"Indexed when this card was written: {items} ({kind}, {dtype}{recall})."


def _quality(card: Card) -> Iterator[str]:
    yield "## How good it is"
    unknown = "It was not measured: try it before you rely on it."
    yield escape_markdown(card.facts.get("quality", unknown), longest=1000)
    if not card.facts.get("metrics"):
        return
    yield _table(
        ("pairs", "task", *(name.replace("_", " ") for name in METRICS)),
        (
            (split, card.titles[task], *(_metric(name, by_task[task].get(name)) for name in METRICS))
            for split, by_task in card.facts["metrics"].items()
            for task in TASKS
            if task in by_task
        ),
    )
    yield (
        "r@k is the percentage of queries whose right item is among the first k hits: higher is better. "
        "The best rank is 1."
    )


def _regularization(card: Card) -> Iterator[str]:
    yield "## Parts" if card.model.parts else "## Regularisation"
    if selected_on := card.facts.get("selection", {}).get("pairs"):
        yield f"Selected for each task by retrieval on {escape_markdown(selected_on.rstrip('. '))}."
    yield from (_parts if card.model.parts else _filters)(card)
    if params := card.model.params:
        yield _table(("parameter", "value"), ((name, _value(value)) for name, value in params.items()))
    if FIGURE_FILE in card.files:
        yield f"![Scores of every grid point for both tasks, and the selected one]({FIGURE_FILE})"


def _parts(card: Card) -> Iterator[str]:
    yield (
        f"Each part is a model of some features, by which it is named: of {plural(card.views.image)} × of "
        f"{plural(card.views.text)}. A score is the sum of the parts' cosines, each times its weight, less a "
        "correction for items that are near every query (hubness)."
    )
    yield _table(
        ("task", "part", "weight", "compared by", "components"),
        (
            (card.titles[task], part.name, f"{part.weight:.2g}", part.use, f"{part.components:,}")
            for task in TASKS
            for part in card.model.parts[task]
        ),
    )
    corrections = {task: msgspec.to_builtins(card.model.corrections[task]) for task in TASKS}
    yield _table(
        ("task", "correction for hubness"),
        ((card.titles[task], describe_correction(corrections[task])) for task in TASKS),
    )


def _filters(card: Card) -> Iterator[str]:
    model, titles = card.model, card.titles
    yield _table(
        ("task", *map(plural, card.views), "components"),
        ((titles[task], *model.filters[task], f"{model.components[task]:,}") for task in TASKS),
    )
    if any(known.get("correlations") for known in model.correlations.values()):
        yield _table(
            ("first canonical correlations", *titles.values()),
            (
                (
                    what,
                    *(
                        _correlations(model.correlations[task].get(name), model.components[task])
                        for task in TASKS
                    ),
                )
                for name, what in CORRELATIONS.items()
            ),
        )
        yield (
            "Those of the regularised model weight the vectors; regularisation lowers them and chance raises "
            "them. Those on validation pairs are realistic."
        )


def _scores(card: Card) -> Iterator[str]:
    yield "## How to read its scores"
    if card.model.params.get("similarity", "cosine") == "l2":
        meaning = "minus the distance between two vectors"
    elif card.model.parts:
        meaning = "a weighted sum of cosines, minus a correction for items that are near every query"
    else:
        meaning = "the cosine of two vectors, from -1 to 1"
    yield (
        f"A score is {meaning}. It is not a probability. Compare scores within one query only, not across "
        "queries, tasks or models. There is always a best hit, even if nothing fits the query."
    )
    calibration = card.info["calibration"]
    yield "## How to read its probabilities"
    if "absent" in calibration:
        yield f"Hits have none, because {escape_markdown(calibration['absent'], longest=500)}."
        return
    yield (
        "The probability of a hit is how likely it is right, if the gallery that was searched has a right "
        "item at all. It takes the size of the gallery into account, never changes the order, and can be "
        "compared between queries."
    )
    measured = {card.titles[task]: calibration[task] for task in TASKS}
    yield _table(
        ("task", "pairs", "gallery", "method", "expected calibration error"),
        (
            (title, f"{of['pairs']:,}", f"{of['gallery']:,}", of["method"], f"{of['ece']:.3f}")
            for title, of in measured.items()
        ),
    )
    on = escape_markdown(calibration["search"]["on"], longest=300)
    yield (
        f"Measured by cross-validation on {on}. The error is the mean difference between probability and "
        "share of right hits, of the ten best hits of each query in 15 bins."
    )
    if RELIABILITY_FILE in card.files:
        yield f"![The share of right hits against their probability, for both tasks]({RELIABILITY_FILE})"


def _limits(card: Card) -> Iterator[str]:
    _, captions = card.facts.get("pairs", {}).get("train", (0, FEW_PAIRS))
    yield "## Limits"
    lines = [
        "It knows only what its training pairs show. Results for other objects and words are guesses, and it "
        "repeats what the pairs say wrongly or unfairly, especially about people.",
        f"The figures hold for {' and '.join(map(plural, card.views))} like the training pairs; measure the "
        "model again on others.",
        f"With fewer than {FEW_PAIRS} pairs, the model and the selected settings are mostly chance.",
    ]
    if captions < FEW_PAIRS:
        lines.append(
            f"**This model was fitted on {count(captions, 'pair')}: use it only to try things out.**"
        )
    yield "\n".join(f"- {line}" for line in lines)


def _files(card: Card) -> Iterator[str]:
    yield "## Files"
    yield _table(("file", "content"), {"README.md": "this card", **card.files}.items())
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


def _correlations(values: Sequence[float] | None, components: int) -> str:
    if not values:
        return "not measured"
    shown = ", ".join(f"{value:.3f}" for value in values[:SHOWN_CORRELATIONS])
    return f"{shown}, …" if components > SHOWN_CORRELATIONS else shown


def _value(value: object) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_value, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
