"""Fusion: several models of several feature blocks, searched as one inner product."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, Floats, fields_to_numpy
from diptych._checks import (
    QUERY_VIEW,
    SEARCHED_VIEW,
    TASKS,
    InputError,
    Task,
    check_choice,
    check_count,
    check_task,
)
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Tensors
from diptych._progress import progress_bar
from diptych._threads import one_blas_thread
from diptych.cca._correction import KINDS, Correction, Hubness
from diptych.cca._description import CorrectionDescription, ModelDescription
from diptych.cca._moments import PRECISIONS, Moments, Precision
from diptych.cca._projector import VIEWS, PartMaps, Projector, ViewKey
from diptych.cca._streaming import Engine, remove_checkpoint
from diptych.cca._view_map import BlockUse, ViewMap
from diptych.cca._weighting import check_weighting
from diptych.cca.selection import hold_out
from diptych.cca.selection._grids import check_grid, check_share
from diptych.fusion._blocks import (
    Block,
    Geometry,
    JointMoments,
    Pairs,
    Side,
    as_pairs,
    count_rows,
    sum_pairs,
    take_rows,
)
from diptych.fusion._choosing import Settings
from diptych.fusion._fitting import PRESETS, FusedModels, SelectionReport, fit_fusion
from diptych.fusion._members import (
    LinearMaps,
    Member,
    Part,
    Use,
    carry_vectors,
    describe_members,
    joint_widths,
    make_gate,
    name_members,
    refit_member,
    shape_pairs,
)
from diptych.fusion._saved import KIND, FusionConfig, pack_fusion, unpack_fusion
from diptych.ranking import metric, ranks

Views: TypeAlias = ArrayLike | Mapping[str, ArrayLike]
"""Features of one view, or named blocks of them."""


class Fusion(BaseEstimator):  # type: ignore[misc]
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
    relaxations : sequence of float
        Multiples of the γ that is best for the asymmetric weighting, tried with the other weightings.
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
    hubness_ : dict
        For each task, the hubness ``correction``, the ``bank`` of vectors of training queries that it is
        measured on, and the ``gate`` that says which queries get less of it because they are unlike the
        training queries; None without a correction.
    geometry_ : dict
        For ``"x"`` and ``"y"``, the normalisation and scale of each block.
    moments_ : Moments
        Of the pairs that the models were fitted on: all blocks in their geometry side by side, then those
        that identity parts compare, with unit length. Not saved with the model.
    selection_ : SelectionReport
        What was tried, its value on validation, what was chosen: ``selection_.tasks["search"].weights``.

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

    takes_blocks = True
    geometry_: dict[str, Side]
    members_: dict[Task, list[Member]]
    hubness_: dict[Task, Hubness]

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
        relaxations: Sequence[float] = (0.5,),
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
        self.relaxations = relaxations
        self.grid = grid
        self.bank = bank
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.precision = precision
        self.verbose = verbose

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
        self._fit((X, y, pairing), validation, engine, device, checkpoint)
        return self

    def fit_unseen(
        self,
        training: tuple[Any, ...],
        validation: tuple[Any, ...] | None,
        *,
        fewest: int = 0,
        **options: Any,
    ) -> Callable[[], tuple[Fusion, Pairs]]:
        """Fit, and return a function that returns a model and pairs which that model has not seen.

        These are the validation pairs. Where the chosen models are fitted again on all pairs, it is what they
        were before. ``options`` are as ``fit`` takes them; ``fewest`` is for models fitted once more.
        """
        unseen = self._fit(training, validation, **options, keep_unseen=True)
        return lambda: unseen

    @one_blas_thread()
    def _fit(
        self,
        pairs: tuple[Any, ...],
        validation: tuple[Any, ...] | None,
        engine: Engine | None = None,
        device: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        keep_unseen: bool = False,
    ) -> tuple[Fusion, Pairs]:
        self.check_parameters()
        training, held_out, description = self._split(as_pairs(*pairs), validation)
        with progress_bar("fitting", self.verbose):
            result = fit_fusion(
                self._settings(engine, device),
                training,
                held_out,
                refit=self.refits(validation),
                keep_unseen=keep_unseen,
                description=description,
                checkpoint=checkpoint,
            )
        # Set together at the end, so that an interrupted fit leaves no half-fitted model.
        self._set_models(result.models)
        self.moments_, self.selection_ = result.moments, result.selection
        if checkpoint is not None:
            remove_checkpoint(checkpoint)
        unseen = Fusion(self.preset, grid=self.grid)
        unseen._set_models(result.unseen)
        return unseen, held_out

    def projector(self, task: str = "search") -> Projector:
        """Return what turns features into the vectors of a task, without the estimator."""
        check_is_fitted(self)
        name = check_task(task)
        members = self.members_[name]
        parts = tuple(
            PartMaps(label, self._map_view(member, "x"), self._map_view(member, "y"), member.weight)
            for label, member in zip(name_members(members), members, strict=True)
        )
        return Projector(name, parts, self._block_widths(), hubness=self.hubness_[name])

    def items(self, features: Views, task: str = "search") -> Floats:
        """Return float32 vectors of the items of ``task`` (X for search, Y for annotate).

        Their inner products with ``queries`` are scores. The last coordinate is the hubness correction.
        """
        return self.projector(task).items(features)

    def queries(self, features: Views, task: str = "search") -> Floats:
        """Return float32 vectors of the queries of ``task`` (Y for search, X for annotate).

        The last coordinate is the share of the hubness correction that a query gets: 1, or less if it is
        far from the training queries.
        """
        return self.projector(task).queries(features)

    @overload
    def transform(self, X: Views, y: None = None, *, task: str = "search") -> Floats: ...

    @overload
    def transform(self, X: None = None, *, y: Views, task: str = "search") -> Floats: ...

    @overload
    def transform(self, X: Views, y: Views, *, task: str = "search") -> tuple[Floats, Floats]: ...

    def transform(self, X: Views | None = None, y: Views | None = None, *, task: str = "search") -> Any:
        """Return vectors of one view, or of both as a pair, for a task; their inner product ranks."""
        if X is None and y is None:
            raise InputError("transform got neither X nor y; give at least one view.")
        name = check_task(task)
        vectors = [
            (self.items if SEARCHED_VIEW[name] == view else self.queries)(features, name)
            for view, features in (("x", X), ("y", y))
            if features is not None
        ]
        return vectors[0] if len(vectors) == 1 else tuple(vectors)

    def ranks(self, X: Views, y: Views, pairing: ArrayLike | None = None, *, task: str = "search") -> Array:
        """Return the rank of the true item of every query, as ``diptych.ranking`` counts it."""
        name = check_task(task)
        of_x, of_y = self.transform(X, y, task=name)
        if SEARCHED_VIEW[name] == "x":
            of_x, of_y = self.projector(name).to_similarity(of_x, of_y)
        else:
            of_y, of_x = self.projector(name).to_similarity(of_y, of_x)
        return ranks(of_x, of_y, pairing, task=name)

    def score(
        self, X: Views, y: Views, pairing: ArrayLike | None = None, *, task: str | None = None
    ) -> float:
        """Return recall at 1 in percent; the mean of both tasks when ``task`` is None."""
        tasks = TASKS if task is None else (check_task(task),)
        return sum(metric("r@1")(self.ranks(X, y, pairing, task=t)) for t in tasks) / len(tasks)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``, atomically."""
        write_model_folder(folder, KIND, *self.pack())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Fusion:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpack(*read_model_folder(folder, KIND, FusionConfig))

    def pack(self) -> tuple[FusionConfig, Tensors]:
        """Return the fitted model as a config and named arrays."""
        check_is_fitted(self)
        return pack_fusion(self)

    @classmethod
    def unpack(cls, config: FusionConfig, tensors: Tensors, source: Path) -> Fusion:
        """Return the model that ``pack`` packed; ``source`` is where the arrays were read, for messages."""
        model = cls()
        unpack_fusion(model, config, tensors, source)
        return model

    def make_moments(self, X: Views, y: Views, pairing: ArrayLike | None = None) -> Moments:
        """Return the moments of more pairs, as ``moments_`` has those of the training pairs.

        Their sum is what ``refit_moments`` takes.
        """
        parts = [member.part for members in self.members_.values() for member in members]
        projector = self.projector()
        pairs = as_pairs(projector.split(X, "x"), projector.split(y, "y"), pairing)
        return sum_pairs(shape_pairs(self.geometry_, pairs, parts), self.precision)[0].moments

    def moment_widths(self) -> dict[str, int]:
        """Return the numbers of columns of ``"x"`` and of ``"y"`` in ``moments_``."""
        check_is_fitted(self)
        x, y = joint_widths(self.geometry_, self.members_)
        return {"x": sum(x.values()), "y": sum(y.values())}

    def refit_moments(self, moments: Moments, count: int) -> Fusion:
        """Fit the models again on other moments, such as ``moments_`` and those of more pairs added.

        ``count`` pairs were fitted before, and γ is scaled by the number of pairs. Geometry, uses, weights
        and corrections stay. The vectors of the bank are carried over to the new models.
        """
        check_is_fitted(self)
        expected, shape = tuple(self.moment_widths().values()), tuple(moments.xy.shape)
        if shape != expected:
            raise InputError(
                f"the moments have {shape[0]} and {shape[1]} columns, but this fusion has {expected[0]} and "
                f"{expected[1]}; add moments_ and those of make_moments."
            )
        joint = JointMoments(moments, joint_widths(self.geometry_, self.members_))
        factor = moments.count / check_count(count, "count")
        members: dict[Task, list[Member]] = {}
        hubness: dict[Task, Hubness] = {}
        for task, previous in self.members_.items():
            view, old = QUERY_VIEW[task], self.hubness_[task]
            members[task] = [refit_member(member, task, joint, factor) for member in previous]
            vectors = np.split(old.bank, np.cumsum([m.dimension for m in previous])[:-1], axis=1)
            carried = [
                carry_vectors(rows, member, refitted, view, joint)
                for rows, member, refitted in zip(vectors, previous, members[task], strict=True)
            ]
            gate = old.gate and make_gate(members[task], view, joint, (old.gate.low, old.gate.high))
            hubness[task] = Hubness(old.correction, np.concatenate(carried, axis=1), gate)
        self.members_, self.hubness_, self.moments_ = members, hubness, moments
        return self

    def refit_copy(self, moments: Moments, total: float, validation: tuple[Any, ...] | None = None) -> Fusion:
        """Return a copy fitted on other moments, without these; it was fitted on a ``total`` of pairs."""
        if validation is not None:
            raise InputError(
                "the parts and weights of a fusion cannot be selected again in a refit; leave out "
                "validation, or fit it again on all pairs."
            )
        return copy.copy(self).refit_moments(moments, int(total)).split_moments()[0]

    def split_moments(self) -> tuple[Fusion, Moments | None]:
        """Return a copy without its moments, and these; None where they are not known."""
        copied = copy.copy(self)
        moments = copied.__dict__.pop("moments_", None)
        return copied, None if moments is None else fields_to_numpy(moments)

    @property
    def learned_validation(self) -> bool:
        """Whether the models were fitted on the validation pairs too."""
        return self.selection_.refitted

    def describe(self) -> ModelDescription:
        """Return what people want to know of the fitted model, as plain data."""
        check_is_fitted(self)
        reports = self.selection_.tasks
        return ModelDescription(
            "Fusion",
            {
                task: [f"{m.weight:.2g} × ({m.part}), {m.use.weighting}" for m in members]
                for task, members in self.members_.items()
            },
            {task: sum(m.dimension for m in members) for task, members in self.members_.items()},
            {"preset": self.preset},
            "fusion",
            parts={task: describe_members(members) for task, members in self.members_.items()},
            corrections={
                task: CorrectionDescription(**msgspec.structs.asdict(h.correction), gated=h.gate is not None)
                for task, h in self.hubness_.items()
            },
            metric="r@1" if reports else None,
            best={task: report.recall["r@1"] for task, report in reports.items()},
        )

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
        zero, eye = np.zeros(width, np.float32), np.eye(width, dtype=np.float32)
        member = Member(part, Use("identity", 1.0), 1.0, LinearMaps(zero, zero, eye, eye))
        geometry = {view: {view: Geometry(view, width=width)} for view in ("x", "y")}
        bank = np.zeros((0, width), dtype=np.float32)
        hubness = {task: Hubness(Correction(), bank) for task in TASKS}
        model._set_models(FusedModels(geometry, {task: [member] for task in TASKS}, hubness))
        model.selection_ = SelectionReport("none", "no pairs", False, {}, [], {}, 0.0)
        return model

    def refits(self, validation: tuple[Any, ...] | None = None) -> bool:
        """Return whether ``fit`` fits the chosen models again on training and validation pairs together."""
        return bool(self._preset()["refit"] or validation is None)

    def check_parameters(self) -> None:
        """Refuse wrong settings before any data is read; ``fit`` begins with this."""
        check_grid(self.grid)
        check_share(self.validation_fraction)
        self._settings()

    def _settings(self, engine: Engine | None = None, device: str | None = None) -> Settings:
        preset = self._preset()
        if preset["n_components"] == "all":
            preset["n_components"] = None
        for kind in preset["hubness"]:
            check_choice(kind, KINDS, "hubness")
        for weighting in preset["weightings"]:
            check_weighting(weighting)
        check_choice(self.precision, PRECISIONS, "precision")
        if not preset["hubness"] or not preset["weightings"] or not list(self.relaxations):
            raise InputError("hubness, weightings and relaxations each need at least one value to try.")
        if not isinstance(self.bank, int) or self.bank < 1:
            raise InputError(f"bank={self.bank!r}; give how many training queries to keep, 1 or more.")
        names = ("relaxations", "grid", "bank", "random_state", "precision")
        values = {name: getattr(self, name) for name in names}
        del preset["refit"]
        return Settings(blocks=dict(self.blocks or {}), engine=engine, device=device, **preset, **values)

    def _preset(self) -> dict[str, Any]:
        """Return the parameters of the preset, with those that are given in place of its own."""
        values = dict(PRESETS[check_choice(self.preset, tuple(PRESETS), "preset")])
        return values | {name: value for name in values if (value := getattr(self, name)) is not None}

    def _split(self, pairs: Pairs, validation: tuple[Any, ...] | None) -> tuple[Pairs, Pairs, str]:
        """Return training pairs, validation pairs, and a description of the latter."""
        if validation is not None:
            if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
                raise InputError("validation is not (X, Y) or (X, Y, pairing); give the pairs like that.")
            held_out = as_pairs(*validation)
            for blocks, others, name in zip(pairs[:2], held_out[:2], ("X", "Y"), strict=True):
                if {k: v.shape[1] for k, v in blocks.items()} != {k: v.shape[1] for k, v in others.items()}:
                    raise InputError(f"validation {name} has other blocks than training; encode both alike.")
            counts = [count_rows(view) for view in held_out[:2]]
            return pairs, held_out, f"the given pairs, {counts[0]} rows of X and {counts[1]} of Y"
        x, y, pairing = pairs
        parts = hold_out(pairing, count_rows(x), self.validation_fraction, self.random_state)
        train, held_out = ((take_rows(x, p.x), take_rows(y, p.y), p.pairing) for p in parts)
        counts = [count_rows(held_out[0]), count_rows(x)]
        description = f"{counts[0]} of {counts[1]} rows of X with their rows of Y"
        return train, held_out, f"{description} (random_state={self.random_state})"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "members_")

    def _set_models(self, models: FusedModels) -> None:
        self.geometry_, self.members_, self.hubness_ = models

    def _block_widths(self) -> dict[ViewKey, dict[str, int]]:
        return {view: {name: g.width for name, g in self.geometry_[view].items()} for view in VIEWS}

    def _map_view(self, member: Member, view: ViewKey) -> ViewMap:
        """Return how a member projects a view, from features as they are encoded."""
        part = member.part
        if part.kind == "identity":
            uses = [BlockUse(getattr(part, view)[0], "unit")]
        else:
            uses = [self.geometry_[view][name].use() for name in part.columns(view)]
        return ViewMap(tuple(uses), member.linear.mean(view), member.linear.map(view))
