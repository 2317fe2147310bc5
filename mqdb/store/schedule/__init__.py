"""Everything that waits for a time: delay levels, timers, and recurring sends.

placement, real_queue                 where a record waits, and its target queue
delay_levels, delay_queues, delay_steps   delay levels, their waiting messages, and the delivery
timers, timer_looks, timer_steps, timer_slots   timers, due timers, their delivery, their partitions
waiting_timers                        timers as shown to people
cron                                  recurring sends
"""
