"""Queues of a member.

rebalance_service  decides which queues are ours; share: by which strategy
queue_ownership    takes, renews and gives back
pull_service       pulls what may be there; pull_schedule: when
process_queue      what was pulled of one queue and is not done
broker_pops        pops of a broker, where nobody owns a queue; popped_queue: what is in hand of one;
                   consume_pace: how much is to be in hand
"""
