"""The verbs that send, look up and read in bulk.

send                appends records to the log; outcome: finds the outcome of a send without an answer
messages, trace     the copies of a message and their states; query: one message, and the identity of the broker
proofs              whether a client may continue at a position
replies             requests and their replies
sink, sink_outlook  Spark batches for one broker and for several; message_statistics: counts for Spark
"""
