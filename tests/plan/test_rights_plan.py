"""A role that does not own the broker finds its rights by the key of acl_queue, in each append and each read."""

import re

import psycopg
import pytest

from mqdb.store.log import commit_log
from tests.fixtures.postgres import Database
from tests.fixtures.principals import Principal

#: Others with rights on the same queues.
CROWD = "INSERT INTO mqdb.acl SELECT 'role-' || n, 'SEND', 'TOPIC', 'orders' FROM generate_series(1, 500) AS n"

STATEMENTS = {
    "append": commit_log.append_one(places=False).text,
    "append of many": commit_log.append_many(places=False).text,
    "read": "SELECT body FROM mqdb.commit_log WHERE log_pos BETWEEN 1 AND 100",
    "entries": "SELECT log_pos FROM mqdb.queue_run WHERE queue_key = 1 AND last_offset >= 0",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_role_looks_its_rights_up_by_their_key(principal: Principal, database: Database, name: str) -> None:
    """A role's rights are looked up by their key.

    If the condition were in a view, the plan would have an extra node, which costs more than the lookup.
    """
    dsn = principal("shop", send=["orders"], read=["orders"])
    setting_up = database.connect()
    setting_up.execute(CROWD)
    setting_up.execute("ANALYZE mqdb.acl_queue")
    with psycopg.connect(dsn, autocommit=True) as session:
        session.execute("SET plan_cache_mode = force_generic_plan")
        session.execute(f"PREPARE statement AS {STATEMENTS[name]}".encode())
        nulls = ", ".join(["NULL"] * len(set(re.findall(r"\$\d+", STATEMENTS[name]))))
        execute = f"EXECUTE statement ({nulls})" if nulls else "EXECUTE statement"

        plan = "\n".join(row for (row,) in session.execute(f"EXPLAIN {execute}".encode()))

    assert re.search(r"Index (Only )?Scan using acl_queue_pkey", plan), plan
    assert "Subquery Scan" not in plan, plan
