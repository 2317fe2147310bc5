"""Groups as operators see and change them."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, Engine, text

from mqdb.broker.clients import membership
from mqdb.broker.consumers.groups import delete_group, show_group, update_group
from mqdb.broker.consumers.offset_reset import Boundary, reset_offsets
from mqdb.broker.consumers.offsets import commit_offsets, take_queues
from mqdb.common.group import FROM_FIRST_OFFSET, MessageModel
from mqdb.errors import GroupInUse, GroupNotFound, NameInvalid, ParameterInvalid
from mqdb.selector.subscription import SubscriptionData
from mqdb.store.clients.clients import ClientKind, Registration
from mqdb.store.consumers.groups import GroupSummary, list_groups, list_members
from mqdb.store.operations import list_operations
from mqdb.store.topics.topics import TopicRoute, find_topic
from tests.fixtures.broker import append, dispatch_all, topic

FIRST = FROM_FIRST_OFFSET


@pytest.fixture
def session(engine: Engine) -> Iterator[Connection]:
    """A connection that holds the presence of members."""
    with engine.connect() as session:
        yield session


def join(
    broker: Connection,
    session: Connection | None,
    client_id: str,
    group: str = "readers",
    model: MessageModel = MessageModel.CLUSTERING,
) -> None:
    """Register a member; without a session, its connection counts as lost."""
    if session is not None:
        membership.announce(session, client_id)
    subscriptions = [SubscriptionData("orders", "TAG", "a || b")]
    membership.register(
        broker, Registration(client_id, ClientKind.CONSUMER, group, "1.2", model, subscriptions=subscriptions)
    )


@pytest.fixture
def route(broker: Connection) -> TopicRoute:
    """A topic with two queues of four messages each."""
    route = topic(broker, queues=2)
    for queue_id in range(2):
        append(broker, route, *"abcd", queue_id=queue_id)
    dispatch_all(broker)
    return route


# -- settings -----------------------------------------------------------------------------------


def test_what_is_not_given_stays_as_it_is(broker: Connection) -> None:
    update_group(broker, "readers", retry_max_times=3)

    settings = update_group(broker, "readers", consume_enable=False, retry_queue_nums=2)

    assert settings == show_group(broker, "readers").settings
    assert (settings.retry_max_times, settings.retry_queue_nums) == (3, 2)
    assert (settings.consume_enable, settings.consume_broadcast_enable) == (False, True)


def test_a_group_is_made_with_what_rocketmq_gives_it(broker: Connection) -> None:
    settings = update_group(broker, "readers")

    assert (settings.retry_max_times, settings.retry_queue_nums, settings.consume_enable) == (16, 1, True)


def test_settings_out_of_range_are_refused(broker: Connection) -> None:
    with pytest.raises(ParameterInvalid, match="retry_max_times"):
        update_group(broker, "readers", retry_max_times=-1)
    with pytest.raises(ParameterInvalid, match="retry_queue_nums"):
        update_group(broker, "readers", retry_queue_nums=0)
    with pytest.raises(NameInvalid):
        update_group(broker, "DEFAULT_CONSUMER")

    assert list_groups(broker) == []


# -- looking at it ------------------------------------------------------------------------------


def test_a_group_shows_members_subscriptions_and_progress(
    broker: Connection, session: Connection, route: TopicRoute
) -> None:
    join(broker, session, "m")
    owned = take_queues(broker, "readers", "m", route.queue_keys, FIRST)
    commit_offsets(broker, "readers", [owned[1]._replace(next_offset=3)])
    broker.execute(text("SET mqdb.clock_offset = '7 s'"))

    found = show_group(broker, "readers")

    (member,) = found.members
    assert (member.client_id, member.version, member.queues, member.message_model) == ("m", "1.2", 2, "CLUSTERING")
    assert 7 <= member.silent_seconds < 60
    (subscribed,) = [each for each in found.subscriptions if each.topic == "orders"]
    assert (subscribed.expression_type, subscribed.expression) == ("TAG", "a || b")
    read = [(each.queue_id, each.next_offset, each.lag, each.owner) for each in found.progress]
    assert read == [(0, 0, 4, "m"), (1, 3, 1, "m")]


def test_groups_are_summed_up(broker: Connection, session: Connection, route: TopicRoute) -> None:
    update_group(broker, "empty")
    for client_id in ("m", "n"):
        join(broker, session, client_id)
    take_queues(broker, "readers", "m", route.queue_keys, FIRST)
    join(broker, session, "b", "screens", MessageModel.BROADCASTING)

    empty, readers, screens = list_groups(broker)

    assert empty == GroupSummary("empty", 0, None, 0, 0, 0, 0)
    assert readers[:5] == ("readers", 2, "CLUSTERING", 1, 8)
    assert readers.lag_seconds > 0
    assert screens[:3] == ("screens", 1, "BROADCASTING")
    assert [each.client_id for each in list_members(broker)] == ["m", "n", "b"]
    assert [each.client_id for each in list_members(broker, "screens")] == ["b"]


def test_a_group_that_is_not_there(broker: Connection) -> None:
    for look in (show_group, delete_group):
        with pytest.raises(GroupNotFound, match="readers"):
            look(broker, "readers")


# -- deleting it --------------------------------------------------------------------------------


def test_a_group_goes_with_its_offsets_and_subscriptions_and_what_was_done_stays(
    broker: Connection, route: TopicRoute
) -> None:
    join(broker, None, "m")
    reset_offsets(broker, "readers", "orders", Boundary.LATEST)

    assert delete_group(broker, "readers") == []

    for table in ("subscription_group", "subscription", "consumer_offset"):
        assert broker.scalar(text(f"SELECT count(*) FROM mqdb.{table}")) == 0
    noted = [each.verb for each in list_operations(broker, group="readers")]
    assert noted == ["group.delete", "offset.reset"]
    assert find_topic(broker, "orders") is not None


def test_its_retries_and_its_dead_letters_go_only_when_asked(broker: Connection) -> None:
    own = ["%RETRY%readers", "%DLQ%readers"]
    others = ["%RETRY%readers-2", "orders"]
    for name in own + others:
        topic(broker, name)
    for _ in range(2):
        update_group(broker, "readers")
        delete_group(broker, "readers")
    assert all(find_topic(broker, name) for name in own)

    update_group(broker, "readers")
    gone = delete_group(broker, "readers", with_topics=True)

    assert gone == own
    assert not any(find_topic(broker, name) for name in own)
    assert all(find_topic(broker, name) for name in others)


def test_live_members_keep_it(broker: Connection, session: Connection) -> None:
    join(broker, session, "m")
    join(broker, None, "dead")

    with pytest.raises(GroupInUse, match="live members, m;") as caught:
        delete_group(broker, "readers")

    assert caught.value.code == 604
    assert show_group(broker, "readers").group == "readers"
