"""The migrations create the schema that tables.py describes, once, by hand or by mqdb, and report its version."""

import subprocess
import sys
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from sqlalchemy.dialects.postgresql import DOMAIN
from sqlalchemy.dialects.postgresql.base import ischema_names

from mqdb.embedded import EmbeddedPostgres
from mqdb.embedded.account import postgres_environment
from mqdb.errors import EncodingNotSupported, SchemaMissing, SchemaTooNew, SchemaTooOld, SchemaUnreleased
from mqdb.store import migrations, tables
from mqdb.store.engine import create_engine
from mqdb.store.session_settings import SESSION_SETTINGS, startup_options
from mqdb_client import Producer
from tests.fixtures.log import Connection, append, create_topic
from tests.fixtures.odd_settings import TOGETHER, set_odd
from tests.fixtures.postgres import (
    Database,
    create_database,
    drop_database,
    libpq_15,
    new_database,
    owner_dsn,
    superuser_dsn,
    with_parts,
)

#: What the tables are made of, as kind and text.
CATALOG = """
WITH relations AS (
    SELECT c.*, c.oid::regclass::text AS name FROM pg_class c
    WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind <> 'c'
)
SELECT 'relation', format('%s %s %s', name, relkind, pg_get_partkeydef(oid)) FROM relations
UNION ALL
SELECT 'option', format('%s %s', name, reloptions) FROM relations
UNION ALL
SELECT 'partition', format('%s %s', name, pg_get_expr(relpartbound, oid)) FROM relations WHERE relispartition
UNION ALL
SELECT 'column', format('%s.%s %s %s %s %s default %s', name, attname, attnum,
                        format_type(coalesce(nullif(typbasetype, 0), atttypid), atttypmod),
                        attnotnull, attidentity, pg_get_expr(adbin, adrelid))
FROM relations r JOIN pg_attribute a ON a.attrelid = r.oid JOIN pg_type t ON t.oid = atttypid
LEFT JOIN pg_attrdef ON adrelid = r.oid AND adnum = attnum
WHERE attnum > 0 AND relkind IN ('r', 'p', 'v')
UNION ALL
SELECT CASE contype WHEN 'c' THEN 'check' ELSE 'constraint' END, format('%s: %s', conname, pg_get_constraintdef(oid))
FROM pg_constraint WHERE connamespace = 'mqdb'::regnamespace
UNION ALL
SELECT 'index', pg_get_indexdef(oid) FROM relations WHERE relkind IN ('i', 'I')
UNION ALL
SELECT 'sequence', format('%s %s', s.seqrelid::regclass, to_jsonb(s) - 'seqrelid')
FROM pg_sequence s JOIN relations r ON r.oid = s.seqrelid
"""

#: What only the migrations make, the first rows included.
CODE = """
SELECT 'function', pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'mqdb'::regnamespace
UNION ALL
SELECT 'view', pg_get_viewdef(oid) FROM pg_class WHERE relnamespace = 'mqdb'::regnamespace AND relkind = 'v'
UNION ALL
SELECT 'type', format('%s.%s %s', t.typname, a.attname, format_type(a.atttypid, a.atttypmod))
FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
WHERE t.typnamespace = 'mqdb'::regnamespace AND a.attnum > 0
UNION ALL
SELECT 'comment', format('%s: %s', o.identity, d.description)
FROM pg_description d, pg_identify_object(d.classoid, d.objoid, d.objsubid) o
WHERE o.schema = 'mqdb' OR o.identity LIKE 'mqdb%'
UNION ALL SELECT 'row', (to_jsonb(t) - 'created_at')::text FROM mqdb.topic t
UNION ALL SELECT 'row', to_jsonb(q)::text FROM mqdb.queue q
UNION ALL SELECT 'row', (to_jsonb(s) - 'created_at')::text FROM mqdb.segment s
UNION ALL SELECT 'row', format('%s %s', last_value, is_called) FROM mqdb.log_pos
UNION ALL SELECT 'row', (to_jsonb(b) - 'created_at' - 'database_oid')::text FROM mqdb.broker b
UNION ALL SELECT 'row', format('%s %s %s', service, seq, done_pos) FROM mqdb.checkpoint
UNION ALL SELECT 'row', version_num FROM mqdb.alembic_version
"""


