"""How time and memory of every step grow with pairs, features, validation pairs and grid points.

``python benchmarks/growth.py`` measures every step at every size, each in a process of its own with two
threads, and writes a table and a figure, in which a line has the slope of its exponent. Exponents are fitted
by least squares to the logarithms of the sizes from the middle of the range (on its logarithmic scale) to its
end, because overheads dominate below.

What is measured is appended to ``--cells FILE``, so a run that was interrupted goes on where it stopped, and
a run with everything in the file only writes the table and the figure. ``--quick`` leaves out large sizes, to
try it out, and writes both into the folder of FILE.

Data are two noisy views of a hidden cause, drawn with a seed; about half of the held-out queries find their
pair first. In the series called easy, all of them do.
"""

from __future__ import annotations

from measuring import RESULTS, clock, pin_threads, read_memory, record, require, start_figure

pin_threads(2)

import argparse  # noqa: E402
import json  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from itertools import count, product  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

WIDTHS, PAIRS, VALIDATION, GRID = (256, 384), 10_000, 2_000, 20
"""Features of both views, pairs, validation pairs and points per side where these do not grow."""

AXES = {
    "pairs": [1_000, 3_162, 10_000, 31_623, 100_000, 316_228, 1_000_000],
    "features of each view": [256, 512, 1024, 2048, 4096],
    "validation pairs": [625, 1_250, 2_500, 5_000, 10_000],
    "grid points": [side**2 for side in (10, 14, 20, 28, 40)],
}
QUICK = {"pairs": 31_623, "features of each view": 1024, "validation pairs": 2_500, "grid points": 400}
HIDDEN, CAUSE_NOISE, NOISE, EASY_NOISE = 64, 1.2, 2.0, 0.5
NEW, CALLS, BATCH, K = 1_000, 10, 256, 10
LABEL_HEIGHT = 0.045  # of a panel's height
GAMMA = 0.01  # of fits with given parameters, for each pair

STEPS = {
    "fit": "#123e74",
    "selection": "#c05a1c",
    "selection, easy": "#e3a06f",
    "index": "#3b7d4f",
    "save": "#7d5ba6",
    "load": "#b59fd0",
    "search, one query": "#1f7fd1",
    f"search, {BATCH} queries": "#8bbcec",
    f"add {NEW:,} pairs": "#555f69",
}
SEARCHES = tuple(name for name in STEPS if name.startswith("search"))
ADD = next(name for name in STEPS if name.startswith("add"))


@dataclass(frozen=True)
class Cell:
    """One size along one axis, and what is drawn and computed there."""

    axis: str
    size: int

    @property
    def widths(self) -> tuple[int, int]:
        return (self.size, self.size) if self.axis == "features of each view" else WIDTHS

    @property
    def pairs(self) -> int:
        return self.size if self.axis == "pairs" else PAIRS

    @property
    def validation(self) -> int | None:
        """The number of validation pairs; None: those that a fit holds out."""
        if self.axis in ("pairs", "features of each view"):
            return None
        return self.size if self.axis == "validation pairs" else VALIDATION

    @property
    def grid(self) -> int:
        return round(self.size**0.5) if self.axis == "grid points" else GRID

    @property
    def steps(self) -> list[str]:
        """The steps that depend on what grows."""
        return list(STEPS)[1:3] if self.validation else [step for step in STEPS if "easy" not in step]

    def draw(self, rows: int, seed: int, easy: bool = False) -> list[np.ndarray]:
        """Return two noisy views of a hidden cause; the maps from the cause to the features never change."""
        maps, rng = np.random.default_rng(0), np.random.default_rng([1, seed])
        cause = rng.standard_normal((rows, HIDDEN), dtype=np.float32)
        views = []
        for width in self.widths:
            noisy = cause if easy else cause + CAUSE_NOISE * rng.standard_normal(cause.shape, np.float32)
            view = rng.standard_normal((rows, width), dtype=np.float32)
            view *= EASY_NOISE if easy else NOISE
            view += noisy @ maps.standard_normal((HIDDEN, width), dtype=np.float32)
            views.append(view)
        return views


