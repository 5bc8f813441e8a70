"""Progress bars: when they appear, what they show, and what they leave behind."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

START = """
import signal, sys, time
from diptych import _progress
from diptych._progress import progress_bar
_progress.BAR_DELAY = {delay}
print("started", flush=True)
"""
FIT = """
import numpy as np
from diptych import AWCCA, Fusion
rng = np.random.default_rng(0)
x, y = rng.normal(size=(300, 20)), rng.normal(size=(300, 20))
y[:, :5] += x[:, :5]
"""
HIDE, SHOW, ERASE = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


def run_on_terminal(script, delay=0.4, interrupt_at=None):
    """Run a script whose standard error is a terminal.

    Return what it wrote there, the seconds from its start until it first did, its output, and its exit code.
    """
    terminal, its_end = pty.openpty()
    code = START.format(delay=delay) + script
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=its_end, text=True
    )
    os.close(its_end)
    assert process.stdout.readline() == "started\n"
    start, first, shown = time.monotonic(), None, b""
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # the process has closed its end
                break
            first = first or time.monotonic() - start
            if interrupt_at is not None and interrupt_at.encode() in shown:
                process.send_signal(signal.SIGINT)
                interrupt_at = None
    os.close(terminal)
    output = process.stdout.read()
    return shown.decode(), first, output, process.wait()


def list_titles(shown):
    """Return the titles of the bars, in the order in which they appeared."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return list(dict.fromkeys(re.findall(r"[\r\n]*([a-z][a-z ]*?) +━", text)))


def is_clean(shown):
    """Return whether the cursor is visible and the line of the bar is empty."""
    after = shown[shown.rindex("━") :]
    return shown.rindex(SHOW) > shown.rindex(HIDE) and ERASE in after


def test_a_bar_appears_after_a_while_and_is_removed():
    script = "with progress_bar('summing') as progress:\n time.sleep(1.2)\n progress(0.5)\n time.sleep(0.4)"
    shown, first, _, code = run_on_terminal(script)
    assert code == 0
    assert list_titles(shown) == ["summing"]
    assert "50%" in shown
    assert first > 0.35
    assert is_clean(shown)


def test_short_work_shows_nothing_and_needs_no_library():
    script = "with progress_bar('summing'):\n time.sleep(0.05)\ntime.sleep(0.6)\nprint('rich' in sys.modules)"
    shown, _, output, _ = run_on_terminal(script)
    assert shown == ""
    assert output == "False\n"


@pytest.mark.parametrize("shown", [None, False])
def test_nothing_is_shown_where_there_is_no_terminal(shown):
    script = f"with progress_bar('summing', {shown}):\n time.sleep(0.3)\nprint('rich' in sys.modules)"
    code = START.format(delay=0.0) + script
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "started\nFalse\n"


def test_the_innermost_step_is_shown_alone():
    script = """
with progress_bar("fitting") as outer:
    time.sleep(0.3)
    with progress_bar("summing") as inner:
        inner(0.7)
        time.sleep(0.3)
    outer(0.4)
    time.sleep(0.3)
"""
    shown, _, _, _ = run_on_terminal(script, delay=0.0)
    assert list_titles(shown) == ["fitting", "summing"]
    assert "70%" in shown
    assert "40%" in shown
    assert "\n" not in shown.strip("\r\n")  # one line at a time


def test_steps_inside_hidden_work_are_hidden():
    script = "with progress_bar('fitting', False):\n with progress_bar('summing'):\n  time.sleep(0.5)"
    assert run_on_terminal(script, delay=0.0)[0] == ""


def test_threads_do_not_write_over_each_other():
    script = """
import threading
def work(name):
    with progress_bar(name):
        time.sleep(0.6)
threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
[thread.start() for thread in threads], [thread.join() for thread in threads]
"""
    shown, _, _, _ = run_on_terminal(script, delay=0.1)
    assert len(list_titles(shown)) == 1
    assert is_clean(shown)


def test_interrupted_work_leaves_a_clean_terminal():
    script = """
try:
    with progress_bar("fitting"):
        for step in range(100):
            with progress_bar("summing"):
                time.sleep(0.1)
except KeyboardInterrupt:
    sys.stderr.write("interrupted")
"""
    shown, _, _, code = run_on_terminal(script, interrupt_at="summing")
    assert code == 0
    before, after = shown.split("interrupted")
    assert is_clean(before)
    assert after == ""


def test_output_to_a_file_is_left_alone():
    script = "with progress_bar('summing'):\n time.sleep(0.3)\n print('a result')\n time.sleep(0.2)"
    shown, _, output, _ = run_on_terminal(script, delay=0.1)
    assert output == "a result\n"
    assert "a result" not in shown


def test_a_note_of_a_command_appears_above_the_bar():
    script = """
import warnings
from diptych._checks import DataWarning
from diptych.cli._run import report_errors
with report_errors(), progress_bar("summing"):
    time.sleep(0.6)
    warnings.warn("some are missing", DataWarning)
    time.sleep(0.3)
"""
    shown, _, _, _ = run_on_terminal(script, delay=0.0)
    assert f"{ERASE}note: some are missing" in re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert is_clean(shown)


def test_a_long_fit_shows_its_steps():
    shown, _, _, code = run_on_terminal(FIT + "AWCCA(grid=12).fit(x, y)", delay=0.0)
    assert code == 0
    assert {"decomposing", "selecting"} <= set(list_titles(shown))
    assert is_clean(shown)
    shown = run_on_terminal(FIT + "Fusion(grid=8).fit(x, y)", delay=0.0)[0]
    assert {"choosing normalisations", "selecting", "choosing for search"} <= set(list_titles(shown))
    for model in ("AWCCA(grid=4, verbose=False)", "Fusion(grid=4, verbose=False)"):
        assert run_on_terminal(f"{FIT}\n{model}.fit(x, y)", delay=0.0)[0] == ""


def test_a_verbose_fit_prints_a_line_for_each_step(capsys):
    import numpy as np

    from diptych import AWCCA

    rng = np.random.default_rng(0)
    AWCCA(grid=4, verbose=True).fit(rng.normal(size=(60, 4)), rng.normal(size=(60, 3)))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith("/")][-1] == "fitting"
    assert any(re.fullmatch(r"selecting: \d+\.\d s", line) for line in lines)
