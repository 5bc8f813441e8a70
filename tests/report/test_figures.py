"""Recall curves and regularisation paths show the right numbers, nothing overlaps, and files are whole."""

import sys
from itertools import pairwise

import numpy as np
import pytest

from diptych import AWCCA, InputError
from diptych.ranking import recall_at_k
from diptych.report import draw_recall_curves, draw_regularization_path
from generated_pairs import make_pairs

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture
def ranks(rng):
    return {
        name: {"search": rng.geometric(p, size=400), "annotate": rng.geometric(p / 2, size=80)}
        for name, p in (("one", 0.3), ("two", 0.1), ("three", 0.05))
    }


@pytest.fixture(scope="module")
def path():
    training, validation = make_pairs(0)
    return AWCCA(grid=6, path_metrics="all").fit(*training, validation=validation).path_


def curves(figure):
    """The lines of both panels, as arrays."""
    return [np.array(line.get_data()) for axes in figure.axes for line in axes.lines]


def test_the_curves_are_recall_at_k(ranks):
    figure = draw_recall_curves(ranks, depth=30)
    assert ["search" in axes.get_title() for axes in figure.axes] == [True, False]
    expected = [
        [recall_at_k(by_task[task], k) for k in range(1, 31)]
        for task in ("search", "annotate")
        for by_task in ranks.values()
    ]
    for line, recalls in zip(curves(figure), expected, strict=True):
        np.testing.assert_array_equal(line, [np.arange(1, 31), recalls])


@pytest.mark.slow  # torch is slow to import
def test_tensors_give_the_same_curves(ranks):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    tensors = {name: {t: torch.as_tensor(r) for t, r in by_task.items()} for name, by_task in ranks.items()}
    np.testing.assert_array_equal(curves(draw_recall_curves(tensors)), curves(draw_recall_curves(ranks)))


def test_lines_are_told_apart_without_colour():
    same = {f"model {i}": {"search": np.array([1, 2]), "annotate": np.array([1, 3])} for i in range(20)}
    lines = draw_recall_curves(same).axes[0].lines
    assert len({(str(line._unscaled_dash_pattern), line.get_marker()) for line in lines}) == 20


@pytest.mark.parametrize("names", [["one", "two"], ["_hidden", "costs $5 or $6", "a\nb" + "c" * 300, ""]])
def test_the_legend_names_every_line_and_covers_nothing(names):
    ranks = {name: {"search": np.array([1, 7]), "annotate": np.array([1, 3])} for name in names}
    figure = draw_recall_curves(ranks)
    figure.draw_without_rendering()
    legend = figure.legends[0]
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(names)
    assert texts[:2] == names[:2]
    assert all("\n" not in text and text for text in texts)
    renderer = figure._get_renderer()
    box = legend.get_window_extent(renderer)
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    for axes in figure.axes:
        assert axes.get_tightbbox(renderer).y0 >= box.y1 - 1


@pytest.mark.parametrize("depth", [2, 150, 1000, 20000])
def test_the_numbers_under_the_axis_do_not_touch(depth):
    figure = draw_recall_curves(
        {"a": {"search": np.array([1, 9]), "annotate": np.array([2, 3])}}, depth=depth
    )
    figure.draw_without_rendering()
    renderer = figure._get_renderer()
    for axes in figure.axes:
        boxes = [label.get_window_extent(renderer) for label in axes.get_xticklabels()]
        assert all(a.x1 + 2 < b.x0 for a, b in pairwise(boxes))


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_figures_are_written_whole(ranks, path, tmp_path, suffix):
    draw_recall_curves(ranks, tmp_path / f"recall.{suffix}")
    draw_regularization_path(path, tmp_path / f"map.{suffix}", metric="r@10")
    assert {file.name for file in tmp_path.iterdir()} == {f"recall.{suffix}", f"map.{suffix}"}
    assert all(file.stat().st_size > 5000 for file in tmp_path.iterdir())


def test_a_failure_while_writing_leaves_the_old_file(ranks, tmp_path, monkeypatch):
    def fail(self, target, **options):
        target.write_bytes(b"half")
        raise OSError("no space left")

    file = tmp_path / "recall.png"
    file.write_bytes(b"old")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(OSError, match="no space left"):
        draw_recall_curves(ranks, file)
    assert file.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [file]


