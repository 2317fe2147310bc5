"""Services with a slow connection to their database: the round-trip cost makes no batch smaller.

The quick tests count rounds. The long tests deliver 10,000 messages that are due at the same time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.service.delay_deliverer import DelayDeliverer
from mqdb.service.service import Context, LoopService
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.store.engine import create_engine
from tests.fixtures import delay as delays
from tests.fixtures import timers
from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.services import Rounds
from tests.fixtures.variants import usually

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)

DELIVERED = text("""
SELECT count(*) FROM mqdb.commit_log JOIN mqdb.queue USING (queue_key) JOIN mqdb.topic USING (topic_id)
WHERE topic = 'orders'
""")
ALL_DUE = text("SELECT max(deliver_ms) < extract(epoch FROM mqdb.now()) * 1000 FROM mqdb.timer")


def due_timers(broker: Connection, bodies: Sequence[str]) -> None:
    """Messages in their slots that are due now."""
    timers.timer(broker, SECOND, *bodies)
    timers.deliver_all(broker, max_messages=len(bodies))
    wait_until(lambda: broker.scalar(ALL_DUE))


def new_timers(broker: Connection, bodies: Sequence[str]) -> None:
    """Messages that are already due when they are first read."""
    timers.timer(broker, -SECOND, *bodies)


def delayed(broker: Connection, bodies: Sequence[str]) -> None:
    """Messages of a delay level that are due now."""
    broker.execute(text("UPDATE mqdb.delay_level SET delay = '1 millisecond'"))
    delays.delay(broker, 1, *bodies)


KINDS = pytest.mark.parametrize(
    ("deliverer", "prepare"),
    usually(
        (DelayDeliverer, delayed),
        of=[(TimerDeliverer, due_timers), (TimerDeliverer, new_timers), (DelayDeliverer, delayed)],
    ),
    ids=["timers in their slots", "timers as they come", "a delay level"],
)
Prepare = Callable[[Connection, Sequence[str]], None]


@pytest.fixture
def way(database: Database, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine with a slow connection to the test's database."""
    with Proxy(database.dsn, round_trip=request.param) as way:
        engine = create_engine(way.dsn)
        yield engine
        engine.dispose()


def delivered(broker: Connection) -> int:
    return int(broker.scalar(DELIVERED) or 0)


@KINDS
@pytest.mark.parametrize("way", [60 * MS], indirect=True, ids=str)
def test_a_long_way_makes_no_round_smaller(
    broker: Connection, way: Engine, deliverer: type[LoopService[object]], prepare: Prepare
) -> None:
    topic(broker)
    prepare(broker, [str(number) for number in range(3_000)])
    service = deliverer(Context(way.connect))
    with way.connect() as connection:
        found = [service.run_once(connection) for _ in range(2)]

    assert [each.messages for each in found] == [1_000, 2_000]  # type: ignore[attr-defined]
    assert delivered(broker) == 3_000


@KINDS
def test_a_round_is_bounded_by_the_bytes_that_it_copies(
    broker: Connection, engine: Engine, deliverer: type[LoopService[object]], prepare: Prepare
) -> None:
    """A round is limited by the bytes that it copies: 16 MiB, including what each message needs besides its body."""
    topic(broker)
    prepare(broker, ["x" * 2**20] * 40)
    service = deliverer(Context(engine.connect))

    found = [service.run_once(broker) for _ in range(4)]

    assert [each.messages for each in found] == [16, 16, 8, 0]  # type: ignore[attr-defined]


@pytest.mark.long
@KINDS
@pytest.mark.parametrize("way", [40 * MS, 100 * MS], indirect=True, ids=str)
def test_10_000_messages_that_are_due_over_a_long_way_come_within_10_seconds(
    broker: Connection, way: Engine, rounds: Rounds, deliverer: type[LoopService[object]], prepare: Prepare
) -> None:
    topic(broker)
    prepare(broker, [str(number) for number in range(10_000)])
    service = deliverer(Context(way.connect, on_round=rounds))
    begin = time.monotonic()
    service.start()
    try:
        wait_until(lambda: delivered(broker) == 10_000, 60)
        took = time.monotonic() - begin
    finally:
        service.stop()

    assert took < 10
