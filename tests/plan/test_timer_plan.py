"""A round of the timer deliverer reads only new and due timers, however many are waiting.

The plans are generic, as those of the service, and are made at the worst time: while the slots are empty. The reads are
counted once the slots have filled.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection

from mqdb.embedded import EmbeddedPostgres
from mqdb.service.service import Context
from mqdb.service.timer_deliverer import TimerDeliverer
from mqdb.store.engine import create_engine, driver
from mqdb.store.schedule import timer_looks, timer_slots, timers
from tests.fixtures.postgres import new_database

HOUR_MS = 3_600_000

#: Slots of an hour, one after the other.
SLOTS = (500_000, 500_001, 500_002)
WAITING = 10_000

FIRST_MS = SLOTS[0] * HOUR_MS

#: Some of the second slot is due, and the first one was delivered.
DUE = 20
NOW_MS = SLOTS[1] * HOUR_MS + DUE - 1
AT = {
    "slots": f"{{{SLOTS[1]}}}",
    "now_ms": NOW_MS,
    "delivered_ms": SLOTS[1] * HOUR_MS - 1,
    "delivered_pos": timer_looks.LAST_POS,
    "horizon_ms": NOW_MS + 1_000,
    "last_ms": NOW_MS,
    "last_pos": timer_looks.LAST_POS,
    "limit": 1_000,
    "first_segment": 1,
}

#: Of 8 kB: some index levels of each partition and the rows that are asked for. All that waits takes 1,000.
FEW_BLOCKS = 150

STATEMENTS = {
    "look": timer_looks.look_text(),
    "due": timer_looks.due_text(),
    "next due": timer_looks.next_due_text(),
    "deliver due": timers.deliver_due_text(),
    "undelivered due": timers.undelivered_due_text(),
}

WAIT = """
    INSERT INTO mqdb.timer (deliver_ms, log_pos, store_time, born_time, msg_id, slot, sys_flag, flag, reconsume_times,
                            born_host, properties, body)
    SELECT slot::bigint * 3600000 + n, n, mqdb.now(), mqdb.now(), gen_random_uuid(), slot, 0, 0, 0, 'test',
           '{"REAL_TOPIC": "orders", "REAL_QID": "0"}', 'body'
    FROM generate_series(0, %s - 1) AS n, unnest(%s::integer[]) AS slot
"""


@pytest.fixture(scope="module")
def connection(postgres: EmbeddedPostgres, template_database: str) -> Iterator[Connection]:
    """A connection of the timer deliverer that has planned all its statements, and three slots that have filled since.

    All tests share the connection: `explain` rolls each statement back.
    """
    with new_database(postgres, template_database) as database:
        engine = create_engine(database.dsn)
        with engine.connect() as connection:
            # psycopg would deallocate all at a rollback, if it had prepared anything itself.
            driver(connection).prepare_threshold = None
            TimerDeliverer(Context(engine.connect)).prepare(connection)
            timer_slots.add_missing(connection, SLOTS)
            driver(connection).execute("ANALYZE mqdb.timer")
            for name, statement in STATEMENTS.items():
                prepare(connection, name, statement)
                explain(connection, name, statement)
            driver(connection).execute(WAIT, [WAITING, list(SLOTS)])
            yield connection
        engine.dispose()


def names_of(statement: str) -> list[str]:
    return list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement)))


def prepare(connection: Connection, name: str, statement: str) -> None:
    names = names_of(statement)
    text = re.sub(r"%\((\w+)\)s", lambda found: f"${names.index(found[1]) + 1}", statement).replace("%%", "%")
    driver(connection).execute(f'PREPARE "{name}" AS {text}'.encode())


def explain(connection: Connection, name: str, statement: str, values: Mapping[str, object] = AT) -> Any:
    """The plan of an execution, and its reads."""
    arguments = ", ".join(f"'{values[each]}'" for each in names_of(statement))
    explain = f'EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "{name}" ({arguments})'
    with driver(connection).transaction(force_rollback=True):
        ((report,),) = driver(connection).execute(explain.encode()).fetchall()
    [found] = report if isinstance(report, list) else json.loads(report)
    return found["Plan"]


def nodes(plan: Any) -> Iterator[Any]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_round_reads_a_few_blocks_however_much_waits(connection: Connection, name: str) -> None:
    plan = explain(connection, name, STATEMENTS[name])

    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= FEW_BLOCKS


@pytest.mark.parametrize("name", [name for name in STATEMENTS if name != "look"])
def test_a_round_goes_into_its_slots_by_the_time_of_delivery(connection: Connection, name: str) -> None:
    plan = explain(connection, name, STATEMENTS[name])

    scans = [node for node in nodes(plan) if node.get("Relation Name", "").startswith("timer_")]
    scans = [node for node in scans if node["Relation Name"] not in ("timer_step", "timer_recall")]
    assert {node["Node Type"] for node in scans} <= {"Index Scan", "Index Only Scan"}
    assert all(node["Index Name"].endswith("deliver_ms_log_pos_idx") for node in scans)


def test_an_idle_look_does_not_open_the_table(connection: Connection) -> None:
    plan = explain(connection, "look", timer_looks.look_text())

    relations = {node.get("Relation Name", "") for node in nodes(plan)}
    assert not any(re.fullmatch(r"timer_(\d+|behind)", name) for name in relations)
