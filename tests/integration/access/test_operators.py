"""Roles that operate and administer, with `Admin` and the command line: their work, and attacks beyond their rights.

The attacks are in the style of test_attacks.py, whose world they share; their numbers are those of attacks.md. Comments
name their aim: forge, read, guess, lock, stop, squat, exhaust.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from apscheduler.schedulers.background import BackgroundScheduler
from psycopg import sql

from mqdb.broker.schedule import cron, timers
from mqdb.broker.transactions import transaction_checks
from mqdb.broker.transactions.transaction_checks import CheckRules, CheckTurns
from mqdb.common.unique_id import format_unique_id
from mqdb.embedded import EmbeddedPostgres
from mqdb.service.cron_times import next_time
from mqdb.service.segment_keeper import SegmentKeeper, SegmentKeeperConfig
from mqdb.service.service import Context
from mqdb.store.engine import create_engine, translate
from mqdb_client import (
    Admin,
    Boundary,
    DeadLetterFilter,
    Message,
    PushConsumer,
    RecallStatus,
    RedriveStatus,
    Resolution,
    Rights,
    errors,
)
from tests.fixtures.command_line import Place
from tests.fixtures.consumers import Inbox
from tests.fixtures.dead_letters import json_lines
from tests.fixtures.log import Connection, dispatch_all, index_all, scalar
from tests.fixtures.postgres import Database, new_database, superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.integration.access.test_attacks import (
    CLIENT_ROW,
    LOG,
    NOTHING,
    OWN,
    Attack,
    Original,
    World,
    attack,
    connect,
    dsn_of,
    fill,
    gets,
    leaks,
    numbers_of,
    record,
    rows_of_all,
    world_of,
)

PASSWORD = "of/its own"

#: Operates topic `orders` and group `billing`, and has no other right.
OPERATOR = "an_operator"
#: The same, and it sends to `orders`.
KEEPER = "a_keeper"
#: The same as the operator, and it is a member of `billing`.
REPAIRER = "a_repairer"
#: Administers all topics that begin with `orders`, and all groups that begin with `billing`.
ADMIN = "an_admin"
ROLES = (OPERATOR, KEEPER, REPAIRER, ADMIN)

Rows = list[tuple[Any, ...]]

#: Of what the roles operate: a message of orders, dead letters of billing, half messages and a cron for orders. All say
#: TOPSECRET.
_OPERATED = """
INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, tags, keys, properties, body)
SELECT q.queue_key, mqdb.now(), 7, gen_random_uuid(), 'host', 'paid', 'k-order',
       jsonb_build_object('p', 'TOPSECRET', 'RETRY_TOPIC', 'orders', 'MQDB_FAILURE_EXCEPTION', 'NoPrice',
                          'MQDB_FAILURE_MESSAGE', 'TOPSECRET', 'MQDB_FAILURE_TRACEBACK', 'TOPSECRET'), 'TOPSECRET'
FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id), generate_series(1, 3)
WHERE t.topic IN ('orders', '%DLQ%billing');
WITH half AS (
    INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, properties, body)
    SELECT q.queue_key, mqdb.now(), 0, gen_random_uuid(), 'host',
           '{"REAL_TOPIC": "orders", "REAL_QID": "0", "PGROUP": "shop"}', 'TOPSECRET'
    FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id), generate_series(1, 3)
    WHERE t.topic = 'RMQ_SYS_TRANS_HALF_TOPIC' RETURNING log_pos, msg_id)
INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, stored_at, check_at)
SELECT log_pos, msg_id, 'shop', 'orders', mqdb.now(), mqdb.now() FROM half;
INSERT INTO mqdb.cron (name, cron, topic, body, next_at)
VALUES ('nightly', '0 3 * * *', 'orders', 'TOPSECRET', '2999-01-01');
"""

_HALVES = (
    "SELECT replace(upper(msg_id::text), '-', '') FROM mqdb.half_message WHERE topic = %s ORDER BY log_pos LIMIT 1"
)


@pytest.fixture(scope="module")
def roles(postgres: EmbeddedPostgres) -> Iterator[None]:
    """Login roles that may connect, including those of test_attacks.py."""
    names = (*ROLES, "a_none")
    with psycopg.connect(superuser_dsn(postgres), autocommit=True) as superuser:
        for name in names:
            create = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
            superuser.execute(create.format(sql.Identifier(name), sql.Literal(PASSWORD)))
        yield
        for name in names:
            superuser.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def grant(database: Database) -> None:
    """Grant all roles their rights."""
    with Admin(database.dsn) as admin:
        admin.acl.grant(OPERATOR, operate=["orders"], operate_group=["billing"])
        admin.acl.grant(KEEPER, send=["orders"], operate=["orders"], operate_group=["billing"])
        admin.acl.grant(REPAIRER, group=["billing"], operate=["orders"], operate_group=["billing"])
        admin.acl.grant(ADMIN, admin=["orders*"], admin_group=["billing*"])


@pytest.fixture(scope="module")
def original(postgres: EmbeddedPostgres, template_database: str, roles: None) -> Iterator[Original]:
    """A database with rows of other users, and the topics and groups that the roles operate."""
    with new_database(postgres, template_database) as database:
        owner = fill(database)
        owner.execute(_OPERATED.encode())
        for run in (dispatch_all, index_all):
            run(owner)
        grant(database)
        numbers = all_numbers_of(owner)
        database.close()
        yield Original(database.name, numbers)


def all_numbers_of(owner: Connection) -> dict[str, str]:
    """The ids of a filled database, including those of the topics and groups that the roles operate."""
    numbers = numbers_of(owner)
    for name, group in {"billing_dead": "billing", "payroll_dead": "payroll"}.items():
        numbers[name] = str(position_of(owner, f"%DLQ%{group}"))
    waits = """SELECT replace(upper(msg_id::text), '-', '') FROM mqdb.commit_log
               WHERE queue_key = %s AND properties ->> 'REAL_TOPIC' = 'secret' LIMIT 1"""
    numbers["secret_timer"] = f"'{scalar(owner, waits, [numbers['timer_key']])}'"
    for name, topic in {"own_half": "orders", "foreign_half": "secret"}.items():
        numbers[name] = f"'{scalar(owner, _HALVES, [topic])}'"
    return dict(sorted(numbers.items(), reverse=True))


def position_of(owner: Connection, topic: str) -> int:
    """The position of the first record of a topic."""
    statement = """SELECT min(cl.log_pos) FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key)
                   JOIN mqdb.topic t USING (topic_id) WHERE t.topic = %s"""
    position: int = scalar(owner, statement, [topic])
    return position


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres, original: Original) -> Iterator[World]:
    """A world shared by all tests that change nothing."""
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
    """A world for a single test that leaves something behind."""
    with world_of(database, original.numbers) as world:
        yield world


def refusal(session: Connection, statement: str) -> errors.MqdbError:
    """The mqdb error to which a client translates the statement's error."""
    with pytest.raises(psycopg.Error) as raised:
        session.execute(statement.encode())
    return translate(raised.value, "here")


# -- one statement, or several in one message ---------------------------------------------------

COPIES = "SELECT FROM mqdb.dlq_redrive(ARRAY[:billing_dead]); "
SET_OFFSETS = "SELECT * FROM mqdb.set_offsets"

