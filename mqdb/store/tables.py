"""The current schema on one page. `migrations/` contains its history; a test proves that they agree.

Read it from top to bottom: the identity of the broker, its topics, the log and its indexes, and the progress of all
readers. The comments on the objects are in the database itself (`\\d+ mqdb.commit_log` in psql). Decisions are pages
of docs/decisions.

broker                       its identity, and the settings of `mqdb serve` for filters and durability, for all clients
leader, presence             the leader of the services, and the end of its promise to be alive; the key of the presence
                             lock that each client's LISTEN connection holds
commit_log                   every message once, in order of arrival, partitioned by ranges of `log_pos`. CLUSTER,
                             MSG_REGION, TRACE_ON and WAIT have no meaning here and are not stored; TAGS, KEYS and
                             UNIQ_KEY are columns (0053)
queue_run                    (queue, offset) -> position, offsets 0, 1, 2, ... without gaps; read by `mqdb.entries`
message_index, id_span       hash of a key or unique id -> position; which positions have ids of which time (0052)
segment                      one row per range of positions, whose three partitions are made and dropped together
checkpoint                   append-only progress of dispatch and index: the newest row counts, its key fences
live_queue, deleted_topic    the queues that accept messages, read by each append; names of topics deleted by force,
                             and up to which position waiting messages were deleted with them (0046)
consumer_offset              next offset, owner and epoch of a group on a queue; updated every 5 s
offset_commit                commits of exactly-once consumers and of polls, merged by the owner every 5 s
queue_lock                   the consumer of a queue in order, and the time until which it has the queue exclusively
pop_batch                    messages that were popped but not acknowledged, one row per pop of up to 64
timer, timer_step, timer_recall   messages that wait for a time, by `timer_slot`; append-only progress, whose key
                             fences; recalled messages
half_message, half_step      the state of each half message (PREPARED -> COMMITTED, ROLLED_BACK or DISCARDED; DISCARDED
                             -> PREPARED), and who is asked; `stored_at` begins its age. How far the checker looked
acl, acl_queue, principal    rights (docs/access.md); the rights for each queue, kept by triggers;
                             principals that have a namespace (0064), or are not a role
operation                    changes by people and tools: one row per change, in its transaction (0058)
"""

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    SmallInteger,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    column,
    event,
    func,
    select,
    table,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, INT8RANGE, JSONB, OID, UUID
from sqlalchemy.types import UserDefinedType

metadata = MetaData(schema="mqdb")


class PgSnapshot(UserDefinedType[str]):
    """The type pg_snapshot: which transactions are visible. A str in Python."""

    cache_ok = True

    def get_col_spec(self, **_keywords: Any) -> str:
        """The name of the type in DDL."""
        return "pg_snapshot"


class Xid8(UserDefinedType[str]):
    """The type xid8: a 64-bit transaction id that never wraps. A str in Python."""

    cache_ok = True

    def get_col_spec(self, **_keywords: Any) -> str:
        """The name of the type in DDL."""
        return "xid8"


#: At most one row: the prefix of topic and group names that the current role leaves out.
own_namespace = table("own_namespace", column("namespace", Text), schema="mqdb")


