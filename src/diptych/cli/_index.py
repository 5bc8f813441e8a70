"""``index`` and ``sync``: libraries of photos, which need no captions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diptych._checks import InputError, count
from diptych.cli import _options as opt
from diptych.cli._encoders import EncoderOptions, LoadOptions
from diptych.cli._run import RunOptions, exit_if_unreadable, option, shorten

if TYPE_CHECKING:
    from diptych.retrieval import Retriever, SyncReport

POLL_SECONDS = 10.0
"""Between two looks at the folders of a library that is watched."""

_LISTED = 10


def index(
    photos: Annotated[list[Path], typer.Argument(metavar="PHOTOS...", help="Folders of photos.")],
    out: Path = option(..., "Folder to write the library to, or of one to go on with.", "-o"),
    *,
    encoders: EncoderOptions,
    run: RunOptions,
) -> None:
    """Make a library of photos, which need no captions: search it at once.

    Images and texts are compared by a dual encoder: by default CLIP, where the extra encoders is installed.
    Interrupted work resumes when the same command runs again. A fit on captions improves the library later.

    Example: `diptych index photos --out library`

    Example: `diptych fit captions.csv --images photos --out library`
    """
    from diptych._database import FILE
    from diptych.retrieval import Retriever
    from diptych.retrieval.stores._files import check_writable, has_items

    place = check_writable(out)
    if (place / FILE).exists() and has_items(place):
        retriever = LoadOptions(**vars(encoders)).load(out, mmap=False)
    else:
        check_readable(photos)
        image, text = encoders.open_image_encoder(), encoders.open_text_encoder()
        retriever = Retriever.zero_shot("auto" if image is None else image, "auto" if text is None else text)
        retriever.save(out)
    show_sync(update(retriever, photos, run), out, run)


def sync(
    model: opt.Model,
    remove: bool = option(False, "Remove photos whose file is gone, with their captions."),
    watch: bool = option(False, "Go on looking for changes until Ctrl+C."),
    *,
    encoders: LoadOptions,
    run: RunOptions,
) -> None:
    """Bring a library up to date with its folders of photos.

    New photos are added, those whose file changed are encoded again, and a renamed file keeps its captions.

    Example: `diptych sync library`
    """
    retriever = encoders.load(model, mmap=False)
    report = update(retriever, [], run, remove)
    show_sync(report, model, run, leave=not watch)
    while watch:
        time.sleep(POLL_SECONDS)
        before, report = report, update(retriever, [], run, remove)
        if report.changed or (report.gone, report.unreadable) != (before.gone, before.unreadable):
            show_sync(report, model, run, leave=False)


def check_readable(folders: list[Path]) -> None:
    """Refuse folders that do not exist, or without an image that can be read, before anything is made."""
    from diptych.data._photos import list_photos
    from diptych.encoders._decoding import UnreadableImage, open_image

    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is not a folder; give a folder of photos.")
        photos, reason = list_photos(folder), ""
        if not photos:
            raise InputError(f"{folder} holds no images; give a folder of photos.")
        for photo in photos.values():
            try:
                open_image(photo)
                break
            except UnreadableImage as error:
                reason = reason or str(error)
        else:
            images = count(len(photos), "image")
            raise InputError(f"{folder} holds {images}, none of which can be read (the first: {reason})")


def update(retriever: Retriever, folders: list[Path], run: RunOptions, remove: bool = False) -> SyncReport:
    """Bring a library up to date, with a progress bar."""
    with run.progress("reading photos"):
        return retriever.sync(folders, remove=remove)


def show_sync(report: SyncReport, library: Path, run: RunOptions, *, leave: bool = True) -> None:
    """Print what has changed in a library; ``leave`` the command with 1 if a file cannot be read."""
    content: dict[str, Any] = {"model": str(library), **asdict(report)}
    run.show(content, _describe(report, library))
    if leave:
        exit_if_unreadable(report.unreadable)


def _describe(report: SyncReport, library: Path) -> Iterator[str]:
    numbers = {
        "added": len(report.added),
        "updated": len(report.updated),
        "renamed": len(report.renamed),
        "removed": report.removed,
    }
    said = ", ".join(f"{what} {count(n, 'photo')}" for what, n in numbers.items() if n)
    unchanged = f"; {report.unchanged} unchanged" if report.unchanged else ""
    yield f"{library}: {said or 'nothing new'}{unchanged}"
    for item_id, path in list(report.renamed.items())[:_LISTED]:
        yield f"renamed: {item_id} is {shorten(path)} now"
    if report.gone and not report.removed:
        for item_id in report.gone[:_LISTED]:
            yield f"gone: {item_id}"
        photos = count(len(report.gone), "photo")
        yield f"{photos} without a file; diptych sync {library} --remove removes them"
