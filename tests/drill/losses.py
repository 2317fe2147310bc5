"""Why an acknowledged message is not in the database, judged by the timelines and positions at which it was seen.

PostgreSQL loses the end of a timeline if the promoted standby did not have it. Patroni can lose a whole timeline with
every message that its leader acknowledged: Patroni 3.0.2 lets a primary that was frozen win the race for the leader key
back when it wakes, and rewinds the leader that reigned in between. And if Patroni itself is killed, its PostgreSQL runs
on as a second primary, until Patroni comes back and rewinds it. No other loss is excused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.drill.attempts import Attempt
from tests.drill.watch import Reign, Sighting

#: Between the last look at a primary and its end.
_BLIND_SECONDS: Final = 0.5

#: The kind of producer that waits for a synchronous standby, and the status of a send that had one: no promotion loses
#: such a message.
_REPLICATED: Final = ("master", "SEND_OK")


class History(NamedTuple):
    """The history of the leader's log."""

    timeline: int
    #: The position at which each earlier timeline ended.
    switches: Mapping[int, int]

    def has(self, timeline: int) -> bool:
        return timeline == self.timeline or timeline in self.switches

    def may_lack(self, sighting: Sighting) -> bool:
        """Whether the message may have been committed after the end of its timeline."""
        return sighting.timeline != self.timeline and sighting.until > self.switches.get(sighting.timeline, -1)


@dataclass
class Lost:
    """Acknowledged messages that are missing in the database."""

    #: They were on timelines that the history of the leader does not have.
    thrown_away: list[str] = field(default_factory=list)
    #: They were at the end of a timeline, and acknowledged there although another primary had begun the next one.
    second_primary: list[str] = field(default_factory=list)
    #: They were at the end of a timeline, and no standby had promised to have them.
    not_replicated: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)


def explain(
    lost: Mapping[str, Attempt],
    sightings: Mapping[str, Sequence[Sighting]],
    reigns: Sequence[Reign],
    history: History,
) -> Lost:
    """Sort lost messages by the reason for the loss."""
    outcome = Lost()
    gone = [each for each in reigns if not history.has(each.timeline)]
    second = _second_reigns(reigns, history)
    for name, attempt in lost.items():
        seen = sightings.get(name, ())
        if seen:
            was_thrown_away = not any(history.has(each.timeline) for each in seen)
            is_at_end = all(map(history.may_lack, seen))
            is_of_second = is_at_end and any(_was_told_in(each, attempt) for each in second)
        else:
            was_thrown_away, is_at_end, is_of_second = _was_blind(attempt, gone), False, _was_blind(attempt, second)
        if was_thrown_away:
            outcome.thrown_away.append(name)
        elif (attempt.kind, attempt.detail) == _REPLICATED:
            outcome.unexplained.append(name)
        elif is_of_second:
            outcome.second_primary.append(name)
        elif is_at_end:
            outcome.not_replicated.append(name)
        else:
            outcome.unexplained.append(name)
    return outcome


def _second_reigns(reigns: Sequence[Reign], history: History) -> list[Reign]:
    """The parts of reigns on earlier timelines during which another node had already begun a later timeline."""
    return [
        Reign(each.node, each.timeline, max(each.began, later.began), each.ended)
        for each in reigns
        for later in reigns
        if later.node != each.node
        and each.timeline < later.timeline
        and history.has(each.timeline)
        and history.has(later.timeline)
        and later.began < each.ended
    ]


def _was_told_in(reign: Reign, attempt: Attempt) -> bool:
    return reign.began - _BLIND_SECONDS <= attempt.ended <= reign.ended + _BLIND_SECONDS


def _was_blind(attempt: Attempt, reigns: Sequence[Reign]) -> bool:
    """Whether an attempt was acknowledged between the last observation of a leader and that leader's end.

    The winning leader may already have reigned then. But the winning leader still has all its commits, because it has
    not been stopped since.
    """
    return any(each.began <= attempt.ended and abs(attempt.ended - each.ended) <= _BLIND_SECONDS for each in reigns)


def was_told_by_a_lost_leader(attempt: Attempt, reigns: Sequence[Reign], history: History) -> bool:
    """Whether the outcome of a send came from a leader whose timeline is gone.

    The lost leader reported correctly that a message was not stored. But the frozen primary held the message, and
    committed it after it woke.
    """
    return any(
        each.began <= attempt.ended <= each.ended + _BLIND_SECONDS for each in reigns if not history.has(each.timeline)
    )
