"""Other ways to join two frozen encoders, on the same pairs of Flickr8k, by the number of training images.

Every method chooses its parameters by r@1 on the 1,000 validation images, among those of ``alignment.json``,
which must be committed before the test split is touched. A cell is one kind of features, a number of training
images and a seed; what is measured in it is appended to ``--cells FILE``, so a run that was interrupted goes
on where it stopped, and a run with everything in the file only makes the table and the figure. With
``--validation`` the test split is not read, and nothing is logged or recorded.
"""

from __future__ import annotations

import os

from measuring import (
    CAPTIONS,
    RESULTS,
    TRAIN,
    VALIDATION,
    check_device,
    clock,
    hash_file,
    identify_code,
    load_flickr8k,
    log_test_run,
    pin_threads,
    record,
    require,
    start_figure,
)

require("torch", "pip install torch")
require("matplotlib", "pip install matplotlib")

# A worker process starts with the number of threads that its parent has set.
pin_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from concurrent.futures import ProcessPoolExecutor, as_completed  # noqa: E402
from dataclasses import dataclass, replace  # noqa: E402
from functools import cached_property, partial  # noqa: E402
from itertools import pairwise, product  # noqa: E402
from multiprocessing import get_context  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, TypeAlias  # noqa: E402

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch.nn.functional import cross_entropy, normalize  # noqa: E402

from diptych import AWCCA, Fusion  # noqa: E402
from diptych.cca import Tikhonov, bjorck_golub, regularized_cca, spectra  # noqa: E402
from diptych.cca.selection._textbook import dimensions_up_to  # noqa: E402
from diptych.fusion import Block  # noqa: E402
from diptych.ranking import ranks, summary  # noqa: E402
from diptych.ranking._ranks import Truth, annotate_ranks, search_ranks, tie_slack  # noqa: E402

CONFIGURATION = Path(__file__).with_suffix(".json")
TASKS = ("search", "annotate")

Tensor: TypeAlias = torch.Tensor
Scorer: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""From features of images and of captions to scores, queries × items."""


@dataclass(frozen=True)
class Cell:
    """Features, a number of training images, and the seed that draws them and anything else at random."""

    features: str
    size: int
    seed: int


@dataclass
class Pairs:
    """Images with all their captions, in order; ``x`` and ``y`` are NumPy, ``views`` are on the device."""

    x: np.ndarray
    y: np.ndarray
    device: str

    @cached_property
    def pairing(self) -> np.ndarray:
        return np.arange(len(self.y)) // CAPTIONS

    @cached_property
    def views(self) -> tuple[Tensor, Tensor]:
        return tuple(torch.as_tensor(view, device=self.device) for view in (self.x, self.y))

    @cached_property
    def truth(self) -> Truth:
        return Truth.of(torch.as_tensor(self.pairing, device=self.device), len(self.x))

    def ranks(self, scores: Tensor, task: str) -> Tensor:
        """Return the ranks of the true items in ``scores``, queries × items."""
        slack = tie_slack(scores.abs().amax(dim=1), 1.0, 1)
        if task == "search":
            return search_ranks(scores, self.truth.pairing, slack)
        return annotate_ranks(scores, self.truth, self.truth.described, slack)

    def recall(self, scores: Tensor, task: str) -> float:
        """Return r@1, without regard to ties; much faster than ``ranks``."""
        first = scores.argmax(dim=1)
        if task == "search":
            return float((first == self.truth.pairing).double().mean())
        return float((self.truth.pairing[first] == self.truth.described).double().mean())

    def center(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return both views without their means, an image repeated for each caption, and the means."""
        x, y = self.views
        means = x.mean(dim=0), y.mean(dim=0)
        return (x - means[0]).repeat_interleave(CAPTIONS, dim=0), y - means[1], *means


