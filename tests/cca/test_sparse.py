"""Sparse views give the model of the dense ones, and are never made dense."""

import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from diptych import AWCCA, InputError, Retriever
from diptych.cca import Moments, moments_from_spectra, spectra
from diptych.cca._sparse import SparseVectors
from diptych.cca._streaming import ArrayBlocks, Preparation, sum_blocks
from diptych.cca._weighting import normalize
from diptych.scenes import make_scenes
from engines import InTree
from tolerance import assert_close

PARTS = ("x_mean", "y_mean", "xx", "yy", "xy")
FORMATS = ["csr_matrix", "csr_array", "csc_array", "coo_matrix", "coo_array", "lil_array", "dok_array"]


def make_sparse(seed, n_x, m_x, n_y=None, m_y=10, share=0.05, hidden=5):
    """Two sparse views of a hidden cause, with a pairing."""
    rng = np.random.default_rng(seed)
    n_y = n_x if n_y is None else n_y
    pairing = np.concatenate([np.arange(n_x), rng.integers(0, n_x, n_y - n_x)])
    cause = rng.normal(size=(n_x, hidden))

    def view(cause, width):
        values = cause @ rng.normal(size=(hidden, width)) + rng.normal(size=(len(cause), width))
        cut = np.quantile(values, 1.0 - share)
        return scipy.sparse.csr_array(np.where(values > cut, values - cut, 0.0))

    return view(cause, m_x), view(cause[pairing], m_y), pairing


def dense(view):
    return view.toarray() if scipy.sparse.issparse(view) else view


def assert_same_moments(result, expected, terms, condition=1.0):
    for name in PARTS:
        mine, its = getattr(result, name), getattr(expected, name)
        assert type(mine) is np.ndarray
        assert_close(mine, its, terms, magnitude=max(1e-300, np.abs(its).max()), condition=condition)


@given(
    seed=st.integers(0, 2**32 - 1),
    n_x=st.integers(2, 30),
    more=st.integers(0, 40),
    widths=st.tuples(st.integers(1, 50), st.integers(1, 50)),
    share=st.sampled_from([0.0, 0.02, 0.3, 1.0]),
    which=st.sampled_from(["x", "y", "both"]),
    weighted=st.booleans(),
    block_bytes=st.sampled_from([64, 2000, 10**7]),
)
def test_moments_are_those_of_dense_views(seed, n_x, more, widths, share, which, weighted, block_bytes):
    x, y, pairing = make_sparse(seed, n_x, widths[0], n_x + more, widths[1], share)
    weights = np.random.default_rng(seed).integers(0, 3, len(pairing)) if weighted else None
    given_x, given_y = x if which != "y" else dense(x), y if which != "x" else dense(y)
    result = Moments.of(given_x, given_y, pairing, sample_weight=weights, block_bytes=block_bytes)
    expected = Moments.of(dense(x), dense(y), pairing, sample_weight=weights)
    assert (result.count, result.total) == (expected.count, expected.total)
    # Entries may be sums that cancel; the terms are as large as the sums of squares.
    scale = max(1.0, *(float(np.abs(dense(view)).max()) ** 2 for view in (x, y))) * max(1, 2 * len(pairing))
    for name in PARTS:
        assert_close(getattr(result, name), getattr(expected, name), 4 * len(pairing), magnitude=scale)


SHAPES = [
    (60, 30, 60, 10),
    (600, 80, 600, 10),  # more rows than columns
    (60, 800, 140, 10),  # fewer rows than columns, rows of X with several of Y
    (60, 20, 60, 800),  # the same of Y
    (60, 800, 60, 800),
    (80, 600, 400, 120),  # Y has many more rows than columns
    (220, 200, 220, 240),  # and X has
]


@pytest.fixture
def never_small(monkeypatch):
    """Small views are not made dense."""
    monkeypatch.setattr("diptych.cca._spectra._SMALL", 0)


def make_shape(shape):
    x, y, pairing = make_sparse(0, *shape, share=0.2)
    return x, y, pairing, np.random.default_rng(1).integers(1, 4, len(pairing))


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def fitted_dense(request):
    """Sparse training and validation pairs, and the model of them as dense ones."""
    x, y, pairing, weights = make_shape(request.param)
    validation = make_sparse(1, 50, request.param[1], 50, request.param[3], share=0.2)
    views = dense(validation[0]), dense(validation[1]), validation[2]
    model = AWCCA(params=(5.0, 5.0))
    model.fit(dense(x), dense(y), pairing, sample_weight=weights, validation=views)
    return (x, y, pairing, weights), validation, model


