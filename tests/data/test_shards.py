"""Shards give back the arrays that were written, from files of every format, local and remote."""

import json
import pickle
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych._checks import InputError
from diptych.cca import Moments
from diptych.data import shards
from diptych.data._files import read_bytes
from tolerance import assert_close

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")


def views(n=40, captions=3, m_x=5, m_y=4, dtype=np.float16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, m_x)).astype(dtype), rng.normal(size=(n * captions, m_y)).astype(dtype)


def joined(blocks):
    """Return all rows of y, and the row of x that each belongs to."""
    pairs = []
    for block in blocks:
        x, y, *pairing = pickle.loads(pickle.dumps(block)).load()
        pairs.append((x[pairing[0]] if pairing else x, y))
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def write_npy(place, array):
    with fsspec.open(f"{place}.npy", "wb") as file:
        np.save(file, array)
    return f"{place}.npy"


def write_parquet(place, array, fixed=True, groups=16, **more):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pq = pytest.importorskip("pyarrow.parquet")

    def column(rows):
        flat = pa.array(rows.ravel())
        if fixed:
            return pa.FixedSizeListArray.from_arrays(flat, rows.shape[1])
        return pa.ListArray.from_arrays(np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32), flat)

    table = pa.table({"vector": column(array), **{name: column(rows) for name, rows in more.items()}})
    with fsspec.open(f"{place}.parquet", "wb") as file:
        pq.write_table(table, file, row_group_size=groups)
    return f"{place}.parquet"


def write_zarr(place, array, version=3, **more):
    zarr = pytest.importorskip("zarr", reason="zarr is not installed")
    place = f"{place}.zarr"
    local = place.removeprefix("file://")
    shape = {"shape": array.shape, "dtype": array.dtype, "chunks": (8, 3)}
    store = zarr.storage.FsspecStore.from_url(local) if "://" in local else local
    zarr.create_array(store, zarr_format=version, **shape, **more)[:] = array
    return place


WRITERS = {
    "npy": write_npy,
    "parquet": write_parquet,
    "lists": partial(write_parquet, fixed=False),
    "zarr": write_zarr,
    "old zarr": partial(write_zarr, version=2),
    "sharded zarr": partial(write_zarr, shards=(16, 6)),
}


@pytest.fixture(params=["file", "memory"])
def place(request, tmp_path):
    """A folder on disk, and one that only fsspec can reach."""
    if request.param == "file":
        yield f"file://{tmp_path}"
    else:
        yield f"memory://{tmp_path.name}"
        fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_every_format_gives_back_what_was_written(place, write):
    x, y = views()
    names = write(f"{place}/x", x), write(f"{place}/y", y)
    for rows in (None, 7, 24):
        blocks = shards(*names, 3, rows=rows)
        read_x, read_y = joined(blocks)
        np.testing.assert_array_equal(read_x, np.repeat(x, 3, axis=0))
        np.testing.assert_array_equal(read_y, y)
        assert (blocks.n_x, blocks.n_y, blocks.widths) == (40, 120, (5, 4))
        assert rows is None or all(len(block.load()[1]) <= rows for block in blocks)
        assert len(blocks) > 1 or rows is None


