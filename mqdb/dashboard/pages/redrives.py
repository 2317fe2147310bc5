"""Redrives of a group's dead letters: chosen letters or a whole kind, unchanged or edited, after a dry run."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from starlette.responses import Response

from mqdb.common.topic import dlq_topic
from mqdb.common.unique_id import parse_unique_id
from mqdb.dashboard.views.bodies import editable_text, edited_body, plain_body
from mqdb.dashboard.views.differences import DifferenceLine, difference
from mqdb.dashboard.views.json_text import JsonChange
from mqdb.dashboard.visit import PageNotFound, Visit
from mqdb.errors import ParameterInvalid
from mqdb_client import DeadLetterFilter, PastRedrive, Redrive, RedriveResult, RedriveStatus, WholeDeadLetter

#: The limits of letters that one click redrives. Each changed letter is redriven in its own transaction.
MOST_OF_A_KIND: Final = 1_000
MOST_CHANGED: Final = 200

#: The limit of lines in the table of results.
_MOST_LINES: Final = 20


class _Wish(NamedTuple):
    """The posted form of a redrive."""

    group: str
    wanted: DeadLetterFilter
    ids: tuple[str, ...]
    """The ids of the chosen letters; empty if all letters of a kind are chosen."""
    kind: tuple[str | None, str | None] | None
    """The exception and the topic of the chosen kind; None if letters are chosen by id."""
    upto: int | None
    """The position of the last letter of the kind that the dry run has shown: younger ones stay."""
    again: bool
    to_topic: str | None
    text: str | None
    """The whole new body, if only one letter is chosen."""
    change: str | None
    """A change of one value in the body of each letter."""
    is_plan: bool
    fault: str | None
    """The reason why the change cannot be read; then it is only planned, and without the change."""


class _Line(NamedTuple):
    """The result of redriving a letter, with the difference between its old and new body."""

    result: RedriveResult
    difference: Sequence[DifferenceLine]


def redrive(visit: Visit, group: str) -> Response:
    """Redrive letters, or show the effect of a redrive. Raises ParameterInvalid if no letter is chosen, and Denied."""
    wish = _wish(visit, group)
    actor = visit.rights.require(group, "operate_group")
    if wish.to_topic is not None:
        visit.rights.require(dlq_topic(group), "read")
        visit.rights.require(wish.to_topic, "send")
    if wish.change is not None and wish.fault is None:
        lines = list(_changed(visit, wish, JsonChange.parse(wish.change), actor))
    elif wish.text is not None:
        wish, body, shown = _edited(visit, wish)
        lines = _results(visit, wish, actor, body if wish.text is not None else None, shown)
    else:
        lines = _results(visit, wish, actor)
    if wish.kind is not None and wish.is_plan:
        wish = wish._replace(upto=max((line.result.log_pos for line in lines), default=0))
    counts = {status: sum(line.result.status is status for line in lines) for status in RedriveStatus}
    return visit.page(
        "redrive.html",
        wish=wish,
        lines=lines[:_MOST_LINES],
        more=max(len(lines) - _MOST_LINES, 0),
        count=len(lines),
        ready=counts[RedriveStatus.READY],
        redriven=counts[RedriveStatus.REDRIVEN],
        new_fields=sum(_is_new(line) for line in lines) if wish.change is not None else 0,
        may_change=visit.rights.may(dlq_topic(group), "read"),
        left=_left(visit, wish) if wish.kind is not None else None,
    )


def _wish(visit: Visit, group: str) -> _Wish:
    form = visit.form
    ids = tuple(dict.fromkeys(form.all("id")))
    kind = (form.text("exception"), form.text("topic")) if form.has("kind") else None
    if not ids and kind is None:
        raise ParameterInvalid("id", None, "choose at least one dead letter")
    text, change = form.raw("text"), form.text("change")
    if text is not None and (len(ids) != 1 or change is not None):
        raise ParameterInvalid("text", text, "a new body is possible for one dead letter only")
    upto, fault = form.number("upto"), None
    try:
        change and JsonChange.parse(change)
    except ParameterInvalid as error:
        fault = str(error)
    by_id = DeadLetterFilter(group, ids=tuple(map(parse_unique_id, ids)))
    wanted = by_id if kind is None else kind_filter(group, *kind, upto)
    is_plan = fault is not None or not form.has("do")
    return _Wish(group, wanted, ids, kind, upto, form.has("again"), form.text("to_topic"), text, change, is_plan, fault)


def kind_filter(group: str, exception: str | None, topic: str | None, upto: int | None = None) -> DeadLetterFilter:
    """The letters of a group with exactly this exception and this topic, either of which may be missing.

    With `upto`, those up to this position of the log.
    """
    conditions = [f"exception {_is(exception)}", f"topic {_is(topic)}"]
    if upto is not None:
        conditions.append(f"log_pos <= {upto}")
    return DeadLetterFilter(group, where=" AND ".join(conditions))


def _is(value: str | None) -> str:
    return "IS NULL" if value is None else "= '" + value.replace("'", "''") + "'"


def _results(
    visit: Visit, wish: _Wish, actor: str, body: bytes | None = None, shown: Sequence[DifferenceLine] = ()
) -> list[_Line]:
    """Redrive letters unchanged, or one letter with a new body; returns the results."""
    results = visit.broker.dead_letters.redrive(
        wish.wanted,
        to_topic=wish.to_topic,
        body=body,
        again=wish.again,
        limit=MOST_OF_A_KIND if wish.kind is not None else None,
        dry_run=wish.is_plan,
        actor=actor,
    )
    return [_Line(result, shown if number == 0 else []) for number, result in enumerate(results)]


def _edited(visit: Visit, wish: _Wish) -> tuple[_Wish, bytes, list[DifferenceLine]]:
    """The new body of one letter, and its difference. If the body is unchanged, the returned wish has no text."""
    assert wish.text is not None
    visit.rights.require(dlq_topic(wish.group), "read")
    found, _ = find_letter(visit, wish.group, wish.ids[0])
    visit.rights.require(wish.to_topic or found.topic or "", "send")
    original, _ = plain_body(found.body, found.sys_flag)
    body = edited_body(original, wish.text)
    if body == original:
        return wish._replace(text=None), original, []
    return wish, body, difference(editable_text(original) or "", body.decode())


def _changed(visit: Visit, wish: _Wish, change: JsonChange, actor: str) -> Iterator[_Line]:
    """Redrive each letter with its changed body. If a body cannot be changed, only its letter fails."""
    visit.rights.require(dlq_topic(wish.group), "read")
    letters = _letters(visit, wish)
    for topic in {wish.to_topic or each.topic or "" for each in letters}:
        visit.rights.require(topic, "send")
    for letter in letters:
        body, fault = plain_body(letter.body, letter.sys_flag)
        before = editable_text(body)
        try:
            if fault is not None or before is None:
                raise ParameterInvalid("body", letter.msg_id, fault or "is not text")
            after = change.apply(before)
        except ParameterInvalid as error:
            yield _Line(_failed(letter, str(error)), [])
            continue
        how = Redrive(f"{wish.wanted}, {wish.change}", wish.to_topic, after.encode(), wish.again)
        [result] = visit.broker.dead_letters.redrive_batch([letter.log_pos], how, dry_run=wish.is_plan, actor=actor)
        yield _Line(result, difference(before, after))


def _letters(visit: Visit, wish: _Wish) -> Sequence[WholeDeadLetter]:
    if wish.kind is None:
        found = [find_letter(visit, wish.group, each)[0] for each in wish.ids]
    else:
        read = visit.broker.dead_letters.read(wish.wanted)
        found = list(islice((each for each in read if wish.again or each.redriven_at is None), MOST_CHANGED))
    return [each for each in found if wish.again or each.redriven_at is None]


def _failed(letter: WholeDeadLetter, error: str) -> RedriveResult:
    return RedriveResult(
        RedriveStatus.FAILED, letter.msg_id, letter.group, letter.topic, error, letter.log_pos, None, None
    )


def _is_new(line: _Line) -> bool:
    """Whether the body of a letter lacked the changed field: perhaps its name is misspelt."""
    signs = {each.sign for each in line.difference}
    return "+" in signs and "-" not in signs


def _left(visit: Visit, wish: _Wish) -> int:
    """The number of letters of the kind that have not been redriven, those that died since the dry run included."""
    assert wish.kind is not None
    return len(visit.broker.dead_letters.choose(kind_filter(wish.group, *wish.kind)).positions)


def find_letter(visit: Visit, group: str, message_id: str) -> tuple[WholeDeadLetter, list[PastRedrive]]:
    """The newest dead letter of a message in a group, with its redrives. Raises PageNotFound."""
    for found, redrives in visit.broker.dead_letters.show(message_id):
        if found.group == group:
            return found, redrives
    raise PageNotFound(f"dead letter {message_id} of group {group}")
