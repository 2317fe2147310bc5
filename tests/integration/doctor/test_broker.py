"""The doctor's checks of services, log, groups and schedule each find their problem, and nothing else."""

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from sqlalchemy import Connection, text

from mqdb.broker.dispatch import index_keys
from mqdb.broker.doctor import examine
from mqdb.broker.doctor.examine import ALL_CHECKS
from mqdb.broker.doctor.finding import FindingStatus, Observation
from mqdb.common.message import Message
from mqdb.store.dead_letters import redrive_letters
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.crons import add
from tests.fixtures.dead_letters import bury, create_group
from tests.fixtures.delay import delay, move_clock
from tests.fixtures.doctor import find, observe, statuses, undone
from tests.fixtures.leaders import pretend_to_lead
from tests.fixtures.postgres import Database, query
from tests.fixtures.processes import wait_until
from tests.fixtures.timers import deliver_all, timer

FAIL, WARN, OK = FindingStatus.FAIL, FindingStatus.WARN, FindingStatus.OK


@pytest.fixture(scope="module")
def orders(shared_broker: Connection) -> TopicRoute:
    return topic(shared_broker, "orders")


# -- services -----------------------------------------------------------------------------------


def test_a_broker_that_nobody_has_ever_served_fails(shared_broker: Connection) -> None:
    [found] = find(shared_broker, "leader")

    assert (found.status, found.remedy) == (FAIL, "mqdb serve")
    assert "has run the services yet" in found.seen


def test_a_leader_that_hangs_and_one_that_is_killed(shared_broker: Connection, shared_database: Database) -> None:
    with closing(psycopg.connect(shared_database.dsn, autocommit=True)) as leader:
        pretend_to_lead(leader)
        try:
            [leads] = find(shared_broker, "leader")
            query(shared_database.dsn, "UPDATE mqdb.leader SET expires_at = expires_at - interval '2 hours'")
            [hangs] = find(shared_broker, "leader")
            query(shared_database.dsn, "SELECT pg_terminate_backend(backend_pid) FROM mqdb.leader")
            wait_until(lambda: "is gone" in find(shared_broker, "leader")[0].seen)
            [killed] = find(shared_broker, "leader")
        finally:
            query(shared_database.dsn, "DELETE FROM mqdb.leader")

    assert (leads.status, leads.figures) == (OK, {"holder": "test", "epoch": 1})
    assert (hangs.status, killed.status) == (FAIL, FAIL)
    assert "has given no sign of life" in hangs.seen
    assert killed.remedy == "mqdb serve"


def test_a_leader_that_is_silent_since_the_clock_was_put_back(
    shared_broker: Connection, shared_database: Database
) -> None:
    with closing(psycopg.connect(shared_database.dsn, autocommit=True)) as leader:
        pretend_to_lead(leader)
        move_clock(shared_broker, timedelta(hours=-1))
        try:
            [found] = find(shared_broker, "leader")
        finally:
            move_clock(shared_broker, timedelta(0))
            query(shared_database.dsn, "DELETE FROM mqdb.leader")

    assert (found.status, found.figures["holder"]) == (FAIL, "test")
    assert "clock was set back" in found.seen