def test_both_views_may_be_columns_of_the_same_files(place):
    x, y = views(captions=1)
    for part in range(2):
        half = slice(part * 20, part * 20 + 20)
        write_parquet(f"{place}/pairs-{part}", x[half], text=y[half])
    files = f"{place}/pairs-*.parquet"
    read_x, read_y = joined(shards(files, files, x_key="vector", y_key="text", rows=9))
    np.testing.assert_array_equal(read_x, x)
    np.testing.assert_array_equal(read_y, y)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=5),
    st.lists(st.integers(0, 30), min_size=0, max_size=4),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_rows_stay_together_however_files_and_blocks_are_cut(tmp_path_factory, sizes, cuts, captions, rows):
    folder = tmp_path_factory.mktemp("cut")
    n = sum(sizes)
    x, y = views(max(n, 1), captions)
    x, y = x[:n], y[: n * captions]
    edges = sorted(min(cut, len(y)) for cut in cuts)
    x_names = [write_npy(folder / f"x{i}", part) for i, part in enumerate(np.split(x, np.cumsum(sizes)[:-1]))]
    y_names = [write_npy(folder / f"y{i}", part) for i, part in enumerate(np.split(y, edges))]
    y_sizes = np.diff([0, *edges, len(y)])
    if n == 0 or (len(sizes) == len(y_sizes) and list(y_sizes) != [size * captions for size in sizes]):
        with pytest.raises(InputError, match=r"have no rows|expected"):
            shards(x_names, y_names, captions, rows=rows)
        return
    blocks = shards(x_names, y_names, captions, rows=rows)
    read_x, read_y = joined(blocks)
    np.testing.assert_array_equal(read_x, np.repeat(x, captions, axis=0))
    np.testing.assert_array_equal(read_y, y)
    assert all(len(block.load()[1]) <= max(rows, captions) for block in blocks)


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.booleans())
def test_pairings_by_number_give_the_moments_of_the_whole(tmp_path_factory, seed, rows, ordered):
    folder = tmp_path_factory.mktemp("numbers")
    rng = np.random.default_rng(seed)
    x, y = views(10, 3, dtype=np.float64, seed=seed)
    pairing = rng.integers(0, 10, 30)
    pairing = np.sort(pairing) if ordered else pairing
    names = [write_npy(folder / name, array) for name, array in (("x", x), ("y", y), ("p", pairing))]
    total = Moments.zero(5, 4)
    for block in shards(names[0], names[1], names[2], rows=rows):
        total.update(*block.load())
    whole = Moments.of(x, y, pairing)
    assert total.count == whole.count
    for name in ("xx", "yy", "xy"):
        assert_close(getattr(total, name), getattr(whole, name), total.count)


def test_pairings_may_be_arrays_and_belong_to_files(place):
    x, y = views(20, 2)
    numbers = np.arange(20) // 2
    for part in range(2):
        write_npy(f"{place}/x-{part}", x[part * 10 : part * 10 + 10])
        write_npy(f"{place}/y-{part}", y[part * 20 : part * 20 + 20])
        write_npy(f"{place}/p-{part}", numbers)
    for pairing in ([numbers, numbers], f"{place}/p-*.npy"):
        blocks = shards(f"{place}/x-*.npy", f"{place}/y-*.npy", pairing, rows=6)
        np.testing.assert_array_equal(joined(blocks)[0], np.repeat(x, 2, axis=0))
        assert blocks.n_y == 40


def test_local_arrays_are_mapped_and_not_read(tmp_path):
    x, y = views(captions=1)
    block = shards(write_npy(tmp_path / "x", x), write_npy(tmp_path / "y", y))[0]
    assert all(isinstance(view, np.memmap) for view in block.load())


def test_only_the_rows_of_a_block_are_fetched_from_a_remote_file(monkeypatch):
    x, y = views(4000, 1)
    names = [write_npy(f"memory://fetched/{name}", array) for name, array in (("x", x), ("y", y))]
    block = shards(*names, rows=10)[3]
    fetched = []

    def counted(*arguments):
        fetched.append(read_bytes(*arguments))
        return fetched[-1]

    monkeypatch.setattr("diptych.data._matrix_files.read_bytes", counted)
    np.testing.assert_array_equal(block.load()[0], x[30:40])
    assert [len(part) for part in fetched] == [10 * 4 * 2, 10 * 5 * 2]


def test_the_fingerprint_changes_with_the_files_and_the_cut(place):
    x, y = views(captions=1)
    names = [write_npy(f"{place}/{name}", array) for name, array in (("x", x), ("y", y))]
    first = shards(*names, rows=10)
    assert shards(*names, rows=10).fingerprint == first.fingerprint
    assert shards(*names, rows=20).fingerprint != first.fingerprint
    assert first[1:].fingerprint not in (first.fingerprint, first[:-1].fingerprint)
    write_npy(f"{place}/x", x + 1)
    assert shards(*names, rows=10).fingerprint != first.fingerprint


