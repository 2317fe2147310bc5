"""Access keys: which clients sign, and what their rights allow."""

import json
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, text

from mqdb.broker.consumers.group_offsets import commit_without_owner
from mqdb.broker.consumers.groups import update_group
from mqdb.common.dsn import BrokerDsn
from mqdb.common.http_address import HttpAddress
from mqdb.common.message import MAX_BODY_BYTES
from mqdb.common.topic import TRACE_TOPIC
from mqdb.embedded import EmbeddedPostgres
from mqdb.errors import ParameterInvalid
from mqdb.fronts.access_keys import OpenToAll
from mqdb.fronts.known_names import own_id
from mqdb.remoting import front as front_module
from mqdb.remoting.front import Front
from mqdb.remoting.session import members
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame, encode_frame
from mqdb.remoting.wire.messages import offset_id
from mqdb.remoting.wire.signature import sign
from mqdb.store.consumers.group_offsets import ReadQueue
from mqdb.store.topics.topics import TopicRoute, find_topic
from mqdb_client import Admin
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.postgres import Database, new_database
from tests.fixtures.processes import wait_until
from tests.fixtures.remoting_client import PATIENCE_SECONDS, Fronts, RemotingClient, consumer, next_asked
from tests.fixtures.remoting_pops import pop_header, popped, popping_group, receipt_fields
from tests.fixtures.transactions import Checker
from tests.fixtures.variants import case, usually
from tests.integration.remoting.test_sends import header, header_long, position_of, properties

KEY, SECRET = "shop-java", "not so secret ö"
DENIED = 16


class Signing:
    """A client that signs its requests."""

    def __init__(self, client: RemotingClient, key: str = KEY, secret: str = SECRET) -> None:
        self.client = client
        self._key, self._secret = key, secret

    def ask(self, code: int, fields: dict[str, object] | None = None, body: object = b"") -> Frame:
        return self.begin(code, fields, body).result(PATIENCE_SECONDS)

    def begin(self, code: int, fields: dict[str, object] | None = None, body: object = b"") -> "Future[Frame]":
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = {name: str(value) for name, value in (fields or {}).items()} | {"AccessKey": self._key}
        return self.client.begin(code, named | {"Signature": sign(self._secret, named, data)}, data)


