"""The last operations on an object are looked up by its name, however many there are, whatever the statistics say."""

from typing import Any, Final

import pytest
from sqlalchemy import Connection, event

from mqdb.store.engine import driver
from mqdb.store.operations import list_operations

OPERATIONS: Final = 20_000

#: Of a letter that was redriven five times.
MESSAGE_ID: Final = "0A0B0C0D1E2F00000000000000000001"


@pytest.mark.parametrize("is_analysed", [False, True])
def test_a_name_is_looked_up(broker: Connection, is_analysed: bool) -> None:
    broker.exec_driver_sql(
        "INSERT INTO mqdb.operation (principal, verb, topics, groups, object, records)"
        " SELECT 'ada', 'dlq.redrive', ARRAY['topic-' || n], ARRAY['group-' || n], 'cron-' || n, 1"
        f" FROM generate_series(1, 500) AS n, generate_series(1, {OPERATIONS // 500})"
    )
    broker.exec_driver_sql(
        "INSERT INTO mqdb.redrive_result (operation_id, log_pos, group_name, msg_id, status, new_log_pos)"
        f" SELECT operation_id, 1, 'billing', '{MESSAGE_ID}', 'REDRIVEN', 2 FROM mqdb.operation LIMIT 5"
    )
    broker.exec_driver_sql(
        "INSERT INTO mqdb.redrive_result (operation_id, log_pos, group_name, msg_id, status, new_log_pos)"
        " SELECT operation_id, 3, 'billing', gen_random_uuid(), 'REDRIVEN', 4 FROM mqdb.operation"
    )
    if is_analysed:
        broker.exec_driver_sql("ANALYZE mqdb.operation, mqdb.redrive_result")
    broker.exec_driver_sql("SET plan_cache_mode = force_generic_plan")

    cases: list[tuple[dict[str, Any], str]] = [
        ({"topic": "topic-7"}, "operation_names"),
        ({"group": "group-7"}, "operation_names"),
        ({"topic": "topic-7", "group": "group-7"}, "operation_names"),
        ({"object": "cron-7"}, "operation_object"),
        ({"object": MESSAGE_ID}, "redrive_result_msg_id"),
        ({}, "operation_pkey"),
    ]
    for wanted, index in cases:
        plan = plan_of(broker, wanted)
        assert index in plan, plan
        assert "Seq Scan" not in plan, plan
        assert len(list_operations(broker, limit=5, **wanted)) == 5


def plan_of(connection: Connection, wanted: dict[str, Any]) -> str:
    """The plan of the query for the last five operations."""
    executed: list[tuple[str, Any]] = []

    def note(_connection: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        executed.append((statement, parameters))

    event.listen(connection, "before_cursor_execute", note)
    list_operations(connection, limit=5, **wanted)
    event.remove(connection, "before_cursor_execute", note)
    [(statement, parameters)] = executed
    rows = driver(connection).execute(f"EXPLAIN {statement}".encode(), parameters)
    return "\n".join(row for (row,) in rows)
