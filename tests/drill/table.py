"""The table of a drill, in Markdown."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from tests.drill.faults import FAULTS
from tests.drill.haproxy import HAPROXY, HOSTS
from tests.drill.judge import Verdict

_HEAD = (
    "| fault | HAProxy | rounds | sends, HAProxy | sends, hosts | consumers, HAProxy | consumers, hosts "
    "| lost | lost, named | skipped | out of order | twice | warnings | tracebacks | verdict |"
)


def table(verdicts: Sequence[Verdict]) -> str:
    """A row for each fault and HAProxy: the longest standstill of any client of the kind, in seconds of all rounds."""
    lines = [_HEAD, "|---|---|" + "---:|" * 12 + "---|"]
    ordered = sorted(verdicts, key=_row_of)
    lines += [_row(list(rounds)) for _, rounds in groupby(ordered, key=_row_of)]
    waiting = [each.standstill[client] for each in verdicts for client in each.waiting]
    if waiting:
        lines += [
            "",
            f"Commits that wait for the absent synchronous standby are not in the table: {_range(waiting)} s.",
        ]
    return "\n".join(lines)


def _row_of(verdict: Verdict) -> tuple[int, str]:
    return list(FAULTS).index(verdict.fault), verdict.haproxy


def _row(rounds: list[Verdict]) -> str:
    pauses = [
        _range(
            max(
                seconds
                for client, seconds in each.standstill.items()
                if (client.way, client.is_consumer) == column and client not in each.waiting
            )
            for each in rounds
        )
        for column in ((HAPROXY, False), (HOSTS, False), (HAPROXY, True), (HOSTS, True))
    ]
    named = [
        f"{sum(len(names) for names in found)} {what}"
        for what, found in (
            ("thrown away by Patroni", [each.lost.thrown_away for each in rounds]),
            ("of a second primary", [each.lost.second_primary for each in rounds]),
            ("not replicated", [each.lost.not_replicated for each in rounds]),
            ("denied by a leader thrown away", [each.denied_by_lost_leader for each in rounds]),
        )
        if any(found)
    ]
    failed = sum(bool(each.complaints()) for each in rounds)
    cells: list[object] = [
        rounds[0].fault,
        rounds[0].haproxy,
        len(rounds),
        *pauses,
        sum(len(each.lost.unexplained) for each in rounds),
        ", ".join(named) or 0,
        sum(len(names) for each in rounds for names in each.skipped.values()),
        sum(len(wrong) for each in rounds for wrong in each.disorder.values()),
        sum(len(each.twice) + len(each.effects) for each in rounds),
        f"{max(max(each.warnings.values()) for each in rounds):.0f}",
        sum(sum(each.tracebacks.values()) for each in rounds),
        f"failed {failed} of {len(rounds)}" if failed else "passed",
    ]
    return f"| {' | '.join(map(str, cells))} |"


def _range(values: Iterable[float]) -> str:
    ordered = sorted(values)
    low, high = f"{ordered[0]:.1f}", f"{ordered[-1]:.1f}"
    return low if low == high else f"{low} to {high}"
