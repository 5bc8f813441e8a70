"""The tables of a schema: created, migrated, and used by users with few rights."""

import threading

import numpy as np
import psycopg
import pytest

from diptych import InputError
from diptych.retrieval._items import Item
from diptych.retrieval.stores._base import Block, RefusedError
from diptych.retrieval.stores.postgres import PostgresStore
from diptych.retrieval.stores.postgres import _schema as schema_module
from diptych.retrieval.stores.postgres._connection import Address
from diptych.retrieval.stores.postgres._schema import MIGRATIONS, Version, create_vectors, migrate
from filled_stores import fill, unit_rows

LATER = ("ALTER TABLE {schema}.versions ADD note text", "CREATE TABLE {schema}.later (id bigint)")


@pytest.fixture
def address(fresh):
    return fresh()


@pytest.fixture
def store(address, rng):
    return fill(PostgresStore(address, create=True), unit_rows(rng, 30, 4))


def schema_of(address):
    return Address.parse(address).schema


def columns(database, address):
    return database.ask(
        "SELECT table_name, column_name, data_type FROM information_schema.columns "
        "WHERE table_schema = %s ORDER BY 1, 2",
        schema_of(address),
    )


class TestMigrations:
    def test_an_older_schema_keeps_its_rows_and_gets_the_tables_of_a_new_one(
        self, database, store, address, fresh, monkeypatch
    ):
        monkeypatch.setattr(schema_module, "MIGRATIONS", (*MIGRATIONS, LATER))
        assert PostgresStore(address).count() == 30
        versions = database.ask(f"SELECT version FROM {schema_of(address)}.schema_version ORDER BY 1")
        assert versions == [(number + 1,) for number in range(len(MIGRATIONS) + 1)]
        fill(PostgresStore(new := fresh(), create=True), np.eye(4, dtype=np.float32))
        assert columns(database, address) == columns(database, new)
        assert ("later", "id", "bigint") in columns(database, address)

    def test_the_first_schema_is_migrated(self, database, store, address, rng):
        """Its tables of vectors had a column for lengths; it counted changes and kept two versions."""
        schema, rows = schema_of(address), unit_rows(rng, 1, 4)
        expected = columns(database, address)
        with database.connect() as connection:
            for table in ("search_1", "annotate_1"):
                connection.execute(f"ALTER TABLE {schema}.{table} ADD norm real NOT NULL DEFAULT 1")
                connection.execute(f"ALTER TABLE {schema}.{table} ALTER norm DROP DEFAULT")
            connection.execute(f"ALTER TABLE {schema}.current_version ADD changes bigint NOT NULL DEFAULT 0")
            connection.execute(f"ALTER TABLE {schema}.current_version ADD previous bigint")
            connection.execute(f"DELETE FROM {schema}.schema_version WHERE version > 1")
        opened = PostgresStore(address)
        opened.add([Block("image", [Item("new", "image")], rows)], opened.state().version)
        assert opened.search("search", rows, 1, None, "1")[0][0][0].id == "new"
        assert columns(database, address) == expected

    def test_processes_that_migrate_at_the_same_time_do_it_once(self, database, address):
        errors = []

        def create():
            try:
                with psycopg.connect(database.server, autocommit=True) as connection:
                    migrate(connection, Address.parse(address), create=True)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=create) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        versions = database.ask(f"SELECT version FROM {schema_of(address)}.schema_version")
        assert len(versions) == len(MIGRATIONS)

    def test_a_newer_schema_is_refused_with_the_command_that_helps(self, database, store, address):
        with database.connect() as connection:
            connection.execute(f"INSERT INTO {schema_of(address)}.schema_version (version) VALUES (99)")
        with pytest.raises(InputError, match="install a newer version of diptych"):
            PostgresStore(address).state()

    def test_only_a_fit_creates_tables(self, database, address):
        def check_refused():
            with pytest.raises(InputError, match="holds no model in the schema"):
                PostgresStore(address).state()

        check_refused()
        assert database.tables(schema_of(address)) == []
        assert PostgresStore(address, create=True).state().version == ""
        check_refused()


class TestRights:
    @pytest.fixture
    def reader(self, database):
        """The address of the server for a user without any rights, who may get some."""
        with database.connect() as connection:
            connection.execute("CREATE ROLE reader LOGIN PASSWORD 's3cret'")
            connection.execute("REVOKE CREATE ON DATABASE postgres FROM PUBLIC")
        yield lambda address: address.replace("postgres:@", "reader:s3cret@", 1)
        with database.connect() as connection:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")

    def test_a_user_who_may_only_read_can_search_and_not_write(self, database, store, address, reader, rng):
        schema = schema_of(address)
        with database.connect() as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO reader")
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO reader")
            connection.execute(f"GRANT SELECT ON ALL SEQUENCES IN SCHEMA {schema} TO reader")
        other, query = PostgresStore(reader(address)), unit_rows(rng, 1, 4)
        assert other.state() == store.state()
        assert other.search("search", query, 5, None, "1") == store.search("search", query, 5, None, "1")
        block = Block("image", [Item("new", "image")], query)
        for write in (
            lambda: other.add([block], "1"),
            lambda: other.remove(["0"]),
            lambda: fill(other, query),
        ):
            with pytest.raises(RefusedError, match="refused: permission denied") as caught:
                write()
            assert "s3cret" not in str(caught.value)
        assert other.state() == store.state()
        assert store.count() == 30

    def test_a_user_without_rights_is_refused_in_one_sentence(self, store, address, reader):
        with pytest.raises(InputError, match="permission denied") as caught:
            PostgresStore(reader(address)).state()
        assert "s3cret" not in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_user_who_may_not_create_tables_is_told_whom_to_ask(self, fresh, reader):
        with pytest.raises(InputError, match="ask an administrator to run CREATE EXTENSION vector"):
            PostgresStore(reader(fresh()), create=True).state()


def test_vectors_that_are_too_long_are_refused_with_a_remedy():
    def create(columns, *, graph):
        version = Version("schema", 1, 1, "float32", graph, True, {"search": columns}, {})
        create_vectors(None, version, "search")

    with pytest.raises(InputError, match="4001 columns are too long for an HNSW graph .* n_components, or"):
        create(4001, graph=True)
    with pytest.raises(InputError, match="16001 columns are too long for pgvector"):
        create(16_001, graph=False)
