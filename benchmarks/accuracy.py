"""More accurate from the same pairs: every ingredient alone and together on Flickr8k, chosen on validation.

What is compared stands in ``accuracy.json``, which must be committed before the test split is touched; every
run that touches it is logged in ``results/accuracy_log.jsonl``, when it starts and when it ends. With
``--validation`` the test split is not read, and nothing is logged or recorded.

A cell is a group of features, a seed and a trial. What is measured in it is appended to ``--cells FILE``, so
a run that was interrupted goes on where it stopped, and cells of the same code that were measured on another
machine are not measured again. ``--readme`` measures and records the rows of README.md alone. ``--only``
measures one group; the other rows of the table stay as they were, each with its commit.
"""

from __future__ import annotations

from measuring import (
    CAPTIONS,
    NOT_RECORDED,
    RESULTS,
    TRAIN,
    VALIDATION,
    check_device,
    clock,
    find_word_vectors,
    hash_file,
    identify_code,
    load_flickr8k,
    log_test_run,
    name_commit,
    pin_threads,
    read_captions,
    read_features,
    record,
    require,
    split_flickr8k,
    start_figure,
    time_call,
)

pin_threads(1)

import argparse  # noqa: E402
import json  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from functools import cached_property, partial  # noqa: E402
from itertools import product  # noqa: E402
from multiprocessing import get_context  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

from diptych.cca import AWCCA  # noqa: E402
from diptych.cca._correction import Correction, compute_offsets, csls_offsets  # noqa: E402
from diptych.encoders import HKSE, RandomFourier  # noqa: E402
from diptych.fusion import Block, Fusion, Part  # noqa: E402
from diptych.fusion._blocks import Geometry, apply_geometry, sum_pairs, take_rows  # noqa: E402
from diptych.fusion._choosing import Trial, choose_use, fit_part, make_uses  # noqa: E402
from diptych.fusion._hubness import (  # noqa: E402
    NEIGHBOURS,
    STRENGTHS,
    Evaluator,
    PartScores,
    choose_correction,
)
from diptych.fusion._members import FittedPart, LinearMaps, Use  # noqa: E402
from diptych.ranking import ranks, retrieval_scores, summary  # noqa: E402

CONFIGURATION = Path(__file__).with_suffix(".json")
TASKS = ("search", "annotate")
ASYMMETRIC = Use("asymmetric", 1.0)


class Features:
    """Feature blocks of the first ``last`` images of Flickr8k, encoded once for each seed."""

    def __init__(self, kinds: dict, last: int) -> None:
        self.kinds, self.last, self.cache = kinds, last, {}

    @cached_property
    def captions(self) -> list[str]:
        return read_captions()[: self.last * CAPTIONS]

    def load(self, name: str, seed: int) -> np.ndarray:
        key = (name, seed if name in self.kinds else 0)
        if key not in self.cache:
            if name in self.kinds:
                settings = {"vectors": find_word_vectors(), **self.kinds[name]}
                encoder = HKSE(**settings, random_state=seed).fit(self.captions[: TRAIN * CAPTIONS])
                self.cache = {k: v for k, v in self.cache.items() if k[0] != name}
                self.cache[key] = encoder.transform(self.captions, unknown="mean")
            else:
                self.cache[key] = read_features(name, self.last * (CAPTIONS if name == "minilm" else 1))
        return self.cache[key]


@dataclass
class Split:
    """Training, validation and the pairs that are reported: those of the test split, or validation again."""

    training: tuple
    validation: tuple
    reported: tuple

    @classmethod
    def make(cls, x: dict, y: dict, on_test: bool) -> Split:
        bounds = [(0, TRAIN), (TRAIN, TRAIN + VALIDATION)]
        bounds.append((TRAIN + VALIDATION, TRAIN + 2 * VALIDATION) if on_test else bounds[1])
        parts = [
            (
                {k: v[a:b] for k, v in x.items()},
                {k: v[a * CAPTIONS : b * CAPTIONS] for k, v in y.items()},
                np.arange((b - a) * CAPTIONS) // CAPTIONS,
            )
            for a, b in bounds
        ]
        return cls(*parts)


