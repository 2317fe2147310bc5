"""`mqdb message trace`: the history of a message, as a tree or as JSON."""

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mqdb.cli.options import administering
from mqdb.cli.rows import Brokers, Json, json_of, on
from mqdb.cli.times import shown_time
from mqdb.common.printable import printable
from mqdb.common.topic import RETRY_PREFIX

if TYPE_CHECKING:
    from rich.tree import Tree

    from mqdb_client import CopyWait, HalfMessage, MessageCopy, MessageTrace, PastRedrive


def trace(
    context: typer.Context,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The unique id of the message.", show_default=False)],
    broker: Brokers = None,
    as_json: Json = False,
) -> None:
    """Show the history of a message: all its copies, and whether each group has consumed them.

    The copies are shown in the order in which they were stored: in the topic, in a delay level or among the timers, in
    a retry topic, in a dead letter queue. CONSUMED means that the group's offset is past the copy; if the group failed
    to consume the copy, there is a newer one.

    A role without the owner's rights does not see everything. The time when a copy was dispatched is known for at least
    the last 1,000 batches.

    \b
    [bold]Examples[/bold]
      mqdb message trace 0A0B0C0D1E2F00000000000000000001
      mqdb message trace 0A0B0C0D1E2F00000000000000000001 --json | jq .copies
    """
    from mqdb.cli.console import standard_output
    from mqdb.cli.message_ids import MessageNotFound, check_id

    check_id(message_id, "mqdb message find TOPIC")
    with administering(context) as admin:
        answers = admin.on_each(lambda one: one.messages.trace(message_id), broker)
    found = {name: each for name, each in answers.results.items() if each.copies}
    for name, each in found.items():
        if as_json:
            print(json_of({"broker_name": name, **_described(each)}))
        else:
            standard_output().print(_tree(each, on(admin, name)))
    answers.check()
    if not found:
        raise MessageNotFound(message_id)


def _described(trace: "MessageTrace") -> dict[str, Any]:
    """The trace as JSON, under the names of its fields."""
    copies = [
        asdict(each)
        | {"half": each.half and each.half._asdict(), "redrives": [redrive._asdict() for redrive in each.redrives]}
        for each in trace.copies
    ]
    return {"message_id": trace.message_id, "copies": copies}


def _tree(trace: "MessageTrace", where: str) -> "Tree":
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(f"{trace.message_id}{where}", style="bold"))
    for copy in trace.copies:
        branch = tree.add(Text(printable(_place(copy))))
        for line in _lines(copy):
            branch.add(Text(printable(line)))
    return tree


def _place(copy: "MessageCopy") -> str:
    parts = [copy.topic or "a deleted topic"]
    parts += [] if copy.queue_id is None else [f"queue {copy.queue_id}"]
    parts += [] if copy.queue_offset is None else [f"offset {copy.queue_offset}"]
    return ", ".join([*parts, f"position {copy.log_pos}"])


def _lines(copy: "MessageCopy") -> Iterator[str]:
    if copy.stored_at is not None:
        yield f"stored {_time(copy.stored_at)}{_dispatched(copy)}"
    if copy.reconsume_times:
        yield f"failures so far: {copy.reconsume_times}"
    # The copy in the schedule, just before this one, shows the failure too.
    if copy.failure is not None and not (copy.topic or "").startswith(RETRY_PREFIX):
        why = ": ".join(text for text in (copy.failure.exception, copy.failure.error) if text)
        yield f"last failure{f' at {copy.failure.host}' if copy.failure.host else ''}: {why or 'no reason given'}"
    if copy.wait is not None:
        yield _wait(copy.wait)
    if copy.half is not None:
        yield from _half(copy.half)
    yield from map(_redrive, copy.redrives)
    for track in copy.tracks:
        offset = "" if track.next_offset is None else f", its offset is {track.next_offset}"
        yield f"group {track.group}: {track.status}{offset}"


def _dispatched(copy: "MessageCopy") -> str:
    if copy.queue_offset is None:
        return ", not dispatched yet"
    if copy.dispatched_at is None or copy.stored_at is None:
        return ""
    return f", dispatched {(copy.dispatched_at - copy.stored_at).total_seconds() * 1000:,.0f} ms later"


def _wait(wait: "CopyWait") -> str:
    level = "" if wait.delay_level is None else f" at delay level {wait.delay_level}"
    due = "" if wait.due_at is None else f", due {_time(wait.due_at)}"
    return f"{wait.state or 'waits'}{level}, for {wait.topic or 'a topic that it does not say'}{due}"


def _half(half: "HalfMessage") -> Iterator[str]:
    ended = "" if half.ended_at is None else f" {_time(half.ended_at)}"
    yield f"{half.state}{ended}{_copied(half.copy_pos)}"
    yield f"for {half.topic}, sent by group {half.producer_group}, checked {half.check_times} times"


def _redrive(redrive: "PastRedrive") -> str:
    who = f" by {redrive.actor or redrive.principal}" if redrive.actor or redrive.principal else ""
    error = "" if redrive.error is None else f": {redrive.error}"
    return f"{redrive.status} {_time(redrive.redriven_at)}{who}{_copied(redrive.new_log_pos)}{error}"


def _copied(log_pos: int | None) -> str:
    return "" if log_pos is None else f", copy at position {log_pos}"


def _time(time: datetime) -> str | None:
    return shown_time(time, "milliseconds")
