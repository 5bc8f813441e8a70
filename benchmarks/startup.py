"""Start-up: what a command takes before it works, beside the imports that it cannot do without.

Each line is a process of its own. They are timed in turn, five times over, and the fastest counts.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from recording import pin_threads, record

pin_threads(1)

import numpy as np  # noqa: E402

from diptych import HKSE, Retriever  # noqa: E402
from diptych.data import PairedDataset, PairedViews  # noqa: E402

IMAGES, COLUMNS, TIMES = 8000, 512, 5
WORDS = ["red", "green", "blue", "dog", "cat", "car", "tree", "house", "snow", "sand", "sea", "sky"]


def make_model(folder: Path) -> None:
    """A model of 8,000 images with a caption each; what it finds does not matter here."""
    rng = np.random.default_rng(0)
    captions = tuple(" ".join(rng.choice(WORDS, 5)) for _ in range(IMAGES))
    text = HKSE(word_features=200, sentence_features=200).fit(captions[:1000])
    y = np.asarray(text.transform(captions), np.float32)
    x = y @ rng.normal(size=(y.shape[1], COLUMNS)).astype(np.float32)
    pairs = PairedDataset(tuple(f"{i}.jpg" for i in range(IMAGES)), captions, np.arange(IMAGES))
    retriever = Retriever(None, text)
    retriever.model.params = (1.0, 1.0)
    retriever.fit(PairedViews(pairs, x, y)).save(folder)


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch) / "model")
        python, here = [sys.executable], [sys.executable, "-m", "diptych"]
        commands = {
            'python -c "import numpy, faiss"': [*python, "-c", "import numpy, faiss"],
            'python -c "import sklearn.base"': [*python, "-c", "import sklearn.base"],
            "diptych --version": [*here, "--version"],
            "diptych --help": [*here, "--help"],
            "diptych search --help": [*here, "search", "--help"],
            f"diptych search ({IMAGES:,} images)": [*here, "search", f"{scratch}/model", "a dog in the snow"],
        }
        fastest = dict.fromkeys(commands, float("inf"))
        for _ in range(TIMES):
            for name, command in commands.items():
                start = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
                fastest[name] = min(fastest[name], time.perf_counter() - start)
    bare = next(iter(fastest.values()))
    rows = [
        {"command": f"`{name}`", "seconds": f"{seconds:.2f}", "times the first": f"{seconds / bare:.1f}"}
        for name, seconds in fastest.items()
    ]
    record("startup", rows, f"Fastest of {TIMES}.")


if __name__ == "__main__":
    main()
