"""Engines for tests."""

import pickle
from functools import reduce


class InTree:
    """An engine that sends everything and merges results in a tree, as a cluster does; it counts its work.

    With ``here``, items stay in this process, so that a test sees which ones are read.
    """

    def __init__(self, here=False):
        self.functions, self.mapped, self.here = [], 0, here

    def map(self, function, items):
        self.functions.append(getattr(function, "__name__", type(function).__name__))
        sent = pickle.dumps(function)
        results = [
            pickle.loads(pickle.dumps(pickle.loads(sent)(copy)))
            for copy in (items if self.here else map(send, items))
        ]
        self.mapped += len(results)
        return results

    def reduce(self, function, mapped):
        middle = len(mapped) // 2
        halves = (mapped[:middle], mapped[middle:])
        return reduce(function, [reduce(function, half) for half in halves if half])


def send(item):
    return pickle.loads(pickle.dumps(item))
