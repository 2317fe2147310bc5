"""mqdb.send and the other functions for direct use in SQL."""

import json
import re
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqdb.common.message import MAX_BODY_BYTES
from mqdb.common.property import MAX_PROPERTIES_BYTES, RESERVED_PROPERTIES
from mqdb.common.topic import (
    DLQ_PREFIX,
    HALF_TOPIC,
    NOT_ALLOWED_SEND,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
)
from mqdb.errors import (
    BodyEmpty,
    BodyTooLarge,
    DelayTooLong,
    ParameterInvalid,
    PropertiesTooLarge,
    PropertyInvalid,
    PropertyReserved,
    ScheduleInvalid,
    TopicNotAllowed,
    TopicNotFound,
    TopicNotWritable,
)
from mqdb.selector.tags import java_string_hash, tag_code
from mqdb.store.engine import driver, translate
from tests.fixtures.log import Connection, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import Database

TAG_VECTORS = Path(__file__).parents[2] / "unit" / "vectors" / "tags.jsonl"

#: PostgreSQL stores no NUL and no half of a surrogate pair.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=50)


@pytest.fixture
def orders(log: Connection) -> str:
    """A topic with four queues."""
    create_topic(log, "orders", 4)
    return "orders"


@pytest.fixture
def session(conn: sqlalchemy.Connection) -> Connection:
    """A session that is rolled back, with a topic of four queues, for messages that are never dispatched."""
    connection = driver(conn)
    create_topic(connection, "orders", 4)
    return connection


def test_a_text_is_sent_with_all_that_belongs_to_it(log: Connection, orders: str) -> None:
    message_id = scalar(
        log,
        """SELECT mqdb.send('orders', 'Grüße', tag => 'new', keys => 'a1 a2', properties => '{"colour": "blue"}')""",
    )

    dispatch_all(log)
    columns = "topic, queue_offset, msg_id, tags, keys, text, body, properties"
    row = log.execute(f"SELECT {columns} FROM mqdb.message").fetchone()
    properties = {"colour": "blue", "TAGS": "new", "KEYS": "a1 a2", "UNIQ_KEY": message_id}
    assert row == ("orders", 0, message_id, "new", "a1 a2", "Grüße", "Grüße".encode(), properties)
    assert message_id == message_id.upper()
    assert len(message_id) == 32
    assert scalar(log, "SELECT tags_code FROM mqdb.consume_queue") == tag_code("new")


def test_bytes_are_sent_as_they_are(log: Connection, orders: str) -> None:
    body = bytes(range(256))

    log.execute("SELECT mqdb.send(%s, %s)", [orders, body])

    dispatch_all(log)
    row = log.execute("SELECT body, text, tags, keys FROM mqdb.message").fetchone()
    assert row == (body, None, None, None)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("'{\"a\":1}'", '{"a":1}'),  # a literal of no type is a text
        ("'{\"a\":1}'::text", '{"a":1}'),
        ("'{\"a\":1}'::varchar", '{"a":1}'),
        ("'{\"a\":1}'::varchar(9)", '{"a":1}'),
        ("'{\"a\":1}'::name", '{"a":1}'),
        ("'{\"a\":1}'::bytea", '{"a":1}'),
        ('\'{"a":1,"b":[2,null]}\'::jsonb', '{"a": 1, "b": [2, null]}'),
        ('\'{"a":1,  "a":2}\'::json', '{"a":1,  "a":2}'),
        ("to_jsonb('Grüße'::text)", '"Grüße"'),
        ("to_jsonb(42)", "42"),
        ("'null'::jsonb", "null"),
        ("jsonb_build_object('a', 1) -> 'a'", "1"),
        ("row_to_json(r) FROM (SELECT 1 AS a) r", '{"a":1}'),
    ],
)
@pytest.mark.parametrize("call", ["SELECT mqdb.send('orders', {})", "SELECT mqdb.send(body => {}, topic => 'orders')"])
def test_a_body_is_a_text_bytes_or_json(session: Connection, call: str, body: str, text: str) -> None:
    body, *rest = body.split(" FROM ")

    session.execute(" FROM ".join([call.format(body), *rest]).encode())

    assert session.execute("SELECT convert_from(body, 'UTF8') FROM mqdb.commit_log").fetchall() == [(text,)]


