import hashlib
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from diptych import InputError
from diptych._checks import plural
from diptych.data import read_pairs
from diptych.scenes import make_scenes
from diptych.scenes._describe import BACKGROUNDS, COLOURS, RELATIONS, SHAPES, TEXTURES
from diptych.scenes._draw import OBJECTS, draw_scene


def test_the_same_seed_gives_the_same_scenes_whatever_their_number():
    few, more, others = make_scenes(6), make_scenes(12), make_scenes(6, random_state=1)
    assert few.descriptions == more.descriptions[:6]
    assert few.dataset.captions == more.dataset.captions[:30]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(few.images, more.images, strict=False))
    assert few.descriptions != others.descriptions


def test_images_and_captions_do_not_change_between_versions():
    # A change here changes every figure made with scenes.
    pixels = b"".join(image.tobytes() for image in make_scenes(24).images)
    text = "\n".join(make_scenes(24).dataset.captions)
    assert hashlib.sha256(pixels).hexdigest()[:16] == "7ffb58a92c9ae6b0"
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "23a1cd612e0cf9ce"


def test_each_image_has_five_different_captions():
    dataset = make_scenes(300).dataset
    assert dataset.n_captions == 1500
    for row in range(300):
        captions = [dataset.captions[j] for j in dataset.caption_rows([row])]
        assert len(set(captions)) == 5
        assert all(text[0].isupper() and text.endswith(".") and "  " not in text for text in captions)
    assert len(set(dataset.captions)) > 0.98 * 1500


def test_captions_agree_with_the_description():
    scenes = make_scenes(200)
    for row, scene in enumerate(scenes.descriptions):
        text = " ".join(scenes.dataset.captions[5 * row : 5 * row + 5]).lower()
        for group in (scene.main, scene.second):
            if group is not None:
                assert any(word in text or plural(word) in text for word in SHAPES[group.shape])
                assert any(word in text for word in COLOURS[group.colour][1])


def test_scenes_differ_in_every_attribute():
    scenes = make_scenes(2000).descriptions
    assert len({(s.background, s.main, s.second, s.relation) for s in scenes}) == 2000
    assert {s.background for s in scenes} == set(BACKGROUNDS)
    assert {s.main.shape for s in scenes} == set(SHAPES)
    assert {s.main.colour for s in scenes} == set(COLOURS)
    assert {s.main.texture for s in scenes} == set(TEXTURES)
    assert {s.main.count for s in scenes} == {1, 2, 3, 4, 5}
    assert {s.relation for s in scenes} == {*RELATIONS, None}
    assert max(Counter(s.main.shape for s in scenes).values()) < 200


def test_every_shape_has_a_drawing():
    assert set(SHAPES) == set(OBJECTS)


@pytest.mark.parametrize("size", [16, 40, 112, 300])
def test_images_have_the_requested_size(size):
    images = make_scenes(4, size=size).images
    assert [image.size for image in images] == [(size, size)] * 4
    assert images[1].mode == "RGB"
    assert np.asarray(images[0]).std() > 5


def test_the_main_group_is_where_the_relation_says():
    sides = {"left of": (1, -1), "right of": (1, 1), "above": (0, -1), "below": (0, 1)}
    for scene in make_scenes(60).descriptions:
        if scene.second is None:
            continue
        # With another colour at the same place, only the pixels of the main group change.
        colour = "blue" if scene.main.colour != "blue" else "red"
        changed = replace(scene, main=replace(scene.main, colour=colour, texture="plain"))
        plain = replace(scene, main=replace(scene.main, texture="plain"))
        a, b = (np.asarray(draw_scene(s, 64), int) for s in (plain, changed))
        positions = np.argwhere(np.abs(a - b).sum(axis=2) > 60)
        axis, sign = sides[scene.relation]
        assert sign * (positions[:, axis].mean() - 31.5) > 3


def test_read_pairs_reads_written_scenes(tmp_path):
    written = make_scenes(8, size=32).write(tmp_path)
    read = read_pairs(tmp_path)
    assert read.image_ids == written.image_ids
    assert read.captions == written.captions
    assert read.splits == written.splits
    assert read.paths == written.paths
    assert all(path.is_file() for path in read.paths)


@pytest.mark.parametrize("arguments", [{"n": 0}, {"n": 3, "size": 4}, {"n": 3, "size": 10**6}])
def test_make_scenes_refuses_wrong_numbers(arguments):
    with pytest.raises(InputError):
        make_scenes(**arguments)


def test_one_scene_has_only_a_train_split():
    assert make_scenes(1).dataset.split_sizes() == {"train": 1}
