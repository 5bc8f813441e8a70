"""The published tables, and the claims about what others have published."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from diptych import InputError
from reproduction.intervals import resample_recall
from reproduction.results import TASKS, Task
from reproduction.verdicts import Claim, Compared, Method, judge, state_rule

PUBLISHED = {"flickr8k": "main/flickr8k", "coco-1k": "main/coco-1k", "coco-5k": "main/coco-5k"}
PUBLISHED |= {"flickr30k-paper": "main/flickr30k", "flickr30k-karpathy": "main/flickr30k"}
"""The main table of each protocol."""


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table; ``values`` follow the table's columns, None where no number is given."""

    method: str
    values: tuple[float | None, ...]
    images: str = ""
    text: str = ""
    by: str = "the paper"
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its columns, its rows, and a description of what was measured."""

    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    setting: str = ""


def published(name: str) -> PublishedTable:
    """Return a table of the paper.

    A table that is commented out in the paper's source was not published, and is refused.

    Parameters
    ----------
    name
        Such as ``"main/flickr8k"``, ``"weighting/coco-5k"`` or ``"timing/coco"``.

    Examples
    --------
    >>> published("main/flickr8k").rows[1].values[0]
    18.62
    """
    tables = _publication()["tables"]
    choices = ", ".join(name for name in tables if tables[name]["published"])
    if name not in tables:
        raise InputError(f"the paper has no table {name!r}; choose one of {choices}.")
    content = tables[name]
    if not content["published"]:
        raise InputError(f"the table {name!r} is {content['status']}; choose one of {choices}.")
    rows = (
        PublishedRow(**{**row, "values": tuple(row["values"]), "shape": tuple(row.get("shape", ()))})
        for row in content["rows"]
    )
    return PublishedTable(tuple(content["columns"]), tuple(rows), content.get("setting", ""))


def citation() -> str:
    """Return the publication that the published tables are from."""
    return str(_publication()["source"])


@cache
def _publication() -> dict[str, Any]:
    content = Path(__file__).with_name("published.json").read_text("utf-8")
    return dict(json.loads(content))


MAIN_TABLES = "Table 5, Table 6"
PROTOCOLS = ("flickr8k", "flickr30k-paper", "coco-1k", "coco-5k")


@dataclass(frozen=True)
class PublishedClaim:
    """A claim about the paper's own features against figures that others have published.

    ``images`` and ``text`` are the features of the paper, guided; ``is_rival`` picks the other rows of the
    table. If ``above`` is False, the claim is that the rival is better.
    """

    claim: str
    images: str
    text: str
    is_rival: Callable[[PublishedRow], bool]
    protocols: tuple[str, ...] = PROTOCOLS
    tasks: tuple[Task, ...] = TASKS
    above: bool = True


AGAINST_PUBLISHED = (
    PublishedClaim(
        "AW-CCA with mean word vectors outperforms the CCA of Klein et al.",
        "VGG-19",
        "HKSE(lin, lin)",
        lambda row: row.by == "Klein et al." and row.text == "mean word vector",
    ),
    PublishedClaim(
        "HKSE(rbf, rbf) outperforms the Fisher vectors of Klein et al. on MSCOCO.",
        "VGG-19",
        "HKSE(rbf, rbf)",
        lambda row: row.text.startswith("Fisher"),
        protocols=("coco-1k", "coco-5k"),
    ),
    PublishedClaim(
        "Order embeddings (Vendrov et al.) outperform HKSE on image search on MSCOCO.",
        "VGG-19",
        "HKSE(rbf, rbf)",
        lambda row: row.method == "Order Embedding",
        protocols=("coco-1k", "coco-5k"),
        tasks=("search",),
        above=False,
    ),
    PublishedClaim(
        "ResNet-101 with HKSE(lin, rbf) beside HKSE(rbf, rbf) is the state of the art (of 2016).",
        "ResNet-101",
        "[HKSE(lin, rbf) || HKSE(rbf, rbf)]",
        lambda row: row.by != "the paper",
    ),
)

MainRow: TypeAlias = tuple[str, str, str, str]
"""Protocol, filter, images and text of a row of the main tables."""


def published_claims(methods: Mapping[MainRow, Method]) -> list[Claim]:
    """Compare the paper's features, where this run has them, with what others have published.

    The published figures have no interval of their own, and other test images would change them too.
    """
    claims: list[Claim] = []
    for each in AGAINST_PUBLISHED:
        keys = [(protocol, "guided", each.images, each.text) for protocol in each.protocols]
        measured = [key for key in keys if key in methods]
        for key in measured:
            rivals = [row for row in published(PUBLISHED[key[0]]).rows if each.is_rival(row)]
            claims.append(_compare_published(each, key, methods[key], rivals))
        if not measured:
            evidence = f"it needs {each.images} features with {each.text} on {' or '.join(each.protocols)}"
            claims.append(
                Claim(each.claim, "not measured", f"{evidence}; {_published_order(each)}", place=MAIN_TABLES)
            )
    plane = "the paper shows a figure and no measure; see the one of this report"
    claims.append(
        Claim("The space is better organised by query generation.", "not measured", plane, place="Figure 3")
    )
    return claims


def _published_order(claim: PublishedClaim) -> str:
    """Say how the paper's own figures are ordered."""
    below, number = [], 0
    for protocol in claim.protocols:
        table = published(PUBLISHED[protocol])
        ours = next(r for r in table.rows if (r.images, r.text) == (claim.images, claim.text))
        own = {name: value for _, name, value in _list_recalls(table.columns, ours, claim.tasks)}
        for rival in filter(claim.is_rival, table.rows):
            for _, name, value in _list_recalls(table.columns, rival, claim.tasks):
                number += 1
                if (own[name] <= value) == claim.above:
                    below.append(f"{protocol} {name} {own[name]} against {value}")
    order = f"in {number - len(below)} of the {number} recalls of the paper's tables the order is as claimed"
    return f"{order}, except for {', '.join(below)}" if below else order


def _compare_published(
    claim: PublishedClaim, key: MainRow, method: Method, rivals: Sequence[PublishedRow]
) -> Claim:
    compared = []
    columns = published(PUBLISHED[key[0]]).columns
    for rival in rivals:
        for task, name, value in _list_recalls(columns, rival, claim.tasks):
            cut = int(name.rsplit("@", 1)[1])
            recall, resampled = resample_recall(list(method[task].values()), None, cut)
            if claim.above:
                compared.append(Compared(rival.by, task, cut, recall, value, resampled - value))
            else:
                compared.append(Compared(rival.by, task, cut, value, recall, value - resampled))
    words = f"{claim.claim.removesuffix('.')} ({key[0]})."
    return judge(words, MAIN_TABLES, compared, rule=state_rule("the recalls from the published ones"))


def _list_recalls(
    columns: Sequence[str], row: PublishedRow, tasks: Sequence[Task]
) -> list[tuple[Task, str, float]]:
    """Return task, column and value of each recall that a row has for these tasks."""
    return [
        (task, name, value)
        for task in tasks
        for name, value in zip(columns, row.values, strict=True)
        if name.startswith(f"{task} r@") and value is not None
    ]
