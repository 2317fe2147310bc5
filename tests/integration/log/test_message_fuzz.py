"""Random messages: the client and SQL accept the same ones, and these stay unchanged, byte for byte, to the end."""

import json
import random
from datetime import UTC, datetime
from typing import Any

import psycopg
from sqlalchemy import Connection

from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.broker.dead_letters import Redrive, redrive_messages
from mqdb.common.failure import Failure
from mqdb.common.message import Message, MessageQueue, check_message
from mqdb.common.property import RESERVED_PROPERTIES
from mqdb.common.retry import Retry
from mqdb.common.topic import dlq_topic, retry_topic
from mqdb.errors import MessageIllegal, ParameterInvalid
from mqdb.store.dead_letters import RedriveStatus
from mqdb.store.engine import driver
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.dead_letters import create_group
from tests.fixtures.delay import deliver_all, records
from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.processes import wait_until
from tests.fixtures.retries import set_delay

GROUP = "billing"
LATER = Failure.later("10.0.0.1@7", datetime(2026, 7, 14, tzinfo=UTC))

#: Beside letters: what RocketMQ, JSON, SQL, terminals or Unicode treat in a way of their own.
ODD = [
    *"\0\1\2\t\n\r\x1b\x7f\x85\xa0 '\"\\%{\u2028\u3000\ufeff\uffff",
    "\ud800",
    "\udfff",
    "é",
    "e\u0301",
    "価",
    "\U0001f600",
]


#: What no property may hold.
FORBIDDEN = frozenset("\0\1\2\ud800\udfff")


def any_text(chance: random.Random, longest: int = 6, *, is_legal: bool = False) -> str:
    odd = [each for each in ODD if not (is_legal and each in FORBIDDEN)]
    return "".join(
        chance.choice((chance.choice(odd), chance.choice("abcXYZ"))) for _ in range(chance.randrange(longest))
    )


def any_message(chance: random.Random) -> dict[str, Any]:
    """The fields of a message. Two of three messages are legal, at least as far as their texts are concerned."""
    is_legal = chance.random() < 0.67
    names = [any_text(chance), "a", "a b", chance.choice(sorted(RESERVED_PROPERTIES)), "x" * 300]
    values = [any_text(chance, 20), "v", " ", "", "v" * 20_000]
    tag = any_text(chance, is_legal=is_legal)
    keys = [any_text(chance, is_legal=is_legal).replace(" ", "") for _ in range(chance.randrange(3))]
    return {
        "body": chance.randbytes(chance.choice((1, 2, 300, 20_000) if is_legal else (0, 1))),
        "tag": tag or None,
        "keys": [key for key in keys if key],
        "properties": {
            f"p{number}{any_text(chance, is_legal=True)}" if is_legal else chance.choice(names): (
                f"v{any_text(chance, 20, is_legal=True)}" if is_legal else chance.choice(values)
            )
            for number in range(chance.randrange(4))
        },
    }


def client_takes(fields: dict[str, Any]) -> bool:
    try:
        check_message(Message("orders", **fields))
    except (MessageIllegal, ParameterInvalid):
        return False
    return True


def sql_takes(connection: "psycopg.Connection[Any]", fields: dict[str, Any]) -> bool:
    """Whether SQL accepts a message. Raises errors that are not mqdb's own."""
    keys = " ".join(fields["keys"]) or None
    try:
        with connection.transaction():
            statement = "SELECT mqdb.send('fuzzed', %s, %s, %s, %s::jsonb)"
            connection.execute(
                statement, [fields["body"], fields["tag"], keys, json.dumps(fields["properties"], ensure_ascii=False)]
            )
    except (psycopg.DataError, UnicodeEncodeError):  # no text of PostgreSQL: U+0000, half a pair
        return False
    except psycopg.Error as error:
        if not (error.sqlstate or "").startswith("MQ"):
            raise
        return False
    return True


def test_sql_takes_the_messages_that_the_client_takes(broker: Connection) -> None:
    topic(broker, "fuzzed")
    chance = fuzz_random()
    taken = 0
    for _ in range(fuzz_cases()):
        fields = any_message(chance)

        assert sql_takes(driver(broker), fields) == client_takes(fields), fields
        taken += client_takes(fields)
    assert taken > fuzz_cases() // 4


def test_a_message_stays_what_it_is_through_retry_dead_letter_and_redrive(broker: Connection) -> None:
    route = topic(broker)
    create_group(broker, GROUP)
    set_delay(broker, "1 ms")
    chance = fuzz_random()
    sent = [Message("orders", **fields) for _ in range(fuzz_cases()) if client_takes(fields := any_message(chance))]
    assert sent
    for batch in range(0, len(sent), 200):
        append(broker, route, *sent[batch : batch + 200])
    dispatch_all(broker)
    expected = [content(record) for record in records(broker)]
    assert [body for body, *_ in expected] == [message.body for message in sent]
    assert [only_mine(each[3]) for each in expected] == [dict(message.properties) for message in sent]

    fail(broker, "orders", level=1)
    dispatch_all(broker)
    wait_until(lambda: deliver_all(broker) >= 0 and len(records(broker, retry_topic(GROUP))) == len(sent))
    dispatch_all(broker)
    assert by_id(broker, retry_topic(GROUP)) == expected

    fail(broker, retry_topic(GROUP), level=-1)
    dispatch_all(broker)
    assert by_id(broker, dlq_topic(GROUP)) == expected

    dead = [record["log_pos"] for record in records(broker, dlq_topic(GROUP))]
    for batch in range(0, len(dead), 500):
        results = redrive_messages(broker, dead[batch : batch + 500], Redrive("a test"))
        assert {result.status for result in results} == {RedriveStatus.REDRIVEN}
    assert by_id(broker, retry_topic(GROUP))[: len(sent)] == expected
    redriven = records(broker, retry_topic(GROUP))[len(sent) :]
    assert sorted(map(content, redriven), key=str) == sorted(expected, key=str)


def fail(broker: Connection, name: str, level: int) -> None:
    """Send all messages of a topic back."""
    for record in records(broker, name):
        queue = MessageQueue(name, "broker-a", record["queue_id"])
        send_back(broker, GROUP, [SendBackRequest(record["log_pos"], queue, 0, LATER, Retry(level))])


def content(record: dict[str, Any]) -> tuple[Any, ...]:
    """The parts of a record that its sender sets."""
    return record["body"], record["tags"], record["keys"], only_mine(record["properties"]), record["msg_id"]


def only_mine(properties: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in RESERVED_PROPERTIES}


def by_id(broker: Connection, name: str) -> list[tuple[Any, ...]]:
    """The messages of a topic in send order, because ids ascend."""
    return [content(record) for record in records(broker, name)]
