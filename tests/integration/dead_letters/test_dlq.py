"""The view mqdb.dlq shows the history of each dead letter, and filters find the wanted ones."""

import zlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.dead_letters import (
    Chosen,
    DeadLetterFilter,
    causes_of_death,
    choose,
    count_dead_letters,
    list_dead_letters,
    read_dead_letters,
    show_dead_letters,
)
from mqdb.common.compression import Compression, compressed_flag
from mqdb.common.message import Message, MessageQueue
from mqdb.common.property import FailureProperty, Property
from mqdb.errors import GroupNotFound, ParameterInvalid, StorageRefused, TagExpressionInvalid
from mqdb.store.engine import create_engine, driver
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.dead_letters import FAILED_AT, FAILURE, ORIGIN, bury, create_group, letter_id
from tests.fixtures.postgres import Database


def row_at(connection: Connection, log_pos: int) -> dict[str, object]:
    """The only row of the view with this position."""
    statement = text("SELECT * FROM mqdb.dlq WHERE log_pos = :log_pos")
    return dict(connection.execute(statement, {"log_pos": log_pos}).mappings().one())


# -- the view -------------------------------------------------------------------------------------


def test_a_dead_letter_tells_what_it_was_and_why_it_died(broker: Connection) -> None:
    log_pos = bury(broker, "an order", tag="paid", keys=("order-17", "customer-4"), properties={"colour": "blue"})
    dispatch_all(broker)

    row = row_at(broker, log_pos)

    story = ("group_name", "topic", "tags", "keys", "attempts", "failed_at", "exception", "error", "host", "text")
    assert {name: row[name] for name in story} == {
        "group_name": "billing",
        "topic": "orders",
        "tags": "paid",
        "keys": "order-17 customer-4",
        "attempts": 17,
        "failed_at": FAILED_AT,
        "exception": FAILURE.exception,
        "error": FAILURE.message,
        "host": FAILURE.host,
        "text": "an order",
    }
    assert (row["origin_queue_id"], row["origin_queue_offset"], row["origin_log_pos"]) == ORIGIN
    assert (row["msg_id"], row["queue_offset"]) == (letter_id(broker, log_pos), 0)
    assert (row["traceback"], row["body"], row["redriven_at"]) == (FAILURE.traceback, b"an order", None)


def test_a_message_that_was_sent_back_once_too_often_is_there(broker: Connection) -> None:
    route = topic(broker, "orders", 2)
    create_group(broker, "billing")
    (log_pos,) = append(broker, route, Message("orders", "an order", "paid", "order-17"), queue_id=1)
    request = SendBackRequest(log_pos, MessageQueue("orders", "broker-a", 1), 0, FAILURE)

    (sent_back,) = send_back(broker, "billing", [request], max_reconsume_times=0)

    dispatch_all(broker)
    assert sent_back.is_dead
    (letter,) = list_dead_letters(broker, DeadLetterFilter("billing"))
    assert (letter.topic, letter.tags, letter.keys, letter.attempts) == ("orders", "paid", "order-17", 1)
    assert (letter.origin_queue_id, letter.origin_queue_offset, letter.origin_log_pos) == (1, 0, log_pos)
    assert (letter.exception, letter.error, letter.failed_at) == (FAILURE.exception, FAILURE.message, FAILED_AT)


def test_what_the_columns_tell_is_not_said_again_among_the_properties(broker: Connection) -> None:
    log_pos = bury(broker, properties={"colour": "blue"})
    dispatch_all(broker)

    properties = row_at(broker, log_pos)["properties"]

    assert isinstance(properties, dict)
    assert properties["colour"] == "blue"
    assert {name for name in properties if name.startswith("MQDB_FAILURE")} == {FailureProperty.ATTEMPT}


