"""A retriever whose model is a fusion of several feature blocks."""

import copy
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from diptych import AWCCA, InputError, Retriever, read_pairs
from diptych.cca import Moments
from diptych.cca._weighting import to_unit_length
from diptych.encoders import FunctionEncoder
from diptych.fusion import Fusion, Part
from diptych.fusion._blocks import apply_geometry
from diptych.fusion._members import LinearMaps, Member, Use, describe_members
from diptych.ranking import recall_at_k
from diptych.retrieval._fitted import Learned
from diptych.retrieval._refitting import refit_model
from diptych.retrieval._searcher import Searcher
from generated_pairs import make_dual_features
from placing import place_by_hand
from tolerance import assert_ranked, rounding

SPLITS = ["train"] * 200 + ["val"] * 60 + ["test"] * 60


@pytest.fixture(scope="module")
def blocks():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(320, 6))

    def view(width, noise):
        rows = hidden @ rng.normal(size=(6, width)) + noise * rng.normal(size=(320, width))
        return rows.astype(np.float32)

    return {"photos": view(12, 0.5), "sketches": view(9, 1.0)}, {
        "words": view(10, 1.0),
        "tones": view(8, 1.0),
    }


@pytest.fixture(scope="module")
def fused(blocks):
    return Retriever.from_features(*blocks, splits=SPLITS, model=Fusion(grid=5))


def rows(blocks):
    return tuple(np.hstack(list(view.values())) for view in blocks)


def score_by_hand(model, x, y, task):
    """Return the scores of all queries for all items, row j of the items with row j of the queries."""
    items, queries = (x, y) if task == "search" else (y, x)
    asked = model.queries(queries, task)
    placed = place_by_hand(model.items(items, task), asked, range(len(asked)), model.projector(task))
    return asked @ placed.T


def test_its_answers_are_those_of_the_model(fused, blocks):
    x, y = blocks
    model = fused.fitted.model
    asking = {"search": (fused.search, rows(blocks)[1]), "annotate": (fused.annotate, rows(blocks)[0])}
    for task, (ask, asked) in asking.items():
        items, queries = (x, y) if task == "search" else (y, x)
        scores = score_by_hand(model, x, y, task)
        for row in (0, 150, 319):
            found = ask(asked[row], k=5)
            names = [str(i) for i in range(320)] if task == "search" else [f"{i}#0" for i in range(320)]
            expected = dict(zip(names, scores[row].tolist(), strict=True))
            lengths = np.linalg.norm(model.queries(queries, task), axis=1).max()
            lengths *= np.linalg.norm(model.items(items, task), axis=1).max()
            assert_ranked(found, expected, rounding(np.float32, 12 + 9 + 10 + 8, lengths))


def test_its_recalls_are_those_of_the_model(fused, blocks):
    x, y = ({name: view[260:] for name, view in views.items()} for views in blocks)
    told = fused.info()["facts"]["metrics"]
    assert set(told) == {"test"}, "validation pairs were fitted on, and say nothing"
    for task in ("search", "annotate"):
        ranks = fused.fitted.model.ranks(x, y, task=task)
        assert told["test"][task]["r@1"] == recall_at_k(ranks, 1)


def test_what_it_cannot_do_is_said(fused, blocks):
    y = rows(blocks)[1]
    with pytest.raises(InputError, match="cannot be selected again in a refit; leave out validation"):
        fused.refit(validation=blocks)
    alone = Retriever.from_model(Fusion.zero_shot(5))
    with pytest.raises(InputError, match="moments of this model's training pairs are not known"):
        alone.refit()
    with pytest.raises(InputError, match="one part and no correction"):
        alone.search(np.ones(5, np.float32), weighting="uncorrected")
    with pytest.raises(InputError, match="model and preset"):
        Retriever(model=Fusion(), preset="best")
    with pytest.raises(InputError, match="unknown"):
        Retriever.from_features(y, y, preset="worst")
    with pytest.raises(InputError, match="differ in their number of rows"):
        Retriever.from_features({"a": y, "b": y[:5]}, y)


