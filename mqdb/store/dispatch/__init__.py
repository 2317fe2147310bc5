"""What dispatch keeps: how far each service is, and the consume queues.

checkpoints             how far each service is
entries, consume_queue  which record has which offset
queues, unread          the ends of queues; which hold something new
"""
