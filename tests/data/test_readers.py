import json
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diptych import InputError
from diptych._checks import DataWarning
from diptych.data import read_pairs
from diptych.data._files import contained_path
from table_files import write_table


def karpathy_entry(name, split, captions, first, **more):
    sentences = [{"raw": text, "imgid": 0, "sentid": first + k} for k, text in enumerate(captions)]
    return {"filename": name, "split": split, "sentences": sentences, "imgid": 0, **more}


@pytest.fixture
def karpathy(tmp_path):
    entries = [
        karpathy_entry("a.jpg", "train", ["A cat .", "One cat ."], 10, filepath="train2014", cocoid=5),
        karpathy_entry("b.jpg", "restval", ["A dog ."], 3, filepath="val2014", cocoid=6),
        karpathy_entry("c.jpg", "val", ["A bird ."], 7, filepath="val2014", cocoid=7),
        karpathy_entry("d.jpg", "test", ["A fish ."], 1, filepath="val2014", cocoid=8),
    ]
    path = tmp_path / "dataset_coco.json"
    path.write_text(json.dumps({"dataset": "coco", "images": entries}))
    return path


def test_karpathy_split_files(karpathy, tmp_path):
    dataset = read_pairs(karpathy)
    assert dataset.image_ids == ("a.jpg", "b.jpg", "c.jpg", "d.jpg")
    assert dataset.splits == ("train", "train", "val", "test")
    assert dataset.captions[:2] == ("A cat .", "One cat .")
    assert dataset.pairing.tolist() == [0, 0, 1, 2, 3]
    assert dataset.caption_ids == ("10", "11", "3", "7", "1")
    assert dataset.paths is None


def test_karpathy_images_are_in_one_folder_or_in_subfolders(karpathy, tmp_path):
    images = tmp_path / "images"
    (images / "val2014").mkdir(parents=True)
    paths = read_pairs(karpathy, images=images).paths
    assert paths[:2] == (images / "a.jpg", images / "val2014" / "b.jpg")
    with pytest.raises(InputError, match="not a folder"):
        read_pairs(karpathy, images=tmp_path / "nowhere")


def test_files_beyond_the_limit_are_refused(karpathy):
    with pytest.raises(InputError, match="max_bytes"):
        read_pairs(karpathy, max_bytes=10)


@pytest.mark.parametrize(
    "name", ["../secret.jpg", "/etc/passwd", "a/../../b.jpg", "C:\\x.jpg", "..\\x.jpg", "", "a\0b"]
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="leads out of"):
        contained_path(tmp_path, name)
    (tmp_path / "captions.jsonl").write_text(json.dumps({"image": name or "..", "caption": "x"}))
    with pytest.raises(InputError, match="leads out of"):
        read_pairs(tmp_path / "captions.jsonl")


@pytest.fixture
def flickr8k(tmp_path):
    tokens = [
        f"{name}#{k}\tCaption {k} of {name} ."
        for name in ("one.jpg", "two.jpg", "three.jpg", "stray.jpg.1")
        for k in range(5)
    ]
    (tmp_path / "Flickr8k.token.txt").write_text("\n".join(tokens) + "\n")
    (tmp_path / "Flickr_8k.trainImages.txt").write_text("two.jpg\n")
    (tmp_path / "Flickr_8k.devImages.txt").write_text("three.jpg\n")
    (tmp_path / "Flickr_8k.testImages.txt").write_text("one.jpg\n")
    return tmp_path


def test_flickr8k_text_files(flickr8k):
    dataset = read_pairs(flickr8k, images=flickr8k)
    assert dataset.image_ids == ("two.jpg", "three.jpg", "one.jpg")
    assert dataset.splits == ("train", "val", "test")
    assert dataset.n_captions == 15
    test = dataset.subset("test")
    assert test.captions[3] == "Caption 3 of one.jpg ."
    assert test.caption_ids[3] == "one.jpg#3"
    assert test.paths == (flickr8k / "one.jpg",)
    assert read_pairs(flickr8k).splits == dataset.splits
    (flickr8k / "Flickr_8k.testImages.txt").write_text("four.jpg\n")
    with pytest.raises(InputError, match=r"testImages\.txt, line 1: 'four\.jpg'"):
        read_pairs(flickr8k)


