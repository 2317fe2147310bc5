"""The append: records of many sends go to the log together.

    append_plan       the decisions, without threads or I/O; refusals: which message may have caused an error
    group_append      the threads and the loop that carry it out; waking: how a thread is woken without a lock
    broker_link       the connections of one broker
    held_connection   a connection that is kept for appends
    durability        what a commit waits for

The names below are all that the front and the event loop clients need.
"""

from mqdb_client.producer.append.append_plan import NoAnswer, Unit
from mqdb_client.producer.append.broker_link import BrokerLink
from mqdb_client.producer.append.group_append import LATENESS_SECONDS, GroupAppend
from mqdb_client.producer.append.waking import Waking

__all__ = ["LATENESS_SECONDS", "BrokerLink", "GroupAppend", "NoAnswer", "Unit", "Waking"]
