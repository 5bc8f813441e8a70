"""Encoders can be sent to other processes; a network is opened there from the same file."""

import pickle

import numpy as np
import pytest

from diptych import HKSE, InputError
from diptych.encoders import OnnxEncoder, PyramidDescriptor, sentence_encoder
from example_files import write_network
from image_files import make_images


def test_encoders_can_be_pickled(tmp_path):
    images, captions = make_images(3), ["a dog runs", "a dog jumps", "a cat sleeps"]
    write_network(tmp_path / "colours.onnx")
    for encoder in (PyramidDescriptor(), OnnxEncoder(tmp_path / "colours.onnx", threads=1)):
        again = pickle.loads(pickle.dumps(encoder))
        assert (again.fingerprint, again.dimension) == (encoder.fingerprint, encoder.dimension)
        np.testing.assert_array_equal(again.encode(images), encoder.encode(images))
    text = sentence_encoder(HKSE(word_features=8, sentence_features=4).fit(captions))
    again = pickle.loads(pickle.dumps(text))
    assert again.fingerprint == text.fingerprint
    np.testing.assert_array_equal(again.encode(captions), text.encode(captions))


def test_a_network_that_changed_is_refused(tmp_path):
    onnx, path = pytest.importorskip("onnx"), tmp_path / "colours.onnx"
    write_network(path)
    sent = pickle.dumps(OnnxEncoder(path))
    network = onnx.load(path)
    network.doc_string = "another network"
    onnx.save(network, path)
    with pytest.raises(InputError, match=r"colours.onnx is not the same as"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(InputError, match=r"colours.onnx does not exist"):
        pickle.loads(sent)
