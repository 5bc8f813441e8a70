"""Several encoders for one view: side by side, weighed by a fusion, saved, opened again, in every command."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from diptych import AWCCA, HKSE, Fusion, InputError, Retriever
from diptych._checks import DataWarning
from diptych.data import FeatureStore, PairedDataset, read_pairs
from diptych.encoders import FunctionEncoder, image_encoder, open_image
from diptych.encoders._image import SeveralEncoders
from diptych.retrieval._encoders import Closed, EncoderRecord, Encoders
from diptych.retrieval._folder import save_published
from diptych.scenes import make_scenes
from example_files import write_network
from fastembed_models import write_word_pieces
from saved_files import edit_config, files_of
from tolerance import assert_close, assert_same_hits, rounding

pytest.importorskip("onnxruntime")
pytest.importorskip("fastembed", reason="fastembed is not installed")

PIECES = "clip-ViT-B-32-text"
LAYOUT = {"image": {"pyramid": 630, "colours": 48}, "text": {"hkse": 40, PIECES: 512}}
QUERY = "a red star"
TOLERANCE = rounding(np.float32, 1230)


def count_letters(texts):
    return np.array([[text.count(letter) for letter in "abcdefghijklmnopqrst"] for text in texts], float)


def small_hkse():
    return HKSE(word_features=40, sentence_features=40)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with drawn scenes, an image network and a text network, all small and real."""
    folder = tmp_path_factory.mktemp("several")
    make_scenes(60, size=48).write(folder / "scenes")
    write_network(folder / "colours.onnx")
    write_word_pieces(folder / PIECES)
    pairs = read_pairs(folder / "scenes")
    return SimpleNamespace(
        folder=folder,
        pairs=pairs,
        image=str(pairs.paths[0]),
        images=["pyramid", str(folder / "colours.onnx")],
        texts=f"fastembed:{folder / PIECES}",
    )


def make(place, model=None, **options):
    model = AWCCA(params=(5.0, 5.0)) if model is None else model
    return Retriever(place.images, [small_hkse(), place.texts], model, **options)


@pytest.fixture(scope="module")
def fitted(place):
    """A retriever with two encoders for each view; tests that change it load a copy."""
    return make(place).fit(place.pairs)


