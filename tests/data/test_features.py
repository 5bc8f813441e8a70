import struct
import sys
import zipfile

import numpy as np
import pytest
from safetensors.numpy import save_file

from diptych import InputError
from diptych.data import encode_images, open_features
from diptych.encoders import PyramidDescriptor
from diptych.scenes import make_scenes


@pytest.fixture
def matrix(rng):
    return rng.normal(size=(7, 5)).astype(np.float32)


def test_npy_is_memory_mapped(tmp_path, matrix):
    for name, array in (
        ("c", matrix),
        ("fortran", np.asfortranarray(matrix)),
        ("half", matrix.astype(np.float16)),
    ):
        np.save(tmp_path / f"{name}.npy", array)
        features = open_features(tmp_path / f"{name}.npy")
        assert isinstance(features, np.memmap)
        np.testing.assert_array_equal(features, array)


def test_npz_arrays_are_read_by_name(tmp_path, matrix):
    np.savez(tmp_path / "stored.npz", feats=matrix, ids=np.arange(7))
    np.savez_compressed(tmp_path / "packed.npz", feats=matrix, other=matrix + 1)
    np.testing.assert_array_equal(open_features(tmp_path / "stored.npz"), matrix)
    np.testing.assert_array_equal(open_features(tmp_path / "packed.npz", key="other"), matrix + 1)
    with pytest.raises(InputError, match="2 matrices"):
        open_features(tmp_path / "packed.npz")
    with pytest.raises(InputError, match="no array 'x'"):
        open_features(tmp_path / "packed.npz", key="x")
    with pytest.raises(InputError, match="max_bytes"):
        open_features(tmp_path / "packed.npz", key="feats", max_bytes=100)


def test_a_huge_npz_array_is_refused_before_it_is_read(tmp_path):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000, 64), }"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n"
    with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
        archive.writestr("feats.npy", content)
    with pytest.raises(InputError, match="unpacks to 256,000,000,000,000 bytes"):
        open_features(tmp_path / "f.npz")


def test_safetensors_are_memory_mapped(tmp_path, matrix):
    save_file({"image": matrix, "scale": np.ones(3, np.float32)}, tmp_path / "f.safetensors", {"by": "test"})
    features = open_features(tmp_path / "f.safetensors", rows=7)
    assert isinstance(features, np.memmap)
    np.testing.assert_array_equal(features, matrix)


def test_hdf5_is_mapped_when_contiguous_and_read_when_chunked(tmp_path, matrix):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["group/plain"] = matrix
        file.create_dataset("packed", data=matrix + 1, chunks=(2, 5), compression="gzip")
    plain = open_features(tmp_path / "f.h5", key="group/plain")
    assert isinstance(plain, np.memmap)
    np.testing.assert_array_equal(plain, matrix)
    np.testing.assert_array_equal(open_features(tmp_path / "f.h5", key="packed"), matrix + 1)
    with pytest.raises(InputError, match="max_bytes"):
        open_features(tmp_path / "f.h5", key="packed", max_bytes=100)


def test_hdf5_with_external_storage_is_refused(tmp_path, matrix):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret").write_bytes(bytes(1000))
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("x", (7, 5), "f4", external=[(str(tmp_path / "secret"), 0, 1000)])
    with pytest.raises(InputError, match="other files"):
        open_features(tmp_path / "f.h5")


def test_the_folder_of_a_feature_store_is_opened(tmp_path):
    dataset = make_scenes(4, size=24).write(tmp_path / "scenes")
    store = encode_images(dataset, PyramidDescriptor(), tmp_path / "store")
    np.testing.assert_array_equal(open_features(tmp_path / "store", rows=4), store.features)


class Trap:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


def test_pickles_are_never_loaded(tmp_path):
    trap = np.array([[Trap()]], object)
    np.save(tmp_path / "trap.npy", trap, allow_pickle=True)
    np.savez(tmp_path / "trap.npz", trap=trap)
    for name in ("trap.npy", "trap.npz"):
        with pytest.raises(InputError):
            open_features(tmp_path / name)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".h5"])
def test_damaged_files_are_refused(tmp_path, suffix, matrix):
    if suffix == ".h5":
        pytest.importorskip("h5py")
    path = tmp_path / f"f{suffix}"
    for raw in (b"", b"nonsense" * 40, b"\x93NUMPY\x01\x00\xff\xff{", b"PK\x03\x04" + bytes(60)):
        path.write_bytes(raw)
        with pytest.raises(InputError, match=r"f\."):
            open_features(path)


def test_anything_but_a_matrix_is_refused(tmp_path, matrix):
    np.save(tmp_path / "flat.npy", matrix.ravel())
    np.save(tmp_path / "words.npy", np.array([["a", "b"]]))
    np.save(tmp_path / "good.npy", matrix)
    for name in ("flat.npy", "words.npy"):
        with pytest.raises(InputError, match="expected a matrix"):
            open_features(tmp_path / name)
    with pytest.raises(InputError, match="expected 8"):
        open_features(tmp_path / "good.npy", rows=8)
    for name in ("f.pkl", "f.mat"):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(InputError, match="unknown format"):
            open_features(tmp_path / name)


def test_hdf5_without_h5py_names_the_package(tmp_path, monkeypatch):
    (tmp_path / "f.h5").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(InputError, match=r'pip install "h5py>='):
        open_features(tmp_path / "f.h5")


@pytest.mark.data
def test_the_real_features_are_mapped(real_data):
    features = open_features(real_data / "flickr8k" / "resnet50.npy", rows=8000)
    assert isinstance(features, np.memmap)
    assert features.shape == (8000, 2048)
