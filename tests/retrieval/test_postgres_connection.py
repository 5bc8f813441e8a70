"""Addresses of databases, passwords that stay secret, and connections that are lost, few or inherited."""

import os
import sys
import threading
import time

import numpy as np
import psycopg
import pytest

from diptych import AWCCA, InputError, Retriever
from diptych._checks import UnavailableError
from diptych.retrieval.stores import read_address
from diptych.retrieval.stores._base import RefusedError
from diptych.retrieval.stores.postgres import PostgresStore
from diptych.retrieval.stores.postgres._connection import Address, Connections, _configure
from filled_stores import fill, unit_rows
from saved_files import edit_config


@pytest.fixture
def store(fresh, rng):
    return fill(PostgresStore(fresh(retry_seconds=1), create=True), unit_rows(rng, 30, 4))


def backend_pids(store):
    return [c.info.backend_pid for c in store._connections._pools[os.getpid()]._pool]


class TestAddress:
    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://user:s3cret@nowhere.invalid/db",
            "postgresql://user:s3cret@127.0.0.1:1/db",
            "postgresql://user:s3cret@host:port:port/db",
            "postgresql://user:s3cret@host/db?nonsense=1",
            "postgresql://user:s3cret@host/db?schema=pg_catalog",
            "postgresql://user:s3cret@host/db?schema=a;b",
            "postgresql://user:s3cret@host/db?index=tree",
            "postgresql://user:s3cret@host/db?ef_search=0",
            "mysql://user:s3cret@host/db",
        ],
    )
    def test_an_invalid_address_is_one_sentence_without_the_password(self, address):
        for action in (
            lambda: Retriever.connect(address),
            lambda: Retriever.from_model(
                AWCCA(params=(2, 3)).fit(np.eye(6), np.eye(6)[:, :4]), index=address
            ),
        ):
            with pytest.raises(InputError) as caught:
                action()
            assert "s3cret" not in str(caught.value)
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        "address",
        [
            "postgresql://host/db?passfile=/etc/passwd",
            "postgresql://host/db?service=x",
            "postgresql://u:secret@h/d",
            5,
            None,
            "host=x",
        ],
    )
    def test_a_folder_may_contain_only_the_place_of_a_database(self, views, fresh, tmp_path, address):
        retriever = Retriever.from_features(*views(), model=AWCCA(params=(2.0, 3.0)), index=fresh())
        retriever.save(tmp_path / "model")
        edit_config(tmp_path / "model", address=address)
        with pytest.raises(InputError) as caught:
            Retriever.load(tmp_path / "model")
        assert "secret" not in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_public_address_can_be_read_again(self):
        address = Address.parse(
            "postgresql://me:secret@host:5433/db?schema=mine&ef_search=77&sslmode=require"
        )
        assert address.public == "postgresql://me@host:5433/db?sslmode=require&schema=mine&ef_search=77"
        assert read_address(address.public) == address.public
        assert "secret" not in repr(address)

    def test_a_missing_driver_is_named_with_the_command_that_installs_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(InputError, match=r'pip install "pgvector>=.*" "psycopg\[binary.*\]>='):
            Retriever(None, None, index="postgresql://host/database")
        assert Retriever(None, None, index="flat").index == "flat"


class TestPool:
    def test_threads_share_a_single_connection(self, fresh, rng):
        vectors = unit_rows(rng, 30, 4)
        store = fill(PostgresStore(fresh(connections=1), create=True), vectors)
        counts = []
        threads = [
            threading.Thread(target=lambda: counts.extend(store.count() for _ in range(20))) for _ in range(6)
        ]
        for thread in (*threads, replacing := threading.Thread(target=fill, args=(store, vectors))):
            thread.start()
        for thread in (*threads, replacing):
            thread.join(timeout=30)
            assert not thread.is_alive()
        assert counts == [30] * 120
        assert len(backend_pids(store)) == 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
    def test_a_forked_child_makes_connections_of_its_own(self, store):
        assert store.count() == 30
        before = backend_pids(store)
        child = os.fork()
        if child == 0:
            os._exit(0 if store.count() == 30 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert store.count() == 30
        assert backend_pids(store) == before

    def test_a_store_that_is_not_used_any_more_ends_its_threads_and_connections(self, database, fresh, rng):
        store = fill(PostgresStore(fresh(), create=True), unit_rows(rng, 3, 4))
        (pid,), (pool,) = backend_pids(store), store._connections._pools.values()
        threads = [thread for thread in threading.enumerate() if thread.name.startswith(f"{pool.name}-")]
        assert len(threads) == 2
        del store, pool
        for thread in threads:
            thread.join(timeout=10)
            assert not thread.is_alive()
        until = time.monotonic() + 10
        while database.ask("SELECT FROM pg_stat_activity WHERE pid = %s", pid):
            assert time.monotonic() < until
            time.sleep(0.02)

    def test_a_refused_statement_is_one_sentence_and_the_connection_stays(self, store):
        before = store.count(), backend_pids(store)
        with pytest.raises(RefusedError, match="refused: column .nothing. does not exist") as caught:
            store._connections.run(lambda connection: connection.execute("SELECT nothing"))
        assert "\n" not in str(caught.value)
        assert (store.count(), backend_pids(store)) == before

    def test_settings_of_the_connections(self, database, fresh):
        address = fresh(ef_search=77, options="-c synchronous_commit=off")
        with psycopg.connect(database.server, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
            _configure(connection, ef_search=77)
        connections = Connections(Address.parse(address), lambda connection: None)
        for name, value in (("hnsw.ef_search", "77"), ("synchronous_commit", "on"), ("jit", "off")):
            row = connections.run(lambda c, name=name: c.execute(f"SHOW {name}").fetchone())
            assert row == (value,), name


class TestLostConnections:
    def test_a_server_that_stays_away_is_one_sentence(self, database, store):
        database.kill()
        try:
            with pytest.raises(UnavailableError, match="lost and could not be restored within 1 s") as caught:
                store.count()
            assert "\n" not in str(caught.value)
            with pytest.raises(UnavailableError, match="cannot reach the database"):
                PostgresStore(store.address).count()
        finally:
            database.start()
        assert store.count() == 30

    def test_an_action_is_repeated_when_its_connection_is_lost(self, database, store):
        calls = []

        def action(connection):
            calls.append(connection.info.backend_pid)
            if len(calls) < 3:
                database.ask("SELECT pg_terminate_backend(%s)", calls[-1])
            return connection.execute("SELECT 5").fetchone()

        assert store._connections.run(action) == (5,)
        assert len(set(calls)) == 3

    def test_nested_actions_share_a_connection_only_where_they_are_to(self, store):
        run = store._connections.run

        def pids(connection):
            return connection.info.backend_pid, run(lambda inner: inner.info.backend_pid)

        own, shared = run(pids, share=True)
        assert own == shared
        own, other = run(pids)
        assert own != other