TWO_PARTS = [Part(("photos",), ("words",)), Part(("sketches",), ("tones",))]


@pytest.fixture(scope="module")
def two_parts(blocks):
    """A retriever whose fusion needs both parts for both tasks."""
    model = Fusion(grid=4, parts=TWO_PARTS, hubness=("csls",), polish=False)
    retriever = Retriever.from_features(*blocks, splits=SPLITS, model=model)
    assert all(len(members) == 2 for members in retriever.fitted.model.members_.values())
    return retriever


@pytest.mark.parametrize("weighting", ["none", "photos", (1.0, 0.0), ["uncorrected"], 5])
def test_other_weightings_are_refused(two_parts, blocks, weighting):
    for ask, query in zip((two_parts.annotate, two_parts.search), rows(blocks), strict=True):
        with pytest.raises(InputError, match="is no part of this fusion that .* uses; choose one of"):
            ask(query[0], weighting=weighting)


@pytest.mark.parametrize("kind", ["fitted", "loaded", "graph"])
def test_each_part_is_compared_with_the_whole(two_parts, blocks, kind, tmp_path):
    retriever, model = two_parts, two_parts.fitted.model
    if kind == "loaded":
        two_parts.save(tmp_path / "m")
        retriever = Retriever.load(tmp_path / "m")
    elif kind == "graph":
        retriever = Retriever.from_model(model, index="hnsw")
        retriever.add(*blocks, ids=[str(i) for i in range(320)])
    shaped = [apply_geometry(model.geometry_[v], view) for v, view in zip("xy", blocks, strict=True)]
    for task, row, ids in (
        ("search", rows(blocks)[1][11], [str(i) for i in range(320)]),
        ("annotate", rows(blocks)[0][11], [item.id for item in retriever.store.items("text")]),
    ):
        members, cosines = model.members_[task], []
        for member in members:
            vectors = [
                member.linear.embed(member.part.features(named, view), view)
                for view, named in zip("xy", shaped, strict=True)
            ]
            items, queries = vectors if task == "search" else vectors[::-1]
            cosines.append(place_by_hand(items, queries, range(320)) @ queries[11])
        whole = sum(member.weight * cosine for member, cosine in zip(members, cosines, strict=True))
        expected = dict(zip(map(str, TWO_PARTS), cosines, strict=True)) | {"uncorrected": whole}
        assert [part["name"] for part in retriever.info()["parts"][task]] == list(map(str, TWO_PARTS))
        ask = getattr(retriever, task)
        for name, scores in expected.items():
            hits = ask(row, k=5, weighting=name)
            tolerance = rounding(np.float32, 12 + 9 + 10 + 8, 2 / min(m.weight for m in members))
            assert_ranked(hits, dict(zip(ids, scores.tolist(), strict=True)), tolerance)
            some = ask(row, k=5, weighting=name, where=[hit.id for hit in hits[1:3]])
            assert [hit.id for hit in some] == [hit.id for hit in hits[1:3]]


def test_parts_of_the_same_blocks_have_names_of_their_own():
    same, eye = Part(("x",), ("y",)), np.eye(2, dtype=np.float32)
    maps = LinearMaps(eye[0], eye[0], eye, eye)
    parts = [Part(("x",), ("y",), kind="identity"), same, same]
    uses = [Use("centred identity", 1.0), Use("residual", 0.5, epochs=3), Use("none", 1.0, epochs=1)]
    members = [Member(part, use, 1.0, maps) for part, use in zip(parts, uses, strict=True)]
    described = describe_members(members)
    assert [each.name for each in described] == ["x × y, as encoded", "x × y", "x × y (2)"]
    assert [each.use for each in described] == [
        "cosine of the features as encoded, without their means",
        "residual weighting, polished for 3 epochs",
        "no weighting, polished for 1 epoch",
    ]


