"""Fusion: several models of several feature blocks, searched as one inner product."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from diptych._arrays import fields_to_numpy
from diptych._checks import (
    QUERY_VIEW,
    TASKS,
    InputError,
    Task,
    check_choice,
    check_count,
)
from diptych._threads import one_blas_thread, progress_bar
from diptych.cca._moments import PRECISIONS, Moments, Precision
from diptych.cca._polish import COMPONENTS, polish_for
from diptych.cca._streaming import Engine
from diptych.cca._weighting import check_weighting
from diptych.cca.selection import hold_out
from diptych.cca.selection._grids import check_grid, check_share
from diptych.fusion._blocks import (
    Block,
    Blocks,
    Floats,
    Geometry,
    JointMoments,
    Pairs,
    Side,
    count_rows,
    sample_images,
    sum_pairs,
    take_rows,
)
from diptych.fusion._fitted import (
    PRESETS,
    FitReport,
    FittedFusion,
    PartReport,
    SelectionReport,
    TaskReport,
    Views,
    as_pairs,
    shape_pairs,
)
from diptych.fusion._hubness import (
    KINDS,
    Correction,
    Evaluator,
    Gate,
    TaskChoice,
    choose_weights,
)
from diptych.fusion._members import (
    AnyPart,
    Choice,
    LinearMaps,
    Member,
    Part,
    Trial,
    Use,
    carry_vectors,
    choose_geometry,
    choose_use,
    embed_members,
    fit_part,
    make_gate,
    make_parts,
    make_uses,
    polish_use,
    project_pairs,
    refit_member,
)

Item = TypeVar("Item")

POLISHED = 0.25
"""The weight from which a part is polished; the first always is. Others change the sum too little."""


class Fusion(FittedFusion, BaseEstimator):  # type: ignore[misc]
    """The summed scores of several AW-CCA models, corrected for hubness, as one inner product.

    Every choice is made on validation pairs: the geometry of each feature block, the regularisation and the
    weighting of each model, their weights, and the correction. Items and queries become vectors whose inner
    product is the score, so an index for inner products searches exactly.

    Parameters
    ----------
    preset : {"best", "plain"}
        The values of the parameters below that are None; see ``diptych.fusion.PRESETS``.
    blocks : dict or None
        ``Block`` of each feature block by name; a block that is not named tries every normalisation.
    parts : "family", "together", list of Part, or None
        Which blocks each model sees. ``"together"``: all side by side. ``"family"``: that, each block alone
        with all blocks of the other view, and the cosine of two blocks as they are, where they look like
        those of a dual encoder (CLIP). Or as listed.
    weightings : sequence of str or None
        Weightings to choose from for each task: ``"asymmetric"``, ``"residual"`` and the others. It is chosen
        by the first part that is fitted.
    hubness : sequence of str or None
        Corrections to choose from: ``"none"``, ``"csls"``.
    refit : bool or None
        Fit the chosen models again on training and validation pairs together, with γ scaled by their
        number. Without validation pairs a share of the training pairs is held out, and this is always done.
    n_components : int, "all" or None
        Components of each model that are kept, those of the largest correlations.
    polish : bool or None
        Polish the parts that get much weight, as in ``AWCCA``, where that is better on validation.
    scales : sequence of float
        Scales to try for each block beside the others of its view; all have total variance 1 before.
    relaxations : sequence of float
        Multiples of the γ that is best for the asymmetric weighting, tried with the other weightings.
    search_weights : bool
        Search for weights of the models; otherwise each alone and all with equal weights are compared.
    grid : int or pair
        As in ``AWCCA``.
    bank : int
        How many training queries measure the hubness correction, at most; their vectors are stored.
    validation_fraction, random_state
        As in ``AWCCA``; the seed also draws the bank.
    precision : {"float32", "float64"}
        Of the pass over the data.
    verbose : bool or None
        Whether to show a progress bar, as in ``AWCCA``.

    Attributes
    ----------
    members_ : dict
        For each task, the models whose scores are summed.
    corrections_ : dict
        For each task, the hubness ``Correction``.
    banks_ : dict
        For each task, vectors of training queries.
    gates_ : dict
        For each task, which queries get less of the correction because they are unlike the training queries;
        None without a correction.
    geometry_ : dict
        For ``"x"`` and ``"y"``, the normalisation and scale of each block.
    moments_ : Moments
        Of the pairs that the models were fitted on: all blocks in their geometry side by side, then those
        that identity parts compare, with unit length. Not saved with the model.
    selection_ : dict
        Plain data: what was tried, its value on validation, what was chosen.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(300, 6))
    >>> def view(width, noise):
    ...     return hidden @ rng.normal(size=(6, width)) + noise * rng.normal(size=(300, width))
    >>> images, words, sentences = view(12, 0.5), view(10, 1.0), view(8, 1.0)
    >>> texts = {"words": words[:200], "sentences": sentences[:200]}
    >>> model = Fusion(grid=6).fit(images[:200], texts)
    >>> items = model.items(images[200:], "search")
    >>> queries = model.queries({"words": words[200:], "sentences": sentences[200:]}, "search")
    >>> best = (queries @ items.T).argmax(axis=1)
    >>> bool((best == np.arange(100)).mean() > 0.5)
    True
    """

    def __init__(
        self,
        preset: str = "best",
        *,
        blocks: Mapping[str, Block] | None = None,
        parts: Literal["family", "together"] | Sequence[Part] | None = None,
        weightings: Sequence[str] | None = None,
        hubness: Sequence[str] | None = None,
        refit: bool | None = None,
        n_components: int | Literal["all"] | None = None,
        polish: bool | None = None,
        scales: Sequence[float] = (1.0,),
        relaxations: Sequence[float] = (0.5,),
        search_weights: bool = True,
        grid: int | tuple[Any, Any] = 20,
        bank: int = 6000,
        validation_fraction: float = 0.15,
        random_state: int | None = 0,
        precision: Precision = "float32",
        verbose: bool | None = None,
    ) -> None:
        self.preset = preset
        self.blocks = blocks
        self.parts = parts
        self.weightings = weightings
        self.hubness = hubness
        self.refit = refit
        self.n_components = n_components
        self.polish = polish
        self.scales = scales
        self.relaxations = relaxations
        self.search_weights = search_weights
        self.grid = grid
        self.bank = bank
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.precision = precision
        self.verbose = verbose

    @one_blas_thread()
    def fit(
        self,
        X: Views,
        y: Views | None = None,
        pairing: ArrayLike | None = None,
        *,
        validation: tuple[Any, ...] | None = None,
        engine: Engine | None = None,
        device: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Fusion:
        """Choose everything on validation pairs, and fit.

        Parameters
        ----------
        X, y
            The views: one array each, or named feature blocks (name → array) with the same rows.
        pairing
            Row j of y belongs to row ``pairing[j]`` of X; None pairs row with row.
        validation
            ``(X, Y)`` or ``(X, Y, pairing)`` like the training pairs; None holds out a share of those.
        engine
            Sums the moments of the training pairs and scores the rows of the grids (except on the screened
            route); None: this process.
        device
            A torch device, such as ``"cuda"``, for the moments, their decompositions and the grids. The model
            is returned in NumPy.
        checkpoint
            File for the sum of all blocks side by side, as in ``AWCCA.fit``. It is removed after the fit.
        """
        if y is None:
            raise InputError(
                "a fusion reads its views several times to choose; give X and y, each an array or named "
                "feature blocks. AWCCA fits an iterable of blocks of pairs."
            )
        self.check_parameters()
        with progress_bar("fitting", self.verbose):
            self._fit(as_pairs(X, y, pairing), validation, engine, device, checkpoint)
        return self

    @one_blas_thread()
    def fit_unseen(
        self,
        pairs: tuple[Any, ...],
        validation: tuple[Any, ...] | None,
        *,
        engine: Engine | None = None,
        device: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> tuple[FittedFusion, Pairs, Pairs]:
        """Fit as ``fit`` does; return a model that has not seen validation pairs, those, and the others.

        Where the chosen models are fitted again on all pairs, it is what they were before.
        """
        self.check_parameters()
        with progress_bar("fitting", self.verbose):
            unseen = self._fit(as_pairs(*pairs), validation, engine, device, checkpoint, keep=True)
        assert unseen is not None
        return unseen

    def _fit(
        self,
        given: Pairs,
        validation: tuple[Any, ...] | None,
        engine: Engine | None,
        device: str | None,
        checkpoint: str | os.PathLike[str] | None,
        keep: bool = False,
    ) -> tuple[FittedFusion, Pairs, Pairs] | None:
        start, settings = time.perf_counter(), self._settings()
        training, held_out, description = self._split(given, validation)
        unseen, seen = held_out, training
        parts = self._make_parts(settings["parts"], training)
        where = partial(sum_pairs, precision=self.precision, engine=engine, device=device)
        with progress_bar("choosing normalisations"):
            geometry, geometries = self._choose_geometry(training, held_out, lambda pairs: where(pairs)[0])
        training, held_out = (shape_pairs(geometry, pairs, parts) for pairs in (training, held_out))
        with progress_bar("summing") as progress:
            joint, training = where(training, checkpoint=checkpoint, progress=progress)
        scales = tuple(map(float, self.scales))
        fitted = [
            fit_part(part, joint, held_out, self.grid, scales, engine)
            for part in self._show("fitting parts", parts)
        ]
        sample = sample_images(held_out, self.random_state)
        choices: dict[Task, tuple[list[Use], TaskChoice]] = {}
        reports: dict[Task, TaskReport] = {}
        for task in TASKS:
            uses, choice, reports[task] = self._choose(task, fitted, training, sample, settings, device)
            choices[task] = uses, choice
        make = partial(self._make_models, geometry, choices, training, settings, device)
        refits = self.refits(validation)
        before = make(fitted, [training], joint) if keep and refits else None
        if refits:
            joint += where(held_out)[0]
            used = {
                at for _, choice in choices.values() for at, weight in enumerate(choice.weights) if weight
            }
            final = [one.refit(joint) if at in used else one for at, one in enumerate(fitted)]
            made = make(final, [training, held_out], joint)
        else:
            made = make(fitted, [training], joint)
        # Set together at the end, so that an interrupted fit leaves no half-fitted model.
        self.__dict__.update(made)
        widths = self._moment_widths()
        kept = [(tuple(own), (1.0,) * len(own)) for own in widths]
        self.moments_ = fields_to_numpy(joint.moments if widths == joint.widths else joint.take(*kept))
        self.selection_: SelectionReport = {
            "criterion": "mean of r@1, r@5 and r@10",
            "validation": description,
            "refitted": refits,
            "geometry": geometries,
            "parts": [_report_fit(one) for one in fitted],
            "tasks": reports,
            "seconds": time.perf_counter() - start,
        }
        if checkpoint is not None:
            Path(checkpoint).unlink(missing_ok=True)
        if not keep:
            return None
        model = FittedFusion(self.preset, grid=self.grid)
        model.__dict__.update(made if before is None else before)
        return model, unseen, seen

    def _make_models(
        self,
        geometry: dict[str, Side],
        choices: Mapping[Task, tuple[list[Use], TaskChoice]],
        training: Pairs,
        settings: dict[str, Any],
        device: str | None,
        parts: Sequence[AnyPart],
        pairs: list[Pairs],
        joint: JointMoments,
    ) -> dict[str, Any]:
        """Return the attributes of the chosen models, of fitted parts; they are polished on ``pairs``."""
        members: dict[Task, list[Member]] = {}
        gates: dict[Task, Gate | None] = {}
        for task, (uses, choice) in choices.items():
            members[task] = []
            for one, use, weight in zip(parts, uses, choice.weights, strict=True):
                if weight == 0.0:
                    continue
                most = settings["n_components"] or (COMPONENTS if use.epochs else None)
                _, linear = next(one.make_maps(task, [use], most))
                params, polish = one.params(task, use), None
                if use.epochs:
                    linear = linear.keep(COMPONENTS)
                    vectors = project_pairs(one.part, linear, pairs, device)
                    polish = fields_to_numpy(polish_for(*vectors, use.epochs, self.random_state))
                    linear = linear.multiply(polish)
                members[task].append(Member(one.part, use, weight, linear, params, polish))
            gates[task] = (
                None
                if choice.correction.kind == "none"
                else make_gate(members[task], QUERY_VIEW[task], joint, choice.limits)
            )
        corrections = {task: choice.correction for task, (_, choice) in choices.items()}
        banks = {task: self._make_bank(task, members[task], corrections[task], training) for task in TASKS}
        return {
            "geometry_": geometry,
            "members_": members,
            "corrections_": corrections,
            "banks_": banks,
            "gates_": gates,
        }

    def refit_moments(self, moments: Moments, count: int) -> Fusion:
        """Fit the models again on other moments, such as ``moments_`` and those of more pairs added.

        ``count`` pairs were fitted before, and γ is scaled by the number of pairs. Geometry, uses, weights
        and corrections stay. The vectors of the bank are carried over to the new models.
        """
        self._check_fitted()
        widths = self._moment_widths()
        expected, given = tuple(self.moment_widths().values()), tuple(moments.xy.shape)
        if given != expected:
            raise InputError(
                f"the moments have {given[0]} and {given[1]} columns, but this fusion has {expected[0]} and "
                f"{expected[1]}; add moments_ and those of make_moments."
            )
        joint, factor = JointMoments(moments, widths), moments.count / check_count(count, "count")
        members: dict[Task, list[Member]] = {}
        banks: dict[Task, Floats] = {}
        gates: dict[Task, Gate | None] = {}
        for task, before in self.members_.items():
            members[task] = [refit_member(member, task, joint, factor) for member in before]
            vectors = np.split(self.banks_[task], np.cumsum([m.dimension for m in before])[:-1], axis=1)
            carried = [
                carry_vectors(own, old, new, QUERY_VIEW[task], joint)
                for own, old, new in zip(vectors, before, members[task], strict=True)
            ]
            banks[task] = np.concatenate(carried, axis=1)
            gate = self.gates_[task]
            gates[task] = gate and make_gate(members[task], QUERY_VIEW[task], joint, (gate.low, gate.high))
        self.members_, self.banks_, self.gates_, self.moments_ = members, banks, gates, moments
        return self

    @classmethod
    def zero_shot(cls, width: int) -> Fusion:
        """Return a model that compares the ``width`` features of a dual encoder as they are, without pairs.

        ``Retriever.from_model`` makes a retriever of it, to which items can be added.

        >>> import numpy as np
        >>> model = Fusion.zero_shot(3)
        >>> scores = model.queries(np.eye(3)) @ model.items(2 * np.eye(3)).T
        >>> bool(np.allclose(scores, np.eye(3)))
        True
        """
        check_count(width, "width")
        part = Part(("x",), ("y",), kind="identity")
        model = cls(parts=[part], hubness=("none",))
        model.geometry_ = {view: {view: Geometry("none", 1, 1.0, width)} for view in ("x", "y")}
        zero, eye = np.zeros(width, np.float32), np.eye(width, dtype=np.float32)
        member = Member(part, Use("identity", 1.0), 1.0, LinearMaps(zero, zero, eye, eye))
        model.members_ = {task: [member] for task in TASKS}
        model.corrections_ = {task: Correction() for task in TASKS}
        model.banks_ = {task: np.zeros((0, width), dtype=np.float32) for task in TASKS}
        model.gates_ = dict.fromkeys(TASKS)
        model.selection_ = {
            "criterion": "none",
            "validation": "no pairs",
            "refitted": False,
            "geometry": {},
            "parts": [],
            "tasks": {},
            "seconds": 0.0,
        }
        return model

    def refits(self, validation: tuple[Any, ...] | None = None) -> bool:
        """Return whether ``fit`` fits the chosen models again on training and validation pairs together."""
        return bool(self._settings()["refit"] or validation is None)

    def check_parameters(self) -> None:
        """Refuse wrong settings before any data is read; ``fit`` begins with this."""
        check_grid(self.grid)
        check_share(self.validation_fraction)
        self._settings()

    def _settings(self) -> dict[str, Any]:
        settings = dict(PRESETS[check_choice(self.preset, tuple(PRESETS), "preset")])
        settings |= {name: value for name in settings if (value := getattr(self, name)) is not None}
        if settings["n_components"] == "all":
            settings["n_components"] = None
        for kind in settings["hubness"]:
            check_choice(kind, KINDS, "hubness")
        for weighting in settings["weightings"]:
            check_weighting(weighting)
        check_choice(self.precision, PRECISIONS, "precision")
        if not settings["hubness"] or not settings["weightings"] or not list(self.relaxations):
            raise InputError("hubness, weightings and relaxations each need at least one value to try.")
        if not isinstance(self.bank, int) or self.bank < 1:
            raise InputError(f"bank={self.bank!r}; give how many training queries to keep, 1 or more.")
        return settings

    def _split(self, pairs: Pairs, validation: tuple[Any, ...] | None) -> tuple[Pairs, Pairs, str]:
        """Return training pairs, validation pairs, and a description of the latter."""
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
                raise InputError("validation is not (X, Y) or (X, Y, pairing); give the pairs like that.")
            held_out = as_pairs(*validation)
            for own, other, name in zip(pairs[:2], held_out[:2], ("X", "Y"), strict=True):
                if {k: v.shape[1] for k, v in own.items()} != {k: v.shape[1] for k, v in other.items()}:
                    raise InputError(f"validation {name} has other blocks than training; encode both alike.")
            counts = [count_rows(view) for view in held_out[:2]]
            return pairs, held_out, f"the given pairs, {counts[0]} rows of X and {counts[1]} of Y"
        x, y, pairing = pairs
        parts = hold_out(pairing, count_rows(x), self.validation_fraction, self.random_state)
        train, held_out = ((take_rows(x, p.images), take_rows(y, p.captions), p.pairing) for p in parts)
        counts = [count_rows(held_out[0]), count_rows(x)]
        description = f"{counts[0]} of {counts[1]} rows of X with their rows of Y"
        return train, held_out, f"{description} (random_state={self.random_state})"

    def _choose_geometry(
        self, training: Pairs, held_out: Pairs, sum_moments: Callable[[Pairs], JointMoments]
    ) -> tuple[dict[str, Side], dict[str, Any]]:
        given = dict(self.blocks or {})
        names = {*training[0], *training[1]}
        if not set(given) <= names:
            raise InputError(f"blocks names {sorted(set(given) - names)}, which the views do not have.")
        if len(names) < len(training[0]) + len(training[1]):
            raise InputError("a block of X and a block of Y have the same name; give each its own.")
        blocks = {name: given.get(name, Block()) for name in names}
        return choose_geometry(training, held_out, blocks, sum_moments)

    def _make_parts(self, setting: Any, training: Pairs) -> list[Part]:
        if isinstance(setting, str):
            kind = check_choice(setting, ("family", "together"), "parts")
            return make_parts(kind, training, self.random_state)
        parts: list[Part] = list(setting)
        known = set(training[0]), set(training[1])
        if not parts or not all(
            isinstance(p, Part) and set(p.x) <= known[0] and set(p.y) <= known[1] for p in parts
        ):
            raise InputError(f"parts={parts!r} is not a list of Part of blocks of X and of Y; give that.")
        for part in parts:
            widths = training[0][part.x[0]].shape[1], training[1][part.y[0]].shape[1]
            if part.kind == "identity" and widths[0] != widths[1]:
                raise InputError(
                    f"the identity part {part} compares {widths[0]} with {widths[1]} features; give blocks "
                    "of the same width, from one dual encoder."
                )
        return parts

    def _choose(
        self,
        task: Task,
        fitted: list[AnyPart],
        training: Pairs,
        sample: Pairs,
        settings: dict[str, Any],
        device: str | None,
    ) -> tuple[list[Use], TaskChoice, TaskReport]:
        """Return the best use of every part, weights and a correction for all of them, and a report."""
        evaluator = Evaluator(task, sample[2], count_rows(sample[0]), max(one.dimension for one in fitted))
        items, queries = sample[0], sample[1]
        if task == "annotate":
            items, queries = sample[1], take_rows(sample[0], evaluator.truth.described)
        trial = Trial(evaluator, items, queries, self._draw_bank(task, training))
        uses, kinds = make_uses(settings["weightings"], self.relaxations), settings["hubness"]
        best: list[Choice] = []
        for one in self._show(f"choosing for {task}", fitted):
            best.append(choose_use(one, trial, uses, settings["n_components"], kinds))
            if one.part.kind != "identity":
                # Trying all on every part takes twice as long, and on Flickr8k all parts choose the same.
                uses = [best[-1].use]
        unfitted = [at for at, one in enumerate(fitted) if one.part.kind == "identity"]

        def weigh() -> TaskChoice:
            return choose_weights(
                evaluator, [each.scores for each in best], kinds, self.search_weights, unfitted
            )

        choice = weigh()
        if settings["polish"]:
            models = [at for at in range(len(best)) if at not in unfitted]
            used = [at for at in models if choice.weights[at] >= POLISHED or at == models[0]]
            for at in self._show(f"polishing for {task}", used):
                most = settings["n_components"]
                best[at] = polish_use(
                    fitted[at], best[at], trial, training, most, kinds, self.random_state, device
                )
            choice = weigh()
        report: TaskReport = {
            "parts": [
                cast(PartReport, each.report(one.part)) for each, one in zip(best, fitted, strict=True)
            ],
            "weights": list(choice.weights),
            "correction": msgspec.structs.asdict(choice.correction),
            "value": choice.value,
            "recall": choice.recall,
        }
        return [each.use for each in best], choice, report

    def _draw_bank(self, task: Task, training: Pairs) -> Blocks:
        blocks = training[0] if QUERY_VIEW[task] == "x" else training[1]
        rows = np.random.default_rng(self.random_state).permutation(count_rows(blocks))[: self.bank]
        return take_rows(blocks, np.sort(rows))

    def _make_bank(
        self, task: Task, members: Sequence[Member], correction: Correction, training: Pairs
    ) -> Floats:
        if correction.kind == "none":
            return np.zeros((0, sum(member.dimension for member in members)), dtype=np.float32)
        return embed_members(members, self._draw_bank(task, training), QUERY_VIEW[task], weighted=False)

    def _show(self, title: str, items: Sequence[Item]) -> Iterator[Item]:
        """Iterate over items with a progress bar."""
        with progress_bar(title) as progress:
            for done, item in enumerate(items, start=1):
                yield item
                progress(done / len(items))


def _report_fit(one: AnyPart) -> FitReport:
    scales = {
        "x": dict(zip(one.part.x, one.part.x_scales, strict=True)),
        "y": dict(zip(one.part.y, one.part.y_scales, strict=True)),
    }
    return cast(FitReport, {**scales, **one.report()})
