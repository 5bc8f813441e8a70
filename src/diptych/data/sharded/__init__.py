"""Paired features in many files, on any storage, read a block at a time by whoever sums them."""

from diptych.data.sharded.shards import Shards, shards

__all__ = ["Shards", "shards"]
