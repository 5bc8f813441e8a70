"""The exported ONNX file computes what ``embed_images`` and ``embed_texts`` return."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diptych import AWCCA, InputError, Retriever
from diptych.cca._projector import split_blocks
from diptych.fusion import Block, Fusion, Part
from diptych.retrieval import _export
from diptych.retrieval._items import SEARCHED
from example_files import code_blocks
from tolerance import rounding

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
ReferenceEvaluator = pytest.importorskip("onnx.reference").ReferenceEvaluator

PAGE = Path(__file__).parents[2] / "docs" / "retriever.md"
WIDTHS = {"image": {"photos": 12, "sketches": 9}, "text": {"words": 12, "tones": 8}}
SIDES = [(view, task) for view in WIDTHS for task in ("search", "annotate")]

MODELS = {
    "tikhonov": AWCCA(params=(2.0, 3.0)),
    "selected": AWCCA(grid=3),
    "truncated": AWCCA(filter="tsvd", params=(5, 4)),
    "guided": AWCCA(filter="guided", params=(5, 4), n_components="auto"),
    "unit": AWCCA(params=(2.0, 3.0), normalize=("unit", "sqrt-unit")),
    "signed-sqrt": AWCCA(params=(2.0, 3.0), normalize=("signed-sqrt", "none")),
    "residual": AWCCA(params=(2.0, 3.0), weighting="residual"),
    "powers": AWCCA(params=(2.0, 3.0), weighting=(0.5, 2.0), n_components=3),
    "l2": AWCCA(params=(2.0, 3.0), similarity="l2"),
    "l2 of unit": AWCCA(params=(2.0, 3.0), similarity="l2", normalize=("unit", "unit"), n_components=4),
    "best": Fusion(grid=4),
    "plain": Fusion("plain", grid=4),
    "csls": Fusion(grid=4, hubness=("csls",), n_components=5, polish=False),
    "few in the bank": Fusion(grid=4, hubness=("csls",), bank=3, polish=False),
    "pieces": Fusion(
        grid=4,
        polish=False,
        blocks={
            "photos": Block("sqrt-unit", pieces=3),
            "words": Block("unit", pieces=2),
            "tones": Block("signed-sqrt"),
        },
    ),
    "dual": Fusion(grid=4, parts=[Part(("photos",), ("words",), kind="identity")], polish=False),
    "a block unused": Fusion(grid=4, parts=[Part(("photos",), ("tones",))], polish=False),
}


def make_blocks():
    """Features whose blocks know different things; photos and words are those of one dual encoder."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(240, 6))

    def make(seen, mixture):
        rows = hidden[:, seen] @ mixture + 0.8 * rng.normal(size=(240, mixture.shape[1]))
        return (rows + rng.normal(size=mixture.shape[1])).astype(np.float32)

    dual, sketches, tones = (rng.normal(size=(4, width)) for width in (12, 9, 8))
    return {
        "image": {"photos": make([0, 1, 2, 3], dual), "sketches": make([2, 3, 4, 5], sketches)},
        "text": {"words": make([0, 1, 2, 3], dual), "tones": make([0, 1, 4, 5], tones)},
    }


BLOCKS = make_blocks()


@pytest.fixture(scope="module")
def fit():
    """Retrievers by the name of their model, each fitted when first asked for."""
    known = {}

    def fit_once(name):
        if name not in known:
            known[name] = Retriever.from_features(BLOCKS["image"], BLOCKS["text"], model=MODELS[name])
        return known[name]

    return fit_once


def export(retriever, folder, view, task):
    path = folder / f"{view}-{task}.onnx"
    retriever.export_onnx(path, view=view, task=task)
    return path


@pytest.fixture(scope="module")
def exported(fit, tmp_path_factory):
    """Paths of exported files by model, view and task, each written when first asked for."""
    folder, paths = tmp_path_factory.mktemp("exported"), {}

    def export_once(name, view, task):
        if (name, view, task) not in paths:
            (folder / name).mkdir(exist_ok=True)
            paths[name, view, task] = export(fit(name), folder / name, view, task)
        return paths[name, view, task]

    return export_once


