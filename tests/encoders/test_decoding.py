import contextlib
import io
import struct
import sys
import types
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from diptych import InputError
from diptych.encoders import UnreadableImage, open_image
from diptych.encoders._decoding import _available_formats, is_image

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def quarters() -> Image.Image:
    """Make an image that is red and green above, blue and white below."""
    image = Image.new("RGB", (16, 16), RED)
    image.paste(GREEN, (8, 0, 16, 8))
    image.paste(BLUE, (0, 8, 8, 16))
    image.paste(WHITE, (8, 8, 16, 16))
    return image


def encode_file(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def corners(image: Image.Image) -> list[tuple[int, int, int]]:
    w, h = image.size
    return [image.getpixel(at) for at in ((2, 2), (w - 3, 2), (2, h - 3), (w - 3, h - 3))]


def close(actual, expected, tolerance=6):
    return np.abs(np.array(actual, int) - np.array(expected, int)).max() <= tolerance


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM", "TGA"])
def test_common_formats_give_the_same_pixels(tmp_path, kind):
    path = tmp_path / f"image.{kind.lower()}"
    path.write_bytes(encode_file(quarters(), kind, **({"quality": 95} if kind in ("JPEG", "WEBP") else {})))
    decoded = open_image(path)
    assert decoded.mode == "RGB"
    assert decoded.size == (16, 16)
    assert close(corners(decoded), [RED, GREEN, BLUE, WHITE], 40 if kind in ("JPEG", "WEBP") else 0)


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [RED, GREEN, BLUE, WHITE]),
        (2, [GREEN, RED, WHITE, BLUE]),
        (3, [WHITE, BLUE, GREEN, RED]),
        (4, [BLUE, WHITE, RED, GREEN]),
        (5, [RED, BLUE, GREEN, WHITE]),
        (6, [BLUE, RED, WHITE, GREEN]),
        (7, [WHITE, GREEN, BLUE, RED]),
        (8, [GREEN, WHITE, RED, BLUE]),
    ],
)
def test_exif_orientation_is_applied(orientation, expected):
    exif = Image.Exif()
    exif[0x0112] = orientation
    assert corners(open_image(encode_file(quarters(), "PNG", exif=exif))) == expected
    sides = open_image(encode_file(Image.new("RGB", (30, 20)), "JPEG", exif=exif)).size
    assert sides == ((20, 30) if orientation > 4 else (30, 20))


def test_damaged_exif_data_is_ignored():
    raw = encode_file(quarters(), "JPEG", quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff" + bytes(20))
    assert close(corners(open_image(raw)), [RED, GREEN, BLUE, WHITE], 40)


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "PNG"), ("P", "PNG"), ("1", "PNG"), ("CMYK", "TIFF"), ("YCbCr", "TIFF")]
)
def test_images_of_other_modes_are_converted_as_pillow_does(mode, kind):
    image = quarters().convert(mode)
    np.testing.assert_array_equal(open_image(encode_file(image, kind)), image.convert("RGB"))


def test_16_bit_images_keep_their_high_bytes():
    values = [0, 0x1234, 0x8000, 0xFFFF]
    grey = encode_file(Image.fromarray(np.array([values], np.uint16)), "PNG")
    pgm = b"P5 4 1 65535\n" + struct.pack(">4H", *values)  # which Pillow reads as 32-bit integers
    for raw in (grey, pgm):
        assert np.asarray(open_image(raw))[0, :, 0].tolist() == [value >> 8 for value in values]
    rows = b"\0" + struct.pack(">6H", 0xFFFF, 0, 0, 0, 0x8000, 0xFFFF)
    decoded = open_image(png(2, 1, rows, depth=16, kind=2))
    assert [decoded.getpixel((x, 0)) for x in (0, 1)] == [(255, 0, 0), (0, 128, 255)]


def test_floating_point_grey_is_stretched():
    values = np.linspace(-2.0, 3.0, 5, dtype=np.float32)[None]
    decoded = np.asarray(open_image(encode_file(Image.fromarray(values), "TIFF")))
    assert decoded[0, :, 0].tolist() == [0, 64, 128, 191, 255]
    flat = open_image(encode_file(Image.fromarray(np.full((2, 2), 7.5, np.float32)), "TIFF"))
    assert np.asarray(flat).max() == 0


def test_nan_pixels_are_refused():
    values = np.array([[0.0, np.nan]], np.float32)
    with pytest.raises(UnreadableImage, match="NaN"):
        open_image(encode_file(Image.fromarray(values), "TIFF"))


@pytest.mark.parametrize(("mode", "value"), [("RGBA", (255, 0, 0, 128)), ("LA", (0, 128))])
def test_half_transparent_pixels_are_blended_with_white(mode, value):
    decoded = open_image(encode_file(Image.new(mode, (4, 4), value), "PNG"))
    assert close(decoded.getpixel((0, 0)), (255, 127, 127) if mode == "RGBA" else (127, 127, 127), 1)