SAYS_NOTHING = [
    ("failed_at", FailureProperty.TIME, "yesterday"),
    ("failed_at", FailureProperty.TIME, ""),
    ("failed_at", FailureProperty.TIME, "infinity"),
    ("failed_at", FailureProperty.TIME, "2026-13-45T00:00:00+00:00"),
    ("failed_at", FailureProperty.TIME, "2026-07-14T09:30:00+99:00"),
    ("failed_at", FailureProperty.TIME, "2026-07-14T09:30:00"),
    ("origin_queue_id", FailureProperty.ORIGIN_QUEUE_ID, "9" * 30),
    ("origin_queue_id", FailureProperty.ORIGIN_QUEUE_ID, "-1"),
    ("origin_queue_offset", FailureProperty.ORIGIN_QUEUE_OFFSET, "٣"),
    ("origin_queue_offset", FailureProperty.ORIGIN_QUEUE_OFFSET, "1 or 2"),
    ("origin_log_pos", Property.ORIGIN_MESSAGE_ID, "C0A80001000078BF0000000000000000"),
    ("origin_log_pos", Property.ORIGIN_MESSAGE_ID, ""),
    ("exception", FailureProperty.EXCEPTION, ""),
    ("error", FailureProperty.MESSAGE, ""),
    ("traceback", FailureProperty.TRACEBACK, ""),
    ("host", FailureProperty.HOST, ""),
]


def test_a_property_that_says_nothing_is_null_and_no_error(broker: Connection) -> None:
    letters = [bury(broker, properties={name: value}) for _, name, value in SAYS_NOTHING]
    dispatch_all(broker)

    for log_pos, (column, name, value) in zip(letters, SAYS_NOTHING, strict=True):
        assert row_at(broker, log_pos)[column] is None, (name, value)


def test_a_message_that_somebody_has_sent_to_a_dlq_is_shown_without_a_story(broker: Connection) -> None:
    (log_pos,) = append(broker, topic(broker, "%DLQ%billing"), "from nowhere")
    dispatch_all(broker)

    row = row_at(broker, log_pos)

    assert (row["group_name"], row["text"], row["attempts"]) == ("billing", "from nowhere", 0)
    untold = ("topic", "failed_at", "exception", "error", "traceback", "host", "origin_queue_id", "origin_log_pos")
    assert {name: row[name] for name in untold} == dict.fromkeys(untold)


def test_a_compressed_body_has_no_text(broker: Connection) -> None:
    packed = zlib.compress(b"an order")
    log_pos = bury(broker, stored=packed, sys_flag=compressed_flag(Compression.ZLIB))
    dispatch_all(broker)

    row = row_at(broker, log_pos)

    assert (row["text"], row["body"], row["compression"]) == (None, packed, "ZLIB")


def test_only_dead_letter_queues_are_shown_and_not_what_retention_has_passed(broker: Connection) -> None:
    positions = [bury(broker, str(number)) for number in range(3)]
    append(broker, topic(broker, "orders"), "alive")
    append(broker, topic(broker, "DLQ"), "alive")
    append(broker, topic(broker, "xDLQxbilling"), "alive")
    dispatch_all(broker)
    broker.execute(
        text(
            "UPDATE mqdb.queue SET base_offset = 1 WHERE topic_id = (SELECT topic_id FROM mqdb.topic WHERE topic = :t)"
        ),
        {"t": "%DLQ%billing"},
    )

    assert [letter.log_pos for letter in list_dead_letters(broker, DeadLetterFilter())] == positions[:0:-1]


def test_what_is_long_comes_last_and_every_column_has_a_comment(conn: Connection) -> None:
    rows = conn.execute(
        text(
            "SELECT attname, col_description(attrelid, attnum) FROM pg_attribute "
            "WHERE attrelid = 'mqdb.dlq'::regclass AND attnum > 0 ORDER BY attnum"
        )
    ).all()

    names = [name for name, _ in rows]
    assert names[:4] == ["group_name", "topic", "msg_id", "tags"]
    assert names[-4:] == ["properties", "text", "traceback", "body"]
    assert [name for name, comment in rows if not comment] == []