def test_json_is_sent_with_all_that_belongs_to_it(session: Connection) -> None:
    session.execute(
        """SELECT mqdb.send('orders', '{"a": 1}'::jsonb, 'new', keys => 'k', properties => '{"b": "c"}',
                            sharding_key => 's', deliver_at => now())"""
    )

    row = session.execute("SELECT tags, keys, properties ->> 'b' FROM mqdb.commit_log").fetchone()
    assert row == ("new", "k", "c")


@pytest.mark.parametrize(
    "parameter", ["text", '{"a": 1}', b"bytes", psycopg.types.json.Jsonb({"a": 1}), psycopg.types.json.Json(1)]
)
@pytest.mark.parametrize("prepare", [False, True])
def test_parameters_of_psycopg_find_the_function(session: Connection, parameter: object, prepare: bool) -> None:
    session.execute("SELECT mqdb.send(%s, %s)", ["orders", parameter], prepare=prepare)

    assert scalar(session, "SELECT count(*) FROM mqdb.commit_log") == 1


def test_a_null_of_no_type_is_an_empty_body(session: Connection) -> None:
    with pytest.raises(psycopg.Error, match="the body is empty"), session.transaction():
        session.execute("SELECT mqdb.send('orders', NULL)")


def test_numbers_and_booleans_are_properties_as_json_writes_them(session: Connection) -> None:
    session.execute(
        """SELECT mqdb.send('orders', 'x', deliver_at => '2100-01-01 00:00+00',
                            properties => '{"a": 1, "b": 1.50, "c": true, "d": false, "e": "x", "f": -1e3}')"""
    )

    stored = scalar(session, "SELECT properties FROM mqdb.commit_log")
    expected = {"a": "1", "b": "1.50", "c": "true", "d": "false", "e": "x", "f": "-1000"}
    assert {name: stored[name] for name in expected} == expected
    assert stored["TIMER_DELIVER_MS"] == "4102444800000"


@pytest.mark.parametrize(
    ("topic", "reason"), [("NULL", "the topic is NULL; give its name"), ("''", "the topic is empty; give its name")]
)
@pytest.mark.parametrize("call", ["mqdb.send({}, 'x')", "mqdb.recall_own({}, repeat('0', 32))"])
def test_a_topic_without_a_name_is_called_that(session: Connection, call: str, topic: str, reason: str) -> None:
    with pytest.raises(psycopg.Error) as refused, session.transaction():
        session.execute(f"SELECT {call.format(topic)}".encode())

    error = translate(refused.value, "here")
    assert isinstance(error, ParameterInvalid)
    assert (error.name, error.reason) == ("topic", reason)


#: All functions that take properties, beside mqdb.send.
TAKE_PROPERTIES = {
    "add_cron": """
        SELECT mqdb.add_cron('tick', '* * * * *', 'UTC', 'orders', 'x', NULL, NULL, {properties}, NULL, 'once',
                             '2100-01-01', '');
        SELECT properties FROM mqdb.cron""",
    "send_half": """
        SELECT mqdb.send_half(min(queue_key), NULL, 0, now(), gen_random_uuid(), 'host', NULL, NULL,
                              {properties} || '{{"PGROUP": "g"}}', 'x', 0, 0)
        FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'orders';
        SELECT properties FROM mqdb.commit_log""",
    "reply": """
        INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, properties, body)
        SELECT q.queue_key, mqdb.now(), 0, gen_random_uuid(), 'host', jsonb_build_object(
            'CLUSTER', b.cluster_name, 'CORRELATION_ID', 'c', 'REPLY_TO_CLIENT', 'me', 'TTL', '3000'), 'x'
        FROM mqdb.broker b, mqdb.queue q JOIN mqdb.topic t USING (topic_id) WHERE t.topic = 'orders' LIMIT 1;
        SELECT mqdb.reply(log_pos, msg_id, gen_random_uuid(), now(), 'host', NULL, {properties}, 'x', 0)
        FROM mqdb.commit_log;
        SELECT properties FROM mqdb.commit_log ORDER BY log_pos DESC LIMIT 1""",
}


