"""`Admin` administers brokers from a program or the command line. Each subject has a module.

admin, answers    begin here: one broker or several, and what each of them answered
broker_access     connections; subject: what all subjects have in common
topics, messages, latest_messages, topic_reader   topics, and what is in them
groups, consumers, offsets, dead_letters          who reads, how far, and what was given up
timers, delays, crons, transactions, selectors    what waits; half messages; what a filter means
acl, operations, retention, doctor, versions      rights; who has changed what; the log; what is wrong
"""
