"""Consumers. Read the modules in this order:

push_consumer     the public class; push_consumer_config: its options; message_selector: filters
push_strategy     the parts of a push consumer; consumer_strategy: the interface that a lite pull consumer shares
members           one consumer on all brokers; member: on one broker; pop_member: on one broker if the group pops;
following_member: one of these two, depending on the group
request_answers   answers to requests from brokers
queues            which queues a member owns, and what it pulls
offsets           the progress of a group
listeners         calls of the user's code, and the meaning of its answers
"""