class Table:
    """Ranks of every row by seed, and the rows of the results."""

    def __init__(self, resamples: int) -> None:
        self.ranks: dict[tuple[str, str], list[dict]] = {}
        self.seconds: dict[tuple[str, str], list[float]] = {}
        self.queries: dict[tuple[str, str], str] = {}
        self.devices: dict[tuple[str, str], str] = {}
        self.resamples = resamples

    def add(self, group: str, name: str, ranks_of: dict, seconds: float, query: str = "") -> None:
        self.ranks.setdefault((group, name), []).append(ranks_of)
        self.seconds.setdefault((group, name), []).append(seconds)
        self.queries[group, name] = query

    def add_line(self, line: dict) -> None:
        """Add what was measured in a cell."""
        self.devices |= {(line["cell"][0], row["name"]): line["device"] for row in line["rows"]}
        for row in line["rows"]:
            ranks_of = {task: np.array(own) for task, own in row["ranks"].items()}
            self.add(line["cell"][0], row["name"], ranks_of, row["seconds"], row["query"])

    def list_measured(self) -> list[dict]:
        """Return the rows of a cell as plain data."""
        return [
            {
                "name": name,
                "ranks": {task: own.tolist() for task, own in seeds[0].items()},
                "seconds": self.seconds[group, name][0],
                "query": self.queries[group, name],
            }
            for (group, name), seeds in self.ranks.items()
        ]

    def make_rows(self) -> list[dict]:
        rows = []
        for (group, name), seeds in self.ranks.items():
            row = {"features": group, "ingredient": name, "seeds": len(seeds)}
            for task in TASKS:
                each = [summary(ranks_of[task]) for ranks_of in seeds]
                mean = {k: float(np.mean([s[k] for s in each])) for k in each[0]}
                spread = float(np.std([s["r@1"] for s in each]))
                row[task] = (
                    f"{mean['r@1']:.1f} / {mean['r@5']:.1f} / {mean['r@10']:.1f} / {mean['median_rank']:.0f}"
                )
                row[f"{task} r@1 ± seeds"] = f"{spread:.1f}" if len(seeds) > 1 else ""
                row[f"{task}: gain [95 %]"] = self.compare(group, (group, name), task)
            row["fit s"] = f"{np.mean(self.seconds[group, name]):.0f}{self.devices[group, name]}"
            row["query"] = self.queries[group, name]
            row["commit"] = name_commit()
            rows.append(row)
        return rows

    def compare(self, group: str, key: tuple[str, str], task: str) -> str:
        """Return the difference in r@1 from the group's first row, by a paired bootstrap over images."""
        first = next(k for k in self.ranks if k[0] == group)
        if key == first:
            return ""
        hits = [self.share_hits(k, task) for k in (key, first)]
        difference = hits[0] - hits[1]
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, len(difference), (self.resamples, len(difference)))
        low, high = np.percentile(difference[drawn].mean(axis=1), [2.5, 97.5])
        return f"{difference.mean():+.1f} [{low:+.1f}, {high:+.1f}]"

    def share_hits(self, key: tuple[str, str], task: str) -> np.ndarray:
        """Return the share of hits at 1 of each image, in percent, over seeds and captions."""
        hits = np.mean([ranks_of[task] == 1 for ranks_of in self.ranks[key]], axis=0) * 100.0
        return hits.reshape(-1, CAPTIONS).mean(axis=1) if task == "search" else hits


def normalize_blocks(split: Split, blocks: dict[str, Block]) -> Split:
    """Return the split with every block in its geometry, as a fusion has it."""
    training = split.training
    geometries = [
        {n: Geometry.fit(blocks[n], blocks[n].candidates[0], rows, n) for n, rows in view.items()}
        for view in training[:2]
    ]

    def apply(pairs: tuple) -> tuple:
        return (*map(apply_geometry, geometries, pairs[:2]), pairs[2])

    return Split(apply(training), apply(split.validation), apply(split.reported))


