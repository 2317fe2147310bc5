"""Compressed bodies in the log, as receivers, the view and the command line show them."""

import uuid
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.pull import PullStatus, pull
from mqdb.broker.log import send
from mqdb.common.compression import Compression, compress, compressed, compressed_flag
from mqdb.common.message import Message
from mqdb.common.received_message import ReceivedMessage
from mqdb.errors import CompressedBodyBroken
from mqdb.store.topics.topics import TopicRoute
from tests.fixtures.broker import dispatch_all, request, topic
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database

BODY = "Grüße 🚀 ".encode() * 1_000
every_compression = pytest.mark.parametrize("how", Compression)


def store(broker: Connection, route: TopicRoute, body: bytes, sys_flag: int) -> None:
    """Store a record with exactly this body."""
    message = Message(route.config.name, BODY)
    record = send.record(
        message, route.queue_keys[0], uuid.uuid4(), datetime.now(UTC), "127.0.0.1", body=body, sys_flag=sys_flag
    )
    send.append(broker, [record])
    dispatch_all(broker)


def received(broker: Connection, route: TopicRoute) -> list[ReceivedMessage]:
    [result], _ = pull(broker, [request(route)])
    return result.messages


@every_compression
def test_a_compressed_body_is_stored_small_and_received_as_it_was(broker: Connection, how: Compression) -> None:
    route = topic(broker)

    store(broker, route, *compressed(BODY, how, 4_096))

    [message] = received(broker, route)
    assert message.body == BODY
    assert message.sys_flag == compressed_flag(how)
    assert broker.scalar(text("SELECT octet_length(body) FROM mqdb.commit_log")) == len(message.stored_body) < 4_096


def test_the_bytes_of_a_pull_are_those_that_are_stored(broker: Connection) -> None:
    route = topic(broker)
    for _ in range(3):
        store(broker, route, *compressed(BODY, Compression.ZLIB, 4_096))

    [result], _ = pull(broker, [request(route)], max_bytes=len(BODY))

    assert (result.status, result.next_begin_offset) == (PullStatus.FOUND, 3)
    assert [message.body for message in result.messages] == [BODY] * 3


def test_a_broken_body_does_not_keep_others_from_being_pulled(broker: Connection) -> None:
    route = topic(broker)
    store(broker, route, b"no zlib", compressed_flag(Compression.ZLIB))
    store(broker, route, b"plain", 0)

    broken, plain = received(broker, route)

    assert plain.body == b"plain"
    with pytest.raises(CompressedBodyBroken):
        _ = broken.body


@pytest.mark.parametrize(
    ("sys_flag", "shown"),
    [(0, None), (0x300, None), (1, "ZLIB"), (0x101, "LZ4"), (0x201, "ZSTD"), (0x301, "ZLIB"), (0x501, "type 5")],
)
def test_the_view_tells_how_a_body_is_compressed(broker: Connection, sys_flag: int, shown: str | None) -> None:
    route = topic(broker)

    store(broker, route, b"stored", sys_flag)

    assert broker.scalar(text("SELECT compression FROM mqdb.message")) == shown


@every_compression
def test_the_view_shows_no_compressed_body_as_text(broker: Connection, how: Compression) -> None:
    """The view shows no compressed body as text.

    This includes a compressed body that is valid UTF-8, as an LZ4 block of plain ASCII mostly is.
    """
    route = topic(broker)
    store(broker, route, b"ASCII", compressed_flag(how))
    store(broker, route, BODY, 0)

    rows = broker.execute(text("SELECT text, compression FROM mqdb.message ORDER BY queue_offset")).all()

    assert rows == [(None, how), (BODY.decode(), None)]


@every_compression
def test_the_command_line_prints_the_body_that_was_sent(
    broker: Connection, database: Database, tmp_path: Path, how: Compression
) -> None:
    route = topic(broker)
    store(broker, route, compress(BODY, how), compressed_flag(how))

    assert Place(tmp_path, database.dsn).done("consume", "orders", "--exit") == BODY.decode() + "\n"
