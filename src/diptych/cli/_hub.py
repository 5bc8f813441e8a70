"""``push`` and ``pull``: publish a model on the Hugging Face Hub, and download one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diptych.cli import _options as opt
from diptych.cli._output import hide_library_bars, make_console, print_json, report_errors

Repository = Annotated[str, typer.Argument(metavar="REPO", help="Repository on the Hub: user/name.")]


def push(
    model: opt.Model,
    repo: Repository,
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    branch: Annotated[str | None, typer.Option(help="Branch to push to. Default: main.")] = None,
    message: Annotated[str, typer.Option(help="Message of the commit.")] = "Push model with diptych",
    license: Annotated[str, typer.Option(help="Licence that the card names, such as cc-by-4.0.")] = "unknown",
    keep_features: Annotated[
        bool, typer.Option("--keep-features", help="Publish what others need to refit the model.")
    ] = False,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Publish a model on the Hugging Face Hub.

    Published are the model, the vectors of its items, their ids, texts and metadata, and the model card; no
    images and no paths. Log in first: `hf auth login`.

    Example: `diptych push model ada/beaches --private`
    """
    from diptych.retrieval import Retriever

    with report_errors("the repository may be incomplete; run the same command again"):
        hide_library_bars(quiet or as_json)
        url = Retriever.load(model).push_to_hub(
            repo,
            private=private or None,
            branch=branch,
            commit_message=message,
            license=license,
            keep_features=keep_features,
        )
        if as_json:
            print_json({"model": str(model), "repository": repo, "commit": url})
        elif not quiet:
            make_console().print(f"published {model}: {url}")


def pull(
    repo: Repository,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the model to.")],
    revision: Annotated[
        str | None, typer.Option(help="A branch, a tag or a commit. Default: the newest on main.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Folder with the image files under their ids, if you have them.")
    ] = None,
    quiet: opt.Quiet = False,
    as_json: opt.AsJson = False,
) -> None:
    """Download a published model from the Hugging Face Hub.

    Nothing in it is executed, and no path or network that it names is opened.

    Example: `diptych pull ada/beaches --out beaches`
    """
    from diptych._persistence import check_writable
    from diptych.retrieval import Retriever
    from diptych.retrieval._folder import KIND

    with report_errors():
        hide_library_bars(quiet or as_json)
        check_writable(out, KIND)
        retriever = Retriever.from_pretrained(repo, revision=revision, images=images)
        retriever.save(out)
        if as_json:
            print_json({"repository": repo, "model": str(out), "items": retriever.info()["items"]})
        elif not quiet:
            make_console().print(f"wrote {out}: {retriever}")
