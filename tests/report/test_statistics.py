"""Figures of a canonical correlation analysis show the right numbers, and nothing overlaps."""

import dataclasses
from itertools import combinations

import numpy as np
import pytest

from diptych import AWCCA, InputError
from diptych.report import (
    draw_arrows,
    draw_biplot,
    draw_correlations,
    draw_cross_correlations,
    draw_loadings,
    draw_variates,
)
from diptych.stats import (
    bootstrap,
    cross_validated_correlations,
    loadings,
    permutation_test,
)

pytest.importorskip("matplotlib", reason="matplotlib is not installed")

LONG = [
    "a name of a feature that does not fit anywhere at all",
    "$x_1$ & <b>",
    "_hidden",
    "Größe",
    "вес",
    "体重",
]


def make_views(n=40, p=6, q=5, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 2))
    return tuple(hidden @ rng.normal(size=(2, size)) + rng.normal(size=(n, size)) for size in (p, q))


@pytest.fixture(scope="module")
def views():
    return make_views()


@pytest.fixture(scope="module")
def model(views):
    return AWCCA(params=(3.0, 2.0)).fit(*views)


@pytest.fixture(scope="module")
def test(model, views):
    return permutation_test(model, *views, n_permutations=99)


@pytest.fixture(scope="module")
def intervals(model, views):
    return bootstrap(model, *views, n_resamples=50)


