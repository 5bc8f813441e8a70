"""Answers as JSON, and request bodies of two kinds as OpenAPI describes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel

from diptych.service.problems import Problem
from diptych.service.served import plain

_PLACE = "#/components/schemas/{model}"


class Json(Response):
    """Plain ASCII JSON: any string a model or a user may hold can be written so."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the answer."""
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, TypeError):  # a model from elsewhere may hold numbers that JSON lacks
            return json.dumps(plain(content), allow_nan=False, separators=(",", ":")).encode()


class JsonRoute(APIRoute):
    """A route whose body, if it takes one, is JSON; anything else is refused before it is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        answer = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if self.body_field is not None and content_type(request) != "application/json":
                raise Problem(415, "wrong-type", "send application/json.")
            return await answer(request)

        return checked


def content_type(request: Request) -> str:
    """What a request says it carries."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def body_of(
    kind: type[BaseModel], fields: type[BaseModel], file: str, about: str, *, needed: bool = True
) -> dict[str, Any]:
    """The body of a route that takes JSON of a ``kind``, or a form of ``fields`` with files."""
    form = fields.model_json_schema(ref_template=_PLACE)
    form.pop("examples", None)
    form["title"] = f"{kind.__name__} as a form"
    form["properties"] = {
        file: {"type": "array", "items": {"type": "string", "format": "binary"}, "description": about},
        **{name: _as_field(name, schema) for name, schema in form["properties"].items()},
    }
    form["required"] = [file] if needed else []
    content = {
        "application/json": {"schema": kind.model_json_schema(ref_template=_PLACE)},
        "multipart/form-data": {"schema": form},
    }
    return {"requestBody": {"required": True, "content": content}}


def _as_field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A field of a form is a string, whatever it stands for."""
    if name in ("where", "metadata"):
        return {"type": "string", "description": f"{schema.get('description', name)} As JSON."}
    return schema
