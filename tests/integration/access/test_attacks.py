"""Attacks in SQL by roles that try to go beyond their few rights. Names and numbers are those of attacks.md.

Each attack of BY_ALL and BY_ROLE is one statement, or several in one message, run in the session of each listed role.
An attack states its required result: an SQLSTATE, NOTHING for no row and no value except 0 and "", or OWN if only the
role itself is concerned. Afterwards all rows of others must be unchanged, and no marked value may have appeared in a
row, a notice or an error field. Attacks that succeed are at the end of the file.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
import pytest
import sqlalchemy
from psycopg import sql

from mqdb.embedded import EmbeddedPostgres
from mqdb.service.delay_deliverer import DelayDeliverer
from mqdb.service.service import Context
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.store.clients import clients
from mqdb.store.engine import create_engine
from mqdb_client import Admin, errors
from tests.fixtures.log import Connection, attend, create_topic, dispatch_all, index_all, scalar
from tests.fixtures.postgres import KNOW_ITSELF, Database, new_database, superuser_dsn, with_parts
from tests.fixtures.processes import wait_until

PASSWORD = "of/its own"

NONE = "a_none"
SEND = "a_send"
READ = "a_read"
GROUP = "a_group"
ROLES = (NONE, SEND, READ, GROUP)

#: What attacks must get, besides an SQLSTATE.
NOTHING = "nothing"
OWN = "own"

#: The SQLSTATE for a queue of others, as for one that is not there.
NO_QUEUE = "MQ301"

#: In what others have. Whatever of it comes to an attacker who has not typed it is a leak.
MARKS = ("TOPSECRET", "746f70736563726574", "544f50534543524554", "k-secret", "tag-secret", "payroll-1", "their@1")

CLIENT = "their@1#1"


class Sessions(dict[str, Connection]):
    """Sessions of the roles, each opened when a test first uses it: most tests use only one."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    def __missing__(self, role: str) -> Connection:
        self[role] = session = connect(dsn_of(self._database, role))
        return session


class World(NamedTuple):
    """A broker with a leader, rows of other users, and a session of each role."""

    owner: Connection
    sessions: dict[str, Connection]
    numbers: dict[str, str]

    def text(self, statement: str) -> str:
        """The statement with the ids that the attacker has guessed."""
        for name, number in self.numbers.items():
            statement = statement.replace(f":{name}", number)
        return statement


class Attack(NamedTuple):
    """An attack: its name, its statement, and its required result."""

    name: str
    statement: str
    must: str


# -- the world ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roles(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Login roles that may connect to the database."""
    with psycopg.connect(superuser_dsn(postgres), autocommit=True) as superuser:
        for name in ROLES:
            create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            superuser.execute(create.format(sql.Identifier(name), sql.Literal(PASSWORD)))
        yield
        for name in ROLES:
            superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def grant(database: Database) -> None:
    """Let all roles use the schema, and grant them their rights."""
    with Admin(database.dsn) as admin:
        admin.acl.grant(SEND, send=["orders", "closed"])
        admin.acl.grant(READ, read=["orders"])
        admin.acl.grant(GROUP, read=["orders"], group=["billing"])
    database.connect().execute("GRANT USAGE ON SCHEMA mqdb TO a_none")


def dsn_of(database: Database, role: str) -> str:
    return with_parts(database.dsn, user=role, password=PASSWORD)


def connect(dsn: str) -> Connection:
    return psycopg.connect(dsn, autocommit=True, prepare_threshold=None)


def owner_of(database: Database) -> Connection:
    """A session of the owner that leads all services, and holds the lock of another user's client."""
    owner = database.connect()
    owner.execute(KNOW_ITSELF)
    owner.execute("SELECT pg_advisory_lock(4711)")
    attend(owner)
    return owner


#: What belongs to others: each kind of row at least once.
_OF_OTHERS = """
INSERT INTO mqdb.subscription_group (group_name) VALUES ('billing'), ('payroll');
INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, tags, keys, properties, body)
SELECT q.queue_key, mqdb.now(), 7, gen_random_uuid(), 'host', 'tag-secret', 'k-secret',
       jsonb_build_object('p', 'TOPSECRET', 'REAL_TOPIC', 'secret', 'REAL_QID', '0', 'RETRY_TOPIC', 'secret'),
       'TOPSECRET'
FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id), generate_series(1, 20)
WHERE t.topic IN ('secret', '%DLQ%payroll', '%RETRY%payroll', 'RMQ_SYS_TRANS_HALF_TOPIC');
INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, properties, body)
SELECT q.queue_key, mqdb.now(), 7, gen_random_uuid(), 'host', '{"REAL_TOPIC": "%RETRY%payroll", "REAL_QID": "0"}',
'TOPSECRET'
FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'SCHEDULE_TOPIC_XXXX' AND q.queue_id = 3;
SELECT mqdb.send('secret', 'TOPSECRET', delay_level => 3, keys => 'k-secret');
SELECT mqdb.send('secret', 'TOPSECRET', deliver_at => '2999-01-01', keys => 'k-secret');
SELECT mqdb.send('orders', 'an order', keys => 'k-order');
INSERT INTO mqdb.timer
SELECT 32472144000000, 1, mqdb.now(), mqdb.now(), gen_random_uuid(), 0, 0, 0, 0, 'host', 'tag-secret', 'k-secret',
       '{"REAL_TOPIC": "secret", "REAL_QID": "0"}', 'TOPSECRET';
INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, stored_at, check_at)
VALUES (1, gen_random_uuid(), 'payroll-1', 'secret', mqdb.now(), mqdb.now());
INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset, owner, epoch)
SELECT g.group_id, q.queue_key, 1, 'their@1#1', 5
FROM mqdb.subscription_group g, mqdb.queue q JOIN mqdb.topic t USING (topic_id)
WHERE g.group_name = 'payroll' AND t.topic = 'secret';
INSERT INTO mqdb.queue_lock SELECT group_id, queue_key, owner, epoch, mqdb.now() + interval '1 min', '1 min' FROM
mqdb.consumer_offset;
INSERT INTO mqdb.offset_commit SELECT group_id, queue_key, 1, 2, 1, 5 FROM mqdb.consumer_offset;
INSERT INTO mqdb.pop_batch (group_id, queue_key, visible_at, segment, first_offset, in_flight, client_id)
SELECT group_id, queue_key, mqdb.now(), 1, 0, 1, 'their@1#1' FROM mqdb.consumer_offset;
INSERT INTO mqdb.subscription SELECT group_id, 'secret', 'TAG', 'tag-secret', 1
FROM mqdb.subscription_group WHERE group_name = 'payroll';
INSERT INTO mqdb.client (client_id, kind, group_name, language, version)
VALUES ('their@1#1', 'CONSUMER', 'payroll', 'PYTHON', '1'), ('their@1#1', 'PRODUCER', 'payroll-1', 'PYTHON', '1');
INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('their@1#1', 4711);
INSERT INTO mqdb.client_request (client_id, kind, arguments) VALUES ('their@1#1', 'STATUS', '{"group": "TOPSECRET"}');
INSERT INTO mqdb.redrive_result (operation_id, log_pos, group_name, status, error) VALUES (1, 1, 'payroll',
'FAILED', 'TOPSECRET');
INSERT INTO mqdb.operation (principal, verb, topics, groups, records) VALUES ('ada', 'x', '{secret}', '{payroll-1}', 1);
INSERT INTO mqdb.cron (name, cron, topic, body, next_at) VALUES ('payroll-1', '* * * * *', 'secret', 'TOPSECRET',
'2999-01-01');
INSERT INTO mqdb.sink_batch VALUES ('payroll-1', 1, NULL, 1);
INSERT INTO mqdb.sink_write VALUES (gen_random_uuid(), 'payroll-1', 1);
INSERT INTO mqdb.deleted_topic VALUES ('payroll-1');
INSERT INTO mqdb.archived_segment VALUES (77, '/payroll-1', '{secret}', '{}', 0, 0, NULL, NULL);
"""


def fill(database: Database) -> Connection:
    """Create topics, groups and clients of other users; returns a session of the owner."""
    owner = database.connect()
    owner.execute(KNOW_ITSELF)
    # Not the clock that tests move.
    owner.execute(
        "CREATE OR REPLACE FUNCTION mqdb.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE "
        "RETURN clock_timestamp()"
    )
    for name, queues in {"orders": 4, "orders-eu": 1, "secret": 1, "closed": 1}.items():
        create_topic(owner, name, queues)
    for group in ("billing", "payroll"):
        for prefix in ("%RETRY%", "%DLQ%"):
            create_topic(owner, prefix + group)
    owner.execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'closed'")
    owner.execute("SELECT mqdb.make_reply_topic()")
    owner.execute(_OF_OTHERS.encode())
    dispatch_all(owner)
    index_all(owner)
    owner.execute("ANALYZE mqdb.commit_log, mqdb.topic, mqdb.queue_run, mqdb.client")
    return owner


_NUMBERS = """
SELECT format('%s_key', CASE t.topic WHEN 'SCHEDULE_TOPIC_XXXX' THEN 'schedule' WHEN 'rmq_sys_wheel_timer' THEN 'timer'
              WHEN 'RMQ_SYS_TRANS_HALF_TOPIC' THEN 'half' WHEN '%RETRY%payroll' THEN 'payroll_retry'
              WHEN '%DLQ%payroll' THEN 'payroll_dlq'
              WHEN '%DLQ%billing' THEN 'billing_dlq' WHEN '%RETRY%billing' THEN 'billing_retry' ELSE t.topic END),
       q.queue_key
FROM mqdb.topic t JOIN mqdb.queue q USING (topic_id) WHERE q.queue_id = 0
UNION ALL SELECT format('%s_topic', t.topic), t.topic_id FROM mqdb.topic t
UNION ALL SELECT format('%s_id', g.group_name), g.group_id FROM mqdb.subscription_group g
UNION ALL SELECT 'secret_pos', min(cl.log_pos) FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
          JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'secret'
UNION ALL SELECT 'half_pos', min(cl.log_pos) FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
          JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'RMQ_SYS_TRANS_HALF_TOPIC'
UNION ALL SELECT 'timer_pos', min(cl.log_pos) FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
          JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'rmq_sys_wheel_timer'
"""


def numbers_of(owner: Connection) -> dict[str, str]:
    """All numbers and ids, which the attacker is assumed to have guessed."""
    numbers = {name: str(number) for name, number in owner.execute(_NUMBERS.encode())}
    secret = scalar(owner, "SELECT msg_id::text FROM mqdb.commit_log WHERE log_pos = %s", [numbers["secret_pos"]])
    return {"secret_uuid": f"'{secret}'::uuid", **dict(sorted(numbers.items(), reverse=True))}


class Original(NamedTuple):
    """A database to be copied: its name and its ids. All copies have the same ids."""

    name: str
    numbers: dict[str, str]


@pytest.fixture(scope="module")
def original(postgres: EmbeddedPostgres, template_database: str, roles: None) -> Iterator[Original]:
    """A database with rows of other users and the rights of the roles."""
    with new_database(postgres, template_database) as database:
        owner = fill(database)
        grant(database)
        numbers = numbers_of(owner)
        database.close()
        yield Original(database.name, numbers)


@contextmanager
def world_of(database: Database, numbers: dict[str, str]) -> Iterator[World]:
    """A world in a database, with a session of each role."""
    sessions = Sessions(database)
    yield World(owner_of(database), sessions, numbers)
    for session in sessions.values():
        session.close()


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres, original: Original) -> Iterator[World]:
    """A world shared by all attacks that change nothing."""
    with new_database(postgres, original.name) as database, world_of(database, original.numbers) as world:
        yield world


@pytest.fixture(scope="module")
def before(world: World) -> dict[str, str]:
    """The rows of all other users before any attack."""
    return rows_of_all(world.owner)


@pytest.fixture
def database(postgres: EmbeddedPostgres, original: Original) -> Iterator[Database]:
    """A copy of the database for one test."""
    with new_database(postgres, original.name) as database:
        yield database


@pytest.fixture
def own(database: Database, original: Original) -> Iterator[World]:
    """A world for an attack that needs another session, or that leaves something behind."""
    with world_of(database, original.numbers) as world:
        yield world


def rows_of_all(owner: Connection) -> dict[str, str]:
    """A hash over the rows of each table, and the values of the sequences that a refused statement does not advance."""
    tables = owner.execute(
        """SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p')
           AND NOT c.relispartition"""
    )
    looks = [
        f"SELECT '{name}', count(*)::text || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM mqdb.{name} t"
        for (name,) in tables
    ]
    looks.append("SELECT 'dispatcher_state', last_value::text FROM mqdb.dispatcher_state")
    return dict(owner.execute(" UNION ALL ".join(looks).encode()).fetchall())


# -- to attack ----------------------------------------------------------------------------------


@dataclass
class Outcome:
    """The outcome of a statement: an SQLSTATE or rows, and all texts that the session received."""

    sqlstate: str | None
    rows: list[tuple[Any, ...]]
    said: str

    @property
    def shows_nothing(self) -> bool:
        return all(value in (None, 0, "", [], False) for row in self.rows for value in row)


def attack(session: Connection, statement: str, *, keep: bool = False) -> Outcome:
    """Run a statement, and roll it back unless `keep` is set."""
    said: list[str] = []
    rows: list[tuple[Any, ...]] = []

    def listen(diagnostic: psycopg.errors.Diagnostic) -> None:
        said.append(fields_of(diagnostic))

    session.add_notice_handler(listen)
    sqlstate = None
    try:
        with session.transaction(force_rollback=not keep):
            cursor = session.execute(statement.encode())
            while True:
                if cursor.description:
                    rows += cursor.fetchall()
                if not cursor.nextset():
                    break
    except psycopg.Error as error:
        sqlstate = error.sqlstate
        said.append(fields_of(error.diag) + str(error))
    finally:
        session.remove_notice_handler(listen)
        session.execute("DISCARD ALL")
    return Outcome(sqlstate, rows, "\n".join([*said, *map(str, rows)]))


