"""Run experiments step by step, and write what came out."""

from __future__ import annotations

import csv
import io
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import InputError
from diptych._persistence import library_version, replace_file, write_json
from diptych.paper._approximation import APPROXIMATION
from diptych.paper._cache import plain
from diptych.paper._claims import INTERVALS, RULE, VERDICTS, Claim, all_claims, source
from diptych.paper._examples import EXAMPLES_SHOWN
from diptych.paper._experiment import Experiment, Part, Results, Table
from diptych.paper._filters import FILTERS
from diptych.paper._gaps import gaps
from diptych.paper._main import MAIN
from diptych.paper._maps import MAPS
from diptych.paper._plane import PLANE
from diptych.paper._regularization import REGULARIZATION, SIMILARITY
from diptych.paper._selecting import blas_threads
from diptych.paper._setting import Setting
from diptych.paper._tables import ReportTable
from diptych.paper._timing import TIMING
from diptych.paper._weighting import GENERATION, WEIGHTING
from diptych.report._page import Html, Row, bullets, code, join, page, paragraph, section, verdict
from diptych.text import tokenize

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
REPORT, RESULTS, TABLES, CACHE = "report.html", "results.json", "tables", "cache"
QUICK = (
    "This is a quick run, with coarse grids and few random features: its verdicts are indicative and may "
    "differ from those of a full run."
)


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
        Time that each experiment took when it was computed, in this run or before.
    """

    setting: Setting
    results: dict[str, Results] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    _decided: tuple[int, list[Claim]] | None = field(default=None, repr=False)

    def run(self, names: Sequence[str] | None = None) -> Iterator[Step]:
        """Run the experiments of these names (None: all), yielding before every step."""
        cache = self.setting.cache
        jobs = [(name, job) for name in chosen_names(names) for job in EXPERIMENTS[name].jobs(self.setting)]
        for done, (name, job) in enumerate(jobs):
            yield Step(done, len(jobs), job.label)
            start, computed = time.perf_counter(), len(cache.computed)
            self.results.setdefault(name, {})[job.label] = job.compute()
            if len(cache.computed) > computed or job.label not in cache.seconds:
                cache.note_seconds(job.label, time.perf_counter() - start)
            self.seconds[name] = self.seconds.get(name, 0.0) + cache.seconds[job.label]

    def claims(self) -> list[Claim]:
        """What became of the paper's claims."""
        done = sum(map(len, self.results.values()))
        if self._decided is None or self._decided[0] != done:
            self._decided = done, all_claims(self.results, self.setting)
        return self._decided[1]

    @property
    def caveat(self) -> str:
        """What to keep in mind about the verdicts; empty for a full run."""
        return QUICK if self.setting.options.quick else ""

    def tables(self) -> dict[str, Table]:
        """Every number as named tables of plain rows."""
        claims = self.claims()
        found: dict[str, Table] = {
            "claims": [
                {"claim": c.claim, "verdict": c.verdict, "evidence": c.evidence, "rule": c.rule}
                | ({"caveat": self.caveat} if self.caveat else {})
                for c in claims
            ],
            "claim_differences": [
                {
                    "claim": claim.claim,
                    "against": each.against,
                    "task": each.task,
                    "metric": each.metric,
                    "first": each.first,
                    "second": each.second,
                    "difference": each.interval.value,
                    "low": each.interval.low,
                    "high": each.interval.high,
                }
                for claim in claims
                for each in claim.differences
            ],
        }
        for name, results in self.results.items():
            found |= EXPERIMENTS[name].tables(results)
        return found

    def write(self, folder: Path, command: str) -> list[Path]:
        """Write the report, every number as JSON, and every table as CSV, LaTeX and Markdown."""
        sections = self._sections(command)
        files = {
            REPORT: self._html(sections),
            f"{TABLES}/run.md": self._run_words(),
        }
        for _, parts in sections:
            for part in parts:
                if isinstance(part, ReportTable):
                    files[f"{TABLES}/{part.name}.csv"] = part.csv()
                    files[f"{TABLES}/{part.name}.tex"] = part.latex()
                    files[f"{TABLES}/{part.name}.md"] = part.markdown()
        # Where the same numbers are there in full, they take the place of the rounded ones.
        files |= {f"{TABLES}/{name}.csv": _csv(rows) for name, rows in self.tables().items()}
        for name, words in files.items():
            with replace_file(folder / name) as staged:
                staged.write_text(words, "utf-8")
        content = {
            "command": command,
            "library": library_version(),
            **self.setting.described(),
            "caveat": self.caveat,
            "seconds": self.seconds,
            "claims": [asdict(claim) for claim in self.claims()],
            "gaps": [asdict(gap) for gap in gaps(self.setting.materials)],
            "results": without_ranks(self.results),
        }
        with replace_file(folder / RESULTS) as staged:
            write_json(staged, plain(content))
        return [folder / name for name in (*files, RESULTS)]

    def html(self, command: str) -> str:
        """The whole report as one page."""
        return self._html(self._sections(command))

    def _html(self, sections: Sequence[tuple[str, list[Part]]]) -> str:
        title = f"The paper on {self.setting.materials.title}"
        lead = (
            "Asymmetric Regularized CCA and Hierarchical Kernel Sentence Embedding for Image & Text "
            "Retrieval (Mroueh, Marcheret, Goel, 2016): every table and figure, run again, beside the "
            "published numbers."
        )
        made = [
            section(title, *(part.html() if isinstance(part, ReportTable) else part for part in parts))
            for title, parts in sections
        ]
        footer = f"diptych {library_version()}. Published figures: {source()}."
        return page(title, lead, made, footer=footer)

    def _sections(self, command: str) -> list[tuple[str, list[Part]]]:
        found = [("What was run", self._materials(command)), ("What the paper claims", self._claims_shown())]
        for number, (name, results) in enumerate(self.results.items(), start=1):
            experiment = EXPERIMENTS[name]
            found.append((f"{number}. {experiment.title}", experiment.show(self.setting, results)))
        return [*found, ("How long it took", self._times())]

    def _materials(self, command: str) -> list[Part]:
        setting = self.setting
        options = setting.options
        notes = [
            f"HKSE: m = {options.word_features:,} word features, m′ = {options.sentence_features:,} sentence "
            "features, η = 0.01, γ from the median distance of words.",
            *_vector_notes(setting),
            f"Single experiments (2 to 11) use {setting.image.name} as it is"
            + (
                f" and the first of the protocol's {len(next(iter(setting.plans.values())).runs)} runs."
                if len(next(iter(setting.plans.values())).runs) > 1
                else "."
            ),
            f"Seeds: {options.seeds}.",
            *([self.caveat] if self.caveat else []),
        ]
        missing = [[gap.what, gap.how] for gap in gaps(setting.materials)]
        return [
            code(command, block=True),
            ReportTable(
                "files", ["file", "used as"], [[each.file, each.use] for each in setting.materials.found]
            ),
            bullets(notes),
            ReportTable("gaps", ["not run", "how to get it"], missing, caption="What is missing"),
        ]

    def _claims_shown(self) -> list[Part]:
        claims = self.claims()
        counts = {words: sum(claim.verdict == words for claim in claims) for words in VERDICTS}
        colours = {"holds": True, "does not hold": False}
        mark = " (quick run)" if self.caveat else ""
        rows: list[Row | list[Any]] = [
            [
                claim.claim,
                verdict(colours.get(claim.verdict), claim.verdict + mark),
                join(claim.evidence, _rule(claim)),
            ]
            for claim in claims
        ]
        summary = ", ".join(f"{words}: {count}" for words, count in counts.items())
        return [
            f"{summary}. Each verdict is computed from the numbers below: a claim {RULE}, unless another "
            "rule stands beside it. Behind each difference of recalls, in brackets, is its interval "
            f"({INTERVALS}: both methods on the same images, which are drawn with all their captions). A "
            "single interval misses in one case of twenty.",
            *([paragraph(self.caveat, note=True)] if self.caveat else []),
            ReportTable("claims", ["claim", "here", "numbers"], rows, note=self.caveat),
        ]

    def _times(self) -> list[Part]:
        rows: list[Row | list[Any]] = [[name, float(value)] for name, value in self.seconds.items()]
        rows.append(["all", float(sum(self.seconds.values()))])
        return [
            f"Each part as it was computed, in this run or in the one that it continued; {blas_threads()} "
            f"thread{'s' if blas_threads() > 1 else ''}. Selections are kept: the experiment that comes "
            "first takes the time, and later ones find them.",
            ReportTable("times", ["experiment", "seconds"], rows),
        ]

    def _run_words(self) -> str:
        """What the tables are from, as a paragraph for a document."""
        options, threads = self.setting.options, blas_threads()
        command = f"diptych reproduce {self.setting.materials.name}" + (" --quick" if options.quick else "")
        command += f" --seeds {options.seeds}" if options.seeds > 1 else ""
        counts = [claim.verdict for claim in self.claims()]
        verdicts = ", ".join(f"{words} {counts.count(words)}" for words in VERDICTS)
        lines = [
            f"`{command}`, diptych {library_version()}, {platform.machine()}, {threads} "
            f"thread{'s' if threads > 1 else ''}: {sum(self.seconds.values()) / 60:.1f} minutes. Claims: "
            f"{verdicts}.",
            *_vector_notes(self.setting),
            *([self.caveat] if self.caveat else []),
        ]
        return "\n\n".join(lines) + "\n"


