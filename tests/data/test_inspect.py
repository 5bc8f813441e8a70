import json

import pytest
from PIL import Image

from diptych import InputError
from diptych.data import inspect_pairs, read_pairs
from diptych.scenes import make_scenes


@pytest.fixture
def folder(tmp_path):
    make_scenes(20, size=24).write(tmp_path)
    return tmp_path


def change_table(folder, edit):
    path = folder / "captions.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    edit(rows)
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return rows


def test_good_pairs_have_no_problems(folder):
    report = inspect_pairs(read_pairs(folder))
    assert report.ok
    assert (report.images, report.captions) == (20, 100)
    assert report.splits == {"train": 14, "val": 3, "test": 3}
    assert report.captions_per_image.smallest == report.captions_per_image.largest == 5
    assert 2 <= report.caption_words.smallest <= report.caption_words.median <= report.caption_words.largest
    assert report.images_checked


def test_the_report_lists_every_problem(folder):
    rows = change_table(folder, lambda rows: rows[3].update(captions=["  "]) or rows[4].update(captions=[]))
    by_split = {split: [row["image"] for row in rows if row["split"] == split] for split in ("train", "test")}
    leaked, copied, original = by_split["test"][0], by_split["train"][-1], by_split["train"][0]
    # The same pixels in another file format: another file, the same image.
    image = Image.open(folder / original)
    image.save(folder / leaked, "BMP")
    image.save(folder / copied, "TIFF")
    used = {leaked, copied, original, rows[3]["image"], rows[4]["image"]}
    missing, broken = [row["image"] for row in rows if row["image"] not in used][:2]
    (folder / missing).unlink()
    (folder / broken).write_text("not an image")
    report = inspect_pairs(read_pairs(folder))
    assert not report.ok
    assert report.missing == (missing,)
    assert [name for name, _ in report.unreadable] == [broken]
    assert report.without_captions == (rows[4]["image"],)
    assert len(report.empty_captions) == 1
    assert len(report.leaks) == 1
    assert set(report.leaks[0]) == {original, copied, leaked}
    assert len(report.problems) == 5
    assert "leakage" in report.problems[-1]


def test_copies_within_a_split_are_listed_but_not_a_problem(folder):
    rows = change_table(folder, lambda rows: [row.update(split="train") for row in rows])
    Image.open(folder / rows[0]["image"]).save(folder / rows[1]["image"], "BMP")
    report = inspect_pairs(read_pairs(folder))
    assert report.ok
    assert report.copies == ((rows[0]["image"], rows[1]["image"]),)


def test_pairs_without_image_paths_are_only_counted():
    report = inspect_pairs(make_scenes(5).dataset)
    assert report.ok
    assert not report.images_checked


def test_an_image_in_two_splits_is_an_error(folder):
    path = folder / "captions.jsonl"
    row = json.loads(path.read_text().splitlines()[0])
    row["split"] = "test" if row["split"] == "train" else "train"
    path.write_text(path.read_text() + json.dumps(row))
    with pytest.raises(InputError, match="one split"):
        inspect_pairs(read_pairs(folder))


@pytest.mark.data
@pytest.mark.slow
def test_the_real_thumbnails_are_readable(real_data):
    folder = real_data / "flickr8k"
    report = inspect_pairs(read_pairs(folder / "dataset_flickr8k.json", images=folder / "images"))
    # Only the test images are there.
    assert len(report.missing) == 7000
    assert not report.unreadable
    assert not report.leaks
    assert report.captions_per_image.smallest == 5
