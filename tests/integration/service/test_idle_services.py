"""Idle services cost next to nothing: they sleep until the dispatcher wakes them, and their statements are cheap."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial, partialmethod
from typing import Any, Final, NamedTuple, cast

import pytest
from apscheduler.schedulers.background import BackgroundScheduler
from sqlalchemy import Connection, Engine, event, text

from mqdb.broker.clients import membership
from mqdb.broker.dispatch import IndexResult
from mqdb.broker.schedule.delay import DelayRound
from mqdb.broker.schedule.timers import TimerRound
from mqdb.common.message import Message
from mqdb.server import Server
from mqdb.service.client_reaper import ClientReaper
from mqdb.service.cron_sender import CronSender
from mqdb.service.delay_deliverer import DelayDeliverer, DelayDelivererConfig
from mqdb.service.dispatcher import Dispatcher, DispatcherConfig
from mqdb.service.key_indexer import KeyIndexer, KeyIndexerConfig
from mqdb.service.leadership import Leadership, LeadershipConfig, LeadershipState
from mqdb.service.segment_keeper import KeeperCounts, SegmentKeeper
from mqdb.service.service import Context, LoopService, PeriodicService, Service
from mqdb.service.timer_deliverer import TimerDeliverer, TimerDelivererConfig
from mqdb.service.transaction_checker import TransactionChecker
from mqdb.settings import load_settings
from mqdb.store.schedule import delay_steps, timer_steps
from mqdb_client.consumer.queues.rebalance_service import RebalanceService, RebalanceTimes
from mqdb_client.dispatch_watch import LONGEST_PATIENCE_SECONDS, PATIENCE_SECONDS, DispatchWatch
from tests.fixtures.broker import append, topic
from tests.fixtures.delay import delay, delivered, move_clock
from tests.fixtures.log import scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.services import Rounds
from tests.fixtures.timers import timer

MS = timedelta(milliseconds=1)
SECOND = timedelta(seconds=1)

#: No test waits so long: a service that is not woken fails it.
FOREVER: Final = timedelta(hours=1)

NO_DELAY = DelayRound(0, None, {}, unreadable=(), missing=(), first_segment=1, took=0 * MS)
NO_TIMER = TimerRound(0, 0, FOREVER, 0 * MS, {}, unreadable=(), missing=0, first_segment=1, took=0 * MS)

#: A service, what its round comes to where nothing waits, its pause while it has to look, and after it was woken once.
FOLLOWERS: dict[str, tuple[type[LoopService[Any]], Any, timedelta, timedelta]] = {
    "keys": (KeyIndexer, IndexResult(0, False), 200 * MS, 10 * SECOND),
    "delays, none waits": (DelayDeliverer, NO_DELAY, 100 * MS, 10 * SECOND),
    "delays, one waits": (DelayDeliverer, NO_DELAY._replace(next_due_in=FOREVER), 100 * MS, SECOND),
    "delays, soon": (DelayDeliverer, NO_DELAY._replace(next_due_in=700 * MS), 100 * MS, 700 * MS),
    "delays, held up": (DelayDeliverer, NO_DELAY._replace(is_held_up=True), 100 * MS, 100 * MS),
    "timers": (TimerDeliverer, NO_TIMER, 100 * MS, SECOND),
    "timers, held up": (TimerDeliverer, NO_TIMER._replace(is_held_up=True), 100 * MS, 100 * MS),
}


class Loop(LoopService[int]):
    """Counts its rounds, and sleeps between them."""

    name = "loop under test"

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.count = 0

    def run_once(self, connection: Connection) -> int:
        self.count += 1
        return self.count

    def pause_after(self, counts: int) -> timedelta:
        return FOREVER


@pytest.fixture
def loop(engine: Engine, rounds: Rounds) -> Iterator[Loop]:
    service = Loop(Context(engine.connect, on_round=rounds))
    yield service
    service.stop()


# -- sleeping and waking ----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "found", "awake", "asleep"), FOLLOWERS.values(), ids=FOLLOWERS)
def test_a_service_that_is_woken_does_not_look_by_itself(
    engine: Engine, kind: type[LoopService[Any]], found: Any, awake: timedelta, asleep: timedelta
) -> None:
    """A service that is woken by the dispatcher does not poll; a service that is not woken has to poll."""
    service = kind(Context(engine.connect, may_act=lambda: False))
    service.start()
    try:
        before = service.pause_after(found)
        service.wake()

        assert (before, service.pause_after(found)) == (awake, asleep)
    finally:
        service.stop()


def test_a_service_that_is_woken_looks_again_and_one_that_is_woken_in_a_round_once_more(
    loop: Loop, rounds: Rounds
) -> None:
    loop.start()
    for count in range(1, 6):
        assert rounds.next() == count
        # Perhaps still in the round, perhaps in the pause.
        loop.wake()


def test_a_service_that_sleeps_stops_at_once(loop: Loop, rounds: Rounds) -> None:
    loop.grace = timedelta(seconds=20)  # else it would be cut off
    loop.start()
    rounds.next()

    loop.stop()

    assert loop._run is None


@pytest.mark.parametrize("kind", [DelayDeliverer, TimerDeliverer])
def test_a_deliverer_that_is_woken_lets_the_message_pass_first_and_looks_ten_times_a_second(
    engine: Engine, kind: type[LoopService[Any]]
) -> None:
    service = kind(Context(engine.connect))

    assert [service.pause_when_woken(since) for since in (0 * MS, 60 * MS, SECOND)] == [100 * MS, 40 * MS, 10 * MS]


def test_the_dispatcher_wakes_those_whose_work_begins_with_dispatched_records(
    broker: Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher wakes services whose work begins with dispatched records.

    The services do not poll unless they know that something is due.
    """
    sleepy = {
        Dispatcher: DispatcherConfig(longest_sleep=FOREVER),
        KeyIndexer: KeyIndexerConfig(longest_sleep=FOREVER),
        DelayDeliverer: DelayDelivererConfig(longest_wait=FOREVER, longest_sleep=FOREVER),
        TimerDeliverer: TimerDelivererConfig(longest_wait=FOREVER),
    }
    for kind, config in sleepy.items():
        patient = type(kind.__name__, (kind,), {"__init__": partialmethod(cast(Any, kind).__init__, config=config)})
        monkeypatch.setattr(f"mqdb.server.server.{kind.__name__}", patient)
    route = topic(broker)
    with Server(load_settings(dsn=database.dsn)) as server:
        wait_until(lambda: server.is_leader)
        followers = [
            each for each in server._services if isinstance(each, KeyIndexer | DelayDeliverer | TimerDeliverer)
        ]
        wait_until(lambda: all(service._has_waker for service in followers))
        for number in range(2):
            append(broker, route, Message("orders", "now", keys="key"))
            timer(broker, 100 * MS, f"timer {number}", dispatched=False)
            delay(broker, 1, f"delay {number}", dispatched=False)

            expected = sorted(f"{what} {n}" for what in ("timer", "delay") for n in range(number + 1))
            wait_until(lambda expected=expected: sorted(set(delivered(broker)) - {"now"}) == expected)  # type: ignore[misc]
            wait_until(
                lambda: broker.scalar(
                    text("SELECT count(*) = 0 FROM mqdb.commit_log WHERE log_pos > (SELECT max(done_pos) FROM "
                         "mqdb.checkpoint WHERE service = 'index')")
                )
            )  # fmt: skip