#: OPERATE on a group, for all three roles.
ON_GROUPS = [
    # read
    Attack(
        "78_read_letters", "SELECT body, text, properties, error, traceback FROM mqdb.dlq_outline('billing')", NOTHING
    ),
    Attack("78_read_letters_whole", "SELECT d::text FROM mqdb.dlq_outline('billing') d", OWN),
    Attack(
        "78_read_letters_by_a_leaky_function",
        "CREATE FUNCTION pg_temp.leak(d mqdb.dlq) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS "
        "$$ BEGIN RAISE NOTICE '%', d; RETURN true; END $$; "
        "SELECT FROM mqdb.dlq_outline('billing') d WHERE pg_temp.leak(d)",
        OWN,
    ),
    Attack("78_letters_of_others", "SELECT * FROM mqdb.dlq_outline('payroll')", "MQ204"),
    Attack("78_letters_of_nobody", "SELECT * FROM mqdb.dlq_outline(NULL)", "MQ204"),
    Attack("78_results_of_others", "SELECT * FROM mqdb.redrive_result WHERE group_name = 'payroll'", NOTHING),
    Attack("78_waiting_of_others", "SELECT * FROM mqdb.scheduled WHERE topic IN ('secret', '%RETRY%payroll')", NOTHING),
    Attack("78_lag_of_others", "SELECT * FROM mqdb.consumer_lag WHERE group_name = 'payroll'", NOTHING),
    Attack("78_members_of_others", "SELECT * FROM mqdb.client WHERE group_name ~ '^payroll'", NOTHING),
    Attack("83_offsets_of_others", "SELECT * FROM mqdb.group_offsets('payroll')", "MQ204"),
    Attack("83_live_members_of_others", "SELECT * FROM mqdb.live_members('payroll')", "MQ204"),
    # forge
    Attack(
        "77_redrive_elsewhere",
        "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], target_topic => 'secret')",
        "MQ204",
    ),
    *(
        Attack(
            f"77_redrive_to_{number}",
            f"SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], target_topic => '{name}', body => 'forged')",
            "MQ204",
        )
        for number, name in enumerate(
            [
                "%RETRY%payroll",
                "%RETRY%billing",
                "%DLQ%payroll",
                "TBW102",
                "rmq_sys_x",
                "DefaultCluster_REPLY_TOPIC",
                "no",
            ]
        )
    ),
    Attack(
        "83_another_group",
        f"{SET_OFFSETS}('offset.reset', 'payroll', NULL, '{{:secret_key}}', '{{0}}', '', '', '')",
        "MQ204",
    ),
    Attack(
        "83_a_group_that_is_not",
        f"{SET_OFFSETS}('offset.reset', 'nobody', NULL, '{{:secret_key}}', '{{0}}', '', '', '')",
        "MQ204",
    ),
    Attack(
        "83_no_group", f"{SET_OFFSETS}('offset.reset', NULL, NULL, '{{:orders_key}}', '{{0}}', '', '', '')", "MQ204"
    ),
    Attack(
        "83_from_another_group",
        f"{SET_OFFSETS}('offset.clone', 'billing', 'payroll', '{{:orders_key}}', '{{0}}', '', '', '')",
        "MQ204",
    ),
    Attack(
        "83_a_topic_of_others",
        f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{:secret_key}}', '{{1}}', '', '', '')",
        NOTHING,
    ),
    Attack(
        "83_a_queue_that_never_was",
        f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{999999}}', '{{1}}', '', '', '')",
        NOTHING,
    ),
    Attack(
        "83_below_zero",
        f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{:orders_key}}', '{{-1}}', '', '', '')",
        "MQ108",
    ),
    Attack(
        "83_null", f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{:orders_key}}', '{{NULL}}', '', '', '')", "MQ108"
    ),
    Attack(
        "87_another_verb",
        f"{SET_OFFSETS}('topic.delete', 'billing', NULL, '{{:orders_key}}', '{{1}}', '', '', '')",
        "MQ108",
    ),
    Attack("87_another_role", "INSERT INTO mqdb.operation (principal, verb, records) VALUES ('ada', 'x', 1)", "42501"),
    Attack("87_erase", "UPDATE mqdb.operation SET principal = 'ada'", "42501"),
    Attack(
        "87_forge_a_result",
        "INSERT INTO mqdb.redrive_result (operation_id, log_pos, status) VALUES (1, 1, 'FAILED')",
        "42501",
    ),
    # exhaust
    Attack(
        "87_a_long_actor",
        f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{:orders_key}}', '{{1}}', '', '', repeat('x', 256))",
        "MQ108",
    ),
    Attack(
        "87_a_long_reason",
        f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{:orders_key}}', '{{1}}', '', repeat('x', 4001), '')",
        "MQ108",
    ),
    # squat
    Attack(
        "83_make_a_group",
        f"{SET_OFFSETS}('offset.clone', 'billing2', NULL, '{{:orders_key}}', '{{1}}', '', '', '')",
        "MQ204",
    ),
    Attack("92_make_its_topic", "SELECT mqdb.make_topic('%RETRY%payroll2', 1, 1, 6, false, 'NORMAL')", "MQ204"),
    Attack("92_change_the_group", "UPDATE mqdb.subscription_group SET consume_enable = false", "42501"),
    Attack("92_delete_the_group", "DELETE FROM mqdb.subscription_group", "42501"),
    Attack("90_grant_oneself", "INSERT INTO mqdb.acl VALUES (session_user, 'READ', 'GROUP', 'billing')", "42501"),
    # lock
    Attack("80_lock_a_topic", "SELECT FROM mqdb.topic FOR UPDATE", "42501"),
    Attack("146_lock_the_log", "LOCK TABLE mqdb.consumer_offset IN SHARE MODE", "42501"),
    # stop
    Attack("89_skip_a_delay", "INSERT INTO mqdb.delay_offset SELECT", "42501"),
    Attack("81_hold_the_timer_lock", "LOCK TABLE mqdb.lock_timer", "42501"),
]

#: Who operates a group is not a member of it, and reads nothing.
AS_A_MEMBER = [
    Attack("78_read_the_view", "SELECT * FROM mqdb.dlq", NOTHING),
    Attack("78_read_the_log", "SELECT log_pos, body FROM mqdb.commit_log", NOTHING),
    Attack("78_read_a_partition", "SELECT body FROM mqdb.commit_log_1", NOTHING),
    Attack("78_read_messages", "SELECT * FROM mqdb.message", NOTHING),
    Attack("78_read_entries", "SELECT * FROM mqdb.consume_queue", NOTHING),
    Attack("78_read_the_index", "SELECT * FROM mqdb.message_index", NOTHING),
    Attack("78_read_the_copy", f"{COPIES} SELECT body FROM mqdb.commit_log; SELECT body FROM mqdb.message", OWN),
    Attack("78_read_the_copy_of_the_partition", f"{COPIES} SELECT c::text FROM mqdb.commit_log_1 c", OWN),
    Attack(
        "78_read_the_copy_at_once",
        "DO $$ DECLARE r record; BEGIN PERFORM mqdb.dlq_redrive(ARRAY[:billing_dead]); "
        "FOR r IN SELECT body FROM mqdb.commit_log LOOP RAISE NOTICE '%', r; END LOOP; END $$",
        OWN,
    ),
    Attack(
        "78_read_the_copy_when_time_goes_by",
        f"{COPIES} SELECT pg_sleep(0.01); SELECT c::text FROM generate_series(1, 3000), mqdb.commit_log c",
        OWN,
    ),
    Attack(
        "78_redrive_to_where_it_reads",
        "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], target_topic => 'orders')",
        "MQ204",
    ),
    Attack("79_edit_a_body", "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], body => 'another amount')", "MQ204"),
    Attack(
        "79_edit_a_body_dry",
        "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], body => 'x', dry_run => true)",
        "MQ204",
    ),
    Attack("56_be_a_member", "SELECT mqdb.make_group('billing')", "MQ204"),
    Attack("56_leave_for_a_member", "SELECT mqdb.leave_group('billing', 'their@1#1', 'CONSUMER')", "MQ204"),
    Attack(
        "56_register",
        f"{CLIENT_ROW} ('x', 'CONSUMER', 'billing', 'P', '1')",
        "42501",
    ),
    Attack(
        "56_own_a_queue",
        "INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset) VALUES (:billing_id, :orders_key, 1)",
        "42501",
    ),
    Attack("56_change_offsets", "UPDATE mqdb.consumer_offset SET next_offset = 0", NOTHING),
    Attack("56_lock_a_group", "SELECT FROM mqdb.subscription_group FOR UPDATE", NOTHING),
    Attack("56_commit", "SELECT mqdb.take_offset_commits('billing', '{:orders_key}', '{0}')", "MQ204"),
    Attack(
        "56_subscribe", "SELECT mqdb.replace_subscriptions('billing', '{orders}', '{TAG}', '{*}', 1)", "any refusal"
    ),
    Attack("57_send_a_retry", record(":billing_retry_key"), "any refusal"),
    Attack(
        "57_send_a_retry_that_waits",
        record(":schedule_key", '{"REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0"}', tags_code="1"),
        "MQ204",
    ),
    Attack("57_bury_a_letter", record(":billing_dlq_key"), "any refusal"),
    Attack(
        "92_make_the_topics_of_the_group", "SELECT mqdb.make_topic('%DLQ%billing', 1, 1, 6, false, 'NORMAL')", "MQ204"
    ),
]

ADD_CRON = "SELECT mqdb.add_cron('{}', '* * * * *', 'UTC', {}, 'x', NULL, NULL, '{{}}', NULL, 'all', {}, '')"
SOON = "mqdb.now() + interval '1 min'"

