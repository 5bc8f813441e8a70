"""Models of tones, molecules and time series: the same as for images, under names of their own."""

import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA, HKSE, InputError, Retriever, read_pairs
from diptych._checks import DataWarning, ViewNames, check_view_names
from diptych.data import PairedDataset, inspect_pairs, join
from diptych.encoders import FunctionEncoder
from example_files import code_blocks
from modality_files import find_images, write_clips, write_molecules, write_series

PAGE = Path(__file__).parents[2] / "docs" / "modalities.md"
VIEWS = ("audio", "text")
SMALL = {"word_features": 100, "sentence_features": 100}


def hkse():
    return HKSE(**SMALL)


def run_block(number, names=None):
    """Run one of the Python examples of the page in the working folder."""
    names = {} if names is None else names
    exec(code_blocks(PAGE)[number], names)
    return names


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A folder with tones, and the caption of each file."""
    folder = tmp_path_factory.mktemp("tones")
    return folder, write_clips(folder)


@pytest.fixture(scope="module")
def tones():
    return run_block(0)["tones"]


@pytest.fixture(scope="module")
def fitted(clips, tones):
    pairs = read_pairs(clips[0] / "tones.csv", images=clips[0] / "clips", views=VIEWS)
    return Retriever(tones, hkse(), AWCCA(grid=5), views=VIEWS).fit(pairs)


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


def test_names_are_saved_and_a_model_of_images_says_nothing_of_them(fitted, tmp_path, views):
    fitted.save(tmp_path / "tones")
    loaded = Retriever.load(tmp_path / "tones")
    assert loaded.views == VIEWS
    assert loaded.info()["views"] == list(VIEWS)
    x, y, pairing = views()
    plain = Retriever.from_features(x, y, pairing, model=AWCCA(grid=3))
    plain.save(tmp_path / "plain")
    assert Retriever.load(tmp_path / "plain").views == ("image", "text")


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


def test_no_message_of_a_session_with_audio_speaks_of_images(fitted, model, clips, tones, tmp_path, capsys):
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
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", DataWarning)
        again = replace(pairs.select(range(40)), splits=("train",) * 20 + ("test",) * 20)
        again = replace(again, paths=(*again.paths[:39], again.paths[0]))
        Retriever(tones, hkse(), AWCCA(grid=3, verbose=True), views=VIEWS).fit(again)
        model.add(1e3 * np.ones((1, width)))
        model.evaluate(pairs.select(range(30)), None)
    steps = capsys.readouterr().err.splitlines()
    kept += [*steps, *(str(note.message) for note in notes)]
    assert any("are copies of training audio items" in message for message in kept)
    assert any("1 of 1 new audio item lies far" in message for message in kept)
    assert {"encoding audio items", "encoding captions"} <= {step.partition(":")[0] for step in steps}
    for message in kept:
        assert not find_images(message), message


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