class Embedded:
    """Items, queries and bank of one model and task; scores are inner products."""

    def __init__(self, part: Part, linear: LinearMaps, task: str, pairs: tuple, bank: dict) -> None:
        (view, other), (items, queries) = ("x", "y"), pairs[:2]
        if task == "annotate":
            view, other, items, queries = other, view, queries, items
        self.items = linear.embed(part.features(items, view), view)
        self.queries = linear.embed(part.features(queries, other), other)
        self.bank = linear.embed(part.features(bank, other), other)

        self.embed = lambda row: linear.embed(
            part.features(take_rows(queries, slice(row, row + 1)), other), other
        )

    def score(self) -> PartScores:
        return PartScores.of(self.queries, self.items, self.bank)

    def measure_query(self, offsets: np.ndarray | None = None, active: np.ndarray | None = None) -> str:
        """Return what one query costs, with a coordinate for a correction or with a gate after the search."""
        extra = offsets is not None and active is None
        items = np.hstack([self.items, -offsets[:, None]]) if extra else self.items
        start = clock()
        for row in range(100):
            query = self.embed(row)
            scores = (np.pad(query, ((0, 0), (0, 1)), constant_values=1) if extra else query) @ items.T
            (scores if active is None else gate_scores(scores, offsets, active)).argmax()
        return f"{items.shape[1]} coordinates, {(clock() - start) * 10:.1f} ms"


def compute_softmax_offsets(similarities: np.ndarray, beta: float) -> np.ndarray:
    """Return log(mean(exp(β s))) / β over the bank for every item: subtracting it is the inverted softmax."""
    top = similarities.max(axis=1, keepdims=True)
    return np.log(np.exp(beta * (similarities - top)).mean(axis=1)) / beta + top[:, 0]


def choose_softmax(evaluator: Evaluator, held: PartScores) -> tuple[float, float]:
    """Return the strength and the inverse temperature of an inverted softmax that are best on validation."""
    best = (evaluator.value(held.scores), 0.0, 10.0)
    for beta in (10.0, 20.0, 40.0):
        offsets = compute_softmax_offsets(held.bank, beta).astype(held.scores.dtype)
        for strength in (0.25, 0.5, 1.0):
            value = evaluator.value(held.scores - np.float32(strength) * offsets)
            if value > best[0]:
                best = (value, strength, beta)
    return best[1:]


def choose_dual(evaluator: Evaluator, held: PartScores, own: np.ndarray) -> tuple[Correction, Correction]:
    """Return the corrections by a bank of queries and one of items, added up, that are best on validation.

    ``own`` are items × bank items: dual bank normalisation (Wang et al., 2023), with CSLS as its measure.
    """
    queries, items = (
        dict(zip(NEIGHBOURS, csls_offsets(each, NEIGHBOURS), strict=True)) for each in (held.bank, own)
    )
    strengths = (0.0, *STRENGTHS[:5])
    trials = {
        (s, k, t, m): evaluator.value(held.scores - np.float32(s) * queries[k] - np.float32(t) * items[m])
        for s, k, t, m in product(strengths, NEIGHBOURS, strengths, NEIGHBOURS)
    }
    s, k, t, m = max(trials, key=trials.__getitem__)
    return Correction("csls", s, k), Correction("csls", t, m)


def find_active(similarities: np.ndarray) -> np.ndarray:
    """Return which items are the nearest of some bank query: QB-Norm's activation set."""
    active = np.zeros(len(similarities), dtype=bool)
    active[similarities.argmax(axis=0)] = True
    return active


def gate_scores(scores: np.ndarray, offsets: np.ndarray, active: np.ndarray) -> np.ndarray:
    """Correct only queries whose best item is active: QB-Norm's dynamic gate (Bogolin et al., 2022)."""
    through = active[scores.argmax(axis=1)]
    return scores - np.where(through[:, None], offsets, 0.0).astype(scores.dtype)


