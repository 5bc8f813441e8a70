"""Progress bars that appear by themselves when work takes a while."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

BAR_DELAY = 3.0
"""Seconds of work after which a progress bar appears by itself."""

_active = threading.local()  # the display of the work that this thread is doing
_terminal = threading.Lock()  # held by the display that writes to the terminal


@contextmanager
def progress_bar(title: str, shown: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Show on standard error what is being done; yields a function to call with the share that is done.

    ``shown=None``: a bar appears once the work has lasted ``BAR_DELAY`` seconds, if standard error is a
    terminal. True: at once, and a line is printed for every step that is done, terminal or not. False: never.
    A bar inside another takes its place until its own step is done, and is shown if the outer one is, unless
    ``shown`` says otherwise.
    """
    outer: _Display | None = getattr(_active, "display", None)
    nested = outer is not None and (shown is None or (shown is False) == (outer.shown is False))
    display = outer if outer is not None and nested else _Display(shown)
    _active.display = display
    step, done = display.begin(title, shown), False
    try:
        yield lambda share: display.update(step, share)
        done = True
    finally:
        display.end(step, done)
        if not nested:
            display.close()
            _active.display = outer


@dataclass(eq=False)
class _Step:
    title: str
    start: float
    share: float | None = None  # None: not known


class _Display:
    """The steps of some work, one inside the other, of which the innermost is shown as a progress bar."""

    def __init__(self, shown: bool | None) -> None:
        self.shown = shown
        self._steps: list[_Step] = []
        self._lock = threading.RLock()
        self._bar: Any = None
        self._closed = False
        self._timer: threading.Timer | None = None
        # Of several processes that share a terminal, only the first shows bars without being told to.
        if shown is None and _is_terminal(sys.stderr) and not _is_child_process():
            self._timer = threading.Timer(BAR_DELAY, self._show)
            self._timer.daemon = True
            self._timer.start()

    def begin(self, title: str, shown: bool | None) -> _Step:
        step = _Step(title, time.perf_counter())
        with self._lock:
            self._steps.append(step)
            if shown and self._bar is None:
                self._show()
            else:
                self._draw()
        return step

    def update(self, step: _Step, share: float) -> None:
        with self._lock:
            step.share = share
            if self._bar is not None and self._steps and step is self._steps[-1]:
                self._bar.update(self._bar.task_ids[-1], completed=share, total=1.0)

    def end(self, step: _Step, done: bool) -> None:
        with self._lock:
            if self._closed:  # an interrupted loop may end after the work around it
                return
            self._steps.remove(step)
            if done and self.shown:
                from rich.console import Console

                console = Console(stderr=True) if self._bar is None else self._bar.console
                seconds = time.perf_counter() - step.start
                console.print(f"{step.title}: {seconds:.1f} s", markup=False, highlight=False)
            self._draw()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()
                self._bar = None
                _terminal.release()

    def _show(self) -> None:
        with self._lock:
            # Threads that work side by side would write over each other's bars.
            if self._closed or not _is_terminal(sys.stderr) or not _terminal.acquire(blocking=False):
                return
            from rich.console import Console
            from rich.progress import Progress

            # What is printed meanwhile appears above the bar, unless it goes to a file.
            console, to_file = Console(stderr=True), not _is_terminal(sys.stdout)
            self._bar = Progress(console=console, transient=True, redirect_stdout=not to_file)
            self._bar.start()
            self._draw()

    def _draw(self) -> None:
        """Show the innermost step instead of the one before."""
        if self._bar is None:
            return
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        if self._steps:
            step = self._steps[-1]
            total = None if step.share is None else 1.0
            self._bar.add_task(step.title, total=total, completed=step.share or 0.0)


def _is_terminal(stream: Any) -> bool:
    # There is no stream in a program without a console, and a closed one cannot be asked.
    return stream is not None and not stream.closed and bool(stream.isatty())


def _is_child_process() -> bool:
    from multiprocessing import parent_process

    return parent_process() is not None
