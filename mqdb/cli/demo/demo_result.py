"""The output of the demo at its end."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console

from mqdb.cli.console import cell, table
from mqdb.cli.demo.account import percentile
from mqdb.cli.demo.scenario import STEADY_RATE, GroupResult, Result

if TYPE_CHECKING:
    from sqlalchemy import Connection

#: Queries on the view that any role may query; each is one line, to be copied.
QUERY = (
    "SELECT tags AS carrier, count(*) AS flights, round(avg((properties->>'dep_delay')::int), 1) AS mean_delay "
    "FROM mqdb.message WHERE topic = 'flights' GROUP BY tags ORDER BY flights DESC LIMIT 5;"
)
ONE_MESSAGE = (
    "SELECT queue_id, queue_offset, tags, keys, text FROM mqdb.message "
    "WHERE topic = 'flights' ORDER BY log_pos DESC LIMIT 1;"
)


def print_result(console: Console, result: Result) -> None:
    """Print the account of each group, and how fast the group was."""
    columns = ("group", "tags", "members", "sent", "matched", "received", "lost", "duplicated")
    rows = [_account_row(group) for group in result.groups]
    console.print()
    console.print(table(columns, rows, right=columns[2:]))
    for group in result.groups:
        if group.account.wrong:
            console.print(f"{group.plan.group}: {group.account.wrong:,} messages differ from those sent to the group")
    print_lines(console, _notes(result))
    speeds = ("group", "received", "in s", "msg/s", "p50 ms", "p99 ms")
    console.print(table(speeds, [_speed_row(group) for group in result.groups], right=speeds[1:]))


def _notes(result: Result) -> list[str]:
    full, steady = result.full_speed_messages, result.steady_messages
    full_rate, steady_rate = full / result.full_speed_seconds, steady / result.steady_seconds
    order = f"{result.aircraft:,} aircraft, each in one queue and in the order of departure"
    burst = f"{full:,} messages published in {result.full_speed_seconds:.2f} s, {full_rate:,.0f}/s"
    calm = f"{steady:,} messages published in {result.steady_seconds:.2f} s, {steady_rate:,.0f}/s"
    return [
        "",
        f"Order       {order}; violations: {result.disorder:,}",
        f"Full speed  {burst}; received: until the listeners had all",
        f"Latency     {calm} ({STEADY_RATE}/s wanted); from before the send to the listener",
        "",
    ]


def _account_row(group: GroupResult) -> Sequence[object]:
    account = group.account
    return (
        group.plan.group,
        group.plan.expression,
        group.plan.members,
        account.sent,
        account.matched,
        account.received,
        account.lost,
        account.duplicated,
    )


def _speed_row(group: GroupResult) -> Sequence[object]:
    messages, seconds = group.full_speed_messages, group.full_speed_seconds
    rate = round(messages / seconds) if seconds else 0
    p50, p99 = (1000 * percentile(group.steady_latencies, percent) for percent in (50, 99))
    return (group.plan.group, messages, f"{seconds:.2f}", rate, f"{p50:.1f}", f"{p99:.1f}")


def print_queries(console: Console, connection: "Connection") -> None:
    """Print SQL that reads the same data, and the result of the first query."""
    console.print("\nThe same data in SQL:\n")
    print_lines(console, [f"  {query}" for query in (QUERY, ONE_MESSAGE)])
    console.print()
    rows = connection.exec_driver_sql(QUERY.replace("%", "%%")).all()
    columns = list(rows[0]._fields) if rows else []
    console.print(table(columns, rows, right=columns[1:]))
    console.print()


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines unwrapped, however long they are, because people copy them."""
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def plain_progress(published: int, total: int, received: Sequence[int], expected: Sequence[int]) -> str:
    """One line with the progress, for output that is not a terminal."""
    groups = ", ".join(f"{cell(one)} of {cell(all_)}" for one, all_ in zip(received, expected, strict=True))
    return f"published {published:,} of {total:,}; received {groups}"