def measure_alone(
    table: Table, config: dict, features: Features, group: str, seed: int, on_test: bool
) -> None:
    """Measure every ingredient by itself, from one model of plain and one of normalised features."""
    names = config["alone"][group]
    x, y = ({names[side]: features.load(names[side], seed)} for side in ("images", "texts"))
    part = Part(tuple(x), tuple(y))
    blocks = {n: Block(**config["blocks"][n]) for n in (*x, *y)}
    plain = normalize_blocks(Split.make(x, y, on_test), blocks | {names["images"]: Block("none")})
    rng = np.random.default_rng(seed)
    banks = {}
    for task, view in zip(TASKS, (plain.training[1], plain.training[0]), strict=True):
        rows = len(next(iter(view.values())))
        banks[task] = take_rows(view, np.sort(rng.permutation(rows)[: config["bank"]]))
    width = min(next(iter(view.values())).shape[1] for view in (x, y))
    evaluators = {task: Evaluator(task, plain.validation[2], VALIDATION, width) for task in TASKS}
    reported = {task: Evaluator(task, plain.reported[2], VALIDATION, width) for task in TASKS}

    def report(name: str, split: Split, maps: dict, seconds: float) -> None:
        embedded = {task: Embedded(part, maps[task], task, split.reported, banks[task]) for task in TASKS}
        ranks_of = {task: reported[task].ranks(embedded[task].score().scores) for task in TASKS}
        table.add(group, name, ranks_of, seconds, embedded["search"].measure_query())

    start = clock()
    joint, _ = sum_pairs(plain.training, "float32")
    one = fit_part(part, joint, plain.validation, config["grid"])
    maps = {task: make_maps(one, task, ASYMMETRIC, None) for task in TASKS}
    fit = clock() - start
    report("plain AW-CCA", plain, maps, fit)

    for name in ("CSLS", "inverted softmax"):
        start, ranks_of, gated_ranks, costs = clock(), {}, {}, []
        for task in TASKS:
            held_out = Embedded(part, maps[task], task, plain.validation, banks[task]).score()
            embedded = Embedded(part, maps[task], task, plain.reported, banks[task])
            scores = embedded.score()
            if name == "CSLS":
                correction = choose_correction(evaluators[task], held_out, ("none", "csls"))[0]
                offsets = compute_offsets(embedded.items, embedded.bank, correction)
            else:
                strength, beta = choose_softmax(evaluators[task], held_out)
                offsets = (strength * compute_softmax_offsets(scores.bank, beta)).astype(np.float32)
            ranks_of[task] = reported[task].ranks(scores.scores - offsets)
            active = find_active(scores.bank)
            gated_ranks[task] = reported[task].ranks(gate_scores(scores.scores, offsets, active))
            costs += [embedded.measure_query(offsets), embedded.measure_query(offsets, active)]
        seconds = fit + clock() - start
        table.add(group, name, ranks_of, seconds, costs[0])
        if name == "inverted softmax":
            table.add(group, "QB-Norm", gated_ranks, seconds, costs[1])

    start = clock()
    params = {task: one.path.params(task) for task in TASKS}
    pairs = [(*part.views(own), own[2]) for own in (plain.training, plain.validation, plain.reported)]
    model = AWCCA(params=params, polish=True, metric="mean_recall", precision="float32", random_state=seed)
    model.fit(*pairs[0], validation=pairs[1])
    ranks_of = {task: rank_by_cosine(model, pairs[2], task) for task in TASKS}
    table.add(group, "polished", ranks_of, fit + clock() - start)

    start, ranks_of = clock(), {}
    for task, other in zip(TASKS, reversed(TASKS), strict=True):
        view = "x" if task == "search" else "y"
        bank = maps[task].embed(part.features(banks[other], view), view)
        held_out = Embedded(part, maps[task], task, plain.validation, banks[task])
        embedded = Embedded(part, maps[task], task, plain.reported, banks[task])
        chosen = choose_dual(evaluators[task], held_out.score(), held_out.items @ bank.T)
        offsets = compute_offsets(embedded.items, embedded.bank, chosen[0])
        offsets += compute_offsets(embedded.items, bank, chosen[1])
        ranks_of[task] = reported[task].ranks(embedded.score().scores - offsets)
    cost = embedded.measure_query(offsets)
    table.add(group, "CSLS, and a bank of items", ranks_of, fit + clock() - start, cost)

    start, maps = clock(), {}
    for task in TASKS:
        items, queries = plain.validation[:2] if task == "search" else plain.validation[1::-1]
        trial = Trial(evaluators[task], items, queries, banks[task])
        use = choose_use(one, trial, make_uses(("residual",), (0.5, 1.0)), 512, ("none",)).use
        maps[task] = make_maps(one, task, use, 512)
    report("residual weighting", plain, maps, fit + clock() - start)

    start = clock()
    more = one.refit(joint + sum_pairs(plain.validation, "float32")[0])
    maps = {task: make_maps(more, task, ASYMMETRIC, 512) for task in TASKS}
    report("refitted with the validation pairs", plain, maps, fit + clock() - start)

    better = normalize_blocks(Split.make(x, y, on_test), blocks)
    start = clock()
    joint, _ = sum_pairs(better.training, "float32")
    two = fit_part(part, joint, better.validation, config["grid"])
    maps = {task: make_maps(two, task, ASYMMETRIC, None) for task in TASKS}
    report("square root, unit length", better, maps, clock() - start)
    if seed == config["seeds"][0]:
        measure_others(table, config, group, part, two, better, seed)


