"""Attacks of a role in SQL on the verbs of producers: half messages, recalls, requests and replies, Spark's sink.

`mallory` may send to and read `orders`, and is a member of group `billing`; `shop` may send to `orders` and `secret`.
Mallory has guessed each position, id and name. The list was written first; each line is a test, or a case of a test:

Half messages
  forge    a record in the queue of half messages, of their ends, or of those given up, by INSERT
  forge    a half message for another's topic, by queue or REAL_TOPIC; for a retry topic; for a topic it may only read
  forge    the row of a half message, or its state
  read     half messages of others: table, view, log, positions, the checks of others
  guess    the positions of half messages, by ending them; the existing queues, by sending to them
  end      another's half message; its own half message twice at once; a half message by an event not of a producer
  squat    the group and the client id of another producer, to receive its checks
  lock     the tables; the row of its own half message, by an uncommitted END
  stop     the checker, by an uncommitted END, by a producer that has left, by an uncommitted half message
  exhaust  by an immunity of a century, a body of 5 MB, a group of a megabyte, a half message that never ends

Recall
  forge    a row that says that a message is recalled
  guess    the existing topics, by a handle; whether an id waits for another topic
  recall   a message that waits for another's topic, by a handle with its own topic; a retry
  read     waiting messages
  lock     all timers, by a recall in a transaction that stays open, and by a query for the result of a recall
  stop     the recall of an operator, and all timers with it, by an uncommitted recall of the same message
  exhaust  by repeating the same recall
  deceive  itself: an uncommitted recall has no effect

Requests and replies
  read     all replies; replies to another role's client, by its id, its address, its presence, an equal hash code
  read     another topic, by the position of a queue
  forge    a reply by INSERT, by mqdb.send, to a record that is not a request, to a request that it may not read,
           under another id
  forge    the address and correlation of a reply, by its properties; a request in the name of another role
  redirect the reply of another role to another topic, by the request
  guess    the positions of requests
  stop     replies of others, by an uncommitted reply
  squat    the topic of replies; a role name that looks like the address of another role
  exhaust  by a body of 5 MB, by properties of a megabyte, by topics

Spark's sink
  read     the stage and the ledger of others: table, COPY, by a guessed write, by a leaky function
  forge    rows in the stage of others; their owner; messages for another's topic, by the stage
  clear    the staged rows of others, and their ledger
  squat    the sink of another role in the ledger: a later batch, another query
  lock     the tables, the rows
  stop     the commit of the same batch in the same sink, the owner's sweep, by a commit that stays open
  exhaust  by a body of 5 MB, a sink of a megabyte; without any right to send
"""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import psycopg
import pytest
import sqlalchemy

from mqdb.broker.consumers.send_back import SendBackRequest, send_back
from mqdb.common.failure import Failure
from mqdb.common.message import MessageQueue
from mqdb.common.retry import Retry
from mqdb.embedded import EmbeddedPostgres
from mqdb.store.engine import create_engine
from mqdb.store.log import sink as statements
from mqdb.store.topics import topics
from mqdb_client import Admin
from tests.fixtures.broker import dispatch_all
from tests.fixtures.delay import delivered, move_clock
from tests.fixtures.log import Connection, scalar
from tests.fixtures.postgres import KNOW_ITSELF, Database, create_role, new_database, query, with_parts
from tests.fixtures.principals import Principal
from tests.fixtures.roles import PASSWORD, MakeRole
from tests.fixtures.timers import deliver_all, timer
from tests.fixtures.transactions import COMMIT, SECOND, Checker, send_half
from tests.fixtures.variants import usually
from tests.integration.access.test_attacks import Outcome, attack, connect, real, record

SECRET = "TOPSECRET"
HOUR = timedelta(hours=1)


class Plot(NamedTuple):
    """A broker, the victim, and the attacker."""

    owner: Connection
    shop: Connection
    mallory: Connection
    mallorys_dsn: str

    def key(self, topic: str) -> int:
        """The key of a topic's first queue."""
        found: int = scalar(
            self.owner,
            "SELECT queue_key FROM mqdb.queue JOIN mqdb.topic USING (topic_id) WHERE topic = %s AND queue_id = 0",
            [topic],
        )
        return found

    def tries(self, statement: str, *, keep: bool = False) -> Outcome:
        """The outcome of a statement of mallory, which must not show anything secret."""
        outcome = attack(self.mallory, statement, keep=keep)
        assert SECRET not in outcome.said
        return outcome

    def refusals(self, statements: list[str]) -> dict[str, str | None]:
        """The SQLSTATE that mallory gets for each statement; all are rolled back."""
        return {statement: self.tries(statement).sqlstate for statement in statements}


@pytest.fixture(scope="module")
def scene(postgres: EmbeddedPostgres, template_database: str) -> Iterator[str]:
    """Name of a database with the roles, topics and rights that all tests begin with; each test has its own copy."""
    with new_database(postgres, template_database) as database:
        for role in ("shop", "mallory"):
            create_role(postgres, role, PASSWORD)
            database.roles.append(role)
        with Admin(database.dsn) as owner:
            for topic in ("orders", "secret", "told"):
                owner.topics.create(topic)
            owner.groups.update("billing")
            owner.acl.grant("shop", send=["orders", "secret"])
            owner.acl.grant("mallory", send=["orders"], read=["orders", "told"], group=["billing"])
        query(dsn_of(database, "mallory"), "SELECT mqdb.make_topic('%RETRY%billing', 1, 1, 6, false, 'NORMAL')")
        yield database.name


@pytest.fixture
def database(postgres: EmbeddedPostgres, scene: str) -> Iterator[Database]:
    with new_database(postgres, scene) as copy:
        yield copy


@pytest.fixture
def owner(database: Database) -> Iterator[Admin]:
    with Admin(database.dsn) as admin:
        yield admin


@pytest.fixture
def plot(database: Database) -> Iterator[Plot]:
    owner, dsn = database.connect(), dsn_of(database, "mallory")
    owner.execute(KNOW_ITSELF)
    with connect(dsn_of(database, "shop")) as shop, connect(dsn) as mallory:
        yield Plot(owner, shop, mallory, dsn)


