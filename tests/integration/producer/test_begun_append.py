"""A caller begins an append without waiting for it: either the caller or the append thread reads the answer."""

import select
import threading
from collections.abc import Sequence

import pytest

from mqdb.errors import SendGivenUp
from mqdb.store.engine import driver
from mqdb_client.producer.append.append_plan import NoAnswer
from tests.fixtures.appends import Given, Log, stored
from tests.fixtures.processes import wait_until
from tests.fixtures.producers import terminate


class Begun:
    """A unit whose append has been begun."""

    def __init__(self, log: Log, unit: Given) -> None:
        self.unit = unit
        self.told_by: list[str] = []
        self._poll = select.poll()
        assert log.appends.begin(
            unit,
            lambda: self.told_by.append(threading.current_thread().name),
            lambda connection: self._poll.register(driver(connection).fileno(), select.POLLIN),
        )

    def await_answer(self) -> None:
        """Wait until the connection is readable."""
        assert self._poll.poll(30_000)

    def wait_told(self) -> None:
        wait_until(lambda: bool(self.told_by))


@pytest.fixture
def log(locked_log: Log) -> Log:
    """A log whose connection has already prepared the statement."""
    locked_log.unlock()
    locked_log.appends.append(locked_log.unit("p"))
    locked_log.locker.execute("LOCK TABLE mqdb.commit_log IN SHARE MODE")
    return locked_log


def test_the_answer_is_read_by_the_one_who_began(log: Log) -> None:
    begun = Begun(log, log.unit("a"))
    wait_until(log.is_under_way)
    assert not begun.told_by
    log.unlock()
    begun.await_answer()
    log.appends.end_begun()

    assert begun.told_by == [threading.current_thread().name]
    assert len(begun.unit.positions) == 1
    assert log.statements() == [["p"], ["a"]]
    log.appends.end_begun()  # too often does no harm
    assert len(begun.told_by) == 1


def test_nothing_is_begun_while_somebody_leads(log: Log) -> None:
    sender = log.sender("a")

    assert not log.appends.begin(log.unit("b"), lambda: None, lambda _: None)
    log.unlock()
    stored(sender)
    assert not log.appends.begin(log.unit("c", count=2), lambda: None, lambda _: None)
    assert log.statements() == [["p"], ["a"]]


@pytest.mark.parametrize("is_handed_in", [True, False], ids=["handed in", "of a thread"])
def test_when_others_come_they_wait_for_the_server_and_not_for_who_began(log: Log, is_handed_in: bool) -> None:
    begun = Begun(log, log.unit("a"))
    ended = threading.Event()
    if is_handed_in:
        log.appends.hand_in(log.unit("b"), ended.set)
        log.unlock()
        assert ended.wait(30)
    else:
        sender = log.sender("b")
        log.unlock()
        stored(sender)

    begun.wait_told()
    assert begun.told_by == ["mqdb-group-append"]
    log.appends.end_begun()  # whoever began it, and comes late
    assert log.statements() == [["p"], ["a"], ["b"]]


def test_a_statement_that_is_not_prepared_yet_is_run_by_the_append_thread(locked_log: Log) -> None:
    locked_log.unlock()
    begun = Begun(locked_log, locked_log.unit("a"))
    begun.wait_told()

    assert begun.told_by == ["mqdb-group-append"]
    assert locked_log.statements() == [["a"]]


def test_a_large_record_is_run_by_the_append_thread(log: Log) -> None:
    log.unlock()
    begun = Begun(log, log.unit("a", size=10_000_000))
    begun.wait_told()

    assert begun.told_by == ["mqdb-group-append"]
    assert log.statements() == [["p"], ["a"]]


@pytest.mark.usefixtures("cancelled_early")
def test_it_ends_in_time(log: Log) -> None:
    begun = Begun(log, log.unit("a", seconds=3))
    begun.await_answer()  # the statement was cancelled
    log.appends.end_begun()
    log.unlock()

    assert isinstance(begun.unit.error, SendGivenUp)
    assert log.statements() == [["p"]]


def test_a_connection_that_is_lost_leaves_the_outcome_open(log: Log) -> None:
    begun = Begun(log, log.unit("a"))
    link = log.held._link
    assert link is not None
    terminate(log.database, link.driver.info.backend_pid)
    begun.await_answer()
    log.appends.end_begun()
    log.unlock()

    assert isinstance(begun.unit.error, NoAnswer)
    log.appends.append(log.unit("b"))
    assert log.statements() == [["p"], ["b"]]


def test_its_deadline_is_told_while_the_server_is_silent(log: Log) -> None:
    begun = Begun(log, log.unit("a", seconds=30))
    begun.unit.deadline = 0.0
    log.appends.end_late()

    assert isinstance(begun.unit.error, NoAnswer)
    log.unlock()
    begun.await_answer()
    log.appends.end_begun()
    assert len(begun.told_by) == 1
    assert log.statements() == [["p"], ["a"]]


def test_the_end_of_the_appends_reads_an_answer_that_nobody_else_will(log: Log) -> None:
    begun = Begun(log, log.unit("a"))
    log.unlock()
    log.appends.close()

    assert begun.told_by == ["mqdb-group-append"]
    positions: Sequence[int] = begun.unit.positions
    assert len(positions) == 1