def test_a_database_in_a_state_that_nobody_thought_of_is_examined_on(
    broker: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    broker.exec_driver_sql("DELETE FROM mqdb.checkpoint")

    behind, segments = examine.examine(broker, only=["dispatch-behind", "segments"])

    assert (behind.status, behind.error is None, segments.status) == (FindingStatus.UNKNOWN, False, OK)
    assert [record.message for record in caplog.records] == ["check dispatch-behind of the doctor failed"]


@pytest.mark.parametrize(("check", "catch_up"), [("dispatch-behind", dispatch_all), ("index-behind", index_keys)])
def test_a_service_that_is_behind(
    shared_broker: Connection, orders: TopicRoute, check: str, catch_up: Callable[[Connection], object]
) -> None:
    append(shared_broker, orders, "one", "two")
    if check == "index-behind":  # it follows dispatch
        dispatch_all(shared_broker)

    assert statuses(find(shared_broker, check, behind_warn_seconds=3_600)) == [OK]
    [warned] = find(shared_broker, check, behind_warn_seconds=0, behind_fail_seconds=3_600)
    assert warned.status is WARN
    assert warned.figures["behind_positions"] == 2
    assert statuses(find(shared_broker, check, behind_warn_seconds=0, behind_fail_seconds=0)) == [FAIL]
    catch_up(shared_broker)
    assert statuses(find(shared_broker, check, behind_warn_seconds=0)) == [OK]
    dispatch_all(shared_broker)
    index_keys(shared_broker)


def test_an_indexer_that_is_blocked(shared_broker: Connection, shared_database: Database, orders: TopicRoute) -> None:
    append(shared_broker, orders, "one")
    dispatch_all(shared_broker)
    with (
        closing(psycopg.connect(shared_database.dsn)) as other,
        closing(psycopg.connect(shared_database.dsn, autocommit=True)) as indexer,
    ):
        other.execute("LOCK TABLE mqdb.message_index")
        indexer.pgconn.send_query(b"SELECT mqdb.index_keys()")
        wait_until(lambda: statuses(find(shared_broker, "locks", lock_warn_seconds=0)) == [WARN])

        [behind] = find(shared_broker, "index-behind", behind_warn_seconds=0)
        [blocked] = find(shared_broker, "locks", lock_warn_seconds=0)
        assert blocked.figures["pid"] == indexer.info.backend_pid
        shared_broker.exec_driver_sql(blocked.remedy or "")
        wait_until(lambda: statuses(find(shared_broker, "index-behind", behind_warn_seconds=0)) == [OK])

    assert (behind.status, behind.figures["behind_positions"]) == (WARN, 1)


def test_records_of_an_open_transaction_keep_nobody_behind(
    shared_broker: Connection, shared_database: Database, orders: TopicRoute
) -> None:
    append(shared_broker, orders, "the last one")
    dispatch_all(shared_broker)
    with closing(psycopg.connect(shared_database.dsn)) as sender:
        sender.execute("SELECT mqdb.send('orders', 'not yet')")
        found = find(shared_broker, "dispatch-behind", behind_warn_seconds=0)

    assert [(each.status, each.figures["behind_positions"]) for each in found] == [(OK, 1)]


# -- the log --------------------------------------------------------------------------------------


def test_a_log_that_has_no_room_ahead(shared_broker: Connection, orders: TopicRoute) -> None:
    append(shared_broker, orders, "the log is in its first segment, which is not ahead any more")
    dispatch_all(shared_broker)
    assert statuses(find(shared_broker, "segments")) == [OK]
    drop = "DELETE FROM mqdb.segment WHERE segment = (SELECT max(segment) FROM mqdb.segment)"
    with undone(shared_broker):
        shared_broker.exec_driver_sql(drop)
        [warned] = observe(shared_broker, "segments")
        shared_broker.exec_driver_sql(drop)
        [failed] = observe(shared_broker, "segments")

    assert (warned.status, warned.figures["segments_ahead"]) == (WARN, 1)
    assert (failed.status, failed.figures["segments_ahead"]) == (FAIL, 0)
    assert "leader" in (failed.remedy or "")


_HALF = """
INSERT INTO mqdb.half_message (log_pos, msg_id, producer_group, topic, stored_at, check_at)
VALUES (1, gen_random_uuid(), 'shop', 'orders', mqdb.now() - interval '8 minutes', mqdb.now() + %s)
"""


@pytest.mark.parametrize(
    ("state", "reason", "why"),
    [
        ("sealed", "SELECT", "is not needed here"),
        ("sealed", _HALF.replace("%s", "interval '1 second'"), "half message"),
        (
            "sealed",
            "INSERT INTO mqdb.archived_segment (segment, offsets, messages, bytes) VALUES (7, '{}', 0, 0)",
            "is not archived",
        ),
        ("closed", "SELECT", "open transaction"),
        ("drained", "UPDATE mqdb.segment SET lowest_log_pos = start_pos", "session that reads"),
    ],
    ids=["nothing", "half", "archive", "closed", "reader"],
)
def test_a_segment_that_is_overdue_and_what_keeps_it(
    shared_broker: Connection, state: str, reason: str, why: str
) -> None:
    assert statuses(find(shared_broker, "retention")) == [OK]
    with undone(shared_broker):
        _leave_first_segment(shared_broker, state)
        shared_broker.exec_driver_sql(reason)
        found = observe(shared_broker, "retention")
        in_time = observe(shared_broker, "retention", reserved_hours=96)

    assert statuses(found) == [WARN]
    assert why in found[0].seen
    assert found[0].remedy is not None
    assert statuses(in_time) == [OK]


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("'s3a://bucket/old letters/broker=broker-a/segment=7/run=0'", "mqdb spark archive 's3a://bucket/old letters'"),
        ("NULL", "mqdb spark archive --help"),
    ],
)
def test_the_archive_goes_on_in_its_folder(shared_broker: Connection, path: str, remedy: str) -> None:
    with undone(shared_broker):
        _leave_first_segment(shared_broker, "sealed")
        for segment, where in ((6, "'/data/first/broker=broker-a/segment=6/run=0'"), (7, path)):
            shared_broker.exec_driver_sql(
                "INSERT INTO mqdb.archived_segment (segment, path, offsets, messages, bytes, archived_at) "
                f"SELECT {segment}, {where}, '{{}}', 0, 0, now() + {segment} * interval '1 s' WHERE {path} IS NOT NULL "
                f"OR {segment} = 7"
            )
        [found] = observe(shared_broker, "retention")

    assert found.remedy == remedy


