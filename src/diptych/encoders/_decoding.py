"""Decode an image file of any format to 8-bit RGB, or explain why that is impossible."""

from __future__ import annotations

import importlib
import io
import os
import struct
import sys
import threading
import zlib
from contextlib import nullcontext, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from diptych._checks import InputError

if TYPE_CHECKING:
    from PIL import Image

DEFAULT_MAX_PIXELS = 64_000_000
"""Larger images are refused before a pixel is decoded."""

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF", "HEIF")
"""Supported formats. EPS is missing because Pillow runs an external program to read it."""

EXTENSIONS = frozenset(
    f".{extension}"
    for extension in (
        *("jpg", "jpeg", "jpe", "png", "gif", "webp", "bmp", "tif", "tiff"),
        *("ppm", "pgm", "pnm", "tga", "ico", "jp2", "avif", "heic", "heif"),
    )
)
"""File name extensions of images, for searching a folder."""

_HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")

DECODER_ERRORS = (
    *(OSError, SyntaxError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError),
    *(OverflowError, ZeroDivisionError, AssertionError, RuntimeError, MemoryError, struct.error, zlib.error),
)
"""What Pillow's decoders raise on damaged files. Any other exception is a defect and should be visible."""

_pillow_limit_lock = threading.Lock()


class UnreadableImage(InputError):  # noqa: N818, the name describes the file
    """Raised for a file that cannot be decoded as an image; the message gives the reason.

    Examples
    --------
    >>> open_image(b"plain text")
    Traceback (most recent call last):
    diptych.encoders._decoding.UnreadableImage: The image is not in a supported format; remove or convert it.
    """


def open_image(
    source: str | os.PathLike[str] | bytes | BinaryIO, *, max_pixels: int = DEFAULT_MAX_PIXELS
) -> Image.Image:
    """Decode an image to 8-bit RGB, upright, as a viewer shows it.

    The EXIF orientation is applied. Transparency becomes white. The first frame of an animation is used.
    16-bit grey keeps its high byte; 32-bit and floating-point grey is stretched from its darkest to its
    brightest pixel. CMYK is converted, without its colour profile.

    Parameters
    ----------
    source
        A path, the bytes of a file, or a binary file object.
    max_pixels
        Larger images are refused by their header, before memory is allocated for them.

    Raises
    ------
    UnreadableImage
        If the file is missing, empty, truncated, too large, or not an image.

    Examples
    --------
    >>> import io
    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("CMYK", (4, 3)).save(file, "JPEG")
    >>> open_image(file.getvalue()).mode
    'RGB'
    """
    from PIL import Image, UnidentifiedImageError  # where images are opened: a search by text opens none

    name = str(source) if isinstance(source, (str, os.PathLike)) else "The image"
    stream: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    if isinstance(stream, (str, os.PathLike)):
        if not os.path.isfile(stream):
            raise UnreadableImage(f"{name} does not exist or is not a file; check the path.")
        if os.path.getsize(stream) == 0:
            raise UnreadableImage(f"{name} is empty (0 bytes); replace the file.")
    try:
        with open_header(stream, max_pixels) as image:
            size = f"{image.width} × {image.height}"
            if image.width < 1 or image.height < 1:
                raise UnreadableImage(f"{name} has no pixels ({size}); replace the file.")
            if image.width * image.height > max_pixels:
                raise _too_large(name, f"{size} pixels", max_pixels)
            return _to_rgb(image)
    except UnidentifiedImageError:
        if "HEIF" not in _available_formats() and _is_heif(stream):
            raise UnreadableImage(f"{name} is a HEIC image, which needs: pip install pillow-heif") from None
        raise UnreadableImage(f"{name} is not in a supported format; remove or convert it.") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_large(name, "too many pixels", max_pixels) from None
    except InputError:
        raise
    except DECODER_ERRORS as error:
        detail = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise UnreadableImage(f"{name} is truncated or damaged ({detail}); replace the file.") from None


def is_image(value: object) -> bool:
    """Return whether a value is a Pillow image; there is none before Pillow is imported."""
    # Another thread may be importing it, so that the module is there before its class.
    image = getattr(sys.modules.get("PIL.Image"), "Image", None)
    return image is not None and isinstance(value, image)


def _too_large(name: str, size: str, max_pixels: int) -> UnreadableImage:
    return UnreadableImage(
        f"{name} has {size}; at most {max_pixels:,} are decoded. Shrink the image or raise max_pixels."
    )


def open_header(stream: Any, max_pixels: int = DEFAULT_MAX_PIXELS) -> Image.Image:
    """Open a file of one of the supported formats with Pillow, without decoding a pixel."""
    from PIL import Image

    if max_pixels < 1:
        raise InputError(f"max_pixels={max_pixels} is below 1; pass the largest number of pixels to decode.")
    if Image.MAX_IMAGE_PIXELS is None or max_pixels <= Image.MAX_IMAGE_PIXELS:
        return Image.open(stream, formats=_available_formats())
    # Pillow's own limit is global. It is raised under a lock, and only while the header is read.
    with _pillow_limit_lock:
        previous_limit = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = max_pixels
        try:
            return Image.open(stream, formats=_available_formats())
        finally:
            Image.MAX_IMAGE_PIXELS = previous_limit


def _is_heif(stream: Any) -> bool:
    try:
        with nullcontext(stream) if hasattr(stream, "read") else open(stream, "rb") as file:
            file.seek(0)
            head = file.read(12)
    except (OSError, ValueError, AttributeError):
        return False
    return head[4:8] == b"ftyp" and head[8:12] in _HEIF_BRANDS


@cache
def _available_formats() -> tuple[str, ...]:
    from PIL import Image

    # HEIC needs a plugin, which is optional.
    with suppress(ImportError):
        importlib.import_module("pillow_heif").register_heif_opener(thumbnails=False)
    # A Pillow that was built without a library lacks that library's format.
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _to_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image, ImageOps

    image.load()
    # Damaged EXIF data does not make the image unreadable.
    with suppress(*DECODER_ERRORS):
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        return Image.fromarray(_to_8_bit(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_8_bit(grey: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    low, high = float(grey.min()), float(grey.max())
    if not np.isfinite(low) or not np.isfinite(high):
        raise UnreadableImage("The image contains NaN or infinite values; convert it first.")
    # Pillow reads 16-bit PGM files as 32-bit integers.
    if grey.dtype.kind in "iu" and low >= 0 and high < 2**16:
        return (grey.astype(np.uint16) >> 8).astype(np.uint8)
    stretched = (grey.astype(np.float64) - low) * (255 / (high - low) if high > low else 0.0)
    return np.rint(stretched).astype(np.uint8)
