"""The paper's filters, those of one's own, and γ by shrinkage."""

import numpy as np
import pytest
import sklearn.covariance
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.cca import SpectralFilter, Tikhonov, TruncatedSVD, g_hard, g_soft, regularized_cca, spectra
from diptych.cca._filters import CustomFilter, make_filters, scale_filter, shrinkage, shrinkage_gammas
from diptych.cca.selection import make_grid, make_problem, regularization_path
from diptych.ranking import metric
from generated_pairs import make_pairs

S = np.array([5.0, 3.0, 1.0, 0.5])


def test_soft_and_hard_filters_are_those_of_the_paper():
    np.testing.assert_allclose(g_soft(S, 3.0), S / np.sqrt(S**2 + 9))
    np.testing.assert_array_equal(g_hard(S, 3.0), [1, 1, 0, 0])
    assert g_soft(np.zeros(1), 0.0) == 0.0


def test_denominators_are_the_filters_of_theorem_1_3():
    np.testing.assert_allclose(S / np.sqrt(Tikhonov(4.0).denominators(S)), g_soft(S, 2.0))
    kept = S[:3] / np.sqrt(TruncatedSVD(3).denominators(S))
    np.testing.assert_allclose(kept, g_hard(S, S[2])[:3])


def test_guided_filters_take_gamma_from_the_singular_value_at_k():
    assert make_filters("guided", (2, 3), S, S) == (Tikhonov(9.0), Tikhonov(1.0))
    assert make_filters("tsvd", (2, 3), S, S) == (TruncatedSVD(2), TruncatedSVD(3))
    assert make_filters("tikhonov", (2, 3), S, S) == (Tikhonov(2.0), Tikhonov(3.0))


def test_gamma_grows_with_the_number_of_pairs_and_k_does_not():
    by_pair, plain = (
        CustomFilter(SpectralFilter(ridge, per_pair=per_pair), 2.0) for per_pair in (True, False)
    )
    assert scale_filter(Tikhonov(2.0), 3.0) == Tikhonov(6.0)
    assert scale_filter(TruncatedSVD(2), 3.0) == TruncatedSVD(2)
    assert scale_filter(by_pair, 3.0).parameter == 6.0
    assert scale_filter(plain, 3.0) == plain


@pytest.mark.parametrize(
    ("call", "words"),
    [
        *((lambda gamma=gamma: Tikhonov(gamma), "γ") for gamma in (-1.0, np.nan, np.inf, "much")),
        *((lambda k=k: TruncatedSVD(k), "k") for k in (0, -2, 1.5, np.inf, np.nan, None)),
        (lambda: TruncatedSVD(5).denominators(S), "rank of its view, 4"),
    ],
)
def test_a_wrong_parameter_is_refused(call, words):
    with pytest.raises(InputError, match=words):
        call()


TASKS = ("search", "annotate")


def ridge(squares, gamma):
    return 1.0 / (squares + gamma)


def landweber(squares, steps):
    return (1.0 - (1.0 - squares / squares[0]) ** steps) / squares


def band(squares, first):
    """Drops the strongest directions: zeros that are not at the end."""
    return np.where(np.arange(len(squares)) < first, 0.0, 1.0 / squares)


EARLY = SpectralFilter(landweber, grid=lambda squares, points: 2.0 ** np.arange(points))


def test_a_custom_tikhonov_filter_equals_tikhonov():
    training, validation = make_pairs(0)
    named = AWCCA(grid=([1.0, 10.0, 100.0, 1e3, 1e4], [2.0, 20.0, 200.0, 2e3, 2e4]))
    for how in (ridge, SpectralFilter(ridge, per_pair=True)):
        own = clone(named).set_params(filter=how)
        for pairs in ({"validation": validation}, {}):
            one, other = clone(named).fit(*training, **pairs), clone(own).fit(*training, **pairs)
            assert one.path_.choice == other.path_.choice
            assert one.path_.route == other.path_.route == "screened"
            for task in TASKS:
                np.testing.assert_array_equal(one.path_.scores[task]["r@1"], other.path_.scores[task]["r@1"])
            if how is ridge and not pairs:
                continue  # Only the filter knows that its parameter grows with the number of pairs.
            for task in TASKS:
                np.testing.assert_allclose(
                    one.models_[task].x_weights, other.models_[task].x_weights, rtol=1e-9, atol=1e-12
                )
                assert other.models_[task].filter_x.parameter == pytest.approx(
                    one.models_[task].filter_x.gamma
                )


