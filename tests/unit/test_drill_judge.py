"""The losses that the drill attributes to Patroni and to replication, and the time for which a client stood still."""

import pytest

from tests.drill.attempts import Attempt, Result
from tests.drill.faults import Injected
from tests.drill.haproxy import HAPROXY, HOSTS
from tests.drill.journal import longest_pause
from tests.drill.judge import reigns_asked
from tests.drill.losses import History, Lost, explain, was_told_by_a_lost_leader
from tests.drill.watch import Reign, Sighting, alone_since

#: The leader is on timeline 3, which began at position 900 of timeline 1: there was no timeline 2 for it.
HISTORY = History(3, {1: 900})


def attempt(kind: str = "flush", ended: float = 50.0, status: str = "SEND_OK") -> Attempt:
    return Attempt(ended - 0.1, ended, "hosts", kind, "m", Result.STORED, status)


def outcome(
    kind: str, *seen: Sighting, reigns: tuple[Reign, ...] = (), ended: float = 50.0, status: str = "SEND_OK"
) -> Lost:
    return explain({"m": attempt(kind, ended, status)}, {"m": seen} if seen else {}, reigns, HISTORY)


@pytest.mark.parametrize("kind", ["flush", "master"])
def test_a_message_of_a_timeline_that_the_leader_lacks_was_thrown_away(kind: str) -> None:
    assert outcome(kind, Sighting("pg2", 2, 910, 920)).thrown_away == ["m"]


def test_a_message_behind_the_end_of_a_timeline_was_not_replicated() -> None:
    assert outcome("flush", Sighting("pg1", 1, 880, 920)).not_replicated == ["m"]


def test_a_producer_that_waited_for_a_standby_loses_nothing_by_a_promotion() -> None:
    assert outcome("master", Sighting("pg1", 1, 880, 920)).unexplained == ["m"]


def test_a_producer_that_had_no_standby_was_promised_nothing() -> None:
    assert outcome("master", Sighting("pg1", 1, 880, 920), status="SLAVE_NOT_AVAILABLE").not_replicated == ["m"]


#: pg1 went on for 20 s beside pg3, which the leader's history comes from.
TWO_PRIMARIES = (Reign("pg1", 1, 10.0, 60.0), Reign("pg3", 3, 40.0, 90.0))


def test_a_message_of_a_primary_with_a_successor_is_named_apart() -> None:
    on_old = Sighting("pg1", 1, 910, 920)

    assert outcome("flush", on_old, reigns=TWO_PRIMARIES).second_primary == ["m"]
    assert outcome("flush", on_old, reigns=TWO_PRIMARIES, ended=30.0).not_replicated == ["m"]
    assert outcome("master", on_old, reigns=TWO_PRIMARIES).unexplained == ["m"]
    assert outcome("master", on_old, reigns=TWO_PRIMARIES, status="FLUSH_SLAVE_TIMEOUT").second_primary == ["m"]


def test_a_second_primary_excuses_no_loss_of_the_leader() -> None:
    assert outcome("flush", Sighting("pg3", 3, 910, 920), reigns=TWO_PRIMARIES).unexplained == ["m"]
    assert outcome("flush", Sighting("pg1", 1, 880, 900), reigns=TWO_PRIMARIES).unexplained == ["m"]
    assert outcome("flush", reigns=TWO_PRIMARIES).unexplained == ["m"]


def test_a_message_that_nobody_saw_may_have_come_after_the_last_look_at_a_second_primary() -> None:
    assert outcome("flush", reigns=TWO_PRIMARIES, ended=60.2).second_primary == ["m"]
    assert outcome("flush", reigns=TWO_PRIMARIES, ended=61.0).unexplained == ["m"]


def test_clients_by_haproxy_have_no_second_primary_and_others_are_asked_when_it_has_ended() -> None:
    of_patroni = Injected("pg1", was_orphaned=True)

    assert reigns_asked(TWO_PRIMARIES, of_patroni, HAPROXY) == [Reign("pg3", 3, 40.0, 90.0)]
    assert reigns_asked(TWO_PRIMARIES, of_patroni, HOSTS) == [Reign("pg3", 3, 60.0, 90.0)]
    assert reigns_asked(TWO_PRIMARIES, Injected("pg1"), HOSTS) == [*TWO_PRIMARIES]
    assert reigns_asked([Reign("pg1", 1, 10.0, 20.0)], Injected("pg1"), HOSTS) == []


def test_a_message_before_the_end_of_its_timeline_must_not_be_lost() -> None:
    assert outcome("flush", Sighting("pg1", 1, 880, 900)).unexplained == ["m"]


def test_a_message_on_the_timeline_of_the_leader_must_not_be_lost() -> None:
    assert outcome("flush", Sighting("pg3", 3, 910, 920)).unexplained == ["m"]


def test_a_message_that_was_seen_on_a_timeline_that_is_there_was_not_thrown_away() -> None:
    seen = (Sighting("pg2", 2, 910, 920), Sighting("pg1", 1, 880, 890))

    assert outcome("flush", *seen).unexplained == ["m"]


def test_a_message_that_nobody_saw_may_have_come_after_the_last_look_at_a_leader_that_is_gone() -> None:
    gone = Reign("pg2", 2, 30.0, 49.8)

    assert outcome("flush", reigns=(gone,)).thrown_away == ["m"]
    assert outcome("flush", reigns=(gone,), ended=51.0).unexplained == ["m"]
    assert outcome("flush", reigns=(gone,), ended=40.0).unexplained == ["m"]
    assert outcome("flush", reigns=(Reign("pg1", 1, 30.0, 49.8),)).unexplained == ["m"]


def test_the_leader_that_denied_a_message_is_named_only_if_its_timeline_is_gone() -> None:
    told = attempt(ended=50.0)

    assert was_told_by_a_lost_leader(told, [Reign("pg2", 2, 30.0, 60.0)], HISTORY)
    assert not was_told_by_a_lost_leader(told, [Reign("pg1", 1, 30.0, 60.0)], HISTORY)
    assert not was_told_by_a_lost_leader(told, [Reign("pg2", 2, 51.0, 60.0)], HISTORY)


def test_a_primary_is_alone_when_all_others_have_ended() -> None:
    old, new, woken = Reign("pg1", 1, 0.0, 50.0), Reign("pg2", 2, 20.0, 90.0), Reign("pg1", 1, 60.0, 60.1)

    assert alone_since([old, new]) == 50.0
    assert alone_since([old, new, woken]) == 60.1
    assert alone_since([Reign("pg1", 1, 0.0, 10.0), new]) == 20.0


def test_a_pause_counts_that_reaches_into_the_time() -> None:
    assert longest_pause([1, 2, 10, 11], began=3, ended=12) == 8
    assert longest_pause([1, 2, 10, 11], began=10.5, ended=14) == 3
    assert longest_pause([], began=3, ended=12) == 9