#: OPERATE on a topic.
ON_TOPICS = [
    # read
    Attack("84_read_crons", "SELECT * FROM mqdb.cron", "42501"),
    Attack("84_read_bodies_of_crons", "SELECT body FROM mqdb.cron", "42501"),
    Attack("84_read_crons_by_returning", "UPDATE mqdb.cron SET is_paused = true RETURNING body", "42501"),
    Attack("84_crons_of_others", "SELECT name FROM mqdb.cron WHERE topic <> 'orders' OR name = 'payroll-1'", NOTHING),
    Attack("84_settings_of_others", "SELECT mqdb.cron_settings('payroll-1')", NOTHING),
    Attack("86_halves", "SELECT * FROM mqdb.half_message", "42501"),
    Attack("86_halves_by_the_view", "SELECT * FROM mqdb.half_messages", "42501"),
    Attack(
        "86_halves_of_others",
        "SELECT * FROM mqdb.operated_halves(NULL, NULL, 1000) WHERE topic <> 'orders' OR producer_group <> 'shop'",
        NOTHING,
    ),
    Attack("86_halves_whole", "SELECT h::text FROM mqdb.operated_halves(NULL, NULL, 1000) h", OWN),
    Attack("86_halves_by_odd_limits", "SELECT * FROM mqdb.operated_halves('{}', 'x', -1)", NOTHING),
    Attack(
        "86_read_the_copy",
        "SELECT FROM mqdb.resolve_half(:own_half, 'commit', ''); SELECT c::text FROM mqdb.commit_log c",
        OWN,
    ),
    Attack("86_find_the_record", "SELECT * FROM mqdb.find_aim(:half_pos)", NOTHING),
    # forge
    Attack("86_resolve_others", "SELECT mqdb.resolve_half(:foreign_half, 'commit', '')", "MQ320"),
    Attack("86_resume_others", "SELECT mqdb.resolve_half(:foreign_half, 'resume', '')", "MQ320"),
    Attack("86_resolve_oddly", "SELECT mqdb.resolve_half(:own_half, 'give up', '')", "MQ108"),
    Attack("86_resolve_nothing", "SELECT mqdb.resolve_half(NULL, NULL, NULL)", "MQ108"),
    Attack("86_change_halves", "UPDATE mqdb.half_message SET state = 'ROLLED_BACK'", "42501"),
    *(
        Attack(f"84_cron_to_{number}", ADD_CRON.format("c", topic, SOON), "MQ108" if topic == "NULL" else "MQ204")
        for number, topic in enumerate(
            [
                "'secret'",
                "'no-such'",
                "NULL",
                "'%RETRY%billing'",
                "'%DLQ%payroll'",
                "'TBW102'",
                "'c_REPLY_TOPIC'",
                "'*'",
            ]
        )
    ),
    Attack("84_insert_a_cron", "INSERT INTO mqdb.cron (name) VALUES ('c')", "42501"),
    Attack("84_let_all_fire", "UPDATE mqdb.cron SET next_at = '1970-01-01'", "42501"),
    Attack("84_add_for_others", ADD_CRON.replace(", '')", ", '', 'payroll')").format("c", "'orders'", SOON), "MQ108"),
    Attack("84_pause_others", "SELECT mqdb.change_cron('payroll-1', 'pause', NULL, '')", NOTHING),
    Attack("84_resume_others", f"SELECT mqdb.change_cron('payroll-1', 'resume', {SOON}, '')", NOTHING),
    Attack("84_remove_others", "SELECT mqdb.change_cron('payroll-1', 'remove', NULL, '')", NOTHING),
    Attack("84_change_oddly", "SELECT mqdb.change_cron('nightly', 'rename', NULL, '')", "MQ108"),
    Attack("82_recall_others", "SELECT mqdb.recall_own('secret', :secret_timer)", "MQ204"),
    Attack("82_recall_what_is_not", "SELECT mqdb.recall_own('no-such', :secret_timer)", "MQ204"),
    Attack("82_recall_of_no_topic", "SELECT mqdb.recall_own(NULL, :secret_timer)", "MQ108"),
    Attack("82_recall_by_the_owners_way", "SELECT mqdb.recall(NULL, :secret_timer)", "42501"),
    Attack("82_outcome_of_others", "SELECT mqdb.recall_outcome('secret', :secret_timer)", "MQ204"),
    Attack("82_recall_by_hand", "INSERT INTO mqdb.timer_recall VALUES (1, 1)", "42501"),
    # lock
    Attack("84_lock_crons", "SELECT name FROM mqdb.cron FOR UPDATE", "42501"),
    Attack("84_lock_the_table", "LOCK TABLE mqdb.cron IN ROW EXCLUSIVE MODE", "42501"),
    Attack("86_lock_halves", "LOCK TABLE mqdb.half_message", "42501"),
    Attack("86_lock_the_checker", "LOCK TABLE mqdb.lock_transaction", "42501"),
    # stop, exhaust, squat
    Attack("92_close_the_topic", "UPDATE mqdb.topic SET perm = 0", "42501"),
    Attack("92_delete_the_topic", "DELETE FROM mqdb.topic", "42501"),
    Attack("87_a_long_actor_of_a_cron", "SELECT mqdb.change_cron('nightly', 'pause', NULL, repeat('x', 256))", "MQ108"),
    Attack("85_remember_what_is_kept", "INSERT INTO mqdb.half_step SELECT", "42501"),
]

#: What an operator that sends tries with crons.
AS_A_KEEPER = [
    Attack("85_a_time_that_has_passed", ADD_CRON.format("c", "'orders'", "'1970-01-01'"), "MQ108"),
    Attack("85_no_time", ADD_CRON.format("c", "'orders'", "NULL"), "MQ108"),
    Attack("85_a_time_that_never_comes", ADD_CRON.format("c", "'orders'", "'infinity'"), "MQ108"),
    Attack("85_resume_in_the_past", "SELECT mqdb.change_cron('nightly', 'resume', '1970-01-01', '')", "MQ108"),
    Attack("84_a_name_that_is_taken", ADD_CRON.format("payroll-1", "'orders'", SOON), NOTHING),
    Attack("84_a_name_that_is_none", ADD_CRON.format("a b", "'orders'", SOON), "MQ108"),
    Attack(
        "85_a_body_beyond_the_limit",
        ADD_CRON.replace("'x'", "repeat('x', 5000000)::bytea").format("c", "'orders'", SOON),
        "MQ102",
    ),
    Attack("85_a_long_text", ADD_CRON.replace("* * * * *", "* " * 1000).format("c", "'orders'", SOON), "MQ108"),
    Attack(
        "85_many_at_once",
        "SELECT mqdb.add_cron('c' || n, '* * * * *', 'UTC', 'orders', 'x', NULL, NULL, '{}', NULL, 'all', "
        f"{SOON}, '') FROM generate_series(1, 101) n",
        "MQ108",
    ),
]

#: OPERATE on a topic is no SEND.
AS_A_SENDER = [
    Attack("13_send", "SELECT mqdb.send('orders', 'x')", "MQ204"),
    Attack("13_write", record(":orders_key"), "any refusal"),
    Attack(
        "13_copy", f"{LOG} SELECT :orders_key, mqdb.now(), now(), 0, gen_random_uuid(), 'x', '{{}}', 'x'", "any refusal"
    ),
    Attack("31_make_the_topic", "SELECT mqdb.make_topic('orders', 1, 1, 6, false, 'NORMAL')", "MQ204"),
    Attack("84_cron_of_its_own", ADD_CRON.format("c", "'orders'", SOON), "MQ204"),
    Attack("84_resume_a_cron", f"SELECT mqdb.change_cron('nightly', 'resume', {SOON}, '')", "MQ204"),
]

CREATE = "SELECT mqdb.create_topic('{}', {}, 1, {}, false, 'NORMAL', '')"
CHANGE = "SELECT mqdb.change_topic('{}', NULL, {}, {}, NULL, NULL, '')"
SET_GROUP = "SELECT mqdb.set_group('{}', NULL, NULL, {}, {}, NULL, NULL, NULL, NULL, '')"
_NOT_ITS_OWN = (
    "secret", "order", "o", "no-such", "%RETRY%payroll", "%DLQ%payroll", "%RETRY%bill", "TBW102", "SCHEDULE_TOPIC_XXXX",
    "rmq_sys_orders", "orders_REPLY_TOPIC", "Orders", " orders",
)  # fmt: skip

#: ADMIN on topics and groups.
AS_AN_ADMIN = [
    # read
    Attack("78_read_the_log", "SELECT body FROM mqdb.commit_log; SELECT * FROM mqdb.message", NOTHING),
    Attack("78_read_letters", "SELECT * FROM mqdb.dlq", NOTHING),
    Attack("78_read_the_outline", "SELECT * FROM mqdb.dlq_outline('billing')", "MQ204"),
    Attack("78_read_entries", "SELECT * FROM mqdb.consume_queue", NOTHING),
    Attack("84_read_bodies_of_crons", "SELECT body FROM mqdb.cron", "42501"),
    Attack("83_offsets", "SELECT * FROM mqdb.group_offsets('billing')", "MQ204"),
    Attack("86_halves", "SELECT * FROM mqdb.operated_halves(NULL, NULL, 100)", NOTHING),
    Attack("7_names_of_others", "SELECT topic FROM mqdb.topic WHERE topic ~ 'secret|payroll'", NOTHING),
    Attack("7_groups_of_others", "SELECT * FROM mqdb.subscription_group WHERE group_name ~ 'payroll'", NOTHING),
    Attack("7_settings_of_others", "SELECT mqdb.topic_settings('secret'), mqdb.group_settings('payroll')", NOTHING),
    Attack("7_waiting_of_others", "SELECT * FROM mqdb.scheduled WHERE topic !~ 'orders|billing'", NOTHING),
    # forge
    Attack("13_send", "SELECT mqdb.send('orders', 'x')", "MQ204"),
    Attack("13_write", record(":orders_key"), "any refusal"),
    Attack("76_redrive", "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead])", "MQ204"),
    Attack(
        "83_reset", f"{SET_OFFSETS}('offset.reset', 'billing', NULL, '{{:orders_key}}', '{{0}}', '', '', '')", "MQ204"
    ),
    Attack("84_add_a_cron", ADD_CRON.format("c", "'orders'", SOON), "MQ204"),
    Attack("84_change_a_cron", "SELECT mqdb.change_cron('nightly', 'pause', NULL, '')", "MQ204"),
    Attack("86_resolve", "SELECT mqdb.resolve_half(:own_half, 'rollback', '')", "MQ204"),
    Attack("56_be_a_member", "SELECT mqdb.make_group('billing')", "MQ204"),
    Attack("87_note", "SELECT mqdb.record_operation('x', NULL, NULL, NULL, NULL, NULL, 1, NULL, NULL)", "42501"),
    Attack("90_grant_oneself", "INSERT INTO mqdb.acl VALUES (session_user, 'READ', 'TOPIC', 'orders')", "42501"),
    Attack("90_grant_a_friend", "INSERT INTO mqdb.acl VALUES ('a_friend', 'ADMIN', 'TOPIC', 'orders-x')", "42501"),
    Attack("90_take_rights", "DELETE FROM mqdb.acl", "42501"),
    Attack("90_see_rights", "SELECT * FROM mqdb.acl", "42501"),
    # beyond its names
    *(
        Attack(f"92_{verb}_{number}", call.format(name), "MQ204")
        for number, name in enumerate(_NOT_ITS_OWN)
        for verb, call in {
            "create": CREATE.format("{}", 1, 6),
            "change": CHANGE.format("{}", 2, "NULL"),
            "delete": "SELECT mqdb.delete_topic('{}', true, '')",
            "uses": "SELECT mqdb.topic_uses('{}')",
        }.items()
    ),
    *(
        Attack(f"92_{verb}_{number}_of_a_group", call.format(name), "MQ204")
        for number, name in enumerate(("payroll", "bill", "nobody", "*", "Billing", "%RETRY%billing"))
        for verb, call in {
            "set": SET_GROUP.format("{}", "NULL", "NULL"),
            "delete": "SELECT mqdb.delete_group('{}', true, '')",
        }.items()
    ),
    Attack("92_create_a_prefix", CREATE.format("orders*", 1, 6), "MQ108"),
    Attack("92_create_a_blank", CREATE.format("orders x", 1, 6), "MQ108"),
    Attack("92_create_a_group_with_a_star", SET_GROUP.format("billing*", "NULL", "NULL"), "MQ108"),
    Attack("92_rename", "UPDATE mqdb.topic SET topic = 'secret2' WHERE topic = 'orders'", "42501"),
    Attack("92_insert", "INSERT INTO mqdb.queue (topic_id, queue_id) VALUES (:orders_topic, 77)", "42501"),
    Attack("92_bring_back", "DELETE FROM mqdb.deleted_topic", "42501"),
    Attack("93_settings_of_the_broker", "UPDATE mqdb.broker SET timer_max_delay_ms = 1", "42501"),
    Attack("89_skip_a_delay", "INSERT INTO mqdb.delay_offset SELECT", "42501"),
    # exhaust, squat
    Attack("105_make_the_topic_of_replies", "SELECT mqdb.make_reply_topic()", "MQ204"),
    Attack("89_a_template", CREATE.format("orders-t", 1, 7), "MQ108"),
    Attack("89_become_a_template", CHANGE.format("orders", "NULL", 7), "MQ108"),
    Attack("89_many_queues", CREATE.format("orders-m", 1025, 6), "MQ108"),
    Attack("89_more_queues", CHANGE.format("orders", 1025, "NULL"), "MQ108"),
    Attack("89_more_retry_queues", CHANGE.format("%RETRY%billing", 65, "NULL"), "MQ108"),
    Attack("89_no_queues", CHANGE.format("orders", 0, "NULL"), "MQ108"),
    Attack("89_no_perm", CHANGE.format("orders", "NULL", -1), "MQ108"),
    Attack("89_many_retry_queues", SET_GROUP.format("billing", 65, "NULL"), "MQ108"),
    Attack("89_retries_below_zero", SET_GROUP.format("billing", "NULL", -1), "MQ108"),
    Attack("87_a_long_actor", "SELECT mqdb.delete_topic('orders', true, repeat('x', 256))", "MQ108"),
    # lock
    Attack("80_lock_topics", "SELECT FROM mqdb.topic FOR UPDATE", "42501"),
    Attack("80_lock_groups", "SELECT FROM mqdb.subscription_group FOR UPDATE", NOTHING),
    Attack("146_lock_the_table", "LOCK TABLE mqdb.topic IN ROW EXCLUSIVE MODE", "42501"),
]

