"""Admin.dead_letters."""

from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Connection

from mqdb_client import Admin, DeadLetterFilter, RedriveStatus, errors
from tests.fixtures.dead_letters import FAILURE, bury, create_group, redriven
from tests.fixtures.postgres import Database

BILLING = DeadLetterFilter("billing")


@pytest.fixture
def admin(database: Database, broker: Connection) -> Iterator[Admin]:
    create_group(broker)
    for body in ("one", "two", "three"):
        bury(broker, body)
    with Admin(database.dsn) as admin:
        yield admin


def test_dead_letters_are_counted_listed_read_and_shown(admin: Admin) -> None:
    (cause,) = admin.dead_letters.causes(BILLING)
    letters = admin.dead_letters.list(BILLING, limit=2)

    assert (cause.exception, cause.messages, admin.dead_letters.count(BILLING)) == (FAILURE.exception, 3, 3)
    assert len(letters) == 2
    assert [letter.body for letter in admin.dead_letters.read(BILLING)] == [b"one", b"two", b"three"]
    ((letter, tried),) = admin.dead_letters.show(letters[0].msg_id)
    assert (letter.body, tried) == (b"three", [])


def test_they_go_back_to_work_once(admin: Admin, broker: Connection) -> None:
    planned = admin.dead_letters.redrive(BILLING, dry_run=True)
    done = admin.dead_letters.redrive(BILLING, limit=2, actor="ada")
    rest = admin.dead_letters.redrive(BILLING)

    assert [result.status for result in planned] == [RedriveStatus.READY] * 3
    assert [result.status for result in (*done, *rest)] == [RedriveStatus.REDRIVEN] * 3
    assert len(redriven(broker)) == 3
    assert [(each.records, each.actor) for each in admin.operations.list()] == [(1, None), (2, "ada")]


def test_a_topic_that_is_not_there_is_no_target(admin: Admin) -> None:
    with pytest.raises(errors.TopicNotFound):
        admin.dead_letters.redrive(BILLING, to_topic="nowhere")


def test_an_unknown_group_and_an_unknown_message_are_errors(admin: Admin) -> None:
    with pytest.raises(errors.GroupNotFound):
        admin.dead_letters.list(DeadLetterFilter("nobody"))
    with pytest.raises(errors.DeadLetterNotFound):
        admin.dead_letters.show("0A0B0C0D1E2F00000000000000000001")


def test_a_time_without_a_zone_or_too_long_ago_is_no_time_of_death() -> None:
    with pytest.raises(errors.ParameterInvalid, match="since"):
        DeadLetterFilter(since=datetime(2026, 7, 14))  # noqa: DTZ001
    for too_long in (timedelta.max, timedelta.min, timedelta(days=365_001)):
        with pytest.raises(errors.ParameterInvalid, match=r"until = .* must be at most 365,000 days ago"):
            DeadLetterFilter(until=too_long)


def test_groups_with_letters_are_counted_and_redriven_letters_known(admin: Admin, broker: Connection) -> None:
    bury(broker, "elsewhere", group="audit")
    create_group(broker, "idle")
    positions = [each.log_pos for each in admin.dead_letters.list(BILLING)]

    assert [tuple(each) for each in admin.dead_letters.groups()] == [("audit", 1), ("billing", 3)]
    assert admin.dead_letters.redriven(positions) == {}
    admin.dead_letters.redrive(BILLING, limit=1)
    assert list(admin.dead_letters.redriven(positions)) == [positions[-1]]