def dsn_of(database: Database, role: str) -> str:
    return with_parts(database.dsn, user=role, password=PASSWORD)


# -- half messages ------------------------------------------------------------------------------


def half(queue_key: object, *, properties: str = '{"PGROUP": "senders"}', body: str = "'x'", id_: str = "") -> str:
    """A half message as a producer of such a role stores it."""
    return (
        f"SELECT mqdb.send_half({queue_key}, NULL, 0, now(), {id_ or 'gen_random_uuid()'}, 'host', NULL, NULL, "
        f"'{properties}', {body}, 0, 0)"
    )


def ending(log_pos: object, unique_id: object, outcome: str = "COMMIT", group: str = "senders") -> str:
    return (
        f"SELECT has_changed, state FROM mqdb.end_half({log_pos}, '{group}', '{unique_id}'::uuid, '{outcome}', 'them')"
    )


class TheirHalf(NamedTuple):
    """A half message of the role `shop`."""

    log_pos: int
    unique_id: str


@pytest.fixture
def theirs(plot: Plot) -> TheirHalf:
    """A half message for `secret`, about which its producer has received a check."""
    unique_id = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    made = half(plot.key("secret"), body=f"'{SECRET}'", id_=f"'{unique_id}'")
    log_pos = scalar(plot.shop, made)
    plot.owner.execute("UPDATE mqdb.half_message SET check_client = 'them'")
    return TheirHalf(log_pos, unique_id)


def states(plot: Plot) -> list[str]:
    return [state for (state,) in plot.owner.execute("SELECT state FROM mqdb.half_message ORDER BY log_pos")]


def test_no_half_message_is_made_by_an_insert(plot: Plot) -> None:
    for topic in ("RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"):
        for aim in ("orders", "secret"):
            assert plot.tries(record(str(plot.key(topic)), real(aim))).sqlstate in ("MQ204", "42501"), (topic, aim)


def test_a_half_message_needs_the_right_to_send(plot: Plot) -> None:
    for aim in ("told", "%RETRY%billing"):
        assert plot.tries(half(plot.key(aim))).sqlstate == "MQ204", aim


def test_queues_of_others_are_as_those_that_never_were(plot: Plot) -> None:
    outcomes = [
        re.sub(rf"queue {key}\b", "?", plot.tries(half(key)).said)
        for key in (plot.key("secret"), plot.key("RMQ_SYS_TRANS_HALF_TOPIC"), 999_999)
    ]

    assert "MQ301" in outcomes[0]
    assert len(set(outcomes)) == 1


def test_what_the_record_says_of_its_topic_is_not_believed(plot: Plot) -> None:
    said = '{"PGROUP": "senders", "REAL_TOPIC": "secret", "REAL_QID": "0", "MQDB_TAGS_CODE": "7"}'
    id_ = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    [(log_pos,)] = plot.tries(half(plot.key("orders"), properties=said, id_=f"'{id_}'"), keep=True).rows
    assert plot.tries(ending(log_pos, id_), keep=True).rows == [(True, "COMMITTED")]

    copies = "SELECT queue_key FROM mqdb.commit_log WHERE sys_flag & 8 = 8"
    assert plot.owner.execute(copies).fetchall() == [(plot.key("orders"),)]


ON_HALVES = [
    "TABLE mqdb.half_message",
    "TABLE mqdb.half_messages",
    "TABLE mqdb.half_step",
    "INSERT INTO mqdb.half_message (log_pos, msg_id) VALUES (1, gen_random_uuid())",
    "UPDATE mqdb.half_message SET state = 'COMMITTED'",
    "UPDATE mqdb.half_message SET principal = session_user",
    "SELECT FROM mqdb.half_message FOR UPDATE",
    "LOCK TABLE mqdb.half_message IN ROW EXCLUSIVE MODE",
    "LOCK TABLE mqdb.lock_transaction",
    "SELECT mqdb.try_lock('transaction')",
]


def test_the_rows_of_half_messages_are_closed(plot: Plot, theirs: TheirHalf) -> None:
    assert plot.refusals(ON_HALVES) == dict.fromkeys(ON_HALVES, "42501")


def test_nobody_reads_anothers_half_message(plot: Plot, theirs: TheirHalf) -> None:
    looks = [
        "SELECT * FROM mqdb.own_checks('them', 'senders', 100)",
        f"SELECT * FROM mqdb.commit_log WHERE log_pos = {theirs.log_pos}",
        f"SELECT * FROM mqdb.find_records(ARRAY['{theirs.unique_id}'::uuid], 0)",
        f"SELECT mqdb.find_queue_offset({plot.key('RMQ_SYS_TRANS_HALF_TOPIC')}, {theirs.log_pos}, NULL, NULL)",
        f"SELECT (mqdb.find_aim({theirs.log_pos})).*",
    ]
    for statement in looks:
        outcome = plot.tries(statement)
        assert outcome.sqlstate is None
        assert outcome.shows_nothing, statement

    mine = "SELECT body FROM mqdb.own_checks('them', 'senders', 100)"
    assert plot.shop.execute(mine).fetchall() == [(SECRET.encode(),)]


def test_who_may_send_to_the_topic_as_well_reads_no_half_message_of_others(
    plot: Plot, owner: Admin, theirs: TheirHalf
) -> None:
    owner.acl.grant("mallory", send=["secret"])

    assert plot.tries("SELECT * FROM mqdb.own_checks('them', 'senders', 100)").rows == []
    assert plot.tries(ending(theirs.log_pos, theirs.unique_id)).sqlstate == "MQ320"
    assert plot.tries(f"SELECT * FROM mqdb.find_records(ARRAY['{theirs.unique_id}'::uuid], 0)").rows == []


