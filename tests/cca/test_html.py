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


@pytest.fixture(scope="module")
def given():
    """A model whose regularisation was given."""
    return AWCCA(params=(1.0, 2.0)).fit(*make_views())


def summary(model):
    """Return what is below scikit-learn's own diagram."""
    return model._repr_html_().partition('<div class="diptych-fit">')[2]


def texts(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def test_a_model_that_is_not_fitted_has_the_diagram_alone():
    markup = AWCCA()._repr_html_()
    assert "sk-top-container" in markup
    assert "diptych-fit" not in markup


def test_the_essentials_are_there():
    x, y = make_views()
    model = AWCCA(grid=4).fit(x, y)
    shown = texts(summary(model))
    assert "120 pairs" in shown
    assert "X has 6 features, Y 5." in shown
    for task in ("search", "annotate"):
        own = model.models_[task]
        assert f"{task} {own.filter_x} {own.filter_y} {model.path_.best(task):.1f}" in shown
        first = [own.correlations[0], own.train_correlations[0], own.validation_correlations[0]]
        assert f"1 {first[0]:.3f} {first[1]:.3f} {first[2]:.3f}" in shown
    assert model.path_.held_out in shown


def test_tasks_that_share_a_model_share_a_table(given):
    shown = texts(summary(given))
    assert "Regularisation was given." in shown
    assert shown.count("regularised") == 1
    assert "both tasks" in shown


def test_no_model_is_made_for_display():
    x, y = make_views(600, 300, 290)
    model = AWCCA(params=(9.0, 9.0)).fit(x, y)
    assert "are computed when" in summary(model)
    assert "models_" in dir(model)
    assert not model.models_.computed
    first = model.models_["search"].correlations[0]
    assert f"{first:.3f}" in summary(model)


def test_names_are_escaped_and_nothing_is_loaded():
    attack = "<script>alert(1)</script>"

    def weights(squares, parameter):
        return 1 / (squares + parameter)

    filter = SpectralFilter(weights, name=attack)
    model = AWCCA(filter=filter, params=(1.0, 1.0)).fit(*make_views())
    markup = model._repr_html_()
    assert attack not in markup
    assert "&lt;script&gt;" in summary(model)
    assert not re.search(r"https?:|\bsrc=|@import|url\(", summary(model))


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.ended = [], 0

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.ended += 1


def test_tags_are_closed():
    parser = Tags()
    parser.feed('<div class="diptych-fit">' + summary(AWCCA(grid=4).fit(*make_views())))
    assert not parser.open
    assert parser.ended > 10


def test_a_loaded_model_is_shown(given, tmp_path):
    given.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    assert texts(summary(loaded)) == texts(summary(given))
    del loaded.spectra_  # as in the folder of a retriever
    assert "X has 6 features" in texts(summary(loaded))


@pytest.mark.parametrize(
    ("selection", "words"),
    [("leave-one-out", "left out in turn"), ("ledoit-wolf", "Selection: ledoit-wolf.")],
)
def test_every_selection_is_named(selection, words):
    model = AWCCA(selection=selection, grid=4).fit(*make_views())
    assert words in texts(summary(model))
