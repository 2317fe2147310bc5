"""A database that an older mqdb has made: who refuses it and says what to do, who brings it to head, what stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqdb.broker.cron import list_crons, resume_cron
from mqdb.embedded import EmbeddedPostgres, attach
from mqdb.errors import SchemaTooOld
from mqdb.server import Server
from mqdb.service.cron_times import next_time
from mqdb.settings import load_settings
from mqdb.store import migrations
from mqdb.store.engine import create_engine
from mqdb_client import Message, Producer
from tests.fixtures.command_line import Place
from tests.fixtures.postgres import Database, query, quick_home
from tests.fixtures.processes import wait_until

OLDEST = "0001"


@pytest.fixture
def older(empty_database: Database) -> Database:
    """A database at the first revision, with a message in it."""
    migrations.upgrade(empty_database.dsn, OLDEST, broker_name="broker-7")
    query(
        empty_database.dsn,
        "INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES ('orders', 1, 1, 6)",
    )
    query(
        empty_database.dsn,
        "INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, 0 FROM mqdb.topic WHERE topic = 'orders'",
    )
    query(empty_database.dsn, "SELECT mqdb.send('orders', 'sent before')")
    return empty_database


def revision(database: Database) -> object:
    return query(database.dsn, "SELECT version_num FROM mqdb.alembic_version")


def named(database: Database) -> str:
    """Its DSN, as those have to write it who did not give the broker its name."""
    return f"broker-7={database.dsn}"


# -- who refuses it -----------------------------------------------------------------------------


def test_a_producer_refuses_it_and_names_the_command(older: Database) -> None:
    producer = Producer("senders", settings=load_settings(dsn=named(older)))

    with pytest.raises(SchemaTooOld, match="run: mqdb migrate") as refused:
        producer.start()

    assert (refused.value.found, refused.value.needed) == (OLDEST, migrations.head())
    assert revision(older) == OLDEST


@pytest.mark.parametrize(
    "command", [("topic", "list"), ("send", "orders", "x"), ("consume", "orders", "--exit")], ids=" ".join
)
def test_the_command_line_refuses_it_and_names_the_command(
    older: Database, tmp_path: Path, command: tuple[str, ...]
) -> None:
    refused = Place(tmp_path, named(older)).call(*command)

    sentence = f"mqdb: the schema is at {OLDEST}, this mqdb needs {migrations.head()}; run: mqdb migrate\n"
    assert (refused.code, refused.text, refused.errors) == (1, "", sentence)


def test_a_server_that_may_not_migrate_refuses_it(older: Database) -> None:
    with pytest.raises(SchemaTooOld, match="run: mqdb migrate"):
        Server(load_settings(dsn=named(older), auto_migrate_enable=False)).start()

    assert revision(older) == OLDEST


# -- who brings it to head ----------------------------------------------------------------------


def test_mqdb_migrate_brings_it_to_head_and_all_works_again(older: Database, tmp_path: Path) -> None:
    place = Place(tmp_path, named(older))
    head = migrations.head()

    assert place.done("migrate", "--current") == f"{OLDEST}; this mqdb speaks {head}\n"
    assert place.done("migrate") == f"the schema went from {OLDEST} to {head}\n"
    with Producer("senders", settings=load_settings(dsn=named(older))) as producer:
        producer.send(Message("orders", "sent after"))
    assert place.done("consume", "orders", "--exit") == "sent before\nsent after\n"


def test_a_server_brings_it_to_head_and_leaves_its_name(older: Database) -> None:
    with Server(load_settings(dsn=named(older))) as server:
        wait_until(lambda: server.is_leader)

        assert revision(older) == migrations.head()
        assert query(older.dsn, "SELECT broker_name FROM mqdb.broker") == "broker-7"


@pytest.fixture
def older_home() -> Iterator[Path]:
    """The home of an embedded PostgreSQL, which does not run, with a database at the first revision."""
    with quick_home() as home:
        with EmbeddedPostgres(home) as server:
            migrations.upgrade(server.dsn, OLDEST)
        yield home


def test_mqdb_serve_brings_its_embedded_database_to_head(older_home: Path) -> None:
    place = Place(older_home)
    with place.running("serve") as server:
        server.line_with("Ctrl-C")
        running = attach(older_home)
        assert running is not None

        assert place.done("migrate", "--current") == f"{migrations.head()}, the newest\n"
        assert query(running.dsn, "SELECT broker_name FROM mqdb.broker") == "broker-a"


def test_the_sql_since_its_revision_brings_it_to_head_by_hand(older: Database) -> None:
    query(older.dsn, migrations.upgrade_sql(since=OLDEST))

    assert revision(older) == migrations.head()
    with Producer("senders", settings=load_settings(dsn=named(older))) as producer:
        producer.send(Message("orders", "sent after"))


# -- what stays ---------------------------------------------------------------------------------


def test_what_people_have_granted_on_the_view_and_built_upon_it_stays(older: Database) -> None:
    query(older.dsn, "GRANT SELECT ON mqdb.message TO PUBLIC")
    query(older.dsn, "CREATE VIEW public.paid AS SELECT queue_offset, text FROM mqdb.message WHERE tags = 'paid'")

    migrations.upgrade(older.dsn)

    assert query(older.dsn, "SELECT has_table_privilege('public', 'mqdb.message', 'SELECT')")
    assert query(older.dsn, "SELECT count(*) FROM public.paid") == 0


@pytest.mark.parametrize("means", ["mqdb", "SQL by hand"])
def test_crons_out_of_bounds_are_paused_and_the_others_stay_as_they_are(empty_database: Database, means: str) -> None:
    before = "0013"
    migrations.upgrade(empty_database.dsn, before)
    times = {
        "a": "-infinity",
        "b": "0044-03-15 00:00:00+00 BC",
        "c": "1969-12-31 23:59:59+00",
        "d": "9999-01-01 00:00:00+00",
        "e": "infinity",
        "f": "1970-01-01 00:00:00+00",
        "g": "9998-12-31 23:59:59+00",
    }
    older = empty_database.connect()
    older.cursor().executemany(
        "INSERT INTO mqdb.cron (name, cron, topic, body, next_at) VALUES (%s, '@daily', 'orders', 'a', %s)",
        list(times.items()),
    )

    if means == "mqdb":
        migrations.upgrade(empty_database.dsn)
    else:
        older.execute(migrations.upgrade_sql(since=before).encode())

    engine = create_engine(empty_database.dsn)
    with engine.connect() as connection:
        crons = list_crons(connection)
        assert [each.name for each in crons if each.is_paused] == ["a", "b", "c", "d", "e"]
        assert [each.next_at.year for each in crons if not each.is_paused] == [1970, 9998]
        assert all(resume_cron(connection, each.name, next_time) > each.next_at for each in crons if each.is_paused)
    engine.dispose()
