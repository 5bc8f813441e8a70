"""``items.sqlite``: the file that says what a retriever's folder holds.

SQLite keeps the items, the name of the current version of the model, and how many rows of the row files are
valid. Its transactions are the only lock and the only journal of such a folder.

**Settings.** The journal is SQLite's write-ahead log, so that searches never wait for a writer: a search
only looks at a counter (``data_version``, some microseconds). ``synchronous=FULL`` flushes each commit to the
disk: once, where the classic rollback journal flushes four times and takes several times as long (``python
benchmarks/collection.py`` measures both). Processes on several machines cannot share the memory that
the log needs, so all processes that use a folder run on one machine. A writer waits up to a
minute for another, in steps of a second, so that Ctrl+C ends it. Where nothing may be written, the file is
read as it is. The log is folded into the file after a save or a refit, and when the last process closes it;
otherwise a copy of the folder must include ``items.sqlite-wal``. Copying a folder while it is written may
give a damaged copy, which ``Retriever.save`` to another folder never does.

**Trust.** A file of a stranger can hold anything. Only the statements below may be its schema, so it has no
views and triggers; rows are bounded, and every value is checked by its reader.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from diptych._checks import InputError, UnavailableError
from diptych._persistence import FORMAT_VERSION, check_own, check_plain_file

FILE = "items.sqlite"

SCHEMA = (
    "CREATE TABLE current (version TEXT NOT NULL, sha256 TEXT NOT NULL, contents TEXT)",
    "CREATE TABLE items (key INTEGER PRIMARY KEY, row INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, "
    "item TEXT NOT NULL)",
    "CREATE TABLE changes (number INTEGER PRIMARY KEY, key INTEGER NOT NULL)",
)

PHOTO_SCHEMA = (
    "CREATE TABLE folders (number INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, from_model TEXT NOT NULL)",
    "CREATE TABLE files (folder INTEGER NOT NULL, name TEXT NOT NULL, id TEXT NOT NULL, "
    "size INTEGER NOT NULL, modified INTEGER NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (folder, name))",
)
"""Of libraries of photos alone: the folders they know, and what their files were when they were read."""

MAX_ROW_BYTES = 2**24
"""Of one row of a table; a longer one is refused."""

BUSY_SECONDS = 60.0
"""How long a writer waits for another."""

_APPLICATION = 0x64707463  # "dptc"
_STEP_SECONDS = 1.0  # Ctrl+C waits no longer
_SYSTEM_ERRORS = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.EACCES,
    sqlite3.SQLITE_PERM: errno.EACCES,
}


class MovedError(InputError):
    """The folder was removed, replaced or moved since it was opened."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            f"{folder} was removed, replaced or moved since it was opened, so nothing can be changed there."
        )


