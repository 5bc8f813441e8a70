"""Encoders that nobody named: the recommended ones with fastembed, and others without it."""

import json
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from commands import config, refused, run, run_json
from diptych import AWCCA, Retriever, read_pairs
from diptych._checks import DataWarning, InputError
from diptych.encoders import HKSE, PyramidDescriptor
from diptych.retrieval._recommended import PACKAGES, RECOMMENDED, default_encoder
from diptych.scenes import make_scenes
from example_files import code_blocks, write_network, write_photos
from fastembed_models import write_fastembed_cache

VISION, TEXT = "fastembed:Qdrant/clip-ViT-B-32-vision", "fastembed:Qdrant/clip-ViT-B-32-text"
SMALL = {"word_features": 40, "sentence_features": 40}
FIT = ["fit", "drawn", "-o", "model"]


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings") / "drawn"
    make_scenes(30, size=48).write(folder)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Small networks where fastembed keeps what it downloaded."""
    pytest.importorskip("fastembed")
    folder = tmp_path_factory.mktemp("cache")
    write_fastembed_cache(folder)
    return folder


@pytest.fixture
def place(tmp_path, monkeypatch, drawings):
    """An empty folder but for ``drawn``, without any weights."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawn").symlink_to(drawings)
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def without(monkeypatch, place):
    """fastembed is not installed."""
    monkeypatch.setitem(sys.modules, "fastembed", None)
    return place


@pytest.fixture
def weights(place, cache, monkeypatch):
    """fastembed is installed, and has networks under the recommended names."""
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(cache))
    return place