def fields_of(diagnostic: psycopg.errors.Diagnostic) -> str:
    """All fields of an error or a notice."""
    return " ".join(str(getattr(diagnostic, name)) for name in dir(diagnostic) if not name.startswith("_"))


def leaks(outcome: Outcome, statement: str) -> list[str]:
    return [mark for mark in MARKS if mark in outcome.said and mark not in statement]


LOG = (
    "INSERT INTO mqdb.commit_log "
    "(queue_key, store_time, born_time, tags_code, msg_id, born_host, properties, body) VALUES "
)
CLIENT_ROW = "INSERT INTO mqdb.client (client_id, kind, group_name, language, version) VALUES "
TOPIC_ROW = "INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES "
OFFSET_ROW = "INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset) VALUES "
MANY = "FROM generate_series(1, 20000) ON CONFLICT DO NOTHING"
COMMIT_ROW = "INSERT INTO mqdb.offset_commit (group_id, queue_key, from_offset, next_offset, segment, epoch) VALUES "
LEAK = """CREATE FUNCTION pg_temp.leak(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
          $$ BEGIN RAISE NOTICE '%', $1; RETURN true; END $$; """


def record(
    queue_key: str,
    properties: str = "{}",
    *,
    tags_code: str = "0",
    store_time: str = "mqdb.now()",
    body: str = "'x'",
    more: str = "",
) -> str:
    """A record that is inserted into the log by hand."""
    return (
        f"{LOG}({queue_key}, {store_time}, now(), {tags_code}, gen_random_uuid(), 'x', '{properties}', {body}) {more}"
    )


def real(topic: str, queue_id: str = "0") -> str:
    return f'{{"REAL_TOPIC": "{topic}", "REAL_QID": "{queue_id}"}}'


HIDDEN = [
    "acl",
    "timer",
    "half_message",
    "deleted_topic",
    "archived_segment",
    "archive_run",
    "delay_offset",
    "timer_slot",
    "timer_step",
    "timer_recall",
    "half_step",
    "half_messages",
    "every_queue_end",
    "message_index_1",
    "timer_behind",
    "lock_dispatch",
]

