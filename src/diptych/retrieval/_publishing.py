"""Models in repositories of the Hugging Face Hub: the files of a model folder, with its card."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych._checks import TASKS, InputError, missing_package_error
from diptych._database import FILE
from diptych._model_folder import VERSIONS
from diptych._persistence import CONFIG, MAX_JSON_BYTES, library_version, read_entries, real_folder
from diptych.data._files import explain_hub_errors
from diptych.retrieval._folder import MODEL_FILES, save_published
from diptych.retrieval.stores._files import FOR_PEOPLE, ROWS, list_files

if TYPE_CHECKING:
    from diptych.retrieval._retriever import Retriever

_METRICS = {"r@1": "recall_at_1", "r@5": "recall_at_5", "r@10": "recall_at_10"}


def push(
    retriever: Retriever,
    repo_id: str,
    *,
    private: bool | None,
    token: str | None,
    branch: str | None,
    commit_message: str,
    license: str,
    keep_features: bool,
) -> str:
    """Publish a retriever; the arguments are those of ``Retriever.push_to_hub``."""
    hub = _import_hub("publishing a model needs")
    api = hub.HfApi(token=token, library_name="diptych", library_version=library_version())
    if repo_id.count("/") != 1:
        raise InputError(f"{repo_id!r} is not the name of a repository; give user/name.")
    with explain_hub_errors(repo_id), tempfile.TemporaryDirectory() as scratch:
        hub.utils.validate_repo_id(repo_id)
        folder = Path(scratch) / "model"
        front_matter = _write_front_matter(hub, repo_id, license, retriever)
        # Before a repository is created, because it refuses what cannot be published.
        options: dict[str, Any] = {"keep_features": keep_features, "front_matter": front_matter}
        with retriever._writing:
            save_published(retriever, folder, repo_id, **options)
        created = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch is not None:
            api.create_branch(created, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=created,
            folder_path=folder,
            revision=branch,
            commit_message=commit_message,
            allow_patterns=[
                FILE,
                *FOR_PEOPLE,
                f"{ROWS}/*",
                *(f"{VERSIONS}/*/{name}" for name in (CONFIG, *MODEL_FILES)),
            ],
            delete_patterns=[f"{VERSIONS}/*", f"{ROWS}/*"],
        )
        return str(commit.commit_url)


def find_model(
    repo_id: str | os.PathLike[str], revision: str | None, token: str | None, max_gigabytes: float
) -> Path:
    """Return the folder of a published model, downloaded unless it is a folder already.

    A downloaded model is an ordinary model folder beside the cache of the Hub's own library. It is used as it
    is where the Hub cannot be reached.
    """
    name = os.fspath(repo_id)
    if os.path.isdir(name):
        if revision is not None or token is not None:
            raise InputError(f"{name} is a folder, so revision and token have no effect; leave them out.")
        return Path(name)
    hub = _import_hub(f"the model {name} needs")
    with explain_hub_errors(name):
        options = {"token": token, "library_name": "diptych", "library_version": library_version()}
        api = hub.HfApi(**options)  # its other modules can be reached once it is loaded
        hub.utils.validate_repo_id(name)
        place = f"{name}@{revision or 'main'}".replace("/", "--")
        folder = real_folder(Path(hub.constants.HF_HOME, "diptych", place))
        try:
            info = api.model_info(name, revision=revision, files_metadata=True)
        except (hub.errors.RepositoryNotFoundError, hub.errors.RevisionNotFoundError):
            raise
        except Exception:  # the libraries raise many classes of their own
            if not (folder / FILE).is_file():
                raise
            return folder
        sizes = {file.rfilename: file.size or 0 for file in info.siblings}
        fetch = partial(hub.snapshot_download, name, revision=info.sha, **options)
        _download(fetch, name, folder, sizes, max_gigabytes)
    return folder


def _download(
    fetch: Callable[..., Any], name: str, folder: Path, sizes: Mapping[str, int], max_gigabytes: float
) -> None:
    """Download what a model names of itself, which the files with these ``sizes`` must contain."""

    def check_size(files: Iterable[str]) -> None:
        if (size := sum(sizes[file] for file in files) / 1e9) > max_gigabytes:
            raise InputError(
                f"{name} has {size:.3g} GB, more than max_gigabytes={max_gigabytes:g}; raise that to "
                "download it."
            )

    def read(local: str, path: str, most: float = float("inf")) -> None:
        if sizes.get(path, most + 1) > most or path not in sizes:
            reason = "missing" if path not in sizes else "too large"
            raise InputError(
                f"{name} is not a model of diptych: {path} is {reason}; give another repository."
            )
        check_size([path])
        fetch(local_dir=local, allow_patterns=[path])

    with tempfile.TemporaryDirectory() as scratch:
        read(scratch, FILE)
        version, rows = list_files(real_folder(scratch))
        files = f"{VERSIONS}/{version}"
        read(scratch, f"{files}/{CONFIG}", MAX_JSON_BYTES)
        entries = read_entries(Path(scratch, files)) or {}
    wanted = [f"{files}/{file}" for file in (CONFIG, *MODEL_FILES) if file == CONFIG or file in entries]
    wanted = [file for file in (*wanted, *rows, *FOR_PEOPLE, FILE) if file in sizes]
    check_size(wanted)
    fetch(local_dir=folder, allow_patterns=wanted[:-1])
    fetch(local_dir=folder, allow_patterns=[FILE])  # last, so that readers find all that it names


def _write_front_matter(hub: Any, repo_id: str, license: str, retriever: Retriever) -> str:
    """Return what the Hub reads of a card: library, licence, tags, and the recalls on the test split."""
    facts, (image, text) = retriever.fitted.facts, (name.replace(" ", "-") for name in retriever.views)
    kinds = {"search": f"{text}-to-{image}-retrieval", "annotate": f"{image}-to-{text}-retrieval"}
    results = [
        hub.EvalResult(
            task_type=kinds[task],
            task_name=task,
            dataset_type="unknown",
            dataset_name="test split of the pairs that the model was fitted on",
            metric_type=kind,
            metric_value=round(facts["metrics"]["test"][task][metric], 2),
        )
        for task in TASKS
        for metric, kind in _METRICS.items()
        if task in facts.get("metrics", {}).get("test", {}) and "refitted" not in facts
    ]
    data = hub.ModelCardData(
        library_name="diptych",
        license=license,
        tags=["diptych", "cross-modal-retrieval", f"{image}-{text}-retrieval", "cca"],
        model_name=repo_id.rpartition("/")[2] if results else None,
        eval_results=results or None,
    )
    return f"---\n{data.to_yaml()}\n---\n\n"


def _import_hub(what: str) -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise missing_package_error(what, "hub", "huggingface-hub") from None