def test_without_matplotlib_one_line_says_what_to_install(ranks, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r'^figures need matplotlib; .*pip install "matplotlib>=3\.8"$'):
        draw_recall_curves(ranks)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        ({}, "from 1 to 20"),
        ({str(i): {} for i in range(21)}, "21 models.* from 1 to 20"),
        ({"a": {"search": np.array([1])}}, "'a' has no ranks for 'annotate'"),
        (
            {"a": {"search": np.array([1.5]), "annotate": np.array([1])}},
            r"'search' ranks of 'a' are float64\[1\]",
        ),
        ({"a": {"search": np.array([1]), "annotate": np.array([0, 2])}}, "'annotate' ranks .* 1 or above"),
        ({"a": {"search": np.array([], dtype=int), "annotate": np.array([1])}}, r"int64\[0\]"),
        ({"a": {"search": np.array([[1]]), "annotate": np.array([1])}}, r"int64\[1, 1\]"),
    ],
)
def test_values_that_are_not_ranks_are_refused(ranks, message):
    with pytest.raises(InputError, match=message):
        draw_recall_curves(ranks)


def test_the_maps_show_the_scores_and_the_choice(path):
    figure = draw_regularization_path(path)
    n_x, n_y = path.grid.shape
    for axes, task in zip(figure.axes[:2], ("search", "annotate"), strict=True):
        # γ grows to the right and upwards; the grid begins with the strongest regularisation, the largest γ.
        np.testing.assert_array_equal(axes.images[0].get_array(), path.scores[task]["r@1"][::-1, ::-1].T)
        i, j = path.choice[task]
        place = (n_x - 1 - i, n_y - 1 - j)
        assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines] == [place] * 2
        assert f"{path.best(task):.1f}" in axes.get_title()
        assert not axes.patch.get_hatch()


def test_the_axes_of_the_maps_have_the_names_of_the_views(path):
    figure = draw_regularization_path(path, views=("brain", "behaviour"))
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in figure.axes[:2]] == [
        ("γ of brain", "γ of behaviour")
    ] * 2


def test_only_exact_scores_are_drawn():
    training, validation = make_pairs(0)
    path = AWCCA(grid=8).fit(*training, validation=validation).path_
    assert path.route == "screened"
    figure = draw_regularization_path(path)
    for axes, task in zip(figure.axes[:2], ("search", "annotate"), strict=True):
        drawn = np.ma.getmaskarray(axes.images[0].get_array()) | np.isnan(axes.images[0].get_array())
        np.testing.assert_array_equal(~np.asarray(drawn), path.exact[task][::-1, ::-1].T)
        assert not path.exact[task].all()
        assert axes.patch.get_hatch()
    assert "hatched" in figure.get_supxlabel()


@pytest.mark.parametrize("filter", ["tikhonov", "tsvd"])
@pytest.mark.parametrize("points", [2, 7, 20])
def test_ticks_grow_and_do_not_overlap(filter, points):
    training, validation = make_pairs(1, n=120, m_x=30, m_y=25)
    training, validation = ((1e4 * x, y, pairing) for x, y, pairing in (training, validation))
    path = AWCCA(filter=filter, grid=points, path_metrics="all").fit(*training, validation=validation).path_
    figure = draw_regularization_path(path)
    figure.canvas.draw()
    for axes in figure.axes[:2]:
        for axis, low, high in ((axes.xaxis, "x0", "x1"), (axes.yaxis, "y0", "y1")):
            labels = [label for label in axis.get_ticklabels() if label.get_text()]
            values = [float(label.get_text()) for label in labels]
            assert values == sorted(values)
            boxes = [label.get_window_extent() for label in labels]
            for left, right in pairwise(boxes):
                assert getattr(left, high) < getattr(right, low)


def test_bad_input(ranks, path, tmp_path):
    for draw, message in (
        (lambda: draw_recall_curves(ranks, depth=1), "depth=1 "),
        (lambda: draw_recall_curves(ranks, tmp_path / "recall.gif"), r"\.png, \.svg or \.pdf"),
        (lambda: draw_regularization_path(path, tmp_path / "map.gif"), r"\.png, \.svg or \.pdf"),
        (lambda: draw_regularization_path(path, metric="r@7"), r"it has median_rank, r@1, r@10, r@5"),
        (lambda: draw_regularization_path(None), "no regularisation path to draw"),
    ):
        with pytest.raises(InputError, match=message):
            draw()
    assert not list(tmp_path.iterdir())