@pytest.mark.parametrize(
    ("wait", "why"),
    [
        (lambda connection: delay(connection, 18, "later"), "delayed message"),
        (lambda connection: timer(connection, timedelta(days=1), "later"), "not collected"),
    ],
    ids=["delay", "timer"],
)
def test_a_segment_that_is_kept_by_what_waits(
    broker: Connection, wait: Callable[[Connection], object], why: str
) -> None:
    wait(broker)
    _leave_first_segment(broker, "sealed")

    [found] = find(broker, "retention")

    assert found.status is WARN
    assert why in found.seen


def _leave_first_segment(connection: Connection, state: str) -> None:
    """Four days ago, dispatch moved on to the second segment."""
    first = "segment = (SELECT min(segment) FROM mqdb.segment)"
    connection.exec_driver_sql(
        f"UPDATE mqdb.segment SET state = '{state}', closed_at = mqdb.now() - interval '97 hours' WHERE {first}"
    )
    connection.exec_driver_sql(
        """INSERT INTO mqdb.checkpoint SELECT (r).* FROM (
               SELECT jsonb_populate_record(c, jsonb_build_object('seq', c.seq + 1, 'segment', c.segment + 1)) AS r
               FROM mqdb.checkpoint c WHERE c.service = 'dispatch' ORDER BY c.seq DESC LIMIT 1) AS next"""
    )


# -- groups ---------------------------------------------------------------------------------------


def _read(connection: Connection, group: str, *, updated: str = "now", owner: str | None = None) -> None:
    """A group with a subscription, and an offset at the beginning of `orders`."""
    create_group(connection, group)
    connection.exec_driver_sql(
        """INSERT INTO mqdb.consumer_offset (group_id, queue_key, next_offset, owner, updated_at)
           SELECT g.group_id, q.queue_key, 0, %(owner)s::text, mqdb.now() - %(ago)s::interval
           FROM mqdb.subscription_group g, mqdb.queue q JOIN mqdb.topic t USING (topic_id)
           WHERE g.group_name = %(group)s AND t.topic = 'orders'""",
        {"group": group, "owner": owner, "ago": "0 s" if updated == "now" else updated},
    )
    connection.exec_driver_sql(
        """INSERT INTO mqdb.subscription (group_id, topic, expression, version)
           SELECT group_id, 'orders', '*', 1 FROM mqdb.subscription_group WHERE group_name = %(group)s""",
        {"group": group},
    )


def _join(connection: Connection, group: str, client_id: str = "c1", ago: str = "1 h") -> None:
    connection.exec_driver_sql(
        """INSERT INTO mqdb.client (client_id, kind, group_name, language, version, registered_at)
           VALUES (%(client_id)s, 'CONSUMER', %(group)s, 'PYTHON', '1', mqdb.now() - %(ago)s::interval)""",
        {"client_id": client_id, "group": group, "ago": ago},
    )


def test_a_group_with_a_lag_and_no_member(shared_broker: Connection, orders: TopicRoute) -> None:
    append(shared_broker, orders, "unread")
    dispatch_all(shared_broker)
    with undone(shared_broker):
        _read(shared_broker, "o'reilly")
        [now] = observe(shared_broker, "lag")
        move_clock(shared_broker, timedelta(hours=2))
        [found] = observe(shared_broker, "lag")
        _join(shared_broker, "o'reilly")
        [joined] = observe(shared_broker, "lag")

    assert (now.status, joined.status) == (OK, OK)
    assert (found.status, found.figures["group"]) == (WARN, "o'reilly")
    assert (found.remedy or "").startswith("""mqdb group show 'o'"'"'reilly'""")