def open_session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def feed(session, blocks):
    """Return what the file makes of named blocks; of one that is called ``features`` too."""
    names = [each.name for each in session.get_inputs()]
    return session.run(["vectors"], {name: blocks[name] for name in names})[0]


def embed(retriever, view, task, features):
    """Return vectors of features; those of zeros, which ``embed_texts`` refuses, as well."""
    if isinstance(features, np.ndarray) and not features.any(axis=1).all():
        projector = retriever.searcher.projectors[task]
        return (projector.items if SEARCHED[task] == view else projector.queries)(features)
    return (retriever.embed_images if view == "image" else retriever.embed_texts)(features, task=task)


def tolerances(retriever, rows, view, task):
    """Return how far float32 may take each vector: the sums of a row's projection against their result."""
    model, projector = retriever.fitted.model, retriever.searcher.projectors[task]
    side = "x" if view == "image" else "y"
    blocks, steps = projector.split(rows, side), []
    for part in projector.parts:
        view_map = part.view(side)
        features = np.concatenate([use.apply(blocks[use.name]) for use in view_map.blocks], axis=1)
        steps.append((features, view_map.mean, view_map.map))
    # Weights add up to 1, so the offset is a mean of cosines, times its strength.
    factor = 1 + (0.0 if projector.hubness is None else projector.hubness.correction.strength)
    terms = 2 * rows.shape[1] + projector.dimension
    limits = []
    for features, mean, weights in steps:
        lengths = np.linalg.norm((features - mean).astype(np.float64) @ weights, axis=1)
        sums = np.linalg.norm((np.abs(features) + np.abs(mean)).astype(np.float64) @ np.abs(weights), axis=1)
        if getattr(model, "similarity", "") == "l2":
            limits.append(sums * (1 + lengths))
        else:
            limits.append(np.divide(sums, lengths, out=np.zeros_like(sums), where=lengths > 0))
    largest = factor * np.max(limits, axis=0)
    gate = model.hubness_[task].gate if isinstance(model, Fusion) else None
    if gate is not None and SEARCHED[task] != view:
        # What rounding of the coordinates changes in the sum of their squares, times the slope of the gate.
        changes = [
            np.abs((features - mean).astype(np.float64) @ weights)
            * ((np.abs(features) + np.abs(mean)).astype(np.float64) @ np.abs(weights))
            for features, mean, weights in steps
        ]
        slope = 2 / (gate.high - gate.low)
        largest = np.maximum(largest, slope * (np.hstack(changes) @ gate.rates.astype(np.float64)))
    return rounding(np.float32, terms) * largest


def assert_same_vectors(found, retriever, blocks, view, task):
    rows = np.hstack([blocks[name] for name in retriever.fitted.layout(view)])
    expected = embed(retriever, view, task, rows)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    apart = np.abs(found - expected).max(axis=1)
    assert np.all(apart <= tolerances(retriever, rows, view, task)), apart.max()


@pytest.mark.parametrize(("view", "task"), SIDES)
@pytest.mark.parametrize("name", MODELS)
def test_the_vectors_are_those_of_python(fit, exported, name, view, task):
    retriever, path = fit(name), exported(name, view, task)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = open_session(path)
    for n in (1, 3, 100):
        blocks = {key: rows[:n] for key, rows in BLOCKS[view].items()}
        assert_same_vectors(feed(session, blocks), retriever, blocks, view, task)


def test_the_models_above_have_everything_that_a_fusion_may_have(fit):
    fusions = [fit(name).fitted.model for name, model in MODELS.items() if isinstance(model, Fusion)]
    tasks = [
        (members, model.hubness_[task].correction)
        for model in fusions
        for task, members in model.members_.items()
    ]
    assert any(len(members) > 1 and correction.strength > 0 for members, correction in tasks)
    assert any(correction.kind == "none" for _, correction in tasks)
    parts = [member.part for members, _ in tasks for member in members]
    assert {"awcca", "identity"} == {part.kind for part in parts}


