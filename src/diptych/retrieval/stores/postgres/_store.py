"""A collection in PostgreSQL: shared by processes, searched by the server, its model replaced in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from psycopg import sql

from diptych._checks import Task
from diptych.cca import Moments
from diptych.cca._weighting import Weighting, check_weighting
from diptych.retrieval._embedding import SEARCHED, Embedding, Packs
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import Hit, Pack, View, Where, check_where, ids_in
from diptych.retrieval.stores._base import (
    TASK_OF,
    Collection,
    Encode,
    Floats,
    Given,
    Keys,
    Learn,
    Name,
    Rows,
    check_k,
)
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._derived import Derived, searched_here
from diptych.retrieval.stores.postgres._items import (
    PostgresItems,
    allowed,
    check_keys,
    check_new,
    check_storable,
    copy_items,
    delete_items,
    item_of,
    items_under,
    reserve,
    unused_names,
)
from diptych.retrieval.stores.postgres._loading import Plan, alone, load, stored_blocks
from diptych.retrieval.stores.postgres._vectors import (
    copy_features,
    copy_vectors,
    delete_rows,
    features_of,
    inner_products,
    searched,
)
from diptych.retrieval.stores.postgres._versions import Follower, Version, fetch_moments
from diptych.retrieval.stores.postgres._writing import written
from diptych.text import HKSE


class PostgresCollection(Collection):
    """What a schema of a database holds.

    Every question is answered within one transaction that also asks which version is current, so that
    queries embedded by one model are never compared with vectors of another. When another process has put
    a new version in place, the next question loads it first.

    Parameters
    ----------
    follower
        Reads, and knows which version is current.
    """

    shared = True

    def __init__(self, follower: Follower) -> None:
        self._follower, self._read, self._followed = follower, follower.read, follower.followed
        self._connections, self._address = follower.connections, follower.address
        self._derived = Derived(self._address)
        self.address = self._address.public
        self.items = PostgresItems(lambda ask: self._read(lambda c, now: ask(c, now.tables)))

    @property
    def fitted(self) -> Fitted:
        """The model of now; its moments stay in the database."""
        return self._read(lambda _, now: now.fitted)

    @property
    def embedding(self) -> Embedding:
        """The model of now as vectors."""
        return self._read(lambda _, now: now.embedding)

    @property
    def version(self) -> str:
        """The number of the version that was seen last."""
        return str(self._follower.seen)

    @property
    def kind(self) -> str:
        """What it is, for people."""
        return "postgresql, hnsw" if self._follower.version.graph else "postgresql"

    @property
    def keeps_features(self) -> bool:
        """Whether the features of the items are there too."""
        return self._follower.version.keeps_features

    def add(self, name: Name, rows: Rows, keep: bool) -> Given:
        """Take in items with their features in one transaction; they are on the disk when it returns."""

        def put(connection: Connection) -> Given:
            now = self._followed(connection)
            new = name(unused_names(connection, now.tables))
            everything = [item for own in new.values() for item in own]
            check_storable(everything, self._address.max_item)
            check_new(connection, now.tables, everything)
            for view, own in new.items():
                task = TASK_OF[view]
                embedded = now.embedding.items(rows[view], task)
                features = np.asarray(rows[view], np.float32)
                keys = reserve(connection, now.tables, len(own))
                copy_items(connection, now.tables, keys, own)
                if keep and now.keeps_features:
                    copy_features(connection, now.tables, view, keys, features)
                copy_vectors(connection, now.tables, task, keys, *embedded, now.dtype)
            return new

        return written(self._connections, put)

    def remove(self, ids: Iterable[str]) -> int:
        """Take items out in one transaction, and with a picture its captions; returns how many went."""
        gone = list(ids)

        def take(connection: Connection) -> int:
            now = self._followed(connection)
            keys = delete_items(connection, now.tables, gone)
            delete_rows(connection, now.tables, keys, features=now.keeps_features)
            return len(keys)

        return written(self._connections, take) if gone else 0

    def found(
        self, task: Task, queries: Floats, k: int, where: Where | None, weighting: Weighting | None = None
    ) -> list[list[Hit]]:
        """The best items of a task for each row of features."""
        if weighting is not None:
            check_weighting(weighting)

        return self._hits(task, lambda embedding: embedding.queries(queries, task), k, where, weighting)

    def similar(self, view: View, features: Floats, k: int, where: Where | None) -> list[list[Hit]]:
        """Items of a view like others of it, in the canonical space."""
        task = TASK_OF[view]

        def asked(embedding: Embedding) -> Floats:
            return embedding.as_queries(embedding.items(features, task)[0])

        return self._hits(task, asked, k, where, None)

    def packs(self, queries: Floats, k: int) -> list[list[Pack]]:
        """Pictures by all of their captions together, for each row of features."""
        check_k(k)

        def ask(connection: Connection, now: Version) -> list[list[Pack]]:
            packs: Packs = self._derived.packs(connection, now)
            asked = now.embedding.queries(queries, "annotate")
            inner, places = packs.index.search(asked, min(k, len(packs.images)))
            scores = now.embedding.scores(inner, asked)
            found = []
            for query, own, values in zip(asked, places.tolist(), scores.tolist(), strict=True):
                images = [packs.images[place] for place in own if place >= 0]
                rows = inner_products(connection, now.tables, query, images, now.dtype)
                captions: dict[str, list[Hit]] = {image: [] for image in images}
                for hit in _named(now.embedding, query, rows):
                    captions[str(hit.item.image)].append(hit)
                found.append(
                    [
                        Pack(image, score, captions[image])
                        for image, score in zip(images, values, strict=False)
                    ]
                )
            return found

        return self._read(ask, streamed=True)

    def kept_features(self, view: View, ids: list[str]) -> Floats | None:
        """Features of items as they were kept, in the order of ``ids``; None if one of them is gone."""

        def ask(connection: Connection, now: Version) -> Floats | None:
            _, values = allowed(connection, now.tables, view, ids)
            statement = sql.SQL("SELECT id, key FROM {} WHERE key = ANY(%s)").format(now.tables.items)
            keys = dict(connection.execute(statement, [values["allowed"]]).fetchall())
            wanted = np.array([keys[each] for each in ids if each in keys], np.int64)
            rows = features_of(connection, now.tables, view, wanted, now.embedding.features(view))
            if len(wanted) != len(ids) or not set(wanted.tolist()) <= set(rows):
                return None
            return np.stack([rows[key] for key in wanted.tolist()])

        return self._read(ask)

    def features_of(self, view: View, keys: Keys, encode: Encode) -> Floats:
        """Features of items: those that were kept, or made anew. ``keys`` ascend."""

        def ask(connection: Connection, now: Version) -> Floats:
            if now.keeps_features:
                width = now.embedding.features(view)
                rows = features_of(connection, now.tables, view, keys, width)
                return np.stack([rows[key] for key in keys.tolist() if key in rows])
            found = items_under(connection, now.tables, keys)
            return encode(view, [item_of(found[key]) for key in keys.tolist() if key in found])

        return self._read(ask)

    def new_pairs(self) -> list[tuple[int, int]]:
        """Keys of pictures and sentences that were added as pairs since the model was fitted."""

        def ask(connection: Connection, now: Version) -> list[tuple[int, int]]:
            statement = sql.SQL(
                "SELECT o.key, i.key FROM {0} i JOIN {0} o ON o.id = i.image WHERE i.key >= %s ORDER BY i.key"
            ).format(now.tables.items)
            return connection.execute(statement, [now.learned]).fetchall()

        return self._read(ask)

    def training_moments(self) -> Moments | None:
        """Moments of the pairs that the model was fitted on; None: they are not known."""
        return self._read(lambda c, now: fetch_moments(c, self._address, now), streamed=True)

    def refitted(self, learn: Learn, encode: Encode) -> PostgresCollection:
        """The same items under another model: new vectors beside the old ones, then one swap."""
        attempts: list[int] = []

        def attempt(connection: Connection) -> None:
            with alone(connection, self._address):
                before = self._followed(connection)
                if before.id not in attempts:
                    graph = before.graph if self._address.index is None else self._address.index == "hnsw"
                    plan = Plan(
                        learn(self),
                        before.known,
                        None,
                        before.dtype,
                        graph,
                        before.keeps_features,
                        lambda c: stored_blocks(c, before, encode),
                        before,
                    )
                    load(connection, self._address, plan, attempts)
                self._followed(connection)

        self._connections.run(attempt, hold=True)
        return self

    def write(self, folder: Path, hkse: HKSE | None, model_folder: Path, same: Path | None) -> dict[str, Any]:
        """A model's folder says where the database is, and nothing secret; all the rest is there."""
        return {"version": 2, "address": self.address}

    def _hits(
        self,
        task: Task,
        asked: Callable[[Embedding], Floats],
        k: int,
        where: Where | None,
        weighting: Weighting | None,
    ) -> list[list[Hit]]:
        check_k(k)
        if where is not None:
            check_where(where)
        if where is not None and not callable(where) and not isinstance(where, Mapping):
            where = ids_in(where)  # which may be gone through once only

        def ask(connection: Connection, now: Version) -> list[list[Hit]]:
            embedding, index = now.embedding, None
            if weighting is not None and weighting != embedding.weighting:
                embedding, index = self._derived.reweighted(connection, now, task, weighting)
            queries, condition = asked(embedding), None
            if where is not None:
                condition = allowed(connection, now.tables, SEARCHED[task], where)
            if index is None:
                found = searched(
                    connection, now.tables, task, queries, int(k), condition, now.dtype, graph=now.graph
                )
            else:
                found = searched_here(connection, now.tables, index, queries, int(k), condition)
            if isinstance(where, Mapping) and not any(found):
                check_keys(connection, now.tables, where)
            return [_named(embedding, *each) for each in zip(queries, found, strict=True)]

        return self._read(ask, streamed=weighting is not None or callable(where))


def _named(embedding: Embedding, query: Floats, rows: list[tuple[Any, ...]]) -> list[Hit]:
    inner = np.array([[row[-1] for row in rows]], np.float32)
    scores = embedding.scores(inner, query[None, :])[0].tolist()
    return [Hit(item_of(row[:-1]), score) for row, score in zip(rows, scores, strict=True)]
