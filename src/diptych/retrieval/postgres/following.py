"""Reading from a database whose model others may replace: always from one snapshot, and of one version."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from psycopg.errors import UndefinedTable

from diptych.checks import InputError
from diptych.retrieval.collection import Content, OtherEncodersError
from diptych.retrieval.items import VIEWS
from diptych.retrieval.postgres import versions
from diptych.retrieval.postgres.connecting import Connection, Connections
from diptych.retrieval.postgres.versions import GoneError, Version

T = TypeVar("T")


class Follower:
    """Holds the version that was current when it last looked, and looks at every question.

    Parameters
    ----------
    connections
        To the server.
    version
        The version that was current.
    reopen
        Opens anew what is there, with its encoders.
    """

    def __init__(self, connections: Connections, version: Version, reopen: Callable[[], Content]) -> None:
        self.connections, self.address = connections, connections.address
        self.version, self._reopen = version, reopen
        self.seen = version.id
        self._lock = threading.Lock()

    def read(self, ask: Callable[[Connection, Version], T], *, streamed: bool = False) -> T:
        """Ask within one snapshot of the database, of the version that is current there.

        Unless rows are ``streamed``, statements go out before the answer about the version is waited for; it
        counts all the same.
        """

        def attempt(connection: Connection) -> T:
            while True:
                version, missing = self.version, ""
                refused: InputError | None = None
                try:
                    with ExitStack() as stack:
                        if not streamed:
                            stack.enter_context(connection.pipeline())
                        stack.enter_context(connection.transaction())
                        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                        asked = versions.ask_current(connection, self.address.schema)
                        current = versions.told(asked, self.address.schema)[0] if streamed else version.id
                        if current == version.id:
                            try:
                                found = ask(connection, version)
                            except InputError as error:
                                refused = error
                            if streamed or versions.told(asked, self.address.schema)[0] == version.id:
                                if refused is not None:
                                    raise refused
                                return found
                except UndefinedTable as error:  # it was replaced twice since it was loaded
                    missing = str(error.diag.message_primary)
                if self.followed(connection) is version and missing:
                    raise InputError(f"{missing} in {self.address.public}; restore it, or fit again.")

        return self.connections.run(attempt)

    def followed(self, connection: Connection) -> Version:
        """The version that is current now, loaded if it is a new one."""
        with self._lock:
            while True:
                number, _ = versions.current(connection, self.address.schema)
                if number is None:
                    raise versions.nothing(self.address)
                if number == self.version.id:
                    return self.version
                try:
                    new = versions.read_version(connection, self.address, number)
                except GoneError:
                    continue
                self.seen = number
                if any(self.version.known[view].fingerprint != new.known[view].fingerprint for view in VIEWS):
                    raise OtherEncodersError(self._reopen)
                self.version = new