@pytest.mark.parametrize(("task", "view"), [("search", "text"), ("annotate", "image")])
def test_a_query_far_from_the_training_queries_gets_less_of_the_correction(fit, exported, task, view):
    retriever = fit("csls")
    session = open_session(exported("csls", view, task))
    shares = []
    for factor in (1.0, 1.5, 100.0):
        blocks = {key: np.float32(factor) * rows for key, rows in BLOCKS[view].items()}
        vectors = feed(session, blocks)
        assert_same_vectors(vectors, retriever, blocks, view, task)
        shares.append(vectors[:, -1])
    assert np.all((shares[0] >= 0) & (shares[0] <= 1))
    assert np.mean(shares[0] == 1) > 0.5
    assert np.any((shares[1] > 0) & (shares[1] < 1))
    assert np.all(shares[2] == 0)


@pytest.mark.parametrize("name", ["unit", "l2", "csls", "pieces"])
def test_the_inner_product_of_two_files_is_the_score(fit, exported, name):
    """A client with both files finds what a retriever finds whose items have no partners."""
    rows = {view: np.hstack(list(blocks.values())) for view, blocks in BLOCKS.items()}
    retriever = Retriever.from_model(fit(name).fitted.model, features=(rows["image"], rows["text"]))
    retriever.add(rows["image"], ids=[f"image {row}" for row in range(240)])
    retriever.add(captions=rows["text"], caption_ids=[f"text {row}" for row in range(240)])
    for task, queries, items in (("search", "text", "image"), ("annotate", "image", "text")):
        vectors = {
            view: feed(open_session(exported(name, view, task)), BLOCKS[view]) for view in (queries, items)
        }
        best = np.argmax(vectors[queries] @ vectors[items].T, axis=1)
        hits = getattr(retriever, task)(rows[queries], k=1)
        found = [int(hit[0].id.split()[1]) for hit in hits]
        assert np.mean(best == found) > 0.99


@pytest.mark.parametrize("name", ["tikhonov", "l2", "csls", "pieces"])
def test_it_runs_as_the_specification_of_its_opset_says(fit, exported, name):
    """ONNX's own evaluator executes the operators of the version that the file asks for."""
    retriever = fit(name)
    for view, task in SIDES:
        model = onnx.load(exported(name, view, task))
        assert [(each.domain, each.version) for each in model.opset_import] == [("", _export.OPSET)]
        assert model.ir_version == _export.IR_VERSION
        blocks = {key: rows[:5] for key, rows in BLOCKS[view].items()}
        names = [each.name for each in model.graph.input]
        evaluator = ReferenceEvaluator(model)
        (found,) = evaluator.run(["vectors"], {key: blocks[key] for key in names})
        assert_same_vectors(found, retriever, blocks, view, task)


finite = st.floats(-1e6, 1e6, width=32)


@pytest.fixture(scope="module")
def sessions(exported):
    return {
        (name, *side): open_session(exported(name, *side))
        for name in ("tikhonov", "unit", "signed-sqrt", "l2", "csls", "pieces", "dual")
        for side in SIDES
    }


@given(data=st.data())
def test_any_features_give_the_vectors_of_python(fit, sessions, data):
    name, view, task = data.draw(st.sampled_from(list(sessions)))
    n = data.draw(st.integers(1, 4))
    rows = st.one_of(finite, st.just(0.0))
    blocks = {
        key: data.draw(arrays(np.float32, (n, width), elements=rows)) for key, width in WIDTHS[view].items()
    }
    for each in blocks.values():
        each[data.draw(st.integers(0, n - 1))] = 0.0
    assert_same_vectors(feed(sessions[name, view, task], blocks), fit(name), blocks, view, task)