@pytest.fixture
def saved(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    return tmp_path / "model"


def blocks_of(retriever):
    return {view: retriever.fitted.layout(view) for view in ("image", "text")}


class TestFit:
    def test_the_features_are_those_of_each_encoder_side_by_side(self, place, fitted):
        images, texts = fitted.encoders.image.encoders, fitted.encoders.text.encoders
        assert blocks_of(fitted) == LAYOUT
        views = fitted.encode(place.pairs)
        assert views.blocks == LAYOUT
        opened = [open_image(path) for path in place.pairs.paths[:3]]
        assert_close(views.x[:3], np.hstack([each.encode(opened) for each in images]), 48)
        captions = list(place.pairs.captions[:7])
        assert_close(views.y[:7], np.hstack([each.encode(captions) for each in texts]), 512)

    def test_it_answers_as_the_same_features_in_named_blocks(self, place, fitted):
        views, pairs = fitted.encode(place.pairs), place.pairs
        x, y = {"a": views.x[:, :630], "b": views.x[:, 630:]}, {"c": views.y[:, :40], "d": views.y[:, 40:]}
        same = Retriever.from_features(
            *(x, y, pairs.pairing),
            ids=pairs.image_ids,
            caption_ids=pairs.caption_ids,
            captions=pairs.captions,
            splits=pairs.splits,
            paths=pairs.paths,
            model=AWCCA(params=(5.0, 5.0)),
        )
        query = {"c": views.y[3, :40], "d": views.y[3, 40:]}
        named = dict(zip(LAYOUT["text"], query.values(), strict=True))
        expected = same.search(query)
        assert_same_hits(fitted.search(pairs.captions[3]), expected, TOLERANCE)
        assert_same_hits(fitted.search(named), expected, TOLERANCE)

    def test_a_fusion_weighs_them(self, place, tmp_path):
        retriever = make(place, Fusion(grid=2, polish=False)).fit(place.pairs)
        assert blocks_of(retriever) == LAYOUT
        geometry = retriever.fitted.model.geometry_
        assert [list(geometry[side]) for side in "xy"] == [list(LAYOUT["image"]), list(LAYOUT["text"])]
        retriever.save(tmp_path / "model")
        again = Retriever.load(tmp_path / "model")
        assert_same_hits(again.search(QUERY), retriever.search(QUERY), TOLERANCE)
        assert_same_hits(again.annotate(place.image), retriever.annotate(place.image), TOLERANCE)

    def test_one_view_may_have_several_and_the_other_one(self, place):
        retriever = Retriever(place.images, [small_hkse()], AWCCA(params=(5.0, 5.0))).fit(place.pairs)
        assert blocks_of(retriever) == LAYOUT | {"text": {"hkse": 40}}
        assert retriever.search(QUERY).ignored_words == ()
        assert retriever.search("a red quokka").ignored_words == ("quokka",)

    def test_a_word_is_ignored_only_if_no_encoder_knows_it(self, fitted):
        assert fitted.search("a red quokka").ignored_words == ()
        assert fitted.search("zyzzyva quokka")
        assert fitted.search(["zyzzyva", QUERY])[1].ignored_words == ()

    def test_each_network_gets_a_recipe(self, place, tmp_path):
        for name in ("one", "two"):
            shutil.copy(place.images[1], tmp_path / f"{name}.onnx")
        (tmp_path / "two.json").write_text('{"preset": "unit-64"}')
        sources = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
        retriever = Retriever(sources, count_letters)
        with pytest.warns(DataWarning, match=r"one\.onnx does not say .* is assumed") as caught:
            retriever.encode(place.pairs.select(range(3)))
        assert len(caught) == 1
        first, second = retriever.encoders.image.encoders
        assert (first.assumed, second.recipe_name) == (True, "unit-64")

    def test_what_one_of_them_cannot_read_is_left_out(self, tmp_path, rng):
        hidden, names = rng.normal(size=(80, 4)), [f"{i}.txt" for i in range(80)]
        for name, row in zip(names, hidden, strict=True):
            (tmp_path / name).write_text(json.dumps(row.tolist()))

        def read(paths):
            return np.array([json.loads(Path(path).read_text()) for path in paths])

        def read_some(paths):
            for path in paths:
                if Path(path).name in ("7.txt", "70.txt"):
                    raise InputError("it is too short")
            return read(paths)[:, :3] ** 2

        pairs = PairedDataset.of([(name, [f"t{i}"]) for i, name in enumerate(names)])
        pairs = PairedDataset(
            pairs.image_ids, pairs.captions, pairs.pairing, paths=tuple(tmp_path / name for name in names)
        )
        encoders = [FunctionEncoder(read, "all", "paths"), FunctionEncoder(read_some, "some", "paths")]

        def texts(captions):
            return np.array([hidden[int(caption[1:])] for caption in captions])

        model = AWCCA(params=(1.0, 1.0))
        with pytest.warns(DataWarning, match=r"2 recordings could not be read .*7\.txt: it is too short"):
            retriever = Retriever(encoders, texts, model, views=("recording", "text")).fit(pairs)
        assert blocks_of(retriever)["image"] == {"all": 4, "some": 3}
        assert retriever.store.count("image") == 78
        assert retriever.annotate(str(tmp_path / "3.txt"))
        with pytest.raises(InputError, match="it is too short"):
            retriever.annotate(str(tmp_path / "7.txt"))

    def test_interrupted_encoding_resumes(self, place, tmp_path):
        class Slow:
            dimension, fingerprint, calls, stop_at = 2, "slow", 0, 2

            def encode(self, images):
                self.calls += 1
                if self.calls == self.stop_at:
                    raise KeyboardInterrupt
                return np.array([image.resize((1, 1)).getpixel((0, 0))[:2] for image in images], float)

        slow = Slow()
        retriever = Retriever(["pyramid", slow], small_hkse(), AWCCA(params=(5.0, 5.0)))
        with pytest.raises(KeyboardInterrupt):
            retriever.fit(place.pairs, features=tmp_path / "work")
        slow.calls, slow.stop_at = 0, 0
        retriever.fit(place.pairs, features=tmp_path / "work")
        assert slow.calls == 1  # of two batches of 32, the first was done
        assert blocks_of(retriever)["image"] == {"pyramid": 630, "slow": 2}
        slow.calls = 0
        finished = retriever.encode(place.pairs, features=tmp_path / "work")
        assert slow.calls == 0
        whole = retriever.encode(place.pairs)
        assert_close(finished.x, whole.x, 630)
        assert finished.blocks == whole.blocks
        with pytest.raises(InputError, match="made with another encoder .pyramid:.* [+] slow, not"):
            Retriever(["pyramid", place.images[1]], small_hkse()).fit(place.pairs, features=tmp_path / "work")

    def test_features_that_were_stored_are_asked_with_the_same_encoders(self, place, fitted, tmp_path):
        views = fitted.encode(place.pairs, features=tmp_path / "work")
        store = FeatureStore.open(tmp_path / "work" / "images")
        assert store.job.encoder == fitted.info()["encoders"]["image"]["fingerprint"]
        records = {"image": EncoderRecord(store.job.encoder, store.job.encoder)}
        assert Encoders(place.images, records=records).image.dimension == views.x.shape[1]
        with pytest.raises(InputError, match="the model was made with"):
            Encoders(place.images[::-1], records=records)


class TestNames:
    def test_every_block_has_a_name_of_its_own(self, place, tmp_path):
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            shutil.copy(place.images[1], tmp_path / name / "x.onnx")
        (tmp_path / "first" / "x.json").write_text('{"preset": "unit-64"}')
        (tmp_path / "second" / "x.json").write_text('{"preset": "bytes-64"}')
        sources = [tmp_path / name / "x.onnx" for name in ("first", "second")]
        named = FunctionEncoder(lambda images: np.array([image.size for image in images]), "pyramid")
        encoders = Encoders([*sources, "pyramid", named], [count_letters, place.texts])
        encoders.text.encode(["a"])
        names = [list(own) for own in encoders.layout({}).values()]
        assert names == [["x", "x 2", "pyramid", "pyramid 2"], ["count_letters", PIECES]]

    def test_both_views_may_have_an_encoder_of_one_name(self, rng):
        image = FunctionEncoder(lambda images: np.array([image.size for image in images]), "clip")
        text = SimpleNamespace(name="clip", encode=count_letters)
        encoders = Encoders(["pyramid", image], [text, lambda texts: count_letters(texts)[:, :3]])
        encoders.text.encode(["a"])
        assert list(encoders.layout({})["text"]) == ["clip 2", "function"]

    @pytest.mark.parametrize(
        ("source", "name"),
        [
            ({"source": "/a/b/resnet50.onnx"}, "resnet50"),
            ({"source": "timm:vit_small.dino"}, "vit_small.dino"),
            ({"source": "fastembed:Qdrant/clip-ViT-B-32-vision"}, "clip-ViT-B-32-vision"),
        ],
    )
    def test_a_block_is_called_as_its_network(self, source, name):
        label = source["source"].removeprefix("fastembed:")
        encoder = SimpleNamespace(fingerprint="f", label=label, origin=source)
        assert EncoderRecord.of(encoder).short_name == name


class TestBadInput:
    @pytest.mark.parametrize(
        ("image", "text", "message"),
        [
            ([], "hkse", "the list of image encoders is empty"),
            ("pyramid", [], "the list of text encoders is empty"),
            (["pyramid", "auto"], "hkse", "'auto' in a list of image encoders"),
            ("pyramid", ["auto", "hkse"], "'auto' in a list of text encoders"),
            (["pyramid", None], "hkse", "NoneType is not an image encoder"),
            ("pyramid", ["hkse", None], "NoneType is not a sentence encoder"),
            (["pyramid", "pyramid"], "hkse", "the image encoder pyramid was given twice"),
            ("pyramid", ["hkse", "hkse"], "a model stores one hkse"),
            (["pyramid", FunctionEncoder(len, "f", "paths")], "hkse", "different inputs .images and paths."),
        ],
    )
    def test_a_wrong_list_is_refused(self, image, text, message):
        with pytest.raises(InputError, match=message):
            Retriever(image, text)

    def test_one_row_for_each_input_is_expected_of_each(self, place):
        class Halves:
            dimension, fingerprint = 3, "halves"

            def encode(self, images):
                return np.ones((len(images) // 2, 3))

        with pytest.raises(
            InputError, match=r"encoder 2 of 2 gave an array of shape \[16, 3\] for 32 inputs"
        ):
            Retriever(["pyramid", Halves()], small_hkse()).fit(place.pairs)

    def test_what_it_is_called_before_it_is_fitted(self, place):
        assert f"text encoder hkse (not fitted) + Qdrant/{PIECES}" in repr(make(place))


class TestSaved:
    def test_it_is_opened_again_with_the_encoders_it_names(self, place, fitted, saved):
        again = Retriever.load(saved)
        assert blocks_of(again) == LAYOUT
        assert again.info()["encoders"]["text"]["name"] == f"hkse + Qdrant/{PIECES}"
        assert_same_hits(again.search(QUERY), fitted.search(QUERY), TOLERANCE)
        assert_same_hits(again.annotate(place.image), fitted.annotate(place.image), TOLERANCE)
        assert again.encoders.image.widths == (630, 48)
        card = (files_of(saved) / "README.md").read_text("utf-8")
        assert "pyramid + colours.onnx" in card
        assert 'model.search("a dog")' in card

    def test_saving_again_keeps_the_encoders_unopened(self, saved, tmp_path):
        retriever = Retriever.load(saved)
        retriever.save(tmp_path / "copy")
        assert set(retriever.encoders._states.values()) == {Closed()}
        assert Retriever.load(tmp_path / "copy").search(QUERY)

    def test_they_are_found_after_a_move_and_never_opened_if_changed(self, place, tmp_path):
        (tmp_path / "old").mkdir()
        for name in ("colours.onnx", "colours.json"):
            shutil.copy(place.folder / name, tmp_path / "old" / name)
        images = ["pyramid", str(tmp_path / "old" / "colours.onnx")]
        made = Retriever(images, small_hkse(), AWCCA(params=(5.0, 5.0))).fit(place.pairs)
        made.save(tmp_path / "old" / "model")
        folder = (tmp_path / "old").rename(tmp_path / "new")
        assert Retriever.load(folder / "model").annotate(place.image)
        (folder / "colours.onnx").write_bytes(b"other")
        again = Retriever.load(folder / "model")
        assert again.search(QUERY)
        with pytest.raises(InputError) as error:
            again.annotate(place.image)
        assert "encoded by pyramid + colours.onnx, but" in str(error.value)
        assert "could not be loaded as an ONNX network" in str(error.value)
        assert "in this order: pyramid, colours.onnx, with --image-encoder" in str(error.value)
        # Another file with the same content is given again in its place, without its recipe.
        assert Retriever.load(folder / "model", place.images).annotate(place.image)

    def test_given_again_they_must_be_all_of_them_in_order(self, place, saved):
        texts = ["hkse", place.texts]
        again = Retriever.load(saved, place.images, texts)
        assert again.search(QUERY)
        assert again.annotate(place.image)
        for images, message in (
            (place.images[::-1], r"colours\.onnx .*is where the model has pyramid"),
            (place.images[:1], "1 image encoder given, but the model was made with 2; give all of them, in"),
            ("pyramid", "in this order: pyramid, colours.onnx"),
            ([*place.images, FunctionEncoder(lambda i: np.ones((len(i), 1)), "f")], "3 image encoders given"),
        ):
            with pytest.raises(InputError, match=message):
                Retriever.load(saved, images)
        for given, message in (
            (texts[::-1], f"in this order: hkse, Qdrant/{PIECES}"),
            ("hkse", "1 text encoder given, but the model was made with 2"),
            (["hkse", count_letters], "given, count_letters is where the model has"),
        ):
            with pytest.raises(InputError, match=message):
                Retriever.load(saved, None, given)

    def test_functions_are_compared_by_their_widths(self, place, tmp_path):
        def vowels(texts):
            return np.array([[text.count(letter) for letter in "aeiou"] for text in texts], float)

        functions = [count_letters, vowels]
        made = Retriever("pyramid", functions, AWCCA(params=(5.0, 5.0))).fit(place.pairs)
        made.save(tmp_path / "model")
        with pytest.raises(InputError, match="count_letters is not stored with the model"):
            Retriever.load(tmp_path / "model").search(QUERY)
        assert_same_hits(
            Retriever.load(tmp_path / "model", None, functions).search(QUERY), made.search(QUERY), TOLERANCE
        )
        with pytest.raises(InputError, match=r"gave 5, 20 features; expected 20, 5\..* in the same order"):
            Retriever.load(tmp_path / "model", None, functions[::-1]).search(QUERY)

    def test_a_list_of_one_is_that_encoder(self, place, fitted, tmp_path):
        one = Retriever(["pyramid"], (small_hkse(),), AWCCA(params=(5.0, 5.0)))
        assert repr(one) == repr(Retriever("pyramid", small_hkse(), AWCCA(params=(5.0, 5.0))))
        one.fit(place.pairs).save(tmp_path / "model")
        model = json.loads((files_of(tmp_path / "model") / "config.json").read_text())
        assert sorted(model["encoders"]["image"]) == ["fingerprint", "name", "origin"]
        assert Retriever.load(tmp_path / "model", None, "hkse").search(QUERY)
        y = fitted.encode(place.pairs).y[:, 40:]
        other = Retriever.from_features(y[:, :9], y, text_encoder=place.texts, model=AWCCA(params=(5.0, 5.0)))
        other.save(tmp_path / "other")
        with pytest.raises(InputError, match="no hkse is stored with this model"):
            Retriever.load(tmp_path / "other", None, "hkse")

    @pytest.mark.parametrize("several", [5, [], [{"name": "a"}], [{"name": "a"}, {"nome": "b"}]])
    def test_a_damaged_record_is_refused(self, saved, several):
        encoders = json.loads((files_of(saved) / "config.json").read_text())["encoders"]
        encoders["image"]["several"] = several
        edit_config(saved, encoders=encoders)
        with pytest.raises(InputError, match=r"config\.json"):
            Retriever.load(saved)

    def test_published_they_lose_their_paths_and_are_given_again(self, place, fitted, tmp_path):
        save_published(fitted, tmp_path / "model", "ada/scenes", keep_features=False, front_matter="")
        texts = [path.read_text("utf-8") for path in files_of(tmp_path / "model").glob("*.json*")]
        assert texts
        assert not any(str(place.folder) in text for text in texts)
        published = Retriever.from_pretrained(tmp_path / "model")
        with pytest.raises(InputError, match=r"may have to be downloaded.*in this order: pyramid, colours"):
            published.annotate(place.image)
        published = Retriever.from_pretrained(
            *(tmp_path / "model", place.images, ["hkse", place.texts]), images=place.folder / "scenes"
        )
        assert_same_hits(published.annotate(place.image), fitted.annotate(place.image), TOLERANCE)
        assert_same_hits(published.search(QUERY), fitted.search(QUERY), TOLERANCE)


def test_a_database_keeps_them_and_others_follow(place, fresh):
    address = fresh()
    few = place.pairs.select(range(30))
    make(place, index=address).fit(few)
    follower = Retriever.connect(address)
    expected = follower.search(QUERY)
    assert follower.annotate(place.image)
    # The same encoders but for an HKSE of another size.
    other = [HKSE(word_features=30, sentence_features=30), place.texts]
    Retriever(place.images, other, AWCCA(params=(5.0, 5.0)), index=address).fit(few)
    assert len(follower.search(QUERY)) == len(expected)
    assert blocks_of(follower)["text"] == {"hkse": 30, PIECES: 512}
    assert Retriever.connect(address, place.images, ["hkse", place.texts]).search(QUERY)


def test_one_class_stands_for_all(place):
    """What encodes several inputs is one encoder for whoever encodes, and images are decoded once."""
    encoders = Encoders(place.images, [place.texts, count_letters])
    image, text = encoders.image, encoders.text
    assert isinstance(image, SeveralEncoders)
    assert (image.dimension, image.inputs) == (678, "images")
    assert image.fingerprint == " + ".join(image_encoder(name).fingerprint for name in place.images)
    assert text.fingerprint == ""  # a function has nothing to be identified by
    images = [open_image(path) for path in place.pairs.paths[:2]]
    prepared = [image.prepare(each) for each in images]
    assert_close(image.encode_prepared(prepared), image.encode(images), 48)
    assert encoders.describe("text").fingerprint.endswith(" + ?")
