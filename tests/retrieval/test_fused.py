"""A retriever whose model is a fusion of several feature blocks."""

import numpy as np
import pytest
from PIL import Image

from diptych import InputError, Retriever, read_pairs
from diptych.fusion import Fusion, Part
from diptych.fusion._blocks import apply_geometry
from diptych.fusion._members import LinearMaps, Member, Use
from diptych.image import FunctionEncoder
from diptych.ranking import recall_at_k
from diptych.retrieval._embedding import name_members
from generated_pairs import make_dual_features
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


def test_its_answers_are_those_of_the_model(fused, blocks):
    x, y = blocks
    model = fused.fitted.model
    asking = {"search": (fused.search, rows(blocks)[1]), "annotate": (fused.annotate, rows(blocks)[0])}
    for task, (ask, asked) in asking.items():
        items, queries = (x, y) if task == "search" else (y, x)
        scores = model.queries(queries, task) @ model.items(items, task).T
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


def test_it_comes_back_from_disk(fused, blocks, tmp_path):
    fused.save(tmp_path / "m")
    again = Retriever.load(tmp_path / "m")
    query = rows(blocks)[1][5]
    assert again.search(query, 10) == fused.search(query, 10)
    assert again.info() == fused.info()
    assert "weighted sum of cosines" in (tmp_path / "m" / "README.md").read_text()
    assert not (tmp_path / "m" / "moments.safetensors").exists()


def test_items_come_and_go(fused, blocks, tmp_path):
    fused.save(tmp_path / "m")
    changing = Retriever.load(tmp_path / "m")
    x, y = rows(blocks)
    changing.remove("7")
    assert "7" not in [hit.id for hit in changing.search(y[7], k=319)]
    changing.add(x[7:8], y[7:8], ids=["seven"])
    best, before = changing.search(y[7], k=1)[0], fused.search(y[7], k=1)[0]
    assert before.id == "7" or best.id == before.id
    assert best.score == pytest.approx(before.score, abs=1e-5)
    assert changing.annotate(x[7], k=1, packs=True)[0].best.score <= 2


def test_what_it_cannot_do_is_said(fused, blocks):
    y = rows(blocks)[1]
    with pytest.raises(InputError, match="fit it again"):
        fused.refit()
    alone = Retriever.from_model(Fusion.zero_shot(5))
    with pytest.raises(InputError, match="one part and no correction"):
        alone.search(np.ones(5, np.float32), weighting="uncorrected")
    with pytest.raises(InputError, match="model and preset"):
        Retriever(model=Fusion(), preset="best")
    with pytest.raises(InputError, match="unknown"):
        Retriever.from_features(y, y, preset="worst")
    with pytest.raises(InputError, match="differ in their number of rows"):
        Retriever.from_features({"a": y, "b": y[:5]}, y)


TWO_PARTS = [Part(("photos",), ("words",)), Part(("sketches",), ("tones",))]


@pytest.mark.parametrize("weighting", ["none", "photos", (1.0, 0.0), ["uncorrected"], 5])
def test_other_weightings_are_refused(blocks, weighting):
    model = Fusion(grid=3, parts=TWO_PARTS, hubness=("csls",))
    retriever = Retriever.from_features(*blocks, splits=SPLITS, model=model)
    for ask, query in zip((retriever.annotate, retriever.search), rows(blocks), strict=True):
        with pytest.raises(InputError, match="is no part of this fusion that .* uses; choose one of"):
            ask(query[0], weighting=weighting)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_each_part_is_compared_with_the_whole(blocks, new_index, kind, tmp_path):
    model = Fusion(grid=4, parts=TWO_PARTS, hubness=("csls",))
    retriever = Retriever.from_features(*blocks, splits=SPLITS, model=model, index=new_index(kind))
    retriever.save(tmp_path / "m")
    x, y = blocks
    names = {"search": [str(i) for i in range(320)], "annotate": [f"{i}#0" for i in range(320)]}
    for made in (retriever, Retriever.load(tmp_path / "m")):
        fitted = made.fitted.model
        for task, ask, asked in zip(
            names, (made.search, made.annotate), (rows(blocks)[1][11], rows(blocks)[0][11]), strict=True
        ):
            shaped = [apply_geometry(fitted.geometry_[v], view) for v, view in (("x", x), ("y", y))]
            members = fitted.members_[task]
            assert len(members) == 2, "both parts are needed for this test"
            cosines = []
            for member in members:
                vectors = [
                    member.linear.embed(member.part.features(blocks, view), view)
                    for view, blocks in zip("xy", shaped, strict=True)
                ]
                items, queries = vectors if task == "search" else vectors[::-1]
                cosines.append(items @ queries[11])
            whole = sum(member.weight * own for member, own in zip(members, cosines, strict=True))
            expected = dict(zip(map(str, TWO_PARTS), cosines, strict=True)) | {"uncorrected": whole}
            assert [part["name"] for part in made.info()["parts"][task]] == list(map(str, TWO_PARTS))
            for name, scores in expected.items():
                found = ask(asked, k=5, weighting=name)
                tolerance = rounding(np.float32, 12 + 9 + 10 + 8, 2 / min(m.weight for m in members))
                assert_ranked(found, dict(zip(names[task], scores.tolist(), strict=True)), tolerance)
                some = ask(asked, k=5, weighting=name, where=[hit.id for hit in found[1:3]])
                assert [hit.id for hit in some] == [hit.id for hit in found[1:3]]


def test_parts_of_the_same_blocks_have_names_of_their_own():
    same, eye = Part(("x",), ("y",)), np.eye(2, dtype=np.float32)
    maps = LinearMaps(eye[0], eye[0], eye, eye)
    parts = [Part(("x",), ("y",), kind="identity"), same, same]
    members = [Member(part, Use("none", 1.0), 1.0, maps) for part in parts]
    assert name_members(members) == ["x × y, as encoded", "x × y", "x × y (2)"]


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


def test_a_store_holds_a_dual_encoder(new_index):
    x, y = make_dual_features(200, seed=5)
    retriever = Retriever.from_features(x, y, model=Fusion(grid=4), index=new_index())
    model = retriever.fitted.model
    assert model.members_["search"][0].part.kind == "identity"
    scores = model.queries({"y": y[3:4]}) @ model.items({"x": x}).T
    expected = dict(zip(map(str, range(200)), scores[0].tolist(), strict=True))
    assert_ranked(retriever.search(y[3], k=10), expected, rounding(np.float32, 2 * 128, 3.0))