def test_many_groups_are_counted(shared_broker: Connection, orders: TopicRoute) -> None:
    append(shared_broker, orders, "unread")
    dispatch_all(shared_broker)
    with undone(shared_broker):
        for number in range(12):
            _read(shared_broker, f"g{number}")
        found = observe(shared_broker, "lag", lag_warn_seconds=-1)

    assert statuses(found) == [WARN] * 11
    assert found[-1].figures == {"more": 2}


def test_a_subscription_to_a_topic_that_is_not_there(shared_broker: Connection, orders: TopicRoute) -> None:
    with undone(shared_broker):
        _read(shared_broker, "billing")
        [there] = observe(shared_broker, "subscriptions")
        shared_broker.exec_driver_sql("UPDATE mqdb.subscription SET topic = 'odrers'")
        [found] = observe(shared_broker, "subscriptions")

    assert there.status is OK
    assert (found.status, found.figures) == (WARN, {"group": "billing", "topic": "odrers"})


@pytest.mark.parametrize(
    ("kind", "passes", "blocks"), [("TAG", "paid || new", "piad"), ("SQL92", "colour = 'red'", "color = 'red'")]
)
def test_a_filter_that_lets_nothing_pass(
    shared_broker: Connection, orders: TopicRoute, kind: str, passes: str, blocks: str
) -> None:
    name = f"filtered-by-{kind}"
    message = Message(name, "x", "paid", properties={"colour": "red"})
    append(shared_broker, topic(shared_broker, name), message, message, message)
    dispatch_all(shared_broker)
    with undone(shared_broker):
        _read(shared_broker, "billing")
        shared_broker.execute(
            text("UPDATE mqdb.subscription SET topic = :topic, expression_type = :kind"), {"topic": name, "kind": kind}
        )

        def seen(expression: str, newest: int) -> list[Observation]:
            shared_broker.execute(text("UPDATE mqdb.subscription SET expression = :text"), {"text": expression})
            return observe(shared_broker, "filters", filter_newest_messages=newest)

        [lets] = seen(passes, 3)
        [few] = seen(blocks, 4)
        [found] = seen(blocks, 3)

    assert lets.status is few.status is OK
    assert (found.status, found.figures) == (WARN, {"group": "billing", "topic": name, "expression": blocks})


@pytest.mark.parametrize("owner", [None, "a client that is gone"])
def test_a_queue_that_no_member_reads(shared_broker: Connection, orders: TopicRoute, owner: str | None) -> None:
    with undone(shared_broker):
        _read(shared_broker, "billing", owner=owner, updated="1 h")
        without_members = observe(shared_broker, "owners")
        _join(shared_broker, "billing", ago="1 s")
        with_a_new_one = observe(shared_broker, "owners", unowned_warn_seconds=600)
        _join(shared_broker, "billing", client_id="c2", ago="1 h")
        [found] = observe(shared_broker, "owners", unowned_warn_seconds=600)
        shared_broker.exec_driver_sql("UPDATE mqdb.consumer_offset SET owner = 'c2'")
        owned = observe(shared_broker, "owners")
        shared_broker.exec_driver_sql("UPDATE mqdb.consumer_offset SET owner = NULL")
        shared_broker.exec_driver_sql("UPDATE mqdb.subscription_group SET consume_mode = 'POP'")
        popped = observe(shared_broker, "owners", unowned_warn_seconds=600)

    assert statuses(without_members) == statuses(with_a_new_one) == statuses(owned) == statuses(popped) == [OK]
    assert (found.status, found.figures["queues"]) == (WARN, 1)
    assert ("is gone" in found.seen) is (owner is not None)


def test_the_queues_of_a_consumer_at_work_have_an_owner(broker: Connection, member: Member) -> None:
    topic(broker, "orders", queues=3)
    member(Inbox())
    owned = "SELECT count(*) FROM mqdb.consumer_offset WHERE owner IS NOT NULL"

    wait_until(lambda: broker.exec_driver_sql(owned).scalar_one() == 4)  # with that of the retry topic

    assert statuses(find(broker, "owners", unowned_warn_seconds=0)) == [OK]


def test_dead_letters_that_are_new_or_go_soon(shared_broker: Connection) -> None:
    positions = [bury(shared_broker, group="billing"), bury(shared_broker, group="billing")]
    dispatch_all(shared_broker)

    [new] = find(shared_broker, "dead-letters")
    assert statuses(find(shared_broker, "dead-letters", letters_recent_seconds=0)) == [OK]
    [going] = find(shared_broker, "dead-letters", letters_recent_seconds=0, letters_warn_share=0)
    with undone(shared_broker):
        asked = dict.fromkeys(("target_topic", "body", "condition", "actor")) | {"again": False, "dry_run": False}
        redrive_letters(shared_broker, positions, **asked)
        redriven = observe(shared_broker, "dead-letters")

    assert (new.status, new.figures["letters"], new.remedy) == (WARN, 2, "mqdb dlq list billing")
    assert (going.status, going.remedy) == (WARN, "mqdb dlq redrive billing --dry-run")
    assert statuses(redriven) == [OK]


