"""Blocks and functions that misbehave in other processes; they lie here so that workers can import them."""

import os
import time
from pathlib import Path

import numpy as np


class Block:
    """A generated block that takes a while to load, and may do something else first."""

    def __init__(self, seed, seconds=0.0, first=None, marker=None):
        self.seed, self.seconds, self.first, self.marker = seed, seconds, first, marker

    @property
    def name(self):
        return f"block {self.seed}"

    def load(self):
        if self.first is not None and tried(self.marker) == 1:
            self.first()
        time.sleep(self.seconds)
        rng = np.random.default_rng(self.seed)
        return rng.normal(size=(40, 30)) + 100, rng.normal(size=(40, 20))


class Deadly(Block):
    """One that ends the process it is loaded in."""

    def load(self):
        os._exit(1)


def tried(marker):
    """How often this was called for ``marker``, in any process."""
    with open(marker, "ab") as file:
        file.write(b".")
    return os.stat(marker).st_size


def fail():
    raise OSError("the disk is out of reach for a moment")


class Opened:
    """A large callable that notes in which process it is opened."""

    def __init__(self, log, size=10**7):
        self.log, self.content = Path(log), np.zeros(size, np.uint8)

    def __setstate__(self, state):
        self.__dict__ = state
        with open(self.log, "a") as file:
            file.write(f"{os.getpid()}\n")

    def __call__(self, item):
        return [item + int(self.content[0])]


def add_shared(shared, numbers):
    return [number + int(shared.content[0]) for number in numbers]
