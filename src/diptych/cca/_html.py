"""A fitted AWCCA in a notebook: tables of its regularisation and of its first correlations."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from diptych._arrays import to_numpy
from diptych._checks import TASKS, Task, count
from diptych.cca._canonical import CanonicalModel

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


def describe_fit(model: AWCCA, computed: dict[Task, CanonicalModel]) -> str:
    """Return the fit of a model as HTML, with the correlations of the models that are ``computed``."""
    sizes = f"X has {count(len(model.x_mean_), 'feature')}, Y {len(model.y_mean_):,}."
    if (spectra := getattr(model, "spectra_", None)) is not None:
        sizes = f"Fitted on {spectra.count:,} pairs. {sizes}"
    path = model.path_
    how = "Regularisation was given." if model.params is not None else f"Selection: {model.selection}."
    if path is not None:
        points = " × ".join(str(side) for side in path.grid.shape)
        how = f"Regularisation was selected among {points} points by {path.metric} on {path.held_out}."
    filters = model.models_.filters
    head = ["task", "filter of X", "filter of Y"] + ([] if path is None else [path.metric])
    rows = [
        [task, *map(str, filters[task])] + ([] if path is None else [f"{path.best(task):.1f}"])
        for task in TASKS
    ]
    parts = [f"<p>{escape(sizes)} {escape(how)}</p>", _table(head, rows)]
    shared = len(computed) == len(TASKS) and computed["search"] is computed["annotate"]
    for task in TASKS[:1] if shared else [task for task in TASKS if task in computed]:
        parts.append(_correlations("both tasks" if shared else task, computed[task]))
    if not computed:
        parts.append("<p>Correlations are computed when <code>models_</code> is first read.</p>")
    return f'{_STYLE}<div class="diptych-fit">{"".join(parts)}</div>'


def _correlations(title: str, model: CanonicalModel) -> str:
    columns = {
        "regularised": model.correlations,
        "training pairs": model.train_correlations,
        "validation pairs": model.validation_correlations,
    }
    measured = {name: to_numpy(values) for name, values in columns.items() if values is not None}
    total = len(measured["regularised"])
    rows = [
        [str(k + 1), *(f"{values[k]:.3f}" for values in measured.values())] for k in range(min(SHOWN, total))
    ]
    words = f"Correlations, {title}" + (f" (the first {SHOWN} of {total:,})" if total > SHOWN else "")
    return f"<p>{escape(words)}:</p>" + _table(["component", *measured], rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"