class Best:
    """The candidate of each task with the best r@1 on validation; the first one on a tie."""

    def __init__(self, validation: Pairs) -> None:
        self.validation, self.values = validation, dict.fromkeys(TASKS, -1.0)
        self.scorers: dict[str, Scorer] = {}
        self.choices: dict[str, dict] = {}

    def offer(self, task: str, scores: Tensor, scorer: Scorer, **choice: float) -> bool:
        """Keep a candidate if it is the best so far; return whether it is."""
        value = self.validation.recall(scores, task)
        better = value > self.values[task]
        if better:
            self.values[task], self.scorers[task], self.choices[task] = value, scorer, choice
        return better

    def try_vectors(self, embed: Callable, **choice: float) -> None:
        """Offer the cosine of the vectors that ``embed`` returns for both views."""
        for task, scores in score_cosines(*embed(*self.validation.views)).items():
            self.offer(task, scores, partial(score_embedded, embed, task), **choice)

    def rank(self, pairs: Pairs, task: str) -> np.ndarray:
        return pairs.ranks(self.scorers[task](*pairs.views), task).cpu().numpy()


def score_cosines(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    scores = normalize(y, dim=1) @ normalize(x, dim=1).T
    return {"search": scores, "annotate": scores.T}


def score_embedded(embed: Callable, task: str, x: Tensor, y: Tensor) -> Tensor:
    return score_cosines(*embed(x, y))[task]


@dataclass
class Fitted:
    """A fitted method: the seconds that it took with all that it tried, and what it chose for each task."""

    seconds: float
    rank: Callable[[Pairs, str], np.ndarray]
    choices: dict[str, Any]


@dataclass
class Work:
    """The data and the settings of a cell."""

    cell: Cell
    config: dict
    training: Pairs
    validation: Pairs
    reported: Pairs
    device: str

    @classmethod
    def load(cls, cell: Cell, config: dict, folder: Path, device: str, on_test: bool) -> Work:
        name = list(config["features"]).index(cell.features)
        x, y = (np.load(folder / f"{name}{view}.npy", mmap_mode="r") for view in "xy")
        drawn = np.random.default_rng(cell.seed).permutation(TRAIN)[: cell.size]

        def take(images: np.ndarray) -> Pairs:
            captions = (images[:, None] * CAPTIONS + np.arange(CAPTIONS)).ravel()
            return Pairs(x[images], y[captions], device)

        validation = take(np.arange(TRAIN, TRAIN + VALIDATION))
        reported = take(np.arange(TRAIN + VALIDATION, len(x))) if on_test else validation
        return cls(cell, config, take(np.sort(drawn)), validation, reported, device)

    def fit_library(self, model: AWCCA | Fusion) -> None:
        training, validation = ((p.x, p.y, p.pairing) for p in (self.training, self.validation))
        model.fit(*training, validation=validation, device=None if self.device == "cpu" else self.device)


def fit_awcca(work: Work, polish: bool = False) -> Iterator[Fitted]:
    """AW-CCA: both γ on a grid, and with ``polish`` the number of epochs."""
    start = clock()
    settings = {"precision": "float32", "random_state": work.cell.seed, "polish": polish}
    model = AWCCA(**settings, **work.config["awcca"])
    work.fit_library(model)

    def rank(pairs: Pairs, task: str) -> np.ndarray:
        return ranks(*model.transform(pairs.x, pairs.y, task=task), pairs.pairing, task=task)

    seconds = clock() - start
    chosen = {
        task: {"gamma": model.path_.params(task), "epochs": one.polish.epochs if one.polish else 0}
        for task, one in model.models_.items()
    }
    yield Fitted(seconds, rank, chosen)


def fit_best(work: Work) -> Iterator[Fitted]:
    """The preset, but not refitted with the validation pairs, which no other method is fitted on."""
    start = clock()
    blocks = {"x": Block("none"), "y": Block("none")}
    model = Fusion("best", blocks=blocks, refit=False, random_state=work.cell.seed, **work.config["best"])
    work.fit_library(model)

    def rank(pairs: Pairs, task: str) -> np.ndarray:
        return model.ranks(pairs.x, pairs.y, pairs.pairing, task=task)

    chosen = {
        task: str([model.hubness_[task].correction, *(member.use for member in model.members_[task])])
        for task in TASKS
    }
    yield Fitted(clock() - start, rank, chosen)


def fit_procrustes(work: Work) -> Iterator[Fitted]:
    """Orthogonal Procrustes of centred views: the rotations that bring pairs closest, cut to k directions."""
    start = clock()
    x, y, x_mean, y_mean = work.training.center()
    # LAPACK's SVD of a matrix of this size is no slower than that of a GPU.
    left, _, right = (part.to(work.device) for part in torch.linalg.svd((x.T @ y).cpu(), full_matrices=False))
    best = Best(work.validation)
    for k in dimensions_up_to(min(left.shape[1], len(y)), work.config["procrustes"]["dimensions"]):
        best.try_vectors(
            lambda x, y, k=k: ((x - x_mean) @ left[:, :k], (y - y_mean) @ right[:k].T), dimension=k
        )
    yield Fitted(clock() - start, best.rank, best.choices)


def fit_ridge(work: Work) -> Iterator[Fitted]:
    """Ridge regression of one view on the other, compared by cosine in the space of the other."""
    for source in (0, 1):
        start = clock()
        *views, x_mean, y_mean = work.training.center()
        inputs, targets = views[source], views[1 - source]
        squares, vectors = torch.linalg.eigh(inputs.T @ inputs)
        products = vectors.T @ (inputs.T @ targets)
        best = Best(work.validation)
        for penalty in work.config["ridge"]["penalties"]:
            weights = vectors @ (products / (squares.clamp(min=0) + penalty * squares[-1])[:, None])
            best.try_vectors(partial(predict, source, (x_mean, y_mean), weights), penalty=penalty)
        yield Fitted(clock() - start, best.rank, best.choices)


def predict(source: int, means: tuple[Tensor, Tensor], weights: Tensor, x: Tensor, y: Tensor) -> tuple:
    """Return both views without their means, the one of the ``source`` mapped to the other."""
    views = [x - means[0], y - means[1]]
    views[source] = views[source] @ weights
    return tuple(views)


SIMILARITIES = {"none": (0, 0), "symmetric": (2, 1), "csa": (1, 0)}
"""Powers of the correlations in the inner product of canonical vectors, and in the length of the item.

Plain CCA is a cosine, symmetric weighting one of vectors with Σ on both sides, and the canonical similarity
of Li et al. (ICLR 2025) is Σᵢ σᵢ ûᵢ v̂ᵢ of vectors of unit length. The length of the query changes no rank.
"""


def score_canonical(
    views: tuple[Tensor, Tensor], correlations: Tensor, similarity: str, task: str, dimensions: list[int]
) -> Iterator[Tensor]:
    """Yield the scores of the canonical vectors of both views, cut to each of the ``dimensions``."""
    items, queries = views if task == "search" else views[::-1]
    inner, length = SIMILARITIES[similarity]
    queries = normalize(queries * correlations**inner, dim=1)
    squares = (items * correlations**length).square().cumsum(dim=1)
    scores = torch.zeros(len(queries), len(items), dtype=items.dtype, device=items.device)
    for low, high in pairwise([0, *dimensions]):
        scores += queries[:, low:high] @ items[:, low:high].T
        yield scores / squares[:, high - 1].clamp(min=1e-30).sqrt()


def fit_canonical(work: Work) -> Iterator[Fitted]:
    """CCA without regularisation; with γ for each view, unweighted and symmetric; CSA, with and without γ.

    All choose the number of components.
    """
    config = work.config["canonical"]
    start = clock()
    exact = spectra(*work.training.views, work.training.truth.pairing, solver="gram")
    single = {name: value.float() for name, value in vars(exact).items() if isinstance(value, torch.Tensor)}
    rounded = replace(exact, **single)
    shared = clock() - start
    bests = {name: Best(work.validation) for name in ("plain", *SIMILARITIES)}
    seconds = dict.fromkeys(bests, shared)

    def offer(name: str, model: Any, similarity: str, **choice: float) -> None:
        begin = clock()
        weights = model.x_weights.float(), model.y_weights.float()
        correlations = model.correlations.float()
        dimensions = dimensions_up_to(len(correlations), config["dimensions"])

        def embed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return (x - rounded.x_mean) @ weights[0], (y - rounded.y_mean) @ weights[1]

        def score(task: str, k: int, x: Tensor, y: Tensor) -> Tensor:
            return next(score_canonical(embed(x, y), correlations, similarity, task, [k]))

        vectors = embed(*work.validation.views)
        for task in TASKS:
            paths = score_canonical(vectors, correlations, similarity, task, dimensions)
            for k, scores in zip(dimensions, paths, strict=True):
                bests[name].offer(task, scores, partial(score, task, k), **choice, dimension=k)
        seconds[name] += clock() - begin

    start = clock()
    plain = bjorck_golub(exact)
    spent = clock() - start
    for name, similarity in (("plain", "none"), ("csa", "csa")):
        seconds[name] += spent
        offer(name, plain, similarity, gamma_x=0.0, gamma_y=0.0)
    components = min(config["components"], *exact.ranks)
    for x, y in product(config["gammas"], repeat=2):
        start = clock()
        filters = Tikhonov(x * float(exact.s_x[0]) ** 2), Tikhonov(y * float(exact.s_y[0]) ** 2)
        model = regularized_cca(rounded, *filters, components)
        spent = clock() - start
        for similarity in SIMILARITIES:
            seconds[similarity] += spent
            offer(similarity, model, similarity, gamma_x=x, gamma_y=y)
    for name, best in bests.items():
        yield Fitted(seconds[name], best.rank, best.choices)


def keep_largest(similarities: Tensor, k: int) -> Tensor:
    """Return rows in which only the ``k`` largest entries are not zero, and none is negative."""
    values, columns = similarities.topk(k, dim=1)
    return torch.zeros_like(similarities).scatter_(1, columns, values.clamp(min=0))


def fit_asif(work: Work) -> Iterator[Fitted]:
    """ASIF (Norelli et al., 2023): the similarities to the training pairs are the vector of an item.

    Only the k largest similarities of a vector are kept, raised to a power. A training image is in as many
    pairs as it has captions. So its similarity is kept for all of them or none, with k a multiple of that
    number; and the inner product of two vectors is that of an image's similarities to training images with
    sums of a caption's similarities over the captions of each.
    """
    start = clock()
    anchors = [normalize(view, dim=1) for view in work.training.views]

    def compare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return normalize(x, dim=1) @ anchors[0].T, normalize(y, dim=1) @ anchors[1].T

    def keep(k: int, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return keep_largest(x, k), keep_largest(y, k * CAPTIONS)

    def finish(task: str, power: float, x: Tensor, y: Tensor) -> Tensor:
        x, y = x**power, y**power
        sums = y.view(len(y), -1, CAPTIONS).sum(dim=2)
        if task == "search":
            return sums @ normalize(x, dim=1).T
        return x @ (sums / y.norm(dim=1, keepdim=True).clamp(min=1e-30)).T

    def score(task: str, k: int, power: float, x: Tensor, y: Tensor) -> Tensor:
        return finish(task, power, *keep(k, *compare(x, y)))

    similarities = compare(*work.validation.views)
    best = Best(work.validation)
    for k in sorted({min(k, work.cell.size) for k in work.config["asif"]["neighbours"]}):
        kept = keep(k, *similarities)
        for power, task in product(work.config["asif"]["powers"], TASKS):
            scores = finish(task, power, *kept)
            best.offer(task, scores, partial(score, task, k, power), neighbours=k, power=power)
    yield Fitted(clock() - start, best.rank, best.choices)


class Heads:
    """Linear heads of both views, several of each, trained side by side with a setting each.

    The loss is symmetric InfoNCE with a learned temperature, of a batch of images with one caption each. With
    ``structure``, the regulariser of STRUCTURE (Gröger et al., 2025) is added.
    """

    def __init__(self, work: Work, config: dict, settings: list[dict], batch: int) -> None:
        device = work.device
        self.rng = torch.Generator(device).manual_seed(work.cell.seed)
        self.settings, self.batch, self.temperature = settings, batch, config["temperature"]
        x, y = work.training.views
        self.means = x.mean(dim=0), y.mean(dim=0)
        self.scales = tuple(
            (view - mean).square().mean().sqrt() for view, mean in zip((x, y), self.means, strict=True)
        )
        self.x, y = self.scale(x, y)
        self.y = y.view(len(x), CAPTIONS, -1)
        shapes = [(len(settings), view.shape[-1], config["width"]) for view in (x, y)]
        self.weights = [
            torch.randn(shape, generator=self.rng, device=device) / shape[1] ** 0.5 for shape in shapes
        ]
        scale = torch.full((len(settings), 1, 1), float(-np.log(self.temperature)), device=device)
        self.parameters = [p.requires_grad_() for p in (*self.weights, scale)]
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.rates, self.dropouts, self.structures = (
            torch.tensor([s[name] for s in settings], device=device)[:, None, None]
            for name in ("rate", "dropout", "structure")
        )
        self.steps = 0

    def scale(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return tuple((v - m) / s for v, m, s in zip((x, y), self.means, self.scales, strict=True))

    def embed(self, weights: tuple[Tensor, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = self.scale(x, y)
        return x @ weights[0], y @ weights[1]

    def train(self, steps: int) -> None:
        # TF32 is precise enough to follow a gradient, and several times faster.
        torch.backends.cuda.matmul.allow_tf32 = True
        for _ in range(steps):
            self.step()
        torch.backends.cuda.matmul.allow_tf32 = False

    def step(self) -> None:
        """Take a step of Adam, with the rate of each setting."""
        drawn = torch.randperm(len(self.x), generator=self.rng, device=self.x.device)[: self.batch]
        captions = torch.randint(CAPTIONS, drawn.shape, generator=self.rng, device=self.x.device)
        views = self.x[drawn], self.y[drawn, captions]
        vectors = [
            normalize(torch.bmm(self.drop(v), w), dim=2) for v, w in zip(views, self.weights, strict=True)
        ]
        logits = torch.bmm(vectors[0], vectors[1].mT) * self.parameters[2].exp()
        truth = torch.arange(len(drawn), device=self.x.device).repeat(len(self.settings))
        # Means over the batch, summed over the settings, which share no parameters.
        loss = sum(
            cross_entropy(part.flatten(0, 1), truth, reduction="sum") for part in (logits, logits.mT)
        ) / (2 * len(drawn))
        if self.structures.any():
            for view, aligned in zip(views, vectors, strict=True):
                divergences = compare_structures(view, aligned, self.temperature)
                loss = loss + 0.5 * (self.structures[:, 0, 0] * divergences).sum()
        gradients = torch.autograd.grad(loss, self.parameters)
        self.steps += 1
        with torch.no_grad():
            for parameter, gradient, (first, second) in zip(
                self.parameters, gradients, self.moments, strict=True
            ):
                first.lerp_(gradient, 0.1)
                second.lerp_(gradient.square(), 0.001)
                size = (second / (1 - 0.999**self.steps)).sqrt_().add_(1e-8)
                parameter -= self.rates * (first / (1 - 0.9**self.steps)) / size

    def drop(self, view: Tensor) -> Tensor:
        """Return ``view`` for every setting, each with its share of the entries set to zero."""
        if not self.dropouts.any():
            return view.expand(len(self.settings), -1, -1)
        shape = (len(self.settings), *view.shape)
        kept = torch.rand(shape, generator=self.rng, device=view.device) >= self.dropouts
        return view * kept / (1 - self.dropouts)


def compare_structures(features: Tensor, aligned: Tensor, temperature: float) -> Tensor:
    """Return STRUCTURE's regulariser of one view and level, for every setting.

    Rows of unit length are centred, and the softmax of their similarities says how near each is to the others
    of the batch. The regulariser is the mean Jensen-Shannon divergence of these distributions before and
    after the head.
    """
    before = normalize(features, dim=1).expand(len(aligned), -1, -1)
    logs = []
    for rows in (before, aligned):
        rows = rows - rows.mean(dim=1, keepdim=True)
        logs.append((torch.bmm(rows, rows.mT) / temperature).log_softmax(dim=2))
    middle = torch.logaddexp(*logs) - np.log(2.0)
    return sum(0.5 * (log.exp() * (log - middle)).sum(dim=2).mean(dim=1) for log in logs)


def fit_heads(work: Work, name: str = "heads") -> Iterator[Fitted]:
    """Linear heads, trained: rate, dropout of the features, batch, λ of STRUCTURE, and when to stop."""
    config, start = work.config[name], clock()
    best = Best(work.validation)
    names = ("rate", "dropout", "structure")
    settings = [
        dict(zip(names, values, strict=True))
        for values in product(config["rates"], config["dropouts"], config["structures"])
    ]
    for batch in sorted({min(size, work.cell.size) for size in config["batches"]}):
        heads, idle = Heads(work, config, settings, batch), 0
        values = np.zeros((len(settings), len(TASKS)))
        while heads.steps < config["steps"] and idle < config["patience"]:
            heads.train(config["interval"])
            before = values.copy()
            for at, setting in enumerate(settings):
                weights = tuple(weight[at].detach() for weight in heads.weights)
                vectors = heads.embed(weights, *work.validation.views)
                for of, (task, scores) in enumerate(score_cosines(*vectors).items()):
                    value = work.validation.recall(scores, task)
                    values[at, of] = max(values[at, of], value)
                    if value > best.values[task]:
                        copies = tuple(weight.clone() for weight in weights)
                        embed = partial(heads.embed, copies)
                        scorer = partial(score_embedded, embed, task)
                        best.offer(task, scores, scorer, **setting, batch=batch, steps=heads.steps)
            idle = 0 if (values > before).any() else idle + 1
    yield Fitted(clock() - start, best.rank, best.choices)


METHODS: dict[str, tuple[Callable, tuple[str, ...]]] = {
    "awcca": (fit_awcca, ("AW-CCA",)),
    "polished": (partial(fit_awcca, polish=True), ("AW-CCA, polished",)),
    "best": (fit_best, ('preset="best"',)),
    "heads": (fit_heads, ("linear heads, InfoNCE",)),
    "procrustes": (fit_procrustes, ("Procrustes",)),
    "ridge": (fit_ridge, ("ridge, images to texts", "ridge, texts to images")),
    "canonical": (
        fit_canonical,
        ("plain CCA", "regularised CCA", "regularised CCA, symmetric", "CSA"),
    ),
    "asif": (fit_asif, ("ASIF",)),
    "structure": (partial(fit_heads, name="structure"), ("linear heads, STRUCTURE",)),
}
RANDOM = ("polished", "best", "heads", "structure")
"""Methods that depend on the seed even if all training images are given."""


def start_worker(device: str) -> None:
    """Load the libraries of the device before anything is timed."""
    torch.linalg.eigh(torch.eye(2, device=device))


def measure_cell(cell: Cell, name: str, config: dict, folder: Path, options: argparse.Namespace) -> None:
    """Fit a method in a cell, and append what is measured to the file."""
    work = Work.load(cell, config, folder, options.device, not options.validation)
    fit, methods = METHODS[name]
    for method, fitted in zip(methods, fit(work), strict=True):
        line = {
            **vars(cell),
            "method": method,
            "seconds": round(fitted.seconds, 2),
            **{task: summary(fitted.rank(work.reported, task)) for task in TASKS},
            "chosen": fitted.choices,
            "where": describe_machine(options),
            **identify_run(options),
        }
        with options.cells.open("a", encoding="utf-8") as cells:
            cells.write(json.dumps(line, ensure_ascii=False) + "\n")
        recalls = [round(line[task]["r@1"], 1) for task in TASKS]
        print(*vars(cell).values(), method, recalls, f"{fitted.seconds:.1f} s", fitted.choices, flush=True)


def describe_machine(options: argparse.Namespace) -> str:
    device = "CPU" if options.device == "cpu" else torch.cuda.get_device_name(options.device)
    return f"{device}, {options.jobs} processes at once with {options.threads} threads each"


def identify_run(options: argparse.Namespace) -> dict[str, str | None]:
    """Return what lines of the file must have in common to be of the same run."""
    return {
        "split": "validation" if options.validation else "test",
        "configuration": hash_file(CONFIGURATION),
        "source": identify_code()["source"],
    }


def read_cells(file: Path, options: argparse.Namespace) -> list[dict]:
    """Return the lines of this code, configuration and split; a later one replaces an earlier one."""
    lines = {}
    for text in file.read_text("utf-8").splitlines() if file.exists() else ():
        line = json.loads(text)
        if identify_run(options).items() <= line.items():
            lines[line["features"], line["size"], line["seed"], line["method"]] = line
    return list(lines.values())


def list_work(config: dict, lines: list[dict], options: argparse.Namespace) -> list[tuple[Cell, str]]:
    """Return the cells and methods that are still to be measured, the largest cells of each method first."""
    done = {(line["features"], line["size"], line["seed"], line["method"]) for line in lines}
    return [
        (Cell(features, size, seed), name)
        for name, size, features, seed in product(
            (name for name in METHODS if name in options.only),
            sorted(options.sizes, reverse=True),
            reversed(options.features),
            config["seeds"][: options.seeds],
        )
        if size < TRAIN or seed == config["seeds"][0] or name in RANDOM
        if any((features, size, seed, method) not in done for method in METHODS[name][1])
    ]


def measure_cells(work: list[tuple[Cell, str]], config: dict, options: argparse.Namespace) -> None:
    """Measure cells in parallel processes, which share the features of one encoding."""
    pin_threads(options.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for at, (features, names) in enumerate(config["features"].items()):
            if any(cell.features == features for cell, _ in work):
                x, y, _ = load_flickr8k(names["images"], names["texts"])
                last = TRAIN + VALIDATION if options.validation else len(x)
                np.save(folder / f"{at}x.npy", x[:last])
                np.save(folder / f"{at}y.npy", y[: last * CAPTIONS])
        context = get_context("spawn")
        with ProcessPoolExecutor(options.jobs, context, start_worker, (options.device,)) as pool:
            futures = {pool.submit(measure_cell, *one, config, folder, options): one for one in work}
            for future in as_completed(futures):
                if (error := future.exception()) is not None:
                    print(*futures[future], "failed:", repr(error), flush=True)


def measure_missing(config: dict, options: argparse.Namespace) -> list[dict]:
    """Measure what is not in the file of cells yet, and return all of its lines."""
    work = list_work(config, read_cells(options.cells, options), options)
    if work:
        measure_cells(work, config, options)
    return read_cells(options.cells, options)


def make_rows(lines: list[dict], config: dict) -> list[dict]:
    """Return the rows of the table: means and standard deviations over seeds."""
    methods = [method for _, names in METHODS.values() for method in names]
    rows = []
    for features, size, method in product(config["features"], config["sizes"], methods):
        own = [
            line
            for line in lines
            if (line["features"], line["size"], line["method"]) == (features, size, method)
        ]
        if not own:
            continue
        row = {"features": features, "training images": size, "method": method, "seeds": len(own)}
        for task in TASKS:
            values = np.array([[line[task][f"r@{k}"] for k in (1, 5, 10)] for line in own])
            mean, spread = values.mean(axis=0), values.std(axis=0)
            row[task] = " / ".join(f"{m:.1f}" for m in mean)
            row[f"{task} r@1 ± seeds"] = f"{spread[0]:.1f}" if len(own) > 1 else ""
        row["fit s"] = f"{np.mean([line['seconds'] for line in own]):.1f}"
        rows.append(row)
    return rows


def make_short_rows(rows: list[dict]) -> list[dict]:
    """Return r@1 of both tasks with one row per method, the best of each column in bold."""
    short: dict[tuple[str, str], dict] = {}
    for row in rows:
        own = [float(row[task].split(" / ")[0]) for task in TASKS]
        best = [
            max(
                float(other[task].split(" / ")[0])
                for other in rows
                if all(other[key] == row[key] for key in ("features", "training images"))
            )
            for task in TASKS
        ]
        cells = [f"**{a:.1f}**" if a == b else f"{a:.1f}" for a, b in zip(own, best, strict=True)]
        key = row["features"], row["method"]
        line = short.setdefault(key, dict(zip(("features", "method"), key, strict=True)))
        line[f"{row['training images']:,} images"] = " / ".join(cells)
    return list(short.values())


STYLES = {
    'preset="best"': ("#123e74", "-", "s"),
    "AW-CCA, polished": ("#1f7fd1", "-", "o"),
    "AW-CCA": ("#8bbcec", "-", "o"),
    "linear heads, InfoNCE": ("#c05a1c", "-", "^"),
    "linear heads, STRUCTURE": ("#e3a06f", "-", "v"),
    "regularised CCA, symmetric": ("#3b7d4f", "--", "D"),
    "regularised CCA": ("#3b7d4f", "-.", "d"),
    "CSA": ("#8fbf9c", "--", "X"),
    "plain CCA": ("#8fbf9c", ":", "x"),
    "ridge, images to texts": ("#7d5ba6", "--", ">"),
    "ridge, texts to images": ("#7d5ba6", ":", "<"),
    "Procrustes": ("#555f69", "--", "P"),
    "ASIF": ("#9aa5b1", ":", "*"),
}


def draw_curves(rows: list[dict], config: dict) -> None:
    """Draw r@1 of every method against the number of training images, with the spread over seeds."""
    figure, panels = start_figure(2, 2, size=(9.2, 8.2))
    for line, features in zip(panels, config["features"], strict=True):
        for axes, task in zip(line, TASKS, strict=True):
            for method, (colour, style, marker) in STYLES.items():
                own = [row for row in rows if (row["features"], row["method"]) == (features, method)]
                axes.errorbar(
                    [row["training images"] for row in own],
                    [float(row[task].split(" / ")[0]) for row in own],
                    [float(row[f"{task} r@1 ± seeds"] or 0) for row in own],
                    color=colour,
                    linestyle=style,
                    marker=marker,
                    markersize=4,
                    linewidth=1.2,
                    capsize=2,
                    label=method,
                )
            axes.set(xscale="log", title=f"{features}, {task}", xticks=config["sizes"])
            axes.set_xticklabels(f"{size:,}" for size in config["sizes"])
            axes.minorticks_off()
            axes.grid(axis="y", color="#e4e8ec", linewidth=0.6)
        line[0].set_ylabel("r@1")
    for axes in panels[1]:
        axes.set_xlabel("training images")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(RESULTS / "alignment.svg", metadata={"Date": None})


NOTE = (
    "Flickr8k, test: r@1 / r@5 / r@10 on the official 1,000 images, mean over seeds, which draw the training "
    "images (with all five captions each) and start at random where a method does; at 6,000 images all are "
    "drawn, so that most methods have one result. Every method chooses its parameters by r@1 on the 1,000 "
    'validation images and is not fitted on them; preset="best" chooses by the mean of r@1, r@5 and r@10, '
    "and is the only one with a hubness correction. DINOv2-S: each half to unit length; MiniLM: unit length; "
    "ResNet-50: square root, unit length; HKSE(rbf, rbf): one draw. Fit: seconds with all that was tried, "
    "measured on: "
)


def main() -> None:
    config = json.loads(CONFIGURATION.read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validation", action="store_true", help="report on validation; record nothing")
    parser.add_argument("--features", nargs="+", default=list(config["features"]), choices=config["features"])
    parser.add_argument("--sizes", type=int, nargs="+", default=config["sizes"], help="training images")
    parser.add_argument("--seeds", type=int, default=len(config["seeds"]), help="how many seeds")
    parser.add_argument("--only", nargs="+", default=list(METHODS), choices=METHODS, help="some methods")
    parser.add_argument("--device", default="cpu", help="torch device")
    parser.add_argument("--jobs", type=int, default=1, help="cells measured at once")
    parser.add_argument("--cells", type=Path, default=Path("alignment_cells.jsonl"), help="file of cells")
    options = parser.parse_args()
    options.threads = max(1, (os.cpu_count() or 1) // options.jobs)
    check_device(options.device)
    if options.validation:
        rows = make_rows(measure_missing(config, options), config)
        for row in (*rows, *make_short_rows(rows)):
            print(*row.values(), sep=" | ")
        return
    with log_test_run(CONFIGURATION) as logged:
        lines = measure_missing(config, options)
        logged += (rows := make_rows(lines, config))
    if list_work(config, lines, parser.parse_args([])):
        print("some cells are not in the file yet; run again for all of them")
        return
    note = NOTE + "; ".join(sorted({line["where"] for line in lines})) + "."
    record("alignment", rows, note)
    record("alignment_short", make_short_rows(rows), "r@1 (search / annotate) of the table of alignment.md.")
    draw_curves(rows, config)


if __name__ == "__main__":
    main()
