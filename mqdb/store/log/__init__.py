"""The log: records, their index, histories, and reads in bulk.

commit_log               records, as they are appended; properties: those that have columns
queue_fence              the queue lookup of an append; joined_append: appends in the caller's transaction
message_index            records by key and unique id
history, proofs          the history of the log, and whether a position belongs to it
time_search              the offset of a time
message_trace, message_statistics   one message; counts
sink, sink_ledger        Spark batches, and reports on them
"""