def test_who_ends_anothers_half_message_gets_what_it_gets_for_none(plot: Plot, theirs: TheirHalf) -> None:
    for outcome in ("COMMIT", "ROLLBACK", "UNKNOWN"):
        answers = {
            re.sub(
                rf"(position|where.:) {position}\b", "?", plot.tries(ending(position, theirs.unique_id, outcome)).said
            )
            for position in (theirs.log_pos, 999_999_999)
        }
        assert len(answers) == 1
        assert "MQ320" in answers.pop()

    assert states(plot) == ["PREPARED"]
    assert scalar(plot.owner, "SELECT check_client FROM mqdb.half_message") == "them"


def test_a_producer_says_commit_or_rollback(plot: Plot) -> None:
    id_ = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    [(log_pos,)] = plot.tries(half(plot.key("orders"), id_=f"'{id_}'"), keep=True).rows

    for outcome in ("GIVE_UP", "RESUME", "COMMITTED", ""):
        assert plot.tries(ending(log_pos, id_, outcome)).sqlstate == "MQ108", outcome


def test_two_commits_at_once_make_one_copy(plot: Plot) -> None:
    id_ = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    [(log_pos,)] = plot.tries(half(plot.key("orders"), id_=f"'{id_}'"), keep=True).rows
    second = connect(plot.mallorys_dsn)
    second.execute("SET lock_timeout = '200ms'")
    with plot.mallory.transaction():
        plot.mallory.execute(ending(log_pos, id_).encode())
        assert attack(second, "SET lock_timeout = '200ms'; " + ending(log_pos, id_)).sqlstate == "55P03"

    assert attack(second, ending(log_pos, id_, "ROLLBACK"), keep=True).rows == [(False, "COMMITTED")]
    assert scalar(plot.owner, "SELECT count(*) FROM mqdb.commit_log WHERE sys_flag & 8 = 8") == 1
    second.close()


def test_whoever_squats_a_producer_is_not_asked_in_its_place(plot: Plot, broker: sqlalchemy.Connection) -> None:
    """A role that squats a producer receives no checks in its place.

    The attacker has the same client id, the same group, and its own presence.
    """
    scalar(plot.shop, half(plot.key("orders")))
    plot.mallory.execute(
        "INSERT INTO mqdb.client (client_id, kind, group_name, language, version, checks_transactions) "
        "VALUES ('them', 'PRODUCER', 'senders', 'x', '1', true)"
    )
    plot.mallory.execute("INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('them', 4711)")
    plot.mallory.execute("SELECT pg_advisory_lock(4711)")

    checker = Checker(broker)
    assert checker.after(7 * SECOND).postponed == 1
    id_ = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    scalar(plot.mallory, half(plot.key("orders"), id_=f"'{id_}'"))
    assert checker.after(31 * SECOND).asked == 1
    asked = "SELECT principal FROM mqdb.half_message WHERE check_client IS NOT NULL"
    assert plot.owner.execute(asked).fetchall() == [("mallory",)]


@pytest.mark.parametrize("is_asked", [False, True])
def test_an_end_that_is_not_committed_keeps_nobody_else_waiting(
    plot: Plot, broker: sqlalchemy.Connection, is_asked: bool
) -> None:
    """An uncommitted END keeps no other session waiting.

    This also holds if the producer has left and the checker takes its check back.
    """
    id_ = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    [(log_pos,)] = plot.tries(half(plot.key("orders"), id_=f"'{id_}'"), keep=True).rows
    if is_asked:
        plot.owner.execute("UPDATE mqdb.half_message SET check_client = 'gone'")
    broker.execute(sqlalchemy.text("SET lock_timeout = '1s'"))
    checker = Checker(broker)
    with plot.mallory.transaction(force_rollback=True):
        plot.mallory.execute(ending(log_pos, id_).encode())
        scalar(plot.shop, half(plot.key("orders")))
        assert checker.after(7 * SECOND).due == 1
        assert checker.after(31 * SECOND).due == 1

    assert checker.after(31 * SECOND).due == 2


def test_a_half_message_that_is_not_committed_keeps_nobody_else_waiting(
    plot: Plot, broker: sqlalchemy.Connection
) -> None:
    broker.execute(sqlalchemy.text("SET lock_timeout = '1s'"))
    checker = Checker(broker)
    with plot.mallory.transaction():
        plot.mallory.execute(half(plot.key("orders")).encode())
        scalar(plot.shop, half(plot.key("orders")))
        route = topics.find_topic(broker, "orders")
        assert route is not None
        send_half(broker, route).end(broker, COMMIT)
        assert checker.after(7 * SECOND).due == 1

    assert checker.after(31 * SECOND).due == 2


OVER_THE_LIMITS: list[tuple[dict[str, str], str]] = [
    ({"body": "repeat('x', 4194305)::bytea"}, "MQ102"),
    ({"body": "''"}, "MQ101"),
    ({"body": "NULL"}, "MQ101"),
    ({"properties": "{}"}, "MQ108"),
    ({"properties": '{"PGROUP": ""}'}, "MQ108"),
    ({"properties": '{"PGROUP": "a b"}'}, "MQ108"),
    ({"properties": f'{{"PGROUP": "{"g" * 1_000_000}"}}'}, "MQ108"),
    ({"properties": f'{{"PGROUP": "g", "a": "{"".join(map(str, range(100_000)))}"}}'}, "MQ108"),
]


def test_a_half_message_has_the_limits_of_a_message(plot: Plot) -> None:
    for given, refusal in OVER_THE_LIMITS:
        assert plot.tries(half(plot.key("orders"), **given)).sqlstate == refusal, str(given)[:60]


@pytest.mark.parametrize("immunity", usually("9" * 1_000, "-1", of=["999999999999", "9" * 1_000, "-1", "x"]))
def test_no_immunity_is_longer_than_the_log_is_kept(plot: Plot, broker: sqlalchemy.Connection, immunity: str) -> None:
    properties = f'{{"PGROUP": "g", "CHECK_IMMUNITY_TIME_IN_SECONDS": "{immunity}"}}'
    plot.tries(half(plot.key("orders"), properties=properties), keep=True)

    checker = Checker(broker)
    checker.after(timedelta(hours=73))

    assert states(plot) == ["DISCARDED"]


