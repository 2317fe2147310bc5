"""Half messages of RocketMQ's clients: sent, ended, and checked."""

from datetime import timedelta

import pytest
from sqlalchemy import Connection, text

from mqdb.remoting.session import members
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame
from mqdb.remoting.wire.messages import decode_properties
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import Fronts, RemotingClient
from tests.fixtures.transactions import Checker
from tests.integration.remoting.test_sends import LONG_ID, SHORT_ID, position_of, properties, send

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
ASKED = RequestCode.CHECK_TRANSACTION_STATE


@pytest.fixture
def client(fronts: Fronts) -> RemotingClient:
    return fronts.connect()


@pytest.fixture
def checker(broker: Connection) -> Checker:
    """The transaction checker of `broker`, whose connection's clock the test moves."""
    return Checker(broker)


def send_half(client: RemotingClient, unique_id: str = SHORT_ID) -> Frame:
    said = properties(TRAN_MSG="true", PGROUP="shop", UNIQ_KEY=unique_id, DELAY="3")
    answer = send(client, b"half", f=4, i=said)
    assert (answer.code, answer.fields["transactionId"]) == (0, unique_id)
    return answer


def end(
    client: RemotingClient, half: Frame, state: int, unique_id: str = SHORT_ID, *, is_answer: bool = False
) -> Frame:
    fields = {
        "producerGroup": "shop", "tranStateTableOffset": -1, "commitLogOffset": position_of(half),
        "commitOrRollback": state, "fromTransactionCheck": str(is_answer).lower(), "msgId": unique_id,
        "transactionId": unique_id,
    }  # fmt: skip
    return client.request(RequestCode.END_TRANSACTION, fields)


def in_topic(broker: Connection) -> list[str]:
    """The bodies that consumers of `orders` receive."""
    dispatch_all(broker)
    rows = broker.scalars(text("SELECT convert_from(body, 'UTF8') FROM mqdb.message WHERE topic = 'orders'"))
    return list(rows)


@pytest.mark.parametrize("unique_id", [SHORT_ID, LONG_ID])
def test_a_commit_brings_the_message_and_a_second_one_nothing(
    broker: Connection, client: RemotingClient, unique_id: str
) -> None:
    topic(broker)
    half = send_half(client, unique_id)
    before = in_topic(broker)

    answers = [end(client, half, COMMIT, unique_id).code for _ in range(2)]

    assert (before, answers, in_topic(broker)) == ([], [0, 0], ["half"])


def test_a_rollback_brings_nothing(broker: Connection, client: RemotingClient) -> None:
    topic(broker)

    assert end(client, send_half(client), ROLLBACK).code == 0

    assert in_topic(broker) == []


def test_an_end_of_what_is_no_half_message_is_refused(broker: Connection, client: RemotingClient) -> None:
    topic(broker)
    half = send_half(client)

    assert end(client, half, 7).code == 29
    assert end(client, half, COMMIT, LONG_ID).code == 1  # of another message
    assert end(client, send(client, b"plain"), COMMIT).code == 1
    far = {"producerGroup": "shop", "commitLogOffset": 2**63 - 1, "commitOrRollback": COMMIT, "msgId": SHORT_ID}
    assert client.request(RequestCode.END_TRANSACTION, far).code == 1
    assert in_topic(broker) == ["plain"]


def test_a_client_whose_ends_are_refused_again_and_again_is_one_line_of_the_log(
    broker: Connection, client: RemotingClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic(broker)
    half = send_half(client)

    codes = [end(client, half, COMMIT, LONG_ID).code for _ in range(3)]
    codes += [end(client, half, COMMIT).code, end(client, half, COMMIT, LONG_ID).code]

    assert codes == [1, 1, 1, 0, 1]
    assert caplog.text.count("refused the end of the transaction at position") == 2


@pytest.mark.parametrize("is_known", [True, False])
def test_who_says_nothing_is_asked_and_its_answer_counts(
    broker: Connection, client: RemotingClient, checker: Checker, is_known: bool
) -> None:
    """A producer without a decision is asked, and its answer counts.

    This also holds if the producer sent the half message before its first heartbeat.
    """
    topic(broker)
    if is_known:
        client.heartbeat("9.9.9.9@1", producers=["shop"])
    half = send_half(client)
    if not is_known:
        client.heartbeat("9.9.9.9@1", producers=["shop"])
    wait_until(lambda: broker.scalar(text("SELECT count(*) FROM mqdb.client WHERE checks_transactions")) == 1)
    dispatch_all(broker)

    checker.after(timedelta(seconds=7))
    question = client.asked.get(timeout=30)
    answer = end(client, half, COMMIT, is_answer=True)

    assert question.code == ASKED
    assert question.is_oneway
    assert question.fields["commitLogOffset"] == str(position_of(half))
    assert (question.fields["msgId"], question.fields["transactionId"]) == (SHORT_ID, SHORT_ID)
    assert properties_of(question.body)["PGROUP"] == "shop"
    assert (answer.code, in_topic(broker)) == (0, ["half"])


def test_who_does_not_know_is_asked_again_and_not_twice_at_once(
    broker: Connection, client: RemotingClient, checker: Checker
) -> None:
    topic(broker)
    client.heartbeat("9.9.9.9@1", producers=["shop"])
    half = send_half(client)
    wait_until(lambda: broker.scalar(text("SELECT count(*) FROM mqdb.client WHERE checks_transactions")) == 1)
    dispatch_all(broker)
    checker.after(timedelta(seconds=7))
    client.asked.get(timeout=30)

    broker.execute(text("SELECT pg_notify('mqdb', 'c:9.9.9.9@1')"))
    end(client, half, UNKNOWN, is_answer=True)
    checker.after(timedelta(seconds=31))
    again = client.asked.get(timeout=30)

    assert again.fields["commitLogOffset"] == str(position_of(half))
    assert properties_of(again.body)["TRANSACTION_CHECK_TIMES"] == "2"
    assert client.asked.empty()


def test_another_producer_of_the_group_is_asked_for_one_that_is_gone(
    broker: Connection, fronts: Fronts, checker: Checker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a producer is gone, another producer of the group is asked.

    The other producer has not sent a half message itself: it is the same program, started again.
    """
    monkeypatch.setattr(members, "_BEAT_SECONDS", 0.1)
    topic(broker)
    gone = fronts.connect()
    gone.heartbeat("9.9.9.9@1", producers=["shop"])
    half = send_half(gone)
    wait_until(lambda: checkers(broker) == ["9.9.9.9@1"])
    gone.request(RequestCode.UNREGISTER_CLIENT, {"clientID": "9.9.9.9@1", "producerGroup": "shop"})
    gone.close()
    dispatch_all(broker)
    other = fronts.connect()
    other.heartbeat("9.9.9.9@2", producers=["shop", "others"])

    checker.after(timedelta(seconds=7))  # there is nobody to ask
    wait_until(lambda: checkers(broker) == ["9.9.9.9@2"])
    checker.after(timedelta(seconds=60))

    assert other.asked.get(timeout=30).fields["commitLogOffset"] == str(position_of(half))


def checkers(broker: Connection) -> list[str]:
    return list(broker.scalars(text("SELECT client_id FROM mqdb.client WHERE checks_transactions")))


def properties_of(message: bytes) -> dict[str, str]:
    at = 88 + int.from_bytes(message[84:88])
    return decode_properties(message[at + 1 + message[at] + 2 :].decode())
