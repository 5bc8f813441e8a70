"""Whatever is given: an answer, or one message that says what to do."""

import numpy as np
import pytest

from diptych import AWCCA, InputError, Retriever
from diptych.data import PairedDataset, PairedViews


@pytest.fixture(scope="module")
def made(views):
    x, y, pairing = views()
    return Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0))), x, y


@pytest.fixture(scope="module")
def named(views):
    """A retriever that was made from named blocks."""
    x, y, pairing = views()
    x, y = {"resnet": x[:, :5], "dino": x[:, 5:]}, {"bert": y}
    return Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))


def refused(words, action):
    with pytest.raises(InputError, match=words) as caught:
        action()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, "3", None, np.float32(2), float("nan")])
def test_k_must_be_a_whole_number_of_at_least_one(made, k):
    retriever, x, y = made
    for ask in (
        lambda: retriever.search(y[0], k=k),
        lambda: retriever.annotate(x[0], k=k),
        lambda: retriever.similar(image=x[0], k=k),
    ):
        refused("is not a number of hits", ask)


@pytest.mark.parametrize("offset", [-1, 1.5, True, None, "2"])
def test_an_offset_is_a_number(made, offset):
    retriever, _, y = made
    for ask in (retriever.search, lambda row, **options: retriever.similar(text=row, **options)):
        refused(f"offset={offset!r} is not a number of hits", lambda ask=ask: ask(y[0], offset=offset))


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"resnet": np.ones(5)}, "'dino' is missing. This model takes 'resnet' .5 features., 'dino' .3 feat"),
        ({"resnet": np.ones(5), "dinner": np.ones(3)}, "'dino' is missing; 'dinner' is unknown"),
        ({"resnet": np.ones(4), "dino": np.ones(3)}, r"'resnet' has shape \[4\]"),
        ({"resnet": np.ones((2, 5)), "dino": np.ones((3, 3))}, "differ in their number of rows"),
        ({"resnet": np.ones(5), "dino": np.ones((1, 3))}, "differ in their number of rows"),
        ({"resnet": np.ones(()), "dino": np.ones(3)}, r"'resnet' has shape \[\]"),
        ({}, "'resnet' is missing; 'dino' is missing"),
        ({"resnet": np.full(5, np.nan), "dino": np.ones(3)}, "NaN"),
        ({"resnet": ["a"] * 5, "dino": np.ones(3)}, "not numbers"),
    ],
)
def test_wrong_blocks_are_named_in_one_message(named, blocks, message):
    refused(message, lambda: named.annotate(blocks))
    refused(message, lambda: named.add(blocks, ids=["new"]))


def test_a_model_without_names_says_so(made):
    retriever, x, y = made
    refused("image features have no named blocks", lambda: retriever.annotate({"a": x[0]}))
    refused("X has no blocks", lambda: Retriever.from_features({}, y))
    pairs = PairedViews(PairedDataset(tuple(map(str, range(60))), ("",) * 60, range(60)), x, y[:60])
    unfitted = Retriever(None, None)
    refused(
        "9 columns in all, but they have 8", lambda: unfitted.fit(pairs, layout={"image": {"a": 4, "b": 5}})
    )


@pytest.mark.parametrize("ask", ["search", "annotate", "embed_images", "embed_texts", "image", "text"])
@pytest.mark.parametrize(
    ("query", "words"),
    [
        (np.ones(5), "features"),
        (np.ones((1, 30)), "features"),
        (np.full(7, np.nan), "features"),
        (np.ones((2, 2, 2)), "3 dimension"),
        (np.float64(3), "0 dimension"),
        (np.ones((0, 7)), "is empty"),
        (np.array([["a", "b"]]), "not numbers|has 2 features"),
        (np.array(["a", "b"]), "encoder here"),
        ([], "no queries"),
        (None, "not an image, a text|an image or a text"),
        (5, "not an image, a text"),
        (object(), "not an image, a text"),
        ("a dog", "encoder here"),
        (["a dog", "a cat"], "encoder here"),
    ],
    ids=lambda given: given if isinstance(given, str) else type(given).__name__,
)
def test_queries_that_are_not_queries_are_refused(made, ask, query, words):
    retriever = made[0]
    if ask in ("image", "text"):
        # A matrix, even of one row, is more than the one item that similar takes.
        refused(f"{words}|one item at a time", lambda: retriever.similar(**{ask: query}))
    else:
        refused(words, lambda: getattr(retriever, ask)(query))


