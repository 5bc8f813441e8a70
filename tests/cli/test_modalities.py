"""Commands on tones and molecules: the same as on images, under names of their own."""

import shlex
import shutil
import sys
from pathlib import Path

import pytest

from commands import config, refused, run, run_json
from example_files import code_blocks
from modality_files import find_images, make_molecules, write_clips, write_molecules

PAGE = Path(__file__).parents[2] / "docs" / "modalities.md"
SMALL = {"word_features": 100, "sentence_features": 100}


@pytest.fixture(scope="module")
def clips(tmp_path_factory):
    """A folder with tones and the encoder of the page; and the caption of each file."""
    folder = tmp_path_factory.mktemp("tones")
    (folder / "encoders.py").write_text(code_blocks(PAGE)[0], "utf-8")
    return folder, write_clips(folder)


def test_the_page_on_audio_runs(clips, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(shutil.copytree(clips[0], tmp_path / "place"))
    monkeypatch.syspath_prepend(str(tmp_path / "place"))
    page = {}
    exec(code_blocks(PAGE)[1], page)
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
        assert words[0] == "serve" or not find_images(result.output), result.output
    assert "120 audio items" in run("info", "model").output


def test_the_commands_speak_of_audio(clips, tmp_path, monkeypatch):
    monkeypatch.chdir(clips[0])
    model, encoder = tmp_path / "model", "--image-encoder encoders.py:tones"
    data, small = "tones.csv --images clips", config(model={"grid": 4}, hkse=SMALL)
    fit = f"fit {data} --views audio,text --text-encoder hkse --out {model}"
    encode = f"encode images {data} --views audio,text --out {tmp_path}/x"
    messages = [
        refused(*fit.split(), *small),
        refused(*fit.split(), *small, "--image-encoder", "nothing.py:tones"),
        refused(*fit.split(), *small, "--image-encoder", "encoders.py:nothing"),
        refused(*fit.split(), *small, "--image-encoder", "encoders.py:spectrum"),
    ]
    assert "there is no audio encoder for these pairs" in messages[0]
    result = run(*fit.split(), *encoder.split(), *small)
    assert "120 audio items and 120 texts to search" in result.output
    hits = run_json("search", model, "a very low tone, slow and quiet", "-k", "1")["answers"][0]["hits"]
    assert hits[0]["path"].endswith(".wav")
    for line in (
        f"annotate {model} new.wav",
        f"annotate {model} new.wav new.wav",
        f"annotate {model} {encoder}",
        f"annotate {model} broken.wav {encoder}",
        f"annotate {model} missing.wav empty.wav {encoder}",
        f"add {model} new.wav",
        f"add {model} new.wav --refit {encoder}",
        f"add {model} broken.wav {encoder}",
        f"evaluate {model} {data}",
        encode,
        "check tones.csv --views audio",
        "check tones.csv --views audio,au/dio",
    ):
        messages.append(refused(*line.split()))
    texts = "--views audio,text --text-encoder hkse"
    for line, code in (
        (f"info {model}", 0),
        (f"annotate {model} new.wav {encoder}", 0),
        (f"annotate {model} new.wav missing.wav {encoder}", 1),
        (f"similar {model} new.wav --image {encoder}", 0),
        (f"evaluate {model} {data} --split all {encoder}", 0),
        (f"add {model} new.wav {encoder}", 0),
        (f"{encode} {encoder}", 0),
        (f"encode text tones.csv {texts} -o {tmp_path}/y", 0),
        (f"fit {tmp_path}/x {tmp_path}/y --views audio,text --out {tmp_path}/z", 0),
        (f"check {data} --views audio,text", 0),
        (f"remove {model} new.wav", 0),
    ):
        result = run(*line.split(), exit_code=code)
        messages.append(result.output)
        if line.startswith("annotate") and code == 0:
            assert "a very high tone, fast and loud" in result.stdout
    for message in messages:
        # The commands and the package keep their names.
        shown = message.replace("encoding images", "").replace("diptych.encoders", "")
        assert not find_images(shown), message


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
    assert check.stdout.splitlines()[0] == "80 molecules (not split), 80 names"
