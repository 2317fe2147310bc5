"""All that waits for a time: delay levels, timers, and recurring sends.

placement, real_queue                 where a record waits, and where it goes then
delay_levels, delay_queues, delay_steps   delay levels, what waits in them, their delivery
timers, timer_looks, timer_steps, timer_slots   timers, what is due, their delivery, their partitions
waiting_timers                        timers as people look at them
cron                                  recurring sends
"""