def test_no_check_reads_more_of_the_log_than_single_records(shared_broker: Connection, orders: TopicRoute) -> None:
    append(shared_broker, orders, *("x" for _ in range(2_000)))
    bury(shared_broker, group="billing")
    dispatch_all(shared_broker)
    append(shared_broker, orders, *("x" for _ in range(200)))
    shared_broker.exec_driver_sql("ANALYZE mqdb.commit_log")
    read_so_far = """WITH part AS (SELECT relid FROM pg_partition_tree('mqdb.commit_log'))
                     SELECT sum(pg_stat_get_xact_tuples_returned(relid) + pg_stat_get_xact_tuples_fetched(relid))
                            + (SELECT sum(pg_stat_get_xact_tuples_fetched(indexrelid))
                               FROM pg_index JOIN part ON relid = indrelid)
                     FROM part"""
    read = {}
    for check in ALL_CHECKS:
        with undone(shared_broker):
            before = shared_broker.exec_driver_sql(read_so_far).scalar_one()
            observe(shared_broker, check.name)
            read[check.name] = shared_broker.exec_driver_sql(read_so_far).scalar_one() - before
    dispatch_all(shared_broker)

    assert {name: count for name, count in read.items() if count > 20} == {}
    assert read["dead-letters"] > 0


# -- what waits -----------------------------------------------------------------------------------


def test_a_delayed_message_and_a_timer_that_are_late(shared_broker: Connection, orders: TopicRoute) -> None:
    delay(shared_broker, 12, "late")
    timer(shared_broker, timedelta(minutes=1), "late")
    deliver_all(shared_broker)
    assert statuses(find(shared_broker, "deliveries")) == [OK]

    move_clock(shared_broker, timedelta(hours=1))
    try:
        found = find(shared_broker, "deliveries")
    finally:
        move_clock(shared_broker, timedelta(0))

    assert {each.figures["of"]: each.status for each in found} == {"timers": WARN, "delay level 12": WARN}
    assert all(float(each.figures["late_seconds"] or 0) > 3_000 for each in found)


def test_a_delay_level_that_stands_still(shared_broker: Connection, orders: TopicRoute) -> None:
    [position] = delay(shared_broker, 13, "lost")
    with undone(shared_broker):
        shared_broker.exec_driver_sql(f"DELETE FROM mqdb.commit_log WHERE log_pos = {position}")
        found = observe(shared_broker, "deliveries", delivery_warn_seconds=3_600)

    assert [(each.status, each.remedy) for each in found] == [(FAIL, "mqdb delay skip 13")]


def test_a_cron_that_is_late_or_paused(shared_broker: Connection, orders: TopicRoute) -> None:
    add(shared_broker, "@hourly", "tick")
    try:
        assert statuses(find(shared_broker, "crons") + find(shared_broker, "paused-crons")) == [OK, OK]
        move_clock(shared_broker, timedelta(hours=2))
        [late] = find(shared_broker, "crons")
        shared_broker.exec_driver_sql("UPDATE mqdb.cron SET is_paused = true")
        [paused] = find(shared_broker, "paused-crons")
        no_more = find(shared_broker, "crons")
    finally:
        move_clock(shared_broker, timedelta(0))
        shared_broker.exec_driver_sql("DELETE FROM mqdb.cron")

    assert (late.status, late.figures["cron"]) == (WARN, "tick")
    assert (paused.status, paused.remedy) == (WARN, "mqdb cron resume tick")
    assert statuses(no_more) == [OK]


@pytest.mark.parametrize(("next_check", "status"), [("30 s", WARN), ("1 h", OK)], ids=["asked", "immune"])
def test_a_half_message_that_nobody_ends(shared_broker: Connection, next_check: str, status: FindingStatus) -> None:
    assert statuses(find(shared_broker, "half-messages")) == [OK]
    with undone(shared_broker):
        shared_broker.exec_driver_sql(_HALF.replace("%s", f"interval '{next_check}'"))
        found = observe(shared_broker, "half-messages")
        young = observe(shared_broker, "half-messages", half_warn_seconds=600)

    assert statuses(found) == [status]
    assert statuses(young) == [OK]
