"""The catalogue of the archive: which segments are in Parquet files, and where."""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ARCHIVE = """
CREATE TABLE mqdb.archived_segment (
    segment integer NOT NULL,
    path text,
    topics text[],
    offsets jsonb NOT NULL,
    messages bigint NOT NULL CHECK (messages >= 0),
    bytes bigint NOT NULL CHECK (bytes >= 0),
    first_stored_at timestamptz,
    last_stored_at timestamptz,
    archived_at timestamptz NOT NULL DEFAULT mqdb.now(),
    UNIQUE NULLS NOT DISTINCT (segment, topics),
    CHECK (messages = 0 OR path IS NOT NULL)
);
COMMENT ON TABLE mqdb.archived_segment IS 'The catalogue of the archive: segments, or some topics of them, that were read back from their files and agreed. A row stays when its segment is dropped';
COMMENT ON COLUMN mqdb.archived_segment.path IS 'The folder of its Parquet files, below it topic=/hour=; NULL where there was nothing to write';
COMMENT ON COLUMN mqdb.archived_segment.topics IS 'The topics that were asked for, in order of their names; NULL for all but those of the broker: only that row lets retention drop the segment. Those of all other rows of a segment differ';
COMMENT ON COLUMN mqdb.archived_segment.offsets IS 'What it holds, as {topic: {queue id: [first offset, offset past the last]}}';
COMMENT ON COLUMN mqdb.archived_segment.bytes IS 'Of its files';
COMMENT ON COLUMN mqdb.archived_segment.first_stored_at IS 'Of its oldest message; NULL where it holds none';
COMMENT ON COLUMN mqdb.archived_segment.last_stored_at IS 'Of its youngest message';

CREATE TABLE mqdb.archive_run (
    path text PRIMARY KEY,
    segment integer NOT NULL,
    started_at timestamptz NOT NULL DEFAULT mqdb.now()
);
COMMENT ON TABLE mqdb.archive_run IS 'Folders that are being written. The transaction that makes a folder an archived segment takes its row away; what a crash has left here is removed by the next run';
"""


def upgrade() -> None:
    """Add the tables."""
    op.execute(ARCHIVE)


def downgrade() -> None:
    """Drop them: the files stay, and nobody knows which of them count."""
    op.execute("DROP TABLE mqdb.archive_run; DROP TABLE mqdb.archived_segment")
