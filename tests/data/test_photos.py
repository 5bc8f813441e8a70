"""What image files say of themselves: captions, tags, date, place, camera, orientation."""

import numpy as np
import pytest

from diptych import read_pairs
from diptych._checks import InputError
from diptych.data import inspect_pairs
from diptych.data._photos import MAX_CHARACTERS, MAX_TAGS, MAX_XMP_BYTES, list_photos, read_photo
from photo_files import make_exif, make_iptc, make_xmp, write_photo

BOMB = '<!DOCTYPE a [<!ENTITY b "beach"><!ENTITY c "&b;&b;&b;">]>'


class TestCaptions:
    @pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
    def test_xmp_in_every_format(self, tmp_path, suffix):
        xmp = make_xmp(["A dog", "Ein Hund"], "Rex", ["snow", "dog", "snow"])
        content = {"tiffinfo": {700: xmp}} if suffix == "tif" else {"xmp": xmp}
        if suffix == "png":
            from PIL.PngImagePlugin import PngInfo

            info = PngInfo()
            info.add_itxt("XML:com.adobe.xmp", xmp.decode())
            content = {"pnginfo": info}
        text = read_photo(write_photo(tmp_path / f"a.{suffix}", **content))
        assert text.captions == {"description": "A dog", "title": "Rex"}
        assert text.metadata["tags"] == ["snow", "dog"]

    def test_xmp_attributes_and_dates(self, tmp_path):
        attributes = 'photoshop:Headline="News &amp; more" photoshop:DateCreated="2021-03-04T05:06:07+02:00"'
        text = read_photo(write_photo(tmp_path / "a.jpg", xmp=make_xmp(attributes=attributes)))
        assert text.captions == {"headline": "News & more"}
        assert text.metadata["date"] == "2021-03-04T05:06:07"

    def test_iptc_also_of_old_programs(self, tmp_path):
        iptc = make_iptc(
            d120=["Café am See".encode()], d5=["Café".encode("latin-1")], d25=[b"lake", b"coffee"]
        )
        text = read_photo(write_photo(tmp_path / "a.jpg", iptc=iptc))
        assert text.captions == {"description": "Café am See", "title": "Café"}
        assert text.metadata["tags"] == ["lake", "coffee"]

    def test_beside_the_photo_comes_first(self, tmp_path):
        path = write_photo(tmp_path / "a.jpg", xmp=make_xmp(["inside"], tags=["in"]))
        for name in ("a.xmp", "a.jpg.xmp"):
            (tmp_path / name).write_bytes(make_xmp(["beside"], tags=["out"]))
            text = read_photo(path)
            assert (text.captions, text.metadata["tags"]) == ({"description": "beside"}, ["out", "in"])
            (tmp_path / name).unlink()
        (tmp_path / "a.txt").write_text("one\n\ntwo\n")
        assert read_photo(path).captions == {"0": "one", "1": "two"}

    def test_equal_ones_and_those_of_cameras_are_left_out(self, tmp_path):
        same = write_photo(tmp_path / "a.jpg", xmp=make_xmp(["Rex"], "Rex"))
        assert read_photo(same).captions == {"description": "Rex"}
        camera = write_photo(tmp_path / "b.jpg", iptc=make_iptc(d120=[b"OLYMPUS DIGITAL CAMERA"]))
        assert not read_photo(camera).captions

    def test_they_are_bounded(self, tmp_path):
        xmp = make_xmp(["long " * MAX_CHARACTERS], tags=[f"tag {i}" for i in range(3 * MAX_TAGS)])
        (tmp_path / "a.xmp").write_bytes(xmp)
        path = write_photo(tmp_path / "a.jpg")
        text = read_photo(path)
        assert len(text.captions["description"]) <= MAX_CHARACTERS
        assert len(text.metadata["tags"]) == MAX_TAGS
        (tmp_path / "a.xmp").write_bytes(make_xmp(["a dog"]).ljust(MAX_XMP_BYTES + 1))
        assert not read_photo(path).captions

    @pytest.mark.parametrize(
        "xmp",
        [
            make_xmp(["&c;"], head=BOMB),
            make_xmp(["a dog"], head='<!DOCTYPE a SYSTEM "file:///etc/passwd">'),
            make_xmp(["a dog"])[:-20].replace(b"a dog", b"a dog</rdf:li>"),
            b"<a>" * 5000,
            b"\x00\xff not XML",
        ],
    )
    def test_xml_of_strangers_expands_nothing(self, tmp_path, xmp):
        assert not read_photo(write_photo(tmp_path / "a.jpg", xmp=xmp)).captions


