"""From image files and texts to answers, with both encoders."""

import io
import pickle

import numpy as np
import pytest
from PIL import Image

from diptych import AWCCA, HKSE, InputError, Retriever, retrieval_scores
from diptych._checks import DataWarning
from diptych.data import PairedDataset, join
from tolerance import assert_same_hits, rounding


def test_captions_of_training_images_return_them(fitted, drawn):
    """Seventy drawings teach little about others, but these it must know."""
    found = fitted.evaluate(drawn, "train")
    chance = 1000 / drawn.split_sizes()["train"]
    assert found["search"]["r@10"] > 3 * chance
    assert found["annotate"]["r@10"] > 3 * chance


def test_batches_of_queries_and_every_kind_of_image(fitted, drawn):
    paths = list(drawn.paths[:3])
    # Cosines, of sums over the features of either side.
    tolerance = rounding(np.float32, fitted.encoders.image.dimension + 60)
    expected = fitted.annotate(paths, k=4)
    for path, hits in zip(paths, expected, strict=True):
        assert_same_hits(fitted.annotate(path, k=4), hits, tolerance)
    with Image.open(paths[0]) as picture:
        assert fitted.annotate([picture, *paths[1:]], k=4) == expected
        assert fitted.annotate(picture, k=4) == fitted.annotate(paths[0], k=4)
    assert fitted.annotate([path.read_bytes() for path in paths], k=4) == expected
    assert fitted.annotate(str(paths[2]), k=4) == fitted.annotate(paths[2], k=4)
    assert {hit.text for hit in expected[0]} <= set(drawn.captions)
    sentences = list(drawn.captions[:3])
    assert all(hit.path and hit.item.view == "image" for hit in fitted.search(sentences[0]))
    for sentence, hits in zip(sentences, fitted.search(sentences, k=4), strict=True):
        assert_same_hits(fitted.search(sentence, k=4), hits, tolerance)
    assert fitted.search(tuple(sentences), k=4) == fitted.search(iter(sentences), k=4)


def test_words_that_were_ignored_are_named(fitted, drawn):
    hits = fitted.search("a red quokka and a Wombat", k=3)
    assert hits.ignored_words == ("quokka", "wombat")
    assert len(hits) == 3
    known, partly = fitted.search(["a red star", "a quokka"], k=3)
    assert (known.ignored_words, partly.ignored_words) == ((), ("quokka",))
    # Only "a" is left, and the answer says so.
    assert [hit.id for hit in partly] == [hit.id for hit in fitted.search("a", k=3)]
    assert fitted.similar(text="a quokka", k=2).ignored_words == ("quokka",)
    row = fitted.encoders.encode_texts(["a red star"])
    assert fitted.search(row, k=3)[0].ignored_words == ()
    assert fitted.search(row[0], k=3).ignored_words == ()
    again = pickle.loads(pickle.dumps(hits))
    assert (again, again.ignored_words) == (hits, hits.ignored_words)


def test_an_encoder_that_cannot_tell_ignores_nothing(views):
    x, y, pairing = views()
    retriever = Retriever.from_features(
        x, y, pairing, model=AWCCA(params=(2.0, 3.0)), text_encoder=lambda texts: y[: len(texts)]
    )
    assert retriever.search("a quokka").ignored_words == ()


def test_a_retriever_is_one_line(fitted, drawn, views):
    assert repr(Retriever("pyramid", "hkse")) == (
        "<Retriever, not fitted: image encoder pyramid; text encoder hkse (not fitted); AWCCA(); index flat>"
    )
    assert repr(Retriever()) == (
        "<Retriever, not fitted: image encoder auto; text encoder auto; AWCCA(); index flat>"
    )
    shown = repr(fitted)
    assert shown.startswith(f"<Retriever: {drawn.n_images} images, {drawn.n_captions} texts; image encoder ")
    filters = fitted.info()["filters"]
    assert "text encoder hkse; " in shown
    assert f"AWCCA, search {' and '.join(filters['search'])}, annotate " in shown
    assert "\n" not in shown
    x, y, pairing = views()
    fused = Retriever.from_features(x, y, pairing, preset="best", index="hnsw")
    assert repr(fused) == (
        "<Retriever: 60 images, 120 texts; image encoder none; text encoder none; Fusion, preset best; "
        "index hnsw>"
    )
    fused.remove([str(i) for i in range(1, 60)])
    assert "1 image, 2 texts" in repr(fused)


def test_evaluation_is_that_of_awcca(fitted, drawn):
    encoders, model = fitted.encoders, fitted.fitted.model
    x, y = encoders.encode_images(drawn.paths), encoders.encode_texts(drawn.captions)
    views = join(drawn, x, y)
    for split in ("test", None):
        part = views.of(np.arange(drawn.n_images)) if split is None else views.split(split)
        found = fitted.evaluate(drawn, split)
        assert fitted.evaluate(views, split) == found
        for task in ("search", "annotate"):
            embedded = model.transform(part[0], part[1], task=task)
            assert found[task] == retrieval_scores(*embedded, part[2], task=task)
    assert fitted.info()["facts"]["metrics"]["test"] == fitted.evaluate(drawn)
    with pytest.raises(InputError, match="unknown"):
        fitted.evaluate(drawn, "practice")


