"""The layout of the package: who may import whom, and which modules are public."""

import ast
from pathlib import Path

import diptych

ORDER = [
    ["_lazy"],
    ["_arrays"],
    ["_checks"],
    ["_threads"],
    ["_devices", "_persistence"],
    ["_fastembed"],
    ["ranking"],
    ["cca"],
    ["text", "image"],
    ["fusion"],
    ["data"],
    ["scenes", "distributed"],
    ["report"],
    ["retrieval"],
    ["paper", "service"],
    ["cli"],
    ["__main__"],
]
"""A package imports only from packages on the lines above its own."""

SOURCE = Path(diptych.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def level_of(package):
    return next(i for i, packages in enumerate(ORDER) if package in packages)


def imported_packages(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "diptych":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from [a.name.split(".")[1] for a in node.names if a.name.startswith("diptych.")]


def test_every_package_has_its_place_in_the_order():
    assert {package_of(path) for path in MODULES} - {"__init__"} == {p for row in ORDER for p in row}


def test_a_package_imports_only_from_those_before_it():
    for path in MODULES:
        package = package_of(path)
        if package == "__init__":
            continue
        for other in set(imported_packages(path)) - {package, "__version__"}:
            assert level_of(other) < level_of(package), f"{path.relative_to(SOURCE)} imports {other}"


def test_public_names_exist():
    for name in diptych.__all__:
        assert getattr(diptych, name).__doc__