def test_a_broker_that_takes_no_half_messages_takes_none(plot: Plot) -> None:
    plot.owner.execute("UPDATE mqdb.broker SET reject_transaction_message = true")

    assert plot.tries(half(plot.key("orders"))).sqlstate == "MQ203"


def test_who_lost_the_right_commits_nothing_and_reads_nothing(plot: Plot, owner: Admin, theirs: TheirHalf) -> None:
    owner.acl.revoke("shop", send=["secret"])

    assert attack(plot.shop, ending(theirs.log_pos, theirs.unique_id)).sqlstate == "MQ204"
    assert attack(plot.shop, "SELECT * FROM mqdb.own_checks('them', 'senders', 100)").rows == []
    assert attack(plot.shop, ending(theirs.log_pos, theirs.unique_id, "ROLLBACK")).rows == [(True, "ROLLED_BACK")]


# -- recall -------------------------------------------------------------------------------------


class Waiting(NamedTuple):
    """Ids of messages that are due in an hour."""

    orders: str
    secret: str


@pytest.fixture
def waiting(plot: Plot, broker: sqlalchemy.Connection) -> Waiting:
    [of_orders] = timer(broker, HOUR, "an order")
    [of_secret] = timer(broker, HOUR, SECRET, topic="secret")
    deliver_all(broker)
    return Waiting(of_orders, of_secret)


def recalled(plot: Plot) -> int:
    found: int = scalar(plot.owner, "SELECT count(*) FROM mqdb.timer_recall")
    return found


def delivered_in_an_hour(broker: sqlalchemy.Connection) -> dict[str, list[str]]:
    """The messages that are delivered within an hour, except those that wait for a lock."""
    broker.execute(sqlalchemy.text("SET lock_timeout = '5s'"))
    dispatch_all(broker)
    move_clock(broker, 2 * HOUR)
    deliver_all(broker)
    return {topic: delivered(broker, topic) for topic in ("orders", "secret")}


ON_RECALLS = [
    "INSERT INTO mqdb.timer_recall VALUES (1, 1)",
    "DELETE FROM mqdb.timer_recall",
    "TABLE mqdb.timer_recall",
    "TABLE mqdb.timer",
    "TABLE mqdb.timer_step",
    "LOCK TABLE mqdb.lock_timer",
    "SELECT mqdb.find_timer('orders', gen_random_uuid())",
]


def test_the_rows_of_recalls_are_closed(plot: Plot, waiting: Waiting) -> None:
    assert plot.refusals(ON_RECALLS) == dict.fromkeys(ON_RECALLS, "42501")


@pytest.mark.parametrize("verb", ["recall_own", "recall_outcome"])
def test_a_handle_is_no_oracle(plot: Plot, waiting: Waiting, verb: str) -> None:
    others = [plot.tries(f"SELECT mqdb.{verb}('{topic}', '{waiting.secret}')") for topic in ("secret", "secreT")]
    assert {outcome.sqlstate for outcome in others} == {"MQ204"}
    assert len({outcome.said.replace("secreT", "secret") for outcome in others}) == 1
    # A topic without a name is no topic of anybody.
    assert plot.tries(f"SELECT mqdb.{verb}(NULL, '{waiting.secret}')").sqlstate == "MQ108"
    assert plot.tries(f"SELECT mqdb.{verb}('%RETRY%billing', '{waiting.orders}')").sqlstate == "MQ204"
    assert plot.tries(f"SELECT mqdb.{verb}('told', '{waiting.orders}')").sqlstate == "MQ204"
    assert plot.tries(f"SELECT mqdb.{verb}('SCHEDULE_TOPIC_XXXX', '{waiting.orders}')").sqlstate == "MQ204"

    ids = (waiting.secret, "0" * 32)
    assert [plot.tries(f"SELECT mqdb.{verb}('orders', '{id_}')", keep=True).rows for id_ in ids] == [[("UNKNOWN",)]] * 2
    assert plot.tries(f"SELECT mqdb.{verb}('orders', NULL)").sqlstate == "MQ108"
    assert plot.tries(f"SELECT mqdb.{verb}('orders', 'x'' OR true --')").sqlstate == "MQ108"
    assert recalled(plot) == 0


def test_a_delivered_message_of_another_topic_is_unknown(
    plot: Plot, waiting: Waiting, broker: sqlalchemy.Connection
) -> None:
    assert delivered_in_an_hour(broker)["secret"] == [SECRET]

    for verb in ("recall_own", "recall_outcome"):
        assert plot.tries(f"SELECT mqdb.{verb}('orders', '{waiting.secret}')").rows == [("UNKNOWN",)]


def test_a_recall_in_an_open_transaction_keeps_no_timer_waiting(
    plot: Plot, waiting: Waiting, broker: sqlalchemy.Connection
) -> None:
    locks = "SELECT FROM pg_locks WHERE relation = 'mqdb.lock_timer'::regclass"
    with plot.mallory.transaction(force_rollback=True):
        assert scalar(plot.mallory, "SELECT mqdb.recall_own('orders', %s)", [waiting.orders]) == "PENDING"
        assert plot.owner.execute(locks).fetchall() == []
        # What is not committed is not recalled.
        assert delivered_in_an_hour(broker) == {"orders": ["an order"], "secret": [SECRET]}


def test_who_asks_for_an_outcome_holds_no_lock(plot: Plot, waiting: Waiting, broker: sqlalchemy.Connection) -> None:
    scalar(plot.mallory, "SELECT mqdb.recall_own('orders', %s)", [waiting.orders])
    with plot.mallory.transaction():
        assert scalar(plot.mallory, "SELECT mqdb.recall_outcome('orders', %s)", [waiting.orders]) == "RECALLED"
        assert delivered_in_an_hour(broker) == {"orders": [], "secret": [SECRET]}