#: A session of the owner has no rights of its own either, which send_half and reply ask for.
GRANT = b"""
    INSERT INTO mqdb.acl (principal, access, resource_type, resource)
    VALUES (session_user, 'SEND', 'TOPIC', 'orders'), (session_user, 'READ', 'TOPIC', 'orders'),
           (session_user, 'READ', 'GROUP', 'g')"""


@pytest.mark.parametrize("call", TAKE_PROPERTIES.values(), ids=TAKE_PROPERTIES)
def test_properties_are_texts_whichever_function_takes_them(session: Connection, call: str) -> None:
    session.execute(GRANT)
    *before, look = call.format(properties="""'{"a": 1.50, "b": true, "c": "x"}'::jsonb""").split(";\n")
    session.execute(";".join(before).encode(), prepare=False)

    stored = scalar(session, look)

    assert {name: stored[name] for name in "abc"} == {"a": "1.50", "b": "true", "c": "x"}


@pytest.mark.parametrize("call", TAKE_PROPERTIES.values(), ids=TAKE_PROPERTIES)
@pytest.mark.parametrize(("value", "kind"), [("null", "null"), ("[1]", "array"), ('{"b": 1}', "object")])
def test_other_values_of_properties_are_refused_by_name(session: Connection, call: str, value: str, kind: str) -> None:
    session.execute(GRANT)
    properties = f"""'{{"p": {value}}}'::jsonb"""

    with pytest.raises(psycopg.Error) as refused, session.transaction():
        session.execute(call.format(properties=properties).encode(), prepare=False)

    error = translate(refused.value, "here")
    assert isinstance(error, PropertyInvalid)
    assert str(error) == f"property 'p': the value is a JSON {kind}; give a text, a number or a boolean"


def test_blanks_between_keys_count_once(session: Connection) -> None:
    session.execute("SELECT mqdb.send('orders', 'x', keys => '  a   b ')")

    assert session.execute("SELECT keys FROM mqdb.commit_log").fetchone() == ("a b",)


@pytest.mark.parametrize("empty", ["", None])
def test_an_empty_tag_is_no_tag_and_empty_keys_are_no_keys(session: Connection, empty: str | None) -> None:
    session.execute("SELECT mqdb.send('orders', 'x', tag => %s, keys => %s, properties => NULL)", [empty, empty])

    row = session.execute("SELECT tags, keys, tags_code, properties FROM mqdb.commit_log").fetchone()
    assert row == (None, None, 0, {})


@pytest.mark.parametrize("key", ["N14228", "Aa", "BB", "polygenelubricants", "Grüße", "\U0001f600", ""])
def test_the_sharding_key_chooses_the_same_queue_as_in_java(session: Connection, key: str) -> None:
    session.execute("SELECT mqdb.send('orders', 'x', sharding_key => %s)", [key])

    queue_id = scalar(session, "SELECT queue_id FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key)")
    hash_code = java_string_hash(key)
    assert queue_id == abs(hash_code) % 4


def test_without_a_sharding_key_all_queues_get_messages(session: Connection) -> None:
    session.execute("SELECT mqdb.send('orders', 'x') FROM generate_series(1, 200)")

    assert scalar(session, "SELECT count(DISTINCT queue_key) FROM mqdb.commit_log") == 4


def test_a_message_is_rolled_back_with_its_transaction(log: Connection, orders: str) -> None:
    log.execute("BEGIN")
    log.execute("SELECT mqdb.send(%s, 'lost')", [orders])
    log.execute("ROLLBACK")
    log.execute("BEGIN")
    log.execute("SELECT mqdb.send(%s, 'kept')", [orders])
    assert dispatched_texts(log, commit=True) == ["kept"]


def dispatched_texts(log: Connection, *, commit: bool = False) -> list[str]:
    if commit:
        log.execute("COMMIT")
    dispatch_all(log)
    return [row[0] for row in log.execute("SELECT text FROM mqdb.message ORDER BY log_pos")]


