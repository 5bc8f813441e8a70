"""``score`` and ``audit``: how well captions fit their images."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych._checks import InputError
from diptych.cli import _options as opt
from diptych.cli._encoders import LoadOptions
from diptych.cli._fit import choose_text_encoder
from diptych.cli._options import SourceOptions, read_views
from diptych.cli._run import RunOptions, align, option, refuse_unused

if TYPE_CHECKING:
    from diptych.retrieval import AuditedPair

_WRITERS = {".csv": "write_csv", ".html": "write_sheet"}
_LABELS = ("image", "text_id", "text")
_ENCODERS = ("image_encoder", "recipe", "text_encoder", "device")


def score(
    model: opt.Model,
    source: opt.Source,
    texts: opt.Texts = None,
    out: Path | None = option(None, "CSV file of the scores.", "-o"),
    *,
    table: SourceOptions,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Say how well each caption fits its image, in scores that can be compared between pairs.

    The percentiles say which share of held-out true pairs, and of held-out captions with an image drawn at
    random, has a smaller score.

    Example: `diptych score model captions.csv --images photos`

    Example: `diptych score model captions.csv --images photos --out scores.csv --quiet`
    """
    from diptych.data import PairedDataset
    from diptych.retrieval._pair_scores import write_csv
    from diptych.retrieval._training import encode_views

    retriever = encoders.load(model)
    data = table.open(source, texts, retriever.views)
    with run.progress("scoring"):
        if isinstance(data, PairedDataset):
            data = encode_views(data, retriever.encoders)
        else:
            refuse_unused(encoders, _ENCODERS, "on features")
        dataset = data.dataset
        scores = retriever.score_pairs(data.x, data.y, dataset.pairing)
    owners = (dataset.image_ids[row] for row in dataset.pairing.tolist())
    rows: list[dict[str, Any]] = [
        {"image": image, "text_id": text_id, "text": text, **pair}
        for image, text_id, text, pair in zip(
            owners, dataset.caption_ids, dataset.captions, scores.to_json(), strict=True
        )
    ]
    if out is not None:
        write_csv(out, rows)
    lines = _align(rows)
    lines += [f"no percentiles: {scores.absent}"] * (scores.absent is not None)
    lines += [f"wrote {out}"] * (out is not None)
    run.show({"pairs": rows, "absent": scores.absent}, lines)


def audit(
    source: opt.Source,
    texts: opt.Texts = None,
    k: int = option(20, "Number of pairs to print.", "-k", min=1),
    out: list[Path] | None = option(
        None, "CSV file of all pairs, or HTML sheet of the lowest. May be repeated.", "-o"
    ),
    *,
    table: SourceOptions,
    views: opt.Views = opt.VIEWS,
    encoders: LoadOptions,
    vectors: opt.Vectors = None,
    random_state: opt.RandomState = None,
    run: RunOptions,
) -> None:
    """List captions that look as if they belonged to another image, the most suspect first.

    Every pair is scored by a model that was not fitted on it. `diptych fit --audit` leaves out those that are
    flagged.

    Example: `diptych audit captions.csv --images photos`

    Example: `diptych audit captions.csv --images photos --out pairs.csv --out sheet.html`
    """
    from diptych.data import PairedDataset
    from diptych.encoders import HKSE
    from diptych.retrieval import Retriever, audit_pairs

    files = out or []
    for path in files:
        if path.suffix not in _WRITERS:
            raise InputError(f"{path} is neither a .csv nor an .html file; name one of these.")
    data = table.open(source, texts, read_views(views))
    seed = random_state or 0
    with run.progress("auditing"):
        if isinstance(data, PairedDataset):
            chosen = choose_text_encoder(encoders, vectors, {}, is_raw=True)
            if chosen.text_encoder in (["auto"], ["hkse"]):
                refuse_unused(encoders, ("device",), "with this text encoder, which runs on the CPU")
            image_encoder = chosen.open_image_encoder() or "auto"
            text_encoder = chosen.open_text_encoder(encoders.device, HKSE(vectors, random_state=seed))
            data = Retriever(image_encoder, text_encoder, views=data.views).encode(data)
        else:
            choose_text_encoder(encoders, vectors, {}, is_raw=False)
            refuse_unused(encoders, _ENCODERS, "on features")
        result = audit_pairs(data, random_state=seed)
    for path in files:
        getattr(result, _WRITERS[path.suffix])(path)
    table_of_pairs = _align([_as_row(pair) for pair in islice(result, k)])
    run.show(result.to_json(), [*table_of_pairs, result.summary(), *(f"wrote {path}" for path in files)])


def _as_row(pair: AuditedPair) -> dict[str, Any]:
    row = pair.to_json()
    numbers = {"score": row["score"], "wrong": row["wrong"], "flagged": "flagged" if pair.flagged else ""}
    return numbers | {name: row[name] for name in _LABELS}


def _align(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table of pairs: numbers first, then the text and its image."""
    first = rows[0] if rows else {}
    names = [name for name in first if name not in _LABELS and first[name] is not None]
    lines = [[*(name.replace("_", " ") for name in names), "pair"]]
    for row in rows:
        lines.append(
            [*(_format(row[name]) for name in names), f"{row['image']}: {row['text'] or row['text_id']}"]
        )
    return align(lines, slice(0, -1))


def _format(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3f}"
