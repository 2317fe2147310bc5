"""Deliver what waits for a time, and look at it.

delay, delay_queues     delay levels: deliver, and look at what waits
timers, recall_handles  times of delivery, and how a sender takes a message back
cron                    recurring sends
"""
