"""Open one picture as a viewer would show it, or say why that cannot be done."""

from __future__ import annotations

import importlib
import io
import os
import struct
import threading
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from diptych._checks import InputError

Picture: TypeAlias = Image.Image
"""An 8-bit RGB Pillow image."""

DEFAULT_MAX_PIXELS = 64_000_000
"""Pictures with more pixels are refused before a pixel is decoded."""

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF", "HEIF")
"""What is read. Formats that Pillow hands to an external program (EPS) are left out on purpose."""

EXTENSIONS = frozenset(
    f".{ending}"
    for ending in (
        *("jpg", "jpeg", "jpe", "png", "gif", "webp", "bmp", "tif", "tiff"),
        *("ppm", "pgm", "pnm", "tga", "ico", "jp2", "avif", "heic", "heif"),
    )
)
"""File name endings that are taken for pictures when a folder is searched for them."""

_pillow_limit_lock = threading.Lock()


class UnreadableImage(InputError):  # noqa: N818, it is said of the file, not of the failure
    """A file that cannot be shown as a picture; the message says why."""


def open_image(
    source: str | os.PathLike[str] | bytes | BinaryIO, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> Picture:
    """Decode a picture to 8-bit RGB, upright, the way a viewer shows it.

    The EXIF orientation is applied; transparency lies on white; of an animation the first frame counts;
    16-bit grey keeps its high byte, 32-bit and floating-point grey is stretched from its darkest to its
    brightest pixel; CMYK is converted (an embedded colour profile is not applied).

    Parameters
    ----------
    source
        A path, the bytes of a file, or a file open for reading.
    max_pixels
        Larger pictures are refused by their header, before memory is taken for them.

    Raises
    ------
    UnreadableImage
        If the file is missing, empty, truncated, too large, or no picture at all.

    Examples
    --------
    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("CMYK", (4, 3)).save(file, "JPEG")
    >>> open_image(file.getvalue()).mode
    'RGB'
    """
    name = str(source) if isinstance(source, (str, os.PathLike)) else "the picture"
    stream: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    if isinstance(stream, (str, os.PathLike)):
        _check_file(Path(stream))
    try:
        with _opened(stream, max_pixels) as image:
            _check_size(image, name, max_pixels)
            return _as_shown(image)
    except UnidentifiedImageError:
        if "HEIF" not in _known_formats() and _is_heif(stream):
            raise UnreadableImage(f"{name} is a HEIC image, which needs: pip install pillow-heif") from None
        raise UnreadableImage(f"{name} is not a picture in a known format; remove or convert it.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name, "too many pixels", max_pixels) from None
    except InputError:
        raise
    except _DECODER_ERRORS as error:
        detail = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UnreadableImage(f"{name} is truncated or damaged ({detail}); replace the file.") from None


# What Pillow's decoders raise on damaged files; anything else is a defect and should be seen.
_DECODER_ERRORS = (
    *(OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError),
    *(OverflowError, ZeroDivisionError, AssertionError, RuntimeError, MemoryError, struct.error, zlib.error),
)


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise UnreadableImage(f"{path} does not exist or is not a file; check the path.")
    if path.stat().st_size == 0:
        raise UnreadableImage(f"{path} is empty (0 bytes); replace the file.")


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    if image.width < 1 or image.height < 1:
        raise UnreadableImage(f"{name} has no pixels ({image.width} × {image.height}); replace the file.")
    if image.width * image.height > max_pixels:
        raise _too_large(name, f"{image.width} × {image.height} pixels", max_pixels)


def _too_large(name: str, found: str, max_pixels: int) -> UnreadableImage:
    return UnreadableImage(
        f"{name} has {found}; at most {max_pixels:,} are decoded. Shrink the picture or raise max_pixels."
    )


def _opened(stream: Any, max_pixels: int) -> Image.Image:
    if max_pixels < 1:
        raise InputError(f"max_pixels={max_pixels} is below 1; give the pixels that a picture may have.")
    if Image.MAX_IMAGE_PIXELS is None or max_pixels <= Image.MAX_IMAGE_PIXELS:
        return Image.open(stream, formats=_known_formats())
    # Pillow's own limit is global: it is lifted under a lock, and only while the header is read.
    with _pillow_limit_lock:
        before = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = max_pixels
        try:
            return Image.open(stream, formats=_known_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _is_heif(stream: Any) -> bool:
    """Whether a file begins as HEIC and HEIF images do; it is asked once Pillow does not know it."""
    try:
        if isinstance(stream, (str, os.PathLike)):
            with open(stream, "rb") as file:
                head = file.read(12)
        else:
            stream.seek(0)
            head = stream.read(12)
    except (OSError, ValueError, AttributeError):
        return False
    return head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS


_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")


@cache
def _known_formats() -> tuple[str, ...]:
    # HEIC images, of telephones mostly, need a library of their own.
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener(thumbnails=False)
    # A Pillow built without one of the libraries does not know its format.
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _as_shown(image: Image.Image) -> Picture:
    image.load()
    upright = _turned(image)
    if upright.mode.startswith("I;16") or upright.mode in ("I", "F"):
        return Image.fromarray(_eight_bits(np.asarray(upright))).convert("RGB")
    if upright.has_transparency_data:
        shown = upright.convert("RGBA")
        white = Image.new("RGBA", shown.size, "white")
        return Image.alpha_composite(white, shown).convert("RGB")
    return upright if upright.mode == "RGB" else upright.convert("RGB")


def _turned(image: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except _DECODER_ERRORS:  # damaged notes about a picture do not make it unreadable
        return image


def _eight_bits(grey: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    low, high = float(grey.min()), float(grey.max())
    if not np.isfinite(low) or not np.isfinite(high):
        raise UnreadableImage("the picture holds NaN or infinite values; convert it first.")
    # 16-bit PGM files arrive as 32-bit integers, and are 16-bit pictures all the same.
    if grey.dtype.kind in "iu" and low >= 0 and high < 2**16:
        return (grey.astype(np.uint16) >> 8).astype(np.uint8)
    stretched = (grey.astype(np.float64) - low) * (255 / (high - low) if high > low else 0.0)
    return np.rint(stretched).astype(np.uint8)