def test_slices_are_shards_too(tmp_path):
    x, y = views()
    blocks = shards(write_npy(tmp_path / "x", x), write_npy(tmp_path / "y", y), 3, rows=12)
    training, (held,) = blocks[:-1], blocks[-1:]
    assert len(training) == len(blocks) - 1
    assert training.n_y + len(held.load()[1]) == 120


class TestBadInput:
    def test_files_that_do_not_fit_together(self, tmp_path):
        for name, rows, width in (
            *(("x", 40, 5), ("y", 120, 4), ("empty", 0, 3)),
            *(("a0", 10, 5), ("a1", 10, 5), ("b0", 9, 4), ("b1", 11, 4)),  # as many rows in all
            *(("c0", 3, 2), ("c1", 3, 4)),
        ):
            write_npy(tmp_path / name, np.ones((rows, width)))
        for x, y, message in (
            ("x.npy", "y.npy", r"x.npy has 40 rows and .*y.npy has 120; expected 40"),
            ("a*.npy", "b*.npy", r"a0.npy has 10 rows and .*b0.npy has 9"),
            ("c*.npy", "y.npy", r"c1.npy has 4 columns and .*c0.npy has 2"),
            ("empty.npy", "empty.npy", "have no rows"),
        ):
            with pytest.raises(InputError, match=message):
                shards(tmp_path / x, tmp_path / y)
        with pytest.raises(InputError, match="the list of files is empty"):
            shards([], [])

    @pytest.mark.parametrize("where", ["{}", "memory://objects"])
    def test_objects_are_never_unpickled(self, tmp_path, where):
        place = where.format(tmp_path)
        with fsspec.open(f"{place}/x.npy", "wb") as file:
            np.save(file, np.array([[Bomb()]], object), allow_pickle=True)
        with pytest.raises(InputError, match=r"x.npy could not be read .*(pickle|Python objects)"):
            shards(f"{place}/x.npy", f"{place}/x.npy")

    @pytest.mark.parametrize(
        "array", [np.ones(3), np.ones((2, 2, 2)), np.ones((2, 2), "U3"), np.ones((3, 0))]
    )
    def test_anything_but_a_matrix_of_numbers(self, place, array):
        name = write_npy(f"{place}/x", array)
        with pytest.raises(InputError, match=r"x.npy .*expected a matrix"):
            shards(name, name)

    def test_missing_files(self, place):
        for name in ("x.npy", "x-*.npy", "x.parquet", "x.zarr"):
            with pytest.raises(InputError, match="x"):
                shards(f"{place}/{name}", f"{place}/{name}")

    @pytest.mark.parametrize(
        ("pairing", "message"),
        [
            (0, "is below 1"),
            (np.arange(119), "expected 120"),
            (np.full(120, 40), "rows 0 to 39"),
            (np.full(120, -1), "reaches from -1"),
            (np.zeros(120), "whole numbers"),
            ([np.zeros(120, int)] * 2, "2 pairings for 1 files"),
        ],
    )
    def test_invalid_pairings(self, tmp_path, pairing, message):
        names = [write_npy(tmp_path / name, view) for name, view in zip("xy", views(), strict=True)]
        with pytest.raises(InputError, match=message):
            shards(*names, pairing)

    @pytest.mark.parametrize(
        ("library", "name", "package"),
        [
            ("fsspec.core", "memory://x.npy", "fsspec"),
            ("pyarrow.parquet", "x.parquet", "pyarrow"),
            ("zarr", "x.zarr", "zarr"),
        ],
    )
    def test_a_library_that_is_not_installed(self, monkeypatch, library, name, package):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(InputError, match=rf'pip install .*"{package}>='):
            shards(name, name)

    def test_an_unknown_protocol(self):
        with pytest.raises(InputError, match="nowhere://x.npy cannot be reached"):
            shards("nowhere://x.npy", "nowhere://x.npy")

    def test_a_column_that_is_not_there(self, tmp_path):
        x, y = views(captions=1)
        name = write_parquet(tmp_path / "pairs", x, text=y)
        with pytest.raises(InputError, match=r"no column 'sound' .*vector, text"):
            shards(name, name, x_key="sound", y_key="text")
        with pytest.raises(InputError, match=r"2 columns of vectors \(vector, text\)"):
            shards(name, name)

    def test_vectors_of_unequal_length(self, tmp_path):
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        for rows in ([[1.0, 2.0], [3.0]], [[1.0, 2.0], None]):
            pq.write_table(pa.table({"v": pa.array(rows)}), tmp_path / "x.parquet")
            block = shards(tmp_path / "x.parquet", tmp_path / "x.parquet")[0]
            with pytest.raises(InputError, match=r"x.parquet: column 'v' has vectors of other lengths"):
                block.load()

    def test_large_row_groups_and_chunks(self, tmp_path):
        x, y = views(captions=1)
        for name in (write_parquet(tmp_path / "x", x), write_zarr(tmp_path / "x", x)):
            with pytest.raises(InputError, match=r"at most 10 are read at once"):
                shards(name, name, max_bytes=10)

    @pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
    def test_errors_name_a_file_that_was_damaged_later(self, tmp_path, write):
        x, y = views(captions=1)
        block = shards(write(tmp_path / "x", x), write_npy(tmp_path / "y", y), rows=10)[2]
        name = block.x.matrix.name
        path = tmp_path / name.rsplit("/", 1)[1]
        chunks = [file for file in path.rglob("*") if file.is_file() and "zarr" not in file.name]
        for file in [path] if path.is_file() else chunks:
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 3])
        with pytest.raises(InputError, match=rf"{path.name}.*could not be read|{path.name}.*damaged"):
            block.load()


