"""Queues of a member.

rebalance_service  decides which queues this member reads; share: its strategy
queue_ownership    takes, renews and gives back
pull_service       pulls queues that may have messages; pull_schedule: their order
process_queue      the messages of one queue that were pulled and are not done
broker_pops        pops of a broker, without owners of queues; popped_queue: its messages in hand;
                   consume_pace: the number of messages to hold in hand
"""