def _rule(claim: Claim) -> Html:
    """The rule of a claim, where it is not the common one."""
    if claim.rule in ("", RULE):
        return Html("")
    return Html(f'<br><span class="note">{join("rule: ", claim.rule)}</span>')


def _vector_notes(setting: Setting) -> list[str]:
    """Where the word vectors are from, and how much of the captions they know."""
    words, materials = setting.words, setting.materials
    dataset = materials.dataset
    length = "each of unit length" if words.have_unit_length else "not of unit length, used as they are"
    whole = words.coverage(np.arange(dataset.n_captions))
    trained = {word for caption in words.training_captions for word in tokenize(caption)}
    unseen = {word for word in words.vectors.words if word not in trained}
    test = [set(tokenize(dataset.captions[j])) for j in dataset.caption_rows(setting.run.test)]
    kept = sum(not each.isdisjoint(unseen) for each in test)
    return [
        f"Word vectors: {materials.vectors_kind}, {length}; {whole.known_words:,} of the {whole.words:,} "
        "different words of all captions (training, validation and test) have one, and "
        f"{100 * (1 - whole.unknown_share):.1f} % of all words; the others are skipped. {len(unseen):,} of "
        f"the known words are in no training caption, and {kept:,} of the {len(test):,} test captions have "
        "one of these.",
    ]


def without_ranks(value: Any) -> Any:
    """``value`` without the ranks of single queries, which stay in the folder of kept results."""
    if isinstance(value, Mapping):
        return {key: without_ranks(each) for key, each in value.items() if key != "query_ranks"}
    return [without_ranks(each) for each in value] if isinstance(value, list) else value


def _csv(rows: Table) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(
        stream, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def chosen_names(names: Sequence[str] | None) -> list[str]:
    """The experiments of these names, in the order of the paper; None: all of them."""
    unknown = [name for name in names or () if name not in EXPERIMENTS]
    if unknown:
        raise InputError(f"the experiment {unknown[0]!r} is unknown; choose from {', '.join(EXPERIMENTS)}.")
    return [name for name in EXPERIMENTS if names is None or name in names]
