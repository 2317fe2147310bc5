"""Verdicts: true, false, null or error, as SQL that may be evaluated in any order and never raises an error.

SQL has the first three, with the same rules as RocketMQ. Errors are specific to RocketMQ: an error also spoils the
result of operands to its right, and a FALSE before AND or a TRUE before OR hides it. Expressions that can never be an
error therefore stay plain SQL. Other expressions have three forms: whether they are true, whether they are false, and
their number among four states. Only the forms that a caller uses are put into the statement; delivering a message uses
`true`.

The SQL of an expression grows only with its size, not with its nesting, because only leaves and states occur twice in
it.
RocketMQ: LogicExpression, UnaryExpression.createNOT.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Final, TypeAlias

from sqlalchemy import ColumnElement

#: SQL in consecutive parts. Parts that may need parentheses include them.
Sql: TypeAlias = str | ColumnElement[Any] | tuple["Sql", ...]

_STATES: Final = "TFNE"


def table(rows: str) -> str:
    """SQL for a truth table: a row for each state of the left side, a letter for each state of the right side."""
    return "('{" + ",".join(map(_numbers, rows.split())) + "}'::int[])"


def unary_table(row: str) -> str:
    """SQL for a truth table with one side."""
    return f"('{_numbers(row)}'::int[])"


def _numbers(row: str) -> str:
    return "{" + ",".join(str(_STATES.index(letter) + 1) for letter in row) + "}"


_AND: Final = table("TFNE FFFF NFNE EEEE")
_OR: Final = table("TTTT TFNE TNNE EEEE")
_NOT: Final = unary_table("FTNE")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of an expression about a message.

    `true` is TRUE exactly if the verdict is true, and FALSE or NULL otherwise; `false` works the same way. `state` is
    the number of the verdict in "TFNE", from 1 on. `plain` is the verdict in SQL's logic, or None if it may be an
    error. `error` is TRUE for an error and FALSE otherwise, or None if only `state` shows errors. `is_leaf` says
    whether it contains no other verdict.
    """

    true: Sql
    false: Sql
    state: Sql
    plain: Sql | None
    error: Sql | None = None
    is_leaf: bool = False


TRUE: Final = Verdict("true", "false", "1", "true")
FALSE: Final = Verdict("false", "true", "2", "false")
NULL: Final = Verdict("false", "false", "3", "NULL::boolean")


def plain(condition: Sql, *, true: Sql | None = None, false: Sql | None = None) -> Verdict:
    """A verdict that is never an error. `true` and `false` may provide simpler forms of it."""
    true, false = _sides(condition, true, false)
    return Verdict(true, false, _state_of(condition), condition)


def guarded(condition: Sql, error: Sql, *, true: Sql | None = None, false: Sql | None = None) -> Verdict:
    """A condition that is NULL in case of an error, too."""
    state = ("CASE WHEN ", error, " THEN 4 ELSE ", _state_of(condition), " END")
    true, false = _sides(condition, true, false)
    return Verdict(true, false, ("(", state, ")"), None, error, is_leaf=True)


def _sides(condition: Sql, true: Sql | None, false: Sql | None) -> tuple[Sql, Sql]:
    return condition if true is None else true, _not(condition) if false is None else false


def looked_up(rows: str, left: Verdict, right: Verdict | None = None, *, may_fail: bool = False) -> Verdict:
    """The verdict that a truth table gives for one or two verdicts.

    With `may_fail`, the table has errors for verdicts that are not errors.
    """
    state: Sql = (rows, "[", left.state, "]") if right is None else (rows, "[", left.state, "][", right.state, "]")
    if may_fail or left.plain is None or (right is not None and right.plain is None):
        return Verdict((state, " = 1"), (state, " = 2"), state, None)
    decided = ("CASE ", state, " WHEN 1 THEN true WHEN 2 THEN false END")
    return Verdict((state, " = 1"), (state, " = 2"), state, decided)


def negated(verdict: Verdict) -> Verdict:
    """NOT: null stays null, and an error stays an error."""
    if verdict.plain is not None:
        return plain(_not(verdict.plain), true=verdict.false, false=verdict.true)
    state = (_NOT, "[", verdict.state, "]")
    return replace(verdict, true=verdict.false, false=verdict.true, state=state)


