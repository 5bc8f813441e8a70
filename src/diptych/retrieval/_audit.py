r"""Which pairs look wrong: cross-fitted scores of all pairs, before a model learns from them.

The images are split into ``FOLDS`` folds. For each, a model is fitted on the moments of all pairs less those
of the fold, :math:`M - M_f`. It scores the pairs of the fold, which it has not seen, and each text of the
fold with another of its images, drawn at random. So there are scores with the density :math:`f` of the pairs
as given, and :math:`g` of pairs that are wrong. If wrong pairs came about by chance, :math:`f = (1 - \pi) f_1
+ \pi g`. The share of wrong pairs :math:`\pi` is at most the ratio :math:`F / G` of the distribution
functions anywhere. It is estimated as its minimum, which lies at low scores, where hardly any pair is right;
one pair more is counted, so that few pairs do not give a share of 0. A pair with the score s is wrong with
the probability :math:`\pi g(s) / f(s)`. Isotonic regression gives :math:`g / f`, which falls with s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych._checks import IMAGE_AND_TEXT, InputError, ViewNames, count, plural
from diptych._persistence import replace_file
from diptych._progress import progress_bar
from diptych.retrieval._calibration import FEWEST_IMAGES, Bools
from diptych.retrieval._fitted import make_projectors
from diptych.retrieval._pair_scores import Floats, Integers, exchange, mean_scores, write_csv
from diptych.retrieval._placing import is_caption

if TYPE_CHECKING:
    from diptych.data import PairedDataset, PairedViews
    from diptych.retrieval._searcher import Searcher

FOLDS = 5

FLAGGED = 0.5
"""Pairs that are wrong with a greater probability are flagged."""

SHEET_PAIRS = 200
"""How many pairs a contact sheet shows."""

_LEVELS = np.linspace(0.02, 0.98, 49)  # quantiles of the exchanged pairs at which F / G is read


@dataclass(frozen=True)
class AuditedPair:
    """A pair, and how much it looks as if it were wrong.

    ``score`` is that of a model which was not fitted on the pair. ``wrong`` estimates the probability that
    the text belongs to another image. It is ``flagged`` if that is more likely than not.
    """

    image: str
    text_id: str
    text: str
    path: str | None
    score: float
    wrong: float
    flagged: bool

    def to_json(self) -> dict[str, Any]:
        """Return the pair as plain data."""
        return asdict(self) | {"score": round(self.score, 6), "wrong": round(self.wrong, 6)}


@dataclass(frozen=True, eq=False)
class Audit:
    """All pairs, those that look most wrong first, as ``audit_pairs`` returns them.

    Attributes
    ----------
    dataset
        The pairs.
    scores, wrong
        Arrays in the order of the pairs: the score of each, and the probability that it is wrong.
    share
        The estimated share of wrong pairs.
    """

    dataset: PairedDataset
    scores: Floats
    wrong: Floats
    share: float

    @cached_property
    def flagged(self) -> Bools:
        """Which pairs are more likely wrong than right, in the order of the pairs."""
        return self.wrong > FLAGGED

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self.scores)

    def __iter__(self) -> Iterator[AuditedPair]:
        """Iterate over the pairs, the lowest score first."""
        data = self.dataset
        for row in np.argsort(self.scores, kind="stable").tolist():
            image = int(data.pairing[row])
            yield AuditedPair(
                data.image_ids[image],
                data.caption_ids[row],
                data.captions[row],
                None if data.paths is None else str(data.paths[image]),
                float(self.scores[row]),
                float(self.wrong[row]),
                bool(self.flagged[row]),
            )

    def summary(self) -> str:
        """Return one sentence: how many pairs are flagged, and how many are estimated to be wrong."""
        flagged = f"{int(self.flagged.sum()):,} of {count(len(self), 'pair')}"
        return f"{flagged} flagged as wrong; estimated share of wrong pairs: {100 * self.share:.1f} %"

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        numbers = {"pairs": len(self), "flagged": int(self.flagged.sum()), "share": round(self.share, 6)}
        return {**numbers, "lowest_first": [pair.to_json() for pair in self]}

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a row for each pair, the lowest score first; a file that exists is replaced."""
        write_csv(path, [pair.to_json() for pair in self])

    def write_sheet(self, path: str | os.PathLike[str]) -> None:
        """Write a contact sheet of the ``SHEET_PAIRS`` lowest pairs: one HTML file with small images."""
        from diptych.report._page import page, section, show_items

        lowest = [pair for pair, _ in zip(self, range(SHEET_PAIRS), strict=False)]
        parts = [
            section(title, show_items(map(_show, pairs)))
            for title, flagged in (("Flagged", True), ("Lowest of the others", False))
            if (pairs := [pair for pair in lowest if pair.flagged == flagged])
        ]
        lead = f"{self.summary()}. The {count(len(lowest), 'pair')} with the lowest scores are shown."
        names = self.dataset.views
        with replace_file(path) as staged:
            staged.write_text(
                page(f"{plural(names.caption)} that look wrong".capitalize(), lead, parts), "utf-8"
            )


