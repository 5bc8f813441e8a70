"""The order of the rooms: a module imports only from rooms that stand before its own."""

import ast
from pathlib import Path

import diptych

ROOMS = [
    "arrays",
    "checks",
    "prefetch",
    "transfer",
    "storage",
    "folders",
    "normalize",
    "ranking",
    "cca",
    "text",
]
ROOMS += ["fusion", "image", "data", "engine", "report", "retrieval", "experiments", "service", "cli"]
ROOMS += ["__main__"]
SOURCE = Path(diptych.__file__).parent


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "diptych":
            parts = node.module.split(".")
            yield from [parts[1]] if len(parts) > 1 else [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            yield from [a.name.split(".")[1] for a in node.names if a.name.startswith("diptych.")]


def test_every_module_stands_in_a_known_room():
    found = {p.relative_to(SOURCE).parts[0].removesuffix(".py") for p in SOURCE.rglob("*.py")}
    assert found - {"__init__"} <= set(ROOMS)


def test_a_room_imports_only_from_rooms_before_it():
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for other in imported_rooms(path):
            if other in ROOMS:
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path.name} in {room} imports {other}"


def test_public_names_exist():
    for name in diptych.__all__:
        assert getattr(diptych, name).__doc__