def test_a_trigger_may_send(log: Connection, orders: str) -> None:
    log.execute("CREATE TABLE invoice (number integer)")
    log.execute(
        """CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$
           BEGIN
               PERFORM mqdb.send('orders', to_jsonb(NEW)::text, keys => NEW.number::text);
               RETURN NEW;
           END $$"""
    )
    log.execute("CREATE TRIGGER tell AFTER INSERT ON invoice FOR EACH ROW EXECUTE FUNCTION tell()")

    log.execute("INSERT INTO invoice VALUES (1), (2)")

    assert sorted(dispatched_texts(log)) == ['{"number": 1}', '{"number": 2}']


#: Where a record is, for which queue, and how many milliseconds it waits there.
PLACED = """
SELECT t.topic, q.queue_id, cl.properties ->> 'REAL_TOPIC', cl.properties ->> 'REAL_QID' = '1',
       cl.tags_code - floor(extract(epoch FROM cl.store_time) * 1000)
FROM mqdb.commit_log cl JOIN mqdb.queue q USING (queue_key) JOIN mqdb.topic t USING (topic_id)
"""


@pytest.mark.parametrize(("level", "queue_id", "waits"), [(3, 2, 10_000), (18, 17, 7_200_000), (100, 17, 7_200_000)])
def test_a_message_of_a_delay_level_waits(session: Connection, level: int, queue_id: int, waits: int) -> None:
    session.execute("SELECT mqdb.send('orders', 'x', delay_level => %s, sharding_key => 'b')", [level])

    [(*where, found)] = session.execute(PLACED).fetchall()
    assert where == ["SCHEDULE_TOPIC_XXXX", queue_id, "orders", False]
    assert found in (waits, waits + 1)


def test_a_message_with_a_time_of_delivery_waits_until_then(session: Connection) -> None:
    session.execute("SELECT mqdb.send('orders', 'x', tag => 'a', deliver_at => '2100-01-01 00:00:00.0001+00')")

    [(*where, _)] = session.execute(PLACED).fetchall()
    assert where[:3] == ["rmq_sys_wheel_timer", 0, "orders"]
    row = session.execute("SELECT tags_code, properties ->> 'TIMER_DELIVER_MS' FROM mqdb.commit_log").fetchone()
    assert row == (4_102_444_800_001, "4102444800001")


@pytest.mark.parametrize("argument", ["delay_level => 0", "delay_level => -1", "deliver_at => mqdb.now()"])
def test_what_is_due_at_once_does_not_wait(session: Connection, argument: str) -> None:
    session.execute(f"SELECT mqdb.send('orders', 'x', tag => 'a', {argument})".encode())

    assert session.execute(PLACED).fetchall()[0][0] == "orders"
    assert scalar(session, "SELECT tags_code FROM mqdb.commit_log") == tag_code("a")


def test_a_time_of_delivery_beyond_the_limit_is_refused(session: Connection) -> None:
    session.execute("UPDATE mqdb.broker SET timer_max_delay_ms = 1000")

    with pytest.raises(psycopg.Error, match="the limit of the broker is 1000 ms") as refused, session.transaction():
        session.execute("SELECT mqdb.send('orders', 'x', deliver_at => mqdb.now() + interval '1 minute')")

    assert isinstance(translate(refused.value, "here"), DelayTooLong)


def properties(values: object) -> str:
    return f"properties => '{json.dumps(values)}'"


