"""The fixtures that all tests with a database stand on."""

import pytest
import sqlalchemy

from tests.fixtures.postgres import OWNER, Database


@pytest.mark.parametrize("run", ["first", "second"])
def test_each_test_has_a_migrated_database_of_its_own(database: Database, run: str) -> None:
    connection = database.connect()
    connection.execute("create table only_here ()")

    assert connection.autocommit
    assert connection.execute("select to_regclass('mqdb.commit_log') is not null").fetchone() == (True,)


@pytest.mark.parametrize("run", ["first", "second"])
def test_what_a_test_does_on_conn_is_rolled_back(conn: sqlalchemy.Connection, run: str) -> None:
    conn.execute(sqlalchemy.text("create table public.only_now ()"))


def test_engine_and_database_are_the_same(engine: sqlalchemy.Engine, database: Database) -> None:
    database.connect().execute("create table public.here ()")

    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("select count(*) from public.here")).scalar_one() == 0


def test_databases_of_earlier_tests_are_gone_with_their_sessions(
    database: Database, shared_engine: sqlalchemy.Engine
) -> None:
    connection = database.connect()
    with shared_engine.connect() as shared:
        mine = [database.name, shared.execute(sqlalchemy.text("select current_database()")).scalar_one()]

    others = connection.execute(
        "select datname from pg_database where datname like %s and datname <> all(%s)", ["test%", mine]
    )

    assert others.fetchall() == []


def test_the_only_roles_are_the_superuser_and_an_owner_without_further_rights(database: Database) -> None:
    connection = database.connect()

    roles = connection.execute("select rolname from pg_roles where rolname !~ '^pg_' order by 1").fetchall()
    rights = """select rolsuper, rolcreatedb, rolcreaterole, rolreplication, rolbypassrls,
                       exists (select from pg_auth_members where member = pg_roles.oid)
                from pg_roles where rolname = current_user"""

    assert {name for (name,) in roles} == {"postgres", OWNER}
    assert connection.execute("select current_user").fetchone() == (OWNER,)
    assert connection.execute(rights).fetchone() == (False,) * 6