#: For whoever it is.
BY_ALL = [
    *(Attack(f"1_tables_by_name_{name}", f"TABLE mqdb.{name}", "42501") for name in HIDDEN),
    Attack(
        "88_operations_of_others",
        "SELECT * FROM mqdb.operation WHERE 'secret' = ANY (topics) OR 'payroll' = ANY (groups) OR verb ~ '^acl'",
        NOTHING,
    ),
    Attack(
        "2_partitions_by_name",
        "SELECT * FROM mqdb.commit_log_1 WHERE keys IS DISTINCT FROM 'k-order'; "
        "SELECT * FROM mqdb.queue_run_1 WHERE queue_key = :secret_key",
        NOTHING,
    ),
    Attack("2_partitions_leaky", f"{LEAK} SELECT FROM mqdb.commit_log_1 WHERE pg_temp.leak(properties::text)", OWN),
    Attack("2_partitions_by_place", "SELECT * FROM mqdb.commit_log_1 WHERE ctid = '(0,1)' AND tags <> ''", NOTHING),
    Attack("2_partitions_row_security_off", "SET row_security = off; TABLE mqdb.commit_log_1", "42501"),
    Attack("2_partitions_copied_out", "COPY mqdb.commit_log_1 TO '/tmp/loot'", "42501"),
    Attack("2_partitions_of_the_index", "COPY mqdb.message_index_1 TO STDOUT", "42501"),
    Attack("2_partitions_by_name_written", record(":orders_key").replace("commit_log", "commit_log_1"), "42501"),
    Attack("3_copy_into_the_log", "COPY mqdb.commit_log (queue_key) FROM STDIN", "0A000"),
    Attack("4_adopt", "SELECT mqdb.adopt()", "42501"),
    Attack("4_fall_asleep", "SELECT mqdb.fall_asleep(1, true)", "42501"),
    Attack("4_add_segment", "SELECT mqdb.add_segment(1)", "42501"),
    Attack("4_try_lock", "SELECT mqdb.try_lock('dispatch')", "42501"),
    Attack("4_recall", "SELECT mqdb.recall(NULL, repeat('A', 32))", "42501"),
    Attack("4_redrive", "SELECT * FROM mqdb.dlq_redrive(ARRAY[:secret_pos])", "MQ204"),
    Attack(
        "4_redrive_plan",
        "SELECT msg_id, group_name, topic, queue_key FROM mqdb.dlq_redrive_plan(ARRAY(SELECT generate_series(1, 200)))",
        NOTHING,
    ),
    Attack(
        "87_operation_log",
        "SELECT mqdb.record_operation('topic.delete', '{secret}', '{}', 'x', NULL, NULL, 1, '', 'ada')",
        "42501",
    ),
    Attack(
        "7_names_of_others_by_rows", "SELECT topic FROM mqdb.topic WHERE topic IN ('secret', '%DLQ%payroll')", NOTHING
    ),
    Attack("7_queues_of_others", "SELECT * FROM mqdb.queue WHERE queue_key = :secret_key", NOTHING),
    Attack("10_create_function", "CREATE FUNCTION mqdb.send(text) RETURNS text RETURN 'x'", "42501"),
    Attack(
        "10_replace_the_clock",
        "CREATE OR REPLACE FUNCTION mqdb.now() RETURNS timestamptz LANGUAGE sql RETURN '2000-01-01'::timestamptz",
        "42501",
    ),
    Attack("10_create_table", "CREATE TABLE mqdb.commit_log_9 ()", "42501"),
    Attack("10_create_policy", "CREATE POLICY p ON mqdb.commit_log USING (true)", "42501"),
    Attack("10_create_rule", "CREATE RULE r AS ON INSERT TO mqdb.commit_log DO INSTEAD NOTHING", "42501"),
    Attack("10_create_index", "CREATE INDEX ON mqdb.topic (topic)", "42501"),
    Attack("10_disable_row_security", "ALTER TABLE mqdb.commit_log DISABLE ROW LEVEL SECURITY", "42501"),
    Attack("11_borrow_by_a_foreign_key", "CREATE TEMP TABLE mine (id integer REFERENCES mqdb.topic)", "any refusal"),
    Attack("11_borrow_by_inheritance", "CREATE TEMP TABLE mine () INHERITS (mqdb.topic)", "42501"),
    Attack("12_is_allowed_for_others", "SELECT mqdb.is_allowed('a_oper', 'SEND', 'TOPIC', 'orders')", "MQ108"),
    Attack("12_is_allowed_for_nobody", "SELECT mqdb.is_allowed(NULL, NULL, NULL, NULL)", "MQ108"),
    Attack(
        "12_is_allowed_with_nulls",
        "SELECT mqdb.is_allowed(session_user, NULL, NULL, NULL), mqdb.is_allowed(session_user, 'SEND', 'TOPIC', NULL)",
        NOTHING,
    ),
    Attack("13_send_to_another_topic", "SELECT mqdb.send('secret', 'x')", "MQ204"),
    Attack("13_send_to_null", "SELECT mqdb.send(NULL, 'x')", "MQ108"),
    Attack("13_send_to_a_name_with_a_blank", "SELECT mqdb.send(' orders', 'x')", "MQ204"),
    Attack("13_write_to_another_topic", record(":secret_key"), NO_QUEUE),
    Attack("13_write_to_a_queue_that_never_was", record("999999"), NO_QUEUE),
    Attack("14_one_foreign_key_in_a_batch", f"{record(':orders_key')}; {record(':secret_key')}", "any refusal"),
    Attack("15_schedule_for_another_topic", record(":schedule_key", real("secret")), "MQ204"),
    Attack("15_schedule_for_a_topic_that_never_was", record(":schedule_key", real("no-such")), "MQ204"),
    Attack("15_schedule_for_no_topic", record(":schedule_key"), "MQ204"),
    Attack("15_schedule_for_a_null", record(":schedule_key", '{"REAL_TOPIC": null}'), "MQ204"),
    Attack("15_schedule_for_an_array", record(":schedule_key", '{"REAL_TOPIC": ["orders"]}'), "MQ204"),
    Attack("15_time_for_anothers_retry", record(":timer_key", real("%RETRY%payroll")), "MQ204"),
    Attack("15_time_for_anothers_dead_letters", record(":timer_key", real("%DLQ%payroll")), "MQ204"),
    Attack("15_schedule_for_the_schedule", record(":schedule_key", real("SCHEDULE_TOPIC_XXXX")), "MQ204"),
    Attack("15_half_message", record(":half_key", real("orders")), "any refusal"),
    Attack("15_retry_of_another_group", record(":payroll_retry_key"), NO_QUEUE),
    Attack("15_dead_letter_of_another_group", record(":payroll_dlq_key"), NO_QUEUE),
    Attack(
        "15_two_topics_in_one_text",
        record(":schedule_key", '{"REAL_TOPIC": "orders", "REAL_TOPIC": "secret"}'),
        "MQ204",
    ),
    Attack("18_squat_a_position", "INSERT INTO mqdb.commit_log (log_pos) VALUES (9000000)", "42501"),
    Attack("18_nextval", "SELECT nextval('mqdb.log_pos')", "42501"),
    Attack("18_setval", "SELECT setval('mqdb.log_pos', 1)", "42501"),
    Attack("19_forge_xid", "INSERT INTO mqdb.commit_log (xid) VALUES ('3')", "42501"),
    Attack("19_replace_all_by_default", "INSERT INTO mqdb.commit_log DEFAULT VALUES", "any refusal"),
    Attack("37_find_by_id", "SELECT * FROM mqdb.find_records(ARRAY[:secret_uuid], 0)", NOTHING),
    Attack("37_find_aim", "SELECT * FROM mqdb.find_aim(:secret_pos)", NOTHING),
    Attack("37_find_aim_of_a_half", "SELECT * FROM mqdb.find_aim(:half_pos)", NOTHING),
    Attack("37_find_aim_of_what_waits", "SELECT * FROM mqdb.find_aim(:timer_pos)", NOTHING),
    Attack(
        "37_find_offset",
        "SELECT mqdb.find_queue_offset(:secret_key, :secret_pos, NULL, NULL), "
        "mqdb.find_queue_offset(:timer_key, :timer_pos, NULL, 1)",
        NOTHING,
    ),
    Attack("37_is_own", "SELECT mqdb.is_own(:secret_pos, :secret_key), mqdb.is_own(:timer_pos, :timer_key)", NOTHING),
    Attack(
        "38_leaky_where_on_messages",
        f"{LEAK} SELECT FROM mqdb.message WHERE pg_temp.leak(convert_from(body, 'UTF8'))",
        OWN,
    ),
    Attack(
        "38_leaky_where_on_the_log",
        f"{LEAK} SELECT FROM mqdb.commit_log WHERE pg_temp.leak(properties::text || tags)",
        OWN,
    ),
    Attack("38_leaky_where_on_topics", f"{LEAK} SELECT FROM mqdb.dlq WHERE pg_temp.leak(group_name || keys)", OWN),
    Attack("38_leaky_where_on_what_waits", f"{LEAK} SELECT FROM mqdb.scheduled WHERE pg_temp.leak(topic || keys)", OWN),
    Attack(
        "38_leaky_where_on_lags", f"{LEAK} SELECT FROM mqdb.consumer_lag WHERE pg_temp.leak(group_name || owner)", OWN
    ),
    Attack("38_leaky_where_on_clients", f"{LEAK} SELECT FROM mqdb.client WHERE pg_temp.leak(client_id)", OWN),
    Attack("38_leaky_where_on_rights", f"{LEAK} SELECT FROM mqdb.own_right WHERE NOT pg_temp.leak(resource)", OWN),
    Attack("38_leaky_where_on_groups", f"{LEAK} SELECT FROM mqdb.own_group WHERE NOT pg_temp.leak(group_name)", OWN),
    Attack("38_leaky_where_on_presence", f"{LEAK} SELECT FROM mqdb.presence WHERE pg_temp.leak(client_id)", OWN),
    Attack(
        "38_leaky_where_on_requests", f"{LEAK} SELECT FROM mqdb.client_request WHERE pg_temp.leak(arguments::text)", OWN
    ),
    Attack("38_leaky_where_on_redrives", f"{LEAK} SELECT FROM mqdb.redrive_result WHERE pg_temp.leak(error)", OWN),
    Attack("38_leaky_where_on_filters", f"{LEAK} SELECT FROM mqdb.subscription WHERE pg_temp.leak(expression)", OWN),
    Attack(
        "39_ones_own_operator",
        """CREATE FUNCTION pg_temp.eq(text, text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
           $$ BEGIN RAISE NOTICE '%', $1; RETURN false; END $$;
           CREATE OPERATOR pg_temp.= (LEFTARG = text, RIGHTARG = text, FUNCTION = pg_temp.eq, RESTRICT = eqsel);
           SELECT FROM mqdb.commit_log WHERE tags OPERATOR(pg_temp.=) 'x';
           SELECT FROM mqdb.scheduled WHERE keys OPERATOR(pg_temp.=) 'x'""",
        OWN,
    ),
    Attack(
        "39_ones_own_leakproof_function",
        "CREATE FUNCTION pg_temp.f(text) RETURNS boolean LEAKPROOF RETURN true",
        "42501",
    ),
    Attack("39_order_by", f"{LEAK} SELECT FROM mqdb.commit_log ORDER BY pg_temp.leak(tags)", OWN),
    Attack(
        "39_filter_of_an_aggregate",
        f"{LEAK} SELECT count(*) FILTER (WHERE pg_temp.leak(tags)) FROM mqdb.commit_log",
        OWN,
    ),
    Attack(
        "40_error_by_division",
        "SELECT * FROM mqdb.commit_log WHERE 1 / (CASE tags WHEN 'tag-secret' THEN 0 ELSE 1 END) = 2",
        NOTHING,
    ),
    Attack("40_error_by_a_cast", "SELECT FROM mqdb.commit_log WHERE tags::integer = 1", OWN),
    Attack(
        "42_statistics_views",
        "SELECT * FROM pg_stats WHERE tablename IN ('commit_log', 'commit_log_1', 'topic', 'client')",
        NOTHING,
    ),
    Attack("42_extended_statistics", "SELECT * FROM pg_stats_ext WHERE schemaname = 'mqdb'", NOTHING),
    Attack("42_statistics_tables", "SELECT FROM pg_statistic", "42501"),
    Attack("43_select_by_position", "SELECT * FROM mqdb.message WHERE log_pos = :secret_pos", NOTHING),
    Attack("43_select_by_key", "SELECT * FROM mqdb.commit_log WHERE queue_key = :secret_key", NOTHING),
    Attack("43_select_by_offset", "SELECT * FROM mqdb.consume_queue WHERE queue_key = :secret_key", NOTHING),
    Attack("43_select_ends", "SELECT * FROM mqdb.queue_ends WHERE queue_key IN (:secret_key, :timer_key)", NOTHING),
    Attack(
        "43_select_by_index",
        "SELECT * FROM mqdb.message_index WHERE key_hash = hashtextextended('k-secret', :secret_topic)",
        NOTHING,
    ),
    Attack(
        "44_what_waits_in_the_log",
        "SELECT * FROM mqdb.commit_log WHERE queue_key IN (:schedule_key, :timer_key, :half_key)",
        NOTHING,
    ),
    Attack("44_what_waits", "SELECT * FROM mqdb.scheduled WHERE topic <> 'orders'", NOTHING),
    Attack("45_dead_letters", "SELECT * FROM mqdb.dlq", NOTHING),
    Attack("45_retries", "SELECT * FROM mqdb.message WHERE topic LIKE '%RETRY%payroll'", NOTHING),
    Attack("46_read_a_topic_of_which_the_name_goes_on", "SELECT * FROM mqdb.topic WHERE topic = 'orders-eu'", NOTHING),
    Attack(
        "53_copy_a_table_with_all", "CREATE TEMP TABLE loot (LIKE mqdb.commit_log INCLUDING ALL); TABLE loot", NOTHING
    ),
    Attack(
        "53_loot_into_a_table",
        "CREATE TEMP TABLE loot AS SELECT * FROM mqdb.commit_log WHERE tags <> ''; TABLE loot",
        NOTHING,
    ),
    Attack("53_copy_a_query", "COPY (SELECT * FROM mqdb.commit_log) TO '/tmp/loot'", "42501"),
    Attack("53_copy_to_a_program", "COPY (SELECT 1) TO PROGRAM 'id'", "42501"),
    Attack(
        "54_offsets_of_another_group",
        "UPDATE mqdb.consumer_offset SET next_offset = 0 WHERE group_id = :payroll_id",
        NOTHING,
    ),
    Attack(
        "54_locks_of_another_group",
        "UPDATE mqdb.queue_lock SET owner = 'me', epoch = 99 WHERE group_id = :payroll_id RETURNING *",
        NOTHING,
    ),
    Attack(
        "54_subscription_of_another_group",
        "UPDATE mqdb.subscription SET expression = 'x' WHERE group_id = :payroll_id RETURNING *",
        "42501",
    ),
    Attack(
        "54_version_of_another_group",
        "UPDATE mqdb.subscription_group SET subscription_version = 9 WHERE group_name = 'payroll' RETURNING *",
        NOTHING,
    ),
    Attack("54_make_another_group", "INSERT INTO mqdb.subscription_group (group_name) VALUES ('payroll-2')", "42501"),
    Attack(
        "54_make_one_that_is_there",
        "INSERT INTO mqdb.subscription_group (group_name) VALUES ('payroll') ON CONFLICT DO NOTHING",
        "42501",
    ),
    Attack(
        "54_subscribe_another_group",
        "INSERT INTO mqdb.subscription VALUES (:payroll_id, 'orders', 'TAG', '*', 1)",
        "42501",
    ),
    Attack(
        "54_commit_for_another_group",
        f"{COMMIT_ROW}(:payroll_id, :secret_key, 5, 9, 1, 5)",
        "42501",
    ),
    Attack(
        "54_lock_for_another_group",
        "INSERT INTO mqdb.queue_lock VALUES (:payroll_id, :orders_key, 'me', 1, now(), '1 min')",
        "42501",
    ),
    Attack("54_leave_for_another", "SELECT mqdb.leave_group('payroll', 'their@1#1', 'CONSUMER')", "MQ204"),
    Attack("54_leave_for_another_producer", "SELECT mqdb.leave_group('payroll-1', 'their@1#1', 'PRODUCER')", NOTHING),
    Attack("54_leave_as_nothing", "SELECT mqdb.leave_group('payroll', 'their@1#1', NULL)", NOTHING),
    Attack("54_leave_in_small_letters", "SELECT mqdb.leave_group('payroll', 'their@1#1', 'consumer')", NOTHING),
    Attack("54_leave_the_group_null", "SELECT mqdb.leave_group(NULL, 'their@1#1', 'CONSUMER')", "MQ204"),
    Attack("54_leave_a_group_that_never_was", "SELECT mqdb.leave_group('no-such', 'their@1#1', 'CONSUMER')", "MQ204"),
    Attack("54_unlock", "SELECT mqdb.unlock_queues('payroll', 'their@1#1', ARRAY[:secret_key], '{5}')", "MQ204"),
    Attack(
        "54_unlock_the_group_null",
        "SELECT mqdb.unlock_queues(NULL, 'their@1#1', ARRAY[:secret_key], '{5}')",
        "any refusal or nothing",
    ),
    Attack("54_take_commits", "SELECT * FROM mqdb.take_offset_commits('payroll', ARRAY[:secret_key], '{0}')", "MQ204"),
    Attack(
        "54_take_commits_of_null", "SELECT * FROM mqdb.take_offset_commits(NULL, ARRAY[:secret_key], '{0}')", "MQ204"
    ),
    Attack("54_pop_for_another_group", "SELECT * FROM mqdb.pop_queues('payroll', ARRAY[:secret_key], 9)", "MQ204"),
    Attack("54_pop_messages_for_another_group", "SELECT * FROM mqdb.pop('payroll', 'orders')", "MQ204"),
    Attack("54_pop_messages_of_another_topic", "SELECT * FROM mqdb.pop('billing', 'secret')", "MQ204"),
    Attack(
        "54_take_for_another_group",
        "SELECT * FROM mqdb.pop_take('payroll', 'me', '1 min', 9, 9, true, ARRAY[:secret_key], '{9}', '{1}', '{1}', "
        "'{1}', '{1}', '{1}', '{1}')",
        "MQ204",
    ),
    Attack(
        "54_pop_again_for_another_group",
        "SELECT * FROM mqdb.pop_due('payroll', 'me', '1 min', ARRAY[:secret_key], 9)",
        "MQ204",
    ),
    Attack("54_ack_for_another_group", "SELECT mqdb.ack('payroll', ARRAY[repeat('0', 80)])", "MQ204"),
    Attack("54_ack_for_null", "SELECT mqdb.ack(NULL, ARRAY[repeat('0', 80)])", "MQ204"),
    Attack(
        "54_keep_for_another_group", "SELECT mqdb.change_invisible('payroll', ARRAY[repeat('0', 80)], '1 h')", "MQ204"
    ),
    Attack("54_read_handles", "SELECT * FROM mqdb.receipts(:payroll_id, ARRAY[repeat('0', 80)])", "42501"),
    Attack("54_what_others_have_in_flight", "SELECT * FROM mqdb.pop_batch", NOTHING),
    Attack(
        "54_put_in_flight",
        "INSERT INTO mqdb.pop_batch (group_id, queue_key, visible_at, segment, first_offset, in_flight, client_id) "
        "VALUES (:payroll_id, :secret_key, now(), 1, 0, 1, 'me')",
        "42501",
    ),
    Attack("54_replace_subscriptions", "SELECT mqdb.replace_subscriptions('payroll', 9, '{}', '{}', '{}')", "MQ204"),
    Attack("54_replace_those_of_null", "SELECT mqdb.replace_subscriptions(NULL, NULL, NULL, NULL, NULL)", "MQ204"),
    Attack(
        "54_merge",
        "MERGE INTO mqdb.consumer_offset o USING (SELECT 1) x ON o.group_id = :payroll_id "
        "WHEN MATCHED THEN UPDATE SET next_offset = 0 WHEN NOT MATCHED THEN DO NOTHING",
        NOTHING,
    ),
    Attack(
        "54_update_by_a_join",
        "UPDATE mqdb.queue_lock l SET owner = 'me' FROM mqdb.consumer_offset o "
        "WHERE o.group_id = :payroll_id RETURNING l.*",
        NOTHING,
    ),
    Attack(
        "54_leaky_update",
        f"{LEAK} UPDATE mqdb.client SET version = 'x' WHERE pg_temp.leak(client_id) RETURNING *",
        NOTHING,
    ),
    Attack("54_leaky_lock", f"{LEAK} SELECT FROM mqdb.consumer_offset WHERE pg_temp.leak(owner) FOR UPDATE", OWN),
    Attack("54_delete_offsets", "DELETE FROM mqdb.consumer_offset", "42501"),
    Attack("54_delete_locks", "DELETE FROM mqdb.queue_lock", "42501"),
    Attack("54_truncate_the_log", "TRUNCATE mqdb.commit_log", "42501"),
    Attack("58_change_the_log", "UPDATE mqdb.commit_log SET body = 'x'", "42501"),
    Attack(
        "33_register_as_a_checker",
        "INSERT INTO mqdb.client (client_id, kind, group_name, language, version, checks_transactions) "
        "VALUES ('me', 'PRODUCER', 'payroll-1', 'x', '1', true)",
        OWN,
    ),
    Attack(
        "33_become_a_checker",
        f"{CLIENT_ROW}('me', 'PRODUCER', 'p', 'x', '1'); UPDATE mqdb.client SET checks_transactions = true",
        OWN,
    ),
    Attack(
        "61_member_of_another_group",
        f"{CLIENT_ROW}('me', 'CONSUMER', 'payroll', 'x', '1')",
        "42501",
    ),
    Attack(
        "61_row_in_anothers_name",
        "INSERT INTO mqdb.client (client_id, kind, group_name, language, version, principal) VALUES "
        "('me', 'PRODUCER', 'p', 'x', '1', 'ada')",
        "42501",
    ),
    Attack(
        "61_give_a_row_away",
        f"{CLIENT_ROW}('me', 'PRODUCER', 'p', 'x', '1'); UPDATE mqdb.client SET principal = 'ada'",
        "42501",
    ),
    Attack("61_heartbeat_of_others", "UPDATE mqdb.client SET heartbeat_at = '2999-01-01' RETURNING *", NOTHING),
    Attack(
        "61_take_the_presence_of_another",
        "UPDATE mqdb.presence SET lock_key = 1 WHERE client_id = 'their@1#1' RETURNING *",
        NOTHING,
    ),
    Attack(
        "61_presence_in_anothers_name",
        "INSERT INTO mqdb.presence (client_id, lock_key, principal) VALUES ('me', 1, 'ada')",
        "42501",
    ),
    Attack(
        "61_give_presence_away",
        "INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('me', 1); UPDATE mqdb.presence SET principal = 'ada'",
        "42501",
    ),
    Attack("61_presence_of_others", "SELECT * FROM mqdb.presence", NOTHING),
    Attack("63_reap_while_somebody_attends", "SELECT * FROM mqdb.reap_clients('-1000 years')", NOTHING),
    Attack("63_reap_with_null", "SELECT * FROM mqdb.reap_clients(NULL)", NOTHING),
    Attack(
        "69_ask_a_client", "INSERT INTO mqdb.client_request (client_id, kind) VALUES ('their@1#1', 'STATUS')", "42501"
    ),
    Attack("69_answer_for_another", "UPDATE mqdb.client_request SET answer = '{}' RETURNING *", NOTHING),
    Attack("69_withdraw", "DELETE FROM mqdb.client_request", "42501"),
    Attack("90_grant_oneself", "INSERT INTO mqdb.acl VALUES (session_user, 'SEND', 'TOPIC', '*')", "42501"),
    Attack("90_by_a_view", "INSERT INTO mqdb.own_right VALUES ('SEND', 'TOPIC', '*')", "42501"),
    Attack("90_by_a_view_changed", "UPDATE mqdb.own_right SET resource = '*'", "42501"),
    Attack("94_lead", "UPDATE mqdb.leader SET backend_pid = pg_backend_pid()", "42501"),
    Attack("94_lead_first", "INSERT INTO mqdb.leader SELECT * FROM mqdb.leader", "42501"),
    Attack("94_lock_the_leader", "SELECT FROM mqdb.leader FOR UPDATE", "42501"),
    Attack("95_make_segments", "SELECT mqdb.ensure_segments(3)", "MQ108"),
    Attack("95_make_segments_null", "SELECT mqdb.ensure_segments(NULL)", "MQ108"),
    Attack("95_drop_a_partition", "DROP TABLE mqdb.commit_log_1", "42501"),
    Attack("95_detach_a_partition", "ALTER TABLE mqdb.commit_log DETACH PARTITION mqdb.commit_log_1", "42501"),
    Attack("96_dispatch_null", "SELECT * FROM mqdb.dispatch(NULL)", "MQ108"),
    Attack("98_adopt_by_a_setting", "SET mqdb.identity = 'x'; SELECT messages, more FROM mqdb.dispatch()", NOTHING),
    Attack("99_begin_batch", "SELECT mqdb.begin_batch('dispatch')", "42501"),
    Attack(
        "99_end_batch",
        "SELECT mqdb.end_batch('dispatch', NULL, 999999, 1, NULL, NULL, NULL)",
        "42501",
    ),
    Attack("99_dispatcher_state", "SELECT setval('mqdb.dispatcher_state', 1)", "42501"),
    Attack("99_stay_awake_while_somebody_attends", "SELECT mqdb.stay_awake()", NOTHING),
    Attack(
        "100_wake_trigger_of_ones_own",
        "CREATE TEMP TABLE t (); CREATE TRIGGER x AFTER INSERT ON t EXECUTE FUNCTION mqdb.wake_dispatcher()",
        "42501",
    ),
    Attack(
        "132_temp_objects_named_like_ours",
        """CREATE TEMP TABLE acl (principal text, access text, resource_type text, resource text);
           INSERT INTO acl VALUES (session_user, 'SEND', 'TOPIC', 'secret');
           CREATE TEMP VIEW own_right AS TABLE acl; CREATE TEMP VIEW own_queue AS SELECT 1 AS queue_key, true AS
           may_read;
           CREATE FUNCTION pg_temp.is_allowed(text, text, text, text) RETURNS boolean RETURN true;
           CREATE FUNCTION pg_temp.is_owner(text) RETURNS boolean RETURN true;
           CREATE FUNCTION pg_temp.is_covered(text, text, text) RETURNS boolean RETURN true;
           CREATE FUNCTION pg_temp.starts_with(text, text) RETURNS boolean RETURN true;
           CREATE DOMAIN pg_temp.jsonb AS text; SET search_path = pg_temp, mqdb, pg_catalog;
           SELECT mqdb.send('secret', 'x')""",
        "MQ204",
    ),
    Attack(
        "133_own_functions_before_a_read",
        """CREATE FUNCTION pg_temp.is_owner(text) RETURNS boolean RETURN true;
           CREATE FUNCTION pg_temp.pg_has_role(regrole, oid, text) RETURNS boolean RETURN true;
           SET search_path = pg_temp, mqdb, pg_catalog;
           SELECT * FROM mqdb.scheduled; SELECT * FROM mqdb.queue_ends WHERE queue_key = :secret_key""",
        NOTHING,
    ),
    Attack(
        "134_definer_of_ones_own",
        "CREATE FUNCTION pg_temp.g() RETURNS text SECURITY DEFINER RETURN mqdb.send('secret', 'x'); SELECT pg_temp.g()",
        "MQ204",
    ),
    Attack("135_asserts_off", "SET plpgsql.check_asserts = off; SELECT mqdb.send('secret', 'x')", "MQ204"),
    Attack(
        "135_strict_parameters",
        "SET plpgsql.print_strict_params = on; SET plpgsql.extra_errors = 'all'; SELECT mqdb.send('secret', 'x')",
        "MQ204",
    ),
    Attack(
        "136_lexer",
        "SET standard_conforming_strings = off; SET backslash_quote = on; SET transform_null_equals = "
        "on; SELECT mqdb.send('secret', 'x')",
        "MQ204",
    ),
    Attack(
        "138_debug_output",
        """SET client_min_messages = debug5; SET debug_print_plan = on; SET debug_print_rewritten = on;
           SELECT * FROM mqdb.find_aim(:secret_pos); SELECT * FROM mqdb.find_records(ARRAY[:secret_uuid], 0)""",
        OWN,
    ),
    Attack("139_row_security_off", "SET row_security = off; SELECT * FROM mqdb.commit_log", "42501"),
    Attack(
        "139_row_security_off_at_a_write",
        "SET row_security = off; UPDATE mqdb.consumer_offset SET next_offset = 0",
        "42501",
    ),
    Attack("139_replica", "SET session_replication_role = replica", "42501"),
    Attack(
        "139_settings_that_look_like_ours",
        "SET mqdb.principal = 'owner'; SET mqdb.identity = 'known'; SET mqdb.listener = 'on'; SELECT "
        "mqdb.send('secret', 'x')",
        "MQ204",
    ),
    Attack(
        "139_a_clock_of_ones_own",
        "SET mqdb.clock_offset = '-10 years'; SELECT mqdb.now() < clock_timestamp() - interval '1 min'",
        NOTHING,
    ),
    Attack(
        "141_planner",
        "SET enable_seqscan = off; SET enable_indexscan = off; SET "
        "parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; "
        "SELECT * FROM mqdb.commit_log WHERE tags = 'tag-secret'",
        NOTHING,
    ),
    Attack("142_read_only", "SET TRANSACTION READ ONLY; SELECT mqdb.send('secret', 'x')", "MQ204"),
    Attack("144_set_role", "SET ROLE a_oper", "any refusal"),
    Attack("144_session_authorization", "SET SESSION AUTHORIZATION postgres", "42501"),
    Attack(
        "145_end_others",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid IN (SELECT backend_pid FROM mqdb.leader)",
        "42501",
    ),
    Attack("147_lock_rows_of_topics", "SELECT FROM mqdb.topic FOR KEY SHARE", "42501"),
    Attack("147_lock_rows_of_messages", "SELECT FROM mqdb.message FOR SHARE", "42501"),
    Attack(
        "147_lock_rows_of_another_group",
        "SELECT * FROM mqdb.subscription_group WHERE group_name = 'payroll' FOR UPDATE",
        NOTHING,
    ),
    Attack("156_sequences", "SELECT nextval('mqdb.queue_queue_key_seq')", "42501"),
    Attack("156_sequences_set", "SELECT setval('mqdb.subscription_group_group_id_seq', 2147483647)", "42501"),
    Attack(
        "162_a_trigger_on_the_log",
        "CREATE TRIGGER t AFTER INSERT ON mqdb.commit_log EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "42501",
    ),
    Attack("163_publication", "CREATE PUBLICATION p FOR TABLE mqdb.commit_log", "42501"),
    Attack("152_large_object_of_a_file", "SELECT lo_import('/etc/passwd')", "42501"),
    Attack("163_replication_slot", "SELECT pg_create_physical_replication_slot('x')", "42501"),
    Attack("163_list_a_directory", "SELECT pg_ls_dir('.')", "42501"),
    Attack("163_read_a_file", "SELECT pg_read_file('PG_VERSION')", "42501"),
    Attack(
        "31_make_a_topic",
        f"{TOPIC_ROW}('secret2', 1, 1, 6)",
        "42501",
    ),
    Attack(
        "31_make_one_that_is_there",
        f"{TOPIC_ROW}('secret', 1, 1, 6) ON CONFLICT DO NOTHING",
        "42501",
    ),
    Attack(
        "31_make_the_retry_topic_of_another",
        f"{TOPIC_ROW}('%RETRY%pay', 1, 1, 6)",
        "42501",
    ),
    Attack(
        "31_make_one_that_begins_like_ones_own",
        f"{TOPIC_ROW}('%RETRY%billing2', 1, 1, 6)",
        "42501",
    ),
    Attack(
        "31_make_a_system_topic",
        f"{TOPIC_ROW}('rmq_sys_x', 1, 1, 6)",
        "42501",
    ),
    Attack(
        "31_make_a_queue_of_another_topic",
        "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:secret_topic, 7)",
        "42501",
    ),
    Attack(
        "31_make_a_queue_of_the_broker",
        "INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, 90 FROM mqdb.topic WHERE topic = "
        "'SCHEDULE_TOPIC_XXXX'",
        "42501",
    ),
    Attack("31_change_a_topic", "UPDATE mqdb.topic SET perm = 6", "42501"),
    Attack("31_change_a_queue", "UPDATE mqdb.queue SET base_offset = 99", "42501"),
]