def test_an_operators_recall_of_the_same_message_stops_no_timer_for_long(
    plot: Plot, waiting: Waiting, broker: sqlalchemy.Connection, database: Database
) -> None:
    operator = database.connect()
    with plot.mallory.transaction():
        scalar(plot.mallory, "SELECT mqdb.recall_own('orders', %s)", [waiting.orders])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            operator.execute("SELECT mqdb.recall('orders', %s)", [waiting.orders])
        assert scalar(operator, "SELECT mqdb.recall('secret', %s)", [waiting.secret]) == "RECALLED"

    assert scalar(operator, "SELECT mqdb.recall('orders', %s)", [waiting.orders]) == "UNKNOWN"
    assert scalar(operator, "SELECT current_setting('lock_timeout')") == "0"


def test_what_is_not_committed_has_no_outcome(plot: Plot, waiting: Waiting) -> None:
    both = f"mqdb.recall_own('orders', '{waiting.orders}'), mqdb.recall_outcome('orders', '{waiting.orders}')"
    assert plot.tries(f"SELECT {both}", keep=True).sqlstate == "MQ109"
    assert plot.tries(f"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT {both}").sqlstate in ("MQ109", "25001")
    assert recalled(plot) == 0


def test_the_same_recall_again_and_again_is_one_row(plot: Plot, waiting: Waiting) -> None:
    again = f"SELECT mqdb.recall_own('orders', '{waiting.orders}') FROM generate_series(1, 200)"

    assert sorted(plot.tries(again, keep=True).rows)[:2] == [("PENDING",), ("UNKNOWN",)]
    assert recalled(plot) == 1
    assert scalar(plot.owner, "SELECT count(*) FROM mqdb.operation WHERE verb = 'timer.recall'") == 1


# -- requests and replies -----------------------------------------------------------------------

REPLIES = "DefaultCluster_REPLY_TOPIC"

ASKS = """INSERT INTO mqdb.commit_log (queue_key, store_time, born_time, tags_code, msg_id, born_host, properties, body)
          VALUES (%s, mqdb.now(), mqdb.now(), 0, %s::uuid, 'host', %s::jsonb, %s) RETURNING log_pos"""


class Request(NamedTuple):
    """A message whose sender waits for the reply."""

    log_pos: int
    unique_id: str


def ask(session: Connection, queue_key: int, body: str = "?", **properties: str) -> Request:
    said = {"CLUSTER": "DefaultCluster", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "4:shop:them", "TTL": "3000"}
    unique_id = scalar(session, "SELECT gen_random_uuid()::text")
    return Request(scalar(session, ASKS, [queue_key, unique_id, json.dumps(said | properties), body]), unique_id)


def reply(request: Request, *, body: str = "'an answer'", properties: str = "{}") -> str:
    return (
        f"SELECT mqdb.reply({request.log_pos}, '{request.unique_id}', gen_random_uuid(), now(), 'host', 'k', "
        f"'{properties}', {body}, 0)"
    )


def read_replies(client_id: str, queue_key: object) -> str:
    return f"SELECT body FROM mqdb.own_replies('{client_id}', {queue_key}, 0, NULL) WHERE body IS NOT NULL"


@pytest.fixture
def asked(plot: Plot) -> Request:
    """The shop's request in `orders`; another request, in `secret`, was answered."""
    plot.shop.execute("SELECT mqdb.make_reply_topic()")
    in_secret = ask(plot.shop, plot.key("secret"), SECRET)
    plot.owner.execute(
        """INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, tags, properties, body)
           VALUES (%s, mqdb.now(), mqdb.tag_code('4:shop:them'), %s, 'host', '4:shop:them', '{}', %s)""",
        [plot.key(REPLIES), in_secret.unique_id, SECRET],
    )
    return ask(plot.shop, plot.key("orders"))


def stored_replies(plot: Plot) -> list[tuple[str, str, bytes]]:
    """Address, correlation and body of each stored reply, in the order of the log."""
    found = plot.owner.execute(
        """SELECT tags, properties ->> 'CORRELATION_ID', body FROM mqdb.commit_log
           WHERE properties ->> 'MSG_TYPE' = 'reply' ORDER BY log_pos"""
    )
    return found.fetchall()


def dispatch_replies(plot: Plot) -> None:
    plot.owner.execute("SELECT mqdb.dispatch()")


def test_each_reads_its_own_replies_only(plot: Plot, asked: Request) -> None:
    dispatch_replies(plot)
    key = plot.key(REPLIES)
    assert plot.shop.execute(read_replies("them", key).encode()).fetchall() == [(SECRET.encode(),)]
    plot.mallory.execute(
        "INSERT INTO mqdb.client (client_id, kind, group_name, language, version) "
        "VALUES ('them', 'PRODUCER', 'shop', 'x', '1')"
    )
    plot.mallory.execute("INSERT INTO mqdb.presence (client_id, lock_key) VALUES ('them', 4711)")
    for client_id in ("them", "4:shop:them", ":them", "", "%", "\n4:shop:them"):
        assert plot.tries(read_replies(client_id, key)).rows == []
    others = [
        "SELECT * FROM mqdb.own_replies(NULL, NULL, NULL, NULL)",
        f"SELECT * FROM mqdb.message WHERE topic = '{REPLIES}'",
        f"SELECT * FROM mqdb.commit_log WHERE queue_key = {key}",
        f"SELECT * FROM mqdb.consume_queue WHERE queue_key = {key}",
        read_replies("them", plot.key("secret")),
        read_replies("them", plot.key("RMQ_SYS_TRANS_HALF_TOPIC")),
    ]
    for statement in others:
        assert plot.tries(statement).rows == [], statement


def test_a_tag_with_the_same_code_is_another_address(plot: Plot, asked: Request) -> None:
    """A tag with the same hash code is a different address. In Java "Aa" and "BB" have the same hash."""
    plot.owner.execute(
        """INSERT INTO mqdb.commit_log (queue_key, born_time, tags_code, msg_id, born_host, tags, properties, body)
           SELECT %s, mqdb.now(), mqdb.tag_code(tag), gen_random_uuid(), 'host', tag, '{}', %s
           FROM unnest('{7:mallory:Aa,4:shop:them}'::text[]) AS tag""",
        [plot.key(REPLIES), SECRET],
    )
    dispatch_replies(plot)

    assert scalar(plot.owner, "SELECT mqdb.java_hash('7:mallory:Aa') = mqdb.java_hash('7:mallory:BB')") is True
    assert plot.tries(read_replies("BB", plot.key(REPLIES))).rows == []


