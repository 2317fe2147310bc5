"""The exactly-once sink of Spark: what its tasks have staged, and which batches are in the log."""

from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

SINK = """
CREATE TABLE mqdb.sink_batch (
    sink_id text NOT NULL,
    batch_id bigint NOT NULL CHECK (batch_id >= 0),
    query_id text,
    messages bigint NOT NULL CHECK (messages >= 0),
    committed_at timestamptz NOT NULL DEFAULT mqdb.now(),
    PRIMARY KEY (sink_id, batch_id)
);
COMMENT ON TABLE mqdb.sink_batch IS 'The batches that Spark has written: a row is inserted by the transaction that appends the messages, so no batch is appended twice';
COMMENT ON COLUMN mqdb.sink_batch.sink_id IS 'stream:<query id or sinkId>, or batch:<writeId>';
COMMENT ON COLUMN mqdb.sink_batch.batch_id IS 'Of the streaming query; 0 for a batch job';
COMMENT ON COLUMN mqdb.sink_batch.query_id IS 'Of the checkpoint that the batch ids count in; NULL for a batch job';

CREATE UNLOGGED TABLE mqdb.sink_write (
    write_id uuid PRIMARY KEY,
    sink_id text NOT NULL,
    batch_id bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT mqdb.now()
);
CREATE INDEX sink_write_batch ON mqdb.sink_write (sink_id, batch_id);
COMMENT ON TABLE mqdb.sink_write IS 'One row for each attempt of a task of Spark that has staged messages; empty after a crash, as its rows of sink_stage are';
COMMENT ON INDEX mqdb.sink_write_batch IS 'What a commit clears away';

CREATE UNLOGGED TABLE mqdb.sink_stage (
    write_id uuid NOT NULL,
    born_time timestamptz NOT NULL,
    tags_code bigint NOT NULL,
    deliver_ms bigint,
    msg_id uuid NOT NULL,
    seq integer NOT NULL,
    queue_key integer NOT NULL,
    delay_level integer,
    born_host text NOT NULL,
    tags text,
    keys text,
    properties jsonb NOT NULL,
    body bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, autovacuum_vacuum_insert_threshold = -1);
CREATE INDEX sink_stage_write ON mqdb.sink_stage (write_id, seq);
COMMENT ON TABLE mqdb.sink_stage IS 'Messages that tasks of Spark have written and that wait for the commit of their batch. A crash of PostgreSQL empties it: the commit finds too few, and Spark runs the batch again';
COMMENT ON COLUMN mqdb.sink_stage.seq IS 'Place among the messages of its task';
COMMENT ON COLUMN mqdb.sink_stage.delay_level IS 'As mqdb.place is told; NULL for a message that waits for no level';
COMMENT ON COLUMN mqdb.sink_stage.deliver_ms IS 'As mqdb.place is told, in ms since 1970; NULL for a message that waits for no time';
COMMENT ON INDEX mqdb.sink_stage_write IS 'What a task has staged, in its order';
"""


def upgrade() -> None:
    """Add the tables."""
    op.execute(SINK)


def downgrade() -> None:
    """Drop them: batches that Spark runs again after that are appended again."""
    op.execute("DROP TABLE mqdb.sink_stage; DROP TABLE mqdb.sink_write; DROP TABLE mqdb.sink_batch")