def test_flickr30k_token_file(tmp_path):
    path = tmp_path / "results_20130124.token"
    path.write_text("36979.jpg#0\tTwo friends .\r\n36979.jpg#1\tA café\t.\r\n65567.jpg#0\tMen .\r\n", "utf-8")
    dataset = read_pairs(path)
    assert dataset.captions == ("Two friends .", "A café\t.", "Men .")
    assert dataset.pairing.tolist() == [0, 0, 1]
    assert read_pairs(tmp_path).n_images == read_pairs(path).n_images == 2
    assert dataset.splits is None


def test_coco_caption_files(tmp_path):
    content = {
        "info": {},
        "images": [{"id": 9, "file_name": "COCO_9.jpg"}, {"id": 4, "file_name": "COCO_4.jpg"}],
        "annotations": [
            {"image_id": 4, "id": 1, "caption": "A bike.\n"},
            {"image_id": 9, "id": 2, "caption": "A kitchen."},
            {"image_id": 4, "id": 3, "caption": "A bicycle."},
        ],
    }
    path = tmp_path / "captions_val2014.json"
    path.write_text(json.dumps(content))
    dataset = read_pairs(path, images=tmp_path)
    assert dataset.image_ids == ("COCO_9.jpg", "COCO_4.jpg")
    assert dataset.captions == ("A kitchen.", "A bike.", "A bicycle.")
    assert dataset.caption_ids == ("2", "1", "3")
    assert dataset.pairing.tolist() == [0, 1, 1]
    assert dataset.splits == ("val", "val")
    assert read_pairs(path).captions == read_pairs(tmp_path).captions == dataset.captions
    content["annotations"][0]["image_id"] = 77
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="COCO caption file"):
        read_pairs(path)