def test_transparent_colours_become_white():
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([*RED, *BLUE])
    palette.paste(1, (4, 0, 8, 8))
    decoded = open_image(encode_file(palette, "PNG", transparency=bytes([0, 255])))
    assert (decoded.getpixel((1, 1)), decoded.getpixel((6, 1))) == (WHITE, BLUE)
    assert open_image(encode_file(quarters(), "PNG", transparency=RED)).getpixel((1, 1)) == WHITE


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_of_an_animation_is_used(kind):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if kind == "WEBP" else {}
    raw = encode_file(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert open_image(raw).getpixel((8, 8)) == RED


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP"])
def test_truncated_files_are_refused(tmp_path, kind, rng):
    noise = Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8))
    raw = encode_file(noise, kind)
    path = tmp_path / "half"
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(UnreadableImage, match="half"):
        open_image(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        *((content, r"image\.jpg") for content in (b"", b"dear diary, no image here")),
        *((content, r"image\.jpg") for content in (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n", "supported format"),
    ],
)
def test_files_that_are_not_images_are_refused(tmp_path, content, message):
    path = tmp_path / "image.jpg"
    path.write_bytes(content)
    with pytest.raises(UnreadableImage, match=message):
        open_image(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(UnreadableImage, match="does not exist"):
        open_image(tmp_path / "nowhere.jpg")
    with pytest.raises(UnreadableImage, match="not a file"):
        open_image(tmp_path)


def png(width: int, height: int, rows: bytes, depth: int = 8, kind: int = 0) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [9_000, 10_000, 60_000])
def test_decompression_bombs_are_refused_by_their_header(side):
    with pytest.raises(UnreadableImage, match="pixels"):
        open_image(png(side, side, bytes(100)))


def test_the_limit_on_pixels_can_be_set_both_ways(monkeypatch):
    raw = encode_file(quarters())
    with pytest.raises(UnreadableImage, match="16 × 16 pixels; at most 255"):
        open_image(raw, max_pixels=255)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # Pillow refuses twice as many
    assert open_image(raw, max_pixels=256).size == (16, 16)
    assert Image.MAX_IMAGE_PIXELS == 100
    with pytest.raises(InputError, match="max_pixels"):
        open_image(raw, max_pixels=0)


@given(st.data())
def test_damaged_files_are_decoded_or_raise_unreadable_image(data):
    kind = data.draw(st.sampled_from(["JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "PPM", "TGA", "ICO"]))
    raw = bytearray(encode_file(quarters(), kind))
    for _ in range(data.draw(st.integers(1, 8))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnreadableImage):
        assert open_image(bytes(raw), max_pixels=1_000_000).mode == "RGB"


HEIC_HEAD = b"\x00\x00\x00\x1cftypheic\x00\x00\x00\x00mif1heic" + bytes(64)


@pytest.mark.parametrize("kind", ["path", "bytes", "file"])
def test_heic_without_its_library_names_the_install_command(tmp_path, monkeypatch, kind):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    _available_formats.cache_clear()
    path = tmp_path / "photo.heic"
    path.write_bytes(HEIC_HEAD)
    source = {"path": path, "bytes": HEIC_HEAD, "file": io.BytesIO(HEIC_HEAD)}[kind]
    try:
        with pytest.raises(UnreadableImage, match="is a HEIC image, which needs: pip install pillow-heif"):
            open_image(source)
    finally:
        _available_formats.cache_clear()


def test_heic_images_are_decoded_within_the_limits(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    path = tmp_path / "photo.heic"
    pillow_heif.from_pillow(quarters().resize((64, 64), Image.Resampling.NEAREST)).save(path, quality=100)
    for source in (path, path.read_bytes()):
        image = open_image(source)
        assert (image.size, image.mode) == ((64, 64), "RGB")
        np.testing.assert_allclose(np.array(image.getpixel((8, 8)), float), RED, atol=12)
    with pytest.raises(UnreadableImage, match="64 × 64 pixels; at most 4,095"):
        open_image(path, max_pixels=4095)
    whole = path.read_bytes()
    for length in (24, 100, len(whole) // 2, len(whole) - 5):
        with pytest.raises(UnreadableImage) as caught:
            open_image(whole[:length])
        assert "\n" not in str(caught.value)
        assert "pillow-heif" not in str(caught.value)


def test_nothing_is_an_image_while_another_thread_imports_pillow(monkeypatch):
    image = Image.new("RGB", (1, 1))
    assert is_image(image)
    monkeypatch.setitem(sys.modules, "PIL.Image", types.ModuleType("PIL.Image"))
    assert not is_image("photo.jpg")
