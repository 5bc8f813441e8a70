"""Encoded blocks give the features of encoding first and fitting later."""

import pickle
import warnings

import numpy as np
import pytest

from diptych import AWCCA, HKSE
from diptych._checks import DataWarning, InputError
from diptych.cca import Moments
from diptych.data import PairedDataset, encode_images, encode_texts, encoded_blocks, join
from diptych.encoders import (
    FunctionEncoder,
    OnnxEncoder,
    PyramidDescriptor,
    open_image,
    sentence_encoder,
)
from diptych.scenes import make_scenes
from example_files import write_network
from tolerance import assert_close


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return make_scenes(24, size=24).write(tmp_path_factory.mktemp("scenes"))


@pytest.fixture(scope="module")
def hkse(pairs):
    return HKSE(word_features=24, sentence_features=16).fit(pairs.captions)


def small(images):
    return np.array([np.asarray(image.resize((4, 4)), float).ravel() for image in images])


def assert_same_moments(actual, expected):
    """Compare sums of products of float32 features, which are sums over 24 word features."""
    assert actual.count == expected.count
    squares = {
        view: np.diag(getattr(expected, 2 * view)) + expected.count * getattr(expected, f"{view}_mean") ** 2
        for view in "xy"
    }
    for name in ("xx", "yy", "xy"):
        magnitude = np.sqrt(squares[name[0]].max() * squares[name[1]].max())
        assert_close(
            getattr(actual, name), getattr(expected, name), 24, dtype=np.float32, magnitude=magnitude
        )


def moments(blocks):
    total = None
    for block in blocks:
        x, y, pairing = pickle.loads(pickle.dumps(block)).load()
        total = total or Moments.zero(x.shape[1], y.shape[1])
        total.update(x, y, pairing)
    return total


def test_blocks_have_the_moments_of_encoding_first(pairs, hkse, tmp_path):
    image_store = encode_images(pairs, PyramidDescriptor(), tmp_path / "x")
    views = join(pairs, image_store, encode_texts(pairs, sentence_encoder(hkse), tmp_path / "y"))
    expected = Moments.of(views.x, views.y, pairs.pairing)
    for images, workers in ((1, 1), (7, 2), (100, 1)):
        blocks = encoded_blocks(pairs, "pyramid", hkse, images=images, batch_size=3, workers=workers)
        assert_same_moments(moments(blocks), expected)
        assert max(block.pairs.n_images for block in blocks) <= images


def test_a_fit_takes_encoded_blocks(pairs, hkse):
    blocks = encoded_blocks(pairs, FunctionEncoder(small, "small"), hkse, images=6)
    streamed = AWCCA(params=(1.0, 1.0)).fit(blocks)
    x, y, pairing = encoded_blocks(pairs, FunctionEncoder(small, "small"), hkse)[0].load()
    whole = AWCCA(params=(1.0, 1.0)).fit(x, y, pairing)
    assert_close(streamed.spectra_.s_x**2, whole.spectra_.s_x**2, pairs.n_captions)


def test_captions_may_be_in_any_order(pairs, hkse):
    order = np.random.default_rng(0).permutation(pairs.n_captions)
    captions = tuple(pairs.captions[j] for j in order)
    shuffled = PairedDataset(pairs.image_ids, captions, pairs.pairing[order], paths=pairs.paths)
    expected = moments(encoded_blocks(pairs, "pyramid", hkse))
    assert_same_moments(moments(encoded_blocks(shuffled, "pyramid", hkse, images=9)), expected)


def test_images_without_captions_are_in_no_block(pairs, hkse):
    keep = pairs.pairing % 2 == 0
    captions = tuple(text for text, kept in zip(pairs.captions, keep, strict=True) if kept)
    half = PairedDataset(pairs.image_ids, captions, pairs.pairing[keep], paths=pairs.paths)
    blocks = encoded_blocks(half, "pyramid", hkse, images=5)
    assert [name for block in blocks for name in block.pairs.image_ids] == list(pairs.image_ids[::2])