BY_ROLE = {
    NONE: [
        Attack(
            "1_every_row",
            "SELECT * FROM mqdb.commit_log; SELECT * FROM mqdb.consume_queue; SELECT * FROM mqdb.message_index",
            NOTHING,
        ),
        Attack(
            "1_every_group",
            "SELECT * FROM mqdb.subscription_group; SELECT * FROM mqdb.consumer_offset; SELECT * FROM mqdb.client",
            NOTHING,
        ),
        Attack("3_insert_into_the_log", record(":orders_key"), NO_QUEUE),
        Attack(
            "5_views",
            "SELECT * FROM mqdb.message; SELECT * FROM mqdb.scheduled; SELECT * FROM mqdb.consumer_lag; "
            "SELECT * FROM mqdb.queue_ends",
            NOTHING,
        ),
        Attack("9_existence_by_error", "SELECT mqdb.send('orders', 'x')", "MQ204"),
        Attack(
            "12_own_rights",
            "TABLE mqdb.own_right; TABLE mqdb.own_queue; TABLE mqdb.acl_queue; TABLE mqdb.own_group",
            NOTHING,
        ),
        Attack("15_schedule_for_any_topic", record(":schedule_key", real("orders")), "MQ204"),
    ],
    SEND: [
        Attack(
            "16_real_topic_among_ones_own_properties",
            "SELECT mqdb.send('orders', 'x', properties => '{\"REAL_TOPIC\": \"secret\"}', delay_level => 1)",
            "MQ104",
        ),
        Attack("19_forge_an_old_store_time", record(":orders_key", store_time="'1970-01-02'"), "42501"),
        Attack(
            "19_forge_a_store_time_before_the_statement",
            record(":orders_key", store_time="mqdb.now() - interval '1 min'"),
            "42501",
        ),
        Attack(
            "19_forge_a_store_time_ahead", record(":orders_key", store_time="mqdb.now() + interval '1 min'"), "42501"
        ),
        Attack("19_forge_an_endless_store_time", record(":orders_key", store_time="'infinity'"), "23514"),
        Attack(
            "22_delay_beyond_the_limits", record(":timer_key", real("orders"), tags_code="9223372036854775807"), "23514"
        ),
        Attack("24_a_body_beyond_the_limit", record(":orders_key", body="repeat('x', 4194305)::bytea"), "42501"),
        Attack("24_a_body_of_null", record(":orders_key", body="NULL"), "any refusal"),
        Attack("26_properties_that_are_no_object", record(":orders_key", "[1]"), "23514"),
        Attack("30_no_queue", record("NULL"), "23502"),
        Attack("30_closed_topic_by_send", "SELECT mqdb.send('closed', 'x')", "MQ202"),
        Attack(
            "37_read_by_returning_more",
            record(":orders_key", more="RETURNING (SELECT string_agg(tags, '') FROM mqdb.commit_log)"),
            OWN,
        ),
        Attack(
            "37_read_by_a_conflict",
            record(":orders_key", more="ON CONFLICT (log_pos) DO UPDATE SET body = 'x'"),
            "42501",
        ),
        Attack(
            "37_read_ones_own_topic",
            "SELECT * FROM mqdb.message; SELECT * FROM mqdb.consume_queue; SELECT * FROM mqdb.message_index",
            NOTHING,
        ),
        Attack(
            "37_read_what_one_has_just_sent",
            f"{record(':orders_key')}; SELECT convert_from(body, 'UTF8') FROM mqdb.commit_log",
            OWN,
        ),
        Attack(
            "31_a_queue_beyond_the_topic",
            "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:orders_topic, 4)",
            "42501",
        ),
        Attack(
            "31_a_queue_below_the_topic",
            "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:orders_topic, -1)",
            "42501",
        ),
        Attack(
            "31_a_queue_of_null",
            "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:orders_topic, NULL)",
            "any refusal",
        ),
        Attack("51_member_by_sending", "SELECT mqdb.leave_group('billing', 'x', 'CONSUMER')", "MQ204"),
    ],
    READ: [
        Attack("3_send_by_reading", "SELECT mqdb.send('orders', 'x')", "MQ204"),
        Attack("3_write_by_reading", record(":orders_key"), "MQ204"),
        Attack("15_schedule_by_reading", record(":schedule_key", real("orders")), "MQ204"),
        Attack(
            "51_commit_with_read_only",
            f"{OFFSET_ROW}(:billing_id, :orders_key, 0)",
            "42501",
        ),
        Attack(
            "51_subscribe_with_read_only",
            "SELECT mqdb.replace_subscriptions('billing', 1, '{orders}', '{TAG}', '{*}')",
            "MQ204",
        ),
        Attack(
            "51_register_with_read_only",
            f"{CLIENT_ROW}('me', 'CONSUMER', 'billing', 'x', '1')",
            "42501",
        ),
        Attack("51_lags_with_read_only", "SELECT * FROM mqdb.consumer_lag", NOTHING),
        Attack(
            "31_make_ones_own_topic_by_reading",
            "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:orders_topic, 3)",
            "42501",
        ),
        Attack("50_read_one_topic", "SELECT DISTINCT topic FROM mqdb.message WHERE topic <> 'orders'", NOTHING),
    ],
    GROUP: [
        # Its group pulls. (test_principals.py has one that pops.)
        Attack(
            "54_pop_in_a_group_that_pulls", "SELECT * FROM mqdb.pop_queues('billing', ARRAY[:orders_key], 9)", "MQ206"
        ),
        Attack("3_send_as_a_member", "SELECT mqdb.send('orders', 'x')", "MQ204"),
        Attack("3_write_as_a_member", record(":orders_key"), "MQ204"),
        Attack("15_schedule_as_a_member", record(":schedule_key", real("orders")), "MQ204"),
        Attack("15_retry_of_a_longer_name", record(":schedule_key", real("%RETRY%billing2")), "MQ204"),
        Attack("15_retry_of_a_shorter_name", record(":schedule_key", real("%RETRY%bill")), "MQ204"),
        Attack("15_send_to_ones_retry_topic", "SELECT mqdb.send('%RETRY%billing', 'x')", "MQ204"),
        Attack(
            "54_move_a_row_to_another_group",
            "INSERT INTO mqdb.subscription VALUES (:billing_id, 'orders', 'TAG', '*', 1); UPDATE "
            "mqdb.subscription SET group_id = :payroll_id",
            "42501",
        ),
        Attack(
            "54_take_a_row_of_another_by_conflict",
            f"{OFFSET_ROW}(:payroll_id, :secret_key, 0) ON CONFLICT (group_id, queue_key) DO UPDATE SET "
            "next_offset = 0",
            "42501",
        ),
        Attack(
            "59_reconsume_times_at_the_edge",
            LOG.replace("queue_key,", "reconsume_times, queue_key,")
            + "(2147483647, :billing_retry_key, mqdb.now(), now(), 0, gen_random_uuid(), 'x', '{}', 'x')",
            "any refusal",
        ),
        Attack(
            "57_send_back_a_record_of_another_topic",
            "INSERT INTO mqdb.commit_log (queue_key, store_time, born_time, tags_code, msg_id, born_host, "
            "properties, body) SELECT :billing_retry_key, mqdb.now(), now(), 0, msg_id, 'x', properties, "
            "body FROM mqdb.commit_log WHERE log_pos = :secret_pos RETURNING body",
            NOTHING,
        ),
        Attack(
            "64_offsets_below_zero",
            f"{OFFSET_ROW}(:billing_id, :orders_key, -1)",
            "23514",
        ),
        Attack(
            "64_an_odd_filter", "SELECT mqdb.replace_subscriptions('billing', 1, '{orders}', '{SQL93}', '{x}')", "23514"
        ),
        Attack(
            "64_arrays_that_do_not_fit",
            "SELECT mqdb.replace_subscriptions('billing', 1, '{a,b}', '{TAG}', '{*}')",
            "MQ108",
        ),
        Attack(
            "64_arrays_of_arrays",
            "SELECT mqdb.replace_subscriptions('billing', 1, '{{a},{b}}', '{{TAG},{TAG}}', '{{*},{*}}')",
            "MQ108",
        ),
        Attack(
            "64_arrays_with_nulls", "SELECT mqdb.replace_subscriptions('billing', 1, '{NULL}', '{TAG}', '{*}')", "MQ108"
        ),
        Attack(
            "60_error_shows_no_more",
            f"{COMMIT_ROW}(:billing_id, :secret_key, 0, 1, 1, 1)",
            "23503",
        ),
        Attack(
            "31_retry_topic_of_many_queues",
            f"{TOPIC_ROW}('%RETRY%billing', 65, 65, 6) ON CONFLICT DO NOTHING",
            "42501",
        ),
        Attack("43_lag_of_another_group", "SELECT * FROM mqdb.consumer_lag WHERE group_name = 'payroll'", NOTHING),
        Attack("69_a_request_of_a_sibling", "SELECT * FROM mqdb.client_request", NOTHING),
    ],
}


