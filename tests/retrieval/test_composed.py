"""Composed queries: texts, images and features, added and subtracted with weights."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from diptych import AWCCA, InputError, Retriever
from diptych.encoders import FunctionEncoder
from diptych.fusion import Fusion, Part
from diptych.retrieval._inputs import QueryPart
from tolerance import assert_same_hits, rounding

N = 60
ALL = 2 * N
TOLERANCE = 4 * rounding(np.float32, 40, 4.0)
WEIGHTS = st.floats(0.05, 20)
ROWS = st.integers(0, N - 1)


@pytest.fixture(scope="module", params=["cosine", "l2", "fusion"])
def made(request, views):
    """A retriever of each kind of vectors, with the features of both views.

    Every image is stored twice: by its row with a caption, and as ``alone {row}`` without.
    """
    x, y, pairing = views(n=N, captions=1, m_x=9, m_y=8, hidden=5)
    if request.param != "fusion":
        model = AWCCA(params=(2.0, 3.0), similarity=request.param)
        retriever = Retriever.from_features(x, y, pairing, model=model)
        retriever.add(x, ids=[f"alone {row}" for row in range(N)])
        return retriever, x, y
    parts = [Part(("a",), ("y",)), Part(("b",), ("y",))]
    model = Fusion(grid=3, parts=parts, hubness=("csls",))
    rng = np.random.default_rng(0)
    x[:, :5] = y[:, :4] @ rng.normal(size=(4, 5)) + rng.normal(size=(N, 5))
    x[:, 5:] = y[:, 4:] @ rng.normal(size=(4, 4)) + rng.normal(size=(N, 4))
    retriever = Retriever.from_features({"a": x[:, :5], "b": x[:, 5:]}, {"y": y}, pairing, model=model)
    retriever.add({"a": x[:, :5], "b": x[:, 5:]}, ids=[f"alone {row}" for row in range(N)])
    assert set(retriever.searcher.projectors["search"].masks()) == {"uncorrected", "a × y", "b × y"}
    return retriever, x, y


def scores(hits):
    return {hit.id: hit.score for hit in hits}


def near(hits, expected):
    own, its = scores(hits), scores(expected)
    assert own.keys() == its.keys()
    power = 1 if max(its.values()) > TOLERANCE else 2  # rounding changes squares of distances
    return max(abs(own[name] ** power - its[name] ** power) for name in own) <= TOLERANCE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=ROWS, item=ROWS, weight=WEIGHTS)
def test_what_is_added_scores_higher_and_what_is_subtracted_lower(made, query, item, weight):
    retriever, x, y = made
    part, name = QueryPart("image", x[item : item + 1].astype(np.float32)), f"alone {item}"
    plain = scores(retriever.search(y[query], k=ALL))[name]
    added = scores(retriever.search(y[query], k=ALL, plus=[(part, weight)]))[name]
    less = scores(retriever.search(y[query], k=ALL, minus=[(part, weight)]))[name]
    assert added >= plain - TOLERANCE
    assert less <= plain + TOLERANCE
    similar = scores(retriever.similar(image=x[query], k=ALL))[name]
    assert scores(retriever.similar(image=x[query], k=ALL, plus=[x[item]]))[name] >= similar - TOLERANCE


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    query=ROWS,
    parts=st.lists(st.tuples(ROWS, WEIGHTS, st.booleans()), min_size=1, max_size=4),
    data=st.data(),
)
def test_the_order_of_parts_is_of_no_importance(made, query, parts, data):
    retriever, _, y = made

    def search(parts):
        plus = [(y[row], weight) for row, weight, added in parts if added]
        minus = [(y[row], weight) for row, weight, added in parts if not added]
        return retriever.search(y[query], k=ALL, plus=plus, minus=minus)

    vectors = retriever.searcher.projectors["search"].queries(y)[:, :-1].astype(float)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    total = vectors[query] + sum(w * vectors[row] * (1 if added else -1) for row, w, added in parts)
    # What nearly cancels enlarges rounding.
    assume(np.linalg.norm(total) > 0.2 * (1 + sum(w for _, w, _ in parts)))
    assert near(search(parts), search(data.draw(st.permutations(parts))))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(row=ROWS, weight=WEIGHTS)
def test_a_query_added_to_itself_stays_as_it_is(made, row, weight):
    retriever, x, y = made
    assert near(retriever.search(y[row], k=ALL, plus=[(y[row], weight)]), retriever.search(y[row], k=ALL))
    assert near(retriever.annotate(x[row], k=ALL, plus=[(x[row], weight)]), retriever.annotate(x[row], k=ALL))
    assert near(
        retriever.similar(text=y[row], k=ALL, plus=[(y[row], weight)]), retriever.similar(text=y[row], k=ALL)
    )


def test_scores_of_a_sum_rank_as_the_sum_of_scores(made):
    retriever, _, y = made
    if retriever.fitted.projectors["search"].euclidean:
        return  # minus a distance is no inner product
    options = {"weighting": "uncorrected"} if isinstance(retriever.model, Fusion) else {}
    single = [scores(retriever.search(y[row], k=ALL, **options)) for row in (3, 7, 11)]
    composed = scores(retriever.search(y[3], k=ALL, plus=[(y[7], 0.5)], minus=[(y[11], 0.25)], **options))
    summed = {i: single[0][i] + 0.5 * single[1][i] - 0.25 * single[2][i] for i in composed}
    alone, paired = ([f"{kind}{row}" for row in range(N)] for kind in ("alone ", ""))
    ratio = np.array([summed[i] / composed[i] for i in alone])
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-3)
    # The offset of images with captions is subtracted once.
    rest = [summed[i] - ratio[0] * composed[i] for i in paired]
    np.testing.assert_allclose(rest, rest[0], atol=10 * TOLERANCE)


def test_a_part_of_a_fusion_composes_its_vectors(made):
    retriever, x, y = made
    for name in retriever.searcher.projectors["search"].masks():
        part = {"weighting": name}
        plain = retriever.search(y[3], k=ALL, **part)
        assert near(retriever.search(y[3], k=ALL, plus=[y[3]], **part), plain)
        item = QueryPart("image", x[5:6].astype(np.float32))
        assert scores(retriever.search(y[3], k=ALL, plus=[item], **part))["5"] > scores(plain)["5"]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"plus": [("other", 0)]}, "plus has the weight 0; give a positive number"),
        ({"minus": [("other", -1.0)]}, "minus has the weight -1.0"),
        ({"plus": [("other", float("nan"))]}, "the weight nan"),
        ({"plus": [("other", float("inf"))]}, "the weight inf"),
        ({"plus": [("other", 1e155)]}, "the weight 1e[+]155; give a positive number of at most 1000"),
        ({"minus": [("other", 1000.1)]}, "minus has the weight 1000.1"),
        ({"plus": [("other", True)]}, "the weight True"),
        ({"plus": [("other", "2")]}, "the weight '2'"),
        ({"plus": [("other", 1.0, 2.0)]}, "a tuple of 3"),
        ({"plus": [3]}, "3 is no part of a query; give an image, a text, features"),
        ({"plus": [None]}, "None is no part"),
        ({"plus": ["same"], "minus": [("same", 2.0)]}, "cancel each other"),
        ({"minus": ["same"]}, "cancel each other"),
        ({"plus": ["two"]}, "has 2 rows of features"),
    ],
)
def test_wrong_parts_are_one_sentence(made, parts, words):
    retriever, _, y = made
    features = {"other": y[4], "same": y[3], "two": y[:2]}

    def put(part):
        if isinstance(part, tuple):
            return (features[part[0]], *part[1:])
        return features.get(part, part) if isinstance(part, str) else part

    with pytest.raises(InputError, match=words) as caught:
        retriever.search(y[3], **{name: list(map(put, own)) for name, own in parts.items()})
    assert "\n" not in str(caught.value)


def test_what_has_no_direction_is_refused(views):
    x, y, pairing = views(captions=1)
    model = AWCCA(params=(2.0, 3.0), normalize=("none", "none"))
    retriever = Retriever.from_features(x, y, pairing, model=model)
    mean = np.asarray(retriever.fitted.model.y_mean_, np.float32)
    assert len(retriever.search(mean)) == 10
    with pytest.raises(InputError, match="a part of the query has no direction in this model"):
        retriever.search(y[0], plus=[mean])


def test_one_query_at_a_time_is_composed(made):
    retriever, _, y = made
    with pytest.raises(InputError, match="one query at a time"):
        retriever.search(y[:2], plus=[y[4]])
    (hits,) = retriever.search(y[:1], plus=[y[4]])
    assert_same_hits(hits, retriever.search(y[0], plus=y[4]), TOLERANCE)


def test_texts_and_images_are_told_apart(fitted, drawn):
    path, text = str(drawn.paths[5]), "a red star at night"
    expected = fitted.search(text, k=20, plus=[Path(path)])
    with Image.open(path) as image:
        for part in (path, Path(path).read_bytes(), image):
            assert_same_hits(fitted.search(text, k=20, plus=[part]), expected, TOLERANCE)
    features = fitted.encoders.encode_images([path])
    for part in ([QueryPart("image", features)], [(Path(path), 1)], (path,), path):
        assert_same_hits(fitted.search(text, k=20, plus=part), expected, TOLERANCE)
    assert expected[0].id == drawn.image_ids[5] or scores(expected)[drawn.image_ids[5]] > 0.5
    by_text = fitted.annotate(path, k=20, plus=["a blue boat"], minus=[("night", 0.5)])
    rows = fitted.encoders.encode_texts(["a blue boat", "night"])
    parts = [QueryPart("text", row[None, :]) for row in rows]
    assert_same_hits(by_text, fitted.annotate(path, k=20, plus=parts[:1], minus=[(parts[1], 0.5)]), TOLERANCE)
    with pytest.raises(InputError, match=r"nowhere\.png"):
        fitted.search(text, plus=["nowhere.png"])


def test_ignored_words_of_every_text_are_reported(fitted, drawn):
    hits = fitted.search("a red quokka", plus=["a wombat boat", "a quokka star"], minus=["a numbat boat"])
    assert hits.ignored_words == ("quokka", "wombat", "numbat")
    assert fitted.annotate(drawn.paths[0], plus=["a wombat boat"]).ignored_words == ("wombat",)
    assert fitted.similar(image=drawn.paths[0], plus=["a wombat boat"]).ignored_words == ("wombat",)
    row = fitted.encoders.encode_texts(["a star"])[0]
    assert fitted.search(row, plus=["a wombat boat"]).ignored_words == ("wombat",)
    with pytest.raises(InputError, match="quokka"):
        fitted.search("a star", plus=["quokka"])


def test_a_string_is_of_the_query_s_view_where_both_are_texts(views):
    x, y, pairing = views(captions=1)
    lookup = {f"m{i}": row for i, row in enumerate(x)} | {f"t{i}": row for i, row in enumerate(y)}
    encode = lambda texts: np.stack([lookup[text] for text in texts])  # noqa: E731
    retriever = Retriever.from_features(
        x,
        y,
        pairing,
        model=AWCCA(params=(2.0, 3.0)),
        image_encoder=FunctionEncoder(encode, "molecules", "texts"),
        text_encoder=encode,
        views=("molecule", "text"),
    )
    for call, rows, letter in ((retriever.annotate, x, "m"), (retriever.search, y, "t")):
        assert_same_hits(call(f"{letter}3", plus=[f"{letter}7"]), call(rows[3], plus=[rows[7]]), TOLERANCE)