def test_unreadable_images_are_left_out_and_counted(hkse, tmp_path):
    pairs = make_scenes(12, size=32).write(tmp_path)
    for row in (2, 3, 9):
        pairs.paths[row].write_bytes(b"not an image")
    good = pairs.select([row for row in range(12) if row not in (2, 3, 9)])
    with pytest.warns(DataWarning) as caught:
        total = moments(encoded_blocks(pairs, "pyramid", hkse, images=6))
    assert [str(warning.message)[:8] for warning in caught] == ["2 of the", "1 of the"]
    assert_same_moments(total, moments(encoded_blocks(good, "pyramid", hkse)))


def test_a_block_without_a_readable_image_is_an_error(pairs, hkse, tmp_path):
    missing = PairedDataset(("a.jpg",), ("a dog",), np.array([0]), paths=(tmp_path / "a.jpg",))
    with pytest.raises(InputError, match=r"of 1 image, none .*a.jpg does not exist"):
        encoded_blocks(missing, "pyramid", hkse)[0].load()


def test_the_fingerprint_changes_with_images_captions_and_encoders(hkse, tmp_path):
    pairs = make_scenes(6, size=32).write(tmp_path)
    first = encoded_blocks(pairs, "pyramid", hkse).fingerprint
    assert encoded_blocks(pairs, "pyramid", hkse).fingerprint == first
    changed = [
        encoded_blocks(pairs, FunctionEncoder(small, "small"), hkse),
        encoded_blocks(pairs, "pyramid", hkse, images=3)[:1],
        encoded_blocks(pairs, "pyramid", lambda texts: np.array([[len(t), 1.0] for t in texts])),
        encoded_blocks(pairs, "pyramid", lambda texts: np.array([[len(t), 2.0] for t in texts])),
    ]
    prints = {first, *(blocks.fingerprint for blocks in changed)}
    assert len(prints) == 5
    pairs.paths[0].write_bytes(pairs.paths[1].read_bytes())
    assert encoded_blocks(pairs, "pyramid", hkse).fingerprint not in prints


def test_encoders_can_be_pickled(pairs, hkse, tmp_path):
    images = [open_image(path) for path in pairs.paths[:3]]
    write_network(tmp_path / "colours.onnx")
    for encoder in (PyramidDescriptor(), OnnxEncoder(tmp_path / "colours.onnx", threads=1)):
        again = pickle.loads(pickle.dumps(encoder))
        assert (again.fingerprint, again.dimension) == (encoder.fingerprint, encoder.dimension)
        np.testing.assert_array_equal(again.encode(images), encoder.encode(images))
    text = sentence_encoder(hkse)
    again = pickle.loads(pickle.dumps(text))
    assert again.fingerprint == text.fingerprint
    np.testing.assert_array_equal(again.encode(list(pairs.captions)), text.encode(list(pairs.captions)))


def test_a_network_that_changed_is_refused(tmp_path):
    onnx, path = pytest.importorskip("onnx"), tmp_path / "colours.onnx"
    write_network(path)
    sent = pickle.dumps(OnnxEncoder(path))
    network = onnx.load(path)
    network.doc_string = "another network"
    onnx.save(network, path)
    with pytest.raises(InputError, match=r"colours.onnx.* is not the same as"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(InputError, match=r"colours.onnx does not exist"):
        pickle.loads(sent)


def test_settings_and_pairs_that_cannot_be_encoded(pairs, hkse):
    for name in ("images", "batch_size", "workers", "max_pixels"):
        with pytest.raises(InputError, match=f"{name}=0 is below 1"):
            encoded_blocks(pairs, "pyramid", hkse, **{name: 0})
    nowhere = PairedDataset(pairs.image_ids, pairs.captions, pairs.pairing)
    with pytest.raises(InputError, match="have no image paths"):
        encoded_blocks(nowhere, "pyramid", hkse)
    silent = PairedDataset(pairs.image_ids, (), np.empty(0, int), paths=pairs.paths)
    with pytest.raises(InputError, match="no captions"):
        encoded_blocks(silent, "pyramid", hkse)


def test_readable_images_give_no_warning(pairs, hkse):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded_blocks(pairs, "pyramid", hkse)[0].load()
