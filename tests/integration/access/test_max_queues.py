"""The limit on the queues of a topic: Python checks it before the database does, with the same value."""

import pytest

from mqdb.common.topic import MAX_QUEUE_NUMS, max_queues_by_right
from tests.fixtures.postgres import Database, query
from tests.fixtures.principals import Principal


@pytest.mark.parametrize("topic", ["orders", "%RETRY%billing", "%DLQ%billing"])
def test_python_and_the_database_know_the_same_limits(database: Database, principal: Principal, topic: str) -> None:
    ask = f"SELECT mqdb.max_queues('{topic}')"

    assert query(database.dsn, ask) == MAX_QUEUE_NUMS
    assert query(principal("shop", send=["orders"]), ask) == max_queues_by_right(topic)
