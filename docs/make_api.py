"""Write ``docs/api.md``, the list of public names, from the code: ``python docs/make_api.py``."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from types import ModuleType

PAGE = Path(__file__).with_name("api.md")
MODULES = (
    *("diptych", "diptych.retrieval", "diptych.cca", "diptych.cca.selection", "diptych.stats"),
    *("diptych.fusion", "diptych.encoders", "diptych.data", "diptych.scenes", "diptych.ranking"),
    *("diptych.distributed", "diptych.service", "diptych.client", "diptych.report"),
)
HEAD = """# Public names

Everything a program may import, by package. These names are stable. Modules and names that start with an
underscore are not. `help(name)` shows parameters and an example. `python docs/make_api.py` writes this page.
"""


def describe(module: ModuleType, name: str) -> str:
    """Return the line of one public name: its signature and the first line of its docstring."""
    value = getattr(module, name)
    summary = ""
    if not isinstance(value, str | int | float | tuple | dict):
        summary = (inspect.getdoc(value) or "").split("\n")[0]
    if inspect.isclass(value):
        return f"- class `{name}`: {summary}"
    if inspect.isfunction(value):
        return f"- `{name}({', '.join(inspect.signature(value).parameters)})`: {summary}"
    return f"- `{name}`" + (f": {summary}" if inspect.isclass(type(value)) and summary else "")


def make_page() -> str:
    """Return the page as Markdown."""
    parts = [HEAD]
    for path in MODULES:
        module = importlib.import_module(path)
        summary = (module.__doc__ or "").strip().split("\n")[0]
        lines = [describe(module, name) for name in sorted(module.__all__, key=str.lower)]
        parts.append("\n".join([f"## `{path}`", "", summary, "", *lines, ""]))
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(make_page(), "utf-8")
