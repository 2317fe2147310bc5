"""A proxy, a virtual IP or a service still leads to the old primary for a while, which has become a standby.

No client stays there: a send waits for the primary, and each client continues once the address leads to the primary
again.
"""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mqdb.errors import ServerIsStandby
from mqdb.settings import load_settings
from mqdb.store.engine import connected, create_engine
from mqdb.store.server_choice import ServerRole
from mqdb_client import Message, Producer, PushConsumer
from tests.fixtures.consumers import Inbox
from tests.fixtures.log import create_topic
from tests.fixtures.postgres import Database
from tests.fixtures.proxy import Proxy
from tests.fixtures.standby import Standby
from tests.fixtures.threads import Doing

_topics = itertools.count(1)


@pytest.fixture
def way(standby: Standby, replicated: Database) -> Iterator[Proxy]:
    """An address that leads to the primary, which waits for no standby."""
    with standby.dismissed(), Proxy(replicated.dsn) as way:
        yield way


def switch_over(way: Proxy, dsn: str) -> None:
    """Close all connections, and lead new ones to another server."""
    way.cut()
    way.lead_to(dsn)
    way.restore()


@pytest.mark.parametrize("asked", ["", "&target_session_attrs=any", "through a pooler"])
def test_a_producer_and_a_consumer_leave_a_standby_for_the_primary(
    standby: Standby, replicated: Database, way: Proxy, asked: str
) -> None:
    topic = f"orders-{next(_topics)}"
    create_topic(replicated.connect(), topic, 4)
    is_pooled = asked == "through a pooler"
    dsn = replicated.dsn if is_pooled else way.dsn + asked
    settings = load_settings(dsn=dsn, pool_dsn=way.dsn if is_pooled else None, send_message_timeout="60s")
    inbox = Inbox()
    producer, consumer = Producer("senders", settings=settings), PushConsumer("readers", settings=settings)
    consumer.subscribe(topic)
    consumer.register_listener(inbox)
    with producer, consumer:
        producer.send(Message(topic, b"before"))
        inbox.wait_for(1)

        switch_over(way, standby.dsn)
        sends = [Doing(partial(producer.send, Message(topic, body))) for body in (b"one", b"two")]
        with pytest.raises(ServerIsStandby):
            producer.send(Message(topic, b"late"), timeout=timedelta(seconds=1))
        assert all(send.is_running for send in sends)

        switch_over(way, replicated.dsn)
        assert all(send.result() for send in sends)
        inbox.wait_for(3)
    stored = replicated.rows("SELECT convert_from(body, 'UTF8') FROM mqdb.message WHERE topic = %s ORDER BY 1", topic)
    assert stored == [("before",), ("one",), ("two",)]
    assert sorted(inbox.bodies) == ["before", "one", "two"]


def test_an_engine_that_writes_refuses_a_standby_and_one_that_reads_takes_it(standby: Standby, way: Proxy) -> None:
    switch_over(way, standby.dsn)
    for dsn in (way.dsn, way.dsn + "&target_session_attrs=any"):
        refused = pytest.raises(ServerIsStandby, match="is a standby, or set to read-only; the primary is needed")
        with refused, connected(dsn, "test"):
            pass
    for server in (ServerRole.ANY, ServerRole.PRIMARY_FIRST):
        with connected(way.dsn, "test", server) as connection:
            assert connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar() is True


def test_of_several_hosts_the_primary_is_found_and_is_asked_first_from_then_on(
    standby: Standby, replicated: Database, way: Proxy
) -> None:
    second = conninfo_to_dict(replicated.dsn)
    first = conninfo_to_dict(way.dsn)
    switch_over(way, standby.dsn)
    hosts = {"host": f"{first['host']},{second['host']}", "port": f"{first['port']},{second['port']}"}
    dsn = make_conninfo(replicated.dsn, **hosts)
    engine = create_engine(dsn, pool_size=1)
    try:
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar() is False
            connection.invalidate()
        way.freeze()  # an attempt there would take 5 s
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT inet_server_port()").scalar() == int(str(second["port"]))
    finally:
        engine.dispose()
