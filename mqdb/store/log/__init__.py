"""The log: records, their index, histories, and reads in bulk.

commit_log               records, as they are appended; properties: those that have columns
queue_fence              an append looks its queue up; joined_append: in the caller's transaction
message_index            records by key and unique id
history, proofs          the history of the log, and whether a position belongs to it
time_search              the offset of a time
message_trace, message_statistics   one message; counts
sink, sink_ledger        batches of Spark, and reports on them
"""