@pytest.mark.parametrize("role", ROLES)
def test_attacks_get_what_they_must(world: World, before: dict[str, str], role: str) -> None:
    wrong = {}
    for each in [*BY_ALL, *BY_ROLE.get(role, [])]:
        statement = world.text(each.statement)
        outcome = attack(world.sessions[role], statement, keep=each.must == NOTHING)
        if not gets(outcome, each.must) or leaks(outcome, statement):
            wrong[each.name] = outcome

    assert wrong == {}
    assert rows_of_all(world.owner) == before


def gets(outcome: Outcome, must: str) -> bool:
    """Whether an attack ended with its required result."""
    if must == OWN:
        return outcome.sqlstate is None
    if must == NOTHING:
        return outcome.sqlstate is None and outcome.shows_nothing
    if must == "any refusal":
        return outcome.sqlstate is not None
    if must == "any refusal or nothing":
        return outcome.sqlstate is not None or outcome.shows_nothing
    return outcome.sqlstate == must


def test_marks_are_noticed(own: World, database: Database) -> None:
    """Marked values are found in rows, notices and errors of the owner, who may see them."""
    for statement in (
        "SELECT body FROM mqdb.commit_log",
        f"{LEAK} SELECT FROM mqdb.commit_log WHERE pg_temp.leak(tags)",
        "SELECT FROM mqdb.commit_log WHERE tags::integer = 1",
        "UPDATE mqdb.client SET kind = 'x'",
    ):
        assert leaks(attack(database.connect(), statement), statement)
    assert not attack(database.connect(), "SELECT * FROM mqdb.dlq").shows_nothing


# -- all that a role may do ---------------------------------------------------------------------

#: What every role may do that has USAGE on the schema, and why.
TABLES = {
    "alembic_version": ("SELECT", "which version of the schema it is"),
    "broker": ("SELECT", "who the broker is"),
    "leader": ("SELECT", "clients ask whether somebody attends"),
    "segment": ("SELECT", "readers look for the segments of positions"),
    "checkpoint": ("SELECT", "how far dispatch and index have come"),
    "dispatch_lane": ("SELECT", "which queues are behind"),
    "id_span": ("SELECT", "readers look for unique ids"),
    "delay_level": ("SELECT", "senders look for a level"),
    "log_pos": ("SELECT", "how far the log has come"),
    "dispatcher_state": ("SELECT", "the trigger of the log asks for it"),
    "placed": ("SELECT", "readers ask how far appends have placed their records"),
    "topic": ("SELECT", "its own rows"),
    "queue": ("SELECT", "its own rows"),
    "live_queue": ("SELECT", "numbers"),
    "commit_log": ("SELECT", "its own rows"),
    "queue_run": ("SELECT", "its own rows"),
    "consume_queue": ("SELECT", "a view with the rights of whoever reads it"),
    "message_index": ("SELECT", "its own rows"),
    "subscription_group": ("SELECT", "its own rows"),
    "subscription": ("SELECT", "its own rows"),
    "operation": ("SELECT", "what was done to its own"),
    "consumer_offset": ("SELECT", "its own rows"),
    "queue_lock": ("SELECT", "its own rows"),
    "offset_commit": ("SELECT", "its own rows"),
    "pop_batch": ("SELECT", "its own rows"),
    "client": ("SELECT", "its own rows"),
    "presence": ("SELECT", "its own rows"),
    "client_request": ("SELECT", "its own rows"),
    "redrive_result": ("SELECT", "its own rows"),
    "sink_batch": ("SELECT", "its own rows"),
    "sink_write": ("SELECT", "its own rows"),
    "sink_stage": ("SELECT", "its own rows"),
    "sink_part": ("SELECT", "its own rows"),
    "message": ("SELECT", "a view with the rights of whoever reads it"),
    "consumer_lag": ("SELECT", "asks own_group"),
    "dlq": ("SELECT", "a view with the rights of whoever reads it"),
    "held_presence": ("SELECT", "a view with the rights of whoever reads it"),
    "queue_ends": ("SELECT", "asks own_queue"),
    "scheduled": ("SELECT", "asks own_right"),
    "own_namespace": ("SELECT", "its own row"),
    "named_topic": ("SELECT", "asks topic as the role"),
    "own_right": ("SELECT", "its own rows"),
    "own_queue": ("SELECT", "its own rows"),
    "acl_queue": ("SELECT", "its own rows"),
    "own_group": ("SELECT", "its own rows"),
    "seen_group": ("SELECT", "its own rows"),
    **{
        f"{parent}_{segment}": ("SELECT", "its own rows")
        for parent in ("commit_log", "queue_run")
        for segment in (1, 2, 3)
    },
}

#: Columns that it may write: in its own rows only.
COLUMNS = {
    "commit_log": (
        (
            "queue_key store_time born_time tags_code msg_id sys_flag flag reconsume_times born_host tags keys "
            "properties body"
        ),
        "",
    ),
    "subscription_group": ("", "subscription_version"),
    "consumer_offset": (
        "group_id queue_key next_offset segment begun",
        "next_offset segment owner epoch updated_at begun",
    ),
    "queue_lock": ("group_id queue_key owner epoch expires_at expiry", "owner epoch expires_at expiry"),
    "offset_commit": ("group_id queue_key from_offset next_offset segment epoch", ""),
    "client": (
        "client_id kind group_name message_model language version checks_transactions",
        "heartbeat_at version checks_transactions",
    ),
    "presence": ("client_id lock_key", "lock_key"),
    "client_request": ("", "answer answered_at"),
    "sink_batch": ("sink_id batch_id query_id messages checksum brokers", ""),
    "sink_write": ("write_id sink_id batch_id", ""),
    "sink_stage": (
        (
            "write_id born_time tags_code deliver_ms msg_id seq queue_key delay_level born_host tags keys properties "
            "body"
        ),
        "",
    ),
}

#: Functions that run with the rights of the owner.
DEFINERS = {
    "ack": "asks check_member",
    "change_invisible": "asks check_member",
    "add_cron": "asks check_right",
    "change_cron": "asks is_allowed for the topic of the cron",
    "change_topic": "asks check_right",
    "clear_own_batches": "its own rows",
    "clear_own_writes": "its own rows",
    "create_topic": "asks check_right",
    "delete_group": "asks check_right",
    "delete_topic": "asks check_right",
    "dispatch": "nothing while a leader attends",
    "dlq_outline": "asks check_right",
    "dlq_redrive": "asks check_right, and is_allowed for each letter",
    "end_half": "of its own half messages, and asks check_right",
    "ensure_segments": "at most two that are ahead",
    "find_aim": "asks is_own",
    "find_queue_offset": "asks is_own",
    "find_records": "asks is_own",
    "forget_own_batches": "its own rows",
    "group_offsets": "asks check_right",
    "index_keys": "nothing while a leader attends",
    "is_allowed": "for itself only",
    "is_of_the_broker": "tells of the broker's own topics",
    "leave_group": "asks check_member",
    "live_members": "asks own_right",
    "make_group": "asks check_member",
    "make_topic": "asks own_right and check_right",
    "make_reply_topic": "one topic",
    "own_checks": "about its own half messages",
    "own_replies": "of its own clients",
    "reap_clients": "nothing while a leader attends",
    "operated_halves": "asks own_right",
    "recall_outcome": "asks check_right",
    "recall_own": "asks check_right",
    "replace_subscriptions": "asks check_member",
    "reply": "asks own_queue and own_right",
    "resolve_half": "asks own_right",
    "send": "asks check_right",
    "send_half": "asks check_right",
    "set_group": "asks check_right",
    "set_offsets": "asks check_right, and own_right for each queue",
    "topic_uses": "asks check_right",
    "stay_awake": "nothing while a leader attends",
    "pop": "asks check_right for the topic, and check_member",
    "pop_due": "asks check_member, and own_queue for each queue",
    "pop_queues": "asks check_member, and own_queue for each queue",
    "pop_take": "asks check_member, and own_queue for each queue",
    "take_offset_commits": "asks check_member",
    "unlock_queues": "asks check_member",
}


@pytest.mark.parametrize("role", ROLES)
def test_171_new_objects_stay_closed(world: World, role: str) -> None:
    """A role can only reach the objects listed here, each with a reason."""
    tables = world.owner.execute(
        """SELECT c.relname, array_to_string(ARRAY(
               SELECT p FROM unnest(CASE c.relkind WHEN 'S' THEN '{SELECT,UPDATE,USAGE}'::text[]
                                    ELSE '{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}' END) p
               WHERE CASE c.relkind WHEN 'S' THEN has_sequence_privilege(%(role)s::name, c.oid, p)
                     ELSE has_table_privilege(%(role)s::name, c.oid, p) END), ' ')
           FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind = ANY ('{r,p,v,m,f,S}')""",
        {"role": role},
    ).fetchall()
    assert {name: has for name, has in tables if has} == {name: has for name, (has, _) in TABLES.items()}

    columns = world.owner.execute(
        """SELECT c.relname, coalesce(string_agg(a.attname, ' ') FILTER (
                      WHERE has_column_privilege(%(role)s::name, c.oid, a.attnum, 'INSERT')), ''),
                  coalesce(string_agg(a.attname, ' ') FILTER (
                      WHERE has_column_privilege(%(role)s::name, c.oid, a.attnum, 'UPDATE')), ''),
                  bool_or(has_column_privilege(%(role)s::name, c.oid, a.attnum, 'REFERENCES'))
           FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
           WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT a.attisdropped
             AND a.attnum > 0
           GROUP BY c.relname""",
        {"role": role},
    ).fetchall()
    assert not any(references for *_, references in columns)
    writable = {name: (set(new.split()), set(changed.split())) for name, new, changed, _ in columns if new or changed}
    assert writable == {name: (set(new.split()), set(changed.split())) for name, (new, changed) in COLUMNS.items()}

    functions = world.owner.execute(
        """SELECT DISTINCT p.proname FROM pg_proc p
           WHERE p.pronamespace = 'mqdb'::regnamespace AND p.prosecdef
             AND has_function_privilege(%s::name, p.oid, 'EXECUTE')""",
        [role],
    ).fetchall()
    assert {name for (name,) in functions} == set(DEFINERS)

    schema = "SELECT has_schema_privilege(%s::name, 'mqdb', 'CREATE')"
    assert scalar(world.owner, schema, [role]) is False


