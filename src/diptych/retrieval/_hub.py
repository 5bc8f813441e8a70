"""Models in repositories of the Hugging Face Hub: the files of a model folder, with its card."""

from __future__ import annotations

import importlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych._checks import TASKS, InputError, missing_package_error
from diptych._persistence import FOR_PEOPLE, POINTER, VERSIONS, library_version
from diptych.data._files import explain_hub_errors
from diptych.retrieval._folder import save_published

if TYPE_CHECKING:
    from diptych.retrieval._retriever import Retriever

FILES = (POINTER, *FOR_PEOPLE, *(f"{VERSIONS}/*.{kind}" for kind in ("json", "jsonl", "safetensors")))
"""Patterns of what is uploaded and downloaded: arrays, JSON and the card; nothing that can be executed."""

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
        save_published(retriever, folder, repo_id, keep_features=keep_features, front_matter=front_matter)
        created = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if branch is not None:
            api.create_branch(created, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=created,
            folder_path=folder,
            revision=branch,
            commit_message=commit_message,
            allow_patterns=list(FILES),
            delete_patterns=[f"{VERSIONS}/*"],
        )
        return str(commit.commit_url)


def find_model(repo_id: str | os.PathLike[str], revision: str | None, token: str | None) -> Path:
    """Return the folder of a published model, downloaded to the cache unless it is a folder already."""
    name = os.fspath(repo_id)
    if os.path.isdir(name):
        if revision is not None or token is not None:
            raise InputError(f"{name} is a folder, so revision and token have no effect; leave them out.")
        return Path(name)
    hub = _import_hub(f"the model {name} needs")
    with explain_hub_errors(name):
        folder = hub.snapshot_download(
            name,
            revision=revision,
            token=token,
            allow_patterns=list(FILES),
            library_name="diptych",
            library_version=library_version(),
        )
    if not (Path(folder) / POINTER).is_file():
        raise InputError(f"{name} is not a model of diptych: {POINTER} is missing; give another repository.")
    return Path(folder)


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
