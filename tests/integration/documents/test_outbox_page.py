"""The examples of docs/outbox.md for sends in a user's own transaction, word for word."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from mqdb_client import Message
from tests.fixtures.command_line import Place
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.joined_sends import django_connection
from tests.fixtures.log import Connection, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import KNOW_ITSELF, Database
from tests.fixtures.producers import producer_of
from tests.fixtures.roles import MakeRole

PAGE = Path(__file__).parents[3] / "docs" / "outbox.md"


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def example(words: str) -> str:
    """The only block of the page that contains these words."""
    blocks = re.findall(r"```\w+\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [block] = [block for block in blocks if words in block]
    return str(block)


@pytest.fixture
def account(log: Connection) -> Connection:
    """The table of the trigger example, with account 7, before its first message."""
    for topic in ("payments", "accounts", "account-changes"):
        create_topic(log, topic, 4)
    log.execute(example("CREATE TRIGGER").encode())
    log.execute("INSERT INTO account VALUES (7, 100)")
    return log


def messages(log: Connection, topic: str) -> list[tuple[Any, ...]]:
    dispatch_all(log)
    return log.execute(
        "SELECT text, tags, keys, queue_id FROM mqdb.message WHERE topic = %s ORDER BY log_pos", [topic]
    ).fetchall()


def changes(log: Connection) -> list[dict[str, Any]]:
    return [json.loads(row[0]) for row in messages(log, "account-changes")]


def test_the_trigger_publishes_each_change_of_a_row(account: Connection) -> None:
    account.execute("UPDATE account SET balance = 58 WHERE id = 7")
    account.execute("DELETE FROM account WHERE id = 7")

    assert changes(account) == [
        {"operation": "INSERT", "old": None, "new": {"id": 7, "balance": 100}},
        {"operation": "UPDATE", "old": {"id": 7, "balance": 100}, "new": {"id": 7, "balance": 58}},
        {"operation": "DELETE", "old": {"id": 7, "balance": 58}, "new": None},
    ]
    rows = messages(account, "account-changes")
    assert [row[1:3] for row in rows] == [("insert", "7"), ("update", "7"), ("delete", "7")]
    assert len({row[3] for row in rows}) == 1


def test_the_trigger_publishes_nothing_of_what_is_rolled_back(account: Connection) -> None:
    with account.transaction():
        account.execute("INSERT INTO account VALUES (8, 1), (9, 2)")
        with account.transaction(force_rollback=True):
            account.execute("DELETE FROM account")

    assert [change["new"]["id"] for change in changes(account)] == [7, 8, 9]


def test_without_its_topic_the_trigger_stops_the_change(account: Connection) -> None:
    account.execute("DELETE FROM mqdb.topic WHERE topic = 'account-changes'")

    with pytest.raises(psycopg.Error, match="account-changes") as refused:
        account.execute("UPDATE account SET balance = 0")

    assert refused.value.sqlstate == "MQ301"
    assert scalar(account, "SELECT balance FROM account") == 100


def test_the_transaction_in_sql_sends(account: Connection) -> None:
    account.execute(example("SELECT mqdb.send('payments'").encode())

    assert scalar(account, "SELECT balance FROM account") == 58
    [(text, tag, keys, _)] = messages(account, "payments")
    assert (text, tag, keys) == ("42", "debit", "7")


def test_the_transactions_in_python_send(account: Connection, database: Database) -> None:
    url = sqlalchemy.make_url(database.dsn).set(drivername="postgresql+psycopg")
    engine = sqlalchemy.create_engine(url)
    names = {"text": sqlalchemy.text, "Session": Session, "Account": Account, "psycopg": psycopg, "Message": Message}
    with producer_of(database.dsn, group="accounting") as producer:
        exec(example("engine.begin()"), names | {"engine": engine, "producer": producer, "dsn": database.dsn})
    engine.dispose()

    assert account.execute("SELECT id, balance FROM account ORDER BY id").fetchall() == [(7, 58), (8, 42)]
    assert [row[0] for row in messages(account, "payments")] == ["42", "42"]
    assert [row[0] for row in messages(account, "accounts")] == ["8 is open", "8 has 42"]


def test_the_transaction_of_django_sends(account: Connection, database: Database) -> None:
    account.execute("INSERT INTO account VALUES (8, 42)")
    with django_connection(database), producer_of(database.dsn, group="accounting") as producer:
        from django.db import models

        class Account(models.Model):  # type: ignore[misc]  # Django has no types
            balance = models.IntegerField()

            class Meta:
                app_label, db_table = "shop", "account"

        exec(example("transaction.atomic()"), {"Account": Account, "producer": producer, "Message": Message})

    assert account.execute("SELECT balance FROM account WHERE id = 8").fetchall() == [(84,)]
    assert [row[0] for row in messages(account, "accounts")] == ["8 has 84"]


@pytest.fixture
def granted(account: Connection, database: Database, role: MakeRole, tmp_path: Path) -> dict[str, str]:
    """The DSNs of the example's roles, with the rights that the example grants."""
    account.execute(KNOW_ITSELF)
    dsns = {name: role(name) for name in ("app", "billing")}
    place = Place(tmp_path, database.dsn)
    for line in example("$ mqdb acl grant").splitlines():
        if line.startswith("$ mqdb "):
            place.done(*shlex.split(line.removeprefix("$ mqdb ")))
    return dsns


def test_with_the_rights_of_the_example_a_role_sends_and_reads_no_message(
    granted: dict[str, str], account: Connection
) -> None:
    dsn = granted["app"]
    with producer_of(dsn, group="accounting") as producer, psycopg.connect(dsn) as app:
        producer.send(Message("payments", "from python"), connection=app)
        producer.send_batch([Message("payments", "a"), Message("account-changes", "b")], connection=app)
        producer.send(Message("payments", "later", delay_level=3), connection=app)
        app.execute("SELECT mqdb.send('payments', 'later', delay_level => 3)")
        app.execute("SELECT mqdb.send('payments', 'from SQL')")
        app.commit()
        assert app.execute("SELECT * FROM mqdb.message").fetchall() == []

    assert [row[0] for row in messages(account, "payments")] == ["from python", "a", "from SQL"]


def test_with_the_rights_of_the_example_a_role_consumes(granted: dict[str, str], member: Member) -> None:
    inbox = Inbox()
    with producer_of(granted["app"], group="shop") as producer:
        producer.send(Message("account-changes", "one"))
    brokers = {"broker-a": granted["billing"]}
    consumer = member(inbox, topic="account-changes", group="billing", brokers=brokers)
    inbox.wait_for(2)
    consumer.shutdown()

    assert "one" in inbox.bodies  # the other one is the trigger's
