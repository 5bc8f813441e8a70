"""Models of tones, molecules and time series: the same as for images, under names of their own."""

import re
import shlex
import shutil
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from commands import config, refused, run, run_json
from diptych import AWCCA, HKSE, InputError, Retriever, read_pairs
from diptych._checks import DataWarning, ViewNames, check_view_names, count, plural, with_article
from diptych.data import PairedDataset, encode_images, encoded_blocks, inspect_pairs, join
from diptych.encoders import FunctionEncoder, sentence_encoder
from example_files import code_blocks
from modality_files import make_molecules, write_molecules, write_series, write_tone, write_tones

PAGE = Path(__file__).parents[2] / "docs" / "modalities.md"
VIEWS = ("audio", "text")
SMALL = {"word_features": 100, "sentence_features": 100}
NAMES = re.compile(
    r"(--)?\bimage[_-](encoder|column)s?=?|(--)?\bimages(=FOLDER|=|\b(?=\.$))|--images?\b|regularization\.png|"
    r"embed_images|image_ids|`image`"
)
"""Names of parameters and options, which are the same for all views."""


def hkse():
    return HKSE(**SMALL)


def run_block(number, names=None):
    """Run one of the Python examples of the page in the working folder."""
    names = {} if names is None else names
    exec(code_blocks(PAGE)[number], names)
    return names


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A folder with tones and the encoder of the page; and the caption of each file."""
    folder = tmp_path_factory.mktemp("tones")
    captions = write_tones(folder)
    (folder / "encoders.py").write_text(code_blocks(PAGE)[0], "utf-8")
    write_tone(folder / "new.wav", "very high", "fast", "loud", np.random.default_rng(5))
    (folder / "broken.wav").write_bytes(b"RIFF and nothing else")
    (folder / "empty.wav").write_bytes(b"")
    return folder, captions


@pytest.fixture(scope="module")
def tones():
    return run_block(0)["tones"]


@pytest.fixture(scope="module")
def fitted(clips, tones):
    pairs = read_pairs(clips[0] / "tones.csv", images=clips[0] / "clips", views=VIEWS)
    return Retriever(tones, "hkse", AWCCA(grid=5), views=VIEWS).fit(pairs)


@pytest.fixture
def model(fitted, clips, tones, tmp_path):
    """A copy of the model that may be changed."""
    fitted.save(tmp_path / "model")
    return Retriever.load(tmp_path / "model", tones)


def share_right(found, expected):
    return np.mean([own == other for own, other in zip(found, expected, strict=True)])


def test_tones_are_found_by_their_caption_and_captions_by_their_tone(fitted, clips):
    folder, captions = clips
    wanted = sorted(set(captions.values()))
    hits = fitted.search(wanted, k=1)
    assert share_right([captions[own[0].id] for own in hits], wanted) > 0.8
    assert Path(hits[0][0].path).parent == folder / "clips"
    found = fitted.annotate(str(folder / "new.wav"), k=1)[0].text
    assert found == "a very high tone, fast and loud"
    same = (
        fitted.annotate((folder / "new.wav").read_bytes(), k=1)[0].text,
        fitted.annotate(folder / "new.wav"),
    )
    assert (same[0], same[1][0].text) == (found, found)


def test_a_tone_is_added_found_and_learned_from(model, clips):
    folder, captions = clips
    text = "a very high tone, fast and loud"
    assert model.add([str(folder / "new.wav")], [text]) == [str(folder / "new.wav"), f"{folder}/new.wav#0"]
    assert model.similar(image=folder / "new.wav", k=1)[0].path == str(folder / "new.wav")
    nearest = model.similar(image=folder / "new.wav", k=4)[1:]
    assert all(captions[hit.id] == text for hit in nearest)
    model.refit()
    assert model.views == VIEWS
    assert model.annotate(folder / "new.wav", k=1)[0].text == text
    assert model.remove([str(folder / "new.wav")]) == 2


def test_names_are_saved_and_a_model_of_images_says_nothing_of_them(fitted, tmp_path, views):
    fitted.save(tmp_path / "tones")
    loaded = Retriever.load(tmp_path / "tones")
    assert loaded.views == VIEWS
    assert loaded.info()["views"] == list(VIEWS)
    x, y, pairing = views()
    plain = Retriever.from_features(x, y, pairing, model=AWCCA(grid=3))
    plain.save(tmp_path / "plain")
    assert Retriever.load(tmp_path / "plain").views == ("image", "text")
    written = next((tmp_path / "plain").rglob("config.json")).read_text("utf-8")
    assert '"views"' not in written  # so that earlier versions can read it


def test_interrupted_work_resumes_and_unreadable_files_are_left_out(clips, tones, tmp_path):
    folder, captions = clips
    names = [*list(captions)[:70], "broken.wav", "empty.wav", "missing.wav"]
    paths = [
        folder / name if name in ("broken.wav", "empty.wav") else folder / "clips" / name for name in names
    ]
    pairs = PairedDataset.of([(n, [captions.get(n, "nothing")]) for n in names], paths=paths, views=VIEWS)

    def stop(progress):
        if progress.done == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_images(pairs, tones, tmp_path / "x", progress=stop)
    seen = []
    store = encode_images(pairs, tones, tmp_path / "x", progress=seen.append)
    assert (seen[0].resumed, seen[-1].done, len(store.ids)) == (32, 73, 70)
    assert [each.id for each in store.skipped] == ["broken.wav", "empty.wav", "missing.wav"]
    whole = encode_images(pairs, tones, tmp_path / "y")
    assert np.array_equal(store.features, whole.features)
    np.testing.assert_allclose(whole.features[0], tones.encode([str(paths[0])])[0], rtol=1e-5)
    with pytest.warns(DataWarning, match="3 audio items could not be read and will be left out"):
        retriever = Retriever(tones, hkse(), AWCCA(grid=3), views=VIEWS).fit(pairs)
    assert retriever.store.count("image") == 70


def test_blocks_of_files_and_of_texts_are_encoded_when_needed(clips, tones):
    folder, captions = clips
    pairs = read_pairs(folder / "tones.csv", images=folder / "clips", views=VIEWS).select(range(40))
    lengths = sentence_encoder(lambda texts: np.array([[len(text), 1.0] for text in texts]))
    blocks = encoded_blocks(pairs, tones, lengths, images=20)
    np.testing.assert_allclose(blocks[1].load()[0][0], tones.encode([str(pairs.paths[20])])[0])
    assert "the audio items 20.wav to 39.wav" in blocks[1].name
    molecules = PairedDataset.of([(m, [name]) for m, name in make_molecules().items()])
    counts = FunctionEncoder(lambda texts: np.array([[len(t), t.count("C")] for t in texts]), "c", "texts")
    x, y, pairing = encoded_blocks(molecules, counts, lengths, images=40)[1].load()
    assert x[0].tolist() == [len(molecules.image_ids[40]), molecules.image_ids[40].count("C")]


def test_molecules_are_their_own_texts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = write_molecules(tmp_path)
    page = run_block(2)
    retriever, encoder = page["retriever"], page["encoder"]
    first, second = capsys.readouterr().out.splitlines()
    assert "CCCO" in first
    assert second == "an amine with four carbon atoms"
    hits = retriever.search(list(names.values()), k=1)
    assert share_right([own[0].text for own in hits], list(names)) > 0.8
    assert hits[0][0].path is None
    assert repr(retriever).startswith(
        "<Retriever: 80 molecules, 80 names; molecule encoder parts 1; name enc"
    )
    assert retriever.add(["CCCCCCCCCCCO"], ["an alcohol with ten carbon atoms"])[0] == "CCCCCCCCCCCO"
    assert retriever.item("CCCCCCCCCCCO").text == "CCCCCCCCCCCO"
    assert retriever.similar(image="CCCCCCCCCCCO", k=1)[0].id == "CCCCCCCCCCCO"
    assert retriever.embed_images(["CCO", "CCN"]).shape[0] == 2
    retriever.keep_features = False
    retriever.save("model")
    loaded = Retriever.load("model", encoder)
    assert loaded.item("CCO").text == "CCO"
    with pytest.raises(
        InputError, match="this model has no molecule encoder here: its molecules were encoded by"
    ):
        Retriever.load("model").annotate("CCO")
    in_memory = PairedDataset.of([(m, [name]) for m, name in names.items()])
    again = Retriever(encoder, hkse(), AWCCA(grid=3), keep_features=False).fit(in_memory)
    again.add(["CCCCCCCCCCCO"], ["an alcohol"])
    again.refit()  # encodes the stored texts again
    assert again.annotate("CCCCCCCCCCCO", k=1)


def test_time_series_from_files_and_from_features(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notes = write_series(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        page = run_block(3)
        run_block(4, page)
    retriever = page["retriever"]
    wanted = sorted(set(notes.values()))
    found = [notes[own[0].id] for own in retriever.search(wanted, k=1)]
    assert share_right(found, wanted) > 0.6
    assert "<Retriever: 50 time series, 50 notes; time series encoder none" in capsys.readouterr().out


def test_the_page_on_audio_runs(clips, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(shutil.copytree(clips[0], tmp_path / "place"))
    monkeypatch.syspath_prepend(str(tmp_path / "place"))
    page = run_block(1)
    *_, text = capsys.readouterr().out.splitlines()
    assert text == clips[1]["7.wav"]
    assert page["retriever"].item("new.wav") is not None
    shutil.rmtree("model")
    sys.modules.pop("encoders")
    commands = [line for block in code_blocks(PAGE, "sh") for line in block.splitlines()]
    assert len(commands) == 6
    for line in commands:
        words = shlex.split(line)[1:]
        if words[0] == "serve":
            words = ["serve", "--help"]
        small = config(model={"grid": 4}, hkse=SMALL)
        result = run(*words, *(small if words[0] == "fit" else []))
        assert result.exit_code == 0, f"{line}: {result.output}"
        assert words[0] == "serve" or not find_images(result.output), result.output
    assert "120 audio items" in run("info", "model").output


def find_images(message):
    """Return the words about images in a message, other than names of parameters."""
    return re.findall(r"\w*(?:image|photo|picture)\w*", NAMES.sub("", str(message)), re.IGNORECASE)


def test_no_message_of_a_session_with_audio_speaks_of_images(fitted, model, clips, tones, tmp_path):
    folder, captions = clips
    bare = Retriever.load(tmp_path / "model")
    pairs = read_pairs(folder / "tones.csv", images=folder / "clips", views=VIEWS)
    lost = replace(pairs, paths=None)
    odd = FunctionEncoder(lambda paths: np.ones(3), "odd", "paths")
    failing = FunctionEncoder(lambda paths: 1 / 0, "failing", "paths")
    other = FunctionEncoder(lambda paths: np.ones((len(paths), 3)), "other", "paths")
    width = tones.dimension
    few = pairs.select(range(12))
    broken = replace(few, paths=tuple(folder / "broken.wav" for _ in range(12)))
    trials = [
        lambda: Retriever(views=VIEWS).fit(pairs),
        lambda: Retriever(tones, hkse(), views=VIEWS).fit(lost),
        lambda: Retriever(tones, hkse(), views=VIEWS).fit(broken),
        lambda: Retriever(failing, hkse(), views=VIEWS).fit(few),
        lambda: Retriever(odd, hkse(), views=VIEWS).fit(few),
        lambda: Retriever(object(), views=VIEWS),
        lambda: Retriever(tones, views=VIEWS).search("a tone"),
        lambda: Retriever.load(tmp_path / "model", other),
        lambda: bare.annotate(folder / "new.wav"),
        lambda: bare.add([folder / "new.wav"]),
        lambda: bare.evaluate(pairs, None),
        lambda: model.annotate("missing.wav"),
        lambda: model.annotate(folder / "broken.wav"),
        lambda: model.annotate([]),
        lambda: model.annotate(3),
        lambda: model.annotate(np.ones(width + 1)),
        lambda: model.annotate(np.full(width, np.nan)),
        lambda: model.annotate(np.full(width, 1e38)),
        lambda: model.annotate({"a": np.ones(3)}),
        lambda: model.annotate(folder / "new.wav", weighting="none"),
        lambda: model.similar(),
        lambda: model.similar(image=[folder / "new.wav"] * 2),
        lambda: model.search("qwrtz"),
        lambda: model.search(" "),
        lambda: model.search("a tone", where=["nothing"]),
        lambda: model.search("a tone", where={"colour": "red"}),
        lambda: model.add(),
        lambda: model.add([]),
        lambda: model.add([folder / "empty.wav"]),
        lambda: model.add([folder / "new.wav"], ids=["0.wav"]),
        lambda: model.add([folder / "new.wav"] * 2),
        lambda: model.add(np.ones((2, width)), paths=["a.wav"]),
        lambda: model.add([folder / "new.wav"], ["one", "two"]),
        lambda: model.remove(["nothing"]),
        lambda: model.evaluate(replace(pairs, splits=("val",) * pairs.n_images), "test"),
        lambda: Retriever(tones, hkse(), views=VIEWS).fit(replace(pairs, splits=("val",) * pairs.n_images)),
        lambda: PairedDataset.of([("a.wav", []), ("a.wav", [])], views=VIEWS),
        lambda: PairedDataset(("a",), ("b",), np.array([3]), views=ViewNames(*VIEWS)),
        lambda: pairs.select([1, 1]),
        lambda: pairs.select([1000]),
        lambda: join(pairs, np.ones((3, 2)), np.ones((120, 2))),
        lambda: read_pairs(folder / "nothing.csv", views=VIEWS),
        lambda: read_pairs(folder / "tones.csv", images=folder / "nothing", views=VIEWS),
        lambda: read_pairs(folder / "clips", views=VIEWS),
    ]
    kept = [repr(fitted), str(fitted.info()["facts"])]
    kept.append(next((tmp_path / "model").rglob("README.md")).read_text("utf-8"))
    kept += inspect_pairs(
        replace(few, paths=(folder / "no.wav", folder / "empty.wav", *few.paths[2:]))
    ).problems
    for number, trial in enumerate(trials):
        with warnings.catch_warnings(record=True) as notes:
            warnings.simplefilter("always", DataWarning)
            try:
                trial()
                pytest.fail(f"trial {number} raised nothing")
            except InputError as error:
                kept += [str(error), *(str(note.message) for note in notes)]
    steps = []
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataWarning)
        again = replace(pairs.select(range(40)), splits=("train",) * 20 + ("test",) * 20)
        again = replace(again, paths=(*again.paths[:39], again.paths[0]))
        Retriever(tones, hkse(), AWCCA(grid=3), views=VIEWS).fit(
            again, watch=lambda *step: steps.append(step[0])
        )
        model.add(1e3 * np.ones((1, width)))
        model.evaluate(pairs.select(range(30)), None)
    kept += [*steps, *(str(note.message) for note in notes)]
    assert any("are copies of training audio items" in message for message in kept)
    assert any("1 of 1 new audio item lies far" in message for message in kept)
    assert {"audio items", "captions"} <= set(steps)
    for message in kept:
        assert not find_images(message), message


def test_the_commands_speak_of_audio(clips, tmp_path, monkeypatch):
    folder, _ = clips
    monkeypatch.chdir(folder)
    model, encoder = tmp_path / "model", ("--image-encoder", "encoders.py:tones")
    data = ("tones.csv", "--images", "clips")
    small = config(model={"grid": 4}, hkse=SMALL)
    fit = ("fit", *data, "--views", "audio,text", "--text-encoder", "hkse", "--out", model, *small)
    messages = [
        refused(*fit),
        refused(*fit, "--image-encoder", "nothing.py:tones"),
        refused(*fit, "--image-encoder", "encoders.py:nothing"),
        refused(*fit, "--image-encoder", "encoders.py:spectrum").replace("diptych.encoders", ""),
    ]
    assert "there is no audio encoder for these pairs" in messages[0]
    result = run(*fit, *encoder)
    assert result.exit_code == 0, result.output
    assert "120 audio items and 120 texts to search" in result.output
    hits = run_json("search", model, "a very low tone, slow and quiet", "-k", "1")["answers"][0]["hits"]
    assert hits[0]["path"].endswith(".wav")
    messages += [
        refused("annotate", model, "new.wav"),
        refused("annotate", model, "new.wav", "new.wav"),
        refused("annotate", model, *encoder),
        refused("annotate", model, "broken.wav", *encoder),
        refused("annotate", model, "missing.wav", "empty.wav", *encoder),
        refused("add", model, "new.wav"),
        refused("add", model, "new.wav", "--refit", *encoder),
        refused("add", model, "broken.wav", *encoder),
        refused("evaluate", model, *data),
        refused("encode", "images", *data, "--views", "audio,text", "--out", tmp_path / "x"),
        refused("check", "tones.csv", "--views", "audio"),
        refused("check", "tones.csv", "--views", "audio,au/dio"),
    ]
    results = [
        result,
        run("info", model),
        run("annotate", model, "new.wav", *encoder),
        run("annotate", model, "new.wav", "missing.wav", *encoder),
        run("similar", model, "new.wav", "--image", *encoder),
        run("evaluate", model, *data, "--split", "all", *encoder),
        run("add", model, "new.wav", *encoder),
        run("encode", "images", *data, "--views", "audio,text", *encoder, "--out", tmp_path / "x"),
        run(
            "encode",
            "text",
            "tones.csv",
            "--views",
            "audio,text",
            "--text-encoder",
            "hkse",
            "-o",
            tmp_path / "y",
        ),
        run(
            "fit",
            tmp_path / "x",
            tmp_path / "y",
            "--views",
            "audio,text",
            "--out",
            tmp_path / "z",
            *config(model={"grid": 3}),
        ),
        run("check", *data, "--views", "audio,text"),
        run("remove", model, "new.wav"),
    ]
    assert [each.exit_code for each in results] == [0, 0, 0, 1, *[0] * 8], [each.output for each in results]
    assert "a very high tone, fast and loud" in results[2].stdout
    for message in [*messages, *(each.output.replace("encoding images", "") for each in results)]:
        assert not find_images(message), message


def test_molecules_and_a_function_for_texts_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_molecules(tmp_path)
    code = code_blocks(PAGE)[2].partition("retriever =")[0]
    words = "lambda texts: np.array([[float(word in text.split()) for word in WORDS] for text in texts])"
    listed = sorted({word for name in make_molecules().values() for word in name.split()})
    words = words.replace("WORDS", repr(listed))
    (tmp_path / "encoders.py").write_text(f"{code}\nwords = {words}\n", "utf-8")
    encoders = ("--image-encoder", "encoders.py:encoder", "--text-encoder", "encoders.py:words")
    small = config(model={"grid": 4})
    fit = run("fit", "molecules.csv", "--views", "molecule,name", *encoders, "--out", "model", *small)
    assert fit.exit_code == 0, fit.output
    assert "80 molecules and 80 names to search" in fit.output
    result = run("annotate", "model", "CCCCN", "CCO", "--image-encoder", "encoders.py:encoder", "-k", "1")
    assert "an amine with four carbon atoms" in result.stdout
    assert "an alcohol with two carbon atoms" in result.stdout
    query = "an acid with three carbon atoms"
    found = run("search", "model", query, "--text-encoder", "encoders.py:words", "-k", "1")
    assert "CCC(=O)O" in found.stdout
    assert run_json("add", "model", "CCCCCCCCCCCO", *encoders[:2])["added"] == ["CCCCCCCCCCCO"]
    assert "there is no molecule encoder" not in refused("annotate", "model", "CCO")
    (tmp_path / "more.csv").write_text(
        "molecule,name\nCCCCCCCCCCCN,an amine with ten carbon atoms\n", "utf-8"
    )
    assert len(run_json("add", "model", "more.csv", "--refit", *encoders)["added"]) == 2
    check = run("check", "molecules.csv", "--views", "molecule,name")
    assert (check.exit_code, check.stdout.splitlines()[0]) == (0, "80 molecules (not split), 80 names")


def test_names_in_a_model_folder_are_checked(fitted, tmp_path):
    fitted.save(tmp_path / "model")
    path = next((tmp_path / "model").rglob("config.json"))
    for names in ('["<b>x</b>", "text"]', '["audio", "audio"]', '["audio"]', '"audio"'):
        config_text = re.sub(
            r'"views": \[[^]]*\]', f'"views": {names}', fitted_config := path.read_text("utf-8")
        )
        assert config_text != fitted_config
        path.write_text(config_text, "utf-8")
        with pytest.raises(InputError):
            Retriever.load(tmp_path / "model")
        path.write_text(fitted_config, "utf-8")
    assert Retriever.load(tmp_path / "model").views == VIEWS


def test_a_model_that_names_a_python_file_does_not_run_it(model, clips, tmp_path):
    """What ``encoders.py:tones`` means is known to the commands alone."""
    (tmp_path / "evil.py").write_text("raise SystemExit('ran')", "utf-8")
    with pytest.raises(InputError, match="is not an image encoder"):
        Retriever(f"{tmp_path}/evil.py:tones")
    with pytest.raises(InputError):
        Retriever.load(tmp_path / "model", f"{tmp_path}/evil.py:tones")


def test_a_folder_of_files_with_texts_beside_them(tmp_path):
    for name in ("a.wav", "b.WAV", "c.mp3", "notes.txt", "d.wav", ".hidden.wav"):
        (tmp_path / name).write_bytes(b"content of " + name.encode())
    for name in ("a", "b", "c", ".hidden"):
        (tmp_path / f"{name}.txt").write_text(f"text of {name}\n", "utf-8")
    pairs = read_pairs(tmp_path, views=VIEWS)
    assert pairs.image_ids == ("a.wav", "b.WAV", "c.mp3")
    assert pairs.captions == ("text of a", "text of b", "text of c")
    with pytest.raises(InputError, match="has 0 images and no captions"):
        read_pairs(tmp_path)


def test_files_that_are_no_images_are_checked_without_decoding(tmp_path):
    for name, content in (("a.wav", b"1"), ("b.wav", b"1"), ("c.wav", b""), ("e.jpg", b"no image")):
        (tmp_path / name).write_bytes(content)
    names = ["a.wav", "b.wav", "c.wav", "d.wav", "e.jpg"]
    pairs = PairedDataset.of(
        [(name, ["x"]) for name in names],
        paths=[tmp_path / name for name in names],
        splits=["train", "test", *[""] * 3],
        views=VIEWS,
    )
    report = inspect_pairs(pairs)
    assert report.missing == ("d.wav",)
    assert [name for name, _ in report.unreadable] == ["c.wav", "e.jpg"]
    assert report.leaks == (("a.wav", "b.wav"),)
    assert report.problems[0] == "1 audio item cannot be found: d.wav."
    assert len(inspect_pairs(replace(pairs, views=ViewNames())).unreadable) == 4


def test_a_table_of_texts_has_no_files(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("molecule,name\nC/C=C/C,butene\n../CC,odd\n", "utf-8")
    assert read_pairs(table, views=("molecule", "name")).paths is None
    with pytest.raises(InputError, match="leads out"):
        read_pairs(table, views=("molecule", "name"), images=tmp_path)
    table.write_text("file,note\na.npy,rising\nb.npy,falling\n", "utf-8")
    (tmp_path / "a.npy").write_bytes(b"1")
    assert read_pairs(table, views=("series", "note")).paths == (tmp_path / "a.npy", tmp_path / "b.npy")
    table.write_text("smiles,label\nCCO,ethanol\n", "utf-8")
    with pytest.raises(InputError, match="none has a usual name for the molecule; name it with image_column"):
        read_pairs(table, views=("molecule", "name"))
    assert read_pairs(table, views=("molecule", "name"), image_column="smiles").image_ids == ("CCO",)


def test_a_function_that_fails_is_asked_for_one_input_at_a_time(tmp_path):
    batches = []

    def encode(texts):
        batches.append(len(texts))
        if any("bad" in text for text in texts):
            raise InputError("it is bad")
        if any("bug" in text for text in texts):
            raise KeyError("bug")
        return np.array([[float(len(text)), 1.0] for text in texts])

    encoder = FunctionEncoder(encode, "lengths", "texts")
    pairs = PairedDataset.of([(text, [text]) for text in ("a", "bad", "ccc")])
    store = encode_images(pairs, encoder, tmp_path / "x")
    assert (store.features.tolist(), batches) == ([[1, 1], [3, 1]], [1, 3, 1, 1, 1])
    assert store.skipped[0].reason == "bad: it is bad"
    assert encoder.dimension == 2
    pairs = PairedDataset.of([(text, [text]) for text in ("a", "bug")], views=("word", "text"))
    with pytest.raises(
        InputError, match=r"the word encoder failed on bug \(KeyError: 'bug'\); let it raise"
    ) as e:
        encode_images(pairs, encoder, tmp_path / "y")
    assert isinstance(e.value.__cause__, KeyError)
    ragged = FunctionEncoder(lambda texts: np.array([[1.0] * len(t) for t in texts]), "ragged", "texts")
    with pytest.raises(InputError, match="arrays of several shapes"):
        encode_images(PairedDataset.of([("a", ["a"]), ("bb", ["b"])]), ragged, tmp_path / "z")


def test_a_staged_encoder_reads_its_files_in_threads(clips, tones, tmp_path):
    class Staged:
        inputs, fingerprint, dimension, threads = "paths", "staged", 0, frozenset()

        def prepare(self, path):
            self.threads |= {threading.current_thread().name}
            return tones.encode([path])[0]

        def encode_prepared(self, prepared):
            return np.stack(prepared)

        def encode(self, paths):
            return self.encode_prepared([self.prepare(path) for path in paths])

    folder, captions = clips
    names = [*list(captions)[:10], "broken.wav"]
    paths = [folder / "clips" / name for name in names[:-1]] + [folder / "broken.wav"]
    pairs = PairedDataset.of([(name, ["x"]) for name in names], paths=paths, views=VIEWS)
    staged = Staged()
    store = encode_images(pairs, staged, tmp_path / "x", workers=3)
    assert (len(store.ids), [each.id for each in store.skipped]) == (10, ["broken.wav"])
    assert staged.threads
    assert all(name.startswith("prefetch") for name in staged.threads)


@pytest.mark.parametrize(
    ("views", "message"),
    [
        ("audio", "not a pair of names"),
        (("audio",), "not a pair of names"),
        (("audio", 3), "not a pair of names"),
        (("audio", "audio"), "both views are called 'audio'"),
        (("", "text"), "not a plain word"),
        (("a b  c", "text"), "not a plain word"),
        (("<b>", "text"), "not a plain word"),
        (("x" * 31, "text"), "not a plain word"),
    ],
)
def test_names_that_are_none_are_refused(views, message):
    with pytest.raises(InputError, match=message):
        Retriever(views=views)
    with pytest.raises(InputError, match=message):
        check_view_names(views)


def test_names_in_sentences():
    assert [count(n, "audio") for n in (0, 1, 2)] == ["0 audio items", "1 audio item", "2 audio items"]
    assert [plural(noun) for noun in ("video", "time series", "sketch", "box", "day", "Satellitenbild")] == [
        "videos",
        "time series",
        "sketches",
        "boxes",
        "days",
        "Satellitenbilds",
    ]
    assert with_article("new audio") == "a new audio item"
    assert (ViewNames("audio", "text").caption, ViewNames("molecule", "name").caption) == ("caption", "name")