def test_texts_without_words_are_refused(fitted):
    for sentence in ("", "   ", "\n\t"):
        refused("is not a text", lambda sentence=sentence: fitted.search(sentence))
        refused("is not a text", lambda sentence=sentence: fitted.search(["a red star", sentence]))
        refused("is not a text", lambda sentence=sentence: fitted.add(captions=["a red star", sentence]))
    for query in (None, b"a star"):
        refused("is not a text", lambda query=query: fitted.search([query]))
    refused("is not a text", lambda: fitted.search(b"a star"))


def test_a_string_of_numpys_is_a_text(fitted):
    assert fitted.search(np.str_("a red star"), k=3) == fitted.search("a red star", k=3)


def test_similar_takes_one_item(made):
    retriever, x, y = made
    refused("an image or a text; give one of them", lambda: retriever.similar())
    refused("an image or a text; give one of them", lambda: retriever.similar(image=x[0], text=y[0]))
    refused("one item at a time", lambda: retriever.similar(image=x[:2]))


@pytest.mark.parametrize("where", [5, ["nobody"], "nobody", {"n": {"$over": 1}}, [5], [["0"]], 1.5], ids=str)
def test_filters_that_are_not_filters_are_refused(made, where):
    retriever, x, y = made
    for ask in (
        lambda: retriever.search(y[0], where=where),
        lambda: retriever.annotate(x[0], where=where),
        lambda: retriever.similar(image=x[0], where=where),
    ):
        refused("there is no item|is not a filter|is wrong|is not an operator", ask)


@pytest.mark.parametrize("weighting", ["bad", "asymmetric", (0.5, 1), 5, np.ones(2)], ids=str)
def test_a_weighting_is_refused_for_a_model_without_parts(made, weighting):
    retriever, x, y = made
    refused("names a part of a fusion.* leave it out", lambda: retriever.search(y[0], weighting=weighting))
    refused("names a part of a fusion.* leave it out", lambda: retriever.annotate(x[0], weighting=weighting))


@pytest.mark.parametrize(
    "action",
    [
        lambda r: r.search(np.ones(3)),
        lambda r: r.annotate(np.ones(3)),
        lambda r: r.add(np.ones((1, 3))),
        lambda r: r.remove("a"),
        lambda r: r.similar(image=np.ones(3)),
        lambda r: r.refit(),
        lambda r: r.info(),
        lambda r: r.embed_images(np.ones((1, 3))),
        lambda r: r.evaluate(
            PairedViews(PairedDataset(("a",), ("",), [0]), np.ones((1, 3)), np.ones((1, 3)))
        ),
    ],
)
def test_an_unfitted_retriever_says_so(action):
    refused("is not fitted; call fit", lambda: action(Retriever(None, None)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": ["a"] * 60}, "used more than once"),
        ({"ids": ["a"]}, "ids has 1 entries; expected 60, one for each row of X"),
        ({"ids": [str(i) for i in range(61)]}, "ids has 61 entries"),
        ({"caption_ids": ["a"] * 120}, "used more than once"),
        ({"caption_ids": ["a"]}, "caption_ids has 1 entries"),
        ({"caption_ids": [str(i) for i in range(120)]}, "'0' is given twice"),
        ({"captions": ["a"]}, "captions has 1 entries; expected 120, one for each row of Y"),
        ({"metadata": {"60": {}}}, "metadata names '60', an id that none of these items has"),
        ({"splits": ["train"]}, "splits has 1 entries"),
        ({"splits": ["test"] * 60}, "no train split"),
        ({"splits": ["practice"] * 60}, "'practice' is unknown"),
        ({"paths": ["a"]}, "paths has 1 entries"),
        ({"metadata": {"3": {"a": object()}}}, "metadata of '3' cannot be stored"),
        ({"metadata": ["a"]}, "give a dict"),
        ({"index": "tree"}, "index='tree' is unknown"),
        ({"dtype": "int8"}, "dtype='int8' is unknown"),
        ({"device": "nowhere"}, "no device 'nowhere'"),
        ({"pairing": [0, 1]}, "pairing has shape"),
        ({"pairing": np.arange(120)}, "has entries from 0 to 119"),
        ({"pairing": np.full(120, 0.5)}, "expected integers"),
        ({"X": np.ones((60, 3)) * np.nan}, "contains NaN"),
        ({"X": np.ones((60, 3))}, "every row of X is the same"),
        ({"Y": np.ones(120)}, "1 dimension"),
        ({"Y": [["a"]] * 120}, "not numbers"),
    ],
    ids=lambda change: next(iter(change)) if isinstance(change, dict) else "",
)
def test_features_that_do_not_fit_together(views, change, words):
    x, y, pairing = views()
    if "device" in change:
        pytest.importorskip("torch")
    given = {"X": x, "Y": y, "pairing": pairing, "model": AWCCA(params=(1.0, 1.0)), **change}
    refused(words, lambda: Retriever.from_features(**given))


