"""mqdb.pop: messages for any language, in the caller's transaction."""

import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.rows import namedtuple_row
from sqlalchemy import Connection, text

from mqdb.broker.consumers.groups import update_group
from mqdb.broker.topics.route import find_or_create_retry_topic
from mqdb.common.group import ConsumeFromWhere, ConsumeMode
from mqdb.common.message import Message
from mqdb.store.engine import driver
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.delay import move_clock, stop_clock
from tests.fixtures.log import small_segments
from tests.fixtures.postgres import Database

GROUP = "workers"


class Sql(NamedTuple):
    """A session that pops, and its topic."""

    broker: Connection
    route: TopicRoute
    session: "psycopg.Connection[Any]"

    def send(self, *messages: str | Message, queue_id: int = 0, tag: str | None = None) -> None:
        append(self.broker, self.route, *messages, queue_id=queue_id, tag=tag)
        dispatch_all(self.broker)

    def pop(self, wanted: int = 10, tags: list[str] | None = None, topic: str = "orders") -> list[Any]:
        cursor = self.session.cursor(row_factory=namedtuple_row)
        statement = "SELECT * FROM mqdb.pop(%s, %s, %s, '30 s', %s)"
        return cursor.execute(statement, [GROUP, topic, wanted, tags]).fetchall()

    def ack(self, *messages: Any) -> list[bool]:
        handles = [each.receipt_handle for each in messages]
        [(answers,)] = self.session.execute("SELECT mqdb.ack(%s, %s)", [GROUP, handles])
        return list(answers)


@pytest.fixture
def make(broker: Connection) -> Callable[..., Sql]:
    """Create the topic and a group that begins at the first message, and stop the clock."""

    def make_sql(queues: int = 1, **settings: Any) -> Sql:
        stop_clock(broker)
        route = topic(broker, queues=queues)
        update_group(
            broker, GROUP, consume_mode=ConsumeMode.POP, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, **settings
        )
        return Sql(broker, route, driver(broker))

    return make_sql


def texts(messages: list[Any]) -> list[str]:
    return [each.text for each in messages]


def test_a_message_is_popped_with_all_that_it_says(make: Callable[..., Sql]) -> None:
    sql = make()
    sql.send(Message("orders", "a body", "Paid", ["k1", "k2"], {"colour": "red"}))

    [message] = sql.pop()

    assert (message.topic, message.queue_id, message.queue_offset, message.delivery_attempt) == ("orders", 0, 0, 1)
    assert (message.text, message.body, message.tags, message.keys) == ("a body", b"a body", "Paid", "k1 k2")
    assert message.properties["colour"] == "red"
    assert sql.pop() == []
    assert sql.ack(message) == [True]
    move_clock(sql.broker, timedelta(seconds=30))
    assert sql.pop() == []


def test_all_queues_give_up_to_as_many_as_are_wanted(make: Callable[..., Sql]) -> None:
    sql = make(3)
    for queue_id in range(3):
        sql.send(*(f"{queue_id}-{number}" for number in range(70)), queue_id=queue_id)

    found = [texts(sql.pop(100)) for _ in range(4)]

    assert list(map(len, found)) == [100, 100, 10, 0]
    assert len({each for part in found for each in part}) == 210


def test_only_some_tags_are_popped(make: Callable[..., Sql]) -> None:
    sql = make()
    sql.send(*(str(number) for number in range(1_500)), tag="other")
    sql.send("a", tag="Aa")
    sql.send("b", tag="BB")  # the same code as Aa
    sql.send("c")

    assert texts(sql.pop(tags=["Aa"])) == ["a"]
    assert sql.pop(tags=["Aa"]) == []
    assert sql.pop() == []


def test_what_is_not_acknowledged_comes_again_and_is_dead_in_the_end(make: Callable[..., Sql]) -> None:
    sql = make(retry_max_times=1)
    sql.send(Message("orders", "a", "Paid", ["k"], {"colour": "red"}))

    attempts = []
    for seconds in (30, 60, 90):
        attempts += [each.delivery_attempt for each in sql.pop()]
        move_clock(sql.broker, timedelta(seconds=seconds))

    assert attempts == [1, 2]
    dispatch_all(sql.broker)
    columns = "topic, text, tags, keys, attempts, exception, error, origin_queue_id, origin_queue_offset"
    [letter] = sql.broker.execute(text(f"SELECT {columns} FROM mqdb.dlq"))
    assert tuple(letter) == (
        "orders", "a", "Paid", "k", 2, "TIMEOUT", "not acknowledged after 2 deliveries", 0, 0
    )  # fmt: skip
    assert sql.broker.scalar(text("SELECT count(*) FROM mqdb.pop_batch")) == 0


