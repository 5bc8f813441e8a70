"""Presets: sets of ingredients under one name, the same in Python and in the shell.

A fitted fusion as named arrays and plain JSON, and as a folder of both.

Fusion: several models of several feature blocks, searched as one inner product.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import to_numpy
from diptych._checks import TASKS, InputError, Task, check_choice, check_pairing, check_task
from diptych._normalize import check_normalization
from diptych._persistence import CONFIG, TENSORS, load_model, save_model, take_array
from diptych.cca import Moments, spectra_from_moments
from diptych.cca._moments import PRECISIONS, Precision
from diptych.cca._weighting import check_weighting
from diptych.cca.selection import hold_out
from diptych.cca.selection._grids import check_grid
from diptych.fusion._blocks import Block, Blocks, Floats, Geometry, as_blocks, taken
from diptych.fusion._hubness import KINDS, Correction, corrected_items, corrected_queries, offsets
from diptych.fusion._members import (
    VIEW_OF_ITEMS,
    VIEW_OF_QUERIES,
    FittedPart,
    Linear,
    Member,
    Pairs,
    Part,
    Side,
    Trial,
    Use,
    best_use,
    choose_geometry,
    embedded,
    family,
    fit_part,
    together,
    uses_of,
)
from diptych.fusion._weights import Chosen, Judge, choose
from diptych.ranking import metric, ranks

PRESETS: dict[str, dict[str, Any]] = {
    "best": {
        "parts": "family",
        "weightings": ("asymmetric", "residual"),
        "hubness": ("none", "csls"),
        "refit": True,
        "n_components": 512,
    },
    "plain": {
        "parts": "together",
        "weightings": ("asymmetric",),
        "hubness": ("none",),
        "refit": False,
        "n_components": "all",
    },
}
"""``"best"``: every ingredient that helped (``docs/accuracy.md``). ``"plain"``: AW-CCA as in the paper."""


def ingredients(name: str) -> dict[str, Any]:
    """The ingredients under ``name``."""
    return dict(PRESETS[check_choice(name, tuple(PRESETS), "preset")])


FORMAT_VERSION = 1
KIND = "fusion"

Tensors = dict[str, np.ndarray[Any, Any]]
Loaded = tuple[
    dict[str, Any],
    dict[str, Side],
    dict[Task, list[Member]],
    dict[Task, Correction],
    dict[Task, Floats],
    dict[str, Any],
]


def pack(
    params: Mapping[str, Any],
    geometry: Mapping[str, Side],
    members: Mapping[Task, list[Member]],
    corrections: Mapping[Task, Correction],
    banks: Mapping[Task, Floats],
    selection: Mapping[str, Any],
) -> tuple[Tensors, dict[str, Any]]:
    """A fusion as named arrays and plain JSON."""
    tensors: Tensors = {}
    stored: dict[str, Any] = {}
    for task in TASKS:
        tensors[f"{task}.bank"] = banks[task]
        stored[task] = {"correction": vars(corrections[task]), "members": []}
        for at, member in enumerate(members[task]):
            for name, array in vars(member.linear).items():
                tensors[f"{task}.{at}.{name}"] = array
            stored[task]["members"].append(
                {"part": vars(member.part), "use": vars(member.use), "weight": member.weight}
            )
    shapes = {view: {name: vars(each) for name, each in side.items()} for view, side in geometry.items()}
    return tensors, {
        "params": dict(params),
        "geometry": shapes,
        "tasks": stored,
        "selection": dict(selection),
    }


def unpack(tensors: Tensors, config: Mapping[str, Any], folder: Path) -> Loaded:
    """What ``pack`` packed; ``folder`` is where it was read, for messages."""
    try:
        geometry = {view: _side(config["geometry"][view]) for view in ("x", "y")}
        members = {task: _members(tensors, config["tasks"][task], task, geometry, folder) for task in TASKS}
        corrections = {task: Correction(**config["tasks"][task]["correction"]) for task in TASKS}
        params = {"preset": str(config["params"]["preset"]), "grid": int(config["params"]["grid"])}
        selection = dict(config["selection"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder / CONFIG} does not describe a fusion ({error!r}); save the model again."
        ) from None
    banks = {}
    for task in TASKS:
        width = sum(member.linear.x_map.shape[1] for member in members[task])
        banks[task] = take_array(tensors, f"{task}.bank", (None, width), folder / TENSORS)
        if corrections[task].kind != "none" and len(banks[task]) == 0:
            raise InputError(f"{folder / TENSORS} has no bank for the {task} correction; save it again.")
    return params, geometry, members, corrections, banks, selection


def save(folder: str | os.PathLike[str], tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Write a packed fusion; a crash on the way leaves the folder as it was."""
    save_model(folder, KIND, FORMAT_VERSION, tensors, config)