def overlapping_texts(figure):
    """Return the pairs of texts that overlap when the figure is drawn; all must be inside it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure).draw()
    shown = [text for legend in figure.legends for text in legend.get_texts()]
    for axes in figure.axes:
        shown += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            shown += [label for place, label in ticks if low <= place <= high]
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown if text.get_text()]
    for words, box in boxes:
        assert min(box.x0, box.y0) >= 0, words
        assert max(box.x1 - figure.bbox.x1, box.y1 - figure.bbox.y1) <= 0, words
    return [
        (words, more)
        for (words, box), (more, next_box) in combinations(boxes, 2)
        if box.padded(-1).overlaps(next_box)
    ]


def find(figure, label):
    """Return the points of what the legend calls so."""
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert label in names
    lines = [line for axes in figure.axes for line in axes.lines if line.get_label() == label]
    return np.concatenate([np.column_stack(line.get_data()) for line in lines])


def test_the_null_distribution_of_another_statistic_is_not_drawn_beside_correlations(model, views, test):
    wilks = permutation_test(model, *views, n_permutations=9, statistic="wilks")
    for each, is_drawn in ((test, True), (wilks, False)):
        figure = draw_correlations(each)
        texts = [text.get_text() for text in figure.legends[0].get_texts()]
        assert any("permuted pairs" in text for text in texts) == is_drawn
        assert overlapping_texts(figure) == []


def test_correlations_and_p_values_are_those_of_the_test(test):
    figure = draw_correlations(test)
    axes = figure.axes[0]
    drawn = np.concatenate(
        [line.get_xydata() for line in axes.lines if str(line.get_label()).startswith("obs")]
    )
    np.testing.assert_allclose(drawn[np.argsort(drawn[:, 0]), 1], test.correlations)
    assert [text.get_text() for text in axes.texts] == [f"{p:.3f}" for p in test.p_corrected]


def test_filled_markers_are_significant(test):
    p_values = np.array([0.01, 0.05, 0.06, *np.ones(len(test.correlations) - 3)])
    figure = draw_correlations(dataclasses.replace(test, p_corrected=p_values))
    np.testing.assert_array_equal(find(figure, "observed, corrected p ≤ 0.05")[:, 0], [1, 2])
    assert find(figure, "observed, corrected p > 0.05")[0, 0] == 3


def test_the_band_has_the_quantiles_of_the_null(test):
    null = np.tile(np.linspace(0.0, 1.0, 101)[:, None], (1, 2)) * [1.0, 0.5]
    two = {name: getattr(test, name)[:2] for name in ("correlations", "p_values", "p_corrected")}
    figure = draw_correlations(dataclasses.replace(test, null=null, **two))
    bars = figure.axes[0].containers[0].patches
    np.testing.assert_allclose([bar.get_y() for bar in bars], [0.05, 0.025])
    np.testing.assert_allclose([bar.get_y() + bar.get_height() for bar in bars], [0.95, 0.475])


def test_intervals_and_held_out_correlations_have_a_panel(test, model, views, intervals):
    held_out = cross_validated_correlations(model, *views, cv=3)
    figure = draw_correlations(test, bootstrap=intervals, cross_validated=held_out)
    np.testing.assert_allclose(find(figure, "held-out pairs, mean")[:, 1], held_out.mean)
    np.testing.assert_allclose(find(figure, "held-out pairs, one fold")[:, 1], held_out.folds.ravel())
    bars = figure.axes[1].containers[0]
    np.testing.assert_allclose(bars.lines[0].get_ydata(), intervals.correlations.estimate)
    ends = np.array(bars.lines[2][0].get_segments())[:, :, 1]
    low = np.minimum(intervals.correlations.low, intervals.correlations.estimate)
    high = np.maximum(intervals.correlations.high, intervals.correlations.estimate)
    np.testing.assert_allclose(ends, np.column_stack([low, high]))


@pytest.mark.parametrize("size", [1, 5, 20, 60])
@pytest.mark.parametrize("panels", [1, 2])
def test_any_number_of_components_is_drawn_without_overlap(test, intervals, size, panels):
    rng = np.random.default_rng(0)
    sigma = np.sort(rng.uniform(size=size))[::-1]
    p_values = np.sort(rng.uniform(0.0001, 1.0, size=size))
    null = rng.uniform(size=(50, size))
    values = {"correlations": sigma, "p_values": p_values, "p_corrected": p_values, "null": null}
    test = dataclasses.replace(test, **values)
    more = {}
    if panels == 2:
        interval = dataclasses.replace(intervals.correlations, estimate=sigma, low=sigma - 0.1, high=sigma)
        more = {"bootstrap": dataclasses.replace(intervals, correlations=interval)}
    assert not overlapping_texts(draw_correlations(test, **more))


def test_loadings_are_sorted_bars(model, intervals):
    result = loadings(model)
    figure = draw_loadings(result, 1, bootstrap=intervals, views=("exercise", "body"))
    assert [axes.get_title() for axes in figure.axes] == ["exercise", "body"]
    for axes, table, interval, prefix in zip(
        figure.axes, (result.x, result.y), (intervals.x_loadings, intervals.y_loadings), "xy", strict=True
    ):
        values = [bar.get_width() for bar in axes.containers[0].patches]
        order = np.argsort(-table[:, 1])
        np.testing.assert_allclose(values, table[order, 1])
        assert [label.get_text() for label in axes.get_yticklabels()] == [f"{prefix}{i}" for i in order]
        ends = np.array(axes.containers[1].lines[2][0].get_segments())[:, :, 0]
        np.testing.assert_allclose(ends[:, 0], np.minimum(interval.low, interval.estimate)[order, 1])
        np.testing.assert_allclose(ends[:, 1], np.maximum(interval.high, interval.estimate)[order, 1])


def test_the_largest_loadings_of_either_sign_are_shown(model):
    result = loadings(model)
    figure = draw_loadings(result, 0, most=2)
    shown = [bar.get_width() for bar in figure.axes[0].containers[0].patches]
    np.testing.assert_allclose(np.sort(np.abs(shown)), np.sort(np.abs(result.x[:, 0]))[-2:])
    assert "2 largest of 6" in figure.axes[0].get_xlabel()


def named_loadings(p, q):
    x, y = make_views(60, p, q)
    result = loadings(AWCCA(params=(5.0, 5.0)).fit(x, y))
    names = [[f"{LONG[i % len(LONG)]} {i}" for i in range(size)] for size in (p, q)]
    return dataclasses.replace(result, feature_names_x=names[0], feature_names_y=names[1])


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")  # a font for Chinese may not be installed
@pytest.mark.parametrize(("p", "q"), [(2, 6), (9, 120)])
def test_long_names_do_not_overlap(p, q):
    result = named_loadings(p, q)
    for figure in (
        draw_loadings(result, 0, views=(LONG[0], LONG[1])),
        draw_loadings(result, 1, most=60),
        draw_biplot(result, most=20, views=(LONG[1], LONG[2])),
    ):
        assert not overlapping_texts(figure)


def test_names_are_not_read_as_formulas():
    result = named_loadings(6, 6)
    labels = [label for axes in draw_loadings(result).axes for label in axes.get_yticklabels()]
    labels += draw_biplot(result, most=12).axes[0].texts
    assert sum("$x_1$" in label.get_text() for label in labels) == 4
    assert not any(label.get_parse_math() for label in labels)


def test_features_that_do_not_vary_are_left_out():
    x, y = make_views()
    x[:, 2] = 1.0
    result = loadings(AWCCA(params=(1.0, 1.0)).fit(x, y))
    assert np.isnan(result.x[2]).all()
    names = [label.get_text() for label in draw_loadings(result).axes[0].get_yticklabels()]
    assert sorted(names) == ["x0", "x1", "x3", "x4", "x5"]
    assert "x2" not in [text.get_text() for text in draw_biplot(result, most=20).axes[0].texts]


def test_the_biplot_has_all_loadings(model):
    result = loadings(model)
    figure = draw_biplot(result, (0, 2), views=("exercise", "body"))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["exercise", "body"]
    points = [line.get_xydata() for line in figure.axes[0].lines]
    for table in (result.x, result.y):
        assert any(p.shape == (len(table), 2) and np.allclose(p, table[:, [0, 2]]) for p in points)


def test_data_frames_are_drawn_with_their_names(views):
    pandas = pytest.importorskip("pandas")
    x, y = (
        pandas.DataFrame(view, columns=[f"{n}{i}" for i in range(view.shape[1])])
        for n, view in zip("ab", views, strict=True)
    )
    model = AWCCA(params=(1.0, 1.0)).set_output(transform="pandas").fit(x, y)
    result = loadings(model)
    figure = draw_biplot(result)
    assert {text.get_text() for text in figure.axes[0].texts} == {*x.columns, *y.columns}
    labels = [label.get_text() for label in draw_loadings(result).axes[1].get_yticklabels()]
    assert sorted(labels) == sorted(y.columns)
    assert len(draw_variates(model, x, y).axes[0].lines[0].get_xdata()) == len(x)


def test_variates_have_their_correlation(model, views):
    x, y = views
    figure = draw_variates(model, x, y, component=1, held_out=make_views(seed=1))
    u, v = figure.axes[0].lines[0].get_data()
    expected = model.models_["search"].train_correlations[1]
    np.testing.assert_allclose(np.corrcoef(u, v)[0, 1], expected)
    np.testing.assert_allclose([u.std(), v.std()], 1.0)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    held = np.corrcoef(*figure.axes[0].lines[1].get_data())[0, 1]
    assert words == [f"40 training pairs: r = {expected:.2f}", f"40 held-out pairs: r = {held:.2f}"]
    assert not overlapping_texts(figure)


def test_variates_of_several_rows_of_y_for_one_of_x():
    x, y = make_views(30)
    pairing = np.repeat(np.arange(15), 2)
    model = AWCCA(params=(1.0, 1.0)).fit(x[:15], y, pairing)
    u, v = draw_variates(model, x[:15], y, pairing).axes[0].lines[0].get_data()
    np.testing.assert_allclose(u[::2], u[1::2])
    np.testing.assert_allclose(np.corrcoef(u, v)[0, 1], model.models_["search"].train_correlations[0])


@pytest.fixture(scope="module")
def held_out():
    u, v = make_views(80, 2, 2, seed=4)
    result = cross_validated_correlations((1.0, 1.0), u, v, cv=2)
    u[:5] = v[:5] = np.nan
    folds = np.concatenate([np.full(5, -1), np.arange(75) % 9])
    return dataclasses.replace(result, held_out_x=u, held_out_y=v, fold_of=folds)


def test_held_out_variates_have_the_regression_line_and_band_of_statsmodels(held_out):
    ols = pytest.importorskip("statsmodels.api").OLS
    figure = draw_variates(held_out, component=1, views=("brain", "behaviour"))
    axes = figure.axes[0]
    assert axes.get_xlabel() == "variate 2 of brain (standard deviations)"
    assert axes.get_ylabel() == "variate 2 of behaviour (standard deviations)"
    u, v = (view[5:, 1] / view[5:, 1].std() for view in (held_out.held_out_x, held_out.held_out_y))
    points, band = axes.collections
    np.testing.assert_allclose(points.get_offsets(), np.column_stack([u, v]))
    colors = points.get_facecolors()
    assert (colors[0] == colors[9]).all()
    assert (colors[0] != colors[1]).any()
    line = axes.lines[0].get_xydata()
    design = np.column_stack([np.ones(101), line[:, 0]])
    fit = ols(v, np.column_stack([np.ones(75), u])).fit()
    expected = fit.get_prediction(design).summary_frame(alpha=0.05)
    np.testing.assert_allclose(line[:, 1], expected["mean"], atol=1e-10)
    vertices = band.get_paths()[0].vertices
    for i in range(0, 101, 20):
        at = vertices[np.isclose(vertices[:, 0], line[i, 0]), 1]
        limits = expected[["mean_ci_lower", "mean_ci_upper"]].iloc[i]
        np.testing.assert_allclose([at.min(), at.max()], limits)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    r = np.corrcoef(u, v)[0, 1]
    assert words[0] == f"75 held-out pairs, coloured by their 9 folds: r = {r:.2f}"
    assert not overlapping_texts(figure)


def arrows(axes):
    """Return the starts and the ends of all arrows."""
    parts = axes.collections
    starts = np.concatenate([part.XY for part in parts])
    return starts, starts + np.concatenate([np.column_stack([part.U, part.V]) for part in parts])


def test_arrows_go_from_the_variates_of_x_to_those_of_y(model, views):
    canonical = model.models_["search"]
    figure = draw_arrows(model, *views, components=(2, 0), views=("genes", "lipids"))
    expected = []
    for view, weights in zip(views, (canonical.x_weights, canonical.y_weights), strict=True):
        variates = (view - view.mean(axis=0)) @ weights[:, [2, 0]]
        expected.append(variates / variates.std(axis=0))
    for drawn, right in zip(arrows(figure.axes[0]), expected, strict=True):
        np.testing.assert_allclose(drawn, right)
        assert np.all(np.abs(right) <= np.abs([figure.axes[0].get_xlim(), figure.axes[0].get_ylim()]).max())
    assert figure.axes[0].get_title() == "from genes (marker) to lipids (tip)"
    assert figure.axes[0].get_xlabel() == "component 3 (standard deviations)"


def test_arrows_of_a_group_have_its_colour(views):
    pandas = pytest.importorskip("pandas")
    x, y = (pandas.DataFrame(view[:30], [f"unit {i}" for i in range(30)]) for view in views)
    x.columns, y.columns = ([f"{name}{i}" for i in range(size)] for name, size in (("a", 6), ("b", 5)))
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    groups = pandas.Series([("low", "middle", LONG[0])[i % 3] for i in range(30)], x.index)
    with pytest.warns(UserWarning, match="matched by label"):
        figure = draw_arrows(model, x, y, groups=groups[::-1])
    plain = draw_arrows(model, x, y)
    starts, ends = arrows(plain.axes[0])
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[1:] == ["low", "middle"]
    assert words[0].startswith("a name of a")
    for part, first in zip(figure.axes[0].collections, (2, 0, 1), strict=True):
        np.testing.assert_allclose(part.XY, starts[first::3])
        np.testing.assert_allclose(part.XY + np.column_stack([part.U, part.V]), ends[first::3])
    assert len({tuple(part.get_facecolor()[0]) for part in figure.axes[0].collections}) == 3
    assert not overlapping_texts(figure)


def test_groups_are_of_rows_of_x():
    x, y = make_views(30)
    pairing = np.repeat(np.arange(15), 2)
    model = AWCCA(params=(1.0, 1.0)).fit(x[:15], y, pairing)
    figure = draw_arrows(model, x[:15], y, pairing, groups=np.arange(15) < 5)
    assert [len(part.U) for part in figure.axes[0].collections] == [20, 10]


def label_texts(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_cross_correlations_are_those_of_numpy_in_the_order_of_the_clusters(views):
    from scipy.cluster.hierarchy import leaves_list, linkage

    x, y = views
    figure = draw_cross_correlations(x, y, views=("brain", "behaviour"))
    axes = figure.axes[0]
    table = np.corrcoef(x.T, y.T)[:6, 6:]
    drawn = axes.images[0].get_array()
    rows, columns = ([int(name[1:]) for name in label_texts(axis)] for axis in (axes.yaxis, axes.xaxis))
    np.testing.assert_allclose(drawn, table[np.ix_(rows, columns)])
    assert sorted(rows) == list(range(6))
    assert sorted(columns) == list(range(5))
    for order, values in ((rows, table), (columns, table.T)):
        strongest = np.argsort(-np.abs(values).max(axis=1))
        tree = linkage(values[strongest], "average", optimal_ordering=True)
        leaves = list(strongest[leaves_list(tree)])
        assert order in (leaves, leaves[::-1])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("behaviour", "brain")
    assert not overlapping_texts(figure)


def test_the_strongest_features_are_shown_and_constant_ones_left_out():
    x, y = make_views(50, 9, 30)
    x[:, 4] = 0.1
    figure = draw_cross_correlations(x, y, most=3)
    strength = np.abs(np.corrcoef(np.delete(x, 4, axis=1).T, y.T)[:8, 8:])
    strongest = np.delete(np.arange(9), 4)[np.argsort(-strength.max(axis=1))[:3]]
    assert sorted(label_texts(figure.axes[0].yaxis)) == sorted(f"x{i}" for i in strongest)
    assert figure.axes[0].get_xlabel() == "Y\n(the 3 strongest of 30)"
    assert figure.axes[0].get_ylabel() == "X\n(the 3 strongest of 8)"
    assert not overlapping_texts(figure)


def test_covariates_make_cross_correlations_partial():
    x, y = make_views(50, 2, 1)
    z = np.random.default_rng(9).normal(size=(50, 2))
    x, y = x + z @ [[1.0, 2.0], [0.5, 0.1]], y + z[:, :1]
    figure = draw_cross_correlations(x, y[:, 0], covariates=z)
    drawn = figure.axes[0].images[0].get_array()[:, 0]
    for name, value in zip(label_texts(figure.axes[0].yaxis), drawn, strict=True):
        inverse = np.linalg.inv(np.cov(np.column_stack([x[:, int(name[1])], y, z]).T))
        np.testing.assert_allclose(value, -inverse[0, 1] / np.sqrt(inverse[0, 0] * inverse[1, 1]))
    assert figure.axes[-1].get_ylabel() == "partial correlation"


@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")  # a font for Chinese may not be installed
def test_names_of_cross_correlations_do_not_overlap():
    pandas = pytest.importorskip("pandas")
    names = [[f"{LONG[i % len(LONG)]} {i}" for i in range(size)] for size in (70, 3)]
    x, y = (
        pandas.DataFrame(view, columns=columns)
        for view, columns in zip(make_views(40, 70, 3), names, strict=True)
    )
    for figure in (
        draw_cross_correlations(x, y, most=60, views=(LONG[0], LONG[1])),
        draw_cross_correlations(y, x, most=60, views=(LONG[0], LONG[1])),
    ):
        assert not overlapping_texts(figure)
        labels = [
            label for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis) for label in axis.get_ticklabels()
        ]
        assert sum("$x_1$" in label.get_text() for label in labels) > 5
        assert not any(label.get_parse_math() for label in labels)


def test_figures_are_written(test, model, views, tmp_path):
    result, file = loadings(model), tmp_path / "figure.png"
    for draw in (
        lambda: draw_correlations(test, file),
        lambda: draw_loadings(result, 0, file),
        lambda: draw_biplot(result, (0, 1), file),
        lambda: draw_variates(model, *views, file=file),
        lambda: draw_arrows(model, *views, file=file),
        lambda: draw_cross_correlations(*views, file=file),
    ):
        file.unlink(missing_ok=True)
        draw()
        assert file.stat().st_size > 2000


def test_wrong_input_is_refused_in_a_sentence(test, model, views, intervals, held_out):
    result, without_null = loadings(model), dataclasses.replace(test, null=test.null * np.nan)
    small = loadings(AWCCA(params=(1.0, 1.0)).fit(views[0][:, :2], views[1]))
    pair = np.eye(2)[:, :, None]
    few = dataclasses.replace(held_out, held_out_x=pair[0], held_out_y=pair[1], fold_of=np.arange(2))
    refused = [
        (lambda: draw_correlations(result), "got Loadings; give a PermutationTest of"),
        (lambda: draw_correlations(test, bootstrap=test), "give a Bootstrap"),
        (lambda: draw_correlations(test, cross_validated=test), "give a CrossValidatedCorrelations"),
        (lambda: draw_correlations(without_null), "test.null contains NaN"),
        (lambda: draw_loadings(test), "give a Loadings"),
        (lambda: draw_loadings(result, 5), "counted from 0 to 4"),
        (lambda: draw_loadings(result, -1), "component=-1"),
        (lambda: draw_loadings(result, most=61), "at most 60"),
        (lambda: draw_loadings(result, views=("one",)), "not a pair of names"),
        (lambda: draw_loadings(small, bootstrap=intervals), "the same model"),
        (lambda: draw_biplot(result, (0, 5)), "counted from 0 to 4"),
        (lambda: draw_biplot(result, (0,)), "not two components"),
        (lambda: draw_biplot(result, (1, 1)), "not two components"),
        (lambda: draw_biplot(result, most=21), "at most 20"),
        (lambda: draw_variates(model, *views, component=5), "counted from 0 to 4"),
        (lambda: draw_variates(model, *views, held_out=views[0]), "held_out is not"),
        (lambda: draw_variates(model, views[0] * np.nan, views[1]), "NaN"),
        (lambda: draw_variates(AWCCA(), *views), "not fitted"),
        (lambda: draw_variates(result, *views), "give a fitted AWCCA"),
        (lambda: draw_correlations(test, "figure.gif"), "png"),
        (lambda: draw_variates(model), "give X and y"),
        (lambda: draw_variates(model, *views, views="XY"), "not a pair of names"),
        (lambda: draw_variates(held_out, *views), "pairs and a task of their own"),
        (lambda: draw_variates(held_out, task="annotate"), "pairs and a task of their own"),
        (lambda: draw_variates(held_out, component=2), "counted from 0 to 1"),
        (lambda: draw_variates(few), "three or more held-out pairs"),
        (lambda: draw_arrows(model, *views, components=(1, 1)), "not two components"),
        (lambda: draw_arrows(model, *views, components=(0, 5)), "counted from 0 to 4"),
        (lambda: draw_arrows(model, *views, groups=np.arange(40)), "40 labels; give at most 7"),
        (lambda: draw_arrows(model, *views, groups=["a"]), "groups has shape"),
        (lambda: draw_arrows(model, *views, groups=[None] + ["a"] * 39), "groups has no label"),
        (lambda: draw_arrows(result, *views), "give a fitted AWCCA"),
        (lambda: draw_cross_correlations(*views, most=61), "at most 60"),
        (lambda: draw_cross_correlations(views[0] * 0.0 + 0.1, views[1]), "no feature of X varies"),
        (lambda: draw_cross_correlations(views[0][1:], views[1]), "without a pairing"),
    ]
    for draw, words in refused:
        with pytest.raises((InputError, ValueError), match=words):
            draw()