def test_a_rollback_gives_messages_back(make: Callable[..., Sql]) -> None:
    sql = make()
    sql.send("a")

    with sql.session.transaction(force_rollback=True):
        assert texts(sql.pop()) == ["a"]

    assert [each.delivery_attempt for each in sql.pop()] == [1]


def test_what_was_sent_back_while_the_group_pulled_is_popped(make: Callable[..., Sql]) -> None:
    sql = make()
    retries = find_or_create_retry_topic(sql.broker, GROUP)
    append(sql.broker, retries, Message(retries.config.name, "again", properties={"RETRY_TOPIC": "payments"}))
    dispatch_all(sql.broker)

    [message] = sql.pop()

    assert (message.topic, message.text) == ("payments", "again")


def test_a_queue_in_order_waits_for_the_ack(make: Callable[..., Sql]) -> None:
    sql = make(consume_message_orderly=True)
    sql.send("a", "b")

    [first] = sql.pop(1)
    assert sql.pop() == []
    sql.ack(first)
    assert texts(sql.pop()) == ["b"]


def test_a_group_that_is_far_behind_finds_its_messages(make: Callable[..., Sql]) -> None:
    sql = make(2)
    small_segments(sql.session, 20)
    for number in range(12):
        sql.send(*(f"{number}-{each}" for each in range(10)), queue_id=0 if number in (0, 11) else 1)

    found: list[str] = []
    while some := texts(sql.pop(7)):
        found += some

    assert Counter(found) == Counter(f"{number}-{each}" for number in range(12) for each in range(10))


def test_a_new_group_pops_and_begins_at_the_end(broker: Connection, database: Database) -> None:
    sql = Sql(broker, topic(broker), database.connect())
    sql.send("before")

    assert sql.pop() == []
    sql.send("after")
    assert texts(sql.pop()) == ["after"]


@pytest.mark.parametrize(
    ("call", "sqlstate"),
    [
        ("mqdb.pop('workers', 'no-topic')", "MQ301"),
        ("mqdb.pop('workers', 'orders', 0)", "MQ108"),
        ("mqdb.pop('workers', 'orders', 1025)", "MQ108"),
        ("mqdb.pop('workers', 'orders', 1, '13 hours')", "MQ108"),
        ("mqdb.pop('workers', 'orders', 1, '1 min', '{}')", "MQ108"),
        ("mqdb.pop('no group', 'orders')", "MQ108"),
        ("mqdb.pop('pullers', 'orders')", "MQ206"),
    ],
)
def test_bad_calls_are_refused(broker: Connection, database: Database, call: str, sqlstate: str) -> None:
    topic(broker)
    update_group(broker, "pullers")

    with pytest.raises(psycopg.Error) as refused:
        database.connect().execute(f"SELECT * FROM {call}".encode())

    assert refused.value.sqlstate == sqlstate


@pytest.mark.parametrize("run", range(3))
def test_sessions_that_pop_at_random_share_all_messages(make: Callable[..., Sql], database: Database, run: int) -> None:
    seed = random.randrange(1_000_000) + run
    chance = random.Random(seed)
    sql = make(chance.choice([1, 3]))
    sessions = [sql._replace(session=database.connect()) for _ in range(3)]
    sent: list[str] = []
    done: Counter[str] = Counter()
    in_hand: list[Any] = []
    elapsed = 0
    while sum(done.values()) < 200:
        match chance.choice(["send", "pop", "pop", "ack", "wait"]):
            case "send" if len(sent) < 200:
                new = [f"m{len(sent) + number}" for number in range(20)]
                sent += new
                sql.send(*new, queue_id=chance.randrange(len(sql.route.queue_keys)))
            case "pop":
                in_hand += chance.choice(sessions).pop(chance.randint(1, 40))
            case "ack" if in_hand:
                some = [in_hand.pop(chance.randrange(len(in_hand))) for _ in range(chance.randint(1, len(in_hand)))]
                counted = chance.choice(sessions).ack(*some)
                done.update(each.text for each, counts in zip(some, counted, strict=True) if counts)
            case "wait" if chance.random() < 0.2:
                elapsed += 31
                for each in sessions:
                    each.session.execute("SELECT set_config('mqdb.clock_offset', %s, false)", [f"{elapsed} s"])
                in_hand = []

    assert done == Counter(sent), f"seed {seed}"
