"""Groups of near-identical items of every store, the contact sheet, and the command."""

import shutil

import numpy as np
import pytest

from diptych import AWCCA, Fusion, InputError, Retriever
from diptych.data._duplicates import LEAST_SIMILARITY
from diptych.retrieval import _near_duplicates
from diptych.retrieval._near_duplicates import SHEET_GROUPS, SHEET_ITEMS

NASTY = '<script>alert("x")</script>'


def ids_of(groups):
    return [[item.id for item in group.items] for group in groups]


def add_copies(made, rng, *, n=4, noise=1e-3, captions=False):
    """Add images that are almost the first ones, three times the first; return the expected groups.

    With ``captions``, they have those of the first ones.
    """
    rows = np.vstack([made.x[:n], made.x[:1]])
    copies = rows + noise * rng.normal(size=rows.shape)
    ids = [*(f"copy {i}" for i in range(n)), "another copy 0"]
    texts = [text for row in [*range(n), 0] for text in np.flatnonzero(made.pairing == row)]
    pairing = np.repeat(np.arange(n + 1), 2)
    same = {"captions": made.y[texts], "pairing": pairing} if captions else {}
    made.retriever.add(copies, ids=ids, **same)
    return [["0", "copy 0", "another copy 0"], *([str(i), f"copy {i}"] for i in range(1, n))]


@pytest.fixture
def shape():
    return {"n": 150, "m_x": 40, "m_y": 30, "hidden": 20}


def test_copies_are_found_by_their_features(make, rng, shape):
    made = make(shape=shape)
    assert made.retriever.duplicates() == []
    expected = add_copies(made, rng)
    found = made.retriever.duplicates()
    assert ids_of(found) == expected
    assert found.compared == "features"
    assert found.n_items == 155
    assert LEAST_SIMILARITY <= found.threshold <= min(group.similarity for group in found) <= 1
    made.retriever.remove("copy 3")
    assert ids_of(made.retriever.duplicates()) == expected[:3]


@pytest.mark.parametrize(
    "model",
    [AWCCA(params=(2.0, 3.0)), AWCCA(params=(2.0, 3.0), similarity="l2"), Fusion(grid=3, verbose=False)],
    ids=["cosine", "l2", "fusion"],
)
def test_without_features_the_vectors_are_compared(make, rng, shape, model):
    made = make(shape=shape, model=model, keep_features=False)
    expected = add_copies(made, rng, noise=1e-4, captions=True)
    found = made.retriever.duplicates(threshold=0.9999)
    assert found.compared == "vectors"
    assert ids_of(found) == expected
    assert ids_of(made.retriever.duplicates()) == expected


@pytest.mark.filterwarnings("ignore:1 of 2 new images lies far")
def test_similarities_are_cosines_and_every_block_counts_alike(rng):
    x = {"long": 1000 * rng.normal(size=(60, 6)), "short": rng.normal(size=(60, 5))}
    y = rng.normal(size=(60, 4))
    retriever = Retriever.from_features(x, {"texts": y}, model=AWCCA(params=(1.0, 1.0)))
    turned = {"long": x["long"][:1], "short": -x["short"][:1]}  # cosines of 1 and −1: 0 on average
    other = {"long": x["long"][1:2] * 3, "short": x["short"][1:2] / 5}
    retriever.add({key: np.vstack([turned[key], other[key]]) for key in x}, ids=["turned", "scaled"])
    [group] = retriever.duplicates(threshold=0.9)
    assert [item.id for item in group.items] == ["1", "scaled"]
    assert group.similarity == pytest.approx(1, abs=1e-6)
    assert group.to_json()["items"][1] == {"id": "scaled", "view": "image"}


