"""Timers under random interleavings arrive exactly once and never early, and a recall keeps its promise."""

import os
import random
import threading
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.dispatch import dispatch
from mqdb.broker.schedule.timers import RecallStatus, deliver_due, recall_message
from mqdb.common.unique_id import parse_unique_id
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.service import Context
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.delay import move_clock
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing
from tests.fixtures.timers import column, deliver_all, timer
from tests.fixtures.variants import usually

RUNS = int(os.environ.get("MQDB_TIMER_RUNS", "4"))
ACTIONS = 150

#: Past, near and far, in seconds.
DELAYS = (-100_000, -1, 0, 0.001, 1, 60, 3_599, 3_601, 86_400, 100_000, 2_700_000, 90_000_000, 200_000_000)
CLOCK_STEPS = (1, 5, 60, 3_600, 7_200, 90_000, 3_000_000, -0.01, -1, -100, -4_000, -100_000)


MS = timedelta(milliseconds=1)


class Copy(NamedTuple):
    """A delivered message, with its delivery time and its due time."""

    unique_id: str
    delivered_at: datetime
    due_at: datetime


_COPIES = text("""
    SELECT mqdb.unique_id_text(copy.msg_id), copy.store_time, to_timestamp(sent.tags_code / 1000.0)
    FROM mqdb.commit_log copy JOIN mqdb.commit_log sent USING (msg_id)
    WHERE copy.tags_code = 0 AND sent.log_pos < copy.log_pos""")


class Play:
    """A broker with two sessions, and its promises."""

    def __init__(self, sessions: list[Connection], chance: random.Random) -> None:
        self._sessions = sessions
        self._chance = chance
        self._clock = 0.0
        self.sent: list[str] = []
        self.recalled: set[str] = set()

    def copies(self) -> list[Copy]:
        return [Copy(*row) for row in self._sessions[0].execute(_COPIES)]

    def act(self) -> None:
        """Do something that may happen at any time."""
        actions = (self._send, self._send, self._dispatch, self._deliver, self._deliver, self._recall, self._move_clock)
        self._chance.choice(actions)(self._chance.choice(self._sessions))

    def _send(self, session: Connection) -> None:
        bodies = ["x"] * self._chance.randint(1, 6)
        delay = timedelta(seconds=self._chance.choice(DELAYS))
        self.sent += timer(session, delay, *bodies, dispatched=False)

    def _dispatch(self, session: Connection) -> None:
        dispatch(session)
        if self._chance.random() < 0.5:
            KeyIndexer(Context(lambda: session)).run_once(session)

    def _deliver(self, session: Connection) -> None:
        deliver_due(session, self._chance.choice([1, 2, 5, 100]))

    def _recall(self, session: Connection) -> None:
        if not self.sent:
            return
        unique_id = self._chance.choice(self.sent)
        is_delivered = unique_id in {copy.unique_id for copy in self.copies()}
        if unique_id in self.recalled:
            expected = RecallStatus.UNKNOWN
        else:
            expected = RecallStatus.ALREADY_DELIVERED if is_delivered else RecallStatus.RECALLED
        assert recall_message(session, parse_unique_id(unique_id), "orders") is expected
        if expected is RecallStatus.RECALLED:
            self.recalled.add(unique_id)

    def _move_clock(self, _session: Connection) -> None:
        self._clock += self._chance.choice(CLOCK_STEPS)
        self._set_clock()

    def _set_clock(self) -> None:
        for session in self._sessions:
            move_clock(session, timedelta(seconds=self._clock))

    def end(self) -> None:
        """Advance to a time when everything is due."""
        self._clock = 400_000_000
        self._set_clock()
        dispatch_all(self._sessions[0])
        deliver_all(self._sessions[0], 7)


@pytest.mark.parametrize("run", usually(0, of=range(RUNS)))
def test_each_message_comes_once_and_none_early(broker: Connection, engine: Engine, run: int) -> None:
    seed = int(os.environ.get("MQDB_TIMER_SEED", "0")) or random.SystemRandom().randrange(1, 10**9)
    print(f"MQDB_TIMER_SEED={seed}")  # noqa: T201
    topic(broker)
    with engine.connect() as second:
        play = Play([broker, second], random.Random(seed))
        for _ in range(ACTIONS):
            play.act()
        play.end()

    copies = play.copies()
    assert sorted(copy.unique_id for copy in copies) == sorted(set(play.sent) - play.recalled)
    assert [copy for copy in copies if copy.delivered_at < copy.due_at] == []


def test_recalls_and_deliveries_at_the_same_time_agree(broker: Connection, engine: Engine) -> None:
    topic(broker)
    unique_ids = [
        unique_id
        for n in range(50)
        for unique_id in timer(broker, timedelta(milliseconds=400 + 5 * n), *"abcd", dispatched=False)
    ]
    is_over = threading.Event()

    def deliver() -> None:
        with engine.connect() as session:
            while not is_over.is_set():
                dispatch(session)
                deliver_due(session, 20)

    def recall(mine: list[str]) -> dict[str, RecallStatus]:
        """Recall each message close to its due time."""
        answers: dict[str, RecallStatus] = {}
        with engine.connect() as session:
            for each in mine:
                wait_until(lambda each=each: datetime.now(UTC) >= due_at(session, each) - 2 * MS)  # type: ignore[misc]
                answers[each] = recall_message(session, parse_unique_id(each))
        return answers

    delivering = [Doing(deliver) for _ in range(2)]
    recalling = [Doing(lambda part=part: recall(unique_ids[part::4])) for part in range(2)]  # type: ignore[misc]
    answers = recalling[0].result() | recalling[1].result()
    wait_until(
        lambda: (
            datetime.now(UTC) > due_at(broker, unique_ids[-1])
            and not column(broker, "SELECT msg_id FROM mqdb.scheduled")
        )
    )
    is_over.set()
    for each in delivering:
        each.result()

    assert set(answers.values()) <= {RecallStatus.RECALLED, RecallStatus.ALREADY_DELIVERED}
    recalled = {each for each, status in answers.items() if status is RecallStatus.RECALLED}
    delivered = column(broker, "SELECT mqdb.unique_id_text(msg_id) FROM mqdb.commit_log WHERE tags_code = 0")
    assert sorted(delivered) == sorted(set(unique_ids) - recalled)


def due_at(connection: Connection, unique_id: str) -> datetime:
    """The due time of a message."""
    statement = "SELECT to_timestamp(max(tags_code) / 1000.0) FROM mqdb.commit_log WHERE msg_id = CAST(:id AS uuid)"
    [due_at] = column(connection, statement, id=unique_id)
    assert isinstance(due_at, datetime)
    return due_at
