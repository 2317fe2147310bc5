"""A redrive whose session the server terminates."""

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.cli.dlq.redriver import Redriver, RedriveStopped
from mqdb.errors import BrokerUnavailable
from mqdb.store.engine import driver
from mqdb_client import Redrive
from tests.fixtures.dead_letters import bury, letters_on, redriven, results


def redriver(**options: int) -> Redriver:
    return Redriver(Redrive("a test"), is_dry_run=False, per_second=None, **options)


def end(session: Connection, by: Connection) -> None:
    """End the backend of a session, and wait until it is gone."""
    by.execute(text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": driver(session).info.backend_pid})


def test_a_lost_broker_leaves_whole_batches_and_says_how_many(broker: Connection, engine: Engine) -> None:
    letters = [bury(broker, str(number)) for number in range(5)]

    with engine.connect() as session:
        batches = redriver(most_at_a_time=2).run("broker-a", letters_on(session), letters)
        next(batches)
        end(session, broker)
        with pytest.raises(RedriveStopped, match="; 2 of 5 messages were handled before") as stopped:
            next(batches)

    assert isinstance(stopped.value.__cause__, BrokerUnavailable)
    assert [new for _, _, new in results(broker)] == redriven(broker)
    assert len(redriven(broker)) == 2


def test_a_broker_that_is_lost_at_once_is_the_error(broker: Connection, engine: Engine) -> None:
    with engine.connect() as session:
        end(session, broker)
        with pytest.raises(BrokerUnavailable):
            next(redriver().run("broker-a", letters_on(session), [1]))
