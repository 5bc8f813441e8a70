"""The verbs that ask: search, annotate, similar, and the vectors of what is asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, TypeVar

import numpy as np

from diptych.cca.weighting import Weighting
from diptych.checks import InputError, check_task
from diptych.retrieval.collection import Collection, OtherEncodersError
from diptych.retrieval.embedding import SEARCHED
from diptych.retrieval.encoders import Encoders, is_array
from diptych.retrieval.filtering import Where
from diptych.retrieval.given import joined, queries_of
from diptych.retrieval.items import View
from diptych.retrieval.results import Hit, Hits

T = TypeVar("T")


class Asking:
    """Encoders and a collection: all that it takes to answer."""

    encoders: Encoders
    _collection: Collection | None

    @property
    def collection(self) -> Collection:
        """The items, their vectors and the fitted model; a refit puts another in its place."""
        if self._collection is None:
            raise InputError("this retriever is not fitted; call fit(), or load a saved one.")
        return self._collection

    def search(
        self, text: Any, k: int = 10, *, where: Where | None = None, weighting: Weighting | None = None
    ) -> Any:
        """The ``k`` best pictures for a sentence, as ``Hits``; for several, a list of such lists.

        ``hits.ignored_words`` names the words of a sentence that the text encoder does not know and left out.

        Parameters
        ----------
        text
            A sentence, a list of them, or features: one row, a matrix, or named blocks of these
            (``{"glove": …, "bert": …}``) for a model made from such.
        k
            How many.
        where
            Only items with these values of metadata (``{"split": "test", "colour": ["red", "blue"]}``), or
            for which this function of an ``Item`` is true, or only these ids.
        weighting
            Another weighting than the model's, to compare with.
        """
        return self._asked("text", text, lambda held, rows: held.found("search", rows, k, where, weighting))

    def annotate(
        self,
        image: Any,
        k: int = 5,
        *,
        where: Where | None = None,
        packs: bool = False,
        weighting: Weighting | None = None,
    ) -> Any:
        """The ``k`` best sentences for a picture; for several, a list of such lists.

        Parameters
        ----------
        image
            A path, a Pillow image, the bytes of an image file, a list of these, or features: one row, a
            matrix, or named blocks of these (``{"resnet": …, "dino": …}``) for a model made from such.
        k
            How many.
        where
            Only items with these values of metadata (``{"split": "test", "colour": ["red", "blue"]}``), or
            for which this function of an ``Item`` is true, or only these ids.
        packs
            Find all captions of one picture as a whole instead: a list of ``Pack``.
        weighting
            Another weighting than the model's, to compare with.
        """
        if packs and (where is not None or weighting is not None):
            raise InputError("packs are found among all pictures; leave out where and weighting.")

        def found(held: Collection, rows: np.ndarray[Any, Any]) -> Any:
            return held.packs(rows, k) if packs else held.found("annotate", rows, k, where, weighting)

        return self._asked("image", image, found)

    def similar(
        self, image: Any = None, text: Any = None, k: int = 10, *, where: Where | None = None
    ) -> list[Hit]:
        """Pictures like a picture, or sentences like a sentence, in the canonical space."""
        if (image is None) == (text is None):
            raise InputError("similar takes an image or a text, one of them.")
        view: View = "text" if image is None else "image"
        found: list[Hit] = self._asked(
            view,
            text if image is None else image,
            lambda held, rows: held.similar(view, rows, k, where),
            alone=True,
        )
        return found

    def embed_images(self, images: Any, *, task: str = "search") -> np.ndarray[Any, Any]:
        """Vectors of pictures for a store of one's own: inner products with sentences' of a task rank."""
        return self._embed("image", images, task)

    def embed_texts(self, texts: Any, *, task: str = "search") -> np.ndarray[Any, Any]:
        """Vectors of sentences for a store of one's own: inner products with pictures' of a task rank."""
        return self._embed("text", texts, task)

    def _asked(
        self,
        view: View,
        given: Any,
        answers: Callable[[Collection, np.ndarray[Any, Any]], list[Any]],
        alone: bool = False,
    ) -> Any:
        """Answers to queries; the first by itself if there was a single query, which ``alone`` demands."""
        given = self._joined(view, given)

        def ask() -> Any:
            # In this order: a collection may refuse what newer encoders made, but cannot know older ones.
            collection = self.collection
            queries = queries_of(self.encoders, view, given)
            if alone and not queries.single:
                raise InputError("similar takes one item at a time; call it for each.")
            found = answers(collection, queries.rows)
            if view == "text":
                found = list(map(Hits, found, queries.ignored_words or repeat(())))
            return found[0] if queries.single else found

        return self._encoded(ask, again=not is_array(given))

    def _joined(self, view: View, given: Any) -> Any:
        """``given``, with named blocks of features as one row or matrix."""
        return joined(given, self.collection.fitted, view) if isinstance(given, Mapping) else given

    def _encoded(self, action: Callable[[], T], *, again: bool) -> T:
        """Do something that encodes first; ``again`` if what is searched wants other encoders by then."""
        while True:
            try:
                return action()
            except OtherEncodersError as other:
                if not again:
                    raise
                content = other.reopen()
                kept = self.encoders.kept
                self.encoders = content.encoders(kept("image", content.known), kept("text", content.known))
                self._collection = content.collection

    def _embed(self, view: View, given: Any, task: str) -> np.ndarray[Any, Any]:
        chosen = check_task(task)
        queries = queries_of(self.encoders, view, self._joined(view, given)).rows
        embedding = self.collection.embedding
        if SEARCHED[chosen] == view:
            return embedding.items(queries, chosen)[0]
        return embedding.queries(queries, chosen)