@pytest.mark.parametrize("which", ["x", "y", "both", "small"])
def test_a_fit_is_that_of_dense_views(fitted_dense, which, monkeypatch):
    (x, y, pairing, weights), validation, other = fitted_dense
    if which != "small":
        monkeypatch.setattr("diptych.cca._spectra._SMALL", 0)
    views = dense(x), dense(y)
    sparse = (x, views[1]) if which == "x" else (views[0], y) if which == "y" else (x, y)
    model = AWCCA(params=(5.0, 5.0))
    model.fit(*sparse, pairing, sample_weight=weights, validation=validation)
    assert model.spectra_.ranks == other.spectra_.ranks
    for mine, its in (
        *zip(model.transform(*sparse), other.transform(*views), strict=True),
        (model.predict(sparse[0]), other.predict(views[0])),
        (model.predict_x(sparse[1]), other.predict_x(views[1])),
        (model.models_["search"].validation_correlations, other.models_["search"].validation_correlations),
    ):
        assert type(mine) is np.ndarray
        # γ keeps the condition of both Gram matrices below that of the largest singular value.
        condition = 10 * max(float(s[0]) ** 2 for s in (other.spectra_.s_x, other.spectra_.s_y))
        mine, its = mine[..., :5], its[..., :5]
        assert_close(mine, its, sum(map(sum, (x.shape, y.shape))), condition=condition)


@pytest.mark.parametrize("shape", SHAPES[1:6], ids=str)
def test_the_selection_is_that_of_dense_views(never_small, shape):
    x, y, pairing, _ = make_shape(shape)
    model, other = (AWCCA(grid=4).fit(*views, pairing) for views in ((x, y), (dense(x), dense(y))))
    for task in ("search", "annotate"):
        mine, its = (fitted.path_.scores[task]["r@1"] for fitted in (model, other))
        # Rounding may decide a tie, of which there are few.
        np.testing.assert_allclose(mine, its, atol=4)
    assert abs(model.score(x, y, pairing) - other.score(dense(x), dense(y), pairing)) < 2