def measure(
    function: Callable[[], Any], own: Callable[[float, Any], float] = lambda seconds, _: seconds
) -> dict[str, float]:
    """Return the seconds of a call, the fastest of some if it is short, and the memory that it added.

    ``own`` returns the seconds that count, from those of a call and what it returned.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before, start = read_memory("VmRSS"), clock()
    result = function()
    seconds, memory = clock() - start, read_memory("VmHWM") - before
    fastest = own(seconds, result)
    for _ in range(0 if seconds > 1 else 4):
        start = clock()
        result = function()
        fastest = min(fastest, own(clock() - start, result))
    return {"seconds": fastest, "MiB": max(0.0, memory)}


def measure_step(cell: Cell, step: str, folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the steps that were measured, and what was; models are saved in ``folder`` by one for others."""
    from diptych import AWCCA, Retriever

    gamma = GAMMA * cell.pairs
    model = AWCCA(params=(gamma, gamma), precision="float32")
    numbers = count()
    warm_up()
    if step == "fit":
        views = cell.draw(cell.pairs, 1)
        # The last decomposition is computed when the models are first read.
        yield step, measure(lambda: list(model.fit(*views).models_.values()))
    elif step in ("selection", "selection, easy"):
        easy = step == "selection, easy"
        views = cell.draw(cell.pairs, 1, easy)
        validation = cell.validation and tuple(cell.draw(cell.validation, 2, easy))
        model = AWCCA(grid=cell.grid, precision="float32")
        result = measure(
            lambda: model.fit(*views, validation=validation), lambda _, fitted: fitted.path_.seconds
        )
        path = model.path_
        verified = int((path.exact["search"] | path.exact["annotate"]).sum())
        yield step, result | {"r@1": path.best("search"), "verified": verified}
    elif step == "index":
        views = cell.draw(cell.pairs, 1)
        captions = [f"the caption of image {i}" for i in range(cell.pairs)]

        built: list[Any] = []

        def build() -> Any:
            built[:] = [Retriever.from_features(*views, captions=captions, model=model, keep_features=False)]
            return built[0].info()["facts"]["seconds"]["spectra and models"]

        yield step, measure(build, lambda seconds, fitting: seconds - fitting)
        built[0].save(folder)
    elif step == "load":
        yield step, measure(lambda: Retriever.load(folder))
    elif step == "save":
        retriever = Retriever.load(folder)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            yield step, measure(lambda: retriever.save(Path(scratch) / str(next(numbers))))
    elif step in SEARCHES:
        retriever, queries = Retriever.load(folder), cell.draw(BATCH, 3)[1]
        yield SEARCHES[0], measure(lambda: retriever.search(queries[0], K))
        yield SEARCHES[1], measure(lambda: retriever.search(queries, K))
    else:
        retriever, (x, y) = Retriever.load(folder), cell.draw(NEW, 3)

        def add() -> None:
            for start in range(0, NEW, NEW // CALLS):
                some = slice(start, start + NEW // CALLS)
                ids = [f"new {next(numbers)}" for _ in range(NEW // CALLS)]
                retriever.add(x[some], y[some], ids=ids)

        yield step, measure(add)


def warm_up() -> None:
    """Use every step once, so that imports and first calls are not measured."""
    from diptych import AWCCA, Retriever

    x, y = Cell("pairs", 1).draw(400, 4)
    AWCCA(grid=4, precision="float32").fit(x, y)
    retriever = Retriever.from_features(x, y, model=AWCCA(params=(1.0, 1.0), precision="float32"))
    with tempfile.TemporaryDirectory() as scratch:
        retriever.save(scratch)
        Retriever.load(scratch).search(y[:2])
    retriever.add(x[:1], y[:1], ids=["new"])


def read_cells(file: Path) -> dict[tuple[str, int, str], dict]:
    """Return what was measured; a later line replaces an earlier one."""
    lines = [json.loads(text) for text in file.read_text("utf-8").splitlines()] if file.exists() else []
    return {(line["axis"], line["size"], line["step"]): line for line in lines}


def measure_cell(cell: Cell, missing: list[str], file: Path) -> None:
    """Measure steps of a cell in processes of their own, and append them to the file."""
    with tempfile.TemporaryDirectory() as scratch:
        # One process measures both searches, and those of a model need the one that indexing saves.
        steps = [step for step in missing if step != SEARCHES[1] or SEARCHES[0] not in missing]
        if any(step in steps for step in ("save", "load", *SEARCHES, ADD)):
            steps = [*(step for step in steps if step in ("fit", "selection")), "index", *steps]
        for step in dict.fromkeys(steps):
            command = [sys.executable, __file__, "--one", cell.axis, str(cell.size), step, scratch]
            process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            with file.open("a", encoding="utf-8") as cells:
                cells.write(process.stdout)
            for line in map(json.loads, process.stdout.splitlines()):
                print(*line.values(), flush=True)


def fit_exponent(sizes: list[int], values: list[float]) -> float | None:
    """Return the slope of the logarithms from the middle of the sizes on; None if there are too few."""
    if len(sizes) < 3:
        return None
    x, y = np.log(sizes), np.log(values)
    upper = x >= (x[0] + x[-1]) / 2 - 1e-3
    if np.count_nonzero(upper) < 2:
        return None
    return float(np.polyfit(x[upper], y[upper], 1)[0])


def make_rows(lines: dict[tuple[str, int, str], dict]) -> list[dict[str, str]]:
    """Return a row for each axis and step: the exponents, and what was measured at every size."""
    rows = []
    for axis, step in product(AXES, STEPS):
        row = {"grows": axis, "step": step}
        for name, key in (("time", "seconds"), ("memory", "MiB")):
            sizes, values = list_values(lines, axis, step, key)
            exponent = fit_exponent(sizes, values)
            row[f"exponent of {name}"] = "" if exponent is None else f"{exponent:.2f}"
        own = [lines[axis, size, step] for size in sizes]
        row["sizes"] = ", ".join(f"{size:,}" for size in sizes)
        row["seconds"] = ", ".join(f"{line['seconds']:.3g}" for line in own)
        row["MiB added"] = ", ".join(f"{line['MiB']:.0f}" for line in own)
        row["r@1"] = ", ".join(f"{line['r@1']:.0f}" for line in own if "r@1" in line)
        row["points verified"] = ", ".join(f"{line['verified']}" for line in own if "verified" in line)
        if own:
            rows.append(row)
    return rows


def draw_growth(lines: dict[tuple[str, int, str], dict], path: Path) -> None:
    """Draw time above and memory below against what grows, one line for each step."""
    figure, panels = start_figure(2, len(AXES), size=(10.6, 7.8))
    panels[0, 0].get_gridspec().set_width_ratios([1.5, 1.2, 0.9, 0.9])
    for row, (name, key) in zip(panels, (("seconds", "seconds"), ("MiB added", "MiB")), strict=True):
        row[0].set_ylabel(name)
        ends: list[list[tuple[float, str, str]]] = []
        for axes, axis in zip(row, AXES, strict=True):
            ends.append([])
            for step, colour in STEPS.items():
                sizes, values = list_values(lines, axis, step, key)
                if sizes:
                    axes.plot(sizes, values, color=colour, marker="o", markersize=3, linewidth=1.3)
                    exponent = fit_exponent(sizes, values)
                    slope = "" if exponent is None else f"{round(exponent, 1) + 0.0:.1f}".replace("-", "−")
                    ends[-1].append((values[-1], f"{step}  {slope}", colour))
            axes.set(xscale="log", yscale="log", xlim=(AXES[axis][0] / 1.2, AXES[axis][-1] * 1.2))
            axes.minorticks_off()
            ticks = AXES[axis][::2]
            axes.set_xticks(ticks, list(map(format_size, ticks)), fontsize=8)
            axes.tick_params(axis="y", labelsize=8)
        low, high = row[0].get_ylim()
        for axes, own in zip(row, ends, strict=True):
            first, last = axes.get_xlim()
            for start in 10.0 ** np.arange(np.floor(np.log10(low * first / last)), np.log10(high)):
                axes.plot(
                    [first, last], [start, start * last / first], color="#dfe4e9", linewidth=0.7, zorder=0
                )
            axes.set(xlim=(first, last), ylim=(low, high))
            label_lines(axes, own)
    for axes, axis in zip(panels[1], AXES, strict=True):
        axes.set_xlabel(axis)
    panels[0, 0].set_title("grey: slope 1; numbers: fitted slopes", loc="left", fontsize=8, color="#6b7580")
    figure.savefig(path, metadata={"Date": None})


def format_size(size: int) -> str:
    if size >= 1_000_000:
        return f"{size // 1_000_000}M"
    return f"{size // 1000}k" if size >= 10_000 else f"{size:,}"


def list_values(
    lines: dict[tuple[str, int, str], dict], axis: str, step: str, key: str
) -> tuple[list[int], list[float]]:
    """Return the sizes at which a step was measured, and its seconds or memory; below 1 MiB is noise."""
    own = sorted((size, line[key]) for (a, size, s), line in lines.items() if (a, s) == (axis, step))
    return [size for size, _ in own], [max(value, 1.0 if key == "MiB" else 0.0) for _, value in own]


def label_lines(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    """Write a label at the right end of each line, moved where it would overlap with its neighbours."""
    low, high = np.log(axes.get_ylim())
    ends = sorted(ends)
    places = np.array([(np.log(value) - low) / (high - low) for value, _, _ in ends])
    for _ in range(200):
        overlap = np.maximum(0.0, LABEL_HEIGHT - np.diff(places)) / 2
        places += np.concatenate([[0.0], overlap]) - np.concatenate([overlap, [0.0]])
    for place, (_, label, colour) in zip(places, ends, strict=True):
        axes.text(1.02, place, label, color=colour, transform=axes.transAxes, va="center", fontsize=8)


NOTE = (
    f"Generated pairs, {PAIRS:,} of {WIDTHS[0]} and {WIDTHS[1]} features where these do not grow; one "
    f"caption for each image. fit: parameters given. selection: {GRID} × {GRID} points, on 15 % of the "
    f"pairs, at most 5,000, held out; where validation pairs or points grow, on other pairs, {VALIDATION:,} "
    "of them where points grow. easy: every query finds its pair first. index: what Retriever.fit does after "
    f"the model is fitted. add: in {CALLS} calls. Seconds: the fastest of five calls if the first took less "
    "than one. MiB added: the peak of the resident set above what was resident before the step (for "
    "selection, that of the whole fit). Exponents are fitted by least squares to logarithms, from the middle "
    "of the range to its end."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=Path, default=Path("growth_cells.jsonl"), help="file of cells")
    parser.add_argument("--quick", action="store_true", help="leave out large sizes; record nothing")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    require("matplotlib", "pip install matplotlib")
    if options.one:
        axis, size, step, folder = options.one
        warnings.simplefilter("ignore")
        for name, result in measure_step(Cell(axis, int(size)), step, Path(folder) / "model"):
            print(json.dumps({"axis": axis, "size": int(size), "step": name, **result}), flush=True)
        return
    for axis, sizes in AXES.items():
        for cell in (Cell(axis, size) for size in sizes if not options.quick or size <= QUICK[axis]):
            done = read_cells(options.cells)
            if missing := [step for step in cell.steps if (axis, cell.size, step) not in done]:
                measure_cell(cell, missing, options.cells)
    lines = read_cells(options.cells)
    if options.quick:
        for row in make_rows(lines):
            print(*row.values(), sep=" | ")
        draw_growth(lines, options.cells.with_suffix(".svg"))
        return
    record("growth", make_rows(lines), NOTE)
    draw_growth(lines, RESULTS / "growth.svg")


if __name__ == "__main__":
    main()
