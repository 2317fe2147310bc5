"""Compression: the view mqdb.message says how a body is compressed, and shows no compressed one as text.

Nothing that is stored changes: sys_flag has been there from the beginning.
"""

from alembic import op

from mqdb.store.migrations import function_sql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

#: Replaced, not dropped and made anew: what people have granted on it or built upon it stays. So the column comes last.
VIEW = """
CREATE OR REPLACE VIEW mqdb.message AS
SELECT t.topic, q.queue_id, cq.queue_offset, mqdb.unique_id_text(cl.msg_id) AS msg_id, cl.tags, cl.keys, cl.properties,
       CASE WHEN cl.sys_flag & 1 = 0 THEN mqdb.body_text(cl.body) END AS text, cl.body, cl.born_time, cl.store_time,
       cl.born_host, cl.reconsume_times, cl.flag, cl.sys_flag, cl.log_pos, q.queue_key,
       mqdb.compression(cl.sys_flag) AS compression
FROM mqdb.topic t
JOIN mqdb.queue q USING (topic_id)
JOIN mqdb.consume_queue cq USING (queue_key)
JOIN mqdb.commit_log cl USING (log_pos)
WHERE cq.queue_offset >= q.base_offset;
COMMENT ON COLUMN mqdb.message.text IS 'The body as text, NULL where it is compressed or not UTF-8';
COMMENT ON COLUMN mqdb.message.body IS 'The body as it is stored, compressed where compression says how';
COMMENT ON COLUMN mqdb.message.compression IS 'How the sender compressed the body: ZLIB, LZ4 or ZSTD; NULL where it is plain';
COMMENT ON COLUMN mqdb.commit_log.sys_flag IS 'Bit 0: the body is compressed; bits 8 to 10: how, 0 and 3 ZLIB, 1 LZ4, 2 ZSTD. RocketMQ: MessageSysFlag';
"""


def upgrade() -> None:
    """Replace the view by one with the column."""
    op.execute(function_sql("compression_v1"))
    op.execute(VIEW)


def downgrade() -> None:
    """Not offered: an older mqdb would hand out compressed bodies as they are stored."""
    raise NotImplementedError("restore a backup from before the migration instead")