def test_names_that_no_text_can_hold_are_refused(made, tmp_path):
    retriever, x, y = made
    refused("not valid Unicode text; rename", lambda: retriever.add(x[:1], ids=["a\udcff.jpg"]))
    for added in ({"texts": ["a\udcff"]}, {"caption_ids": ["a\udcff"]}):
        refused("not valid Unicode text; correct", lambda added=added: retriever.add(captions=y[:1], **added))
    for metadata in ({"a": ["b", "\udcff"]}, {"\udcff": 1}):
        about = {"new": metadata}
        refused("not valid Unicode", lambda about=about: retriever.add(x[:1], ids=["new"], metadata=about))
    retriever.save(tmp_path / "model")
    Retriever.load(tmp_path / "model")  # what was refused is not there


def test_masked_features_are_refused(made):
    retriever, x, y = made
    refused("masked array", lambda: retriever.search(np.ma.masked_array(y[0], y[0] > 0)))
    refused("masked array", lambda: retriever.annotate(np.ma.masked_array(x[:2], x[:2] > 0)))
    refused("masked array", lambda: retriever.add(images=np.ma.masked_array(x[:2], x[:2] > 0)))


class Table:
    """As a data frame: columns, and an array on request; going through it gives the columns' names."""

    def __init__(self, rows):
        self.rows, self.columns = rows, [f"feature {i}" for i in range(rows.shape[1])]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.rows, dtype)

    def __iter__(self):
        return iter(self.columns)


def test_a_table_of_features_is_features(made):
    retriever, x, y = made
    for ask, rows in ((retriever.search, y[:3]), (retriever.annotate, x[:3])):
        assert [[h.id for h in hits] for hits in ask(Table(rows))] == [
            [h.id for h in hits] for hits in ask(rows)
        ]


def test_an_array_of_strings_is_texts(fitted):
    sentences = [hit.text for hit in fitted.annotate(next(iter(fitted.search("red", k=1))).path, k=2)]
    found = fitted.search(np.array(sentences))
    assert [len(hits) for hits in found] == [10, 10]
    assert [h.id for h in found[0]] == [h.id for h in fitted.search(sentences[0])]


@pytest.mark.parametrize("size", [1e25, 1e39])
def test_features_beyond_float32_are_refused(made, size):
    retriever, x, y = made
    before = retriever.info()["items"]
    for ask in (
        lambda: retriever.search(y[0].astype(float) * size),
        lambda: retriever.annotate(x[:3].astype(float) * size),
        lambda: retriever.similar(image=x[0].astype(float) * size),
        lambda: retriever.add(images=x[:2].astype(float) * size),
    ):
        refused("too large for float32", ask)
    assert retriever.info()["items"] == before


def test_tasks_that_are_none(made):
    retriever, x, y = made
    refused("task='find' is unknown", lambda: retriever.embed_images(x, task="find"))
    refused("task='find' is unknown", lambda: retriever.embed_texts(y, task="find"))
