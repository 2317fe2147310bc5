"""The state of dispatch: the progress of each service, and the consume queues.

checkpoints             the progress of each service
entries, consume_queue  the record at each offset of a queue
queues, unread          the ends of queues; queues with new messages
"""
