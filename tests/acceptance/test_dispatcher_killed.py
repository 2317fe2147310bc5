"""kill -9 of a dispatcher that sleeps or is being woken, and of its senders: each stored message is still delivered."""

import signal
import sys
from pathlib import Path

import pytest

from tests.fixtures import warm_process
from tests.fixtures.log import append, create_topic, positions
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import Starter
from tests.fixtures.sleeping import ASLEEP, FOREVER, asleep, state
from tests.fixtures.variants import usually

SENDER = Path(__file__).with_name("killed_sender_process.py")


@pytest.mark.parametrize("moment", usually("notified", of=["asleep", "notified", "awake again"]))
def test_another_server_delivers_what_has_come_to_a_killed_dispatcher(
    sleepy: Database, serve: Starter, moment: str
) -> None:
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    server = serve(dsn=sleepy.dsn, longest_sleep_seconds=FOREVER.total_seconds())
    wait_until(lambda: state(sleepy) in ASLEEP)
    if moment == "asleep":
        server.kill()
        sent = append(log, queue)
    elif moment == "notified":  # and it does not know yet
        server.signal(signal.SIGSTOP)
        sent = append(log, queue)
        server.kill()
    else:  # it has said so, and dispatches
        with log.transaction():
            log.execute("LOCK TABLE mqdb.checkpoint IN ACCESS EXCLUSIVE MODE")
            sent = append(sleepy.connect(), queue)
            wait_until(lambda: state(sleepy) == 2)
            server.kill()

    serve(dsn=sleepy.dsn, longest_sleep_seconds=FOREVER.total_seconds())
    wait_until(lambda: positions(log, queue) == sent)
    wait_until(lambda: state(sleepy) in ASLEEP)
    sent += append(log, queue)

    wait_until(lambda: positions(log, queue) == sent)


@pytest.mark.parametrize(("moment", "stored"), [("before", 0), ("in", 1), ("after", 1)])
def test_a_sender_that_is_killed_around_its_commit_has_woken_the_dispatcher(
    sleepy: Database, moment: str, stored: int
) -> None:
    log = sleepy.connect()
    [queue] = create_topic(log, "orders")
    with asleep(sleepy):
        sender = warm_process.start([sys.executable, str(SENDER), sleepy.dsn, moment])
        assert sender.wait(30) == -signal.SIGKILL
        wait_until(lambda: not sleepy.rows("SELECT FROM pg_stat_activity WHERE application_name = 'killed sender'"))

        wait_until(lambda: len(positions(log, queue)) == stored)
        wait_until(lambda: state(sleepy) in ASLEEP)
        append(log, queue)
        wait_until(lambda: len(positions(log, queue)) == stored + 1)