@pytest.fixture
def empty_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database without any objects."""
    with new_database(postgres, "template0") as database:
        yield database


def catalog(connection: Connection, *, without: Collection[str] = ()) -> list[str]:
    connection.execute("SET search_path = ''")  # names in full
    rows = connection.execute(CATALOG).fetchall()
    return sorted(f"{kind}: {text}" for kind, text in rows if kind not in without)


def code(connection: Connection) -> list[str]:
    connection.execute("SET search_path = ''")
    return sorted(f"{kind}: {text}" for kind, text in connection.execute(CODE))


# -- migrations and tables.py -------------------------------------------------------------------


def test_alembic_finds_no_difference_to_the_tables(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ischema_names, "xid8", tables.Xid8)
    monkeypatch.setitem(ischema_names, "pg_snapshot", tables.PgSnapshot)
    engine = create_engine(database.dsn, prepared=False)
    rows = database.connect().execute("SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r'")
    partitions = {row[0] for row in rows}

    def is_ours(name: str | None, kind: str, parents: object) -> bool:
        return name == "mqdb" if kind == "schema" else name not in partitions | {"alembic_version"}

    def is_another_type(_context: object, _found: object, _ours: object, found: object, ours: Any) -> bool | None:
        if not isinstance(found, DOMAIN):
            return None
        return bool(found.data_type.compile(engine.dialect) != ours.compile(engine.dialect))

    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": is_ours,
                "compare_type": is_another_type,
                "compare_server_default": True,
                "version_table_schema": "mqdb",
            },
        )
        found = compare_metadata(context, tables.metadata)
    engine.dispose()

    # Differences of one column come as a list. Comments are in the database only.
    differences = [step for group in found for step in (group if isinstance(group, list) else [group])]
    assert [step for step in differences if not step[0].endswith("_comment")] == []


def test_the_tables_make_the_same_catalog(database: Database, empty_database: Database) -> None:
    """The tables make the same catalog as the migrations, column by column, in order.

    Indexes, partition keys and sequences, which Alembic does not compare, are included. CHECK constraints, domains,
    partitions, functions and views exist only in the migrations.
    """
    by_migration = database.connect()
    for (name,) in by_migration.execute("SELECT viewname FROM pg_views WHERE schemaname = 'mqdb'").fetchall():
        by_migration.execute(f"DROP VIEW IF EXISTS mqdb.{name} CASCADE")
    by_migration.execute("DROP TABLE mqdb.alembic_version")
    partitions = "SELECT oid::regclass::text FROM pg_class WHERE relispartition AND relkind = 'r'"
    for (name,) in by_migration.execute(partitions).fetchall():
        by_migration.execute(f"DROP TABLE {name}")
    by_tables = empty_database.connect()
    by_tables.execute("CREATE SCHEMA mqdb")
    by_tables.execute("CREATE FUNCTION mqdb.now() RETURNS timestamptz RETURN now()")
    by_tables.execute("CREATE FUNCTION mqdb.sink_principal() RETURNS text RETURN session_user::text")

    engine = create_engine(empty_database.dsn)
    tables.metadata.create_all(engine)
    engine.dispose()

    # A fill factor is nothing that a statement needs to know.
    left_out = {"check", "option"}
    assert catalog(by_tables, without=left_out) == catalog(by_migration, without=left_out)


# -- comments -----------------------------------------------------------------------------------


def test_every_object_has_a_comment(database: Database) -> None:
    silent = database.connect().execute(
        """
        WITH objects AS (
            SELECT 'pg_class'::regclass AS classoid, c.oid AS objoid, c.oid::regclass::text AS name FROM pg_class c
            WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
              AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.objid = c.oid AND d.deptype = 'i' AND c.relkind = 'S')
            UNION ALL
            SELECT 'pg_proc'::regclass, p.oid, p.oid::regprocedure::text FROM pg_proc p
            WHERE p.pronamespace = 'mqdb'::regnamespace
            UNION ALL
            SELECT 'pg_type'::regclass, t.oid, t.oid::regtype::text FROM pg_type t
            LEFT JOIN pg_class c ON c.oid = t.typrelid
            WHERE t.typnamespace = 'mqdb'::regnamespace AND t.typelem = 0 AND coalesce(c.relkind, 'c') = 'c'
            UNION ALL
            SELECT 'pg_namespace'::regclass, 'mqdb'::regnamespace::oid, 'schema mqdb'
        )
        SELECT name FROM objects o
        WHERE NOT EXISTS (SELECT FROM pg_description d
                          WHERE (d.classoid, d.objoid, d.objsubid) = (o.classoid, o.objoid, 0))
        ORDER BY name
        """
    )

    assert [row[0] for row in silent] == []


# -- upgrade ------------------------------------------------------------------------------------


@pytest.fixture
def database_of_mqdb(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database whose owner has the same name as the schema."""
    with psycopg.connect(superuser_dsn(postgres), autocommit=True) as superuser:
        superuser.execute("CREATE ROLE mqdb LOGIN PASSWORD 'geheim'")
        with new_database(postgres) as database:
            superuser.execute(sql.SQL("ALTER DATABASE {} OWNER TO mqdb").format(sql.Identifier(database.name)))
            yield replace(database, dsn=with_parts(database.dsn, user="mqdb", password="geheim"))
        superuser.execute("DROP ROLE mqdb")