def make_maps(one: FittedPart, task: str, use: Use, n_components: int | None) -> LinearMaps:
    return next(one.make_maps(task, [use], n_components))[1]


def rank_by_cosine(model: AWCCA, pairs: tuple, task: str) -> np.ndarray:
    """Rank by the cosine of the model's embeddings."""
    return ranks(*model.transform(*pairs[:2], task=task), pairs[2], task=task)


def rank_by_csa(model: AWCCA, pairs: tuple, task: str) -> np.ndarray:
    """Rank by the canonical similarity of Li et al. (ICLR 2025) of an unweighted model.

    It is Σᵢ σᵢ ûᵢ v̂ᵢ of unit-length canonical vectors. One more coordinate brings every item Σû to length 1,
    so that a cosine ranks by it.
    """
    views = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in model.transform(*pairs[:2], task=task)]
    items, queries = (0, 1) if task == "search" else (1, 0)
    views[items] = views[items] * model.models_[task].correlations
    rest = np.sqrt(np.clip(1.0 - np.sum(views[items] ** 2, axis=1, keepdims=True), 0.0, None))
    views[items] = np.hstack([views[items], rest])
    views[queries] = np.hstack([views[queries], np.zeros((len(views[queries]), 1), rest.dtype)])
    return ranks(*views, pairs[2], task=task)


def measure_others(table, config, group, part, two, better, seed) -> None:
    """Measure once, on normalised features: weightings, ways to select, a kernel on the images."""
    pairs = (*part.views(better.reported), better.reported[2])
    training = (*part.views(better.training), better.training[2])

    def rank(model: AWCCA, rank_task=rank_by_cosine) -> dict:
        return {task: rank_task(model, pairs, task) for task in TASKS}

    base = "on square root, unit length: "
    for name, options in {
        "selected by leave-one-out": {"selection": "leave-one-out"},
        "γ by Ledoit-Wolf": {"selection": "ledoit-wolf"},
        "γ by OAS": {"selection": "oas"},
    }.items():
        start = clock()
        model = AWCCA(grid=config["grid"], precision="float32", random_state=seed, **options).fit(*training)
        table.add(group, base + name, rank(model), clock() - start)
        path = model.path_
        print("   ", two.path.choice, "selected by", None if path is None else (path.choice, path.seconds))
    tiny = tuple(1e-6 * float(s[0]) ** 2 for s in (two.spectra.s_x, two.spectra.s_y))
    for name, params in (
        ("γ of the path", {t: two.path.params(t) for t in TASKS}),
        ("not regularised", tiny),
    ):
        start = clock()
        model = AWCCA(params=params, weighting="none", precision="float32").fit(*training)
        fit = clock() - start
        seconds, ranks_of = time_call(partial(rank, model))
        table.add(group, f"{base}plain CCA, {name}", ranks_of, fit + seconds)
        seconds, ranks_of = time_call(partial(rank, model, rank_by_csa))
        table.add(group, f"{base}CSA's similarity, {name}", ranks_of, fit + seconds)
    start = clock()
    kernel = RandomFourier(2000, random_state=seed).fit(training[0])
    views = [
        ({"plain": part.views(p)[0], "kernel": kernel.transform(part.views(p)[0])}, p[1], p[2])
        for p in (better.training, better.validation, better.reported)
    ]
    text = part.y[0]
    model = Fusion(
        "plain",
        blocks=dict.fromkeys(("plain", "kernel", text), Block("none")),
        parts=[Part(("plain",), (text,)), Part(("kernel",), (text,)), Part(("plain", "kernel"), (text,))],
        n_components=512,
        grid=config["grid"],
    ).fit(*views[0], validation=views[1])
    ranks_of = {t: model.ranks(*views[2], task=t) for t in TASKS}
    print("   ", {t: model.selection_.tasks[t].weights for t in TASKS})
    table.add(group, base + "random Fourier features of the images", ranks_of, clock() - start)


