"""Row 68 of the checklist: a group whose offset does not exist continues at the nearest existing one."""

import pytest
from sqlalchemy import Connection, text

from mqdb.store.consumers.consumer_offsets import committed_offsets
from tests.fixtures.broker import append, dispatch_all, topic
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.lite_pull import Lite, drained
from tests.fixtures.processes import wait_until
from tests.fixtures.variants import usually

SENT = 50
#: As after retention, which takes the oldest messages away.
MIN_OFFSET = 20


@pytest.mark.parametrize("is_polled", usually(False, of=[False, True]), ids=["push", "lite pull"])
@pytest.mark.parametrize(
    ("offset", "goes_on_at"), [(1_000_000_000, SENT), (SENT + 1, SENT), (0, MIN_OFFSET), (MIN_OFFSET - 1, MIN_OFFSET)]
)
def test_row_68_below_the_min_offset_at_that_and_above_the_max_offset_at_that(
    broker: Connection, member: Member, lite: Lite, is_polled: bool, offset: int, goes_on_at: int
) -> None:
    # Given a group that has read a topic, of which the oldest messages are gone
    route = topic(broker)
    append(broker, route, *(f"{number}" for number in range(SENT)))
    dispatch_all(broker)
    before = Inbox()
    consumer = member(before)
    before.wait_for(SENT)
    consumer.shutdown()
    broker.execute(text("UPDATE mqdb.queue SET base_offset = :m WHERE queue_key = :k"), key(route.queue_keys[0]))

    # when its offset is another one, and it is there again
    broker.execute(
        text("UPDATE mqdb.consumer_offset SET next_offset = :o WHERE queue_key = :k"),
        {"o": offset, "k": route.queue_keys[0]},
    )
    expected = [f"{number}" for number in range(goes_on_at, SENT + 1)]
    if is_polled:
        polling = lite("orders")
        wait_until(lambda: committed(broker, route.queue_keys[0]) >= goes_on_at)
        wait_until(lambda: committed(broker, route.queue_keys[0]) <= SENT)
        append(broker, route, f"{SENT}")
        received = drained(polling, len(expected))
    else:
        inbox = Inbox()
        member(inbox, consume_thread_nums=1)
        wait_until(lambda: committed(broker, route.queue_keys[0]) >= goes_on_at)
        wait_until(lambda: committed(broker, route.queue_keys[0]) <= SENT)
        append(broker, route, f"{SENT}")
        inbox.wait_for(len(expected))
        received = inbox.bodies

    # then it reads from there.
    assert received == expected


def key(queue_key: int) -> dict[str, int]:
    return {"m": MIN_OFFSET, "k": queue_key}


def committed(broker: Connection, queue_key: int) -> int:
    return committed_offsets(broker, "readers", [queue_key])[queue_key]