BAD_INPUT = {
    "empty body": ("'orders', ''", BodyEmpty),
    "empty bytes": (r"'orders', '\x'::bytea", BodyEmpty),
    "no body": ("'orders', NULL::text", BodyEmpty),
    "large body": ("'orders', repeat('x', 4194305)", BodyTooLarge),
    "unknown topic": ("'ordres', 'x'", TopicNotFound),
    "no topic": ("NULL, 'x'", ParameterInvalid),
    "empty topic": ("'', 'x'", ParameterInvalid),
    "blank topic": ("' ', 'x'", ParameterInvalid),
    "name of no topic": ("'a topic', 'x'", TopicNotFound),
    "topic that is not writable": ("'closed', 'x'", TopicNotWritable),
    "reserved property": (f"'orders', 'x', {properties({'UNIQ_KEY': 'x'})}", PropertyReserved),
    "list as value": (f"'orders', 'x', {properties({'a': [1]})}", PropertyInvalid),
    "number with a blank name": (f"'orders', 'x', {properties({' ': 1})}", PropertyInvalid),
    "null as JSON body": ("'orders', NULL::jsonb", BodyEmpty),
    "null as value": (f"'orders', 'x', {properties({'a': None})}", PropertyInvalid),
    "object as value": (f"'orders', 'x', {properties({'a': {}})}", PropertyInvalid),
    "empty name": (f"'orders', 'x', {properties({'': 'x'})}", PropertyInvalid),
    "empty value": (f"'orders', 'x', {properties({'a': ''})}", PropertyInvalid),
    "blank name": (f"'orders', 'x', {properties({' ': 'x'})}", PropertyInvalid),
    "blank value": (f"'orders', 'x', {properties({'a': chr(9)})}", PropertyInvalid),
    "U+0001 in a name": (f"'orders', 'x', {properties({'a' + chr(1): 'x'})}", PropertyInvalid),
    "U+0002 in a value": (f"'orders', 'x', {properties({'a': 'x' + chr(2)})}", PropertyInvalid),
    "U+0001 in the tag": ("'orders', 'x', tag => chr(1)", PropertyInvalid),
    "U+0002 in the keys": ("'orders', 'x', keys => 'a' || chr(2)", PropertyInvalid),
    "list of properties": (f"'orders', 'x', {properties(['a'])}", ParameterInvalid),
    "text as properties": (f"'orders', 'x', {properties('a')}", ParameterInvalid),
    "properties too large": (f"'orders', 'x', {properties({'a': 'x' * 32_800})}", PropertiesTooLarge),
    "level and time": ("'orders', 'x', delay_level => 1, deliver_at => now()", ScheduleInvalid),
    "no end of time": ("'orders', 'x', deliver_at => 'infinity'", ScheduleInvalid),
    "no begin of time": ("'orders', 'x', deliver_at => '-infinity'", ScheduleInvalid),
    "tag too large": ("'orders', 'x', tag => repeat('ü', 16400)", PropertiesTooLarge),
} | {f"topic {name}": (f"'{name}', 'x'", TopicNotAllowed) for name in sorted(NOT_ALLOWED_SEND)}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_refused_and_nothing_stored(session: Connection, case: str) -> None:
    arguments, kind = BAD_INPUT[case]
    create_topic(session, "closed")
    session.execute("UPDATE mqdb.topic SET perm = 4 WHERE topic = 'closed'")

    with pytest.raises(psycopg.Error) as refused, session.transaction():
        session.execute(f"SELECT mqdb.send({arguments})".encode())

    assert type(translate(refused.value, "here")) is kind
    assert scalar(session, "SELECT count(*) FROM mqdb.commit_log") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        "'orders', repeat('x', 4194304)",
        f"'orders', 'x', {properties({'a': 'x' * (32_767 - 3 - 42)})}",
        "'orders', 'x', tag => ' '",
        f"'orders', 'x', {properties({'a': ' x '})}",
    ],
    ids=["largest body", "largest properties", "blank tag", "blanks around a value"],
)
def test_input_at_the_limit_is_taken(session: Connection, arguments: str) -> None:
    session.execute(f"SELECT mqdb.send({arguments})".encode())

    assert scalar(session, "SELECT count(*) FROM mqdb.commit_log") == 1


@pytest.mark.parametrize("name", sorted(SYSTEM_TOPICS - NOT_ALLOWED_SEND))
def test_other_system_topics_take_messages(session: Connection, name: str) -> None:
    if name != TEMPLATE_TOPIC:
        create_topic(session, name)

    session.execute("SELECT mqdb.send(%s, 'x')", [name])

    assert scalar(session, "SELECT count(*) FROM mqdb.commit_log") == 1


