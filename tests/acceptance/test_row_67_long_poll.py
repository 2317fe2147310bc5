"""Row 67 of the checklist: who waits for messages is woken by them, and does not ask for them all the time.

RocketMQ's broker holds an empty pull for 15 to 20 s. Here the waiting is done by the client, which hears of arrivals.
"""

import statistics
import threading
import time
from datetime import timedelta

from sqlalchemy import Connection, text

from mqdb.message import ReceivedMessage
from mqdb_client import ConsumeConcurrentlyStatus
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import SUCCESS, Member
from tests.fixtures.lite_pull import Lite

SENDS = 20
#: The poll behind the announcements is up to a second away.
LONGEST_MEDIAN = 0.3


class Bell:
    """A listener that notes when it is called."""

    def __init__(self) -> None:
        self.rang = threading.Event()
        self.at = 0.0

    def __call__(self, _messages: list[ReceivedMessage]) -> ConsumeConcurrentlyStatus:
        self.at = time.monotonic()
        self.rang.set()
        return SUCCESS


def test_row_67_a_listener_is_called_when_a_message_arrives(served: Connection, member: Member) -> None:
    route = topic(served, queues=4)
    bell = Bell()
    member(bell)
    latencies = []

    for number in range(SENDS):
        bell.rang.clear()
        sent_at = time.monotonic()
        append(served, route, f"{number}", queue_id=number % 4)
        assert bell.rang.wait(20)
        latencies.append(bell.at - sent_at)

    assert statistics.median(latencies) < LONGEST_MEDIAN


def test_row_67_a_poll_returns_when_a_message_arrives(served: Connection, lite: Lite) -> None:
    route = topic(served, queues=4)
    consumer = lite("orders")
    latencies = []

    for number in range(SENDS):
        sent_at = time.monotonic()
        append(served, route, f"{number}", queue_id=number % 4)
        [message] = consumer.poll(timedelta(seconds=20))
        latencies.append(time.monotonic() - sent_at)
        assert message.body == b"%d" % number

    assert statistics.median(latencies) < LONGEST_MEDIAN


def test_row_67_who_waits_asks_once_a_second_at_most(served: Connection, lite: Lite) -> None:
    """As a net for announcements that got lost; the first few times it asks sooner."""
    topic(served, queues=4)
    lite("orders")
    pulls = set()
    pace = threading.Event()

    begin = time.monotonic()
    while (elapsed := time.monotonic() - begin) < 6:
        started_at = served.scalar(text(LAST_PULL))
        if elapsed > 2:
            pulls.add(started_at)
        pace.wait(0.02)

    assert 2 <= len(pulls) <= 6


LAST_PULL = """
    SELECT max(query_start) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name LIKE 'mqdb %' AND query LIKE '%AS request%'
"""