def test_what_another_session_delivers_is_looked_at_again_soon(
    broker: Connection, engine: Engine, database: Database
) -> None:
    topic(broker)
    delay(broker, 1, "a")
    timer(broker, SECOND, "b")
    with engine.connect() as other, engine.connect() as connection:
        move_clock(connection, FOREVER)
        other.exec_driver_sql("BEGIN")
        assert delay_steps.begin(other)
        assert timer_steps.begin(other)

        delays = DelayDeliverer(Context(engine.connect)).run_once(connection)
        timers = TimerDeliverer(Context(engine.connect)).run_once(connection)

        assert (delays.messages, delays.is_held_up) == (0, True)
        assert (timers.messages, timers.is_held_up) == (0, True)
        other.exec_driver_sql("ROLLBACK")
        assert not DelayDeliverer(Context(engine.connect)).run_once(connection).is_held_up
        assert not TimerDeliverer(Context(engine.connect)).run_once(connection).is_held_up


def test_a_periodic_service_that_pauses_is_not_called_meanwhile(
    engine: Engine, scheduler: BackgroundScheduler, rounds: Rounds
) -> None:
    class Periodic(PeriodicService[int]):
        name = "periodic under test"

        def run_once(self, connection: Connection) -> int:
            return 1

        def pause_after(self, counts: int) -> timedelta:
            return FOREVER

    service = Periodic(Context(engine.connect, on_round=rounds), scheduler, 10 * MS)
    service.start()
    try:
        rounds.next()
        soonest = datetime.now(UTC) + FOREVER / 2

        wait_until(lambda: all(job.next_run_time > soonest for job in scheduler.get_jobs()))
    finally:
        service.stop()


def test_the_segment_keeper_pauses_for_10_seconds_only_if_it_finds_no_work(
    engine: Engine, scheduler: BackgroundScheduler
) -> None:
    keeper = SegmentKeeper(Context(engine.connect), scheduler)

    assert keeper.pause_after(KeeperCounts()) == 10 * SECOND
    assert keeper.pause_after(KeeperCounts(waiting=True)) == 0 * SECOND