def any_of(verdicts: Sequence[Verdict]) -> Verdict:
    """OR, from left to right: the first true verdict or error decides."""
    false = _joined(" AND ", [each.false for each in verdicts])
    plains = [each.plain for each in verdicts if each.plain is not None]
    if len(plains) == len(verdicts):
        return plain(_joined(" OR ", plains), true=_joined(" OR ", [each.true for each in verdicts]), false=false)
    true = _first_decides(verdicts, lambda each: each.true, 1)
    error = _error_comes_first(verdicts, lambda each: each.true)
    return Verdict(true, false, _tree(_OR, _states(verdicts, " OR ")), None, error)


def all_of(verdicts: Sequence[Verdict]) -> Verdict:
    """AND, from left to right: the first false verdict or error decides."""
    true = _joined(" AND ", [each.true for each in verdicts])
    plains = [each.plain for each in verdicts if each.plain is not None]
    if len(plains) == len(verdicts):
        return plain(_joined(" AND ", plains), true=true, false=_joined(" OR ", [each.false for each in verdicts]))
    false = _first_decides(verdicts, lambda each: each.false, 2)
    error = _error_comes_first(verdicts, lambda each: each.false)
    return Verdict(true, false, _tree(_AND, _states(verdicts, " AND ")), None, error)


def _joined(operator: str, parts: Sequence[Sql]) -> Sql:
    if len(parts) == 1:
        return parts[0]
    between: list[Sql] = [operator] * (2 * len(parts) - 1)
    between[::2] = parts
    return ("(", *between, ")")


def _not(condition: Sql) -> Sql:
    return ("NOT (", condition, ")")


def _state_of(condition: Sql) -> Sql:
    return ("coalesce(2 - (", condition, ")::int, 3)")


def _first_decides(verdicts: Sequence[Verdict], decisive: Callable[[Verdict], Sql], state: int) -> Sql:
    """Whether one of the verdicts is decisive, without an error before it.

    A CASE replaces nesting: PostgreSQL's parser does not recurse into it, and evaluation stops at the decisive verdict.
    """
    alike = _alike(verdicts)
    branches: list[Sql] = []
    waiting: list[Sql] = []
    for each in verdicts[:-alike]:
        if each.plain is not None:
            waiting.append(decisive(each))
            continue
        if each.error is not None:
            decided, failed = decisive(each), each.error
        else:
            decided, failed = (each.state, f" = {state}"), (each.state, " = 4")
        branches += [" WHEN ", _joined(" OR ", [*waiting, decided]), " THEN true WHEN ", failed, " THEN false"]
        waiting = []
    last = _joined(" OR ", [*waiting, *map(decisive, verdicts[-alike:])])
    return ("CASE", *branches, " ELSE ", last, " END") if branches else last


def _alike(verdicts: Sequence[Verdict]) -> int:
    """The number of verdicts at the end, at least one, that can only be errors together.

    In that case none of them is decisive, and none hides another.
    """
    error = verdicts[-1].error
    return 1 + sum(1 for _ in takewhile(lambda each: error is not None and each.error is error, verdicts[-2::-1]))


def _error_comes_first(verdicts: Sequence[Verdict], decisive: Callable[[Verdict], Sql]) -> Sql | None:
    """Whether one of the verdicts is an error, and no verdict before it is decisive.

    Returns None unless all verdicts are leaves or plain.
    """
    if not all(each.is_leaf or each.plain is not None for each in verdicts):
        return None
    last = max(number for number, each in enumerate(verdicts) if each.is_leaf)
    error = verdicts[last].error
    branches: list[Sql] = []
    for each in verdicts[:last]:
        branches += [" WHEN ", decisive(each), " THEN false"]
        if each.error is not None:
            branches += [" WHEN ", each.error, " THEN true"]
    return ("CASE", *branches, " ELSE ", error, " END") if branches and error is not None else error


def _states(verdicts: Sequence[Verdict], operator: str) -> list[Sql]:
    """The states of the verdicts, with neighbouring plain verdicts combined."""
    states: list[Sql] = []
    waiting: list[Sql] = []
    for each in verdicts:
        if each.plain is not None:
            waiting.append(each.plain)
            continue
        if waiting:
            states.append(_state_of(_joined(operator, waiting)))
            waiting = []
        states.append(each.state)
    return [*states, _state_of(_joined(operator, waiting))] if waiting else states


def _tree(rows: str, states: list[Sql]) -> Sql:
    """Combine many states with one truth table.

    The grouping does not matter, so neighbours are paired to limit the nesting.
    """
    while len(states) > 1:
        pairs = [(rows, "[", left, "][", right, "]") for left, right in zip(states[::2], states[1::2], strict=False)]
        states = [*pairs, *states[len(pairs) * 2 :]]
    return states[0]
