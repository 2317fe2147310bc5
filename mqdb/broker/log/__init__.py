"""Send, look up, read in bulk.

send                records go into the log; outcome: what became of one without an answer
messages, trace     the copies of a message, and how far each has come; query: one message, and who the broker is
proofs              whether a client may go on at a position
replies             requests and their replies
sink, sink_outlook  batches of Spark, of one broker and of several; message_statistics: counts for it
"""
