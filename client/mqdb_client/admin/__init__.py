"""`Admin` manages brokers from a program or the command line. Each subject has a module.

admin, answers    start here: one broker or several, and the result of each
broker_access     connections; subject: what all subjects have in common
topics, messages, latest_messages, topic_reader   topics and their messages
groups, consumers, offsets, dead_letters          groups, their members, progress and dead letters
timers, delays, crons, transactions, selectors    waiting messages; half messages; the meaning of a filter
acl, operations, retention, doctor, versions      rights; past changes; the log; problems; versions
"""
