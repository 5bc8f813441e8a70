"""A client for ``diptych serve``: the HTTP API as methods, with checked results. It needs ``httpx``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from diptych._checks import InputError, import_package

__all__ = ["Client", "FoundItem", "ScoredPair", "SearchResult", "ServedItem", "ServerError"]

T = TypeVar("T")

File: TypeAlias = str | os.PathLike[str] | bytes
"""The path of a file to send, or its content."""
View: TypeAlias = Literal["image", "text"]
Object: TypeAlias = Mapping[str, Any]


class ServerError(Exception):
    """A request that was refused, or not answered; the message says why in one sentence.

    ``status`` is the HTTP status, 0 without an answer. ``kind`` names the reason for programs, such as
    ``"unknown-item"``; ``docs/service.md`` lists them.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


class ServedItem(msgspec.Struct, frozen=True):
    """An item of the first view (``"image"``) or of the second (``"text"``), as the server describes it."""

    id: str
    view: View
    text: str | None = None
    image: str | None = None
    captions: list[dict[str, str | None]] = []
    image_url: str | None = None
    thumbnail: str | None = None
    file_url: str | None = None
    metadata: dict[str, Any] = {}


class FoundItem(ServedItem, frozen=True, kw_only=True):
    """An item that was found, with its score, and the probability that it is right where there is one."""

    score: float | None
    probability: float | None


class SearchResult(msgspec.Struct, frozen=True):
    """The hits of one query, the best first, and whether there are more."""

    hits: list[FoundItem]
    more: bool
    ignored_words: list[str]


class ScoredPair(msgspec.Struct, frozen=True):
    """How well a text fits its image; the percentiles are None where the model has none."""

    score: float
    true_percentile: float | None
    false_percentile: float | None


class _Results(msgspec.Struct):
    results: list[SearchResult]


class _Pairs(msgspec.Struct):
    pairs: list[ScoredPair]


class _Page(msgspec.Struct):
    items: list[ServedItem]
    more: bool


class _Added(msgspec.Struct):
    image: str | None
    captions: list[str]


class _Problem(msgspec.Struct):
    type: str
    detail: str


class QueryFields(TypedDict, total=False):
    """What is searched for, where it is neither a text nor a file, and which hits are returned."""

    id: str
    features: Any
    k: int
    offset: int
    where: str | Object
    plus: Sequence[str | Object]
    minus: Sequence[str | Object]
    min_probability: float
    weighting: str


class ItemFields(TypedDict, total=False):
    """What is added beside a file; ``captions`` belong to it."""

    captions: Sequence[str]
    id: str
    text: str
    features: Any
    caption_features: Any
    metadata: Object


