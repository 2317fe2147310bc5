"""Group append and its connection: Ctrl-C at any moment leaves both usable for later senders."""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from sqlalchemy import Connection

from mqdb_client.producer.append.append_plan import NoAnswer, Unit
from mqdb_client.producer.append.held_connection import NotRun
from tests.fixtures.appends import STALL, Log, stored
from tests.fixtures.interrupts import interrupted_at
from tests.fixtures.processes import wait_until
from tests.fixtures.threads import Doing

Sender = Doing[Sequence[int] | NoAnswer]

MODULES = tuple(f"mqdb_client.producer.append.{name}" for name in ("append_plan", "group_append", "held_connection"))


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_at_any_moment_of_an_append_leaves_the_way_free_for_the_next(locked_log: Log, module: str) -> None:
    locked_log.unlock()
    number = 1
    while interrupted_at(number, lambda: locked_log.appends.append(locked_log.unit("x")), (module,)):
        locked_log.appends.append(locked_log.unit("next", seconds=10))
        number += 1

    assert number > 10
    assert locked_log.statements().count(["n"]) == number - 1


def test_ctrl_c_at_any_moment_where_a_unit_is_handed_in_leaves_the_way_free_for_the_next(locked_log: Log) -> None:
    locked_log.unlock()
    modules = tuple(f"mqdb_client.producer.append.{name}" for name in ("append_plan", "group_append"))
    number = 1
    while interrupted_at(number, lambda: locked_log.appends.hand_in(locked_log.unit("x"), lambda: None), modules):
        locked_log.appends.append(locked_log.unit("next", seconds=10))
        wait_until(lambda: not locked_log.appends._plan.is_busy)
        number += 1

    assert number > 4


def test_ctrl_c_at_any_moment_of_the_leader_leaves_nobody_untold_who_was_handed_in(locked_log: Log) -> None:
    appends = locked_log.appends
    locked_log.unlock()
    modules = tuple(f"mqdb_client.producer.append.{name}" for name in ("append_plan", "group_append", "waking"))
    number, is_interrupted = 0, True
    while is_interrupted:
        number += 1
        free, told, is_over = locked_log.occupy(), [list[int](), list[int]()], threading.Event()

        def gather(
            free: Callable[[], object] = free, told: list[list[int]] = told, is_over: threading.Event = is_over
        ) -> None:
            """Add two units behind the leader, once it leads or has been interrupted earlier."""
            wait_until(lambda: appends._plan.is_busy or is_over.is_set())
            for each in told:
                appends.hand_in(locked_log.unit("h", seconds=30), partial(each.append, 1))
            free()

        gathering = Doing(gather)
        leading = locked_log.unit("x", seconds=30)
        is_interrupted = interrupted_at(number, partial(appends.append, leading), modules, after_c=True)
        is_over.set()
        gathering.result()
        wait_until(lambda told=told: all(told))  # type: ignore[misc]
        appends.append(locked_log.unit("next", seconds=30))
        wait_until(lambda: not appends._plan.is_busy)
        assert told == [[1], [1]], f"interrupted at {number}"

    assert number > 20


def test_ctrl_c_at_any_moment_of_one_that_waits_leaves_the_others_to_be_woken(locked_log: Log) -> None:
    appends = locked_log.appends
    modules = tuple(f"mqdb_client.producer.append.{name}" for name in ("append_plan", "group_append", "waking"))
    number, is_interrupted = 0, True
    while is_interrupted:
        number += 1
        first, unit, is_over = locked_log.sender("a"), locked_log.unit("x"), threading.Event()

        def gather(unit: Unit = unit, is_over: threading.Event = is_over) -> list[Sender]:
            """Start senders behind the unit, once it waits or has been interrupted earlier."""
            wait_until(lambda: unit.tell is not None or is_over.is_set())
            others = [locked_log.sender(name) for name in "bc"]
            locked_log.unlock()
            return others

        gathering = Doing(gather)
        is_interrupted = interrupted_at(number, partial(appends.append, unit), modules)
        is_over.set()
        for sender in (first, *gathering.result()):
            assert len(stored(sender)) == 1
            assert sender.seconds < 20, f"interrupted at {number}, it was told so at its deadline only"
        appends.append(locked_log.unit("next", seconds=10))
        wait_until(lambda: not appends._plan.is_busy)
        locked_log.locker.execute(STALL)

    assert number > 10


def test_a_signal_handler_in_the_midst_of_a_statement_of_its_thread_is_refused_at_once(locked_log: Log) -> None:
    locked_log.unlock()
    began, deadline = time.monotonic(), time.monotonic() + 60

    def work(connection: Connection) -> str:
        with pytest.raises(NotRun):
            locked_log.held.run(lambda _: None, deadline)
        return str(connection.exec_driver_sql("SELECT 'goes on'").scalar_one())

    assert locked_log.held.run(work, deadline) == "goes on"
    assert locked_log.held.run(lambda _: "and on", deadline) == "and on"
    assert time.monotonic() < began + 30
