import hashlib
from collections import Counter

import numpy as np
import pytest

from diptych import InputError
from diptych.data import read_pairs
from diptych.scenes import make_scenes
from diptych.scenes._captions import COLOUR_WORDS, PLACE_WORDS, SHAPE_WORDS, plural
from diptych.scenes._describe import BACKDROPS, COLOURS, RELATIONS, SHAPES, TEXTURES
from diptych.scenes._draw import PALETTE, THINGS


def test_the_same_seed_gives_the_same_scenes_and_fewer_are_a_beginning():
    some, more, others = make_scenes(6), make_scenes(12), make_scenes(6, random_state=1)
    assert some.descriptions == more.descriptions[:6]
    assert some.dataset.captions == more.dataset.captions[:30]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(some.pictures, more.pictures, strict=False))
    assert some.descriptions != others.descriptions


def test_pictures_are_the_ones_they_always_were():
    # A change here changes every figure made with scenes: make it on purpose.
    raw = b"".join(picture.tobytes() for picture in make_scenes(24).pictures)
    text = "\n".join(make_scenes(24).dataset.captions)
    assert hashlib.sha256(raw).hexdigest()[:16] == "7ffb58a92c9ae6b0"
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "23a1cd612e0cf9ce"


def test_five_differently_worded_captions_for_each():
    dataset = make_scenes(300).dataset
    assert dataset.n_captions == 1500
    for row in range(300):
        own = [dataset.captions[j] for j in dataset.caption_rows([row])]
        assert len(set(own)) == 5
        assert all(text[0].isupper() and text.endswith(".") and "  " not in text for text in own)
    assert len(set(dataset.captions)) > 0.98 * 1500


def test_captions_say_what_the_description_says():
    found = make_scenes(200)
    for row, scene in enumerate(found.descriptions):
        text = " ".join(found.dataset.captions[5 * row : 5 * row + 5]).lower()
        for group in (scene.main, scene.other):
            if group is not None:
                assert any(word in text or plural(word) in text for word in SHAPE_WORDS[group.shape])
                assert any(word in text for word in COLOUR_WORDS[group.colour])


def test_there_is_much_to_tell_apart():
    found = make_scenes(2000).descriptions
    assert len({(s.backdrop, s.main, s.other, s.relation) for s in found}) == 2000
    assert {s.backdrop for s in found} == set(BACKDROPS)
    assert {s.main.shape for s in found} == set(SHAPES)
    assert {s.main.colour for s in found} == set(COLOURS)
    assert {s.main.texture for s in found} == set(TEXTURES)
    assert {s.main.count for s in found} == {1, 2, 3, 4, 5}
    assert {s.relation for s in found} == {*RELATIONS, None}
    assert max(Counter(s.main.shape for s in found).values()) < 200


def test_every_word_of_a_description_can_be_drawn_and_said():
    assert set(SHAPES) == set(THINGS) == set(SHAPE_WORDS)
    assert set(COLOURS) == set(PALETTE) == set(COLOUR_WORDS)
    assert set(BACKDROPS) == set(PLACE_WORDS)


@pytest.mark.parametrize("size", [16, 40, 112, 300])
def test_pictures_of_any_size(size):
    pictures = make_scenes(4, size=size).pictures
    assert [picture.size for picture in pictures] == [(size, size)] * 4
    assert pictures[1].mode == "RGB"
    assert len(pictures[1:3]) == 2
    assert np.asarray(pictures[0]).std() > 5


def test_things_stand_where_the_relation_says():
    # The picture with a group and the one without differ where the group stands.
    from dataclasses import replace

    from diptych.scenes._draw import draw_scene

    sides = {"left of": (1, -1), "right of": (1, 1), "above": (0, -1), "below": (0, 1)}
    for scene in make_scenes(60).descriptions:
        if scene.other is None:
            continue
        # Another colour in the same place: what changes is the main group alone.
        colour = "blue" if scene.main.colour != "blue" else "red"
        changed = replace(scene, main=replace(scene.main, colour=colour, texture="plain"))
        plain = replace(scene, main=replace(scene.main, texture="plain"))
        a, b = (np.asarray(draw_scene(s, 64), int) for s in (plain, changed))
        places = np.argwhere(np.abs(a - b).sum(axis=2) > 60)
        axis, sign = sides[scene.relation]
        assert sign * (places[:, axis].mean() - 31.5) > 3


def test_written_scenes_are_read_back(tmp_path):
    written = make_scenes(8, size=32).write(tmp_path)
    read = read_pairs(tmp_path)
    assert read.image_ids == written.image_ids
    assert read.captions == written.captions
    assert read.splits == written.splits
    assert read.paths == written.paths
    assert all(path.is_file() for path in read.paths)


@pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 3, "size": 4}, {"n": 3, "size": 10**6}])
def test_impossible_scenes_are_refused(arguments):
    with pytest.raises(InputError):
        make_scenes(**arguments)


def test_a_single_scene_is_fine():
    assert make_scenes(1).dataset.split_sizes() == {"train": 1}