def test_a_topic_that_goes_while_a_message_is_sent_is_not_taken_for_a_success(log: Connection, orders: str) -> None:
    log.execute("DELETE FROM mqdb.queue")

    with pytest.raises(psycopg.Error) as refused:
        log.execute("SELECT mqdb.send(%s, 'x')", [orders])

    assert type(translate(refused.value, "here")) is TopicNotFound


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(texts=st.lists(texts, min_size=1, max_size=20))
def test_hashes_are_those_of_java(session: Connection, texts: list[str]) -> None:
    rows = session.execute(
        "SELECT mqdb.java_hash(t), mqdb.tag_code(t) FROM unnest(%s::text[]) AS t", [texts]
    ).fetchall()

    assert rows == [(java_string_hash(text), tag_code(text)) for text in texts]


def test_the_codes_that_rocketmq_gives(session: Connection) -> None:
    cases = [json.loads(line) for line in TAG_VECTORS.read_text(encoding="utf-8").splitlines()]
    recorded = {case["tag"]: case["tags_code"] for case in cases if case["kind"] in ("hash", "match")}
    storable = [tag for tag in recorded if tag is None or not re.search("[\0\ud800-\udfff]", tag)]

    rows = session.execute("SELECT t, mqdb.tag_code(t) FROM unnest(%s::text[]) AS t", [storable]).fetchall()

    assert len(rows) > 50
    assert dict(rows) == {tag: recorded[tag] for tag in storable}


def test_no_tag_has_code_0(session: Connection) -> None:
    assert scalar(session, "SELECT mqdb.tag_code(NULL)") == tag_code(None) == 0


@pytest.mark.parametrize(
    ("function", "names"),
    [("reserved_properties", RESERVED_PROPERTIES), ("topics_not_allowed", NOT_ALLOWED_SEND)],
)
def test_what_is_the_brokers_own_is_so_for_python_too(
    session: Connection, function: str, names: frozenset[str]
) -> None:
    assert sorted(scalar(session, f"SELECT mqdb.{function}()")) == sorted(names)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("schedule_topic", SCHEDULE_TOPIC),
        ("timer_topic", TIMER_TOPIC),
        ("half_topic", HALF_TOPIC),
        ("retry_prefix", RETRY_PREFIX),
        ("dlq_prefix", DLQ_PREFIX),
    ],
)
def test_names_of_system_topics_are_those_of_python(session: Connection, function: str, name: str) -> None:
    assert scalar(session, f"SELECT mqdb.{function}()") == name


@pytest.mark.parametrize(
    ("function", "limit"), [("max_body_bytes", MAX_BODY_BYTES), ("max_properties_bytes", MAX_PROPERTIES_BYTES)]
)
def test_limits_are_those_of_python(session: Connection, function: str, limit: int) -> None:
    assert scalar(session, f"SELECT mqdb.{function}()") == limit


@pytest.mark.parametrize("clock_offset", ["1 hour", "-2 days"])
def test_the_clock_can_be_moved_in_a_database_for_tests(session: Connection, clock_offset: str) -> None:
    session.execute(f"SET mqdb.clock_offset = '{clock_offset}'")
    session.execute("SELECT mqdb.send('orders', 'x')")

    moved = "SELECT %s - clock_timestamp() - '" + clock_offset + "'::interval FROM mqdb.commit_log"
    for moment in ("mqdb.now()", "store_time", "born_time"):
        assert abs(scalar(session, moved.replace("%s", moment))) < timedelta(minutes=1)
    session.execute("RESET mqdb.clock_offset")
    assert abs(scalar(session, "SELECT mqdb.now() - clock_timestamp()")) < timedelta(seconds=1)


def test_the_view_shows_what_a_consumer_can_read(log: Connection, database: Database) -> None:
    queue = create_topic(log, "one")[0]
    for number in range(3):
        log.execute("SELECT mqdb.send('one', %s::text)", [str(number)])
    dispatch_all(log)
    log.execute("UPDATE mqdb.queue SET base_offset = 1 WHERE queue_key = %s", [queue])
    log.execute("SELECT mqdb.send('one', 'not dispatched')")
    writer = database.connect()
    writer.execute("BEGIN")
    writer.execute("SELECT mqdb.send('one', 'not committed')")

    rows = log.execute("SELECT topic, queue_id, queue_offset, text FROM mqdb.message ORDER BY queue_offset").fetchall()

    assert rows == [("one", 0, 1, "1"), ("one", 0, 2, "2")]
