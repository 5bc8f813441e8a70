"""Folders of photos: their files, and what the files say of themselves.

Programs for photos write captions and keywords into the files (IPTC, XMP) or beside them (``.xmp``), and
cameras write when, where and how a photo was taken (EXIF). Files come from others: of every one at most some
kilobytes of text are kept, XML with a document type is refused, so that nothing in it expands, and a damaged
part counts as absent. A caption may also be in a ``.txt`` file beside the photo, which then has all of them.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.parsers import expat

from diptych._checks import DataWarning, count, is_unicode
from diptych.data._files import MAX_TEXT_BYTES, read_lines
from diptych.encoders._decoding import DECODER_ERRORS, EXTENSIONS, open_header

if TYPE_CHECKING:
    from PIL import Image

MAX_XMP_BYTES = 2**20
MAX_TAGS = 100
MAX_CHARACTERS = 2000
"""Of a caption that is in a photo; the rest is cut off. Tags and names of cameras have a tenth of that."""

_FIELDS = ("description", "title", "headline")
"""Captions that a photo may have, by the name of the field; the first of equal ones is kept."""

_CAMERA_TEXTS = ("OLYMPUS DIGITAL CAMERA", "SONY DSC", "DCIM", "default")
"""What cameras write where a description belongs."""

_DC, _RDF = "http://purl.org/dc/elements/1.1/", "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_PHOTOSHOP = "http://ns.adobe.com/photoshop/1.0/"
_XMP = {
    f"{_DC} description": "description",
    f"{_DC} title": "title",
    f"{_PHOTOSHOP} Headline": "headline",
    f"{_DC} subject": "tags",
    f"{_PHOTOSHOP} DateCreated": "date",
}
_IPTC = {(2, 120): "description", (2, 5): "title", (2, 105): "headline", (2, 25): "tags"}
_MAX_DEPTH = 32  # of XML elements

_EXIF_IFD, _GPS_IFD = 0x8769, 0x8825
_MAKE, _MODEL, _ORIENTATION = 0x010F, 0x0110, 0x0112
_TAKEN, _DIGITIZED = 0x9003, 0x9004


@dataclass(frozen=True)
class PhotoText:
    """What a photo says of itself.

    ``captions`` are by the end of their ids: the name of the field, or the number of the line in a ``.txt``
    file. ``metadata`` may have ``date`` (of ISO 8601, in the time of the camera), ``camera``, ``latitude``,
    ``longitude``, ``orientation`` and ``tags``.
    """

    captions: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def has_caption(self, end: str) -> bool:
        """Return whether a caption whose id ends so is one of a photo: if not, it came from elsewhere."""
        return end in _FIELDS or (end.isdecimal() and "0" in self.captions)


def read_photo(path: Path) -> PhotoText:
    """Return what an image file says of itself; nothing where it cannot be read."""
    fields: dict[str, list[str]] = {name: [] for name in (*_FIELDS, "tags", "date")}
    exif: dict[str, Any] = {}
    for sidecar in _list_sidecars(path):
        if sidecar.suffix.lower() == ".xmp":
            with open(sidecar, "rb") as file:
                _read_xmp(file.read(MAX_XMP_BYTES + 1), fields)
    from PIL.Image import DecompressionBombError

    # Whoever decodes it says what is wrong.
    with suppress(DecompressionBombError, *DECODER_ERRORS), open_header(path) as image:
        _read_xmp(image.info.get("xmp"), fields)
        _read_iptc(image, fields)
        exif = _read_exif(image)
    dates = exif.pop("date", None), *map(_parse_date, fields["date"])
    tags = list(dict.fromkeys(tag[: MAX_CHARACTERS // 10] for tag in fields["tags"]))[:MAX_TAGS]
    metadata = {"date": next(filter(None, dates), None), **exif, "tags": tags}
    return PhotoText(
        _read_lines_beside(path) or _choose_captions(fields),
        {name: value for name, value in metadata.items() if value not in (None, [])},
    )


def list_photos(
    folder: Path, is_photo: Callable[[Path], bool] | None = None, without: Path | None = None
) -> dict[str, Path]:
    """Return the images in a folder and its subfolders, by their paths from there, in alphabetical order.

    Hidden files and folders, and the folder ``without``, are left out.
    """
    files, invalid = dict[str, Path](), list[Path]()
    for base, folders, names in os.walk(folder):
        folders[:] = [
            name for name in folders if not name.startswith(".") and Path(base, name).resolve() != without
        ]
        for file in (Path(base, name) for name in names if not name.startswith(".")):
            if file.suffix.lower() in EXTENSIONS if is_photo is None else is_photo(file):
                name = file.relative_to(folder).as_posix()
                if is_unicode(name):
                    files[name] = file
                else:
                    invalid.append(file)
    if invalid:
        warnings.warn(
            f"{count(len(invalid), 'image')} with a file name that is not UTF-8 left out (the first: "
            f"{invalid[0].name!r}); rename such files.",
            DataWarning,
            stacklevel=3,
        )
    return {name: files[name] for name in sorted(files)}


def measure_photo(path: Path) -> tuple[int, int]:
    """Return the size of a photo and of the files beside it, and when one of them was last changed, in ns."""
    status = [file.stat() for file in (path, *_list_sidecars(path))]
    return sum(s.st_size for s in status), max(s.st_mtime_ns for s in status)


def _list_sidecars(path: Path) -> list[Path]:
    """Return the files beside a photo that may hold its captions: ``a.xmp``, ``a.jpg.xmp``, ``a.txt``."""
    names = path.with_suffix(".xmp"), path.with_name(f"{path.name}.xmp"), path.with_suffix(".txt")
    return [file for file in names if file.is_file()]


def _read_lines_beside(path: Path) -> dict[str, str]:
    text = path.with_suffix(".txt")
    lines = [line.strip() for _, line in read_lines(text, MAX_TEXT_BYTES)] if text.is_file() else []
    return {str(number): line for number, line in enumerate(lines)}


def _choose_captions(fields: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the first text of each field, unless a field before has the same, or a camera wrote it."""
    captions: dict[str, str] = {}
    for name in _FIELDS:
        text = next(iter(fields[name]), "")[:MAX_CHARACTERS].strip()
        if text and text not in captions.values() and text not in _CAMERA_TEXTS:
            captions[name] = text
    return captions


