"""The connections that transactional listeners receive."""

from collections.abc import Iterator

import pytest
from sqlalchemy import text

from mqdb.common.dsn import BrokerDsn
from mqdb.store.engine import driver
from mqdb_client.consumer.listeners.listener_transactions import ListenerTransactions
from mqdb_client.instance import ClientInstance
from tests.fixtures.postgres import Database


@pytest.fixture
def transactions(database: Database) -> Iterator[ListenerTransactions]:
    """The transactions of a client on the test's database."""
    instance = ClientInstance(BrokerDsn("broker-a", database.dsn))
    instance.open()
    transactions = ListenerTransactions(instance)
    yield transactions
    transactions.close()
    instance.close()


def test_a_connection_that_is_stuck_in_a_pipeline_is_thrown_away(transactions: ListenerTransactions) -> None:
    """A connection that is stuck in a pipeline is discarded.

    A connection is stuck when the server dies in the middle of a pipeline; the driver does not consider it closed.
    """
    with transactions.begin() as connection:
        below = driver(connection).pgconn
        below.enter_pipeline_mode()
        below.send_query_params(b"SELECT 1", None)

    with transactions.begin() as connection:
        assert connection.scalar(text("SELECT 2")) == 2
