"""The figure of the selected filters: the legend covers no curve."""

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg

from reproduction.maps import draw_selected_filters


def test_the_legend_is_outside_the_axes():
    ranks = np.arange(1, 2001)
    entry = {
        "ranks": ranks,
        "values": 100.0 / ranks**0.5,
        "search": {"k": 1700, "guided": 1.23e4, "tikhonov": 0.01},
    }
    figure = draw_selected_filters({"images": entry, "texts": entry})
    FigureCanvasAgg(figure).draw()
    whole = figure.bbox
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert not legend.overlaps(axes.get_window_extent())
        # Within the figure, and clear of the axis label above it.
        assert legend.x0 >= whole.x0
        assert legend.x1 <= whole.x1
        assert legend.y0 >= whole.y0
        assert not legend.overlaps(axes.xaxis.label.get_window_extent())
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert not first.overlaps(second)