# -- which letters --------------------------------------------------------------------------------


@pytest.fixture
def letters(broker: Connection) -> dict[str, int]:
    """Four dead letters by body; each died a minute after the previous one, the last one now."""
    later = replace(FAILURE, exception="TimeoutError", message="50% of nothing")
    places = {}
    for minutes, body, group, topic_name, tag, failure in (
        (3, "a", "billing", "orders", "paid", FAILURE),
        (2, "b", "billing", "orders", None, later),
        (1, "c", "billing", "returns", "late", later),
        (0, "d", "shipping", "orders", "paid", FAILURE),
    ):
        driver(broker).execute(f"SET mqdb.clock_offset = '-{minutes} minutes'")
        places[body] = bury(broker, body, group, topic_name, tag=tag, failure=failure)
    driver(broker).execute("RESET mqdb.clock_offset")
    dispatch_all(broker)
    return places


def bodies(connection: Connection, wanted: DeadLetterFilter) -> str:
    """The bodies of the dead letters that match a filter, oldest first, by each way to query them."""
    listed = list_dead_letters(connection, wanted)
    read = list(read_dead_letters(connection, wanted))
    assert [letter.log_pos for letter in listed] == [letter.log_pos for letter in read][::-1]
    assert show_dead_letters(connection, wanted) == read[::-1]
    assert choose(connection, wanted) == Chosen(tuple(letter.log_pos for letter in read), 0)
    assert count_dead_letters(connection, wanted) == len(read)
    assert sum(cause.messages for cause in causes_of_death(connection, wanted)) == len(read)
    return "".join(letter.body.decode() for letter in read)


MINUTE = timedelta(minutes=1)


CHOSEN = [
    (DeadLetterFilter(), "abcd"),
    (DeadLetterFilter("billing"), "abc"),
    (DeadLetterFilter(topic="orders"), "abd"),
    (DeadLetterFilter(tag="paid"), "ad"),
    (DeadLetterFilter(tag="paid || late"), "acd"),
    (DeadLetterFilter(tag="*"), "abcd"),
    (DeadLetterFilter(since=1.5 * MINUTE), "cd"),
    (DeadLetterFilter(until=1.5 * MINUTE), "ab"),
    (DeadLetterFilter(since=2.5 * MINUTE, until=0.5 * MINUTE), "bc"),
    (DeadLetterFilter(since=datetime(2000, 1, 1, tzinfo=UTC)), "abcd"),
    (DeadLetterFilter(until=datetime(2000, 1, 1, tzinfo=UTC)), ""),
    (DeadLetterFilter(exception="timeout"), "bc"),
    (DeadLetterFilter(exception="shop.NoPrice"), "ad"),
    (DeadLetterFilter(exception="%"), ""),
    (DeadLetterFilter(ids=(UUID(int=7),)), ""),
    (DeadLetterFilter(where="error like '50%%' and topic = 'orders'"), "b"),
    (DeadLetterFilter(where="error = '50% of nothing' -- a comment"), "bc"),
    (DeadLetterFilter(where="text ~ '[a:c]' and dlq.attempts > 16"), "ac"),
    (DeadLetterFilter(where='properties @> \'{"TAGS": "late"}\''), "c"),
    (DeadLetterFilter("billing", "orders", "paid", 4 * MINUTE, MINUTE, "price", (), "body = 'a'::bytea"), "a"),
]


def test_letters_are_chosen_by_all_that_is_given(broker: Connection, letters: dict[str, int]) -> None:
    for wanted, found in CHOSEN:
        assert bodies(broker, wanted) == found, wanted


def test_a_part_of_a_groups_name_is_another_group(broker: Connection, letters: dict[str, int]) -> None:
    with pytest.raises(GroupNotFound, match="'bill'"):
        list_dead_letters(broker, DeadLetterFilter("bill"))


