"""What the README says, in an empty folder: photos, captions, a bare network, and no encoder named twice."""

import csv
import json
import re
import shutil
import subprocess
import sys

import pytest

from commands import config

N_PHOTOS = 150


@pytest.fixture(scope="module")
def place(real_data, tmp_path_factory):
    """A folder with 150 photos, their captions, and the network without a recipe."""
    network = real_data.parent / "models" / "resnet50.onnx"
    if not network.is_file():
        pytest.skip(f"{network} is not there")
    folder = tmp_path_factory.mktemp("newcomer")
    described = json.loads((real_data / "flickr8k" / "dataset_flickr8k.json").read_text("utf-8"))["images"]
    test = [image for image in described if image["split"] == "test"]
    (folder / "photos").mkdir()
    with open(folder / "captions.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption"])
        for image in test[:N_PHOTOS]:
            shutil.copy(real_data / "flickr8k" / "images" / image["filename"], folder / "photos")
            rows.writerows([image["filename"], sentence["raw"]] for sentence in image["sentences"])
    for name, image in zip(("photo.jpg", "new.jpg"), test[N_PHOTOS:], strict=False):
        shutil.copy(real_data / "flickr8k" / "images" / image["filename"], folder / name)
    shutil.copy(network, folder / "resnet50.onnx")
    return folder


def diptych(folder, *arguments):
    """What a command prints, which must succeed: standard output, and standard error."""
    command = [sys.executable, "-m", "diptych", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def notes(place):
    """Fit with the network's recipe, and without one; return what the second fit says on standard error."""
    fit = "fit captions.csv --images photos --image-encoder resnet50.onnx --text-encoder hkse --out"
    settings = list(map(str, config(model={"grid": 6})))
    diptych(place, *fit.split(), "model", "--recipe", "caffe", *settings)
    return diptych(place, *fit.split(), "assumed", *settings)[1]


@pytest.mark.data
@pytest.mark.slow
class TestABareNetwork:
    def test_fit_says_which_recipe_it_assumes(self, notes, place):
        (line,) = (line for line in notes.splitlines() if "resnet50.onnx does not say" in line)
        assert "resnet-full-image is assumed" in line
        assert "--recipe caffe" in line
        for model, recipe in (("model", "caffe-full-image"), ("assumed", "resnet-full-image")):
            assert f"resnet50.onnx ({recipe})" in (place / model / "README.md").read_text("utf-8")

    def test_later_commands_need_no_encoder(self, notes, place):
        assert "photos/" in diptych(place, "search", "model", "a dog in the snow", "-k", "5")[0]
        assert len(json.loads(diptych(place, "annotate", "model", "photo.jpg", "--json")[0])["answers"]) == 1
        similar = diptych(place, "similar", "model", "photo.jpg", "--image", "--json")[0]
        assert json.loads(similar)["answers"][0]["hits"]
        recalls = diptych(place, "evaluate", "model", "captions.csv", "--images", "photos", "--json")[0]
        assert json.loads(recalls)["all"]["annotate"]["r@10"] > 50
        assert json.loads(diptych(place, "add", "model", "new.jpg", "--json")[0])["added"] == ["new.jpg"]
        # The model that was written again still remembers.
        diptych(place, "annotate", "model", "new.jpg")
        assert json.loads(diptych(place, "remove", "model", "new.jpg", "--json")[0])["removed"] == 1

    def test_the_commands_of_the_card_work_as_printed(self, notes, place):
        card = (place / "model" / "README.md").read_text("utf-8")
        (shell,) = re.findall(r"```sh\n(.*?)```", card, re.DOTALL)
        lines = shell.strip().splitlines()
        assert len(lines) == 2
        for line in lines:
            words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)]
            diptych(place, *words[1:])