@pytest.fixture(scope="module")
def scene(postgres: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """Name of a database with two topics and a key; each test has its own copy."""
    with new_database(postgres, template_database) as database:
        with Admin(database.dsn) as admin:
            for name in ("orders", "letters"):
                admin.topics.create(name, queues=1)
            admin.acl.grant(KEY, external=True, send=["orders"], read=["letters"], group=["readers"])
            admin.acl.set_secret(KEY, SECRET)
        yield database.name


@pytest.fixture
def database(postgres: EmbeddedPostgres, scene: str) -> Iterator[Database]:
    with new_database(postgres, scene) as copy:
        yield copy


@pytest.fixture
def key(broker: Connection) -> str:
    """An access key that may send to `orders`, and read `letters` as a member of `readers`."""
    return KEY


@pytest.fixture
def signing(key: str, fronts: Fronts) -> Signing:
    return Signing(fronts.connect(), key)


def test_a_key_does_what_it_has_the_right_to(broker: Connection, signing: Signing) -> None:
    append(broker, topic(broker, "others"), "x")
    dispatch_all(broker)

    assert signing.ask(310, header(), "ö".encode()).code == 0
    assert signing.ask(310, header(b="letters"), b"a").code == DENIED
    assert signing.ask(RequestCode.QUERY_MESSAGE, {"topic": "orders", "key": "k"}).code == DENIED
    assert signing.ask(RequestCode.QUERY_MESSAGE, {"topic": "letters", "key": "k"}).code == 22


def test_a_key_pops_what_it_may_read(broker: Connection, signing: Signing, fronts: Fronts) -> None:
    for group in ("readers", "others"):
        popping_group(broker, group)
    route = find_topic(broker, "letters")
    assert route is not None
    append(broker, route, "a", "b")
    dispatch_all(broker)
    heartbeat = {"clientID": "1.2.3.4@1", "consumerDataSet": [consumer(letters="*")]}
    assert signing.ask(RequestCode.HEART_BEAT, body=heartbeat).code == 0
    assigned = {"consumerGroup": "readers", "topic": "letters", "clientId": "1.2.3.4@1", "strategyName": "AVG"}

    [message, other] = popped(signing.ask(RequestCode.POP_MESSAGE, pop_header("letters", "readers")))
    receipt = receipt_fields(message, "readers")
    answers = {
        "another topic": signing.ask(RequestCode.POP_MESSAGE, pop_header("orders", "readers")),
        "another group": signing.ask(RequestCode.POP_MESSAGE, pop_header("letters", "others")),
        "unsigned": fronts.connect().request(RequestCode.POP_MESSAGE, pop_header("letters", "readers")),
        "ack of another group": signing.ask(RequestCode.ACK_MESSAGE, receipt | {"consumerGroup": "others"}),
        "change in another group": signing.ask(
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, receipt | {"consumerGroup": "others", "invisibleTime": 0}
        ),
        "assignment of another topic": signing.ask(RequestCode.QUERY_ASSIGNMENT, body=assigned | {"topic": "orders"}),
        "assignment in another group": signing.ask(
            RequestCode.QUERY_ASSIGNMENT, body=assigned | {"consumerGroup": "others"}
        ),
        "mode": signing.ask(
            RequestCode.SET_MESSAGE_REQUEST_MODE,
            body={"topic": "letters", "consumerGroup": "readers", "mode": "PULL", "popShareQueueNum": 0},
        ),
    }

    assert {how: answer.code for how, answer in answers.items()} == dict.fromkeys(answers, DENIED)
    assert signing.ask(RequestCode.QUERY_ASSIGNMENT, body=assigned).code == 0
    changed = receipt_fields(other, "readers") | {"invisibleTime": 60_000}
    assert signing.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, changed).code == 0
    assert signing.ask(RequestCode.ACK_MESSAGE, receipt).code == 0


def test_any_key_sends_traces_and_administrators_read_them(
    signing: Signing, fronts: Fronts, database: Database
) -> None:
    """Clients with any key send traces, and administrators read them.

    No right covers the trace topic, and RocketMQ's clients send traces when users turn tracing on.
    """
    with Admin(database.dsn) as admin:
        admin.acl.grant("ops", external=True, admin=["*"])
        admin.acl.set_secret("ops", SECRET)
    operator, question = Signing(fronts.connect(), "ops"), {"topic": TRACE_TOPIC, "queueId": 0}
    wait_until(lambda: operator.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0)

    assert signing.ask(310, header(b=TRACE_TOPIC), b"Pub").code == 0
    assert signing.ask(RequestCode.GET_MAX_OFFSET, dict(question)).code == DENIED
    assert operator.ask(RequestCode.GET_MAX_OFFSET, dict(question)).code == 0


def test_who_does_not_sign_with_its_secret_does_nothing(broker: Connection, signing: Signing) -> None:
    client = signing.client
    named = {name: str(value) for name, value in header().items()} | {"AccessKey": KEY}

    answers = {
        "unsigned": client.request(310, header(), b"a"),
        "wrong secret": Signing(client, secret="another secret").ask(310, header(), b"a"),
        "other key": Signing(client, key="nobody").ask(310, header(), b"a"),
        "changed": client.request(310, named | {"Signature": sign(SECRET, named, b"a")}, b"b"),
    }

    assert {how: answer.code for how, answer in answers.items()} == dict.fromkeys(answers, DENIED)
    assert [how for how, answer in answers.items() if "AccessKey" not in str(answer.remark)] == []
    assert broker.scalar(text("SELECT count(*) FROM mqdb.commit_log")) == 0