class TestMetadata:
    def test_date_camera_place_and_orientation(self, tmp_path):
        gps = {1: "S", 2: (33.0, 51.0, 24.0), 3: "E", 4: (151.0, 12.0, 36.0)}
        exif = make_exif(
            make="Canon", model="Canon EOS R5", taken="2024:06:01 12:30:00", orientation=6, gps=gps
        )
        assert read_photo(write_photo(tmp_path / "a.jpg", exif=exif)).metadata == {
            "date": "2024-06-01T12:30:00",
            "camera": "Canon EOS R5",
            "latitude": -33.856667,
            "longitude": 151.21,
            "orientation": "portrait",
        }

    @pytest.mark.parametrize(
        ("exif", "missing"),
        [
            (make_exif(taken="0000:00:00 00:00:00"), "date"),
            (make_exif(taken="yesterday"), "date"),
            (make_exif(gps={2: (91.0, 0.0, 0.0)}), "latitude"),
            (make_exif(gps={2: (1.0,)}), "latitude"),
            (make_exif(make="\0"), "camera"),
        ],
    )
    def test_what_makes_no_sense_is_left_out(self, tmp_path, exif, missing):
        metadata = read_photo(write_photo(tmp_path / "a.jpg", exif=exif)).metadata
        assert missing not in metadata
        assert metadata["orientation"] == "landscape"

    def test_makers_are_not_named_twice(self, tmp_path):
        for make, model, name in (("FUJIFILM", "X-T5", "FUJIFILM X-T5"), ("", "X-T5", "X-T5")):
            path = write_photo(tmp_path / "a.jpg", exif=make_exif(make=make, model=model))
            assert read_photo(path).metadata["camera"] == name

    @pytest.mark.parametrize("content", [b"", b"text", b"\xff\xd8\xff\xe1\x00\x10Exif\0\0broken"])
    def test_damaged_files_say_nothing(self, tmp_path, content):
        (tmp_path / "a.jpg").write_bytes(content)
        text = read_photo(tmp_path / "a.jpg")
        assert (text.captions, text.metadata) == ({}, {})

    @pytest.mark.parametrize("suffix", ["jpg", "webp", "tif", "png"])
    def test_bytes_at_random_never_raise(self, tmp_path, suffix):
        rng = np.random.default_rng(0)
        exif = make_exif(make="Canon", taken="2024:06:01 12:30:00", gps={1: "S", 2: (33.0, 51.0, 24.0)})
        content = {"xmp": make_xmp(["A dog"], tags=["dog"])} if suffix in ("jpg", "webp") else {}
        iptc = make_iptc(d120=[b"A dog"]) if suffix == "jpg" else b""
        path = write_photo(tmp_path / f"a.{suffix}", exif=exif, iptc=iptc, **content)
        whole = np.frombuffer(path.read_bytes(), np.uint8)
        assert read_photo(path).metadata["camera"] == "Canon"
        for _ in range(150):
            damaged = whole[: rng.integers(1, len(whole) + 1)].copy()
            places = rng.integers(0, min(len(damaged), 900), 5)
            damaged[places] = rng.integers(0, 256, 5)
            path.write_bytes(damaged.tobytes())
            read_photo(path)


def test_photos_of_a_folder(tmp_path):
    for name in ("b.png", "more/a.JPG", ".hidden.jpg", ".thumbnails/c.jpg", "library/d.jpg"):
        write_photo(tmp_path / name, format="JPEG")
    (tmp_path / "notes.txt").write_text("no photo")
    assert list(list_photos(tmp_path, without=tmp_path / "library")) == ["b.png", "more/a.JPG"]


def test_a_folder_is_read_with_what_its_photos_say(tmp_path):
    write_photo(tmp_path / "a.jpg", xmp=make_xmp(["A red card"], tags=["card"]))
    write_photo(tmp_path / "b.jpg")
    pairs = read_pairs(tmp_path)
    assert (pairs.captions, pairs.caption_ids) == (("A red card",), ("a.jpg#description",))
    assert pairs.metadata["a.jpg"]["tags"] == ["card"]
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(InputError, match="1 image and no captions"):
        read_pairs(tmp_path)
    assert read_pairs(tmp_path, needs_captions=False).image_ids == ("b.jpg",)


def test_a_table_without_captions_gives_metadata(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("image,year,mood\na.jpg,2020,calm\nb.jpg,2021,\n")
    pairs = read_pairs(table, needs_captions=False)
    assert (pairs.n_images, pairs.n_captions) == (2, 0)
    assert pairs.metadata == {"a.jpg": {"year": 2020, "mood": "calm"}, "b.jpg": {"year": 2021}}
    with pytest.raises(InputError, match="none has a usual name for the caption"):
        read_pairs(table)


def test_check_counts_what_photos_say(tmp_path):
    write_photo(tmp_path / "a.jpg", xmp=make_xmp(["A dog"], tags=["dog"]), exif=make_exif(model="X-T5"))
    write_photo(tmp_path / "b.jpg", "blue", xmp=make_xmp(tags=["sea"]))
    report = inspect_pairs(read_pairs(tmp_path, needs_captions=False))
    assert report.in_files == {"a description": 1, "tags": 2, "a camera": 1}
    assert report.problems == ("1 image without a caption: b.jpg.",)
    (tmp_path / "a.jpg").unlink()
    assert inspect_pairs(read_pairs(tmp_path, needs_captions=False)).ok
