"""From files to features: image-caption pairs, splits, feature stores and blocks for large data."""

from diptych.data._encode import EncodedBlocks, Progress, encode_images, encode_texts, encoded_blocks
from diptych.data._feature_store import FeatureStore
from diptych.data._features import open_features
from diptych.data._inspect import PairsReport, inspect_pairs
from diptych.data._pairs import (
    PROTOCOLS,
    PairedDataset,
    PairedViews,
    ProtocolRun,
    ProtocolSplits,
    join,
    split_by_image,
    split_by_protocol,
)
from diptych.data._readers import read_pairs
from diptych.data._shards import Shards, shards

__all__ = [
    "PROTOCOLS",
    "EncodedBlocks",
    "FeatureStore",
    "PairedDataset",
    "PairedViews",
    "PairsReport",
    "Progress",
    "ProtocolRun",
    "ProtocolSplits",
    "Shards",
    "encode_images",
    "encode_texts",
    "encoded_blocks",
    "inspect_pairs",
    "join",
    "open_features",
    "read_pairs",
    "shards",
    "split_by_image",
    "split_by_protocol",
]