def audit_pairs(pairs: PairedViews, *, random_state: int = 0) -> Audit:
    """Score every pair by a model that was not fitted on it, to find wrong pairs before they are learned.

    ``Retriever.fit(..., audit=True)`` leaves out those that this flags.

    Parameters
    ----------
    pairs
        Pairs with features, of 100 images at least, as ``Retriever.encode`` and ``diptych.data.join`` return
        them. Their splits do not matter.
    random_state
        Seeds the folds and the exchanged pairs.

    Examples
    --------
    >>> import numpy as np
    >>> from diptych.data import PairedDataset, PairedViews
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(400, 8))
    >>> y = x[:, :6] + 0.3 * rng.normal(size=(400, 6))
    >>> y[[3, 5]] = y[[5, 3]]  # two captions are exchanged
    >>> data = PairedDataset.of([(f"image {i}", [f"caption {i}"]) for i in range(400)])
    >>> audit = audit_pairs(PairedViews(data, x, y))
    >>> [pair.image for pair in audit if pair.flagged]
    ['image 5', 'image 3']
    """
    data = pairs.dataset
    scores, exchanged = score_unseen(pairs.x, pairs.y, data.pairing, data.views, random_state)
    wrong, share = estimate_wrong(scores, exchanged)
    return Audit(data, scores, wrong, share)


def audit_stored(searcher: Searcher) -> Audit:
    """Audit the stored images and their captions; see ``Retriever.audit``."""
    from diptych.data import PairedDataset, PairedViews

    store, names = searcher.store, searcher.encoders.views
    texts = list(filter(is_caption, store.items("text")))
    images = list(store.items("image", ids=sorted({str(text.image) for text in texts})))
    row = {image.id: number for number, image in enumerate(images)}
    texts = [text for text in texts if text.image in row]
    x = store.features("image", [image.id for image in images])
    y = store.features("text", [text.id for text in texts])
    if x is None or y is None:
        raise InputError(
            "the features of the items are not kept, which an audit needs; fit with keep_features=True, or "
            "audit the pairs themselves with diptych audit."
        )
    paths = [Path(image.path) for image in images if image.path is not None]
    data = PairedDataset(
        tuple(row),
        tuple(text.text or "" for text in texts),
        np.array([row[str(text.image)] for text in texts], np.int64),
        tuple(text.id for text in texts),
        paths=tuple(paths) if len(paths) == len(images) else None,
        views=names,
    )
    return audit_pairs(PairedViews(data, x, y))


def score_unseen(
    x: Any, y: Any, pairing: Integers, names: ViewNames = IMAGE_AND_TEXT, random_state: int | None = 0
) -> tuple[Floats, Floats]:
    """Return the score of each pair by a model that was not fitted on it, and those of exchanged pairs.

    For these, each text has another image.
    """
    from diptych.cca import AWCCA

    paired, owners = np.unique(pairing, return_inverse=True)
    if len(paired) < FEWEST_IMAGES:
        few = count(len(paired), names.image)
        raise InputError(
            f"there {'is' if len(paired) == 1 else 'are'} {few} with {plural(names.caption)}; an audit needs "
            f"{FEWEST_IMAGES}."
        )
    rng = np.random.default_rng(random_state)
    folds = rng.permutation(np.arange(len(paired)) % FOLDS)
    scores, exchanged = np.empty(len(y)), np.empty(len(y))
    with progress_bar("auditing") as progress:
        # The regularisation is chosen on all pairs: these few numbers know no pair.
        model, total = AWCCA(random_state=random_state).fit(x, y, pairing).split_moments()
        assert total is not None
        for fold in range(FOLDS):
            progress((fold + 1) / (FOLDS + 1))
            images, texts = np.flatnonzero(folds == fold), np.flatnonzero(folds[owners] == fold)
            part = x[paired[images]], y[texts], np.searchsorted(images, owners[texts])
            unseen = model.refit_copy(total - model.make_moments(*part), total.total)
            projectors = make_projectors(unseen, names)
            scores[texts] = mean_scores(projectors, *part)
            others = exchange(part[2], len(images), rng)
            exchanged[texts] = mean_scores(projectors, *part[:2], others)
    return scores, exchanged


def estimate_wrong(scores: Floats, exchanged: Floats) -> tuple[Floats, float]:
    """Return how likely each pair is wrong, and the share of wrong pairs.

    ``exchanged`` are scores of as many pairs that are wrong; the module derives the estimates.
    """
    from sklearn.isotonic import IsotonicRegression

    below = np.searchsorted(np.sort(scores), np.quantile(exchanged, _LEVELS), "right")
    share = float(min(1.0, np.min((below + 1) / (len(scores) * _LEVELS))))
    is_exchanged = np.repeat([0.0, 1.0], [len(scores), len(exchanged)])
    odds_of = IsotonicRegression(increasing=False).fit(np.concatenate([scores, exchanged]), is_exchanged)
    among_both = np.minimum(odds_of.predict(scores), 1 - 1e-9)
    return np.minimum(1.0, share * among_both / (1 - among_both)), share


def _show(pair: AuditedPair) -> tuple[Any, str]:
    """Return the image of a pair, or None if there is none to show, and what to write below it."""
    from diptych.encoders._decoding import UnreadableImage, open_image

    image = None
    if pair.path is not None:
        with suppress(UnreadableImage):
            image = open_image(Path(pair.path))
    name = pair.text or pair.text_id
    return image, f"{name} ({pair.image}; score {pair.score:.2f}, wrong with {pair.wrong:.2f})"
