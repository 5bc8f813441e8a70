"""What one server gives at most, so that no request takes everything."""

from __future__ import annotations

from dataclasses import dataclass, fields

from diptych.checks import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds of a server; every one of them is refused politely beyond, and can be moved.

    Attributes
    ----------
    upload_bytes
        Of a request that carries pictures, all of it.
    json_bytes
        Of any other request.
    pixels
        Of one picture.
    k
        Answers to one query.
    batch
        Queries of one request.
    concurrency
        Threads that search and encode.
    waiting
        Questions that may wait for a thread; more are told to come back.
    requests
        Requests that have arrived and are open at once; as many again without the token.
    unfinished, unfinished_per_address
        Connections whose request has not arrived, in all and of one address; beyond, the oldest is closed.
    header_seconds
        To send the headers of a request.
    decode_seconds
        To open one picture.
    decoders
        Processes that open pictures.
    thumbnail_bytes
        Of memory for thumbnails.
    body_seconds
        To send a request, and to read some of its answer.
    text_characters
        Of one sentence.
    """

    upload_bytes: int = 20 * 2**20
    json_bytes: int = 2**20
    pixels: int = 40_000_000
    k: int = 200
    batch: int = 64
    concurrency: int = 8
    waiting: int = 256
    requests: int = 1024
    unfinished: int = 1024
    unfinished_per_address: int = 256
    header_seconds: float = 10.0
    decode_seconds: float = 10.0
    decoders: int = 2
    thumbnail_bytes: int = 64 * 2**20
    body_seconds: float = 30.0
    text_characters: int = 2000

    def __post_init__(self) -> None:
        """Refuse a bound that nothing could keep."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"the limit {field.name}={value!r} is not above 0; give a positive number.")
