"""``diptych serve`` on the command line."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import uvicorn
from typer.testing import CliRunner

from diptych.cli import app
from diptych.service import _serve
from servers import TOKEN, make_service

runner = CliRunner()


def refused(*flags, **environment):
    result = runner.invoke(app, ["serve", *map(str, flags), "--no-browser"], env=environment)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.strip().splitlines()) == 1
    return result.stderr


def test_errors_are_one_line(folder, tmp_path):
    assert "not a folder" in refused(tmp_path / "nothing", "--port", 0)
    assert "needs a token" in refused(folder, "--host", "0.0.0.0", DIPTYCH_TOKEN="")
    assert "at least 16" in refused(folder, DIPTYCH_TOKEN="abc")


def test_a_port_in_use_is_an_error(folder):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        assert "choose another --port" in refused(folder, "--port", other.getsockname()[1])


def test_the_address_for_other_devices_is_printed(folder, monkeypatch):
    class Network(socket.socket):
        def connect(self, address):
            assert self.type == socket.SOCK_DGRAM  # nothing is sent

        def getsockname(self):
            return ("192.168.7.5", 0) if self.type == socket.SOCK_DGRAM else super().getsockname()

    service, lines = make_service(folder, token=TOKEN), []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    for host in ("0.0.0.0", "127.0.0.1"):
        with _serve.listen(host, 0) as listener, monkeypatch.context() as patch:
            patch.setattr(socket, "socket", Network)
            _serve.run(service, listener, say=lines.append)
            port = listener.getsockname()[1]
        assert f"Open http://127.0.0.1:{port}/ (Ctrl+C stops)" in lines
        shared = f"On other devices of this network: http://192.168.7.5:{port}/ (with the token)"
        assert (shared in lines) == (host == "0.0.0.0")
    assert len(lines) == 5
    assert TOKEN not in "".join(lines)


def test_a_missing_package_is_named_with_the_install_command(folder):
    code = "import sys; sys.modules['uvicorn'] = None; from diptych.cli import app; app(sys.argv[1:])"
    command = [sys.executable, "-c", code, "serve", str(folder), "--no-browser"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "uvicorn; install with: pip install " in done.stderr
    assert '"uvicorn>=' in done.stderr


def test_options_set_the_limits(start, folder):
    flags = ("--max-k", "7", "--max-batch", "2", "--max-pixels", "100000")
    server = start(folder, *flags, DIPTYCH_TOKEN=TOKEN)
    assert httpx.get(f"{server.url}/v1/model").status_code == 401
    header = {"Authorization": f"Bearer {TOKEN}", "X-Forwarded-For": "203.0.113.9"}
    limits = httpx.get(f"{server.url}/v1/model", headers=header).json()["limits"]
    assert (limits["k"], limits["batch"], limits["pixels"]) == (7, 2, 100_000)
    _, logged = server.stop()
    assert "401 " in logged
    assert "127.0.0.1 GET /v1/model 200" in logged  # no proxy is trusted


@pytest.mark.parametrize("busy", [False, True])
def test_ctrl_c_ends_all_processes_with_one_line(start, folder, busy):
    """The signal goes to all processes of the terminal, as a terminal sends it."""
    server = start(folder, "--quiet", group=True)
    if busy:
        httpx.get(f"{server.url}/v1/model")
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    os.killpg(server.process.pid, signal.SIGINT)
    os.killpg(server.process.pid, signal.SIGINT)  # once more, out of impatience
    _, logged = server.process.communicate(timeout=60)
    assert (server.process.returncode, logged.strip()) == (130, "interrupted; the server has stopped")
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def test_a_second_ctrl_c_while_the_first_is_handled_does_not_skip_the_saving(monkeypatch):
    server, handle = _serve._Server(uvicorn.Config(None)), uvicorn.Server.handle_exit
    signals = [signal.SIGINT]

    def interrupted(self, sig, frame):
        if signals:
            server.handle_exit(signals.pop(), frame)
        handle(self, sig, frame)

    monkeypatch.setattr(uvicorn.Server, "handle_exit", interrupted)
    server.handle_exit(signal.SIGINT, None)
    assert (server.should_exit, server.force_exit) == (True, False)


def test_ctrl_c_interrupts_once():
    def close_slowly():
        with _serve._interrupt_once():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    try:
        with _serve._interrupt_once():
            assert signal.getsignal(signal.SIGINT) is not before
        assert signal.getsignal(signal.SIGINT) is before
        with pytest.raises(KeyboardInterrupt):
            close_slowly()
        signal.raise_signal(signal.SIGINT)  # without effect, until the process ends
    finally:
        signal.signal(signal.SIGINT, before)
