"""Rows 39 to 45 of the checklist of RocketMQ's behaviours: which messages match a filter.

A broker process runs the services; the consumers are those of the public API.
"""

from datetime import timedelta

import pytest
from sqlalchemy import Connection

from mqdb.errors import FilterDisabled, ResponseCode
from mqdb.store.consumers.consumer_offsets import committed_offsets
from mqdb_client import Message, MessageSelector
from tests.fixtures.broker import append, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.lite_pull import Lite
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until
from tests.fixtures.serve import Starter
from tests.fixtures.variants import usually

by_sql = MessageSelector.by_sql


def message(body: str, tag: str | None = None, **properties: str) -> Message:
    return Message("orders", body, tag, properties=properties)


def test_row_39_a_tag_expression_matches_exactly(served: Connection, member: Member) -> None:
    """60 messages carry three tags in turn; only TagA of the expression is one of these tags."""
    route = topic(served, queues=4)
    for number in range(60):
        tag = ("TagA", "TagB", "TagC")[number % 3]
        append(served, route, f"{tag} {number}", queue_id=number % 4, tag=tag)
    inbox, everything = Inbox(), Inbox()

    member(inbox, expression="TagA || TAGB || TAGC")
    member(everything, group="others")
    everything.wait_for(60)
    inbox.wait_for(20)

    assert {message.tag for message in inbox.messages} == {"TagA"}
    assert len(inbox.messages) == 20
    assert len(everything.messages) == 60


def test_row_40_tags_with_one_code_are_not_mixed(served: Connection, member: Member) -> None:
    """The broker compares hash codes, and "Aa" and "BB" have the same code."""
    route = topic(served)
    inbox = Inbox()
    member(inbox, expression="Aa", consume_thread_nums=1)

    for number in range(10):
        append(served, route, f"{number}", tag=("BB", "Aa")[number % 2])
    inbox.wait_for(5)

    assert inbox.bodies == ["1", "3", "5", "7", "9"]


def test_row_41_a_message_without_tag_is_for_all_tags_only(served: Connection, member: Member) -> None:
    route = topic(served)
    append(served, route, "untagged")
    append(served, route, "tagged", tag="A")
    by_tag, by_star = Inbox(), Inbox()

    member(by_tag, group="by_tag", expression="A")
    member(by_star, group="by_star", expression="*")
    by_star.wait_for(2)
    by_tag.wait_for(1)

    assert by_tag.bodies == ["tagged"]


def test_row_42_a_consumer_by_sql_does_not_start_where_it_is_switched_off(
    database: Database, serve: Starter, broker: Connection, member: Member, lite: Lite
) -> None:
    """Only the broker process has the setting; the consumers in this process do not."""
    serve(dsn=database.dsn, enable_property_filter=False)
    route = topic(broker)
    append(broker, route, message("one", "A", a="1"))
    inbox = Inbox()

    with pytest.raises(FilterDisabled, match="enable_property_filter is off") as refused:
        member(Inbox(), expression=by_sql("a > 0"))
    with pytest.raises(FilterDisabled):
        lite("orders", by_sql("a > 0"))
    with pytest.raises(FilterDisabled):
        lite(queue_ids=[0], expression=by_sql("a > 0"))
    member(inbox, expression="A")
    inbox.wait_for(1)

    assert refused.value.code is ResponseCode.SYSTEM_ERROR


def test_row_42_switched_on_again_it_starts(
    database: Database, serve: Starter, broker: Connection, member: Member
) -> None:
    serve(dsn=database.dsn, enable_property_filter=False).end()
    with pytest.raises(FilterDisabled):
        member(Inbox(), expression=by_sql("a > 0"))

    serve(dsn=database.dsn)
    append(broker, topic(broker), message("one", a="1"))
    inbox = Inbox()
    member(inbox, expression=by_sql("a > 0"))
    inbox.wait_for(1)


def test_row_43_the_sample_of_rocketmq(served: Connection, member: Member) -> None:
    """Ten messages carry three tags in turn and `a` from 0 to 9."""
    route = topic(served)
    for number in range(10):
        append(served, route, message(f"{number}", ("TagA", "TagB", "TagC")[number % 3], a=f"{number}"))
    append(served, route, message("last", "TagA", a="0"))
    sample = "(TAGS is not null and TAGS in ('TagA', 'TagB')) and (a is not null and a between 0 and 3)"
    inbox = Inbox()

    member(inbox, expression=by_sql(sample), consume_thread_nums=1)
    inbox.wait_for(4)

    assert inbox.bodies == ["0", "1", "3", "last"]


@pytest.mark.parametrize(
    "expression",
    usually("a <> 'x'", "a > 3", of=["a = 'x'", "a <> 'x'", "a NOT IN ('x')", "a > 3", "a NOT CONTAINS 'x'"]),
)
def test_row_44_a_message_without_the_property_is_not_delivered(
    served: Connection, member: Member, expression: str
) -> None:
    route = topic(served)
    append(served, route, message("without"), message("other", b="x"), message("both", a="x", last="yes"))
    inbox = Inbox()

    member(inbox, expression=by_sql(f"last = 'yes' OR {expression}"))
    inbox.wait_for(1)

    assert inbox.bodies == ["both"]


def test_row_45_an_error_is_not_delivered_and_the_queue_goes_on(served: Connection, member: Member) -> None:
    route = topic(served)
    append(served, route, message("text", a="abc"), message("decimal", a="4.5"), message("blank", a=" 4"))
    append(served, route, message("four", a="4"), message("huge", a="4" * 400), message("five", a="+5"))
    append(served, route, message("end", a="abc"))
    inbox = Inbox()

    often = timedelta(milliseconds=20)
    member(inbox, expression=by_sql("a > 3"), consume_thread_nums=1, persist_consumer_offset_interval=often)
    (key,) = route.queue_keys
    wait_until(lambda: committed_offsets(served, "readers", [key]) == {key: 7})

    assert inbox.bodies == ["four", "five"]
