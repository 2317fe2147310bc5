"""For any messages and any filter, a redrive moves each message that its dry run lists once, and records it."""

import itertools
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from mqdb.broker.dead_letters import DeadLetterFilter, Redrive, choose
from mqdb.cli.dlq.redriver import Redriver
from mqdb.store.dead_letters import RedriveResult, RedriveStatus
from tests.fixtures.broker import dispatch_all
from tests.fixtures.dead_letters import FAILURE, bury, create_group, letters_on, redriven, results, stored

_numbers = itertools.count()


@dataclass(frozen=True)
class Letter:
    """The properties of a dead letter that a filter can compare."""

    is_of_other_group: bool
    topic: str
    tag: str | None
    exception: str


letters = st.builds(
    Letter,
    is_of_other_group=st.booleans(),
    topic=st.sampled_from(["orders", "returns"]),
    tag=st.sampled_from([None, "paid", "late"]),
    exception=st.sampled_from(["shop.NoPrice", "TimeoutError", "RECONSUME_LATER", ""]),
)

filters = st.builds(
    DeadLetterFilter,
    topic=st.sampled_from([None, "orders", "returns", "nothing"]),
    tag=st.sampled_from([None, "paid", "paid || late"]),
    exception=st.sampled_from([None, "e", "timeout", "%"]),
    where=st.sampled_from([None, "tags is null", "exception is null or exception like 'R%'", "log_pos % 2 = 0"]),
)


def is_meant(letter: Letter, log_pos: int, wanted: DeadLetterFilter) -> bool:
    """Whether the filter selects a dead letter, computed in Python."""
    conditions = {
        None: True,
        "tags is null": letter.tag is None,
        "exception is null or exception like 'R%'": not letter.exception or letter.exception.startswith("R"),
        "log_pos % 2 = 0": log_pos % 2 == 0,
    }
    return (
        not letter.is_of_other_group
        and wanted.topic in (None, letter.topic)
        and (wanted.tag is None or letter.tag in wanted.tag.split(" || "))
        and (wanted.exception is None or wanted.exception.lower() in letter.exception.lower())
        and conditions[wanted.where]
    )


def run(
    connection: Connection, positions: Sequence[int], batch_size: int, *, batches: int = -1, **options: bool
) -> list[RedriveResult]:
    """Redrive as the command line does, with Ctrl-C after `batches` batches."""
    how = Redrive("a test", again=options.get("again", False))
    redriver = Redriver(how, is_dry_run=options.get("is_dry_run", False), per_second=None, most_at_a_time=batch_size)
    found: list[RedriveResult] = []
    with redriver.interruption:
        if batches == 0:
            signal.raise_signal(signal.SIGINT)
        for number, batch in enumerate(redriver.run("broker-a", letters_on(connection), positions), 1):
            found += batch
            if number == batches:
                signal.raise_signal(signal.SIGINT)
    assert redriver.done == len(found)
    return found


def moved(found: list[RedriveResult]) -> list[int]:
    return [result.log_pos for result in found if result.status is RedriveStatus.REDRIVEN]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    given_letters=st.lists(letters, max_size=12),
    wanted=filters,
    batch_size=st.integers(1, 5),
    stop_after=st.integers(0, 4),
    asks_again=st.booleans(),
)
def test_a_redrive_moves_what_its_dry_run_lists_each_once_also_when_it_is_stopped(
    broker: Connection,
    given_letters: list[Letter],
    wanted: DeadLetterFilter,
    batch_size: int,
    stop_after: int,
    asks_again: bool,
) -> None:
    group, other = (f"{name}-{next(_numbers)}" for name in ("billing", "other"))
    create_group(broker, group)
    wanted = replace(wanted, group=group)
    buried = {
        bury(
            broker,
            group=other if letter.is_of_other_group else group,
            topic=letter.topic,
            tag=letter.tag,
            failure=replace(FAILURE, exception=letter.exception),
        ): letter
        for letter in given_letters
    }
    dispatch_all(broker)
    before = len(results(broker))

    listed = [result.log_pos for result in run(broker, choose(broker, wanted).positions, batch_size, is_dry_run=True)]
    assert listed == [log_pos for log_pos, letter in buried.items() if is_meant(letter, log_pos, wanted)]
    assert len(results(broker)) == before

    first = run(broker, choose(broker, wanted).positions, batch_size, batches=stop_after)
    assert moved(first) == listed[: stop_after * batch_size]
    assert_books_are_right(broker, group, before)

    # What was chosen before the first run finds those of the first run done.
    rest = run(broker, listed, batch_size)
    assert [result.status for result in rest[: len(first)]] == [RedriveStatus.SKIPPED] * len(first)
    assert moved(first) + moved(rest) == listed
    assert choose(broker, wanted) == ((), len(listed))
    assert_books_are_right(broker, group, before)
    assert len(redriven(broker, group)) == len(listed)

    if asks_again:
        all_again = choose(broker, wanted, again=True).positions
        assert moved(run(broker, all_again, batch_size, again=True)) == listed
        assert_books_are_right(broker, group, before)
        assert len(redriven(broker, group)) == 2 * len(listed)
    assert redriven(broker, other) == []


def assert_books_are_right(connection: Connection, group: str, before: int) -> None:
    """Each result refers to a copy of its message, and each copy has a result."""
    found = results(connection)[before:]
    assert sorted(new or -1 for _, _, new in found) == redriven(connection, group)
    for log_pos, status, new_log_pos in found:
        assert (status, new_log_pos is not None) == ("REDRIVEN", True)
        assert stored(connection, new_log_pos or 0)["msg_id"] == stored(connection, log_pos)["msg_id"]
