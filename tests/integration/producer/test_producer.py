"""The producer with a real PostgreSQL: which messages are stored, where, and with how many statements."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from mqdb.common.topic import retry_topic
from mqdb.errors import (
    BatchTooLarge,
    BodyEmpty,
    BodyTooLarge,
    IllegalState,
    MessageIllegal,
    MqdbError,
    NameInvalid,
    NotSupported,
    ParameterInvalid,
    PropertyReserved,
    RouteNotFound,
    StorageRefused,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.selector.tags import java_string_hash
from mqdb.settings import load_settings
from mqdb_client import Message, MessageQueue, Producer, SendResult, SendStatus
from tests.fixtures.log import append as append_by_hand
from tests.fixtures.log import create_topic, dispatch_all
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import is_blocked, link_of, pid_of, producer_of, stall
from tests.fixtures.threads import Doing, at_once
from tests.fixtures.variants import case


@pytest.fixture
def producer(database: Database) -> Iterator[Producer]:
    with producer_of(database.dsn) as producer:
        yield producer


def rows(database: Database, statement: str, *values: object) -> list[tuple[Any, ...]]:
    return database.connect().execute(statement.encode(), values).fetchall()


def stored(database: Database) -> int:
    return int(rows(database, "SELECT count(*) FROM mqdb.commit_log")[0][0])


def stored_bodies(database: Database) -> list[str]:
    return [row[0] for row in rows(database, "SELECT convert_from(body, 'UTF8') FROM mqdb.commit_log ORDER BY log_pos")]


# -- one message ------------------------------------------------------------------------------


def test_every_field_arrives_in_the_log(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 1)
    before = datetime.now(UTC)

    result = producer.send(
        Message("orders", "für dich", tag="paid", keys=["o-1", "o-2"], properties={"colour": "röt"}, flag=-7)
    )

    [row] = rows(
        database,
        """SELECT log_pos, upper(replace(msg_id::text, '-', '')), body, tags, keys, tags_code, properties, flag,
                  sys_flag, reconsume_times, born_time, born_host, store_time FROM mqdb.commit_log""",
    )
    properties = {"colour": "röt"}
    assert row[:3] == (result.log_pos, result.message_id, "für dich".encode())
    assert row[3:10] == ("paid", "o-1 o-2", java_string_hash("paid"), properties, -7, 0, 0)
    assert before - timedelta(seconds=1) < row[10] <= row[12] + timedelta(seconds=1)
    assert row[11].count(".") == 3
    assert result.status is SendStatus.SEND_OK
    assert result.queue == MessageQueue("orders", "broker-a", 0)


def test_the_queue_offset_is_found_after_dispatch(database: Database, producer: Producer) -> None:
    log = database.connect()
    [key] = create_topic(log, "orders", 1)
    append_by_hand(log, key, 3)

    results = [producer.send(Message("orders", "x")) for _ in range(2)]
    dispatch_all(log)

    assert [result.queue_offset for result in results] == [3, 4]


def test_the_queue_offset_is_found_where_nobody_else_dispatches(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 1)

    assert [producer.send(Message("orders", "x")).queue_offset for _ in range(3)] == [0, 1, 2]


def test_messages_without_a_key_go_to_all_queues_in_turn(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 4)

    queues = [producer.send(Message("orders", "x")).queue.queue_id for _ in range(12)]

    assert queues[:4] == queues[4:8] == queues[8:]
    assert [(number - queues[0]) % 4 for number in queues[:4]] == [0, 1, 2, 3]


def test_the_first_queue_is_a_random_one(database: Database) -> None:
    create_topic(database.connect(), "orders", 64)
    first = set()
    for number in range(6):
        with Producer(f"senders-{number}", database.dsn) as producer:
            first.add(producer.send(Message("orders", "x")).queue.queue_id)

    assert len(first) > 1


def test_a_sharding_key_always_means_the_same_queue(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 5)
    keys = [f"customer-{number}" for number in range(40)]

    queues = {
        key: {producer.send(Message("orders", key), sharding_key=key).queue.queue_id for _ in range(2)} for key in keys
    }

    assert all(len(numbers) == 1 for numbers in queues.values())
    assert len(set.union(*queues.values())) == 5


def test_a_sharding_key_chooses_the_queue_that_the_sql_function_chooses(database: Database, producer: Producer) -> None:
    connection = database.connect()
    create_topic(connection, "orders", 7)
    for key in ("N14228", "", "schlüssel", "🙂", "polygenelubricants"):
        result = producer.send(Message("orders", "by client"), sharding_key=key)
        connection.execute("SELECT mqdb.send('orders', 'by sql'::text, sharding_key => %s)", [key])
        same = rows(
            database,
            "SELECT count(*) FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) WHERE queue_id = %s",
            result.queue.queue_id,
        )
        assert same[0][0] % 2 == 0


def test_only_write_queues_take_messages(database: Database, producer: Producer) -> None:
    connection = database.connect()
    create_topic(connection, "orders", 8)
    connection.execute("UPDATE mqdb.topic SET write_queue_nums = 2 WHERE topic = 'orders'")

    assert {producer.send(Message("orders", "x")).queue.queue_id for _ in range(8)} == {0, 1}


def test_unique_ids_differ(database: Database, producer: Producer) -> None:
    results = [producer.send(Message("orders", "x")) for _ in range(20)]

    assert len({result.message_id for result in results}) == 20


# -- what is refused --------------------------------------------------------------------------


def test_a_message_that_breaks_a_rule_is_refused_and_creates_nothing(database: Database, producer: Producer) -> None:
    refused: list[tuple[Any, type[MqdbError]]] = [
        (Message("orders", b""), BodyEmpty),
        (Message("orders", b"x" * 4_194_305), BodyTooLarge),
        (Message("or ders", b"x"), NameInvalid),
        (Message("SCHEDULE_TOPIC_XXXX", b"x"), TopicNotAllowed),
        (Message("orders", b"x", properties={"DELAY": "3"}), PropertyReserved),
        ("orders", MessageIllegal),
        (None, MessageIllegal),
    ]
    for message, error in refused:
        with case(message), pytest.raises(error):
            producer.send(message)
        with case(message), pytest.raises(error):
            producer.send_batch([Message("orders", "fine"), message])

    assert stored(database) == 0
    assert rows(database, "SELECT 1 FROM mqdb.topic WHERE topic = 'orders'") == []


def test_the_largest_body_passes(database: Database, producer: Producer) -> None:
    producer.send(Message("orders", b"x" * 4_194_304))

    assert rows(database, "SELECT octet_length(body) FROM mqdb.commit_log") == [(4_194_304,)]


def test_a_sharding_key_that_is_no_text_is_refused(database: Database, producer: Producer) -> None:
    key: Any = 17
    with pytest.raises(ParameterInvalid, match="use str"):
        producer.send(Message("orders", "x"), sharding_key=key)
    with pytest.raises(ParameterInvalid, match="use str"):
        producer.send_batch([Message("orders", "x")], sharding_key=key)

    assert rows(database, "SELECT 1 FROM mqdb.topic WHERE topic = 'orders'") == []


def test_an_argument_without_a_selector_is_refused(database: Database, producer: Producer) -> None:
    said = "selector_argument = 5: there is no selector that would take it"
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with case(send), pytest.raises(ParameterInvalid, match=said):
            send(Message("orders", "x"), selector_argument=5)

    assert stored(database) == 0


@pytest.mark.parametrize("perm", [0, 4])
def test_a_topic_without_write_permission_is_refused(database: Database, producer: Producer, perm: int) -> None:
    connection = database.connect()
    create_topic(connection, "orders", 1)
    connection.execute("UPDATE mqdb.topic SET perm = %s WHERE topic = 'orders'", [perm])

    with pytest.raises(TopicNotWritable, match=f"permission is {perm}"):
        producer.send(Message("orders", "x"))


# -- topics that come and go ------------------------------------------------------------------


def test_the_first_message_creates_its_topic(database: Database, producer: Producer) -> None:
    queues = {producer.send(Message("new", "x")).queue.queue_id for _ in range(8)}

    assert queues == {0, 1, 2, 3}
    assert rows(database, "SELECT read_queue_nums, write_queue_nums, perm FROM mqdb.topic WHERE topic = 'new'") == [
        (4, 4, 6)
    ]


def test_the_number_of_queues_of_a_new_topic_is_a_setting(database: Database) -> None:
    with Producer("senders", settings=load_settings(dsn=database.dsn, default_topic_queue_nums=2)) as producer:
        assert {producer.send(Message("new", "x")).queue.queue_id for _ in range(4)} == {0, 1}


def test_without_automatic_creation_an_unknown_topic_is_an_error(database: Database) -> None:
    with Producer("senders", settings=load_settings(dsn=database.dsn, auto_create_topic_enable=False)) as producer:
        with pytest.raises(TopicNotFound, match="mqdb topic create new"):
            producer.send(Message("new", "x"))
        create_topic(database.connect(), "new", 1)
        producer.send(Message("new", "now it is there"))

    assert stored_bodies(database) == ["now it is there"]


def test_two_producers_create_a_topic_together(database: Database) -> None:
    with Producer("one", database.dsn) as one, Producer("two", database.dsn) as two:
        results = at_once(partial(one.send, Message("new", "1")), partial(two.send, Message("new", "2")))

    assert len(results) == 2
    assert rows(database, "SELECT count(*) FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = 'new'") == [
        (4,)
    ]


def test_a_topic_deleted_and_made_again_gets_the_message(database: Database, producer: Producer) -> None:
    connection = database.connect()
    old = create_topic(connection, "orders", 1)
    producer.send(Message("orders", "to the old one"))
    connection.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
    new = create_topic(connection, "orders", 1)

    producer.send(Message("orders", "to the new one"))
    producer.send_batch([Message("orders", "also"), Message("orders", "these")])

    assert new != old
    assert rows(database, "SELECT queue_key, count(*) FROM mqdb.commit_log GROUP BY 1 ORDER BY 1") == [
        (*old, 1),
        (*new, 3),
    ]


def test_a_deleted_topic_is_created_again_or_an_error(database: Database) -> None:
    connection = database.connect()
    strict = load_settings(dsn=database.dsn, auto_create_topic_enable=False)
    create_topic(connection, "orders", 1)
    with Producer("strict", settings=strict) as producer:
        producer.send(Message("orders", "x"))
        connection.execute("DELETE FROM mqdb.topic WHERE topic = 'orders'")
        with pytest.raises(TopicNotFound):
            producer.send(Message("orders", "x"))
        with pytest.raises(TopicNotFound):
            producer.send_batch([Message("orders", "x")] * 2)
    with Producer("lenient", database.dsn) as producer:
        producer.send(Message("orders", "y"))

    assert stored_bodies(database) == ["x", "y"]


# -- batches ----------------------------------------------------------------------------------


def test_a_batch_goes_to_one_queue_in_order_and_the_next_to_the_next(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 3)

    batches = [producer.send_batch([Message("orders", f"{b}.{n}", tag=f"t{n}") for n in range(5)]) for b in range(3)]

    assert len({batch[0].queue for batch in batches}) == 3
    for batch in batches:
        assert len({result.queue for result in batch}) == 1
        assert [result.log_pos for result in batch] == list(range(batch[0].log_pos, batch[0].log_pos + 5))
        assert [result.queue_offset for result in batch] == [0, 1, 2, 3, 4]
    assert stored_bodies(database) == [f"{b}.{n}" for b in range(3) for n in range(5)]
    assert rows(database, "SELECT count(DISTINCT xid::text) FROM mqdb.commit_log") == [(3,)]


def test_a_batch_keeps_each_message_s_own_tag_keys_and_properties(database: Database, producer: Producer) -> None:
    results = producer.send_batch(
        [
            Message("orders", "a", "x", ["k"], {"p": "1"}, 5),
            Message("orders", "b"),
            Message("orders", "c", properties={"q": '"'}),
        ]
    )

    assert rows(database, "SELECT tags, keys, flag, properties FROM mqdb.commit_log ORDER BY log_pos") == [
        ("x", "k", 5, {"p": "1"}),
        (None, None, 0, {}),
        (None, None, 0, {"q": '"'}),
    ]
    assert [
        row[0] for row in rows(database, "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log ORDER BY log_pos")
    ] == [result.message_id for result in results]


def test_a_sharding_key_chooses_the_queue_of_a_batch(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 5)
    batch = [Message("orders", "x")] * 2

    alone = producer.send(Message("orders", "x"), sharding_key="N14228")

    assert {result.queue for result in producer.send_batch(batch, sharding_key="N14228")} == {alone.queue}


def test_a_batch_that_breaks_a_rule_is_refused_as_a_whole(database: Database, producer: Producer) -> None:
    refused: list[tuple[list[Message], type[MqdbError], str]] = [
        ([], ParameterInvalid, "at least one"),
        ([Message("orders", "x"), Message("other", "x")], ParameterInvalid, "'other'"),
        ([Message(retry_topic("g"), "x")] * 2, NotSupported, "retry topic"),
        ([Message("orders", b"x" * 2_097_152)] * 2, BatchTooLarge, "limit is 4,194,304; send them in several"),
    ]
    for messages, error, words in refused:
        with case(messages), pytest.raises(error, match=words):
            producer.send_batch(messages)

    assert stored(database) == 0


def test_a_batch_is_stored_wholly_or_not_at_all(database: Database, producer: Producer) -> None:
    poison(database)

    with pytest.raises(StorageRefused):
        producer.send_batch([Message("orders", "fine"), Message("orders", "poison"), Message("orders", "fine too")])

    assert stored(database) == 0


# -- many threads -----------------------------------------------------------------------------


def poison(database: Database) -> None:
    """Make the database refuse messages with this body, as it refuses characters that its encoding lacks."""
    database.connect().execute(
        """CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN RAISE EXCEPTION 'poison' USING ERRCODE = '22P05'; END $$;
           CREATE TRIGGER poison BEFORE INSERT ON mqdb.commit_log FOR EACH ROW WHEN (NEW.body = 'poison')
           EXECUTE FUNCTION refuse()"""
    )


def sends(producer: Producer, *messages: Message) -> list[Callable[[], SendResult]]:
    return [partial(producer.send, message) for message in messages]


def gathered(database: Database, producer: Producer, *work: Callable[[], Any]) -> list[Any]:
    """The result or error of each call.

    All calls are made while the log is locked: the first one leads alone, and the others gather behind it.
    """
    locker, pid = stall(database), pid_of(producer)
    doings = [Doing(work[0])]
    wait_until(lambda: is_blocked(database, pid))
    doings += map(Doing, work[1:])
    wait_until(lambda: len(link_of(producer).appends._plan.waiting) == len(work) - 1)
    locker.rollback()
    return [doing.outcome() for doing in doings]


def test_concurrent_sends_are_each_stored_once_and_know_their_place(database: Database, producer: Producer) -> None:
    create_topic(database.connect(), "orders", 4)
    results: list[list[SendResult]] = [[] for _ in range(32)]

    def work(number: int) -> None:
        results[number] = [producer.send(Message("orders", f"{number}.{n}")) for n in range(25)]

    at_once(*(partial(work, number) for number in range(32)))

    places = {result.log_pos: f"{number}.{n}" for number, of in enumerate(results) for n, result in enumerate(of)}
    assert len(places) == 800
    assert dict(rows(database, "SELECT log_pos, convert_from(body, 'UTF8') FROM mqdb.commit_log")) == places
    assert set(Counter(result.queue.queue_id for of in results for result in of).values()) == {200}
    assert dict(rows(database, "SELECT log_pos, queue_id FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key)")) == {
        result.log_pos: result.queue.queue_id for of in results for result in of
    }


def test_the_sends_of_one_thread_stay_in_order(database: Database, producer: Producer) -> None:
    def work(number: int) -> list[int]:
        return [producer.send(Message("orders", "x"), sharding_key=str(number)).log_pos for _ in range(20)]

    for positions in at_once(*(partial(work, number) for number in range(8))):
        assert isinstance(positions, list)
        assert positions == sorted(positions)


def test_sends_that_gather_go_in_one_statement(database: Database, producer: Producer) -> None:
    producer.send(Message("orders", "so that the topic is known"))

    results = gathered(database, producer, *sends(producer, *(Message("orders", str(n)) for n in range(9))))

    assert len({result.log_pos for result in results}) == 9
    assert sorted(row[0] for row in rows(database, "SELECT count(*) FROM mqdb.commit_log GROUP BY xid::text")) == [
        1,
        1,
        8,
    ]


def test_a_poisoned_message_fails_alone(database: Database, producer: Producer) -> None:
    producer.send(Message("orders", "so that the topic is known"))
    poison(database)
    bodies = ["a", "b", "c", "poison", "d", "e", "f", "g"]

    results = gathered(database, producer, *sends(producer, *(Message("orders", body) for body in bodies)))

    [refused] = [result for result in results if isinstance(result, MqdbError)]
    assert isinstance(refused, StorageRefused)
    assert refused.sqlstate == "22P05"
    assert sorted(stored_bodies(database)[1:]) == ["a", "b", "c", "d", "e", "f", "g"]


def test_a_topic_that_is_gone_fails_its_own_messages_alone(database: Database) -> None:
    connection = database.connect()
    strict = load_settings(dsn=database.dsn, auto_create_topic_enable=False, send_message_timeout="30s")
    with Producer("strict", settings=strict) as producer:
        for topic in ("kept", "gone"):
            create_topic(connection, topic, 2)
            producer.send(Message(topic, "so that the topic is known"))
        connection.execute("DELETE FROM mqdb.topic WHERE topic = 'gone'")

        messages = (Message(["kept", "kept", "gone"][n % 3], str(n)) for n in range(9))
        results = gathered(database, producer, *sends(producer, *messages))

    refused = [result for result in results if isinstance(result, MqdbError)]
    assert [type(error) for error in refused] == [RouteNotFound] * 3
    assert {str(error) for error in refused} == {str(TopicNotFound("gone"))}
    assert len({id(error) for error in refused}) == 3
    assert sorted(stored_bodies(database)[2:]) == ["0", "1", "3", "4", "6", "7"]


def test_a_batch_among_gathered_messages_stays_whole(database: Database, producer: Producer) -> None:
    producer.send(Message("orders", "so that the topic is known"))
    poison(database)
    whole = [Message("orders", "whole 1"), Message("orders", "whole 2")]
    torn = [Message("orders", "torn"), Message("orders", "poison")]

    results = gathered(
        database,
        producer,
        partial(producer.send, Message("orders", "first")),
        partial(producer.send_batch, whole),
        partial(producer.send_batch, torn),
        partial(producer.send, Message("orders", "last")),
    )

    assert [isinstance(result, MqdbError) for result in results] == [False, False, True, False]
    bodies = stored_bodies(database)[1:]
    assert sorted(bodies) == ["first", "last", "whole 1", "whole 2"]
    assert bodies.index("whole 2") == bodies.index("whole 1") + 1
    assert [result.log_pos for result in results[1]] == sorted(result.log_pos for result in results[1])


# -- life -------------------------------------------------------------------------------------


def test_a_producer_works_only_between_start_and_shutdown(database: Database) -> None:
    producer = Producer("senders", database.dsn)
    with pytest.raises(IllegalState, match="not started"):
        producer.send(Message("orders", "x"))
    producer.start()
    with pytest.raises(IllegalState, match="running"):
        producer.start()
    result = producer.send(Message("orders", "x"))
    producer.shutdown()
    producer.shutdown()

    for use in (lambda: producer.send(Message("orders", "x")), producer.start, lambda: result.queue_offset):
        with pytest.raises(IllegalState, match="shut down"):
            use()


def test_two_producers_of_one_group_in_a_process_are_refused(database: Database) -> None:
    with Producer("senders", database.dsn) as first:
        second = Producer("senders", database.dsn)
        with pytest.raises(IllegalState, match="created before"):
            second.start()
        first.send(Message("orders", "the first one is not disturbed"))
        with Producer("others", database.dsn) as other:
            other.send(Message("orders", "nor is another group"))

    with second:
        second.send(Message("orders", "and later it is free"))
    assert stored(database) == 3


@pytest.mark.parametrize("group", ["DEFAULT_PRODUCER", "a b", "", "x" * 121])
def test_a_bad_group_name_is_refused(group: str) -> None:
    with pytest.raises(NameInvalid):
        Producer(group, "postgresql://localhost/nowhere")


def test_shutdown_waits_for_the_sends_under_way(database: Database) -> None:
    with producer_of(database.dsn) as producer:
        producer.send(Message("orders", "so that the topic is known"))
        appends = link_of(producer).appends
        locker, pid = stall(database), pid_of(producer)
        first, *others = sends(producer, *[Message("orders", "x")] * 4)
        sending = [Doing(first)]
        wait_until(lambda: is_blocked(database, pid))
        sending += map(Doing, others)
        wait_until(lambda: len(appends._plan.waiting) == 3)
        ending = Doing(producer.shutdown)
        wait_until(lambda: appends._plan.is_closed)
        locker.rollback()
        ending.result()

    assert all(isinstance(doing.result(), SendResult) for doing in sending)
    assert stored(database) == 5


def test_nothing_is_left_after_shutdown(database: Database) -> None:
    threads = set(threading.enumerate())
    with Producer("senders", database.dsn) as producer:
        _ = producer.send(Message("orders", "x")).queue_offset
        assert rows(database, "SELECT kind, group_name, language FROM mqdb.client") == [
            ("PRODUCER", "senders", "PYTHON")
        ]

    assert rows(database, "SELECT * FROM mqdb.client") == []
    assert set(threading.enumerate()) == threads
    wait_until(lambda: _clients(database) == 0)


def _clients(database: Database) -> int:
    with psycopg.connect(database.dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ^@ 'mqdb '"
        ).fetchone()
    assert row is not None
    return int(row[0])
