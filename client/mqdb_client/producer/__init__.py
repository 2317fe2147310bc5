"""Producers. A reader meets the rooms in this order:

producer          the public class; config, running_producer: what it works with
sends             one send and its attempts, with and without an answer
queues            which queue an attempt goes to
append            what is decided and done until the records are in the log
joined            sends in the caller's transaction
requests          requests and their replies
"""
