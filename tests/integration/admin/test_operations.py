"""The record of manual changes: each change is recorded in its own transaction, under the role that logged in."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from psycopg import sql
from sqlalchemy import Connection

from mqdb.common.group import ConsumeFromWhere
from mqdb.service.segment_keeper import SegmentKeeper
from mqdb.service.service import Context
from mqdb_client import (
    Admin,
    DeadLetterFilter,
    Message,
    Operation,
    Producer,
    PushConsumer,
    Resolution,
    errors,
    load_settings,
)
from tests.fixtures.consumers import Inbox
from tests.fixtures.dead_letters import bury, create_group
from tests.fixtures.delay import move_clock
from tests.fixtures.postgres import OWNER, Database
from tests.fixtures.processes import wait_until
from tests.fixtures.roles import MakeRole

SOMEBODY = 'some "body"'


@pytest.fixture
def admin(database: Database) -> Iterator[Admin]:
    with Admin(settings=load_settings(dsn=database.dsn, actor="ada")) as admin:
        yield admin


def test_the_life_of_a_topic(admin: Admin) -> None:
    admin.topics.create("orders", queues=2)
    admin.topics.update("orders", queues=3, actor="grace")
    admin.crons.add("hourly", "@hourly", Message("orders", "a secret"))
    admin.topics.delete("orders", force=True)

    deleted, _, changed, created = admin.operations.list(topic="orders")
    assert [(each.verb, each.actor, each.principal) for each in (created, changed, deleted)] == [
        ("topic.create", "ada", OWNER),
        ("topic.update", "grace", OWNER),
        ("topic.delete", "ada", OWNER),
    ]
    assert created.before is None
    assert created.after == changed.before
    assert changed.after is not None
    assert (changed.after["write_queue_nums"], changed.after["perm"], changed.after["message_type"]) == (3, 6, "NORMAL")
    taken_along = {"crons": ["hourly"], "scheduled": 0, "half_messages": 0}
    assert (deleted.before, deleted.after) == (changed.after | {"taken_along": taken_along}, None)


def test_the_life_of_a_cron_without_its_body(admin: Admin) -> None:
    admin.topics.create("orders")
    admin.crons.add("hourly", "@hourly", Message("orders", "a secret"))
    admin.crons.pause("hourly")
    admin.crons.resume("hourly")
    admin.crons.remove("hourly")

    removed, resumed, paused, added, _ = noted = admin.operations.list(topic="orders")
    assert [each.verb for each in (added, paused, resumed, removed)] == [
        "cron.add",
        "cron.pause",
        "cron.resume",
        "cron.remove",
    ]
    assert {each.object for each in noted[:-1]} == {"hourly"}
    assert added.after is not None
    assert paused.after is not None
    assert (added.after["is_paused"], paused.after["is_paused"]) == (False, True)
    assert (added.before, removed.after) == (None, None)
    assert "a secret" not in str(noted)


def test_a_message_that_is_recalled(admin: Admin, database: Database) -> None:
    admin.topics.create("orders")
    with Producer("senders", dsn=database.dsn) as producer:
        sent = producer.send(Message("orders", "x", deliver_at=datetime(2999, 1, 1, tzinfo=UTC)))
        admin.timers.recall(sent.message_id)
        by_program = producer.send(Message("orders", "x", deliver_at=datetime(2999, 1, 1, tzinfo=UTC)))
        assert by_program.recall_handle is not None
        producer.recall(by_program.recall_handle)

    second, first, _ = admin.operations.list(topic="orders")
    assert (first.verb, first.object, first.actor) == ("timer.recall", sent.message_id, "ada")
    assert (second.verb, second.object, second.actor) == ("timer.recall", by_program.message_id, None)


def test_a_message_that_somebody_has_consumed_now(admin: Admin, database: Database) -> None:
    inbox = Inbox()
    with Producer("senders", dsn=database.dsn) as producer:
        message_id = producer.send(Message("orders", "x")).message_id
    consumer = PushConsumer("billing", dsn=database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(inbox)
    with consumer:
        wait_until(lambda: len(inbox.messages) == 1)
        [member] = admin.consumers.list("billing")
        admin.consumers.consume(member.client_id, "billing", message_id)

    [noted] = admin.operations.list(group="billing")
    assert (noted.verb, noted.topics, noted.object) == ("consumer.consume", ["orders"], message_id)


@pytest.mark.parametrize(
    "refused",
    [
        lambda admin: admin.topics.create("orders", queues=9),
        lambda admin: admin.topics.delete("nowhere"),
        lambda admin: admin.groups.delete("nobody"),
        lambda admin: admin.crons.pause("never"),
        lambda admin: admin.transactions.resolve("0A0B0C0D1E2F00000000000000000001", Resolution.COMMIT),
        lambda admin: admin.timers.recall("0A0B0C0D1E2F00000000000000000001"),
        lambda admin: admin.dead_letters.redrive(DeadLetterFilter()),
    ],
    ids=["create", "delete", "group", "cron", "transaction", "timer", "dead letters"],
)
def test_what_changes_nothing_is_not_noted(admin: Admin, refused: Callable[[Admin], object]) -> None:
    admin.topics.create("orders")
    before = admin.operations.list()

    with suppress(errors.MqdbError):  # some are answers, not errors
        refused(admin)

    assert admin.operations.list() == before


def test_they_are_found_by_topic_group_who_and_when(admin: Admin, broker: Connection) -> None:
    admin.topics.create("orders")
    move_clock(broker, timedelta(hours=-2))
    admin.groups.update("billing", actor="grace")

    def verbs(**wanted: Any) -> list[str]:
        return [each.verb for each in admin.operations.list(**wanted)]

    assert verbs(topic="orders") == verbs(actor="ada") == ["topic.create"]
    assert verbs(group="billing") == verbs(actor="grace") == verbs(limit=1) == ["group.update"]
    assert verbs(topic="orders", group="billing") == verbs(since=datetime.now(UTC) + timedelta(days=1)) == []
    assert verbs(actor=OWNER) == ["group.update", "topic.create"]
    assert verbs(object="nightly") == []
    admin.crons.add("nightly", "@daily", Message("orders", "tick"))
    assert verbs(object="nightly") == verbs(object="nightly", topic="orders") == ["cron.add"]
    assert verbs(object="nightly", group="billing") == []
    with pytest.raises(errors.ParameterInvalid, match="time zone"):
        verbs(since=datetime(2026, 7, 14))  # noqa: DTZ001 -- a time without a zone is what is refused
    with pytest.raises(errors.ParameterInvalid, match=r"since = .* must be at most 365,000 days ago"):
        verbs(since=timedelta.max)
    assert len(verbs(since=timedelta(days=365_000))) == 3
    with pytest.raises(errors.ParameterInvalid, match="limit"):
        verbs(limit=0)


def test_who_is_behind_it_is_said_in_255_characters(admin: Admin) -> None:
    admin.topics.create("orders", actor="a" * 255)

    with pytest.raises(errors.ParameterInvalid, match="has 256 characters, the limit is 255"):
        admin.topics.create("invoices", actor="a" * 256)

    assert [each.actor for each in admin.operations.list()] == ["a" * 255]
    assert "invoices" not in [config.name for config in admin.topics.list()]


def test_a_role_notes_its_changes_under_its_own_name_and_changes_none(
    admin: Admin, database: Database, role: MakeRole
) -> None:
    """A role records its changes under its own name, even if it is a member of the owner's role.

    A role that only has rights cannot write a record.
    """
    operator, guest = role(SOMEBODY), role("a guest")
    member = sql.SQL("GRANT {} TO {}").format(sql.Identifier(OWNER), sql.Identifier(SOMEBODY))
    database.connect_as_superuser().execute(member)
    admin.topics.create("orders")
    admin.acl.grant("a guest", send=["orders"], read=["orders"], group=["billing"])
    with Admin(operator) as its_own:
        its_own.groups.update("billing", actor="grace")

    noted = admin.operations.list(group="billing")[0]
    assert (noted.principal, noted.actor) == (SOMEBODY, "grace")
    for forged in (
        "INSERT INTO mqdb.operation (principal, verb, records) VALUES ('ada', 'topic.delete', 1)",
        "UPDATE mqdb.operation SET actor = 'ada'",
        "DELETE FROM mqdb.operation",
        "TRUNCATE mqdb.operation",
    ):
        with psycopg.connect(guest) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute(forged.encode())


def test_a_redrive_by_sql_is_rolled_back_with_what_was_noted(
    admin: Admin, database: Database, broker: Connection
) -> None:
    create_group(broker)
    log_pos = bury(broker)
    session = database.connect()

    with session.transaction(force_rollback=True):
        session.execute("SELECT * FROM mqdb.dlq_redrive(ARRAY[%s::bigint], actor => 'ada')", [log_pos])

    assert admin.operations.list(group="billing") == []


def test_old_ones_are_forgotten_once_an_hour(admin: Admin, broker: Connection, scheduler: BackgroundScheduler) -> None:
    keeper = SegmentKeeper(Context(lambda: broker), scheduler)
    admin.topics.create("orders")
    move_clock(broker, timedelta(days=364))

    kept = keeper.run_once(broker).operations_pruned
    move_clock(broker, timedelta(days=366))
    in_the_same_hour = keeper.run_once(broker).operations_pruned
    of_another_server = SegmentKeeper(Context(lambda: broker), scheduler).run_once(broker).operations_pruned

    assert (kept, in_the_same_hour, of_another_server) == (0, 0, 1)
    assert admin.operations.list() == []


def test_the_row_is_what_an_application_gets(admin: Admin) -> None:
    admin.topics.create("orders")

    [noted] = admin.operations.list()

    assert isinstance(noted, Operation)
    assert noted.occurred_at.tzinfo is not None
    assert (noted.topics, noted.groups, noted.object, noted.records, noted.reason) == (["orders"], [], None, 1, None)
