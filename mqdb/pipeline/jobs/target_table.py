"""A PostgreSQL table filled by a stream: its columns, the stage of a batch, and the commit of a batch.

Tasks copy rows to the stage, an unlogged table, each attempt under its own name. The driver then moves the rows of the
successful attempts to the table and records the batch in `mqdb_spark_batch`, in one transaction. So a batch is in the
table completely and once, or not at all. Both tables are in the schema of the target. Spark's workers import this
module.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.sql import SQL, Composed, Identifier

from mqdb.pipeline.errors import MessageUnusable, TableBatchesMissing, TableUnusable

APPLICATION: Final = "mqdb spark to-table"

#: The first version with MERGE.
_OLDEST_SERVER: Final = 150_000

#: Columns of the stage before those of the table.
POSITION: Final = ("mqdb_queue_id", "mqdb_offset", "mqdb_is_tombstone")
#: The first column of the rows that tasks get: why a message cannot become a row, or null.
PROBLEM: Final = "mqdb_problem"
_ATTEMPT: Final = "mqdb_attempt"

_FIND: Final = """
    SELECT relation.oid, schema.nspname, relation.relname
    FROM pg_class relation JOIN pg_namespace schema ON schema.oid = relation.relnamespace
    WHERE relation.oid = to_regclass(%s) AND relation.relkind IN ('r', 'p')"""
_COLUMNS: Final = """
    SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a'
    ORDER BY attnum"""
_PRIMARY_KEY: Final = """
    SELECT attribute.attname
    FROM pg_index JOIN pg_attribute attribute ON attribute.attrelid = indrelid AND attribute.attnum = ANY (indkey)
    WHERE indrelid = %s AND indisprimary ORDER BY array_position(indkey::int2[], attribute.attnum)"""


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table, its writable columns with their types, and the key by which rows are replaced.

    Without a key rows are only appended. `dsn` may contain a password.
    """

    dsn: str = field(repr=False)
    schema: str
    name: str
    columns: Mapping[str, str]
    key: tuple[str, ...]

    @property
    def identifier(self) -> Identifier:
        """The name of the table in a statement."""
        return Identifier(self.schema, self.name)

    @property
    def ledger(self) -> Identifier:
        """The table of committed batches."""
        return Identifier(self.schema, "mqdb_spark_batch")

    def stage(self, query_id: str) -> Identifier:
        """The table for the rows of a batch."""
        return Identifier(self.schema, f"mqdb_spark_stage_{query_id.replace('-', '')}")


def find_table(
    dsn: str, name: str, *, columns: Sequence[str] | None, key: Sequence[str] | None, append: bool
) -> TargetTable:
    """Look up the table. Without `columns` all columns are written; without `key` the primary key is used.

    Raises TableUnusable, and psycopg's errors.
    """
    with psycopg.connect(dsn, application_name=APPLICATION) as connection:
        found = connection.execute(_FIND, [name]).fetchone()
        if found is None:
            raise TableUnusable(name, "it does not exist")
        oid, schema, relation = found
        known: dict[str, str] = dict(connection.execute(_COLUMNS, [oid]).fetchall())
        primary = [column for (column,) in connection.execute(_PRIMARY_KEY, [oid])]
        version = connection.info.server_version
    keys = () if append else tuple(key or primary)
    if not append and not keys:
        raise TableUnusable(name, "it has no primary key; name the columns of a key, or append")
    if keys and version < _OLDEST_SERVER:
        raise TableUnusable(name, f"MERGE needs PostgreSQL 15 or newer, and this is {version // 10_000}")
    chosen = tuple(columns or known)
    for column in (*chosen, *keys):
        if column not in known:
            raise TableUnusable(name, f"column {column!r} does not exist, or cannot be written")
    for column in keys:
        if column not in chosen:
            raise TableUnusable(name, f"the columns to write lack column {column!r} of the key")
    return TargetTable(dsn, schema, relation, {column: known[column] for column in chosen}, keys)


# -- the stage ------------------------------------------------------------------------------------


