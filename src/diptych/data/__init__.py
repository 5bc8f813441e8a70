"""From files on disk to features on disk: pairs, splits, protocols, generated scenes, feature stores."""

from diptych.data._encode import EncodedBlocks, Progress, encode_images, encode_texts, encoded_blocks
from diptych.data._feature_store import FeatureStore
from diptych.data._features import open_features
from diptych.data._inspect import PairsReport, inspect_pairs, inspect_pairs
from diptych.data._pairs import PROTOCOLS, PairedDataset, ProtocolSplits, ProtocolRun, split_by_protocol, split_by_image
from diptych.data._readers import (
    read_coco,
    read_flickr8k,
    read_flickr_tokens,
    read_folder,
    read_pairs,
    read_pairs,
    read_table,
)
from diptych.data._shards import Shards, shards
from diptych.data._views import PairedViews, join

__all__ = [
    "PROTOCOLS",
    "EncodedBlocks",
    "FeatureStore",
    "PairedDataset",
    "PairedViews",
    "PairsReport",
    "ProtocolSplits",
    "Progress",
    "ProtocolRun",
    "Shards",
    "encode_images",
    "encode_texts",
    "encoded_blocks",
    "inspect_pairs",
    "inspect_pairs",
    "join",
    "open_features",
    "split_by_protocol",
    "read_coco",
    "read_flickr8k",
    "read_flickr_tokens",
    "read_folder",
    "read_pairs",
    "read_pairs",
    "read_table",
    "shards",
    "split_by_image",
]
