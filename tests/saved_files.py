"""The files of a saved model, for tests that look at them or damage them."""

import json

from diptych._model_folder import RECORD, current_version
from diptych._persistence import file_digest


def files_of(folder):
    """Where the files of the current version lie."""
    return current_version(folder).path


def seal(folder):
    """Make all checksums true again, as someone would who means harm."""
    version = files_of(folder)
    config = json.loads((version / "config.json").read_bytes())
    for name in config.get("files", {}):
        path = version / name
        if path.is_file() and not path.is_symlink():
            config["files"][name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    (version / "config.json").write_text(json.dumps(config), "utf-8")
    seal_config(folder)


def seal_config(folder):
    """Make the checksum of the config true again, whatever is in it."""
    pointer = json.loads((folder / RECORD).read_bytes())
    pointer["sha256"] = file_digest(files_of(folder) / "config.json")
    (folder / RECORD).write_text(json.dumps(pointer), "utf-8")


def edit_config(folder, **changes):
    """Change settings of a saved model."""
    path = files_of(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    seal_config(folder)


def places(tree, path=()):
    """Return every place in a JSON tree; of a long list, only the first few."""
    paths = [path] if path else []
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        if not (isinstance(key, int) and key > 3):
            paths += places(child, (*path, key))
    return paths
