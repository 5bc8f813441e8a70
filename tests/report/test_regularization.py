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
    for axes, task in zip(figure.axes[:2], ("search", "annotate"), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), path.scores[task]["r@1"].T)
        assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines] == [path.choice[task]] * 2
        assert f"{path.best(task):.1f}" in axes.get_title()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_whole(path, tmp_path, suffix):
    draw_regularization_path(path, tmp_path / f"map.{suffix}", metric="r@10")
    assert (tmp_path / f"map.{suffix}").stat().st_size > 5000
    assert len(list(tmp_path.iterdir())) == 1


def test_bad_input(path, tmp_path):
    with pytest.raises(InputError, match=r"holds median_rank, r@1, r@10, r@5"):
        draw_regularization_path(path, metric="r@7")
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        draw_regularization_path(path, tmp_path / "map.gif")