def test_what_the_role_named_like_the_schema_makes_is_not_in_the_schema(database_of_mqdb: Database) -> None:
    migrations.upgrade(database_of_mqdb.dsn)

    connection = database_of_mqdb.connect()
    connection.execute("CREATE TABLE message (id integer)")
    tables_of_its_own = "SELECT schemaname FROM pg_tables WHERE tablename = 'message'"
    assert connection.execute(tables_of_its_own).fetchall() == [("public",)]
    assert connection.execute("SELECT to_regclass('alembic_version')").fetchone() == (None,)


def test_a_search_path_that_the_role_has_stays(database_of_mqdb: Database) -> None:
    setting = sql.SQL("ALTER ROLE mqdb IN DATABASE {} SET search_path = mine, public")
    database_of_mqdb.connect().execute(setting.format(sql.Identifier(database_of_mqdb.name)))

    migrations.upgrade(database_of_mqdb.dsn)

    assert database_of_mqdb.connect().execute("SHOW search_path").fetchone() == ("mine, public",)


def test_a_second_upgrade_changes_nothing(database: Database) -> None:
    connection = database.connect()
    (queue,) = create_topic(connection, "orders")
    append(connection, queue, 3)
    before = catalog(connection) + code(connection)

    migrations.upgrade(database.dsn)

    assert catalog(connection) + code(connection) == before
    assert connection.execute("SELECT count(*) FROM mqdb.commit_log").fetchone() == (3,)


def test_an_upgrade_gives_the_broker_its_name(database: Database) -> None:
    migrations.upgrade(database.dsn, broker_name="broker-b")

    assert database.connect().execute("SELECT broker_name FROM mqdb.broker").fetchone() == ("broker-b",)


