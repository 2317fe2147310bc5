"""The pages of a topic: its rates, its queues as bars, the live tail, a test message, and a message as code."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from html import unescape
from typing import NamedTuple
from urllib.parse import urlencode

import pytest

from mqdb.dashboard.live.tail import MOST_TAILS
from mqdb.web.time_series import BrokerFigure
from mqdb_client import Admin, ConsumeConcurrentlyStatus, ConsumeFromWhere, Message, Producer, PushConsumer
from tests.fixtures.dashboard import Site, Visitor
from tests.fixtures.postgres import Database, query
from tests.fixtures.processes import wait_until

B = "/b/broker-a/"


class Event(NamedTuple):
    """An event of a stream: its name and its data."""

    name: str
    data: str


class Stream:
    """The events of a stream, one after another."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self.answer = answer

    def next(self) -> Event:
        name, lines = "message", []
        while line := self.answer.readline().decode():
            field, _, value = line.rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                lines.append(value)
            elif lines:
                return Event(name, unescape("\n".join(lines)))
        raise AssertionError("the stream has ended")


@contextmanager
def stream(site: Site, visitor: Visitor, path: str, **fields: str) -> Iterator[Stream]:
    cookie = "; ".join(f"{name}={value}" for name, value in visitor.cookies.items())
    with closing(http.client.HTTPConnection(site.address.host, site.address.port, timeout=30)) as connection:
        connection.request("GET", f"{B}{path}?{urlencode(fields)}", headers={"Cookie": cookie})
        yield Stream(connection.getresponse())


def test_a_topic_shows_its_rates_and_gets_them_again_with_each_sample(site: Site, ann: Visitor) -> None:
    series = site.dashboard.figures.series
    wait_until(lambda: site.dashboard.figures.latest[1] is not None)
    with stream(site, ann, "topics/rated/live") as events:
        assert "Stored" in events.next().data
        with Producer("rates", site.database.dsn) as producer:
            producer.send_batch([Message("rated", b"1")] * 500)
        wait_until(lambda: any(point.value > 0 for point in series.of(BrokerFigure.STORED, "rated")))
        while "polyline" not in events.next().data:
            pass
    assert 'data-live="/b/broker-a/topics/rated/live"' in ann.page(B + "topics/rated")


def test_queues_are_bars_with_the_places_of_groups(site: Site, ann: Visitor) -> None:
    details = ann.page(B + "topics/orders/details")

    assert details.count('<svg class="bar"') == 2
    assert 'class="mark"' in details
    assert "billing, 1 behind" in details
    assert "Oldest message" in details


def test_a_tail_brings_new_messages_that_match_and_nothing_older(site: Site, ann: Visitor) -> None:
    with Producer("tail", site.database.dsn) as producer:
        producer.send(Message("tailed", b"before", tag="a"))
        with stream(site, ann, "topics/tailed/tail/stream", tag="a") as events:
            assert events.next().name == "begun"
            producer.send(Message("tailed", b"of another tag", tag="b"))
            producer.send(Message("tailed", b"<i>after", tag="a"))
            rows = events.next().data
        with stream(site, ann, "topics/tailed/tail/stream", key="1") as events:
            assert events.next().name == "begun"
            producer.send_batch([Message("tailed", f"{number}", keys=f"k {number}") for number in range(3)])
            by_key = events.next().data

    assert "<i>after" in rows
    assert "before" not in rows
    assert "of another tag" not in rows
    assert by_key.count("<tr>") == 1


def test_a_tail_of_a_busy_topic_says_how_many_it_leaves_out(site: Site, ann: Visitor) -> None:
    with stream(site, ann, "topics/busy/tail/stream") as missing:
        name, sentence = missing.next()
        assert (name, "topic 'busy' does not exist" in sentence) == ("over", True)
    with Producer("busy", site.database.dsn) as producer:
        producer.send(Message("busy", b"1"))
        with stream(site, ann, "topics/busy/tail/stream") as events:
            assert events.next().name == "begun"
            producer.send_batch([Message("busy", b"1")] * 300)
            shown = left_out = 0
            while shown + left_out < 300:
                data = events.next().data
                shown += data.count('<a class="id"')
                left_out += int(data.partition('class="empty">')[2].partition(" messages")[0] or 0)
    assert left_out > 0
    assert shown + left_out == 300