def begin_batch(table: TargetTable, query_id: str, batch_id: int) -> bool:
    """Make an empty stage; returns False if the table already has the batch.

    Raises TableBatchesMissing if earlier batches are not in the table, because the database was set back.
    """
    ledger, stage = table.ledger, table.stage(query_id)
    with psycopg.connect(table.dsn, application_name=APPLICATION) as connection:
        # IF NOT EXISTS would need the right to create tables each time.
        if connection.execute("SELECT to_regclass(%s)", [ledger.as_string(connection)]).fetchone() == (None,):
            connection.execute(
                SQL(
                    "CREATE TABLE IF NOT EXISTS {} (query_id uuid PRIMARY KEY, batch_id bigint NOT NULL,"
                    " committed_at timestamptz NOT NULL DEFAULT now())"
                ).format(ledger)
            )
        row = connection.execute(SQL("SELECT batch_id FROM {} WHERE query_id = %s").format(ledger), [query_id])
        newest = (row.fetchone() or (-1,))[0]
        if batch_id <= newest:
            return False
        if batch_id > newest + 1:
            raise TableBatchesMissing(f"{table.schema}.{table.name}", batch_id, newest)
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(stage))
        # Not LIKE: a tombstone has nulls in columns that are NOT NULL in the target.
        connection.execute(
            SQL(
                "CREATE UNLOGGED TABLE {} AS SELECT ''::text AS {}, 0 AS mqdb_queue_id, 0::bigint AS mqdb_offset,"
                " false AS mqdb_is_tombstone, {} FROM {} WITH NO DATA"
            ).format(stage, Identifier(_ATTEMPT), _listed(table.columns), table.identifier)
        )
    return True


def staging(
    table: TargetTable, query_id: str, topic: str, *, skip: bool
) -> Callable[[Iterable[tuple[Any, ...]]], Iterator[tuple[str, int]]]:
    """The function that each task of a batch runs: it copies its rows to the stage, in its own transaction.

    The function yields the name of the attempt and the number of messages left out. Raises MessageUnusable unless
    `skip`.
    """
    statement = SQL("COPY {} ({}, {}) FROM STDIN").format(
        table.stage(query_id), Identifier(_ATTEMPT), _listed([*POSITION, *table.columns])
    )

    def stage_rows(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[str, int]]:
        attempt, skipped = uuid4().hex, 0
        with (
            psycopg.connect(table.dsn, application_name=APPLICATION) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for problem, *row in rows:
                if problem is None:
                    copy.write_row((attempt, *row))
                elif skip:
                    skipped += 1
                else:
                    raise MessageUnusable(topic, row[0], row[1], problem)
        yield attempt, skipped

    return stage_rows


# -- the commit -----------------------------------------------------------------------------------


def commit_batch(table: TargetTable, query_id: str, batch_id: int, attempts: Sequence[str]) -> None:
    """Move the rows of these attempts to the table, unless it already has the batch. Can be repeated."""
    entered = SQL(
        "INSERT INTO {ledger} (query_id, batch_id) VALUES (%s, %s) ON CONFLICT (query_id) DO UPDATE"
        " SET batch_id = excluded.batch_id, committed_at = now() WHERE {ledger}.batch_id < excluded.batch_id"
    ).format(ledger=table.ledger)
    with psycopg.connect(table.dsn, application_name=APPLICATION) as connection:
        if connection.execute(entered, [query_id, batch_id]).rowcount:
            connection.execute(statement_of(table, query_id), {"attempts": list(attempts)})
        connection.execute(SQL("DROP TABLE IF EXISTS {}").format(table.stage(query_id)))


def statement_of(table: TargetTable, query_id: str) -> Composed:
    """The statement from the stage to the table: the newest row of each key by MERGE, or all rows by INSERT."""
    parts: dict[str, Any] = {
        "target": table.identifier,
        "stage": table.stage(query_id),
        "attempt": Identifier(_ATTEMPT),
        "columns": _listed(table.columns),
        "keys": _listed(table.key),
        "same": SQL(" AND ").join(SQL("target.{0} = newest.{0}").format(Identifier(name)) for name in table.key),
        "values": SQL(", ").join(Identifier("newest", name) for name in table.columns),
        "update": SQL("DO NOTHING"),
    }
    if not table.key:
        return SQL(
            "INSERT INTO {target} ({columns}) SELECT {columns} FROM {stage}"
            " WHERE {attempt} = ANY (%(attempts)s) AND NOT mqdb_is_tombstone ORDER BY mqdb_queue_id, mqdb_offset"
        ).format(**parts)
    others = [Identifier(name) for name in table.columns if name not in table.key]
    if others:
        parts["update"] = SQL("UPDATE SET {}").format(
            SQL(", ").join(SQL("{0} = newest.{0}").format(name) for name in others)
        )
    return SQL(
        "MERGE INTO {target} AS target USING ("
        " SELECT DISTINCT ON ({keys}) {columns}, mqdb_is_tombstone FROM {stage} WHERE {attempt} = ANY (%(attempts)s)"
        " ORDER BY {keys}, mqdb_offset DESC, mqdb_queue_id DESC) AS newest ON {same}"
        " WHEN MATCHED AND newest.mqdb_is_tombstone THEN DELETE"
        " WHEN MATCHED THEN {update}"
        " WHEN NOT MATCHED AND NOT newest.mqdb_is_tombstone THEN INSERT ({columns}) VALUES ({values})"
    ).format(**parts)


def _listed(names: Sequence[str] | Mapping[str, str]) -> Composed:
    return SQL(", ").join(map(Identifier, names))
