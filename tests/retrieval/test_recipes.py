"""Networks that do not say how they want their images, and encoders that a model remembers."""

import json
import shutil
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

from commands import config, refused, run, run_json
from diptych import AWCCA, HKSE, InputError, Retriever
from diptych._checks import DataWarning
from diptych.data import read_pairs
from diptych.encoders import OnnxEncoder, Recipe, sentence_encoder
from diptych.encoders._text import folder_fingerprint
from diptych.scenes import make_scenes
from saved_files import edit_config, files_of
from tolerance import assert_same_hits, rounding

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def write_bare_network(path, metadata=None, layout="NCHW"):
    """Write a network that averages tiles of images of 32 × 32, and does not say how they are prepared."""
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    nodes = []
    if layout == "NHWC":
        nodes = [helper.make_node("Transpose", ["pixels"], ["image"], perm=[0, 3, 1, 2])]
    nodes += [
        helper.make_node(
            "AveragePool", ["image" if nodes else "pixels"], ["tiles"], kernel_shape=[8, 8], strides=[8, 8]
        ),
        helper.make_node("Flatten", ["tiles"], ["features"]),
    ]
    shape = ["n", 3, 32, 32] if layout == "NCHW" else ["n", 32, 32, 3]
    pixels = helper.make_tensor_value_info("pixels", floats, shape)
    features = helper.make_tensor_value_info("features", floats, ["n", 48])
    graph = helper.make_graph(nodes, "tiles", [pixels], [features])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(model, metadata or {})
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings") / "scenes"
    make_scenes(40, size=48).write(folder)
    return read_pairs(folder)


def small(image, **options):
    text = HKSE(word_features=40, sentence_features=40)
    return Retriever(image, text, AWCCA(params=(5.0, 5.0)), **options)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_input_size_is_read_from_the_graph(tmp_path, layout):
    path = write_bare_network(tmp_path / "n.onnx", layout=layout)
    encoder = OnnxEncoder(path)
    assert encoder.assumed
    assert encoder.recipe == Recipe.preset("imagenet-32")
    assert encoder.dimension == 48
    assert OnnxEncoder(path, "caffe").recipe == Recipe.preset("caffe-32")


def test_the_usual_recipe_is_assumed_and_said_once(tmp_path, drawings):
    from diptych.encoders import open_image

    encoder = OnnxEncoder(write_bare_network(tmp_path / "n.onnx"))
    image = open_image(drawings.paths[0])
    with pytest.warns(
        DataWarning, match="n.onnx does not say .*; imagenet-32 is assumed. .* --recipe caffe "
    ):
        encoder.encode([image])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode([image])
        OnnxEncoder(tmp_path / "n.onnx", "bytes-32").encode([image])


