"""What a notebook shows of an AWCCA."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from diptych import AWCCA
from diptych.cca import SpectralFilter

pytest.importorskip("sklearn", minversion="1.7", reason="scikit-learn before 1.7 has no hook for more HTML")


def make_views(n=120, p=6, q=5):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, p))
    return x, x[:, :q] + rng.normal(size=(n, q))


def summary(model):
    """Return what is below scikit-learn's own diagram."""
    return model._repr_html_().partition('<div class="diptych-fit">')[2]


def texts(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def test_a_selected_model_shows_its_essentials():
    model = AWCCA(grid=4)
    assert "sk-top-container" in model._repr_html_()
    assert "diptych-fit" not in model._repr_html_()
    shown = texts(summary(model.fit(*make_views())))
    assert "120 pairs" in shown
    assert "X has 6 features, Y 5." in shown
    for task in ("search", "annotate"):
        own = model.models_[task]
        assert f"{task} {own.filter_x} {own.filter_y} {model.path_.best(task):.1f}" in shown
        first = [own.correlations[0], own.train_correlations[0], own.validation_correlations[0]]
        assert f"1 {first[0]:.3f} {first[1]:.3f} {first[2]:.3f}" in shown
    assert model.path_.held_out in shown


def test_a_loaded_model_is_shown_and_tasks_that_share_a_model_share_a_table(tmp_path):
    model = AWCCA(params=(1.0, 2.0)).fit(*make_views())
    shown = texts(summary(model))
    assert "Regularisation was given." in shown
    assert "both tasks" in shown
    assert shown.count("regularised") == 1
    model.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    assert texts(summary(loaded)) == shown
    del loaded.spectra_  # as in the folder of a retriever
    assert "X has 6 features" in texts(summary(loaded))


def test_no_model_is_made_for_display():
    model = AWCCA(params=(9.0, 9.0)).fit(*make_views(600, 300, 290))
    assert "are computed when" in summary(model)
    assert "models_" in dir(model)
    assert not model.models_.computed
    first = model.models_["search"].correlations[0]
    assert f"{first:.3f}" in summary(model)


def test_names_are_escaped_tags_closed_and_nothing_is_loaded():
    attack = "<script>alert(1)</script>"
    filter = SpectralFilter(lambda squares, parameter: 1 / (squares + parameter), name=attack)
    model = AWCCA(filter=filter, params=(1.0, 1.0)).fit(*make_views())
    assert attack not in model._repr_html_()
    markup = summary(model)
    assert "&lt;script&gt;" in markup
    assert not re.search(r"https?:|\bsrc=|@import|url\(", markup)
    opened, ended = [], []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: opened.append(tag)
    parser.handle_endtag = lambda tag: ended.append((tag, opened.pop()))
    parser.feed('<div class="diptych-fit">' + markup)
    assert not opened
    assert len(ended) > 10
    assert all(tag == start for tag, start in ended)


@pytest.mark.parametrize(
    ("selection", "words"),
    [("leave-one-out", "left out in turn"), ("ledoit-wolf", "Selection: ledoit-wolf.")],
)
def test_every_selection_is_named(selection, words):
    model = AWCCA(selection=selection, grid=4).fit(*make_views())
    assert words in texts(summary(model))