def test_the_landweber_filter_equals_the_iteration():
    (x, y, pairing), _ = make_pairs(1)
    fitted = spectra(x, y, pairing)
    xc, yc = x[pairing] - x[pairing].mean(0), y - y.mean(0)
    inverses = []
    for view, steps in ((xc, 7), (yc, 12)):
        gram = view.T @ view
        step = 1.0 / np.linalg.eigvalsh(gram)[-1]
        inverse = np.zeros_like(gram)
        for _ in range(steps):
            inverse += step * (np.eye(len(gram)) - gram @ inverse)
        inverses.append(inverse)
    # U and V satisfy UΣVᵀ = B_x XᵀY B_y, with B the iterated inverses.
    model = regularized_cca(fitted, CustomFilter(EARLY, 7), CustomFilter(EARLY, 12), tolerance=0.0)
    product = (model.x_weights * model.correlations) @ model.y_weights.T
    np.testing.assert_allclose(product, inverses[0] @ xc.T @ yc @ inverses[1], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        model.x_weights.T @ np.linalg.pinv(inverses[0]) @ model.x_weights, np.eye(11), atol=1e-8
    )


@pytest.mark.parametrize("weights", [EARLY, SpectralFilter(band)])
def test_every_route_agrees(backend, weights):
    training, (x, y, pairing) = make_pairs(2, n=120, noise=1.0)
    fitted = spectra(*training)
    values = (
        ([1, 2, 4, 8, 16, 64], [1, 3, 9, 27, 81]) if weights is EARLY else ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4])
    )
    grid = make_grid("tikhonov", values, fitted, weights)
    assert grid.kind == "custom"
    paths = {
        route: regularization_path(
            make_problem(fitted, (x, y, pairing)), fitted, grid, metric("r@1"), route=route
        )
        for route in ("exact", "textbook", "screened")
    }
    there = make_problem(fitted, (backend(x), backend(y), backend(pairing)))
    paths["backend"] = regularization_path(there, fitted, grid, metric("r@1"))
    for name, path in paths.items():
        assert path.choice == paths["exact"].choice, name
        for task in TASKS:
            known = path.exact[task]
            np.testing.assert_array_equal(
                path.scores[task]["r@1"][known], paths["exact"].scores[task]["r@1"][known]
            )


def test_custom_values_are_ordered_by_how_much_they_keep(trained_early):
    grid = trained_early.path_.grid
    assert grid.x.tolist() == sorted(grid.x.tolist())  # few steps are strong regularisation
    training, _ = make_pairs(0)
    fitted = spectra(*training)
    assert make_grid("tikhonov", ([1, 5, 3], [2]), fitted, SpectralFilter(ridge)).x.tolist() == [5, 3, 1]


@pytest.fixture(scope="module")
def trained_early():
    training, validation = make_pairs(0)
    return AWCCA(filter=EARLY, grid=6).fit(*training, validation=validation)


def test_a_saved_model_transforms_but_needs_the_filter_to_be_fitted_again(tmp_path, trained_early):
    training, validation = make_pairs(0)
    trained_early.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    for ours, theirs in zip(
        trained_early.transform(*validation[:2]), loaded.transform(*validation[:2]), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    assert str(loaded.models_["search"].filter_x) == str(trained_early.models_["search"].filter_x)
    assert str(loaded.filter) == "landweber"
    with pytest.raises(InputError, match="'landweber' is not saved with a model; to fit it again"):
        loaded.fit(*training, validation=validation)
    again = loaded.set_params(filter=EARLY).fit(*training, validation=validation)
    assert again.path_.choice == trained_early.path_.choice


def test_refitting_keeps_the_parameter_unless_it_is_per_pair():
    from diptych.cca import Moments

    (x, y, pairing), validation = make_pairs(0)
    moments = Moments.of(x, y, pairing)
    for per_pair, factor in ((False, 1.0), (True, 2.0)):
        how = SpectralFilter(ridge, per_pair=per_pair)
        model = AWCCA(filter=how, params=(5.0, 7.0)).fit(x, y, pairing)
        model.refit_moments(moments + moments, moments.count)
        assert model.models_["search"].filter_y.parameter == 7.0 * factor


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (lambda squares, p: -squares, "negative"),
        (lambda squares, p: squares * np.nan, "not finite"),
        (lambda squares, p: 0 * squares, "all 0"),
        (lambda squares, p: squares[:2], "one weight for each"),
    ],
)
def test_wrong_weights_are_refused(weights, words):
    training, _ = make_pairs(0)
    with pytest.raises(InputError, match=words):
        AWCCA(filter=weights, params=(1.0, 1.0)).fit(*training)


