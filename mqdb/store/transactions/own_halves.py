"""Half messages for roles that do not own the broker, by functions that check their rights.

A role sends half messages and ends its own; one that may operate a topic sees and resolves those of the topic.
In SQL: `mqdb/sql/transactions/half_own.sql`, `mqdb/sql/transactions/resolve_half.sql`.
"""

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from sqlalchemy import ColumnElement, Connection, Text, cast, column, func, literal_column, select
from sqlalchemy.dialects.postgresql import ARRAY

from mqdb.common.transaction import HalfState
from mqdb.store.engine import driver
from mqdb.store.log.commit_log import Record
from mqdb.store.transactions.half_messages import HalfKey, HalfMessage

_SEND: Final = """
    SELECT mqdb.send_half(%(queue_key)s::integer, %(history)s::bigint, %(tags_code)s::bigint, %(born_time)s, %(msg_id)s,
                          %(born_host)s, %(tags)s, %(keys)s, %(properties)s::jsonb, %(body)s::bytea, %(flag)s::integer,
                          %(sys_flag)s::integer)"""

_END: Final = """
    SELECT has_changed, state, copy_pos
    FROM mqdb.end_half(%(log_pos)s::bigint, %(group)s, %(unique_id)s, %(outcome)s, %(asked_client)s)"""


def send(connection: "psycopg.Connection[Any]", record: Record) -> int:
    """Store a half message of the current role, and its row; returns its position.

    Raises psycopg's errors, with SQLSTATEs from `mqdb.errors` (TopicNotFound without its name); CheckViolation if there
    is no partition for the position.
    """
    row = connection.execute(_SEND, record._asdict()).fetchone()
    assert row is not None
    return int(row[0])


def end(
    connection: Connection, half: HalfKey, outcome: str, asked_client: str | None
) -> tuple[bool, HalfState, int | None]:
    """Report the outcome of a half message of the current role; returns whether that ended it, its state, and its copy.

    Raises psycopg's errors, with SQLSTATEs from `mqdb.errors`, and CheckViolation like `send`.
    """
    values = {
        "log_pos": half.log_pos,
        "group": half.producer_group,
        "unique_id": half.msg_id,
        "outcome": outcome,
        "asked_client": asked_client,
    }
    row = driver(connection).execute(_END, values).fetchone()
    assert row is not None
    return row[0], HalfState(row[1]), row[2]


def operated(connection: Connection, states: Sequence[HalfState], group: str | None, limit: int) -> list[HalfMessage]:
    """The half messages of topics that the role may operate, as shown to people, oldest first.

    Without `states` all states are included.
    """
    found = func.mqdb.operated_halves(cast(list(states) or None, ARRAY(Text)), cast(group, Text), limit)
    rows = found.table_valued(*(column(name) for name in HalfMessage._fields)).alias("half")
    columns = (func.mqdb.own_name(each) if each.name == "topic" else each for each in rows.c)
    return [HalfMessage(*row) for row in connection.execute(select(*columns).order_by(rows.c.log_pos))]


def resolve(
    connection: Connection, transaction_id: str, resolution: str, actor: str | None
) -> tuple[bool, HalfMessage]:
    """End a half message of a topic that the role may operate, or resume its checks; returns whether it changed."""
    asked = func.mqdb.resolve_half(*(cast(each, Text) for each in (transaction_id, resolution, actor)))
    resolved = asked.table_valued(column("has_changed"), column("half")).render_derived("resolved")
    columns: list[ColumnElement[Any]] = [
        literal_column(f"mqdb.own_name((half).{name})" if name == "topic" else f"(half).{name}")
        for name in HalfMessage._fields[1:]
    ]
    named = func.mqdb.unique_id_text(literal_column("(half).msg_id"))
    row = connection.execute(select(resolved.c.has_changed, named, *columns)).one()
    return row[0], HalfMessage(*row[1:])
