"""The verbs that deliver and show waiting messages.

delay, delay_queues     delay levels: deliver and show waiting messages
timers, recall_handles  times of delivery, and recalls by senders
cron                    recurring sends
"""