ROWS = [
    {"File_Name": "a.png", "Caption": "A red, round ball", "split": "train"},
    {"File_Name": "b.png", "Caption": 'It says "hello"', "split": "validation"},
    {"File_Name": "a.png", "Caption": "A ball\nin two lines", "split": "train"},
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_tables_of_every_format(tmp_path, suffix):
    dataset = read_pairs(write_table(tmp_path / f"captions{suffix}", ROWS))
    assert dataset.image_ids == ("a.png", "b.png")
    assert dataset.captions == tuple(row["Caption"] for row in ROWS)
    assert dataset.pairing.tolist() == [0, 1, 0]
    assert dataset.splits == ("train", "val")
    assert dataset.paths == (tmp_path / "a.png", tmp_path / "b.png")
    assert read_pairs(tmp_path).captions == dataset.captions


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_cells_may_hold_several_captions(tmp_path, suffix):
    rows = [{"image": "a.png", "captions": ["one", "two"]}, {"image": "b.png", "captions": ["three"]}]
    dataset = read_pairs(write_table(tmp_path / f"captions{suffix}", rows))
    assert dataset.captions == ("one", "two", "three")
    assert dataset.pairing.tolist() == [0, 0, 1]


@pytest.mark.parametrize("delimiter", [";", "|", "\t"])
def test_csv_files_with_other_delimiters(tmp_path, delimiter):
    (tmp_path / "t.csv").write_text(delimiter.join(["image", "text"]) + "\na.jpg" + delimiter + "A cat\n")
    assert read_pairs(tmp_path / "t.csv").captions == ("A cat",)


def test_columns_are_named_or_found_by_their_usual_names(tmp_path):
    path = write_table(tmp_path / "odd.csv", [{"foto": "a.png", "bijschrift": "Een kat", "deel": "test"}])
    with pytest.raises(InputError, match=r"foto, bijschrift, deel.*image_column"):
        read_pairs(path)
    dataset = read_pairs(path, image_column="foto", caption_column="bijschrift", split_column="deel")
    assert (dataset.captions, dataset.splits) == (("Een kat",), ("test",))
    with pytest.raises(InputError, match="no column 'file'"):
        read_pairs(path, image_column="file")


KARPATHY = "dataset.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (KARPATHY, "[]", "holds a JSON list"),
        (KARPATHY, "{}", "no list of images"),
        (KARPATHY, '{"images": []}', "no list of images"),
        (KARPATHY, '{"images": [3]}', "image 0 is not as expected"),
        (KARPATHY, '{"images": [{"filename": "a.jpg"}]}', "'sentences'"),
        (KARPATHY, '{"images": [{"filename": "a.jpg", "sentences": [{"text": "x"}]}]}', "'raw'"),
        (KARPATHY, '{"images": [{"filename": "a.jpg", "sentences": 5}]}', "image 0 is not as expected"),
        (KARPATHY, "{", "not valid JSON"),
        (KARPATHY, "[" * 100_000, "not valid JSON"),
        ("t.token", "a.jpg#0\tfine\nno tab here", "line 2"),
        ("t.token", "a.jpg#0\tfine\na.jpg\tno number", "line 2"),
        ("t.token", "a.jpg#0\tfine\n#0\tno name", "line 2"),
        ("t.token", "a.jpg#0\tfine\na.jpg#x\tno digit", "line 2"),
        ("t.token", b"a.jpg#0\tcaf\xe9\n", "UTF-8"),
        ("t.jsonl", '{"image": "a.png", "caption": 5}', "holds 5; expected text"),
        ("t.jsonl", '{"image": null, "caption": "x"}', "holds None; expected a name"),
        ("t.jsonl", '{"image": "a.png", "caption": "x"}\nnot json', "line 2 is not valid JSON"),
        ("t.jsonl", '{"image": "a.png", "caption": "x"}\n[1]', "line 2 is not a JSON object"),
        ("t.jsonl", '{"image": "\\ud800.png", "caption": "a"}', "not valid Unicode"),
        ("t.jsonl", '{"image": "a.png", "caption": "\\udc80"}', "not valid Unicode"),
        ("t.csv", "image,caption\n", "holds no captions"),
        ("t.csv", "image,caption\na.png\n", "holds None; expected text"),
        ("t.csv", "image,caption,split\na,x,train\na,y,test", "'test' here and in 'train' before"),
        *((f"t{suffix}", "", "is empty; expected columns") for suffix in (".csv", ".tsv", ".jsonl")),
        *((f"t{suffix}", "\n\n", "is empty; expected columns") for suffix in (".csv", ".tsv", ".jsonl")),
        ("t.parquet", "PAR1 not really", "t.parquet"),
        ("t.xlsx", "image,caption", "not a file of pairs"),
        ("notes.md", "x", "not a file of pairs"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, name, content, message):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        read_pairs(path)


def test_a_table_that_unpacks_beyond_the_limit_is_refused(tmp_path):
    path = write_table(
        tmp_path / "t.parquet", [{"image": f"{i}.png", "caption": "a" * 500} for i in range(500)]
    )
    with pytest.raises(InputError, match="unpacks to"):
        read_pairs(path, max_bytes=path.stat().st_size + 1000)


def test_a_small_parquet_file_that_repeats_a_long_text_is_not_unpacked(tmp_path):
    long, limit = "x" * 100_000, 2**23
    for name, cell in (("one", long), ("several", [long, "short"])):
        path = write_table(tmp_path / f"{name}.parquet", [{"image": "a.png", "caption": cell}] * 200)
        assert path.stat().st_size < 100_000
        tracemalloc.start()
        with pytest.raises(InputError, match="unpacks to more than 8,388,608 bytes"):
            read_pairs(path, max_bytes=limit)
        assert tracemalloc.get_traced_memory()[1] < limit
        tracemalloc.stop()


@pytest.mark.skipif(os.name == "nt", reason="file names are Unicode there")
def test_file_names_that_are_not_utf8_are_left_out_with_a_warning(tmp_path):
    for name in (b"good.png", b"caf\xe9.png"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name[:-4] + b".txt")).write_text("a caption")
    with pytest.warns(DataWarning, match="file name that is not UTF-8"):
        assert read_pairs(tmp_path).image_ids == ("good.png",)


