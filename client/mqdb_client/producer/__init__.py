"""Producers. Read the packages in this order:

producer          the public class; config and running_producer: its options and its parts
sends             one send and its attempts, with and without an answer
queues            the choice of the queue for an attempt
append            decides how records get into the log, and appends them
joined            sends that join the caller's transaction
requests          requests and their replies
"""
