"""Parts that the fronts for RocketMQ's clients share, for all protocols.

    front_thread   a loop in a thread of its own, from start to stop, and its probes
    repeating      repeated work of a front
    believed       answers of the database that are cached for a while
    receiving      consumers wait for messages, with one pop under way for all
    receipts       acknowledgements go together; messages come again, or are given back
    known_groups   settings and subscriptions of groups that pop
    appends        records of clients go to the log by group append
    access_keys    access keys: their secrets and rights
    known_names    names of the broker for clients and producer groups that have a key
    database       verbs in threads

Modules import only from modules further down this list.
"""
