"""From files on disk to features on disk: pairs, splits, protocols, generated scenes, feature stores."""

from diptych.data.coco import read_coco
from diptych.data.encoding import Progress, encode_images, encode_texts
from diptych.data.features import open_features
from diptych.data.flickr import read_flickr8k, read_flickr_tokens
from diptych.data.folder import read_folder, read_pairs
from diptych.data.generated import Scene, Scenes, scenes
from diptych.data.inspection import PairsReport, inspect_dataset, inspect_pairs
from diptych.data.karpathy import read_karpathy
from diptych.data.pairs import PairedDataset
from diptych.data.protocols import PROTOCOLS, Plan, Run, plan
from diptych.data.sharded import Shards, shards
from diptych.data.splits import split_by_image
from diptych.data.store import FeatureStore
from diptych.data.streaming import EncodedBlocks, encoded_blocks
from diptych.data.tables import read_table
from diptych.data.views import PairedViews, join

__all__ = [
    "PROTOCOLS",
    "EncodedBlocks",
    "FeatureStore",
    "PairedDataset",
    "PairedViews",
    "PairsReport",
    "Plan",
    "Progress",
    "Run",
    "Scene",
    "Scenes",
    "Shards",
    "encode_images",
    "encode_texts",
    "encoded_blocks",
    "inspect_dataset",
    "inspect_pairs",
    "join",
    "open_features",
    "plan",
    "read_coco",
    "read_flickr8k",
    "read_flickr_tokens",
    "read_folder",
    "read_karpathy",
    "read_pairs",
    "read_table",
    "scenes",
    "shards",
    "split_by_image",
]
