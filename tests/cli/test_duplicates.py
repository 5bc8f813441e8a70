"""The command that lists near-identical items, and its contact sheet."""

import numpy as np
import pytest
from PIL import Image

from commands import refused, run, run_json


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A model of images on disk; two are saved again as JPEG, one of them twice, and one has a nasty name."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(3)
    nouns = ["dog", "cat", "horse", "bird", "boat", "child"]
    places = ["beach", "field", "road", "snow", "river", "city", "park", "wall", "hill", "farm"]
    captions = [f"a {noun} on the {place}" for noun in nouns for place in places]
    table = ["image,caption"]
    for number, caption in enumerate(captions):
        coarse = Image.fromarray(rng.integers(0, 255, (4, 4, 3), np.uint8))
        coarse.resize((64, 48), Image.BICUBIC).save(folder / f"{number}.png")
        table.append(f"{number}.png,{caption}")
    for name, source in {"again.jpg": 5, "5 & <b>.jpg": 5, "other.jpg": 9}.items():
        Image.open(folder / f"{source}.png").save(folder / name, quality=90)
        table.append(f"{name},{captions[source].capitalize()}!")
    (folder / "pairs.csv").write_text("\n".join(table), "utf-8")
    options = ["--images", folder, "--image-encoder", "pyramid", "--text-encoder", "hkse", "--quiet"]
    run("fit", folder / "pairs.csv", "-o", folder / "model", *options)
    return folder


GROUPS = [["5.png", "again.jpg", "5 & <b>.jpg"], ["9.png", "other.jpg"]]


def test_the_command_lists_groups_and_says_the_threshold(photos, tmp_path):
    shown = run("duplicates", photos / "model")
    told = run_json("duplicates", photos / "model")
    assert [[item["id"] for item in group["items"]] for group in told["groups"]] == GROUPS
    assert told["view"] == "image"
    assert told["items"] == 63
    assert told["compared"] == "features"
    lines = shown.stdout.splitlines()
    assert lines[0].startswith("1: 3 items, similarity at least 0.9")
    assert lines[1].startswith("  5.png: ")
    last = "2 groups of near-identical images, 5 of 63 images (cosine of the features at least "
    assert f"{last}{told['threshold']:.4f})" in shown.stdout
    assert "chosen from the data" in shown.stdout
    exact = run("duplicates", photos / "model", "--threshold", 1)
    assert exact.stdout.splitlines()[1:] == [
        f"  again.jpg: {photos / 'again.jpg'}",
        f"  5 & <b>.jpg: {photos / '5 & <b>.jpg'}",
        "1 group of near-identical images, 2 of 63 images (cosine of the features at least 1.0000)",
    ]
    assert run("duplicates", photos / "model", "--quiet").stdout == ""
    sheet = tmp_path / "sheets" / "sheet.html"
    assert run("duplicates", photos / "model", "--view", "text", "--out", sheet).stdout.endswith(
        f"wrote {sheet}\n"
    )
    assert "a dog on the city" in sheet.read_text("utf-8")


def test_the_command_explains_mistakes(photos):
    assert "--threshold 2" in refused("duplicates", photos / "model", "--threshold", 2)
    assert "--view 'sound'" in refused("duplicates", photos / "model", "--view", "sound")
    assert "not a folder" in refused("duplicates", photos / "nothing")
    folder = photos / "taken.html"
    folder.mkdir(exist_ok=True)
    assert "taken.html" in refused("duplicates", photos / "model", "--out", folder)