BY_ROLE = {
    ADMIN: AS_AN_ADMIN,
    OPERATOR: [*ON_GROUPS, *ON_TOPICS, *AS_A_MEMBER, *AS_A_SENDER],
    KEEPER: [*ON_GROUPS, *ON_TOPICS, *AS_A_KEEPER, *AS_A_MEMBER],
    REPAIRER: [
        *ON_GROUPS,
        *ON_TOPICS,
        *AS_A_SENDER,
        Attack(
            "79_edit_a_body_without_send", "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], body => 'x')", "MQ204"
        ),
        Attack(
            "78_send_letters_where_others_read",
            "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], target_topic => 'orders')",
            "MQ204",
        ),
    ],
}


@pytest.mark.parametrize("role", BY_ROLE)
def test_attacks_get_what_they_must(world: World, before: dict[str, str], role: str) -> None:
    wrong = {}
    for each in BY_ROLE[role]:
        statement = world.text(each.statement)
        outcome = attack(world.sessions[role], statement, keep=each.must == NOTHING)
        is_told = role == REPAIRER and each.must != NOTHING
        # The rows of an operator must not even come as far as a constraint (class 23).
        is_late = each.must == "any refusal" and str(outcome.sqlstate).startswith("23")
        if not gets(outcome, each.must) or is_late or not (is_told or leaks(outcome, statement) == []):
            wrong[each.name] = outcome

    assert wrong == {}
    assert rows_of_all(world.owner) == before


# -- guess --------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", [OPERATOR, KEEPER, REPAIRER])
def test_76_a_letter_of_another_group_is_one_that_is_not_there(own: World, role: str) -> None:
    for dry_run in ("true", "false"):
        statement = f"SELECT * FROM mqdb.dlq_redrive(ARRAY[:payroll_dead, 99999], dry_run => {dry_run})"
        outcome = attack(own.sessions[role], own.text(statement), keep=True)

        foreign, none = outcome.rows
        assert foreign[:5] == none[:5] == ("FAILED", None, None, None, none[4])
        assert leaks(outcome, "") == []
    # Nor does anybody find it among what was tried with that letter.
    assert own.owner.execute("SELECT FROM mqdb.redrive_result WHERE operation_id <> 1").fetchall() == []
    assert own.owner.execute("SELECT FROM mqdb.operation WHERE verb = 'dlq.redrive'").fetchall() == []


@pytest.mark.parametrize(
    "call",
    [
        "mqdb.dlq_outline('{}')",
        "mqdb.group_offsets('{}')",
        "mqdb.live_members('{}')",
        "mqdb.set_offsets('offset.reset', '{}', NULL, '{{1}}', '{{1}}', '', '', '')",
    ],
)
def test_a_refusal_is_the_same_for_what_is_there_and_what_is_not(world: World, call: str) -> None:
    session = world.sessions[OPERATOR]

    there, nowhere = (refusal(session, f"SELECT * FROM {call.format(name)}") for name in ("payroll", "nobody"))

    assert isinstance(there, errors.AccessDenied)
    assert (there.principal, there.access, there.resource) == (OPERATOR, "OPERATE", "payroll")
    assert str(there).replace("payroll", "nobody") == str(nowhere)


def test_86_a_half_message_of_another_topic_is_one_that_is_not_there(world: World) -> None:
    session, nobody = world.sessions[OPERATOR], f"'{'A' * 32}'"

    foreign, none = (
        refusal(session, f"SELECT mqdb.resolve_half({name}, 'commit', '')")
        for name in (world.numbers["foreign_half"], nobody)
    )

    assert isinstance(foreign, errors.HalfMessageNotFound)
    assert str(foreign).replace(world.numbers["foreign_half"].strip("'"), "A" * 32) == str(none)


def test_who_operates_nothing_is_told_which_right_it_takes(own: World, database: Database) -> None:
    with Admin(database.dsn) as admin:
        admin.acl.revoke(KEEPER, operate=["orders"], operate_group=["billing"])

    for call in (
        f"mqdb.resolve_half('{'A' * 32}', 'commit', '')",
        "mqdb.change_cron('nightly', 'pause', NULL, '')",
        "mqdb.dlq_redrive(ARRAY[1])",
    ):
        refused = refusal(own.sessions[KEEPER], f"SELECT * FROM {call}")

        assert isinstance(refused, errors.AccessDenied), call
        assert (refused.principal, refused.access, refused.resource) == (KEEPER, "OPERATE", "*"), call


# -- lock, stop ---------------------------------------------------------------------------------


@contextmanager
def services(database: Database) -> Iterator[sqlalchemy.Connection]:
    """A session like that of the services."""
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        connection.exec_driver_sql("SET lock_timeout = '5s'")
        yield connection
    engine.dispose()


def test_84_a_cron_that_is_being_changed_holds_up_no_other(own: World, database: Database) -> None:
    own.owner.execute("UPDATE mqdb.cron SET next_at = mqdb.now() - interval '1 s'")
    with own.sessions[OPERATOR].transaction(), services(database) as broker:
        own.sessions[OPERATOR].execute("SELECT mqdb.change_cron('nightly', 'pause', NULL, '')")

        assert [firing.name for firing in cron.fire_due(broker, next_time).firings] == ["payroll-1"]


def test_86_a_half_message_that_is_being_resolved_holds_up_no_other(own: World, database: Database) -> None:
    own.owner.execute("DELETE FROM mqdb.half_message WHERE topic = 'secret'")
    with own.sessions[OPERATOR].transaction(), services(database) as broker:
        own.sessions[OPERATOR].execute(own.text("SELECT mqdb.resolve_half(:own_half, 'rollback', '')").encode())
        rules = CheckRules(transaction_timeout=timedelta(0))

        assert transaction_checks.collect(broker, rules, 100) is not None
        transaction_checks.check(broker, rules, CheckTurns(), 100)

    states = dict(own.owner.execute("SELECT state, count(*) FROM mqdb.half_message GROUP BY 1").fetchall())
    assert states["ROLLED_BACK"] == 1


def test_84_a_cron_fires_as_long_as_its_role_may_send(own: World, database: Database) -> None:
    fire_now = "UPDATE mqdb.cron SET next_at = mqdb.now() - interval '1 s' WHERE name = 'of-its-own'"
    came = "SELECT count(*) FROM mqdb.commit_log WHERE body = 'mine'"
    with Admin(database.dsn) as admin, Admin(dsn_of(database, KEEPER)) as keeper, services(database) as broker:
        keeper.crons.add("of-its-own", "@hourly", Message("orders", "mine"))
        losses: list[dict[str, Any]] = [{"send": ["orders"]}, {"operate": ["orders"]}]
        for lost in losses:
            own.owner.execute(fire_now.encode())
            [fired] = cron.fire_due(broker, next_time).firings
            assert (fired.sent, fired.skipped) == (1, 0)
            admin.acl.revoke(KEEPER, **lost)
            own.owner.execute(fire_now.encode())
            [refused] = cron.fire_due(broker, next_time).firings
            assert (refused.sent, refused.skipped) == (0, 1)
            admin.acl.grant(KEEPER, **lost)

    assert scalar(own.owner, came) == 2


