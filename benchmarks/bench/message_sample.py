"""The messages of the benchmarks: one tag, one key, two properties, 200 bytes of body."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import count
from secrets import token_hex
from typing import Any, Final

import psycopg

from mqdb.broker.log.send import record
from mqdb.common.message import Message
from mqdb.common.unique_id import UniqueIdGenerator
from mqdb.selector.tags import tag_code
from mqdb.store.log.commit_log import Record

BODY_BYTES: Final = 200
TAG: Final = "TagA"
PROPERTIES: Final = {"region": "north", "level": "7"}

BODY: Final = bytes(range(32, 127)) * 2 + b"0123456789"
_FILL_ROWS: Final = 100_000

# The ids are such as producers make (mqdb/common/unique_id.py): the key index treats others differently.
_FILL = """
INSERT INTO mqdb.commit_log (queue_key, tags_code, born_time, msg_id, born_host, tags, keys, properties, body)
SELECT (%(queue_keys)s::integer[])[1 + n %% queues], (%(tags_codes)s::bigint[])[1 + place %% tags], mqdb.now(), id,
       'bench', (%(tags)s::text[])[1 + place %% tags], 'key' || n,
       (%(properties)s::jsonb[])[1 + place %% properties], %(body)s
FROM (SELECT n, n / queues AS place, queues, tags, properties,
             (%(prefix)s || lpad(to_hex((ms << 16) + n), 12, '0'))::uuid AS id
      FROM generate_series(%(first)s::integer, %(last)s::integer) AS n,
           (SELECT cardinality(%(queue_keys)s::integer[]) AS queues, cardinality(%(tags)s::text[]) AS tags,
                   cardinality(%(properties)s::jsonb[]) AS properties,
                   (extract(epoch FROM now() - date_trunc('month', now(), 'UTC')) * 1000)::bigint AS ms) numbers) given
"""


def message(topic: str, number: int) -> Message:
    """One message; messages differ only in their keys."""
    return Message(topic, BODY, TAG, (f"key{number}",), PROPERTIES)


def records(topic: str, queue_key: int, number: int) -> list[Record]:
    """`number` records of one queue, as `mqdb.broker.log.send` appends them."""
    ids = UniqueIdGenerator()
    now = datetime.now(UTC)
    return [record(message(topic, each), queue_key, ids.next(), now, "bench") for each in range(number)]


def fill(
    connection: "psycopg.Connection[Any]",
    queue_keys: Sequence[int],
    messages: int,
    *,
    tags: Sequence[str] = (TAG,),
    properties: Sequence[Mapping[str, str]] = (PROPERTIES,),
) -> None:
    """Put messages into the commit log, the queues in turn, without a client.

    The tags and the properties come in turn along each queue.
    """
    fixed = {
        "queue_keys": list(queue_keys),
        "tags_codes": [tag_code(tag) for tag in tags],
        "tags": list(tags),
        "properties": [psycopg.types.json.Jsonb(each) for each in properties],
        "body": BODY,
        "prefix": token_hex(10),
    }
    for first in count(0, _FILL_ROWS):
        if first >= messages:
            return
        connection.execute("SELECT mqdb.ensure_segments(2)")
        connection.execute(_FILL, fixed | {"first": first, "last": min(first + _FILL_ROWS, messages) - 1})
