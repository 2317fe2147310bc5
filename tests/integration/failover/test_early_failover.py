"""A standby is promoted before its first restart point after the creation of the schema."""

import psycopg

from mqdb.embedded import EmbeddedPostgres
from mqdb.server import Server
from mqdb.settings import load_settings
from mqdb.store import migrations
from mqdb_client import Message, Producer, PushConsumer
from tests.fixtures.clusters import home_with_cluster
from tests.fixtures.consumers import Inbox
from tests.fixtures.faults import kill_server
from tests.fixtures.postgres import superuser_dsn
from tests.fixtures.processes import wait_until
from tests.fixtures.proxy import Proxy
from tests.fixtures.standby import Standby


def test_a_broker_works_after_an_early_fail_over() -> None:
    """A broker works after an early fail-over.

    PostgreSQL may have lost an unlogged sequence, which a trigger reads in each append.
    """
    with (
        home_with_cluster() as home,
        EmbeddedPostgres(home, durable=False) as primary,
        Proxy(superuser_dsn(primary)) as way,
    ):
        with psycopg.connect(superuser_dsn(primary, "mqdb"), autocommit=True) as connection:
            connection.execute("DROP SCHEMA mqdb CASCADE")
        standby = Standby(primary, way)
        standby.create()
        standby.start()
        migrations.upgrade(primary.dsn)
        standby.catch_up()
        kill_server(primary)
        standby.promote_in_place_of(primary)

        with Server(load_settings(dsn=primary.dsn)) as server:
            wait_until(lambda: server.is_leader)
            inbox = Inbox()
            consumer = PushConsumer("readers", primary.dsn)
            consumer.subscribe("orders")
            consumer.register_listener(inbox)
            with consumer, Producer("senders", settings=load_settings(dsn=primary.dsn)) as producer:
                producer.send(Message("orders", "after"))
                inbox.wait_for(1)
