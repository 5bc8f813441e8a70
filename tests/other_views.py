"""Fitted models whose items are no images: tones in WAV files, and molecules."""

import wave
from pathlib import Path

import numpy as np

from diptych import Retriever
from diptych.encoders import FunctionEncoder
from modality_files import PITCHES, RATE, RHYTHMS, VOLUMES, make_molecules, write_tones

WORDS = sorted({word for name in (*PITCHES, *RHYTHMS, *VOLUMES) for word in name.split()})
ATOMS = ("C", "O", "=", "N", "S", "F", "l", "Br", "I")


def make_tones(folder):
    """Write WAV files; return their paths and a caption for each."""
    captions = write_tones(folder)
    return [folder / "clips" / name for name in captions], list(captions.values())


def encode_tones(paths):
    """Return the loudness of frequencies and rhythms of WAV files."""
    rows = []
    for path in paths:
        with wave.open(str(path)) as file:
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2**15
        pitch = np.abs(np.fft.rfft(samples, RATE))[:2000].reshape(100, -1).sum(axis=1)
        rhythm = np.abs(np.fft.rfft(np.abs(samples), RATE))[2:20]
        rows.append(np.log(np.concatenate([pitch, rhythm]) + 1))
    return np.array(rows, np.float32)


def tone_encoder():
    """Return the encoder of tones for a retriever."""
    return FunctionEncoder(encode_tones, "tones", "paths")


def encode_captions(texts):
    """Return how often each word of the captions occurs in each text."""
    return np.array([[text.replace(",", "").split().count(word) for word in WORDS] for text in texts], float)


def fit_tones(tones, paths=None, views=("audio", "text"), **options):
    """Return a model of tones; ``paths`` are other files for its items."""
    files, captions = tones
    return Retriever.from_features(
        encode_tones(files),
        encode_captions(captions),
        ids=[f"tone {i}" for i in range(len(files))],
        captions=captions,
        paths=files if paths is None else paths,
        views=views,
        **options,
    )


def atom_encoder():
    """Return the encoder of molecules for a retriever."""
    return FunctionEncoder(
        lambda inputs: np.array([[each.count(atom) for atom in ATOMS] for each in inputs], float),
        "atoms",
        "texts",
    )


def fit_molecules(**options):
    """Return a model of molecules, which are texts, and their names."""
    names, encoder = make_molecules(), atom_encoder()
    x = encoder.encode(list(names))
    return Retriever.from_features(
        x,
        x,
        ids=list(names),
        captions=list(names.values()),
        image_encoder=encoder,
        views=("molecule", "name"),
        **options,
    )


def write_encoders(folder):
    """Write a Python file with the encoders ``atoms``, ``tones`` and ``encode_captions``; return its path."""
    file = folder / "encoders.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from other_views import atom_encoder, encode_captions, tone_encoder\n"
        "atoms, tones = atom_encoder(), tone_encoder()\n"
    )
    return file
