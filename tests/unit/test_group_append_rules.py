"""Group append: whose deadline counts for others, and in which order they wait again."""

from datetime import UTC, datetime
from typing import Any, cast

from mqdb.broker import send
from mqdb.errors import BrokerUnavailable, MqdbError, SendGivenUp
from mqdb.message import Message
from mqdb.unique_id import UniqueIdGenerator
from mqdb_client.producer.append_unit import Unit, UnitState
from mqdb_client.producer.group_append import GroupAppend
from mqdb_client.producer.waking import Waking
from tests.fixtures.appends import Given

_ids = UniqueIdGenerator()


class Lost:
    """A connection that is lost."""

    why_lost = None

    def __init__(self, *trouble: MqdbError) -> None:
        self._trouble = trouble

    def trouble_since(self, _moment: float) -> MqdbError | None:
        return next(iter(self._trouble), None)


def group_append(*waiting: Unit) -> GroupAppend:
    """One for which these wait; there is no connection."""
    appends = GroupAppend(cast(Any, Lost()), Waking())
    for unit in waiting:
        unit.state = UnitState.WAITING
        appends._waiting.append(unit)
    return appends


def unit(seconds: float) -> Given:
    """One that has so much time left, of 3 s that it had."""
    return Given([send.record(Message("orders", "x"), 1, _ids.next(), datetime.now(UTC), "test")], seconds)


def test_nobody_is_taken_into_the_statement_of_one_whose_time_is_as_good_as_over() -> None:
    other = unit(30)
    appends = group_append(other)
    batch: list[Unit] = [unit(0.02)]

    assert appends._take_along(batch[0], batch, None) == batch[0].records
    assert appends._take_along(batch[0], [], None) == []
    assert (other.state, list(appends._waiting)) == (UnitState.WAITING, [other])


def test_whose_time_is_as_good_as_over_is_given_up_and_the_next_one_leads() -> None:
    late, other, later = [unit(0.02) for _ in range(3)], unit(30), unit(0.02)
    appends = group_append(*late, other, later)

    assert appends._first_with_time() is other
    assert [type(each.error) for each in late] == [SendGivenUp] * 3
    assert list(appends._waiting) == [other, later]


def test_one_that_is_given_up_says_what_was_in_its_way_last() -> None:
    """The connection may be back by then, too late for this one."""
    lost = Lost(BrokerUnavailable("here", "FATAL:  sorry, too many clients already"))
    appends = GroupAppend(cast(Any, lost), Waking())
    late = unit(0.02)
    appends._waiting.append(late)

    assert appends._first_with_time() is None

    assert isinstance(late.error, SendGivenUp)
    assert str(late.error).endswith("nothing was stored: no broker at here: FATAL:  sorry, too many clients already")


def test_who_has_waited_all_in_vain_waits_in_the_same_order_again() -> None:
    """A statement was refused for one of them, and repeated in parts until the time was over."""
    batch = [unit(30) for _ in range(7)]
    new = unit(30)
    appends = group_append(new)
    for each in batch:
        each.state = UnitState.TAKEN
    parts: list[list[Unit]] = [[*batch[:3]], [*batch[3:]]]

    for part in parts:
        appends._give_up(part, batch[0], None)
    appends._put_back(cast("list[Unit]", batch))

    assert list(appends._waiting) == [*batch[1:], new]