def load(folder: str | os.PathLike[str]) -> Loaded:
    """Read what ``save`` wrote."""
    return unpack(*load_model(folder, KIND, FORMAT_VERSION))


def _side(stored: Mapping[str, Any]) -> Side:
    side: Side = {}
    for name, each in stored.items():
        pieces, width, scale = int(each["pieces"]), int(each["width"]), float(each["scale"])
        if pieces < 1 or width < 1 or not 0.0 < scale < float("inf"):
            raise ValueError(f"block {name!r} of {width} features in {pieces} pieces, times {scale}")
        side[str(name)] = Geometry(check_normalization(each["normalize"]), pieces, scale, width)
    return side


def _members(
    tensors: Tensors, stored: Mapping[str, Any], task: Task, geometry: Mapping[str, Side], folder: Path
) -> list[Member]:
    found = []
    for at, each in enumerate(stored["members"]):
        given = each["part"]
        part = Part(
            tuple(map(str, given["x"])),
            tuple(map(str, given["y"])),
            tuple(map(float, given["x_scales"])),
            tuple(map(float, given["y_scales"])),
        )
        widths = [
            sum(geometry[view][name].width for name in names)
            for view, names in (("x", part.x), ("y", part.y))
        ]
        weight = float(each["weight"])
        numbers = (weight, *part.x_scales, *part.y_scales)
        if not all(0.0 < number < float("inf") for number in numbers):
            raise ValueError(f"a member with the weight and scales {numbers}")
        path, name = folder / TENSORS, f"{task}.{at}"
        x_map = take_array(tensors, f"{name}.x_map", (widths[0], None), path)
        linear = Linear(
            take_array(tensors, f"{name}.x_mean", (widths[0],), path),
            take_array(tensors, f"{name}.y_mean", (widths[1],), path),
            x_map,
            take_array(tensors, f"{name}.y_map", (widths[1], x_map.shape[1]), path),
        )
        use = Use(str(each["use"]["weighting"]), float(each["use"]["relaxation"]))
        found.append(Member(part, use, weight, linear))
    if not found:
        raise ValueError(f"no members for {task}")
    return found


MOST_IMAGES = 1000
"""Validation images that weights and corrections are chosen on; of more, a seeded sample."""