def take(blocks, start, stop):
    return tuple({name: view[start:stop] for name, view in views.items()} for views in blocks)


def fit_first(blocks, n, **model):
    """Return a retriever of the first pairs."""
    model = Fusion(**{"grid": 4, "parts": TWO_PARTS, **model})
    return Retriever.from_features(*take(blocks, 0, n), model=model, ids=[f"p{i}" for i in range(n)])


def add_pairs(retriever, blocks, start, stop):
    retriever.add(*take(blocks, start, stop), ids=[f"p{i}" for i in range(start, stop)])


@pytest.fixture(scope="module")
def first_pairs(blocks, tmp_path_factory):
    """The folder of a fusion of the first 150 pairs."""
    folder = tmp_path_factory.mktemp("first") / "model"
    fit_first(blocks, 150, hubness=("csls",)).save(folder)
    return folder


@pytest.mark.filterwarnings("ignore:.*lies? far")
class TestRefit:
    """Saved moments and new pairs are as good as all pairs."""

    @pytest.mark.parametrize("from_model", [False, True])
    def test_it_is_that_of_the_fusion_on_all_pairs(self, first_pairs, blocks, from_model, tmp_path):
        shutil.copytree(first_pairs, tmp_path / "model")
        retriever = Retriever.load(tmp_path / "model")
        expected = copy.copy(retriever.fitted.model)
        moments = retriever.fitted.learned.moments()
        if from_model:
            expected.moments_ = moments
            retriever = Retriever.from_model(expected)
            assert retriever.info()["facts"]["moments"] == {"pairs": 150}
            assert "moments_" not in vars(retriever.fitted.model)
        add_pairs(retriever, blocks, 150, 320)
        banks, previous = (
            {task: part.bank.copy() for task, part in retriever.fitted.model.hubness_.items()},
            retriever.fitted.model,
        )
        retriever.refit()
        assert all(np.array_equal(previous.hubness_[task].bank, bank) for task, bank in banks.items())
        more = expected.make_moments(*take(blocks, 150, 320))
        expected.refit_moments(moments + more, moments.count)
        x, y = blocks
        for task, ask, features in (
            ("search", retriever.search, rows(blocks)[1]),
            ("annotate", retriever.annotate, rows(blocks)[0]),
        ):
            scores = score_by_hand(expected, x, y, task)
            params = [member.params for member in retriever.fitted.model.members_[task]]
            np.testing.assert_allclose(params, [m.params for m in expected.members_[task]], rtol=1e-12)
            start = 150 if from_model else 0
            for row in (200, 319):
                best = np.sort(scores[row, start:])[::-1][:5]
                np.testing.assert_allclose([hit.score for hit in ask(features[row], k=5)], best, atol=1e-4)
        assert "metrics" not in retriever.info()["facts"]

    def test_one_part_is_an_awcca_of_all_pairs(self, blocks):
        plain = {"hubness": ("none",), "weightings": ("asymmetric",), "polish": False}
        retriever = fit_first(blocks, 150, parts=TWO_PARTS[:1], **plain)
        geometry = retriever.fitted.model.geometry_
        gammas = {task: own[0].params for task, own in retriever.fitted.model.members_.items()}
        add_pairs(retriever, blocks, 150, 320)
        retriever.refit()
        x, y = (apply_geometry(geometry[v], view) for v, view in zip("xy", blocks, strict=True))
        grown = {task: (a * 320 / 150, b * 320 / 150) for task, (a, b) in gammas.items()}
        model = AWCCA(params=grown).fit(x["photos"], y["words"])
        for task in ("search", "annotate"):
            ex, ey = (to_unit_length(e) for e in model.transform(x["photos"], y["words"], task=task))
            items, queries = (ex, ey) if task == "search" else (ey, ex)
            scores = queries @ place_by_hand(items, queries, range(320)).T
            ask, asked = (
                (retriever.search, rows(blocks)[1])
                if task == "search"
                else (retriever.annotate, rows(blocks)[0])
            )
            for row in (3, 250):
                found = [hit.score for hit in ask(asked[row], k=5)]
                np.testing.assert_allclose(found, np.sort(scores[row])[::-1][:5], atol=1e-4)

    def test_more_pairs_make_it_better(self, blocks):
        retriever = fit_first(blocks, 60, hubness=("csls",))
        held_out = take(blocks, 260, 320)
        before = retriever.fitted.model.score(*held_out)
        add_pairs(retriever, blocks, 60, 260)
        retriever.refit()
        assert retriever.fitted.model.score(*held_out) > before + 5

    def test_a_dual_encoder_keeps_its_cosine(self, tmp_path):
        x, y = make_dual_features(260, seed=5)
        parts = [Part(("x",), ("y",), kind="identity"), Part(("x",), ("y",))]
        model = Fusion(grid=4, parts=parts)
        retriever = Retriever.from_features(x[:200], y[:200], model=model)
        kinds = [m.part.kind for m in retriever.fitted.model.members_["search"]]
        assert "identity" in kinds
        retriever.save(tmp_path / "m")
        again = Retriever.load(tmp_path / "m")
        again.add(x[200:], y[200:], ids=[f"new {i}" for i in range(60)])
        again.refit()
        assert [m.part.kind for m in again.fitted.model.members_["search"]] == kinds
        assert again.info()["facts"]["refitted"] == {"pairs": 260, "before": 200}
        found = [hits[0].id for hits in again.search(y[200:], k=1)]
        assert np.mean([f == f"new {i}" for i, f in enumerate(found)]) > 0.5