BEST = 'preset="best"'
TRIALS = {
    "side by side, plain": {"preset": "plain", "n_components": 512},
    "side by side, one polished AW-CCA with CSLS": {"parts": "together", "weightings": ("asymmetric",)},
    BEST: {},
    f"{BEST}, not polished": {"polish": False},
    f"{BEST}, asymmetric weighting alone": {"weightings": ("asymmetric",)},
    f"{BEST}, no hubness correction": {"hubness": ("none",)},
    f"{BEST}, not refitted": {"refit": False},
}
EVERY_SEED = list(TRIALS)[1:3]
DEFAULTS = {"AWCCA()": {}, 'AWCCA(normalize=("sqrt-unit", "none"))': {"normalize": ("sqrt-unit", "none")}}
"""One block of each view, and the defaults of the library."""


def measure_best(
    table: Table,
    config: dict,
    features: Features,
    group: str,
    seed: int,
    on_test: bool,
    trial: str,
    device: str | None,
) -> None:
    """Measure the preset, as it is or with one of its choices changed."""
    names = config["best"][group]
    x, y = ({n: features.load(n, seed) for n in names[side]} for side in ("images", "texts"))
    split = Split.make(x, y, on_test)
    if trial in DEFAULTS:
        (images,), (texts,) = x, y
        pairs = [(own[0][images], own[1][texts], own[2]) for own in vars(split).values()]
        start = clock()
        model = AWCCA(**DEFAULTS[trial]).fit(*pairs[0], validation=pairs[1], device=device)
        seconds = clock() - start
        table.add(group, trial, {task: rank_by_cosine(model, pairs[2], task) for task in TASKS}, seconds)
        return
    options = {
        "blocks": {n: Block(**config["blocks"][n]) for n in (*x, *y)},
        "grid": config["grid"],
        "bank": config["bank"],
        "random_state": seed,
    }
    start = clock()
    model = Fusion(**options, **TRIALS[trial])
    model.fit(*split.training, validation=split.validation, device=device)
    seconds = clock() - start
    ranks_of = {t: model.ranks(*split.reported, task=t) for t in TASKS}
    table.add(group, trial, ranks_of, seconds, measure_query(model, *split.reported[:2]))
    for task, report in model.selection_.tasks.items():
        epochs = [part.best.epochs for part in report.parts]
        print("   ", task, [round(w, 2) for w in report.weights], epochs, report.correction, flush=True)


def measure_query(model: Fusion, x: dict, y: dict) -> str:
    """Return the coordinates of a vector, and the milliseconds to embed a text and search 1,000 images."""
    items = model.items(x, "search")
    start = clock()
    for row in range(100):
        query = {name: rows[row : row + 1] for name, rows in y.items()}
        (items @ model.queries(query, "search")[0]).argmax()
    return f"{items.shape[1]} coordinates, {(clock() - start) * 10:.1f} ms"


SIZES = (100, 300, 1000, 3000, 6000)
DRAWS = 5
WAYS = {
    "15 % held out, refitted": {},
    "leave-one-out": {"selection": "leave-one-out"},
    "Ledoit-Wolf": {"selection": "ledoit-wolf"},
    "OAS": {"selection": "oas"},
    "chosen on the reported images": {"oracle": True},
}


def measure_curves() -> None:
    """Measure recall against the number of training pairs, for every way to choose γ.

    Pairs are training images with one caption each, drawn at random. Recall is on the validation images; only
    the last way looks at them, as an oracle upper bound. The test split is not used.
    """
    rows = []
    for texts in ("minilm", "hkse-rbf-rbf"):
        x, y, pairing = load_flickr8k("resnet50-sqrt", texts)
        training, validation, _ = split_flickr8k(x, y, pairing)
        del x, y
        for size in SIZES if texts == "minilm" else SIZES[:3]:
            for way in WAYS:
                row = measure_way(texts, size, way, training, validation)
                print(row, flush=True)
                rows.append(row)
    record(
        "learning_curves",
        rows,
        "r@1 / r@10 on the official validation images, mean ± standard deviation over draws of the training "
        "pairs (one caption per image), ResNet-50 square root, unit length; grid of 12 per side.",
    )
    note = "r@1 (search, annotate) of the table of learning_curves.md."
    record("learning_curves_short", make_short_curves(rows), note)
    draw_curves(rows)


