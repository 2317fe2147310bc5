"""Random sequences of a user's calls to a lite pull consumer, compared with a model.

The consumers read one topic with three queues. The model has for each queue its messages, the polled offset, the
group's committed offset, and whether the queue is paused. Everything else, such as messages read ahead and pulls under
way, must be invisible. The same seed plays the same steps, except for the number of messages that a poll without a wait
finds.
"""

import random
from collections.abc import Sequence
from datetime import timedelta

import pytest
from sqlalchemy import Connection

from mqdb.common.message import MessageQueue
from mqdb.common.received_message import ReceivedMessage
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb.store.topics.topics import TopicRoute
from mqdb_client import LitePullConsumer
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.lite_pull import Lite, queue_of
from tests.fixtures.variants import usually

pytestmark = pytest.mark.usefixtures("both_kinds_of_clients")

SEEDS = usually(*range(2), of=range(12))
STEPS = 80
QUEUES = 3
BATCH = 4
NOTHING, LONG = timedelta(0), timedelta(seconds=20)
NEVER = timedelta(hours=1)


class Play:
    """One consumer after another, and the model."""

    def __init__(self, broker: Connection, lite: Lite, rng: random.Random) -> None:
        self.broker = broker
        self.lite = lite
        self.rng = rng
        self.is_subscribed = rng.random() < 0.5
        self.auto_commit = rng.random() < 0.5
        self.route: TopicRoute = topic(broker, queues=QUEUES)
        self.end = [0] * QUEUES
        self.committed = [0] * QUEUES
        self.log: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self.position = list(self.committed)
        self.done = list(self.committed)  # what an automatic commit may cover
        self.paused: set[int] = set()
        options = {"pull_batch_size": BATCH, "auto_commit": self.auto_commit, "auto_commit_interval": NEVER}
        if self.is_subscribed:
            self.consumer: LitePullConsumer = self.lite("orders", **options)
        else:
            self.consumer = self.lite(queue_ids=list(range(QUEUES)), **options)

    def step(self) -> None:
        steps = [self.send, self.poll, self.poll_and_wait, self.seek, self.pause, self.resume, self.commit]
        weights = [3, 6, 6, 2, 2, 3, 1]
        if not self.auto_commit:  # an automatic commit would take its place
            steps.append(self.commit_an_offset)
            weights.append(1)
        if self.rng.random() < 0.02:
            self.restart()
        else:
            self.rng.choices(steps, weights)[0]()
        assert self.stored() == self.committed

    def stored(self) -> list[int]:
        offsets = committed_offsets(self.broker, "readers", self.route.queue_keys)
        return [offsets.get(key, 0) for key in self.route.queue_keys]

    def any_queue(self) -> tuple[int, MessageQueue]:
        queue_id = self.rng.randrange(QUEUES)
        return queue_id, queue_of(queue_id)

    def send(self) -> None:
        queue_id, _ = self.any_queue()
        bodies = [f"{self.end[queue_id] + number}" for number in range(self.rng.randint(1, 12))]
        self.log.append(f"send {len(bodies)} to {queue_id}")
        append(self.broker, self.route, *bodies, queue_id=queue_id)
        dispatch_all(self.broker)
        self.end[queue_id] += len(bodies)

    def poll(self) -> None:
        self._receive(NOTHING)

    def poll_and_wait(self) -> None:
        if any(self.position[n] < self.end[n] and n not in self.paused for n in range(QUEUES)):
            assert self._receive(LONG), "nothing came, and there is something"

    def _receive(self, timeout: timedelta) -> Sequence[ReceivedMessage]:
        self.done = list(self.position)
        messages = self.consumer.poll(timeout)
        self.log.append(f"poll {[(message.queue.queue_id, message.queue_offset) for message in messages]}")
        assert len(messages) <= BATCH
        for message in messages:
            queue_id = message.queue.queue_id
            assert queue_id not in self.paused
            assert message.queue_offset == self.position[queue_id]
            assert message.body == b"%d" % message.queue_offset
            self.position[queue_id] += 1
        return messages

    def seek(self) -> None:
        queue_id, queue = self.any_queue()
        offset = self.rng.randint(0, self.end[queue_id])
        self.log.append(f"seek {queue_id} {offset}")
        self.consumer.seek(queue, offset)
        self.position[queue_id] = self.done[queue_id] = offset

    def pause(self) -> None:
        queue_id, queue = self.any_queue()
        self.log.append(f"pause {queue_id}")
        self.consumer.pause([queue])
        self.paused.add(queue_id)

    def resume(self) -> None:
        queue_id, queue = self.any_queue()
        self.log.append(f"resume {queue_id}")
        self.consumer.resume([queue])
        self.paused.discard(queue_id)

    def commit(self) -> None:
        self.log.append("commit")
        self.consumer.commit()
        self.committed = list(self.position)
        self.done = list(self.position)

    def commit_an_offset(self) -> None:
        queue_id, queue = self.any_queue()
        offset = self.rng.randint(0, self.end[queue_id])
        self.log.append(f"commit {queue_id} {offset}")
        self.consumer.commit({queue: offset})
        self.committed[queue_id] = offset

    def restart(self) -> None:
        self.log.append("restart")
        self.consumer.shutdown()
        if self.auto_commit:
            self.committed = list(self.done)
        assert self.stored() == self.committed
        self._begin()

    def finish(self) -> None:
        """Check that every remaining message is polled."""
        self.consumer.resume([queue_of(queue_id) for queue_id in range(QUEUES)])
        self.paused.clear()
        while self.position != self.end:
            self.poll_and_wait()
        self.restart()


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_a_user_does_each_poll_goes_on_where_the_last_one_ended(
    seed: int, broker: Connection, lite: Lite
) -> None:
    play = Play(broker, lite, random.Random(seed))
    try:
        for _ in range(STEPS):
            play.step()
        play.finish()
    except AssertionError:
        print(*play.log, sep="\n")  # noqa: T201
        raise