def test_2_partitions_that_are_made_later(own: World) -> None:
    own.owner.execute("SELECT mqdb.add_segment(1000), mqdb.add_timer_slot(7, 0, 1)")

    opened = own.owner.execute(
        """SELECT c.relname, c.relrowsecurity FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace
           AND c.relname = ANY ('{commit_log_4,queue_run_4,message_index_4,timer_7}')
           AND has_any_column_privilege('a_none', c.oid, 'SELECT, INSERT, UPDATE, REFERENCES')"""
    ).fetchall()
    assert dict(opened) == {"commit_log_4": True, "queue_run_4": True}


def test_38_what_holds_rows_back_does_so_before_all_else(world: World) -> None:
    """Each table whose rows depend on rights has row security.

    Each view that runs with the rights of others is a barrier.
    """
    told = {
        "alembic_version", "broker", "leader", "segment", "checkpoint", "dispatch_lane", "id_span", "delay_level",
        "live_queue",
    }  # fmt: skip
    open_tables = world.owner.execute(
        """SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p')
           AND NOT c.relrowsecurity AND has_any_column_privilege('a_none', c.oid, 'SELECT, INSERT, UPDATE')"""
    )
    assert {name for (name,) in open_tables} == told
    views = world.owner.execute(
        """SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind = 'v'
           AND has_table_privilege('a_none', c.oid, 'SELECT')
           AND NOT coalesce(c.reloptions && '{security_invoker=true,security_barrier=true}', false)"""
    )
    assert views.fetchall() == []


def test_132_no_function_depends_on_the_path_of_the_caller(world: World) -> None:
    """No function depends on the caller's search_path.

    A function sets its own search_path, or its names were bound when it was created.
    """
    loose = world.owner.execute(
        """SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'mqdb'::regnamespace AND p.prosqlbody IS NULL
           AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (p.proconfig), false)"""
    )
    assert loose.fetchall() == []


MODES = (
    "ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE",
    "ACCESS EXCLUSIVE",
)  # fmt: skip


@pytest.mark.parametrize("role", ROLES)
def test_146_lock_table(world: World, role: str) -> None:
    """A role can only take locks on relations, and only in modes that a read or an insert takes as well."""
    relations = world.owner.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p', 'v')"
    ).fetchall()
    locked = []

    for (name,) in relations:
        for mode in MODES:
            if attack(world.sessions[role], f"LOCK TABLE mqdb.{name} IN {mode} MODE NOWAIT").sqlstate != "42501":
                locked.append((name, mode))

    readable = {name for name, (has, _) in TABLES.items() if "SELECT" in has} - {
        "log_pos",
        "dispatcher_state",
        "placed",
    }
    # What may be read may be locked so; what may be inserted into, in the mode of an insert.
    expected = {(name, "ACCESS SHARE") for name in readable}
    assert set(locked) - {(name, "ROW SHARE") for name in readable} - {("message", "ACCESS SHARE")} <= expected
    assert not {mode for _, mode in locked} - {"ACCESS SHARE", "ROW SHARE", "ROW EXCLUSIVE"}


@pytest.mark.parametrize("role", ROLES)
def test_158_nulls_everywhere(world: World, role: str) -> None:
    """Each function that runs with the owner's rights is called with NULL for every argument."""
    functions = world.owner.execute(
        """SELECT p.proname, array_to_string(ARRAY(
               SELECT 'NULL::' || format_type(t, NULL) FROM unnest(p.proargtypes) AS t), ', ')
           FROM pg_proc p WHERE p.pronamespace = 'mqdb'::regnamespace AND p.prosecdef
             AND p.prorettype <> 'trigger'::regtype"""
    ).fetchall()
    before = rows_of_all(world.owner)

    for name, nulls in functions:
        outcome = attack(world.sessions[role], f"SELECT (f).* FROM (SELECT mqdb.{name}({nulls}) AS f) x", keep=True)
        if outcome.sqlstate == "42809":  # of no row type
            outcome = attack(world.sessions[role], f"SELECT mqdb.{name}({nulls})", keep=True)
        refused = (outcome.sqlstate or "").startswith("MQ") or outcome.sqlstate == "42501"
        assert refused or (outcome.sqlstate is None and outcome.shows_nothing), (name, outcome)
        assert leaks(outcome, "") == []

    assert rows_of_all(world.owner) == before