# -- what is asked ----------------------------------------------------------------------------


class Asked(NamedTuple):
    """The statements of a service, grouped by how they are created."""

    built: list[str]
    """Statements built by SQLAlchemy, anew in each round."""
    all: list[str]


def asked_by(connection: Connection, call: Callable[[], object]) -> Asked:
    """The statements of one call."""
    asked = Asked([], [])
    below: Any = connection.connection.driver_connection
    before = below.cursor_factory

    class Noting(before):  # type: ignore[misc, valid-type]
        def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:
            asked.all.append(str(query))
            return super().execute(query, *arguments, **options)

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.built.append(statement)

    event.listen(connection, "before_cursor_execute", note)
    below.cursor_factory = Noting
    try:
        call()
    finally:
        below.cursor_factory = before
        event.remove(connection, "before_cursor_execute", note)
    return asked


@pytest.mark.parametrize("kind", [ClientReaper, TransactionChecker, CronSender, TimerDeliverer, DelayDeliverer])
def test_an_idle_round_is_one_statement_that_was_compiled_before(
    broker: Connection, engine: Engine, scheduler: BackgroundScheduler, kind: Any
) -> None:
    is_periodic = issubclass(kind, PeriodicService)
    service: Service[Any] = kind(Context(engine.connect), scheduler) if is_periodic else kind(Context(engine.connect))

    service.run_once(broker)

    asked = asked_by(broker, lambda: service.run_once(broker))

    assert (asked.built, len(asked.all)) == ([], 1)


def test_a_leader_looks_once_a_second_by_one_statement_and_a_follower_ten_times(
    broker: Connection, engine: Engine
) -> None:
    config = LeadershipConfig(renewal=0 * SECOND)
    leadership = Leadership(Context(engine.connect), config, on_elected=lambda: None, on_lost=lambda: None)
    assert leadership.run_once(broker) is LeadershipState.LEADER

    asked = asked_by(broker, lambda: leadership.run_once(broker))

    assert (asked.built, len(asked.all)) == ([], 1)
    assert leadership.pause_after(LeadershipState.LEADER) == SECOND
    assert leadership.pause_after(LeadershipState.FOLLOWER) == 100 * MS


def test_leadership_looks_at_once_when_a_service_has_failed(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leadership checks at once when a service has failed.

    All connections have ended, and leadership would not notice for an hour.
    """
    patient = LeadershipConfig(look=FOREVER, renewal=FOREVER, lease=FOREVER)
    monkeypatch.setattr("mqdb.server.server.Leadership", partial(Leadership, config=patient))
    connection = database.connect()
    epoch = "SELECT coalesce(max(epoch), 0) FROM mqdb.leader"
    with Server(load_settings(dsn=database.dsn)) as server:
        wait_until(lambda: server.is_leader)
        theirs = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = ANY (%s)"
        names = [["mqdb leadership", "mqdb dispatcher"]]
        wait_until(lambda: scalar(connection, f"SELECT count(*) {theirs}", names) == 2)

        connection.execute(f"SELECT pg_terminate_backend(pid) {theirs}", names)

        wait_until(lambda: scalar(connection, epoch) == 2)


def test_a_client_asks_less_often_for_the_leader_while_nothing_arrives(engine: Engine) -> None:
    now = 0.0
    asked: list[float] = []

    def ask() -> bool:
        asked.append(round(now, 3))
        return True

    watch = DispatchWatch(ask, engine.connect, "broker-a", clock=lambda: now)
    pauses = []
    for _ in range(8):
        pauses.append(watch.tend())
        now += pauses[-1]
    assert pauses == pytest.approx([PATIENCE_SECONDS, 0.4, 0.8, *[LONGEST_PATIENCE_SECONDS] * 5])
    watch.arrival_heard()

    assert watch.tend() == pytest.approx(PATIENCE_SECONDS)


@pytest.mark.parametrize("is_attended", [True, False])
def test_a_consumer_looks_for_dead_members_only_where_no_broker_process_does(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, is_attended: bool
) -> None:
    reaped: list[Connection] = []
    monkeypatch.setattr(membership, "reap", reaped.append)
    connections: list[Connection] = []

    def connect() -> Connection:
        connections.append(engine.connect())
        return connections[-1]

    nothing = cast(Any, None)
    service = RebalanceService(
        "group", connect=connect, is_attended=lambda: is_attended, topics=(), shares=nothing, ownership=nothing,
        times=RebalanceTimes(SECOND, SECOND, SECOND), strategy=nothing, pull=nothing, outage=nothing,
        on_left=lambda: None,
    )  # fmt: skip

    service._reap()

    assert reaped == connections
    assert bool(connections) is not is_attended