def make_short_curves(rows: list[dict]) -> list[dict]:
    """Return r@1 of both tasks with one row per number of pairs, and a column for each way."""
    short: dict[tuple[str, int], dict] = {}
    for row in rows:
        line = short.setdefault((row["text"], row["pairs"]), {"text": row["text"], "pairs": row["pairs"]})
        line[row["γ"]] = ", ".join(row[task].split(" / ")[0] for task in TASKS)
    return list(short.values())


def draw_curves(rows: list[dict]) -> None:
    """Draw r@1 with MiniLM against the number of pairs, with the spread over draws."""
    styles = dict(
        zip(
            WAYS,
            (("#1f5fa8", "-"), ("#c05a1c", "-"), ("#6b7a89", "-"), ("#6b7a89", ":"), ("#9aa5b1", "--")),
            strict=True,
        )
    )
    figure, panels = start_figure(1, 2, size=(8.6, 3.3))
    for axes, task in zip(panels, TASKS, strict=True):
        for way, (colour, line) in styles.items():
            own = [row for row in rows if row["γ"] == way and row["text"] == "minilm"]
            values = np.array([[float(v) for v in row[task].split(" / ")[0].split(" ± ")] for row in own])
            sizes = [row["pairs"] for row in own]
            axes.errorbar(
                sizes, values[:, 0], values[:, 1], color=colour, linestyle=line, capsize=2, label=way
            )
        axes.set(xscale="log", title=task, xlabel="training pairs", xticks=SIZES, xticklabels=map(str, SIZES))
        axes.minorticks_off()
    panels[0].set_ylabel("r@1")
    panels[0].legend(frameon=False, fontsize=8, title="γ", alignment="left")
    figure.savefig(RESULTS / "learning_curves.svg", metadata={"Date": None})


def measure_way(texts: str, size: int, way: str, training: tuple, validation: tuple) -> dict:
    results: dict[str, list] = {task: [] for task in TASKS}
    settings = dict(WAYS[way])
    is_oracle = settings.pop("oracle", False)
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        images = rng.choice(len(training[0]), size, replace=False)
        captions = images * CAPTIONS + rng.integers(0, CAPTIONS, size)
        model = AWCCA(grid=12, precision="float32", random_state=draw, **settings)
        model.fit(training[0][images], training[1][captions], validation=validation if is_oracle else None)
        for task in TASKS:
            scores = retrieval_scores(*model.transform(*validation[:2], task=task), validation[2], task=task)
            results[task].append((scores["r@1"], scores["r@10"]))
    row = {"text": texts, "pairs": size, "γ": way}
    for task in TASKS:
        mean, spread = np.mean(results[task], axis=0), np.std(results[task], axis=0)
        row[task] = f"{mean[0]:.1f} ± {spread[0]:.1f} / {mean[1]:.1f} ± {spread[1]:.1f}"
    return row


def list_cells(config: dict, options: argparse.Namespace) -> list[tuple[str, int, str]]:
    """Return groups, seeds and trials that are measured together; trials of ``alone`` have no name."""
    cells = []
    for kind in ("alone", "best"):
        for group, names in config[kind].items():
            texts = [names["texts"]] if kind == "alone" else names["texts"]
            seeds = config["seeds"] if any("hkse" in name for name in texts) else config["seeds"][:1]
            for trial in [""] if kind == "alone" else names.get("trials", TRIALS):
                every = kind == "alone" or "trials" in names or trial in EVERY_SEED
                cells += [(group, seed, trial) for seed in (seeds if every else seeds[:1])]
    shown = {(row["features"], row["ingredient"]) for row in config["readme"]}
    return [
        (group, seed, trial)
        for group, seed, trial in cells
        if options.only in ("", group) and (not options.readme or (group, trial) in shown)
    ]


def identify_run(options: argparse.Namespace) -> dict[str, str | None]:
    """Return what lines of the file of cells must have in common to be of the same run."""
    split = "validation" if options.validation else "test"
    return {"split": split, "configuration": hash_file(CONFIGURATION), "source": identify_code()["source"]}


def read_cells(options: argparse.Namespace) -> dict[tuple[str, int, str], dict]:
    """Return the lines of this code, configuration and split by cell."""
    text = options.cells.read_text("utf-8") if options.cells.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    return {tuple(line["cell"]): line for line in lines if identify_run(options).items() <= line.items()}


