"""``demo``: every step on drawn images."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

from diptych._checks import TASKS, InputError
from diptych.cli._run import RunOptions, option, say, shorten


def demo(
    out: Path = option(Path("demo-output"), "Folder to write everything to.", "-o"),
    number: int = option(1500, "How many scenes.", "-n", min=200),
    *,
    run: RunOptions,
) -> None:
    """Draw scenes, fit, compare, search both ways; write models and a report.

    Example: `diptych demo`
    """
    from diptych.cca import AWCCA
    from diptych.cli import _comparison as comparison
    from diptych.encoders import HKSE
    from diptych.retrieval import Retriever
    from diptych.scenes import make_scenes

    start = time.perf_counter()
    tell: Callable[[str], None] = (lambda line: None) if run.silent else say
    _check_out(out)
    pairs = make_scenes(number, random_state=0).write(out / "scenes")
    retriever = Retriever("pyramid", HKSE(word_features=600, sentence_features=600), AWCCA())
    views = retriever.encode(pairs)
    tell(
        f"Drew {number} images with five captions each; encoded an image as {views.x.shape[1]} numbers "
        f"and a caption as {views.y.shape[1]} ({time.perf_counter() - start:.1f} s)."
    )
    best = Retriever("pyramid", retriever.encoders.hkse, preset="best")
    models = comparison.fit_models(views, best)
    for line in comparison.describe_models(models):
        tell(line)
    retriever.fit(views).save(out / "model")
    best.save(out / "best")
    queries = comparison.choose_queries(pairs)
    for line in comparison.describe_hits(best, pairs, queries):
        tell(line)
    program, model = name_program(), shlex.quote(str(out / "best"))
    commands = [f"{program} serve {model}", f"{program} search {model} {shlex.quote(queries[0])}"]
    outcome = comparison.write_report(retriever, best, models, pairs, commands, out / "report.html")
    seconds = time.perf_counter() - start
    tell(f"The models are {out / 'model'} and {out / 'best'}; {outcome}.")
    tell(f"All in {seconds:.0f} s. Next:")
    for command in commands:
        tell(f"  {command}")
    scores = {model.name: {task: model.scores(task) for task in TASKS} for model in models}
    content = {"model": str(out / "model"), "best": str(out / "best"), "seconds": round(seconds, 1)}
    run.show(content | {"test": scores})


def _check_out(out: Path) -> None:
    """Refuse a folder in which a file of somebody else would be replaced."""
    from diptych.retrieval.stores._files import check_writable
    from diptych.scenes import TABLE

    for name in ("model", "best"):
        check_writable(out / name)
    table, report = out / "scenes" / TABLE, out / "report.html"
    # The table of an earlier demo, also of one that was interrupted, says what is drawn.
    if table.is_file() and b'"description": {' in table.read_bytes()[:10_000]:
        return
    for path in (table, report):
        if path.exists():
            raise InputError(f"{path} exists, and no demo wrote it; move it away, or choose another --out.")


def name_program() -> str:
    """Return what to write for ``diptych`` in a command to be pasted into the shell that runs this one."""
    program = Path(sys.executable).with_name("diptych.exe" if os.name == "nt" else "diptych")
    if not program.is_file():
        return f"{shlex.quote(shorten(sys.executable))} -m diptych"
    on_path = shutil.which("diptych")
    is_same = on_path is not None and os.path.realpath(on_path) == os.path.realpath(program)
    return "diptych" if is_same else shlex.quote(shorten(os.fspath(program)))