def test_parquet_without_pyarrow_names_the_package(tmp_path, monkeypatch):
    path = write_table(tmp_path / "t.parquet", ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r'pip install "pyarrow>='):
        read_pairs(path)


def test_images_beside_the_table_are_found(tmp_path):
    (tmp_path / "images").mkdir()
    path = write_table(tmp_path / "t.csv", ROWS)
    assert read_pairs(path).paths[0] == tmp_path / "images" / "a.png"
    assert read_pairs(path, images=tmp_path).paths[0] == tmp_path / "a.png"


def test_captions_in_text_files_beside_the_images(tmp_path):
    (tmp_path / "more").mkdir()
    for name in ("b.png", "a.jpg", "more/c.PNG", ".hidden.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name, "PNG")
    (tmp_path / "a.txt").write_text("First.\n\nSecond.\n")
    (tmp_path / "more/c.txt").write_text("Third.")
    dataset = read_pairs(tmp_path)
    assert dataset.image_ids == ("a.jpg", "b.png", "more/c.PNG")
    assert dataset.captions == ("First.", "Second.", "Third.")
    assert dataset.pairing.tolist() == [0, 0, 2]
    assert dataset.paths[2] == tmp_path / "more" / "c.PNG"
    assert read_pairs(tmp_path).captions == dataset.captions


def test_ambiguous_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match="no captions"):
        read_pairs(tmp_path)
    write_table(tmp_path / "a.csv", ROWS)
    write_table(tmp_path / "b.csv", ROWS)
    with pytest.raises(InputError, match=r"2 files of pairs \(a\.csv, b\.csv\)"):
        read_pairs(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        read_pairs(tmp_path / "nowhere")


@pytest.mark.data
def test_the_real_flickr8k(real_data):
    dataset = read_pairs(real_data / "flickr8k" / "dataset_flickr8k.json")
    assert dataset.split_sizes() == {"train": 6000, "val": 1000, "test": 1000}
    assert dataset.n_captions == 40000
    np.testing.assert_array_equal(dataset.pairing, np.repeat(np.arange(8000), 5))
    assert dataset.caption_ids[12345] == "12345"


@pytest.mark.parametrize(
    ("encoding", "named"), [("utf-8", None), ("utf-8-sig", None), ("utf-16", None), ("cp1252", "cp1252")]
)
def test_tables_in_the_encodings_that_excel_writes(tmp_path, encoding, named):
    path = tmp_path / "t.csv"
    path.write_text("image,caption\na.jpg,ein Café\n", encoding)
    assert read_pairs(path, encoding=named).captions == ("ein Café",)


def test_errors_name_the_encoding_to_try(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("image,caption\na.jpg,ein Café\n", "cp1252")
    with pytest.raises(InputError, match=r"not UTF-8 text \(wrong at byte 27\).* encoding='cp1252'"):
        read_pairs(path)
    with pytest.raises(InputError, match="encoding='nonsense' is unknown"):
        read_pairs(path, encoding="nonsense")
    with pytest.raises(InputError, match="not utf-16 text"):
        read_pairs(path, encoding="utf-16")


def test_table_options_for_other_formats_are_refused(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"image": "a.jpg", "caption": "a"}\n')
    with pytest.raises(InputError, match="encoding='cp1252' is for CSV"):
        read_pairs(tmp_path / "t.jsonl", encoding="cp1252")
    (tmp_path / "x.token").write_text("a.jpg#0\ta dog\n")
    with pytest.raises(InputError, match=r"image_column has no effect on .*x\.token, which is not a table"):
        read_pairs(tmp_path / "x.token", image_column="a")


def test_the_format_can_be_named(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    (tmp_path / "a.txt").write_text("A caption.")
    (tmp_path / "notes.csv").write_text("image,caption\nb.png,Another caption.\n")
    assert read_pairs(tmp_path).captions == ("Another caption.",)
    assert read_pairs(tmp_path, format="folder").captions == ("A caption.",)
    with pytest.raises(InputError, match="format='csv' is unknown"):
        read_pairs(tmp_path, format="csv")