def test_features_like_the_mean_give_a_zero_vector(fit, sessions):
    """There is nothing to divide by: the vector stays zero, as in Python."""
    retriever = fit("tikhonov")
    mean = retriever.searcher.projectors["search"].parts[0].y.mean
    found = feed(sessions["tikhonov", "text", "search"], split_blocks(mean[None], WIDTHS["text"]))
    assert not np.any(found)
    assert not np.any(retriever.embed_texts(mean))


def test_a_model_without_pairs_is_exported(tmp_path):
    retriever = Retriever.from_model(Fusion.zero_shot(12))
    for view, rows in (("image", BLOCKS["image"]["photos"]), ("text", BLOCKS["text"]["words"])):
        found = feed(open_session(export(retriever, tmp_path, view, "search")), {"features": rows})
        limit = rounding(np.float32, rows.shape[1])
        np.testing.assert_allclose(found, embed(retriever, view, "search", rows), rtol=0, atol=limit)


def test_inputs_are_named_like_the_blocks_that_are_used(fit, tmp_path):
    def inputs(retriever, view):
        session = open_session(export(retriever, tmp_path, view, "search"))
        assert [(each.name, each.shape[0]) for each in session.get_outputs()] == [("vectors", "n")]
        return {each.name: each.shape for each in session.get_inputs()}

    assert inputs(fit("tikhonov"), "text") == {"words": ["n", 12], "tones": ["n", 8]}
    assert inputs(fit("best"), "image").items() <= {"photos": ["n", 12], "sketches": ["n", 9]}.items()
    assert inputs(fit("a block unused"), "image") == {"photos": ["n", 12]}
    assert inputs(fit("a block unused"), "text") == {"tones": ["n", 8]}
    photos, words = BLOCKS["image"]["photos"], BLOCKS["text"]["words"]
    for model in (AWCCA(params=(2.0, 3.0)), Fusion("plain", grid=3)):
        alone = Retriever.from_features(photos, {"words": words}, model=model)
        for view, rows in (("image", photos), ("text", words)):
            assert inputs(alone, view) == {"features": ["n", rows.shape[1]]}
            path = export(alone, tmp_path, view, "search")
            found = feed(open_session(path), {"features": rows})
            np.testing.assert_allclose(found, embed(alone, view, "search", rows), atol=1e-5)


def test_blocks_may_have_any_name_but_that_of_the_output(tmp_path):
    images, (words, tones) = BLOCKS["image"]["photos"], BLOCKS["text"].values()
    model = AWCCA(params=(2.0, 3.0), normalize=("none", "unit"))
    before = Retriever.from_features(images, {"words": words, "tones": tones}, model=model)
    graph = onnx.load(export(before, tmp_path, "text", "search")).graph
    names = graph.node[1].output[0], graph.initializer[0].name  # which the file would use itself
    odd = Retriever.from_features(images, dict(zip(names, (words, tones), strict=True)), model=model)
    session = open_session(export(odd, tmp_path, "text", "search"))
    found = feed(session, dict(zip(names, (words, tones), strict=True)))
    np.testing.assert_allclose(found, odd.embed_texts(np.hstack([words, tones])), atol=1e-5)
    for name in ("vectors", "", "a\0b", "\ud800"):
        wrong = Retriever.from_features(images, {name: words, "tones": tones}, model=AWCCA(params=(2.0, 3.0)))
        with pytest.raises(InputError, match="cannot be the name of an input"):
            wrong.export_onnx(tmp_path / "wrong.onnx")
    assert not (tmp_path / "wrong.onnx").exists()


