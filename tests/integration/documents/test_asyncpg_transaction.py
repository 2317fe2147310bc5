"""The asyncpg example of docs/asyncio.md, word for word."""

import asyncio
import re
import textwrap
from pathlib import Path
from typing import Any

from mqdb_client import Admin
from tests.fixtures.log import Connection, create_topic, dispatch_all
from tests.fixtures.postgres import Database
from tests.fixtures.roles import MakeRole

PAGE = Path(__file__).parents[3] / "docs" / "asyncio.md"


async def run_example(dsn: str, *, fails: bool) -> str:
    """Run the block in a function, and roll its transaction back if it `fails`; returns the id of its message."""
    import asyncpg

    [block] = [each for each in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "# asyncpg" in each]
    end = "    raise ZeroDivisionError\n" if fails else "return message_id\n"
    names: dict[str, Any] = {}
    exec("async def example(connection):\n" + textwrap.indent(block + end, "    "), names)
    connection = await asyncpg.connect(dsn)
    try:
        return str(await names["example"](connection))
    except ZeroDivisionError:
        return ""
    finally:
        await connection.close()


def test_the_transaction_of_asyncpg_sends(log: Connection, database: Database, role: MakeRole) -> None:
    create_topic(log, "payments", 4)
    log.execute("CREATE TABLE account AS SELECT 7 AS id, 100 AS balance")
    # asyncpg cannot log in under the name of the tests' owner.
    dsn = role("shop")
    log.execute("GRANT SELECT, UPDATE ON account TO shop")
    with Admin(database.dsn) as admin:
        admin.acl.grant("shop", send=["payments"])

    assert asyncio.run(run_example(dsn, fails=True)) == ""
    message_id = asyncio.run(run_example(dsn, fails=False))

    dispatch_all(log)
    sent = log.execute("SELECT msg_id, text, tags, keys FROM mqdb.message WHERE topic = 'payments'").fetchall()
    assert sent == [(message_id, "42", "debit", "7")]
    assert log.execute("SELECT balance FROM account").fetchall() == [(58,)]
