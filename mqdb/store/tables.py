"""The schema on one page, as it is today. `migrations/` tells how it came to be; a test proves they agree.

Read it from top to bottom: who the broker is, what topics it has, the log and its indexes, how far everyone
has come. The comments on the objects are in the database itself (`\\d+ mqdb.commit_log` in psql).
"""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB, OID, UUID
from sqlalchemy.types import UserDefinedType

metadata = MetaData(schema="mqdb")


class PgSnapshot(UserDefinedType[str]):
    """pg_snapshot: which transactions are visible. Text in Python."""

    cache_ok = True

    def get_col_spec(self, **_keywords: Any) -> str:
        """The name of the type in DDL."""
        return "pg_snapshot"


class Xid8(UserDefinedType[str]):
    """xid8: a 64-bit transaction id that never wraps. Text in Python."""

    cache_ok = True

    def get_col_spec(self, **_keywords: Any) -> str:
        """The name of the type in DDL."""
        return "xid8"


_timestamp = DateTime(timezone=True)
_now = text("mqdb.now()")

# -- the broker -------------------------------------------------------------------------------

broker = Table(
    "broker",
    metadata,
    Column("one_row", Boolean, CheckConstraint("one_row"), primary_key=True, server_default=text("true")),
    Column("broker_name", Text, nullable=False),
    Column("cluster_name", Text, nullable=False),
    Column("segment_size", BigInteger, nullable=False),
    Column("system_identifier", BigInteger, nullable=False),
    Column("database_oid", OID, nullable=False),
    Column("created_at", _timestamp, nullable=False),
    CheckConstraint("segment_size > 0"),
)

leader = Table(
    "leader",
    metadata,
    Column("service_set", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("backend_pid", Integer, nullable=False),
    Column("expires_at", _timestamp, nullable=False),
)

# -- topics -----------------------------------------------------------------------------------

topic = Table(
    "topic",
    metadata,
    Column("topic_id", Integer, Identity(always=True), primary_key=True),
    Column("topic", Text, nullable=False, unique=True),
    Column("read_queue_nums", Integer, nullable=False),
    Column("write_queue_nums", Integer, nullable=False),
    Column("perm", SmallInteger, nullable=False),
    Column("ordered", Boolean, nullable=False, server_default=text("false")),
    Column("message_type", Text, nullable=False, server_default=text("'NORMAL'")),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
)

queue = Table(
    "queue",
    metadata,
    Column("queue_key", Integer, Identity(always=True), primary_key=True),
    Column("topic_id", Integer, ForeignKey("topic.topic_id", ondelete="CASCADE"), nullable=False),
    Column("queue_id", Integer, nullable=False),
    Column("base_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("end_offset", BigInteger, nullable=False, server_default=text("0")),
    UniqueConstraint("topic_id", "queue_id"),
)

# -- the log ----------------------------------------------------------------------------------

log_pos = Sequence("log_pos", metadata=metadata, data_type=BigInteger, minvalue=0, cache=1)

segment = Table(
    "segment",
    metadata,
    Column("segment", Integer, primary_key=True, autoincrement=False),
    Column("start_pos", BigInteger, nullable=False, unique=True),
    Column("end_pos", BigInteger, nullable=False),
    Column("lowest_log_pos", BigInteger, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'open'")),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
    Column("closed_at", _timestamp),
    Column("sealed_at", _timestamp),
)

commit_log = Table(
    "commit_log",
    metadata,
    Column("xid", Xid8, nullable=False, server_default=text("pg_current_xact_id()")),
    Column("log_pos", BigInteger, nullable=False, server_default=text("nextval('mqdb.log_pos')")),
    Column("store_time", _timestamp, nullable=False, server_default=_now),
    Column("born_time", _timestamp, nullable=False),
    Column("tags_code", BigInteger, nullable=False),
    Column("msg_id", UUID, nullable=False),
    Column("queue_key", Integer, nullable=False),
    Column("sys_flag", Integer, nullable=False, server_default=text("0")),
    Column("flag", Integer, nullable=False, server_default=text("0")),
    Column("reconsume_times", Integer, nullable=False, server_default=text("0")),
    Column("born_host", Text, nullable=False),
    Column("tags", Text),
    Column("keys", Text),
    Column("properties", JSONB, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("log_pos"),
    Index("commit_log_xid", "xid", "log_pos"),
    postgresql_partition_by="RANGE (log_pos)",
)

consume_queue = Table(
    "consume_queue",
    metadata,
    Column("queue_offset", BigInteger, nullable=False),
    Column("log_pos", BigInteger, nullable=False),
    Column("tags_code", BigInteger, nullable=False),
    Column("queue_key", Integer, nullable=False),
    Column("segment", Integer, nullable=False),
    Index("consume_queue_offset", "queue_key", "queue_offset"),
    postgresql_partition_by="LIST (segment)",
)

message_index = Table(
    "message_index",
    metadata,
    Column("key_hash", BigInteger, nullable=False),
    Column("log_pos", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Index("message_index_key", "key_hash"),
    postgresql_partition_by="LIST (segment)",
)

checkpoint = Table(
    "checkpoint",
    metadata,
    Column("service", Text, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("prev", PgSnapshot, nullable=False),
    Column("cur", PgSnapshot, nullable=False),
    Column("done_pos", BigInteger, nullable=False),
    Column("tail_pos", BigInteger, nullable=False),
    Column("floor_pos", BigInteger, nullable=False, server_default=text("0")),
    Column("segment", Integer, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("written_at", _timestamp, nullable=False, server_default=_now),
    PrimaryKeyConstraint("service", "seq"),
)

# -- consumers and clients --------------------------------------------------------------------

subscription_group = Table(
    "subscription_group",
    metadata,
    Column("group_id", Integer, Identity(always=True), primary_key=True),
    Column("group_name", Text, nullable=False, unique=True),
    Column("consume_enable", Boolean, nullable=False, server_default=text("true")),
    Column("consume_broadcast_enable", Boolean, nullable=False, server_default=text("true")),
    Column("retry_queue_nums", Integer, nullable=False, server_default=text("1")),
    Column("retry_max_times", Integer, nullable=False, server_default=text("16")),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
)

subscription = Table(
    "subscription",
    metadata,
    Column("group_id", Integer, ForeignKey("subscription_group.group_id", ondelete="CASCADE"), primary_key=True),
    Column("topic", Text, primary_key=True),
    Column("expression_type", Text, nullable=False, server_default=text("'TAG'")),
    Column("expression", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
)

consumer_offset = Table(
    "consumer_offset",
    metadata,
    Column("group_id", Integer, ForeignKey("subscription_group.group_id", ondelete="CASCADE"), primary_key=True),
    Column("queue_key", Integer, ForeignKey("queue.queue_key", ondelete="CASCADE"), primary_key=True),
    Column("next_offset", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False, server_default=text("0")),
    Column("owner", Text),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("updated_at", _timestamp, nullable=False, server_default=_now),
)

client = Table(
    "client",
    metadata,
    Column("client_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("group_name", Text, primary_key=True),
    Column("message_model", Text, nullable=False, server_default=text("'CLUSTERING'")),
    Column("language", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("registered_at", _timestamp, nullable=False, server_default=_now),
    Column("heartbeat_at", _timestamp, nullable=False, server_default=_now),
    Index("client_group", "group_name", "kind"),
)
