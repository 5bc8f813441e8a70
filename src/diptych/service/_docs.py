"""The page ``/docs``: the OpenAPI description of a server for people, as HTML without a script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>Diptych: API</title>
<link rel="icon" href="icon.svg" type="image/svg+xml"><link rel="stylesheet" href="style.css"></head>
<body><header class="top"><a class="brand" href="./">Diptych</a><p class="summary"></p>
<nav aria-label="Sections"><a href="./">Search</a> <a href="v1/openapi.json">OpenAPI</a></nav></header>
<main><section id="model" class="parts"><h1 class="model-name">API</h1>"""

_LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} of them",
}
_REFERENCE = "#/components/schemas/"


def describe_api(description: Mapping[str, Any], address: str) -> str:
    """Return the page of an OpenAPI description; ``address`` is that of the server, for the examples."""
    schemas = description["components"]["schemas"]
    routes: dict[str, list[str]] = {}
    links = []
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            shown = _show_route(method.upper(), path, route, schemas, address)
            routes.setdefault(route["tags"][0], []).append(shown)
            links.append(f'<li><a href="#{route["operationId"]}">{method.upper()} {escape(path)}</a></li>')
    sections = [f"<h2>{escape(tag.capitalize())}</h2>{''.join(shown)}" for tag, shown in routes.items()]
    objects = (
        f'<h3 id="{name}">{name}</h3>{_text(schema.get("description", ""))}{_show_fields(schema)}'
        for name, schema in sorted(schemas.items())
        if "properties" in schema
    )
    lead = _text(description["info"]["description"])
    body = "".join([lead, "<ul>", *links, "</ul>", *sections, "<h2>Objects</h2>", *objects])
    return f"{_HEAD}{body}</section></main></body></html>\n"


def _show_route(
    method: str, path: str, route: Mapping[str, Any], schemas: Mapping[str, Any], address: str
) -> str:
    contents = route.get("requestBody", {}).get("content", {})
    title = f'<div class="card" id="{route["operationId"]}"><h3>{method} {escape(path)}</h3>'
    parts = [title, _text(route.get("description", ""))]
    if parameters := route.get("parameters"):
        rows = [(p["name"], {"description": p.get("description"), **p["schema"]}) for p in parameters]
        parts.append(_show_rows("parameter", rows, [p["name"] for p in parameters if p["required"]]))
    for kind, content in contents.items():
        parts.append(f'<p class="note">Body as {escape(kind)}: {_show_type(content["schema"])}</p>')
        if "$ref" in content["schema"]:
            parts.append(_show_fields(schemas[content["schema"]["$ref"].removeprefix(_REFERENCE)]))
    statuses: dict[str, list[str]] = {}
    for status, response in route["responses"].items():
        content = response.get("content", {}).items()
        kinds = [_show_type(part["schema"]) if "json" in kind else escape(kind) for kind, part in content]
        statuses.setdefault(", ".join(kinds) or escape(response["description"]), []).append(status)
    answers = "".join(f"<li>{', '.join(some)}: {answer}</li>" for answer, some in statuses.items())
    parts.append(f'<p class="note">Responses</p><ul>{answers}</ul>')
    examples = "\n".join(_make_examples(method, address + path.replace("{item_id}", "ID"), contents, schemas))
    return f"{''.join(parts)}<pre>{escape(examples)}</pre></div>"


def _make_examples(
    method: str, address: str, contents: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterable[str]:
    """Iterate over commands that send a request: as JSON, and with a file."""
    command = shlex.join(["curl", *(["-X", method] if method not in ("GET", "POST") else []), address])
    if not contents:
        yield command
    for kind, content in contents.items():
        if kind == "application/json":
            schema = content["schema"].get("anyOf", [content["schema"]])[0]
            example = schemas[schema["$ref"].removeprefix(_REFERENCE)]["examples"][0]
            yield f"{command} -H 'Content-Type: application/json' -d {shlex.quote(json.dumps(example))}"
        elif kind == "multipart/form-data":
            fields = schemas[content["schema"]["$ref"].removeprefix(_REFERENCE)]["properties"]
            text = " -F 'text=a red star'" if "text" in fields else ""
            yield f"{command} -F image=@photo.jpg{text}"


def _show_fields(schema: Mapping[str, Any]) -> str:
    return _show_rows("field", schema["properties"].items(), schema.get("required", ()))


def _show_rows(title: str, rows: Iterable[tuple[str, Mapping[str, Any]]], required: Iterable[str]) -> str:
    """Return a table of parameters or fields: their types with limits, and what they mean."""
    cells = []
    for name, schema in rows:
        default = schema.get("default")
        notes = "required" if name in required else "" if default in (None, [], {}) else f"default {default}"
        about = " ".join(
            filter(None, [escape(schema.get("description") or ""), escape(notes and f"({notes})")])
        )
        kind = _show_type(schema)
        cells.append(f'<tr><th>{name}</th><td class="left">{kind}</td><td class="left">{about}</td></tr>')
    head = f'<tr><th>{title}</th><th class="left">type</th><th class="left">meaning</th></tr>'
    return f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(cells)}</tbody></table></div>'


def _show_type(schema: Mapping[str, Any]) -> str:
    """Return the type of a value in words, with its limits."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE))
        return f'<a href="#{name}">{name}</a>'
    if choices := schema.get("anyOf"):
        return " or ".join(_show_type(choice) for choice in choices if choice.get("type") != "null")
    if values := schema.get("enum", [schema["const"]] if "const" in schema else None):
        return " or ".join(f"<code>{escape(str(value))}</code>" for value in values)
    kind = str(schema.get("format") or schema.get("type", "any"))
    if kind == "array":
        kind = f"list of {_show_type(schema.get('items', {}))}"
    limits = [words.format(f"{schema[name]:,}") for name, words in _LIMITS.items() if name in schema]
    return f"{kind} ({', '.join(limits)})" if limits else kind


def _text(words: str) -> str:
    """Return text with paragraphs and names in backquotes as HTML."""
    marked = re.sub(r"``?([^`]+)``?", r"<code>\1</code>", escape(words.strip()))
    return "".join(f"<p>{part}</p>" for part in re.split(r"\n\s*\n", marked) if part)
