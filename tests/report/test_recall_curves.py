import sys
from itertools import pairwise

import numpy as np
import pytest

from diptych import InputError
from diptych.ranking import recall_at_k
from diptych.report import draw_recall_curves

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture
def ranks(rng):
    return {
        name: {"search": rng.geometric(p, size=400), "annotate": rng.geometric(p / 2, size=80)}
        for name, p in (("one", 0.3), ("two", 0.1), ("three", 0.05))
    }


def test_the_curves_are_recall_at_k(ranks):
    figure = draw_recall_curves(ranks, depth=30)
    for axes, task in zip(figure.axes, ("search", "annotate"), strict=True):
        assert task in axes.get_title()
        for line, by_task in zip(axes.lines, ranks.values(), strict=True):
            np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 31))
            np.testing.assert_array_equal(
                line.get_ydata(), [recall_at_k(by_task[task], k) for k in range(1, 31)]
            )


def test_any_backend_gives_the_same_curves(ranks, backend):
    theirs = {name: {task: backend(r) for task, r in by_task.items()} for name, by_task in ranks.items()}
    for ours, other in zip(draw_recall_curves(ranks).axes, draw_recall_curves(theirs).axes, strict=True):
        for a, b in zip(ours.lines, other.lines, strict=True):
            np.testing.assert_array_equal(a.get_ydata(), b.get_ydata())


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


@pytest.mark.parametrize("depth", [2, 10, 100, 150, 1000, 20000])
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
def test_it_is_written_whole(ranks, tmp_path, suffix):
    draw_recall_curves(ranks, tmp_path / f"recall.{suffix}")
    assert (tmp_path / f"recall.{suffix}").stat().st_size > 5000
    assert len(list(tmp_path.iterdir())) == 1


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


def test_bad_input(ranks, tmp_path):
    with pytest.raises(InputError, match="depth=1 "):
        draw_recall_curves(ranks, depth=1)
    with pytest.raises(InputError, match=r"\.png, \.svg or \.pdf"):
        draw_recall_curves(ranks, tmp_path / "recall.gif")
    assert not list(tmp_path.iterdir())