def measure_cell(config: dict, options: argparse.Namespace, cell: tuple[str, int, str]) -> None:
    """Measure one cell in a process of its own, and append what is measured to the file."""
    (group, seed, trial), on_test = cell, not options.validation
    table, features = Table(config["bootstrap"]), Features(config["hkse"], TRAIN + VALIDATION * (1 + on_test))
    if trial:
        measure_best(table, config, features, group, seed, on_test, trial, options.device)
    else:
        measure_alone(table, config, features, group, seed, on_test)
    device = f" ({options.device})" if options.device and trial else ""
    line = {"cell": cell, "rows": table.list_measured(), "device": device, **identify_run(options)}
    with options.cells.open("a", encoding="utf-8") as cells:
        cells.write(json.dumps(line, ensure_ascii=False) + "\n")
    for row in line["rows"]:
        recalls = [f"{np.mean(np.array(row['ranks'][task]) == 1) * 100:.1f}" for task in TASKS]
        print(group, seed, row["name"], *recalls, f"{row['seconds']:.0f} s", sep=" | ", flush=True)


def measure_cells(config: dict, options: argparse.Namespace) -> Table:
    """Measure the cells that are not in the file yet, and return all of them."""
    cells = list_cells(config, options)
    work = [cell for cell in cells if cell not in read_cells(options)]
    # Processes are started anew, because a GPU cannot be shared with a fork.
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure_cell, config, options, cell) for cell in work]):
            future.result()
    table, lines = Table(config["bootstrap"]), read_cells(options)
    for cell in cells:
        table.add_line(lines[cell])
    return table


def merge_rows(rows: list[dict], config: dict) -> list[dict]:
    """Return the rows of the table: those that were measured now, and the others as they were."""
    measured = {(row["features"], row["ingredient"]) for row in rows}
    file = RESULTS / "accuracy.json"
    before = json.loads(file.read_text("utf-8"))["rows"] if file.exists() else []
    order = [*config["alone"], *config["best"]]
    rows = rows + [
        {**row, "commit": row.get("commit", NOT_RECORDED)}
        for row in before
        if row["features"] in order and (row["features"], row["ingredient"]) not in measured
    ]
    return sorted(rows, key=lambda row: order.index(row["features"]))


def list_readme_rows(rows: list[dict], config: dict) -> list[dict]:
    """Return the rows of README.md that were measured, each with what it adds to the one before."""
    measured = {(row["features"], row["ingredient"]): row for row in rows}
    steps = [
        (each["step"], measured.get((each["features"], each["ingredient"]), {})) for each in config["readme"]
    ]
    return [{"step": step} | {k: v for k, v in row.items() if "gain" not in k} for step, row in steps if row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validation", action="store_true", help="report on validation; record nothing")
    parser.add_argument("--curves", action="store_true", help="recall against the number of pairs")
    parser.add_argument("--readme", action="store_true", help="the rows of README.md")
    parser.add_argument("--only", default="", help="one group")
    parser.add_argument("--seeds", type=int, help="how many seeds")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once, each with one thread")
    parser.add_argument("--device", help="torch device on which presets are fitted")
    parser.add_argument("--cells", type=Path, default=Path("accuracy_cells.jsonl"), help="file of cells")
    options = parser.parse_args()
    if options.curves:
        require("matplotlib", "pip install matplotlib")
        measure_curves()
        return
    check_device(options.device)
    config = json.loads(CONFIGURATION.read_text("utf-8"))
    config["seeds"] = config["seeds"][: options.seeds]
    if options.validation:
        for row in measure_cells(config, options).make_rows():
            print(row)
        return
    with log_test_run(CONFIGURATION) as logged:
        logged += (rows := measure_cells(config, options).make_rows())
    if not options.readme:
        record("accuracy", merge_rows(rows, config), NOTE)
    if (readme := list_readme_rows(rows, config)) and (
        options.readme or len(readme) == len(config["readme"])
    ):
        record("readme", readme, README_NOTE)


NOTE = (
    "Test: r@1 / r@5 / r@10 / median rank on the official 1,000 images, mean over seeds (of HKSE's draw and "
    "of the bank); everything is chosen on validation. Gain: in r@1 over the first row of the same features, "
    "with a paired bootstrap interval over images. Fit: seconds, encoding not included; (cuda): on "
    "a GPU, several fits at once. Commit: of the run that measured the row."
)
README_NOTE = "As in accuracy.md; each row differs from the one before in what its first column says."

if __name__ == "__main__":
    main()