def test_85_a_role_has_a_hundred_crons_at_most(own: World, database: Database) -> None:
    add_crons(own.sessions[KEEPER], 0, 100)
    with Admin(dsn_of(database, KEEPER)) as keeper:
        with pytest.raises(errors.ParameterInvalid, match="has 100 crons"):
            keeper.crons.add("c100", "@daily", Message("orders", "x"))
        keeper.crons.remove("c0")
        keeper.crons.add("c100", "@daily", Message("orders", "x"))


def add_crons(session: Connection, first: int, past: int) -> None:
    added = ADD_CRON.format("c' || n || '", "'orders'", SOON)
    session.execute(f"{added} FROM generate_series({first}, {past - 1}) AS n".encode())


@pytest.mark.parametrize(("ends", "most"), [("COMMIT", 1), ("ROLLBACK", 100)])
def test_85_a_role_has_a_hundred_crons_at_most_by_two_transactions(
    own: World, database: Database, ends: str, most: int
) -> None:
    one, other = own.sessions[KEEPER], connect(dsn_of(database, KEEPER))
    one.execute("BEGIN")
    add_crons(one, 0, 99)
    doing = Doing(lambda: add_crons(other, 100, 100 + most))
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = %s AND NOT granted)"
    wait_until(lambda: scalar(own.owner, waits, [other.info.backend_pid]))
    own.owner.execute(ADD_CRON.format("of-the-owner", "'orders'", SOON).encode())
    one.execute(ends.encode())

    doing.outcome()
    with pytest.raises(psycopg.Error) as refused:
        add_crons(other, 300, 301)
    assert refused.value.sqlstate == "MQ108"
    assert scalar(own.owner, "SELECT count(*) FROM mqdb.cron WHERE principal = %s", [KEEPER]) == 100
    other.close()


def test_85_nor_by_an_old_snapshot(own: World, database: Database) -> None:
    one, other = own.sessions[KEEPER], connect(dsn_of(database, KEEPER))
    other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM mqdb.cron")
    add_crons(one, 0, 100)
    with pytest.raises(psycopg.errors.SerializationFailure):
        add_crons(other, 100, 101)
    other.close()


def test_80_a_redrive_that_stays_open_holds_up_no_other_group(own: World) -> None:
    with own.sessions[OPERATOR].transaction(), own.owner.transaction():
        own.owner.execute("SET LOCAL lock_timeout = '2s'")
        own.sessions[OPERATOR].execute(
            own.text("SELECT mqdb.dlq_redrive(ARRAY[:billing_dead, :payroll_dead])").encode()
        )
        redriven = own.owner.execute(own.text("SELECT status FROM mqdb.dlq_redrive(ARRAY[:payroll_dead])").encode())
        assert redriven.fetchall() == [("REDRIVEN",)]


def test_80_a_redrive_that_makes_no_topic_holds_up_no_grant_and_needs_no_number(own: World) -> None:
    redrive = own.text("SELECT status FROM mqdb.dlq_redrive(ARRAY[:billing_dead], again => true)").encode()
    own.sessions[OPERATOR].execute(redrive)
    own.owner.execute("SET lock_timeout = '2s'; SELECT setval('mqdb.queue_queue_key_seq', 1073741824)")
    with own.sessions[OPERATOR].transaction():
        assert own.sessions[OPERATOR].execute(redrive).fetchall() == [("REDRIVEN",)]

        own.owner.execute("INSERT INTO mqdb.acl VALUES ('a_none', 'SEND', 'TOPIC', 'orders')")


def test_83_a_reset_that_stays_open_holds_up_no_other_group(own: World) -> None:
    statement = "SELECT * FROM mqdb.set_offsets('offset.reset', '{}', NULL, '{{:orders_key}}', '{{1}}', '', '', '')"
    with own.sessions[OPERATOR].transaction(), own.owner.transaction():
        own.owner.execute("SET LOCAL lock_timeout = '2s'")
        own.sessions[OPERATOR].execute(own.text(statement.format("billing")).encode())
        own.owner.execute(own.text(statement.format("payroll")).encode())


def test_87_what_an_operator_says_is_cut(own: World) -> None:
    redrive = "SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], condition => repeat('x', 100000))"
    own.sessions[OPERATOR].execute(own.text(redrive).encode())

    [(principal, condition)] = own.owner.execute(
        "SELECT principal, length(after ->> 'condition') FROM mqdb.operation WHERE verb = 'dlq.redrive'"
    ).fetchall()
    assert (principal, condition) == (OPERATOR, 4000)


def test_a_right_that_is_taken_away_is_gone_with_the_next_statement(own: World, database: Database) -> None:
    redrive = own.text("SELECT * FROM mqdb.dlq_redrive(ARRAY[:billing_dead], dry_run => true)").encode()
    assert own.sessions[OPERATOR].execute(redrive).fetchone() is not None
    with Admin(database.dsn) as admin:
        admin.acl.revoke(OPERATOR, operate_group=["billing"])

    with pytest.raises(psycopg.Error) as raised:
        own.sessions[OPERATOR].execute(redrive)
    assert raised.value.sqlstate == "MQ204"


@pytest.mark.parametrize(
    "call",
    [
        CREATE.format("{}", 1, 6),
        CHANGE.format("{}", 1, "NULL"),
        "SELECT mqdb.delete_topic('{}', true, '')",
        "SELECT mqdb.topic_uses('{}')",
        "SELECT mqdb.set_group('{}', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '')",
        "SELECT mqdb.delete_group('{}', true, '')",
    ],
)
def test_92_an_administrator_is_refused_alike_for_what_is_there_and_what_is_not(world: World, call: str) -> None:
    refused = [refusal(world.sessions[ADMIN], call.format(name)) for name in ("secret", "payroll", "nobody")]

    assert {type(each) for each in refused} == {errors.AccessDenied}
    names = "secret", "payroll", "nobody"
    assert len({str(each).replace(name, "x") for each, name in zip(refused, names, strict=True)}) == 1


def test_92_a_topic_that_is_being_changed_holds_up_no_other(own: World, database: Database) -> None:
    with own.sessions[ADMIN].transaction(), Admin(database.dsn) as admin:
        own.sessions[ADMIN].execute(CHANGE.format("orders", 2, "NULL").encode())
        own.sessions[ADMIN].execute(SET_GROUP.format("billing", 2, "NULL").encode())

        admin.topics.update("secret", queues=2)
        admin.groups.update("payroll", retry_max_times=3)
        admin.acl.grant(OPERATOR, send=["orders"])
        own.owner.execute("SELECT mqdb.send('orders', 'x')")
        dispatch_all(own.owner)


def test_92_what_an_administrator_makes_is_noted_once(own: World, database: Database) -> None:
    session = own.sessions[ADMIN]
    with Admin(dsn_of(database, ADMIN)) as admin, Admin(database.dsn) as owner:
        session.execute("SELECT mqdb.make_topic('orders-us', 2, 2, 6, false, 'NORMAL')")
        session.execute("SELECT mqdb.make_topic('orders-us', 2, 2, 6, false, 'NORMAL')")
        session.execute(CREATE.format("orders-fr", 2, 6).encode())
        admin.topics.create("orders-it", queues=2, actor="grace")
        owner.acl.grant(ADMIN, group=["billing-2"])
        for _ in range(2):
            session.execute("SELECT mqdb.make_group('billing-2')")
        session.execute("SELECT mqdb.make_topic('%RETRY%billing-2', 1, 1, 6, false, 'NORMAL')")
        noted = [(each.verb, *each.topics, *each.groups, each.actor) for each in admin.operations.list()]

    assert noted == [
        ("topic.create", "%RETRY%billing-2", None),
        ("group.update", "billing-2", None),
        ("topic.create", "orders-it", "grace"),
        ("topic.create", "orders-fr", None),
        ("topic.create", "orders-us", None),
    ]


def test_92_what_clients_make_by_themselves_is_not_noted(own: World, database: Database) -> None:
    own.owner.execute("SELECT mqdb.make_topic('made-by-a-send', 1, 1, 6, false, 'NORMAL')")
    with Admin(database.dsn) as owner:
        owner.acl.grant(REPAIRER, send=["made*"])
        noted = len(owner.operations.list())
        own.sessions[REPAIRER].execute("SELECT mqdb.make_topic('made-too', 1, 1, 6, false, 'NORMAL')")
        own.sessions[REPAIRER].execute("SELECT mqdb.make_group('billing')")

        assert len(owner.operations.list()) == noted


@pytest.mark.parametrize(
    ("numbers", "call"),
    [
        ("topic_topic_id_seq", CREATE.format("orders-us", 1, 6)),
        ("queue_queue_key_seq", CREATE.format("orders-us", 1, 6)),
        ("queue_queue_key_seq", "SELECT mqdb.change_topic('orders', 99, NULL, NULL, NULL, NULL, '')"),
        (
            "subscription_group_group_id_seq",
            "SELECT mqdb.set_group('billing-2', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '')",
        ),
    ],
)
def test_92_no_role_uses_up_the_numbers_of_the_owner(own: World, numbers: str, call: str) -> None:
    own.owner.execute(f"SELECT setval('mqdb.{numbers}', 1073741824)".encode())

    refused = refusal(own.sessions[ADMIN], call)

    assert isinstance(refused, errors.ParameterInvalid)
    assert scalar(own.owner, f"SELECT last_value FROM mqdb.{numbers}") == 2**30
    own.owner.execute(call.encode())