def test_letters_are_chosen_by_their_ids(broker: Connection, letters: dict[str, int]) -> None:
    ids = tuple(UUID(letter_id(broker, letters[body])) for body in "ad")

    assert bodies(broker, DeadLetterFilter(ids=ids)) == "ad"
    assert bodies(broker, DeadLetterFilter("billing", ids=ids)) == "a"


def test_a_list_ends_at_its_limit_with_the_youngest_first(broker: Connection, letters: dict[str, int]) -> None:
    listed = list_dead_letters(broker, DeadLetterFilter(), limit=2)

    assert [letter.log_pos for letter in listed] == [letters["d"], letters["c"]]


def test_the_causes_of_death_are_counted(broker: Connection, letters: dict[str, int]) -> None:
    bury(broker, "another", failure=replace(FAILURE, exception="TimeoutError"))
    dispatch_all(broker)

    causes = causes_of_death(broker, DeadLetterFilter())

    assert [cause[:5] for cause in causes] == [
        ("billing", "orders", "TimeoutError", 2, 0),
        ("billing", "orders", "shop.NoPrice", 1, 0),
        ("billing", "returns", "TimeoutError", 1, 0),
        ("shipping", "orders", "shop.NoPrice", 1, 0),
    ]
    assert causes[0].last_died - causes[0].first_died > MINUTE


# -- conditions -----------------------------------------------------------------------------------


UNUSABLE = [
    ("attemps > 3", ['column "attemps" does not exist', "at character 1", "dlq.attempts"]),
    ("attempts > 3 and nosuch(error)", ["function nosuch(text) does not exist", "at character 18"]),
    ("attempts >", ["syntax error"]),
    ("attempts", ["must be type boolean, not type integer"]),
    ("attempts > 3; DROP TABLE mqdb.redrive_result", ['syntax error at or near ";"', "at character 13"]),
    ("true) union (select * from mqdb.dlq", ["each UNION query must have the same number of columns"]),
    ("true)) union (select * from mqdb.dlq where (true", ["syntax error"]),
    ("error::integer > 3", ["invalid input syntax for type integer"]),
    ("mqdb.send('orders', 'x'::text) is null", ["read-only transaction"]),
    ("error = 'half of one \ud800'", ["Unicode characters other than NUL"]),
    ("error = '\0'", ["Unicode characters other than NUL"]),
]


def test_a_condition_that_cannot_be_used_is_refused_with_the_words_of_postgresql(broker: Connection) -> None:
    topic(broker, "orders")
    bury(broker)
    dispatch_all(broker)

    for condition, parts in UNUSABLE:
        with pytest.raises(ParameterInvalid) as refused:
            list_dead_letters(broker, DeadLetterFilter("billing", where=condition))

        assert (refused.value.name, refused.value.value) == ("where", condition)
        assert [part for part in parts if part not in str(refused.value)] == [], refused.value


@pytest.mark.parametrize("condition", ["false) or (true", "true) or (true"])
def test_no_condition_reaches_beyond_what_else_is_asked(
    broker: Connection, letters: dict[str, int], condition: str
) -> None:
    letters_found = list_dead_letters(broker, DeadLetterFilter("shipping", topic="orders", where=condition))

    assert [letter.log_pos for letter in letters_found] == [letters["d"]]


@pytest.mark.usefixtures("letters")
def test_a_condition_is_asked_with_the_rights_of_the_caller(database: Database) -> None:
    engine = create_engine(database.superuser_dsn)
    with engine.connect() as stranger:
        driver(stranger).execute("SET ROLE pg_monitor")

        with pytest.raises(StorageRefused, match="permission denied") as refused:
            list_dead_letters(stranger, DeadLetterFilter(where="attempts > 3"))
        stranger.invalidate()
    engine.dispose()

    assert refused.value.sqlstate == "42501"


def test_an_expression_without_a_tag_is_refused(broker: Connection) -> None:
    with pytest.raises(TagExpressionInvalid):
        DeadLetterFilter(tag="||")
