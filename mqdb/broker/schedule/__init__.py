"""Deliver waiting messages, and look at them.

delay, delay_queues     delay levels: deliver, and look at waiting messages
timers, recall_handles  times of delivery, and recalls by senders
cron                    recurring sends
"""
