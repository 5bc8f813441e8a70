from itertools import pairwise

import numpy as np
import pytest

from diptych import AWCCA, InputError
from diptych.report import draw_regularization_path
from generated_pairs import make_pairs

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def path():
    training, validation = make_pairs(0)
    return AWCCA(grid=6, path_metrics="all").fit(*training, validation=validation).path_


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
@pytest.mark.parametrize("points", [2, 5, 7, 8, 13, 20])
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


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_whole(path, tmp_path, suffix):
    draw_regularization_path(path, tmp_path / f"map.{suffix}", metric="r@10")
    assert (tmp_path / f"map.{suffix}").stat().st_size > 5000
    assert len(list(tmp_path.iterdir())) == 1


def test_bad_input(path, tmp_path):
    with pytest.raises(InputError, match=r"it has median_rank, r@1, r@10, r@5"):
        draw_regularization_path(path, metric="r@7")
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        draw_regularization_path(path, tmp_path / "map.gif")


def test_a_model_that_was_not_selected_has_no_path():
    model = AWCCA(params=(1.0, 1.0)).fit(*make_pairs(0)[0])
    with pytest.raises(InputError, match="no regularisation path to draw"):
        draw_regularization_path(model.path_)
