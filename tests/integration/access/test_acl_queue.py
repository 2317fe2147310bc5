"""Triggers keep one row for each right on a queue: the rows match the rights, whatever changes concurrently."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fixtures.fuzz import fuzz_cases, fuzz_random
from tests.fixtures.log import Connection, create_topic, scalar
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

COMPUTED = """
    SELECT a.principal, q.queue_key, bool_or(a.access = 'SEND' OR a.resource_type = 'GROUP'), bool_or(a.access = 'READ')
    FROM mqdb.acl a JOIN mqdb.topic t ON mqdb.is_covered(t.topic, a.resource_type, a.resource)
    JOIN mqdb.queue q USING (topic_id)
    GROUP BY 1, 2"""

RESOURCES = (
    *(("SEND", "TOPIC", name) for name in ("a", "a*", "*")),
    *(("READ", "TOPIC", name) for name in ("ab", "a*", "*")),
    *(("READ", "GROUP", name) for name in ("a", "ab")),
)


def is_right(connection: Connection) -> bool:
    both = f"(TABLE mqdb.acl_queue EXCEPT {COMPUTED}) UNION ALL ({COMPUTED} EXCEPT TABLE mqdb.acl_queue)"
    return bool(scalar(connection, f"SELECT count(*) = 0 FROM ({both}) AS difference"))


def test_they_are_kept_whatever_changes(log: Connection) -> None:
    """The rows are kept up to date in random steps.

    The steps change the rights of three roles, the topics, and the topics of groups.
    """
    chance = fuzz_random()
    for _ in range(min(fuzz_cases(), 1_000)):
        topic = chance.choice(["a", "ab", "abc", "b", "%RETRY%a", "%DLQ%a", "%RETRY%ab"])
        role, resource = chance.choice("xyz"), chance.choice(RESOURCES)
        match chance.randrange(7):
            case 0 if not scalar(log, "SELECT count(*) FROM mqdb.topic WHERE topic = %s", [topic]):
                create_topic(log, topic, chance.randint(1, 3))
            case 1:
                log.execute("DELETE FROM mqdb.topic WHERE topic = %s", [topic])
            case 2:
                log.execute(
                    """INSERT INTO mqdb.queue (topic_id, queue_id)
                       SELECT topic_id, (SELECT max(queue_id) + 1 FROM mqdb.queue q WHERE q.topic_id = t.topic_id)
                       FROM mqdb.topic t WHERE topic = %s""",
                    [topic],
                )
            case 3 | 4:
                new = "INSERT INTO mqdb.acl VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"
                log.execute(new, [role, *resource])
            case 5:
                log.execute("DELETE FROM mqdb.acl WHERE principal = %s AND resource = %s", [role, resource[2]])
            case _:
                log.execute("DELETE FROM mqdb.acl WHERE principal = 'w'")
                log.execute("UPDATE mqdb.acl SET principal = 'w' WHERE principal = %s", [role])

        assert is_right(log)
    log.execute("TRUNCATE mqdb.acl")
    assert scalar(log, "SELECT count(*) FROM mqdb.acl_queue") == 0


CHANGES = {
    "the rights": """DELETE FROM mqdb.acl WHERE principal = 'x';
                     INSERT INTO mqdb.acl VALUES ('z', 'SEND', 'TOPIC', 'a*')""",
    "the topic": """WITH made AS (
                        INSERT INTO mqdb.topic (topic, read_queue_nums, write_queue_nums, perm) VALUES ('ab', 2, 2, 6)
                        RETURNING topic_id)
                    INSERT INTO mqdb.queue (topic_id, queue_id) SELECT topic_id, generate_series(0, 1) FROM made""",
}


@pytest.mark.parametrize("first", CHANGES)
def test_rights_that_change_while_a_topic_is_made_cover_it_or_do_not(
    log: Connection, database: Database, first: str
) -> None:
    """A right that changes while a topic is created either covers the topic or does not.

    The second change waits, and then sees the effect of the first.
    """
    log.execute("INSERT INTO mqdb.acl VALUES ('x', 'SEND', 'TOPIC', 'a*'), ('y', 'READ', 'TOPIC', 'a*')")
    one, other = database.connect(autocommit=False), database.connect()
    [second] = CHANGES.keys() - {first}

    one.execute(CHANGES[first].encode())
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(other.execute, CHANGES[second].encode())
        wait_until(lambda: bool(scalar(log, "SELECT cardinality(pg_blocking_pids(%s))", [other.info.backend_pid])))
        one.commit()
        waiting.result(30)

    assert is_right(log)
    roles = log.execute("SELECT DISTINCT principal FROM mqdb.acl_queue ORDER BY 1")
    assert [role for (role,) in roles] == ["y", "z"]