class Fusion(BaseEstimator):  # type: ignore[misc]
    """Retrieval by the summed scores of several AW-CCA models, corrected for hubness: one inner product.

    Every choice is made on validation pairs: the geometry of each feature block, the regularisation and the
    weighting of each model, their weights, and the correction. Items and queries become vectors whose inner
    product is the score, so an index for inner products searches exactly.

    Parameters
    ----------
    preset : {"best", "plain"}
        What the parameters below stand for while they are None; see ``diptych.fusion._fusion``.
    blocks : dict or None
        ``Block`` of each feature block by name; one that is not named tries every normalisation.
    parts : "family", "together", list of Part, or None
        Which blocks each model sees: everything side by side; that, and each block alone with all of the
        other view; or as listed.
    weightings : sequence of str or None
        Weightings to choose from for every part and task: ``"asymmetric"``, ``"residual"`` and the others.
    hubness : sequence of str or None
        Corrections to choose from: ``"none"``, ``"csls"``, ``"inverted-softmax"``.
    refit : bool or None
        Fit the chosen models again on training and validation pairs together, with γ scaled by their
        number. Without validation pairs a share of the training pairs is held out, and this is always done.
    n_components : int, "all" or None
        Components of each model that are kept, those of the largest correlations.
    scales : sequence of float
        What the scale of each block may be, beside others of its view, each having total variance 1.
    relaxations : sequence of float
        Multiples of the γ that is best for the asymmetric weighting, tried with the other weightings.
    search_weights : bool
        Look for weights of the parts; otherwise each alone and all in equal shares are compared.
    grid : int or pair
        As in ``AWCCA``.
    bank : int
        How many training queries the hubness correction is measured with, at most; they are stored.
    validation_fraction, random_state
        As in ``AWCCA``; the seed also draws the bank.
    precision : {"float32", "float64"}
        Of the pass over the data.

    Attributes
    ----------
    members_ : dict
        For each task, the models whose scores are summed.
    corrections_ : dict
        For each task, the hubness ``Correction``.
    banks_ : dict
        For each task, vectors of training queries.
    geometry_ : dict
        For ``"x"`` and ``"y"``, what is done to each block.
    selection_ : dict
        Plain data: what was tried, what it was worth on validation, what was chosen.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(300, 6))
    >>> def view(width, noise):
    ...     return hidden @ rng.normal(size=(6, width)) + noise * rng.normal(size=(300, width))
    >>> photos, words, sentences = view(12, 0.5), view(10, 1.0), view(8, 1.0)
    >>> texts = {"words": words[:200], "sentences": sentences[:200]}
    >>> model = Fusion(grid=6).fit(photos[:200], texts)
    >>> items = model.items(photos[200:], "search")
    >>> queries = model.queries({"words": words[200:], "sentences": sentences[200:]}, "search")
    >>> found = (queries @ items.T).argmax(axis=1)
    >>> bool((found == np.arange(100)).mean() > 0.5)
    True
    """

    def __init__(
        self,
        preset: str = "best",
        *,
        blocks: Mapping[str, Block] | None = None,
        parts: Any = None,
        weightings: Sequence[str] | None = None,
        hubness: Sequence[str] | None = None,
        refit: bool | None = None,
        n_components: int | Literal["all"] | None = None,
        scales: Sequence[float] = (1.0,),
        relaxations: Sequence[float] = (0.5,),
        search_weights: bool = True,
        grid: Any = 20,
        bank: int = 6000,
        validation_fraction: float = 0.15,
        random_state: int | None = 0,
        precision: Precision = "float32",
    ) -> None:
        self.preset = preset
        self.blocks = blocks
        self.parts = parts
        self.weightings = weightings
        self.hubness = hubness
        self.refit = refit
        self.n_components = n_components
        self.scales = scales
        self.relaxations = relaxations
        self.search_weights = search_weights
        self.grid = grid
        self.bank = bank
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.precision = precision

    def fit(
        self, X: Any, Y: Any, pairing: Any = None, *, validation: tuple[Any, ...] | None = None
    ) -> Fusion:
        """Choose everything on validation pairs, and fit.

        Parameters
        ----------
        X, Y
            The views: an array each, or named feature blocks, name → array, rows alike.
        pairing
            Row j of Y belongs to row ``pairing[j]`` of X; None pairs row with row.
        validation
            ``(X, Y)`` or ``(X, Y, pairing)`` like the training pairs; None holds a share of those out.
        """
        self.check_parameters()
        start, settings = time.perf_counter(), self._settings()
        everything = _as_pairs(X, Y, pairing)
        training, held, said = self._divided(everything, validation)
        self.geometry_, geometries = self._geometries(training, held)
        training, held = self._shaped(training), self._shaped(held)
        parts = self._parts(settings["parts"], training)
        fitted = [
            fit_part(p, training, held, self.grid, self.precision, tuple(map(float, self.scales)))
            for p in parts
        ]
        judged = _sampled(held, self.random_state)
        self.members_: dict[Task, list[Member]] = {}
        self.corrections_, self.banks_ = {}, {}
        chosen: dict[str, Any] = {}
        whole: dict[int, Any] = {}
        refits = self.refits(validation)
        for task in TASKS:
            uses, best, chosen[task] = self._choose(task, fitted, training, judged, settings)
            self.members_[task] = []
            for at, (one, use, weight) in enumerate(zip(fitted, uses, best.weights, strict=True)):
                if weight == 0.0:
                    continue
                if refits and at not in whole:
                    more = Moments.of(*one.part.views(*held[:2]), held[2], precision=self.precision)
                    whole[at] = spectra_from_moments(one.moments + more)
                spectra = whole[at] if refits else one.spectra
                linear = one.refitted(spectra, task, use, settings["n_components"])
                self.members_[task].append(Member(one.part, use, weight, linear))
            self.corrections_[task] = best.correction
            self.banks_[task] = self._bank(task, training)
        self.selection_ = {
            "criterion": "mean of r@1, r@5 and r@10",
            "validation": said,
            "refitted": refits,
            "geometry": geometries,
            "parts": [_told(one) for one in fitted],
            "tasks": chosen,
            "seconds": time.perf_counter() - start,
        }
        return self

    def refits(self, validation: Any = None) -> bool:
        """Whether ``fit`` ends with a fit on the validation pairs as well."""
        return bool(self._settings()["refit"] or validation is None)

    def items(self, features: Any, task: str = "search") -> Floats:
        """Vectors of what ``task`` looks through (X for search, Y for annotate), float32.

        Their inner products with ``queries`` are scores. The last coordinate is the hubness correction.
        """
        check_is_fitted(self, "members_")
        name = check_task(task)
        vectors = self._embedded(features, name, VIEW_OF_ITEMS[name], weighted=True)
        return corrected_items(vectors, offsets(vectors, self.banks_[name], self.corrections_[name]))

    def queries(self, features: Any, task: str = "search") -> Floats:
        """Vectors of what ``task`` is asked with (Y for search, X for annotate), float32."""
        check_is_fitted(self, "members_")
        name = check_task(task)
        return corrected_queries(self._embedded(features, name, VIEW_OF_QUERIES[name], weighted=False))

    def transform(self, X: Any = None, Y: Any = None, *, task: str = "search") -> Any:
        """Vectors of one view, or of both as a pair, for a task; their inner product ranks."""
        if X is None and Y is None:
            raise InputError("transform was given neither X nor Y; give at least one view.")
        name = check_task(task)
        verbs = {VIEW_OF_ITEMS[name]: self.items, VIEW_OF_QUERIES[name]: self.queries}
        found = [verbs[view](rows, name) for view, rows in (("x", X), ("y", Y)) if rows is not None]
        return found[0] if len(found) == 1 else tuple(found)

    def ranks(self, X: Any, Y: Any, pairing: Any = None, *, task: str = "search") -> Any:
        """Rank of the truth for every query, as ``diptych.ranking``."""
        name = check_task(task)
        items, queries = _alike(*self.transform(X, Y, task=name)[:: 1 if name == "search" else -1])
        x, y = (items, queries) if name == "search" else (queries, items)
        return ranks(x, y, pairing, task=name)

    def score(self, X: Any, Y: Any, pairing: Any = None, *, task: str | None = None) -> float:
        """Recall at 1 (percent) on the given pairs; the mean of both tasks when ``task`` is None."""
        tasks = TASKS if task is None else (check_task(task),)
        return sum(metric("r@1").of(self.ranks(X, Y, pairing, task=t)) for t in tasks) / len(tasks)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``, atomically."""
        save(folder, *self.packed())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Fusion:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpacked(load(folder))

    def packed(self) -> tuple[Tensors, dict[str, Any]]:
        """The fitted model as named arrays and plain JSON; see ``diptych.fusion._fusion``."""
        check_is_fitted(self, "members_")
        return pack(
            {"preset": self.preset, "grid": self.grid if isinstance(self.grid, int) else 20},
            self.geometry_,
            self.members_,
            self.corrections_,
            self.banks_,
            self.selection_,
        )

    @classmethod
    def unpacked(cls, loaded: Loaded) -> Fusion:
        """The model of which these are the parts."""
        params, geometry, members, corrections, banks, selection = loaded
        model = cls(**params)
        model._settings()
        model.geometry_, model.members_, model.corrections_ = geometry, members, corrections
        model.banks_, model.selection_ = banks, selection
        return model

    def check_parameters(self) -> None:
        """Refuse wrong settings before any data is looked at; ``fit`` begins with this."""
        check_grid(self.grid)
        self._settings()

    def _settings(self) -> dict[str, Any]:
        settings = ingredients(self.preset)
        settings |= {name: value for name in settings if (value := getattr(self, name)) is not None}
        if settings["n_components"] == "all":
            settings["n_components"] = None
        for kind in settings["hubness"]:
            check_choice(kind, KINDS, "hubness")
        for weighting in settings["weightings"]:
            check_weighting(weighting)
        check_choice(self.precision, PRECISIONS, "precision")
        if not settings["hubness"] or not settings["weightings"] or not list(self.relaxations):
            raise InputError("hubness, weightings and relaxations must each name at least one thing to try.")
        if not isinstance(self.bank, int) or self.bank < 1:
            raise InputError(f"bank={self.bank!r}; give how many training queries to keep, 1 or more.")
        return settings

    def _divided(self, given: Pairs, validation: tuple[Any, ...] | None) -> tuple[Pairs, Pairs, str]:
        """Training and validation pairs, and the latter in words."""
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
                raise InputError("validation is not (X, Y) or (X, Y, pairing); give the pairs like that.")
            held = _as_pairs(*validation)
            for part, other, name in zip(given[:2], held[:2], ("X", "Y"), strict=True):
                if {k: v.shape[1] for k, v in part.items()} != {k: v.shape[1] for k, v in other.items()}:
                    raise InputError(f"validation {name} has other blocks than training; encode both alike.")
            return given, held, f"the given pairs, {_rows(held[0])} rows of X and {_rows(held[1])} of Y"
        x, y, pairing = given
        parts = hold_out(pairing, _rows(x), self.validation_fraction, self.random_state)
        train, held = ((taken(x, p.images), taken(y, p.captions), p.pairing) for p in parts)
        said = f"{_rows(held[0])} of {_rows(x)} rows of X with their rows of Y"
        return train, held, f"{said} (random_state={self.random_state})"

    def _geometries(self, training: Pairs, held: Pairs) -> tuple[dict[str, Side], dict[str, Any]]:
        wanted = dict(self.blocks or {})
        names = {*training[0], *training[1]}
        if not set(wanted) <= names:
            raise InputError(f"blocks names {sorted(set(wanted) - names)}, which the views do not have.")
        if len(names) < len(training[0]) + len(training[1]):
            raise InputError("a block of X and a block of Y have the same name; give each its own.")
        return choose_geometry(
            training, held, {name: wanted.get(name, Block()) for name in names}, self.precision
        )

    def _shaped(self, pairs: Pairs) -> Pairs:
        x, y, pairing = pairs
        return _apply(self.geometry_["x"], x), _apply(self.geometry_["y"], y), pairing

    def _parts(self, asked: Any, training: Pairs) -> list[Part]:
        if isinstance(asked, str):
            check_choice(asked, ("family", "together"), "parts")
            return (family if asked == "family" else together)(*training[:2])
        parts = list(asked)
        known = set(training[0]), set(training[1])
        if not parts or not all(
            isinstance(p, Part) and set(p.x) <= known[0] and set(p.y) <= known[1] for p in parts
        ):
            raise InputError(f"parts={parts!r} is not a list of Part of blocks of X and of Y; give that.")
        return parts

    def _choose(
        self, task: Task, fitted: list[FittedPart], training: Pairs, held: Pairs, settings: dict[str, Any]
    ) -> tuple[list[Use], Chosen, dict[str, Any]]:
        """For every part the best way to use it, then weights and a correction for them together."""
        judge = Judge(task, held[2], _rows(held[0]), max(min(one.spectra.ranks) for one in fitted))
        queries, items = held[1], held[0]
        if task == "annotate":
            queries, items = taken(held[0], judge.truth.described), held[1]
        trial = Trial(judge, items, queries, self._bank_rows(task, training))
        ways, kinds = uses_of(settings["weightings"], self.relaxations), settings["hubness"]
        tried = [best_use(one, trial, ways, settings["n_components"], kinds) for one in fitted]
        picked = choose(judge, [scored for _, scored, _ in tried], kinds, self.search_weights)
        told = {
            "parts": [each for _, _, each in tried],
            "weights": list(picked.weights),
            "correction": vars(picked.correction),
            "value": picked.value,
            "recall": picked.recall,
        }
        return [use for use, _, _ in tried], picked, told

    def _bank_rows(self, task: Task, training: Pairs) -> Blocks:
        view = training[1] if task == "search" else training[0]
        rows = _rows(view)
        drawn = np.random.default_rng(self.random_state).permutation(rows)[: self.bank]
        return taken(view, np.sort(drawn))

    def _bank(self, task: Task, training: Pairs) -> Floats:
        members, view = self.members_[task], VIEW_OF_QUERIES[task]
        if self.corrections_[task].kind == "none":
            return np.zeros((0, sum(m.linear.x_map.shape[1] for m in members)), dtype=np.float32)
        return embedded(members, self._bank_rows(task, training), view, weighted=False)

    def _embedded(self, features: Any, task: Task, view: str, weighted: bool) -> Floats:
        blocks = as_blocks(features, view)
        return embedded(self.members_[task], _apply(self.geometry_[view], blocks), view, weighted=weighted)


def _as_pairs(x: Any, y: Any, pairing: Any = None) -> Pairs:
    first, second = as_blocks(x, "x"), as_blocks(y, "y")
    whole = check_pairing(pairing, _rows(first), next(iter(second.values())))
    return first, second, cast(Any, to_numpy(whole))


def _rows(blocks: Blocks) -> int:
    return len(next(iter(blocks.values())))


def _apply(side: Side, blocks: Blocks) -> Blocks:
    if missing := [name for name in side if name not in blocks]:
        raise InputError(
            f"the blocks {missing} are missing; give every block that the model was fitted with."
        )
    return {name: geometry.apply(blocks[name], name) for name, geometry in side.items()}


def _sampled(pairs: Pairs, random_state: int | None) -> Pairs:
    """At most ``MOST_IMAGES`` images with their captions."""
    x, y, pairing = pairs
    described = np.unique(pairing)
    if len(described) <= MOST_IMAGES:
        return pairs
    part = hold_out(pairing, _rows(x), MOST_IMAGES / len(described), random_state)[1]
    return taken(x, part.images), taken(y, part.captions), part.pairing


def _told(one: FittedPart) -> dict[str, Any]:
    return {
        "x": dict(zip(one.part.x, one.part.x_scales, strict=True)),
        "y": dict(zip(one.part.y, one.part.y_scales, strict=True)),
        "params": {task: list(one.path.params(task)) for task in TASKS},
        "choice": {task: list(one.path.choice[task]) for task in TASKS},
        "seconds": one.path.seconds,
    }


def _alike(items: Floats, queries: Floats) -> tuple[Floats, Floats]:
    """One more coordinate that gives all items one length, and 0 to queries: cosine then ranks as they do."""
    squares = np.sum(np.square(items, dtype=np.float64), axis=1)
    rest = np.sqrt(squares.max() - squares)[:, None].astype(items.dtype)
    zeros = np.zeros((len(queries), 1), dtype=queries.dtype)
    return np.concatenate([items, rest], axis=1), np.concatenate([queries, zeros], axis=1)
