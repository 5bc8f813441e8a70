"""Projectors: inner products of their vectors are the scores of the models, whatever the model."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, Fusion, InputError
from diptych._persistence import convert
from diptych.cca import Projector, maps
from diptych.cca._projector import ProjectorConfig
from diptych.cca._weighting import normalize, to_unit_length
from diptych.fusion import Part
from tolerance import rounding


def draw_views(seed=0, n=60):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 3))
    return [
        hidden @ rng.normal(size=(3, width)) + rng.normal(size=(n, width)) + rng.normal(size=width)
        for width in (8, 6)
    ]


def compare(projector, x, y):
    """Return the scores of all items for all queries, as an index computes them."""
    items, queries = (x, y) if projector.searched == "x" else (y, x)
    return projector.queries(queries) @ projector.items(items).T


@given(
    seed=st.integers(0, 1000),
    task=st.sampled_from(["search", "annotate"]),
    weighting=st.sampled_from(["asymmetric", "symmetric", "none", "residual", (0.5, 1.5)]),
    how=st.sampled_from(["none", "unit", "sqrt-unit"]),
    similarity=st.sampled_from(["cosine", "l2"]),
)
def test_an_awccas_scores_are_the_textbooks(seed, task, weighting, how, similarity):
    x, y = draw_views(seed)
    model = AWCCA(params=(2.0, 3.0), weighting=weighting, normalize=(how, "none"), similarity=similarity)
    model.fit(x, y)
    projector = model.projector(task)
    x_map, y_map = maps(model.models_[task], weighting, task)
    u = (normalize(x, how) - model.x_mean_) @ x_map
    v = (y - model.y_mean_) @ y_map
    items, queries = (u, v) if task == "search" else (v, u)
    if similarity == "cosine":
        expected = to_unit_length(queries) @ to_unit_length(items).T
    else:
        expected = -np.linalg.norm(queries[:, None] - items[None], axis=2)
    rows = y if task == "search" else x
    scores = projector.scores(compare(projector, x, y), projector.queries(rows))
    largest = 1.0 if similarity == "cosine" else np.square(expected).max() + np.square(items).max()
    limit = rounding(np.float32, x.shape[1] + 8) * largest
    if similarity == "l2":  # the root of a difference: compare what it is the root of
        scores, expected = np.square(scores), np.square(expected)
    np.testing.assert_allclose(scores, expected, atol=50 * limit)
    assert projector.dimension == projector.items(x if task == "search" else y).shape[1]


@pytest.fixture(scope="module")
def fusion():
    """A fusion of two parts with a correction, which must be chosen: each part knows half of Y."""
    rng = np.random.default_rng(0)
    y = rng.normal(size=(300, 8))
    a = y[:, :4] @ rng.normal(size=(4, 5)) + rng.normal(size=(300, 5))
    b = y[:, 4:] @ rng.normal(size=(4, 4)) + rng.normal(size=(300, 4))
    blocks = {"a": a, "b": b}, {"c": y}
    parts = [Part(("a",), ("c",)), Part(("b",), ("c",))]
    return Fusion(grid=3, parts=parts, hubness=("csls",)).fit(*blocks), blocks


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_a_fusions_scores_are_the_corrected_sum_of_its_parts(fusion, task):
    model, blocks = fusion
    projector = model.projector(task)
    x, y = (np.hstack(list(view.values())) for view in blocks)
    whole = compare(projector, x, y)
    items, queries = (x, y) if task == "search" else (y, x)
    queries, vectors = projector.queries(queries), projector.items(items)
    assert set(projector.masks()) == {"uncorrected", "a × c", "b × c"}
    corrections = queries[:, -1:] * vectors[:, -1]
    assert np.any(corrections < 0)
    total = np.zeros_like(whole)
    for part in projector.parts:
        cosines = projector.restrict(queries, part.name) @ vectors.T
        assert np.abs(cosines).max() <= 1 + 1e-5
        total += np.float32(part.weight) * cosines
    np.testing.assert_allclose(whole, total + corrections, atol=1e-5)
    np.testing.assert_allclose(projector.restrict(queries, "uncorrected") @ vectors.T, total, atol=1e-5)
    # A matrix of the blocks side by side is the same as the blocks by name.
    np.testing.assert_allclose(model.transform(x, y, task=task)[0], model.transform(*blocks, task=task)[0])


def test_items_as_queries_leave_the_correction_out(fusion):
    model, (x, _) = fusion
    projector = model.projector("search")
    vectors = projector.items(x)
    similar = projector.as_queries(vectors) @ vectors.T
    directions = projector.coordinates(vectors)
    np.testing.assert_allclose(similar, directions @ directions.T, atol=1e-6)


def test_wrong_features_are_one_sentence(fusion):
    model, (x, y) = fusion
    projector = model.projector("search")
    with pytest.raises(InputError, match="the blocks \\['b'\\] are missing"):
        projector.items({"a": x["a"]})
    with pytest.raises(InputError, match="block 'a' has 4 features; expected 5"):
        projector.items({**x, "a": x["a"][:, :4]})
    with pytest.raises(InputError, match="Y features"):
        projector.queries(y["c"][:, :2])
    with pytest.raises(InputError, match="too large for float32"):
        AWCCA(params=(1.0, 1.0)).fit(x["a"], y["c"]).projector().items(np.full((1, 5), 1e30))
    with pytest.raises(InputError, match="is no part of this fusion"):
        projector.restrict(projector.queries(y), "nobody")


@pytest.mark.parametrize("size", [1e-22, 1e-12, 1.0, 1e12])
def test_vectors_have_length_one_whatever_the_size_of_their_coordinates(size):
    """The squares of the smallest are below the range of float32."""
    x, y = draw_views()
    projector = AWCCA(params=(2.0, 3.0)).fit(x, y).projector()
    part = projector.parts[0]
    scaled = replace(part.y, map=part.y.map * np.float32(size))
    lengths = np.linalg.norm(replace(projector, parts=(replace(part, y=scaled),)).queries(y), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-6)


@pytest.mark.parametrize("task", ["search", "annotate"])
@pytest.mark.parametrize("kind", ["cosine", "l2", "fusion"])
def test_a_packed_projector_gives_the_same_vectors(task, kind, fusion):
    x, y = draw_views()
    model = fusion[0] if kind == "fusion" else AWCCA(params=(2.0, 3.0), similarity=kind).fit(x, y)
    if kind == "fusion":
        x, y = (np.hstack(list(view.values())) for view in fusion[1])
    projector = model.projector(task)
    config, tensors = projector.pack()
    stored = convert(msgspec.json.decode(msgspec.json.encode(config)), ProjectorConfig, "config.json")
    again = Projector.unpack(task, stored, tensors, Path("model.safetensors"))
    items, queries = (x, y) if task == "search" else (y, x)
    np.testing.assert_array_equal(again.items(items), projector.items(items))
    np.testing.assert_array_equal(again.queries(queries), projector.queries(queries))
    assert again.masks().keys() == projector.masks().keys()


def test_arrays_that_do_not_fit_the_config_are_refused(fusion):
    config, tensors = fusion[0].projector("search").pack()
    for name in tensors:
        missing = {key: array for key, array in tensors.items() if key != name}
        for damaged in (missing, {**tensors, name: tensors[name][..., :-1]}):
            with pytest.raises(InputError, match="save the model again|expected finite numbers"):
                Projector.unpack("search", config, damaged, Path("model.safetensors"))
    for change in ({"parts": []}, {"x": [("a", 5)]}, {"gate": (2.0, 1.0)}, {"euclidean": True}):
        with pytest.raises(InputError):
            msgspec.structs.replace(config, **change)


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_scores_of_pairs_are_cosines_without_the_correction(task, fusion):
    model, blocks = fusion
    projector = model.projector(task)
    x, y = (np.hstack(list(view.values())) for view in blocks)
    pairing = np.arange(len(y))[::-1]
    items, queries = (x, y) if task == "search" else (y, x)
    scores = projector.restrict(projector.queries(queries), "uncorrected") @ projector.items(items).T
    scores = scores if task == "search" else scores.T
    expected = scores[np.arange(len(y)), pairing] / sum(part.weight for part in projector.parts)
    np.testing.assert_allclose(projector.pair_scores(x, y, pairing), expected, atol=1e-5)
    assert np.abs(projector.pair_scores(x, y)).max() <= 1 + 1e-5


def test_scores_of_pairs_are_distances_for_l2():
    x, y = draw_views()
    projector = AWCCA(params=(2.0, 3.0), similarity="l2").fit(x, y).projector("search")
    products = compare(projector, x, y)
    expected = np.diagonal(projector.scores(products, projector.queries(y)))
    np.testing.assert_allclose(projector.pair_scores(x, y), expected, rtol=1e-3, atol=1e-3)
