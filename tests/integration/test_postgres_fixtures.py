"""The fixtures that all tests with a database stand on."""

import pytest
import sqlalchemy

from tests.fixtures.postgres import Database


@pytest.mark.parametrize("run", ["first", "second"])
def test_each_test_has_a_migrated_database_of_its_own(database: Database, run: str) -> None:
    connection = database.connect()
    connection.execute("create table only_here ()")

    assert connection.autocommit
    assert connection.execute("select to_regclass('mqdb.commit_log') is not null").fetchone() == (True,)


@pytest.mark.parametrize("run", ["first", "second"])
def test_what_a_test_does_on_conn_is_rolled_back(conn: sqlalchemy.Connection, run: str) -> None:
    conn.execute(sqlalchemy.text("create table only_now ()"))


def test_engine_and_database_are_the_same(engine: sqlalchemy.Engine, database: Database) -> None:
    database.connect().execute("create table here ()")

    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("select count(*) from here")).scalar_one() == 0


def test_databases_of_earlier_tests_are_gone_with_their_sessions(
    database: Database, shared_engine: sqlalchemy.Engine
) -> None:
    connection = database.connect()
    mine = [connection.info.dbname, shared_engine.url.database]

    others = connection.execute(
        "select datname from pg_database where datname like %s and datname <> all(%s)", ["test%", mine]
    )

    assert others.fetchall() == []