def test_a_fusion_from_elsewhere_knows_its_blocks(two_parts, blocks):
    retriever = Retriever.from_model(two_parts.fitted.model, features=blocks)
    retriever.add(*blocks, ids=[str(i) for i in range(320)])
    assert len(retriever.search({name: view[0] for name, view in blocks[1].items()}, k=3)) == 3


def test_a_fusion_saved_without_moments_is_not_refitted(fused, tmp_path, blocks):
    fused.save(tmp_path / "m")
    slim = Retriever.load(tmp_path / "m")
    forgetful = replace(slim.fitted, learned=Learned(slim.fitted.learned.model))
    slim._current.searcher = Searcher(forgetful, slim.store, slim.encoders, slim.version)
    slim.save(tmp_path / "slim")
    assert not (tmp_path / "slim" / "moments.safetensors").exists()
    again = Retriever.load(tmp_path / "slim")
    query = rows(blocks)[1][5]
    assert again.search(query, 10) == fused.search(query, 10)
    with pytest.raises(InputError, match="are not known, so it cannot be refitted; fit it again"):
        again.refit()


def test_moments_of_another_model_are_refused(fused):
    fitted = replace(fused.fitted, learned=Learned(fused.fitted.learned.model, lambda: Moments.zero(3, 4)))
    with pytest.raises(InputError, match="belong to a model of other features"):
        refit_model(fitted, Moments.zero(3, 4), None, None, fused.views)


def test_one_name_is_enough(blocks):
    retriever = Retriever.from_features(blocks[0]["photos"], blocks[1]["words"], splits=SPLITS, preset="best")
    assert isinstance(retriever.fitted.model, Fusion)
    assert retriever.info()["facts"]["metrics"]["test"]["search"]["r@1"] > 40


