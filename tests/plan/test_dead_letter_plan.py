"""A dead letter is looked up by its id, however many dead letters there are."""

from collections.abc import Callable
from dataclasses import fields
from typing import Final, TypeVar

from sqlalchemy import Connection

from mqdb.broker.dead_letters import DeadLetterFilter, choose, show_dead_letters
from mqdb.broker.dispatch import index_keys
from mqdb.common.unique_id import parse_unique_id
from mqdb.store.dead_letters import DeadLetter
from tests.fixtures.broker import dispatch_all
from tests.fixtures.dead_letters import bury, letter_id

T = TypeVar("T")

LETTERS: Final = 2_000

READ: Final = """SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables
          WHERE schemaname = 'mqdb' AND relname ~ '^commit_log_[0-9]+$'"""


def records_read(connection: Connection) -> int:
    """The log rows that all sessions have read so far, including all reads of this session."""
    connection.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    return int(connection.exec_driver_sql(READ).scalar_one())


def records_of(connection: Connection, call: Callable[[], T]) -> tuple[int, T]:
    """The number of rows of the log that a call reads, and its result."""
    before = records_read(connection)
    result = call()
    return records_read(connection) - before, result


def test_one_letter_of_many_costs_a_few_records(broker: Connection) -> None:
    log_pos = bury(broker, "one")
    columns = "xid, store_time, born_time, tags_code, queue_key, sys_flag, flag, reconsume_times, born_host, properties"
    broker.exec_driver_sql(
        f"INSERT INTO mqdb.commit_log (msg_id, body, {columns}) SELECT gen_random_uuid(), body, {columns}"
        f" FROM mqdb.commit_log, generate_series(1, {LETTERS}) WHERE log_pos = {log_pos}"
    )
    dispatch_all(broker)
    while index_keys(broker).more:
        pass
    broker.exec_driver_sql("ANALYZE")
    wanted = DeadLetterFilter("billing", ids=(parse_unique_id(letter_id(broker, log_pos)),))
    names = ", ".join("group_name" if field.name == "group" else field.name for field in fields(DeadLetter))
    view = f"SELECT {names} FROM mqdb.dlq WHERE log_pos = {log_pos}"

    of_the_view, row = records_of(broker, lambda: broker.exec_driver_sql(view).one())
    shown, (found,) = records_of(broker, lambda: show_dead_letters(broker, wanted))
    chosen, choice = records_of(broker, lambda: choose(broker, wanted))

    assert tuple(getattr(found, field.name) for field in fields(DeadLetter)) == tuple(row)
    assert choice.positions == (log_pos,)
    assert max(shown, chosen) < 20 < LETTERS < of_the_view