@pytest.mark.parametrize("means", ["psql", "one statement"])
def test_the_sql_for_administrators_makes_the_same_database(
    database: Database, empty_database: Database, postgres: EmbeddedPostgres, means: str
) -> None:
    script = migrations.upgrade_sql()

    if means == "psql":
        psql = postgres.binaries.program("psql")
        done = subprocess.run(
            [psql, "--no-psqlrc", "--set=ON_ERROR_STOP=1", "--quiet", f"--dbname={libpq_15(empty_database.dsn)}"],
            input=script.encode(),
            capture_output=True,
            env=postgres_environment(),
            check=False,
        )
        assert (done.returncode, done.stderr.decode()) == (0, "")
    else:
        empty_database.connect().execute(script.encode())

    by_hand, by_mqdb = empty_database.connect(), database.connect()
    # The template has a clock for tests.
    by_mqdb.execute(migrations.sql_text("log/now").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").encode())
    assert catalog(by_hand) == catalog(by_mqdb)
    assert code(by_hand) == code(by_mqdb)


def test_an_upgrade_makes_the_same_database_whatever_a_session_begins_with(
    database: Database, empty_database: Database
) -> None:
    set_odd(empty_database, "role", TOGETHER["one"])

    migrations.upgrade(empty_database.dsn)

    made, expected = empty_database.connect(options=startup_options(SESSION_SETTINGS)), database.connect()
    # The template has a clock for tests.
    expected.execute(migrations.sql_text("log/now").replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION").encode())
    assert catalog(made) == catalog(expected)
    assert code(made) == code(expected)


def test_an_upgrade_that_fails_leaves_nothing_behind(empty_database: Database) -> None:
    connection = empty_database.connect()
    connection.execute("CREATE SCHEMA mqdb CREATE TABLE mqdb.checkpoint ()")

    with pytest.raises(Exception, match="checkpoint"):
        migrations.upgrade(empty_database.dsn)

    assert connection.execute("SELECT relname FROM pg_class WHERE relnamespace = 'mqdb'::regnamespace").fetchall() == [
        ("checkpoint",)
    ]


# -- which version ------------------------------------------------------------------------------


def test_the_names_of_the_scripts_tell_which_is_the_newest() -> None:
    script = Config()
    script.set_main_option("script_location", str(Path(__file__).parents[2] / "migrations"))
    by_alembic = ScriptDirectory.from_config(script)

    # From the newest to the oldest: each number follows those below it.
    numbers = [each.revision for each in by_alembic.walk_revisions()]
    assert numbers == sorted(numbers, reverse=True)
    assert migrations.head() == by_alembic.get_current_head()


def test_a_client_asks_for_the_newest_version_without_alembic() -> None:
    program = "import sys, mqdb_client.instance; from mqdb.store import migrations; migrations.head()"

    subprocess.run([sys.executable, "-c", f"{program}; assert 'alembic' not in sys.modules"], check=True)


def test_a_database_at_head_is_accepted(database: Database) -> None:
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        migrations.check_schema(connection)
        assert migrations.current(connection) == migrations.head()
    engine.dispose()


def test_a_database_without_schema_is_refused(empty_database: Database) -> None:
    engine = create_engine(empty_database.dsn)
    with engine.connect() as connection, pytest.raises(SchemaMissing, match="mqdb migrate"):
        migrations.check_schema(connection)
    engine.dispose()


def test_an_older_schema_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    found = migrations.head()
    monkeypatch.setattr(migrations, "head", lambda: "9999")
    engine = create_engine(database.dsn)

    with engine.connect() as connection, pytest.raises(SchemaTooOld) as refused:
        migrations.check_schema(connection)

    engine.dispose()
    assert (refused.value.found, refused.value.needed) == (found, "9999")


@pytest.mark.parametrize("found", ["0101", "0199", "0200", "0299.0a1b2c3d"])
def test_a_newer_schema_of_this_series_or_the_next_is_accepted(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "head", lambda: "0100")

    migrations.check_revision(found, "a database")

    assert migrations.is_ahead(found)


@pytest.mark.parametrize("found", ["0300", "9999", "9999.0a1b2c3d"])
def test_a_schema_two_series_ahead_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "head", lambda: "0100")

    with pytest.raises(SchemaTooNew):
        migrations.check_revision(found, "a database")


def test_a_newer_schema_is_refused(database: Database) -> None:
    database.connect().execute("UPDATE mqdb.alembic_version SET version_num = '9999'")
    engine = create_engine(database.dsn)

    with engine.connect() as connection, pytest.raises(SchemaTooNew) as refused:
        migrations.check_schema(connection)

    engine.dispose()
    assert (refused.value.found, refused.value.known) == ("9999", migrations.head())


@pytest.mark.parametrize("lacking", ["TABLE mqdb.broker CASCADE", "FUNCTION mqdb.history() CASCADE"])
def test_a_client_is_told_the_revision_also_of_a_schema_that_lacks_what_it_asks_for(
    database: Database, lacking: str
) -> None:
    session = database.connect()
    session.execute(f"DROP {lacking}".encode())
    session.execute("UPDATE mqdb.alembic_version SET version_num = '0050'")

    with pytest.raises(SchemaUnreleased) as refused:
        Producer("greeters", database.dsn).start()

    assert refused.value.found == "0050"


def test_a_newer_schema_is_not_touched_by_an_upgrade(database: Database) -> None:
    database.connect().execute("UPDATE mqdb.alembic_version SET version_num = '9999'")

    with pytest.raises(SchemaTooNew):
        migrations.upgrade(database.dsn)


def test_a_database_that_cannot_hold_every_text_is_refused(postgres: EmbeddedPostgres) -> None:
    latin1 = sql.SQL("ENCODING LATIN1 LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    create_database(postgres, "latin1", latin1)
    try:
        with pytest.raises(EncodingNotSupported, match="UTF8") as refused:
            migrations.upgrade(owner_dsn(postgres, "latin1"))
    finally:
        drop_database(postgres, "latin1")

    assert refused.value.encoding == "LATIN1"