@pytest.mark.parametrize(
    ("shape", "solver"),
    [((300, 40, 300, 10), "gram"), ((600, 80, 600, 10), "auto"), ((60, 800, 60, 10), "auto")],
    ids=str,
)
def test_a_full_column_may_have_a_large_mean(never_small, shape, solver):
    x, y, _ = make_sparse(2, *shape, share=0.2)
    rng = np.random.default_rng(3)
    full = np.stack([1e7 + rng.normal(size=shape[0]), np.full(shape[0], 1e7)], axis=1)
    wide = scipy.sparse.hstack([x, full], format="csr")
    result, expected = (spectra(view, y, solver=solver) for view in (wide, wide.toarray()))
    moments, its = moments_from_spectra(result), moments_from_spectra(expected)
    # The entries themselves are rounded by 1e7 ε.
    np.testing.assert_allclose(moments.xx, its.xx, atol=1e-6 * np.abs(its.xx).max())
    np.testing.assert_allclose(moments.xy, its.xy, atol=1e-6 * np.abs(its.xy).max())
    # The constant column is no direction.
    assert result.ranks == spectra(wide[:, :-1], y, solver=solver).ranks
    model = AWCCA(params=(1.0, 1.0), solver=solver).fit(wide, y)
    other = AWCCA(params=(1.0, 1.0), solver=solver).fit(wide.toarray(), y)
    np.testing.assert_allclose(model.transform(wide), other.transform(wide.toarray()), atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_and_none_is_changed(name):
    x, y, _ = make_sparse(4, 50, 12)
    view = getattr(scipy.sparse, name)(x)
    copy = view.toarray()
    model = AWCCA(params=(1.0, 1.0)).fit(view, y)
    expected = AWCCA(params=(1.0, 1.0)).fit(dense(x), dense(y)).transform(dense(x))
    assert_close(model.transform(view), expected, 50, condition=100)
    np.testing.assert_array_equal(view.toarray(), copy)


def test_repeated_entries_are_added_and_the_input_is_not_changed():
    twice = scipy.sparse.csr_array(
        (np.array([1.0, 3.0, 4.0, 5.0]), np.array([1, 1, 0, 1]), np.array([0, 2, 3, 4])), shape=(3, 2)
    )
    np.testing.assert_allclose(
        AWCCA(params=(1.0, 1.0), normalize=("signed-sqrt", "none")).fit(twice, np.eye(3)).x_mean_,
        [2 / 3, (2 + np.sqrt(5)) / 3],
    )
    np.testing.assert_array_equal(twice.data, [1.0, 3.0, 4.0, 5.0])
    assert AWCCA(params=(1.0, 1.0)).fit(twice.astype(bool), np.eye(3)).x_mean_.dtype == np.float64


@pytest.mark.parametrize("how", ["none", "unit", "signed-sqrt", "sqrt-unit"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normalisation_keeps_a_view_sparse(rng, how, dtype):
    view = scipy.sparse.random_array((20, 30), density=0.1, rng=rng, format="csr", dtype=dtype)
    view = view * (10.0 ** rng.integers(-30, 15, size=(20, 1))).astype(dtype)
    view = scipy.sparse.csr_array(-view)
    result = normalize(view, how)
    assert scipy.sparse.issparse(result)
    assert result.dtype == dtype
    np.testing.assert_allclose(dense(result), normalize(dense(view), how), rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_have_the_precision_of_the_view(never_small, dtype):
    x, y, _ = make_sparse(5, 60, 800, share=0.2)
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    vectors = model.transform(x.astype(dtype), y.astype(dtype))
    assert [array.dtype for array in vectors] == [dtype, dtype]
    assert_close(vectors[0], model.transform(dense(x)), 800, dtype=dtype, condition=10)


def test_blocks_engines_and_float32_take_sparse_views(never_small):
    x, y, pairing = make_sparse(6, 600, 80, 1000, share=0.2)
    whole = Moments.of(dense(x), dense(y), pairing)

    blocks = ArrayBlocks(x, y, pairing, block_bytes=10**4)
    assert len(blocks) > 3
    assert_same_moments(sum_blocks(blocks, Preparation(), engine=InTree()), whole, 1000, condition=10)
    rough = sum_blocks(blocks, Preparation(precision="float32"))
    for name in PARTS:
        np.testing.assert_allclose(getattr(rough, name), getattr(whole, name), atol=1e-4 * whole.xx.max())
    other = x.copy()
    other.data[0] += 1.0
    assert ArrayBlocks(other, y, pairing).fingerprint != blocks.fingerprint
    model = AWCCA(params=(1.0, 1.0)).fit([(x, y, pairing)])
    expected = AWCCA(params=(1.0, 1.0)).fit(x, y, pairing, engine=InTree())
    assert_close(model.transform(x), expected.transform(x), 1000, condition=100)


def test_captions_as_tf_idf_find_each_other():
    """Two captions of one drawn scene, each in words of its own."""
    captions = make_scenes(600).dataset.captions
    first, second = captions[0::5], captions[1::5]
    vectorize = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5)).fit(captions[:2500])
    x, y = vectorize.transform(first), vectorize.transform(second)
    assert x.shape[1] > 2500
    model = AWCCA().fit(x[:500], y[:500])
    assert isinstance(model.spectra_.v_x, SparseVectors)
    plain = AWCCA().fit(x[:500].toarray(), y[:500].toarray())
    score = model.score(x[500:], y[500:])
    assert abs(score - plain.score(x[500:].toarray(), y[500:].toarray())) <= 1
    assert score > 50  # 1 is chance
    copy = pickle.loads(pickle.dumps(model))
    assert_close(copy.transform(x[500:]), model.transform(x[500:]), x.shape[1], condition=10)


def test_a_saved_model_transforms_but_does_not_predict(never_small, tmp_path):
    x, y, _ = make_sparse(7, 60, 800, share=0.2)
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    model.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(x), model.transform(x))
    with pytest.raises(InputError, match="spectra"):
        loaded.predict(x)


@pytest.mark.parametrize(
    ("rows", "columns", "entries"),
    [
        pytest.param(500, 400_000, 150_000, id="wide"),
        pytest.param(700_000, 400, 1_400_000, id="tall", marks=pytest.mark.slow),
    ],
)
def test_a_view_that_would_not_fit_into_memory_as_a_dense_one(rows, columns, entries):
    """The dense view takes 2 GB; the process may use 1 GB more than after its imports."""
    code = f"""
        import resource
        import numpy as np, scipy.sparse
        from diptych import AWCCA
        rng = np.random.default_rng(0)
        AWCCA(grid=2).fit(rng.normal(size=(60, 4)), rng.normal(size=(60, 3)))  # imports everything
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limit = used + 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        entries = {entries}
        at = rng.integers(0, {rows}, entries), rng.integers(0, {columns}, entries)
        x = scipy.sparse.csr_array((rng.random(entries), at), shape=({rows}, {columns}))
        try:
            x.toarray()
        except MemoryError:
            print("too large")
        y = x[:, :30].toarray() + x[:, 30:60].toarray() + 0.01 * rng.normal(size=({rows}, 30))
        model = AWCCA(grid=3, validation_fraction={200 / rows}).fit(x, y)
        print(model.score(x[:200], y[:200]) > 0, model.transform(x[:200]).shape, model.predict(x[:200]).shape)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=300
    )
    assert result.stdout.split("\n")[:2] == ["too large", "True (200, 30) (200, 30)"], result.stderr


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ({"polish": True}, {}),
        ({"selection": "leave-one-out"}, {}),
        ({"selection": "ledoit-wolf"}, {}),
        ({"solver": "svd"}, {}),
        ({}, {"device": "cpu"}),
    ],
    ids=str,
)
def test_what_needs_dense_views_says_so(parameters, arguments):
    x, y, _ = make_sparse(8, 50, 12)
    for views in ((x, dense(y)), (dense(x), y)):
        with pytest.raises(InputError, match="takes dense views"):
            AWCCA(**parameters).fit(*views, **arguments)


def test_too_few_pairs_to_select_on_are_made_dense(rng):
    x = scipy.sparse.csr_array(rng.normal(size=(8, 30)))
    y = rng.normal(size=(8, 3))
    with pytest.warns(UserWarning, match="too few to hold some out"):
        model = AWCCA().fit(x, y)
    with pytest.warns(UserWarning, match="too few to hold some out"):
        expected = AWCCA().fit(dense(x), y)
    assert_close(model.transform(x), expected.transform(dense(x)), 30, condition=100)


def test_a_gram_matrix_that_is_too_large_is_refused():
    rows = scipy.sparse.eye_array(30_000, 25_000, format="csr")
    y = np.arange(30_000.0)[:, None]
    for x, second in ((rows, y), (rows.T.tocsr(), y[:25_000])):
        with pytest.raises(InputError, match=r"20,000.*TruncatedSVD"):
            AWCCA(params=(1.0, 1.0)).fit(x, second)
    with pytest.raises(InputError, match=r"20,000"):
        AWCCA(params=(1.0, 1.0), solver="gram").fit(rows[:100], y[:100])
    with pytest.raises(InputError, match=r"20,000"):
        AWCCA(params=(1.0, 1.0)).fit([(rows[:100], y[:100])])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x, y: m.fit(x * np.nan, y), r"X contains NaN or infinity in \d+ of 50 rows"),
        (lambda m, x, y: m.fit(x.astype(complex), y), "Complex"),
        (lambda m, x, y: m.fit(scipy.sparse.csr_array((50, 12)), y), "every row of X is the same"),
        (
            lambda m, x, y: m.fit(scipy.sparse.csr_array(np.ones((2, 2**19 + 1))), dense(y)[:2]),
            "every row of X is the same",
        ),
        (lambda m, x, y: m.fit(x, y).transform(x[:, :5]), "12 features"),
        (lambda m, x, y: m.fit(x, y).transform(x, device="cpu"), "sparse matrix; give a dense array"),
        (lambda m, x, y: Retriever.from_features(x, y), "sparse matrix; give a dense array"),
    ],
)
def test_wrong_sparse_views_are_explained(call, message):
    x, y, _ = make_sparse(9, 50, 12, share=0.2)
    with pytest.raises(ValueError, match=message):
        call(AWCCA(params=(1.0, 1.0)), x, y)


def test_sparse_torch_tensors_are_refused(rng):
    torch = pytest.importorskip("torch")
    x = torch.as_tensor(rng.normal(size=(20, 3)))
    for sparse in (x.to_sparse(), x.to_sparse_csr()):
        with pytest.raises(
            InputError, match=r"sparse matrix; give a dense array, for example X.to_dense\(\)"
        ):
            AWCCA(params=(1.0, 1.0)).fit(sparse, x)