class Database:
    """The database of one folder, a real path: a connection for reading, and one for writing.

    Each connection is for one thread at a time. A process that was forked opens its own. With ``create``, a
    missing file is made. A file of others is ``read_only``.
    """

    def __init__(self, folder: Path, *, create: bool = False, read_only: bool = False) -> None:
        self.folder, self.path = folder, folder / FILE
        check_own(folder, FILE, *(f"{FILE}-{end}" for end in ("wal", "shm", "journal")))
        self._read_only = read_only
        if create and not self.path.exists():
            self.path.touch()
        check_plain_file(self.path)
        self._identity = _identify(self.path)
        self._open()
        with self._explain():
            if create and self._is_blank():
                self._make_tables()
            self._check()

    def data_version(self) -> tuple[int, int]:
        """Return a value that changes when another connection has committed, and after a fork."""
        with self._explain():
            number = int(self._reader.execute("PRAGMA data_version").fetchone()[0])
            return self._process, number

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for reading, to which the database stays as it is now."""
        with self._explain():
            connection = self._reader
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Give a connection for writing, alone among all processes; commit unless the block has done so.

        If the block fails, everything is as before.
        """
        with self._explain():
            self.check_in_place()
            if not self.is_writable:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(self.path))
            connection = self._writer
            self._begin(connection)
            try:
                yield connection
                if connection.in_transaction:
                    connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def close(self) -> None:
        """Close the connections of this process."""
        self._finalizer()

    def fold_log(self) -> None:
        """Move what was committed from the log to the file itself, unless others are reading the log."""
        with self._explain():
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def check_in_place(self) -> None:
        """Raise a ``MovedError`` if the folder has another file by now."""
        # SQLite has the file open, so its number belongs to no other.
        with suppress(OSError):
            if _identify(self.path) == self._identity:
                return
        raise MovedError(self.folder)

    def check_pages(self) -> None:
        """Read the whole file; an ``InputError`` if it is damaged."""
        with self.reading() as connection:
            for (message,) in connection.execute("PRAGMA quick_check"):
                if message != "ok":
                    raise InputError(f"{self.path} is damaged ({str(message)[:200]}); restore the file.")

    @property
    def is_writable(self) -> bool:
        """Whether this process may write to the file."""
        return not self._read_only and os.access(self.path, os.W_OK) and os.access(self.folder, os.W_OK)

    @property
    def _reader(self) -> sqlite3.Connection:
        if os.getpid() != self._process:
            self._open()
        return self._connections[0]

    @property
    def _writer(self) -> sqlite3.Connection:
        if os.getpid() != self._process:
            self._open()
        if len(self._connections) == 1:
            self._connections.append(_connect(self.path, "mode=rw"))
        return self._connections[1]

    def _open(self) -> None:
        # Connections of a process must not be used, nor closed, by one that was forked from it.
        self._process = os.getpid()
        with self._explain():
            self._connections = [_connect(self.path, self._mode())]
        self._finalizer = weakref.finalize(self, _close, self._connections, self._process)

    def _mode(self) -> str:
        if self.is_writable:
            return "mode=rw"
        logged = self.path.with_name(f"{FILE}-wal")  # without it, nobody has the file open for writing
        return "mode=ro" if logged.exists() else "mode=ro&immutable=1"

    def _begin(self, connection: sqlite3.Connection) -> None:
        latest = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > latest:
                    raise

    def _is_blank(self) -> bool:
        """Return whether nothing was ever written to the file, or a process that made it was killed."""
        tables = self._reader.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        return self._read_number("application_id") == 0 and tables == 0

    def _make_tables(self) -> None:
        writer = self._writer
        writer.execute("PRAGMA journal_mode=WAL")
        self._begin(writer)
        if self._is_blank():  # no other process was faster
            for statement in (
                *SCHEMA,
                f"PRAGMA application_id={_APPLICATION}",
                f"PRAGMA user_version={FORMAT_VERSION}",
            ):
                writer.execute(statement)
        writer.execute("COMMIT")

    def _read_number(self, name: str) -> int:
        return int(self._reader.execute(f"PRAGMA {name}").fetchone()[0])

    def _check(self) -> None:
        """Refuse a file of other programs, or of another format."""
        if self._read_number("application_id") != _APPLICATION:
            raise InputError(f"{self.path} was not written by diptych; choose another folder.")
        version = self._read_number("user_version")
        if version > FORMAT_VERSION:
            raise InputError(
                f"{self.path} has format version {version}, newer than this library reads "
                f"({FORMAT_VERSION}); install a newer version of diptych."
            )
        rows = self._reader.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        if {sql for (sql,) in rows} not in ({*SCHEMA}, {*SCHEMA, *PHOTO_SCHEMA}):
            raise InputError(f"{self.path} has other tables than it was made with; restore the file.")

    @contextmanager
    def _explain(self) -> Iterator[None]:
        """Say what an error of SQLite means."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise UnavailableError(
                    f"{self.folder} is being changed by another process; try again later."
                ) from None
            if code in _SYSTEM_ERRORS:
                number = _SYSTEM_ERRORS[code]
                raise OSError(number, os.strerror(number), os.fspath(self.path)) from None
            raise InputError(f"{self.path} is damaged ({str(error)[:200]}); restore the file.") from None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(os.fspath(path))}?{mode}",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=_STEP_SECONDS,
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW_BYTES)
    for setting in ("trusted_schema=OFF", "cell_size_check=ON", "synchronous=FULL", "temp_store=MEMORY"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def _identify(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _close(connections: list[sqlite3.Connection], process: int) -> None:
    if os.getpid() == process:
        for connection in connections:
            connection.close()
