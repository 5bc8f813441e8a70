"""``push`` and ``pull``: publish a model on the Hugging Face Hub, and download one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diptych.cli import _options as opt
from diptych.cli._output import hide_library_bars
from diptych.cli._run import RunOptions, option

Repository = Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hub: user/name.")]


class PushOptions(RunOptions):
    """How ``push`` runs."""

    interrupted = "the repository may be incomplete; run the same command again"


def push(
    model: opt.Model,
    repo: Repository,
    private: Annotated[bool, option("Make a new repository private.", "--private")] = False,
    branch: Annotated[str | None, option("Branch to push to. Default: main.")] = None,
    message: Annotated[str, option("Message of the commit.")] = "Push model with diptych",
    license: Annotated[str, option("Licence that the card names, such as cc-by-4.0.")] = "unknown",
    keep_features: Annotated[
        bool, option("Publish what others need to refit the model.", "--keep-features")
    ] = False,
    *,
    run: PushOptions,
) -> None:
    """Publish a model on the Hugging Face Hub.

    Published are the model, the vectors of its items, their ids, texts and metadata, and the model card; no
    images and no paths. Log in first: `hf auth login`.

    Example: `diptych push model ada/beaches --private`
    """
    from diptych.retrieval import Retriever

    hide_library_bars(run.silent)
    url = Retriever.load(model).push_to_hub(
        repo,
        private=private or None,
        branch=branch,
        commit_message=message,
        license=license,
        keep_features=keep_features,
    )
    content = {"model": str(model), "repository": repo, "commit": url}
    run.show(content, [f"published {model}: {url}"])


def pull(
    repo: Repository,
    out: Annotated[Path, option("Folder to write the model to.", "--out", "-o")],
    revision: Annotated[
        str | None, option("A branch, a tag or a commit. Default: the newest on main.")
    ] = None,
    images: Annotated[
        Path | None, option("Folder with the image files under their ids, if you have them.")
    ] = None,
    max_gigabytes: Annotated[float, option("Download no larger model.")] = 20.0,
    *,
    run: RunOptions,
) -> None:
    """Download a published model from the Hugging Face Hub.

    Nothing in it is executed, and no path or network that it names is opened.

    Example: `diptych pull ada/beaches --out beaches`
    """
    from diptych._model_folder import check_writable
    from diptych.retrieval import Retriever
    from diptych.retrieval._folder import KIND

    hide_library_bars(run.silent)
    check_writable(out, KIND)
    options: dict[str, Any] = {"revision": revision, "images": images, "max_gigabytes": max_gigabytes}
    retriever = Retriever.from_pretrained(repo, **options)
    retriever.save(out)
    content = {"repository": repo, "model": str(out), "items": retriever.info()["items"]}
    run.show(content, [f"wrote {out}: {retriever}"])