def test_a_wrong_filter_ends_a_tail_with_a_sentence(site: Site, ann: Visitor) -> None:
    with stream(site, ann, "topics/orders/tail/stream", sql="a =") as events:
        name, sentence = events.next()

    assert name == "over"
    assert sentence.startswith("selector, position 3")


def test_the_number_of_tails_is_bounded_and_a_closed_page_frees_its_own(site: Site, ann: Visitor) -> None:
    tails = site.dashboard.tails
    wait_until(lambda: tails.tails == 0)
    with stream(site, ann, "topics/orders/tail/stream") as events:
        events.next()
        assert tails.tails == 1
    wait_until(lambda: tails.tails == 0)
    tails.tails = MOST_TAILS
    try:
        with stream(site, ann, "topics/orders/tail/stream") as events:
            assert events.answer.status == 503
    finally:
        tails.tails = 0


def test_a_test_message_is_sent_with_all_that_the_form_has(site: Site, ann: Visitor) -> None:
    reply = ann.act(
        B + "topics/orders/send",
        body="a\r\ntest",
        tag="paid",
        keys="k-9 k-10",
        properties="region = EU\r\nkind=a=b",
        sharding_key="s",
    )

    assert reply.status == 303
    message_id = reply.location.rpartition("/")[2]
    with Admin(site.database.dsn) as admin:
        wait_until(lambda: bool(admin.messages.show(message_id)))
        [sent] = admin.messages.show(message_id)
    assert (sent.body, sent.tag, sent.keys) == (b"a\ntest", "paid", ("k-9", "k-10"))
    assert {name: sent.properties[name] for name in ("region", "kind")} == {"region": "EU", "kind": "a=b"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"properties": "x"}, "NAME=VALUE"), ({"properties": "KEYS=1"}, "KEYS")],
)
def test_a_test_message_that_cannot_be_sent_is_refused(ann: Visitor, fields: dict[str, str], words: str) -> None:
    reply = ann.act(B + "topics/orders/send", body="x", **fields)

    assert reply.status == 400
    assert words in unescape(reply.body)


def test_json_is_a_tree_and_a_message_can_be_copied(site: Site, ann: Visitor, database: Database) -> None:
    body = json.dumps({"total": 42, "items": [{"price": 1.5, "name": "<b>"}]})
    with Producer("json", site.database.dsn) as producer:
        sent = producer.send(Message("trees", body, tag="paid", keys="k", properties={"region": "EU"}))

    page = ann.page(f"{B}messages/{sent.message_id}?body=1")

    assert '<div class="tree">' in page
    assert '<span class="name">price</span> <span>1.5</span>' in page
    copied = page.partition("SELECT mqdb.send(")[2].partition("</pre>")[0]
    assert copied
    query(site.database.dsn, "SELECT mqdb.send(" + copied)
    with Admin(site.database.dsn) as admin:
        wait_until(lambda: len(admin.messages.find("trees")) == 2)
        first, second = admin.messages.find("trees")
    assert (first.body, first.tag, first.keys, first.properties["region"]) == (
        second.body,
        second.tag,
        second.keys,
        second.properties["region"],
    )


def test_waiting_retries_stand_on_their_steps(site: Site, ann: Visitor) -> None:
    ladder = ann.page(B + "groups/billing/retries")
    assert "16 retries, the first one 10s after the failure, the last one 2h" in ladder
    assert "No message waits for a retry" in ladder

    with Admin(site.database.dsn) as admin:
        admin.groups.update("quick", retry_max_times=2, retry_delays=[timedelta(hours=3)])
    failing = PushConsumer("quick", dsn=site.database.dsn, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    failing.subscribe("failed")
    failing.register_listener(lambda _messages: ConsumeConcurrentlyStatus.RECONSUME_LATER)
    with Producer("failing", site.database.dsn) as producer, failing:
        producer.send(Message("failed", b"1"))
        wait_until(lambda: "1 of 2" in ann.page(B + "groups/quick/retries"))

    ladder = ann.page(B + "groups/quick/retries")
    assert "2 retries, 3h after each failure" in ladder
    assert '<td class="n">1 of 2</td><td class="n">3h</td><td class="n">1</td>' in ladder
