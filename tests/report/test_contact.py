import sys

import numpy as np
import pytest
from PIL import Image

from diptych import InputError
from diptych.report import Answer, ContactRow, draw_contact_sheet
from diptych.report._contact import THUMBNAIL_SIDE
from diptych.report._figures import fit_lines, text_width
from diptych.scenes import make_scenes

pytest.importorskip("matplotlib", reason="matplotlib is not installed")


@pytest.fixture(scope="module")
def drawn():
    return make_scenes(12, random_state=0)


@pytest.fixture(scope="module")
def rows(drawn):
    pictures, captions = list(drawn.images), drawn.dataset.captions
    return [
        ContactRow(captions[0], [Answer(pictures[i], 0.8 - 0.3 * i, i == 1) for i in range(4)]),
        ContactRow(pictures[1], [Answer(captions[5 + i], 0.7 - 0.1 * i, i in (0, 2)) for i in range(3)]),
    ]


def framed(figure):
    return [axes.spines["top"].get_linewidth() > 2 for axes in figure.axes]


def texts(figure):
    return [text.get_text() for text in figure.texts]


def test_right_answers_carry_a_frame_and_a_sign(rows):
    figure = draw_contact_sheet(rows)
    assert framed(figure) == [False, True, False, False, False]
    shown = texts(figure)
    assert shown[0] == rows[0].query
    assert shown[1:5] == ["0.80", "✓ 0.50", "0.20", "−0.10"]
    assert shown[5::2][:3] == ["✓ 0.70", "0.60", "✓ 0.50"]
    assert shown[6::2][:3] == [answer.item for answer in rows[1].answers]
    assert shown[-1].startswith("✓ the right one")


def test_no_sign_is_explained_where_there_is_none(rows):
    wrong = ContactRow("nothing", [Answer(answer.item, 0.1) for answer in rows[0].answers])
    assert not any("✓" in text for text in texts(draw_contact_sheet([wrong])))


def test_the_thumbnails_are_the_pictures(drawn, rows):
    figure = draw_contact_sheet(rows)
    for axes, answer in zip(figure.axes, rows[0].answers, strict=False):
        small = answer.item.resize(axes.images[0].get_array().shape[1::-1], Image.Resampling.LANCZOS)
        difference = np.abs(axes.images[0].get_array().astype(int) - np.asarray(small))
        assert difference.mean() < 2


@pytest.mark.parametrize("size", [(4000, 3000), (3000, 4000), (9000, 2), (1, 1), (256, 256)])
def test_pictures_are_bounded_and_keep_their_shape(size):
    picture = Image.new("RGB", size, "red")
    figure = draw_contact_sheet([ContactRow("red", [Answer(picture, 1.0)])])
    height, width, channels = figure.axes[0].images[0].get_array().shape
    assert max(height, width) == min(THUMBNAIL_SIDE, *[max(size)])
    assert channels == 3
    assert abs(width / height - size[0] / size[1]) <= 0.02 * size[0] / size[1] or min(width, height) == 1
    assert picture.size == size


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I;16"])
def test_any_mode_is_shown(mode):
    figure = draw_contact_sheet([ContactRow(Image.new(mode, (30, 20)), [Answer("a caption", 0.5, True)])])
    assert figure.axes[0].images[0].get_array().shape == (20, 30, 3)


def test_transparency_lies_on_white():
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    figure = draw_contact_sheet([ContactRow("clear", [Answer(clear, 0.5)])])
    assert (figure.axes[0].images[0].get_array() == 255).all()


@pytest.mark.parametrize("answers", [1, 5, 12])
def test_nothing_is_clipped_and_no_two_things_overlap(drawn, answers):
    pictures = [
        picture.resize(((200, 80), (80, 200), (90, 90))[i % 3]) for i, picture in enumerate(drawn.images)
    ]
    long = "a dog & a cat for $5 or $6, " * 30
    words = ["", "x" * 400, long, "short", *["a\nline | of\twords"] * 8]
    rows = [
        ContactRow(long, [Answer(p, -0.5, i % 2 == 0) for i, p in enumerate(pictures[:answers])]),
        ContactRow(pictures[0], [Answer(w, -0.25, i % 2 == 0) for i, w in enumerate(words[:answers])]),
        ContactRow("y" * 500, [Answer(pictures[1], 0.5, True)]),
        ContactRow(pictures[1], [Answer("short", 0.5)]),
    ]
    figure = draw_contact_sheet(rows)
    figure.draw_without_rendering()
    renderer = figure._get_renderer()
    things = [text for text in figure.texts if text.get_text()] + figure.axes
    boxes = [thing.get_window_extent(renderer) for thing in things]
    for place, box in enumerate(boxes):
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1
        for other in boxes[place + 1 :]:
            # Letters of one line may reach a hair into the next.
            apart = max(box.x0 - other.x1, other.x0 - box.x1, box.y0 - other.y1, other.y0 - box.y1)
            assert apart > -1.0


@pytest.mark.parametrize("text", ["", "one", "w" * 500, "many words " * 50, "ab " * 3 + "m" * 200 + " end"])
@pytest.mark.parametrize("at_most", [1, 2, 5])
def test_lines_fit(text, at_most):
    lines = fit_lines(text, 2.0, 9.0, at_most)
    assert len(lines) <= at_most
    assert all(text_width(line, 9.0) <= 2.0 for line in lines)
    whole = "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert whole or lines[-1].endswith("…")


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_it_is_written_whole(rows, tmp_path, suffix):
    draw_contact_sheet(rows, tmp_path / f"sheet.{suffix}")
    assert (tmp_path / f"sheet.{suffix}").stat().st_size > 5000
    assert len(list(tmp_path.iterdir())) == 1


def test_without_matplotlib_one_line_says_what_to_install(rows, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InputError, match=r'^figures need matplotlib; .*pip install "matplotlib>=3\.8"$'):
        draw_contact_sheet(rows)


def test_bad_input(rows):
    picture, answer = Image.new("RGB", (4, 4)), Answer("a dog", 0.5)
    for given, message in [
        ([], "0 rows .* from 1 to 40"),
        (rows * 21, "42 rows .* from 1 to 40"),
        ([rows[0], ContactRow("a", [])], "row 1 .* 0 answers; give from 1 to 12"),
        ([ContactRow(picture, [answer] * 13)], "13 answers"),
        ([ContactRow("a", [answer])], "mixes its sides"),
        ([ContactRow(picture, [Answer(picture, 0.5)])], "mixes its sides"),
        ([ContactRow(7, [answer])], "mixes its sides"),
        ([ContactRow(Image.new("RGB", (0, 4)), [answer])], "without pixels"),
        ([ContactRow(picture, [Answer("a", float("nan"))])], "not finite"),
    ]:
        with pytest.raises(InputError, match=message):
            draw_contact_sheet(given)