def test_a_group_is_what_pairs_connect_and_says_how_far_it_reaches(rng):
    angles = np.deg2rad([0, 20, 40, 100])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    y = rng.normal(size=(60, 4))
    noise = rng.normal(size=(56, 2))
    retriever = Retriever.from_features(np.vstack([x, noise]), y, model=AWCCA(params=(1.0, 1.0)))
    retriever.remove([str(i) for i in range(4, 60)])
    [group] = retriever.duplicates(threshold=np.cos(np.deg2rad(21)))
    assert [item.id for item in group.items] == ["0", "1", "2"]
    assert group.similarity == pytest.approx(np.cos(np.deg2rad(40)), abs=1e-6)


def test_equal_texts_are_together_whatever_their_features(make, shape):
    made = make(shape=shape)
    made.retriever.add(
        captions=np.random.default_rng(5).normal(size=(3, 30)),
        texts=["a dog", "a cat", "a dog"],
        caption_ids=["one", "cat", "two"],
    )
    [group] = made.retriever.duplicates("text", threshold=0.9999)
    assert [item.id for item in group.items] == ["one", "two"]
    assert group.similarity == 1
    assert made.retriever.duplicates("text").n_items == 303


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda r: r.duplicates("sound"), "'image', 'text'"),
        (lambda r: r.duplicates(threshold=0), "threshold=0"),
        (lambda r: r.duplicates(threshold=1.5), "threshold=1.5"),
        (lambda r: r.duplicates(threshold=float("nan")), "threshold"),
        (lambda r: r.duplicates(threshold="high"), "threshold"),
        (lambda r: Retriever.from_model(r.fitted.model).duplicates(), "the model has no images"),
        (lambda r: Retriever().duplicates(), "not fitted"),
    ],
)
def test_wrong_arguments_are_one_sentence(make, call, words):
    with pytest.raises(InputError, match=words):
        call(make().retriever)


def test_a_sheet_of_texts_and_the_limits_of_a_sheet(make, tmp_path, monkeypatch):
    retriever = make().retriever
    n = SHEET_GROUPS + 5
    texts = [f"{NASTY} {i}" for i in range(n)] * 2 + [f"{NASTY} 0"] * (SHEET_ITEMS + 3)
    rows = np.random.default_rng(0).normal(size=(len(texts), 7))
    retriever.add(captions=rows, texts=texts, caption_ids=[f"added {i}" for i in range(len(texts))])
    found = retriever.duplicates("text", threshold=1)
    assert len(found) == n
    found.write_sheet(tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text("utf-8")
    assert "<script" not in html
    assert html.count("<h3>") == SHEET_GROUPS
    assert f"The {SHEET_GROUPS} largest groups are shown." in html
    assert f"{SHEET_ITEMS + 5} items, {SHEET_ITEMS} of them shown" in html
    assert html.count("<li>") == SHEET_ITEMS + 2 * (SHEET_GROUPS - 1)
    none = retriever.duplicates("image", threshold=1)
    none.write_sheet(tmp_path / "none.html")
    assert "No near-identical images" in (tmp_path / "none.html").read_text("utf-8")


@pytest.mark.filterwarnings("ignore:.*lies? far")
def test_a_sheet_of_images_shows_those_that_are_there(pictures, drawn, tmp_path):
    shutil.copy(drawn.paths[0], tmp_path / "copy.png")
    pictures.add([tmp_path / "copy.png", drawn.paths[0]], ids=["copy", "again"])
    (tmp_path / "copy.png").unlink()
    groups = pictures.duplicates(threshold=0.999999)
    assert {"copy", "again"} <= {
        item["id"] for group in groups.to_json()["groups"] for item in group["items"]
    }
    groups.write_sheet(tmp_path / "sheet.html")
    html = (tmp_path / "sheet.html").read_text("utf-8")
    assert "copy" in html
    assert html.count("data:image") == sum(len(group.items) for group in groups) - 1


def test_features_are_read_in_blocks(make, rng, shape, monkeypatch):
    made = make(shape=shape)
    expected = add_copies(made, rng)
    monkeypatch.setattr(_near_duplicates, "BLOCK", 7)
    assert ids_of(made.retriever.duplicates()) == expected
