"""The layout of the package: who may import whom, and which modules are public."""

import ast
import importlib
from pathlib import Path

import pytest

import diptych

ORDER = [
    ["_lazy", "_progress"],
    ["_arrays"],
    ["_checks"],
    ["_threads"],
    ["_devices", "_persistence"],
    ["_database"],
    ["_model_folder"],
    ["ranking"],
    ["cca"],
    ["stats"],
    ["encoders"],
    ["fusion"],
    ["data"],
    ["scenes", "distributed"],
    ["report"],
    ["retrieval"],
    ["service", "client"],
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


def exported_lazily(path):
    """Return what a package imports for type checkers, and what it exports; None if it imports at once."""
    checked, exported = set(), None
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            checked = {(each.module, alias.name) for each in node.body for alias in each.names}
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "export_lazily":
            exported = ast.literal_eval(node.args[1])
    return checked, exported


LAZY = [path for path in MODULES if path.name == "__init__.py" and exported_lazily(path)[1] is not None]


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_a_package_exports_what_type_checkers_see(path):
    package = ".".join(["diptych", *path.parent.relative_to(SOURCE).parts])
    checked, exported = exported_lazily(path)
    names = {(f"{package}.{module}", name) for module, own in exported.items() for name in own}
    module = importlib.import_module(package)
    assert names == checked
    assert {name for _, name in names} == set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'unknown'"):
        module.unknown  # noqa: B018


def test_the_reproduction_uses_public_names_only():
    for path in sorted((Path(__file__).parents[1] / "reproduction").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "diptych":
                module = importlib.import_module(node.module)
                public = {*module.__all__, "__version__"}
                private = {alias.name for alias in node.names} - public
                assert not private, f"{path.name} imports {private} of {node.module}"
                assert "._" not in node.module, f"{path.name} imports from {node.module}"
