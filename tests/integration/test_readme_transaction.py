"""What README says about sending inside one's own transaction, word for word."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from mqdb_client import Message
from tests.fixtures.consumers import Inbox, Member
from tests.fixtures.log import Connection, create_topic, dispatch_all, scalar
from tests.fixtures.postgres import Database, with_parts
from tests.fixtures.producers import producer_of

README = Path(__file__).parents[2] / "README.md"


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


def example(words: str) -> str:
    """The only block of the section that holds these words."""
    section = README.read_text(encoding="utf-8").partition("## Send inside your own transaction\n")[2]
    blocks = re.findall(r"```\w+\n(.*?)```", section.partition("\n## ")[0], re.DOTALL)
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


@contextmanager
def role_with(grants: str, database: Database) -> Iterator[Connection]:
    """A superuser's session, for a role that has the rights of an example, and goes with it."""
    name = re.findall(r"TO (\w+);", grants)[0]
    with psycopg.connect(database.superuser_dsn, autocommit=True) as superuser:
        superuser.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'geheim'")
        superuser.execute(grants.encode())
        try:
            yield superuser
        finally:
            superuser.execute("RESET ROLE")
            superuser.execute(f"DROP OWNED BY {name}")
            superuser.execute(f"DROP ROLE {name}")


@pytest.fixture
def role(account: Connection, database: Database) -> Iterator[Connection]:
    """A session of role `app`, which has the rights of the example."""
    with role_with(example("TO app;"), database) as session:
        session.execute("SET ROLE app")
        yield session


def test_with_the_rights_of_the_example_a_role_sends_and_reads_no_message(role: Connection, database: Database) -> None:
    with producer_of(database.dsn, group="accounting") as producer, role.transaction():
        producer.send(Message("payments", "from python"), connection=role)
        producer.send_batch([Message("payments", "a"), Message("accounts", "b")], connection=role)
        producer.send(Message("accounts", "later", delay_level=3), connection=role)
        role.execute("SELECT mqdb.send('accounts', 'later', delay_level => 3)")
        role.execute("SELECT mqdb.send('payments', 'from SQL')")

    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        role.execute("SELECT body FROM mqdb.commit_log")
    role.execute("RESET ROLE")
    assert [row[0] for row in messages(role, "payments")] == ["from python", "a", "from SQL"]


def test_with_the_rights_of_the_example_a_role_produces_and_consumes(
    account: Connection, database: Database, member: Member
) -> None:
    dsn = with_parts(database.dsn, user="shop", password="geheim")
    inbox = Inbox()
    with role_with(example("TO shop;"), database):
        with producer_of(dsn, group="shop") as producer:
            result = producer.send(Message("made-by-shop", "one"))
            producer.send(Message("payments", "later", delay_level=3))
            dispatch_all(account)
            assert result.queue_offset == 0
            assert producer.outcome(result.message_id) is not None
        consumer = member(inbox, topic="made-by-shop", brokers={"broker-a": dsn})
        inbox.wait_for(1)
        consumer.shutdown()

    assert inbox.bodies == ["one"]
