"""Pairs that are no images: tones with captions, molecules with names, time series with notes."""

import re
import wave
from pathlib import Path

import numpy as np

PITCHES = {"very low": 110, "low": 220, "middle": 440, "high": 880, "very high": 1500}
RHYTHMS = {"slow": 3, "steady": 7, "fast": 15}
VOLUMES = {"quiet": 4000, "loud": 24000}
RATE = 4000

NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GROUPS = {
    "O": "an alcohol",
    "(=O)O": "an acid",
    "N": "an amine",
    "S": "a thiol",
    "F": "a fluoride",
    "Cl": "a chloride",
    "Br": "a bromide",
    "I": "an iodide",
}


def write_tone(path: Path, pitch: str, rhythm: str, volume: str, rng: np.random.Generator) -> str:
    """Write half a second of a beating tone as a WAV file, and return its caption."""
    seconds = np.arange(RATE // 2) / RATE
    frequency, beats = PITCHES[pitch] * rng.uniform(0.95, 1.05), RHYTHMS[rhythm] * rng.uniform(0.95, 1.05)
    beating = 1 + np.sign(np.sin(2 * np.pi * beats * seconds))
    samples = VOLUMES[volume] * 0.5 * beating * np.sin(2 * np.pi * frequency * seconds)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples + rng.normal(scale=100, size=len(samples))).astype("<i2").tobytes())
    return f"a {pitch} tone, {rhythm} and {volume}"


def write_tones(folder: Path, repeats: int = 4) -> dict[str, str]:
    """Write ``clips/*.wav`` and ``tones.csv``; return the caption of each file name."""
    rng, captions = np.random.default_rng(0), dict[str, str]()
    (folder / "clips").mkdir()
    for _ in range(repeats):
        for pitch in PITCHES:
            for rhythm in RHYTHMS:
                for volume in VOLUMES:
                    name = f"{len(captions)}.wav"
                    captions[name] = write_tone(folder / "clips" / name, pitch, rhythm, volume, rng)
    rows = (f'{name},"{caption}"' for name, caption in captions.items())
    (folder / "tones.csv").write_text("\n".join(["audio,caption", *rows, ""]), "utf-8")
    return captions


def make_molecules() -> dict[str, str]:
    """Return SMILES strings of simple molecules, each with a name."""
    return {
        "C" * n + group: f"{kind} with {NUMBERS[n - 1]} carbon atoms"
        for group, kind in GROUPS.items()
        for n in range(1, len(NUMBERS) + 1)
    }


def write_molecules(folder: Path) -> dict[str, str]:
    """Write ``molecules.csv``; return the name of each molecule."""
    names = make_molecules()
    rows = (f"{molecule},{name}" for molecule, name in names.items())
    (folder / "molecules.csv").write_text("\n".join(["molecule,name", *rows, ""]), "utf-8")
    return names


def write_series(folder: Path, repeats: int = 5) -> dict[str, str]:
    """Write ``series/*.npy`` and ``notes.csv``; return the note of each file name."""
    rng, notes, time = np.random.default_rng(0), dict[str, str](), np.arange(120)
    (folder / "series").mkdir()
    for _ in range(repeats):
        for trend, slope in (("rising", 0.05), ("flat", 0.0), ("falling", -0.05)):
            for season, period in (("weekly", 7), ("monthly", 30), ("yearly", 120)):
                for level, noise in (("smooth", 0.1), ("noisy", 0.8)):
                    name = f"{len(notes)}.npy"
                    waves = np.sin(2 * np.pi * (time / period + rng.uniform()))
                    values = slope * rng.uniform(0.9, 1.1) * time + waves + rng.normal(scale=noise, size=120)
                    np.save(folder / "series" / name, values)
                    notes[name] = f"{trend}, with a {season} pattern, {level}"
    rows = (f'{name},"{note}"' for name, note in notes.items())
    (folder / "notes.csv").write_text("\n".join(["file,note", *rows, ""]), "utf-8")
    return notes


def write_clips(folder: Path) -> dict[str, str]:
    """Write the tones, one that is new and two that cannot be read; return the caption of each file name."""
    captions = write_tones(folder)
    write_tone(folder / "new.wav", "very high", "fast", "loud", np.random.default_rng(5))
    (folder / "broken.wav").write_bytes(b"RIFF and nothing else")
    (folder / "empty.wav").write_bytes(b"")
    return captions


_PARAMETERS = re.compile(
    r"(--)?\bimage[_-](encoder|column)s?=?|(--)?\bimages(=FOLDER|=|\b(?=\.$))|--images?\b|regularization\.png|"
    r"embed_images|image_ids|`image`"
)
"""Names of parameters and options, which are the same for all views."""


def find_images(message: object) -> list[str]:
    """Return the words about images in a message, other than names of parameters."""
    return re.findall(r"\w*(?:image|photo|picture)\w*", _PARAMETERS.sub("", str(message)), re.IGNORECASE)