class DualEncoder:
    """Synthetic towers: an image shows its row of the features in its colour, a text names it."""

    def __init__(self, n, seed):
        self.x, self.y = make_dual_features(n, seed)
        self.image = FunctionEncoder(self.encode_images, f"dual {seed}")

    def encode_images(self, images):
        colours = np.array([image.getpixel((0, 0)) for image in images])
        return self.x[colours @ [65536, 256, 1] % len(self.x)]

    def encode_texts(self, texts):
        return self.y[[int(text.split()[-1]) for text in texts]]

    def draw(self, folder):
        """Write an image for each row, and return their paths."""
        paths = [folder / f"{row:04}.png" for row in range(len(self.x))]
        for row, path in enumerate(paths):
            Image.new("RGB", (8, 8), (0, row // 256, row % 256)).save(path)
        return paths


def rank_zero_shot(dual, query, rows):
    scores = dual.x[rows] @ dual.y[query]
    return 1 + int((scores > scores[list(rows).index(query)]).sum())


def test_a_dual_encoder_is_adapted_to_a_domain(tmp_path):
    dual, train = DualEncoder(700, seed=5), 400
    (tmp_path / "images").mkdir()
    dual.draw(tmp_path / "images")
    lines = [f"{row:04}.png,caption {row}" for row in range(train)]
    (tmp_path / "pairs.csv").write_text("\n".join(["image,caption", *lines]), "utf-8")
    pairs = read_pairs(tmp_path / "pairs.csv", images=tmp_path / "images")
    retriever = Retriever(dual.image, dual.encode_texts, preset="best").fit(pairs)
    unseen = range(train, 700)
    retriever.remove(list(pairs.image_ids))
    retriever.add([tmp_path / "images" / f"{row:04}.png" for row in unseen], ids=[str(row) for row in unseen])
    found = [retriever.search(f"caption {row}", k=1)[0].id == str(row) for row in unseen]
    plain = [rank_zero_shot(dual, row, unseen) == 1 for row in unseen]
    assert np.mean(found) > np.mean(plain) + 0.05
    retriever.save(tmp_path / "model")
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    assert "| x × y, as encoded |" in card
    again = Retriever.load(tmp_path / "model", image_encoder=dual.image, text_encoder=dual.encode_texts)
    assert again.search("caption 500", k=5) == retriever.search("caption 500", k=5)


def test_a_dual_encoder_searches_without_any_pairs(tmp_path):
    dual = DualEncoder(50, seed=5)
    model = Fusion.zero_shot(128)
    retriever = Retriever.from_model(model, image_encoder=dual.image, text_encoder=dual.encode_texts)
    retriever.add(dual.draw(tmp_path), ids=[str(row) for row in range(50)])
    scores = dict(zip(map(str, range(50)), (dual.x @ dual.y[7]).tolist(), strict=True))
    assert_ranked(retriever.search("caption 7", k=50), scores, rounding(np.float32, 128, 1.0))
    retriever.save(tmp_path / "model")
    again = Retriever.load(tmp_path / "model", image_encoder=dual.image, text_encoder=dual.encode_texts)
    assert again.search("caption 7", k=5) == retriever.search("caption 7", k=5)
    assert again.info()["filters"]["search"] == ["1 × (x × y), identity"]


def test_parts_add_up_where_only_some_items_have_captions(two_parts, blocks, tmp_path):
    two_parts.save(tmp_path / "model")
    retriever, (x, y) = Retriever.load(tmp_path / "model"), blocks
    retriever.add({name: view[:20] + 0.1 for name, view in x.items()}, ids=[f"new {i}" for i in range(20)])
    assert retriever.fitted.offsets["search"].compute(320, 20) > 0.01
    parts = retriever.fitted.projectors["search"].parts
    query = {name: view[150] for name, view in y.items()}
    scores = {
        name: {hit.id: hit.score for hit in retriever.search(query, k=340, weighting=name)}
        for name in ("uncorrected", *(part.name for part in parts))
    }
    for item_id, total in scores["uncorrected"].items():
        by_parts = sum(part.weight * scores[part.name][item_id] for part in parts)
        assert by_parts == pytest.approx(total, abs=1e-5)