def test_92_a_topic_that_is_being_made_holds_up_no_other(own: World, database: Database) -> None:
    """Creating a topic holds up no other topic, not even while a later grant waits for the creation."""
    own.owner.execute("SET lock_timeout = '3s'")
    waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'mqdb.acl'::regclass AND NOT granted)"
    with Admin(database.dsn) as admin:
        with own.sessions[ADMIN].transaction():
            own.sessions[ADMIN].execute(CREATE.format("orders-us", 1, 6).encode())
            granting = Doing(lambda: admin.acl.grant(OPERATOR, send=["orders-us"]))
            wait_until(lambda: scalar(own.owner, waits))

            own.owner.execute(CREATE.format("others", 1, 6).encode())

        assert [each.name for each in granting.result()] == ["orders-us"]


def test_92_a_grant_does_not_wait_for_a_topic_without_end(
    own: World, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqdb.store.engine._TRIES", 2)
    with Admin(database.dsn) as admin, own.sessions[ADMIN].transaction():
        own.sessions[ADMIN].execute(CREATE.format("orders-us", 1, 6).encode())
        for change in (admin.acl.grant, admin.acl.revoke):
            with pytest.raises(errors.StorageRefused, match="55P03"):
                change(OPERATOR, operate=["orders"], send=["orders"])
        with pytest.raises(errors.StorageRefused, match="55P03"):
            admin.acl.apply({OPERATOR: Rights(send=["orders-us"])})


def test_92_a_topic_that_is_being_deleted_holds_up_no_dispatch(own: World) -> None:
    """Deleting a topic does not hold up dispatch, which stores the ends of all queues when it leaves a segment."""
    own.owner.execute("SET lock_timeout = '2s'")
    with own.sessions[ADMIN].transaction():
        own.sessions[ADMIN].execute("SELECT mqdb.delete_topic('orders', true, '')")
        own.sessions[ADMIN].execute("SELECT mqdb.delete_group('billing', true, '')")
        own.owner.execute("SELECT mqdb.leave_segment(1)")
        own.owner.execute("SELECT mqdb.send('secret', 'x')")
        dispatch_all(own.owner)


def test_92_what_is_left_of_a_deleted_topic_is_removed_by_the_keeper(own: World, database: Database) -> None:
    key = own.numbers["orders_key"]
    with Admin(dsn_of(database, ADMIN)) as admin, Admin(database.dsn) as owner:
        admin.topics.delete("orders", force=True)
        assert "orders" not in {each.name for each in owner.topics.list()}
        made_again = admin.topics.create("orders", queues=1)
        assert admin.topics.show("orders").config == made_again
    with services(database) as broker, own.sessions[ADMIN].transaction():
        own.sessions[ADMIN].execute("SELECT mqdb.delete_topic('orders-eu', true, '')")
        keeper = SegmentKeeper(Context(lambda: broker), BackgroundScheduler())
        assert keeper.run_once(broker).topics_removed == 1
        assert keeper.run_once(broker).topics_removed == 0
    assert own.owner.execute("SELECT FROM mqdb.queue WHERE queue_key = %s", [key]).fetchall() == []
    left = "SELECT FROM mqdb.acl_queue a WHERE NOT EXISTS (SELECT FROM mqdb.queue q WHERE q.queue_key = a.queue_key)"
    assert own.owner.execute(left.encode()).fetchall() == []


def test_92_nobody_keeps_the_keeper_from_its_work(own: World, database: Database) -> None:
    own.owner.execute(
        """INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset)
           SELECT g.group_id, q.queue_key, 0 FROM mqdb.subscription_group g, mqdb.queue q
           JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'orders'"""
    )
    with Admin(dsn_of(database, ADMIN)) as admin:
        admin.topics.delete("orders", force=True)
    member = database.connect()
    with services(database) as broker, member.transaction():
        member.execute("SELECT FROM mqdb.consumer_offset FOR UPDATE")
        keeper = SegmentKeeper(Context(lambda: broker), BackgroundScheduler())
        keeper.prepare(broker)
        assert keeper.run_once(broker).topics_removed == 0
    with services(database) as broker:
        assert SegmentKeeper(Context(lambda: broker), BackgroundScheduler()).run_once(broker).topics_removed == 1


def test_92_nobody_keeps_the_topics_of_others(own: World, database: Database) -> None:
    own.owner.execute(
        """INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset)
           SELECT g.group_id, q.queue_key, 0 FROM mqdb.subscription_group g, mqdb.queue q
           JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'orders'"""
    )
    with Admin(dsn_of(database, ADMIN)) as admin:
        admin.topics.delete("orders", force=True)
        admin.topics.delete("orders-eu", force=True)
    member = database.connect()
    with services(database) as broker, member.transaction():
        member.execute("SELECT FROM mqdb.consumer_offset FOR UPDATE")
        keeper = SegmentKeeper(Context(lambda: broker), BackgroundScheduler())
        keeper.prepare(broker)
        wait_until(lambda: keeper.run_once(broker).topics_removed == 1)


def test_92_what_is_left_of_a_large_topic_is_removed_by_and_by(own: World, database: Database) -> None:
    """The remains of a large topic are removed in small steps.

    The keeper has other work, and dispatch waits for each statement.
    """
    with Admin(dsn_of(database, ADMIN)) as admin:
        admin.topics.delete("orders", force=True)
    left = "SELECT count(*) FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id) WHERE t.topic ~ '^rmq_sys_deleted_'"
    with services(database) as broker:
        config = SegmentKeeperConfig(removal_time=timedelta(0), queues_per_removal=3)
        keeper = SegmentKeeper(Context(lambda: broker), BackgroundScheduler(), config)
        counts = keeper.run_once(broker)
        assert (counts.topics_removed, keeper.pause_after(counts)) == (0, timedelta(0))
        assert scalar(own.owner, left) == 1
        assert keeper.run_once(broker).topics_removed == 1


@pytest.mark.parametrize("prefix", ["%RETRY%", "%DLQ%"])
def test_92_the_topics_of_a_group_with_members_stay(own: World, database: Database, prefix: str) -> None:
    own.owner.execute("UPDATE mqdb.client SET group_name = 'billing' WHERE kind = 'CONSUMER'")
    with Admin(dsn_of(database, ADMIN)) as admin:
        with pytest.raises(errors.ParameterInvalid, match="live members"):
            admin.topics.delete(f"{prefix}billing", force=True)

        own.owner.execute("DELETE FROM mqdb.client")
        admin.topics.delete(f"{prefix}billing", force=True)


def test_92_a_half_message_that_is_asked_about_again_goes_with_its_topic(own: World, database: Database) -> None:
    own.owner.execute(
        """UPDATE mqdb.half_message SET state = 'DISCARDED', check_at = NULL, ended_at = mqdb.now(), copy_pos = 1
           WHERE topic = 'orders'"""
    )
    with Admin(dsn_of(database, OPERATOR)) as operator:
        operator.transactions.resolve(own.numbers["own_half"].strip("'"), Resolution.RESUME)
    with Admin(dsn_of(database, ADMIN)) as admin:
        admin.topics.delete("orders", force=True)
    states = "SELECT DISTINCT state FROM mqdb.half_message WHERE topic = 'orders'"
    assert set(own.owner.execute(states.encode())) == {("DISCARDED",), ("ROLLED_BACK",)}


# -- the honest way -----------------------------------------------------------------------------


def test_an_operator_redrives_what_it_cannot_read(own: World, database: Database) -> None:
    wanted = DeadLetterFilter("billing", exception="NoPrice")
    with Admin(dsn_of(database, OPERATOR)) as operator:
        assert operator.dead_letters.count(wanted) == 3
        assert {letter.error for letter in operator.dead_letters.list(wanted)} == {None}
        assert [cause.messages for cause in operator.dead_letters.causes(wanted)] == [3]
        with pytest.raises(errors.AccessDenied, match="READ on GROUP 'billing'"):
            list(operator.dead_letters.read(wanted))
        assert operator.dead_letters.choose(DeadLetterFilter("billing", where="body IS NOT NULL")).positions == ()
        ready = operator.dead_letters.redrive(wanted, dry_run=True)
        done = operator.dead_letters.redrive(wanted, actor="grace")
        again = operator.dead_letters.redrive(wanted)
        [noted] = operator.operations.list(group="billing")

    assert [each.status for each in ready] == [RedriveStatus.READY] * 3
    assert [each.status for each in done] == [RedriveStatus.REDRIVEN] * 3
    assert again == []
    assert (noted.principal, noted.actor, noted.verb, noted.groups) == (OPERATOR, "grace", "dlq.redrive", ["billing"])
    copies = own.owner.execute(
        """SELECT cl.body, cl.store_time > mqdb.now() - interval '1 min' FROM mqdb.commit_log cl
           JOIN mqdb.redrive_result r ON r.new_log_pos = cl.log_pos"""
    )
    assert copies.fetchall() == [(b"TOPSECRET", True)] * 3


def test_who_reads_a_group_and_sends_to_the_topic_repairs_a_body(own: World, database: Database) -> None:
    with Admin(database.dsn) as admin, Admin(dsn_of(database, REPAIRER)) as repairer:
        wanted = DeadLetterFilter("billing")
        assert {letter.body for letter in repairer.dead_letters.read(wanted)} == {b"TOPSECRET"}
        with pytest.raises(errors.AccessDenied, match="SEND on TOPIC 'orders'"):
            repairer.dead_letters.redrive(wanted, limit=1, body=b"repaired")

        admin.acl.grant(REPAIRER, send=["orders"])
        [to_group] = repairer.dead_letters.redrive(wanted, limit=1, body=b"repaired")
        [to_topic] = repairer.dead_letters.redrive(wanted, limit=1, to_topic="orders")

    assert (to_group.status, to_topic.status) == (RedriveStatus.REDRIVEN, RedriveStatus.REDRIVEN)
    stored = "SELECT body FROM mqdb.commit_log WHERE log_pos = %s"
    assert scalar(own.owner, stored, [to_group.new_log_pos]) == b"repaired"
    assert scalar(own.owner, stored, [to_topic.new_log_pos]) == b"TOPSECRET"


def offsets_of(owner: Connection, group: str, topic: str) -> Rows:
    statement = """SELECT q.queue_id, o.next_offset FROM mqdb.consumer_offset o JOIN mqdb.queue q USING (queue_key)
                   JOIN mqdb.topic t USING (topic_id) JOIN mqdb.subscription_group g USING (group_id)
                   WHERE g.group_name = %s AND t.topic = %s ORDER BY 1"""
    return owner.execute(statement.encode(), [group, topic]).fetchall()


def test_an_operator_resets_offsets(own: World, database: Database) -> None:
    with Admin(dsn_of(database, OPERATOR)) as operator:
        planned = operator.offsets.reset("billing", "orders", Boundary.LATEST, dry_run=True)
        changed = operator.offsets.reset("billing", "orders", Boundary.LATEST, reason="wrong prices", actor="grace")
        assert planned == changed
        assert [each.next_offset for each in operator.offsets.show("billing", "orders")] == [
            each.new_offset for each in changed
        ]
        back = operator.offsets.reset("billing", "orders", Boundary.EARLIEST)
        [noted, *_] = operator.operations.list(group="billing")

    assert sum(each.new_offset for each in changed) > 3
    assert [(each.queue_id, each.new_offset) for each in back] == offsets_of(own.owner, "billing", "orders")
    assert (noted.principal, noted.verb, noted.topics, noted.groups) == (
        OPERATOR,
        "offset.reset",
        ["orders"],
        ["billing"],
    )
    assert noted.before == {"orders": {str(each.queue_id): each.new_offset for each in changed}}


def test_a_reset_to_a_time_tells_when_messages_came_and_needs_read(own: World, database: Database) -> None:
    with Admin(database.dsn) as admin, Admin(dsn_of(database, OPERATOR)) as operator:
        with pytest.raises(errors.AccessDenied, match="READ on TOPIC 'orders'"):
            operator.offsets.reset("billing", "orders", timedelta(hours=1))

        admin.acl.grant(OPERATOR, read=["orders"])

        assert {each.new_offset for each in operator.offsets.reset("billing", "orders", timedelta(hours=1))} == {0}


@pytest.mark.parametrize(
    ("group", "topic", "lacks"),
    [
        ("payroll", "secret", "OPERATE on GROUP 'payroll'"),
        ("nobody", "orders", "OPERATE on GROUP 'nobody'"),
        ("billing", "secret", "OPERATE on TOPIC 'secret'"),
        ("billing", "none", "OPERATE on TOPIC 'none'"),
    ],
)
def test_a_reset_that_is_not_allowed_is_refused_before_anything_is_told(
    own: World, database: Database, group: str, topic: str, lacks: str
) -> None:
    with Admin(dsn_of(database, OPERATOR)) as operator:
        for is_dry in (True, False):
            with pytest.raises(errors.AccessDenied, match=lacks):
                operator.offsets.reset(group, topic, Boundary.EARLIEST, dry_run=is_dry)


def test_an_operator_of_two_groups_clones_one_to_the_other(own: World, database: Database) -> None:
    with Admin(database.dsn) as admin, Admin(dsn_of(database, OPERATOR)) as operator:
        operator.offsets.reset("billing", "orders", Boundary.LATEST)
        with pytest.raises(errors.AccessDenied, match="OPERATE on GROUP 'payroll'"):
            operator.offsets.clone("billing", "payroll")
        with pytest.raises(errors.AccessDenied, match="OPERATE on GROUP 'payroll'"):
            operator.offsets.clone("payroll", "billing")

        admin.acl.grant(OPERATOR, operate_group=["pay*"])
        with pytest.raises(errors.GroupInUse, match="their@1"):
            operator.offsets.clone("billing", "payroll", ["orders"])
        changed = operator.offsets.clone("billing", "payroll", ["orders"], force=True)
        with pytest.raises(errors.AccessDenied, match="ADMIN on GROUP 'pay-new'"):
            operator.offsets.clone("billing", "pay-new")

    assert [(each.queue_id, each.new_offset) for each in changed] == offsets_of(own.owner, "payroll", "orders")


def test_members_of_another_role_are_seen_and_go_on_where_the_operator_says(own: World, database: Database) -> None:
    own.owner.execute("DELETE FROM mqdb.leader")
    inbox = Inbox()
    consumer = PushConsumer("billing", database.dsn)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with consumer, Admin(dsn_of(database, OPERATOR)) as operator:
        wait_until(lambda: len(operator.consumers.list("billing")) == 1)
        operator.offsets.reset("billing", "orders", Boundary.EARLIEST)
        inbox.wait_for(4)


def test_a_keeper_adds_pauses_resumes_and_removes_crons(own: World, database: Database) -> None:
    with Admin(dsn_of(database, KEEPER)) as keeper, Admin(dsn_of(database, OPERATOR)) as operator:
        next_at = keeper.crons.add("hourly", "@hourly", Message("orders", "x", tag="t", keys="k"), actor="grace")
        assert ("hourly", KEEPER) in [(each.name, each.created_by) for each in keeper.crons.list()]
        operator.crons.pause("hourly")
        operator.crons.pause("nightly")
        for name in ("hourly", "nightly"):
            with pytest.raises(errors.AccessDenied, match="SEND on TOPIC 'orders'"):
                operator.crons.resume(name)
        assert keeper.crons.resume("hourly") >= next_at
        operator.crons.remove("hourly")
        for refused in (keeper.crons.pause, keeper.crons.remove, keeper.crons.resume):
            with pytest.raises(errors.CronNotFound):
                refused("payroll-1")
        with pytest.raises(errors.CronExists):
            keeper.crons.add("payroll-1", "@hourly", Message("orders", "x"))
        for sends in (operator, keeper):
            topic = "orders" if sends is operator else "secret"
            with pytest.raises(errors.AccessDenied):
                sends.crons.add("other", "@hourly", Message(topic, "x"))
        noted = [(each.principal, each.actor, each.verb) for each in operator.operations.list(topic="orders")]

    assert noted[0] == (OPERATOR, None, "cron.remove")
    assert (KEEPER, "grace", "cron.add") in noted


@pytest.mark.parametrize("role", [OPERATOR, ADMIN])
def test_an_operator_sees_what_waits_for_its_topic(own: World, database: Database, role: str) -> None:
    sent = [scalar(own.owner, f"SELECT mqdb.send('orders', 'x', deliver_at => '299{n}-01-01')") for n in range(3)]
    dispatch_all(own.owner)
    with Admin(database.dsn) as owner, Admin(dsn_of(database, role)) as operator:
        assert operator.timers.list() == owner.timers.list("orders")
        assert [format_unique_id(each.msg_id) for each in operator.timers.list("orders", 2)] == sent[:2]
        assert [format_unique_id(each.msg_id) for each in operator.timers.list(last=True, limit=1)] == sent[2:]
        assert operator.timers.list("secret") == []


def test_an_operator_recalls_what_waits_for_its_topic(own: World, database: Database, tmp_path: Path) -> None:
    ids = [scalar(own.owner, "SELECT mqdb.send('orders', 'x', deliver_at => '2999-01-01')") for _ in range(2)]
    foreign = own.numbers["secret_timer"].strip("'")
    dispatch_all(own.owner)
    index_all(own.owner)
    with Admin(dsn_of(database, OPERATOR)) as operator:
        assert {timer.topic for timer in operator.timers.list()} == {"orders"}
        assert operator.timers.recall(ids[0], actor="grace") is RecallStatus.RECALLED
        assert operator.timers.recall(ids[0]) is RecallStatus.UNKNOWN
        assert operator.timers.recall(foreign) is RecallStatus.UNKNOWN
        [noted] = operator.operations.list(topic="orders")
    assert (noted.principal, noted.actor, noted.verb, noted.object) == (OPERATOR, "grace", "timer.recall", ids[0])
    place = Place(tmp_path, dsn_of(database, OPERATOR))
    place.done("timer", "recall", ids[1])
    assert place.call("timer", "recall", foreign).code == 1
    assert scalar(own.owner, "SELECT count(*) FROM mqdb.timer_recall") == 2


def test_81_a_recall_that_stays_open_holds_up_no_timer(own: World, database: Database) -> None:
    ids = [scalar(own.owner, "SELECT mqdb.send('orders', 'x', deliver_at => '2999-01-01')")]
    due = "SELECT mqdb.send('secret', 'due', deliver_at => mqdb.now() + interval '10 ms')"
    own.owner.execute(due.encode())
    dispatch_all(own.owner)
    with own.sessions[OPERATOR].transaction(), services(database) as broker:
        assert scalar(own.sessions[OPERATOR], "SELECT mqdb.recall_own('orders', %s)", ids) == "PENDING"
        wait_until(lambda: timers.deliver_due(broker).messages > 0)


def test_an_operator_resolves_half_messages(own: World, database: Database) -> None:
    own.owner.execute(
        """UPDATE mqdb.half_message SET state = 'DISCARDED', check_at = NULL, ended_at = mqdb.now(), check_times = 15
           WHERE log_pos = (SELECT max(log_pos) FROM mqdb.half_message)"""
    )
    with Admin(dsn_of(database, OPERATOR)) as operator:
        first, second, third = operator.transactions.list()
        committed = operator.transactions.resolve(first.transaction_id, Resolution.COMMIT, actor="grace")
        rolled_back = operator.transactions.resolve(second.transaction_id.lower(), Resolution.ROLLBACK)
        resumed = operator.transactions.resolve(third.transaction_id, Resolution.RESUME)
        with pytest.raises(errors.HalfMessageClosed, match="resume is not possible"):
            operator.transactions.resolve(third.transaction_id, Resolution.RESUME)
        with pytest.raises(errors.HalfMessageNotFound):
            operator.transactions.resolve(first.transaction_id, Resolution.ROLLBACK)
        with pytest.raises(errors.ParameterInvalid):
            operator.transactions.resolve("order-17", Resolution.COMMIT)
        noted = operator.operations.list(topic="orders")

    assert [half.state for half in (committed, rolled_back, resumed)] == ["COMMITTED", "ROLLED_BACK", "PREPARED"]
    assert (resumed.check_times, resumed.ended_at) == (0, None)
    body = "SELECT t.topic, cl.body, cl.sys_flag & 8 FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key) "
    body += "JOIN mqdb.topic t USING (topic_id) WHERE cl.log_pos = %s"
    assert own.owner.execute(body.encode(), [committed.copy_pos]).fetchall() == [("orders", b"TOPSECRET", 8)]
    assert [(each.principal, each.before, each.after) for each in noted[:3]] == [
        (OPERATOR, {"state": "DISCARDED"}, {"state": "PREPARED"}),
        (OPERATOR, {"state": "PREPARED"}, {"state": "ROLLED_BACK"}),
        (OPERATOR, {"state": "PREPARED"}, {"state": "COMMITTED"}),
    ]


def test_a_half_message_that_was_given_up_is_committed_as_by_the_owner(own: World, database: Database) -> None:
    own.owner.execute(
        """UPDATE mqdb.half_message SET state = 'DISCARDED', check_at = NULL, ended_at = mqdb.now(), check_times = 15
           WHERE topic = 'orders'"""
    )
    ends = []
    for dsn in (database.dsn, dsn_of(database, OPERATOR)):
        with Admin(dsn) as admin:
            half = admin.transactions.list(group="shop")[-1]
            ends.append(admin.transactions.resolve(half.transaction_id, Resolution.COMMIT))

    stored = "SELECT properties, sys_flag, tags_code, queue_key, body FROM mqdb.commit_log WHERE log_pos = %s"
    by_owner, by_operator = (own.owner.execute(stored.encode(), [half.copy_pos]).fetchone() for half in ends)
    assert by_owner == by_operator
    assert [half.check_times for half in ends] == [0, 0]


def test_an_administrator_makes_changes_and_deletes_topics(own: World, database: Database) -> None:
    with Admin(dsn_of(database, ADMIN)) as admin:
        admin.topics.create("orders-new", queues=2, actor="grace")
        admin.topics.create("orders-new", queues=2)
        with pytest.raises(errors.TopicExists):
            admin.topics.create("orders-new", queues=3)
        changed = admin.topics.update("orders-new", write_queues=4, perm=4)
        shown = admin.topics.show("orders-new")
        with pytest.raises(errors.TopicInUse, match="nightly"):
            admin.topics.delete("orders")
        assert admin.topics.uses("orders").crons == ("nightly",)
        gone = admin.topics.delete("orders", force=True)
        admin.topics.delete("orders-new")
        with pytest.raises(errors.NothingToDelete):
            admin.topics.delete("orders-new")
        for refused in (
            lambda: admin.topics.create("order"),
            lambda: admin.topics.update("secret", perm=4),
            lambda: admin.topics.update("no-such", perm=4),
            lambda: admin.topics.uses("secret"),
            lambda: admin.topics.delete("secret", force=True),
            lambda: admin.topics.delete("no-such"),
        ):
            with pytest.raises(errors.AccessDenied, match="ADMIN on TOPIC"):
                refused()
        names = {each.name for each in admin.topics.list()}
        noted = [(each.principal, each.actor, each.verb, each.topics) for each in admin.operations.list()]

    assert (changed.read_queue_nums, changed.write_queue_nums, changed.perm) == (2, 4, 4)
    assert [queue.queue_id for queue in shown.queues] == [0, 1, 2, 3]
    assert (gone.crons, gone.half_messages) == (("nightly",), 3)
    assert names >= {"orders-eu", "%DLQ%billing"}
    assert not names & {"orders", "secret", "%DLQ%payroll"}
    assert (ADMIN, "grace", "topic.create", ["orders-new"]) in noted
    assert [verb for principal, _, verb, _ in noted if principal == ADMIN] == [
        "topic.delete",
        "topic.delete",
        "topic.update",
        "topic.create",
    ]
    states = "SELECT DISTINCT state FROM mqdb.half_message WHERE topic = 'orders'"
    assert own.owner.execute(states.encode()).fetchall() == [("ROLLED_BACK",)]


def test_what_an_administrator_makes_is_covered_by_the_rights_of_others(own: World, database: Database) -> None:
    with Admin(database.dsn) as owner, Admin(dsn_of(database, ADMIN)) as admin:
        owner.acl.grant(KEEPER, send=["orders-*"])
        admin.topics.create("orders-new")
        admin.topics.update("orders-new", queues=16)
        for _ in range(30):
            own.sessions[KEEPER].execute("SELECT mqdb.send('orders-new', 'x')")

    keys = (
        "SELECT count(*) FROM mqdb.acl_queue a JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id) "
    )
    assert scalar(own.owner, keys + "WHERE t.topic = 'orders-new' AND a.principal = 'a_keeper' AND a.may_send") == 16


def test_an_administrator_makes_changes_and_deletes_groups(own: World, database: Database) -> None:
    with Admin(dsn_of(database, ADMIN)) as admin:
        made = admin.groups.update("billing-new", retry_queue_nums=2, retry_max_times=3)
        changed = admin.groups.update("billing-new", consume_enable=False)
        assert (made.retry_queue_nums, changed.retry_max_times, changed.consume_enable) == (2, 3, False)
        admin.topics.create("%RETRY%billing-new", queues=2)
        assert {each.group for each in admin.groups.list()} == {"billing", "billing-new"}
        assert admin.groups.delete("billing-new", with_topics=True) == ["%RETRY%billing-new"]
        with pytest.raises(errors.GroupNotFound):
            admin.groups.delete("billing-new")
        for refused in (
            lambda: admin.groups.update("payroll"),
            lambda: admin.groups.delete("payroll"),
            lambda: admin.groups.delete("no-such"),
            lambda: admin.offsets.reset("billing", "orders", Boundary.EARLIEST),
        ):
            with pytest.raises(errors.AccessDenied, match="on GROUP"):
                refused()
        verbs = [each.verb for each in admin.operations.list(group="billing-new")]
    assert verbs == ["group.delete", "group.update", "group.update"]


def test_a_group_with_members_of_another_role_is_not_deleted(own: World, database: Database) -> None:
    own.owner.execute("UPDATE mqdb.client SET group_name = 'billing' WHERE kind = 'CONSUMER'")
    with Admin(dsn_of(database, ADMIN)) as admin, pytest.raises(errors.GroupInUse, match="their@1"):
        admin.groups.delete("billing")


def test_an_administrator_uses_the_command_line(own: World, database: Database, tmp_path: Path) -> None:
    place = Place(tmp_path, dsn_of(database, ADMIN))

    place.done("topic", "create", "orders-new", "--queues", "2")
    place.done("topic", "set", "orders-new", "--queues", "4")
    place.done("topic", "delete", "orders-new", "--yes")
    place.done("group", "set", "billing-new", "--retry-max-times", "3")
    place.done("group", "delete", "billing-new", "--yes")
    for call in (
        ("topic", "create", "secret2"),
        ("topic", "delete", "secret", "--yes"),
        ("group", "delete", "payroll", "--yes"),
    ):
        outcome = place.call(*call)
        assert outcome.code == 1
        assert f"{ADMIN!r} has no right ADMIN" in outcome.errors


def test_the_command_line_does_it_too(own: World, database: Database, tmp_path: Path) -> None:
    place = Place(tmp_path, dsn_of(database, OPERATOR))

    assert "NoPrice" in place.done("dlq", "list", "billing")
    assert "REDRIVEN" in place.done("dlq", "redrive", "billing", "--limit", "1", "--yes")
    place.done("group", "offset", "reset", "billing", "orders", "--to", "latest", "--yes")
    [half, *_] = json_lines(place.done("transaction", "list", "--json"))
    place.done("transaction", "resolve", half["transaction_id"], "rollback", "--yes")
    place.done("cron", "pause", "nightly")
    assert "nightly" in place.done("cron", "list")
    refused: list[Callable[[], Any]] = [
        lambda: place.call("cron", "resume", "nightly"),
        lambda: place.call("cron", "add", "mine", "--cron", "@hourly", "--topic", "orders", "--body", "x"),
        lambda: place.call("dlq", "redrive", "billing", "--limit", "1", "--yes", "--body", "x"),
        lambda: place.call("dlq", "redrive", "billing", "--yes", "--to-topic", "orders"),
        lambda: place.call("group", "offset", "reset", "payroll", "secret", "--to", "latest", "--yes"),
    ]
    for call in refused:
        outcome = call()
        assert outcome.code == 1
        assert f"{OPERATOR!r} has no right" in outcome.errors