@pytest.mark.parametrize("role", ROLES)
def test_91_change_every_table(world: World, role: str) -> None:
    """Every change except an insert or an update of the columns above is refused."""
    tables = world.owner.execute(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'mqdb'::regnamespace AND c.relkind IN ('r', 'p', 'v')"
    ).fetchall()
    for (name,) in tables:
        statements = [
            f"DELETE FROM mqdb.{name}",
            f"TRUNCATE mqdb.{name}",
            f"ALTER TABLE mqdb.{name} OWNER TO {role}",
            f"CREATE TRIGGER t AFTER INSERT ON mqdb.{name} EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        ]
        if name not in COLUMNS:
            statements += [f"INSERT INTO mqdb.{name} SELECT", f"SELECT FROM mqdb.{name} FOR SHARE"]
        for statement in statements:
            assert attack(world.sessions[role], statement).sqlstate in ("42501", "0A000", "42809", "55000"), statement


@pytest.mark.parametrize("role", ROLES)
def test_4_every_function_by_name(world: World, role: str) -> None:
    """No function called with NULLs shows or changes rows of others.

    The test also covers functions that are added later.
    """
    functions = world.owner.execute(
        """SELECT p.proname, array_to_string(ARRAY(
               SELECT 'NULL::' || format_type(t, NULL) FROM unnest(p.proargtypes) AS t), ', ')
           FROM pg_proc p WHERE p.pronamespace = 'mqdb'::regnamespace AND p.prorettype <> 'trigger'::regtype"""
    ).fetchall()
    before = rows_of_all(world.owner)

    for name, nulls in functions:
        outcome = attack(world.sessions[role], f"SELECT mqdb.{name}({nulls})", keep=True)
        assert leaks(outcome, "") == [], name

    assert rows_of_all(world.owner) == before


# -- more than one session ----------------------------------------------------------------------


def test_34_revoked_while_a_statement_is_prepared(own: World, database: Database) -> None:
    session = own.sessions[SEND]
    session.execute("PREPARE s AS SELECT mqdb.send('orders', 'x')")
    session.execute("PREPARE r AS " + own.text(record(":orders_key")))
    session.execute("EXECUTE s; EXECUTE r")

    own.owner.execute("DELETE FROM mqdb.acl")

    assert attack(session, "SELECT 1").sqlstate is None  # drops what is prepared
    for statement in ("SELECT mqdb.send('orders', 'x')", own.text(record(":orders_key"))):
        session.execute("PREPARE t AS " + statement)
        with pytest.raises(psycopg.Error) as refusal:
            session.execute("EXECUTE t")
        assert refusal.value.sqlstate in ("MQ204", NO_QUEUE)
        session.execute("DEALLOCATE t")


def test_53_a_view_of_a_reader_lends_nothing(own: World, database: Database) -> None:
    superuser = database.connect_as_superuser()
    superuser.execute("CREATE SCHEMA mine AUTHORIZATION a_read")
    own.sessions[READ].execute(
        """CREATE VIEW mine.v AS SELECT * FROM mqdb.message;
           GRANT USAGE ON SCHEMA mine TO PUBLIC; GRANT SELECT ON mine.v TO PUBLIC;
           CREATE FUNCTION mine.f() RETURNS bigint SECURITY DEFINER RETURN (SELECT count(*) FROM mqdb.message)"""
    )

    assert scalar(own.sessions[READ], "SELECT count(*) FROM mine.v") == 1
    assert scalar(own.sessions[NONE], "SELECT count(*) FROM mine.v") == 0
    assert scalar(own.sessions[NONE], "SELECT mine.f()") == 0


def test_144_set_role_lends_nothing(own: World, database: Database) -> None:
    superuser = database.connect_as_superuser()
    superuser.execute("GRANT a_send, a_read TO a_none")
    session = own.sessions[NONE]

    for statement in (
        "SET ROLE a_send; SELECT mqdb.send('orders', 'x')",
        "SET ROLE a_read; SELECT body FROM mqdb.message",
        own.text("SET ROLE a_send; " + record(":orders_key")),
    ):
        outcome = attack(session, statement)
        assert outcome.sqlstate in ("MQ204", "42501") or not outcome.rows
    superuser.execute("REVOKE a_send, a_read FROM a_none")


def test_46_prefix_tricks(own: World) -> None:
    """A prefix grants access only to its own topics, even a prefix that the owner could not grant."""
    session = own.sessions[NONE]
    keys = [record(key) for key in (":half_key", ":payroll_retry_key", ":payroll_dlq_key")]
    foreign = ("%RETRY%payroll", "%DLQ%payroll", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "x_REPLY_TOPIC")
    waiting = [record(key, real(topic)) for topic in foreign for key in (":schedule_key", ":timer_key")]
    made = [f"{TOPIC_ROW}('{topic}', 1, 1, 6)" for topic in ("%RETRY%x", "%DLQ%x", "rmq_sys_x", "x_REPLY_TOPIC")]

    for star in ("*", "%*", "%RETRY%*", "%DLQ%payroll", "rmq_sys_*", "S*", "R*", "%RETRY%payroll", "o_ders*", "ord%*"):
        own.owner.execute("DELETE FROM mqdb.acl WHERE principal = 'a_none'")
        for access in ("SEND", "READ"):
            own.owner.execute("INSERT INTO mqdb.acl VALUES ('a_none', %s, 'TOPIC', %s)", [access, star])
        topics = {topic for (topic,) in session.execute("SELECT topic FROM mqdb.message")}
        assert topics == ({"orders", "secret"} if star == "*" else set())
        for statement in (*keys, *waiting, *made):
            assert attack(session, own.text(statement)).sqlstate in ("MQ204", "42501", NO_QUEUE), (star, statement)


def test_15_an_odd_aim_stops_no_delivery(own: World, database: Database) -> None:
    """A role that may send to orders stores waiting messages for odd queues of that topic.

    Waiting messages of others are delivered nevertheless.
    """
    codes = {":schedule_key": ("-2147483648", "0", "253402300799999"), ":timer_key": ("-2147483648", "0")}
    for key, times in codes.items():
        for code in times:
            for queue_id in ("-1", "x", "99999999999999999999", "17", "0.5", " 0", "", "\u0663"):
                odd = f'{{"REAL_TOPIC": "orders", "REAL_QID": "{queue_id}", "MQDB_TAGS_CODE": "9999999999"}}'
                for aim in (real("orders", queue_id), odd):
                    own.sessions[SEND].execute(own.text(record(key, aim, tags_code=code)).encode())
    own.owner.execute(own.text(record(":schedule_key", real("secret"), body="'due'")).encode())
    own.owner.execute(own.text(record(":timer_key", real("secret"), body="'due'")).encode())
    dispatch_all(own.owner)

    engine = create_engine(database.dsn)
    with engine.connect() as broker:
        for _ in range(3):
            DelayDeliverer(Context(engine.connect)).run_once(broker)
            TimerDeliverer(Context(engine.connect)).run_once(broker)
    engine.dispose()

    came = "SELECT count(*) FROM mqdb.commit_log WHERE body = 'due' AND queue_key = %s"
    assert scalar(own.owner, came, [own.numbers["secret_key"]]) == 2


def test_161_odd_rows_break_nobodys_look(own: World, database: Database) -> None:
    """Members and senders write odd rows, which no client would, wherever they may write."""
    odd = (
        '{"MQDB_FAILURE_TIME": "99999999999999999999", "MQDB_ORIGIN_QUEUE_ID": "-7", "RETRY_TOPIC": "a\\nb", '
        '"DELAY": "x", "a": {"b": [null]}, "ORIGIN_MESSAGE_ID": "x", "REAL_TOPIC": "%s", '
        '"REAL_QID": "999999999999999999", "TAGS": null}'
    )
    places = [(GROUP, f":billing_{name}_key", "%RETRY%billing", 0) for name in ("retry", "dlq")]
    places += [(GROUP, ":timer_key", "%RETRY%billing", 253402300799999), (SEND, ":orders_key", "orders", 0)]
    for role, key, topic, code in places:
        own.sessions[role].execute(
            own.text(
                f"""INSERT INTO mqdb.commit_log
                        (queue_key, store_time, born_time, tags_code, msg_id, born_host, properties,
                         body, sys_flag, flag, reconsume_times, tags, keys)
                    SELECT {key}, mqdb.now(), '9998-12-31', {code}, 'ffffffff-ffff-ffff-ffff-ffffffffffff', E'h\\n',
                           '{odd % topic}', '\\xff', flag, -5, 1000000, E'\\n', '  '
                    FROM unnest('{{0,1,1793,2147483647}}'::integer[]) AS flag"""
            ).encode()
        )
    dispatch_all(own.owner)
    index_all(own.owner)

    for view in ("message", "dlq", "scheduled", "consumer_lag", "queue_ends", "half_messages"):
        assert own.owner.execute(f"TABLE mqdb.{view}".encode()).fetchall() or view == "half_messages"
    with Admin(database.dsn) as admin:
        for look in (admin.topics.list, admin.groups.list, admin.timers.list, admin.delays.list, admin.consumers.list):
            assert look() is not None


def test_97_dispatch_while_somebody_attends(own: World) -> None:
    session = own.sessions[GROUP]
    for statement in ("BEGIN; SELECT outcome FROM mqdb.dispatch()", "SELECT outcome FROM mqdb.index_keys()"):
        session.execute(statement.encode())
    session.execute("SELECT 1")

    own.owner.execute(own.text(record(":orders_key")).encode())

    assert dispatch_all(own.owner) == 1
    session.execute("ROLLBACK")


def test_97_dispatch_in_an_old_snapshot(own: World) -> None:
    """No process ran dispatch when the attacker's transaction began."""
    own.owner.execute("DELETE FROM mqdb.leader")
    session = own.sessions[GROUP]
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM mqdb.broker")

    attend(own.owner)

    with pytest.raises(psycopg.Error) as refusal:
        session.execute("SELECT * FROM mqdb.dispatch()")
    assert (refusal.value.sqlstate or "").startswith("MQ")
    session.execute("ROLLBACK")


def test_149_what_postgresql_lets_every_role_do(world: World) -> None:
    """PostgreSQL lets every role do these things, whatever its rights. docs/security.md describes the consequences."""
    session = world.sessions[NONE]
    session.execute("LISTEN mqdb; LISTEN mqdb_arrivals; NOTIFY mqdb, 'm:payroll'")
    assert scalar(session, "SELECT pg_try_advisory_lock(1)") is True
    assert scalar(session, "SELECT count(*) FROM mqdb.held_presence WHERE lock_key = 4711") == 1
    assert scalar(session, "SELECT pg_relation_size('mqdb.commit_log_1') > 0") is True
    assert scalar(session, "SELECT pg_current_xact_id()::text::bigint > 0") is True
    assert scalar(session, "SELECT last_value > 0 FROM mqdb.log_pos") is True


# -- what gets through --------------------------------------------------------------------------


def tries(session: Connection, statement: str) -> None:
    """Run a statement that may be refused: only the state that others find afterwards matters."""
    with suppress(psycopg.Error):
        session.execute(statement.encode())


def gets_through(reason: str) -> pytest.MarkDecorator:
    """Mark an attack as successful until it is fixed."""
    found = AssertionError, psycopg.Error, sqlalchemy.exc.DBAPIError, errors.InvalidInput
    return pytest.mark.xfail(strict=True, reason=reason, raises=found)


@pytest.mark.parametrize("role", [NONE, GROUP])
def test_61_kill_a_live_client_by_a_row_with_its_lock_key(own: World, role: str) -> None:
    tries(
        own.sessions[role],
        """INSERT INTO mqdb.presence (client_id, lock_key)
           SELECT 'me', h.lock_key FROM mqdb.held_presence h WHERE h.principal <> session_user""",
    )

    own.owner.execute("SELECT mqdb.reap_clients('2 min')")  # each second, by the leader

    assert scalar(own.owner, "SELECT count(*) FROM mqdb.client WHERE client_id = 'their@1#1'") == 2


def test_61_free_the_queues_of_a_live_client_by_a_silent_row_of_its_id(own: World) -> None:
    tries(
        own.sessions[NONE],
        f"{CLIENT_ROW}('their@1#1', 'PRODUCER', 'mine', 'x', '1'); UPDATE mqdb.client SET heartbeat_at = '-infinity'",
    )

    own.owner.execute("SELECT mqdb.reap_clients('2 min')")

    owner_of = "SELECT owner FROM mqdb.consumer_offset WHERE group_id = %s"
    assert scalar(own.owner, owner_of, [own.numbers["payroll_id"]]) == CLIENT


@contextmanager
def client_of(database: Database, role: str) -> Iterator[sqlalchemy.Connection]:
    """A connection like that of a role's clients."""
    engine = create_engine(with_parts(database.dsn, user=role, password=PASSWORD))
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def test_61_squat_the_id_of_a_client_that_comes_back(own: World, database: Database) -> None:
    """Client ids are visible in application_name. A client that has lost its connection reuses its id."""
    session = own.sessions[NONE]
    session.execute("SELECT pg_advisory_lock(5)")
    tries(session, "INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('other@1#1', 5)")

    with client_of(database, GROUP) as connection:
        assert clients.announce(connection, "other@1#1")


def test_61_let_a_client_wait_for_ever(own: World, database: Database) -> None:
    session = own.sessions[NONE]
    session.execute("BEGIN")
    tries(session, "INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('other@1#1', 5)")

    try:
        with client_of(database, GROUP) as connection:
            connection.exec_driver_sql("SET lock_timeout = '100ms'")
            assert clients.announce(connection, "other@1#1")
    finally:
        session.execute("ROLLBACK")


def test_61_squat_the_row_of_a_producer(own: World, database: Database) -> None:
    tries(own.sessions[NONE], f"{CLIENT_ROW}('other@1#1', 'PRODUCER', 'shop', 'x', '1')")

    with client_of(database, SEND) as connection:
        clients.add(connection, clients.Registration("other@1#1", clients.ClientKind.PRODUCER, "shop", "1"))


def test_33_take_over_the_producer_of_a_group_of_the_same_name(own: World) -> None:
    """The attack would keep the producer from receiving the checks of its transactions."""
    row = (
        CLIENT_ROW.replace("version)", "version, checks_transactions)")
        + "('p@1#1', 'PRODUCER', 'billing', 'x', '1', true)"
    )
    own.owner.execute(row.encode())

    tries(own.sessions[GROUP], "UPDATE mqdb.client SET checks_transactions = false, principal = session_user")

    assert scalar(own.owner, "SELECT checks_transactions FROM mqdb.client WHERE client_id = 'p@1#1'") is True


def test_68_a_client_of_ten_megabytes(world: World) -> None:
    statement = CLIENT_ROW + "('me', 'PRODUCER', repeat('p', 1000), 'x', repeat('x', 10000000))"

    assert attack(world.sessions[NONE], statement).sqlstate is not None


def test_69_read_and_answer_what_another_client_is_asked(own: World) -> None:
    """An attacker reads and answers requests to another client.

    The other client has left, or was removed by the attack above.
    """
    own.owner.execute("DELETE FROM mqdb.presence")

    session = own.sessions[NONE]
    tries(session, "INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('their@1#1', 5)")

    assert session.execute("UPDATE mqdb.client_request SET answer = '{}' RETURNING arguments").fetchall() == []


@pytest.mark.parametrize("table", ["presence", "client"])
def test_61_existence_of_a_client_by_error(world: World, table: str) -> None:
    statements = {
        "presence": "INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('{}', 5)",
        "client": (
            "INSERT INTO mqdb.client (client_id, kind, group_name, language, version) VALUES ('{}', "
            "'PRODUCER', 'payroll-1', 'x', '1')"
        ),
    }
    got = [attack(world.sessions[NONE], statements[table].format(name)).sqlstate for name in (CLIENT, "nobody@1#1")]
    assert got[0] == got[1]


def test_64_a_time_on_which_every_reader_of_lags_fails(own: World) -> None:
    own.sessions[GROUP].execute(own.text(f"{OFFSET_ROW}(:billing_id, :orders_key, 0)").encode())
    tries(own.sessions[GROUP], "UPDATE mqdb.consumer_offset SET updated_at = 'infinity'")

    own.owner.execute("SELECT group_name, updated_at FROM mqdb.consumer_lag").fetchall()


def test_61_who_shares_a_group_stops_no_heartbeat(own: World, database: Database) -> None:
    """The attacks: the client id of another role, and a lock on rows that the client shows to its group."""
    with Admin(database.dsn) as admin:
        admin.acl.grant(READ, group=["billing"])
    rows = f"{CLIENT_ROW}('v@1#1', 'CONSUMER', 'billing', 'x', '1'), ('v@1#1', 'PRODUCER', 'any', 'x', '1')"
    for role in (GROUP, READ):
        own.sessions[role].execute(rows.encode())
    attacker = own.sessions[READ]
    with session_of(with_parts(database.dsn, user=GROUP, password=PASSWORD)) as victim, attacker.transaction():
        assert attacker.execute("SELECT FROM mqdb.client WHERE group_name = 'billing'").rowcount == 2
        attacker.execute("SELECT FROM mqdb.client FOR UPDATE")

        assert clients.beat(victim, ["v@1#1"]) == {"v@1#1"}


def test_61_a_client_of_the_owner_is_not_stopped_by_its_id(own: World, database: Database) -> None:
    squatter = own.sessions[NONE]
    squatter.execute(f"{CLIENT_ROW}('their@1#1', 'PRODUCER', 'any', 'x', '1')".encode())
    with session_of(database.dsn) as owner, squatter.transaction():
        squatter.execute("SELECT FROM mqdb.client FOR UPDATE")

        assert clients.beat(owner, ["their@1#1"]) == {"their@1#1"}


@contextmanager
def session_of(dsn: str) -> Iterator[sqlalchemy.Connection]:
    engine = create_engine(dsn)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("SET lock_timeout = '2s'")
            yield connection
    finally:
        engine.dispose()


def test_64_a_heartbeat_on_which_the_list_of_clients_fails(own: World) -> None:
    own.sessions[NONE].execute(f"{CLIENT_ROW}('me', 'PRODUCER', 'p', 'x', '1')".encode())
    tries(own.sessions[NONE], "UPDATE mqdb.client SET heartbeat_at = 'infinity'")

    own.owner.execute("SELECT heartbeat_at FROM mqdb.client").fetchall()


def test_31_make_a_topic_on_whose_name_every_list_of_topics_fails(own: World, database: Database) -> None:
    own.owner.execute("INSERT INTO mqdb.acl VALUES ('a_none', 'SEND', 'TOPIC', 'new-*')")
    insert = f"{TOPIC_ROW}(%s, 1, 1, 6)"

    with Admin(database.dsn) as admin:
        for name in ("new-a b", "new-\n", "new-" + "x" * 200, "new-é"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                own.sessions[NONE].execute(insert, [name])
            assert admin.topics.list()


@pytest.mark.parametrize(
    ("role", "sequence", "statement"),
    [
        (SEND, "queue_queue_key_seq", f"INSERT INTO mqdb.queue (topic_id, queue_id) SELECT :orders_topic, 0 {MANY}"),
        (
            GROUP,
            "subscription_group_group_id_seq",
            f"INSERT INTO mqdb.subscription_group (group_name) SELECT 'billing' {MANY}",
        ),
        (
            SEND,
            "topic_topic_id_seq",
            f"{TOPIC_ROW.removesuffix('VALUES ')} SELECT 'orders', 1, 1, 6 {MANY}",
        ),
        (NONE, "queue_queue_key_seq", "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:secret_topic, 0)"),
        (NONE, "topic_topic_id_seq", f"{TOPIC_ROW}('x', 1, 1, 6)"),
        (NONE, "subscription_group_group_id_seq", "INSERT INTO mqdb.subscription_group (group_name) VALUES ('x')"),
    ],
)  # fmt: skip
def test_71_burn_the_numbers_of_queues_topics_and_groups(
    world: World, role: str, sequence: str, statement: str
) -> None:
    """These numbers have 32 bits: once 2^31 of them are used up, no queue, topic or group can be created."""
    look = f"SELECT last_value FROM mqdb.{sequence}"
    before = scalar(world.owner, look)

    attack(world.sessions[role], world.text(statement))

    assert scalar(world.owner, look) == before


@gets_through("a position is taken before row security is asked")
@pytest.mark.parametrize("role", [NONE, READ])
def test_18_burn_positions_without_the_right_to_send(world: World, role: str) -> None:
    before = scalar(world.owner, "SELECT last_value FROM mqdb.log_pos")
    refused = world.text(record(":secret_key")).replace("'", "''")

    world.sessions[role].execute(
        f"""DO $$ BEGIN FOR n IN 1 .. 100 LOOP
                BEGIN EXECUTE '{refused}'; EXCEPTION WHEN insufficient_privilege THEN END; END LOOP; END $$""".encode()
    )

    assert scalar(world.owner, "SELECT last_value FROM mqdb.log_pos") == before


@gets_through("an INSERT of no row asks no policy, and fires the trigger that wakes the dispatcher")
def test_36_keep_the_dispatcher_awake_without_the_right_to_send(own: World) -> None:
    own.owner.execute("SELECT setval('mqdb.dispatcher_state', 1)")
    session = own.sessions[NONE]
    session.execute("BEGIN")

    tries(session, WRITES)

    locks = "SELECT count(*) FROM pg_locks WHERE relation = 'mqdb.commit_log'::regclass AND mode = 'RowExclusiveLock'"
    found = scalar(own.owner, locks), scalar(own.owner, "SELECT last_value FROM mqdb.dispatcher_state")
    session.execute("ROLLBACK")
    assert found == (0, 1)


def test_55_offsets_on_a_topic_without_read(world: World) -> None:
    statement = f"{OFFSET_ROW}(:billing_id, :secret_key, 0)"

    assert attack(world.sessions[GROUP], world.text(statement)).sqlstate == "42501"


def test_67_keep_a_topic_of_others_from_being_deleted(own: World) -> None:
    """A foreign key locks the queue's row until the transaction ends."""
    session = own.sessions[GROUP]
    session.execute("BEGIN")
    tries(session, own.text("INSERT INTO mqdb.queue_lock VALUES (:billing_id, :secret_key, 'me', 1, now(), '1 min')"))

    own.owner.execute("SET lock_timeout = '100ms'")
    try:
        own.owner.execute(own.text("DELETE FROM mqdb.queue WHERE queue_key = :secret_key").encode())
    finally:
        session.execute("ROLLBACK")


def test_9_existence_of_a_queue_by_error(world: World) -> None:
    statement = "INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset) VALUES (:billing_id, {}, 0)"
    got = [attack(world.sessions[GROUP], world.text(statement.format(key))).sqlstate for key in (":secret_key", 999999)]

    assert got[0] == got[1]


def test_56_subscribe_without_read(world: World) -> None:
    statement = "SELECT mqdb.replace_subscriptions('billing', 9223372036854775807, '{secret}', '{TAG}', '{*}')"

    assert attack(world.sessions[GROUP], statement).sqlstate is not None


def test_30_closed_topic(own: World) -> None:
    assert attack(own.sessions[SEND], own.text(record(":closed_key"))).sqlstate == "MQ202"
    for perm, found in ((4, "MQ202"), (6, None), (2, None), (0, "MQ202")):
        own.owner.execute("UPDATE mqdb.topic SET perm = %s WHERE topic = 'orders'", [perm])
        assert attack(own.sessions[SEND], own.text(record(":orders_key"))).sqlstate == found


def test_30_opening_a_topic_brings_back_no_right(own: World) -> None:
    """A snapshot from before a revoke does not restore the right."""
    own.owner.execute(
        "INSERT INTO mqdb.acl (principal, access, resource_type, resource) VALUES (%s, 'ADMIN', 'TOPIC', 'closed')",
        [SEND],
    )
    session = own.sessions[SEND]
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM mqdb.topic")
    change = "SELECT mqdb.change_topic('closed', NULL, NULL, 6, NULL, NULL, NULL)"

    with pytest.raises(psycopg.Error) as refused:
        session.execute(change)
    session.execute("ROLLBACK")
    assert refused.value.sqlstate == "MQ109"
    assert attack(session, change).sqlstate is None


@gets_through("the policy sendable asks for the right, and not whether the queue is one that senders choose")
def test_30_read_only_queue(own: World) -> None:
    own.owner.execute("UPDATE mqdb.topic SET write_queue_nums = 1 WHERE topic = 'orders'")
    last = scalar(own.owner, "SELECT max(queue_key) FROM mqdb.queue WHERE topic_id = %s", [own.numbers["orders_topic"]])

    assert attack(own.sessions[SEND], own.text(record(str(last)))).sqlstate is not None


NO_CLIENT_SAYS_IT = gets_through(
    "row security limits sizes; clients and mqdb.send limit the rest, on the role's own topic"
)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param("properties", """'{"RETRY_TOPIC": "secret", "TRAN_MSG": "true"}'""", marks=NO_CLIENT_SAYS_IT),
        ("properties", "jsonb_build_object('p', repeat('x', 1000000))"),
        pytest.param("properties", """'{"a": {"b": [1, null]}}'""", marks=NO_CLIENT_SAYS_IT),
        ("keys", "repeat('k ', 100000)"),
        ("tags", "repeat('x', 1000000)"),
        ("born_host", "repeat('x', 1000000)"),
        ("sys_flag", "-1"),
        ("body", "''"),
        pytest.param("reconsume_times", "1000000", marks=NO_CLIENT_SAYS_IT),
    ],
)  # fmt: skip
def test_27_what_no_sender_could_say(world: World, column: str, value: str) -> None:
    values = {
        "queue_key": ":orders_key",
        "store_time": "mqdb.now()",
        "born_time": "now()",
        "tags_code": "0",
        "msg_id": "gen_random_uuid()",
        "born_host": "'x'",
        "properties": "'{}'",
        "body": "'x'",
        column: value,
    }
    statement = f"INSERT INTO mqdb.commit_log ({', '.join(values)}) SELECT {', '.join(values.values())}"

    assert attack(world.sessions[SEND], world.text(statement)).sqlstate is not None


