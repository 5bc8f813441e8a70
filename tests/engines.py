"""Engines for tests."""

import pickle
from functools import reduce


class InTree:
    """An engine that sends items and merges results in a tree, as a cluster does."""

    def map(self, function, items):
        return [function(pickle.loads(pickle.dumps(item))) for item in items]

    def reduce(self, function, mapped):
        middle = len(mapped) // 2
        halves = (mapped[:middle], mapped[middle:])
        return reduce(function, [reduce(function, half) for half in halves if half])