def encoding_notes(**encoders):
    """Return what encoding a few pairs says of encoders that nobody named."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        model(**encoders).encode(read_pairs("drawn").select(range(5)))
    return [str(warning.message) for warning in caught if issubclass(warning.category, DataWarning)]


def notes(result):
    assert result.exit_code == 0, result.output
    return [line for line in result.stderr.splitlines() if line.startswith("note: ") and "encoder" in line]


def model(**options):
    return Retriever(model=AWCCA(params=(5.0, 5.0)), **options)


class TestTheTable:
    def test_it_says_what_fastembed_says(self):
        fastembed = pytest.importorskip("fastembed")
        for view, library in (("image", fastembed.ImageEmbedding), ("text", fastembed.TextEmbedding)):
            listed = {f"fastembed:{each['model']}": each for each in library.list_supported_models()}
            own = [each for each in RECOMMENDED if each.view == view and each.gigabytes]
            assert len(own) >= 3
            for each in own:
                known = listed[each.name]
                assert (each.dimension, each.gigabytes) == (known["dim"], known["size_in_GB"])
                assert each.licence.lower() == known["license"].lower()

    def test_it_says_what_our_own_encoders_are(self):
        dimensions = {each.name: each.dimension for each in RECOMMENDED if not each.gigabytes}
        pyramid, hkse = PyramidDescriptor().dimension, HKSE().sentence_features
        assert dimensions == {"pyramid": pyramid, "hkse": hkse}

    def test_a_view_has_one_encoder_for_a_need(self):
        needs = [(each.view, each.need) for each in RECOMMENDED]
        assert len(needs) == len(set(needs))
        assert {("image", "small"), ("text", "multilingual")} < set(needs)


class TestTheCommand:
    def test_every_name_stands_on_a_line_of_its_own(self):
        lines = [line.split() for line in run("encoders").stdout.splitlines()]
        for each in RECOMMENDED:
            assert any(line[:2] == [each.view, each.name] for line in lines), each.name

    def test_it_says_what_is_installed_and_how_to_install_the_rest(self, without, monkeypatch):
        from importlib import metadata

        from diptych.retrieval import _recommended

        def version(package):
            if package == "sentence-transformers":
                raise metadata.PackageNotFoundError
            return "1.2.3"

        monkeypatch.setattr(_recommended, "version", version)
        shown = run("encoders").stdout.splitlines()
        assert "sentence-transformers is not installed: pip install sentence-transformers" in shown
        assert "onnxruntime 1.2.3" in shown

    def test_as_json(self):
        content = run_json("encoders")
        assert list(content["installed"]) == list(PACKAGES)
        assert [each["name"] for each in content["encoders"]] == [each.name for each in RECOMMENDED]

    def test_all_models_of_fastembed(self, without, monkeypatch):
        assert "fastembed" in refused("encoders", "--all")
        monkeypatch.delitem(sys.modules, "fastembed")
        fastembed = pytest.importorskip("fastembed")
        names = {each["name"] for each in run_json("encoders", "--all")["encoders"]}
        libraries = fastembed.ImageEmbedding, fastembed.TextEmbedding
        listed = {f"fastembed:{e['model']}" for lib in libraries for e in lib.list_supported_models()}
        assert {each.name for each in RECOMMENDED if each.gigabytes} < names <= listed


class TestWithoutFastembed:
    def test_pyramid_and_hkse_are_used_and_said(self, without):
        assert default_encoder("image") is None
        settings = config(model={"grid": 3}, hkse=SMALL)
        image, *rest = notes(run(*FIT, *settings, "-q"))
        assert not rest  # settings of hkse name it
        assert "pyramid is used, which knows only colours and shapes; photos need a network" in image
        assert "pip install fastembed" in image
        assert "--image-encoder network.onnx" in image
        assert run_json("info", "model")["encoders"]["image"]["name"] == "pyramid"

    def test_texts_have_a_note_of_their_own(self, without):
        (note,) = encoding_notes(image_encoder="pyramid")
        assert "no text encoder was named, so hkse is fitted on the captions" in note

    def test_features_can_be_encoded(self, without):
        (note,) = notes(run("encode", "images", "drawn", "-o", "x"))
        assert "pyramid is used" in note
        (note,) = notes(run("encode", "text", "drawn", "-o", "y"))
        assert "hkse" in note


class TestWithFastembed:
    def test_both_are_used_and_said_in_one_line_and_imported_when_they_encode(self, weights):
        (note,) = notes(run(*FIT, *config(model={"grid": 3}), "-q"))
        assert f"{VISION} for images (MIT, 0.34 GB) and {TEXT} for texts (MIT, 0.25 GB)" in note
        assert '--preset "best" is better' in note
        names = {view: each["name"] for view, each in run_json("info", "model")["encoders"].items()}
        assert names == {
            "image": VISION.removeprefix("fastembed:"),
            "text": TEXT.removeprefix("fastembed:"),
        }
        # Later commands open them again.
        assert run_json("search", "model", "a red star")["answers"][0]["hits"]
        image = next((weights / "drawn").rglob("*.png"))
        assert run_json("annotate", "model", image)["answers"][0]["hits"]

        code = (
            "import sys; from diptych import Retriever; Retriever(); Retriever.load('model').info(); "
            "print(sorted({'fastembed', 'onnxruntime', 'huggingface_hub'} & set(sys.modules)))"
        )
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert json.loads(shown.stdout.replace("'", '"')) == [], shown.stderr

    def test_the_preset_is_not_advised_where_it_is_used(self, weights):
        (note,) = notes(run(*FIT, "--preset", "best", *config(hkse=SMALL), "-q"))
        assert VISION in note
        assert "preset" not in note

    def test_each_view_is_decided_on_its_own(self, weights):
        (note,) = encoding_notes(text_encoder=HKSE(**SMALL))
        assert (VISION in note, TEXT in note) == (True, False)
        (note,) = encoding_notes(image_encoder="pyramid", text_encoder="auto")
        assert (VISION in note, TEXT in note) == (False, True)
        assert encoding_notes(image_encoder="pyramid", text_encoder=HKSE(**SMALL)) == []
        (note,) = encoding_notes(image_encoder="auto")
        assert (VISION in note, TEXT in note) == (True, True)

    def test_options_of_hkse_mean_hkse(self, weights):
        (note,) = notes(run(*FIT, *config(model={"grid": 3}, hkse=SMALL), "-q"))
        assert TEXT not in note
        assert run_json("info", "model")["encoders"]["text"]["name"] == "hkse"
        assert "none.bin" in refused("fit", "drawn", "-o", "b", "--vectors", "none.bin")

    def test_features_can_be_encoded(self, weights):
        (note,) = notes(run("encode", "images", "drawn", "-o", "x"))
        assert VISION in note
        (note,) = notes(run("encode", "text", "drawn", "-o", "y"))
        assert TEXT in note
        assert notes(run("encode", "text", "drawn", "-o", "z", "--random-state", 3)) == []  # of hkse
        assert "the default encoder" in refused("encode", "text", "drawn", "-o", "w", "--device", "cuda")


class TestWithoutWeights:
    def test_fit_stops_and_says_what_to_do(self, place):
        pytest.importorskip("fastembed")
        message = refused(*FIT)
        assert "Qdrant/clip-ViT-B-32-vision" in message
        for way in ("FASTEMBED_CACHE_PATH", "fastembed:FOLDER", '--image-encoder "pyramid"'):
            assert way in message
        assert not (place / "model").exists()
        message = refused(*FIT, "--image-encoder", "pyramid")
        assert '--text-encoder "hkse"' in message

    def test_nothing_is_opened_before_something_is_encoded(self, place):
        pytest.importorskip("fastembed")
        retriever = model()
        assert "image encoder auto; text encoder auto" in repr(retriever)
        views = model(image_encoder="pyramid", text_encoder=HKSE(**SMALL)).encode(read_pairs("drawn"))
        retriever.fit(views)
        assert retriever.search(views.y[0])
        with pytest.raises(InputError, match="no text encoder here"):
            retriever.search("a red star")
        with (
            pytest.warns(DataWarning, match="chosen by default"),
            pytest.raises(InputError, match="could not be downloaded"),
        ):
            model().encode(read_pairs("drawn"))

    def test_work_that_another_encoder_began_is_not_continued(self, place, cache, monkeypatch):
        arguments = ["--text-encoder", "hkse", *config(model={"grid": 3}, hkse=SMALL)]
        begun = ["--image-encoder", "pyramid", "-o", ".model.features/images"]
        (place / ".model.features").mkdir()
        assert run("encode", "images", "drawn", *begun).exit_code == 0
        monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(cache))
        message = refused(*FIT, *arguments)
        assert "made with another encoder (pyramid" in message
        assert "name that encoder to resume" in message
        assert run(*FIT, *arguments, "--image-encoder", "pyramid", "-q").exit_code == 0


class TestThePage:
    page = Path(__file__).parents[2] / "docs" / "encoders.md"

    def test_its_tables_are_those_of_the_command(self):
        row = re.compile(r"^\| (.+?) \| `(.+?)` \| (\d+) \| (.*?) ?\| (.*?) ?\|$", re.MULTILINE)
        assert row.findall(self.page.read_text("utf-8")) == [
            (each.need, each.name, str(each.dimension), str(each.gigabytes or ""), each.licence)
            for each in RECOMMENDED
        ]

    @pytest.mark.slow
    def test_the_examples_run(self, weights):
        drawn = write_photos(weights, 60, size=48)
        for i in (1, 2):
            drawn.images[i].save(weights / "photos" / f"{i}.jpg")
        write_network(weights / "resnet50.onnx")
        several, dual, zero_shot, functions = code_blocks(self.page)
        names = {}
        exec(several, names)
        widths = {"image": {"clip-ViT-B-32-vision": 512, "resnet50": 48}, "text": {"hkse": 2000}}
        widths["text"]["clip-ViT-B-32-text"] = 512
        assert {view: names["retriever"].fitted.layout(view) for view in widths} == widths
        assert len(names["retriever"].search("a red star", k=3)) == 3
        exec(dual, names)
        assert len(names["retriever"].search("a red star", k=3)) == 3
        exec(zero_shot, names)
        assert len(names["hits"]) == 2
        exec(functions, names)
        names["retriever"].save("model")
        encoders = names["retriever"].encoders
        loaded = Retriever.load("model", encoders.image, encoders.text)
        assert loaded.search("a red star") == names["retriever"].search("a red star")

    @pytest.mark.slow
    def test_the_commands_run(self, weights):
        write_photos(weights, 40, size=48)
        write_network(weights / "resnet50.onnx")
        lines = [line for block in code_blocks(self.page, "sh") for line in block.splitlines()]
        commands = [line for line in lines if line.startswith("diptych ")]
        assert commands
        for line in commands:
            assert run(*shlex.split(line, comments=True)[1:]).exit_code == 0, line
