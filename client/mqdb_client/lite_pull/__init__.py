"""Lite pull consumers, which poll. RocketMQ: DefaultLitePullConsumer.

lite_pull_consumer, lite_pull_config    begin here; what it can be told
poll_strategy, poll_buffer              how it reads, and what polls return
assigned_queue, polled_offset_stores    a queue in which a user may seek; what is committed
topic_queues, topic_watch               which queues there are, and when that changes
"""