def test_evaluating_on_a_split_that_is_not_there_is_one_message(fitted, drawn):
    training = drawn.subset("train")
    for data in (
        training,
        join(training, np.ones((training.n_images, 3)), np.ones((training.n_captions, 3))),
    ):
        with pytest.raises(InputError, match="split") as caught:
            fitted.evaluate(data, "test")
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*lies? far")
def test_images_are_added_by_path_or_by_name(pictures, drawn, tmp_path):
    with Image.open(drawn.paths[0]) as picture:
        copy = picture.copy()
    path = tmp_path / "copy.png"
    copy.save(path)
    assert pictures.add([path]) == [str(path)]
    assert pictures.add(str(path), ids=["again"]) == ["again"]
    assert pictures.add([path.read_bytes(), copy], ["a red star", "a boat"], ids=["bytes", "opened"]) == [
        "bytes",
        "opened",
        "bytes#0",
        "opened#1",
    ]
    like = pictures.similar(path, k=5)
    assert {hit.id for hit in like} == {str(path), "again", "bytes", "opened", drawn.image_ids[0]}
    assert {hit.path for hit in like} == {str(path), None, str(drawn.paths[0])}
    with pytest.raises(InputError, match="is in the index already"):
        pictures.add([path])


@pytest.mark.parametrize("bad", ["missing.png", "letter.txt", "cut.png", b"no picture", b""])
def test_an_unreadable_image_adds_nothing(pictures, drawn, tmp_path, bad):
    (tmp_path / "letter.txt").write_text("dear")
    (tmp_path / "cut.png").write_bytes(drawn.paths[0].read_bytes()[:200])
    before = list(pictures.store.items())
    given = [drawn.paths[0], tmp_path / bad if isinstance(bad, str) else bad, drawn.paths[1]]
    with pytest.raises(InputError) as caught:
        pictures.add(given, ["a", "b", "c"], ids=["x", "y", "z"])
    assert "\n" not in str(caught.value)
    assert list(pictures.store.items()) == before
    with pytest.raises(InputError):
        pictures.annotate(given)


def test_images_that_cannot_be_read_are_left_out_of_a_fit(drawn, thumbnails, tmp_path):
    (tmp_path / "broken.png").write_bytes(b"no picture")
    few = drawn.select(range(30))
    paths = (tmp_path / "broken.png", *few.paths[1:])
    damaged = PairedDataset(few.image_ids, few.captions, few.pairing, few.caption_ids, None, paths)
    hkse = HKSE(word="lin", sentence="lin")
    with pytest.warns(DataWarning, match=r"1 image could not be read"):
        retriever = Retriever(thumbnails, hkse, AWCCA(params=(5.0, 5.0))).fit(damaged)
    assert len(retriever.search(few.captions[9], k=100)) == 29
    gone = PairedDataset(few.image_ids[:1], few.captions[:1], [0], (), None, paths[:1])
    with pytest.raises(InputError, match="none of 1 image could be read"):
        Retriever(thumbnails, lambda sentences: np.ones((len(sentences), 3))).fit(gone)
    assert not hasattr(hkse, "vectors_")  # the one that was given is not fitted in place


def test_only_words_of_training_texts_are_known(drawn, thumbnails):
    """Queries may use what training texts taught, not what test texts would have."""
    drawn = drawn.select(np.r_[drawn.image_rows("train")[:30], drawn.image_rows("test")[:3]])
    captions = [*drawn.captions]
    place = next(j for j, i in enumerate(drawn.pairing) if drawn.splits[i] == "test")
    captions[place] = "xylophone"
    odd = PairedDataset(
        drawn.image_ids, tuple(captions), drawn.pairing, drawn.caption_ids, drawn.splits, drawn.paths
    )
    retriever = Retriever(thumbnails, HKSE(word="lin", sentence="lin"), AWCCA(params=(5.0, 5.0))).fit(odd)
    with pytest.raises(InputError, match="xylophone"):
        retriever.search("xylophone")
    with pytest.raises(InputError, match="xylophone"):
        retriever.search(["a red star", "xylophone"])
    # As an item it stands for the mean of all, and does no harm.
    assert "xylophone" in {hit.text for hit in retriever.annotate(drawn.paths[0], k=10**6)}


def test_encoded_features_are_kept_and_used_again(drawn, thumbnails, tmp_path):
    few, folder = drawn.select(range(20)), tmp_path / "features"
    model, hkse = AWCCA(params=(5.0, 5.0)), HKSE(word="lin", sentence="lin")
    first = Retriever(thumbnails, hkse, model).fit(few, features=folder)
    written = {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")}
    assert len(written) == 2
    second = Retriever(thumbnails, hkse, model).fit(few, features=folder)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.npy")} == written
    assert second.search(few.captions[0]) == first.search(few.captions[0])


def test_fitting_images_needs_encoders(drawn):
    with pytest.raises(InputError, match="no image encoder for these pairs"):
        Retriever(None, "hkse").fit(drawn.select(range(20)))
    with pytest.raises(InputError, match="no text encoder for these pairs"):
        Retriever("pyramid", None).fit(drawn.select(range(20)))


@pytest.mark.filterwarnings("ignore:.*lies? far")
def test_many_images_are_encoded_in_batches(thumbnails, rng):
    x = rng.random((60, thumbnails.dimension))
    model = AWCCA(params=(5.0, 5.0))
    retriever = Retriever.from_features(x, x[:, :7], image_encoder=thumbnails, model=model)
    picture = Image.new("RGB", (8, 8), "red")
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    ids = retriever.add([buffer.getvalue()] * 300)
    assert len(set(ids)) == 300
    assert len(retriever.search(x[0, :7], k=1000)) == 360
