"""Saves two models in turn into one folder and is killed at it, again and again; run as a program.

Arguments: a folder, how often, a seed. Prints JSON: which model was found how often, and what was left.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from diptych import AWCCA, Retriever


def models():
    """Two models with other items and other numbers."""
    found = {}
    for name in ("one", "two"):
        rng = np.random.default_rng(len(found))
        x = rng.normal(size=(60, 12))
        ids = [f"{name} {i}" for i in range(60)]
        found[name] = Retriever.from_features(
            x, x[:, :9] + rng.normal(size=(60, 9)), ids=ids, model=AWCCA(params=(1, 1))
        )
    return found


def save_forever(known, folder, ready):
    while True:
        for name in ("one", "two"):
            known[name].save(folder)
            os.write(ready, b".")


def main(place, times, seed):
    known, rng = models(), random.Random(seed)
    folder, query = place / "model", np.ones(9)
    expected = {name: model.search(query, k=60) for name, model in known.items()}
    seen, left = {"one": 0, "two": 0}, 0
    for _ in range(times):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            save_forever(known, folder, writer)
        os.close(writer)
        os.read(reader, 1)  # the first save is done
        time.sleep(rng.uniform(0, 0.08))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reader)
        left += len(list((folder / "versions").iterdir())) > 1
        answers = Retriever.load(folder).search(query, k=60)
        whole = [name for name in expected if answers == expected[name]]
        assert len(whole) == 1, "a model that is neither of the two"
        seen[whole[0]] += 1
    known["one"].save(folder)
    after = len(list((folder / "versions").iterdir()))
    print(json.dumps({"seen": seen, "left": left, "after": after}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