class Bomb:
    """Fails the test if it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a file was unpickled",)


INNER = {"chunk_shape": [8, 3], "codecs": [{"name": "numcodecs.pickle"}], "index_codecs": []}


class TestZarrMetadata:
    @pytest.mark.parametrize(
        ("version", "changes", "message"),
        [
            (2, {"compressor": {"id": "base64"}}, "the codec 'base64', which is not read"),
            (2, {"filters": [{"id": "pickle"}]}, "pickle"),
            (2, {"compressor": {"id": "pickle"}}, "pickle"),
            (3, {"codecs": [{"name": "sharding_indexed", "configuration": INNER}]}, "'numcodecs.pickle'"),
            (2, {"dtype": "|O"}, "could not be read"),
            (2, {"dtype": [["a", "<f4"]]}, "could not be read"),
            (2, {"dtype": "|b1", "fill_value": False}, "expected a matrix of plain numbers"),
        ],
    )
    def test_codecs_and_types_that_could_run_code_are_refused(self, tmp_path, version, changes, message):
        name = write_zarr(tmp_path / "x", views()[0], version=version)
        file = tmp_path / "x.zarr" / ("zarr.json" if version == 3 else ".zarray")
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
        with pytest.raises(InputError, match=message):
            shards(name, name)

    def test_an_array_in_a_group_is_named_and_stays_inside(self, tmp_path):
        zarr = pytest.importorskip("zarr")
        group = zarr.open_group(tmp_path / "both.zarr", mode="w")
        x, y = views(captions=1)
        for name, array in (("x", x), ("y", y)):
            group.create_array(name, data=array, chunks=(8, 4))
        blocks = shards(tmp_path / "both.zarr", tmp_path / "both.zarr", x_key="x", y_key="y")
        np.testing.assert_array_equal(joined(blocks)[1], y)
        with pytest.raises(InputError, match="is a Zarr group"):
            shards(tmp_path / "both.zarr", tmp_path / "both.zarr")
        with pytest.raises(InputError, match="leads out"):
            shards(tmp_path / "both.zarr", tmp_path / "both.zarr", x_key="../other.zarr", y_key="y")
