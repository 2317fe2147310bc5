"""App: its listeners consume, retry and give up as declared, and its crons are those that the code declares."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.orm import Session

from mqdb.broker.dead_letters import DeadLetterFilter
from mqdb.common.group import MessageModel
from mqdb.errors import CronExists, IllegalState
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.service.timer_keeper import TimerKeeper
from mqdb_client import Admin, App, CatchUp, ConsumeFromWhere, Message, ReceivedMessage, load_settings
from mqdb_client.app.app_crons import AppCron, AppCrons
from tests.fixtures import command_line
from tests.fixtures.broker import append, topic
from tests.fixtures.crons import fire
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import set_delay


@dataclass
class Order:
    number: int


class Status(StrEnum):
    PAID = "paid"


class Heard:
    """The arguments that functions have received: a task or a thread adds them, and the test waits."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    async def __call__(self, count: int) -> list[Any]:
        await asyncio.to_thread(wait_until, lambda: len(self.said) >= count)
        return self.said


def app_of(database: Database, *groups: str) -> App:
    """An application whose groups begin at the first message."""
    app = App("shop", dsn=database.dsn)
    for group in groups:
        app.configure_group(group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    return app


def test_functions_of_both_kinds_consume_what_the_application_sends(served: Connection, database: Database) -> None:
    topic(served, "orders")
    app, heard = app_of(database, "billing", "audit", "mixed"), Heard()

    @app.listener("orders", group="billing", tag="paid")
    async def bill(order: Order) -> None:
        heard.said.append(("bill", order.number))

    @app.listener("orders", group="audit")
    def audit(message: ReceivedMessage, body: dict[str, int]) -> None:
        heard.said.append(("audit", message.tag, body["number"]))

    @app.listener("orders", group="mixed", tag="new")
    async def greet(order: Order) -> None:
        heard.said.append(("greet", order.number))

    @app.listener("orders", group="mixed", tag="paid")
    def thank(order: Order) -> None:
        heard.said.append(("thank", order.number))

    async def work() -> None:
        async with app.consuming():
            app.send("orders", Order(17), tag="paid", keys="17")
            await app.asend("orders", Order(18), tag="new")
            await heard(5)
        await app.aclose()

    asyncio.run(work())
    assert sorted(heard.said) == [
        *(("audit", "new", 18), ("audit", "paid", 17), ("bill", 17), ("greet", 18), ("thank", 17)),
    ]


def test_a_close_that_would_wait_for_its_own_loop_is_refused_and_the_application_goes_on(
    served: Connection, database: Database
) -> None:
    topic(served, "orders")
    app = app_of(database)

    async def work() -> None:
        await app.asend("orders", "one")
        with pytest.raises(IllegalState, match="waiting for this event loop"):
            app.close()
        await app.asend("orders", "two")
        await app.aclose()
        await app.aclose()

    asyncio.run(work())
    assert database.rows("SELECT FROM mqdb.client WHERE kind = 'PRODUCER'") == []


def test_a_start_that_is_cancelled_leaves_the_groups(served: Connection, database: Database) -> None:
    topic(served, "orders")
    app = app_of(database, "billing")
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = %s"

    @app.listener("orders", group="billing")
    def bill(order: Order) -> None: ...

    async def consume() -> None:
        async with app.consuming():
            pass

    async def work() -> None:
        locker = database.connect(autocommit=False)
        locker.execute("LOCK TABLE mqdb.client")
        consuming = asyncio.create_task(consume())
        await asyncio.to_thread(wait_until, lambda: bool(database.rows(waits, database.name)))
        consuming.cancel()
        locker.rollback()
        with pytest.raises(asyncio.CancelledError):
            await consuming

    asyncio.run(work())
    with Admin(database.dsn) as admin:
        assert admin.consumers.list("billing") == []


def test_an_error_goes_on_though_a_listener_does_not_return(served: Connection, database: Database) -> None:
    append(served, topic(served, "orders"), "one")
    app = app_of(database, "billing")
    app.configure_group("billing", shutdown_timeout=timedelta(milliseconds=100))
    has_begun = asyncio.Event()

    @app.listener("orders", group="billing")
    async def bill() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def work() -> None:
        async with asyncio.timeout(30), app.consuming():
            await has_begun.wait()
            raise LookupError("of the block")

    with pytest.raises(LookupError, match="of the block"):
        asyncio.run(work())


def test_what_the_code_subscribes_to_no_more_keeps_no_drain_waiting(served: Connection, database: Database) -> None:
    old, new = app_of(database, "billing"), app_of(database, "billing")
    for app, name in ((old, "returns"), (new, "orders")):
        append(served, topic(served, name), "one")
        app.configure_group("billing", persist_consumer_offset_interval=timedelta(milliseconds=100))
        app.listener(name, group="billing")(lambda: None)

    async def work() -> None:
        async with old.consuming():
            await old.drain()
        append(served, topic(served, "returns"), "two")
        async with new.consuming():
            await asyncio.wait_for(new.drain(), 30)

    asyncio.run(work())


def test_a_drain_waits_for_a_topic_that_was_made_after_the_start(
    served: Connection, database: Database, tmp_path: Path
) -> None:
    app, soon = App("shop", dsn=database.dsn), timedelta(milliseconds=100)
    heard: list[bytes] = []
    app.configure_group("billing", rebalance_interval=soon, persist_consumer_offset_interval=soon)
    app.configure_group("everywhere", message_model=MessageModel.BROADCASTING, local_offset_directory=tmp_path)
    app.listener("orders", group="billing")(lambda message: heard.append(message.body))
    app.listener("orders", group="everywhere")(lambda: None)

    async def work() -> None:
        async with app.consuming():
            append(served, topic(served, "orders"), "one")
            await asyncio.wait_for(app.drain(), 30)
            assert heard == [b"one"]

    asyncio.run(work())


def test_a_role_that_may_not_dispatch_beside_a_leader_drains(served: Connection, principal: Principal) -> None:
    app = App("shop", dsn=principal("shop", send=["orders"], read=["orders"], group=["billing"]))
    heard: list[bytes] = []
    app.configure_group("billing", persist_consumer_offset_interval=timedelta(milliseconds=100))
    app.listener("orders", group="billing")(lambda message: heard.append(message.body))

    async def work() -> None:
        async with app.consuming():
            await app.asend("orders", "one")
            await asyncio.wait_for(app.drain(), 20)
            assert heard == [b"one"]
        await app.aclose()

    asyncio.run(work())


def test_a_drain_waits_for_what_is_not_dispatched_yet(served: Connection, database: Database) -> None:
    topic(served, "orders")
    app = app_of(database, "billing")
    app.configure_group("billing", persist_consumer_offset_interval=timedelta(milliseconds=100))
    app.listener("orders", group="billing")(lambda: None)

    async def work() -> None:
        async with app.consuming():
            with psycopg.connect(database.dsn) as other:
                other.execute("LOCK TABLE mqdb.lock_dispatch IN SHARE UPDATE EXCLUSIVE MODE")
                await app.asend("orders", "one")
                draining = asyncio.create_task(app.drain())
                done, _ = await asyncio.wait([draining], timeout=0.3)
                assert not done
            await asyncio.wait_for(draining, 30)
        await app.aclose()

    asyncio.run(work())


def reasons(database: Database) -> dict[str, str]:
    """The exceptions of billing's dead letters."""
    return dict(database.rows("SELECT exception, error FROM mqdb.dlq WHERE group_name = 'billing'"))


@pytest.mark.parametrize("orderly", [False, True])
def test_what_a_function_gives_up_is_a_dead_letter_and_its_queue_goes_on(
    served: Connection, database: Database, orderly: bool
) -> None:
    topic(served, "orders", queues=1)
    app, heard = app_of(database, "billing"), Heard()

    @app.listener("orders", group="billing", retries=0, orderly=orderly)
    def bill(order: Order) -> None:
        if order.number == 2:
            raise LookupError("no such customer")
        heard.said.append(order.number)

    async def work() -> None:
        async with app.consuming():
            for body in ("unreadable", Order(2), Order(3)):
                app.send("orders", body)
            await heard(1)
            await asyncio.to_thread(wait_until, lambda: len(reasons(database)) == 2)
        app.close()

    asyncio.run(work())
    assert heard.said == [3]
    found = reasons(database)
    assert found["LookupError"] == "no such customer"
    assert found["mqdb.errors.BodyUnreadable"].startswith("the body cannot be read as Order: body: Invalid JSON")


def test_a_backoff_is_exact(timed: Connection, database: Database) -> None:
    """A backoff is exact: the delay levels are hours long, so only a timer delivers the message in time."""
    topic(timed, "orders")
    set_delay(timed, "1 hour")
    app, heard = app_of(database, "billing"), Heard()

    @app.listener("orders", group="billing", retries=2, backoff=lambda retry: timedelta(milliseconds=150 * retry))
    async def bill(message: ReceivedMessage) -> None:
        heard.said.append(message.store_time)
        raise OSError("the bank is closed")

    async def work() -> None:
        async with app.consuming():
            await app.asend("orders", "one")
            await heard(3)
            await asyncio.to_thread(wait_until, lambda: len(reasons(database)) == 1)
        await app.aclose()

    asyncio.run(work())
    first, second, third = heard.said
    assert second - first >= timedelta(milliseconds=150)
    assert third - second >= timedelta(milliseconds=300)


def test_what_a_function_writes_is_committed_with_the_offset(served: Connection, database: Database) -> None:
    topic(served, "orders")
    served.execute(text("CREATE TABLE public.bill (number int)"))
    app, heard = app_of(database, "billing"), Heard()

    @app.listener("orders", group="billing", exactly_once=True)
    def bill(order: Order, session: Session) -> None:
        session.execute(text("INSERT INTO public.bill VALUES (:number)"), {"number": order.number})
        heard.said.append(order.number)
        if len(heard.said) == 1:
            raise OSError("once")

    async def work() -> None:
        async with app.consuming():
            app.send("orders", Order(17))
            await heard(1)
            await asyncio.to_thread(wait_until, lambda: bool(database.rows("SELECT FROM public.bill")))
        app.close()

    asyncio.run(work())
    assert database.rows("SELECT number FROM public.bill") == [(17,)]


def test_a_body_comes_back_after_a_retry_and_a_redrive_as_it_was_sent(timed: Connection, database: Database) -> None:
    topic(timed, "orders")
    app, heard = app_of(database, "billing"), Heard()

    @app.listener("orders", group="billing", retries=1, backoff=timedelta(milliseconds=50))
    async def bill(number: str | int | Status | None) -> None:
        heard.said.append(number)
        raise OSError("the bank is closed")

    async def work() -> None:
        async with app.consuming():
            for body in ("17", 17, Status.PAID, None, "null"):
                await app.asend("orders", body)
            await asyncio.to_thread(wait_until, lambda: len(dead_letters(database)) == 5)
            with Admin(database.dsn) as admin:
                admin.dead_letters.redrive(DeadLetterFilter("billing"))
            await heard(20)
        await app.aclose()

    asyncio.run(work())
    told = sorted(map(repr, heard.said))
    assert told == sorted(map(repr, ("17", 17, Status.PAID, None, "null") * 4))


def dead_letters(database: Database) -> list[tuple[Any, ...]]:
    return database.rows("SELECT FROM mqdb.dlq WHERE group_name = 'billing'")


@pytest.fixture
def timed(database: Database, engine: Engine, tmp_path: Path) -> Iterator[Connection]:
    """A connection to the test's database, whose broker delivers timed messages."""
    place = command_line.Place(tmp_path, database.dsn)
    with command_line.served(place, TimerDeliverer, TimerKeeper), engine.connect() as connection:
        yield connection


# -- crons ----------------------------------------------------------------------------------------


def crons_of(broker: Connection) -> list[tuple[Any, ...]]:
    rows = broker.execute(
        text("SELECT name, cron, timezone, topic, application, is_paused FROM mqdb.cron ORDER BY name")
    )
    return [tuple(row) for row in rows]


def test_a_cron_is_what_the_code_says_and_stays_paused(broker: Connection, database: Database) -> None:
    at_night = AppCron("report", "30 2 * * *", "UTC", "report", "report", CatchUp.ONCE)
    with AppCrons("shop", load_settings(dsn=database.dsn)) as crons, Admin(database.dsn) as admin:
        crons.declare([at_night])
        assert crons_of(broker) == [("report", "30 2 * * *", "UTC", "report", "shop", False)]
        admin.crons.pause("report")
        due = broker.scalar(text("SELECT next_at FROM mqdb.cron"))

        crons.declare([at_night])
        crons.declare([replace(at_night, topic="reports")])

        assert crons_of(broker) == [("report", "30 2 * * *", "UTC", "reports", "shop", True)]
        assert broker.scalar(text("SELECT next_at FROM mqdb.cron")) == due
        crons.declare([replace(at_night, text="30 3 * * *")])
        assert broker.scalar(text("SELECT next_at FROM mqdb.cron")) != due
        verbs = [each.verb for each in admin.operations.list(object="report")]
        assert verbs == ["cron.change", "cron.change", "cron.pause", "cron.add"]


def test_a_cron_of_somebody_else_is_refused_and_what_the_code_has_no_more_is_known(
    broker: Connection, database: Database
) -> None:
    settings = load_settings(dsn=database.dsn)
    report, tidy = (AppCron(name, "@daily", "UTC", "jobs", "jobs", CatchUp.ONCE) for name in ("report", "tidy"))
    topic(broker, "jobs", queues=4)
    with AppCrons("shop", settings) as shop, AppCrons("bank", settings) as bank, Admin(database.dsn) as admin:
        admin.crons.add("by-hand", "@daily", Message("jobs", "x"))
        shop.declare([report, tidy])

        with pytest.raises(CronExists, match="report"):
            bank.declare([report])
        with pytest.raises(CronExists, match="by-hand"):
            shop.declare([replace(report, name="by-hand")])
        assert (shop.strays([report]), bank.strays([])) == (["tidy"], [])
        shop.remove(["tidy"])
        assert [name for name, *_ in crons_of(broker)] == ["by-hand", "report"]


def test_workers_that_start_together_declare_a_cron_once(broker: Connection, database: Database) -> None:
    report = AppCron("report", "@daily", "UTC", "report", "report", CatchUp.ONCE)

    def declare(_: int) -> None:
        with AppCrons("shop", load_settings(dsn=database.dsn)) as crons:
            crons.declare([report])

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(declare, range(8)))

    assert [name for name, *_ in crons_of(broker)] == ["report"]


def test_a_cron_calls_its_function(database: Database, broker: Connection) -> None:
    app, heard = App("shop", dsn=database.dsn), Heard()

    @app.cron("* * * * *")
    def report(message: ReceivedMessage) -> None:
        heard.said.append(message.properties["MQDB_CRON_NAME"])

    async def work() -> None:
        async with app.consuming():
            broker.execute(text("UPDATE mqdb.cron SET next_at = mqdb.now()"))
            fire(broker)
            await heard(1)

    asyncio.run(work())
    assert heard.said == ["report"]