def test_a_fit_says_once_which_recipe_is_assumed(tmp_path, drawings):
    path = write_bare_network(tmp_path / "n.onnx")
    with pytest.warns(DataWarning, match="imagenet-32 is assumed") as caught:
        fitted = small(str(path)).fit(drawings)
    assert len(caught) == 1
    assert fitted.info()["encoders"]["image"]["name"] == "n.onnx (imagenet-32)"
    fitted.save(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Retriever.load(tmp_path / "model").annotate(drawings.paths[0])


def test_what_the_file_says_is_taken(tmp_path):
    path = write_bare_network(tmp_path / "n.onnx", metadata={"diptych.recipe": '"unit-32"'})
    assert (OnnxEncoder(path).recipe, OnnxEncoder(path).assumed) == (Recipe.preset("unit-32"), False)
    (tmp_path / "n.json").write_text('{"preset": "bytes-32"}')
    assert OnnxEncoder(path).recipe == Recipe.preset("bytes-32")
    assert OnnxEncoder(path, "clip-32").recipe == Recipe.preset("clip-32")


def test_a_named_encoder_is_used_in_silence(drawings):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small("pyramid").fit(drawings)


@pytest.fixture(scope="module")
def encoded(tmp_path_factory, drawings):
    """The drawings and their texts as features, and the encoder of the texts."""
    path = write_bare_network(tmp_path_factory.mktemp("network") / "n.onnx")
    retriever = small(OnnxEncoder(path, "bytes-32")).fit(drawings)
    return retriever.encode(drawings), retriever.encoders.hkse


class TestAModelRemembersItsEncoder:
    @pytest.fixture
    def place(self, tmp_path, monkeypatch, drawings, encoded):
        """The working folder, with a network, a model that was made with it, and an image."""
        monkeypatch.chdir(tmp_path)
        encoder = OnnxEncoder(write_bare_network(tmp_path / "n.onnx"), "bytes-32")
        options = {"image_encoder": encoder, "text_encoder": encoded[1], "model": AWCCA(params=(5.0, 5.0))}
        Retriever.from_features(encoded[0].x, encoded[0].y, drawings.pairing, **options).save("model")
        shutil.copy(drawings.paths[0], "image.png")
        return tmp_path

    def opened(self, monkeypatch):
        """The files that are given to onnxruntime from now on."""
        from diptych.encoders import _networks as module

        files, real = [], module._session
        monkeypatch.setattr(
            module, "_session", lambda path, threads: files.append(path) or real(path, threads)
        )
        return files

    def test_it_is_opened_when_an_image_is_encoded_and_not_before(self, place, monkeypatch):
        files = self.opened(monkeypatch)
        retriever = Retriever.load("model")
        assert retriever.search("a red star")
        retriever.info()
        retriever.save("copy")
        assert not files
        assert retriever.annotate("image.png")
        assert files == [place / "n.onnx"]
        for folder in ("model", "copy"):
            assert Retriever.load(folder).annotate("image.png") == retriever.annotate("image.png")

    def test_a_changed_or_missing_file_is_never_opened(self, place, monkeypatch):
        files = self.opened(monkeypatch)
        (place / "n.onnx").write_bytes(b"other")
        words = refused("annotate", "model", "image.png")
        assert f"{place / 'n.onnx'} could not be loaded as an ONNX network" in words
        assert "encoded by n.onnx (bytes-32)" in words
        assert "--image-encoder" in words
        (place / "n.onnx").unlink()
        assert "n.onnx does not exist any more" in refused("annotate", "model", "image.png")
        assert not files
        assert Retriever.load("model").search("a red star")

    def test_one_that_moved_is_given_without_its_recipe(self, place):
        (place / "n.onnx").rename(place / "moved.onnx")
        run_json("add", "model", "image.png", "--image-encoder", "moved.onnx")
        # From then on it is known where it is.
        run_json("annotate", "model", "image.png")

    def test_folders_that_move_together_find_each_other(self, place, tmp_path_factory):
        new = tmp_path_factory.mktemp("elsewhere")
        for name in ("model", "n.onnx", "image.png"):
            shutil.move(place / name, new / name)
        retriever = Retriever.load(new / "model")
        assert retriever.annotate(new / "image.png")
        retriever.save(new / "model")
        assert Retriever.load(new / "model").annotate(new / "image.png")

    def test_an_option_without_effect_is_refused(self, place):
        words = "--recipe needs --image-encoder"
        assert words in refused("annotate", "model", "image.png", "--recipe", "bytes-32")
        np.save("x.npy", np.eye(9))
        assert words in refused("fit", "x.npy", "x.npy", "-o", "m", "--recipe", "bytes-32")
        assert "There is no recipe 'cafe'" in refused(
            "annotate", "model", "image.png", "--image-encoder", "n.onnx", "--recipe", "cafe"
        )

    @pytest.mark.parametrize(
        "origin",
        [5, {"recipe": {}}, {"source": 3}, {"source": "/n.onnx", "recipe": 3}, {"source": "x", "weights": 1}],
    )
    def test_a_damaged_memory_is_told(self, place, origin):
        encoders = json.loads((files_of(place / "model") / "config.json").read_text())["encoders"]
        encoders["image"]["origin"] = origin
        edit_config(place / "model", encoders=encoders)
        with pytest.raises(InputError, match=r"config\.json: encoders.*origin"):
            Retriever.load("model")

    def test_the_path_is_not_told_to_visitors(self, place):
        assert str(place) not in json.dumps(Retriever.load("model").info())

    def test_a_database_remembers_too(self, place, drawings, fresh):
        address = fresh()
        small(OnnxEncoder("n.onnx", "bytes-32"), index=address).fit(drawings)
        assert Retriever.connect(address).annotate("image.png")
        (place / "n.onnx").write_bytes(b"other")
        with pytest.raises(InputError, match="could not be loaded as an ONNX network"):
            Retriever.connect(address).annotate("image.png")


def test_features_are_asked_with_the_recipe_that_made_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_bare_network(tmp_path / "n.onnx")
    make_scenes(40, size=48).write(tmp_path / "drawn")
    network = ["--image-encoder", "n.onnx", "--recipe", "bytes"]
    encoded = run("encode", "images", "drawn", *network, "-o", "x")
    assert encoded.exit_code == 0, encoded.output
    words = [*config(hkse={"word": "lin", "sentence": "lin"}), "--save-encoder", "words"]
    assert run("encode", "text", "drawn", "-o", "y", *words).exit_code == 0
    run_json("fit", "x", "y", "--pairs", "drawn", "-o", "m", *config(model={"params": [5, 5]}))
    image = next((tmp_path / "drawn").rglob("*.png"))
    run_json("annotate", "m", image, *network)
    assert "give that one" in refused("annotate", "m", image, "--image-encoder", "n.onnx")


def write_hub_cache(cache, repository, folder):
    """Copy a folder to where the Hugging Face libraries keep what they downloaded."""
    place = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(folder, place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)


def test_a_folder_of_a_text_encoder_is_compared_before_it_is_opened(make, tmp_path, monkeypatch):
    folder = tmp_path / "sentences"
    folder.mkdir()
    (folder / "modules.json").write_text("[]")
    (folder / "model.safetensors").write_bytes(b"weights")
    encoder = SimpleNamespace(
        encode=lambda texts: np.ones((len(texts), 7)),
        fingerprint=folder_fingerprint(folder),
        label="sentences",
        origin={"source": str(folder)},
    )
    make(text_encoder=encoder).retriever.save(tmp_path / "model")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(InputError, match="needs sentence-transformers"):
        Retriever.load(tmp_path / "model").search("a cat")
    (folder / "modules.json").write_text('[{"type": "os.system"}]')
    with pytest.raises(InputError, match="sentences has changed"):
        Retriever.load(tmp_path / "model").search("a cat")


@pytest.mark.slow  # it imports sentence-transformers
class TestATextEncoderIsRemembered:
    @pytest.fixture
    def opened(self, minilm, monkeypatch):
        """The names with which sentence-transformers was called."""
        import sentence_transformers

        names, original = [], sentence_transformers.SentenceTransformer

        def open_model(name, **options):
            names.append(name)
            return original(name, **options)

        monkeypatch.setattr(sentence_transformers, "SentenceTransformer", open_model)
        return names

    def saved(self, folder, source):
        rng = np.random.default_rng(0)
        texts = [f"{a} {b}" for a in ("red", "big", "old") for b in ("dog", "cat", "house", "sea", "boy")]
        encoder = sentence_encoder(source)
        y = encoder.encode(texts)
        x = y @ rng.normal(size=(384, 4))
        made = Retriever.from_features(x, y, text_encoder=encoder, model=AWCCA(params=(1.0, 1.0)))
        made.save(folder)
        return made

    def test_a_folder_is_opened_again_if_it_is_the_same(self, tmp_path, minilm, opened):
        model = shutil.copytree(minilm, tmp_path / "minilm")
        made = self.saved(tmp_path / "m", model)
        opened.clear()
        loaded = Retriever.load(tmp_path / "m")
        assert not opened
        assert_same_hits(loaded.search("a cat", k=3), made.search("a cat", k=3), rounding(np.float32, 50_000))
        assert opened == [str(model)]
        # What its modules are is part of what it is.
        (model / "modules.json").write_text('[{"type": "os.system"}]')
        opened.clear()
        with pytest.raises(InputError, match="minilm has changed"):
            Retriever.load(tmp_path / "m").search("a cat")
        assert not opened

    def test_a_name_is_not_downloaded_because_a_model_says_so(self, tmp_path, minilm, opened, monkeypatch):
        monkeypatch.setenv("SENTENCE_TRANSFORMERS_HOME", str(tmp_path / "cache"))
        write_hub_cache(tmp_path / "cache", "some/model", minilm)
        self.saved(tmp_path / "m", "some/model")
        opened.clear()
        with pytest.raises(InputError, match="some/model may have to be downloaded, .* --text-encoder"):
            Retriever.load(tmp_path / "m").search("a cat")
        assert not opened
        assert Retriever.load(tmp_path / "m", text_encoder="some/model").search("a cat")
