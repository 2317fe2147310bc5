"""Queues of a member.

rebalance_service  decides which queues this member reads; share: its strategy
queue_ownership    takes, renews and gives back queues
pull_service       pulls queues that may have messages; pull_schedule: their order
process_queue      the messages of one queue that were pulled but are not done
broker_pops        pops from a broker, without queue ownership; popped_queue: the popped messages in hand;
                   consume_pace: the number of messages to hold in hand
"""
