"""Consumers. A reader meets them in this order:

push_consumer     the public class; push_consumer_config: its options; message_selector: filters
push_strategy     what a push consumer is made of; consumer_strategy: what a lite pull consumer has, too
members           one consumer on all brokers; member: on one; pop_member: on one, if the group pops;
following_member: one of these two, as the group says
request_answers   what brokers ask of it
queues            which queues are ours, and what is pulled of them
offsets           how far a group has come
listeners         the calls of the user's code, and what its answers mean
"""
