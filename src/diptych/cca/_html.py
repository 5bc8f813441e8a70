"""What a notebook shows of an AWCCA: scikit-learn's own diagram, and what the fit found."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Any

from sklearn.utils import estimator_html_repr

from diptych._arrays import to_numpy
from diptych._checks import TASKS, count
from diptych.cca._canonical import SMALL, CanonicalModel
from diptych.cca._deferred import DeferredModels, filters_of

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

SHOWN = 5
"""Components in the table of correlations."""

# Colours are those of the notebook, so that light and dark ones are both readable.
_STYLE = (
    "<style>.diptych-fit{font-size:90%}.diptych-fit table{border-collapse:collapse;margin:.4em 0;"
    "color:inherit;background:none;font-size:inherit}"
    ".diptych-fit :is(th,td){padding:.15em .9em .15em 0;text-align:left;font-weight:normal;"
    "border-bottom:1px solid rgba(128,128,128,.4);background:none}"
    ".diptych-fit th{opacity:.75}</style>"
)


def to_html(model: AWCCA) -> str:
    """Return a model as HTML, escaped and without scripts or addresses of its own.

    Correlations are left out where reading them would take a large decomposition.
    """
    if not hasattr(model, "models_"):
        return str(estimator_html_repr(model))
    made = _models_at_hand(model)
    shown = copy.copy(model)
    if "search" not in made:
        # The diagram lists the names of the components, and would count them by making the model.
        shown.__dict__.update(get_feature_names_out=None)
    return f'{estimator_html_repr(shown)}{_STYLE}<div class="diptych-fit">{_describe_fit(model, made)}</div>'


def _describe_fit(model: AWCCA, made: dict[Any, CanonicalModel]) -> str:
    sizes = f"X has {count(len(model.x_mean_), 'feature')}, Y {len(model.y_mean_):,}."
    if (spectra := getattr(model, "spectra_", None)) is not None:
        sizes = f"Fitted on {spectra.count:,} pairs. {sizes}"
    path = model.path_
    how = "Regularisation was given." if model.params is not None else f"Selection: {model.selection}."
    if path is not None:
        points = " × ".join(str(side) for side in path.grid.shape)
        how = f"Regularisation was selected among {points} points by {path.metric} on {path.held_out}."
    filters = filters_of(model.models_)
    head = ["task", "filter of X", "filter of Y"] + ([] if path is None else [path.metric])
    rows = [
        [task, *map(str, filters[task])] + ([] if path is None else [f"{path.best(task):.1f}"])
        for task in TASKS
    ]
    parts = [f"<p>{escape(sizes)} {escape(how)}</p>", _table(head, rows)]
    shared = len(made) == len(TASKS) and made["search"] is made["annotate"]
    for task in TASKS[:1] if shared else [task for task in TASKS if task in made]:
        parts.append(_correlations("both tasks" if shared else task, made[task]))
    if not made:
        parts.append("<p>Correlations are computed when <code>models_</code> is first read.</p>")
    return "".join(parts)


def _models_at_hand(model: AWCCA) -> dict[Any, CanonicalModel]:
    """Return the models that exist already, or that take no noticeable time."""
    models = model.models_
    if isinstance(models, DeferredModels) and min(model.spectra_.t0.shape) > SMALL:
        return dict(models.made)
    return dict(models)


def _correlations(title: str, model: CanonicalModel) -> str:
    columns = {
        "regularised": model.correlations,
        "training pairs": model.train_correlations,
        "validation pairs": model.validation_correlations,
    }
    known = {name: to_numpy(values) for name, values in columns.items() if values is not None}
    total = len(known["regularised"])
    rows = [
        [str(k + 1), *(f"{values[k]:.3f}" for values in known.values())] for k in range(min(SHOWN, total))
    ]
    words = f"Correlations, {title}" + (f" (the first {SHOWN} of {total:,})" if total > SHOWN else "")
    return f"<p>{escape(words)}:</p>" + _table(["component", *known], rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"