def test_no_name_of_a_role_looks_like_the_address_of_another(plot: Plot, principal: Principal, asked: Request) -> None:
    dispatch_replies(plot)
    for name in ("4:shop", "shop:them", "shop:", "4"):
        session = connect(principal(name, send=["orders"]))
        for client_id in ("them", ":them", "shop:them", "4:shop:them", ""):
            assert attack(session, read_replies(client_id, plot.key(REPLIES))).rows == []
        session.close()


def test_who_was_asked_replies_to_the_one_who_has_asked(plot: Plot, asked: Request) -> None:
    assert plot.tries(reply(asked, properties='{"mood": "good"}'), keep=True).sqlstate is None

    assert stored_replies(plot) == [("4:shop:them", "c-1", b"an answer")]
    dispatch_replies(plot)
    assert (b"an answer",) in plot.shop.execute(read_replies("them", plot.key(REPLIES)).encode()).fetchall()


def test_a_reply_does_not_say_itself_where_it_goes(plot: Plot, asked: Request) -> None:
    for name in ("CORRELATION_ID", "REPLY_TO_CLIENT", "MSG_TYPE", "REAL_TOPIC", "UNIQ_KEY", "TTL"):
        assert plot.tries(reply(asked, properties=f'{{"{name}": "x"}}')).sqlstate == "MQ104", name


def test_no_reply_is_made_by_hand(plot: Plot, asked: Request) -> None:
    forged = '{"CORRELATION_ID": "c-1", "MSG_TYPE": "reply"}'
    assert plot.tries(record(str(plot.key(REPLIES)), forged)).sqlstate == "MQ204"
    assert plot.tries(f"SELECT mqdb.send('{REPLIES}', 'x', tag => '4:shop:them')").sqlstate == "MQ204"
    assert plot.tries(record(str(plot.key("SCHEDULE_TOPIC_XXXX")), real(REPLIES))).sqlstate == "MQ204"
    assert plot.tries(half(plot.key(REPLIES))).sqlstate == "MQ301"


def test_what_it_may_not_read_or_is_no_request_is_not_replied_to(plot: Plot, owner: Admin, asked: Request) -> None:
    theirs = ask(plot.shop, plot.key("secret"), SECRET)
    another = scalar(plot.owner, "SELECT gen_random_uuid()::text")
    refused = [
        theirs,
        asked._replace(unique_id=another),
        asked._replace(log_pos=theirs.log_pos),
        asked._replace(log_pos=999_999_999),
    ]
    said = {plot.tries(reply(request)).said for request in refused}
    assert len(said) == 1
    assert "MQ121" in said.pop()

    wrong = ({"CLUSTER": "secret"}, {"CLUSTER": "%RETRY%payroll"}, {"REPLY_TO_CLIENT": ""}, {"CORRELATION_ID": ""})
    for properties in wrong:
        assert plot.tries(reply(ask(plot.owner, plot.key("orders"), **properties))).sqlstate == "MQ121"
    plain = scalar(plot.mallory, "SELECT mqdb.send('orders', 'x')")
    position = scalar(plot.owner, "SELECT max(log_pos) FROM mqdb.commit_log")
    assert plot.tries(reply(Request(position, plain))).sqlstate == "MQ121"
    owner.acl.revoke("mallory", group=["billing"])
    assert plot.tries(reply(asked)).sqlstate == "MQ121"
    assert stored_replies(plot) == []


def test_a_request_sends_no_reply_to_another_topic(plot: Plot) -> None:
    plot.mallory.execute("SELECT mqdb.make_reply_topic()")
    own = {"REPLY_TO_CLIENT": "7:mallory:me", "CORRELATION_ID": "guessed"}
    forged = ask(plot.mallory, plot.key("orders"), REAL_TOPIC="secret", REAL_QID="0", **own)
    plot.tries(reply(forged), keep=True)

    assert stored_replies(plot) == [("7:mallory:me", "guessed", b"an answer")]
    aims = "SELECT DISTINCT queue_key FROM mqdb.commit_log WHERE properties ->> 'MSG_TYPE' = 'reply'"
    assert plot.owner.execute(aims).fetchall() == [(plot.key(REPLIES),)]


NAMES_OF_OTHERS = ("4:shop:them", "10.0.0.1@17#42", "", "7:mallory", "7:mallory2:me", "07:mallory:me")


