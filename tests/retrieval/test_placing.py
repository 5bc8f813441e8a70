"""Libraries in which some images have captions and others have none: places, offsets and probabilities."""

import numpy as np
import pytest

from diptych import AWCCA, Retriever
from tolerance import rounding

TASKS = ("search", "annotate")
PLACED = rounding(np.float32, 40, condition=10)

pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far", "ignore:these are training pairs")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def place(row, partners):
    """Where an item lies by hand, from its vector and those of its partners."""
    if not len(partners):
        return unit(row)
    return unit(unit(row) + unit(unit(np.array(partners)).mean(axis=0)))


def read_vectors(retriever, task):
    blocks = retriever.store.vectors(task, retriever.version)
    return {item.id: row for block in blocks for item, row in zip(block.items, block.vectors, strict=True)}


class Library:
    """A retriever, and what is in it by hand: rows of images, and images and rows of captions, by their ids.

    40 images with two captions each were fitted, and three without captions were added. ``x`` and ``y`` have
    further pairs.
    """

    def __init__(self, x, y, pairing, **options):
        ids, names = [str(i) for i in range(40)], [f"{i // 2}#{i % 2}" for i in range(80)]
        self.x, self.y, self.model = x, y, AWCCA(params=(2.0, 3.0)).fit(x[:40], y[:80], pairing[:80])
        self.retriever = Retriever.from_features(
            x[:40], y[:80], pairing[:80], ids=ids, caption_ids=names, model=self.model, **options
        )
        self.retriever.add(x[40:43], ids=["a", "b", "c"])
        self.images = {**dict(zip(ids, x, strict=False)), "a": x[40], "b": x[41], "c": x[42]}
        self.captions = {name: (name.split("#")[0], row) for name, row in zip(names, y, strict=False)}

    def assert_placed(self, tasks=TASKS):
        for task in tasks:
            images = {
                name: self.model.transform(row[None], task=task)[0] for name, row in self.images.items()
            }
            captions = {
                name: (image, self.model.transform(y=row[None], task=task)[0])
                for name, (image, row) in self.captions.items()
            }
            if task == "search":
                partners = {
                    name: [row for image, row in captions.values() if image == name] for name in images
                }
                rows = images
            else:
                rows = {name: row for name, (_, row) in captions.items()}
                partners = {
                    name: [images[image]] if image in images else [] for name, (image, _) in captions.items()
                }
            stored = read_vectors(self.retriever, task)
            assert stored.keys() == rows.keys()
            for name, row in rows.items():
                further = -0.1 if len(partners[name]) else 0.0
                expected = [*place(row, partners[name]), further]
                np.testing.assert_allclose(stored[name], expected, rtol=0, atol=PLACED, err_msg=name)


@pytest.fixture(params=["memory", "folder", "postgresql"])
def library(request, views, tmp_path):
    options = {"index": request.getfixturevalue("fresh")()} if request.param == "postgresql" else {}
    library = Library(*views(n=50), **options)
    if request.param == "folder":
        library.retriever.save(tmp_path / "model")
    return library


def learn(library):
    """A caption of an image that had none, and another of one that had two."""
    for image, row in (("a", library.y[90]), ("7", library.y[91])):
        (name,) = library.retriever.learn(row, right=image)
        library.captions[name] = image, row


def update_caption(library):
    library.retriever.update("7#1", features=library.y[92])
    library.captions["7#1"] = "7", library.y[92]


def remove_captions(library):
    """One of two captions of an image, and both of another."""
    library.retriever.remove(["7#1", "8#0", "8#1"])
    for name in ("7#1", "8#0", "8#1"):
        del library.captions[name]


def remove_image(library):
    library.retriever.remove("7")
    del library.images["7"], library.captions["7#0"], library.captions["7#1"]


def add_with_captions(library):
    library.retriever.add(
        library.x[43:45], library.y[86:89], pairing=[0, 0, 1], ids=["d", "e"], caption_ids=["p", "q", "r"]
    )
    library.images |= {"d": library.x[43], "e": library.x[44]}
    library.captions |= {name: ("dde"[at], library.y[86 + at]) for at, name in enumerate("pqr")}


def detach_caption(library):
    """A text without an image in place of a caption."""
    library.retriever.add(captions=library.y[93:94], caption_ids=["7#0"], on_conflict="replace")
    library.captions["7#0"] = None, library.y[93]


def replace_with_captions(library):
    """An image and one of its captions again, with a further one; its other caption stays."""
    x, y = library.x[45], library.y[94:96]
    library.retriever.add(x, y, pairing=[0, 0], ids=["7"], caption_ids=["7#0", "new"], on_conflict="replace")
    library.images["7"] = x
    library.captions |= {"7#0": ("7", y[0]), "new": ("7", y[1])}


def update_image(library):
    library.retriever.update("7", features=library.x[46])
    library.images["7"] = library.x[46]


def replace_image(library):
    library.retriever.add(library.x[47], ids=["7"], on_conflict="replace")
    library.images["7"] = library.x[47]


CHANGES = [learn, update_caption, remove_captions, remove_image, add_with_captions, detach_caption]


def test_items_lie_where_they_and_their_partners_say(library):
    library.assert_placed()
    vectors = read_vectors(library.retriever, "search")
    alone = library.retriever.fitted.projectors["search"].items(library.x[40:43])
    np.testing.assert_allclose([vectors[name][:-1] for name in "abc"], alone, rtol=0, atol=PLACED)
    moved = np.stack([vectors[str(i)][:-1] for i in range(40)]) - library.retriever.embed_images(
        library.x[:40]
    )
    assert np.abs(moved).max(axis=1).min() > 100 * PLACED  # captions do move an image


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_captions_moves_their_images(library, change):
    change(library)
    library.assert_placed()


@pytest.mark.parametrize("change", [update_image, replace_image, replace_with_captions])
def test_another_image_lies_between_itself_and_the_captions_that_stay(library, change):
    change(library)
    library.assert_placed(["search"])
    library.retriever.refit()
    library.model = library.retriever.fitted.model
    library.assert_placed()


def test_a_refit_places_all_items_as_a_new_library_does(library):
    for change in (learn, add_with_captions, remove_captions):
        change(library)
    library.retriever.refit()
    library.model = library.retriever.fitted.model
    library.assert_placed()
    new = Retriever.from_model(library.model)
    library.retriever = new
    names = list(library.images)
    captions, owners = list(library.captions), [image for image, _ in library.captions.values()]
    new.add(
        np.array(list(library.images.values())),
        np.array([row for _, row in library.captions.values()]),
        pairing=[names.index(owner) for owner in owners],
        ids=names,
        caption_ids=captions,
    )
    library.assert_placed()