def _clean(text: str) -> str:
    """Return a text on one line, without what no text should hold."""
    return " ".join(text.replace("\0", " ").split()) if is_unicode(text) else ""


def _read_xmp(packet: Any, fields: Mapping[str, list[str]]) -> None:
    """Add the texts of an XMP packet to the fields; none if it is not XML, or too large."""
    packet = packet.encode() if isinstance(packet, str) else packet
    if not isinstance(packet, bytes) or len(packet) > MAX_XMP_BYTES:
        return
    found: list[tuple[str, str]] = []
    elements: list[str] = []

    def start(name: str, attributes: Mapping[str, str]) -> None:
        elements.append(name)
        if len(elements) > _MAX_DEPTH:
            raise ValueError("nested too deep")
        found.extend((_XMP[key], value) for key, value in attributes.items() if key in _XMP)

    def add_text(text: str) -> None:
        # A text is in the element itself, or in the list inside: rdf:Alt or rdf:Bag, then rdf:li.
        owner = elements[-3] if elements[-1:] == [f"{_RDF} li"] and len(elements) > 3 else elements[-1]
        if owner in _XMP:
            found.append((_XMP[owner], text))

    def refuse(*_: Any) -> None:
        raise ValueError("a document type")

    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler, parser.StartElementHandler = refuse, start
    parser.CharacterDataHandler, parser.EndElementHandler = add_text, lambda name: elements.pop()
    try:
        parser.Parse(packet.strip(b"\0 \r\n\t"), True)
    except (expat.ExpatError, ValueError, LookupError):
        return
    for name, text in found:
        if cleaned := _clean(text):
            fields[name].append(cleaned)


def _read_iptc(image: Image.Image, fields: Mapping[str, list[str]]) -> None:
    """Add the texts of IPTC records to the fields."""
    from PIL import IptcImagePlugin

    records = IptcImagePlugin.getiptcinfo(image) or {}  # type: ignore[arg-type]
    for key, name in _IPTC.items():
        values = records.get(key, [])
        for value in values if isinstance(values, list) else [values]:
            try:
                text = value.decode()
            except UnicodeDecodeError:  # of old programs
                text = value.decode("latin-1")
            if cleaned := _clean(text):
                fields[name].append(cleaned)


def _read_exif(image: Image.Image) -> dict[str, Any]:
    """Return date, camera, place and orientation of a photo as metadata."""
    exif = image.getexif()
    details, gps = exif.get_ifd(_EXIF_IFD), exif.get_ifd(_GPS_IFD)
    dates = (_parse_date(details.get(tag)) for tag in (_TAKEN, _DIGITIZED))
    metadata: dict[str, Any] = {"date": next(filter(None, dates), None), "camera": _name_camera(exif)}
    for name, tag, limit in (("latitude", 2, 90), ("longitude", 4, 180)):
        metadata[name] = _parse_degrees(gps.get(tag), gps.get(tag - 1), limit)
    width, height = image.size
    if exif.get(_ORIENTATION) in (5, 6, 7, 8):  # it is shown lying on its side
        width, height = height, width
    shape = "landscape" if width > height else "portrait"
    return metadata | {"orientation": "square" if width == height else shape}


def _parse_date(value: Any) -> str | None:
    """Return a date of EXIF (``2024:06:01 12:30:00``) or XMP as one of ISO 8601, without its zone."""
    match = re.match(
        r"(\d{4})[:-](\d\d)[:-](\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d))?)?",
        value if isinstance(value, str) else "",
    )
    if match is None:
        return None
    try:
        moment = datetime(*(int(part or 0) for part in match.groups()))  # type: ignore[arg-type]
    except ValueError:  # zeros, in cameras whose clock was never set
        return None
    return moment.isoformat() if match[4] else moment.date().isoformat()


def _name_camera(exif: Mapping[int, Any]) -> str | None:
    make, model = (
        _clean(value)[: MAX_CHARACTERS // 10] if isinstance(value := exif.get(tag), str) else ""
        for tag in (_MAKE, _MODEL)
    )
    known = make and model.lower().startswith(make.split()[0].lower())
    return (model if known else f"{make} {model}".strip()) or None


def _parse_degrees(values: Any, direction: Any, limit: int) -> float | None:
    """Return degrees, minutes and seconds of GPS as one number; None if they are no place on earth."""
    try:
        degrees, minutes, seconds = map(float, values)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    total = degrees + minutes / 60 + seconds / 3600
    if not 0 <= total <= limit:  # not a number is none either
        return None
    return round(-total if direction in ("S", "W") else total, 6)