@pytest.mark.parametrize("name", usually("4:shop:them", "7:mallory2:me", of=NAMES_OF_OTHERS))
def test_nobody_asks_in_the_name_of_another(plot: Plot, name: str) -> None:
    forged = json.dumps({"CLUSTER": "DefaultCluster", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": name})
    waits = json.loads(forged) | {"REAL_TOPIC": "orders", "REAL_QID": "0"}

    for key, properties in [
        (plot.key("orders"), forged),
        (plot.key("SCHEDULE_TOPIC_XXXX"), json.dumps(waits)),
        (plot.key("rmq_sys_wheel_timer"), json.dumps(waits)),
    ]:
        assert plot.tries(record(str(key), properties)).sqlstate == "42501"
    assert plot.tries(half(plot.key("orders"), properties=forged[:-1] + ', "PGROUP": "g"}')).sqlstate == "MQ108"
    assert plot.tries(f"SELECT mqdb.send('orders', 'x', properties => '{forged}')").sqlstate == "MQ104"


@pytest.mark.parametrize(
    "retry", [Retry(), Retry(-1), Retry(delay=timedelta(hours=1))], ids=["a retry", "a dead letter", "a timer"]
)
def test_a_request_that_is_sent_back_names_whoever_has_asked(plot: Plot, asked: Request, retry: Retry) -> None:
    failure = Failure.later("client-1", datetime.now(UTC))
    orders = MessageQueue("orders", "broker-a", 0)
    engine = create_engine(plot.mallorys_dsn)
    with engine.connect() as connection:
        send_back(connection, "billing", [SendBackRequest(asked.log_pos, orders, 0, failure, retry)])
    engine.dispose()

    names = "SELECT properties ->> 'REPLY_TO_CLIENT' FROM mqdb.commit_log WHERE log_pos > %s"
    assert plot.owner.execute(names.encode(), [asked.log_pos]).fetchall() == [("4:shop:them",)]


def test_a_reply_that_is_not_committed_keeps_no_other_back(plot: Plot, asked: Request) -> None:
    with plot.mallory.transaction():
        plot.mallory.execute(reply(asked).encode())
        dispatch_replies(plot)
        dispatch_replies(plot)
        found = plot.shop.execute(read_replies("them", plot.key(REPLIES)).encode()).fetchall()
        assert found == [(SECRET.encode(),)]


REPLIES_OVER_THE_LIMITS: list[tuple[dict[str, str], str]] = [
    ({"body": "repeat('x', 4194305)::bytea"}, "MQ102"),
    ({"body": "''"}, "MQ101"),
    ({"properties": "[1]"}, "MQ108"),
    ({"properties": f'{{"a": "{"x" * 1_000_000}"}}'}, "MQ108"),
]


def test_a_reply_has_the_limits_of_a_message(plot: Plot, asked: Request) -> None:
    for given, refusal in REPLIES_OVER_THE_LIMITS:
        assert plot.tries(reply(asked, **given)).sqlstate == refusal, str(given)[:60]


def test_who_has_no_right_makes_no_topic_and_nobody_makes_two(plot: Plot, role: MakeRole) -> None:
    stranger = connect(role("stranger"))
    plot.owner.execute("GRANT USAGE ON SCHEMA mqdb TO stranger")
    assert attack(stranger, "SELECT mqdb.make_reply_topic()").sqlstate == "MQ204"
    stranger.close()
    plot.mallory.execute("SELECT mqdb.make_reply_topic() FROM generate_series(1, 10)")

    assert scalar(plot.owner, "SELECT count(*) FROM mqdb.topic WHERE topic ~ 'REPLY'") == 1
    assert plot.tries("SELECT mqdb.make_topic('x_REPLY_TOPIC', 1, 1, 6, false, 'NORMAL')").sqlstate == "MQ204"


# -- Spark's sink -------------------------------------------------------------------------------

WRITE_OF = "INSERT INTO mqdb.sink_write (write_id, sink_id, batch_id, principal) VALUES "
SINK = {
    "sink_id": "stream:same",
    "batch_id": 0,
    "query_id": "theirs",
    "messages": 1,
    "may_skip": False,
    "checksum": 5,
    "brokers": ["broker-a", "broker-b"],
}
STAGE = (
    "INSERT INTO mqdb.sink_stage (write_id, born_time, tags_code, msg_id, seq, queue_key, born_host, properties, body) "
)


def staged_row(write_id: str, queue_key: int, body: str = "'x'") -> str:
    return f"{STAGE} VALUES ('{write_id}', now(), 0, gen_random_uuid(), 0, {queue_key}, 'host', '{{}}', {body})"


def stage(session: Connection, queue_key: int, body: str) -> str:
    """Stage a write like a task of such a role; returns its id."""
    write_id: str = scalar(session, "SELECT gen_random_uuid()::text")
    session.execute(statements.RECORD_WRITE, {"write_id": write_id} | SINK)
    session.execute(staged_row(write_id, queue_key, f"'{body}'").encode())
    return write_id


@pytest.fixture
def their_write(plot: Plot) -> str:
    """The id of a write that the shop has staged for `secret`; the shop also has a batch in its ledger."""
    plot.shop.execute("INSERT INTO mqdb.sink_batch (sink_id, batch_id, messages) VALUES ('batch:TOPSECRET', 0, 1)")
    return stage(plot.shop, plot.key("secret"), SECRET)


def test_a_role_sees_its_own_stage_and_ledger(plot: Plot, their_write: str) -> None:
    mine = stage(plot.mallory, plot.key("orders"), "mine")
    leaky = (
        "CREATE FUNCTION pg_temp.leak(bytea) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS "
        "$$ BEGIN RAISE NOTICE '%', convert_from($1, 'UTF8'); RETURN true; END $$; "
        "SELECT body FROM mqdb.sink_stage WHERE pg_temp.leak(body)"
    )
    assert plot.tries(leaky).rows == [(b"mine",)]
    assert plot.tries("SELECT write_id::text, principal FROM mqdb.sink_write").rows == [(mine, "mallory")]
    for statement in (
        "TABLE mqdb.sink_batch",
        f"SELECT * FROM mqdb.sink_stage WHERE write_id = '{their_write}'",
        f"SELECT * FROM mqdb.sink_write WHERE write_id = '{their_write}'",
    ):
        assert plot.tries(statement).rows == []
    assert plot.tries("SET row_security = off; TABLE mqdb.sink_stage").sqlstate == "42501"
    with plot.mallory.cursor() as cursor, cursor.copy("COPY mqdb.sink_stage (body) TO STDOUT") as copied:
        assert [bytes(row) for row in copied] == [b"\\\\x6d696e65\n"]


ON_THE_SINK = [
    f"{WRITE_OF} (gen_random_uuid(), 'x', 0, 'shop')",
    f"{WRITE_OF} (gen_random_uuid(), 'x', 0, '')",
    "INSERT INTO mqdb.sink_batch (sink_id, batch_id, messages, principal) VALUES ('x', 0, 0, '')",
    "UPDATE mqdb.sink_write SET principal = 'mallory'",
    "UPDATE mqdb.sink_stage SET body = 'x'",
    "DELETE FROM mqdb.sink_stage",
    "DELETE FROM mqdb.sink_write",
    "DELETE FROM mqdb.sink_batch",
    "TRUNCATE mqdb.sink_stage",
    "SELECT FROM mqdb.sink_write FOR KEY SHARE",
    "SELECT FROM mqdb.sink_batch FOR UPDATE",
    "LOCK TABLE mqdb.sink_batch IN ROW EXCLUSIVE MODE NOWAIT; LOCK TABLE mqdb.sink_batch IN SHARE MODE",
    "LOCK TABLE mqdb.sink_stage",
]


def test_the_rows_of_the_sink_are_inserted_and_nothing_else(plot: Plot, their_write: str) -> None:
    assert plot.refusals(ON_THE_SINK) == dict.fromkeys(ON_THE_SINK, "42501")


def test_nobody_adds_to_what_another_has_staged(plot: Plot, their_write: str) -> None:
    never = "00000000-0000-0000-0000-000000000000"
    assert [plot.tries(staged_row(id_, plot.key("orders"))).sqlstate for id_ in (their_write, never)] == ["42501"] * 2


def test_nobody_appends_by_the_stage_where_it_may_not_send(plot: Plot) -> None:
    for topic in ("secret", "told", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102"):
        write_id = stage(plot.mallory, plot.key(topic), "forged")
        for text in (statements.APPEND, statements.APPEND_WAITING):
            outcome = plot.tries(text % {"write_id": f"'{write_id}'::uuid", "first": 0, "past": 9})
            assert outcome.sqlstate in ("23502", "42501", "MQ204", "MQ301"), (topic, outcome)


def test_nobody_clears_what_another_has_staged(plot: Plot, their_write: str) -> None:
    plot.owner.execute("UPDATE mqdb.sink_write SET staged_at = '2000-01-01'")
    for statement in (
        f"SELECT mqdb.clear_own_writes('{{{their_write}}}')",
        "SELECT mqdb.clear_own_writes(NULL)",
        "SELECT mqdb.clear_own_batches('stream:same', 9223372036854775807)",
        "SELECT mqdb.forget_own_batches('batch:TOPSECRET', 9223372036854775807)",
    ):
        outcome = attack(plot.mallory, statement, keep=True)
        assert (outcome.sqlstate, outcome.shows_nothing) == (None, True)

    counts = "SELECT (SELECT count(*) FROM mqdb.sink_write), (SELECT count(*) FROM mqdb.sink_stage), count(*) FROM "
    assert plot.owner.execute(f"{counts} mqdb.sink_batch".encode()).fetchall() == [(1, 1, 1)]


def test_nobody_squats_the_sink_of_another(plot: Plot, database: Database) -> None:
    """A role cannot squat another's sink, not even the owner's, whose row security shows all rows."""
    for batch_id in (0, 5):
        plot.mallory.execute(
            "INSERT INTO mqdb.sink_batch (sink_id, batch_id, query_id, messages) VALUES ('stream:same', %s, 'mine', 0)",
            [batch_id],
        )
    for session in (plot.shop, plot.owner):
        assert session.execute(statements.RECORD_BATCH, SINK).rowcount == 1
        assert session.execute(statements.FIND_NEWEST, SINK).fetchall() == [("theirs", 0, 1, SINK["brokers"], False)]
        assert session.execute(statements.OUTLOOK, SINK).fetchall() == [
            ("broker-a", "theirs", 0, 1, SINK["checksum"], SINK["brokers"])
        ]


def test_a_batch_that_is_not_committed_keeps_no_other_role_waiting(plot: Plot, their_write: str) -> None:
    plot.shop.execute("SET lock_timeout = '1s'")
    plot.owner.execute("SET lock_timeout = '1s'")
    stage(plot.mallory, plot.key("orders"), "mine")
    plot.owner.execute("UPDATE mqdb.sink_write SET staged_at = '2000-01-01' WHERE principal = 'mallory'")
    with plot.mallory.transaction(force_rollback=True):
        assert plot.mallory.execute(statements.RECORD_BATCH, SINK).rowcount == 1
        plot.mallory.execute("SELECT mqdb.clear_own_writes('{}')")
        for session in (plot.shop, plot.owner):
            assert session.execute(statements.RECORD_BATCH, SINK).rowcount == 1
        plot.owner.execute(statements.SWEEP)
        plot.owner.execute(statements.CLEAR_BATCHES, SINK)

    assert scalar(plot.owner, "SELECT count(*) FROM mqdb.sink_write") == 2


LONG_NAMES = [
    "INSERT INTO mqdb.sink_batch (sink_id, batch_id, messages) VALUES (repeat('x', 2000), 0, 0)",
    "INSERT INTO mqdb.sink_batch (sink_id, batch_id, query_id, messages) VALUES ('x', 0, repeat('x', 1000000), 0)",
    "INSERT INTO mqdb.sink_batch (sink_id, batch_id, messages, brokers) VALUES ('x', 0, 0, ARRAY[repeat('x', 9000)])",
    "INSERT INTO mqdb.sink_write (write_id, sink_id, batch_id) VALUES (gen_random_uuid(), repeat('x', 2000), 0)",
]


def test_a_ledger_has_short_names(plot: Plot) -> None:
    assert plot.refusals(LONG_NAMES) == dict.fromkeys(LONG_NAMES, "42501")


def test_no_body_is_staged_that_is_too_large_and_nothing_by_who_may_not_send(plot: Plot, principal: Principal) -> None:
    write_id = stage(plot.mallory, plot.key("orders"), "mine")
    large = staged_row(write_id, plot.key("orders"), "repeat('x', 4194305)::bytea")
    assert plot.tries(large).sqlstate == "42501"

    reader = connect(principal("reader", read=["orders"], group=["billing"]))
    for table, columns, values in (
        ("sink_write", "write_id, sink_id, batch_id", "gen_random_uuid(), 'x', 0"),
        ("sink_batch", "sink_id, batch_id, messages", "'x', 0, 0"),
    ):
        assert attack(reader, f"INSERT INTO mqdb.{table} ({columns}) VALUES ({values})").sqlstate == "42501"
    reader.close()
