"""From files to features: image-caption pairs, splits, feature stores and blocks for large data."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.data._encode import encode_images, encode_texts
    from diptych.data._feature_store import FeatureStore
    from diptych.data._inspect import PairsReport, inspect_pairs
    from diptych.data._matrix_files import open_features
    from diptych.data._pairs import PairedDataset, PairedViews, join, split_by_image
    from diptych.data._readers import read_pairs
    from diptych.data._shards import Shards, shards

__all__ = [
    "FeatureStore",
    "PairedDataset",
    "PairedViews",
    "PairsReport",
    "Shards",
    "encode_images",
    "encode_texts",
    "inspect_pairs",
    "join",
    "open_features",
    "read_pairs",
    "shards",
    "split_by_image",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_encode": ["encode_images", "encode_texts"],
        "_feature_store": ["FeatureStore"],
        "_inspect": ["PairsReport", "inspect_pairs"],
        "_matrix_files": ["open_features"],
        "_pairs": ["PairedDataset", "PairedViews", "join", "split_by_image"],
        "_readers": ["read_pairs"],
        "_shards": ["Shards", "shards"],
    },
)
