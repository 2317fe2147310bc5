"""`Admin` on a standby: reading methods work, and writing methods report that they need the primary."""

from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import Any

import pytest

from mqdb.broker.acl import Rights
from mqdb.broker.dead_letters import DeadLetterFilter, Redrive
from mqdb.broker.transactions.transactions import Resolution
from mqdb.errors import NothingLost, ServerIsStandby
from mqdb.store.acl import Access, Resource, ResourceType
from mqdb_client import Admin, Doctor, Message
from mqdb_client.admin import broker_access
from mqdb_client.admin.subject import Subject
from tests.fixtures.proxy import Proxy
from tests.fixtures.stocked_standby import Stocked

LETTERS = DeadLetterFilter(group="billing")


def reading(admin: Admin, stocked: Stocked) -> list[bytes]:
    with admin.messages.reading("orders") as reader:
        return [message.body for message in reader]


def lost(admin: Admin, stocked: Stocked) -> None:
    with pytest.raises(NothingLost):
        admin.delays.find_lost(1)


Call = Callable[[Admin, Stocked], Any]

READING: dict[str, Call] = {
    "Acl.allows": lambda admin, _: admin.acl.allows("mqdb", send="orders"),
    "Acl.held": lambda admin, _: admin.acl.held("mqdb", [Resource(Access.SEND, ResourceType.TOPIC, "orders")]),
    "Acl.list": lambda admin, _: admin.acl.list(),
    "BrokerAdmin.check": lambda admin, _: admin.check(),
    "BrokerAdmin.versions": lambda admin, _: admin.versions(),
    "Consumers.list": lambda admin, _: admin.consumers.list(),
    "Crons.list": lambda admin, _: admin.crons.list(),
    "Crons.next_times": lambda admin, _: admin.crons.next_times("0 3 * * *"),
    "DeadLetters.by_hour": lambda admin, _: admin.dead_letters.by_hour(LETTERS),
    "DeadLetters.causes": lambda admin, _: admin.dead_letters.causes(LETTERS),
    "DeadLetters.choose": lambda admin, _: admin.dead_letters.choose(LETTERS),
    "DeadLetters.count": lambda admin, _: admin.dead_letters.count(LETTERS),
    "DeadLetters.groups": lambda admin, _: admin.dead_letters.groups(),
    "DeadLetters.list": lambda admin, _: admin.dead_letters.list(LETTERS),
    "DeadLetters.read": lambda admin, _: list(admin.dead_letters.read(LETTERS)),
    "DeadLetters.redriven": lambda admin, stocked: admin.dead_letters.redriven([stocked.letter_pos]),
    "DeadLetters.show": lambda admin, stocked: admin.dead_letters.show(stocked.letter_id),
    "Delays.find_lost": lost,
    "Delays.list": lambda admin, _: admin.delays.list(),
    "Doctor.checks": lambda admin, _: admin.doctor.checks(),
    "Doctor.examine": lambda admin, _: admin.doctor.examine(),
    "Doctor.exit_code": lambda admin, _: Doctor.exit_code([]),
    "Groups.list": lambda admin, _: admin.groups.list(),
    "Groups.retries": lambda admin, _: admin.groups.retries("billing"),
    "Groups.show": lambda admin, _: admin.groups.show("billing"),
    "Groups.topics": lambda admin, _: admin.groups.topics("billing"),
    "Messages.end_of": lambda admin, _: admin.messages.end_of("orders"),
    "Messages.find": lambda admin, _: admin.messages.find("orders", key="order-17"),
    "Messages.latest": lambda admin, _: admin.messages.latest("orders"),
    "Messages.reading": reading,
    "Messages.show": lambda admin, stocked: admin.messages.show(stocked.message_id),
    "Messages.trace": lambda admin, stocked: admin.messages.trace(stocked.message_id),
    "Offsets.committed": lambda admin, _: admin.offsets.committed("billing", "orders"),
    "Offsets.show": lambda admin, _: admin.offsets.show("billing"),
    "Operations.list": lambda admin, _: admin.operations.list(),
    "Retention.log": lambda admin, _: admin.retention.log(),
    "Retention.oldest_seconds": lambda admin, _: admin.retention.oldest_seconds(),
    "Retention.segments": lambda admin, _: admin.retention.segments(),
    "Retention.sizes": lambda admin, _: admin.retention.sizes(),
    "Selectors.try_on": lambda admin, _: admin.selectors.try_on("orders", "price > 10"),
    "Timers.list": lambda admin, _: admin.timers.list(),
    "Topics.list": lambda admin, _: admin.topics.list(),
    "Topics.show": lambda admin, _: admin.topics.show("orders"),
    "Topics.unread": lambda admin, _: admin.topics.unread("orders"),
    "Topics.uses": lambda admin, _: admin.topics.uses("orders"),
    "Transactions.list": lambda admin, _: admin.transactions.list(),
}

