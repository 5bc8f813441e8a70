"""Commands with several encoders for one view."""

import shutil
from types import SimpleNamespace

import pytest

from commands import config, refused, run, run_json
from diptych.data import read_pairs
from diptych.scenes import make_scenes
from example_files import write_network
from fastembed_models import write_word_pieces

pytest.importorskip("onnxruntime")
pytest.importorskip("fastembed", reason="fastembed is not installed")

PIECES = "clip-ViT-B-32-text"
QUERY = "a red star"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with drawn scenes, an image network and a text network, all small and real."""
    folder = tmp_path_factory.mktemp("several")
    make_scenes(60, size=48).write(folder / "scenes")
    write_network(folder / "colours.onnx")
    write_word_pieces(folder / PIECES)
    pairs = read_pairs(folder / "scenes")
    images = ["pyramid", str(folder / "colours.onnx")]
    text = f"fastembed:{folder / PIECES}"
    return SimpleNamespace(folder=folder, pairs=pairs, image=str(pairs.paths[0]), images=images, texts=text)


def list_options(place):
    images = [word for name in place.images for word in ("--image-encoder", name)]
    return [*images, "--text-encoder", "hkse", "--text-encoder", place.texts]


SMALL = {"word_features": 40, "sentence_features": 40}


@pytest.fixture(scope="module")
def model(place, tmp_path_factory):
    """A model that the command line has fitted."""
    folder = tmp_path_factory.mktemp("commands") / "model"
    settings = config(hkse=SMALL, model={"params": [5, 5]})
    run_json("fit", place.folder / "scenes", *list_options(place), "-o", folder, *settings)
    return folder


class TestCommands:
    def test_every_command_uses_all_of_them(self, place, model, tmp_path):
        own = shutil.copytree(model, tmp_path / "model")
        info = run_json("info", own)
        assert info["encoders"]["image"]["name"] == "pyramid + colours.onnx"
        assert info["facts"]["blocks"]["text"] == [["hkse", 40], [PIECES, 512]]
        assert "images: pyramid + colours.onnx, 678 features" in run("info", own).output
        texts, images = list_options(place)[4:], list_options(place)[:4]
        for arguments in (
            *(["search", QUERY, *given] for given in ([], texts)),
            *(["annotate", place.image, *given] for given in ([], images)),
            *(["similar", place.image, "--image", *given] for given in ([], images)),
            ["evaluate", place.folder / "scenes", *images, *texts],
            ["add", place.image, *images],
        ):
            command, *rest = arguments
            run_json(command, own, *rest)

    def test_bad_options_are_explained(self, place, tmp_path):
        scenes, images = place.folder / "scenes", list_options(place)[:4]
        fit = ["fit", scenes, "-o", tmp_path / "m", *images]
        assert "--recipe is for one --image-encoder, and 2 were given" in refused(*fit, "--recipe", "clip-32")
        names = ["--text-encoder", "auto", "--text-encoder", "hkse"]
        assert "'auto' in a list of text encoders" in refused(*fit, *names)
        assert "the image encoder pyramid was given twice" in refused(
            "fit", scenes, "-o", tmp_path / "m", *images[:2], *images[:2]
        )
        vectors = ["--text-encoder", place.texts, "--vectors", "w.txt"]
        assert "--vectors has no effect with --text-encoder fastembed:" in refused(*fit, *vectors)
        encode = ["encode", "images", scenes, "-o", tmp_path / "x", *images]
        assert "encode takes one --image-encoder, and 2 were given" in refused(*encode)
        encode = ["encode", "text", scenes, "-o", tmp_path / "y", *list_options(place)[4:]]
        assert "encode takes one --text-encoder, and 2 were given" in refused(*encode)

    def test_word_vectors_go_to_the_hkse(self, place, tmp_path, rng):
        words = sorted({word for text in place.pairs.captions for word in text.lower().strip(".").split()})
        rows = [f"{word} {' '.join(f'{x:.4f}' for x in rng.normal(size=8))}" for word in words]
        (tmp_path / "words.txt").write_text(f"{len(words)} 8\n" + "\n".join(rows) + "\n")
        settings = config(hkse={"word": "lin", "sentence": "lin"}, model={"params": [5, 5]})
        options = [*list_options(place), "--vectors", tmp_path / "words.txt", *settings]
        info = run_json("fit", place.folder / "scenes", "-o", tmp_path / "m", *options)
        assert info["facts"]["blocks"]["text"] == [["hkse", 8], [PIECES, 512]]
