"""Group append and its connection: Ctrl-C at any moment leaves both to those who come next."""

import time

import pytest
from sqlalchemy import Connection

from mqdb_client.held_connection import NotRun
from tests.fixtures.appends import Log
from tests.fixtures.interrupts import interrupted_at

MODULES = ("mqdb_client.group_append", "mqdb_client.held_connection", "mqdb_client.waking")


@pytest.mark.parametrize("module", MODULES)
def test_ctrl_c_at_any_moment_of_an_append_leaves_the_way_free_for_the_next(locked_log: Log, module: str) -> None:
    locked_log.unlock()
    number = 1
    while interrupted_at(number, lambda: locked_log.appends.append(locked_log.unit("x")), (module,)):
        locked_log.appends.append(locked_log.unit("next", seconds=10))
        number += 1

    assert number > (1 if module == "mqdb_client.waking" else 10)
    assert locked_log.statements().count(["n"]) == number - 1


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
