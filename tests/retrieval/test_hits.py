"""What hits look like in notebooks and as data frames."""

import re

import pytest
from PIL import Image

from diptych import InputError
from diptych.retrieval import Hit, Hits, Item


@pytest.fixture
def hits(tmp_path):
    Image.new("RGB", (900, 30), "red").save(tmp_path / "red.png")
    (tmp_path / "broken.png").write_text("<b>no image</b>")
    items = [
        Item("<i>red</i>", "image", str(tmp_path / "red.png"), metadata={"<b>": "<script>", "year": 2010}),
        Item("broken", "image", str(tmp_path / "broken.png"), metadata={"year": 2011}),
        Item("away", "image", "https://example.org/away.png"),
        Item("sound", "image", str(tmp_path / "sound.wav")),
        Item("red#0", "text", text="x" * 5000, image="red"),
    ]
    return Hits([Hit(item, 0.5, 0.25 if place else None) for place, item in enumerate(items)])


def test_a_notebook_shows_small_escaped_copies_of_local_images(hits):
    shown = hits._repr_html_()
    (image,) = re.findall(r'<img src="data:image/jpeg;base64,[^"]+"', shown)
    assert len(image) < 5000
    assert "&lt;i&gt;red&lt;/i&gt;" in shown
    assert "&lt;b&gt;: &lt;script&gt;, year: 2010" in shown
    assert "<script" not in shown
    assert "https:" not in shown
    assert "0.500" in shown
    assert "0.250" in shown
    assert "x" * 301 not in shown
    assert "<p>60 more</p>" in Hits([hits[4]] * 80)._repr_html_()


def test_a_frame_has_a_column_for_each_field_and_key(hits):
    pytest.importorskip("pandas")
    frame = hits.to_frame()
    fields = ["score", "probability", "id", "view", "path", "text", "image"]
    assert list(frame.columns) == [*fields, "metadata.<b>", "metadata.year"]
    assert frame["id"].tolist() == [hit.id for hit in hits]
    assert frame["metadata.year"].tolist()[:2] == [2010, 2011]
    assert frame["score"].tolist() == [0.5] * 5
    assert list(Hits().to_frame().columns) == fields


def test_a_frame_without_pandas_names_the_command(hits, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"a data frame needs pandas; install with: pip install .?pandas"):
        hits.to_frame()