def test_strangers_with_frames_that_do_not_end_give_way_to_one_another(
    key: str, fronts: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsigned connections with unfinished frames displace one another.

    A connection that its key has signed for is exempt.
    """
    monkeypatch.setattr(front_module, "_MOST_STRANGERS_BYTES", 2_000_000)
    front = fronts.start()
    signed, first, second, third = (fronts.connect(front) for _ in range(4))
    assert Signing(signed).ask(310, header(), b"a").code == 0
    request = encode_frame(Frame(RequestCode.GET_BROKER_CLUSTER_INFO, body=bytes(1_000_000), opaque=99))
    for client in (signed, first, second, third):
        expected = front.traffic.received_bytes + 900_000
        client._socket.sendall(request[:900_000])
        wait_until(partial(_has_received, front, expected))

    first._reader.join(PATIENCE_SECONDS)
    assert first._is_closed
    for client in (signed, second, third):
        answer = client._answers[99] = Future()
        client._socket.sendall(request[900_000:])
        assert answer.result(PATIENCE_SECONDS).code == 0


def test_routes_are_for_everybody(signing: Signing) -> None:
    """Every client may read routes, because a refusal would be reported as "no route info of this topic"."""
    assert signing.client.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == 0
    assert signing.client.request(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0


def test_a_retry_topic_is_made_for_those_who_may_join_its_group(signing: Signing, broker: Connection) -> None:
    def ask(client: Signing | RemotingClient, group: str) -> int:
        fields: dict[str, object] = {"topic": f"%RETRY%{group}", "AccessKey": KEY}
        question = client.ask if isinstance(client, Signing) else client.request
        return question(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields).code

    answers = [ask(signing.client, "readers"), ask(signing, "aliens"), ask(signing, "readers")]

    assert answers == [17, 17, 0]
    assert find_topic(broker, "%RETRY%aliens") is None


#: What a request is about that a key without any right to it makes.
_ALIEN = {
    "b": "alien", "topic": "alien", "consumerGroup": "aliens", "group": "aliens", "producerGroup": "aliens",
    "groupName": "aliens", "key": "alien", "statsKey": "alien",
}  # fmt: skip
_BODIES: dict[int, object] = {
    RequestCode.HEART_BEAT: {"clientID": "x@1", "consumerDataSet": [consumer("aliens", alien="*")]},
    RequestCode.LOCK_BATCH_MQ: {"consumerGroup": "aliens", "clientId": "x@1", "mqSet": []},
    RequestCode.UNLOCK_BATCH_MQ: {"consumerGroup": "aliens", "clientId": "x@1", "mqSet": []},
}
#: What any key may ask, or its handler asks for rights; there are tests of those.
_NEEDS_NONE = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO, RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2,
    RequestCode.END_TRANSACTION, RequestCode.VIEW_MESSAGE_BY_ID, RequestCode.GET_BROKER_RUNTIME_INFO,
}  # fmt: skip


def test_each_request_needs_a_right(signing: Signing) -> None:
    codes = sorted(set(RequestCode) - _NEEDS_NONE)
    answers = {code.name: signing.ask(code, header() | _ALIEN, _BODIES.get(code, b"")) for code in codes}

    served = {name: answer for name, answer in answers.items() if answer.code != 3}
    assert len(served) > 40
    assert {name: answer for name, answer in served.items() if answer.code != DENIED} == {}
    assert {name: answer for name, answer in served.items() if "AccessKey" in str(answer.remark)} == {}


TOPIC, GROUP = "letters", "readers"
ADMIN_OF_TOPIC, ADMIN_OF_GROUP = {"admin": [TOPIC]}, {"admin_group": [GROUP]}


#: The requests of tools, and the right that each needs. Deletions come last: the others need what they delete.
OF_TOOLS: list[tuple[RequestCode, dict[str, object], dict[str, list[str]]]] = [
    (RequestCode.UPDATE_AND_CREATE_TOPIC, {"topic": TOPIC, "readQueueNums": 1, "writeQueueNums": 1}, ADMIN_OF_TOPIC),
    (RequestCode.GET_TOPIC_STATS_INFO, {"topic": TOPIC}, {"operate": [TOPIC]}),
    (RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC}, {"send": [TOPIC]}),
    (RequestCode.GET_CONSUME_STATS, {"consumerGroup": GROUP}, {"operate_group": [GROUP]}),
    (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": GROUP}, ADMIN_OF_GROUP),
    (
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        {"topic": TOPIC, "group": GROUP, "timestamp": 0},
        {"read": [TOPIC], "operate_group": [GROUP]},
    ),
    (RequestCode.GET_ALL_TOPIC_CONFIG, {}, {"admin": ["*"]}),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": f"%RETRY%{GROUP}"}, ADMIN_OF_GROUP),
    (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP}, ADMIN_OF_GROUP),
    (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}, ADMIN_OF_TOPIC),
]


def test_what_tools_ask_needs_the_right_that_the_command_line_needs(
    broker: Connection, key: str, fronts: Fronts, database: Database
) -> None:
    """A request of a tool requires the same right as the command line.

    Each tool has its own key, with just the right that it needs.
    """
    update_group(broker, GROUP, consume_enable=True)
    rights = {f"tool-{number}": right for number, (_, _, right) in enumerate(OF_TOOLS)}
    with Admin(database.dsn) as admin:
        for name, right in (rights | {"sender": {"send": ["orders"]}}).items():
            # mypy takes the names of the dict for those of all options, `actor` too.
            admin.acl.grant(name, external=True, **right)  # type: ignore[arg-type]
            admin.acl.set_secret(name, SECRET)
    client = fronts.connect()

    for tool, (code, fields, _) in zip(rights, OF_TOOLS, strict=True):
        answers = [Signing(client, who).ask(code, dict(fields)).code for who in ("sender", tool)]
        assert answers == [DENIED, 0], (code, fields)


def test_who_reads_a_topic_is_told_of_groups_that_the_key_may_see(
    broker: Connection, signing: Signing, database: Database
) -> None:
    letters = _route(broker, TOPIC)
    for group in (GROUP, "strangers"):
        commit_without_owner(broker, group, [ReadQueue(letters.queue_keys[0], 0, 0, None, letters.history)])

    answer = signing.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": TOPIC})

    assert json.loads(answer.body) == {"groupList": [GROUP]}


def test_a_message_at_a_position_is_shown_to_readers_of_its_topic(broker: Connection, signing: Signing) -> None:
    [letter] = append(broker, _route(broker, "letters"), "a")
    [order] = append(broker, _route(broker, "orders"), "b")
    dispatch_all(broker)

    answers = [signing.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": each}) for each in (letter, order)]

    assert [answer.code for answer in answers] == [0, DENIED]


def test_only_what_a_key_may_read_is_sent_back(broker: Connection, signing: Signing) -> None:
    """A client can only send back messages that its key may read.

    The copy of any other message would reach the group's own retry topic, or become a dead letter of the group.
    """
    update_group(broker, GROUP, consume_enable=True)
    [letter] = append(broker, _route(broker, "letters"), "a")
    [order] = append(broker, _route(broker, "orders"), "secret")
    dispatch_all(broker)
    back = {"group": GROUP, "delayLevel": -1}

    answers = [signing.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back | {"offset": each}) for each in (order, letter)]

    assert [answer.code for answer in answers] == [DENIED, 0]
    dispatch_all(broker)
    dead = "SELECT convert_from(body, 'UTF8') FROM mqdb.message WHERE topic = '%DLQ%readers'"
    assert list(broker.scalars(text(dead))) == ["a"]


def test_a_member_commits_only_in_topics_that_its_key_may_read(
    broker: Connection, key: str, fronts: Fronts, database: Database
) -> None:
    """A member commits only in topics that its key may read.

    This rule also binds members in SQL. Another key of the group may read the topic.
    """
    append(broker, _route(broker, "letters"), "a", "b")
    dispatch_all(broker)
    with Admin(database.dsn) as admin:
        admin.acl.grant("other-java", external=True, group=[GROUP])
        admin.acl.set_secret("other-java", SECRET)
    other, reader = Signing(fronts.connect(), "other-java"), Signing(fronts.connect(), key)
    queue: dict[str, object] = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}

    answers = [
        each.ask(RequestCode.UPDATE_CONSUMER_OFFSET, queue | {"commitOffset": 2}).code for each in (other, reader)
    ]

    assert answers == [DENIED, 0]
    assert other.ask(RequestCode.QUERY_CONSUMER_OFFSET, queue).fields == {"offset": "2"}


REPLY, REPLY_V2 = RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2


@pytest.mark.parametrize("code", usually(REPLY_V2, of=[REPLY, REPLY_V2]))
def test_a_reply_is_no_way_into_another_topic(broker: Connection, signing: Signing, code: RequestCode) -> None:
    fields = header(b="letters", i=properties(REPLY_TO_CLIENT="nobody", MSG_TYPE="reply"))
    if code == REPLY:
        fields = header_long(i=fields["i"]) | {"topic": "letters"}

    answers = [signing.ask(code, fields, body) for body in (b"a", bytes(MAX_BODY_BYTES + 1))]

    assert [answer.code for answer in answers] == [0, 13]
    dispatch_all(broker)
    assert list(broker.scalars(text("SELECT topic FROM mqdb.message"))) == ["DefaultCluster_REPLY_TOPIC"]


def test_the_group_that_is_changed_is_the_one_that_the_right_is_for(
    broker: Connection, signing: Signing, database: Database
) -> None:
    update_group(broker, "aliens", consume_enable=True)
    with Admin(database.dsn) as admin:
        admin.acl.grant(KEY, admin_group=[GROUP])
    body = {"groupName": "aliens", "consumeEnable": False}

    wait_until(lambda: signing.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, {"groupName": GROUP}).code == 0)
    answer = signing.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": GROUP}, body)

    assert answer.code == DENIED


def test_only_who_may_send_to_its_topic_is_asked_about_a_half_message(
    broker: Connection, key: str, fronts: Fronts, database: Database
) -> None:
    """Only a client that may send to its topic is asked about a half message.

    The check contains the message, and the name of a producer group is not secret.
    """
    with Admin(database.dsn) as admin:
        admin.acl.grant("other-java", external=True, send=["letters"])
        admin.acl.set_secret("other-java", SECRET)
    signing, stranger = Signing(fronts.connect(), key), Signing(fronts.connect(), "other-java")
    heartbeat = {"clientID": "9.9.9.9@2", "producerDataSet": [{"groupName": "shop"}]}
    half = {"TRAN_MSG": "true", "PGROUP": "shop"}
    assert stranger.ask(RequestCode.HEART_BEAT, {}, heartbeat).code == 0
    assert stranger.ask(310, header(b="letters", f=4, i=properties(UNIQ_KEY="CD" * 16, **half)), b"mine").code == 0
    assert signing.ask(310, header(f=4, i=properties(UNIQ_KEY="AB" * 16, **half)), b"secret").code == 0
    wait_until(lambda: broker.scalar(text("SELECT count(*) FROM mqdb.client WHERE checks_transactions")) == 1)
    dispatch_all(broker)

    Checker(broker).after(timedelta(seconds=7))

    assert b"mine" in stranger.client.asked.get(timeout=30).body
    stranger.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    assert stranger.client.asked.empty()


def test_only_who_may_send_to_its_topic_ends_a_half_message(key: str, fronts: Fronts, database: Database) -> None:
    with Admin(database.dsn) as admin:
        admin.acl.grant("other-java", external=True, send=["letters"])
        admin.acl.set_secret("other-java", SECRET)
    signing = Signing(fronts.connect(), key)
    stranger = Signing(signing.client, "other-java")
    said = properties(TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="AB" * 16)
    half = signing.ask(310, header(f=4, i=said), b"half")
    end = {"producerGroup": "shop", "commitLogOffset": position_of(half), "commitOrRollback": 8, "msgId": "AB" * 16}

    refused = stranger.ask(RequestCode.END_TRANSACTION, dict(end))
    ended = signing.ask(RequestCode.END_TRANSACTION, dict(end))

    assert (refused.code, ended.code) == (DENIED, 0)


def test_half_messages_are_those_of_their_key_alone(
    broker: Connection, key: str, fronts: Fronts, database: Database
) -> None:
    """Half messages belong to their key alone.

    Another key may send to the same topic, and uses the same producer group name.
    """
    with Admin(database.dsn) as admin:
        admin.acl.grant("other-java", external=True, send=["orders"])
        admin.acl.set_secret("other-java", SECRET)
    mine, others = Signing(fronts.connect(), key), Signing(fronts.connect(), "other-java")
    ends, ids = [], ("AB" * 16, "CD" * 16)
    for number, (each, unique_id) in enumerate(zip((mine, others), ids, strict=True)):
        heartbeat = {"clientID": VICTIM, "producerDataSet": [{"groupName": "shop"}]}
        assert each.ask(RequestCode.HEART_BEAT, {}, heartbeat).code == 0
        said = properties(TRAN_MSG="true", PGROUP="shop", UNIQ_KEY=unique_id)
        pos = position_of(each.ask(310, header(f=4, i=said), str(number).encode()))
        ends.append({"producerGroup": "shop", "commitLogOffset": pos, "commitOrRollback": 8, "msgId": unique_id})
    wait_until(lambda: broker.scalar(text("SELECT count(*) FROM mqdb.client WHERE checks_transactions")) == 2)
    dispatch_all(broker)

    Checker(broker).after(timedelta(seconds=7))
    asked = [next_asked(each.client, RequestCode.CHECK_TRANSACTION_STATE) for each in (mine, others)]
    refused = [others.ask(RequestCode.END_TRANSACTION, {**ends[0], "producerGroup": name}) for name in GROUP_NAMES]
    ended = mine.ask(RequestCode.END_TRANSACTION, ends[0])

    assert [each.fields["msgId"] for each in asked] == list(ids)
    assert all(b"PGROUP\x01shop\x02" in each.body for each in asked)
    assert [each.code for each in refused] == [1, 29]
    assert ended.code == 0
    assert [each.client.asked.empty() for each in (mine, others)] == [True, True]


#: That of another key's half messages, and as the broker knows it.
GROUP_NAMES = ("shop", f"shop ~{KEY}")


# -- the id of another key's client ---------------------------------------------------------------


class Stranger(NamedTuple):
    """A client of KEY, and a client of another key that knows the first client's id."""

    victim: Signing
    stranger: Signing


VICTIM = "9.9.9.9@1"


@pytest.fixture
def two_keys(key: str, fronts: Fronts, database: Database) -> Stranger:
    """A member of `readers`, and a client with another key on the same front with the same client id."""
    with Admin(database.dsn) as admin:
        for name, rights in {"ops": {"admin": ["*"]}, "other-java": {"send": ["others"]}}.items():
            admin.acl.grant(name, external=True, **rights)  # type: ignore[arg-type]
            admin.acl.set_secret(name, SECRET)
    victim, stranger = Signing(fronts.connect(), key), Signing(fronts.connect(), "other-java")
    said = {
        "clientID": VICTIM,
        "producerDataSet": [{"groupName": "shop"}],
        "consumerDataSet": [consumer(letters="*")],
    }
    assert victim.ask(RequestCode.HEART_BEAT, {}, said).code == 0
    assert stranger.ask(RequestCode.HEART_BEAT, {}, {"clientID": VICTIM}).code == 0
    return Stranger(victim, stranger)


def test_nobody_is_asked_in_place_of_another_keys_client(
    broker: Connection, two_keys: Stranger, fronts: Fronts
) -> None:
    """No client is asked instead of another key's client.

    The request may contain a message that this key may not read.
    """
    [log_pos] = append(broker, _route(broker, "letters"), "secret")
    dispatch_all(broker)
    operator = Signing(fronts.connect(), "ops")
    fields: dict[str, object] = {"clientId": VICTIM, "consumerGroup": GROUP, "msgId": offset_id("1.1.1.1", 1, log_pos)}

    asking = operator.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)
    victim, stranger = two_keys.victim.client, two_keys.stranger.client
    asked = next_asked(victim, RequestCode.CONSUME_MESSAGE_DIRECTLY)
    victim.answer(asked, body=b"{}")

    assert (asking.result(30).code, b"secret" in asked.body) == (0, True)
    assert stranger.asked.empty()


