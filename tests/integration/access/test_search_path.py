"""mqdb ignores functions in other schemas: its functions and sessions call PostgreSQL's own.

PostgreSQL takes the function of the first schema in the search_path whose arguments fit best. A role that may create
functions in `public` can create one that fits better than PostgreSQL's own, and that would run with the rights of its
caller.
"""

import pytest
from psycopg import sql

from mqdb.common.group import ConsumeFromWhere
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store import migrations
from mqdb.store.engine import create_engine
from mqdb.store.movable_clock import make_clock_movable
from mqdb_client import Message, MessageSelector, Producer, PushConsumer
from tests.fixtures.consumers import Inbox
from tests.fixtures.log import create_topic, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.traps import caught, set_traps


@pytest.fixture
def trapped(empty_database: Database) -> Database:
    """A database with traps in `public`, which comes first in the owner's search_path.

    The schema of mqdb was migrated into the database afterwards.
    """
    connection = empty_database.connect()
    set_traps(connection)
    path = sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog")
    connection.execute(path.format(sql.Identifier(connection.info.dbname)))
    migrations.upgrade(empty_database.dsn)
    return empty_database


def test_the_traps_catch_a_session_that_looks_into_public_first(trapped: Database) -> None:
    session = trapped.connect()

    session.execute("SELECT hashtextextended('a'::text, 0)")

    assert caught(session)


def test_the_migration_and_the_functions_of_a_session_call_nobody_elses_functions(trapped: Database) -> None:
    session = trapped.connect()
    create_topic(session, "orders")
    for statement in (
        """SELECT mqdb.send('orders', 'a', tag => 'paid', keys => 'k1 k2', properties => '{"a": "1"}')""",
        "SELECT mqdb.send('orders', 'b', delay_level => 1)",
        "SELECT mqdb.send('orders', 'c', deliver_at => clock_timestamp() + interval '1 hour')",
        "SELECT mqdb.dispatch(100)",
        "SELECT mqdb.index_keys(100)",
        "SELECT mqdb.ensure_segments(5)",
        "SELECT mqdb.recall('orders', (SELECT msg_id FROM mqdb.message LIMIT 1))",
        "SELECT mqdb.dlq_redrive('{1}')",
        "SELECT mqdb.java_double('1e5'), mqdb.java_int('5'), mqdb.java_long('0x1'), mqdb.java_double('0x1p3')",
        "TABLE mqdb.message",
        "TABLE mqdb.dlq",
        "TABLE mqdb.scheduled",
        "TABLE mqdb.half_messages",
        "TABLE mqdb.consumer_lag",
    ):
        session.execute(statement.encode())

    assert caught(session) == []


def test_serve_and_clients_call_nobody_elses_functions(trapped: Database) -> None:
    session = trapped.connect()
    create_topic(session, "orders")
    settings = load_settings(dsn=trapped.dsn)
    inbox = Inbox()
    consumer = PushConsumer("readers", trapped.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders", MessageSelector.by_sql("a = 1 AND b STARTSWITH 'x'"))
    consumer.register_listener(inbox)
    with Server(settings) as server, Producer("senders", settings=settings) as producer, consumer:
        wait_until(lambda: server.is_leader)
        for level in (0, 1):
            producer.send(
                Message("orders", "x", tag="a", keys="k", properties={"a": "1", "b": "xy"}, delay_level=level)
            )
        inbox.wait_for(2)

    assert caught(session) == []


def test_every_function_names_the_schemas_that_it_looks_into(database: Database) -> None:
    """Every function sets the schemas of its search_path.

    A function without such a setting has a body that was parsed when it was created, and searches no schema.
    """
    connection = database.connect()
    open_to_others = connection.execute(
        """SELECT oid::regprocedure::text FROM pg_proc
           WHERE pronamespace = 'mqdb'::regnamespace AND prosqlbody IS NULL
             AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)"""
    ).fetchall()

    assert open_to_others == []


def test_every_function_with_planner_switches_runs_without_jit(database: Database) -> None:
    """Every function with planner switches runs without JIT.

    The switches raise costs to 1e10, so a session with `jit = on`, PostgreSQL's default, would compile each statement.
    """
    compiled = (
        database.connect()
        .execute(
            """SELECT oid::regprocedure::text FROM pg_proc
               WHERE pronamespace = 'mqdb'::regnamespace AND proconfig::text LIKE '%enable\\_%'
                 AND NOT 'jit=off' = ANY (proconfig)"""
        )
        .fetchall()
    )

    assert compiled == []


def test_sessions_of_mqdb_look_into_no_schema_but_postgresqls(database: Database) -> None:
    engine = create_engine(f"{database.dsn}&options=-csearch_path%3Dpublic")
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW search_path").scalar_one() == "pg_catalog"
    engine.dispose()


def test_only_the_owner_can_make_the_clock_movable(empty_database: Database) -> None:
    migrations.upgrade(empty_database.dsn)
    session = empty_database.connect()
    session.execute("SET mqdb.clock_offset = '1 hour'")
    ahead = "SELECT mqdb.now() > clock_timestamp() + interval '30 minutes'"
    assert not scalar(session, ahead)

    engine = create_engine(empty_database.dsn)
    with engine.connect() as connection:
        make_clock_movable(connection)
    engine.dispose()

    assert scalar(session, ahead)
