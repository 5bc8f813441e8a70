"""Run experiments step by step, and write what came out."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diptych import storage
from diptych.checks import InputError
from diptych.experiments.approximation import APPROXIMATION
from diptych.experiments.cache import plain
from diptych.experiments.claims import Claim, all_claims
from diptych.experiments.examples import EXAMPLES_SHOWN
from diptych.experiments.experiment import Experiment, Results, Table
from diptych.experiments.filters import FILTERS
from diptych.experiments.gaps import gaps
from diptych.experiments.main import MAIN
from diptych.experiments.maps import MAPS
from diptych.experiments.plane import PLANE
from diptych.experiments.published import source
from diptych.experiments.regularization import REGULARIZATION, SIMILARITY
from diptych.experiments.setting import Setting
from diptych.experiments.timing import TIMING
from diptych.experiments.weighting import GENERATION, WEIGHTING
from diptych.report.page import Html, Row, Section, bullets, code, join, page, section, table, verdict

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each
    for each in (
        MAIN,
        WEIGHTING,
        GENERATION,
        REGULARIZATION,
        TIMING,
        MAPS,
        FILTERS,
        PLANE,
        EXAMPLES_SHOWN,
        APPROXIMATION,
        SIMILARITY,
    )
}
REPORT, RESULTS, TABLES, CACHE = "report.html", "results.json", "csv", "cache"


@dataclass(frozen=True)
class Step:
    """A step that is about to run: its place among all, and its label."""

    done: int
    total: int
    label: str


@dataclass
class Reproduction:
    """Results of all experiments, as they come in.

    Attributes
    ----------
    setting
        What they are run on.
    results
        By experiment and by job.
    seconds
        Time that each experiment took in this run; next to nothing where results were there.
    """

    setting: Setting
    results: dict[str, Results] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def run(self, names: Sequence[str] | None = None) -> Iterator[Step]:
        """Run the experiments of these names (None: all), yielding before every step."""
        jobs = [(name, job) for name in chosen_names(names) for job in EXPERIMENTS[name].jobs(self.setting)]
        for done, (name, job) in enumerate(jobs):
            yield Step(done, len(jobs), job.label)
            start = time.perf_counter()
            self.results.setdefault(name, {})[job.label] = job.compute()
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def claims(self) -> list[Claim]:
        """What became of the paper's claims."""
        return all_claims(self.results, len(self.setting.run.test))

    def tables(self) -> dict[str, Table]:
        """Every number as named tables of plain rows."""
        found = {"claims": [asdict(claim) for claim in self.claims()]}
        for name, results in self.results.items():
            found |= EXPERIMENTS[name].tables(results)
        return found

    def write(self, folder: Path, command: str) -> list[Path]:
        """Write the report, every number as JSON and as CSV; each file appears whole."""
        written = [folder / REPORT, folder / RESULTS]
        with storage.replacing_file(written[0]) as staged:
            staged.write_text(self.html(command), "utf-8")
        content = {
            "command": command,
            "library": storage.library_version(),
            **self.setting.described(),
            "claims": [asdict(claim) for claim in self.claims()],
            "gaps": [asdict(gap) for gap in gaps(self.setting.materials)],
            "results": self.results,
        }
        with storage.replacing_file(written[1]) as staged:
            storage.write_json(staged, plain(content))
        for name, rows in self.tables().items():
            path = folder / TABLES / f"{name}.csv"
            with (
                storage.replacing_file(path) as staged,
                open(staged, "w", encoding="utf-8", newline="") as file,
            ):
                columns = list(dict.fromkeys(key for row in rows for key in row))
                writer = csv.DictWriter(file, columns)
                writer.writeheader()
                writer.writerows(rows)
            written.append(path)
        return written

    def html(self, command: str) -> str:
        """The whole report as one page."""
        setting = self.setting
        title = f"The paper on {setting.materials.title}"
        lead = (
            "Asymmetric Regularized CCA and Hierarchical Kernel Sentence Embedding for Image & Text "
            "Retrieval (Mroueh, Marcheret, Goel, 2016): every table and figure, run again, beside the "
            "published numbers."
        )
        sections = [self._materials(command), self._claims()]
        for number, (name, results) in enumerate(self.results.items(), start=1):
            experiment = EXPERIMENTS[name]
            sections.append(section(f"{number}. {experiment.title}", *experiment.show(setting, results)))
        spent = ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items())
        footer = f"diptych {storage.library_version()}. Published figures: {source()}. This run: {spent}."
        return page(title, lead, sections, footer=footer)

    def _materials(self, command: str) -> Section:
        setting = self.setting
        options = setting.options
        notes = [
            f"HKSE: m = {options.word_features:,} word features, m′ = {options.sentence_features:,} sentence "
            f"features, η = 0.01, γ from the median distance of words; word vectors: "
            f"{setting.materials.vectors_kind}.",
            f"Single experiments (2 to 11) use {setting.image.name} as it is"
            + (
                f" and the first of the protocol's {len(next(iter(setting.plans.values())).runs)} runs."
                if len(next(iter(setting.plans.values())).runs) > 1
                else "."
            ),
            f"Seeds: {options.seeds}.",
        ]
        return section(
            "What was run",
            code(command, block=True),
            table(["file", "used as"], [[each.file, each.use] for each in setting.materials.found]),
            bullets(notes),
            table(
                ["not run", "how to get it"],
                [[gap.what, gap.how] for gap in gaps(setting.materials)],
                caption="Honest gaps",
            ),
        )

    def _claims(self) -> Section:
        claims = self.claims()
        counts = [sum(claim.holds is value for claim in claims) for value in (True, False, None)]
        rows: list[Row | list[Any]] = [
            [claim.claim, verdict(claim.holds), join(claim.evidence, _rule(claim))] for claim in claims
        ]
        return section(
            "What the paper claims",
            f"{counts[0]} hold here, {counts[1]} do not, {counts[2]} could not be measured. Each verdict is "
            "computed from the numbers below by the rule that stands beside it.",
            table(["claim", "here", "numbers"], rows),
        )


def _rule(claim: Claim) -> Html:
    return Html(f'<br><span class="note">{join("rule: ", claim.rule)}</span>') if claim.rule else Html("")


def chosen_names(names: Sequence[str] | None) -> list[str]:
    """The experiments of these names, in the order of the paper; None: all of them."""
    unknown = [name for name in names or () if name not in EXPERIMENTS]
    if unknown:
        raise InputError(f"the experiment {unknown[0]!r} is unknown; choose from {', '.join(EXPERIMENTS)}.")
    return [name for name in EXPERIMENTS if names is None or name in names]
