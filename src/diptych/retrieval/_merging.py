"""Pairs for a collection that has some of their items already: which these are, and what is new of them."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych._checks import InputError, plural, with_article
from diptych.retrieval._inputs import (
    check_unicode,
    dataset_items,
    encode_items,
    encode_new_items,
    is_features,
    read_new_items,
    refuse_empty,
)
from diptych.retrieval._items import VIEWS, Item, View, unknown_item
from diptych.retrieval._searcher import Searcher, batches
from diptych.retrieval._sync import choose_id
from diptych.retrieval.stores._base import Store, TakenError
from diptych.retrieval.stores._folder import FolderStore

if TYPE_CHECKING:
    from diptych.data import PairedDataset
    from diptych.retrieval._retriever import Retriever


def match_items(store: Store, items: Mapping[View, Sequence[Item]]) -> dict[View, list[Item]]:
    """Return the items of pairs under the ids that a store has them under, or under ids that are free.

    An image is the stored one with its path or, where there is no such file, with its id. It has the stored
    metadata too. A caption is one of that image with the same text.
    """
    ids = {item.id for view_items in items.values() for item in view_items}
    taken = ids | {item.id for item in store.items(ids=list(ids))}
    by_id, by_path = _find_images(store, items["image"])
    images, owners = list[Item](), dict[str, str]()
    captions: dict[tuple[str | None, str | None], list[str]] = defaultdict(list)
    for item in items["image"]:
        old = by_path.get(item.path or "")
        if old is None and (item.path is None or not os.path.isfile(item.path)):
            old = by_id.get(item.id)
        if old is not None:
            image = replace(item, id=old.id, metadata={**old.metadata, **item.metadata})
            for caption in store.items("text", images=[old.id]):
                captions[old.id, caption.text].append(caption.id)
        else:
            image = replace(item, id=choose_id(item.id, taken)) if item.id in by_id else item
        taken.add(image.id)
        owners[item.id] = image.id
        images.append(image)
    stored_texts = {item.id for item in store.items("text", ids=[text.id for text in items["text"]])}
    texts = list[Item]()
    for text in items["text"]:
        owner = owners.get(str(text.image))
        same, caption_id = captions[owner, text.text], text.id
        if same:
            caption_id = same.pop(0)
        elif text.id in stored_texts:
            caption_id = next(name for n in count() if (name := f"{owner}#{n}") not in taken)
        taken.add(caption_id)
        texts.append(replace(text, id=caption_id, image=owner))
    return {"image": images, "text": texts}


def _find_images(store: Store, images: Sequence[Item]) -> tuple[dict[str, Item], dict[str, Item]]:
    """Return the stored images that have the id, and those that have the path, of one of these."""
    by_id = {item.id: item for item in store.items("image", ids=[image.id for image in images])}
    if not isinstance(store, FolderStore):  # looking at all paths of a database would take long
        return by_id, {}
    paths = {image.path for image in images if image.path is not None}
    return by_id, {item.path: item for item in store.items("image") if item.path and item.path in paths}


def merge_pairs(retriever: Retriever, dataset: PairedDataset) -> tuple[list[str], PairedDataset]:
    """Give images that are there already what pairs say of them; return their ids, and the other pairs."""

    def merge(searcher: Searcher) -> tuple[list[str], PairedDataset]:
        store = searcher.store
        items = match_items(store, dataset_items(dataset, {}, searcher.encoders.inputs, encoded=True))
        ids = [item.id for view in VIEWS for item in items[view]]
        stored = {item.id: item for item in store.items(ids=ids)}
        known = {item.id: item.metadata for item in items["image"] if item.id in stored}
        changed = [item_id for item_id, metadata in known.items() if metadata != stored[item_id].metadata]
        captions = [
            text for text in items["text"] if text.image in known and text.id not in stored and text.text
        ]
        with retriever._writing:
            for some in batches(iter(captions)):
                searcher.add({"text": some}, {"text": encode_items(searcher.encoders, "text", some)})
            if changed:
                store.update(changed, lambda item: replace(item, metadata=known[item.id]), searcher.version)
        updated = dict.fromkeys([*changed, *(str(caption.image) for caption in captions)])
        others = [row for row, item in enumerate(items["image"]) if item.id not in known]
        return list(updated), dataset.select(others)

    return retriever._current.run(merge, uses_encoders=True)


def keep_others(previous: Searcher, current: Searcher) -> None:
    """Add all items that a new model in memory does not have, by the features that are kept of them."""
    ids = {item.id for item in current.store.items()}

    def add(items: Mapping[View, Sequence[Item]]) -> None:
        some = {view: view_items for view, view_items in items.items() if view_items}
        current.add(some, {view: previous.features_of(view, some[view]) for view in some})
        ids.update(item.id for view_items in some.values() for item in view_items)

    for images in batches(item for item in previous.store.items("image") if item.id not in ids):
        captions = previous.store.items("text", images=[image.id for image in images])
        add({"image": images, "text": [caption for caption in captions if caption.id not in ids]})
    for texts in batches(item for item in previous.store.items("text") if item.id not in ids):
        add({"text": texts})


def confirm_pairs(retriever: Retriever, query: Any, right: str | Sequence[str]) -> list[str]:
    """Store a query as a caption of the images that it should have found; see ``Retriever.learn``.

    The id of such a caption is made of its image and its text, so that a pair is stored once, even if two
    processes confirm it at the same time.
    """
    image_ids = [right] if isinstance(right, str) else list(dict.fromkeys(right))
    if not image_ids:
        raise InputError("right has no ids; give at least one.")

    def put(searcher: Searcher) -> list[str]:
        encoders, store = searcher.encoders, searcher.store
        _check_images(searcher, image_ids)
        texts, features = read_new_items(encoders, "text", query, None, searcher.fitted.layout)
        if len(texts) != 1:
            raise InputError(f"learn takes one text at a time, not {len(texts)}; call it for each.")
        refuse_empty(texts)
        check_unicode(texts, "correct it")
        text = None if texts[0] is None else str(texts[0]).strip()
        features = encode_new_items(encoders, "text", [text]) if features is None else features
        content = np.asarray(features, np.float32).tobytes() if text is None else text.encode()
        name = f"confirmed-{hashlib.sha256(content).hexdigest()[:16]}"
        pairs = [
            Item(f"{image}#{name}", "text", text=text, image=image, metadata={"confirmed": True})
            for image in image_ids
        ]
        ids = [pair.id for pair in pairs]
        stored = {item.id for item in store.items(ids=ids)}
        new = [pair for pair in pairs if pair.id not in stored]
        rows = np.repeat(features, len(new), axis=0)
        try:
            with retriever._writing:
                retriever._writable(searcher).add({"text": new}, {"text": rows})
        except TakenError:  # another process has just confirmed some of them
            return put(searcher)
        return ids

    return retriever._current.run(put, uses_encoders=not is_features(query))


def _check_images(searcher: Searcher, ids: Sequence[str]) -> None:
    """Refuse ids that no stored image has."""
    for item_id in ids:
        if not isinstance(item_id, str):
            raise unknown_item(item_id)
    views, stored = searcher.encoders.views, {item.id: item.view for item in searcher.store.items(ids=ids)}
    for item_id in ids:
        if item_id not in stored:
            raise unknown_item(item_id)
        if stored[item_id] != "image":
            noun = with_article(views.caption)
            raise InputError(f"{item_id!r} is {noun}; right takes the ids of {plural(views.image)}.")