def test_a_custom_filter_without_a_grid_is_refused():
    training, validation = make_pairs(0)
    with pytest.raises(InputError, match="one array of parameters for each view"):
        AWCCA(filter=ridge).fit(*training, validation=validation)
    with pytest.raises(InputError, match="choose one of 'tikhonov'"):
        AWCCA(filter="landweber").fit(*training)
    with pytest.raises(InputError, match="functions"):
        SpectralFilter("landweber")
    with pytest.raises(InputError, match="selects Tikhonov's"):
        AWCCA(filter=EARLY, selection="leave-one-out").fit(*training)


@given(seed=st.integers(0, 10_000), n=st.integers(3, 80), p=st.integers(2, 60))
def test_shrinkage_equals_scikit_learns(seed, n, p):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, p)) @ rng.normal(size=(p, p)) + rng.normal(size=p)
    expected = sklearn.covariance.ledoit_wolf_shrinkage(rows), sklearn.covariance.oas(rows)[1]
    assert shrinkage(rows, "ledoit-wolf")[0] == pytest.approx(expected[0], abs=1e-12)
    assert shrinkage(rows, "oas")[0] == pytest.approx(expected[1], abs=1e-12)


@pytest.mark.parametrize("kind", ["ledoit-wolf", "oas"])
def test_tikhonov_with_its_gamma_is_the_shrunk_covariance(rng, kind):
    x, y = rng.normal(size=(50, 8)) @ rng.normal(size=(8, 8)), rng.normal(size=(50, 5))
    gamma = shrinkage_gammas(x, y, np.arange(50), kind)[0]
    function = sklearn.covariance.ledoit_wolf if kind == "ledoit-wolf" else sklearn.covariance.oas
    covariance, delta = function(x)
    centred = x - x.mean(0)
    ours = (centred.T @ centred + gamma * np.eye(8)) / 50 * (1 - delta)
    np.testing.assert_allclose(ours, covariance, atol=1e-10)


@pytest.mark.parametrize("kind", ["ledoit-wolf", "oas"])
def test_a_model_fits_without_validation_pairs(rng, kind):
    training, validation = make_pairs(2, n=120, m_x=60, m_y=50)
    model = AWCCA(selection=kind, metric="r@10").fit(*training)
    assert model.path_ is None
    weakest = AWCCA(params=(1e-9, 1e-9), metric="r@10").fit(*training)
    assert model.score(*validation) > weakest.score(*validation)
    # Pure noise shrinks to a sphere, which is no error.
    AWCCA(selection=kind).fit(rng.normal(size=(6, 30)), rng.normal(size=(6, 20)))


def test_too_few_items_to_hold_out_take_gamma_from_shrinkage(rng):
    x, y = rng.normal(size=(9, 4)), rng.normal(size=(9, 3))
    with pytest.warns(DataWarning, match="9 items are too few to hold some out"):
        model = AWCCA().fit(x, y)
    expected = AWCCA(selection="ledoit-wolf").fit(x, y)
    assert model.models_["search"].filter_x == expected.models_["search"].filter_x
    assert model.path_ is None
    with pytest.raises(InputError, match="too few to choose on"):
        AWCCA(filter="tsvd").fit(x, y)
    with pytest.raises(InputError, match="not between 0 and 1"):
        AWCCA(validation_fraction=2.0).fit(x, y)