def test_the_file_says_what_it_is_and_names_no_folder(pictures, fit, tmp_path):
    for view, side in (("text", "query"), ("image", "item")):
        path = export(pictures, tmp_path, view, "search")
        about = open_session(path).get_modelmeta()
        encoder = pictures.info()["encoders"][view]
        assert about.producer_name == "diptych"
        assert about.custom_metadata_map == {
            "model": "AWCCA",
            "task": "search",
            "view": view,
            "side": side,
            "similarity": "cosine",
            "encoder": encoder["name"],
            "encoder_fingerprint": encoder["fingerprint"],
            "features": str(encoder["dimension"]),
            "diptych": pictures.info()["library"],
        }
        assert str(tmp_path).encode() not in path.read_bytes()
    about = open_session(export(fit("best"), tmp_path, "image", "annotate")).get_modelmeta()
    assert {"encoder", "encoder_fingerprint"}.isdisjoint(about.custom_metadata_map)
    assert about.custom_metadata_map["model"] == "Fusion"


def test_features_of_the_encoders_give_the_vectors_of_texts_and_images(pictures, drawn, tmp_path):
    texts, images = list(drawn.captions[:4]), [str(path) for path in drawn.paths[:4]]
    encoders = pictures.encoders
    for view, things, features in (
        ("text", texts, encoders.encode_texts(texts)),
        ("image", images, encoders.encode_images(images)),
    ):
        session = open_session(export(pictures, tmp_path, view, "search"))
        found = feed(session, {"features": features.astype(np.float32)})
        np.testing.assert_allclose(found, embed(pictures, view, "search", things), atol=1e-5)


def test_a_loaded_model_is_exported_and_a_file_replaced(fit, tmp_path):
    fit("csls").save(tmp_path / "model")
    path = tmp_path / "new" / "items.onnx"
    for _ in range(2):
        Retriever.load(tmp_path / "model", mmap=True).export_onnx(path, view="image")
        found = feed(open_session(path), BLOCKS["image"])
        assert_same_vectors(found, fit("csls"), BLOCKS["image"], "image", "search")
    assert [each.name for each in path.parent.iterdir()] == ["items.onnx"]


def test_what_cannot_be_exported_is_said(fit, tmp_path, monkeypatch):
    retriever, path = fit("tikhonov"), tmp_path / "wrong.onnx"
    with pytest.raises(InputError, match="view='sound' is unknown; choose one of 'image', 'text'"):
        retriever.export_onnx(path, view="sound")
    with pytest.raises(InputError, match="task='find' is unknown"):
        retriever.export_onnx(path, task="find")
    with pytest.raises(InputError, match="not fitted"):
        Retriever("pyramid", "hkse").export_onnx(path)
    with monkeypatch.context() as patch:
        patch.setattr(_export, "MAX_BYTES", 1000)
        with pytest.raises(InputError, match="an ONNX file holds less than 2; fit with fewer n_components"):
            retriever.export_onnx(path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        with pytest.raises(
            InputError, match="an export to ONNX needs onnx; install with: pip install .?onnx"
        ):
            retriever.export_onnx(path)
    assert list(tmp_path.iterdir()) == []


def test_the_page_lists_the_operators(exported):
    graphs = [onnx.load(exported(name, *side)).graph for name in MODELS for side in SIDES]
    used = {node.op_type for graph in graphs for node in graph.node}
    text = " ".join(PAGE.read_text("utf-8").split())
    listed = re.search(r"opset (\d+), and uses these operators alone: (.*?)\.", text)
    assert int(listed[1]) == _export.OPSET
    assert set(re.findall(r"`(\w+)`", listed[2])) == used


def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    np.save("image-features.npy", BLOCKS["image"]["photos"])
    np.save("text-features.npy", BLOCKS["text"]["words"])
    server, client = (block for block in code_blocks(PAGE) if "projection.onnx" in block)
    names = {}
    exec(server, names)
    row = BLOCKS["text"]["words"][:1]
    exec(client, {"encode": lambda texts: row})
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    retriever = names["retriever"]
    retriever.remove([text.id for text in retriever.items("text")])  # images lie by themselves again
    assert shown == [hit.id for hit in retriever.search(row[0], k=5)]
