"""The public surface: what is exported is documented, typed, and shown by an example."""

import importlib
import importlib.util
import inspect
import pkgutil
from pathlib import Path

import pytest

import diptych

DOCS = Path(__file__).parents[1] / "docs"


def load_page_maker():
    spec = importlib.util.spec_from_file_location("make_api", DOCS / "make_api.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = load_page_maker()
NAMES = [(path, name) for path in MAKER.MODULES for name in importlib.import_module(path).__all__]


def test_the_page_of_public_names_is_up_to_date():
    assert (DOCS / "api.md").read_text("utf-8") == MAKER.make_page(), "run python docs/make_api.py"


def test_every_public_module_is_on_the_page():
    modules = {"diptych"}
    for module in pkgutil.walk_packages(diptych.__path__, "diptych."):
        if not any(part.startswith("_") for part in module.name.split(".")[1:]):
            modules.add(module.name)
    # The command line is used by its commands; stores are reached through Retriever.
    assert modules - {"diptych.cli", "diptych.retrieval.stores", "diptych.retrieval.stores.postgres"} == set(
        MAKER.MODULES
    )


@pytest.mark.parametrize(("path", "name"), NAMES, ids=lambda value: value)
def test_a_public_name_is_documented_and_typed(path, name):
    value = getattr(importlib.import_module(path), name)
    if not inspect.isclass(value) and not inspect.isfunction(value):
        return
    assert inspect.getdoc(value), f"{path}.{name} has no docstring"
    if inspect.isfunction(value):
        for parameter in inspect.signature(value).parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, f"{path}.{name}({parameter.name})"


@pytest.mark.parametrize("name", diptych.__all__)
def test_a_name_of_the_package_is_shown_by_an_example(name):
    value = getattr(diptych, name)
    if inspect.isclass(value) and issubclass(value, Exception):
        return
    assert ">>>" in inspect.getdoc(value)
