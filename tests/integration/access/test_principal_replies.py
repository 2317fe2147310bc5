"""Requests and replies of roles that do not own the broker.

Each role reads its own replies, and answers requests that it may read.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta

import psycopg
import pytest

from mqdb.common.topic import reply_topic
from mqdb.settings import load_settings
from mqdb_client import (
    Admin,
    ConsumeConcurrentlyStatus,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    create_reply_message,
    errors,
)
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal
from tests.fixtures.processes import wait_until
from tests.fixtures.requests import request_of
from tests.fixtures.variants import usually

LONG = timedelta(seconds=30)
REPLIES = reply_topic("DefaultCluster")
SHOP = 'the "shop"'


@pytest.fixture
def shop(principal: Principal) -> str:
    """The role that sends requests."""
    return principal(SHOP, send=["orders"])


@pytest.fixture
def desk(principal: Principal) -> str:
    """The role that replies."""
    return principal("desk @ work", read=["orders"], group=["desk"])


Start = Callable[..., Producer]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Producer] = []

    def start(dsn: str, name: str = "one") -> Producer:
        started.append(Producer("group", settings=load_settings(dsn=dsn), instance_name=name))
        started[-1].start()
        return started[-1]

    yield start
    for producer in started:
        producer.shutdown()


def answering(dsn: str, replier: Producer, group: str = "desk") -> PushConsumer:
    """A consumer that replies to each message with the body in upper case."""

    def answer(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        for message in messages:
            replier.send(create_reply_message(message, message.body.upper(), keys="k-1", properties={"mood": "good"}))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer(group, dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(answer)
    return consumer


def test_a_role_asks_and_another_one_replies(shop: str, desk: str, start: Start) -> None:
    requester = start(shop)
    with answering(desk, start(desk)):
        replies = [requester.request(Message("orders", f"question {number}"), LONG) for number in range(3)]
        later = requester.request_async(Message("orders", "and now?"), LONG)

        assert [reply.body for reply in replies] == [f"QUESTION {number}".encode() for number in range(3)]
        assert later.result(60).body == b"AND NOW?"

    reply = replies[0]
    assert (reply.keys, reply.properties["mood"], reply.properties["MSG_TYPE"]) == (("k-1",), "good", "reply")


@pytest.mark.parametrize("who", usually("asks", of=["asks", "replies"]))
def test_the_owner_is_one_side_of_it(shop: str, desk: str, database: Database, start: Start, who: str) -> None:
    requester = start(database.dsn if who == "asks" else shop)
    member, replier = (desk, start(desk)) if who == "asks" else (database.dsn, start(database.dsn))
    with answering(member, replier):
        assert requester.request(Message("orders", "question"), LONG).body == b"QUESTION"


def test_a_reply_may_be_sent_in_every_way(shop: str, desk: str, database: Database, start: Start) -> None:
    requester, replier = start(shop), start(desk)
    waiting = [requester.request_async(Message("orders", str(number)), LONG) for number in range(3)]
    requests = [request_of(database, number) for number in range(3)]

    sent = replier.send(create_reply_message(requests[0], "sync"))
    called: list[Future[SendResult]] = []
    at_once = replier.send_async(create_reply_message(requests[1], "async"), callback=called.append)
    replier.send_oneway(create_reply_message(requests[2], "oneway"))

    by_request = {
        request.body.decode(): body for request, body in zip(requests, ("sync", "async", "oneway"), strict=True)
    }
    assert {str(number): future.result(60).body.decode() for number, future in enumerate(waiting)} == by_request
    assert (sent.queue.topic, at_once.result(0).queue.topic, called) == (REPLIES, REPLIES, [at_once])
    with pytest.raises(errors.NotSupported):
        _ = sent.queue_offset


def test_two_roles_with_the_same_client_read_their_own_replies_only(
    principal: Principal, desk: str, database: Database, start: Start
) -> None:
    """Two roles with the same client read only their own replies.

    Clients of one process have the same names, whichever role logs in.
    """
    one, other = start(principal("one", send=["orders"])), start(principal("other", send=["orders"]))
    mine, theirs = one.request_async(Message("orders", "1"), LONG), other.request_async(Message("orders", "2"), LONG)
    requests = {request.body: request for request in (request_of(database, 0), request_of(database, 1))}
    addresses = {request.properties["REPLY_TO_CLIENT"] for request in requests.values()}
    assert {address.split(":")[1] for address in addresses} == {"one", "other"}
    assert len({address.split(":", 2)[2] for address in addresses}) == 1

    replier = start(desk)
    replier.send(create_reply_message(requests[b"2"], "for the other"))
    assert theirs.result(60).body == b"for the other"
    assert not mine.done()
    replier.send(create_reply_message(requests[b"1"], "for the one"))
    assert mine.result(60).body == b"for the one"


def test_who_was_not_given_the_request_cannot_reply(
    shop: str, principal: Principal, database: Database, start: Start
) -> None:
    waiting = start(shop).request_async(Message("orders", "1"), LONG)
    request = request_of(database)
    strangers = [
        principal("reader", read=["orders"]),
        principal("member", read=["secret"], group=["desk"]),
        principal("sender", send=["orders"]),
    ]
    for dsn in strangers:
        replier = start(dsn)
        with pytest.raises(errors.ReplyImpossible):
            replier.send(create_reply_message(request, "forged"))
        with pytest.raises(errors.ReplyImpossible):
            replier.send_async(create_reply_message(request, "forged")).result(30)

    assert not waiting.done()
    assert database.rows("SELECT count(*) FROM mqdb.commit_log WHERE body = 'forged'") == [(0,)]


def test_a_request_that_was_sent_back_is_replied_to(shop: str, desk: str, start: Start, served: object) -> None:
    replier, tries = start(desk), []

    def answer(messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        [message] = messages
        tries.append(message.reconsume_times)
        if message.reconsume_times == 0:
            return ConsumeConcurrentlyStatus.RECONSUME_LATER
        replier.send(create_reply_message(message, "at last"))
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS

    consumer = PushConsumer("desk", desk, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("orders")
    consumer.register_listener(answer)
    with consumer:
        assert start(shop).request(Message("orders", "1"), timedelta(seconds=90)).body == b"at last"
    assert tries == [0, 1]


def test_who_may_not_send_the_request_does_not_wait(shop: str, start: Start, owner: Admin) -> None:
    requester = start(shop)
    for topic in ("secret", "no-such-topic"):
        with pytest.raises(errors.AccessDenied, match=f"SEND on TOPIC '{topic}'"):
            requester.request(Message(topic, "x"), LONG)


def test_a_reply_in_a_transaction_of_its_own_is_refused(shop: str, desk: str, database: Database, start: Start) -> None:
    waiting = start(shop).request_async(Message("orders", "1"), LONG)
    with psycopg.connect(desk) as connection, pytest.raises(errors.AccessDenied, match=REPLIES):
        start(desk).send(create_reply_message(request_of(database), "x"), connection=connection)

    assert not waiting.done()


def test_replies_that_came_while_others_were_many_are_found(
    shop: str, desk: str, database: Database, start: Start
) -> None:
    """Replies that arrived among many others are found, even if more than one read is needed to get past the others."""
    waiting = start(shop).request_async(Message("orders", "1"), LONG)
    request = request_of(database)
    connection = database.connect()
    connection.execute(
        """INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, tags, properties, body)
           SELECT q.queue_key, mqdb.now(), 7, gen_random_uuid(), 'host', 'others', '{}', 'x'
           FROM mqdb.queue q JOIN mqdb.topic t USING (topic_id), generate_series(1, 25000) WHERE t.topic = %s""",
        [REPLIES],
    )
    start(desk).send(create_reply_message(request, "mine"))

    wait_until(waiting.done)
    assert waiting.result(0).body == b"mine"
