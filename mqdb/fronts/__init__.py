"""What the fronts for RocketMQ's clients share, whatever protocol they speak.

    front_thread   a loop in a thread of its own, from start to stop, and its probes
    repeating      what a front does again and again
    believed       answers of the database that are believed for a while
    receiving      consumers wait for messages, one pop under way for all
    receipts       acknowledgements go together; messages come again, or are given back
    known_groups   settings and subscriptions of groups that pop
    appends        records of clients go to the log by group append
    access_keys    who has signed, and what a key may do
    known_names    how the broker knows clients and producer groups that have a key
    database       verbs in threads

Imports point down this list.
"""