class _Name(TypeDecorator[str]):
    """A name that is stored in full, but given and shown without the role's namespace: `mqdb/sql/acl/namespace.sql`.

    Bound values in a statement are completed, and returned values are shortened. Comparisons between columns use
    complete names.
    """

    impl = Text
    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The expression that a statement selects for a column."""
        namespace = select(own_namespace.c.namespace).scalar_subquery()
        return func.coalesce(func.mqdb.without_namespace(column, namespace, type_=Text()), column, type_=Text())


class TopicName(_Name):
    """The name of a topic."""

    cache_ok = True

    def bind_expression(self, bindvalue: ColumnElement[Any]) -> ColumnElement[Any]:
        """The expression for a bound value."""
        return func.mqdb.full_topic(bindvalue, type_=Text())


class GroupName(_Name):
    """The name of a group, or of a cron."""

    cache_ok = True

    def bind_expression(self, bindvalue: ColumnElement[Any]) -> ColumnElement[Any]:
        """The expression for a bound value."""
        return func.mqdb.full_group(bindvalue, type_=Text())


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
    Column("enable_property_filter", Boolean, nullable=False, server_default=text("true")),
    Column("filter_support_retry", Boolean, nullable=False, server_default=text("false")),
    Column("timer_max_delay_ms", BigInteger, CheckConstraint("timer_max_delay_ms > 0")),
    Column("reject_transaction_message", Boolean, nullable=False, server_default=text("false")),
    Column(
        "default_durability",
        Text,
        CheckConstraint("default_durability IN ('ASYNC_FLUSH', 'SYNC_FLUSH', 'SYNC_MASTER')"),
        nullable=False,
        server_default=text("'SYNC_FLUSH'"),
    ),
    CheckConstraint("segment_size > 0"),
)

leader = Table(
    "leader",
    metadata,
    Column("service_set", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("backend_pid", Integer, nullable=False),
    Column("backend_start", _timestamp),
    Column("expires_at", _timestamp, nullable=False),
    Column("lease", Interval, nullable=False),
)

#: Empty: for the locks of services, see `mqdb.store.locks`.
service_locks = tuple(
    Table(f"lock_{service}", metadata) for service in ("dispatch", "index", "delay", "timer", "transaction")
)

# -- topics -----------------------------------------------------------------------------------

topic = Table(
    "topic",
    metadata,
    Column("topic_id", Integer, Identity(always=True), primary_key=True),
    Column("topic", TopicName, nullable=False, unique=True),
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

live_queue = Table(
    "live_queue",
    metadata,
    Column(
        "queue_key", Integer, ForeignKey("queue.queue_key", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
)

# -- the log ----------------------------------------------------------------------------------

#: Whether the dispatcher sleeps (`mqdb/sql/dispatch/fall_asleep.sql`): a sequence, as senders read it without MVCC.
dispatcher_state = Sequence("dispatcher_state", metadata=metadata, data_type=BigInteger)

#: The position up to which no record waits for dispatch (`mqdb/sql/dispatch/take_places.sql`); also read without MVCC.
placed = Sequence("placed", metadata=metadata, data_type=BigInteger, minvalue=-(2**63), start=-(2**63))
placed_from = Sequence("placed_from", metadata=metadata, data_type=BigInteger, minvalue=0, start=0)

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
    Column("xid", Xid8, server_default=text("pg_current_xact_id()")),
    Column("log_pos", BigInteger, Identity(minvalue=0, cache=1), nullable=False),
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
    Index("commit_log_xid", "xid", "queue_key", "log_pos", postgresql_where=text("xid IS NOT NULL")),
    postgresql_partition_by="RANGE (log_pos)",
)
# SQLAlchemy cannot name the sequence of an identity column. (Its DDL has no annotations.)
event.listen(commit_log, "after_create", DDL("ALTER SEQUENCE mqdb.commit_log_log_pos_seq RENAME TO log_pos"))  # type: ignore[no-untyped-call]

queue_run = Table(
    "queue_run",
    metadata,
    Column("last_offset", BigInteger, nullable=False),
    Column("log_pos", BigInteger),
    Column("tags_code", BigInteger),
    Column("queue_key", Integer, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("positions", ARRAY(BigInteger)),
    Column("codes", ARRAY(BigInteger)),
    CheckConstraint(
        "(log_pos IS NULL) = (tags_code IS NULL) AND (log_pos IS NULL) = (positions IS NOT NULL)"
        " AND (positions IS NULL) = (codes IS NULL)",
        name="one_or_many",
    ),
    CheckConstraint(
        "cardinality(positions) BETWEEN 2 AND 100 AND cardinality(codes) = cardinality(positions)", name="longest_run"
    ),
    Index("queue_run_offset", "queue_key", "last_offset"),
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

id_span = Table(
    "id_span",
    metadata,
    Column("first_pos", BigInteger, primary_key=True, autoincrement=False),
    Column("last_pos", BigInteger, nullable=False),
    Column("made_ms", INT8RANGE, nullable=False),
    Index("id_span_made_ms", "made_ms", postgresql_using="gist"),
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
    Column("stragglers_cur", PgSnapshot),
    Column("stragglers_tail", BigInteger),
    Column("straggler_xid", Xid8),
    Column("straggler_key", Integer),
    Column("straggler_pos", BigInteger),
    PrimaryKeyConstraint("service", "seq"),
)

dispatch_lane = Table(
    "dispatch_lane",
    metadata,
    Column("service", Text, primary_key=True),
    Column("queue_keys", ARRAY(Integer), nullable=False),
)

# -- consumers and clients --------------------------------------------------------------------

subscription_group = Table(
    "subscription_group",
    metadata,
    Column("group_id", Integer, Identity(always=True), primary_key=True),
    Column("group_name", GroupName, nullable=False, unique=True),
    Column("consume_enable", Boolean, nullable=False, server_default=text("true")),
    Column("consume_broadcast_enable", Boolean, nullable=False, server_default=text("true")),
    Column("retry_queue_nums", Integer, nullable=False, server_default=text("1")),
    Column("retry_max_times", Integer, nullable=False, server_default=text("16")),
    Column("consume_mode", Text, nullable=False, server_default=text("'PULL'")),
    Column("consume_message_orderly", Boolean, nullable=False, server_default=text("false")),
    Column("retry_delays", ARRAY(Interval)),
    Column("consume_from_where", Text, nullable=False, server_default=text("'LAST_OFFSET'")),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
    Column("subscription_version", BigInteger, nullable=False, server_default=text("0")),
    Column(
        "created_pos",
        BigInteger,
        nullable=False,
        server_default=text("coalesce(pg_sequence_last_value('mqdb.log_pos'), 0)"),
    ),
    Index("subscription_group_created_pos", "created_pos"),
)

subscription = Table(
    "subscription",
    metadata,
    Column("group_id", Integer, ForeignKey("subscription_group.group_id", ondelete="CASCADE"), primary_key=True),
    Column("topic", TopicName, primary_key=True),
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
    Column("begun", Boolean, nullable=False, server_default=text("true")),
    Column("reset_at", _timestamp),
)

client = Table(
    "client",
    metadata,
    Column("client_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("group_name", GroupName, primary_key=True),
    Column("message_model", Text, nullable=False, server_default=text("'CLUSTERING'")),
    Column("language", Text, nullable=False),
    Column("version", Text, nullable=False),
    Column("registered_at", _timestamp, nullable=False, server_default=_now),
    Column("heartbeat_at", _timestamp, nullable=False, server_default=_now),
    Column("checks_transactions", Boolean, nullable=False, server_default=text("false")),
    Column("principal", Text, primary_key=True, server_default=text("SESSION_USER")),
    Index("client_group", "group_name", "kind"),
)

presence = Table(
    "presence",
    metadata,
    Column("client_id", Text, primary_key=True),
    Column("principal", Text, primary_key=True, server_default=text("SESSION_USER")),
    Column("lock_key", BigInteger, nullable=False),
)

queue_lock = Table(
    "queue_lock",
    metadata,
    Column("group_id", Integer, ForeignKey("subscription_group.group_id", ondelete="CASCADE"), primary_key=True),
    Column("queue_key", Integer, ForeignKey("queue.queue_key", ondelete="CASCADE"), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires_at", _timestamp, nullable=False),
    Column("expiry", Interval, nullable=False),
)

offset_commit = Table(
    "offset_commit",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("queue_key", Integer, primary_key=True, autoincrement=False),
    Column("from_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("committed_at", _timestamp, nullable=False, server_default=_now),
    CheckConstraint("next_offset > from_offset"),
    # No foreign keys to group and queue: each commit of each consumer would lock the single row of the group.
    ForeignKeyConstraint(
        ["group_id", "queue_key"], ["consumer_offset.group_id", "consumer_offset.queue_key"], ondelete="CASCADE"
    ),
)

pop_batch = Table(
    "pop_batch",
    metadata,
    Column("group_id", Integer, primary_key=True, autoincrement=False),
    Column("queue_key", Integer, primary_key=True, autoincrement=False),
    Column("batch_id", BigInteger, Identity(always=True), primary_key=True),
    Column("visible_at", _timestamp, primary_key=True),
    Column("attempt", Integer, nullable=False, server_default=text("1")),
    Column("segment", Integer, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("steps", ARRAY(Integer)),
    Column("in_flight", BigInteger, nullable=False),
    Column("client_id", Text, nullable=False),
    Column("popped_at", _timestamp, nullable=False, server_default=_now),
    # As in offset_commit. A pop has locked the row that it refers to.
    ForeignKeyConstraint(
        ["group_id", "queue_key"], ["consumer_offset.group_id", "consumer_offset.queue_key"], ondelete="CASCADE"
    ),
    Index("pop_batch_visible_at", "group_id", "visible_at"),
)

client_request = Table(
    "client_request",
    metadata,
    Column("request_id", BigInteger, Identity(always=True), primary_key=True),
    Column("client_id", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("arguments", JSONB, nullable=False, server_default=text("'{}'")),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
    Column("answer", JSONB),
    Column("answered_at", _timestamp),
    Column("principal", Text, nullable=False, server_default=text("SESSION_USER")),
    Index("client_request_open", "client_id", postgresql_where=text("answered_at IS NULL")),
)

# -- waiting and dead messages ------------------------------------------------------------------

delay_level = Table(
    "delay_level",
    metadata,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("delay", Interval, nullable=False),
)

delay_offset = Table(
    "delay_offset",
    metadata,
    Column("level", SmallInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("written_at", _timestamp, nullable=False, server_default=_now),
)

deleted_topic = Table(
    "deleted_topic",
    metadata,
    Column("topic", Text, primary_key=True),
    Column(
        "last_pos",
        BigInteger,
        nullable=False,
        server_default=text("coalesce(pg_sequence_last_value('mqdb.log_pos'), 0)"),
    ),
    Column("deleted_at", _timestamp, nullable=False, server_default=_now),
)

cron = Table(
    "cron",
    metadata,
    Column("name", GroupName, primary_key=True),
    Column("cron", Text, nullable=False),
    Column("timezone", Text, nullable=False, server_default=text("'UTC'")),
    Column("topic", TopicName, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("tag", Text),
    Column("keys", Text),
    Column("properties", JSONB, nullable=False, server_default=text("'{}'")),
    Column("sharding_key", Text),
    Column("catch_up", Text, nullable=False, server_default=text("'once'")),
    Column("is_paused", Boolean, nullable=False, server_default=text("false")),
    Column("next_at", _timestamp, nullable=False),
    Column("last_fired_at", _timestamp),
    Column("sent", BigInteger, nullable=False, server_default=text("0")),
    Column("skipped", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
    Column("created_by", Text, nullable=False, server_default=text("CURRENT_USER")),
    Column("principal", Text),
    Column("slot", SmallInteger),
    Column("application", GroupName),
    UniqueConstraint("principal", "slot"),
)

timer = Table(
    "timer",
    metadata,
    Column("deliver_ms", BigInteger, nullable=False),
    Column("log_pos", BigInteger, nullable=False),
    Column("store_time", _timestamp, nullable=False),
    Column("born_time", _timestamp, nullable=False),
    Column("msg_id", UUID, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("sys_flag", Integer, nullable=False),
    Column("flag", Integer, nullable=False),
    Column("reconsume_times", Integer, nullable=False),
    Column("born_host", Text, nullable=False),
    Column("tags", Text),
    Column("keys", Text),
    Column("properties", JSONB, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("timer_due", "deliver_ms", "log_pos"),
    Index("timer_msg_id", "msg_id"),
    Index("timer_retry", "log_pos", postgresql_where=text("starts_with(properties ->> 'REAL_TOPIC', '%RETRY%')")),
    postgresql_partition_by="LIST (slot)",
)

timer_slot = Table(
    "timer_slot",
    metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("first_ms", BigInteger, nullable=False),
    Column("past_ms", BigInteger, nullable=False),
    Column("created_at", _timestamp, nullable=False, server_default=_now),
)

timer_step = Table(
    "timer_step",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("delivered_ms", BigInteger, nullable=False),
    Column("delivered_pos", BigInteger, nullable=False),
    Column("next_due_ms", BigInteger, nullable=False),
    Column("waiting", BigInteger, nullable=False, server_default=text("0")),
    Column("collected", Integer, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("written_at", _timestamp, nullable=False, server_default=_now),
)

timer_recall = Table(
    "timer_recall",
    metadata,
    Column("log_pos", BigInteger, primary_key=True, autoincrement=False),
    Column("deliver_ms", BigInteger, nullable=False),
)

redrive_result = Table(
    "redrive_result",
    metadata,
    Column("operation_id", BigInteger, primary_key=True, autoincrement=False),
    Column("log_pos", BigInteger, primary_key=True, autoincrement=False),
    Column("group_name", Text),
    Column("msg_id", UUID),
    Column("status", Text, nullable=False),
    Column("error", Text),
    Column("new_log_pos", BigInteger),
    Column("redriven_at", _timestamp, nullable=False, server_default=_now),
    Index("redrive_result_log_pos", "log_pos"),
    Index("redrive_result_msg_id", "msg_id"),
)

# -- rights and operations -------------------------------------------------------------------

acl = Table(
    "acl",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("access", Text, primary_key=True),
    Column("resource_type", Text, primary_key=True),
    Column("resource", Text, primary_key=True),
    Column("granted_at", _timestamp, nullable=False, server_default=_now),
)

principal = Table(
    "principal",
    metadata,
    Column("principal", Text, primary_key=True),
    Column("is_role", Boolean, nullable=False, server_default=text("true")),
    Column("namespace", Text),
    Column("secret", Text),
)

acl_queue = Table(
    "acl_queue",
    metadata,
    Column("principal", Text, primary_key=True),
    Column(
        "queue_key",
        Integer,
        ForeignKey("queue.queue_key", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    Column("may_send", Boolean, nullable=False),
    Column("may_read", Boolean, nullable=False),
    Index("acl_queue_queue_key", "queue_key"),
)

operation = Table(
    "operation",
    metadata,
    Column("operation_id", BigInteger, Identity(always=True), primary_key=True),
    Column("occurred_at", _timestamp, nullable=False, server_default=_now),
    Column("principal", Text, nullable=False),
    Column("actor", Text),
    Column("verb", Text, nullable=False),
    Column("topics", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("groups", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("object", Text),
    Column("before", JSONB),
    Column("after", JSONB),
    Column("records", BigInteger, nullable=False),
    Column("reason", Text),
    Index("operation_occurred_at", "occurred_at"),
    Index("operation_names", "topics", "groups", postgresql_using="gin"),
    Index("operation_object", "object"),
)

# -- transactions -----------------------------------------------------------------------------

half_message = Table(
    "half_message",
    metadata,
    Column("log_pos", BigInteger, primary_key=True, autoincrement=False),
    Column("queue_offset", BigInteger),
    Column("msg_id", UUID, nullable=False),
    Column("producer_group", Text, nullable=False),
    Column("topic", TopicName, nullable=False),
    Column("state", Text, nullable=False, server_default=text("'PREPARED'")),
    Column("check_times", Integer, nullable=False, server_default=text("0")),
    Column("stored_at", _timestamp, nullable=False),
    Column("check_at", _timestamp),
    Column("check_wait", Interval, nullable=False, server_default=text("'0'")),
    Column("check_client", Text),
    Column("ended_at", _timestamp),
    Column("copy_pos", BigInteger),
    Column("principal", Text),
    Index("half_message_check_at", "check_at", postgresql_where=text("state = 'PREPARED'")),
    Index("half_message_check_client", "check_client", postgresql_where=text("check_client IS NOT NULL")),
    Index("half_message_discarded", "log_pos", postgresql_where=text("state = 'DISCARDED'")),
)

half_step = Table(
    "half_step",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("messages", Integer, nullable=False),
    Column("written_at", _timestamp, nullable=False, server_default=_now),
)

# -- tables of Spark --------------------------------------------------------------------------

sink_batch = Table(
    "sink_batch",
    metadata,
    Column("sink_id", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("query_id", Text),
    Column("messages", BigInteger, nullable=False),
    Column("checksum", BigInteger),
    Column("brokers", ARRAY(Text)),
    Column("committed_at", _timestamp, nullable=False, server_default=_now),
    Column("principal", Text, nullable=False, server_default=text("mqdb.sink_principal()")),
    PrimaryKeyConstraint("principal", "sink_id", "batch_id"),
)

sink_write = Table(
    "sink_write",
    metadata,
    Column("write_id", UUID, primary_key=True),
    Column("sink_id", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("staged_at", _timestamp, nullable=False, server_default=_now),
    Column("principal", Text, nullable=False, server_default=text("mqdb.sink_principal()")),
    Index("sink_write_batch", "principal", "sink_id", "batch_id"),
    prefixes=["UNLOGGED"],
)

sink_stage = Table(
    "sink_stage",
    metadata,
    Column("write_id", UUID, nullable=False),
    Column("born_time", _timestamp, nullable=False),
    Column("tags_code", BigInteger, nullable=False),
    Column("deliver_ms", BigInteger),
    Column("msg_id", UUID, nullable=False),
    Column("seq", Integer, nullable=False),
    Column("queue_key", Integer, nullable=False),
    Column("delay_level", Integer),
    Column("born_host", Text, nullable=False),
    Column("tags", Text),
    Column("keys", Text),
    Column("properties", JSONB, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("sink_stage_write", "write_id", "seq"),
    prefixes=["UNLOGGED"],
)

sink_part = Table(
    "sink_part",
    metadata,
    Column("sink_id", Text, nullable=False),
    Column("batch_id", BigInteger, nullable=False),
    Column("part", Integer, nullable=False),
    Column("write_id", UUID, nullable=False, unique=True),
    Column("messages", BigInteger, nullable=False),
    Column("moved", BigInteger, nullable=False, server_default=text("0")),
    Column("next_seq", Integer, nullable=False, server_default=text("0")),
    Column("waits", Boolean, nullable=False),
    Column("principal", Text, nullable=False, server_default=text("mqdb.sink_principal()")),
    PrimaryKeyConstraint("principal", "sink_id", "batch_id", "part"),
    CheckConstraint("moved BETWEEN 0 AND messages"),
)

# -- the archive ------------------------------------------------------------------------------

archived_segment = Table(
    "archived_segment",
    metadata,
    Column("segment", Integer, nullable=False),
    Column("path", Text),
    Column("topics", ARRAY(Text)),
    Column("offsets", JSONB, nullable=False),
    Column("messages", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("first_stored_at", _timestamp),
    Column("last_stored_at", _timestamp),
    Column("archived_at", _timestamp, nullable=False, server_default=_now),
    UniqueConstraint("segment", "topics", postgresql_nulls_not_distinct=True),
    CheckConstraint("messages >= 0"),
    CheckConstraint("bytes >= 0"),
    CheckConstraint("messages = 0 OR path IS NOT NULL"),
)

archive_run = Table(
    "archive_run",
    metadata,
    Column("path", Text, primary_key=True),
    Column("segment", Integer, nullable=False),
    Column("started_at", _timestamp, nullable=False, server_default=_now),
)
