"""Run the experiments step by step, and write the report with its numbers and tables."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from diptych import InputError, __version__
from diptych.report import Html, Row, bullets, code, join, page, paragraph, section, verdict
from reproduction.approximation import APPROXIMATION
from reproduction.claims import judge_claims
from reproduction.comparisons import GENERATION, REGULARIZATION, SIMILARITY, TIMING, WEIGHTING
from reproduction.data import PaperData
from reproduction.examples import EXAMPLES_SHOWN, PLANE
from reproduction.experiment import Content, Experiment, Results, blas_threads, count_threads
from reproduction.main_results import MAIN
from reproduction.maps import FILTERS, MAPS
from reproduction.results import Cache, code_digest, write_json, write_text
from reproduction.setting import Options, Setting
from reproduction.tables import ReportTable, read_publication
from reproduction.verdicts import INTERVALS, LEVEL, RULE, VERDICTS, Claim, Verdict

_ORDER = (MAIN, WEIGHTING, GENERATION, REGULARIZATION, TIMING, MAPS, FILTERS, PLANE, EXAMPLES_SHOWN)
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*_ORDER, APPROXIMATION, SIMILARITY)
}
"""The experiments by name, in the order of the report."""
REPORT, RESULTS, TABLES, CACHE = "report.html", "results.json", "tables", "cache"
QUICK = (
    "This is a quick run, with coarse grids and few random features: its verdicts are indicative and may "
    "differ from those of a full run."
)


class Step(NamedTuple):
    """A job that is about to run: how many are done, how many there are, and its label."""

    done: int
    total: int
    label: str


class Reproduction:
    """The paper's experiments on one dataset, and their report.

    Without ``options`` as much is run as in the paper. The report and the results are written to ``folder``,
    and a second run with it computes only what has changed; without one, results stay in memory. ``results``
    has the numbers by experiment and job, ``seconds`` how long each experiment took when it was computed.

    >>> from reproduction.data import find_data
    >>> data = find_data("scenes", quick=True)
    >>> reproduction = Reproduction(data, Options.for_dataset("scenes", quick=True))
    >>> [step.label for step in reproduction.run(["approximation"])]
    ['approximation: errors']
    >>> reproduction.claims()[-2].claim
    'The error falls like 1/√m.'
    """

    def __init__(
        self, data: PaperData, options: Options | None = None, folder: str | os.PathLike[str] | None = None
    ) -> None:
        self.folder = None if folder is None else Path(folder)
        options = Options.for_dataset(data.name) if options is None else options
        self.setting = Setting(data, options, Cache(None if self.folder is None else self.folder / CACHE))
        self.results: dict[str, Results] = {}
        self.seconds: dict[str, float] = {}
        self._claims: tuple[int, list[Claim]] | None = None

    def run(self, names: Sequence[str] | None = None) -> Iterator[Step]:
        """Run the experiments of these names (None: all), and yield before every step."""
        cache = self.setting.cache
        jobs = [
            (name, job, compute)
            for name in check_experiments(names)
            for job, compute in EXPERIMENTS[name].jobs(self.setting).items()
        ]
        for done, (name, job, compute) in enumerate(jobs):
            label = f"{name}: {job}"
            yield Step(done, len(jobs), label)
            start, computed = time.perf_counter(), len(cache.computed)
            self.results.setdefault(name, {})[job] = compute()
            if len(cache.computed) > computed or label not in cache.seconds:
                cache.store_seconds(label, time.perf_counter() - start)
            self.seconds[name] = self.seconds.get(name, 0.0) + cache.seconds[label]

    def claims(self) -> list[Claim]:
        done = sum(map(len, self.results.values()))
        if self._claims is None or self._claims[0] != done:
            self._claims = done, judge_claims(self.results, self.setting)
        return self._claims[1]

    def verdicts(self) -> dict[Verdict, int]:
        verdicts = [claim.verdict for claim in self.claims()]
        return {verdict: verdicts.count(verdict) for verdict in VERDICTS}

    @property
    def caveat(self) -> str:
        """What to keep in mind about the verdicts; empty for a full run."""
        return QUICK if self.setting.options.quick else ""

    def write(self, command: str) -> list[Path]:
        """Write the report, all numbers as JSON, and every table as CSV, LaTeX and Markdown.

        Return the files, the report first, which shows the command line.
        """
        if self.folder is None:
            raise InputError("there is no folder to write to; pass folder= to Reproduction.")
        sections = self._sections(command)
        files = {REPORT: self._html(sections), f"{TABLES}/run.md": self._describe_run()}
        for _, parts in sections:
            for part in parts:
                if isinstance(part, ReportTable):
                    files[f"{TABLES}/{part.name}.csv"] = part.csv()
                    files[f"{TABLES}/{part.name}.tex"] = part.latex()
                    files[f"{TABLES}/{part.name}.md"] = part.markdown()
        everything = {
            "command": command,
            "library": __version__,
            "code": code_digest(),
            **self.setting.describe(),
            "caveat": self.caveat,
            "seconds": self.seconds,
            "claims": [asdict(claim) for claim in self.claims()],
            "missing": [item._asdict() for item in self.setting.data.missing()],
            "results": _without_ranks(self.results),
        }
        files[RESULTS] = write_json(everything)
        for name, content in files.items():
            write_text(self.folder / name, content)
        return [self.folder / name for name in files]

    def _html(self, sections: Sequence[tuple[str, list[Content]]]) -> str:
        lead = (
            "Asymmetric Regularized CCA and Hierarchical Kernel Sentence Embedding for Image & Text "
            "Retrieval (Mroueh, Marcheret, Goel, 2016): every table and figure, computed again and compared "
            "with the published numbers."
        )
        shown = [
            section(title, *(part.html() if isinstance(part, ReportTable) else part for part in parts))
            for title, parts in sections
        ]
        footer = f"diptych {__version__}. Published figures: {read_publication().source}."
        return page(f"The paper on {self.setting.data.title}", lead, shown, footer=footer)

    def _sections(self, command: str) -> list[tuple[str, list[Content]]]:
        sections = [
            ("What was run", self._show_data(command)),
            ("What the paper claims", self._show_claims()),
        ]
        for name, results in self.results.items():
            experiment = EXPERIMENTS[name]
            title = f"{experiment.place}. {experiment.title}"
            sections.append((title, experiment.show(self.setting, results)))
        return [*sections, ("How long it took", self._show_seconds())]

    def _show_data(self, command: str) -> list[Content]:
        setting, options = self.setting, self.setting.options
        runs = len(next(iter(setting.plans.values())).runs)
        notes = [
            f"HKSE: m = {options.word_features:,} word features, m′ = {options.sentence_features:,} sentence "
            "features, η = 0.01, γ from the median distance of words.",
            self._describe_vectors(),
            f"All experiments but {MAIN.place} use {setting.image.name} without normalisation"
            + (f" and the first of the protocol's {runs} runs." if runs > 1 else "."),
            f"Seeds: {options.seeds}.",
            *([self.caveat] if self.caveat else []),
        ]
        return [
            code(command, block=True),
            ReportTable("files", ["file", "used as"], setting.data.files),
            bullets(notes),
            ReportTable(
                "missing", ["not run", "how to get it"], setting.data.missing(), caption="What is missing"
            ),
        ]

    def _show_claims(self) -> list[Content]:
        colours = {"holds": True, "does not hold": False}
        mark = " (quick run)" if self.caveat else ""
        rows: list[Row | list[Any]] = [
            [
                claim.claim,
                claim.place,
                verdict(colours.get(claim.verdict), claim.verdict + mark),
                join(claim.evidence, _show_rule(claim)),
            ]
            for claim in self.claims()
        ]
        summary = ", ".join(f"{words}: {number}" for words, number in self.verdicts().items())
        return [
            f"{summary}. Each verdict is computed from the numbers below: a claim {RULE}, unless it has its "
            "own rule. Each difference of recalls is followed by its interval in brackets "
            f"({INTERVALS}; both methods answer the same images, which are drawn with all their captions). "
            f"The joint intervals of a claim are wider: {LEVEL:g} % of the resamples are within all of them "
            "at once. Claims are not adjusted for each other. The intervals measure the sampling of test "
            "images; that validation images could have selected other parameters is not in them.",
            *([paragraph(self.caveat, note=True)] if self.caveat else []),
            ReportTable("claims", ["claim", "in the paper", "here", "numbers"], rows, note=self.caveat),
        ]

    def _show_seconds(self) -> list[Content]:
        rows: list[Row | list[Any]] = [[name, float(value)] for name, value in self.seconds.items()]
        rows.append(["all", float(sum(self.seconds.values()))])
        return [
            "The time of each experiment when it was computed, in this run or in an earlier one that it "
            f"continues; {count_threads(blas_threads())}. Experiments share selections: the first one that "
            "needs a selection takes the time, and later ones reuse it.",
            ReportTable("times", ["experiment", "seconds"], rows),
        ]

    def _describe_run(self) -> str:
        """Describe the run in a paragraph for a document."""
        options = self.setting.options
        command = f"python -m reproduction {self.setting.data.name}" + (" --quick" if options.quick else "")
        command += f" --seeds {options.seeds}" if options.seeds > 1 else ""
        verdicts = ", ".join(f"{words} {number}" for words, number in self.verdicts().items())
        lines = [
            f"`{command}`, diptych {__version__}, {platform.machine()}, "
            f"{count_threads(blas_threads())}: {sum(self.seconds.values()) / 60:.1f} minutes. Claims: "
            f"{verdicts}.",
            self._describe_vectors(),
            *([self.caveat] if self.caveat else []),
        ]
        return "\n\n".join(lines) + "\n"

    def _describe_vectors(self) -> str:
        setting = self.setting
        test = setting.data.dataset.caption_rows(setting.run.test)
        return setting.words.describe(setting.data.vectors_origin, test)


def _show_rule(claim: Claim) -> Html:
    """Show the rule of a claim, unless it is the common one."""
    if claim.rule in ("", RULE):
        return Html("")
    return Html(f'<br><span class="note">{join("rule: ", claim.rule)}</span>')


def _without_ranks(value: Any) -> Any:
    """Return ``value`` without the ranks of queries and the resampled values, which are only in the cache."""
    if isinstance(value, Mapping):
        kept = (key for key in value if key not in ("query_ranks", "resampled"))
        return {key: _without_ranks(value[key]) for key in kept}
    return [_without_ranks(entry) for entry in value] if isinstance(value, list) else value


def check_experiments(names: Sequence[str] | None) -> list[str]:
    """Return the names of experiments in the order of the report; None: all of them.

    They are given by name or by a number of the paper.

    >>> check_experiments(["table 2", "main"])
    ['main', 'weighting']
    """
    if names is None:
        return list(EXPERIMENTS)
    names_of = {name: name for name in EXPERIMENTS}
    for name, experiment in EXPERIMENTS.items():
        names_of |= {_squeeze(item): name for item in experiment.items}
    for name in names:
        if _squeeze(name) not in names_of:
            raise InputError(f"the experiment {name!r} is unknown; choose from {list_experiments()}.")
    chosen = {names_of[_squeeze(name)] for name in names}
    return [name for name in EXPERIMENTS if name in chosen]


def list_experiments() -> str:
    """Return the names of the experiments with the paper's numbers."""
    return "; ".join(f"{experiment.name} ({experiment.place})" for experiment in EXPERIMENTS.values())


def _squeeze(name: str) -> str:
    return name.lower().replace(" ", "")