class Client:
    """The HTTP API of a server, for any number of threads; ``docs/service.md`` describes its parameters.

    Close it, or use it with ``with``.

    Parameters
    ----------
    address
        Of the server, such as ``"http://127.0.0.1:8000"``.
    token
        Its token; None: it needs none.
    timeout
        Seconds to wait for the server at every step of a request.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8000") as client:  # doctest: +SKIP
    ...     client.search("a red star at night", k=1).hits[0].id
    'images/scene-000007.png'
    """

    def __init__(self, address: str, token: str | None = None, *, timeout: float = 30.0) -> None:
        if not address.startswith(("http://", "https://")):
            raise InputError(f"{address!r} is no address of a server; give one that starts with http://.")
        if token is not None and not token.isascii():
            raise InputError("the token has other characters than ASCII; give that of the server.")
        self._httpx = import_package("httpx", "the client needs", "client")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = self._httpx.Client(base_url=address, headers=headers, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def search(self, text: str | None = None, **query: Unpack[QueryFields]) -> SearchResult:
        """Find images for a text, a stored caption or text features."""
        return self._find("search", None, {"text": text, **query})

    def annotate(
        self, image: File | None = None, *, text: str | None = None, **query: Unpack[QueryFields]
    ) -> SearchResult:
        """Find captions for an image; ``text`` is for a model whose first view is texts."""
        return self._find("annotate", image, {"text": text, **query})

    def similar(
        self, image: File | None = None, *, view: View | None = None, **query: Unpack[QueryFields]
    ) -> SearchResult:
        """Find items like an image, or like a stored item; ``view`` is that of the features."""
        return self._find("similar", image, {"view": view, **query})

    def score(self, image: File | Object, text: str | Sequence[str] | Object) -> list[ScoredPair]:
        """Say how well texts fit an image; either may also be ``{"id": …}`` or ``{"features": …}``."""
        if isinstance(image, Mapping):
            return self._send("POST", "/v1/score", _Pairs, {"image": image, "text": text}).pairs
        return self._send("POST", "/v1/score", _Pairs, {"text": text}, image).pairs

    def item(self, id: str) -> ServedItem:
        """Return an item."""
        return self._send("GET", _place(id), ServedItem)

    def items(
        self, view: View | None = None, where: str | Object | None = None, order_by: str | None = None
    ) -> Iterator[ServedItem]:
        """Iterate over all items, or those that pass, page by page."""
        query, offset, more = {"view": view, "where": where, "order_by": order_by}, 0, True
        while more:
            page = self._send("GET", f"/v1/items?{urlencode(_as_fields({**query, 'offset': offset}))}", _Page)
            yield from page.items
            offset, more = offset + len(page.items), page.more

    def add(
        self,
        image: File | None = None,
        *,
        on_conflict: Literal["error", "skip", "replace"] = "error",
        **item: Unpack[ItemFields],
    ) -> list[str]:
        """Add an image with its captions, or either alone; return the ids of what was added."""
        added = self._send("POST", f"/v1/items?on_conflict={on_conflict}", _Added, item, image)
        return [*filter(None, [added.image]), *added.captions]

    def update(
        self,
        id: str,
        image: File | None = None,
        *,
        text: str | None = None,
        features: Any = None,
        metadata: Object | None = None,
    ) -> ServedItem:
        """Change an item, and return it as it is then; None in ``metadata`` removes a key."""
        body = {"text": text, "features": features, "metadata": metadata}
        return self._send("PATCH", _place(id), ServedItem, body, image)

    def remove(self, id: str) -> int:
        """Remove an item, an image together with its captions; return how many items."""
        return self._send("DELETE", _place(id), dict[str, int])["removed"]

    def learn(self, text: str, right: str | Sequence[str]) -> list[str]:
        """Store which images a text should find; return the ids of these pairs."""
        body = {"text": text, "right": right}
        return self._send("POST", "/v1/learn", dict[str, list[str]], body)["learned"]

    def model(self) -> dict[str, Any]:
        """Describe the model, with the limits of the server."""
        return self._send("GET", "/v1/model", dict[str, Any])

    def _find(self, route: str, image: File | None, query: Object) -> SearchResult:
        results = self._send("POST", f"/v1/{route}", _Results, query, image).results
        if len(results) != 1:
            raise InputError(f"got {len(results)} queries; send one at a time.")
        return results[0]

    def _send(
        self, method: str, path: str, kind: type[T], body: Object | None = None, image: File | None = None
    ) -> T:
        """Send a request, as JSON or with a file as a form; return the answer as this kind."""
        content: dict[str, Any] = {}
        if image is not None:
            content = {"files": {"image": _read_file(image)}, "data": _as_fields(body or {})}
        elif body is not None:
            given = {name: value for name, value in body.items() if value is not None}
            content = {"content": _encode(given), "headers": {"Content-Type": "application/json"}}
        try:
            response = self._http.request(method, path, **content)
        except self._httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise ServerError(0, "no-answer", f"{self._http.base_url} does not answer ({reason}).") from None
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=kind)
            problem = msgspec.json.decode(response.content, type=_Problem)
        except msgspec.DecodeError:
            message = f"{self._http.base_url} answered as no server of diptych does; is the address right?"
            raise ServerError(response.status_code, "unexpected", message) from None
        raise ServerError(response.status_code, problem.type.rpartition(":")[2], problem.detail)


def _place(item_id: str) -> str:
    return f"/v1/items/{quote(item_id, safe='')}"


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=lambda array: array.tolist())


def _as_fields(values: Object) -> dict[str, Any]:
    """Return the values that are given as fields of a form or an address: texts, lists of texts, or JSON."""
    return {
        name: value if isinstance(value, str) or name in ("captions", "text") else _encode(value)
        for name, value in values.items()
        if value is not None
    }


def _read_file(file: File) -> tuple[str, bytes]:
    """Return the name and the content of a file to send."""
    if isinstance(file, bytes):
        return "file", file
    try:
        return Path(file).name, Path(file).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {os.fspath(file)} ({error.strerror}); give a file to send.") from None