def test_22_delay_beyond_the_limit_of_the_broker(own: World) -> None:
    own.owner.execute("UPDATE mqdb.broker SET timer_max_delay_ms = 1000")
    statement = record(":timer_key", real("orders"), tags_code="253402300799999")

    assert attack(own.sessions[SEND], own.text(statement)).sqlstate is not None


def test_169_keep_the_owner_from_taking_a_right_away(own: World, database: Database) -> None:
    session = own.sessions[NONE]
    session.execute("BEGIN")
    tries(session, "INSERT INTO mqdb.queue (topic_id, queue_id) SELECT 1, 1 WHERE false")

    own.owner.execute("SET lock_timeout = '100ms'")
    try:
        own.owner.execute("DELETE FROM mqdb.acl WHERE principal = 'a_read'")
    finally:
        session.execute("ROLLBACK")


def test_169_keep_a_right_that_was_taken_away(own: World) -> None:
    """The kept right would not appear in any list of rights."""
    own.owner.execute("INSERT INTO mqdb.acl VALUES ('a_none', 'SEND', 'TOPIC', 'new-*')")
    session = own.sessions[NONE]
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM mqdb.broker")
    own.owner.execute("DELETE FROM mqdb.acl WHERE principal = 'a_none'")
    made = (
        f"{TOPIC_ROW}('new-1', 1, 1, 6); INSERT INTO mqdb.queue (topic_id, queue_id) "
        "SELECT topic_id, 0 FROM mqdb.topic WHERE topic = 'new-1'; COMMIT"
    )

    tries(session, made)
    session.execute("ROLLBACK")

    key = own.owner.execute("SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = 'new-1'")
    for (number,) in key.fetchall():
        assert attack(session, record(str(number))).sqlstate is not None


def test_142_stay_awake_in_an_old_snapshot(own: World) -> None:
    own.owner.execute("DELETE FROM mqdb.leader")
    session = own.sessions[NONE]
    session.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM mqdb.broker")
    attend(own.owner)
    own.owner.execute("SELECT setval('mqdb.dispatcher_state', 1)")

    tries(session, "SELECT mqdb.stay_awake()")
    session.execute("ROLLBACK")

    assert scalar(own.owner, "SELECT last_value FROM mqdb.dispatcher_state") == 1


@gets_through("what a consumer has locked while nobody attended stays locked until its transaction ends")
def test_97_dispatch_in_a_transaction_that_is_older_than_the_leader(own: World) -> None:
    own.owner.execute("DELETE FROM mqdb.leader")
    session = own.sessions[NONE]
    session.execute("BEGIN")
    tries(session, "SELECT * FROM mqdb.dispatch()")
    attend(own.owner)
    own.owner.execute(own.text(record(":orders_key")).encode())

    outcome = scalar(own.owner, "SELECT outcome FROM mqdb.dispatch()")
    session.execute("ROLLBACK")

    assert outcome == "DISPATCHED"


def test_170_read_a_restored_log_by_reaching_its_xids(own: World) -> None:
    own.owner.execute(
        own.text(
            """INSERT INTO mqdb.commit_log
               (xid, store_time, queue_key, born_time, tags_code, msg_id, born_host, properties, body)
               SELECT (pg_current_xact_id()::text::bigint + 20)::text::xid8, now() - interval '1 day', :secret_key,
                      now(), 0, gen_random_uuid(), 'x', '{}', 'TOPSECRET'"""
        ).encode()
    )
    seen = []

    for _ in range(60):
        outcome = attack(
            own.sessions[NONE], "SELECT pg_current_xact_id(); SELECT convert_from(body, 'UTF8') FROM mqdb.commit_log"
        )
        seen += [row[0] for row in outcome.rows if row[0] == "TOPSECRET"]

    assert seen == []


def test_67_hold_up_the_reaper_by_a_row_of_ones_own(own: World) -> None:
    """The death of clients would go unnoticed while the transaction is open."""
    session = own.sessions[NONE]
    session.execute("INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('me', 5)")
    session.execute("BEGIN")
    tries(session, "UPDATE mqdb.presence SET lock_key = 6")

    own.owner.execute("SET lock_timeout = '100ms'")
    try:
        own.owner.execute("SELECT mqdb.reap_clients('2 min')")
    finally:
        session.execute("ROLLBACK")


def test_95_stop_dispatch_by_making_a_segment(own: World) -> None:
    """A broker process runs dispatch.

    A segment is full, and the attacker creates the next one before the keeper does.
    """
    own.owner.execute("SELECT setval('mqdb.log_pos', end_pos) FROM mqdb.segment WHERE segment = 1")
    session = own.sessions[NONE]
    session.execute("BEGIN")
    tries(session, "SELECT mqdb.ensure_segments(2)")
    own.owner.execute(own.text(record(":orders_key")).encode())

    own.owner.execute("SET lock_timeout = '100ms'")
    try:
        assert dispatch_all(own.owner) == 1
    finally:
        session.execute("ROLLBACK")


#: What one session holds, and what another asks for: PostgreSQL locks the table before it asks for rights on it.
READS = "SELECT FROM mqdb.commit_log LIMIT 1"
WRITES = LOG.replace("VALUES ", "SELECT 1, now(), now(), 0, gen_random_uuid(), 'x', '{}', 'x' WHERE false")
BY_A_RULE = "CREATE RULE r AS ON INSERT TO mqdb.commit_log DO INSTEAD NOTHING"
BY_A_TRIGGER = "CREATE TRIGGER t AFTER INSERT ON mqdb.commit_log EXECUTE FUNCTION suppress_redundant_updates_trigger()"
BY_A_PARTITION = "CREATE TEMP TABLE p PARTITION OF mqdb.commit_log FOR VALUES FROM (900000000) TO (900000001)"
BY_A_REFERENCE = "CREATE TEMP TABLE p (log_pos bigint REFERENCES mqdb.commit_log)"
LOCKS_FIRST = [(READS, BY_A_RULE), (WRITES, BY_A_TRIGGER), (READS, BY_A_PARTITION), (WRITES, BY_A_REFERENCE)]


def waits_behind(own: World, database: Database, held: tuple[str, str], asked: tuple[str, str]) -> bool:
    """Whether a send of the owner waits while one role holds a lock, and the same or another role requests one."""
    holder = own.sessions[held[0]]
    other = connect(with_parts(database.dsn, user=asked[0], password=PASSWORD))
    holder.execute("BEGIN")
    holder.execute(held[1].encode())
    other.pgconn.send_query(asked[1].encode())

    def waits_or_is_refused() -> bool:
        other.pgconn.consume_input()
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = %s)"
        return not other.pgconn.is_busy() or scalar(own.owner, waits, [other.pgconn.backend_pid])

    wait_until(waits_or_is_refused)
    own.owner.execute("SET lock_timeout = '100ms'")
    try:
        own.owner.execute(own.text(record(":orders_key")).encode())
    except psycopg.errors.LockNotAvailable:
        return True
    finally:
        holder.execute("ROLLBACK")
        other.close()
    return False


@gets_through(
    "PostgreSQL takes the lock of some statements before it asks for rights; only an event trigger comes first"
)
@pytest.mark.parametrize(("holds", "asks"), LOCKS_FIRST)
def test_146_stop_all_by_a_statement_that_is_refused(own: World, database: Database, holds: str, asks: str) -> None:
    """All senders would wait behind the attacker, and with the first and third statement all readers as well."""
    assert not waits_behind(own, database, (SEND, holds), (NONE, asks))


def test_146_a_stranger_cannot_name_the_table(own: World, database: Database) -> None:
    own.owner.execute("REVOKE USAGE ON SCHEMA mqdb FROM a_none")

    for holds, asks in LOCKS_FIRST:
        assert not waits_behind(own, database, (SEND, holds), (NONE, asks)), asks


def test_146_who_may_make_no_table_has_two_ways_less(own: World, database: Database) -> None:
    """A role that may not create tables has two fewer ways to request the lock.

    Revoking TEMP does not need a superuser.
    """
    revoke = sql.SQL("REVOKE TEMP ON DATABASE {} FROM PUBLIC").format(sql.Identifier(database.name))
    database.connect().execute(revoke)

    for holds, asks in LOCKS_FIRST[2:]:
        assert not waits_behind(own, database, (SEND, holds), (NONE, asks)), asks


def test_146_an_event_trigger_comes_before_the_lock(own: World, database: Database) -> None:
    """An event trigger runs before the lock is taken, so a superuser can prevent these locks."""
    database.connect_as_superuser().execute(
        """CREATE FUNCTION public.refuse_ddl() RETURNS event_trigger LANGUAGE plpgsql AS
           $$ BEGIN IF NOT mqdb.is_owner(session_user) THEN RAISE insufficient_privilege; END IF; END $$;
           CREATE EVENT TRIGGER mqdb_locks ON ddl_command_start
           WHEN TAG IN ('CREATE RULE', 'CREATE TRIGGER', 'CREATE TABLE') EXECUTE FUNCTION public.refuse_ddl()"""
    )

    for holds, asks in LOCKS_FIRST:
        assert not waits_behind(own, database, (SEND, holds), (NONE, asks)), asks


def explained(session: Connection, statement: str) -> str:
    return "\n".join(line for (line,) in session.execute(statement.encode()))


@gets_through(
    "PostgreSQL tells in EXPLAIN (ANALYZE) how many rows a policy has removed behind an index: none can be kept from it"
)
@pytest.mark.parametrize(
    ("there", "condition"),
    [("secret", "mqdb.topic WHERE topic"), ("payroll", "mqdb.subscription_group WHERE group_name")],
)
def test_41_explain_analyze_tells_what_is_there(world: World, there: str, condition: str) -> None:
    session = world.sessions[NONE]
    session.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    explain = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) SELECT 1 FROM {condition} = '%s'"

    plans = [explained(session, explain % name).replace(name, "?") for name in (there, "no-such")]

    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("column", "there", "absent"),
    [
        ("tags", "tag-secret", "no-such"),
        ("keys", "k-secret", "no-such"),
        ("born_host", "host", "no"),
        ("tags_code", "7", "8"),
    ],
)
def test_41_explain_tells_no_values_of_others(world: World, column: str, there: str, absent: str) -> None:
    """EXPLAIN shows no values of others.

    For a leakproof operator PostgreSQL estimates with statistics over all rows.

    So these columns have no statistics.
    """
    explain = f"EXPLAIN SELECT 1 FROM mqdb.commit_log WHERE {column} = '{{}}'"

    plans = [
        explained(world.sessions[NONE], explain.format(value)).replace(f"'{value}'", "?") for value in (there, absent)
    ]

    assert plans[0] == plans[1]