@pytest.mark.parametrize("is_elsewhere", usually(True, of=[False, True]), ids=["same front", "another front"])
def test_nobody_is_asked_to_consume_what_its_key_may_not_read(
    broker: Connection, two_keys: Stranger, fronts: Fronts, is_elsewhere: bool
) -> None:
    """No client is asked to consume a message that its key may not read.

    Otherwise an administrator could show the message to any client, including one of its own.
    """
    [log_pos] = append(broker, topic(broker, "hidden"), "secret")
    dispatch_all(broker)
    operator = Signing(fronts.connect(fronts.start() if is_elsewhere else None), "ops")
    fields: dict[str, object] = {"clientId": VICTIM, "consumerGroup": GROUP, "msgId": offset_id("1.1.1.1", 1, log_pos)}

    answer = operator.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, fields)

    assert (answer.code, KEY in str(answer.remark)) == (DENIED, True)
    assert two_keys.victim.ask(RequestCode.GET_BROKER_RUNTIME_INFO).code == 0
    assert all(b"secret" not in each.body for each in two_keys.victim.client.asked.queue)


@pytest.mark.parametrize("how", ["leaves", "goes"])
def test_nobody_ends_the_membership_of_another_keys_client(
    two_keys: Stranger, fronts: Fronts, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(members, "GRACE_SECONDS", 0.2)
    operator, stranger, last = (Signing(fronts.connect(), name) for name in ("ops", "other-java", "other-java"))

    def producers() -> list[str]:
        return sorted(json.loads(operator.ask(RequestCode.GET_ALL_PRODUCER_INFO).body)["data"])

    assert last.ask(RequestCode.HEART_BEAT, {}, {"clientID": "7", "producerDataSet": [{"groupName": "last"}]}).code == 0
    assert stranger.ask(RequestCode.HEART_BEAT, {}, {"clientID": VICTIM}).code == 0
    if how == "leaves":
        leave: dict[str, object] = {"clientID": VICTIM, "producerGroup": "shop"}
        assert stranger.ask(RequestCode.UNREGISTER_CLIENT, leave).code == 0
    stranger.client.close()
    last.client.close()
    wait_until(lambda: "last" not in producers())  # who was lost before has been forgotten by then

    assert producers() == ["shop"]


@pytest.mark.parametrize("is_elsewhere", usually(True, of=[False, True]), ids=["same front", "another front"])
def test_nobody_gets_replies_to_another_keys_client(
    broker: Connection, two_keys: Stranger, fronts: Fronts, is_elsewhere: bool
) -> None:
    topic(broker, "others")
    victim, stranger = two_keys
    if is_elsewhere:
        stranger = Signing(fronts.connect(fronts.start()), "other-java")
    asks = properties(CORRELATION_ID="c1", REPLY_TO_CLIENT=VICTIM, TTL="3000")
    assert victim.ask(310, header(i=asks), b"a").code == 0
    assert stranger.ask(310, header(b="others", i=asks), b"a").code == 0
    requests = [_stored_properties(broker, name)["REPLY_TO_CLIENT"] for name in ("orders", "others")]

    operator = Signing(fronts.connect(fronts.start()), "ops")  # a third front, so both read the topic of replies
    for number, address in enumerate(requests):
        said = properties(CORRELATION_ID=f"c{number}", REPLY_TO_CLIENT=address, MSG_TYPE="reply")
        assert operator.ask(325, header(b="DefaultCluster_REPLY_TOPIC", i=said), str(number).encode()).code == 0
    dispatch_all(broker)

    pushed = [next_asked(each.client, RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT) for each in (victim, stranger)]
    assert [each.body for each in pushed] == [b"0", b"1"]
    assert [each.client.asked.empty() for each in (victim, stranger)] == [True, True]


def test_a_producer_group_cannot_name_a_key_itself(signing: Signing, broker: Connection) -> None:
    """A producer group cannot contain a key itself.

    The group `shop` of a key `a ~b` would be stored as `shop ~a ~b`, and so would `shop ~a` of a key `b`.
    """
    group = f"shop ~{KEY}"
    heartbeat = {"clientID": VICTIM, "producerDataSet": [{"groupName": group}]}
    said = properties(TRAN_MSG="true", PGROUP=group, UNIQ_KEY="AB" * 16)

    assert signing.ask(RequestCode.HEART_BEAT, {}, heartbeat).code == 0
    assert signing.ask(310, header(a=group, f=4, i=said), b"half").code == 29
    assert broker.scalar(text("SELECT count(*) FROM mqdb.commit_log")) == 0


def test_an_id_cannot_name_a_key_itself(signing: Signing) -> None:
    assert signing.ask(RequestCode.HEART_BEAT, {}, {"clientID": f"{VICTIM} ~ops"}).code == 29


def test_ids_with_keys_have_the_order_of_those_without() -> None:
    """Ids with keys sort like those without.

    Members in Python sort by the former when they share queues, RocketMQ's clients by the latter.
    """
    own = sorted(["10.0.0.1@1", "10.0.0.1@1#5", "10.0.0.1@12", "10.0.0.1@1-a", "10.0.0.12@1"])

    known = sorted(f"{each} ~{key}" for each, key in zip(own, "edcba", strict=True))

    assert [own_id(each) for each in known] == own


def _stored_properties(broker: Connection, name: str) -> dict[str, str]:
    dispatch_all(broker)
    return dict(
        broker.execute(text("SELECT properties FROM mqdb.message WHERE topic = :name"), {"name": name}).scalar_one()
    )


def test_a_key_whose_secret_is_taken_away_is_refused_within_seconds(signing: Signing, database: Database) -> None:
    assert signing.ask(310, header(), b"a").code == 0
    with Admin(database.dsn) as admin:
        admin.acl.grant("other-java", external=True, send=["letters"])
        admin.acl.set_secret("other-java", SECRET)  # so that keys are asked for
        admin.acl.set_secret(KEY, None)

    wait_until(lambda: signing.ask(310, header(), b"a").code == DENIED)


def test_a_namespace_is_no_way_around_a_right(broker: Connection, fronts: Fronts, database: Database) -> None:
    """A namespace is no way around a right.

    A client adds its key's namespace itself; a name without it refers to a topic outside the namespace.
    """
    topic(broker, "shop%orders")
    with Admin(database.dsn) as admin:
        admin.acl.grant("tenant", external=True, namespace="shop", send=["orders"])
        admin.acl.set_secret("tenant", SECRET)
    tenant = Signing(fronts.connect(), "tenant")

    assert tenant.ask(310, header(b="shop%orders"), b"a").code == 0
    assert tenant.ask(310, header(), b"a").code == DENIED


def test_a_front_beyond_loopback_needs_a_key_or_consent(second_database: Database) -> None:
    """A front that listens beyond loopback needs a key or explicit consent; `second_database` has no key yet."""
    address = HttpAddress("127.0.0.1", 0)

    def start(is_open: bool) -> None:
        front = Front(BrokerDsn("broker-a", second_database.dsn), address, is_open=is_open)
        front.start()
        front.stop()

    with pytest.raises(OpenToAll):
        start(is_open=False)
    start(is_open=True)
    with Admin(second_database.dsn) as admin:
        admin.acl.grant(KEY, external=True, send=["orders"])
        admin.acl.set_secret(KEY, SECRET)
    start(is_open=False)


def test_a_secret_that_cannot_be_given_is_refused(key: str, database: Database) -> None:
    with Admin(database.dsn) as admin:
        for name, secret in (("nobody", SECRET), (KEY, "short"), (KEY, "with a\nline")):
            with case((name, secret)), pytest.raises(ParameterInvalid) as refused:
                admin.acl.set_secret(name, secret)

            assert SECRET not in str(refused.value)


def _has_received(front: Front, size: int) -> bool:
    return front.traffic.received_bytes >= size


def _route(broker: Connection, name: str) -> TopicRoute:
    route = find_topic(broker, name)
    assert route is not None
    return route
