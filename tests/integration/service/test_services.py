"""The services that call one verb repeatedly: dispatcher, key indexer, client reaper."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine

from mqdb.broker.clients import membership
from mqdb.broker.dispatch import DispatchOutcome, IndexResult
from mqdb.service.client_reaper import ClientReaper, ReaperCounts
from mqdb.service.dispatcher import Dispatcher, DispatcherConfig
from mqdb.service.key_indexer import KeyIndexer
from mqdb.service.service import Context
from mqdb.store.clients.clients import ClientKind, Registration, members_of
from tests.fixtures import log as by_hand
from tests.fixtures.clocks import ManualClock
from tests.fixtures.log import append, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.services import Rounds


@pytest.fixture
def connection(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        yield connection


@pytest.fixture
def queue(log: by_hand.Connection) -> int:
    """The key of an empty queue."""
    return create_topic(log, "orders")[0]


def milliseconds(pause: timedelta) -> float:
    return pause / timedelta(milliseconds=1)


# -- dispatcher ---------------------------------------------------------------------------------


def test_the_dispatcher_gives_messages_their_offsets(
    engine: Engine, rounds: Rounds, log: by_hand.Connection, queue: int
) -> None:
    dispatcher = Dispatcher(Context(engine.connect, on_round=rounds))
    dispatcher.start()
    try:
        append(log, queue, 3)
        rounds.wait_for(lambda result: result.messages == 3)
        append(log, queue)
        rounds.wait_for(lambda result: result.messages == 1)
    finally:
        dispatcher.stop()

    assert len(by_hand.positions(log, queue)) == 4


def test_the_dispatcher_is_quick_while_messages_come_and_lazy_while_one_is_not_committed(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int, database: Database
) -> None:
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    dispatcher = Dispatcher(Context(engine.connect, clock=clock))
    add_consumers(log, 1)
    append(log, queue)
    writer = database.connect(autocommit=False)
    append(writer, queue)

    pauses = [milliseconds(dispatcher.pause_after(dispatcher.run_once(connection))) for _ in range(12)]

    assert (pauses[0], pauses[-1]) == (1, 10)
    writer.rollback()
    clock.advance(timedelta(seconds=1))
    assert dispatcher.pause_after(dispatcher.run_once(connection)) == DispatcherConfig().longest_sleep


def test_the_dispatcher_goes_on_at_once_while_there_is_more(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int
) -> None:
    dispatcher = Dispatcher(Context(engine.connect))
    log.execute("SELECT mqdb.ensure_segments(3)")
    log.execute("SELECT setval('mqdb.log_pos', 262140)")
    append(log, queue, 10)

    result = dispatcher.run_once(connection)

    assert (result.more, dispatcher.pause_after(result)) == (True, timedelta(0))


def test_while_somebody_else_dispatches_the_dispatcher_stays_quick(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int, database: Database
) -> None:
    add_consumers(log, 1)
    append(log, queue)
    other = database.connect(autocommit=False)
    by_hand.dispatch(other)
    dispatcher = Dispatcher(Context(engine.connect))

    result = dispatcher.run_once(connection)

    assert result.outcome is DispatchOutcome.LOCKED
    assert milliseconds(dispatcher.pause_after(result)) == 2


def test_with_many_consumers_or_none_there_are_at_most_100_batches_a_second(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int
) -> None:
    """There are at most 100 batches a second with many consumers or none.

    A process in two groups listens once. The count is cached for a second.
    """
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    dispatcher = Dispatcher(Context(engine.connect, clock=clock))
    for _ in range(10):
        busy_pause(dispatcher, connection, log, queue)
    pauses = []
    for consumers in (0, 1, 49, 50):
        add_consumers(log, consumers, groups=2)
        before = busy_pause(dispatcher, connection, log, queue)
        clock.advance(timedelta(seconds=1))
        pauses.append((before, *(busy_pause(dispatcher, connection, log, queue) for _ in range(10))))

    assert [(before, last) for before, *_, last in pauses] == [(10, 10), (10, 2), (2, 2), (2, 10)]


@pytest.mark.parametrize(("consumers", "state"), [(0, 4), (1, 1), (49, 1), (50, 4)])
def test_appends_place_their_records_if_somebody_waits_for_them_and_not_too_many(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int, consumers: int, state: int
) -> None:
    """Appends place their records if a session waits for them, but not if too many do.

    Each message's notification wakes all listeners.
    """
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    dispatcher = Dispatcher(Context(engine.connect, clock=clock))
    add_consumers(log, consumers)
    for _ in range(2):  # the first counts the consumers behind its batch
        dispatcher.run_once(connection)
        clock.advance(timedelta(seconds=1))

    assert by_hand.scalar(log, "SELECT last_value FROM mqdb.dispatcher_state") == state


@pytest.mark.parametrize(
    ("consumers", "messages", "state", "last"), [(1, 125, 1, 1), (1, 175, 2, 1), (0, 20, 4, 4), (0, 30, 2, 4)]
)
def test_the_dispatcher_stays_awake_while_many_messages_come(
    engine: Engine,
    connection: Connection,
    log: by_hand.Connection,
    queue: int,
    consumers: int,
    messages: int,
    state: int,
    last: int,
) -> None:
    """The dispatcher stays awake while many messages arrive.

    The limit is 600 messages a second, or 100 if appends would not place messages while it sleeps.
    """
    dispatcher, clock = dispatcher_that_has_counted(engine, connection, log, consumers)
    append(log, queue, messages)
    for pause in (timedelta(milliseconds=250), timedelta(milliseconds=10)):  # the first counts behind its batch
        clock.advance(pause)
        dispatcher.run_once(connection)
    assert by_hand.scalar(log, "SELECT last_value FROM mqdb.dispatcher_state") == state

    for pause in (timedelta(milliseconds=250), timedelta(milliseconds=10)):
        clock.advance(pause)
        dispatcher.run_once(connection)
    assert by_hand.scalar(log, "SELECT last_value FROM mqdb.dispatcher_state") == last


@pytest.mark.parametrize(("messages", "milliseconds_after"), [(1, 1), (2, 1), (3, 2)])
def test_the_dispatcher_looks_again_sooner_after_few_messages(
    engine: Engine,
    connection: Connection,
    log: by_hand.Connection,
    queue: int,
    messages: int,
    milliseconds_after: float,
) -> None:
    dispatcher = Dispatcher(Context(engine.connect, clock=ManualClock(datetime(2024, 1, 1, tzinfo=UTC))))
    add_consumers(log, 1)
    for _ in range(10):  # more than it dispatches one by one
        busy_pause(dispatcher, connection, log, queue)
    append(log, queue, messages)

    assert milliseconds(dispatcher.pause_after(dispatcher.run_once(connection))) == milliseconds_after


def busy_pause(dispatcher: Dispatcher, connection: Connection, log: by_hand.Connection, queue: int) -> float:
    append(log, queue, 100)  # more than it dispatches one by one
    return milliseconds(dispatcher.pause_after(dispatcher.run_once(connection)))


@pytest.mark.parametrize("consumers", [0, 1])
def test_the_dispatcher_soon_sleeps_again_after_a_short_sleep(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int, consumers: int
) -> None:
    """The dispatcher soon sleeps again after a short sleep.

    An append that arrives as it falls asleep wakes it at once, which is frequent at 500 messages a second.
    """
    dispatcher, clock = dispatcher_that_has_counted(engine, connection, log, consumers)
    states = set()

    for _ in range(6):
        append(log, queue)
        for pause in (timedelta(milliseconds=1), timedelta(milliseconds=10)):
            clock.advance(pause)
            dispatcher.run_once(connection)
        states.add(by_hand.scalar(log, "SELECT last_value FROM mqdb.dispatcher_state"))

    assert states == ({1} if consumers else {4})


def dispatcher_that_has_counted(
    engine: Engine, connection: Connection, log: by_hand.Connection, consumers: int
) -> tuple[Dispatcher, ManualClock]:
    """A dispatcher that has counted the consumers, and has seen no messages arrive."""
    clock = ManualClock(datetime(2024, 1, 1, tzinfo=UTC))
    dispatcher = Dispatcher(Context(engine.connect, clock=clock))
    add_consumers(log, consumers)
    dispatcher.run_once(connection)
    clock.advance(timedelta(seconds=1))
    dispatcher.run_once(connection)
    return dispatcher, clock


def add_consumers(log: by_hand.Connection, count: int, groups: int = 1) -> None:
    log.execute(
        """INSERT INTO mqdb.client (client_id, kind, group_name, language, version)
           SELECT 'client-' || c, 'CONSUMER', 'group-' || g, 'PYTHON', '1'
           FROM generate_series(1, %s) c, generate_series(1, %s) g ON CONFLICT DO NOTHING""",
        [count, groups],
    )


# -- key indexer --------------------------------------------------------------------------------


def test_the_key_indexer_makes_messages_findable(
    engine: Engine, rounds: Rounds, log: by_hand.Connection, queue: int
) -> None:
    """The key indexer, which follows dispatch, makes messages findable."""
    indexer = KeyIndexer(Context(engine.connect, on_round=rounds))
    append(log, queue, 2, keys="red green")
    by_hand.dispatch_all(log)

    indexer.start()
    try:
        rounds.wait_for(lambda counts: counts == IndexResult(messages=2, more=False))
    finally:
        indexer.stop()

    # Two keys and the unique id of each: for so few there is no span.
    assert scalar(log, "SELECT count(*) FROM mqdb.message_index") == 6


def test_the_key_indexer_gathers_messages_for_large_batches(
    engine: Engine, connection: Connection, log: by_hand.Connection, queue: int
) -> None:
    indexer = KeyIndexer(Context(engine.connect))
    append(log, queue)
    by_hand.dispatch_all(log)

    pauses = [milliseconds(indexer.pause_after(indexer.run_once(connection))) for _ in range(2)]

    assert pauses == [200, 200]


def test_the_key_indexer_waits_for_the_adoption_of_a_restored_database(
    engine: Engine, connection: Connection, database: Database
) -> None:
    """The key indexer waits for the adoption of a restored database.

    A clone of the template counts as a different database from the migrated one.
    """
    assert KeyIndexer(Context(engine.connect)).run_once(connection) == IndexResult(0, False)
    dispatch_all(database.connect())
    assert KeyIndexer(Context(engine.connect)).run_once(connection) == IndexResult(0, False)


# -- client reaper ------------------------------------------------------------------------------


def test_the_client_reaper_notices_a_closed_connection_and_tells_the_group(
    engine: Engine, scheduler: BackgroundScheduler, rounds: Rounds, database: Database
) -> None:
    listener = database.connect()
    listener.execute("LISTEN mqdb")
    with engine.connect() as alive, engine.connect() as leaving:
        for client, connection in (("alive", alive), ("leaving", leaving)):
            membership.announce(connection, client)
            membership.register(connection, Registration(client, ClientKind.CONSUMER, "group", "1"))
        told_of_arrivals = list(listener.notifies(timeout=30, stop_after=2))
        reaper = ClientReaper(Context(engine.connect, on_round=rounds), scheduler)
        reaper.start()
        try:
            assert rounds.next() == ReaperCounts(())

            leaving.invalidate()

            assert rounds.wait_for(lambda counts: counts.groups) == ReaperCounts(("group",))
        finally:
            reaper.stop()
        assert members_of(alive, "group") == ["alive"]
    assert [notify.payload for notify in told_of_arrivals] == ["m:group", "m:group"]
    assert [notify.payload for notify in listener.notifies(timeout=30, stop_after=1)] == ["m:group"]
