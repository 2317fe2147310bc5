"""Dead letters by exception and topic: counted with a trend, redriven by kind, and changed by one expression."""

import json
from html import unescape

import pytest

from mqdb.common.failure import Failure
from mqdb.errors import TopicNotFound
from mqdb.store.engine import create_engine
from mqdb_client import Admin, DeadLetterFilter
from tests.fixtures.broker import dispatch_all, topic
from tests.fixtures.dashboard import Site, Visitor
from tests.fixtures.dead_letters import FAILED_AT, bury, create_group, letter_id

B = "/b/broker-a/"

#: An exception whose name would end a string of SQL.
ODD = "shop.It's%s"


def letters(site: Site, group: str, *bodies: str | bytes, exception: str = ODD) -> list[str]:
    """Create dead letters of a group, from messages that were sent to topic orders; returns their ids."""
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        create_group(connection, group)
        failure = Failure(exception, "no price", "Traceback", "host", FAILED_AT)
        found = [letter_id(connection, bury(connection, body, group, failure=failure)) for body in bodies]
        dispatch_all(connection)
    engine.dispose()
    return found


def bodies_sent(site: Site, group: str) -> list[bytes]:
    """The bodies of messages in the retry topic of a group, in any order."""
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        dispatch_all(connection)
    engine.dispose()
    with Admin(site.database.dsn) as admin:
        try:
            return sorted(each.body for each in admin.messages.find(f"%RETRY%{group}", limit=100))
        except TopicNotFound:
            return []


def kind(exception: str = ODD, **fields: str) -> dict[str, str]:
    return {"kind": "1", "exception": exception, "topic": "orders"} | fields


def test_letters_are_counted_by_kind_with_a_trend_and_an_example(site: Site, ann: Visitor) -> None:
    ids = letters(site, "counted", "1", "2")
    letters(site, "counted", "3", exception="shop.Other")

    page = ann.page(B + "dead-letters/counted/kinds")

    rows = page.partition("<tbody>")[2].split("<tr>")[1:]
    assert [ODD in rows[0], "shop.Other" in rows[1], len(rows)] == [True, True, 2]
    assert '<td class="n">2</td><td class="n">2</td><td class="n">2</td>' in rows[0]
    assert rows[0].count("<rect") == 1
    assert f"dead-letters/counted/{ids[1]}" in rows[0]


def test_a_kind_is_redriven_after_a_dry_run_and_no_other_letter(site: Site, ann: Visitor) -> None:
    letters(site, "kinds", "1", "2")
    letters(site, "kinds", "3", exception="shop.It's%sNot")
    path = B + "dead-letters/kinds"

    plan = unescape(ann.act(path, **kind()).body)
    assert "2 of 2 would go to group kinds" in plan
    assert bodies_sent(site, "kinds") == []
    assert "2 of 2 are on the way" in unescape(ann.act(path, **kind(do="1")).body)

    assert bodies_sent(site, "kinds") == [b"1", b"2"]
    with Admin(site.database.dsn) as admin:
        [left] = [each for each in admin.dead_letters.list(DeadLetterFilter("kinds")) if each.redriven_at is None]
    assert left.exception == "shop.It's%sNot"


def test_one_expression_changes_many_bodies_after_a_preview(site: Site, ann: Visitor) -> None:
    bad = [json.dumps({"id": number, "country": None, "price": 1.10}) for number in range(3)]
    letters(site, "changed", *bad, "no JSON", b"\x00\xff")
    path, change = B + "dead-letters/changed", 'country = "CZ"'

    plan = unescape(ann.act(path, **kind(change=change)).body)
    assert plan.count("-   country: null") == 3
    assert plan.count('+   country: "CZ"') == 3
    assert "3 of 5 would go to group changed" in plan
    assert plan.count("is not JSON") == 1
    done = unescape(ann.act(path, **kind(change=change, do="1")).body)

    assert "3 of 5 are on the way" in done
    assert bodies_sent(site, "changed") == [each.replace("null", '"CZ"').encode() for each in bad]
    with Admin(site.database.dsn) as admin:
        found = admin.dead_letters.list(DeadLetterFilter("changed"))
        assert sum(each.redriven_at is None for each in found) == 2


def test_chosen_letters_are_changed_too_and_a_redriven_one_is_left(site: Site, ann: Visitor) -> None:
    ids = letters(site, "chosen", '{"a": 1}', '{"a": 2}', '{"a": 3}')
    path = B + "dead-letters/chosen"
    ann.act(path, id=ids[0], do="1")

    ann.act(path, *(("id", each) for each in ids[:2]), change="remove a", do="1")

    assert bodies_sent(site, "chosen") == [b'{"a": 1}', b"{}"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"change": "a = 1", "text": "x"}, "a new body is possible for one dead letter only"),
        ({"text": "x"}, "a new body is possible for one dead letter only"),
    ],
)
def test_a_change_that_cannot_be_made_is_refused(site: Site, ann: Visitor, fields: dict[str, str], words: str) -> None:
    reply = ann.act(B + "dead-letters/billing", **kind(), **fields)

    assert reply.status == 400
    assert words in unescape(reply.body)


def test_an_edit_shows_its_difference(site: Site, ann: Visitor) -> None:
    [letter] = letters(site, "edited", "one\ntwo\nthree")

    plan = unescape(ann.act(B + "dead-letters/edited", id=letter, text="one\r\n2\r\nthree").body)

    assert "- two" in plan
    assert "+ 2" in plan
    assert "  three" in plan


def test_the_kinds_of_a_group_without_letters_are_none(site: Site, ann: Visitor) -> None:
    engine = create_engine(site.database.dsn)
    with engine.connect() as connection:
        create_group(connection, "healthy")
        topic(connection, "healthy-topic")
    engine.dispose()

    assert "No letter is kept" in ann.page(B + "dead-letters/healthy/kinds")


def test_a_change_that_cannot_be_read_is_explained_beside_its_field_and_nothing_is_sent(
    site: Site, ann: Visitor
) -> None:
    letters(site, "misread", "{}")

    plan = ann.act(B + "dead-letters/misread", **kind(change="a is 1", do="1"))

    assert plan.status == 200
    text = unescape(plan.body)
    assert "write PATH = JSON" in text
    assert 'value="a is 1"' in text
    assert "Nothing has changed yet" in text
    assert bodies_sent(site, "misread") == []


def test_a_field_that_bodies_lack_is_named(site: Site, ann: Visitor) -> None:
    letters(site, "misspelt", '{"country": 1}', '{"cuontry": 1}')

    plan = unescape(ann.act(B + "dead-letters/misspelt", **kind(change="cuontry = 2")).body)

    assert "The changed field is new in 1 of these bodies." in plan


def test_a_letter_that_died_after_the_dry_run_is_not_sent_with_its_kind(site: Site, ann: Visitor) -> None:
    letters(site, "later", "1")
    path = B + "dead-letters/later"
    plan = ann.act(path, **kind()).body
    shown = plan.partition('name="upto" value="')[2].partition('"')[0]
    letters(site, "later", "2")

    done = unescape(ann.act(path, **kind(do="1", upto=shown)).body)

    assert "1 of 1 is on the way" in done
    assert "1 letter of this kind has not been redriven" in done
    assert bodies_sent(site, "later") == [b"1"]
