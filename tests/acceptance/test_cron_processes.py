"""Recurring sends while the sending process is killed with -9: each cron sends for each time exactly once."""

from datetime import datetime, timedelta
from functools import partial

from mqdb.broker.schedule.cron import CatchUp
from mqdb.store.engine import create_engine
from tests.fixtures.crons import add
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import Starter, leader_pid, query

CRONS = 10
MINUTES = 240

_TIMES = """
SELECT cl.properties ->> 'MQDB_CRON_TIME' FROM mqdb.commit_log cl
WHERE cl.properties ->> 'MQDB_CRON_NAME' = %s ORDER BY log_pos
"""


def prepare(database: Database) -> None:
    """Crons that have to catch up on each minute of four hours."""
    create_topic(database.connect(), "orders")
    engine = create_engine(database.dsn)
    with engine.connect() as connection:
        for number in range(CRONS):
            add(connection, "* * * * *", f"tick-{number}", catch_up=CatchUp.ALL)
    engine.dispose()
    database.connect().execute("UPDATE mqdb.cron SET next_at = next_at - %s * interval '1 min'", [MINUTES])


def sent(dsn: str, name: str) -> list[datetime]:
    """The times for which a cron has sent messages, in the order of the log."""
    return [datetime.fromisoformat(time) for (time,) in query(dsn, _TIMES, name)]


def has_sent(dsn: str, messages: int) -> bool:
    return int(query(dsn, "SELECT sum(sent) FROM mqdb.cron")[0][0]) >= messages


def test_killed_leaders_lose_and_double_no_time(serve: Starter, database: Database) -> None:
    prepare(database)
    alive = {process.pid: process for process in (serve(dsn=database.dsn) for _ in range(3))}
    for share in (1, 2):
        wait_until(partial(has_sent, database.dsn, CRONS * MINUTES * share // 4), 30)
        wait_until(lambda: leader_pid(database.dsn) in alive)
        alive.pop(leader_pid(database.dsn)).kill()

    wait_until(partial(has_sent, database.dsn, CRONS * MINUTES), 60)

    for number in range(CRONS):
        times = sent(database.dsn, f"tick-{number}")
        assert times == [times[0] + n * timedelta(minutes=1) for n in range(len(times))]
        assert len(times) >= MINUTES
