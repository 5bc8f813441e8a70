"""Models whose items are no images: tones in WAV files, and formulas, with texts and encoders for them."""

import wave
from itertools import pairwise, product

import numpy as np

from diptych import Retriever
from diptych.image import FunctionEncoder

PITCHES = {"low": 160, "middle": 440, "high": 1250}
SHAPES = {
    "pure": np.sin,
    "rough": lambda phase: np.sign(np.sin(phase)),
    "buzzing": lambda phase: phase / np.pi % 2 - 1,
}
COURSES = {
    "steady": np.ones_like,
    "fading": lambda t: np.exp(-6 * t / t[-1]),
    "pulsing": lambda t: (np.sin(2 * np.pi * 9 * t) > 0).astype(float),
}
RATE = 8000
BANDS = 24


def write_tones(folder, repeats=5):
    """Write WAV files; return their paths and a caption for each."""
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    paths, captions = [], []
    for number, (pitch, shape, course) in enumerate(list(product(PITCHES, SHAPES, COURSES)) * repeats):
        t = np.arange(int(RATE * rng.uniform(0.5, 0.9))) / RATE
        sound = SHAPES[shape](2 * np.pi * PITCHES[pitch] * rng.uniform(0.85, 1.18) * t) * COURSES[course](t)
        path = folder / f"tone-{number:03d}.wav"
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes((8000 * sound + 50 * rng.normal(size=len(t))).astype("<i2").tobytes())
        paths.append(path)
        captions.append(f"a {course} {shape} {pitch} tone")
    return paths, captions


def encode_tones(paths):
    """Return the loudness of frequency bands and of parts of each WAV file."""
    rows = []
    for path in paths:
        with wave.open(str(path)) as file:
            sound = np.frombuffer(file.readframes(file.getnframes()), "<i2") / 2**15
        spectrum = np.abs(np.fft.rfft(sound, RATE))[50:3000]
        edges = np.geomspace(1, len(spectrum), BANDS + 1).astype(int)
        bands = [spectrum[start : max(end, start + 1)].max() for start, end in pairwise(edges)]
        parts = [np.abs(part).mean() for part in np.array_split(sound, 32)]
        rows.append([*bands, *parts])
    return np.log(np.array(rows, np.float32) + 1e-4)


def tone_encoder():
    """Return the encoder of tones for a retriever."""
    return FunctionEncoder(encode_tones, "tones", "paths")


def fit_tones(tones, paths=None, views=("audio", "text"), **options):
    """Return a model of tones; ``paths`` are other files for its items."""
    files, captions = tones
    return Retriever.from_features(
        encode_tones(files),
        encode_captions(captions),
        ids=[file.name for file in files],
        captions=captions,
        paths=files if paths is None else paths,
        views=views,
        **options,
    )


def fit_molecules(**options):
    """Return a model of formulas, which are texts, and their descriptions."""
    formulas = [f"C{'C' * i}{'O' * j}{'N' * k}" for i in range(6) for j in range(4) for k in range(3)]
    texts = [f"{f.count('C')} carbon {f.count('O')} oxygen {f.count('N')} nitrogen" for f in formulas]
    encoder = FunctionEncoder(
        lambda inputs: [[float(each.count(atom)) for atom in "CON"] for each in inputs], "atoms", "texts"
    )
    x, views = encoder.encode(formulas), ("molecule", "description")
    return Retriever.from_features(
        x, x, ids=formulas, captions=texts, image_encoder=encoder, views=views, **options
    )


def encode_captions(texts):
    """Return how often each word of the captions occurs in each text."""
    words = [*PITCHES, *SHAPES, *COURSES]
    return np.array([[text.split().count(word) for word in words] for text in texts], np.float32)
