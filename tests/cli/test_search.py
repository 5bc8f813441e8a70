"""``search``, ``annotate``, ``similar``, ``info``, ``add``, ``remove`` and ``export`` as a user runs them."""

import json
import os
import shlex
import shutil
from dataclasses import replace

import numpy as np
import pytest

from commands import config, refused, run, run_json
from conftest import declare_torchvision_operators
from diptych import AWCCA, HKSE, Retriever
from diptych.cca._polish import Polish
from diptych.fusion import Fusion, Part
from diptych.scenes import make_scenes
from saved_files import edit_config, files_of


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with drawn scenes and a model of them."""
    folder = tmp_path_factory.mktemp("fitted")
    pairs = make_scenes(150).write(folder / "drawn")
    text = HKSE(word_features=80, sentence_features=80)
    Retriever("pyramid", text).fit(pairs).save(folder / "model")
    return folder


@pytest.fixture
def place(fitted, tmp_path, monkeypatch):
    """A copy of the model, where commands run; its images stay where they are."""
    shutil.copytree(fitted / "model", tmp_path / "model")
    shutil.copy(fitted / "drawn" / "images" / "scene-000003.png", tmp_path / "new.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def hits(found, query=0):
    return [hit["id"] for hit in found["answers"][query]["hits"]]


def test_search_says_what_python_says(place):
    queries = ["a red star at night", "two boats"]
    found = run_json("search", "model", *queries, "-k", 7)
    expected = Retriever.load("model").search(queries, 7)
    for i in range(2):
        assert hits(found, i) == [hit.id for hit in expected[i]]
        scores = [hit["score"] for hit in found["answers"][i]["hits"]]
        assert scores == pytest.approx([hit.score for hit in expected[i]], abs=1e-6)
    shown = run("search", "model", *queries, "-k", 2).stdout
    assert "a red star at night" in shown
    assert f"{expected[0][0].score:.3f}" in shown


def test_words_that_were_ignored_are_named(place):
    shown = run("search", "model", "a red quokka", "-k", 1)
    assert shown.stderr == "note: ignored words the model does not know: quokka\n"
    several = run("search", "model", "a star", "a quokka and a wombat", "--json")
    assert several.stderr == (
        "note: ignored words of 'a quokka and a wombat' the model does not know: quokka, wombat\n"
    )
    answers = json.loads(several.stdout)["answers"]
    assert [answer["ignored_words"] for answer in answers] == [[], ["quokka", "wombat"]]
    assert "ignored words the model does not know: quokka" in run("similar", "model", "a quokka").stderr
    assert run("search", "model", "a red star").stderr == ""
    many = " ".join(f"quokka{i}" for i in range(14))
    assert run("search", "model", f"a {many}").stderr.endswith("quokka9 and 4 more\n")
    assert "no word that the model knows" in refused("search", "model", "quokka")


def test_one_of_a_kind_is_singular(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    splits = ["train"] * 58 + ["val", "test"]
    Retriever.from_features(x, x[:, :1] + x[:, 1:], splits=splits, model=AWCCA(params=(1.0, 1.0))).save("m")
    shown = run("info", "m").stdout
    assert "val 1 image and 1 caption" in shown
    assert "60 images and 60 texts" in shown
    assert "removed 2 items; wrote m" in run("remove", "m", "0").stdout
    assert "removed 1 item; wrote m" in run("remove", "m", "1#0").stdout


def test_annotate_finds_captions(place):
    best = run_json("annotate", "model", "new.png", "-k", 3)["answers"][0]["hits"]
    assert len(best) == 3
    assert {"text", "image", "score"} <= set(best[0])
    shown = run("annotate", "model", "new.png", "-k", 1).stdout
    assert best[0]["text"] in " ".join(shown.split())


def test_the_parts_of_a_fusion_are_described_and_compared(tmp_path, monkeypatch, rng):
    hidden = rng.normal(size=(200, 6))
    x, a, b = (hidden @ rng.normal(size=(6, m)) + rng.normal(size=(200, m)) for m in (12, 9, 8))
    monkeypatch.chdir(tmp_path)
    parts = [Part(("photos",), ("words",)), Part(("photos",), ("tones",))]
    model = Fusion(grid=4, parts=parts, hubness=("csls",))
    fused = Retriever.from_features({"photos": x}, {"words": a, "tones": b}, model=model)
    fused.save("m")
    query = np.hstack([a, b]).astype(np.float32)[:1]
    np.save("query.npy", query)
    shown = run("info", "m").stdout
    for name in ("photos × words", "photos × tones", "uncorrected"):
        found = hits(run_json("search", "m", "--features", "query.npy", "--weighting", name))
        assert found == [hit.id for hit in fused.search(query[0], weighting=name)]
        assert name in shown or name == "uncorrected"
    assert "search: 2 parts" in shown
    assert "correction for hubness: an item loses" in shown
    message = refused("search", "m", "--features", "query.npy", "--weighting", "none")
    assert "--weighting 'none' is no part of this fusion" in message
    assert "'photos × words'" in message
    assert {"name", "weight", "use", "components"} == set(run_json("info", "m")["parts"]["search"][0])


def test_a_polished_model_says_for_how_long(tmp_path, monkeypatch, rng):
    x = rng.normal(size=(60, 4))
    model = AWCCA(params=(1.0, 1.0)).fit(x, x + rng.normal(size=x.shape))
    polished = replace(model.models_["search"], polish=Polish(np.eye(4), np.eye(4), 3))
    model.models_ = {"search": polished, "annotate": model.models_["annotate"]}
    monkeypatch.chdir(tmp_path)
    Retriever.from_model(model).save("m")
    lines = {line.partition(":")[0]: line for line in run("info", "m").stdout.splitlines()}
    assert lines["search"].endswith("4 components, polished for 3 epochs")
    assert lines["annotate"].endswith("4 components")
    assert "| search model | polished for 3 epochs |" in (tmp_path / "m" / "README.md").read_text()


def test_similar_pictures_begin_with_the_picture_itself(place):
    found = run_json("similar", "model", "new.png", "-k", 3)
    assert hits(found)[0] == "images/scene-000003.png"
    assert found == run_json("similar", "model", "new.png", "--image", "-k", 3)
    shutil.copy("new.png", "a red star")  # a path that exists is a file, whatever its name
    assert hits(run_json("similar", "model", "a red star", "-k", 3)) == hits(found)
    assert found["answers"][0]["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    caption = list(Retriever.load("model").store.items())[150].text
    assert run_json("similar", "model", caption, "-k", 1)["answers"][0]["hits"][0]["text"] == caption


def test_features_can_ask(place):
    retriever = Retriever.load("model")
    np.save("q.npy", retriever.encoders.encode_texts(["a red star", "two boats"]))
    asked = run_json("search", "model", "--features", "q.npy", "-k", 4)
    assert [hits(asked, i) for i in range(2)] == [
        hits(run_json("search", "model", words, "-k", 4)) for words in ("a red star", "two boats")
    ]
    assert asked["answers"][1]["query"] == "row 1"


def test_what_is_added_is_found_and_what_is_removed_is_not(place):
    assert run_json("add", "model", "new.png")["added"] == ["new.png"]
    assert "new.png" in hits(run_json("similar", "model", "new.png", "-k", 2))
    assert "already" in refused("add", "model", "new.png")
    assert run_json("remove", "model", "images/scene-000003.png")["removed"] == 6
    assert hits(run_json("similar", "model", "new.png", "-k", 1)) == ["new.png"]
    assert run_json("info", "model")["items"] == {"image": 150, "text": 745}
    assert "no item 'nothing'" in refused("remove", "model", "new.png", "nothing")
    assert run_json("info", "model")["items"]["image"] == 150


def test_pairs_are_added_and_learned_from(place):
    make_scenes(12, random_state=5).write(place / "more")
    table = (place / "more" / "captions.jsonl").read_text().replace("images/scene", "images/other")
    (place / "more" / "captions.jsonl").write_text(table)
    for picture in (place / "more" / "images").iterdir():
        picture.rename(picture.with_name(picture.name.replace("scene", "other")))
    added = run_json("add", "model", "more", "--refit")
    assert len(added["added"]) == 12 * 6
    told = run_json("info", "model")
    assert told["items"] == {"image": 162, "text": 810}
    assert told["facts"]["refitted"] == {"pairs": 530 + 60, "before": 530}
    assert "metrics" not in told["facts"]
    assert "refitted on 590 pairs (530 before)" in run("info", "model").stdout


def test_features_are_added_to_a_model_of_features(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(90, 4))
    x, y = hidden @ rng.normal(size=(4, 9)), hidden @ rng.normal(size=(4, 7))
    for name, rows in (("old", slice(0, 80)), ("new", slice(80, 90))):
        np.save(f"{name}-x.npy", x[rows].astype(np.float32))
        np.save(f"{name}-y.npy", y[rows].astype(np.float32))
    run("fit", "old-x.npy", "old-y.npy", "-o", "m", *config(model={"params": [0.1, 0.1]}))
    lines = "\n".join(f"new-{i}.png,caption {i}" for i in range(10))
    (tmp_path / "new.csv").write_text(f"image,caption\n{lines}\n")
    assert len(run_json("add", "m", "new-x.npy", "new-y.npy", "--pairs", "new.csv")["added"]) == 20
    found = run_json("search", "m", "--features", "new-y.npy", "-k", 1)
    assert [hits(found, i) for i in range(10)] == [[f"new-{i}.png"] for i in range(10)]
    assert "no text encoder" in refused("search", "m", "a dog")


MISTAKES = [
    ("search nowhere star", "not a folder"),
    ("search model", "one of the two"),
    ("search model 'qwrtp zzzz'", "'qwrtp', 'zzzz'"),
    ("search model ' '", "is not a text"),
    ("search model star --text-encoder no/such-model", "no/such-model"),
    ("search model star --features x.npy", "one of the two"),
    ("search model star --features x.npy --text-encoder hkse", "--text-encoder has no effect on features"),
    ("search model --features x.npy --device cuda", "--device has no effect on features"),
    ("search model star --image-encoder pyramid", "--image-encoder has no effect without --plus or"),
    ("search model star --plus night:0", "plus has the weight 0.0; give a positive number"),
    ("search model star --plus night:1e155", "the weight 1e+155; give a positive number of at most 1000"),
    ("search model star --minus night:-1", "minus has the weight -1.0"),
    ("search model star --plus nowhere.jpg", "nowhere.jpg"),
    ("search model star --plus quokka", "quokka"),
    ("search model star --minus star", "cancel each other"),
    ("search model star boats --plus night", "one query at a time"),
    ("search model star --where 'split >'", "split >"),
    ("search model star --where 'spilt = 1'", "did you mean 'split'?"),
    ("search model star --weighting none", "--weighting 'none' names a part of a fusion"),
    ("annotate model", "one of the two"),
    ("annotate model missing.jpg", "missing.jpg"),
    ("annotate model letter.jpg", "letter.jpg"),
    ("annotate model new.png --image-encoder letter.onnx", "letter.onnx"),
    ("annotate model new.png --text-encoder hkse", "--text-encoder has no effect without --plus or"),
    ("annotate model --features x.npy --image-encoder pyramid", "--image-encoder has no effect on"),
    ("similar model nowhere.png", "nowhere.png does not exist"),
    ("similar model new.png --text-encoder hkse", "--text-encoder has no effect on an image"),
    ("similar model sand --image-encoder pyramid", "--image-encoder has no effect on a text"),
    ("add model letter.jpg", "letter.jpg"),
    ("add model a.txt b.txt c.txt", "not a mixture"),
    ("add model new.png --images .", "--images has no effect on images, which have no captions"),
    ("add model new.png --refit", "--refit learns from pairs"),
    ("info hollow", "current.json"),
    ("export model -o p.onnx --view sound", "--view 'sound' is unknown"),
    ("export model -o p.onnx --task find", "--task 'find' is unknown"),
    ("export model -o model", "Is a directory"),
    ("export nowhere -o p.onnx", "folder of a model"),
]


def test_mistakes_are_one_sentence_and_change_nothing(place):
    declare_torchvision_operators()  # which sentence-transformers imports
    pytest.importorskip("onnx")
    (place / "letter.jpg").write_text("dear reader")
    (place / "letter.onnx").write_text("dear network")
    (place / "hollow").mkdir()
    np.save("x.npy", np.ones((1, 80), np.float32))
    before = Retriever.load("model").info()
    for line, words in MISTAKES:
        assert words in refused(*shlex.split(line)), line
        assert Retriever.load("model").info() == before, line


def test_an_item_is_removed_by_the_path_that_search_prints(place):
    shown = run_json("search", "model", "a red square", "-k", 1)["answers"][0]["hits"][0]
    assert shown["path"] != shown["id"]
    assert run_json("remove", "model", shown["path"])["removed"] == 6
    assert run_json("info", "model")["items"]["image"] == 149
    assert "by id or by path" in refused("remove", "model", shown["path"])


def test_a_path_of_two_items_is_refused(place):
    retriever = Retriever.load("model")
    retriever.add(["new.png"], ids=["one"])
    retriever.add(["new.png"], ids=["two"])
    retriever.save("model")
    assert "2 items; give an id: one, two" in refused("remove", "model", "./new.png")
    assert run_json("remove", "model", "one")["removed"] == 1
    assert run_json("remove", "model", "./new.png")["removed"] == 1


def test_one_corrupt_image_does_not_stop_the_others(place):
    (place / "bad.png").write_bytes(b"no image at all")
    shutil.copy("new.png", "other.png")
    found = run("annotate", "model", "new.png", "bad.png", "other.png", "-k", 1, exit_code=1)
    assert "new.png" in found.stdout
    assert "other.png" in found.stdout
    assert found.stderr.startswith("skipped: bad.png is not in a supported format")
    added = run("add", "model", "new.png", "bad.png", "other.png", exit_code=1)
    assert "added 2 items" in added.stdout
    assert "skipped: bad.png" in added.stderr
    assert run_json("info", "model")["items"]["image"] == 152
    assert "bad.png" in refused("add", "model", "bad.png")
    assert "bad.png" in refused("annotate", "model", "bad.png")


def test_a_corrupt_image_is_left_out_of_pairs_that_are_added(place):
    (place / "bad.png").write_bytes(b"no image at all")
    (place / "more.csv").write_text("image,caption\nnew.png,a thing\nbad.png,another\n")
    added = run("add", "model", "more.csv", exit_code=1)
    assert "added 2 items" in added.stdout
    assert "skipped: bad.png" in added.stderr


def test_what_is_known_of_the_quality_is_the_same_everywhere(place):
    facts = run_json("info", "model")["facts"]
    assert facts["quality"] in (place / "model" / "README.md").read_text("utf-8").replace("\\", "")
    assert facts["quality"] in run("info", "model").stdout
    assert "Measured on the test split" in facts["quality"]


def test_export_writes_what_python_exports(place):
    pytest.importorskip("onnx")
    shown = run("export", "model", "--view", "text", "--task", "search", "--out", "projection.onnx")
    assert shown.stdout == "wrote projection.onnx\n"
    Retriever.load("model").export_onnx("expected.onnx", view="text", task="search")
    assert (place / "projection.onnx").read_bytes() == (place / "expected.onnx").read_bytes()
    content = run_json("export", "model", "-o", "items.onnx", "--view", "image")
    assert content == {"model": "model", "view": "image", "task": "search", "out": "items.onnx"}
    assert run("export", "model", "-o", "items.onnx", "--quiet").stdout == ""


def test_queries_are_composed_filtered_and_paged(place):
    retriever = Retriever.load("model")
    parts = ["--plus", "night", "--plus", "new.png:2", "--minus", "two boats:0.5"]
    composed = run_json("search", "model", "a red star", *parts, "-k", 150)
    expected = retriever.search(
        "a red star", 150, plus=["night", ("new.png", 2.0)], minus=[("two boats", 0.5)]
    )
    assert hits(composed) == [hit.id for hit in expected]
    assert hits(composed) != hits(run_json("search", "model", "a red star", "-k", 150))
    page = run_json("search", "model", "a red star", "-k", 10, "--offset", 10)
    assert hits(page) == hits(run_json("search", "model", "a red star", "-k", 20))[10:]
    assert page["answers"][0]["more"] is True
    assert run_json("search", "model", "a red star", "-k", 10, "--offset", 145)["answers"][0]["more"] is False
    for where in ('split = "test"', '{"split": {"$eq": "test"}}'):
        found = run_json("search", "model", "a red star", "-k", 150, "--where", where)
        assert {hit["metadata"]["split"] for hit in found["answers"][0]["hits"]} == {"test"}
    annotated = run_json("annotate", "model", "new.png", "--plus", "night", "--minus", "new.png:0.5", "-k", 9)
    assert hits(annotated) == [
        hit.id for hit in retriever.annotate("new.png", 9, plus=["night"], minus=[("new.png", 0.5)])
    ]
    similar = run_json("similar", "model", "new.png", "--plus", "night:3", "--offset", 2, "-k", 4)
    assert hits(similar) == [
        hit.id for hit in retriever.similar(image="new.png", plus=[("night", 3.0)], offset=2, k=4)
    ]


def test_why_there_are_no_hits_is_said(place):
    shown = run("search", "model", "a red star", "--offset", 150)
    assert shown.stdout == "a red star\nscore  item\nthere are no more than 150 hits\n"
    shown = run("search", "model", "a red star", "--where", 'split = "none such"').stdout
    assert shown.endswith("no item has such metadata\n")


def test_a_colon_without_a_number_is_part_of_the_text(place):
    found = run_json("search", "model", "a star", "--plus", "night: a red boat", "-k", 5)
    expected = Retriever.load("model").search("a star", 5, plus=["night: a red boat"])
    assert hits(found) == [hit.id for hit in expected]


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """A folder with a model that has probabilities, and features of its test split."""
    folder = tmp_path_factory.mktemp("calibrated")
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(900, 30))
    x, y = (hidden @ rng.normal(size=(30, m)) + rng.normal(size=(900, m)) for m in (40, 36))
    splits = ["train"] * 500 + ["val"] * 300 + ["test"] * 100
    Retriever.from_features(x, y, splits=splits, model=AWCCA(params=(1.0, 1.0))).save(folder / "m")
    np.save(folder / "y.npy", np.vstack([y[-1:], 5 * rng.normal(size=(1, 36))]).astype(np.float32))
    return folder


def test_probabilities_are_shown_where_they_are_known(calibrated, monkeypatch):
    monkeypatch.chdir(calibrated)
    retriever = Retriever.load("m")
    good, bad = retriever.search(np.load("y.npy"), 5)
    answers = run_json("search", "m", "--features", "y.npy", "-k", 5)["answers"]
    for answer, hits_ in zip(answers, (good, bad), strict=True):
        assert [hit["probability"] for hit in answer["hits"]] == pytest.approx(
            [hit.probability for hit in hits_], abs=1e-5
        )
    shown = run("search", "m", "--features", "y.npy", "-k", 5)
    lines = shown.stdout.splitlines()
    assert lines[0] == "row 0"
    assert lines[1].split() == ["score", "probability", "item"]
    assert lines[2].split() == [f"{good[0].score:.3f}", f"{good[0].probability:.3f}", good[0].id]
    assert lines[7] == "row 1"
    limit = f"{good[0].probability / 2:.6f}"
    likely = run_json("search", "m", "--features", "y.npy", "-k", 5, "--min-probability", limit)["answers"]
    kept = [hit for hit in good if hit.probability >= float(limit)]
    assert [hit["id"] for hit in likely[0]["hits"]] == [hit.id for hit in kept]
    none = run("search", "m", "--features", "y.npy", "--min-probability", "1").stdout
    assert "no hit has a probability of 1 or more" in none


def test_a_model_without_calibration_says_so(tmp_path, monkeypatch, rng):
    monkeypatch.chdir(tmp_path)
    x = rng.normal(size=(60, 4))
    retriever = Retriever.from_features(x, x, model=AWCCA(params=(1.0, 1.0)))
    retriever.save("m")
    np.save("y.npy", x[:1].astype(np.float32))
    message = refused("search", "m", "--features", "y.npy", "--min-probability", 0.2)
    assert "this model has no probabilities, because" in message
    assert message.endswith("leave out --min-probability.")
    shown = run("search", "m", "--features", "y.npy", "-k", 1).stdout.splitlines()
    assert shown[1].split() == ["score", "item"]


CONTROLS = "\x1b[31mred\x1b]0;title\x07 \x9b2J \u202ereversed\rover\nnext"


@pytest.fixture(scope="module")
def dangerous(tmp_path_factory):
    """A folder with a model whose texts and ids direct a terminal, and features to ask it with."""
    folder = tmp_path_factory.mktemp("dangerous")
    x = np.random.default_rng(0).normal(size=(60, 4))
    x[1] = x[0]
    names = [f"{row} {CONTROLS}" for row in range(60)]
    retriever = Retriever.from_features(
        x, x, ids=names, captions=[CONTROLS] * 60, model=AWCCA(params=(1.0, 1.0))
    )
    retriever.save(folder / "m")
    np.save(folder / "x.npy", x[:2].astype(np.float32))
    (folder / "t.csv").write_text(f'image,caption\n"a{CONTROLS[:8]}.jpg",a dog\n')
    return folder


def test_no_text_directs_the_terminal(dangerous, monkeypatch):
    monkeypatch.chdir(dangerous)
    monkeypatch.setenv("NO_COLOR", "1")
    for command in (
        "annotate m --features x.npy",
        "search m --features x.npy",
        "search m --features x.npy --json",
        "annotate m --features x.npy --json",
        "duplicates m",
        "duplicates m --view text",
        "info m",
        "remove m TEXT",
        "fit TEXT -o other",
        "add m TEXT",
        "check t.csv",
    ):
        code = 2 if "TEXT" in command else 1 if command.startswith("check") else 0
        result = run(*(CONTROLS if word == "TEXT" else word for word in command.split()), exit_code=code)
        shown = result.stdout + result.stderr
        assert shown.endswith("\n")
        assert not set(shown) & set("\x1b\x07\x9b\u202e\r"), command
        if "--json" in command:
            hit = json.loads(result.stdout)["answers"][0]["hits"][0]
            assert CONTROLS in (hit["id"] + (hit.get("text") or ""))
        elif command not in ("info m", "add m TEXT"):
            assert "\\x1b" in shown


def damage(file):
    """Change one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_info_notices_every_damaged_file_that_load_refuses(place):
    (version,) = (place / "model" / "versions").iterdir()
    files = [file.relative_to(version) for file in version.rglob("*") if file.suffix == ".safetensors"]
    assert len(files) >= 4
    for file in files:
        shutil.copytree(place / "model", place / "damaged")
        damage(place / "damaged" / "versions" / version.name / file)
        assert f"{file.name} is not as it was written" in refused("info", "damaged")
        shutil.rmtree(place / "damaged")
    shutil.copytree(place / "model", place / "damaged")
    os.truncate(place / "damaged" / "items.sqlite", 8192)
    assert "items.sqlite" in refused("info", "damaged")
    run("info", "model")


def test_a_damaged_description_is_refused_where_it_is_read(place):
    config = json.loads((files_of(place / "model") / "config.json").read_bytes())
    edit_config(place / "model", description={**config["description"], "components": {"search": 4}})
    assert "the description of the model lacks one of the tasks" in refused("info", "model")
    run("search", "model", "a red star")