WRITING: dict[str, Call] = {
    "Acl.apply": lambda admin, _: admin.acl.apply({"mqdb": Rights(send={"orders"})}),
    "Acl.grant": lambda admin, _: admin.acl.grant("mqdb", send=["orders"]),
    "Acl.revoke": lambda admin, _: admin.acl.revoke("mqdb", send=["orders"]),
    "Acl.set_secret": lambda admin, _: admin.acl.set_secret("mqdb", "a secret"),
    "Consumers.consume": lambda admin, stocked: admin.consumers.consume("client-1", "billing", stocked.message_id),
    "Consumers.status": lambda admin, _: admin.consumers.status("client-1"),
    "Crons.add": lambda admin, _: admin.crons.add("weekly", "0 3 * * 1", Message("orders", "tick")),
    "Crons.declare": lambda admin, _: admin.crons.declare("shop", "weekly", "0 3 * * 1", Message("orders", "tick")),
    "Crons.pause": lambda admin, _: admin.crons.pause("nightly"),
    "Crons.remove": lambda admin, _: admin.crons.remove("nightly"),
    "Crons.resume": lambda admin, _: admin.crons.resume("nightly"),
    "DeadLetters.redrive": lambda admin, _: admin.dead_letters.redrive(LETTERS),
    "DeadLetters.redrive_batch": lambda admin, stocked: admin.dead_letters.redrive_batch(
        [stocked.letter_pos], Redrive("all")
    ),
    "Delays.skip": lambda admin, _: admin.delays.skip(1, 0),
    "Groups.delete": lambda admin, _: admin.groups.delete("billing"),
    "Groups.update": lambda admin, _: admin.groups.update("billing", retry_max_times=3),
    "Messages.send": lambda admin, _: admin.messages.send("orders", b"a test"),
    "Offsets.clone": lambda admin, _: admin.offsets.clone("billing", "billing-2"),
    "Offsets.reset": lambda admin, _: admin.offsets.reset("billing", "orders", 0),
    "Timers.recall": lambda admin, stocked: admin.timers.recall(stocked.timer),
    "Topics.create": lambda admin, _: admin.topics.create("bills"),
    "Topics.delete": lambda admin, _: admin.topics.delete("orders", force=True),
    "Topics.update": lambda admin, _: admin.topics.update("orders", queues=4),
    "Transactions.resolve": lambda admin, stocked: admin.transactions.resolve(stocked.half_id, Resolution.COMMIT),
}


@pytest.fixture
def admin(stocked: Stocked) -> Iterator[Admin]:
    with Admin(stocked.standby.dsn) as admin:
        yield admin


def methods() -> Iterator[str]:
    """All methods of the subjects of `Admin`."""
    for subject in Subject.__subclasses__():
        for name, method in vars(subject).items():
            if not name.startswith("_") and (isfunction(method) or isinstance(method, staticmethod)):
                yield f"{subject.__name__}.{name}"


def test_every_method_is_sorted() -> None:
    assert sorted(methods()) == sorted([*READING, *WRITING])


@pytest.mark.parametrize("method", READING)
def test_a_method_that_reads_works_at_a_standby(stocked: Stocked, admin: Admin, method: str) -> None:
    READING[method](admin, stocked)


@pytest.mark.parametrize("method", WRITING)
def test_a_method_that_writes_says_that_the_primary_is_needed(stocked: Stocked, admin: Admin, method: str) -> None:
    with pytest.raises(NothingLost if method == "Delays.skip" else ServerIsStandby):
        WRITING[method](admin, stocked)


def test_a_standby_tells_what_its_primary_has_dispatched(stocked: Stocked, admin: Admin) -> None:
    assert [message.body for message in admin.messages.find("orders", key="order-17")] == [b"one"]
    assert reading(admin, stocked) == [b"one"]
    assert [(each.group, each.lag) for each in admin.groups.list()] == [("billing", 1)]


def test_an_administrator_leaves_a_standby_for_the_primary(stocked: Stocked, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator leaves a standby for the primary.

    One address leads to the standby for a while. Connections to the standby are not closed.
    """
    standby = stocked.standby
    with standby.dismissed(), Proxy(standby.primary.dsn) as way, Admin(way.dsn) as admin:
        way.lead_to(standby.dsn)
        assert admin.topics.list()
        way.lead_to(standby.primary.dsn)
        with pytest.raises(ServerIsStandby):
            admin.topics.create("bills")
        admin.topics.create("bills")

        way.lead_to(standby.dsn)
        with Admin(way.dsn) as reader:
            assert is_at_standby(reader)
            way.lead_to(standby.primary.dsn)
            assert is_at_standby(reader)
            monkeypatch.setattr(broker_access, "_STANDBY_SECONDS", 0)
            assert not is_at_standby(reader)


def is_at_standby(admin: Admin) -> bool:
    """Whether the administrator's next connection leads to the standby."""
    return bool(admin.doctor.examine(only=["standby"])[0].figures["is_standby"])
